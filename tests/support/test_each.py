from __future__ import annotations

import asyncio

import pytest

from tests.support.each import SeveralFailed, at_once, each


def test_all_cases_run_and_those_that_fail_are_named() -> None:
    seen: list[tuple[int, str]] = []

    @each("number", [1, 2])
    @each("letter", "ab")
    def looped(number: int, letter: str) -> None:
        seen.append((number, letter))
        assert letter != "b"

    with pytest.raises(SeveralFailed, match="2 failed: 1-b, 2-b"):
        looped()  # type: ignore[call-arg]
    assert seen == [(1, "a"), (1, "b"), (2, "a"), (2, "b")]


async def test_cases_that_wait_run_side_by_side() -> None:
    all_there = asyncio.Barrier(3)

    @at_once("number", range(3))
    async def together(number: int) -> None:
        async with asyncio.timeout(60):
            await all_there.wait()
        assert number != 1

    with pytest.raises(SeveralFailed, match="1 failed: 1"):
        await together()  # type: ignore[call-arg]


@pytest.mark.parametrize("loop", [each, at_once])
async def test_no_cases_are_a_failure(loop: type) -> None:
    @loop("number", [])
    async def nothing(number: int) -> None:
        raise NotImplementedError

    with pytest.raises(AssertionError, match="no cases"):
        await nothing()

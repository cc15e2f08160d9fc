"""Waiting on facts, on plain asyncio: no sleeps, a deadline in loop turns and in seconds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

DEADLINE_S: Final = 30.0


_TURNS_WITHOUT_REST: Final = 200
_REST_S: Final = 0.002


async def until(fact: Callable[[], object], what: str = "the fact") -> None:
    """Yield to the loop until `fact()` is true; fails after `DEADLINE_S`.

    A fact that takes a while is polled at intervals: other tests need the CPU.
    """
    try:
        async with asyncio.timeout(DEADLINE_S):
            turn = 0
            while not fact():
                await asyncio.sleep(0 if turn < _TURNS_WITHOUT_REST else _REST_S)
                turn += 1
    except TimeoutError:
        raise AssertionError(f"timed out after {DEADLINE_S} s waiting for {what}") from None


async def turns(count: int = 50) -> None:
    """Let everything that is ready run, to see that something does *not* happen."""
    for _ in range(count):
        await asyncio.sleep(0)

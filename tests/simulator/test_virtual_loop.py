"""The virtual-time loop: only timers move time, in order, and a stuck loop is an error."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from functools import partial

import pytest

from tests.simulator.virtual_loop import Stuck, VirtualLoop


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    loop = VirtualLoop()
    yield loop
    loop.close()


def test_an_hour_takes_no_time(loop: VirtualLoop) -> None:
    async def hour() -> float:
        await asyncio.sleep(3600)
        return asyncio.get_running_loop().time()

    started = time.monotonic()
    assert loop.run_until_complete(hour()) == 3600
    assert time.monotonic() - started < 5


def test_timers_run_in_the_order_of_their_time_and_see_it(loop: VirtualLoop) -> None:
    seen: list[tuple[str, float]] = []

    def note(name: str) -> None:
        seen.append((name, loop.time()))

    async def main() -> None:
        for name, delay_s in (("c", 3.0), ("a", 1.0), ("b", 2.5)):
            loop.call_later(delay_s, partial(note, name))
        await asyncio.sleep(4)

    loop.run_until_complete(main())
    assert seen == [("a", 1.0), ("b", 2.5), ("c", 3.0)]


def test_time_stands_still_while_anything_is_ready(loop: VirtualLoop) -> None:
    async def main() -> float:
        timeout = loop.call_later(0.001, lambda: None)
        for _ in range(1000):
            await asyncio.sleep(0)
        timeout.cancel()
        return loop.time()

    assert loop.run_until_complete(main()) == 0


def test_timeouts_are_virtual_too(loop: VirtualLoop) -> None:
    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(60):
                await asyncio.get_running_loop().create_future()

    loop.run_until_complete(main())
    assert loop.time() == 60


def test_a_wait_for_nothing_is_an_error(loop: VirtualLoop) -> None:
    async def main() -> None:
        await asyncio.get_running_loop().create_future()

    task = loop.create_task(main(), name="the one that waits")
    with pytest.raises(Stuck, match="the one that waits"):
        loop.run_until_complete(task)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        loop.run_until_complete(task)


def test_a_busy_loop_is_an_error(loop: VirtualLoop) -> None:
    async def main() -> None:
        while True:  # noqa: ASYNC110
            await asyncio.sleep(0)

    task = loop.create_task(main())
    with pytest.raises(Stuck, match="and it still is 0"):
        loop.run_until_complete(task)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        loop.run_until_complete(task)


def test_threads_are_refused(loop: VirtualLoop) -> None:
    async def main() -> None:
        await asyncio.to_thread(print)

    with pytest.raises(RuntimeError, match="no threads"):
        loop.run_until_complete(main())


def test_what_is_left_to_threads_takes_its_time(loop: VirtualLoop) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    async def main() -> None:
        assert await loop.run_in_executor(None, max, 1, 2) == 2
        assert loop.time() == 0.5
        with pytest.raises(ZeroDivisionError):
            await loop.run_in_executor(None, fail)
        given_up = loop.run_in_executor(None, fail)
        given_up.cancel()
        await asyncio.sleep(1)

    loop.takes_s = lambda: 0.5
    loop.run_until_complete(main())
    assert loop.time() == 2.0

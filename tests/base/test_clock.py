"""Clocks: time that never goes back, timers that never run early."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable
from typing import Any

import pytest

from muster.coordinator.base.clock import LoopClock, ManualClock, PausableClock
from muster.coordinator.base.movable_clock import MovableClock
from tests.support.facts import until


class RecordingLoop:
    """The two loop methods that LoopClock uses, with time controlled by the test."""

    def __init__(self) -> None:
        self.now_s = 10.0
        self.calls: list[tuple[float, Callable[[], None]]] = []

    def time(self) -> float:
        return self.now_s

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> None:
        self.calls.append((delay_s, callback))


def loop_clock(loop: Any) -> LoopClock:
    return LoopClock(loop, start_ms=1_000_000)


def test_the_loops_time_moves_the_clock() -> None:
    loop = RecordingLoop()
    clock = loop_clock(loop)
    assert clock.now_ms() == 1_000_000
    loop.now_s += 1.5
    assert clock.now_ms() == 1_001_500


@pytest.mark.parametrize(("wall_ms", "date_ms"), [(7_201_500_000, 7_201_500_000), (900_000, 1_001_500)])
def test_dates_follow_a_wall_clock_that_was_set_ahead(
    monkeypatch: pytest.MonkeyPatch, wall_ms: int, date_ms: int
) -> None:
    """As after a suspend, in which monotonic clocks stand still. The clock itself stays as it is."""
    loop: Any = RecordingLoop()
    walls = iter([1_000_000, wall_ms])
    monkeypatch.setattr("muster.coordinator.base.clock.wall_ms", lambda: next(walls))
    clock = LoopClock(loop)
    loop.now_s += 1.5
    assert PausableClock(clock).date_ms() == date_ms
    assert clock.now_ms() == 1_001_500


def test_a_clock_with_a_start_or_that_is_moved_dates_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = RecordingLoop()
    clock = loop_clock(loop)
    monkeypatch.setattr("muster.coordinator.base.clock.wall_ms", lambda: 7_200_000_000)
    assert clock.date_ms() == 1_000_000
    moved = MovableClock(LoopClock(loop))  # type: ignore[arg-type]
    monkeypatch.setattr("muster.coordinator.base.clock.wall_ms", lambda: 9_900_000_000)
    moved.move_to(7_200_000_100)
    assert moved.date_ms() == moved.now_ms() == 7_200_000_100


def test_a_timer_that_the_loop_runs_early_waits_for_the_rest() -> None:
    loop = RecordingLoop()
    clock = loop_clock(loop)
    ran: list[int] = []
    clock.at(1_000_100, lambda: ran.append(clock.now_ms()))
    assert loop.calls[0][0] == pytest.approx(0.1)
    loop.now_s += 0.0985
    loop.calls[0][1]()
    assert ran == []
    loop.now_s += 0.002
    loop.calls[1][1]()
    assert ran == [1_000_100]


def test_a_time_that_has_passed_is_now() -> None:
    loop = RecordingLoop()
    loop_clock(loop).at(0, lambda: None)
    assert loop.calls[0][0] == 0


async def test_time_passes_within_a_turn_of_the_loop() -> None:
    """If time stood still during a turn of the loop, a lease that expired while the process was stopped there
    could be used for the rest of the turn."""
    clock = LoopClock(asyncio.get_running_loop())
    start_ms, deadline_s = clock.now_ms(), time.monotonic() + 30
    while clock.now_ms() < start_ms + 2:
        assert time.monotonic() < deadline_s, "time stands still"


async def test_on_a_real_loop_timers_run_and_can_be_taken_back() -> None:
    clock = LoopClock(asyncio.get_running_loop())
    ran = asyncio.Event()
    taken_back = clock.at(clock.now_ms() + 1, lambda: pytest.fail("was cancelled"))
    start_ms = clock.now_ms()
    clock.at(start_ms + 5, ran.set)
    taken_back.cancel()
    taken_back.cancel()
    async with asyncio.timeout(30):
        await ran.wait()
    assert clock.now_ms() >= start_ms + 5


def test_a_manual_clock_runs_what_falls_due_in_order_of_time() -> None:
    clock = ManualClock(0)
    ran: list[tuple[str, int]] = []

    def note(name: str) -> Callable[[], None]:
        return lambda: ran.append((name, clock.now_ms()))

    def arm_another() -> None:
        clock.at(12, note("armed meanwhile"))

    clock.at(20, note("later"))
    clock.at(10, note("first"))
    clock.at(10, note("second of the same time"))
    clock.at(15, note("cancelled")).cancel()
    clock.at(10, arm_another)
    assert clock.next_ms() == 10
    clock.advance(19)
    assert ran == [("first", 10), ("second of the same time", 10), ("armed meanwhile", 12)]
    assert clock.now_ms() == 19
    clock.advance(1)
    assert ran[-1] == ("later", 20)
    assert clock.next_ms() is None


def test_a_manual_clock_does_not_go_back() -> None:
    with pytest.raises(ValueError, match="-1 ms"):
        ManualClock().advance(-1)


def test_a_timer_armed_for_the_past_runs_at_the_next_advance() -> None:
    clock = ManualClock(100)
    ran: list[int] = []
    clock.at(50, lambda: ran.append(clock.now_ms()))
    clock.advance(0)
    assert ran == [100]


def test_during_a_pause_time_passes_and_nothing_runs() -> None:
    manual = ManualClock(0)
    clock = PausableClock(manual)
    ran: list[str] = []
    clock.at(10, lambda: ran.append("first"))
    clock.at(20, lambda: ran.append("second"))
    clock.at(40, lambda: ran.append("third"))
    cancelled = clock.at(15, lambda: ran.append("cancelled"))
    clock.pause()
    manual.advance(30)
    assert ran == []
    assert clock.now_ms() == 30
    cancelled.cancel()
    clock.resume()
    assert ran == ["first", "second"]
    manual.advance(10)
    assert ran == ["first", "second", "third"]


def test_a_timer_that_fails_at_the_end_of_a_pause_keeps_no_other_from_running() -> None:
    manual = ManualClock(0)
    clock = PausableClock(manual)
    ran: list[str] = []

    def fail() -> None:
        raise ValueError("on purpose")

    clock.at(10, fail)
    clock.at(20, lambda: ran.append("second"))
    clock.pause()
    manual.advance(30)
    clock.resume()
    assert ran == ["second"]


@pytest.mark.parametrize("clock_of", [LoopClock, lambda loop: PausableClock(LoopClock(loop))])
async def test_a_timer_is_gone_once_it_is_over(clock_of: Callable[[Any], Any]) -> None:
    """Freed without a garbage collection, which is slow when many objects are alive."""
    clock = clock_of(asyncio.get_running_loop())
    fired = asyncio.Event()

    def left() -> list[Any]:
        """Timers of this clock only; those of an earlier test may still exist."""
        return [
            each
            for each in gc.get_objects()
            if type(each) in kinds
            and clock in (getattr(each, "_pausable", None), getattr(each, "_clock", None))
        ]

    gc.collect()
    gc.disable()
    try:
        cancelled, over = clock.at(clock.now_ms() + 60_000, fired.set), clock.at(clock.now_ms(), fired.set)
        kinds = {type(cancelled), type(over)}
        assert left()
        cancelled.cancel()
        await fired.wait()
        over.cancel()  # allowed
        del cancelled, over
        await until(lambda: not left())
    finally:
        gc.enable()

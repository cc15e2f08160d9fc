"""A clock that can be moved: deadlines in order, each at its own time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from muster.coordinator.base.clock import LoopClock, ManualClock, PausableClock, Timer
from muster.coordinator.base.movable_clock import MovableClock
from tests.support.facts import until

Ran = list[tuple[str, int]]


@pytest.fixture
def base() -> ManualClock:
    return ManualClock(0)


@pytest.fixture
def clock(base: ManualClock) -> MovableClock:
    return MovableClock(base)


def noting(clock: MovableClock, ran: Ran) -> Callable[[str], Callable[[], None]]:
    return lambda name: lambda: ran.append((name, clock.now_ms()))


def test_it_goes_on_with_its_base_by_as_much_as_it_was_moved(base: ManualClock, clock: MovableClock) -> None:
    assert clock.move_to(100) == 100
    base.advance(7)
    assert clock.now_ms() == 107


def test_timers_go_by_the_moved_time_whoever_moves_it(base: ManualClock, clock: MovableClock) -> None:
    ran: Ran = []
    note = noting(clock, ran)
    clock.at(30, note("by the base"))
    clock.at(50, note("by a move"))
    clock.move_to(20)
    assert ran == []
    base.advance(10)
    assert ran == [("by the base", 30)]
    clock.move_to(50)
    assert ran[1:] == [("by a move", 50)]
    clock.at(70, note("armed after a move"))
    base.advance(19)
    assert len(ran) == 2
    base.advance(1)
    assert ran[2:] == [("armed after a move", 70)]


def test_what_a_move_makes_due_runs_in_order_of_its_deadlines(clock: MovableClock) -> None:
    ran: Ran = []
    note = noting(clock, ran)
    for name, when_ms in (("third", 30), ("first", 10), ("second", 20), ("also second", 20), ("later", 31)):
        clock.at(when_ms, note(name))
    assert clock.next_ms() == 10
    clock.move_to(30)
    assert [name for name, _ in ran] == ["first", "second", "also second", "third"]
    assert clock.next_ms() == 31


def test_moving_from_deadline_to_deadline_shows_each_its_own_time(clock: MovableClock) -> None:
    ran: Ran = []
    note = noting(clock, ran)
    clock.at(10, note("a"))
    clock.at(20, note("b"))
    while (when_ms := clock.next_ms()) is not None:
        clock.move_to(when_ms)
    assert ran == [("a", 10), ("b", 20)]


def test_a_time_that_has_passed_moves_nothing_and_runs_what_is_due(
    base: ManualClock, clock: MovableClock
) -> None:
    ran: Ran = []
    clock.move_to(100)
    clock.at(40, noting(clock, ran)("in the past"))
    assert ran == []  # never from within `at`
    assert clock.next_ms() == 40
    assert clock.move_to(60) == 0
    assert ran == [("in the past", 100)]


async def test_a_timer_armed_for_the_present_again_and_again_holds_nobody_up() -> None:
    clock = MovableClock(LoopClock(asyncio.get_running_loop()))
    ran: list[Timer] = []

    def again() -> None:
        ran.append(clock.at(clock.now_ms(), again))

    clock.at(clock.now_ms() + 10_000, again)
    clock.move_to(clock.now_ms() + 10_000)
    assert len(ran) == 1
    await until(lambda: len(ran) > 3, "the loop's turns")
    ran[-1].cancel()


def test_timers_can_be_taken_back_also_by_one_that_is_due_with_them(
    base: ManualClock, clock: MovableClock
) -> None:
    ran: Ran = []
    note = noting(clock, ran)
    clock.at(10, lambda: second.cancel())
    second = clock.at(10, note("second"))
    taken_back = clock.at(5, note("taken back"))
    taken_back.cancel()
    taken_back.cancel()
    assert clock.next_ms() == 10
    clock.move_to(10)
    assert ran == []
    second.cancel()
    assert clock.next_ms() is None
    base.advance(100)
    assert ran == []


def test_a_timer_that_fails_takes_no_other_with_it(clock: MovableClock) -> None:
    ran: Ran = []

    def fail() -> None:
        raise ValueError("on purpose")

    clock.at(10, fail)
    clock.at(10, noting(clock, ran)("behind it"))
    clock.move_to(10)
    assert ran == [("behind it", 10)]
    assert repr(clock) == "<MovableClock moved by 10 ms, timers=0>"


def test_a_broker_that_is_paused_finds_at_the_end_what_a_move_made_due(clock: MovableClock) -> None:
    ran: Ran = []
    paused = PausableClock(clock)
    paused.at(10, noting(clock, ran)("held"))
    paused.pause()
    clock.move_to(1_000)
    assert ran == []
    assert paused.now_ms() == 1_000
    paused.resume()
    assert ran == [("held", 1_000)]


async def test_on_a_real_loop_timers_run_on_time_after_a_move() -> None:
    clock = MovableClock(LoopClock(asyncio.get_running_loop()))
    clock.at(clock.now_ms() + 10**9, lambda: pytest.fail("too early"))
    rang = asyncio.Event()
    clock.move_to(clock.now_ms() + 10**6)
    when_ms = clock.now_ms() + 5
    clock.at(when_ms, rang.set)
    async with asyncio.timeout(30):
        await rang.wait()
    assert clock.now_ms() >= when_ms

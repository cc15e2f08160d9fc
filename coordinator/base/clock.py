"""Time, as everything outside the pure core sees it.

All times are epoch milliseconds that never go back: the wall clock is read once, and only a monotonic source
advances it. Only dates (`Clock.date_ms`) follow the wall clock. Timers run on the loop's thread (or that of
the caller of `ManualClock.advance`), never early.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import Protocol

from muster.coordinator.base.log import Logger
from muster.realtime import RealTime

_log = Logger(part="clock")


def monotonic_ms() -> int:
    """Monotonic milliseconds. The wall clock may be set back or forward, and no term may follow it.

    All store objects of a process use this one source, since they compare times with each other. The values
    mean nothing to another process.
    """
    return RealTime.monotonic_ns() // 1_000_000


def wall_ms() -> int:
    """The wall clock, in epoch milliseconds; it may be set back or forward. It is for what others have dated,
    such as the expiry of a token.
    """
    return RealTime.time_ns() // 1_000_000


class Timer(Protocol):
    """A scheduled callback."""

    def cancel(self) -> None:
        """Cancel the callback. Harmless after it ran, and when repeated."""


class Clock(Protocol):
    """The source of time for the runtime, the topics and the membership."""

    def now_ms(self) -> int:
        """Epoch milliseconds; never goes back."""

    def date_ms(self) -> int:
        """The date for records, and to judge theirs by: `now_ms`, or the wall clock's where that is ahead, as
        after a suspend. It may go back, so durations are not measured by it."""

    def at(self, when_ms: int, callback: Callable[[], None]) -> Timer:
        """Run `callback` when `now_ms() >= when_ms`; never from within this call."""


class LoopClock:
    """The wall time at the start plus the time passed on the loop since; follows a virtual-time loop. With a
    `start_ms` there is no wall clock: dates, too, are this clock's.

    The loop's time must advance within a turn too, as asyncio's and uvloop's does: a process that was stopped
    in mid-turn must not think its leases still valid.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, *, start_ms: int | None = None) -> None:
        self._loop = loop
        self._time = loop.time
        self._start_s = loop.time()
        self._follows_wall = start_ms is None
        self._start_ms = wall_ms() if start_ms is None else start_ms

    def now_ms(self) -> int:
        return self._start_ms + int((self._time() - self._start_s) * 1000)

    def date_ms(self) -> int:
        return max(self.now_ms(), wall_ms()) if self._follows_wall else self.now_ms()

    def at(self, when_ms: int, callback: Callable[[], None]) -> Timer:
        return _LoopTimer(self, self._loop, when_ms, callback)


class _LoopTimer:
    __slots__ = ("_callback", "_clock", "_handle", "_loop", "_when_ms")

    def __init__(
        self, clock: LoopClock, loop: asyncio.AbstractEventLoop, when_ms: int, callback: Callable[[], None]
    ) -> None:
        self._clock = clock
        self._loop = loop
        self._when_ms = when_ms
        self._callback = callback
        self._arm(when_ms - clock.now_ms())

    def _arm(self, delay_ms: int) -> None:
        self._handle: asyncio.TimerHandle | None = self._loop.call_later(max(delay_ms, 0) / 1000, self._fire)

    def _fire(self) -> None:
        # Loops round: uvloop to whole milliseconds, asyncio by its clock's resolution. A callback that runs
        # early would find nothing due and arm itself again and again, so wait out the remaining time here.
        early_ms = self._when_ms - self._clock.now_ms()
        if early_ms > 0:
            self._arm(early_ms)
        else:
            self._handle = None  # it refers to this: a cycle that only the garbage collector would find
            self._callback()

    def cancel(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None


class _QueuedTimer:
    """A timer of the clocks below, which keep their own queue."""

    __slots__ = ("callback", "cancelled", "when_ms")

    def __init__(self, when_ms: int, callback: Callable[[], None]) -> None:
        self.when_ms = when_ms
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class ManualClock:
    """A clock that stands still until a test moves it."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self.date_ahead_ms = 0
        """How far the wall clock is ahead of it."""
        self._now_ms = now_ms
        self._order = count()
        self._timers: list[tuple[int, int, _QueuedTimer]] = []

    def now_ms(self) -> int:
        return self._now_ms

    def date_ms(self) -> int:
        return self._now_ms + self.date_ahead_ms

    def at(self, when_ms: int, callback: Callable[[], None]) -> Timer:
        timer = _QueuedTimer(when_ms, callback)
        heappush(self._timers, (when_ms, next(self._order), timer))
        return timer

    def advance(self, ms: int) -> None:
        """Advance by `ms`, running due timers in order of time; each callback sees the time it asked for.

        Timers that those callbacks arm run too if they fall due within the span.
        """
        if ms < 0:
            raise ValueError(f"the clock cannot go back: {ms} ms")
        end_ms = self._now_ms + ms
        while self._timers and self._timers[0][0] <= end_ms:
            when_ms, _, timer = heappop(self._timers)
            if not timer.cancelled:
                self._now_ms = max(self._now_ms, when_ms)
                timer.callback()
        self._now_ms = end_ms

    def next_ms(self) -> int | None:
        """When the next timer is due; None if there is none."""
        while self._timers and self._timers[0][2].cancelled:
            heappop(self._timers)
        return self._timers[0][0] if self._timers else None


class PausableClock:
    """Wraps a clock so that its timers can be held back, as in a process that is stopped and continued.

    Time goes on during a pause, but nothing runs; `resume` runs all that fell due meanwhile, in order. As on
    a loop, a callback that raises is logged and does not affect the others.
    """

    now_ms: Callable[[], int]
    date_ms: Callable[[], int]

    def __init__(self, clock: Clock) -> None:
        self.now_ms = clock.now_ms  # not through a method: every request calls it several times
        self.date_ms = clock.date_ms
        self._clock = clock
        self._paused = False
        self._held: list[_QueuedTimer] = []

    def at(self, when_ms: int, callback: Callable[[], None]) -> Timer:
        return _PausableTimer(self, self._clock, when_ms, callback)

    def hold(self, timer: _QueuedTimer) -> bool:
        """Keep a due timer until `resume`; False if the clock is not paused."""
        if self._paused:
            self._held.append(timer)
        return self._paused

    def pause(self) -> None:
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        held, self._held = self._held, []
        for timer in held:
            # A callback may cancel a timer held behind it.
            if timer.cancelled:
                continue
            try:
                timer.callback()
            except Exception as error:
                _log.error("a timer failed", exc_info=error)


class _PausableTimer(_QueuedTimer):
    __slots__ = ("_pausable", "_timer")

    def __init__(
        self, pausable: PausableClock, clock: Clock, when_ms: int, callback: Callable[[], None]
    ) -> None:
        super().__init__(when_ms, callback)
        self._pausable = pausable
        self._timer: Timer | None = clock.at(when_ms, self._fire)

    def _fire(self) -> None:
        self._timer = None  # it refers to this
        if not self._pausable.hold(self):
            self.callback()

    def cancel(self) -> None:
        super().cancel()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

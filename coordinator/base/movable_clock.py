"""A clock that can be moved forward, for groups and topics in tests and in `serve --test-mode`."""

from __future__ import annotations

from collections.abc import Callable

from muster.coordinator.base.clock import Clock, Timer
from muster.coordinator.base.deadlines import Deadlines
from muster.coordinator.base.log import Logger

_log = Logger(part="clock")


class MovableClock:
    """A running base clock plus what it has been moved by.

    Timers follow the sum. Those that a move makes due run within it, in order of their deadlines; for each
    callback to see its own time, move from one `next_ms` to the next. As on a loop, a callback that raises is
    logged and does not affect the others.
    """

    def __init__(self, base: Clock) -> None:
        self._base = base
        self._base_now_ms = base.now_ms
        self._shift_ms = 0
        self._deadlines: Deadlines[_MovableTimer] = Deadlines()
        self._armed: Timer | None = None
        self._armed_ms = 0

    def __repr__(self) -> str:
        return f"<MovableClock moved by {self._shift_ms} ms, timers={len(self._deadlines)}>"

    def now_ms(self) -> int:
        return self._base_now_ms() + self._shift_ms

    def date_ms(self) -> int:
        """Where tests move the time, no other clock counts."""
        return self.now_ms()

    def at(self, when_ms: int, callback: Callable[[], None]) -> Timer:
        timer = _MovableTimer(self._deadlines, callback)
        self._deadlines.set(timer, when_ms)
        self._arm()
        return timer

    def next_ms(self) -> int | None:
        """When the next timer is due, in the past if it is about to run; None if there is none."""
        return self._deadlines.next()

    def move_to(self, when_ms: int) -> int:
        """Move the clock to `when_ms` and run what is due. Returns the milliseconds moved: none for a time
        that has passed."""
        by_ms = max(when_ms - self.now_ms(), 0)
        self._shift_ms += by_ms
        if by_ms and self._armed is not None:
            self._armed.cancel()
            self._armed = None
        self._run_due()
        return by_ms

    def _run_due(self) -> None:
        # Collected beforehand: a timer that one of them arms for the present waits for the next turn of the
        # loop, so that a callback that arms one again and again holds up nobody.
        for timer in list(self._deadlines.due(self.now_ms())):
            if timer.cancelled:  # by a timer that ran before it
                continue
            try:
                timer.callback()
            except Exception as error:
                _log.error("a timer failed", exc_info=error)
        self._arm()

    def _arm(self) -> None:
        """Have the base clock wake us for the first timer, perhaps too early."""
        first_ms = self._deadlines.bound()
        if first_ms is None or (self._armed is not None and self._armed_ms <= first_ms):
            return
        if self._armed is not None:
            self._armed.cancel()
        self._armed_ms = first_ms
        self._armed = self._base.at(first_ms - self._shift_ms, self._on_base)

    def _on_base(self) -> None:
        self._armed = None
        self._run_due()


class _MovableTimer:
    __slots__ = ("_deadlines", "callback", "cancelled")

    def __init__(self, deadlines: Deadlines[_MovableTimer], callback: Callable[[], None]) -> None:
        self._deadlines = deadlines
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True
        self._deadlines.cancel(self)

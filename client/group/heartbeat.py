"""When a member has to be heard, and when it has been silent for too long. Pure: times come as arguments.

After Kafka's Heartbeat class. Three clocks run beside each other: the next heartbeat, the session (no answer
from the coordinator for session.timeout.ms: it is to be looked for anew), and the poll deadline (nobody asked
for records for max.poll.interval.ms: the member gives its place to others).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

BEATS_PER_SESSION: Final = 3
"""A heartbeat without an answer is given up after this part of the session timeout, so that one on another
connection can still save the membership."""


class Backoff:
    """How long to wait before the next try: `base_ms` doubled with each failure up to `max_ms`, times what
    `jitter` returns (KIP-580: 0.8 to 1.2)."""

    def __init__(self, base_ms: int, max_ms: int, jitter: Callable[[], float]) -> None:
        self._base_ms = base_ms
        self._max_ms = max_ms
        self._jitter = jitter
        self.failures = 0

    def next_ms(self) -> int:
        """The wait after one more failure."""
        wait_ms = min(self._max_ms, self._base_ms << min(self.failures, 20))
        self.failures += 1
        return int(wait_ms * self._jitter())

    def reset(self) -> None:
        self.failures = 0


class Heartbeat:
    """The clocks of one member. Times are milliseconds of one monotonic clock.

    Heartbeats are due only between `begin` and `end`: not while the group is being joined.
    """

    def __init__(
        self,
        *,
        session_timeout_ms: int,
        interval_ms: int,
        max_poll_interval_ms: int,
        request_timeout_ms: int,
        backoff: Backoff,
    ) -> None:
        self._session_timeout_ms = session_timeout_ms
        self._interval_ms = interval_ms
        self._max_poll_interval_ms = max_poll_interval_ms
        self._backoff = backoff
        self.timeout_ms = max(1, min(request_timeout_ms, session_timeout_ms // BEATS_PER_SESSION))
        """How long an answer is waited for."""
        self.is_on = False
        self.in_flight = False
        self.last_sent_ms: int | None = None
        self.last_answered_ms: int | None = None
        self._due_ms = 0
        self._is_hastened = False
        self._session_ends_ms = 0
        self._poll_ends_ms = 0

    def begin(self, now_ms: int) -> None:
        """The group let the member in. A heartbeat of before may still be on its way: its answer tells
        nothing any more."""
        self.is_on = True
        self.in_flight = False
        self._backoff.reset()
        self._due_ms = now_ms + self._interval_ms
        self.restart_session(now_ms)

    def end(self) -> None:
        """The member joins again, or is none any more."""
        self.is_on = False
        self.in_flight = False

    def sent(self, now_ms: int) -> None:
        """One goes out; the next is due an interval later, whenever this one is answered."""
        self.in_flight = True
        self.last_sent_ms = now_ms
        self._due_ms = now_ms + self._interval_ms
        self._is_hastened = False

    def hasten(self, at_ms: int = 0) -> None:
        """There is something to tell: the next one is due then, and not before the last one is answered."""
        self._due_ms = at_ms
        self._is_hastened = True

    def set_interval(self, interval_ms: int) -> None:
        """The coordinator says how often it wants to hear the member."""
        if not self._is_hastened:
            self._due_ms += interval_ms - self._interval_ms
        self._interval_ms = interval_ms

    def answered(self, now_ms: int) -> None:
        """The coordinator knows the member."""
        self.in_flight = False
        self.last_answered_ms = now_ms
        self._backoff.reset()
        self.restart_session(now_ms)

    def failed(self, now_ms: int) -> None:
        """No answer, or one that may pass: the next one goes sooner, after a backoff that grows."""
        self.in_flight = False
        self._due_ms = now_ms + min(self._interval_ms, self._backoff.next_ms())

    def wait(self, now_ms: int) -> None:
        """The next one is due after an interval."""
        self._due_ms = now_ms + self._interval_ms

    def restart_session(self, now_ms: int) -> None:
        """Give the coordinator, heard from or only just found, the session timeout to answer."""
        self._session_ends_ms = now_ms + self._session_timeout_ms

    def polled(self, now_ms: int) -> None:
        """Somebody asked for records."""
        self._poll_ends_ms = now_ms + self._max_poll_interval_ms

    def is_due(self, now_ms: int) -> bool:
        return self.is_on and not self.in_flight and now_ms >= self._due_ms

    def session_is_over(self, now_ms: int) -> bool:
        return self.is_on and now_ms >= self._session_ends_ms

    def poll_is_over(self, now_ms: int) -> bool:
        return self.is_on and now_ms >= self._poll_ends_ms

    def next_deadline_ms(self, *, can_send: bool) -> int | None:
        """When one of the clocks has to be looked at; None while there is nothing to see. Not `can_send`:
        there is no coordinator to send a heartbeat to."""
        if not self.is_on:
            return None
        ends_ms = min(self._session_ends_ms, self._poll_ends_ms)
        return min(ends_ms, self._due_ms) if can_send and not self.in_flight else ends_ms

"""Decides when a member must send a heartbeat, and when it has been silent for too long. Pure: times are
arguments. Modelled on Kafka's Heartbeat class. There are three timers: the next heartbeat, the session (no
response from the coordinator for session.timeout.ms: look it up again), and the poll deadline (no poll for
max.poll.interval.ms: the member leaves the group).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

BEATS_PER_SESSION: Final = 3
"""A heartbeat is abandoned if unanswered after the session timeout divided by this, so that one on another
connection can still save the membership."""


class Backoff:
    """How long to wait before the next attempt: `base_ms` doubled with each failure up to `max_ms`, times the
    result of `jitter` (KIP-580: 0.8 to 1.2)."""

    def __init__(self, base_ms: int, max_ms: int, jitter: Callable[[], float]) -> None:
        self._base_ms = base_ms
        self._max_ms = max_ms
        self._jitter = jitter
        self.failures = 0

    def next_ms(self) -> int:
        """Count a failure and return the wait that follows it."""
        wait_ms = min(self._max_ms, self._base_ms << min(self.failures, 20))
        self.failures += 1
        return int(wait_ms * self._jitter())

    def reset(self) -> None:
        self.failures = 0


class Heartbeat:
    """The timers of one member. Times are milliseconds of one monotonic clock. Heartbeats are due only
    between `begin` and `end`: not while joining.
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
        """How long to wait for a response."""
        self.is_on = False
        self.in_flight = False
        self.last_sent_ms: int | None = None
        self.last_answered_ms: int | None = None
        self._heard_ms = 0
        self._due_ms = 0
        self._is_hastened = False
        self._session_ends_ms = 0
        self._poll_ends_ms = 0

    def begin(self, now_ms: int) -> None:
        """The member joined. The response of an earlier heartbeat still in flight no longer counts."""
        self.is_on = True
        self.in_flight = False
        self._heard_ms = now_ms
        self._backoff.reset()
        self._due_ms = now_ms + self._interval_ms
        self.restart_session(now_ms)

    def end(self) -> None:
        """The member rejoins, or has left."""
        self.is_on = False
        self.in_flight = False

    def sent(self, now_ms: int) -> None:
        """A heartbeat was sent; the next is due an interval later, whenever this one is answered."""
        self.in_flight = True
        self.last_sent_ms = now_ms
        self._due_ms = now_ms + self._interval_ms
        self._is_hastened = False

    def hasten(self, at_ms: int = 0) -> None:
        """Something to report: the next heartbeat is due at `at_ms`, but not before the last is answered."""
        self._due_ms = at_ms
        self._is_hastened = True

    def set_interval(self, interval_ms: int) -> None:
        """The coordinator has set the heartbeat interval."""
        if not self._is_hastened:
            self._due_ms += interval_ms - self._interval_ms
        self._interval_ms = interval_ms

    def answered(self, now_ms: int) -> None:
        """The coordinator knows the member."""
        self.in_flight = False
        self.last_answered_ms = self._heard_ms = now_ms
        self._backoff.reset()
        self.restart_session(now_ms)

    def failed(self, now_ms: int) -> None:
        """No response, or a retriable error: the next heartbeat is due sooner, after a growing backoff."""
        self.in_flight = False
        self._due_ms = now_ms + min(self._interval_ms, self._backoff.next_ms())

    def wait(self, now_ms: int) -> None:
        """The next heartbeat is due one interval from now."""
        self._due_ms = now_ms + self._interval_ms

    def restart_session(self, now_ms: int) -> None:
        """Give the coordinator, just heard from or just found, the session timeout to respond."""
        self._session_ends_ms = now_ms + self._session_timeout_ms

    def polled(self, now_ms: int) -> None:
        """The reader polled."""
        self._poll_ends_ms = now_ms + self._max_poll_interval_ms

    def is_due(self, now_ms: int) -> bool:
        return self.is_on and not self.in_flight and now_ms >= self._due_ms

    def overdue_ms(self, now_ms: int) -> int:
        """How long the coordinator has been silent, beyond the interval in which it need not say anything."""
        return max(0, now_ms - self._heard_ms - self._interval_ms) if self.is_on else 0

    def session_is_over(self, now_ms: int) -> bool:
        return self.is_on and now_ms >= self._session_ends_ms

    def poll_is_over(self, now_ms: int) -> bool:
        return self.is_on and now_ms >= self._poll_ends_ms

    def next_deadline_ms(self, *, can_send: bool) -> int | None:
        """When the next timer expires; None if none is running. Without `can_send`, there is no coordinator
        to send a heartbeat to."""
        if not self.is_on:
            return None
        ends_ms = min(self._session_ends_ms, self._poll_ends_ms)
        return min(ends_ms, self._due_ms) if can_send and not self.in_flight else ends_ms

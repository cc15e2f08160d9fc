"""What a group of any kind remembers of when and where it heard from a member."""

from __future__ import annotations

from typing import Any, Final

from muster.coordinator.base.step import RequestContext
from muster.coordinator.group.events import MemberIdentity

LATE_WITHIN_MS: Final = 600_000
_HEARTBEATS_OBSERVED_MIN: Final = 5
_LATE_MAX: Final = 100
"""Maximum number of late heartbeats counted per member."""


class Heard:
    """A member's signs of life. All of this is soft state: a group that was loaded has not heard from anybody
    yet. Times are epoch milliseconds, timeouts milliseconds."""

    __slots__ = (
        "connection_id",
        "disconnected_at_ms",
        "former_interval_ms",
        "heard_ms",
        "heartbeats",
        "heartbeats_from_ms",
        "identity",
        "is_new",
        "late_at_ms",
        "member_id",
        "session_from_ms",
        "session_timeout_ms",
        "session_timer",
    )

    def __init__(self, identity: MemberIdentity, session_timeout_ms: int, heard_ms: int) -> None:
        self.member_id = identity.member_id
        self.identity = identity
        """Its identity in events, as of its last join."""
        self.is_new = False
        """It has no id to heartbeat with yet, so waiting is no sign of life."""
        self.session_timeout_ms = session_timeout_ms
        self.heard_ms = heard_ms
        self.session_from_ms = heard_ms
        """When its session last restarted."""
        self.heartbeats = 0
        """Number of heartbeats since `heartbeats_from_ms`, which is when it last joined."""
        self.heartbeats_from_ms = heard_ms
        self.former_interval_ms: int | None = None
        """The last known interval between two heartbeats."""
        self.late_at_ms: tuple[int, ...] = ()
        """Times of its late heartbeats in the last ten minutes."""
        self.session_timer: Any
        """The key of its session's deadline; set by the group that takes it in."""
        self.connection_id: int | None = None
        """The connection it was last heard on, while that is open. Also None for a member not heard from
        since it was loaded."""
        self.disconnected_at_ms: int | None = None
        """When the connection it was last heard on closed."""

    @property
    def client_id(self) -> str:
        """As of its last join."""
        return self.identity.client_id

    @property
    def waits(self) -> bool:
        """Whether it waits for an answer, and so cannot be expected to heartbeat."""
        return False

    def heartbeat_interval_ms(self) -> int | None:
        """The observed interval between its heartbeats; None: too few so far."""
        if self.heartbeats < _HEARTBEATS_OBSERVED_MIN:
            return self.former_interval_ms
        return (self.session_from_ms - self.heartbeats_from_ms) // self.heartbeats

    def begin_heartbeats(self, now_ms: int) -> None:
        """Observe its heartbeats anew, after a join."""
        self.former_interval_ms = self.heartbeat_interval_ms()
        self.heartbeats, self.heartbeats_from_ms = 0, now_ms

    def begin_anew(self, now_ms: int) -> None:
        """Another process heartbeats in its place from now on: the pace of the former one says nothing about
        it."""
        self.heartbeats, self.heartbeats_from_ms = 0, now_ms
        self.former_interval_ms, self.late_at_ms = None, ()

    def is_late(self, silent_ms: int) -> bool:
        """Whether so long a silence is a near miss: two thirds of the session timeout, or a third of it and
        more than three times the usual interval."""
        if silent_ms * 3 < self.session_timeout_ms:
            return False
        usual_ms = self.heartbeat_interval_ms()
        return silent_ms * 3 >= self.session_timeout_ms * 2 or (
            usual_ms is not None and silent_ms > 3 * usual_ms
        )

    def requested_by(self, context: RequestContext) -> MemberIdentity | None:
        """The client that requests the member's removal, if it is not the member's own. A client may leave
        over a new connection."""
        if context.connection_id == self.connection_id:
            return None
        if (context.client_id, context.client_host) == self.identity[1:3]:
            return None
        return MemberIdentity("", context.client_id, context.client_host)

    def late_count(self, now_ms: int) -> int:
        """How often it was late in the last ten minutes."""
        return sum(late_ms > now_ms - LATE_WITHIN_MS for late_ms in self.late_at_ms)

    def was_late(self, silent_ms: int, now_ms: int) -> None:
        """Count a late heartbeat, before `heartbeats` counts it."""
        usual_ms = self.heartbeat_interval_ms()
        if usual_ms is not None:
            self.heartbeats_from_ms += silent_ms - usual_ms  # keep the pause out of the average
        since_ms = now_ms - LATE_WITHIN_MS
        recent = [late_ms for late_ms in self.late_at_ms if late_ms > since_ms]
        self.late_at_ms = (*recent[1 - _LATE_MAX :], now_ms)

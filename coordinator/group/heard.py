"""What a group of any kind remembers of when and where a member was heard of."""

from __future__ import annotations

from typing import Any, Final

from muster.coordinator.base.step import RequestContext
from muster.coordinator.group.events import MemberIdentity

LATE_WITHIN_MS: Final = 600_000
_HEARTBEATS_OBSERVED_MIN: Final = 5
_LATE_MAX: Final = 100
"""How often at most a member is counted to have been late."""


class Heard:
    """A member, as far as its signs of life go. All of it is soft state: a group that was loaded has not
    heard of anybody. Times are epoch milliseconds, timeouts milliseconds."""

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
        """Who it is for the events: as it joined last."""
        self.is_new = False
        """It has no id to heartbeat with yet, so that waiting is no sign of life."""
        self.session_timeout_ms = session_timeout_ms
        self.heard_ms = heard_ms
        self.session_from_ms = heard_ms
        """When its session last began anew."""
        self.heartbeats = 0
        """How many have come since `heartbeats_from_ms`: since it joined last."""
        self.heartbeats_from_ms = heard_ms
        self.former_interval_ms: int | None = None
        """Between two heartbeats, when it was last known."""
        self.late_at_ms: tuple[int, ...] = ()
        """When it was late in the last ten minutes."""
        self.session_timer: Any
        """The key of its session's deadline; set by the group that takes it in."""
        self.connection_id: int | None = None
        """The connection it was last heard on, while that is open. None for a member that was loaded and not
        heard of since, too."""
        self.disconnected_at_ms: int | None = None
        """When the connection it was last heard on has closed."""

    @property
    def client_id(self) -> str:
        """As it joined last."""
        return self.identity.client_id

    @property
    def waits(self) -> bool:
        """Whether it waits for an answer, and so cannot be expected to heartbeat."""
        return False

    def heartbeat_interval_ms(self) -> int | None:
        """How often it sends heartbeats, as observed; None: there were too few."""
        if self.heartbeats < _HEARTBEATS_OBSERVED_MIN:
            return self.former_interval_ms
        return (self.session_from_ms - self.heartbeats_from_ms) // self.heartbeats

    def begin_heartbeats(self, now_ms: int) -> None:
        """It begins to heartbeat anew, after a join."""
        self.former_interval_ms = self.heartbeat_interval_ms()
        self.heartbeats, self.heartbeats_from_ms = 0, now_ms

    def begin_anew(self, now_ms: int) -> None:
        """Another process begins to heartbeat in its place: how the former one did says nothing of it."""
        self.heartbeats, self.heartbeats_from_ms = 0, now_ms
        self.former_interval_ms, self.late_at_ms = None, ()

    def is_late(self, silent_ms: int) -> bool:
        """Whether so long a silence is a near miss: two thirds of the session, or a third and more than three
        times what is usual."""
        if silent_ms * 3 < self.session_timeout_ms:
            return False
        usual_ms = self.heartbeat_interval_ms()
        return silent_ms * 3 >= self.session_timeout_ms * 2 or (
            usual_ms is not None and silent_ms > 3 * usual_ms
        )

    def requested_by(self, context: RequestContext) -> MemberIdentity | None:
        """Who asks that the member goes, if it is another client than itself. A client may leave over a new
        connection."""
        if context.connection_id == self.connection_id:
            return None
        if (context.client_id, context.client_host) == self.identity[1:3]:
            return None
        return MemberIdentity("", context.client_id, context.client_host)

    def late_count(self, now_ms: int) -> int:
        """How often it was late in the last ten minutes."""
        return sum(late_ms > now_ms - LATE_WITHIN_MS for late_ms in self.late_at_ms)

    def was_late(self, silent_ms: int, now_ms: int) -> None:
        """Count a late heartbeat, before it is one of `heartbeats`."""
        usual_ms = self.heartbeat_interval_ms()
        if usual_ms is not None:
            self.heartbeats_from_ms += silent_ms - usual_ms  # the pause tells nothing of what is usual
        since_ms = now_ms - LATE_WITHIN_MS
        recent = [late_ms for late_ms in self.late_at_ms if late_ms > since_ms]
        self.late_at_ms = (*recent[1 - _LATE_MAX :], now_ms)

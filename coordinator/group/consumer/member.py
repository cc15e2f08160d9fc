"""A member of a consumer group, except what is in its records."""

from __future__ import annotations

from muster.coordinator.group.events import MemberIdentity
from muster.coordinator.group.heard import Heard
from muster.coordinator.group.timers import TimerKey, TimerKind
from muster.protocol.messages.consumer_group import ConsumerGroupHeartbeatResponse


class ConsumerMember(Heard):
    """When and where a member was heard from, and what it has been told to do."""

    __slots__ = ("rebalance_epoch", "revoking_from_ms", "unchanged")

    def __init__(self, group_id: str, identity: MemberIdentity, session_timeout_ms: int, now_ms: int) -> None:
        super().__init__(identity, session_timeout_ms, now_ms)
        self.session_timer = TimerKey(TimerKind.SESSION, group_id, identity.member_id)
        self.rebalance_epoch = 0
        """The epoch in which its rebalance timer was set."""
        self.revoking_from_ms: int | None = None
        """Since when it has had to revoke partitions. None: it does not have to, or the time is not known."""
        self.unchanged: ConsumerGroupHeartbeatResponse | None = None
        """The last answer without news. Sending the same object again costs a session no encoding."""

    def __repr__(self) -> str:
        return f"<ConsumerMember {self.member_id}>"

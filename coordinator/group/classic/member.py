"""A member of a classic group."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from typing import Any, Final

from muster.coordinator.base.step import BrokenInvariant, Ticket
from muster.coordinator.group.events import MemberIdentity
from muster.coordinator.group.group import MemberView
from muster.coordinator.group.hard_state import StoredMember, TopicPartition
from muster.protocol.embedded import decode_assignment, subscribed_topics
from muster.protocol.errors import DecodeError

Protocols = tuple[tuple[str, bytes], ...]
"""The protocols a member offers, most wanted first: name and metadata."""

LATE_WITHIN_MS: Final = 600_000
_HEARTBEATS_OBSERVED_MIN: Final = 5
_LATE_MAX: Final = 100
"""How often at most a member is counted to have been late."""


class ClassicMember:
    """What the group knows of a member, and the request of it that is parked, if any. Timeouts are
    milliseconds."""

    __slots__ = (
        "assignment",
        "client_host",
        "client_id",
        "connection_id",
        "disconnected_at_ms",
        "former_interval_ms",
        "group_instance_id",
        "heard_ms",
        "heartbeats",
        "heartbeats_from_ms",
        "identity",
        "is_new",
        "late_at_ms",
        "member_id",
        "parked_join",
        "parked_sync",
        "protocols",
        "protocols_known",
        "rebalance_timeout_ms",
        "session_from_ms",
        "session_timeout_ms",
        "session_timer",
    )

    def __init__(
        self,
        *,
        member_id: str,
        group_instance_id: str | None,
        client_id: str,
        client_host: str,
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
        protocols: Protocols,
        heard_ms: int,
        assignment: bytes = b"",
    ) -> None:
        self.member_id = member_id
        self.group_instance_id = group_instance_id
        self.client_id = client_id
        self.client_host = client_host
        self.session_timeout_ms = session_timeout_ms
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.protocols = protocols
        self.assignment = assignment
        self.parked_join: Ticket | None = None
        self.parked_sync: Ticket | None = None
        self.identity = MemberIdentity(member_id, client_id, client_host, group_instance_id)
        """Who it is for the events: as it joined last, while client id and host stay those of its first join.
        """
        self.is_new = False
        """Added in the rebalance that is under way: it has no id to heartbeat with, so waiting is no sign of
        life."""
        self.protocols_known = True
        """Whether `protocols` is all that it offers."""
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

    def __repr__(self) -> str:
        parked = "join" if self.parked_join is not None else "sync" if self.parked_sync is not None else None
        instance = f" instance={self.group_instance_id}" if self.group_instance_id is not None else ""
        new = " new" if self.is_new else ""
        return f"<ClassicMember {self.member_id}{instance} client={self.client_id}{new} parked={parked}>"

    @property
    def is_static(self) -> bool:
        return self.group_instance_id is not None

    @property
    def protocol_names(self) -> frozenset[str]:
        return frozenset(name for name, _ in self.protocols)

    def metadata(self, protocol_name: str) -> bytes:
        """The member's metadata for a protocol it offers."""
        for name, metadata in self.protocols:
            if name == protocol_name:
                return metadata
        raise BrokenInvariant(f"{self!r} does not offer {protocol_name!r}")

    def vote(self, candidates: Collection[str]) -> str:
        """The candidate this member wants most."""
        for name, _ in self.protocols:
            if name in candidates:
                return name
        raise BrokenInvariant(f"{self!r} offers none of {sorted(candidates)}")

    @property
    def waits(self) -> bool:
        """Whether it waits for an answer, and so cannot be expected to heartbeat. A new member is expected
        not to wait for longer than its own timer."""
        return not self.is_new and (self.parked_join is not None or self.parked_sync is not None)

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

    def view(self, protocol_name: str | None, owes: str | None) -> MemberView:
        """What is told of it outside: `owes` is the request that its group waits for."""
        wanted_most = self.protocols[0][1]
        metadata = next((each for name, each in self.protocols if name == protocol_name), wanted_most)
        return MemberView(
            self.member_id,
            self.identity,
            self.client_id,
            self.client_host,
            self.session_timeout_ms,
            self.rebalance_timeout_ms,
            self.heard_ms,
            self.connection_id,
            owes,
            partial(_read_topics, metadata),
            partial(_read_assignment, self.assignment),
        )

    def stored(self, protocol_name: str) -> StoredMember:
        """The member as a GroupMetadata record keeps it."""
        return StoredMember(
            self.member_id,
            self.group_instance_id,
            self.client_id,
            self.client_host,
            self.rebalance_timeout_ms,
            self.session_timeout_ms,
            self.metadata(protocol_name),
            self.assignment,
        )

    @classmethod
    def loaded(cls, stored: StoredMember, protocol_name: str, now_ms: int) -> ClassicMember:
        """The member as a GroupMetadata record has kept it: of its protocols, only the selected one is
        known."""
        member = cls(
            member_id=stored.member_id,
            group_instance_id=stored.group_instance_id,
            client_id=stored.client_id,
            client_host=stored.client_host,
            rebalance_timeout_ms=stored.rebalance_timeout_ms,
            session_timeout_ms=stored.session_timeout_ms,
            protocols=((protocol_name, stored.subscription),),
            heard_ms=now_ms,
            assignment=stored.assignment,
        )
        member.protocols_known = False
        return member


def _read_topics(metadata: bytes) -> Sequence[str] | None:
    try:
        return sorted(subscribed_topics(metadata))
    except DecodeError:
        return None


def _read_assignment(assignment: bytes) -> Sequence[TopicPartition] | None:
    if not assignment:
        return []
    try:
        assigned = decode_assignment(assignment).assigned_partitions
    except DecodeError:
        return None
    return [(each.topic, partition) for each in assigned for partition in each.partitions]

"""A member of a classic group."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from typing import Final

from muster.coordinator.base.step import BrokenInvariant, Ticket
from muster.coordinator.group.events import MemberIdentity
from muster.coordinator.group.group import MemberView
from muster.coordinator.group.group_offsets import TopicPartition
from muster.coordinator.group.hard_state import StoredMember
from muster.coordinator.group.heard import Heard
from muster.protocol.elements import encode_element
from muster.protocol.embedded import decode_assignment, subscribed_topics
from muster.protocol.errors import DecodeError
from muster.protocol.messages.group_admin import DESCRIBED_MEMBER, DescribeGroupsResponse

Protocols = tuple[tuple[str, bytes], ...]
"""The protocols a member offers, most preferred first: name and metadata."""

LISTED_MAX: Final = 100_000
"""Most topics and partitions, in total, that are read of what one member says, or of the assignments of one
generation: a blob may list millions. One that lists more counts as unreadable."""


class ClassicMember(Heard):
    """What the group knows about a member, and its parked request, if any. Timeouts are milliseconds."""

    __slots__ = (
        "_described",
        "assignment",
        "client_host",
        "first_client_id",
        "group_instance_id",
        "parked_join",
        "parked_sync",
        "protocols",
        "protocols_known",
        "rebalance_timeout_ms",
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
        identity = MemberIdentity(member_id, client_id, client_host, group_instance_id)
        super().__init__(identity, session_timeout_ms, heard_ms)
        self.group_instance_id = group_instance_id
        self.first_client_id = client_id
        self.client_host = client_host
        """As of its first join, like the client id; `identity` has those of the last."""
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.protocols = protocols
        self.assignment = assignment
        self.parked_join: Ticket | None = None
        self.parked_sync: Ticket | None = None
        self.protocols_known = True
        """Whether `protocols` is all that it offers."""
        self._described: tuple[tuple[str, bytes, bytes], bytes] | None = None

    def __repr__(self) -> str:
        parked = "join" if self.parked_join is not None else "sync" if self.parked_sync is not None else None
        instance = f" instance={self.group_instance_id}" if self.group_instance_id is not None else ""
        new = " new" if self.is_new else ""
        return f"<ClassicMember {self.member_id}{instance} client={self.client_id}{new} parked={parked}>"

    @property
    def is_static(self) -> bool:
        return self.group_instance_id is not None

    @property
    def client_id(self) -> str:
        return self.first_client_id

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
        """The candidate that this member prefers."""
        for name, _ in self.protocols:
            if name in candidates:
                return name
        raise BrokenInvariant(f"{self!r} offers none of {sorted(candidates)}")

    @property
    def waits(self) -> bool:
        """Whether it waits for an answer, and so cannot be expected to heartbeat. Always false for a new
        member: its own timer bounds its wait."""
        return not self.is_new and (self.parked_join is not None or self.parked_sync is not None)

    def view(self, protocol_name: str | None, owes: str | None) -> MemberView:
        """The member as shown outside: `owes` is the request that its group waits for."""
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

    def described(self, protocol_name: str | None) -> DescribeGroupsResponse.DescribedGroupMember:
        """Its entry in DescribeGroups, with its metadata for a protocol."""
        return DescribeGroupsResponse.DescribedGroupMember(
            member_id=self.member_id,
            group_instance_id=self.group_instance_id,
            client_id=self.client_id,
            client_host=self.client_host,
            member_metadata=b"" if protocol_name is None else self.metadata(protocol_name),
            member_assignment=self.assignment,
        )

    def encoded(self, protocol_name: str | None) -> bytes:
        """`described`, encoded as DESCRIBED_MEMBER. Cached, since whoever asks will ask again."""
        metadata = b"" if protocol_name is None else self.metadata(protocol_name)
        told = self.member_id, metadata, self.assignment  # the other fields never change
        known = self._described
        if known is None or known[0] != told:
            known = self._described = told, encode_element(DESCRIBED_MEMBER, self.described(protocol_name))
        return known[1]

    def stored(self, protocol_name: str) -> StoredMember:
        """The member as a GroupMetadata record stores it."""
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
        """The member as stored in a GroupMetadata record: of its protocols, only the selected one is
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
        return sorted(subscribed_topics(metadata, LISTED_MAX))
    except DecodeError:
        return None


def _read_assignment(assignment: bytes) -> Sequence[TopicPartition] | None:
    if not assignment:
        return []
    try:
        assigned = decode_assignment(assignment, LISTED_MAX).assigned_partitions
    except DecodeError:
        return None
    return [(each.topic, partition) for each in assigned for partition in each.partitions]

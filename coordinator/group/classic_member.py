"""A member of a classic group."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from muster.coordinator.group.effects import BrokenInvariant, Ticket
from muster.coordinator.group.events import MemberIdentity
from muster.coordinator.group.hard_state import StoredMember

Protocols = tuple[tuple[str, bytes], ...]
"""The protocols a member offers, most wanted first: name and metadata."""


class ClassicMember:
    """What the group knows of a member, and the request of it that is parked, if any. Timeouts are
    milliseconds."""

    __slots__ = (
        "assignment",
        "client_host",
        "client_id",
        "connection_id",
        "group_instance_id",
        "heard_ms",
        "is_new",
        "member_id",
        "parked_join",
        "parked_sync",
        "protocols",
        "rebalance_timeout_ms",
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
        self.is_new = False
        """Added in the rebalance that is under way: it has no id to heartbeat with, so waiting is no sign of
        life."""
        self.heard_ms = heard_ms
        self.session_timer: Any = None
        """The key of its session's deadline; set by the group that takes it in."""
        self.connection_id: int | None = None
        """The connection it was last heard on, while that is open. None for a member that was loaded and not
        heard of since, too."""

    def __repr__(self) -> str:
        parked = "join" if self.parked_join is not None else "sync" if self.parked_sync is not None else None
        instance = f" instance={self.group_instance_id}" if self.group_instance_id is not None else ""
        new = " new" if self.is_new else ""
        return f"<ClassicMember {self.member_id}{instance} client={self.client_id}{new} parked={parked}>"

    @property
    def identity(self) -> MemberIdentity:
        return MemberIdentity(self.member_id, self.client_id, self.client_host, self.group_instance_id)

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
        return cls(
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

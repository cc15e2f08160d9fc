"""What happened in a group, as data, recorded at the moment it happened.

Each event carries the trigger of the step that caused it. What a person reads as the *cause* of a rebalance
is computed from these by whoever reads them, and may be refined by what happens later (a LeaveGroup followed
by the end of the connection is a clean shutdown; one without is a client that missed its poll deadline).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class Trigger(StrEnum):
    """What made a group change."""

    MEMBER_JOINED = "member joined"
    """A member the group did not have."""
    METADATA_CHANGED = "subscription or protocols changed"
    """A known member joined with other protocols or other metadata."""
    MEMBER_REJOINED = "member rejoined"
    """A known member joined a group that was already waiting for joins."""
    LEADER_REJOINED = "leader rejoined"
    """The leader joined a stable group: most often the topics it subscribes to have changed."""
    STATIC_MEMBER_REPLACED = "static member returned"
    """A member came back under its instance id and got a new member id (KIP-345)."""
    MEMBER_LEFT = "member left"
    SESSION_EXPIRED = "session expired"
    """No heartbeat within the session timeout."""
    NEW_MEMBER_EXPIRED = "new member expired"
    """A new member waited in JoinGroup for the five minutes it may."""
    PENDING_MEMBER_EXPIRED = "pending member expired"
    """A client was told its member id (MEMBER_ID_REQUIRED, KIP-394) and did not come back with it."""
    MEMBER_ID_ISSUED = "member id issued"
    SYNC_TIMED_OUT = "sync timed out"
    """Members did not send SyncGroup within the rebalance timeout."""
    GROUP_FULL = "group full"
    """A member was refused because of group.max.size (KIP-389)."""
    ALL_JOINED = "all members joined"
    INITIAL_DELAY_OVER = "initial rebalance delay over"
    REBALANCE_TIMED_OUT = "rebalance timed out"
    """The largest rebalance timeout passed before every member had joined."""
    LEADER_SYNCED = "leader sent the assignment"
    LOADED_OVERSIZE = "loaded with more members than allowed"
    SHARD_UNLOADED = "coordinator moved"
    REQUESTED = "requested"
    """An admin's request, or a consumer's own."""
    RETENTION = "retention"
    TOPIC_DELETED = "topic deleted"
    CONNECTION_CLOSED = "connection closed"


class MemberIdentity(NamedTuple):
    """Who a member is, as an operator would name it."""

    member_id: str
    client_id: str
    client_host: str
    group_instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a group."""

    at_ms: int
    """Epoch milliseconds."""
    group_id: str
    generation_id: int
    """The group's generation right after the event."""
    trigger: Trigger
    member: MemberIdentity | None
    """Who triggered it; None for a timer of the group or an admin."""
    reason: str | None
    """What the client gave as a reason (KIP-800); most give none."""


@dataclass(frozen=True, slots=True)
class GroupCreated(Event):
    """A group came into being, without members."""


@dataclass(frozen=True, slots=True)
class GroupRemoved(Event):
    """An empty group went away: deleted, or nothing of it was left at a retention sweep."""


@dataclass(frozen=True, slots=True)
class StateChanged(Event):
    """The group went from one state to another."""

    from_state: str
    to_state: str
    """Kafka's spelling: Empty, PreparingRebalance, CompletingRebalance, Stable, Dead."""
    phase_ms: int
    """How long the group was in `from_state`."""
    waiting_for: tuple[MemberIdentity, ...]
    """Members that have yet to send JoinGroup (on entering PreparingRebalance), that did not send it in time
    (on leaving it), or that have yet to send SyncGroup (on entering CompletingRebalance, and on leaving
    it)."""
    pending_member_ids: tuple[str, ...]
    """Ids that were issued and not come back with: they are waited for as well."""


@dataclass(frozen=True, slots=True)
class RebalanceCompleted(Event):
    """The group is Stable in a new generation, or Empty. Trigger, member and reason are those of its last
    start, which made this generation: what one log line needs."""

    started_ms: int
    join_ms: int
    """How long the group waited for JoinGroups."""
    sync_ms: int
    """How long it then waited for the leader's SyncGroup; 0 for a group that became Empty."""
    restarts: int
    """How often the rebalance began anew before it completed (a member came or went before the leader's
    SyncGroup)."""
    members: int
    dropped: tuple[MemberIdentity, ...]
    """Members that did not rejoin in time and were removed."""
    last_joined: MemberIdentity | None
    """The member whose JoinGroup came last: the one the others waited for."""


@dataclass(frozen=True, slots=True)
class MemberAdded(Event):
    """`member` is in the group now, waiting for the rebalance to complete."""


@dataclass(frozen=True, slots=True)
class MemberIdIssued(Event):
    """`member` was told its id and is waited for (MEMBER_ID_REQUIRED, KIP-394)."""

    expires_ms: int


@dataclass(frozen=True, slots=True)
class PendingMemberRemoved(Event):
    """`member` was told its id and is no longer waited for."""

    waited_ms: int
    """How long it was waited for."""


@dataclass(frozen=True, slots=True)
class MemberRemoved(Event):
    """`member` is no longer in the group."""

    silent_ms: int
    """How long ago it was last heard of."""
    connected: bool
    """Whether the connection it was last heard on was still open: a process that stalled rather than died.
    False, too, for a member that was not heard of since its group was loaded."""


@dataclass(frozen=True, slots=True)
class MemberReplaced(Event):
    """The static member `member` carries a new member id; whoever still uses the old one is fenced
    (KIP-345)."""

    old_member_id: str
    old_client_host: str


@dataclass(frozen=True, slots=True)
class MemberDisconnected(Event):
    """The connection over which `member` was last heard of has closed. It stays a member until its session
    expires."""


@dataclass(frozen=True, slots=True)
class OffsetsRemoved(Event):
    """Committed offsets went away without a commit in their place."""

    partitions: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class CommitRefused(Event):
    """`member`'s OffsetCommit was refused: what it had processed will be delivered again."""

    error: str
    committed_generation_id: int

"""What happened in a group, as data, recorded at the moment it happened.

Each event carries the trigger of the step that caused it. What a person reads as the *cause* of a rebalance
is computed from these by whoever reads them, and may be refined by what happens later (a LeaveGroup followed
by the end of the connection is a clean shutdown; one without is a client that missed its poll deadline).

A reader of the journal sees an event's class as its type and the class's fields under their names, so both
are published (docs/journal.schema.json): they are added to, not renamed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, dataclass, fields
from enum import StrEnum
from typing import Any, ClassVar, Final, NamedTuple, TypeVar, dataclass_transform

MOVES_MAX: Final = 1_000
"""Moves told of one assignment."""


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
    MEMBER_SYNCED = "member synced"
    """A member's SyncGroup."""
    HEARTBEAT = "heartbeat"
    LOADED_OVERSIZE = "loaded with more members than allowed"
    SHARD_UNLOADED = "coordinator moved"
    REQUESTED = "requested"
    """An admin's request, or a consumer's own."""
    RETENTION = "retention"
    TOPIC_DELETED = "topic deleted"
    REVOCATION_TIMED_OUT = "revocation timed out"
    """A member of a consumer group did not give up partitions within its rebalance timeout."""
    REGEX_RESOLVED = "regular expression resolved"
    """The topics that a regular expression stands for were looked up."""
    TOPICS_CHANGED = "topics changed"
    """Topics that the members of a consumer group subscribe to came, went, or have other partitions."""
    ASSIGNOR_CHANGED = "assignor changed"
    """The members of a consumer group prefer another server-side assignor."""
    UPGRADED = "first member of the consumer protocol"
    """A classic group became a consumer group."""
    MADE_WAY = "made way for a group of the other protocol"
    """An empty group went, since its next member speaks the other protocol."""
    CONNECTION_CLOSED = "connection closed"


class MemberIdentity(NamedTuple):
    """Who a member is, as an operator would name it."""

    member_id: str
    client_id: str
    client_host: str
    group_instance_id: str | None = None


class Cause(NamedTuple):
    """What makes a group change: the trigger, who pulled it, and the reason the client gave (KIP-800)."""

    trigger: Trigger
    member: MemberIdentity | None = None
    reason: str | None = None


Stamp = tuple[int, str, int, Trigger, MemberIdentity | None, str | None]
"""The fields that every event has, in their order."""


_Class = TypeVar("_Class")


@dataclass_transform(eq_default=False, frozen_default=True)
def _event(defined: type[_Class]) -> type[_Class]:
    """A dataclass that mypy keeps frozen. Python would generate and compile six methods for each, which made
    this module a tenth of a broker's start."""
    return dataclass(slots=True, eq=False, repr=False)(defined)


@_event
class Event:
    """Something that happened to a group."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

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

    def _told(self) -> list[tuple[str, object]]:
        return [(each.name, getattr(self, each.name)) for each in fields(self)]

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self._told() == other._told()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self._told())})"


@_event
class GroupCreated(Event):
    """A group came into being, without members."""


@_event
class GroupRemoved(Event):
    """An empty group went away: it was deleted, nothing of it was left at a retention sweep, or it made way
    for a group of the other protocol."""


@_event
class StateChanged(Event):
    """The group went from one state to another."""

    from_state: str
    to_state: str
    """Kafka's spelling: Empty, PreparingRebalance, CompletingRebalance, Stable, Dead; of consumer groups
    Empty, Assigning, Reconciling, Stable, Dead."""
    phase_ms: int
    """How long the group was in `from_state`."""
    waiting_for: tuple[MemberIdentity, ...]
    """Members that have yet to send JoinGroup (on entering PreparingRebalance), that did not send it in time
    (on leaving it), or that have yet to send SyncGroup (on entering CompletingRebalance, and on leaving
    it)."""
    pending_member_ids: tuple[str, ...]
    """Ids that were issued and not come back with: they are waited for as well."""
    until_ms: int | None
    """How long at most the group waits in `to_state`, epoch milliseconds: for JoinGroups (an initial delay
    may be prolonged) or for SyncGroups. None: it does not wait."""


# --- a rebalance --------------------------------------------------------------------------------------------


@_event
class ProtocolChosen(Event):
    """The members' vote fell on another protocol than that of the last generation."""

    protocol: str
    before: str | None
    """None: the group had no members."""
    votes: Mapping[str, int]
    """How many members voted for which: each for the first of its protocols that all offer."""


@_event
class LeaderChanged(Event):
    """`member` leads the generation that begins, another one led the last. A static leader that returned
    under a new id is no other."""

    old_member_id: str


class Move(NamedTuple):
    """A partition that has another owner than in the last generation. None: nobody."""

    topic: str
    partition: int
    from_member_id: str | None
    to_member_id: str | None


@_event
class Assigned(Event):
    """The leader sent the assignment. Everything but the trigger is None when the coordinator cannot read it
    (not a group of consumers, damaged bytes) or it is too large to be looked into."""

    partitions: int | None
    """Partitions that have an owner now."""
    kept: int | None
    """Those with the same owner as in the last generation."""
    moved: int | None
    """Those that another member owned. What remains is newly assigned."""
    lost: int | None
    """Partitions that had an owner and have none now."""
    moves: tuple[Move, ...] | None
    """Those moved, newly assigned and lost, MOVES_MAX at most."""
    owned: Mapping[str, int] | None
    """How many partitions a member id owns now; the first MOVES_MAX members."""
    truncated: bool
    """Whether `moves` or `owned` leaves something out."""


@_event
class AllSynced(Event):
    """Every member of the generation has asked for its assignment."""

    after_ms: int
    """Since the leader's assignment came."""
    last: MemberIdentity
    """Whose SyncGroup came last."""


@_event
class RebalanceCompleted(Event):
    """The group is Stable in a new generation, or Empty; of a consumer group, every member has the target of
    its epoch. Trigger, member and reason are those of its last start, which made this generation: what one
    log line needs."""

    started_ms: int
    """When it began; of a consumer group that was loaded half-way, when it was loaded."""
    join_ms: int
    """How long the group waited for JoinGroups; 0 for a consumer group."""
    assignment_ms: int
    """How long it then waited for the leader's SyncGroup; 0 for a group that became Empty, and for a consumer
    group."""
    restarts: int
    """How often the rebalance began anew before it completed (a member came or went before the leader's
    SyncGroup, or before every member of a consumer group had its target)."""
    members: int
    dropped: tuple[MemberIdentity, ...]
    """Members that did not rejoin, or give up partitions, in time and were removed."""
    last_joined: MemberIdentity | None
    """The member whose JoinGroup came last: the one the others waited for. Of a consumer group, the one that
    came to its target last."""
    joins: tuple[tuple[MemberIdentity, int], ...]
    """The last JoinGroups, the slowest first, five at most: whose, and how long after `started_ms`. Of a
    consumer group, the members that came to their target last."""
    target_ms: int | None = None
    """How long after `started_ms` the last target was made. None: a classic group."""
    reconcile_ms: int | None = None
    """How long it then took until every member had its target."""


# --- members ------------------------------------------------------------------------------------------------


@_event
class MemberIdIssued(Event):
    """`member` was told its id and is waited for (MEMBER_ID_REQUIRED, KIP-394)."""

    expires_ms: int
    former_member_id: str | None
    """A former member of the group that was last heard of over the same connection: most likely the same
    client."""


@_event
class PendingMemberRemoved(Event):
    """`member` was told its id and is no longer waited for."""

    waited_ms: int
    """How long it was waited for."""


@_event
class MemberAdded(Event):
    """`member` is in the group now, waiting for the rebalance to complete."""

    protocols: tuple[str, ...]
    """What it offers, most wanted first."""
    topics: tuple[str, ...] | None
    """What it subscribes to. None: it is no consumer, or its metadata no subscription."""
    session_timeout_ms: int
    rebalance_timeout_ms: int
    former_member_id: str | None
    """As in MemberIdIssued."""


@_event
class MemberRejoined(Event):
    """A known member sent its JoinGroup to a group that waits for them; told in groups of up to 100
    members."""

    after_ms: int
    """Since the rebalance began."""


@_event
class JoinRefused(Event):
    """A client may not join: the group is full and has no place for it, or it offers no protocol that the
    others do; told once a minute for each client id and host. Its member id is "" if it has none."""

    error: str
    size_max: int | None
    """How many members the group may have, when that is why."""


@_event
class MemberRemoved(Event):
    """`member` is no longer in the group."""

    silent_ms: int
    """How long ago it was last heard of."""
    connected: bool
    """Whether the connection it was last heard on was still open: a process that stalled rather than died.
    False, too, for a member that was not heard of since its group was loaded."""
    disconnected_ms: int | None
    """How long ago that connection closed. None: it is open, or the member was not heard of."""
    late: int
    """How many of its heartbeats in the last ten minutes were late (HeartbeatLate)."""
    heartbeat_interval_ms: int | None
    """How often it used to send one, as observed. None: not known."""
    session_timeout_ms: int
    requested_by: MemberIdentity | None
    """The client that asked for it over another connection than the member's own: an admin. Only client id
    and host are known."""


@_event
class MemberReplaced(Event):
    """The static member `member` carries a new member id; whoever still uses the old one is fenced
    (KIP-345)."""

    old_member_id: str
    old_client_host: str
    old_silent_ms: int
    """How long ago its former self was last heard of."""
    old_connected: bool
    """Whether the connection of its former self was open, and another one than its own."""
    protocol: str = "classic"
    """Which it speaks now: classic or consumer."""


@_event
class MemberFenced(Event):
    """Somebody sent a request under an old member id of the instance `member`, or under an instance id that
    is not its own (FENCED_INSTANCE_ID, KIP-345); or the member of a consumer group under an epoch that it
    does not have (FENCED_MEMBER_EPOCH, KIP-848), and has to rejoin. Told once a minute for each instance or
    member."""

    api: str
    """Kafka's name of the request: Heartbeat, JoinGroup, SyncGroup, LeaveGroup, OffsetCommit,
    ConsumerGroupHeartbeat."""
    old_member_id: str
    old_client_id: str
    old_client_host: str
    """Who sent it: the process that is fenced."""
    error: str = "FENCED_INSTANCE_ID"
    """Kafka's name of it."""
    sent_epoch: int | None = None
    """The member epoch in the request, where that is why."""
    member_epoch: int | None = None
    """The epoch that the member has."""


@_event
class MemberDisconnected(Event):
    """The connection over which `member` was last heard of has closed. It stays a member until its session
    expires, unless it had been removed before."""

    silent_ms: int
    """How long ago it was last heard of."""
    after_removal_ms: int | None
    """How long ago it was removed from the group. None: it is a member."""


@_event
class HeartbeatLate(Event):
    """A near miss: `member` was not heard of for so long that little was missing to its eviction, or that it
    cannot be its usual pace."""

    late_ms: int
    """Since its session last began anew."""
    heartbeat_interval_ms: int | None
    """Its usual pace, as observed. None: not known yet."""
    session_timeout_ms: int


@_event
class ProtocolMigrated(Event):
    """The group is of the other kind now, with members that were in it before (KIP-848)."""

    from_type: str
    to_type: str
    """classic, consumer."""
    members: int
    """How many members it has, and had before."""


# --- consumer groups (KIP-848) ------------------------------------------------------------------------------


@_event
class EpochBumped(Event):
    """The group has a new epoch: by its trigger, the target assignment is to be made anew. `generation_id` is
    the new epoch."""

    members: int
    restarts: int
    """How many epochs there were since the group was last Stable or Empty: 0 begins a rebalance."""


@_event
class TargetAssigned(Event):
    """The coordinator has made a target assignment; members come to it one by one. Trigger, member and reason
    are those of the last EpochBumped before it."""

    assignor: str
    partitions: int
    """Partitions that are to have an owner."""
    kept: int
    """Those with the same owner as in the last target."""
    moved: int
    """Those that were another member's. What remains is newly assigned."""
    lost: int
    """Partitions that had an owner and are to have none."""
    moves: tuple[Move, ...]
    """Those moved, newly assigned and lost, MOVES_MAX at most."""
    owned: Mapping[str, int]
    """How many partitions a member id is to own; the first MOVES_MAX members."""
    truncated: bool
    """Whether `moves` or `owned` leaves something out."""


@_event
class RevocationRequested(Event):
    """`member` has to give up partitions, and others wait for them."""

    partitions: tuple[tuple[str, int], ...]
    until_ms: int | None
    """When it is removed from the group unless it has, epoch milliseconds. None: it speaks the classic
    protocol, and has to rejoin in time."""


@_event
class PartitionsRevoked(Event):
    """`member` has given up partitions."""

    partitions: tuple[tuple[str, int], ...]
    after_ms: int | None
    """How long after it had to. None: the coordinator was loaded meanwhile."""


@_event
class PartitionsAssigned(Event):
    """`member` has partitions that it had not."""

    partitions: tuple[tuple[str, int], ...]
    still_held: tuple[tuple[str, int], ...]
    """Those of its target that another member still holds."""
    member_epoch: int


# --- what members work on -----------------------------------------------------------------------------------


@_event
class MetadataChanged(Event):
    """`member` joined with other metadata than before; of a consumer group, said so in a heartbeat, where
    protocols are the server-side assignor that it asks for. During a rebalance, only a change of topics or
    protocols is told: the rest changes with every rebalance."""

    topics_added: tuple[str, ...]
    topics_removed: tuple[str, ...]
    protocols_before: tuple[str, ...]
    """Empty when not known: the coordinator has loaded the group and stored only the protocol in use."""
    protocols_after: tuple[str, ...]
    user_data_changed: bool
    """The assignor's own data changed, or bytes that nobody here can read."""
    owned_changed: bool
    """It owns other partitions than it said before (KIP-429): so a cooperative consumer says that it has
    given up what it was to give up."""
    regex: str | None = None
    """The regular expression it subscribes to from now on, "" for none any more (KIP-848). None: as
    before."""


@_event
class TopicsGrown(Event):
    """Topics that the members subscribe to have another number of partitions than at the last assignment;
    found when the leader rejoins, and at the latest when the next assignment comes. Of a consumer group, than
    at the last epoch."""

    topics: tuple[tuple[str, int, int], ...]
    """Name, partitions then, partitions now; 0: there was or is no such topic, or no regular expression
    matched it."""


@_event
class OffsetsRemoved(Event):
    """Committed offsets went away without a commit in their place."""

    partitions: tuple[tuple[str, int], ...]


@_event
class CommitRefused(Event):
    """An OffsetCommit of `member` (or of one that is a member no longer) was refused: what it had processed
    will be delivered again. Told twenty times in ten seconds for each group at most."""

    error: str
    committed_generation_id: int
    partitions: int
    """How many the commit was about."""
    superseded_ms: int | None
    """How long ago its generation ended. None: it has not, or that is not known."""
    owner: MemberIdentity | None
    """Who has the first of the partitions by the last assignment. None: nobody, or that cannot be read."""
    topic: str
    partition: int
    """The first of the partitions; "" and -1 if there is none."""

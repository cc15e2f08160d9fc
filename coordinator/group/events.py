"""What happened in a group, as data, recorded when it happened.

Each event carries the trigger of the step that caused it. Readers of events compute from them what a person
sees as the *cause* of a rebalance, and may refine it by what happens later (a LeaveGroup followed by the end
of the connection is a clean shutdown; one without is a client that missed its poll deadline).

Readers of the journal see an event's class as its type and the class's fields under their names, so both are
published (docs/journal.schema.json): add to them, but never rename.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, dataclass, fields
from enum import StrEnum
from typing import Any, ClassVar, Final, NamedTuple, TypeVar, dataclass_transform

MOVES_MAX: Final = 1_000
"""Maximum number of moves reported per assignment."""
DROPPED_MAX: Final = 1_000
"""How many removed members are remembered when a rebalance restarts: some restart for ever."""


class Trigger(StrEnum):
    """What made a group change."""

    MEMBER_JOINED = "member joined"
    """A member new to the group."""
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
    """A new member waited in JoinGroup for its maximum of five minutes."""
    PENDING_MEMBER_EXPIRED = "pending member expired"
    """A client was issued a member id (MEMBER_ID_REQUIRED, KIP-394) and did not come back with it."""
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
    """A member of a consumer group did not revoke partitions within its rebalance timeout."""
    REGEX_RESOLVED = "regular expression resolved"
    """The topics that a regular expression matches were looked up."""
    TOPICS_CHANGED = "topics changed"
    """Topics that the members of a consumer group subscribe to were created, deleted or resized."""
    ASSIGNOR_CHANGED = "assignor changed"
    """The members of a consumer group prefer another server-side assignor."""
    UPGRADED = "first member of the consumer protocol"
    """A classic group became a consumer group."""
    MADE_WAY = "made way for a group of the other protocol"
    """An empty group was removed, since its next member speaks the other protocol."""
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
    """A dataclass that only mypy keeps frozen. Python would generate and compile six methods for each, which
    made this module a tenth of a broker's start."""
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
    """A group was created, without members."""


@_event
class GroupRemoved(Event):
    """An empty group was removed: it was deleted, a retention sweep found nothing left of it, or it made way
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
    (on leaving it), or that have yet to send SyncGroup (on becoming Stable)."""
    pending_member_ids: tuple[str, ...]
    """Issued ids that have not come back yet: they are waited for as well."""
    until_ms: int | None
    """Until when at most the group waits in `to_state`, in epoch milliseconds: for JoinGroups (an initial
    delay may be extended) or for SyncGroups. None: it does not wait."""
    leader: MemberIdentity | None = None
    """On entering CompletingRebalance: the member whose assignment the group waits for."""


# --- a rebalance --------------------------------------------------------------------------------------------


@_event
class ProtocolChosen(Event):
    """The members voted for a different protocol than in the last generation."""

    protocol: str
    before: str | None
    """None: the group had no members."""
    votes: Mapping[str, int]
    """Votes per protocol: each member votes for the first of its protocols that all offer."""


@_event
class LeaderChanged(Event):
    """`member` leads the generation that begins; another member led the last. A static leader that returned
    under a new id counts as the same."""

    old_member_id: str


class Move(NamedTuple):
    """A partition whose owner is not that of the last generation. None: nobody."""

    topic: str
    partition: int
    from_member_id: str | None
    to_member_id: str | None


@_event
class Assigned(Event):
    """The leader sent the assignment. The details are None if the coordinator cannot read it (not a group of
    consumers, damaged bytes) or it is too large to inspect."""

    partitions: int | None
    """Partitions that have an owner now."""
    kept: int | None
    """Those with the same owner as in the last generation."""
    moved: int | None
    """Those that another member owned. The rest are newly assigned."""
    lost: int | None
    """Partitions that had an owner and have none now."""
    moves: tuple[Move, ...] | None
    """Partitions moved, newly assigned or lost; at most MOVES_MAX."""
    owned: Mapping[str, int] | None
    """Number of partitions each member id owns now; the first MOVES_MAX members."""
    truncated: bool
    """Whether `moves` or `owned` leaves something out."""
    protocol: str | None
    """The assignor; known also if the details are not."""


@_event
class AllSynced(Event):
    """Every member of the generation has asked for its assignment."""

    after_ms: int
    """Time since the leader's assignment arrived."""
    last: MemberIdentity
    """Whose SyncGroup came last."""


@_event
class RebalanceCompleted(Event):
    """The group is Stable in a new generation, or Empty; in a consumer group, every member has the target of
    its epoch. Trigger, member and reason are those of the rebalance's last start, which made this generation:
    what one log line needs."""

    started_ms: int
    """When it began; for a consumer group loaded midway, when it was loaded."""
    join_ms: int
    """How long the group waited for JoinGroups; 0 for a consumer group."""
    assignment_ms: int
    """How long it then waited for the leader's SyncGroup; 0 for a group that became Empty, and for a consumer
    group."""
    restarts: int
    """How often the rebalance restarted before it completed (a member came or went before the leader's
    SyncGroup, or before every member of a consumer group had its target)."""
    members: int
    dropped: tuple[MemberIdentity, ...]
    """Members removed because they did not rejoin, or revoke partitions, in time; of those before the last
    restart, the first DROPPED_MAX."""
    last_joined: MemberIdentity | None
    """The member whose JoinGroup came last: the one the others waited for. In a consumer group, the one that
    reached its target last."""
    joins: tuple[tuple[MemberIdentity, int], ...]
    """The last JoinGroups, slowest first, five at most: whose, and how long after `started_ms`. In a consumer
    group, the members that reached their target last."""
    target_ms: int | None = None
    """How long after `started_ms` the last target was made. None: a classic group."""
    reconcile_ms: int | None = None
    """How long it then took until every member had its target."""


# --- members ------------------------------------------------------------------------------------------------


@_event
class MemberIdIssued(Event):
    """`member` was issued its id and is waited for (MEMBER_ID_REQUIRED, KIP-394)."""

    expires_ms: int
    former_member_id: str | None
    """A former member of the group that was last heard from over the same connection: most likely the same
    client."""


@_event
class PendingMemberRemoved(Event):
    """`member` was issued its id and is no longer waited for."""

    waited_ms: int
    """How long it was waited for."""


@_event
class MemberAdded(Event):
    """`member` is in the group now, waiting for the rebalance to complete."""

    protocols: tuple[str, ...]
    """The protocols it offers, most preferred first."""
    topics: tuple[str, ...] | None
    """The topics it subscribes to. None: it is not a consumer, or its metadata is not a subscription."""
    session_timeout_ms: int
    rebalance_timeout_ms: int
    former_member_id: str | None
    """As in MemberIdIssued."""


@_event
class MemberRejoined(Event):
    """A known member sent its JoinGroup to a group that waits for them; reported in groups of up to
    `REJOINS_TOLD_MAX` members."""

    after_ms: int
    """Time since the rebalance began."""


@_event
class JoinRefused(Event):
    """A client may not join, for example because the group is full or because it offers no protocol that the
    others do; reported once a minute per client id and host. Its member id is "" if it has none."""

    error: str
    size_max: int | None
    """How many members the group may have, if that is the reason."""
    protocol_types: tuple[str, str] | None = None
    """Its protocol type and the group's, if they differ and that is the reason."""
    offered: tuple[str, ...] | None = None
    """The protocols it offers, if the members share none of them and that is the reason."""
    shared: tuple[str, ...] | None = None
    """The protocols that all members offer, if that is the reason."""


@_event
class MemberRemoved(Event):
    """`member` is no longer in the group."""

    silent_ms: int
    """How long ago it was last heard from."""
    connected: bool
    """Whether the connection it was last heard on was still open: a process that stalled rather than died.
    Also False for a member not heard from since its group was loaded."""
    disconnected_ms: int | None
    """How long ago that connection closed. None: it is open, or the member was not heard from."""
    late: int
    """How many of its heartbeats in the last ten minutes were late (HeartbeatLate)."""
    heartbeat_interval_ms: int | None
    """Its observed interval between heartbeats. None: not known."""
    session_timeout_ms: int
    requested_by: MemberIdentity | None
    """The client that asked for it over another connection than the member's own: an admin. Only its client
    id and host are known."""
    away: bool = False
    """Whether it had left temporarily (epoch −2): a static member of a consumer group."""


@_event
class MemberReplaced(Event):
    """The static member `member` has a new member id; whoever still uses the old one is fenced (KIP-345)."""

    old_member_id: str
    old_client_host: str
    old_silent_ms: int
    """How long ago its former self was last heard from."""
    old_connected: bool
    """Whether its former self had an open connection other than its own."""
    protocol: str = "classic"
    """The protocol it speaks now: classic or consumer."""


@_event
class MemberFenced(Event):
    """Somebody sent a request under an old member id of the instance `member`, or under an instance id that
    is not its own (FENCED_INSTANCE_ID, KIP-345); or the member of a consumer group sent one under an epoch
    that it does not have (FENCED_MEMBER_EPOCH, KIP-848), and has to rejoin. Reported once a minute per
    instance or member."""

    api: str
    """Kafka's name for the request: Heartbeat, JoinGroup, SyncGroup, LeaveGroup, OffsetCommit,
    ConsumerGroupHeartbeat."""
    old_member_id: str
    old_client_id: str
    old_client_host: str
    """Who sent it: the process that is fenced."""
    error: str = "FENCED_INSTANCE_ID"
    """Kafka's name for the error."""
    sent_epoch: int | None = None
    """The member epoch in the request, if that is the reason."""
    member_epoch: int | None = None
    """The epoch that the member has."""


@_event
class MemberDisconnected(Event):
    """The connection over which `member` was last heard from has closed. It stays a member until its session
    expires, unless it was removed before."""

    silent_ms: int
    """How long ago it was last heard from."""
    after_removal_ms: int | None
    """How long ago it was removed from the group. None: it is still a member."""


@_event
class HeartbeatLate(Event):
    """A near miss: `member` was silent until close to its session timeout, or far longer than its usual
    interval."""

    late_ms: int
    """Time since its session last restarted."""
    heartbeat_interval_ms: int | None
    """Its observed interval between heartbeats. None: not known yet."""
    session_timeout_ms: int


@_event
class ProtocolMigrated(Event):
    """A group that had members became one of the other kind (KIP-848)."""

    from_type: str
    to_type: str
    """classic, consumer."""
    members: int
    """Number of members, now and before."""


# --- consumer groups (KIP-848) ------------------------------------------------------------------------------


@_event
class EpochBumped(Event):
    """The group has a new epoch: the trigger requires a new target assignment. `generation_id` is the new
    epoch."""

    members: int
    restarts: int
    """How many epochs came before it since the group was last Stable or Empty: 0 begins a rebalance."""


@_event
class TargetAssigned(Event):
    """The coordinator has made a target assignment; members reach it one by one. Trigger, member and reason
    are those of the last EpochBumped before it."""

    assignor: str
    partitions: int
    """Partitions that are to have an owner."""
    kept: int
    """Those with the same owner as in the last target."""
    moved: int
    """Those that were another member's. The rest are newly assigned."""
    lost: int
    """Partitions that had an owner and are to have none."""
    moves: tuple[Move, ...]
    """Partitions moved, newly assigned or lost; at most MOVES_MAX."""
    owned: Mapping[str, int]
    """Number of partitions each member id is to own; the first MOVES_MAX members."""
    truncated: bool
    """Whether `moves` or `owned` leaves something out."""


@_event
class RevocationRequested(Event):
    """`member` has to revoke partitions, and others wait for them."""

    partitions: tuple[tuple[str, int], ...]
    until_ms: int | None
    """When it is removed from the group unless it has, in epoch milliseconds. None: it speaks the classic
    protocol, and has to rejoin in time."""


@_event
class PartitionsRevoked(Event):
    """`member` has revoked partitions."""

    partitions: tuple[tuple[str, int], ...]
    after_ms: int | None
    """Time since it was told to. None: it was not, or the coordinator was loaded meanwhile."""


@_event
class PartitionsAssigned(Event):
    """`member` was assigned partitions that it did not have."""

    partitions: tuple[tuple[str, int], ...]
    still_held: tuple[tuple[str, int], ...]
    """Those of its target that another member still holds."""
    member_epoch: int


# --- what members work on -----------------------------------------------------------------------------------


@_event
class MetadataChanged(Event):
    """`member` joined with metadata other than before; in a consumer group, it sent that in a heartbeat,
    where protocols are the server-side assignor that it asks for. During a rebalance, only changes of topics
    or protocols are reported: the rest changes with every rebalance."""

    topics_added: tuple[str, ...]
    topics_removed: tuple[str, ...]
    protocols_before: tuple[str, ...]
    """Empty if unknown: the coordinator has loaded the group, and only the protocol in use is stored."""
    protocols_after: tuple[str, ...]
    user_data_changed: bool
    """The assignor's own data changed, or bytes that the coordinator cannot read."""
    owned_changed: bool
    """It owns other partitions than it reported before (KIP-429): this is how a cooperative consumer reports
    that it has revoked what it had to."""
    regex: str | None = None
    """The regular expression it subscribes to from now on, "" if it has none any more (KIP-848). None:
    unchanged."""


@_event
class TopicsGrown(Event):
    """Partition counts of subscribed topics differ from those that the last assignment was based on; found
    when the leader rejoins, or when an assignment arrives that shows it. In a consumer group, from those at
    the last epoch."""

    topics: tuple[tuple[str, int, int], ...]
    """Name, partitions then, partitions now; 0: there was or is no such topic, or no regular expression
    matched it."""


@_event
class OffsetsRemoved(Event):
    """Committed offsets were removed without a new commit."""

    partitions: tuple[tuple[str, int], ...]


@_event
class CommitRefused(Event):
    """An OffsetCommit of `member`, which may no longer be a member, was refused: what it had processed will
    be delivered again. Reported at most twenty times in ten seconds per group."""

    error: str
    committed_generation_id: int
    partitions: int
    """Number of partitions in the commit."""
    superseded_ms: int | None
    """How long ago its generation ended. None: it has not, or that is not known."""
    owner: MemberIdentity | None
    """Who has the first of the partitions by the last assignment. None: nobody, or it cannot be read."""
    topic: str
    partition: int
    """The first of the partitions; "" and -1 if there is none."""

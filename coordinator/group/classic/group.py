"""The classic group: its state, its members, and the rules that hold for every request.

The modules next to it handle requests and timers: `joins`, `syncs`, `sessions` (heartbeats, leaving, expiry)
and `rebalance`, which carries a group from one generation to the next. `views` shows a group to those who
ask, `refusals` reports events.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from muster.coordinator.base.step import BrokenInvariant, Step
from muster.coordinator.group import records
from muster.coordinator.group.classic import refusals, views
from muster.coordinator.group.classic.member import LISTED_MAX, ClassicMember, Protocols
from muster.coordinator.group.classic.ownership import Ownership
from muster.coordinator.group.classic.states import TRANSITIONS, GroupState
from muster.coordinator.group.classic.subscriptions import PartitionCounts
from muster.coordinator.group.events import (
    Cause,
    MemberIdentity,
    Stamp,
    StateChanged,
    Trigger,
)
from muster.coordinator.group.group import (
    Commit,
    GroupView,
    MemberView,
    PendingMember,
    RetentionBase,
    committed_at,
    group_not_found,
    names_its_sender,
)
from muster.coordinator.group.hard_state import UNKNOWN_TIME, StoredGroup
from muster.coordinator.group.heard import Heard
from muster.coordinator.group.shared import Shared
from muster.coordinator.group.timers import TimerKey, TimerKind
from muster.protocol.embedded import subscribed_topics
from muster.protocol.errors import DecodeError, ErrorCode, KafkaError
from muster.protocol.java import hash_map_order
from muster.protocol.messages.classic_group import JoinGroupResponse, SyncGroupResponse
from muster.protocol.messages.group_admin import DescribeGroupsResponse, ListGroupsResponse
from muster.protocol.messages.offsets import OffsetCommitRequest
from muster.protocol.messages.transactions import TxnOffsetCommitRequest

CONSUMER: Final = "consumer"
"""The protocol type of consumers: the coordinator understands their subscriptions."""

_SLOWEST_JOINS: Final = 5
_GENERATIONS_MAX: Final = 16
"""Number of generations whose start is remembered."""


_DEAD: Final = GroupState.DEAD  # an Enum lookup is Python code, and every heartbeat needs it


@dataclass(slots=True)
class Rebalance:
    """A rebalance under way, for the events that report it."""

    cause: Cause
    started_ms: int
    phase_from_ms: int
    """When the wait for JoinGroups, or that for the assignment, began."""
    join_ms: int = 0
    """How long it waited for JoinGroups, including those of abandoned generations."""
    assignment_ms: int = 0
    """The same for assignments."""
    restarts: int = 0
    dropped: list[MemberIdentity] = field(default_factory=list)
    dropped_before: int = 0
    """How many of `dropped` are from before the restart."""

    def end_join(self, now_ms: int) -> None:
        """The wait for JoinGroups is over."""
        self.join_ms += max(now_ms - self.phase_from_ms, 0)
        self.phase_from_ms = now_ms

    def end_assignment(self, now_ms: int) -> None:
        """The wait for the leader's assignment is over."""
        self.assignment_ms += max(now_ms - self.phase_from_ms, 0)
        self.phase_from_ms = now_ms


class InitialDelay(NamedTuple):
    """The wait for more members in an empty group's first rebalance, one delay at a time (KIP-134)."""

    delay_ms: int
    remaining_ms: int
    member_came: bool = False
    """Whether a member joined since this delay was set."""


class ClassicGroup:
    """A classic group. Everything here is soft state except what `store` puts into `hard`: a group that is
    loaded again is Stable or Empty, as of its last GroupMetadata."""

    # Without slots, each would have its own dictionary: instances share one of at most thirty attributes.
    __slots__ = (
        "_generations",
        "_supporters",
        "config",
        "connections",
        "deadlines",
        "former_leader",
        "generation_id",
        "group_id",
        "hard",
        "initial_delay",
        "joins_parked",
        "last_joins",
        "leader",
        "members",
        "ownership",
        "partition_counts",
        "pending_members",
        "pending_syncs",
        "protocol_name",
        "protocol_type",
        "rate_limiters",
        "rebalance",
        "state",
        "state_timestamp",
        "static_members",
        "subscribed_topics",
        "syncs_parked",
        "topics",
    )

    def __init__(self, group_id: str, shared: Shared, now_ms: int) -> None:
        self.group_id = group_id
        self.config = shared.config
        self.hard = shared.hard
        self.deadlines = shared.deadlines
        self.connections = shared.connections
        self.topics = shared.topics
        self.rate_limiters = shared.rate_limiters
        self.state = GroupState.EMPTY
        self.state_timestamp = now_ms
        self.generation_id = 0
        self.protocol_type = ""
        self.protocol_name: str | None = None
        self.leader: str | None = None
        self.members: dict[str, ClassicMember] = {}
        self.static_members: dict[str, str] = {}
        """Instance id -> member id."""
        self.pending_members: dict[str, PendingMember] = {}
        self.pending_syncs: set[str] = set()
        """Members that have not sent SyncGroup in this generation."""
        self.subscribed_topics: frozenset[str] | None = None
        """What the members of this generation subscribe to; None: not known."""
        self.joins_parked = 0
        self.syncs_parked = 0
        self.last_joins: tuple[tuple[MemberIdentity, int], ...] = ()
        """Senders and times of the last JoinGroups in the rebalance under way, the latest last."""
        self.initial_delay: InitialDelay | None = None
        self.rebalance: Rebalance | None = None
        # What events compare a new generation with.
        self.former_leader: str | None = None
        """Who leads, or led, the last generation; None: it had no members."""
        self.ownership: Ownership = {}
        """By the last assignment."""
        self.partition_counts: PartitionCounts | None = None
        """Partition counts of the subscribed topics, as the last assignment was based on; None: not known."""
        self._generations: tuple[tuple[int, int], ...] = ()
        """The latest generations, and when they began."""
        self._supporters: Counter[str] = Counter()  # how many members offer a protocol

    def __repr__(self) -> str:
        # Nothing here counts members: a refusal prints its group, and a large group may refuse each of them.
        return (
            f"<ClassicGroup {self.group_id} {self.state} generation={self.generation_id} "
            f"members={len(self.members)} parked={self.joins_parked + self.syncs_parked}>"
        )

    @classmethod
    def loaded(cls, group_id: str, stored: StoredGroup, shared: Shared, now_ms: int) -> ClassicGroup:
        """The group as stored in its last GroupMetadata: Stable if it has members, else Empty."""
        group = cls(group_id, shared, now_ms)
        group.state = GroupState.STABLE if stored.members else GroupState.EMPTY
        group.state_timestamp = stored.state_timestamp
        group.generation_id = stored.generation_id
        group.protocol_type = stored.protocol_type
        group.protocol_name = stored.protocol_name
        group.leader = stored.leader
        for stored_member in stored.members:
            group.add(ClassicMember.loaded(stored_member, stored.protocol_name or "", now_ms))
        group.subscribed_topics = group.subscriptions()
        group.former_leader = group.leader
        group.ownership = {member: member.assignment for member in group.members.values()}
        return group

    # --- as its shard knows it ------------------------------------------------------------------------------

    @property
    def is_empty(self) -> bool:
        return self.state is GroupState.EMPTY

    def stamp(self, step: Step, cause: Cause) -> Stamp:
        trigger, member, reason = cause
        return step.now_ms, self.group_id, self.generation_id, trigger, member, reason

    def validate_commit(self, request: OffsetCommitRequest, step: Step) -> None:
        """Raises COORDINATOR_NOT_AVAILABLE, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION,
        REBALANCE_IN_PROGRESS."""
        try:
            self._validate_committer(request)
            if self.state is GroupState.COMPLETING_REBALANCE:
                # It has joined this generation but has no assignment yet; what it commits belongs to an
                # earlier generation.
                raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS, f"{self!r} is waiting for its assignment")
        except KafkaError as refusal:
            self._tell_commit_refused("OffsetCommit", request, refusal, step)
            raise
        member = self.members.get(request.member_id)
        if member is not None:
            self.heard(member, step)
            self.restart_session(member, step.now_ms)

    def validate_transactional_commit(self, request: TxnOffsetCommitRequest, step: Step) -> None:
        """Raises COORDINATOR_NOT_AVAILABLE, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION. What a
        member has processed may be committed while its group rebalances."""
        try:
            if names_its_sender(request):
                self._validate_committer(request)
            else:
                self.alive()
        except KafkaError as refusal:
            self._tell_commit_refused("TxnOffsetCommit", request, refusal, step)
            raise

    def _tell_commit_refused(self, api: str, request: Commit, refusal: KafkaError, step: Step) -> None:
        refusals.tell_fenced(self, api, request, refusal, step)
        refusals.tell_commit_refused(self, request, refusal, step)

    def _validate_committer(self, request: Commit) -> None:
        self.alive()
        generation_id = request.generation_id_or_member_epoch
        if generation_id < 0 and self.state is GroupState.EMPTY:
            # An admin, or a consumer that assigns its partitions itself.
            return
        self.validate(request.member_id, request.group_instance_id)
        self.validate_generation(generation_id)

    def validate_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """Anybody may fetch."""

    def validate_delete(self) -> None:
        if self.state is GroupState.DEAD:
            raise group_not_found(self.group_id)
        if self.state is not GroupState.EMPTY:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP, f"{self!r} has members")

    def validate_offset_delete(self) -> None:
        if self.state is GroupState.DEAD:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"group {self.group_id!r} is being unloaded")
        if self.state is not GroupState.EMPTY and self.protocol_type != CONSUMER:
            # What members of another type use is not known.
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP, f"{self!r} is of type {self.protocol_type!r}")

    def is_subscribed(self, topic: str) -> bool:
        """Consumers whose subscriptions are not known count as using all topics."""
        if self.subscribed_topics is None:
            return self.protocol_type == CONSUMER
        return topic in self.subscribed_topics

    def retention_base(self) -> RetentionBase | None:
        if self.protocol_type == "":
            return committed_at  # it never had members
        if self.state is GroupState.EMPTY:
            emptied_ms = self.state_timestamp
            # Records of old brokers do not say when their group became empty.
            return committed_at if emptied_ms == UNKNOWN_TIME else lambda _: emptied_ms
        if self.state is GroupState.STABLE and self.subscribed_topics is not None:
            return committed_at
        return None

    def topics_changed(self, names: frozenset[str]) -> None:
        if self.members and self.partition_counts is None:
            # It was loaded: what has changed since its last assignment is not known.
            self.count_partitions()

    def delete(self, step: Step) -> None:
        if self.members:
            raise BrokenInvariant(f"{self!r} has members")
        self.cancel_timers()
        # Also for a group without a record: the store forgets what it does not have.
        self.hard.emit(records.group_tombstone(self.group_id), step)

    def unload(self, step: Step) -> None:
        moved = KafkaError(ErrorCode.NOT_COORDINATOR, f"group {self.group_id!r} is being unloaded")
        self.become(GroupState.DEAD, Cause(Trigger.SHARD_UNLOADED), step)
        for member in self.members.values():
            self.refuse_join(member, moved.code, step)
            self.answer_sync(member, moved, step)
        self.cancel_timers()

    def described(self) -> DescribeGroupsResponse.DescribedGroup:
        return views.described(self)

    def listed(self) -> ListGroupsResponse.ListedGroup:
        return ListGroupsResponse.ListedGroup(
            group_id=self.group_id,
            protocol_type=self.protocol_type,
            group_state=self.state,
            group_type="classic",
        )

    def identities(self) -> list[MemberIdentity]:
        return [member.identity for member in self.members.values()]

    def view(self) -> GroupView:
        return views.view(self)

    def member_views(self) -> Iterator[MemberView]:
        return views.member_views(self)

    # --- states ---------------------------------------------------------------------------------------------

    def become(self, to_state: GroupState, cause: Cause, step: Step, *, until_ms: int | None = None) -> None:
        """Enter a state, which lasts until `until_ms` at most. Beside it, only loading and migration set
        `state`."""
        if (self.state, to_state) not in TRANSITIONS:
            raise BrokenInvariant(f"{self!r} cannot become {to_state}")
        from_state, self.state = self.state, to_state
        entered_ms, self.state_timestamp = self.state_timestamp, step.now_ms
        step.events.append(
            StateChanged(
                *self.stamp(step, cause),
                from_state=from_state,
                to_state=to_state,
                # The time may be from the store, by another broker's clock, which may be ahead of ours.
                phase_ms=0 if entered_ms == UNKNOWN_TIME else max(step.now_ms - entered_ms, 0),
                waiting_for=self._waited_for(from_state),
                pending_member_ids=tuple(self.pending_members),
                until_ms=until_ms,
                leader=self._leader_waited_for(),
            )
        )

    def _leader_waited_for(self) -> MemberIdentity | None:
        if self.state is not GroupState.COMPLETING_REBALANCE or self.leader is None:
            return None
        return self.members[self.leader].identity

    def _waited_for(self, from_state: GroupState) -> tuple[MemberIdentity, ...]:
        """Members whose JoinGroup or SyncGroup the transition just made gave up on, or still waits for."""
        if GroupState.PREPARING_REBALANCE in (self.state, from_state):
            dropped: list[MemberIdentity] = []
            if from_state is GroupState.PREPARING_REBALANCE and self.rebalance is not None:
                dropped = self.rebalance.dropped[self.rebalance.dropped_before :]
            return (
                *dropped,
                *(member.identity for member in self.members.values() if member.parked_join is None),
            )
        return tuple(
            member.identity for member in self.members.values() if member.member_id in self.pending_syncs
        )

    def next_generation(self, now_ms: int) -> None:
        self.generation_id += 1
        self._generations = (*self._generations[1 - _GENERATIONS_MAX :], (self.generation_id, now_ms))

    def ended_ms(self, generation_id: int) -> int | None:
        """When a generation ended, which is when the next began. None: it has not, or that is forgotten."""
        for began_id, began_ms in self._generations:
            if began_id == generation_id + 1:
                return began_ms
        return None

    def alive(self) -> ClassicGroup:
        """This group. Raises COORDINATOR_NOT_AVAILABLE if it is being unloaded."""
        if self.state is _DEAD:
            raise KafkaError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE, f"group {self.group_id!r} is being unloaded"
            )
        return self

    # --- members --------------------------------------------------------------------------------------------

    def add(self, member: ClassicMember) -> None:
        """Add a member. The first one leads."""
        if member.group_instance_id is not None:
            if member.group_instance_id in self.static_members:
                raise BrokenInvariant(f"{self!r} has instance {member.group_instance_id!r} already")
            self.static_members[member.group_instance_id] = member.member_id
        if self.leader is None:
            self.leader = member.member_id
        self.members[member.member_id] = member
        member.session_timer = self.session_timer(member.member_id)
        self._supporters.update(member.protocol_names)
        self.pending_members.pop(member.member_id, None)

    def remove(self, member: ClassicMember, now_ms: int) -> None:
        """Remove a member, with its timer. The caller must have answered its parked requests."""
        if member.parked_join is not None or member.parked_sync is not None:
            raise BrokenInvariant(f"{member!r} would never be answered")
        del self.members[member.member_id]
        self._supporters -= Counter(member.protocol_names)  # and drop names that nobody offers any more
        if member.group_instance_id is not None:
            del self.static_members[member.group_instance_id]
        self.pending_syncs.discard(member.member_id)
        self.deadlines.cancel(self.session_timer(member.member_id))
        self.connections.removed(self.group_id, member, now_ms)
        if self.leader == member.member_id:
            # Any member will do for now; the next join phase makes sure that the leader is one that rejoined.
            self.leader = next(iter(self.members), None)

    def replace(self, member: ClassicMember, identity: MemberIdentity) -> None:
        """A static member continues under a new id; the old one is fenced (KIP-345). Client id and host stay
        those of the instance's first join, as in Kafka; only the events show the new ones."""
        member_id = identity.member_id
        if member.group_instance_id is None or self.members.get(member.member_id) is not member:
            raise BrokenInvariant(f"{self!r} cannot replace {member!r}")
        # In place, so that the order of members, and with it the leader's list, does not change.
        self.members = {
            member_id if other is member else other_id: other for other_id, other in self.members.items()
        }
        self.static_members[member.group_instance_id] = member_id
        self.deadlines.cancel(self.session_timer(member.member_id))
        if self.leader == member.member_id:
            self.leader = member_id
        if self.former_leader == member.member_id:
            self.former_leader = member_id
        if member.member_id in self.pending_syncs:
            # Kafka leaves the old id behind here, and rebalances when its SyncGroup does not come.
            self.pending_syncs.remove(member.member_id)
            self.pending_syncs.add(member_id)
        member.member_id, member.identity = member_id, identity
        member.session_timer = self.session_timer(member_id)
        member.is_new = False

    def update(
        self, member: ClassicMember, protocols: Protocols, rebalance_timeout_ms: int, session_timeout_ms: int
    ) -> None:
        """Adopt what a known member says in a new JoinGroup."""
        self._supporters -= Counter(member.protocol_names)  # and drop names that nobody offers any more
        member.protocols, member.protocols_known = protocols, True
        self._supporters.update(member.protocol_names)
        member.rebalance_timeout_ms = rebalance_timeout_ms
        member.session_timeout_ms = session_timeout_ms

    def validate(self, member_id: str, group_instance_id: str | None) -> ClassicMember:
        """The member a request speaks for. Raises UNKNOWN_MEMBER_ID, or FENCED_INSTANCE_ID when its instance
        id belongs to a newer member id (KIP-345)."""
        if group_instance_id is not None:
            holder = self.holder(group_instance_id)
            if holder != member_id:
                raise KafkaError(
                    ErrorCode.FENCED_INSTANCE_ID,
                    f"instance {group_instance_id!r} belongs to {holder!r} now, not {member_id!r}",
                )
        member = self.members.get(member_id)
        if member is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"{self!r} has no member {member_id!r}")
        return member

    def holder(self, group_instance_id: str) -> str:
        """The member id of an instance. Raises UNKNOWN_MEMBER_ID."""
        member_id = self.static_members.get(group_instance_id)
        if member_id is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"{self!r} has no instance {group_instance_id!r}")
        return member_id

    def validate_generation(self, generation_id: int) -> None:
        if generation_id != self.generation_id:
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION, f"{self!r} is not at generation {generation_id}")

    @property
    def all_joined(self) -> bool:
        """Whether every member has sent JoinGroup, and every client that was issued an id has come back with
        it."""
        return self.joins_parked == len(self.members) and not self.pending_members

    def expects_newcomers(self, now_ms: int) -> bool:
        """Whether a client was issued an id so recently that its JoinGroup is probably on its way."""
        for newest in reversed(self.pending_members.values()):
            return newest.issued_ms > now_ms - self.config.newcomers_return_within_ms
        return False

    @property
    def rebalance_timeout_ms(self) -> int:
        """How long to wait for the slowest member."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    # --- protocols ------------------------------------------------------------------------------------------

    def supports(self, protocol_type: str, protocol_names: Iterable[str]) -> bool:
        """Whether a member that offers these may join: an empty group accepts any that offers something;
        other groups, those that share their type and a protocol that all members offer."""
        if self.state is GroupState.EMPTY:
            return protocol_type != "" and any(True for _ in protocol_names)
        return protocol_type == self.protocol_type and any(
            self._supporters[name] == len(self.members) for name in protocol_names
        )

    @property
    def shared_protocols(self) -> set[str]:
        """The protocols that all members offer."""
        return {name for name, count in self._supporters.items() if count == len(self.members)}

    def votes(self) -> Counter[str]:
        """Votes per protocol: each member votes for the first of its protocols that all offer."""
        if not self.members:
            raise BrokenInvariant(f"{self!r} has nobody to vote")
        candidates = self.shared_protocols
        return Counter(member.vote(candidates) for member in self.members.values())

    def select_protocol(self, votes: Counter[str]) -> str:
        """Of the protocols with the most votes, Kafka takes the first in a hash table's order, which nobody
        chose but everybody sees."""
        return max(hash_map_order(votes), key=votes.__getitem__)

    def subscriptions(self) -> frozenset[str] | None:
        """The topics the members subscribe to by the selected protocol. None if unknown: the group is not one
        of consumers, or the metadata of some member is not a subscription."""
        if self.protocol_type != CONSUMER:
            return None
        if not self.members:
            return frozenset()
        if self.protocol_name is None:
            return None
        topics: set[str] = set()
        # Members of one application subscribe alike.
        for metadata in {member.metadata(self.protocol_name) for member in self.members.values()}:
            try:
                topics.update(subscribed_topics(metadata, LISTED_MAX))
            except DecodeError:
                return None
        return frozenset(topics)

    def count_partitions(self) -> None:
        """Remember how many partitions the subscribed topics have, where that is not known yet."""
        if self.subscribed_topics is None or self.topics.partitions is None:
            self.partition_counts = None
        else:
            known, there = self.partition_counts or {}, self.topics.partitions
            self.partition_counts = {
                name: known.get(name, there.get(name, 0)) for name in self.subscribed_topics
            }

    # --- timers ---------------------------------------------------------------------------------------------

    def session_timer(self, member_id: str) -> TimerKey:
        return TimerKey(TimerKind.SESSION, self.group_id, member_id)

    @property
    def join_timer(self) -> TimerKey:
        return TimerKey(TimerKind.JOIN, self.group_id)

    @property
    def sync_timer(self) -> TimerKey:
        return TimerKey(TimerKind.SYNC, self.group_id)

    def restart_session(self, member: Heard, now_ms: int) -> None:
        member.session_from_ms = now_ms
        self.deadlines.set(member.session_timer, now_ms + member.session_timeout_ms)

    def keep_session(self, member: Heard, until_ms: int) -> None:
        self.deadlines.set(member.session_timer, until_ms + max(member.session_timeout_ms, 1))

    def cancel_timers(self) -> None:
        """Cancel all timers of the group."""
        self.deadlines.cancel(self.join_timer)
        self.deadlines.cancel(self.sync_timer)
        for member_id in (*self.members, *self.pending_members):
            self.deadlines.cancel(self.session_timer(member_id))

    # --- parked requests ------------------------------------------------------------------------------------

    def park_join(self, member: ClassicMember, step: Step) -> None:
        # The member asked again, on another connection: nobody reads the first answer any more. Kafka never
        # gives one.
        self.refuse_join(member, ErrorCode.REBALANCE_IN_PROGRESS, step)
        member.parked_join = step.ticket
        self.joins_parked += 1
        earlier = [joined for joined in self.last_joins if joined[0].member_id != member.member_id]
        self.last_joins = (*earlier[1 - _SLOWEST_JOINS :], (member.identity, step.now_ms))

    def answer_join(self, member: ClassicMember, response: JoinGroupResponse, step: Step) -> None:
        """Answer the member's parked JoinGroup, if there is one."""
        if member.parked_join is not None:
            step.answer(member.parked_join, response)
            member.parked_join = None
            self.joins_parked -= 1

    def refuse_join(
        self, member: ClassicMember, code: ErrorCode, step: Step, *, member_id: str | None = None
    ) -> None:
        """Answer the member's parked JoinGroup with an error and a member id, by default its own."""
        member_id = member.member_id if member_id is None else member_id
        self.answer_join(member, refused_join(code, member_id), step)

    def park_sync(self, member: ClassicMember, step: Step) -> None:
        if member.parked_sync is not None:
            asked_again = f"{member.member_id!r} has sent a newer SyncGroup"
            self.answer_sync(member, KafkaError(ErrorCode.REBALANCE_IN_PROGRESS, asked_again), step)
        member.parked_sync = step.ticket
        self.syncs_parked += 1

    def answer_sync(
        self, member: ClassicMember, response: SyncGroupResponse | KafkaError, step: Step
    ) -> bool:
        """Answer the member's parked SyncGroup. Returns whether there was one."""
        if member.parked_sync is None:
            return False
        step.answer(member.parked_sync, response)
        member.parked_sync = None
        self.syncs_parked -= 1
        return True

    def joined_response(
        self,
        member: ClassicMember,
        *,
        with_members: bool,
        leader: str | None = None,
        skip_assignment: bool = False,
    ) -> JoinGroupResponse:
        """The successful answer to a JoinGroup, for the current generation."""
        protocol_name = self.protocol_name or ""
        return JoinGroupResponse(
            generation_id=self.generation_id,
            protocol_type=self.protocol_type,
            protocol_name=protocol_name,
            leader=leader or self.leader or "",
            skip_assignment=skip_assignment,
            member_id=member.member_id,
            members=[
                JoinGroupResponse.Member(
                    member_id=other.member_id,
                    group_instance_id=other.group_instance_id,
                    metadata=other.metadata(protocol_name),
                )
                for other in self.members.values()
            ]
            if with_members
            else [],
        )

    def synced_response(self, member: ClassicMember) -> SyncGroupResponse:
        """The successful answer to a SyncGroup: what the leader assigned to the member."""
        return SyncGroupResponse(
            protocol_type=self.protocol_type, protocol_name=self.protocol_name, assignment=member.assignment
        )

    # --- signs of life --------------------------------------------------------------------------------------

    def heard(self, member: ClassicMember, step: Step) -> None:
        """Remember when and over which connection a member was last heard from."""
        member.heard_ms = step.now_ms
        if member.connection_id != step.context.connection_id:
            self.connections.heard(self.group_id, member, step.context.connection_id)

    # --- hard state -----------------------------------------------------------------------------------------

    def stored(self) -> StoredGroup:
        """The group as a GroupMetadata record stores it."""
        return StoredGroup(
            self.protocol_type,
            self.generation_id,
            self.protocol_name,
            self.leader,
            self.state_timestamp,
            tuple(member.stored(self.protocol_name or "") for member in self.members.values()),
        )

    def store(self, step: Step) -> None:
        self.hard.emit(records.group_metadata(self.group_id, self.stored()), step)


def refused_join(code: ErrorCode, member_id: str) -> JoinGroupResponse:
    """The answer to a JoinGroup with an error and a member id, not always the one in the request. A missing
    protocol is null, which the server turns into "" for versions that lack null."""
    return JoinGroupResponse(error_code=code, protocol_name=None, leader="", member_id=member_id, members=[])

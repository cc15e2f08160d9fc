"""A consumer group: its records, its members, and the rules that hold for every request."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import partial
from typing import Final

from muster.coordinator.base.step import BrokenInvariant, Step
from muster.coordinator.group.consumer import records, refusals
from muster.coordinator.group.consumer.assignors.assignor import Assignment
from muster.coordinator.group.consumer.course import Course, Reached
from muster.coordinator.group.consumer.member import ConsumerMember
from muster.coordinator.group.consumer.state import (
    LEFT_FOR_A_WHILE,
    NOBODY,
    ConsumerState,
    Current,
    Held,
    MemberState,
    Subscription,
)
from muster.coordinator.group.consumer.targets import preferred_assignor, sizes
from muster.coordinator.group.effects import Record
from muster.coordinator.group.events import (
    Cause,
    EpochBumped,
    MemberIdentity,
    Stamp,
    StateChanged,
    TopicsGrown,
    Trigger,
)
from muster.coordinator.group.group import (
    Commit,
    GroupView,
    MemberView,
    RebalanceView,
    RetentionBase,
    committed_at,
    group_not_found,
    names_its_sender,
)
from muster.coordinator.group.group_offsets import TopicPartition
from muster.coordinator.group.hard_state import UNKNOWN_TIME
from muster.coordinator.group.heard import Heard
from muster.coordinator.group.offsets import is_too_long
from muster.coordinator.group.shared import Shared
from muster.coordinator.group.timers import TimerKey, TimerKind
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.consumer_group import ConsumerGroupDescribeResponse
from muster.protocol.messages.group_admin import DescribeGroupsResponse, ListGroupsResponse
from muster.protocol.messages.offsets import OffsetCommitRequest
from muster.protocol.messages.transactions import TxnOffsetCommitRequest

CONSUMER: Final = "consumer"
_EPOCHS_TO_COMMIT_FROM: Final = 9
_EPOCHS_IN_TRANSACTIONS_FROM: Final = 6
_FRESH: Final = ConsumerState()
_BY_TOPICS: Final = frozenset({Trigger.TOPICS_CHANGED, Trigger.REGEX_RESOLVED})

_Described = ConsumerGroupDescribeResponse.DescribedGroup


class GroupState(StrEnum):
    """The states of a consumer group, in Kafka's spelling."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    """The group has changed since the target assignment was made."""
    RECONCILING = "Reconciling"
    """Some member does not have its target yet."""
    STABLE = "Stable"
    DEAD = "Dead"
    """The shard is being unloaded."""


_SETTLED: Final = (GroupState.STABLE, GroupState.EMPTY)


class ConsumerGroup:
    """A consumer group. What its records say is in `state`; the rest is soft: a group that is loaded again
    knows its members, but not when it last heard from them."""

    __slots__ = (
        "_members",
        "cause",
        "config",
        "configs",
        "connections",
        "course",
        "dead",
        "deadlines",
        "departed",
        "group_id",
        "hard",
        "is_stale",
        "looked_in",
        "looking_up",
        "names",
        "owed",
        "rate_limiters",
        "shown_state",
        "sizes",
        "state_since_ms",
        "topics",
    )

    def __init__(self, group_id: str, shared: Shared, now_ms: int) -> None:
        self.group_id = group_id
        self.config = shared.config
        self.configs = shared.configs
        self.hard = shared.hard
        self.deadlines = shared.deadlines
        self.connections = shared.connections
        self.topics = shared.topics
        self.rate_limiters = shared.rate_limiters
        self._members: dict[str, ConsumerMember] = {}
        self.dead = False
        self.cause = Cause(Trigger.REQUESTED)
        """The cause of its present epoch."""
        self.course: Course | None = None
        """The rebalance under way."""
        self.departed: dict[str, Assignment] = {}
        """The targets of members that have left since the last target was made."""
        self.names: dict[uuid.UUID, str] = {}
        """The topics it subscribed to at the last two epochs, so that a deleted topic is still reported by
        name."""
        self.sizes: Mapping[str, int] | None = {}
        """Partition counts of the topics it subscribed to at the last epoch. None: not known."""
        self.owed: Cause | None = None
        """The cause of the rebalance that its upgrade cut short or preceded: the next epoch makes up for
        it."""
        self.is_stale = True
        """Whether the topics may have changed since the epoch was last checked against them."""
        self.looking_up = False
        """Whether its regular expressions are being looked up."""
        self.looked_in = -1
        """The version of the topics in which they were last looked up, since the group was loaded."""
        self.shown_state = GroupState.EMPTY
        """As the last event reported it."""
        self.state_since_ms = now_ms

    def __repr__(self) -> str:
        return f"<ConsumerGroup {self.group_id} epoch={self.generation_id} members={len(self._members)}>"

    @classmethod
    def loaded(cls, group_id: str, shared: Shared, now_ms: int) -> ConsumerGroup:
        """The group as its records describe it."""
        group = cls(group_id, shared, now_ms)
        for member_id, said in group.state.subscriptions.items():
            group._members[member_id] = ConsumerMember(group_id, identity(member_id, said), 0, now_ms)
        group.shown_state = group.kafka_state()
        group.state_since_ms = UNKNOWN_TIME
        group.sizes = None
        if group._is_on_its_way():
            group.course, group.cause = Course(now_ms), Cause(Trigger.SHARD_UNLOADED)
        return group

    # --- what it knows --------------------------------------------------------------------------------------

    @property
    def state(self) -> ConsumerState:
        """What its records say. Do not keep it: a group without records has none of its own."""
        return self.hard.consumers.get(self.group_id, _FRESH)

    @property
    def members(self) -> dict[str, ConsumerMember]:
        return self._members

    @property
    def generation_id(self) -> int:
        return self.state.epoch

    @property
    def is_empty(self) -> bool:
        return not self._members and not self.dead

    def kafka_state(self) -> GroupState:
        state = self.state
        if self.dead:
            return GroupState.DEAD
        if not self._members:
            return GroupState.EMPTY
        if state.epoch > state.assignment_epoch:
            return GroupState.ASSIGNING
        if state.settled[state.assignment_epoch] < len(self._members):
            return GroupState.RECONCILING
        return GroupState.STABLE

    def _is_on_its_way(self) -> bool:
        """Whether it has yet to make its target, or any member to reach it."""
        state = self.state
        return state.epoch > state.assignment_epoch or self._on_their_way() > 0

    def _on_their_way(self) -> int:
        """How many members have yet to reach the target; static members that are away do not count."""
        assignment_epoch = self.state.assignment_epoch
        return sum(
            has.epoch != LEFT_FOR_A_WHILE
            and (has.state is not MemberState.STABLE or has.epoch != assignment_epoch)
            for has in map(self.current, self._members)
        )

    def subscription(self, member_id: str) -> Subscription:
        return self.state.subscriptions[member_id]

    def current(self, member_id: str) -> Current:
        """What a member has; empty if it has no such record yet."""
        return self.state.current.get(member_id, Current())

    def has_no_news_for(self, has: Current) -> bool:
        """Whether there is no news for a member that has this and says nothing new."""
        state = self.state
        return (
            has.state is MemberState.STABLE
            and has.epoch == state.assignment_epoch == state.epoch
            and not (self.is_stale or state.regex_users)
        )

    def member_of_instance(self, instance_id: str) -> ConsumerMember | None:
        return self._members.get(self.state.instances.get(instance_id, ""))

    def speaks_classic(self, member_id: str) -> bool:
        return member_id in self.state.classic_members

    def require(self, member_id: str) -> ConsumerMember:
        """Raises UNKNOWN_MEMBER_ID."""
        member = self._members.get(member_id)
        if member is None:
            raise unknown_member(member_id, self.group_id)
        return member

    # --- as its shard knows it ------------------------------------------------------------------------------

    def stamp(self, step: Step, cause: Cause) -> Stamp:
        trigger, member, reason = cause
        return step.now_ms, self.group_id, self.generation_id, trigger, member, reason

    def validate_commit(self, request: OffsetCommitRequest, step: Step) -> None:
        """Raises COORDINATOR_NOT_AVAILABLE, UNKNOWN_MEMBER_ID, UNSUPPORTED_VERSION, STALE_MEMBER_EPOCH, or
        for members that speak the classic protocol ILLEGAL_GENERATION. A past epoch is valid for partitions
        that were assigned in it or before, and that the member still has (KIP-1251)."""
        self.alive()
        try:
            self._validate_commit(request, step)
        except KafkaError as refusal:
            refusals.tell_commit_refused(self, request, refusal, step)
            raise

    def validate_transactional_commit(self, request: TxnOffsetCommitRequest, step: Step) -> None:
        """Raises COORDINATOR_NOT_AVAILABLE, UNKNOWN_MEMBER_ID, STALE_MEMBER_EPOCH (before v6, and for members
        that speak the classic protocol, ILLEGAL_GENERATION)."""
        self.alive()
        epoch_known = step.context.api_version >= _EPOCHS_IN_TRANSACTIONS_FROM
        stale = ErrorCode.STALE_MEMBER_EPOCH if epoch_known else ErrorCode.ILLEGAL_GENERATION
        try:
            if names_its_sender(request) and (request.generation_id_or_member_epoch >= 0 or self._members):
                self.require(request.member_id)
                self._require_epoch(request, stale)
        except KafkaError as refusal:
            refusals.tell_commit_refused(self, request, refusal, step)
            raise

    def _validate_commit(self, request: OffsetCommitRequest, step: Step) -> None:
        epoch = request.generation_id_or_member_epoch
        if epoch < 0 and not self._members:
            return
        member_id = request.member_id
        self.require(member_id)
        classic = self.speaks_classic(member_id)
        if not classic and step.context.api_version < _EPOCHS_TO_COMMIT_FROM:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                "OffsetCommit version 9 or above must be used by members using the consumer group protocol",
            )
        self._require_epoch(request, ErrorCode.STALE_MEMBER_EPOCH)

    def _require_epoch(self, request: Commit, stale: ErrorCode) -> None:
        """Check that a member's epoch is valid for what it commits. Raises `stale`, or ILLEGAL_GENERATION for
        members that speak the classic protocol."""
        epoch, has = request.generation_id_or_member_epoch, self.current(request.member_id)
        if epoch == has.epoch:
            return
        classic = self.speaks_classic(request.member_id)
        code = ErrorCode.ILLEGAL_GENERATION if classic else stale
        kind = "generation id" if classic else "member epoch"
        if epoch > has.epoch:
            raise KafkaError(code, f"Received {kind} {epoch} is newer than current member epoch {has.epoch}.")
        for topic in request.topics:
            for each in topic.partitions:
                if is_too_long(each.committed_metadata or "", self.config):
                    continue  # refused by itself, before its epoch is looked at
                since = _epoch_of(has, topic.topic_id, each.partition_index)
                if since is None:
                    raise KafkaError(
                        code,
                        f"Partition {topic.name}-{each.partition_index} is not assigned or pending "
                        "revocation for member.",
                    )
                if epoch < since:
                    raise KafkaError(
                        code,
                        f"Received {kind} {epoch} is older than assignment epoch {since} for partition "
                        f"{topic.name}-{each.partition_index}.",
                    )

    def validate_fetch(self, member_id: str | None, member_epoch: int) -> None:
        if member_id is None and member_epoch < 0:
            return
        self.require(member_id or "")
        has = self.current(member_id or "")
        if member_epoch == has.epoch:
            return
        if self.speaks_classic(member_id or ""):
            raise KafkaError(
                ErrorCode.ILLEGAL_GENERATION,
                f"The received generation id {member_epoch} does not match the expected member epoch "
                f"{has.epoch}.",
            )
        raise KafkaError(
            ErrorCode.STALE_MEMBER_EPOCH,
            f"The received member epoch {member_epoch} does not match the expected member epoch {has.epoch}.",
        )

    def validate_delete(self) -> None:
        if self.dead:
            raise group_not_found(self.group_id)
        if self._members:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP, f"{self!r} has members")

    def validate_offset_delete(self) -> None:
        if self.dead:
            raise group_not_found(self.group_id)

    def is_subscribed(self, topic: str) -> bool:
        state = self.state
        return topic in state.subscribers or any(
            topic in resolved.topics
            for regex, resolved in state.regexes.items()
            if regex in state.regex_users
        )

    def retention_base(self) -> RetentionBase | None:
        return committed_at

    def topics_changed(self, names: frozenset[str]) -> None:
        if not self.is_stale and not names.isdisjoint(self.state.subscribed_topics()):
            self.is_stale = True

    def delete(self, step: Step) -> None:
        if self._members:
            raise BrokenInvariant(f"{self!r} has members")
        self.erase(step)

    def erase(self, step: Step) -> None:
        """Delete its records, and its timers."""
        state, group_id = self.state, self.group_id
        for member_id in self._members:
            self.cancel_timers(member_id)
        # In Kafka's order: records that depend on others are deleted first.
        erased: list[Record] = [
            *(records.current_tombstone(group_id, member_id) for member_id in state.current),
            *(records.target_tombstone(group_id, member_id) for member_id in state.targets),
            records.target_epoch_tombstone(group_id),
            *(records.subscription_tombstone(group_id, member_id) for member_id in state.subscriptions),
            *(records.regex_tombstone(group_id, regex) for regex in state.regexes),
            records.group_tombstone(group_id),
        ]
        for record in erased:
            self.hard.emit(record, step)

    def unload(self, step: Step) -> None:
        self.dead = True
        self.settle(Cause(Trigger.SHARD_UNLOADED), step)
        for member_id in self._members:
            self.cancel_timers(member_id)

    def described(self) -> DescribeGroupsResponse.DescribedGroup:
        return DescribeGroupsResponse.DescribedGroup(
            error_code=ErrorCode.GROUP_ID_NOT_FOUND,
            error_message=f"Group {self.group_id} is not a classic group.",
            group_id=self.group_id,
            group_state=GroupState.DEAD,
            protocol_type="",
            protocol_data="",
            members=[],
        )

    def listed(self) -> ListGroupsResponse.ListedGroup:
        return ListGroupsResponse.ListedGroup(
            group_id=self.group_id,
            protocol_type=CONSUMER,
            group_state=self.kafka_state(),
            group_type="consumer",
        )

    def described_as_consumer(self) -> _Described:
        """Its answer to ConsumerGroupDescribe. What a member has includes what it has yet to revoke; deleted
        topics are left out."""
        state = self.state
        return _Described(
            group_id=self.group_id,
            group_state=self.kafka_state(),
            group_epoch=state.epoch,
            assignment_epoch=state.assignment_epoch,
            assignor_name=self.assignor,
            members=[
                _Described.Member(
                    member_id=member_id,
                    instance_id=said.instance_id,
                    rack_id=said.rack_id,
                    member_epoch=has.epoch,
                    client_id=said.client_id,
                    client_host=said.client_host,
                    subscribed_topic_names=list(said.topics),
                    subscribed_topic_regex=said.regex or "",
                    assignment=self._described(has.assigned, has.revoking),
                    target_assignment=self._described(state.target(member_id)),
                    member_type=0 if said.classic is not None else 1,
                )
                for member_id, said in state.subscriptions.items()
                for has in (self.current(member_id),)
            ],
        )

    def _described(self, *parts: Mapping[uuid.UUID, Collection[int]]) -> _Described.Member.Assignment:
        """Partitions by topic name, merged topic by topic."""
        by_name: dict[str, tuple[uuid.UUID, set[int]]] = {}
        for part in parts:
            for topic_id, numbers in part.items():
                name = self.topics.names.get(topic_id)
                if name is not None:
                    by_name.setdefault(name, (topic_id, set()))[1].update(numbers)
        return _Described.Member.Assignment(
            topic_partitions=[
                _Described.Member.Assignment.TopicPartitions(
                    topic_id=topic_id, topic_name=name, partitions=sorted(numbers)
                )
                for name, (topic_id, numbers) in by_name.items()
            ]
        )

    def identities(self) -> list[MemberIdentity]:
        return [member.identity for member in self._members.values()]

    def view(self) -> GroupView:
        kafka_state = self.kafka_state()
        state = self.state
        rebalance = None
        # Without one, it is Reconciling while a static member is away.
        if self.course is not None and kafka_state in (GroupState.ASSIGNING, GroupState.RECONCILING):
            rebalance = RebalanceView(self.course.started_ms, self.cause.trigger, self._on_their_way())
        return GroupView(
            self.group_id,
            kafka_state,
            self.state_since_ms,
            rebalance is not None,
            kafka_state is GroupState.STABLE,
            state.epoch,
            CONSUMER,
            self.assignor,
            None,
            frozenset(state.subscribed_topics()),
            rebalance,
            len(self._members),
            (),
            "consumer",
        )

    def member_views(self) -> Iterator[MemberView]:
        for member_id, member in list(self._members.items()):
            said, has = self.subscription(member_id), self.current(member_id)
            yield MemberView(
                member_id,
                member.identity,
                said.client_id,
                said.client_host,
                member.session_timeout_ms,
                said.rebalance_timeout_ms,
                member.heard_ms,
                member.connection_id,
                "revocation" if has.state is MemberState.UNREVOKED_PARTITIONS else None,
                partial(self._topics_of, said),
                partial(self._partitions_of, has.assigned),
            )

    def _topics_of(self, said: Subscription) -> Sequence[str]:
        return sorted(self.state.topics_of(said))

    def _partitions_of(self, held: Held) -> Sequence[TopicPartition]:
        return [
            (self.topics.names[topic_id], partition)
            for topic_id, epochs in held.items()
            if topic_id in self.topics.names
            for partition in sorted(epochs)
        ]

    # --- rules ----------------------------------------------------------------------------------------------

    def alive(self) -> ConsumerGroup:
        """This group. Raises COORDINATOR_NOT_AVAILABLE if it is being unloaded."""
        if self.dead:
            raise KafkaError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE, f"group {self.group_id!r} is being unloaded"
            )
        return self

    @property
    def assignor(self) -> str:
        """The server-side assignor that most members prefer; the first of group.consumer.assignors when
        nobody votes."""
        return preferred_assignor(self.state, self.config.group_consumer_assignors[0])

    def subscribed_ids(self, member_id: str) -> set[uuid.UUID]:
        """The ids of the existing topics that a member subscribes to."""
        state = self.state
        return self.topics.ids_of(state.topics_of(state.subscriptions[member_id]))

    def waits_for_others(self, member_id: str) -> bool:
        """Whether somebody still holds a partition of the member's target."""
        has = self.current(member_id)
        state = self.state
        return any(
            partition not in has.assigned.get(topic_id, ())
            and state.owner_epoch(topic_id, partition) != NOBODY
            for topic_id, partitions in state.target(member_id).items()
            for partition in partitions
        )

    def emit(self, record: Record, step: Step) -> None:
        self.hard.emit(record, step)

    def bump(self, cause: Cause, metadata_hash: int, step: Step) -> None:
        """Begin a new epoch, which requires a new target."""
        self.cause = cause
        self.owed = None
        self.emit(records.group_epoch(self.group_id, self.state.epoch + 1, metadata_hash), step)
        self._tell_topics(cause, step)
        if self.course is None:
            self.course = Course(step.now_ms)
        else:
            self.course.restart(step.now_ms)
        step.events.append(
            EpochBumped(*self.stamp(step, cause), members=len(self._members), restarts=self.course.restarts)
        )

    def _tell_topics(self, cause: Cause, step: Step) -> None:
        """Report which topics caused the new epoch, if topics did."""
        before, after = self.sizes, sizes(self.state.subscribed_topics(), self.topics)
        self.sizes = after
        kept = {topic_id: name for topic_id, name in self.names.items() if name in (before or ())}
        self.names = kept | {self.topics.ids[name]: name for name in after}
        if before is None or before == after or cause.trigger not in _BY_TOPICS:
            return
        changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
        told = tuple((name, before.get(name, 0), after.get(name, 0)) for name in changed)
        step.events.append(TopicsGrown(*self.stamp(step, cause), topics=told))

    def settle(self, cause: Cause, step: Step) -> None:
        """At the end of a step: report if the group's state has changed, and if a rebalance is over."""
        state = self.kafka_state()
        if state is not self.shown_state:
            self._tell_state(state, cause, step)
        if self.course is not None and state in _SETTLED:
            course, self.course = self.course, None
            step.events.append(course.completed(self.stamp(step, self.cause), self._members))

    def _tell_state(self, state: GroupState, cause: Cause, step: Step) -> None:
        before, self.shown_state = self.shown_state, state
        since_ms, self.state_since_ms = self.state_since_ms, step.now_ms
        step.events.append(
            StateChanged(
                *self.stamp(step, cause),
                from_state=before,
                to_state=state,
                phase_ms=0 if since_ms == UNKNOWN_TIME else max(step.now_ms - since_ms, 0),
                waiting_for=(),
                pending_member_ids=(),
                until_ms=None,
            )
        )

    # --- timers, and signs of life --------------------------------------------------------------------------

    def session_timeout_ms(self, member_id: str) -> int:
        """How long a member may be silent; a member of the classic protocol sets this itself."""
        classic = self.subscription(member_id).classic
        if classic is not None:
            return classic.session_timeout_ms
        return self.configs.of(self.group_id).consumer_session_timeout_ms

    def heard(self, member: ConsumerMember, step: Step) -> None:
        """The member has sent a request: its session restarts."""
        now_ms = step.now_ms
        member.heard_ms = now_ms
        if member.connection_id != step.context.connection_id:
            self.connections.heard(self.group_id, member, step.context.connection_id)
        member.session_timeout_ms = self.session_timeout_ms(member.member_id)
        self.restart_session(member, now_ms)

    def restart_session(self, member: Heard, now_ms: int) -> None:
        member.session_from_ms = now_ms
        self.deadlines.set(member.session_timer, now_ms + member.session_timeout_ms)

    def keep_session(self, member: Heard, until_ms: int) -> None:
        self.deadlines.set(member.session_timer, until_ms + max(member.session_timeout_ms, 1))

    def timer(self, kind: TimerKind, member_id: str) -> TimerKey:
        return TimerKey(kind, self.group_id, member_id)

    def cancel_timers(self, member_id: str) -> None:
        for kind in (TimerKind.SESSION, TimerKind.REVOCATION, TimerKind.JOIN, TimerKind.SYNC):
            self.deadlines.cancel(self.timer(kind, member_id))

    # --- hard state -----------------------------------------------------------------------------------------

    def put_current(self, member_id: str, has: Current, step: Step) -> None:
        """Change what a member has; if it has to revoke partitions, its rebalance timeout starts now."""
        self.emit(records.current(self.group_id, member_id, has), step)
        member = self._members[member_id]
        if self.course is not None and has.state is MemberState.STABLE and has.epoch == self.state.epoch:
            self.course.reached.pop(member_id, None)  # it may have been away since: it is the last now
            self.course.reached[member_id] = Reached(member.identity, step.now_ms)
        self.bound_revocation(member, step.now_ms)

    def bound_revocation(self, member: ConsumerMember, now_ms: int) -> None:
        """Set or cancel the timer for revocation. Members of the classic protocol have that protocol's timers
        instead."""
        member_id = member.member_id
        timer = self.timer(TimerKind.REVOCATION, member_id)
        has, said = self.current(member_id), self.subscription(member_id)
        if has.state is MemberState.UNREVOKED_PARTITIONS and said.classic is None:
            member.rebalance_epoch = has.epoch
            self.deadlines.set(timer, now_ms + said.rebalance_timeout_ms)
        else:
            self.deadlines.cancel(timer)


def identity(member_id: str, said: Subscription) -> MemberIdentity:
    return MemberIdentity(member_id, said.client_id, said.client_host, said.instance_id)


def unknown_member(member_id: str, group_id: str) -> KafkaError:
    """The error, in Kafka's words."""
    return KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {group_id}.")


def _epoch_of(has: Current, topic_id: uuid.UUID, partition: int) -> int | None:
    """The epoch in which a partition that the member has, or has yet to revoke, was assigned; None: it has no
    such partition."""
    for held in (has.assigned, has.revoking):
        epoch = held.get(topic_id, {}).get(partition)
        if epoch is not None:
            return epoch
    return None

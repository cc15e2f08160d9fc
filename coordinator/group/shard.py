"""A shard: the groups of one coordinator partition, and one method per operation on them."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable
from typing import Any

from muster.coordinator.base.deadlines import Deadlines
from muster.coordinator.base.step import Step
from muster.coordinator.group import offsets, transactional_offsets
from muster.coordinator.group.classic.groups import ClassicGroups, require_group_id
from muster.coordinator.group.config import GroupConfig, GroupConfigs
from muster.coordinator.group.connections import Connections
from muster.coordinator.group.consumer.group import ConsumerGroup
from muster.coordinator.group.consumer.groups import ConsumerGroups
from muster.coordinator.group.consumer.regexes import Look
from muster.coordinator.group.effects import Record, TopicsImage
from muster.coordinator.group.events import (
    Cause,
    MemberDisconnected,
    MemberIdentity,
    OffsetsRemoved,
    Trigger,
)
from muster.coordinator.group.group import Commit, Group, group_not_found, remove
from muster.coordinator.group.group_offsets import TopicPartition
from muster.coordinator.group.hard_state import Durable, HardState
from muster.coordinator.group.presumption import Presumption
from muster.coordinator.group.rate_limiters import RateLimiters
from muster.coordinator.group.shared import Shared
from muster.coordinator.group.timers import PRESUMPTION, SWEEP, TimerKey, TimerKind
from muster.coordinator.group.topics import Topics
from muster.coordinator.group.transactional_offsets import CommitInTransaction, Guards
from muster.coordinator.transactions.marker import Marker
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.classic_group import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
)
from muster.protocol.messages.consumer_group import (
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from muster.protocol.messages.group_admin import DeleteGroupsResponse, DescribeGroupsResponse
from muster.protocol.messages.offsets import OffsetCommitRequest, OffsetDeleteRequest, OffsetFetchResponse
from muster.protocol.messages.transactions import TxnOffsetCommitRequest

_GROUP_ID_NOT_FOUND_TO_COMMIT_FROM = 9  # KIP-848
_GROUP_ID_NOT_FOUND_TO_COMMIT_IN_TRANSACTION_FROM = 6
_GROUP_ID_NOT_FOUND_TO_DESCRIBE_FROM = 6


def _uuid4() -> str:
    return str(uuid.uuid4())


class Shard:
    """The groups of one coordinator partition.

    Life cycle: `apply` the rows of the store, `loaded`, then requests, `advance` whenever `next_deadline` has
    come, and finally `unload`. Requests share one signature, `(request, step)`. They raise KafkaError before
    they have changed anything, or are answered in their step or (JoinGroup, SyncGroup) in a later one.
    """

    def __init__(
        self,
        number: int,
        config: GroupConfig,
        *,
        configs: GroupConfigs | None = None,
        ids: Callable[[], str] = _uuid4,
    ) -> None:
        """`configs` holds what is set for single groups. `ids` generates the random part of member ids."""
        self.number = number
        self.config = config
        self.configs = configs or GroupConfigs(config)
        self.groups: dict[str, Group] = {}
        self.hard = HardState()
        self.deadlines: Deadlines[TimerKey] = Deadlines()
        self._guards = Guards()
        self._topics = Topics()
        self._late: set[str] = set()  # groups with a commit for a topic that the last image does not list
        self._connections = Connections()
        self._presumption: Presumption | None = None
        shared = Shared(
            config,
            self.configs,
            self.hard,
            self.deadlines,
            self._connections,
            self._topics,
            RateLimiters(),
        )
        self._classic = ClassicGroups(self.groups, shared, ids)
        self._consumer = ConsumerGroups(self.groups, shared, self._classic, ids)

    def __repr__(self) -> str:
        return f"<Shard {self.number} groups={len(self.groups)} {self.hard!r}>"

    # --- life cycle -----------------------------------------------------------------------------------------

    def apply(self, key: bytes, value: bytes | None) -> None:
        """Apply a row of the store. Rows of unknown types are skipped, as in Kafka. Raises DecodeError for a
        damaged row: serving a group without its offsets would send its consumers to the beginning."""
        record = Record.from_row(key, value)
        if record is not None:
            self.hard.apply(record)

    def durable(self) -> Durable:
        """What the rows so far add up to, in a comparable form."""
        return self.hard.durable()

    def contents(self) -> dict[str, int]:
        """The number of groups, if any."""
        hard = self.hard
        groups = self.groups.keys() | hard.groups.keys() | hard.consumers.keys() | hard.offsets.keys()
        groups |= set(hard.pending.groups())
        return {"groups": len(groups)} if groups else {}

    def loaded(self, step: Step) -> None:
        """Every row of the store has been applied: serve the groups found there."""
        self._consumer.loaded(step)
        self._classic.loaded(step)
        self._set_sweep(step.now_ms)

    def unload(self, step: Step) -> None:
        """Another coordinator takes over: refuse parked requests, so that clients turn to it."""
        for group in self.groups.values():
            group.unload(step)
        self.deadlines.cancel(SWEEP)
        self.deadlines.cancel(PRESUMPTION)

    def next_deadline(self) -> int | None:
        """When `advance` next has something to do, in epoch milliseconds."""
        return self.deadlines.next()

    def deadline_bound(self) -> int | None:
        """A lower bound on `next_deadline`, at less cost; None if there is no deadline."""
        return self.deadlines.bound()

    def advance(self, step: Step) -> None:
        """Do what is due."""
        for timer in self.deadlines.due(step.now_ms):
            match timer.kind:
                case TimerKind.SWEEP:
                    self._sweep(step)
                case TimerKind.PRESUMPTION:
                    self._end_presumption(step.now_ms)
                case TimerKind.SESSION if self._is_presumed_alive(timer):
                    pass
                case _ if isinstance(self.groups.get(timer.group_id), ConsumerGroup):
                    self._consumer.timer_fired(timer, step)
                case _:
                    self._classic.timer_fired(timer, step)

    def unheard(self, responses: Iterable[object], step: Step) -> None:
        """Clients did not get these responses in time."""
        self._classic.unheard(responses, step)

    def presume_alive(
        self,
        until_ms: int,
        stalled: Collection[tuple[str, str]],
        step: Step,
        *,
        clients: Collection[str] = (),
    ) -> None:
        """A test is about to move the time up to `until_ms`: members whose clients' clocks do not move count
        as heartbeating meanwhile, and begin a full session then. These are the members whose connection is
        open and who are not late now, except those in `stalled` (group id, member id). New members waiting in
        JoinGroup and clients that were issued an id get no extra time.

        A shard that was just loaded, after a move or a failover, has not heard from anybody yet: there,
        members count whose client id is in `clients`, the clients connected to any broker.

        Calling it again ends the previous presumption and replaces it; with a time that has passed, it only
        ends it."""
        self._end_presumption(step.now_ms)
        if until_ms > step.now_ms:
            groups = self.groups.values()
            self._presumption = Presumption(
                groups, until_ms, step.now_ms, frozenset(stalled), frozenset(clients)
            )
            self.deadlines.set(PRESUMPTION, until_ms)

    def _is_presumed_alive(self, timer: TimerKey) -> bool:
        group = self.groups.get(timer.group_id)
        presumption = self._presumption
        return group is not None and presumption is not None and presumption.keeps(group, timer.member_id)

    def _end_presumption(self, now_ms: int) -> None:
        if self._presumption is not None:
            presumption, self._presumption = self._presumption, None
            self.deadlines.cancel(PRESUMPTION)
            presumption.end(self.groups.values(), now_ms)

    def knows_connection(self, connection_id: int) -> bool:
        """Whether `connection_closed` would find a present or former member."""
        return connection_id in self._connections

    def connection_closed(self, connection_id: int, step: Step) -> None:
        """A client hung up, or died. Its members stay until their sessions expire."""
        present, former = self._connections.closed(connection_id)
        for group_id, member in present:
            member.disconnected_at_ms = step.now_ms
            group = self.groups.get(group_id)
            if group is not None:
                if self._presumption is not None:
                    self._presumption.disconnected(group, member, step.now_ms)
                _tell_disconnected(group, member.identity, member.heard_ms, None, step)
        for group_id, identity, heard_ms, removed_ms in former:
            group = self.groups.get(group_id)
            if group is not None:
                _tell_disconnected(group, identity, heard_ms, removed_ms, step)

    def topics_changed(self, image: TopicsImage, step: Step) -> None:
        """Remove the offsets of deleted topics. Repeating an image changes nothing more."""
        is_first = image.live is not None and not self._topics.is_listed
        changed = self._topics.take(image)
        names = None if is_first else changed.union([name for name, _ in image.deleted])
        cause = Cause(Trigger.TOPIC_DELETED)
        late = self._late
        if image.live is not None:
            self._late = set()
        for group_id, group in self.groups.items():
            group.topics_changed(changed)
            of = None if group_id in late else names
            removed = offsets.remove_orphaned(group_id, image, self.hard, of, step)
            self._tell_offsets_removed(group, removed, cause, step)

    def _note_late(self, request: OffsetCommitRequest | TxnOffsetCommitRequest) -> None:
        """An image that lists the topics leaves offsets of these topics alone, and so do later commits: the
        next one need only look at topics that have changed. Unless a commit came late: its topic was deleted
        after the commit had been checked, and the shard was told of that first."""
        topics = self._topics
        if topics.is_listed:  # otherwise the first list is compared with all offsets
            for topic in request.topics:
                if not topics.has(topic.name, topic.topic_id):
                    self._late.add(request.group_id)

    # --- membership -----------------------------------------------------------------------------------------

    def join(self, request: JoinGroupRequest, step: Step) -> None:
        group = self.groups.get(request.group_id)
        if isinstance(group, ConsumerGroup):
            self._consumer.join(group, request, step)
        else:
            self._classic.join(request, step)

    def sync(self, request: SyncGroupRequest, step: Step) -> None:
        group = self.groups.get(request.group_id)
        if isinstance(group, ConsumerGroup):
            self._consumer.sync(group, request, step)
        else:
            self._classic.sync(request, step)

    def heartbeat(self, request: HeartbeatRequest, step: Step) -> HeartbeatResponse:
        """Returns its answer, and emits events at most: see `runtime.machine.Traits.returns`."""
        group = self.groups.get(request.group_id)
        if isinstance(group, ConsumerGroup):
            return self._consumer.heartbeat_of_classic(group, request, step)
        return self._classic.heartbeat(request, step)

    def leave(self, request: LeaveGroupRequest, step: Step) -> None:
        group = self.groups.get(request.group_id)
        if isinstance(group, ConsumerGroup):
            self._consumer.leave_classic(group, request, step)
        else:
            self._classic.leave(request, step)

    def consumer_heartbeat(
        self, request: ConsumerGroupHeartbeatRequest, step: Step
    ) -> ConsumerGroupHeartbeatResponse:
        """A ConsumerGroupHeartbeat. Returns its answer, with the member's epoch and assignment."""
        step.reads_hard_state = True
        return self._consumer.heartbeat(request, step)

    def job_done(self, job: object, found: Any, step: Step) -> None:
        """See `runtime.machine.Machine.job_done`."""
        assert isinstance(job, Look)
        self._consumer.looked_up(job, found, step)

    # --- offsets --------------------------------------------------------------------------------------------

    def commit_offsets(self, request: OffsetCommitRequest, step: Step) -> None:
        """OffsetCommit, for existing partitions. Raises what `Group.validate_commit` raises, and
        GROUP_ID_NOT_FOUND (before v9, ILLEGAL_GENERATION instead)."""
        group = self.groups.get(request.group_id)
        if group is not None:
            group.validate_commit(request, step)
        else:
            _require_no_member(request, step, _GROUP_ID_NOT_FOUND_TO_COMMIT_FROM)
        self._note_late(request)
        response = offsets.commit(request, hard=self.hard, config=self.config, step=step)
        if group is None and request.group_id in self.hard.offsets:
            # A group that only stores offsets: it has neither members nor a record of its own.
            self._classic.create(request.group_id, step)
        step.reply(response)

    def fetch_offsets(self, request: offsets.FetchOffsets, step: Step) -> None:
        """One group's part of an OffsetFetch. Answers with an OffsetFetchResponse.Group; never raises."""
        step.reads_hard_state = True
        group = self.groups.get(request.group_id)
        if group is not None:
            try:
                group.validate_fetch(request.member_id, request.member_epoch)
            except KafkaError as refusal:
                step.reply(
                    OffsetFetchResponse.Group(group_id=request.group_id, topics=[], error_code=refusal.code)
                )
                return
        step.reply(offsets.fetch(request, self.hard))

    def delete_offsets(self, request: OffsetDeleteRequest, step: Step) -> None:
        """OffsetDelete. Raises INVALID_GROUP_ID, GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP."""
        require_group_id(request.group_id)
        group = self._existing(request.group_id)
        response, deleted = offsets.delete(group, request, self.hard, step)
        self._tell_offsets_removed(group, deleted, Cause(Trigger.REQUESTED), step)
        step.reads_hard_state = True
        step.reply(response)

    # --- offsets in transactions ----------------------------------------------------------------------------

    def begin_transaction(self, request: TxnOffsetCommitRequest, step: Step) -> None:
        """Prepare a TxnOffsetCommit, before its transaction's coordinator is queried. Answers None if a
        transaction of this producer and epoch is under way here, else the `Guard` that lets it begin one.
        Raises INVALID_GROUP_ID, INVALID_PRODUCER_EPOCH."""
        require_group_id(request.group_id)
        under_way = transactional_offsets.is_under_way(request, self.hard)
        step.reply(None if under_way else self._guards.give(request.producer_epoch))

    def commit_in_transaction(self, commit: CommitInTransaction, step: Step) -> None:
        """TxnOffsetCommit: offsets that become the group's once the transaction has been committed. Raises
        what `Group.validate_transactional_commit` and `transactional_offsets.require_leave` raise,
        INVALID_GROUP_ID, and GROUP_ID_NOT_FOUND (before v6, ILLEGAL_GENERATION instead)."""
        request = commit.request
        require_group_id(request.group_id)
        group = self.groups.get(request.group_id)
        if group is not None:
            group.validate_transactional_commit(request, step)
        else:
            _require_no_member(request, step, _GROUP_ID_NOT_FOUND_TO_COMMIT_IN_TRANSACTION_FROM)
        transactional_offsets.require_leave(commit, self.hard, self._guards)
        self._note_late(request)
        response = transactional_offsets.commit(request, hard=self.hard, config=self.config, step=step)
        if group is None and self.hard.has_offsets(request.group_id):
            self._classic.create(request.group_id, step)
        step.reply(response)

    def end_transaction(self, marker: Marker, step: Step) -> None:
        """A coordinator's marker: in one step, the producer's pending offsets become the groups' offsets or
        are dropped. Answers None. Raises INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED."""
        transactional_offsets.end(marker, self.hard, step)
        self._guards.marked(marker)
        step.reply(None)

    # --- groups seen from outside ---------------------------------------------------------------------------

    def describe(self, group_id: str, step: Step) -> None:
        """One group of a DescribeGroups. Answers with a DescribeGroupsResponse.DescribedGroup for any group,
        since clients rely on an answer for each group they name; never raises."""
        step.reads_hard_state = True
        group = self.groups.get(group_id)
        if group is not None:
            described = group.described()
        else:
            not_found = group_not_found(group_id)
            described = DescribeGroupsResponse.DescribedGroup(
                error_code=not_found.code,
                error_message=not_found.why,
                group_id=group_id,
                group_state="Dead",
                protocol_type="",
                protocol_data="",
                members=[],
            )
        if step.context.api_version < _GROUP_ID_NOT_FOUND_TO_DESCRIBE_FROM:
            # These versions only report a missing group as Dead, without an error.
            described.error_code, described.error_message = ErrorCode.NONE, None
        step.reply(described)

    def describe_consumer(self, group_id: str, step: Step) -> None:
        """One group of a ConsumerGroupDescribe. Answers with a ConsumerGroupDescribeResponse.DescribedGroup
        for any group; never raises."""
        step.reads_hard_state = True
        group = self.groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            step.reply(group.described_as_consumer())
            return
        why = "not found" if group is None else "is not a consumer group"
        step.reply(
            ConsumerGroupDescribeResponse.DescribedGroup(
                error_code=ErrorCode.GROUP_ID_NOT_FOUND,
                error_message=f"Group {group_id} {why}.",
                group_id=group_id,
                group_state="",
                group_epoch=0,
                assignment_epoch=0,
                assignor_name="",
                members=[],
            )
        )

    def list_groups(self, _: None, step: Step) -> None:
        """The shard's part of a ListGroups. Answers with a list of ListGroupsResponse.ListedGroup; never
        raises. Filtering is up to the caller."""
        step.reads_hard_state = True
        step.reply([group.listed() for group in self.groups.values()])

    def delete_group(self, group_id: str, step: Step) -> None:
        """One group of a DeleteGroups, with its offsets. Answers with a
        DeleteGroupsResponse.DeletableGroupResult. Raises GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP."""
        group = self._existing(group_id)
        group.validate_delete()
        cause = Cause(Trigger.REQUESTED)
        self._remove_offsets(group, self.hard.partitions_of(group_id), cause, step)
        remove(group, self.groups, cause, step)
        step.reply(DeleteGroupsResponse.DeletableGroupResult(group_id=group_id))

    # --- removal --------------------------------------------------------------------------------------------

    def _existing(self, group_id: str) -> Group:
        group = self.groups.get(group_id)
        if group is None:
            raise group_not_found(group_id)
        return group

    def _remove_offsets(
        self, group: Group, partitions: list[TopicPartition], cause: Cause, step: Step
    ) -> None:
        removed = offsets.remove(group.group_id, partitions, self.hard, step)
        self._tell_offsets_removed(group, removed, cause, step)

    def _tell_offsets_removed(
        self, group: Group, removed: list[TopicPartition], cause: Cause, step: Step
    ) -> None:
        if removed:
            step.events.append(OffsetsRemoved(*group.stamp(step, cause), partitions=tuple(removed)))

    def _sweep(self, step: Step) -> None:
        """Remove offsets past their retention, empty groups that have none left, and producers that have been
        idle too long."""
        cause = Cause(Trigger.RETENTION)
        for group in list(self.groups.values()):
            expired = offsets.expired(group, self.config, self.hard, step.now_ms)
            self._remove_offsets(group, expired, cause, step)
            if group.is_empty and not self.hard.has_offsets(group.group_id):
                remove(group, self.groups, cause, step)
        transactional_offsets.expire(self.hard, self._guards, self.configs.producer_id_expiration_ms, step)
        self._set_sweep(step.now_ms)

    def skip_sweeps(self, until_ms: int, now_ms: int) -> None:
        """Time is about to be moved to `until_ms`, perhaps past a thousand sweeps: skip those that would find
        nothing, and schedule one for the moment the first offset is past its retention, or a producer.

        To be called again after any step that may have changed what a sweep would find.
        """
        sweep_ms = self.deadlines.get(SWEEP)
        if sweep_ms is None:
            return
        interval_ms = self._sweep_interval_ms
        regular_ms = now_ms + (sweep_ms - now_ms) % interval_ms
        next_ms = regular_ms + max((until_ms - regular_ms) // interval_ms + 1, 0) * interval_ms
        for group in self.groups.values():
            if group.is_empty and not self.hard.has_offsets(group.group_id):
                next_ms = min(next_ms, regular_ms)  # removes the group, if nothing changes
            expiry_ms = offsets.next_expiry(group, self.config, self.hard)
            if expiry_ms is not None:
                next_ms = min(next_ms, max(expiry_ms, now_ms))
        expiry_ms = transactional_offsets.next_expiry(self.hard, self.configs.producer_id_expiration_ms)
        if expiry_ms is not None:
            next_ms = min(next_ms, max(expiry_ms, now_ms))
        self.deadlines.set(SWEEP, next_ms)

    def _set_sweep(self, now_ms: int) -> None:
        self.deadlines.set(SWEEP, now_ms + self._sweep_interval_ms)

    @property
    def _sweep_interval_ms(self) -> int:
        return max(self.config.offsets_retention_check_interval_ms, 1)


def _require_no_member(request: Commit, step: Step, not_found_from: int) -> None:
    """Nobody can be a member of a group that does not exist. Raises GROUP_ID_NOT_FOUND, or ILLEGAL_GENERATION
    in versions below `not_found_from`."""
    if request.generation_id_or_member_epoch < 0:
        return
    if step.context.api_version >= not_found_from:
        raise group_not_found(request.group_id)
    raise KafkaError(ErrorCode.ILLEGAL_GENERATION, f"there is no group {request.group_id!r}")


def _tell_disconnected(
    group: Group, identity: MemberIdentity, heard_ms: int, removed_ms: int | None, step: Step
) -> None:
    step.events.append(
        MemberDisconnected(
            *group.stamp(step, Cause(Trigger.CONNECTION_CLOSED, identity)),
            silent_ms=step.now_ms - heard_ms,
            after_removal_ms=None if removed_ms is None else step.now_ms - removed_ms,
        )
    )

"""A shard: the groups of one coordinator partition, and one method for each thing that can be asked of
them."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Final

from muster.coordinator.group import joins, offsets, rebalance, records, sessions, syncs
from muster.coordinator.group.classic import (
    Cause,
    ClassicGroup,
    GroupState,
    Shared,
    TimerKey,
    TimerKind,
)
from muster.coordinator.group.config import GroupConfig
from muster.coordinator.group.connections import Connections
from muster.coordinator.group.deadlines import Deadlines
from muster.coordinator.group.effects import (
    BrokenInvariant,
    Effects,
    Record,
    RequestContext,
    Ticket,
    TopicsImage,
)
from muster.coordinator.group.events import (
    CommitRefused,
    GroupCreated,
    GroupRemoved,
    MemberDisconnected,
    OffsetsRemoved,
    Trigger,
)
from muster.coordinator.group.hard_state import (
    CommittedOffset,
    HardState,
    StoredGroup,
    TopicPartition,
)
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.classic_group import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
)
from muster.protocol.messages.group_admin import (
    DeleteGroupsResponse,
    DescribeGroupsResponse,
    ListGroupsResponse,
)
from muster.protocol.messages.offsets import OffsetCommitRequest, OffsetDeleteRequest
from muster.protocol.types import STRING_BYTES_MAX

_GROUP_ID_NOT_FOUND_TO_COMMIT_FROM = 9  # KIP-848
_GROUP_ID_NOT_FOUND_TO_DESCRIBE_FROM = 6
_SWEEP: Final = TimerKey(TimerKind.SWEEP)

Durable = tuple[dict[str, StoredGroup], dict[str, dict[TopicPartition, CommittedOffset]]]


def _uuid4() -> str:
    return str(uuid.uuid4())


def _member_id(prefix: str, unique: str) -> str:
    """Kafka's form of a member id. A prefix that fills a Kafka string is cut: the id must be one."""
    room = STRING_BYTES_MAX - len(unique) - 1
    return f"{prefix.encode()[:room].decode(errors='ignore')}-{unique}"


class Shard:
    """The groups of one coordinator partition.

    Its life: `apply` what the store has, `loaded`, then requests, `advance` whenever `next_deadline` has
    come, and at the end `unload`. Requests have one signature: `(request, context, ticket, now_ms, out)`.
    They raise KafkaError before they have changed anything, or fill `out`, at once or (JoinGroup, SyncGroup)
    in a later step. `now_ms` never goes back.
    """

    def __init__(self, number: int, config: GroupConfig, *, ids: Callable[[], str] = _uuid4) -> None:
        """`ids` makes the random part of member ids."""
        self.number = number
        self.config = config
        self.groups: dict[str, ClassicGroup] = {}
        self.hard = HardState()
        self.deadlines: Deadlines[TimerKey] = Deadlines()
        self.connections = Connections()
        self._ids = ids

    def __repr__(self) -> str:
        return f"<Shard {self.number} groups={len(self.groups)} {self.hard!r}>"

    # --- its life -------------------------------------------------------------------------------------------

    def apply(self, record: Record) -> None:
        """Change hard state: the only thing that does, and what replays the store."""
        self.hard.apply(record)

    def durable(self) -> Durable:
        """What the records so far say, in a form that compares."""
        return self.hard.durable()

    def loaded(self, now_ms: int, out: Effects) -> None:
        """Every record of the store has been applied: serve the groups they tell of. Members get a full
        session, so a failover costs no rebalance."""
        for group_id, stored in self.hard.groups.items():
            group = ClassicGroup.loaded(group_id, stored, self._shared, now_ms)
            self.groups[group_id] = group
            for member in group.members.values():
                group.restart_session(member, now_ms)
            if len(group.members) > self.config.group_max_size:
                # The limit was lowered. Whoever rejoins last will be refused; until then they can commit.
                rebalance.prepare(group, Cause(Trigger.LOADED_OVERSIZE), now_ms, out)
        for group_id in self.hard.offsets:
            if group_id not in self.groups:
                self.groups[group_id] = ClassicGroup(group_id, self._shared, now_ms)
        self._set_sweep(now_ms)

    def unload(self, now_ms: int, out: Effects) -> None:
        """Another coordinator takes over: parked requests are to ask there."""
        moved = KafkaError(ErrorCode.NOT_COORDINATOR, f"shard {self.number} is being unloaded")
        for group in self.groups.values():
            group.become(GroupState.DEAD, Cause(Trigger.SHARD_UNLOADED), now_ms, out)
            for member in group.members.values():
                group.refuse_join(member, moved.code, out)
                group.answer_sync(member, moved, out)
            group.cancel_timers()
        self.deadlines.cancel(_SWEEP)

    def next_deadline(self) -> int | None:
        """When `advance` has something to do, in epoch milliseconds."""
        return self.deadlines.next()

    def deadline_bound(self) -> int | None:
        """A time before which `next_deadline` does not lie, at less cost; None when there is none."""
        return self.deadlines.bound()

    def advance(self, now_ms: int, out: Effects) -> None:
        """Do what is due."""
        for kind, group_id, member_id in self.deadlines.due(now_ms):
            match kind:
                case TimerKind.SESSION:
                    sessions.session_timer_fired(self.groups[group_id], member_id, now_ms, out)
                case TimerKind.JOIN:
                    rebalance.join_timer_fired(self.groups[group_id], now_ms, out)
                case TimerKind.SYNC:
                    rebalance.sync_timer_fired(self.groups[group_id], now_ms, out)
                case TimerKind.SWEEP:
                    self._sweep(now_ms, out)

    def knows_connection(self, connection_id: int) -> bool:
        """Whether `connection_closed` would find anybody."""
        return connection_id in self.connections

    def connection_closed(self, connection_id: int, now_ms: int, out: Effects) -> None:
        """A client hung up, or died. Its members stay until their sessions expire."""
        for group_id, member in self.connections.closed(connection_id):
            generation_id = self.groups[group_id].generation_id
            cause = Cause(Trigger.CONNECTION_CLOSED, member.identity)
            out.events.append(MemberDisconnected(now_ms, group_id, generation_id, *cause))

    def topics_changed(self, image: TopicsImage, now_ms: int, out: Effects) -> None:
        """Forget the offsets of topics that are gone. Telling the same image again changes nothing more."""
        for group in self.groups.values():
            orphaned = offsets.orphaned(group.group_id, image, self.hard)
            self._remove_offsets(group, orphaned, Cause(Trigger.TOPIC_DELETED), now_ms, out)

    # --- membership -----------------------------------------------------------------------------------------

    def join(
        self, request: JoinGroupRequest, context: RequestContext, ticket: Ticket, now_ms: int, out: Effects
    ) -> None:
        """JoinGroup. Raises, beside what `joins.join` raises, INVALID_GROUP_ID and
        INVALID_SESSION_TIMEOUT."""
        _require_group_id(request.group_id)
        shortest_ms, longest_ms = (
            self.config.group_min_session_timeout_ms,
            self.config.group_max_session_timeout_ms,
        )
        if not shortest_ms <= request.session_timeout_ms <= longest_ms:
            raise KafkaError(
                ErrorCode.INVALID_SESSION_TIMEOUT,
                f"{request.session_timeout_ms} ms is not within {shortest_ms} to {longest_ms} ms",
            )
        group = self.groups.get(request.group_id)
        new_member_id = _member_id(request.group_instance_id or context.client_id, self._ids())
        if group is not None:
            joins.join(
                group, request, context, new_member_id=new_member_id, ticket=ticket, now_ms=now_ms, out=out
            )
            return
        if request.member_id != "":
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"there is no group {request.group_id!r}")
        group = self._create(request.group_id, now_ms, out)
        # The store hears of the group before the client does: it shows whether we still are its coordinator.
        empty = StoredGroup("", 0, None, None, now_ms, ())
        self.hard.emit(records.group_metadata(group.group_id, empty), out)
        try:
            joins.join(
                group, request, context, new_member_id=new_member_id, ticket=ticket, now_ms=now_ms, out=out
            )
        except KafkaError as refusal:
            # The group stays, as in Kafka, until a retention sweep finds it empty.
            out.reply(ticket, refusal)

    def sync(
        self, request: SyncGroupRequest, context: RequestContext, ticket: Ticket, now_ms: int, out: Effects
    ) -> None:
        """SyncGroup. Raises, beside what `syncs.sync` raises, INVALID_GROUP_ID."""
        syncs.require_protocol(request, context)
        group = self._member_group(request.group_id)
        syncs.sync(group, request, context, ticket=ticket, now_ms=now_ms, out=out)

    def heartbeat(
        self, request: HeartbeatRequest, context: RequestContext, ticket: Ticket, now_ms: int, out: Effects
    ) -> None:
        """Heartbeat. Raises what `beat` raises."""
        out.reply(ticket, self.beat(request, context, now_ms))

    def beat(self, request: HeartbeatRequest, context: RequestContext, now_ms: int) -> HeartbeatResponse:
        """All that `heartbeat` does: it has no effect but its answer. Raises, beside what
        `sessions.heartbeat` raises, INVALID_GROUP_ID."""
        return sessions.heartbeat(self._member_group(request.group_id), request, context, now_ms)

    def leave(
        self, request: LeaveGroupRequest, context: RequestContext, ticket: Ticket, now_ms: int, out: Effects
    ) -> None:
        """LeaveGroup. Raises, beside what `sessions.leave` raises, INVALID_GROUP_ID."""
        _require_group_id(request.group_id)
        group = self.groups.get(request.group_id)
        if group is not None:
            sessions.leave(group, request, context, ticket=ticket, now_ms=now_ms, out=out)
        else:
            identities = sessions.leaving(request, context)
            outcomes = [ErrorCode.UNKNOWN_MEMBER_ID] * len(identities)
            out.reply(ticket, sessions.left_response(identities, outcomes, context))

    def _member_group(self, group_id: str) -> ClassicGroup:
        """The group a member speaks of. Raises INVALID_GROUP_ID, UNKNOWN_MEMBER_ID."""
        _require_group_id(group_id)
        group = self.groups.get(group_id)
        if group is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"there is no group {group_id!r}")
        return group

    # --- offsets --------------------------------------------------------------------------------------------

    def commit_offsets(
        self, request: OffsetCommitRequest, context: RequestContext, ticket: Ticket, now_ms: int, out: Effects
    ) -> None:
        """OffsetCommit, of partitions that exist. Raises, beside what `offsets.validate_commit` raises,
        GROUP_ID_NOT_FOUND, or below v9 ILLEGAL_GENERATION for it."""
        group = self.groups.get(request.group_id)
        if group is not None:
            self._validate_commit(group, request, context, now_ms, out)
        elif request.generation_id_or_member_epoch >= 0:
            if context.api_version >= _GROUP_ID_NOT_FOUND_TO_COMMIT_FROM:
                raise _not_found(request.group_id)
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION, f"there is no group {request.group_id!r}")
        response = offsets.commit(request, hard=self.hard, config=self.config, now_ms=now_ms, out=out)
        if group is None and request.group_id in self.hard.offsets:
            # A group that only stores offsets: it has neither members nor a record of its own.
            self._create(request.group_id, now_ms, out)
        out.reply(ticket, response)

    def _validate_commit(
        self,
        group: ClassicGroup,
        request: OffsetCommitRequest,
        context: RequestContext,
        now_ms: int,
        out: Effects,
    ) -> None:
        try:
            offsets.validate_commit(group, request)
        except KafkaError as refusal:
            self._commit_refused(group, request, refusal, now_ms, out)
            raise
        member = group.members.get(request.member_id)
        if member is not None:
            group.heard(member, context, now_ms)
            group.restart_session(member, now_ms)

    def _commit_refused(
        self,
        group: ClassicGroup,
        request: OffsetCommitRequest,
        refusal: KafkaError,
        now_ms: int,
        out: Effects,
    ) -> None:
        member = group.members.get(request.member_id)
        cause = Cause(Trigger.REQUESTED, member.identity if member is not None else None)
        out.events.append(
            CommitRefused(
                now_ms,
                group.group_id,
                group.generation_id,
                *cause,
                error=refusal.code.name,
                committed_generation_id=request.generation_id_or_member_epoch,
            )
        )

    def fetch_offsets(
        self,
        request: offsets.FetchOffsets,
        context: RequestContext,
        ticket: Ticket,
        now_ms: int,
        out: Effects,
    ) -> None:
        """One group's part of an OffsetFetch. Answers an OffsetFetchResponse.Group and raises nothing."""
        out.reads_hard_state = True
        out.reply(ticket, offsets.fetch(request, self.hard))

    def delete_offsets(
        self, request: OffsetDeleteRequest, context: RequestContext, ticket: Ticket, now_ms: int, out: Effects
    ) -> None:
        """OffsetDelete. Raises INVALID_GROUP_ID, GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP."""
        _require_group_id(request.group_id)
        group = self._existing(request.group_id)
        response, deleted = offsets.delete(group, request, self.hard, out)
        self._tell_offsets_removed(group, deleted, Cause(Trigger.REQUESTED), now_ms, out)
        out.reads_hard_state = True
        out.reply(ticket, response)

    # --- groups seen from outside ---------------------------------------------------------------------------

    def describe(
        self, group_id: str, context: RequestContext, ticket: Ticket, now_ms: int, out: Effects
    ) -> None:
        """One group of a DescribeGroups. Answers a DescribeGroupsResponse.DescribedGroup for every group,
        since clients rely on an answer for each they asked for, and raises nothing."""
        out.reads_hard_state = True
        group = self.groups.get(group_id)
        if group is not None:
            described = _described(group)
        else:
            described = DescribeGroupsResponse.DescribedGroup(
                group_id=group_id,
                group_state=GroupState.DEAD,
                protocol_type="",
                protocol_data="",
                members=[],
            )
            if context.api_version >= _GROUP_ID_NOT_FOUND_TO_DESCRIBE_FROM:
                not_found = _not_found(group_id)
                described.error_code, described.error_message = not_found.code, not_found.why
        out.reply(ticket, described)

    def list_groups(
        self, _: None, context: RequestContext, ticket: Ticket, now_ms: int, out: Effects
    ) -> None:
        """The shard's part of a ListGroups: answers a list of ListGroupsResponse.ListedGroup, and raises
        nothing. Filters are for the caller."""
        out.reads_hard_state = True
        out.reply(
            ticket,
            [
                ListGroupsResponse.ListedGroup(
                    group_id=group.group_id,
                    protocol_type=group.protocol_type,
                    group_state=group.state,
                    group_type="classic",
                )
                for group in self.groups.values()
            ],
        )

    def delete_group(
        self, group_id: str, context: RequestContext, ticket: Ticket, now_ms: int, out: Effects
    ) -> None:
        """One group of a DeleteGroups, with its offsets. Answers a DeleteGroupsResponse.DeletableGroupResult.
        Raises GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP."""
        group = self._existing(group_id)
        if group.state is GroupState.DEAD:
            raise _not_found(group_id)
        if group.state is not GroupState.EMPTY:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP, f"{group!r} has members")
        cause = Cause(Trigger.REQUESTED)
        self._remove_offsets(group, list(self.hard.offsets.get(group_id, ())), cause, now_ms, out)
        self._remove(group, cause, now_ms, out)
        out.reply(ticket, DeleteGroupsResponse.DeletableGroupResult(group_id=group_id))

    # --- groups come and go ---------------------------------------------------------------------------------

    @property
    def _shared(self) -> Shared:
        return Shared(self.config, self.hard, self.deadlines, self.connections)

    def _existing(self, group_id: str) -> ClassicGroup:
        group = self.groups.get(group_id)
        if group is None:
            raise _not_found(group_id)
        return group

    def _create(self, group_id: str, now_ms: int, out: Effects) -> ClassicGroup:
        group = self.groups[group_id] = ClassicGroup(group_id, self._shared, now_ms)
        out.events.append(GroupCreated(now_ms, group_id, group.generation_id, *Cause(Trigger.REQUESTED)))
        return group

    def _remove(self, group: ClassicGroup, cause: Cause, now_ms: int, out: Effects) -> None:
        """Forget an empty group, and who was told an id of it."""
        if group.members:
            raise BrokenInvariant(f"{group!r} has members")
        group.cancel_timers()
        del self.groups[group.group_id]
        # Also for a group that has no record: the store forgets what it does not have.
        self.hard.emit(records.group_tombstone(group.group_id), out)
        out.events.append(GroupRemoved(now_ms, group.group_id, group.generation_id, *cause))

    def _remove_offsets(
        self,
        group: ClassicGroup,
        partitions: list[TopicPartition],
        cause: Cause,
        now_ms: int,
        out: Effects,
    ) -> None:
        removed = offsets.remove(group.group_id, partitions, self.hard, out)
        self._tell_offsets_removed(group, removed, cause, now_ms, out)

    def _tell_offsets_removed(
        self, group: ClassicGroup, removed: list[TopicPartition], cause: Cause, now_ms: int, out: Effects
    ) -> None:
        if removed:
            out.events.append(
                OffsetsRemoved(now_ms, group.group_id, group.generation_id, *cause, partitions=tuple(removed))
            )

    def _sweep(self, now_ms: int, out: Effects) -> None:
        """Forget offsets past their retention, and empty groups that have none left."""
        cause = Cause(Trigger.RETENTION)
        for group in list(self.groups.values()):
            expired = offsets.expired(group, self.config, self.hard, now_ms)
            self._remove_offsets(group, expired, cause, now_ms, out)
            if group.state is GroupState.EMPTY and group.group_id not in self.hard.offsets:
                self._remove(group, cause, now_ms, out)
        self._set_sweep(now_ms)

    def _set_sweep(self, now_ms: int) -> None:
        self.deadlines.set(_SWEEP, now_ms + max(self.config.offsets_retention_check_interval_ms, 1))


def _require_group_id(group_id: str) -> None:
    """Members need a name for their group; offsets may be stored under the empty one. Raises
    INVALID_GROUP_ID."""
    if group_id == "":
        raise KafkaError(ErrorCode.INVALID_GROUP_ID, "the group id is empty")


def _not_found(group_id: str) -> KafkaError:
    return KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")


def _described(group: ClassicGroup) -> DescribeGroupsResponse.DescribedGroup:
    """What members subscribe to is told only of a Stable group: before, their metadata may be of a protocol
    that will not be chosen."""
    stable = group.state is GroupState.STABLE
    protocol_name = group.protocol_name or ""
    return DescribeGroupsResponse.DescribedGroup(
        group_id=group.group_id,
        group_state=group.state,
        protocol_type=group.protocol_type,
        protocol_data=protocol_name if stable else "",
        members=[
            DescribeGroupsResponse.DescribedGroup.DescribedGroupMember(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata(protocol_name) if stable else b"",
                member_assignment=member.assignment,
            )
            for member in group.members.values()
        ],
    )

"""A shard: the groups of one coordinator partition, and one method for each thing that can be asked of
them."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable
from typing import Final

from muster.coordinator.base.deadlines import Deadlines
from muster.coordinator.group import joins, offsets, ownership, rebalance, records, sessions, syncs
from muster.coordinator.group.classic import (
    Cause,
    ClassicGroup,
    GroupState,
    Shared,
    TimerKey,
    TimerKind,
    Topics,
)
from muster.coordinator.group.config import GroupConfig
from muster.coordinator.group.connections import Connections
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
    Event,
    GroupCreated,
    GroupRemoved,
    MemberDisconnected,
    MemberFenced,
    MemberIdentity,
    OffsetsRemoved,
    Trigger,
)
from muster.coordinator.group.hard_state import (
    CommittedOffset,
    HardState,
    StoredGroup,
    TopicPartition,
)
from muster.coordinator.group.presumption import Presumption
from muster.coordinator.group.rate_limiters import RateLimiters
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.classic_group import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
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
_PRESUMPTION: Final = TimerKey(TimerKind.PRESUMPTION)

_UNHEARD: Final = "the store did not confirm the group in time, so the client was not told its id"

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
        self.topics = Topics()
        self.rate_limiters = RateLimiters()
        self.noted: list[Event] = []
        """What happened where there was no `out`: in `beat`. `tell_noted` tells it."""
        self._presumption: Presumption | None = None
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
        self.tell_noted(out)
        moved = KafkaError(ErrorCode.NOT_COORDINATOR, f"shard {self.number} is being unloaded")
        for group in self.groups.values():
            group.become(GroupState.DEAD, Cause(Trigger.SHARD_UNLOADED), now_ms, out)
            for member in group.members.values():
                group.refuse_join(member, moved.code, out)
                group.answer_sync(member, moved, out)
            group.cancel_timers()
        self.deadlines.cancel(_SWEEP)
        self.deadlines.cancel(_PRESUMPTION)

    def next_deadline(self) -> int | None:
        """When `advance` has something to do, in epoch milliseconds."""
        return self.deadlines.next()

    def deadline_bound(self) -> int | None:
        """A time before which `next_deadline` does not lie, at less cost; None when there is none."""
        return self.deadlines.bound()

    def advance(self, now_ms: int, out: Effects) -> None:
        """Do what is due."""
        self.tell_noted(out)
        for kind, group_id, member_id in self.deadlines.due(now_ms):
            match kind:
                case TimerKind.SESSION:
                    group = self.groups[group_id]
                    if self._presumption is None or not self._presumption.keeps(group, member_id):
                        sessions.session_timer_fired(group, member_id, now_ms, out)
                case TimerKind.JOIN:
                    rebalance.join_timer_fired(self.groups[group_id], now_ms, out)
                case TimerKind.SYNC:
                    rebalance.sync_timer_fired(self.groups[group_id], now_ms, out)
                case TimerKind.SWEEP:
                    self._sweep(now_ms, out)
                case TimerKind.PRESUMPTION:
                    self._end_presumption(now_ms)

    def unheard(self, responses: Iterable[object], now_ms: int, out: Effects) -> None:
        """Clients were not given these responses in time. Where one would have told a member id, the group
        would wait for somebody who never comes."""
        untold = {
            response.member_id
            for response in responses
            if isinstance(response, JoinGroupResponse) and response.error_code == ErrorCode.MEMBER_ID_REQUIRED
        }
        if not untold:
            return
        for group in self.groups.values():
            for member_id in sorted(untold.intersection(group.pending_members)):
                sessions.forget_pending(group, member_id, _UNHEARD, now_ms, out)

    def tell_noted(self, out: Effects) -> None:
        """Tell what `beat` has noted. Who calls that looks at `noted` after it: it is empty as a rule."""
        if self.noted:
            out.events += self.noted
            self.noted.clear()

    def presume_alive(
        self,
        until_ms: int,
        now_ms: int,
        stalled: Collection[tuple[str, str]],
        out: Effects,
        *,
        clients: Collection[str] = (),
    ) -> None:
        """Time is about to be moved up to `until_ms`, by a test: members whose clients' clocks do not move
        count as heartbeating meanwhile, and begin a full session then. They are those whose connection is
        open and who are not late now, but for those `stalled` (group id, member id). New members that wait
        in JoinGroup and clients that were told an id get no more time than they have.

        Nobody has been heard of yet when a shard was just loaded, after a move or a failover: there those
        count whose client id is one of `clients`, which have a connection to any broker.

        Told again it replaces what it said before, which ends at that moment; and so it does with a time that
        has passed."""
        self._end_presumption(now_ms)
        if until_ms > now_ms:
            self._presumption = Presumption(
                self.groups.values(), until_ms, now_ms, frozenset(stalled), frozenset(clients)
            )
            self.deadlines.set(_PRESUMPTION, until_ms)

    def _end_presumption(self, now_ms: int) -> None:
        if self._presumption is not None:
            presumption, self._presumption = self._presumption, None
            self.deadlines.cancel(_PRESUMPTION)
            presumption.end(self.groups.values(), now_ms)

    def knows_connection(self, connection_id: int) -> bool:
        """Whether `connection_closed` would find anybody."""
        return connection_id in self.connections

    def connection_closed(self, connection_id: int, now_ms: int, out: Effects) -> None:
        """A client hung up, or died. Its members stay until their sessions expire."""
        present, former = self.connections.closed(connection_id)
        for group_id, member in present:
            member.disconnected_at_ms = now_ms
            if self._presumption is not None:
                self._presumption.disconnected(self.groups[group_id], member, now_ms)
            self._tell_disconnected(group_id, member.identity, member.heard_ms, None, now_ms, out)
        for group_id, identity, heard_ms, removed_ms in former:
            if group_id in self.groups:
                self._tell_disconnected(group_id, identity, heard_ms, removed_ms, now_ms, out)

    def _tell_disconnected(
        self,
        group_id: str,
        identity: MemberIdentity,
        heard_ms: int,
        removed_ms: int | None,
        now_ms: int,
        out: Effects,
    ) -> None:
        cause = Cause(Trigger.CONNECTION_CLOSED, identity)
        out.events.append(
            MemberDisconnected(
                now_ms,
                group_id,
                self.groups[group_id].generation_id,
                *cause,
                silent_ms=now_ms - heard_ms,
                after_removal_ms=None if removed_ms is None else now_ms - removed_ms,
            )
        )

    def topics_changed(self, image: TopicsImage, now_ms: int, out: Effects) -> None:
        """Forget the offsets of topics that are gone. Telling the same image again changes nothing more."""
        if image.partitions is not None:
            self.topics.partitions = image.partitions
        for group in self.groups.values():
            if group.members and group.partition_counts is None:
                # It was loaded: what has changed since its last assignment, nobody here knows.
                group.count_partitions()
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
            try:
                joins.join(
                    group,
                    request,
                    context,
                    new_member_id=new_member_id,
                    ticket=ticket,
                    now_ms=now_ms,
                    out=out,
                )
            except KafkaError as refusal:
                out.events += _fenced("JoinGroup", group, request, refusal, context, now_ms)
                raise
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
        try:
            syncs.sync(group, request, context, ticket=ticket, now_ms=now_ms, out=out)
        except KafkaError as refusal:
            out.events += _fenced("SyncGroup", group, request, refusal, context, now_ms)
            raise

    def heartbeat(
        self, request: HeartbeatRequest, context: RequestContext, ticket: Ticket, now_ms: int, out: Effects
    ) -> None:
        """Heartbeat. Raises what `beat` raises."""
        try:
            out.reply(ticket, self.beat(request, context, now_ms))
        finally:
            self.tell_noted(out)

    def beat(self, request: HeartbeatRequest, context: RequestContext, now_ms: int) -> HeartbeatResponse:
        """All that `heartbeat` does: it has no effect but its answer, and what it leaves in `noted`. Raises,
        beside what `sessions.heartbeat` raises, INVALID_GROUP_ID."""
        group = self._member_group(request.group_id)
        try:
            return sessions.heartbeat(group, request, context, now_ms)
        except KafkaError as refusal:
            for event in _fenced("Heartbeat", group, request, refusal, context, now_ms):
                group.note(event)
            raise

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
            out.events += _fenced("OffsetCommit", group, request, refusal, context, now_ms)
            self._tell_commit_refused(group, request, refusal, context, now_ms, out)
            raise
        member = group.members.get(request.member_id)
        if member is not None:
            group.heard(member, context, now_ms)
            group.restart_session(member, now_ms)

    def _tell_commit_refused(
        self,
        group: ClassicGroup,
        request: OffsetCommitRequest,
        refusal: KafkaError,
        context: RequestContext,
        now_ms: int,
        out: Effects,
    ) -> None:
        if not self.rate_limiters.commits_refused.allows(group.group_id, now_ms):
            return
        identity = MemberIdentity(
            request.member_id, context.client_id, context.client_host, request.group_instance_id
        )
        cause = Cause(Trigger.REQUESTED, identity)
        generation_id = request.generation_id_or_member_epoch
        ended_ms = group.ended_ms(generation_id)
        topic, partition = _first_partition(request)
        owner = ownership.owner(group.ownership, topic, partition)
        if owner is not None and group.members.get(owner.member_id) is not owner:
            owner = None  # it has gone
        out.events.append(
            CommitRefused(
                now_ms,
                group.group_id,
                group.generation_id,
                *cause,
                error=refusal.code.name,
                committed_generation_id=generation_id,
                partitions=sum(len(topic.partitions) for topic in request.topics),
                superseded_ms=None if ended_ms is None else now_ms - ended_ms,
                owner=None if owner is None else owner.identity,
                topic=topic,
                partition=partition,
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
        return Shared(
            self.config,
            self.hard,
            self.deadlines,
            self.connections,
            self.topics,
            self.rate_limiters,
            self.noted,
        )

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

    def skip_sweeps(self, until_ms: int, now_ms: int) -> None:
        """Time is about to be moved to `until_ms`, perhaps past a thousand sweeps: leave out those that would
        find nothing, and have one the moment the first offset is past its retention.

        To be told again after a step that may have changed what there is to find.
        """
        sweep_ms = self.deadlines.get(_SWEEP)
        if sweep_ms is None:
            return
        interval_ms = max(self.config.offsets_retention_check_interval_ms, 1)
        regular_ms = now_ms + (sweep_ms - now_ms) % interval_ms
        next_ms = regular_ms + max((until_ms - regular_ms) // interval_ms + 1, 0) * interval_ms
        for group in self.groups.values():
            if group.state is GroupState.EMPTY and group.group_id not in self.hard.offsets:
                next_ms = min(next_ms, regular_ms)  # which ends the group, if it stays as it is
            expiry_ms = offsets.next_expiry(group, self.config, self.hard)
            if expiry_ms is not None:
                next_ms = min(next_ms, max(expiry_ms, now_ms))
        self.deadlines.set(_SWEEP, next_ms)

    def _set_sweep(self, now_ms: int) -> None:
        self.deadlines.set(_SWEEP, now_ms + max(self.config.offsets_retention_check_interval_ms, 1))


def _require_group_id(group_id: str) -> None:
    """Members need a name for their group; offsets may be stored under the empty one. Raises
    INVALID_GROUP_ID."""
    if group_id == "":
        raise KafkaError(ErrorCode.INVALID_GROUP_ID, "the group id is empty")


def _fenced(
    api: str,
    group: ClassicGroup,
    request: JoinGroupRequest | SyncGroupRequest | HeartbeatRequest | OffsetCommitRequest,
    refusal: KafkaError,
    context: RequestContext,
    now_ms: int,
) -> list[MemberFenced]:
    """What there is to tell of a refusal."""
    if refusal.code is not ErrorCode.FENCED_INSTANCE_ID:
        return []
    return sessions.fenced(group, api, request.member_id, request.group_instance_id, context, now_ms)


def _first_partition(request: OffsetCommitRequest) -> tuple[str, int]:
    """The first partition of a commit; ("", -1) if it has none."""
    for topic in request.topics:
        for partition in topic.partitions:
            return topic.name, partition.partition_index
    return "", -1


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

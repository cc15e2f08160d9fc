"""SyncGroup: the leader submits the assignment, and every member gets its part."""

from __future__ import annotations

from typing import Final

from muster.coordinator.base.step import BrokenInvariant, RequestContext, Step
from muster.coordinator.group.classic import joins, ownership, rebalance
from muster.coordinator.group.classic.group import CONSUMER, ClassicGroup
from muster.coordinator.group.classic.member import ClassicMember
from muster.coordinator.group.classic.states import GroupState
from muster.coordinator.group.events import AllSynced, Assigned, Cause, Trigger
from muster.protocol.embedded import ConsumerProtocolAssignment, encode_assignment
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.classic_group import SyncGroupRequest

_PROTOCOL_REQUIRED_FROM = 5  # KIP-559
_NO_PARTITIONS: Final = encode_assignment(ConsumerProtocolAssignment(assigned_partitions=[]), 0)


def sync(group: ClassicGroup, request: SyncGroupRequest, step: Step) -> None:
    """Answer a SyncGroup with the member's assignment, or park it until the leader's comes.

    Raises COORDINATOR_NOT_AVAILABLE, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION,
    INCONSISTENT_GROUP_PROTOCOL, REBALANCE_IN_PROGRESS.
    """
    member = group.alive().validate(request.member_id, request.group_instance_id)
    group.validate_generation(request.generation_id)
    _validate_protocol(group, request)
    match group.state:
        case GroupState.PREPARING_REBALANCE:
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS, f"{group!r} is waiting for joins")
        case GroupState.COMPLETING_REBALANCE:
            group.heard(member, step)
            group.park_sync(member, step)
            last = _synced(group, member)
            if member.member_id == group.leader:
                _assign(group, member, request, step)
            if last:
                _tell_all_synced(group, member, step)
        case GroupState.STABLE:
            group.heard(member, step)
            if _synced(group, member):
                _tell_all_synced(group, member, step)
            step.reads_hard_state = True
            step.reply(group.synced_response(member))
        case state:
            raise BrokenInvariant(f"{group!r} has {member!r} in {state}")


def require_protocol(request: SyncGroupRequest, context: RequestContext) -> None:
    """From v5 on, a client names its protocol (KIP-559). Raises INCONSISTENT_GROUP_PROTOCOL."""
    if context.api_version >= _PROTOCOL_REQUIRED_FROM and (
        request.protocol_type is None or request.protocol_name is None
    ):
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "SyncGroup names no protocol")


def _validate_protocol(group: ClassicGroup, request: SyncGroupRequest) -> None:
    for theirs, ours in (
        (request.protocol_type, group.protocol_type),
        (request.protocol_name, group.protocol_name),
    ):
        if theirs is not None and ours is not None and theirs != ours:
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"{group!r} has {ours!r}, not {theirs!r}")


def _synced(group: ClassicGroup, member: ClassicMember) -> bool:
    """Note the member's SyncGroup. Returns whether it is the last of its generation."""
    if member.member_id not in group.pending_syncs:
        return False
    group.pending_syncs.remove(member.member_id)
    if group.pending_syncs:
        return False
    group.deadlines.cancel(group.sync_timer)
    return True


def _tell_all_synced(group: ClassicGroup, last: ClassicMember, step: Step) -> None:
    cause = Cause(Trigger.MEMBER_SYNCED, last.identity)
    step.events.append(
        AllSynced(
            *group.stamp(step, cause),
            after_ms=step.now_ms - group.state_timestamp,
            last=last.identity,
        )
    )


def _assign(group: ClassicGroup, leader: ClassicMember, request: SyncGroupRequest, step: Step) -> None:
    """Store what the leader assigned and hand it out.

    In Kafka, the group becomes Stable only when the record is committed, and must then check that it is still
    in this generation. Here it is Stable at once: the replies of this step leave when its record is durable,
    those of later steps that read it (a Stable SyncGroup, a DescribeGroups) not before. If the write fails,
    the whole shard is reloaded as of before it (promise 6), so nobody can have seen an assignment that was
    not kept. A member that joins meanwhile begins the next rebalance one generation later than in Kafka,
    which no client can tell apart.
    """
    assignments = {assignment.member_id: assignment.assignment for assignment in request.assignments}
    for member in group.members.values():
        member.assignment = assignments.get(member.member_id) or _forgotten(group)
    cause = Cause(Trigger.LEADER_SYNCED, leader.identity)
    _tell_assigned(group, cause, step)
    group.become(GroupState.STABLE, cause, step)
    group.store(step)
    rebalance.finished(group, step)
    for member in group.members.values():
        if group.answer_sync(member, group.synced_response(member), step):
            # Its session may have expired while it waited, without effect and without another timer.
            group.restart_session(member, step.now_ms)


def _tell_assigned(group: ClassicGroup, cause: Cause, step: Step) -> None:
    before = group.ownership
    group.ownership = {member: member.assignment for member in group.members.values()}
    joins.tell_grown(group, cause, step, assigned=group.ownership)
    group.count_partitions()
    consumers = group.protocol_type == CONSUMER
    compared = ownership.compare(before, group.ownership) if consumers else ownership.UNREADABLE
    told = Assigned(*group.stamp(step, cause), **compared._asdict(), protocol=group.protocol_name)
    step.events.append(told)


def _forgotten(group: ClassicGroup) -> bytes:
    """The assignment of a member to which the leader assigned nothing, not even an empty assignment. Kafka
    passes on zero bytes, which a Java consumer cannot read; members of other types may make of zero bytes
    what they like."""
    return _NO_PARTITIONS if group.protocol_type == CONSUMER else b""

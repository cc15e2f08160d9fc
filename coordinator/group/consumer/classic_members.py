"""Members of a consumer group that speak the classic protocol: JoinGroup, SyncGroup, Heartbeat, LeaveGroup.

To them, the group looks like a classic one whose leader never has anything to assign: a JoinGroup is answered
at once, its generation is the member's epoch, and the following SyncGroup returns the server's assignment.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from muster.coordinator.base.step import Step
from muster.coordinator.group.classic import joins, sessions, syncs
from muster.coordinator.group.classic.member import LISTED_MAX
from muster.coordinator.group.config import MigrationPolicy
from muster.coordinator.group.consumer import heartbeats, membership, progress
from muster.coordinator.group.consumer.assignors.assignor import Assignment
from muster.coordinator.group.consumer.embedded import encoded_assignment, owned_partitions
from muster.coordinator.group.consumer.group import CONSUMER, ConsumerGroup
from muster.coordinator.group.consumer.member import ConsumerMember
from muster.coordinator.group.consumer.state import (
    ClassicProtocols,
    MemberState,
    Subscription,
    partitions,
)
from muster.coordinator.group.events import Cause, MemberIdentity, Trigger
from muster.coordinator.group.mismatch import Unsuited, mismatch
from muster.coordinator.group.timers import TimerKind
from muster.protocol.embedded import decode_subscription
from muster.protocol.errors import DecodeError, ErrorCode, KafkaError
from muster.protocol.messages.classic_group import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)

_MEMBER_ID_REQUIRED_FROM: Final = 4  # KIP-394


# --- JoinGroup ----------------------------------------------------------------------------------------------


class Joining(NamedTuple):
    """A JoinGroup that can no longer be refused."""

    member_id: str
    member: ConsumerMember | None
    """None: it is new."""
    old: ConsumerMember | None
    """The static member that it replaces."""
    said: Subscription
    owned: Assignment
    cause: Cause
    rebalance_timeout_ms: int


def joining(
    group: ConsumerGroup, request: JoinGroupRequest, ids: Callable[[], str], step: Step
) -> Joining | None:
    """What a JoinGroup is to do. None if it is answered already: the client is to come back with the member
    id it gets here, which the group does not remember (KIP-394).

    Raises INCONSISTENT_GROUP_PROTOCOL, GROUP_MAX_SIZE_REACHED, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID.
    """
    if group.config.group_consumer_migration_policy is MigrationPolicy.DISABLED:
        raise _inconsistent(
            f"Cannot join the consumer group {group.group_id} with the classic protocol because the group "
            "migration is disabled."
        )
    instance_id, context = request.group_instance_id, step.context
    is_unknown = request.member_id == ""
    member_id = ids() if is_unknown else request.member_id
    membership.require_room(group, member_id, instance_id)
    _require_protocols(group, request, member_id)
    if is_unknown and instance_id is None and context.api_version >= _MEMBER_ID_REQUIRED_FROM:
        step.reply(
            JoinGroupResponse(
                error_code=ErrorCode.MEMBER_ID_REQUIRED,
                protocol_name=None,
                leader="",
                member_id=member_id,
                members=[],
            )
        )
        return None
    member, old = group.members.get(member_id), None
    if instance_id is not None:
        if is_unknown:
            old = group.member_of_instance(instance_id)
        else:
            member = membership.require_instance(group, instance_id, member_id)
    known = old or member
    before = progress.NOBODY_SAID if known is None else group.subscription(known.member_id)
    try:
        said = decode_subscription(request.protocols[0].metadata, LISTED_MAX)
    except DecodeError as error:
        raise _inconsistent(
            "Malformed embedded consumer protocol in subscription deserialization."
        ) from error
    rebalance_timeout_ms, session_timeout_ms = joins.timeouts(request, context)
    identity = MemberIdentity(member_id, context.client_id, context.client_host, instance_id)
    trigger = Trigger.MEMBER_JOINED if known is None else Trigger.MEMBER_REJOINED
    return Joining(
        member_id,
        member,
        old,
        Subscription(
            before.instance_id if instance_id is None else instance_id,
            before.rack_id if said.rack_id is None else said.rack_id,
            context.client_id,
            context.client_host,
            tuple(sorted(set(said.topics))),
            "",
            rebalance_timeout_ms,
            before.server_assignor,
            ClassicProtocols(
                session_timeout_ms, tuple((each.name, each.metadata) for each in request.protocols)
            ),
        ),
        owned_partitions(said, group.topics),
        Cause(Trigger.STATIC_MEMBER_REPLACED if old is not None else trigger, identity, request.reason),
        rebalance_timeout_ms,
    )


def _require_protocols(group: ConsumerGroup, request: JoinGroupRequest, member_id: str) -> None:
    """Raises INCONSISTENT_GROUP_PROTOCOL unless the member offers a protocol that all other classic members
    do."""
    state = group.state
    names = [protocol.name for protocol in request.protocols]
    classic = len(state.classic_members)
    shared = {name for name, count in state.classic_protocols.items() if count == classic}
    if request.protocol_type != CONSUMER or not names or (classic and shared.isdisjoint(names)):
        why = f"Member {member_id}'s protocols are not supported."
        raise Unsuited(why, mismatch(request, CONSUMER, shared))


def join(group: ConsumerGroup, joining: Joining, step: Step) -> None:
    """Add the member, or adopt what it says; it is answered at once."""
    member = admit(group, joining, step)
    progress.advance(group, member, joining.said, joining.owned, joining.cause, step)
    joined(group, member, joining, step)
    group.settle(joining.cause, step)


def admit(group: ConsumerGroup, joining: Joining, step: Step) -> ConsumerMember:
    member = joining.member
    if joining.old is not None:
        member = membership.replace(
            group, joining.old, joining.member_id, joining.cause, step, protocol="classic"
        )
    if member is None:
        member = membership.add(group, joining.member_id, joining.said, joining.cause, step)
    return member


def joined(group: ConsumerGroup, member: ConsumerMember, joining: Joining, step: Step) -> None:
    """Answer the JoinGroup; a SyncGroup must follow within the rebalance timeout."""
    group.heard(member, step)
    member.begin_heartbeats(step.now_ms)
    group.deadlines.cancel(group.timer(TimerKind.JOIN, member.member_id))
    group.deadlines.set(
        group.timer(TimerKind.SYNC, member.member_id), step.now_ms + joining.rebalance_timeout_ms
    )
    step.reads_hard_state = True
    step.reply(joined_response(group.current(member.member_id).epoch, joining))


def joined_response(epoch: int, joining: Joining) -> JoinGroupResponse:
    """An answer without leader and members, so that no client assigns anything."""
    classic = joining.said.classic
    assert classic is not None
    return JoinGroupResponse(
        generation_id=epoch,
        protocol_type=CONSUMER,
        protocol_name=classic.protocols[0][0],
        leader="",
        member_id=joining.member_id,
        members=[],
    )


# --- SyncGroup, Heartbeat -----------------------------------------------------------------------------------


def sync(group: ConsumerGroup, request: SyncGroupRequest, step: Step) -> None:
    """Answer with the member's assignment."""
    syncs.require_protocol(request, step.context)
    member = _speaker(group, request.member_id, request.group_instance_id)
    member_id = member.member_id
    has = group.current(member_id)
    _require_generation(request.generation_id, has.epoch, member_id)
    classic = group.subscription(member_id).classic
    assert classic is not None
    if request.protocol_type is not None and request.protocol_type != CONSUMER:
        raise _inconsistent(
            f"The protocol type {request.protocol_type} from member {member_id} request is not equal to the "
            f"group protocol type {CONSUMER}."
        )
    name, metadata = classic.protocols[0]
    if request.protocol_name is not None and request.protocol_name != name:
        raise _inconsistent(
            f"The protocol name {request.protocol_name} from member {member_id} request is not equal to the "
            f"protocol name {name} returned in the join response."
        )
    if group.state.assignment_epoch > has.epoch and has.state is not MemberState.UNREVOKED_PARTITIONS:
        _expect_join(group, member_id, step.now_ms)
        raise KafkaError(
            ErrorCode.REBALANCE_IN_PROGRESS,
            f"A new rebalance is triggered in group {group.group_id} and member {member_id} should rejoin to "
            "catch up.",
        )
    group.deadlines.cancel(group.timer(TimerKind.SYNC, member_id))
    group.heard(member, step)
    step.reads_hard_state = True
    step.reply(
        SyncGroupResponse(
            protocol_type=request.protocol_type,
            protocol_name=request.protocol_name,
            assignment=encoded_assignment(partitions(has.assigned), metadata, group.topics),
        )
    )


def heartbeat(group: ConsumerGroup, request: HeartbeatRequest, step: Step) -> HeartbeatResponse:
    """Extend the member's session, and tell it whether to rejoin."""
    member = _speaker(group, request.member_id, request.group_instance_id)
    member_id = member.member_id
    has = group.current(member_id)
    _require_generation(request.generation_id, has.epoch, member_id)
    heartbeats.tell_late(group, member, step)
    member.heartbeats += 1
    group.heard(member, step)
    state = group.state
    # If all speak the classic protocol, only a JoinGroup can begin an epoch, and make its target.
    alone = len(state.classic_members) == len(group.members)
    newest = state.epoch if alone else state.assignment_epoch
    rejoin = (
        has.epoch < newest
        or (alone and progress.has_other_topics(group))
        or has.state is MemberState.UNREVOKED_PARTITIONS
        or (has.state is MemberState.UNRELEASED_PARTITIONS and not group.waits_for_others(member_id))
    )
    if not rejoin:
        return sessions.ALIVE
    _expect_join(group, member_id, step.now_ms)
    return sessions.REJOIN


def _expect_join(group: ConsumerGroup, member_id: str, now_ms: int) -> None:
    timer = group.timer(TimerKind.JOIN, member_id)
    if timer not in group.deadlines:
        group.deadlines.set(timer, now_ms + group.subscription(member_id).rebalance_timeout_ms)


def _speaker(group: ConsumerGroup, member_id: str, instance_id: str | None) -> ConsumerMember:
    """The member that a request speaks for. Raises UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID."""
    if instance_id is None:
        member = group.require(member_id)
    elif group.member_of_instance(instance_id) is None:
        raise KafkaError(
            ErrorCode.UNKNOWN_MEMBER_ID,
            f"Member with instance id {instance_id} is not a member of group {group.group_id}.",
        )
    else:
        member = membership.require_instance(group, instance_id, member_id)
    if not group.speaks_classic(member.member_id):
        raise KafkaError(
            ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member.member_id} does not use the classic protocol."
        )
    return member


def _require_generation(generation_id: int, epoch: int, member_id: str) -> None:
    if generation_id != epoch:
        raise KafkaError(
            ErrorCode.ILLEGAL_GENERATION,
            f"The request generation id {generation_id} is not equal to the member epoch {epoch} of member "
            f"{member_id}.",
        )


def _inconsistent(why: str) -> KafkaError:
    return KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, why)


# --- LeaveGroup ---------------------------------------------------------------------------------------------


class Leaving(NamedTuple):
    """Who leaves by a LeaveGroup, why, and the answer to it."""

    members: list[ConsumerMember]
    reason: str | None
    response: LeaveGroupResponse


def leaving(group: ConsumerGroup, request: LeaveGroupRequest, step: Step) -> Leaving:
    """The members that a LeaveGroup names, of either protocol: an admin may name any."""
    identities = sessions.leaving(request, step.context)
    outcomes: list[ErrorCode] = []
    members: dict[str, ConsumerMember] = {}
    reason: str | None = None
    for identity in identities:
        try:
            if identity.group_instance_id is None:
                member = group.require(identity.member_id)
            else:
                instance = group.member_of_instance(identity.group_instance_id)
                named = identity.member_id or (instance.member_id if instance is not None else "")
                member = membership.require_instance(group, identity.group_instance_id, named)
        except KafkaError as refusal:
            outcomes.append(refusal.code)
        else:
            outcomes.append(ErrorCode.NONE)
            members[member.member_id] = member
            reason = reason or identity.reason
    return Leaving(
        list(members.values()),
        reason,
        sessions.left_response(identities, outcomes, step.context),
    )

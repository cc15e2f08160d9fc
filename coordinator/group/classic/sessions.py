"""How the group knows that a member is alive, and how a member leaves: Heartbeat, LeaveGroup, and expiry."""

from __future__ import annotations

from typing import Final

from muster.coordinator.base.step import BrokenInvariant, RequestContext, Step
from muster.coordinator.group.classic import rebalance, refusals
from muster.coordinator.group.classic.group import ClassicGroup
from muster.coordinator.group.classic.member import ClassicMember
from muster.coordinator.group.classic.states import GroupState
from muster.coordinator.group.events import Cause, HeartbeatLate, Trigger
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.classic_group import (
    HeartbeatRequest,
    HeartbeatResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
)

_LEAVES_BATCHED_FROM = 3  # KIP-345
_LATE_TOLD_MAX: Final = 10
"""Maximum reported per member in ten minutes: a member whose usual interval is close to its session timeout
is late every time."""

# Members of an Enum are looked up by Python code, and no request is as frequent as a heartbeat.
_STABLE: Final = GroupState.STABLE
_COMPLETING: Final = GroupState.COMPLETING_REBALANCE
_PREPARING: Final = GroupState.PREPARING_REBALANCE

ALIVE: Final = HeartbeatResponse()
REJOIN: Final = HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS)
"""The answers to heartbeats, always the same objects: nobody modifies an answer to a heartbeat."""


def heartbeat(group: ClassicGroup, request: HeartbeatRequest, step: Step) -> HeartbeatResponse:
    """Extend the member's session and tell it whether to rejoin.

    Raises COORDINATOR_NOT_AVAILABLE, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION. A rebalance
    under way is an answer, not a refusal, since the session is extended.
    """
    member = group.alive().validate(request.member_id, request.group_instance_id)
    # Before the state: a member of an old generation is told so even while the group prepares the next one.
    group.validate_generation(request.generation_id)
    state = group.state
    if state is _STABLE or state is _COMPLETING:
        # Clients start to heartbeat at the JoinGroup response, before they have their assignment.
        response = ALIVE
    elif state is _PREPARING:
        response = REJOIN
    else:
        raise BrokenInvariant(f"{group!r} has {member!r} in {state}")
    silent_ms = step.now_ms - member.session_from_ms
    if member.is_late(silent_ms):
        _tell_late(group, member, silent_ms, step)
    member.heartbeats += 1
    group.heard(member, step)
    group.restart_session(member, step.now_ms)
    return response


def _tell_late(group: ClassicGroup, member: ClassicMember, silent_ms: int, step: Step) -> None:
    usual_ms = member.heartbeat_interval_ms()
    member.was_late(silent_ms, step.now_ms)
    if len(member.late_at_ms) <= _LATE_TOLD_MAX:
        cause = Cause(Trigger.HEARTBEAT, member.identity)
        step.events.append(
            HeartbeatLate(
                *group.stamp(step, cause),
                late_ms=silent_ms,
                heartbeat_interval_ms=usual_ms,
                session_timeout_ms=member.session_timeout_ms,
            )
        )


def leave(group: ClassicGroup, request: LeaveGroupRequest, step: Step) -> None:
    """Remove members: the sender itself, or others at an admin's request.

    Raises COORDINATOR_NOT_AVAILABLE. Other errors are reported per member.
    """
    group.alive()
    identities = leaving(request, step.context)
    outcomes: list[ErrorCode] = []
    cause: Cause | None = None
    for identity in identities:
        try:
            left = _leave(group, identity, step)
        except KafkaError as refusal:
            outcomes.append(refusal.code)
            refusals.tell_fenced(group, "LeaveGroup", identity, refusal, step)
        else:
            outcomes.append(ErrorCode.NONE)
            cause = cause or left
    if cause is not None and group.state is not GroupState.EMPTY:
        # As in Kafka, also when only a pending client left.
        rebalance.prepare_or_complete(group, cause, step)
    step.reply(left_response(identities, outcomes, step.context))


def _leave(group: ClassicGroup, identity: LeaveGroupRequest.MemberIdentity, step: Step) -> Cause:
    """Remove one member. Raises UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID."""
    member_id = identity.member_id
    if member_id == "" and identity.group_instance_id is not None:
        # An admin names a static member by its instance alone.
        member_id = group.holder(identity.group_instance_id)
    elif (pending := group.pending_members.get(member_id)) is not None:
        cause = Cause(Trigger.MEMBER_LEFT, pending.identity, identity.reason)
        rebalance.remove_pending(group, member_id, cause, step)
        return cause
    member = group.validate(member_id, identity.group_instance_id)
    cause = Cause(Trigger.MEMBER_LEFT, member.identity, identity.reason)
    rebalance.remove(group, member, cause, step, requested_by=member.requested_by(step.context))
    return cause


def leaving(request: LeaveGroupRequest, context: RequestContext) -> list[LeaveGroupRequest.MemberIdentity]:
    """The members to remove; before v3, a request names one member."""
    if context.api_version < _LEAVES_BATCHED_FROM:
        return [LeaveGroupRequest.MemberIdentity(member_id=request.member_id)]
    return request.members


def left_response(
    identities: list[LeaveGroupRequest.MemberIdentity], outcomes: list[ErrorCode], context: RequestContext
) -> LeaveGroupResponse:
    """The response, with an outcome for each member; before v3, the one member's is the response's own."""
    if context.api_version < _LEAVES_BATCHED_FROM:
        return LeaveGroupResponse(error_code=outcomes[0])
    return LeaveGroupResponse(
        members=[
            LeaveGroupResponse.MemberResponse(
                member_id=identity.member_id, group_instance_id=identity.group_instance_id, error_code=outcome
            )
            for identity, outcome in zip(identities, outcomes, strict=True)
        ]
    )


def session_timer_fired(group: ClassicGroup, member_id: str, step: Step) -> None:
    """A member, or a client that was issued an id, was not heard from in time."""
    if member_id in group.pending_members:
        forget_pending(group, member_id, None, step)
        return
    member = group.members[member_id]
    if member.waits:
        # It waits for us, not we for it. Its session restarts when it is answered.
        return
    trigger = Trigger.NEW_MEMBER_EXPIRED if member.is_new else Trigger.SESSION_EXPIRED
    cause = Cause(trigger, member.identity)
    rebalance.remove(group, member, cause, step)
    if group.state is GroupState.PREPARING_REBALANCE:
        _complete_without(group, step)
    else:
        rebalance.prepare(group, cause, step)


def forget_pending(group: ClassicGroup, member_id: str, reason: str | None, step: Step) -> None:
    """Stop waiting for a client to come back with the id issued to it."""
    cause = Cause(Trigger.PENDING_MEMBER_EXPIRED, group.pending_members[member_id].identity, reason)
    rebalance.remove_pending(group, member_id, cause, step)
    _complete_without(group, step)


def _complete_without(group: ClassicGroup, step: Step) -> None:
    """One fewer to wait for. As in Kafka, this does not respect the initial delay: an expiry can end it
    early."""
    if group.state is GroupState.PREPARING_REBALANCE and group.all_joined:
        rebalance.complete(group, Cause(Trigger.ALL_JOINED), step)

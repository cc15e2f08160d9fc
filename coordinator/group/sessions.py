"""How the group knows that a member is alive, and how a member goes: Heartbeat, LeaveGroup, and expiry."""

from __future__ import annotations

from typing import Final

from muster.coordinator.group import rebalance
from muster.coordinator.group.classic import Cause, ClassicGroup, GroupState
from muster.coordinator.group.effects import BrokenInvariant, Effects, RequestContext, Ticket
from muster.coordinator.group.events import Trigger
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.classic_group import (
    HeartbeatRequest,
    HeartbeatResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
)

_LEAVES_BATCHED_FROM = 3  # KIP-345

ALIVE: Final = HeartbeatResponse()
REJOIN: Final = HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS)
"""The answers to heartbeats, the same objects every time: nobody changes an answer to a heartbeat."""


def heartbeat(
    group: ClassicGroup, request: HeartbeatRequest, context: RequestContext, now_ms: int
) -> HeartbeatResponse:
    """Prolong the member's session and tell it whether to rejoin.

    Raises COORDINATOR_NOT_AVAILABLE, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION. That the
    group is rebalancing is an answer, not a refusal, since the session is prolonged.
    """
    member = group.alive().validate(request.member_id, request.group_instance_id)
    # Before the state: a member of an old generation hears of it even while the group prepares the next one.
    group.validate_generation(request.generation_id)
    match group.state:
        case GroupState.STABLE | GroupState.COMPLETING_REBALANCE:
            # Clients begin to heartbeat with the JoinGroup response, before they have their assignment.
            response = ALIVE
        case GroupState.PREPARING_REBALANCE:
            response = REJOIN
        case state:
            raise BrokenInvariant(f"{group!r} has {member!r} in {state}")
    group.heard(member, context, now_ms)
    group.restart_session(member, now_ms)
    return response


def leave(
    group: ClassicGroup,
    request: LeaveGroupRequest,
    context: RequestContext,
    *,
    ticket: Ticket,
    now_ms: int,
    out: Effects,
) -> None:
    """Let members go: the sender itself, or others by an admin's wish.

    Raises COORDINATOR_NOT_AVAILABLE. Other errors are the members' own.
    """
    group.alive()
    identities = leaving(request, context)
    outcomes: list[ErrorCode] = []
    cause: Cause | None = None
    for identity in identities:
        try:
            left = _leave(group, identity, now_ms, out)
        except KafkaError as refusal:
            outcomes.append(refusal.code)
        else:
            outcomes.append(ErrorCode.NONE)
            cause = cause or left
    if cause is not None and group.state is not GroupState.EMPTY:
        # As in Kafka, also when the one who left was only waited for.
        rebalance.prepare_or_complete(group, cause, now_ms, out)
    out.reply(ticket, left_response(identities, outcomes, context))


def _leave(
    group: ClassicGroup, identity: LeaveGroupRequest.MemberIdentity, now_ms: int, out: Effects
) -> Cause:
    """Let one member go. Raises UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID."""
    member_id = identity.member_id
    if member_id == "" and identity.group_instance_id is not None:
        # An admin names a static member by its instance alone.
        member_id = group.static_members.get(identity.group_instance_id, "")
    elif (pending := group.pending_members.get(member_id)) is not None:
        cause = Cause(Trigger.MEMBER_LEFT, pending.identity, identity.reason)
        rebalance.remove_pending(group, member_id, cause, now_ms, out)
        return cause
    member = group.validate(member_id, identity.group_instance_id)
    cause = Cause(Trigger.MEMBER_LEFT, member.identity, identity.reason)
    rebalance.remove(group, member, cause, now_ms, out)
    return cause


def leaving(request: LeaveGroupRequest, context: RequestContext) -> list[LeaveGroupRequest.MemberIdentity]:
    """Who is to go; before v3 a request names one member."""
    if context.api_version < _LEAVES_BATCHED_FROM:
        return [LeaveGroupRequest.MemberIdentity(member_id=request.member_id)]
    return request.members


def left_response(
    identities: list[LeaveGroupRequest.MemberIdentity], outcomes: list[ErrorCode], context: RequestContext
) -> LeaveGroupResponse:
    """An outcome for each member; before v3 the one member's is the response's."""
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


def session_timer_fired(group: ClassicGroup, member_id: str, now_ms: int, out: Effects) -> None:
    """A member, or a client that is waited for, was not heard of in time."""
    pending = group.pending_members.get(member_id)
    if pending is not None:
        cause = Cause(Trigger.PENDING_MEMBER_EXPIRED, pending.identity)
        rebalance.remove_pending(group, member_id, cause, now_ms, out)
        _complete_without(group, now_ms, out)
        return
    member = group.members[member_id]
    if member.waits:
        # It waits for us, not we for it. Its session begins anew when it is answered.
        return
    trigger = Trigger.NEW_MEMBER_EXPIRED if member.is_new else Trigger.SESSION_EXPIRED
    cause = Cause(trigger, member.identity)
    rebalance.remove(group, member, cause, now_ms, out)
    if group.state is GroupState.PREPARING_REBALANCE:
        _complete_without(group, now_ms, out)
    else:
        rebalance.prepare(group, cause, now_ms, out)


def _complete_without(group: ClassicGroup, now_ms: int, out: Effects) -> None:
    """One less to wait for. As in Kafka this does not respect the initial delay: an expiry can end it
    early."""
    if group.state is GroupState.PREPARING_REBALANCE and group.all_joined:
        rebalance.complete(group, Cause(Trigger.ALL_JOINED), now_ms, out)

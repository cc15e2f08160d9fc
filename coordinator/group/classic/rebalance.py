"""From one generation to the next: PreparingRebalance, CompletingRebalance, and their timers.

Empty ──first join──> Preparing ──all in, or time is up──> Completing ──leader's SyncGroup──> Stable
                          ^ │ └──nobody left──> Empty          │                                │
                          │ └ nobody rejoined: wait again      │ a member comes, goes, changes  │
                          └────────────────────────────────────┴────────────────────────────────┘
"""

from __future__ import annotations

from typing import Final

from muster.coordinator.base.step import BrokenInvariant, Step
from muster.coordinator.group.classic.group import ClassicGroup, InitialDelay, Rebalance
from muster.coordinator.group.classic.member import ClassicMember
from muster.coordinator.group.classic.states import GroupState
from muster.coordinator.group.events import (
    DROPPED_MAX,
    Cause,
    LeaderChanged,
    MemberIdentity,
    MemberRemoved,
    PendingMemberRemoved,
    ProtocolChosen,
    RebalanceCompleted,
    Trigger,
)
from muster.protocol.errors import ErrorCode, KafkaError

_WAIT_AGAIN_MIN_MS: Final = 1_000
"""Keeps a rebalance timeout of zero, which a client may ask for, from becoming a busy loop."""


def prepare_or_complete(group: ClassicGroup, cause: Cause, step: Step) -> None:
    """Something changed that calls for a rebalance: begin one, or complete the one under way if it was
    waiting only for this."""
    if group.state is GroupState.PREPARING_REBALANCE:
        complete_if_all_joined(group, step)
    else:
        prepare(group, cause, step)


def prepare(group: ClassicGroup, cause: Cause, step: Step) -> None:
    """Begin a rebalance: wait for everybody's JoinGroup."""
    if group.state is GroupState.COMPLETING_REBALANCE:
        _recall_assignments(group, step)
    if group.rebalance is None:
        group.rebalance = Rebalance(cause, step.now_ms, step.now_ms)
    else:
        group.rebalance.end_assignment(step.now_ms)
        group.rebalance.cause = cause
        group.rebalance.restarts += 1
        del group.rebalance.dropped[DROPPED_MAX:]
        group.rebalance.dropped_before = len(group.rebalance.dropped)
    group.pending_syncs.clear()
    group.deadlines.cancel(group.sync_timer)
    first = group.state is GroupState.EMPTY
    delay_ms = group.config.group_initial_rebalance_delay_ms if first else group.rebalance_timeout_ms
    group.become(GroupState.PREPARING_REBALANCE, cause, step, until_ms=step.now_ms + delay_ms)
    if first:
        # A new group: more members are probably starting up (KIP-134).
        group.initial_delay = InitialDelay(delay_ms, max(group.rebalance_timeout_ms - delay_ms, 0))
        group.deadlines.set(group.join_timer, step.now_ms + delay_ms)
    elif group.all_joined:
        complete(group, Cause(Trigger.ALL_JOINED), step)
    else:
        group.deadlines.set(group.join_timer, step.now_ms + delay_ms)


def _recall_assignments(group: ClassicGroup, step: Step) -> None:
    """The generation ends before its assignment arrives: members waiting for it have to rejoin."""
    refusal = KafkaError(ErrorCode.REBALANCE_IN_PROGRESS, f"{group!r} begins a new rebalance")
    for member in group.members.values():
        member.assignment = b""
        if group.answer_sync(member, refusal, step):
            group.restart_session(member, step.now_ms)


def complete_if_all_joined(group: ClassicGroup, step: Step) -> None:
    """End the join phase if nobody is missing, unless an initial delay is still running."""
    if group.all_joined and group.initial_delay is None:
        complete(group, Cause(Trigger.ALL_JOINED), step)


def join_timer_fired(group: ClassicGroup, step: Step) -> None:
    """The initial delay, or the rebalance timeout, is over."""
    delay = group.initial_delay
    if delay is None:
        complete(group, Cause(Trigger.REBALANCE_TIMED_OUT), step)
    elif delay.remaining_ms > 0 and (delay.member_came or group.expects_newcomers(step.now_ms)):
        # Members keep coming: wait again, but no longer than the rebalance timeout in total.
        delay_ms = min(group.config.group_initial_rebalance_delay_ms, delay.remaining_ms)
        group.initial_delay = InitialDelay(delay_ms, max(delay.remaining_ms - delay.delay_ms, 0))
        group.deadlines.set(group.join_timer, step.now_ms + delay_ms)
    else:
        complete(group, Cause(Trigger.INITIAL_DELAY_OVER), step)


def complete(group: ClassicGroup, cause: Cause, step: Step) -> None:
    """End the join phase: remove members that have not rejoined, and begin a new generation."""
    group.deadlines.cancel(group.join_timer)
    group.initial_delay = None
    for member in [member for member in group.members.values() if member.parked_join is None]:
        # A static member keeps its place until its session expires: that is what it is static for (KIP-345).
        if not member.is_static:
            _drop(group, member, cause, step)
    if group.members and not _elect_joined_leader(group):
        # Only static members are left, and none has rejoined. A generation needs a leader, so wait until
        # their sessions expire or they come back.
        group.deadlines.set(
            group.join_timer, step.now_ms + max(group.rebalance_timeout_ms, _WAIT_AGAIN_MIN_MS)
        )
        return
    group.next_generation(step.now_ms)
    if group.members:
        _begin_generation(group, cause, step)
    else:
        _become_empty(group, cause, step)


def _drop(group: ClassicGroup, member: ClassicMember, cause: Cause, step: Step) -> None:
    if group.rebalance is not None:
        group.rebalance.dropped.append(member.identity)
    step.events.append(_removed(group, member, cause, step, None))
    group.remove(member, step.now_ms)


def _elect_joined_leader(group: ClassicGroup) -> bool:
    """Make sure that the leader is a member that has rejoined. Returns whether there is one."""
    if group.leader is not None and group.members[group.leader].parked_join is not None:
        return True
    for member in group.members.values():
        if member.parked_join is not None:
            group.leader = member.member_id
            return True
    return False


def _begin_generation(group: ClassicGroup, cause: Cause, step: Step) -> None:
    _choose_protocol(group, cause, step)
    group.subscribed_topics = group.subscriptions()
    _tell_leader(group, cause, step)
    until_ms = step.now_ms + group.rebalance_timeout_ms
    group.become(GroupState.COMPLETING_REBALANCE, cause, step, until_ms=until_ms)
    if group.rebalance is not None:
        group.rebalance.end_join(step.now_ms)
    for member in group.members.values():
        response = group.joined_response(member, with_members=member.member_id == group.leader)
        group.answer_join(member, response, step)
        member.begin_heartbeats(step.now_ms)
        group.restart_session(member, step.now_ms)
        member.is_new = False
    group.pending_syncs = set(group.members)
    group.deadlines.set(group.sync_timer, until_ms)


def _choose_protocol(group: ClassicGroup, cause: Cause, step: Step) -> None:
    votes, before = group.votes(), group.protocol_name
    group.protocol_name = chosen = group.select_protocol(votes)
    if chosen != before:
        step.events.append(
            ProtocolChosen(
                *group.stamp(step, cause),
                protocol=chosen,
                before=before,
                votes=dict(votes),
            )
        )


def _tell_leader(group: ClassicGroup, cause: Cause, step: Step) -> None:
    if group.leader is not None and group.former_leader not in (None, group.leader):
        leader = Cause(cause.trigger, group.members[group.leader].identity)
        step.events.append(LeaderChanged(*group.stamp(step, leader), old_member_id=group.former_leader))
    group.former_leader = group.leader


def _become_empty(group: ClassicGroup, cause: Cause, step: Step) -> None:
    group.protocol_name = None
    group.subscribed_topics = group.subscriptions()
    group.former_leader = group.partition_counts = None
    group.ownership = {}
    group.become(GroupState.EMPTY, cause, step)
    group.store(step)
    finished(group, step)


def finished(group: ClassicGroup, step: Step) -> None:
    """Report the rebalance that has just led to Stable or Empty."""
    rebalance, group.rebalance = group.rebalance, None
    if rebalance is None:
        raise BrokenInvariant(f"{group!r} was not rebalancing")
    last_joins, group.last_joins = group.last_joins, ()
    end = rebalance.end_assignment if group.members else rebalance.end_join
    end(step.now_ms)
    step.events.append(
        RebalanceCompleted(
            step.now_ms,
            group.group_id,
            group.generation_id,
            *rebalance.cause,
            started_ms=rebalance.started_ms,
            join_ms=rebalance.join_ms,
            assignment_ms=rebalance.assignment_ms,
            restarts=rebalance.restarts,
            members=len(group.members),
            dropped=tuple(rebalance.dropped),
            last_joined=last_joins[-1][0] if last_joins else None,
            joins=tuple(
                (identity, at_ms - rebalance.started_ms)
                for identity, at_ms in reversed(last_joins)
                if identity.member_id in group.members
            ),
        )
    )


def sync_timer_fired(group: ClassicGroup, step: Step) -> None:
    """Remove members that did not send SyncGroup within the rebalance timeout, static ones too, and
    rebalance. In a Stable group, this removes a member that heartbeats but never fetched its assignment."""
    missing = [member for member in group.members.values() if member.member_id in group.pending_syncs]
    cause = Cause(Trigger.SYNC_TIMED_OUT, missing[0].identity)
    for member in missing:
        remove(group, member, cause, step)
    prepare(group, cause, step)


def remove(
    group: ClassicGroup,
    member: ClassicMember,
    cause: Cause,
    step: Step,
    *,
    requested_by: MemberIdentity | None = None,
) -> None:
    """Remove a member; the caller sees to what that means for the group."""
    # Without the member id, which is void now: the client is to come back as a new member.
    group.refuse_join(member, ErrorCode.UNKNOWN_MEMBER_ID, step, member_id="")
    # Kafka forgets this request, and the client finds out by its request timeout.
    refusal = KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"{member.member_id!r} was removed: {cause.trigger}")
    group.answer_sync(member, refusal, step)
    step.events.append(_removed(group, member, cause, step, requested_by))
    group.remove(member, step.now_ms)


def remove_pending(group: ClassicGroup, member_id: str, cause: Cause, step: Step) -> None:
    """Stop waiting for a client that was issued a member id."""
    pending = group.pending_members.pop(member_id)
    group.deadlines.cancel(group.session_timer(member_id))
    step.events.append(
        PendingMemberRemoved(*group.stamp(step, cause), waited_ms=step.now_ms - pending.issued_ms)
    )


def _removed(
    group: ClassicGroup,
    member: ClassicMember,
    cause: Cause,
    step: Step,
    requested_by: MemberIdentity | None,
) -> MemberRemoved:
    disconnected_at_ms = member.disconnected_at_ms
    return MemberRemoved(
        step.now_ms,
        group.group_id,
        group.generation_id,
        cause.trigger,
        member.identity,
        cause.reason,
        silent_ms=step.now_ms - member.heard_ms,
        connected=member.connection_id is not None,
        disconnected_ms=None if disconnected_at_ms is None else step.now_ms - disconnected_at_ms,
        late=member.late_count(step.now_ms),
        heartbeat_interval_ms=member.heartbeat_interval_ms(),
        session_timeout_ms=member.session_timeout_ms,
        requested_by=requested_by,
    )

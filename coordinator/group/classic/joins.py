"""JoinGroup: how a client becomes a member, and how a member announces a change."""

from __future__ import annotations

from typing import Final

from muster.coordinator.base.step import BrokenInvariant, RequestContext, Step
from muster.coordinator.group.classic import ownership, rebalance, refusals, subscriptions
from muster.coordinator.group.classic.group import CONSUMER, ClassicGroup, refused_join
from muster.coordinator.group.classic.member import ClassicMember, Protocols
from muster.coordinator.group.classic.states import GroupState
from muster.coordinator.group.config import NEW_MEMBER_JOIN_TIMEOUT_MS
from muster.coordinator.group.events import (
    Cause,
    MemberAdded,
    MemberIdentity,
    MemberIdIssued,
    MemberRejoined,
    MemberReplaced,
    MetadataChanged,
    TopicsGrown,
    Trigger,
)
from muster.coordinator.group.group import PendingMember
from muster.coordinator.journal.entries import REJOINS_TOLD_MAX
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.classic_group import JoinGroupRequest

_MEMBER_ID_REQUIRED_FROM = 4  # KIP-394
SKIP_ASSIGNMENT_FROM: Final = 9  # KIP-814


def join(group: ClassicGroup, request: JoinGroupRequest, new_member_id: str, step: Step) -> None:
    """Answer a JoinGroup, or park it until the rebalance completes. `new_member_id` is for a client that has
    none.

    Raises COORDINATOR_NOT_AVAILABLE, GROUP_MAX_SIZE_REACHED, INCONSISTENT_GROUP_PROTOCOL, UNKNOWN_MEMBER_ID,
    FENCED_INSTANCE_ID.
    """
    group.alive()
    if not _admits(group, request.member_id):
        _refuse_full(group, request, step)
    elif not group.supports(request.protocol_type, [protocol.name for protocol in request.protocols]):
        refusals.tell_join_refused(group, request, ErrorCode.INCONSISTENT_GROUP_PROTOCOL, step)
        raise KafkaError(
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
            f"{group!r} of type {group.protocol_type!r} has no protocol in common with "
            f"{request.protocol_type!r} {[protocol.name for protocol in request.protocols]}",
        )
    elif request.member_id != "":
        _join_known(group, request, step)
    elif request.group_instance_id in group.static_members:
        _replace(group, request, new_member_id, step)
    elif request.group_instance_id is None and step.context.api_version >= _MEMBER_ID_REQUIRED_FROM:
        _issue_member_id(group, request, new_member_id, step)
    else:
        _add(group, request, new_member_id, step)


# --- the gate -----------------------------------------------------------------------------------------------


def _admits(group: ClassicGroup, member_id: str) -> bool:
    """Whether group.max.size leaves room (KIP-389). Issued ids that have not come back yet do not count."""
    member = group.members.get(member_id)
    size_max = group.config.group_max_size
    match group.state:
        case GroupState.PREPARING_REBALANCE:
            # Count who has joined, not who is a member: in a group that is too large (the limit was lowered),
            # the last to rejoin have to go.
            return (member is not None and member.parked_join is not None) or group.joins_parked < size_max
        case _:
            return member is not None or len(group.members) < size_max


def _refuse_full(group: ClassicGroup, request: JoinGroupRequest, step: Step) -> None:
    """Answer GROUP_MAX_SIZE_REACHED; the sender is no longer a member."""
    member_id = request.member_id
    member = group.members.get(member_id)
    if member is not None:
        rebalance.remove(group, member, Cause(Trigger.GROUP_FULL), step)
    elif member_id in group.pending_members:
        pending = group.pending_members[member_id]
        rebalance.remove_pending(group, member_id, Cause(Trigger.GROUP_FULL, pending.identity), step)
    else:
        refusals.tell_join_refused(group, request, ErrorCode.GROUP_MAX_SIZE_REACHED, step)
    step.reply(refused_join(ErrorCode.GROUP_MAX_SIZE_REACHED, ""))


# --- new members --------------------------------------------------------------------------------------------


def _issue_member_id(group: ClassicGroup, request: JoinGroupRequest, member_id: str, step: Step) -> None:
    """Have the client come back with its id (KIP-394): a client that gives up before it knows its id would
    otherwise leave a member behind."""
    identity = MemberIdentity(member_id, step.context.client_id, step.context.client_host)
    group.pending_members[member_id] = PendingMember(identity, step.now_ms)
    expires_ms = step.now_ms + request.session_timeout_ms
    group.deadlines.set(group.session_timer(member_id), expires_ms)
    cause = Cause(Trigger.MEMBER_ID_ISSUED, identity, request.reason)
    step.events.append(
        MemberIdIssued(
            *group.stamp(step, cause),
            expires_ms=expires_ms,
            former_member_id=group.connections.former_member_id(group.group_id, step.context.connection_id),
        )
    )
    step.reply(refused_join(ErrorCode.MEMBER_ID_REQUIRED, member_id))


def _add(group: ClassicGroup, request: JoinGroupRequest, member_id: str, step: Step) -> None:
    """Add a new member and rebalance."""
    if not group.members:
        group.protocol_type = request.protocol_type
    rebalance_timeout_ms, session_timeout_ms = timeouts(request, step.context)
    member = ClassicMember(
        member_id=member_id,
        group_instance_id=request.group_instance_id,
        client_id=step.context.client_id,
        client_host=step.context.client_host,
        rebalance_timeout_ms=rebalance_timeout_ms,
        session_timeout_ms=session_timeout_ms,
        protocols=_protocols(request),
        heard_ms=step.now_ms,
    )
    member.is_new = True
    former_member_id = group.connections.former_member_id(group.group_id, step.context.connection_id)
    group.add(member)
    group.heard(member, step)
    if group.initial_delay is not None:
        group.initial_delay = group.initial_delay._replace(member_came=True)
    cause = Cause(Trigger.MEMBER_JOINED, member.identity, request.reason)
    step.events.append(
        MemberAdded(
            *group.stamp(step, cause),
            protocols=subscriptions.protocol_names(member.protocols),
            topics=subscriptions.topics(member.protocols) if group.protocol_type == CONSUMER else None,
            session_timeout_ms=session_timeout_ms,
            rebalance_timeout_ms=rebalance_timeout_ms,
            former_member_id=former_member_id,
        )
    )
    # It has no id to heartbeat with yet, so its session cannot bound its stay.
    group.deadlines.set(group.session_timer(member_id), step.now_ms + NEW_MEMBER_JOIN_TIMEOUT_MS)
    _park_and_rebalance(group, member, cause, step)


# --- known members ------------------------------------------------------------------------------------------


def _join_known(group: ClassicGroup, request: JoinGroupRequest, step: Step) -> None:
    member_id = request.member_id
    if member_id in group.pending_members:
        if request.group_instance_id is not None:
            # Only dynamic members are issued ids; a static one is added at once. Kafka fails here too, and
            # does not repeat the id.
            step.reply(refused_join(ErrorCode.UNKNOWN_SERVER_ERROR, ""))
            return
        _add(group, request, member_id, step)
        return
    member = group.validate(member_id, request.group_instance_id)
    protocols = _protocols(request)
    changed = member.protocols != protocols
    match group.state:
        case GroupState.PREPARING_REBALANCE:
            trigger = Trigger.MEMBER_REJOINED
        case GroupState.COMPLETING_REBALANCE if changed:
            trigger = Trigger.METADATA_CHANGED
        case GroupState.COMPLETING_REBALANCE:
            # Our JoinGroup response was probably lost: repeat it.
            group.heard(member, step)
            is_leader = member_id == group.leader
            step.reply(group.joined_response(member, with_members=is_leader))
            return
        case GroupState.STABLE if member_id == group.leader:
            # Always a rebalance: the leader may know of a change that no metadata shows, such as new
            # partitions.
            trigger = Trigger.METADATA_CHANGED if changed else Trigger.LEADER_REJOINED
        case GroupState.STABLE if changed:
            trigger = Trigger.METADATA_CHANGED
        case GroupState.STABLE:
            # Nothing new: back into the current generation, to get its assignment by SyncGroup.
            group.heard(member, step)
            step.reply(group.joined_response(member, with_members=False))
            return
        case state:
            raise BrokenInvariant(f"{group!r} has {member!r} in {state}")
    cause = Cause(trigger, member.identity, request.reason)
    _tell_rejoined(group, member, protocols, cause, step)
    group.heard(member, step)
    group.update(member, protocols, *timeouts(request, step.context))
    _park_and_rebalance(group, member, cause, step)


def _tell_rejoined(
    group: ClassicGroup, member: ClassicMember, protocols: Protocols, cause: Cause, step: Step
) -> None:
    """Report what has changed about a known member, before the group adopts it."""
    leads = group.state is GroupState.STABLE and member.member_id == group.leader
    if leads and not _gave_up(group, member, protocols):
        tell_grown(group, cause, step)
    _tell_metadata(group, member, protocols, cause, step)
    rebalancing = group.rebalance if group.state is GroupState.PREPARING_REBALANCE else None
    if rebalancing is not None and member.parked_join is None and len(group.members) <= REJOINS_TOLD_MAX:
        after_ms = step.now_ms - rebalancing.started_ms
        step.events.append(MemberRejoined(*group.stamp(step, cause), after_ms=after_ms))


def _tell_metadata(
    group: ClassicGroup, member: ClassicMember, protocols: Protocols, cause: Cause, step: Step
) -> None:
    before, consumers = member.protocols, group.protocol_type == CONSUMER
    if before == protocols:
        return
    if cause.trigger is not Trigger.METADATA_CHANGED:
        # Skip what is due to the rebalance. That a loaded member offers more than was stored is no news.
        after = protocols if member.protocols_known else _of_protocols(protocols, before)
        if subscriptions.subscribes_alike(before, after, consumers=consumers):
            return
    changed = subscriptions.difference(before, protocols, consumers=consumers)
    if not member.protocols_known:
        changed = changed._replace(protocols_before=())
    step.events.append(MetadataChanged(*group.stamp(step, cause), **changed._asdict()))


def _of_protocols(protocols: Protocols, known: Protocols) -> Protocols:
    names = subscriptions.protocol_names(known)
    return tuple(each for each in protocols if each[0] in names)


def _gave_up(group: ClassicGroup, member: ClassicMember, protocols: Protocols) -> bool:
    """Whether the member rejoins because the last assignment withheld partitions that it had to give up
    (KIP-429), whatever has grown."""
    if group.protocol_type != CONSUMER:
        return False
    there = group.topics.partitions or {}
    gone = subscriptions.given_up(member.protocols, protocols)
    return ownership.withholds(group.ownership, {each for each in gone if each[1] < there.get(each[0], 0)})


def tell_grown(
    group: ClassicGroup, cause: Cause, step: Step, *, assigned: ownership.Ownership | None = None
) -> None:
    """Report, once, the topics of the last assignment whose partition counts have changed; of those that have
    changed since the leader computed what it `assigned`, nothing yet."""
    if group.partition_counts is None or group.topics.partitions is None:
        return
    grown = subscriptions.grown(group.partition_counts, group.topics.partitions)
    if grown and assigned is not None:
        unseen = ownership.unseen(assigned, grown)
        grown = [each for each in grown if each[0] not in unseen]
    if grown:
        group.partition_counts = {**group.partition_counts, **{name: count for name, _, count in grown}}
        step.events.append(TopicsGrown(*group.stamp(step, cause), topics=tuple(grown)))


def _replace(group: ClassicGroup, request: JoinGroupRequest, member_id: str, step: Step) -> None:
    """A static member returns without its member id: a restarted process. It replaces its former self,
    without a rebalance if possible (KIP-345)."""
    assert request.group_instance_id is not None
    member = group.members[group.static_members[request.group_instance_id]]
    old, old_silent_ms, old_leader = member.identity, step.now_ms - member.heard_ms, group.leader
    old_connected = member.connection_id not in (None, step.context.connection_id)
    fenced = KafkaError(
        ErrorCode.FENCED_INSTANCE_ID, f"instance {request.group_instance_id!r} belongs to {member_id!r} now"
    )
    group.refuse_join(member, fenced.code, step)
    group.answer_sync(member, fenced, step)
    identity = MemberIdentity(
        member_id, step.context.client_id, step.context.client_host, request.group_instance_id
    )
    cause = Cause(Trigger.STATIC_MEMBER_REPLACED, identity, request.reason)
    step.events.append(
        MemberReplaced(
            *group.stamp(step, cause),
            old_member_id=old.member_id,
            old_client_host=old.client_host,
            old_silent_ms=old_silent_ms,
            old_connected=old_connected,
        )
    )
    protocols = _protocols(request)
    _tell_metadata(group, member, protocols, cause, step)
    group.replace(member, identity)
    group.update(member, protocols, *timeouts(request, step.context))
    group.heard(member, step)
    member.begin_anew(step.now_ms)
    group.restart_session(member, step.now_ms)
    match group.state:
        case GroupState.STABLE if group.select_protocol(group.votes()) == group.protocol_name:
            # The assignment stands, even if the subscription has changed.
            group.store(step)
            if step.context.api_version >= SKIP_ASSIGNMENT_FROM:
                # A leader must go on watching topics for its group, but must not assign (KIP-814).
                leads = member_id == group.leader
                response = group.joined_response(member, with_members=leads, skip_assignment=leads)
            else:
                # A leader that cannot be told to skip the assignment is told that its former self leads.
                response = group.joined_response(member, with_members=False, leader=old_leader)
            step.reply(response)
        case GroupState.STABLE | GroupState.COMPLETING_REBALANCE | GroupState.PREPARING_REBALANCE:
            # In CompletingRebalance the leader may be assigning to the old id at this moment.
            _park_and_rebalance(group, member, cause, step)
        case state:
            raise BrokenInvariant(f"{group!r} has {member!r} in {state}")


def _park_and_rebalance(group: ClassicGroup, member: ClassicMember, cause: Cause, step: Step) -> None:
    group.park_join(member, step)
    rebalance.prepare_or_complete(group, cause, step)


def _protocols(request: JoinGroupRequest) -> Protocols:
    return tuple((protocol.name, protocol.metadata) for protocol in request.protocols)


def timeouts(request: JoinGroupRequest, context: RequestContext) -> tuple[int, int]:
    """The rebalance and the session timeout. JoinGroup v0 has one for both; later versions may ask for no
    rebalance timeout at all, also by a negative number, such as the schema's default."""
    if context.api_version == 0:
        return request.session_timeout_ms, request.session_timeout_ms
    return max(request.rebalance_timeout_ms, 0), request.session_timeout_ms

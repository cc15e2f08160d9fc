"""How members of a consumer group join, leave, and stay away for a while; and what that does to its epoch."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from muster.coordinator.base.step import Step
from muster.coordinator.group.consumer import records, targets, telling
from muster.coordinator.group.consumer.assignors.assignor import Assignment
from muster.coordinator.group.consumer.group import ConsumerGroup, identity
from muster.coordinator.group.consumer.member import ConsumerMember
from muster.coordinator.group.consumer.state import (
    JOINING,
    LEFT_FOR_A_WHILE,
    NOTHING_HELD,
    Current,
    MemberState,
    Subscription,
)
from muster.coordinator.group.events import (
    Cause,
    MemberAdded,
    MemberRemoved,
    MemberReplaced,
    Trigger,
)
from muster.protocol.errors import ErrorCode, KafkaError

_TOO_SLOW: Final = frozenset(
    {Trigger.REVOCATION_TIMED_OUT, Trigger.REBALANCE_TIMED_OUT, Trigger.SYNC_TIMED_OUT}
)
_REJOIN = "The member must abandon all its partitions and rejoin."


# --- who may ----------------------------------------------------------------------------------------------


def require_room(group: ConsumerGroup | None, member_id: str, instance_id: str | None) -> None:
    """Raises GROUP_MAX_SIZE_REACHED for a member that the group does not have yet."""
    if group is None or (instance_id is not None and instance_id in group.state.instances):
        return
    size_max = group.config.group_consumer_max_size
    if len(group.members) >= size_max and member_id not in group.members:
        raise KafkaError(
            ErrorCode.GROUP_MAX_SIZE_REACHED,
            f"The consumer group has reached its maximum capacity of {size_max} members.",
        )


def require_epoch(has: Current, epoch: int, owned: Assignment | None) -> None:
    """Accept a member's present epoch, or the previous one, which it sends if it missed the last answer.
    Raises FENCED_MEMBER_EPOCH for others; also for a member in a state written by a later version, unless it
    owns nothing."""
    if has.state is MemberState.UNKNOWN and (owned is None or owned):
        raise KafkaError(
            ErrorCode.FENCED_MEMBER_EPOCH,
            f"The consumer group member is in a unknown state. {_REJOIN}",
        )
    if epoch == JOINING:
        return
    if epoch > has.epoch:
        raise KafkaError(
            ErrorCode.FENCED_MEMBER_EPOCH,
            f"The consumer group member has a greater member epoch ({epoch}) than the one known by the group "
            f"coordinator ({has.epoch}). {_REJOIN}",
        )
    if epoch < has.epoch and not (epoch == has.previous_epoch and _is_part(owned, has)):
        raise KafkaError(
            ErrorCode.FENCED_MEMBER_EPOCH,
            f"The consumer group member has a smaller member epoch ({epoch}) than the one known by the group "
            f"coordinator ({has.epoch}). {_REJOIN}",
        )


def _is_part(owned: Assignment | None, has: Current) -> bool:
    return owned is not None and all(
        partitions <= has.assigned.get(topic_id, {}).keys() for topic_id, partitions in owned.items()
    )


def require_instance(group: ConsumerGroup, instance_id: str, member_id: str) -> ConsumerMember:
    """The static member that a request speaks for. Raises UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID."""
    member = group.member_of_instance(instance_id)
    if member is None:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
    if member.member_id != member_id:
        raise KafkaError(
            ErrorCode.FENCED_INSTANCE_ID,
            f"Static member {member_id} with instance id {instance_id} was fenced by member "
            f"{member.member_id}.",
        )
    return member


# --- joining ------------------------------------------------------------------------------------------------


def add(group: ConsumerGroup, member_id: str, said: Subscription, cause: Cause, step: Step) -> ConsumerMember:
    """Add a member whose record is about to be written."""
    member = ConsumerMember(group.group_id, identity(member_id, said), 0, step.now_ms)
    group.members[member_id] = member
    former_id = group.connections.former_member_id(group.group_id, step.context.connection_id)
    classic = said.classic
    step.events.append(
        MemberAdded(
            *group.stamp(step, cause),
            protocols=() if classic is None else tuple(name for name, _ in classic.protocols),
            topics=said.topics,
            session_timeout_ms=group.configs.of(group.group_id).consumer_session_timeout_ms
            if classic is None
            else classic.session_timeout_ms,
            rebalance_timeout_ms=said.rebalance_timeout_ms,
            former_member_id=former_id,
        )
    )
    return member


def replace(
    group: ConsumerGroup,
    old: ConsumerMember,
    member_id: str,
    cause: Cause,
    step: Step,
    *,
    protocol: str = "consumer",
) -> ConsumerMember:
    """A static member comes back under another id, and takes over what its former self had (KIP-345)."""
    state, group_id = group.state, group.group_id
    said, target = state.subscriptions[old.member_id], state.target(old.member_id)
    has = group.current(old.member_id)._replace(epoch=0, previous_epoch=0)
    _forget_records(group, old.member_id, step)
    group.cancel_timers(old.member_id)
    connected = old.connection_id is not None and old.connection_id != step.context.connection_id
    silent_ms = step.now_ms - old.heard_ms
    group.connections.forget(old)
    del group.members[old.member_id]
    member = ConsumerMember(group_id, identity(member_id, said), 0, step.now_ms)
    group.members[member_id] = member
    group.emit(records.subscription(group_id, member_id, said), step)
    group.emit(records.target(group_id, member_id, target), step)
    group.emit(records.current(group_id, member_id, has), step)
    step.events.append(
        MemberReplaced(
            *group.stamp(step, cause),
            old_member_id=old.member_id,
            old_client_host=old.identity.client_host,
            old_silent_ms=silent_ms,
            old_connected=connected,
            protocol=protocol,
        )
    )
    return member


# --- leaving ------------------------------------------------------------------------------------------------


def leave_for_a_while(group: ConsumerGroup, member: ConsumerMember, step: Step) -> None:
    """A static member keeps what it has while it is away, until its session expires; what it was revoking
    counts as revoked."""
    has = group.current(member.member_id)
    kept = {topic_id: dict.fromkeys(partitions, 0) for topic_id, partitions in has.assigned.items()}
    away = has._replace(epoch=LEFT_FOR_A_WHILE, assigned=kept, revoking=NOTHING_HELD)
    group.emit(records.current(group.group_id, member.member_id, away), step)
    telling.progress(group, member, has, away, step)


def remove(
    group: ConsumerGroup,
    members: Collection[ConsumerMember],
    cause: Cause,
    step: Step,
) -> None:
    """Remove members, which frees their partitions; one new epoch for all of them."""
    if not members:
        return
    for member in members:
        step.events.append(removed(group, member, cause, step))
        group.departed[member.member_id] = group.state.target(member.member_id)
        _forget_records(group, member.member_id, step)
        forget(group, member, step.now_ms)
    state, group_id = group.state, group.group_id
    for regex in [each for each in state.regexes if each not in state.regex_users]:
        group.emit(records.regex_tombstone(group_id, regex), step)
    group.bump(cause, targets.metadata_hash(state.subscribed_topics(), group.topics), step)
    if group.course is not None and cause.trigger in _TOO_SLOW:
        group.course.dropped += [member.identity for member in members]
    if not group.members:
        group.departed.clear()
        # A group in its first epoch had no record left before it got this one.
        group.emit(records.target_epoch(group_id, group.state.epoch, 0), step)


def forget(group: ConsumerGroup, member: ConsumerMember, now_ms: int) -> None:
    """The soft-state part of a removal."""
    group.cancel_timers(member.member_id)
    del group.members[member.member_id]
    group.connections.removed(group.group_id, member, now_ms)


def _forget_records(group: ConsumerGroup, member_id: str, step: Step) -> None:
    group_id = group.group_id
    group.emit(records.current_tombstone(group_id, member_id), step)
    group.emit(records.target_tombstone(group_id, member_id), step)
    group.emit(records.subscription_tombstone(group_id, member_id), step)


def removed(
    group: ConsumerGroup,
    member: ConsumerMember,
    cause: Cause,
    step: Step,
) -> MemberRemoved:
    disconnected_ms = member.disconnected_at_ms
    return MemberRemoved(
        *group.stamp(step, Cause(cause.trigger, member.identity, cause.reason)),
        silent_ms=step.now_ms - member.heard_ms,
        connected=member.connection_id is not None,
        disconnected_ms=None if disconnected_ms is None else step.now_ms - disconnected_ms,
        late=member.late_count(step.now_ms),
        heartbeat_interval_ms=member.heartbeat_interval_ms(),
        session_timeout_ms=member.session_timeout_ms,
        requested_by=member.requested_by(step.context) if cause.trigger is Trigger.MEMBER_LEFT else None,
        away=group.current(member.member_id).epoch == LEFT_FOR_A_WHILE,
    )

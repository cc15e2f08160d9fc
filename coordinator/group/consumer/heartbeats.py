"""ConsumerGroupHeartbeat: a member reports its changes, and learns what has changed for it."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from typing import Final

from muster.coordinator.base.step import RequestContext, Step
from muster.coordinator.group.config import GroupConfig
from muster.coordinator.group.consumer import progress
from muster.coordinator.group.consumer.assignors.assignor import Assignment, assignment_of
from muster.coordinator.group.consumer.group import ConsumerGroup
from muster.coordinator.group.consumer.member import ConsumerMember
from muster.coordinator.group.consumer.reconcile import may_own_any
from muster.coordinator.group.consumer.state import (
    JOINING,
    LEFT,
    LEFT_FOR_A_WHILE,
    Current,
    Held,
    MemberState,
    Subscription,
)
from muster.coordinator.group.events import Cause, HeartbeatLate, Trigger
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.consumer_group import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)

_Assigned = ConsumerGroupHeartbeatResponse.Assignment
_MEMBER_IDS_FROM: Final = 1
"""The first version in which members generate their own ids (KIP-1082)."""
_LATE_TOLD_MAX: Final = 10
_TRIMMED: Final = "".join(map(chr, range(0x21)))
"""What Kafka takes for blank: control characters and the space, as Java's `trim` does."""


def require_valid(request: ConsumerGroupHeartbeatRequest, version: int, config: GroupConfig) -> None:
    """Raises INVALID_REQUEST, UNSUPPORTED_ASSIGNOR."""
    epoch = request.member_epoch
    if (version >= _MEMBER_IDS_FROM or epoch > 0 or epoch == LEFT) and _is_blank(request.member_id):
        raise _invalid("MemberId can't be empty.")
    if _is_blank(request.group_id):
        raise _invalid("GroupId can't be empty.")
    if _is_blank(request.instance_id):
        raise _invalid("InstanceId can't be empty.")
    if _is_blank(request.rack_id):
        raise _invalid("RackId can't be empty.")
    if epoch == JOINING:
        if request.rebalance_timeout_ms == -1:
            raise _invalid("RebalanceTimeoutMs must be provided in first request.")
        if request.topic_partitions is None or request.topic_partitions:
            raise _invalid("TopicPartitions must be empty when (re-)joining.")
        if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
            raise _invalid(
                "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining."
            )
    elif epoch == LEFT_FOR_A_WHILE:
        if request.instance_id is None:
            raise _invalid("InstanceId can't be null.")
    elif epoch < LEFT_FOR_A_WHILE:
        raise _invalid("MemberEpoch is invalid.")
    assignor = request.server_assignor
    if assignor is not None and assignor not in config.group_consumer_assignors:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {assignor} is not supported. Supported assignors: "
            f"{', '.join(config.group_consumer_assignors)}.",
        )


def _is_blank(text: str | None) -> bool:
    return text is not None and not text.strip(_TRIMMED)


def _invalid(why: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, why)


def owned(topics: Iterable[ConsumerGroupHeartbeatRequest.TopicPartitions] | None) -> Assignment | None:
    """What a member says it owns; None: it does not say."""
    return None if topics is None else assignment_of((each.topic_id, each.partitions) for each in topics)


def said_now(
    before: Subscription, request: ConsumerGroupHeartbeatRequest, client_id: str, client_host: str
) -> Subscription:
    """What the member says about itself from now on; null means "as before"."""
    names = request.subscribed_topic_names
    return Subscription(
        before.instance_id if request.instance_id is None else request.instance_id,
        before.rack_id if request.rack_id is None else request.rack_id,
        client_id,
        client_host,
        before.topics if names is None else tuple(sorted(set(names))),
        before.regex if request.subscribed_topic_regex is None else request.subscribed_topic_regex,
        before.rebalance_timeout_ms if request.rebalance_timeout_ms == -1 else request.rebalance_timeout_ms,
        before.server_assignor if request.server_assignor is None else request.server_assignor,
    )


def says_nothing(
    request: ConsumerGroupHeartbeatRequest, has: Current, before: Subscription, context: RequestContext
) -> bool:
    """Whether a heartbeat says only what the group knows: then its outcome need not be worked out."""
    return (
        request.member_epoch == has.epoch
        and request.subscribed_topic_names is None
        and request.subscribed_topic_regex is None
        and request.server_assignor is None
        and request.rack_id is None
        and request.rebalance_timeout_ms == -1
        and before.classic is None
        and (before.client_id, before.client_host) == (context.client_id, context.client_host)
    )


def sign_of_life(
    group: ConsumerGroup, member: ConsumerMember, epoch: int, step: Step
) -> ConsumerGroupHeartbeatResponse:
    """The answer to a heartbeat without news on either side: what `beat` would answer."""
    tell_late(group, member, step)
    member.heartbeats += 1
    group.heard(member, step)
    if group.course is not None:
        group.settle(Cause(Trigger.HEARTBEAT, member.identity), step)
    return unchanged(member, epoch, group.configs.of(group.group_id).consumer_heartbeat_interval_ms)


def beat_while_full(
    group: ConsumerGroup,
    member: ConsumerMember,
    request: ConsumerGroupHeartbeatRequest,
    owned: Assignment | None,
    full: Exception,
    step: Step,
) -> ConsumerGroupHeartbeatResponse:
    """While nothing can be written, a heartbeat is a sign of life, and what the group has for the member
    waits. Raises `full` if the member has news, which it might not repeat; it is heard all the same. Where it
    connects from is no news: that comes with each heartbeat."""
    before, has = group.subscription(member.member_id), group.current(member.member_id)
    revoked = has.state is MemberState.UNREVOKED_PARTITIONS and not may_own_any(owned, has.revoking)
    if revoked or said_now(before, request, before.client_id, before.client_host) != before:
        group.heard(member, step)
        raise full
    answer = sign_of_life(group, member, has.epoch, step)
    return _answer(member, has, answer.heartbeat_interval_ms) if _says_all(request, owned) else answer


def beat(
    group: ConsumerGroup,
    member: ConsumerMember,
    request: ConsumerGroupHeartbeatRequest,
    said: Subscription,
    owned: Assignment | None,
    cause: Cause,
    step: Step,
) -> ConsumerGroupHeartbeatResponse:
    """The part of a heartbeat that can no longer be refused: what the member said, the group's epoch and
    target, and the member's next step towards it."""
    member_id = member.member_id
    tell_late(group, member, step)
    before = group.current(member_id)
    progress.advance(group, member, said, owned, cause, step)
    after = group.current(member_id)
    member.heartbeats += 1
    group.heard(member, step)
    group.settle(cause, step)
    tell = request.member_epoch == JOINING or _says_all(request, owned) or after.assigned != before.assigned
    interval_ms = group.configs.of(group.group_id).consumer_heartbeat_interval_ms
    return _answer(member, after, interval_ms) if tell else unchanged(member, after.epoch, interval_ms)


def _says_all(request: ConsumerGroupHeartbeatRequest, owned: Assignment | None) -> bool:
    """Whether a member repeats everything, as after a failure: then it is told everything, too."""
    return (
        request.rebalance_timeout_ms != -1
        and (request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None)
        and owned is not None
    )


def _answer(member: ConsumerMember, has: Current, interval_ms: int) -> ConsumerGroupHeartbeatResponse:
    """The answer to a member that is told its assignment."""
    return ConsumerGroupHeartbeatResponse(
        member_id=member.member_id,
        member_epoch=has.epoch,
        heartbeat_interval_ms=interval_ms,
        assignment=assigned(has.assigned),
    )


def unchanged(member: ConsumerMember, epoch: int, interval_ms: int) -> ConsumerGroupHeartbeatResponse:
    """The answer to a member whose assignment is unchanged; nobody modifies an answer."""
    answer = member.unchanged
    if answer is None or (answer.member_epoch, answer.heartbeat_interval_ms) != (epoch, interval_ms):
        answer = member.unchanged = ConsumerGroupHeartbeatResponse(
            member_id=member.member_id, member_epoch=epoch, heartbeat_interval_ms=interval_ms
        )
    return answer


def assigned(held: Held | Mapping[uuid.UUID, Iterable[int]]) -> _Assigned:
    return _Assigned(
        topic_partitions=[
            _Assigned.TopicPartitions(topic_id=topic_id, partitions=sorted(partitions))
            for topic_id, partitions in held.items()
        ]
    )


def left(member_id: str, epoch: int) -> ConsumerGroupHeartbeatResponse:
    """The answer to a member that leaves."""
    return ConsumerGroupHeartbeatResponse(member_id=member_id, member_epoch=epoch, heartbeat_interval_ms=0)


def tell_late(group: ConsumerGroup, member: ConsumerMember, step: Step) -> None:
    silent_ms = step.now_ms - member.session_from_ms
    if member.session_timeout_ms == 0 or not member.is_late(silent_ms):
        return
    usual_ms = member.heartbeat_interval_ms()
    member.was_late(silent_ms, step.now_ms)
    if len(member.late_at_ms) <= _LATE_TOLD_MAX:
        step.events.append(
            HeartbeatLate(
                *group.stamp(step, Cause(Trigger.HEARTBEAT, member.identity)),
                late_ms=silent_ms,
                heartbeat_interval_ms=usual_ms,
                session_timeout_ms=member.session_timeout_ms,
            )
        )

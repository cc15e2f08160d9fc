"""Events for requests that a consumer group refuses, rate-limited since clients repeat them."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Final, Protocol

from muster.coordinator.base.step import Step
from muster.coordinator.group.events import (
    Cause,
    CommitRefused,
    JoinRefused,
    MemberFenced,
    MemberIdentity,
    Trigger,
)
from muster.coordinator.group.group import Commit
from muster.coordinator.group.mismatch import NONE, Unsuited
from muster.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from muster.coordinator.group.consumer.group import ConsumerGroup

HEARTBEAT: Final = "ConsumerGroupHeartbeat"
_MAY_NOT_JOIN: Final = frozenset(
    {
        ErrorCode.GROUP_MAX_SIZE_REACHED,
        ErrorCode.UNRELEASED_INSTANCE_ID,
        ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
    }
)


class Speaking(Protocol):
    """Names a member."""

    member_id: str


def tell(
    group: ConsumerGroup,
    api: str,
    request: Speaking,
    instance_id: str | None,
    refusal: KafkaError,
    step: Step,
    *,
    sent_epoch: int | None = None,
) -> None:
    """Report a request that is refused because its sender is fenced, or may not join."""
    if refusal.code in _MAY_NOT_JOIN:
        _tell_join_refused(group, request, instance_id, refusal, step)
    elif refusal.code is ErrorCode.FENCED_INSTANCE_ID and instance_id is not None:
        holder = group.member_of_instance(instance_id)
        if holder is not None and _allows(group, instance_id, step):
            _tell_fenced(group, api, request, holder.identity, refusal.code, step)
    elif refusal.code is ErrorCode.FENCED_MEMBER_EPOCH:
        member = group.members.get(request.member_id)
        if member is not None and _allows(group, request.member_id, step):
            epochs = sent_epoch, group.current(member.member_id).epoch
            _tell_fenced(group, api, request, member.identity, refusal.code, step, *epochs)


def _allows(group: ConsumerGroup, who: str, step: Step) -> bool:
    return group.rate_limiters.fenced.allows((group.group_id, who), step.now_ms)


def _tell_fenced(
    group: ConsumerGroup,
    api: str,
    request: Speaking,
    holder: MemberIdentity,
    error: ErrorCode,
    step: Step,
    sent_epoch: int | None = None,
    member_epoch: int | None = None,
) -> None:
    step.events.append(
        MemberFenced(
            *group.stamp(step, Cause(Trigger.REQUESTED, holder)),
            api=api,
            old_member_id=request.member_id,
            old_client_id=step.context.client_id,
            old_client_host=step.context.client_host,
            error=error.name,
            sent_epoch=sent_epoch,
            member_epoch=member_epoch,
        )
    )


def _tell_join_refused(
    group: ConsumerGroup, request: Speaking, instance_id: str | None, refusal: KafkaError, step: Step
) -> None:
    """Report it once a minute per client."""
    context = step.context
    who = (group.group_id, context.client_id, context.client_host)
    if not group.rate_limiters.joins_refused.allows(who, step.now_ms):
        return
    full = refusal.code is ErrorCode.GROUP_MAX_SIZE_REACHED
    identity = MemberIdentity(request.member_id, context.client_id, context.client_host, instance_id)
    step.events.append(
        JoinRefused(
            *group.stamp(step, Cause(Trigger.GROUP_FULL if full else Trigger.REQUESTED, identity)),
            refusal.code.name,
            group.config.group_consumer_max_size if full else None,
            *(refusal.mismatch if isinstance(refusal, Unsuited) else NONE),
        )
    )


def tell_commit_refused(group: ConsumerGroup, request: Commit, refusal: KafkaError, step: Step) -> None:
    """Report, twenty times in ten seconds, a refused commit and who has what it was for."""
    if not group.rate_limiters.commits_refused.allows(group.group_id, step.now_ms):
        return
    context = step.context
    member = group.members.get(request.member_id)
    identity = MemberIdentity(
        request.member_id, context.client_id, context.client_host, request.group_instance_id
    )
    topic, topic_id, partition = _first_partition(request, group)
    step.events.append(
        CommitRefused(
            *group.stamp(step, Cause(Trigger.REQUESTED, identity if member is None else member.identity)),
            error=refusal.code.name,
            committed_generation_id=request.generation_id_or_member_epoch,
            partitions=sum(len(topic.partitions) for topic in request.topics),
            superseded_ms=None,
            owner=_owner(group, topic_id, partition),
            topic=topic,
            partition=partition,
        )
    )


def _first_partition(request: Commit, group: ConsumerGroup) -> tuple[str, uuid.UUID | None, int]:
    """The first partition of a commit; ("", None, -1) if it has none."""
    for topic in request.topics:
        for partition in topic.partitions:
            return topic.name, group.topics.ids.get(topic.name), partition.partition_index
    return "", None, -1


def _owner(group: ConsumerGroup, topic_id: uuid.UUID | None, partition: int) -> MemberIdentity | None:
    if topic_id is None:
        return None
    state = group.state
    for member_id, member in group.members.items():
        has = state.current.get(member_id)
        if has is not None and partition in has.assigned.get(topic_id, {}):
            return member.identity
    return None

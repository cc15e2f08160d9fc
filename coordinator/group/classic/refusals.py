"""Events for requests that a group refuses, rate-limited since clients repeat them."""

from __future__ import annotations

from typing import Protocol

from muster.coordinator.base.step import Step
from muster.coordinator.group.classic import ownership
from muster.coordinator.group.classic.member import ClassicMember
from muster.coordinator.group.config import GroupConfig
from muster.coordinator.group.events import (
    Cause,
    CommitRefused,
    JoinRefused,
    MemberFenced,
    MemberIdentity,
    Stamp,
    Trigger,
)
from muster.coordinator.group.group import Commit
from muster.coordinator.group.mismatch import NONE, mismatch
from muster.coordinator.group.rate_limiters import RateLimiters
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.classic_group import JoinGroupRequest


class Refusing(Protocol):
    """What these events need of a group. `ClassicGroup` is one; it imports this module."""

    group_id: str
    config: GroupConfig
    protocol_type: str
    rate_limiters: RateLimiters
    members: dict[str, ClassicMember]
    static_members: dict[str, str]
    ownership: ownership.Ownership

    @property
    def shared_protocols(self) -> set[str]: ...
    def stamp(self, step: Step, cause: Cause) -> Stamp: ...
    def ended_ms(self, generation_id: int) -> int | None: ...


class Fenceable(Protocol):
    """Names a member, and perhaps its instance."""

    member_id: str
    group_instance_id: str | None


def tell_fenced(group: Refusing, api: str, request: Fenceable, refusal: KafkaError, step: Step) -> None:
    """Report, once a minute, a request refused with FENCED_INSTANCE_ID."""
    instance_id = request.group_instance_id
    if refusal.code is not ErrorCode.FENCED_INSTANCE_ID or instance_id is None:
        return
    if not group.rate_limiters.fenced.allows((group.group_id, instance_id), step.now_ms):
        return
    holder = group.members[group.static_members[instance_id]]
    step.events.append(
        MemberFenced(
            *group.stamp(step, Cause(Trigger.REQUESTED, holder.identity)),
            api=api,
            old_member_id=request.member_id,
            old_client_id=step.context.client_id,
            old_client_host=step.context.client_host,
        )
    )


def tell_join_refused(group: Refusing, request: JoinGroupRequest, error: ErrorCode, step: Step) -> None:
    """Report, once a minute per client, that a group is full or has other protocols."""
    full = error is ErrorCode.GROUP_MAX_SIZE_REACHED
    who = (group.group_id, step.context.client_id, step.context.client_host)
    if group.rate_limiters.joins_refused.allows(who, step.now_ms):
        protocol_type = group.protocol_type if group.members else request.protocol_type
        identity = MemberIdentity(
            request.member_id, step.context.client_id, step.context.client_host, request.group_instance_id
        )
        cause = Cause(Trigger.GROUP_FULL if full else Trigger.REQUESTED, identity, request.reason)
        step.events.append(
            JoinRefused(
                *group.stamp(step, cause),
                error.name,
                group.config.group_max_size if full else None,
                *(NONE if full else mismatch(request, protocol_type, group.shared_protocols)),
            )
        )


def tell_commit_refused(group: Refusing, request: Commit, refusal: KafkaError, step: Step) -> None:
    """Report, twenty times in ten seconds, a refused commit and who owns what it was for."""
    if not group.rate_limiters.commits_refused.allows(group.group_id, step.now_ms):
        return
    context, generation_id = step.context, request.generation_id_or_member_epoch
    member, instance_id = group.members.get(request.member_id), request.group_instance_id
    if member is not None and instance_id is None:
        instance_id = member.group_instance_id  # requests below version 7 have none
    identity = MemberIdentity(request.member_id, context.client_id, context.client_host, instance_id)
    ended_ms = group.ended_ms(generation_id)
    topic, partition = _first_partition(request)
    owner = ownership.owner(group.ownership, topic, partition)
    if owner is not None and group.members.get(owner.member_id) is not owner:
        owner = None  # it has left
    step.events.append(
        CommitRefused(
            *group.stamp(step, Cause(Trigger.REQUESTED, identity)),
            error=refusal.code.name,
            committed_generation_id=generation_id,
            partitions=sum(len(topic.partitions) for topic in request.topics),
            superseded_ms=None if ended_ms is None else step.now_ms - ended_ms,
            owner=None if owner is None else owner.identity,
            topic=topic,
            partition=partition,
        )
    )


def _first_partition(request: Commit) -> tuple[str, int]:
    """The first partition of a commit; ("", -1) if it has none."""
    for topic in request.topics:
        for partition in topic.partitions:
            return topic.name, partition.partition_index
    return "", -1

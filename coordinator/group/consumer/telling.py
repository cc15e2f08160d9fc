"""The events of a consumer group's assignment: who is to have what, who revokes, who receives, who waits."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterator, Mapping
from typing import Final

from muster.coordinator.base.step import Step
from muster.coordinator.group.consumer.assignors.assignor import Assignment
from muster.coordinator.group.consumer.group import ConsumerGroup
from muster.coordinator.group.consumer.member import ConsumerMember
from muster.coordinator.group.consumer.state import NOBODY, Current, Held, Subscription
from muster.coordinator.group.events import (
    MOVES_MAX,
    Cause,
    MetadataChanged,
    Move,
    PartitionsAssigned,
    PartitionsRevoked,
    RevocationRequested,
    TargetAssigned,
    Trigger,
)
from muster.coordinator.group.timers import TimerKind

_NOTHING: Final[Held] = {}


def target(
    group: ConsumerGroup, before: Mapping[str, Assignment], assignor: str, step: Step
) -> TargetAssigned:
    """The target that was just made, compared with the previous one."""
    after = group.state.targets
    # Most changes leave most members what they had.
    stayed = {member_id for member_id, target in after.items() if before.get(member_id) == target}
    owners = dict(_owners(before, without=stayed))
    kept = sum(_count(after[member_id]) for member_id in stayed)
    moved = 0
    moves: list[Move] = []
    for (topic_id, partition), member_id in _owners(after, without=stayed):
        former = owners.pop((topic_id, partition), None)
        if former == member_id:
            kept += 1
            continue
        moved += former is not None
        if len(moves) < MOVES_MAX:
            moves.append(Move(_name(group, topic_id), partition, former, member_id))
    everything = sum(map(_count, after.values()))
    for (topic_id, partition), former in owners.items():
        if len(moves) < MOVES_MAX:
            moves.append(Move(_name(group, topic_id), partition, former, None))
    told = {member_id: _count(after[member_id]) for member_id in list(after)[:MOVES_MAX]}
    changed = everything - kept + len(owners)
    return TargetAssigned(
        *group.stamp(step, group.cause),
        assignor=assignor,
        partitions=everything,
        kept=kept,
        moved=moved,
        lost=len(owners),
        # For a recreated topic, what is lost comes first.
        moves=tuple(sorted(moves, key=lambda each: (each.topic, each.partition, each[2] is None))),
        owned=told,
        truncated=changed > len(moves) or len(after) > len(told),
    )


def metadata(
    group: ConsumerGroup, member: ConsumerMember, before: Subscription, after: Subscription, step: Step
) -> None:
    """Report a change of a member's subscription, or of the assignor it asks for."""
    had, has = before.server_assignor, after.server_assignor
    if before.topics == after.topics and before.regex == after.regex and had == has:
        return
    step.events.append(
        MetadataChanged(
            *group.stamp(step, Cause(Trigger.METADATA_CHANGED, member.identity)),
            topics_added=tuple(sorted(set(after.topics) - set(before.topics))),
            topics_removed=tuple(sorted(set(before.topics) - set(after.topics))),
            protocols_before=() if had is None else (had,),
            protocols_after=() if has is None else (has,),
            user_data_changed=False,
            owned_changed=False,
            regex=None if before.regex == after.regex else after.regex,
        )
    )


def _owners(
    targets: Mapping[str, Assignment], without: Collection[str]
) -> Iterator[tuple[tuple[uuid.UUID, int], str]]:
    for member_id, target in targets.items():
        if member_id in without:
            continue
        for topic_id, partitions in target.items():
            for partition in partitions:
                yield (topic_id, partition), member_id


def _count(target: Assignment) -> int:
    return sum(map(len, target.values()))


def progress(group: ConsumerGroup, member: ConsumerMember, had: Current, has: Current, step: Step) -> None:
    """Report what a member has revoked, has to revoke, and has received."""
    cause = Cause(Trigger.HEARTBEAT, member.identity)
    if had.revoking and not _part(had.revoking, has.revoking):
        since_ms, member.revoking_from_ms = member.revoking_from_ms, None
        step.events.append(
            PartitionsRevoked(
                *group.stamp(step, cause),
                partitions=_named(group, had.revoking),
                after_ms=None if since_ms is None else step.now_ms - since_ms,
            )
        )
    dropped = _without(_without(had.assigned, has.assigned), has.revoking)
    if dropped:
        step.events.append(
            PartitionsRevoked(*group.stamp(step, cause), partitions=_named(group, dropped), after_ms=None)
        )
    asked = _without(has.revoking, had.revoking)
    if asked:
        member.revoking_from_ms = step.now_ms
        step.events.append(
            RevocationRequested(
                *group.stamp(step, Cause(group.cause.trigger, member.identity)),
                partitions=_named(group, asked),
                until_ms=group.deadlines.get(group.timer(TimerKind.REVOCATION, member.member_id)),
            )
        )
    got = _without(has.assigned, had.assigned)
    if got:
        step.events.append(
            PartitionsAssigned(
                *group.stamp(step, cause),
                partitions=_named(group, got),
                still_held=_named(group, _still_held(group, member.member_id, has)),
                member_epoch=has.epoch,
            )
        )


def _part(some: Held, held: Held) -> bool:
    """Whether any of `some` is in `held`."""
    return any(partitions.keys() & held.get(topic_id, {}).keys() for topic_id, partitions in some.items())


def _without(held: Mapping[uuid.UUID, Collection[int]], other: Held) -> dict[uuid.UUID, Collection[int]]:
    left: dict[uuid.UUID, Collection[int]] = {}
    for topic_id, partitions in held.items():
        rest = set(partitions) - other.get(topic_id, {}).keys()
        if rest:
            left[topic_id] = rest
    return left


def _still_held(group: ConsumerGroup, member_id: str, has: Current) -> dict[uuid.UUID, Collection[int]]:
    state = group.state
    return {
        topic_id: held
        for topic_id, partitions in state.target(member_id).items()
        if (
            held := [
                partition
                for partition in partitions
                if partition not in has.assigned.get(topic_id, {})
                and state.owner_epoch(topic_id, partition) != NOBODY
            ]
        )
    }


def _named(
    group: ConsumerGroup, partitions: Mapping[uuid.UUID, Collection[int]]
) -> tuple[tuple[str, int], ...]:
    """By topic name, sorted."""
    return tuple(
        sorted(
            (_name(group, topic_id), number) for topic_id, numbers in partitions.items() for number in numbers
        )
    )


def _name(group: ConsumerGroup, topic_id: uuid.UUID) -> str:
    """The topic's name, even just after its deletion; else its id."""
    return group.topics.names.get(topic_id) or group.names.get(topic_id) or str(topic_id)

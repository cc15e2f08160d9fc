"""What members may keep of their present targets."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import NamedTuple

from muster.coordinator.group.consumer.assignors.assignor import Assignment, Spec


class Kept(NamedTuple):
    """What is kept, by member, in the group's order, and by topic."""

    by_member: list[Assignment]
    by_topic: Mapping[uuid.UUID, set[int]]

    def free(self, topic: uuid.UUID, count: int) -> list[int]:
        """The partitions that nobody has, ascending."""
        taken = self.by_topic[topic]
        return [number for number in range(count) if number not in taken] if taken else list(range(count))


def kept(spec: Spec) -> Kept:
    """Drops topics that the member does not subscribe to. Also drops partitions that do not exist, and lets
    the first of two members with the same partition keep it: no sound target has either, and one bad target
    is no reason to leave the group without one."""
    by_topic: dict[uuid.UUID, set[int]] = {topic: set() for topic in spec.partitions}
    by_member: list[Assignment] = []
    for subscriber in spec.members.values():
        keeps: Assignment = subscriber.assigned
        if not keeps.keys() <= subscriber.topics:
            keeps = {topic: numbers for topic, numbers in keeps.items() if topic in subscriber.topics}
        for topic, numbers in keeps.items():
            taken = by_topic[topic]
            if not numbers or max(numbers) >= spec.partitions[topic] or not taken.isdisjoint(numbers):
                keeps = _sound(keeps, spec.partitions, by_topic)
                break
        for topic, numbers in keeps.items():
            by_topic[topic] |= numbers
        by_member.append(keeps)
    return Kept(by_member, by_topic)


def _sound(
    assigned: Assignment, partitions: Mapping[uuid.UUID, int], taken: Mapping[uuid.UUID, set[int]]
) -> Assignment:
    sound = {
        topic: frozenset(number for number in numbers if number < partitions[topic]) - taken[topic]
        for topic, numbers in assigned.items()
    }
    return {topic: numbers for topic, numbers in sound.items() if numbers}

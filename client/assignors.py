"""Assignors: who in a group reads which partition. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

RANGE = "range"


class Subscription(NamedTuple):
    """What the leader knows of a member."""

    topics: frozenset[str]
    group_instance_id: str | None = None


def assign_ranges(
    members: Mapping[str, Subscription], partitions: Mapping[str, int]
) -> dict[str, dict[str, list[int]]]:
    """For each member, its partitions by topic (Kafka's RangeAssignor, without racks).

    Each topic is cut into as many runs as it has subscribers, the first ones longer by one where it does not
    come out even. Members stand in a fixed order, static ones first, so that equal groups are cut equally.
    """
    assigned: dict[str, dict[str, list[int]]] = {member_id: {} for member_id in members}
    in_order = sorted(members, key=lambda each: _rank(each, members[each]))
    for topic in sorted(partitions):
        subscribers = [member_id for member_id in in_order if topic in members[member_id].topics]
        if not subscribers:
            continue
        size, longer = divmod(partitions[topic], len(subscribers))
        first = 0
        for index, member_id in enumerate(subscribers):
            last = first + size + (1 if index < longer else 0)
            if last > first:
                assigned[member_id][topic] = list(range(first, last))
            first = last
    return assigned


def _rank(member_id: str, subscription: Subscription) -> tuple[bool, str]:
    instance_id = subscription.group_instance_id
    return (True, member_id) if instance_id is None else (False, instance_id)

"""The assignor `range`: each topic in contiguous chunks, one per subscriber, the first ones longer by one
partition if it does not divide evenly.

Topics with equally many partitions and the same subscribers are divided alike, so that one member has the
same numbers of both. Not sticky.
"""

from __future__ import annotations

import uuid
from itertools import pairwise

from muster.coordinator.group.consumer.assignors.assignor import Assignment, Spec, Subscriber


def by_range(spec: Spec) -> dict[str, Assignment]:
    ordered = sorted(spec.members.items(), key=_static_first)
    subscribers: dict[uuid.UUID, list[str]] = {}
    for member_id, subscriber in ordered:
        for topic in subscriber.topics:
            subscribers.setdefault(topic, []).append(member_id)
    shares: dict[str, dict[uuid.UUID, frozenset[int]]] = {member_id: {} for member_id in spec.members}
    chunks: dict[tuple[int, int], list[frozenset[int]]] = {}
    for topic, member_ids in subscribers.items():
        division = spec.partitions[topic], len(member_ids)
        if division not in chunks:
            chunks[division] = _chunks(*division)
        for member_id, numbers in zip(member_ids, chunks[division], strict=False):
            shares[member_id][topic] = numbers
    return dict(shares)


def _chunks(count: int, members: int) -> list[frozenset[int]]:
    """As many chunks as there are partitions for; the first members get them."""
    size, extras = divmod(count, members)
    starts = [index * size + min(index, extras) for index in range(members + 1)]
    return [frozenset(range(start, stop)) for start, stop in pairwise(starts) if start < stop]


def _static_first(member: tuple[str, Subscriber]) -> tuple[bool, bytes]:
    """Static members by their instance ids, then the others by member id; Java compares UTF-16 code units."""
    member_id, subscriber = member
    instance_id = subscriber.instance_id
    text = member_id if instance_id is None else instance_id
    return instance_id is None, text.encode("utf-16-be", "surrogatepass")

"""The interface of a server-side assignor: a pure function from a group to the target of each member.

Given the same orders, results equal those of Apache Kafka 4.4, partition by partition. Kafka iterates over
hash tables, so three orders count:

- `Spec.members`: `uniform` serves members in this order. `order.member_order` is Kafka's.
- `Spec.partitions`: topics that share a bucket are dealt out in this order. A broker's order is not known, so
  in homogeneous groups members get as many partitions as in Kafka, but may get others.
- `Subscriber.assigned`: topics that share a bucket are given up in this order. Kafka's is that of the
  target's record.

Everything else is decided by numbers and ids. Neither of Kafka's assignors looks at racks.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeAlias

Assignment: TypeAlias = Mapping[uuid.UUID, frozenset[int]]
"""Topic id -> partitions; no empty sets."""


def assignment_of(listed: Iterable[tuple[uuid.UUID, Iterable[int]]]) -> Assignment:
    """What a list of topics and their partitions says; a topic may be listed twice, or without partitions."""
    found: dict[uuid.UUID, frozenset[int]] = {}
    for topic_id, partitions in listed:
        together = found.get(topic_id, frozenset()).union(partitions)
        if together:
            found[topic_id] = together
    return found


class Subscriber(NamedTuple):
    """A member as assignors see it."""

    instance_id: str | None
    """Of a static member (KIP-345)."""
    rack_id: str | None
    topics: frozenset[uuid.UUID]
    """The existing topics it subscribes to, by name or regular expression."""
    assigned: Assignment
    """Its present target, which may contain topics that are deleted or no longer subscribed to."""


class Spec(NamedTuple):
    """A group for which a target is computed."""

    members: Mapping[str, Subscriber]
    """By member id. No partition is the target of two."""
    partitions: Mapping[uuid.UUID, int]
    """Topic id -> partition count, of all subscribed topics."""
    homogeneous: bool
    """Whether all members subscribe to the same topics; `uniform` then has an easier task, and a different
    result."""


Assign: TypeAlias = Callable[[Spec], dict[str, Assignment]]
"""Returns a target for each member, empty for those that get nothing. An unchanged target may be the mapping
that was given. Raises KeyError for a subscribed topic without a partition count."""

"""What members of the classic protocol pass through a group (`protocol.embedded`), by topic id."""

from __future__ import annotations

from collections.abc import Iterable

from muster.coordinator.group.consumer.assignors.assignor import Assignment, assignment_of
from muster.coordinator.group.topics import Topics
from muster.protocol.embedded import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    blob_version,
    encode_assignment,
)
from muster.protocol.errors import DecodeError


def owned_partitions(said: ConsumerProtocolSubscription, topics: Topics) -> Assignment:
    """What a member says it owns; deleted topics are left out."""
    return _by_id(((each.topic, each.partitions) for each in said.owned_partitions), topics)


def assigned_partitions(assignment: ConsumerProtocolAssignment, topics: Topics) -> Assignment:
    """What a leader has assigned; deleted topics are left out."""
    return _by_id(((each.topic, each.partitions) for each in assignment.assigned_partitions), topics)


def _by_id(named: Iterable[tuple[str, Iterable[int]]], topics: Topics) -> Assignment:
    """The coordinator has not looked into these bytes before: a partition may be below 0."""
    return assignment_of(
        (topic_id, [number for number in partitions if number >= 0])
        for name, partitions in named
        if (topic_id := topics.ids.get(name)) is not None
    )


def encoded_assignment(assignment: Assignment, metadata: bytes, topics: Topics) -> bytes:
    """The assignment, in the version in which the member sent its subscription, `metadata`; in version 0 if
    that is not readable: only one of a member's subscriptions was read when it joined. Topics are sorted by
    name."""
    try:
        version = blob_version(metadata)
    except DecodeError:
        version = 0
    named = {
        topics.names[topic_id]: each for topic_id, each in assignment.items() if topic_id in topics.names
    }
    return encode_assignment(
        ConsumerProtocolAssignment(
            assigned_partitions=[
                ConsumerProtocolAssignment.TopicPartition(topic=name, partitions=sorted(named[name]))
                for name in sorted(named)
            ]
        ),
        version,
    )

"""What members of the classic protocol pass through a group (`protocol.embedded`), by topic id."""

from __future__ import annotations

import uuid

from muster.coordinator.group.consumer.assignors.assignor import Assignment
from muster.coordinator.group.topics import Topics
from muster.protocol.embedded import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    blob_version,
    encode_assignment,
)


def owned_partitions(said: ConsumerProtocolSubscription, topics: Topics) -> Assignment:
    """What a member says it owns; deleted topics are left out."""
    return _by_id({each.topic: each.partitions for each in said.owned_partitions}, topics)


def assigned_partitions(assignment: ConsumerProtocolAssignment, topics: Topics) -> Assignment:
    """What a leader has assigned; deleted topics are left out."""
    return _by_id({each.topic: each.partitions for each in assignment.assigned_partitions}, topics)


def _by_id(named: dict[str, list[int]], topics: Topics) -> Assignment:
    found: dict[uuid.UUID, frozenset[int]] = {}
    for name, partitions in named.items():
        topic_id = topics.ids.get(name)
        if topic_id is not None and partitions:
            found[topic_id] = frozenset(partitions)
    return found


def encoded_assignment(assignment: Assignment, metadata: bytes, topics: Topics) -> bytes:
    """The assignment, in the version in which the member sent its subscription, `metadata`. Topics are sorted
    by name."""
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
        blob_version(metadata),
    )

"""Subscriptions and assignments as the bytes that JoinGroup and SyncGroup carry (ConsumerProtocol, v0-3).

Equal content gives equal bytes: topics are sorted, partitions grouped by topic and sorted. The coordinator
compares a member's bytes with those it sent before, and rebalances the group when they differ.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from muster.client.assignors.interface import NO_GENERATION, MemberSubscription, partitions_of
from muster.client.partitions import TopicPartition
from muster.protocol.embedded import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)

SUBSCRIPTION_VERSION: Final = 3


def subscription_bytes(
    topics: Iterable[str],
    owned: Iterable[TopicPartition] = (),
    generation_id: int = NO_GENERATION,
    rack: str | None = None,
    user_data: bytes | None = None,
    *,
    version: int = SUBSCRIPTION_VERSION,
) -> bytes:
    """A member's metadata for JoinGroup. Fields that `version` lacks are left out; an empty rack counts as
    none."""
    return encode_subscription(
        ConsumerProtocolSubscription(
            topics=sorted(set(topics)),
            user_data=user_data,
            owned_partitions=[
                ConsumerProtocolSubscription.TopicPartition(topic=topic, partitions=numbers)
                for topic, numbers in by_topic(owned).items()
            ],
            generation_id=generation_id,
            rack_id=rack or None,
        ),
        version,
    )


def read_subscription(blob: bytes | memoryview, group_instance_id: str | None = None) -> MemberSubscription:
    """A member's subscription, as JoinGroup gives it to the leader. Raises DecodeError if the bytes are not
    one."""
    read = decode_subscription(blob)
    return MemberSubscription(
        topics=frozenset(read.topics),
        owned=tuple(
            TopicPartition(each.topic, partition)
            for each in read.owned_partitions
            for partition in each.partitions
        ),
        generation_id=read.generation_id,
        rack=read.rack_id or None,
        group_instance_id=group_instance_id,
        user_data=read.user_data,
    )


def assignment_bytes(
    assigned: Iterable[TopicPartition],
    user_data: bytes | None = None,
    *,
    version: int = SUBSCRIPTION_VERSION,
) -> bytes:
    """A member's assignment for SyncGroup. Even an empty one is a real blob: Java's consumer raises on zero
    bytes."""
    return encode_assignment(
        ConsumerProtocolAssignment(
            assigned_partitions=[
                ConsumerProtocolAssignment.TopicPartition(topic=topic, partitions=numbers)
                for topic, numbers in by_topic(assigned).items()
            ],
            user_data=user_data,
        ),
        version,
    )


def read_assignment(blob: bytes | memoryview) -> list[TopicPartition]:
    """A member's assignment from SyncGroup. Zero bytes mean no partitions: the leader forgot the member.
    Raises DecodeError for bytes that are not an assignment."""
    if not blob:
        return []
    return [
        where
        for each in decode_assignment(blob).assigned_partitions
        for where in partitions_of(each.topic, each.partitions)
    ]


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Partition numbers by topic; both sorted, without duplicates."""
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(set(partitions)):
        topics.setdefault(topic, []).append(partition)
    return topics

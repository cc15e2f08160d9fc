"""The bytes members put into JoinGroup and SyncGroup with the consumer protocol (KIP-54, KIP-429)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from muster.protocol.embedded import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    encode_assignment,
    encode_subscription,
)

Part = tuple[str, int]
NEWEST = 3


def by_topic(parts: Iterable[Part]) -> dict[str, list[int]]:
    """The partition numbers of each topic, in the order given."""
    topics: dict[str, list[int]] = {}
    for topic, partition in parts:
        topics.setdefault(topic, []).append(partition)
    return topics


def subscription(
    topics: Iterable[str],
    version: int = NEWEST,
    *,
    owned: Iterable[Part] = (),
    user_data: bytes | None = None,
) -> bytes:
    return encode_subscription(
        ConsumerProtocolSubscription(
            topics=list(topics),
            user_data=user_data,
            owned_partitions=[
                ConsumerProtocolSubscription.TopicPartition(topic=topic, partitions=partitions)
                for topic, partitions in by_topic(owned).items()
            ],
        ),
        version,
    )


def assignment(
    topics: Mapping[str, Sequence[int]], version: int = NEWEST, *, user_data: bytes | None = None
) -> bytes:
    """An assignment of these partitions of each topic."""
    return encode_assignment(
        ConsumerProtocolAssignment(
            assigned_partitions=[
                ConsumerProtocolAssignment.TopicPartition(topic=topic, partitions=list(partitions))
                for topic, partitions in topics.items()
            ],
            user_data=user_data,
        ),
        version,
    )

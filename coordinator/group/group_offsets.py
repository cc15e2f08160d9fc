"""What a group has committed, by topic, with the part of an OffsetFetch's answer that tells of each
partition: such an answer is a join, however many partitions it has."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from muster.protocol.messages.offsets import encode_fetched_partition

TopicPartition = tuple[str, int]


class CommittedOffset(NamedTuple):
    """A position a group has committed for a partition. Timestamps are epoch milliseconds."""

    offset: int
    leader_epoch: int
    """-1: not known."""
    metadata: str
    commit_timestamp: int
    expire_timestamp: int
    """-1: the broker's retention applies. Else the time the commit asked for (OffsetCommit v2-4)."""
    topic_id: uuid.UUID
    """ZERO_UUID: not known."""


class TopicOffsets:
    """The offsets of one topic, by partition."""

    __slots__ = ("answers", "offsets", "topic_id")

    def __init__(self, topic_id: uuid.UUID) -> None:
        self.offsets: dict[int, CommittedOffset] = {}
        self.answers: dict[int, bytes] = {}
        """What OffsetFetch answers, as `encode_fetched_partition` has it."""
        self.topic_id: uuid.UUID | None = topic_id
        """The one that all offsets have; None: they differ, or did."""


class GroupOffsets(Mapping[TopicPartition, CommittedOffset]):
    """The offsets of one group."""

    __slots__ = ("topics",)

    def __init__(self) -> None:
        self.topics: dict[str, TopicOffsets] = {}
        """Those that have any."""

    def put(self, topic: str, partition: int, committed: CommittedOffset) -> None:
        """Replace the offset of a partition."""
        topic_id = committed.topic_id
        of_topic = self.topics.get(topic)
        if of_topic is None:
            of_topic = self.topics[topic] = TopicOffsets(topic_id)
        elif topic_id is not of_topic.topic_id and topic_id != of_topic.topic_id:
            of_topic.topic_id = None
        of_topic.offsets[partition] = committed
        of_topic.answers[partition] = encode_fetched_partition(
            partition, committed.offset, committed.leader_epoch, committed.metadata, 0
        )

    def remove(self, topic: str, partition: int) -> None:
        """Forget the offset of a partition, if it has one."""
        of_topic = self.topics.get(topic)
        if of_topic is not None and partition in of_topic.offsets:
            del of_topic.offsets[partition], of_topic.answers[partition]
            if not of_topic.offsets:
                del self.topics[topic]

    def __getitem__(self, partition: TopicPartition) -> CommittedOffset:
        topic, number = partition
        return self.topics[topic].offsets[number]

    def __iter__(self) -> Iterator[TopicPartition]:
        for topic, of_topic in self.topics.items():
            for number in of_topic.offsets:
                yield topic, number

    def __len__(self) -> int:
        return sum([len(of_topic.offsets) for of_topic in self.topics.values()])

    def __repr__(self) -> str:
        return repr(dict(self))

"""A group's committed offsets, by topic. Caches what is encoded over and over: each partition's part of an
OffsetFetch answer, which makes building an answer a mere join, and the front of the keys of its records."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping

from muster.coordinator.group.committed_offset import CommittedOffset, key_front
from muster.protocol.messages.offsets import encode_fetched_partition

TopicPartition = tuple[str, int]


class TopicOffsets:
    """The offsets of one topic, by partition."""

    __slots__ = ("_answers", "_key_front", "offsets", "topic_id")

    def __init__(self, topic_id: uuid.UUID) -> None:
        self.offsets: dict[int, CommittedOffset] = {}
        self._answers: dict[int, bytes] = {}  # of partitions fetched since their last commit
        self._key_front = b""  # set by the first commit
        self.topic_id: uuid.UUID | None = topic_id
        """The topic id that all offsets share; None: they differ, or once did."""

    def put(self, partition: int, committed: CommittedOffset) -> None:
        """Replace the offset of a partition."""
        topic_id = committed.topic_id
        if topic_id is not self.topic_id and topic_id != self.topic_id:
            self.topic_id = None
        self.offsets[partition] = committed
        self._answers.pop(partition, None)

    def remove(self, partition: int) -> None:
        """Remove the offset of a partition, if it has one."""
        self.offsets.pop(partition, None)
        self._answers.pop(partition, None)

    def answer(self, partition: int) -> bytes | None:
        """The partition's part of an OffsetFetch answer, from `encode_fetched_partition`; None if it has no
        offset."""
        answer = self._answers.get(partition)
        if answer is None:
            committed = self.offsets.get(partition)
            if committed is None:
                return None
            answer = self._answers[partition] = encode_fetched_partition(
                partition, committed.offset, committed.leader_epoch, committed.metadata, 0
            )
        return answer

    def key_front(self, group_id: str, topic: str) -> bytes:
        """The common front of the keys of this topic's records, for `rows_of`."""
        if not self._key_front:
            self._key_front = key_front(group_id, topic)
        return self._key_front


class GroupOffsets(Mapping[TopicPartition, CommittedOffset]):
    """The offsets of one group."""

    __slots__ = ("topics",)

    def __init__(self) -> None:
        self.topics: dict[str, TopicOffsets] = {}
        """Topics that have offsets."""

    def of_topic(self, topic: str, topic_id: uuid.UUID) -> TopicOffsets:
        """The offsets of a topic that is about to get one with this topic id."""
        found = self.topics.get(topic)
        if found is None:
            found = self.topics[topic] = TopicOffsets(topic_id)
        return found

    def put(self, topic: str, partition: int, committed: CommittedOffset) -> None:
        """Replace the offset of a partition."""
        self.of_topic(topic, committed.topic_id).put(partition, committed)

    def remove(self, topic: str, partition: int) -> None:
        """Remove the offset of a partition, if it has one."""
        of_topic = self.topics.get(topic)
        if of_topic is not None:
            of_topic.remove(partition)
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

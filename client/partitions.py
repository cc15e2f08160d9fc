"""Partitions, offsets in them, and their grouping in requests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple, TypeVar

T = TypeVar("T")

NO_LEADER_EPOCH: Final = -1
"""Stands for an unknown leader epoch."""


class TopicPartition(NamedTuple):
    """One partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class OffsetAndMetadata(NamedTuple):
    """A committed position in a partition: the offset of the next record to read, free text from the user,
    and the leader epoch of the last record read (KIP-320), -1 if unknown."""

    offset: int
    metadata: str = ""
    leader_epoch: int = NO_LEADER_EPOCH


class OffsetAndTimestamp(NamedTuple):
    """A record found by its time: its offset, its timestamp in epoch ms, and the leader epoch it was written
    in, -1 if unknown."""

    offset: int
    timestamp: int
    leader_epoch: int = NO_LEADER_EPOCH


def grouped(pairs: Iterable[tuple[TopicPartition, T]]) -> dict[str, list[tuple[int, T]]]:
    """Group (partition, value) pairs by topic, as requests list partitions."""
    topics: dict[str, list[tuple[int, T]]] = {}
    for where, value in pairs:
        topics.setdefault(where.topic, []).append((where.partition, value))
    return topics

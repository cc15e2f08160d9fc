"""Names of partitions, and how requests list them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, TypeVar

T = TypeVar("T")


class TopicPartition(NamedTuple):
    """One partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def grouped(pairs: Iterable[tuple[TopicPartition, T]]) -> dict[str, list[tuple[int, T]]]:
    """(partition, value) pairs by topic: requests list partitions below their topics."""
    topics: dict[str, list[tuple[int, T]]] = {}
    for where, value in pairs:
        topics.setdefault(where.topic, []).append((where.partition, value))
    return topics

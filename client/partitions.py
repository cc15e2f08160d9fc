"""Partitions, offsets in them, and their grouping in requests."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any, Final, NamedTuple, TypeVar

from muster.client.settings import check_text
from muster.settings import INT32_MAX, INT64_MAX

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


def checked_partition(given: object) -> TopicPartition:
    """The partition that a user gives, with a number that is a plain int. Raises ValueError, TypeError."""
    if not isinstance(given, TopicPartition):
        raise ValueError(f"partitions: {given!r} is not allowed; it takes TopicPartition(topic, partition)")
    if not isinstance(given.topic, str):
        raise TypeError(f"topic={given.topic!r}: it takes text")
    check_text("topic", given.topic)
    try:
        number = int(operator.index(given.partition))  # NumPy's integers, for example, are no int
    except TypeError:
        raise TypeError(f"partition={given.partition!r}: it takes a whole number") from None
    if not 0 <= number <= INT32_MAX:
        raise ValueError(f"partition={number}: it takes a whole number from 0 to 2**31 - 1")
    return TopicPartition(given.topic, number)


def place_of(given: Any) -> OffsetAndMetadata:
    """The place that a user gives as an offset or an OffsetAndMetadata. Raises ValueError, TypeError."""
    place = OffsetAndMetadata(given) if isinstance(given, int) else given
    if (
        not isinstance(place, OffsetAndMetadata)
        or not isinstance(place.offset, int)
        or not 0 <= place.offset <= INT64_MAX
    ):
        raise ValueError(
            f"offset {given!r}: it takes a whole number from 0 to 2**63 - 1, or OffsetAndMetadata with one"
        )
    if not isinstance(place.leader_epoch, int):
        raise TypeError(f"leader_epoch={place.leader_epoch!r}: it takes a whole number, -1 if unknown")
    if not NO_LEADER_EPOCH <= place.leader_epoch <= INT32_MAX:
        raise ValueError(f"leader_epoch={place.leader_epoch}: it takes a whole number from -1 to 2**31 - 1")
    if not isinstance(place.metadata, str):
        raise TypeError(f"metadata={place.metadata!r}: it takes text")
    check_text("metadata", place.metadata)
    return place


def grouped(pairs: Iterable[tuple[TopicPartition, T]]) -> dict[str, list[tuple[int, T]]]:
    """Group (partition, value) pairs by topic, as requests list partitions."""
    topics: dict[str, list[tuple[int, T]]] = {}
    for where, value in pairs:
        topics.setdefault(where.topic, []).append((where.partition, value))
    return topics

"""A consumer's position in each partition, and its buffer of fetched records. Pure: no clock, no loop. Times
are in seconds of the caller's clock.
"""

from __future__ import annotations

import math
import uuid
from collections import deque
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, NamedTuple, Self

from muster.client.fetch.fetched import Part
from muster.client.fetch.records import Batch
from muster.client.partitions import NO_LEADER_EPOCH, TopicPartition

_LATEST_TIMESTAMP: Final = -1
_EARLIEST_TIMESTAMP: Final = -2


class Position(NamedTuple):
    """The offset of the next record, and the leader epoch of the record before it (KIP-320), -1 if unknown:
    with it the leader can tell whether its log is still the one that was read."""

    offset: int
    leader_epoch: int = NO_LEADER_EPOCH


@dataclass(frozen=True, slots=True)
class ResetStrategy:
    """Where to continue if the position is outside the log: its start, its end, or the first record no older
    than a duration (the end if all are older). See auto.offset.reset."""

    name: str
    duration_ms: int = 0

    @classmethod
    def by_duration(cls, duration: timedelta) -> Self:
        """Raises ValueError for a negative duration."""
        if duration < timedelta():
            raise ValueError(f"{duration} is negative: a consumer starts in the past or now")
        return cls("by_duration", duration // timedelta(milliseconds=1))

    def timestamp(self, now_ms: int) -> int:
        """The timestamp for ListOffsets, at this epoch time."""
        if self == EARLIEST:
            return _EARLIEST_TIMESTAMP
        return _LATEST_TIMESTAMP if self == LATEST else max(0, now_ms - self.duration_ms)

    def __str__(self) -> str:
        return f"{self.name} {timedelta(milliseconds=self.duration_ms)}" if self.duration_ms else self.name


EARLIEST: Final = ResetStrategy("earliest")
LATEST: Final = ResetStrategy("latest")


class Cause(NamedTuple):
    """Why a partition's position changes."""

    text: str
    before: Position | None
    """The position it had, if any."""
    is_loss: bool = False
    """Whether the log no longer has that position; otherwise another one was requested."""
    former_topic: uuid.UUID | None = None
    """The id of the topic with that position, if another topic has taken its name."""


class PartitionState:
    """One assigned partition. `position` is the reader's next record, `fetch_position` the next to fetch from
    the broker; the buffer lies between. External changes to either start a new era, and responses to requests
    of an earlier era are dropped.
    """

    __slots__ = (
        "_parts",
        "backoff_until",
        "buffered_bytes",
        "cause",
        "drain_first",
        "era",
        "failures",
        "fetch_position",
        "held",
        "high_watermark",
        "last_stable_offset",
        "log_start",
        "node",
        "paused",
        "position",
        "replica",
        "replica_until",
        "strategy",
        "topic_id",
        "trouble",
        "troubled_since",
        "validated_epoch",
        "where",
    )

    def __init__(self, where: TopicPartition) -> None:
        self.where = where
        self.era = 0
        self.position: Position | None = None
        self.fetch_position: Position | None = None
        self.strategy: ResetStrategy | None = None
        """Set while a position is being looked up."""
        self.cause: Cause | None = None
        self.paused = False
        self.held = False
        self._parts: deque[Part] = deque()
        self.buffered_bytes = 0
        self.high_watermark: int | None = None
        self.last_stable_offset: int | None = None
        self.log_start: int | None = None
        self.topic_id: uuid.UUID | None = None
        """The id of the topic that the position belongs to; another topic may take its name later."""
        self.validated_epoch = NO_LEADER_EPOCH
        """The leader epoch that the position was last validated with, if fetches do not validate it."""
        self.replica: int | None = None
        """The preferred read replica (KIP-392), until `replica_until`."""
        self.replica_until = -math.inf
        self.node: int | None = None
        """The broker it is fetched from."""
        self.drain_first = False
        """Whether it must not be fetched again before the buffer is empty."""
        self.backoff_until = -math.inf
        self.failures = 0
        self.trouble: Exception | None = None
        """Why it cannot be read at the moment, since `troubled_since`."""
        self.troubled_since = 0.0

    def __repr__(self) -> str:
        return f"<{self.where} at {self.position}, {self.buffered_bytes} bytes buffered>"

    @property
    def is_delivering(self) -> bool:
        """Whether its records may be returned."""
        return not (self.paused or self.held)

    @property
    def has_buffered(self) -> bool:
        return bool(self._parts)

    def seek(self, position: Position) -> None:
        """Continue from this position."""
        self._begin_era()
        self.position = self.fetch_position = position

    def fetch_again(self, position: Position | None) -> None:
        """Drop the buffer, and fetch the same log again from this position on."""
        self.era += 1
        self._parts.clear()
        self.buffered_bytes = 0
        self.position = self.fetch_position = position

    def reset(self, strategy: ResetStrategy, cause: Cause) -> None:
        """Drop the position until one is found."""
        self._begin_era()
        self.position = self.fetch_position = None
        self.strategy, self.cause = strategy, cause

    def _begin_era(self) -> None:
        self.era += 1
        self._parts.clear()
        self.buffered_bytes = 0
        self.strategy = self.cause = self.topic_id = self.replica = None
        self.validated_epoch = NO_LEADER_EPOCH
        self.settled()

    def add(self, part: Part) -> None:
        """Buffer records from the fetch position on."""
        assert self.fetch_position is not None
        self.fetch_position = Position(part.next_offset, part.last_epoch)
        if part.is_exhausted:
            if not self._parts:
                self.position = self.fetch_position
        else:
            self._parts.append(part)
            self.buffered_bytes += part.size_bytes

    def take(self, records_max: int) -> Batch[bytes | None, bytes | None] | None:
        """The next records, at most this many; None if there are none. Raises KafkaError(CORRUPT_MESSAGE) at
        damage, and MemoryError. The position stays before it, and the buffer is dropped, so that it is
        fetched again."""
        while self._parts:
            part = self._parts[0]
            try:
                batch = part.take(records_max)
            except Exception:
                self.fetch_again(self.position)
                raise
            if batch is not None:
                self.position = Position(batch.next_offset, batch.leader_epoch)
            if part.is_exhausted:
                self.position = Position(part.next_offset, part.last_epoch)
                self.buffered_bytes -= part.size_bytes
                self._parts.popleft()
                if not self._parts:
                    self.position = self.fetch_position  # past batches after it without records to return
            if batch is not None:
                return batch
        return None

    def fails(self, error: Exception, now: float, backoff_s: float) -> None:
        """Mark it as unreadable at the moment."""
        if self.trouble is None:
            self.troubled_since = now
        self.trouble = error
        self.failures += 1
        self.backoff_until = now + backoff_s

    def settled(self) -> None:
        """Clear failures: it was read, or will be read from elsewhere."""
        self.trouble = None
        self.drain_first = False
        self.failures = 0
        self.backoff_until = -math.inf


def truncated_at(position: Position, epoch: int, end_offset: int) -> Position | None:
    """Where to continue if, in the leader's log, `epoch` is the last epoch up to the position's, and ends at
    `end_offset` (KIP-320). None if the leader does not know (-1)."""
    if epoch < 0 or end_offset < 0:
        return None
    return Position(min(position.offset, end_offset), epoch)

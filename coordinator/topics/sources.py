"""What reads partitions, wherever their records stand: in logs (`partitions`) or in rows of the store
(`rows`)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from muster.coordinator.topics.catalogue import Topic
from muster.coordinator.topics.log import Listed
from muster.coordinator.topics.producers import ActiveProducer
from muster.protocol.errors import ErrorCode, KafkaError

Bounds = tuple[int, int]
"""Log start offset and high watermark."""


class FetchPartition(NamedTuple):
    """One partition of a Fetch request; -1 for an epoch the client did not send."""

    topic: Topic
    partition: int
    fetch_offset: int
    max_bytes: int
    current_leader_epoch: int = -1
    last_fetched_epoch: int = -1


class FetchedPartition(NamedTuple):
    """One partition's answer. On an error the offsets are -1 and there are no records."""

    error: KafkaError | None
    records: bytes | memoryview
    high_watermark: int  # also the last stable offset: there are no transactions
    log_start_offset: int
    leader_epoch: int
    diverging_epoch: tuple[int, int] | None = None  # (epoch, end offset)


def refused_partition(refusal: KafkaError) -> FetchedPartition:
    """The answer of a partition that cannot be read."""
    return FetchedPartition(refusal, b"", -1, -1, -1)


def check_epoch(name: str, leader_epoch: int, current_leader_epoch: int) -> None:
    """KIP-320: a client whose metadata is older or newer than the leadership of the partition `name` must
    refresh it (FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH)."""
    if current_leader_epoch < 0 or current_leader_epoch == leader_epoch:
        return
    fenced = current_leader_epoch < leader_epoch
    raise KafkaError(
        ErrorCode.FENCED_LEADER_EPOCH if fenced else ErrorCode.UNKNOWN_LEADER_EPOCH,
        f"{name} is led in epoch {leader_epoch}, not {current_leader_epoch}",
    )


class Parked:
    """A fetch that waits until `missing` more bytes were appended to its partitions, or something else
    happened."""

    __slots__ = ("_watching", "missing", "waiter", "woken")

    def __init__(self) -> None:
        self.missing = 0
        self.woken = False
        self.waiter: asyncio.Future[None] | None = None
        self._watching: list[set[Parked]] = []

    def watch(self, parked: set[Parked]) -> None:
        """Be among the `parked` of a partition from now on: who leads it wakes them."""
        if self not in parked:
            parked.add(self)
            self._watching.append(parked)

    def leave(self) -> None:
        """Watch nothing any more."""
        for parked in self._watching:
            parked.discard(self)

    def credit(self, size: int) -> None:
        self.missing -= size
        if self.missing <= 0:
            self.wake()

    def wake(self) -> None:
        self.woken = True
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)

    @property
    def waits(self) -> bool:
        """Whether it goes on waiting, as far as is known."""
        return self.waiter is not None and not self.waiter.done()

    async def wait(self) -> None:
        if not self.woken:
            self.waiter = asyncio.get_running_loop().create_future()
            try:
                await self.waiter
            finally:
                self.waiter = None


class Source(Protocol):
    """Partitions that this broker leads, as requests read them. Codes of all: 3, 6, 56."""

    async def read(
        self, asked: Sequence[FetchPartition], max_bytes: int, parked: Parked, *, first_may_exceed: bool
    ) -> list[FetchedPartition]:
        """One look at each partition; what is appended from its beginning on is told to `parked`. Whole
        batches only, of `max_bytes` in all but for the first if `first_may_exceed`. Also 1, 74, 75."""

    async def list_offsets(
        self, topic: Topic, partition: int, timestamp: int, *, current_leader_epoch: int = -1
    ) -> Listed:
        """`timestamp`: epoch ms or a `ListTimestamp`. Which of them a request version may ask is the
        handler's check. Also 74, 75."""

    async def end_offset_for_epoch(
        self, topic: Topic, partition: int, epoch: int, *, current_leader_epoch: int = -1
    ) -> tuple[int, int]:
        """OffsetForLeaderEpoch: (largest epoch <= asked, its end offset), (-1, -1) if unknown. Also 74,
        75."""

    async def offsets(self, topic: Topic, partition: int) -> Bounds:
        """For lag and tests."""

    async def active_producers(self, topic: Topic, partition: int) -> list[ActiveProducer]:
        """DescribeProducers: who has written with a producer id and is not forgotten yet."""


class Elsewhere(Source, Protocol):
    """A topic whose records stand in no log."""

    def known(self, partition: int) -> Bounds | None:
        """As far as they are known at once."""

    async def look(self, partition: int) -> Bounds:
        """Also of partitions that others lead. OSError."""

    async def size(self, partition: int) -> int:
        """Bytes. OSError."""

    async def expire(self) -> None:
        """Retention, now; what fails is logged."""

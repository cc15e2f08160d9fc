"""What reads partitions, wherever their records stand: in logs (`partitions`) or in rows of the store
(`rows`)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from muster.coordinator.topics.aborted import AbortedTransaction
from muster.coordinator.topics.catalogue import Topic
from muster.coordinator.topics.log import Listed
from muster.coordinator.topics.producers import ActiveProducer
from muster.protocol.errors import ErrorCode, KafkaError

_T = TypeVar("_T")
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
    read_committed: bool = False


class ListPartition(Protocol):
    """One partition of a ListOffsets request, as its message has it."""

    partition_index: int
    timestamp: int
    """Epoch ms or a `ListTimestamp`."""
    current_leader_epoch: int
    """-1: not sent."""


class FetchedPartition(NamedTuple):
    """One partition's answer. On an error the offsets are -1 and there are no records."""

    error: KafkaError | None
    records: bytes | memoryview
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    leader_epoch: int
    diverging_epoch: tuple[int, int] | None = None  # (epoch, end offset)
    aborted: Sequence[AbortedTransaction] = ()  # among the records, for who reads committed ones


class Available(NamedTuple):
    """What is there of one partition's records, whatever one answer has room for."""

    size: int
    """Bytes that count towards the fewest that a fetch wants: up to the partition's limit."""
    high_watermark: int


NOTHING_AVAILABLE: Final = Available(0, -1)
"""Of a partition that cannot be read."""


def refused_partition(refusal: KafkaError) -> FetchedPartition:
    """The answer of a partition that cannot be read."""
    return FetchedPartition(refusal, b"", -1, -1, -1, -1)


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
    """A fetch that waits until `min_bytes` bytes are available in its partitions, or something else happens
    (Kafka's DelayedFetch)."""

    __slots__ = ("_missing_bytes", "_waiter", "_watched", "woken")

    def __init__(self, min_bytes: int) -> None:
        self.woken = False
        """There is nothing to wait for (any more)."""
        self._missing_bytes = min_bytes
        self._waiter: asyncio.Future[None] | None = None
        self._watched: list[Watched] = []

    def watch(self, watchers: dict[Watched, _T], start: _T, max_bytes: int) -> Watched:
        """Be among the `watchers` of a partition, of which at most `max_bytes` count; whoever leads it counts
        from `start`, and tells the result."""
        watched = Watched(self, watchers, max_bytes)
        watchers[watched] = start
        self._watched.append(watched)
        return watched

    def leave(self) -> None:
        """Watch nothing any more."""
        for watched in self._watched:
            watched.leave()

    def gain(self, size: int) -> None:
        """`size` more bytes are available."""
        self._missing_bytes -= size
        if self._missing_bytes <= 0:
            self.wake()

    def wake(self) -> None:
        self.woken = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    @property
    def waits(self) -> bool:
        """Whether it goes on waiting, as far as is known."""
        return self._waiter is not None and not self._waiter.done()

    async def wait(self) -> None:
        if not self.woken:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None


class Watched:
    """A partition of a fetch that waits."""

    __slots__ = ("_max_bytes", "_parked", "_watchers", "available_bytes")

    def __init__(self, parked: Parked, watchers: dict[Watched, Any], max_bytes: int) -> None:
        """Use `Parked.watch`."""
        self._parked = parked
        self._watchers = watchers
        self._max_bytes = max(max_bytes, 0)
        self.available_bytes = 0
        """See `Available.size`."""

    def see(self, size: int) -> None:
        """`size` bytes are there now."""
        before, self.available_bytes = self.available_bytes, min(size, self._max_bytes)
        self._parked.gain(self.available_bytes - before)

    def wake(self) -> None:
        """The fetch has nothing to wait for, however many bytes are there."""
        self._parked.wake()

    def leave(self) -> None:
        self._watchers.pop(self, None)


class Source(Protocol):
    """Partitions that this broker leads, as requests read them. Codes of all: 3, 6, 56."""

    async def read(
        self, asked: Sequence[FetchPartition], max_bytes: int, *, first_may_exceed: bool
    ) -> list[FetchedPartition]:
        """One look at each partition. Whole batches only, of `max_bytes` in all but for the first if
        `first_may_exceed`. Also 1, 74, 75."""

    async def watch(self, asked: Sequence[FetchPartition], parked: Parked) -> list[Available]:
        """Have `parked` watch each partition from now on, and say what is there. It is woken if there is
        nothing to wait for: a read would end before the log does, with an older segment, or be refused."""

    def listed(
        self, topic: Topic, asked: Sequence[ListPartition], *, read_committed: bool = False
    ) -> list[Listed | KafkaError | None]:
        """What `list_offsets` returns or raises for each partition, as far as that can be told at once; None:
        it is to be asked."""

    async def list_offsets(
        self,
        topic: Topic,
        partition: int,
        timestamp: int,
        *,
        current_leader_epoch: int = -1,
        read_committed: bool = False,
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

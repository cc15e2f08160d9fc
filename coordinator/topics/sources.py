"""The interface for reading partitions, wherever their records are: in logs (`partitions`) or in rows of the
store (`rows`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from muster.coordinator.topics.aborted import AbortedTransaction
from muster.coordinator.topics.catalogue import Topic
from muster.coordinator.topics.log import Listed
from muster.coordinator.topics.producers import ActiveProducer
from muster.protocol.errors import ErrorCode, KafkaError

_T = TypeVar("_T")
Bounds = tuple[int, int]
"""Log start offset and high watermark."""
Looked = Bounds | KafkaError | None
"""Where a partition begins and ends, or why there is no telling; None: not yet."""


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
    """One partition of a ListOffsets request, as in its message."""

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
    aborted: Sequence[AbortedTransaction] = ()  # among the records, for read_committed


class Available(NamedTuple):
    """What is available of one partition's records, whether or not it fits into one answer."""

    size: int
    """Bytes that count towards a fetch's minimum: up to the partition's limit."""
    high_watermark: int


NOTHING_AVAILABLE: Final = Available(0, -1)
"""For a partition that cannot be read."""


def refused_partition(refusal: KafkaError) -> FetchedPartition:
    """The answer for a partition that cannot be read."""
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
        """Whether there is nothing (more) to wait for."""
        self._missing_bytes = min_bytes
        self._waiter: asyncio.Future[None] | None = None
        self._watched: list[Watched] = []

    def watch(self, watchers: dict[Watched, _T], start: _T, max_bytes: int) -> Watched:
        """Join the `watchers` of a partition, of which at most `max_bytes` count; its leader counts from
        `start`, and reports the result."""
        watched = Watched(self, watchers, max_bytes)
        watchers[watched] = start
        self._watched.append(watched)
        return watched

    def leave(self) -> None:
        """Stop watching."""
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
        """Whether it is still waiting, as far as is known."""
        return self._waiter is not None and not self._waiter.done()

    async def wait(self) -> None:
        if not self.woken:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None


class Watched:
    """A partition of a waiting fetch."""

    __slots__ = ("_max_bytes", "_parked", "_watchers", "available_bytes")

    def __init__(self, parked: Parked, watchers: dict[Watched, Any], max_bytes: int) -> None:
        """Use `Parked.watch`."""
        self._parked = parked
        self._watchers = watchers
        self._max_bytes = max(max_bytes, 0)
        self.available_bytes = 0
        """See `Available.size`."""

    def see(self, size: int) -> None:
        """`size` bytes are available now."""
        before, self.available_bytes = self.available_bytes, min(size, self._max_bytes)
        self._parked.gain(self.available_bytes - before)

    def wake(self) -> None:
        """The fetch has nothing to wait for, however many bytes are available."""
        self._parked.wake()

    def leave(self) -> None:
        self._watchers.pop(self, None)


class Source(Protocol):
    """Partitions that this broker leads, as requests read them. Codes of all methods: 3, 6, 56."""

    async def read(
        self, asked: Sequence[FetchPartition], room: Callable[[int], int], *, first_may_exceed: bool
    ) -> list[FetchedPartition]:
        """Read each partition once. Whole batches only, of `room(wanted)` bytes in all except the first if
        `first_may_exceed`; `wanted`: the limits of the partitions that may have something to read. Also 1,
        74, 75."""

    async def watch(self, asked: Sequence[FetchPartition], parked: Parked) -> list[Available]:
        """Have `parked` watch each partition from now on, and return what is available. It is woken if there
        is nothing to wait for: a read would end before the log does, with an older segment, or be refused."""

    def listed(
        self, topic: Topic, asked: Sequence[ListPartition], *, read_committed: bool = False
    ) -> list[Listed | KafkaError | None]:
        """What `list_offsets` returns or raises for each partition, if known at once; None: call it."""

    async def list_offsets(
        self,
        topic: Topic,
        partition: int,
        timestamp: int,
        *,
        current_leader_epoch: int = -1,
        read_committed: bool = False,
    ) -> Listed:
        """`timestamp`: epoch ms or a `ListTimestamp`. The handler checks which of them a request version may
        use. Also 74, 75."""

    async def end_offset_for_epoch(
        self, topic: Topic, partition: int, epoch: int, *, current_leader_epoch: int = -1
    ) -> tuple[int, int]:
        """OffsetForLeaderEpoch: (largest epoch <= asked, its end offset), (-1, -1) if unknown. Also 74,
        75."""

    async def offsets(self, topic: Topic, partition: int) -> Bounds:
        """Log start offset and high watermark, for lag and tests."""

    async def active_producers(self, topic: Topic, partition: int) -> list[ActiveProducer]:
        """DescribeProducers: the producers that have written with an id and are not forgotten yet."""


class Elsewhere(Source, Protocol):
    """A topic whose records are in no log."""

    def known(self, partition: int) -> Bounds | None:
        """The bounds, if known at once."""

    async def look(self, partition: int) -> Bounds:
        """The bounds, also of partitions that others lead. OSError."""

    async def size(self, partition: int) -> int:
        """Size in bytes. OSError."""

    async def expire(self) -> None:
        """Apply retention now; failures are logged."""

"""Topics whose records are rows of the store: a partition for each lease of a kind, led by whoever holds it.

Batches are made on request, so their leader epoch is that of the leader who was asked. As a row is durable
before anybody sees it, and is never taken back, no epoch ends before the log does. For a partition that
nobody reads, only the number and the epoch of its lease are held.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar, Final, NamedTuple

from muster.coordinator.base.clock import Clock
from muster.coordinator.base.log import Logger
from muster.coordinator.storage.store import Lease, LeaseKind, Store, StoreDamaged, StoreError
from muster.coordinator.topics.catalogue import Topic
from muster.coordinator.topics.log import NOTHING_LISTED, Listed, ListTimestamp
from muster.coordinator.topics.producers import ActiveProducer
from muster.coordinator.topics.sources import (
    NOTHING_AVAILABLE,
    Available,
    Bounds,
    FetchedPartition,
    FetchPartition,
    ListPartition,
    Parked,
    Watched,
    check_epoch,
    refused_partition,
)
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.record_batch import HEADER_BYTES, Record, build

BATCH_RECORDS_MAX: Final = 500
"""Records in one batch, which is made within one turn of the loop, in about two milliseconds."""
_OFFSET_DELTA_MAX: Final = 2**31 - 1
_RECORD_OVERHEAD_BYTES: Final = 32
"""More than a record takes beside its key and value: lengths, deltas, attributes, the header count."""

_log = Logger(part="topics")


class RowBounds(NamedTuple):
    """Offsets from `start` to below `end`."""

    start: int
    end: int
    size_bytes: int
    """Of all keys and values."""


class RowsRead(NamedTuple):
    """Some rows of a partition, as readers see them."""

    records: Sequence[Record]
    end: int
    """The offset after the last row, even if that is hidden from readers."""
    rows: int
    """Number of rows, including hidden ones."""


class LedRows:
    """One partition, while its lease is held in one epoch."""

    __slots__ = ("bounds", "changes", "damage", "epoch", "lease", "watchers", "written_bytes")

    def __init__(self, lease: Lease, epoch: int) -> None:
        self.lease = lease
        self.epoch = epoch
        self.watchers: dict[Watched, int] = {}
        """Those of waiting fetches, with the value of `written_bytes` at the point they will read from."""
        self.written_bytes = 0  # as far as anybody watched
        self.bounds: Bounds | None = None  # None: must be queried
        self.changes = 0  # of the bounds
        self.damage = ""  # the last that was logged

    @property
    def number(self) -> int:
        """The number of the lease and of the partition."""
        return self.lease.number

    def changed(self) -> None:
        """Rows came or went."""
        self.bounds = None
        self.changes += 1

    def credit(self, size_bytes: int) -> None:
        """Tell waiting fetches of this many more bytes."""
        self.written_bytes += size_bytes
        for watched, start in self.watchers.items():
            watched.see(self.written_bytes - start)


class RowPartitions(ABC):
    """The partitions of one such topic that one broker leads; an `Elsewhere`. Lives on its event loop.

    The broker calls `own`/`disown` as its leases of the kind come and go. Refusals are those of
    `Partitions`: 1 for an offset that does not exist, 3, 6, 56 when the store fails, 74, 75.
    """

    kind: ClassVar[LeaseKind]
    """The kind of the leases whose holders lead the partitions."""
    gapless: ClassVar[bool]
    """Whether every offset from start to end has a record, so that a missing one was removed."""
    read_rows_max: ClassVar[int]
    """The most rows that one read returns."""

    def __init__(
        self, topic: Topic, store: Store, clock: Clock, *, node_id: int, serving: Callable[[Lease], bool]
    ) -> None:
        """`topic` says how many partitions there are and what is kept; `serving`: whether a lease is
        certainly still this broker's, called at each use."""
        self.topic = topic
        self._store = store
        self._clock = clock
        self._node_id = node_id
        self._serving = serving
        self._led: dict[int, LedRows] = {}
        self._closed = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} node={self._node_id} led={len(self._led)}>"

    # --- what a topic says of its rows ------------------------------------------------------------

    @abstractmethod
    async def _stored_bounds(self, lease: Lease) -> RowBounds:
        """The bounds of the stored rows. StoreError."""

    async def _stored_ends(self, lease: Lease) -> Bounds:
        """Start and end of `_stored_bounds`. StoreError."""
        return (await self._stored_bounds(lease))[:2]

    @abstractmethod
    async def _stored_rows(self, lease: Lease, offset: int, *, bytes_max: int) -> RowsRead:
        """Rows from `offset` on, up to `bytes_max` in all, but at least one if there is any. StoreError."""

    @abstractmethod
    async def _stored_at(self, lease: Lease, timestamp: int) -> tuple[int, int] | None:
        """Offset and timestamp of the first row at or after `timestamp`, or of the first with the highest
        timestamp (ListTimestamp.MAX_TIMESTAMP); None when there is none. StoreError."""

    @abstractmethod
    async def expire(self) -> None:
        """See `Elsewhere`."""

    # --- leadership -------------------------------------------------------------------------------

    def own(self, number: int, epoch: int) -> None:
        """This broker holds lease `number` in `epoch`, which is the leader epoch of the partition."""
        led = self._led.get(number)
        if self._closed or (led is not None and led.epoch >= epoch):
            return
        self.disown(number)
        self._led[number] = LedRows(self._lease(number), epoch)

    def disown(self, number: int) -> None:
        """The lease is lost or about to be released: refuse at once; waiting fetches get 6."""
        led = self._led.pop(number, None)
        for watched in () if led is None else led.watchers:
            watched.wake()

    async def close(self) -> None:
        """Refuse new work, and finish what runs."""
        self._end()

    def abandon(self) -> None:
        """As if the process died."""
        self._end()

    def _end(self) -> None:
        self._closed = True
        for number in list(self._led):
            self.disown(number)

    def _lease(self, number: int) -> Lease:
        return Lease(self.kind, number)

    def _leading(self, topic: Topic, partition: int) -> LedRows:
        if not 0 <= partition < topic.partitions:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {topic.name}-{partition}"
            )
        led = self._led.get(partition)
        if led is None or not self._holds(led):
            raise KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"broker {self._node_id} does not lead {topic.name}-{partition}",
            )
        return led

    def _holds(self, led: LedRows) -> bool:
        return self._led.get(led.number) is led and self._serving(led.lease)

    # --- reading ----------------------------------------------------------------------------------

    async def read(
        self, asked: Sequence[FetchPartition], room: Callable[[int], int], *, first_may_exceed: bool
    ) -> list[FetchedPartition]:
        """See `Source`. Partitions that have nothing new cost no trip to the store."""
        answers = []
        max_bytes = room(sum(max(part.max_bytes, 0) for part in asked))
        for part in asked:
            limit = max(0, min(max_bytes, part.max_bytes))
            try:
                answer = await self._read(part, limit, first_may_exceed=first_may_exceed)
            except KafkaError as refusal:
                answer = refused_partition(refusal)
            max_bytes -= len(answer.records)
            first_may_exceed = first_may_exceed and not answer.records
            answers.append(answer)
            if answer.records:
                await asyncio.sleep(0)  # a batch takes its time, and there may be one of every partition
        return answers

    async def _read(self, part: FetchPartition, limit: int, *, first_may_exceed: bool) -> FetchedPartition:
        led = self._leading(part.topic, part.partition)
        check_epoch(self._name(led), led.epoch, part.current_leader_epoch)
        start, end = await self._bounds(led)
        offset = part.fetch_offset
        if part.last_fetched_epoch > led.epoch:
            raise self._out_of_range(led, offset, start, end)
        if part.last_fetched_epoch >= 0 and offset > end:
            return FetchedPartition(None, b"", end, end, start, led.epoch, (part.last_fetched_epoch, end))
        if not start <= offset <= end:
            raise self._out_of_range(led, offset, start, end)
        found = b""
        if offset < end and (limit or first_may_exceed):
            with self._asking(led):
                read = await self._stored_rows(led.lease, offset, bytes_max=limit)
            records = read.records
            if self.gapless and (not records or records[0].offset > offset):  # trimmed meanwhile
                led.changed()
                raise self._out_of_range(led, offset, records[0].offset if records else end, end)
            if read.end > end:  # more was appended, and is about to be reported
                led.changed()
                end = read.end
            found = await _batches(read, offset, limit, led.epoch, first_may_exceed=first_may_exceed)
        return FetchedPartition(None, found, end, end, start, led.epoch)

    async def watch(self, asked: Sequence[FetchPartition], parked: Parked) -> list[Available]:
        """See `Source`. A read that returns as many rows as it may is like a segment's end: more rows would
        not make the answer longer."""
        available = []
        for part in asked:
            try:
                available.append(await self._watch(part, parked))
            except KafkaError:
                parked.wake()
                available.append(NOTHING_AVAILABLE)
        return available

    async def _watch(self, part: FetchPartition, parked: Parked) -> Available:
        led = self._leading(part.topic, part.partition)
        check_epoch(self._name(led), led.epoch, part.current_leader_epoch)
        # Before the store is queried: better to count what is written meanwhile twice than to miss it.
        written_bytes = led.written_bytes
        watched = parked.watch(led.watchers, written_bytes, part.max_bytes)
        size = 0
        _, end = await self._bounds(led)
        if part.fetch_offset < end:
            with self._asking(led):
                read = await self._stored_rows(led.lease, part.fetch_offset, bytes_max=part.max_bytes)
            if read.rows >= self.read_rows_max:
                parked.wake()
            size = sum(map(_size, read.records))
        led.watchers[watched] = written_bytes - size
        watched.see(led.written_bytes - written_bytes + size)
        return Available(watched.available_bytes, end)

    def listed(
        self, topic: Topic, asked: Sequence[ListPartition], *, read_committed: bool = False
    ) -> list[Listed | KafkaError | None]:
        """See `Source`."""
        return [None] * len(asked)

    async def list_offsets(
        self,
        topic: Topic,
        partition: int,
        timestamp: int,
        *,
        current_leader_epoch: int = -1,
        read_committed: bool = False,
    ) -> Listed:
        """See `Source`. All rows are committed."""
        led = self._leading(topic, partition)
        check_epoch(self._name(led), led.epoch, current_leader_epoch)
        match timestamp:
            case ListTimestamp.LATEST:
                return Listed((await self._bounds(led))[1], -1, led.epoch)
            case ListTimestamp.EARLIEST | ListTimestamp.EARLIEST_LOCAL:
                return Listed((await self._bounds(led))[0], -1, led.epoch)
            case ListTimestamp.LATEST_TIERED | ListTimestamp.EARLIEST_PENDING_UPLOAD:
                return NOTHING_LISTED  # nothing is tiered
            case _ if timestamp >= 0 or timestamp == ListTimestamp.MAX_TIMESTAMP:
                return await self._at_time(led, timestamp)
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"timestamp {timestamp} is not supported")

    async def _at_time(self, led: LedRows, timestamp: int) -> Listed:
        with self._asking(led):
            found = await self._stored_at(led.lease, timestamp)
        return NOTHING_LISTED if found is None else Listed(*found, led.epoch)

    async def end_offset_for_epoch(
        self, topic: Topic, partition: int, epoch: int, *, current_leader_epoch: int = -1
    ) -> tuple[int, int]:
        """See `Source`, and the module's docstring."""
        led = self._leading(topic, partition)
        check_epoch(self._name(led), led.epoch, current_leader_epoch)
        return (epoch, (await self._bounds(led))[1]) if 0 <= epoch <= led.epoch else (-1, -1)

    async def offsets(self, topic: Topic, partition: int) -> Bounds:
        """See `Source`."""
        return await self._bounds(self._leading(topic, partition))

    async def active_producers(self, topic: Topic, partition: int) -> list[ActiveProducer]:
        """See `Source`. Always empty: nobody produces to the topic. (Whose transactions commit offsets, the
        group coordinator knows.)"""
        self._leading(topic, partition)
        return []

    def known(self, partition: int) -> Bounds | None:
        """See `Elsewhere`."""
        led = self._led.get(partition)
        return None if led is None else led.bounds

    async def look(self, partition: int) -> Bounds:
        """See `Elsewhere`."""
        with _as_os_error():
            return await self._stored_ends(self._lease(partition))

    async def size(self, partition: int) -> int:
        """See `Elsewhere`."""
        with _as_os_error():
            return (await self._stored_bounds(self._lease(partition))).size_bytes

    async def _bounds(self, led: LedRows) -> Bounds:
        if led.bounds is None:
            changes = led.changes
            with self._asking(led):
                bounds = await self._stored_ends(led.lease)
            if led.changes != changes:
                return bounds  # they have changed by now
            led.bounds = bounds
        return led.bounds

    @contextmanager
    def _asking(self, led: LedRows) -> Iterator[None]:
        """Wrap queries to the store. Its answer may be outdated, and is refused, if the lease was lost
        meanwhile."""
        try:
            yield
        except StoreError as error:
            if isinstance(error, StoreDamaged) and led.damage != str(error):
                led.damage = str(error)  # consumers ask again and again
                _log.error("records are damaged", partition=self._name(led), why=led.damage)
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"cannot read {self._name(led)}: {error}"
            ) from error
        if not self._holds(led):
            raise KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"broker {self._node_id} no longer leads {self._name(led)}",
            )

    def _name(self, led: LedRows) -> str:
        return f"{self.topic.name}-{led.number}"

    def _out_of_range(self, led: LedRows, offset: int, start: int, end: int) -> KafkaError:
        return KafkaError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"offset {offset} of {self._name(led)} is outside its log, {start} to {end}",
        )


@contextmanager
def _as_os_error() -> Iterator[None]:
    try:
        yield
    except StoreError as error:
        raise OSError(str(error)) from error


async def _batches(
    read: RowsRead, offset: int, limit: int, leader_epoch: int, *, first_may_exceed: bool
) -> bytes:
    """Batches of as many records from `offset` on as fit into `limit` bytes; the first one anyway if it may
    exceed it. Hidden rows at the end are covered by the last batch, which has no records if there are no
    other rows, so that readers get past them."""
    records = read.records
    if not records:
        if read.end == offset or (limit < HEADER_BYTES and not first_may_exceed):
            return b""
        last = min(read.end - 1, offset + _OFFSET_DELTA_MAX)
        return build((), base_offset=offset, last_offset=last, leader_epoch=leader_epoch)
    made: list[bytes] = []
    at = 0
    while at < len(records):
        some = _fitting(records[at : at + BATCH_RECORDS_MAX], limit, first_may_exceed=first_may_exceed)
        if not some:
            break
        if made:
            await asyncio.sleep(0)  # a batch takes its time
        at += len(some)
        last = some[-1].offset
        if at == len(records):
            last = min(read.end - 1, some[0].offset + _OFFSET_DELTA_MAX)
        made.append(build(some, last_offset=last, leader_epoch=leader_epoch))
        limit -= len(made[-1])
        first_may_exceed = False
    return b"".join(made)


def _fitting(records: Sequence[Record], limit: int, *, first_may_exceed: bool) -> Sequence[Record]:
    """The first `records` whose batch takes at most `limit` bytes; the very first anyway if it may exceed
    it. Offsets that are too far apart go into different batches."""
    size = HEADER_BYTES
    for count, record in enumerate(records):
        if record.offset - records[0].offset > _OFFSET_DELTA_MAX:
            return records[:count]
        size += _size(record)
        if size > limit and (count or not first_may_exceed):
            return records[:count]
    return records


def _size(record: Record) -> int:
    """The most bytes it takes in a batch."""
    return len(record.key or b"") + len(record.value or b"") + _RECORD_OVERHEAD_BYTES

"""The topic `__group_events`: the journals of the group shards, as clients read them.

Partition n is the journal of group lease n, and whoever holds the lease leads it. A row is a record; batches
are made when they are asked for, so their leader epoch is that of the leader who was asked. As a row is
durable before anybody sees it, and is never taken back, no epoch ends before the log does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import ceil
from typing import Final

from muster.coordinator.observe.log import Logger
from muster.coordinator.runtime.clock import Clock
from muster.coordinator.storage.store import (
    JournalBounds,
    Lease,
    LeaseKind,
    Store,
    StoreDamaged,
    StoredJournalRow,
    StoreError,
)
from muster.coordinator.topics.catalogue import Topic
from muster.coordinator.topics.log import NOTHING_LISTED, Listed, ListTimestamp
from muster.coordinator.topics.producers import ActiveProducer
from muster.coordinator.topics.sources import (
    NOTHING_AVAILABLE,
    Available,
    Bounds,
    FetchedPartition,
    FetchPartition,
    Parked,
    Watched,
    check_epoch,
    refused_partition,
)
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.record_batch import HEADER_BYTES, Record, build

READ_ROWS_MAX: Final = 500
"""Rows in one batch: it is made within a turn of the loop, in some two milliseconds."""
TRIMMED_ROWS_MAX: Final = 1_000
"""Rows that one transaction of the store removes."""
_RECORD_OVERHEAD_BYTES: Final = 32
"""More than a record has beside its key and value: lengths, differences, attributes, the count of headers."""
_GROWTH_SHARE: Final = 8
"""Of the retention bytes, a partition may gain one part in so many before it is looked at again."""

_log = Logger(part="events")


class _Led:
    """One partition, for as long as its lease is held in one epoch."""

    __slots__ = ("bounds", "changes", "damage", "epoch", "grown_bytes", "number", "watchers", "written_bytes")

    def __init__(self, number: int, epoch: int) -> None:
        self.number = number
        self.epoch = epoch
        self.watchers: dict[Watched, int] = {}
        """Of fetches that wait, with what `written_bytes` was where they are going to read."""
        self.written_bytes = 0
        self.bounds: JournalBounds | None = None  # None: to be asked for
        self.changes = 0  # of the bounds
        self.grown_bytes = 0  # since it was trimmed
        self.damage = ""  # the last that was logged

    @property
    def lease(self) -> Lease:
        return Lease(LeaseKind.GROUP, self.number)

    def changed(self) -> None:
        self.bounds = None
        self.changes += 1


class GroupEvents:
    """The partitions of `__group_events` that one broker leads. Lives on its event loop.

    The broker calls `own`/`disown` with what happens to its group leases, and `written` when rows are
    durable. Refusals are as those of `Partitions`: 1 for an offset that is not there, 3, 6, 56 when the store
    fails, 74, 75.
    """

    def __init__(
        self, topic: Topic, store: Store, clock: Clock, *, node_id: int, serving: Callable[[Lease], bool]
    ) -> None:
        """`topic` says how many partitions there are and what is kept; `serving`: whether a lease certainly
        still is this broker's, asked at each use."""
        self.topic = topic
        self._store = store
        self._clock = clock
        self._node_id = node_id
        self._serving = serving
        self._led: dict[int, _Led] = {}
        self._trimming = asyncio.Lock()
        self._trims: dict[int, asyncio.Task[None]] = {}
        self._closed = False

    def __repr__(self) -> str:
        return f"<GroupEvents node={self._node_id} led={len(self._led)}>"

    # --- leadership -------------------------------------------------------------------------------

    def own(self, number: int, epoch: int) -> None:
        """This broker holds group lease `number` in `epoch`, which is the leader epoch of the partition."""
        led = self._led.get(number)
        if self._closed or (led is not None and led.epoch >= epoch):
            return
        self.disown(number)
        self._led[number] = _Led(number, epoch)

    def disown(self, number: int) -> None:
        """The lease is lost or about to be released: refuse at once; fetches that wait get 6."""
        led = self._led.pop(number, None)
        for watched in () if led is None else led.watchers:
            watched.wake()

    def written(self, number: int, size_bytes: int) -> None:
        """Rows of `size_bytes` in all are durable in the journal of group lease `number`. Does not raise."""
        led = self._led.get(number)
        if led is None:
            return
        led.changed()
        led.written_bytes += size_bytes
        for watched, start in led.watchers.items():
            watched.see(led.written_bytes - start)
        led.grown_bytes += size_bytes
        due = led.grown_bytes > self.topic.config.retention_bytes // _GROWTH_SHARE
        if due and number not in self._trims:
            task = asyncio.get_running_loop().create_task(self._trim(led), name="trim events")
            self._trims[number] = task
            task.add_done_callback(lambda _: self._trims.pop(number))

    async def close(self) -> None:
        """Refuse new work, and finish what runs."""
        self._end()
        if self._trims:
            await asyncio.wait(self._trims.values())

    def abandon(self) -> None:
        """As if the process died."""
        self._end()
        for task in self._trims.values():
            task.cancel()

    def _end(self) -> None:
        self._closed = True
        for number in list(self._led):
            self.disown(number)

    def _leading(self, topic: Topic, partition: int) -> _Led:
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

    def _holds(self, led: _Led) -> bool:
        return self._led.get(led.number) is led and self._serving(led.lease)

    # --- reading ----------------------------------------------------------------------------------

    async def read(
        self, asked: Sequence[FetchPartition], max_bytes: int, *, first_may_exceed: bool
    ) -> list[FetchedPartition]:
        """See `Source`. Partitions that have nothing new cost no trip to the store."""
        answers = []
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
        start, end, _ = await self._bounds(led)
        offset = part.fetch_offset
        if part.last_fetched_epoch > led.epoch:
            raise self._out_of_range(led, offset, start, end)
        if part.last_fetched_epoch >= 0 and offset > end:
            return FetchedPartition(None, b"", end, start, led.epoch, (part.last_fetched_epoch, end))
        if not start <= offset <= end:
            raise self._out_of_range(led, offset, start, end)
        rows: list[StoredJournalRow] = []
        if offset < end and (limit or first_may_exceed):
            with self._asking(led):
                rows = await self._store.read_journal(
                    led.lease, offset, rows_max=READ_ROWS_MAX, bytes_max=limit
                )
            if not rows or rows[0].offset > offset:  # trimmed meanwhile
                led.changed()
                raise self._out_of_range(led, offset, rows[0].offset if rows else end, end)
            if rows[-1].offset >= end:  # `written` is about to tell
                led.changed()
                end = rows[-1].offset + 1
            rows = _fitting(rows, limit, first_may_exceed=first_may_exceed)
        return FetchedPartition(None, _batch(rows, led.epoch) if rows else b"", end, start, led.epoch)

    async def watch(self, asked: Sequence[FetchPartition], parked: Parked) -> list[Available]:
        """See `Source`. A batch that has all the rows it may have is as a segment's end: no more of them make
        the answer longer."""
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
        rows: list[StoredJournalRow] = []
        # Before the store is asked: what is written meanwhile is rather counted twice than missed.
        written_bytes = led.written_bytes
        _, end, _ = await self._bounds(led)
        if part.fetch_offset < end:
            with self._asking(led):
                rows = await self._store.read_journal(
                    led.lease, part.fetch_offset, rows_max=READ_ROWS_MAX, bytes_max=part.max_bytes
                )
            if len(rows) >= READ_ROWS_MAX:
                parked.wake()
        size = sum(row.size_bytes + _RECORD_OVERHEAD_BYTES for row in rows)
        watched = parked.watch(led.watchers, written_bytes - size, part.max_bytes)
        watched.see(led.written_bytes - written_bytes + size)
        return Available(watched.available_bytes, end)

    async def list_offsets(
        self, topic: Topic, partition: int, timestamp: int, *, current_leader_epoch: int = -1
    ) -> Listed:
        """See `Source`."""
        led = self._leading(topic, partition)
        check_epoch(self._name(led), led.epoch, current_leader_epoch)
        match timestamp:
            case ListTimestamp.LATEST:
                return Listed((await self._bounds(led)).end, -1, led.epoch)
            case ListTimestamp.EARLIEST | ListTimestamp.EARLIEST_LOCAL:
                return Listed((await self._bounds(led)).start, -1, led.epoch)
            case ListTimestamp.LATEST_TIERED | ListTimestamp.EARLIEST_PENDING_UPLOAD:
                return NOTHING_LISTED  # nothing is tiered
            case _ if timestamp >= 0 or timestamp == ListTimestamp.MAX_TIMESTAMP:
                return await self._at_time(led, timestamp)
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"no offsets are listed for timestamp {timestamp}")

    async def _at_time(self, led: _Led, timestamp: int) -> Listed:
        with self._asking(led):
            if timestamp == ListTimestamp.MAX_TIMESTAMP:
                offset = await self._store.journal_newest(led.lease)
            else:
                offset = await self._store.journal_offset_at(led.lease, timestamp)
            if offset is None:
                return NOTHING_LISTED
            rows = await self._store.read_journal(led.lease, offset, rows_max=1, bytes_max=0)
        # It may have been trimmed meanwhile; then what comes next is the first there is.
        return Listed(rows[0].offset, rows[0].at_ms, led.epoch) if rows else NOTHING_LISTED

    async def end_offset_for_epoch(
        self, topic: Topic, partition: int, epoch: int, *, current_leader_epoch: int = -1
    ) -> tuple[int, int]:
        """See `Source`, and the module."""
        led = self._leading(topic, partition)
        check_epoch(self._name(led), led.epoch, current_leader_epoch)
        return (epoch, (await self._bounds(led)).end) if 0 <= epoch <= led.epoch else (-1, -1)

    async def offsets(self, topic: Topic, partition: int) -> Bounds:
        """See `Source`."""
        return (await self._bounds(self._leading(topic, partition)))[:2]

    async def active_producers(self, topic: Topic, partition: int) -> list[ActiveProducer]:
        """Nobody produces to it."""
        self._leading(topic, partition)
        return []

    def known(self, partition: int) -> Bounds | None:
        """See `Elsewhere`."""
        led = self._led.get(partition)
        return None if led is None or led.bounds is None else led.bounds[:2]

    async def look(self, partition: int) -> Bounds:
        """See `Elsewhere`."""
        return (await self._stored(partition))[:2]

    async def size(self, partition: int) -> int:
        """See `Elsewhere`."""
        return (await self._stored(partition)).size_bytes

    async def _stored(self, partition: int) -> JournalBounds:
        try:
            return await self._store.journal_bounds(Lease(LeaseKind.GROUP, partition))
        except StoreError as error:
            raise OSError(str(error)) from error

    async def _bounds(self, led: _Led) -> JournalBounds:
        if led.bounds is None:
            changes = led.changes
            with self._asking(led):
                bounds = await self._store.journal_bounds(led.lease)
            if led.changes != changes:
                return bounds  # there are others by now
            led.bounds = bounds
        return led.bounds

    @contextmanager
    def _asking(self, led: _Led) -> Iterator[None]:
        """Around questions to the store. What it said is not known to be so any more if the lease went while
        it was asked."""
        try:
            yield
        except StoreError as error:
            if isinstance(error, StoreDamaged) and led.damage != str(error):
                led.damage = str(error)  # consumers ask again and again
                _log.error("events are damaged", partition=self._name(led), why=led.damage)
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"cannot read {self._name(led)}: {error}"
            ) from error
        if not self._holds(led):
            raise KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"broker {self._node_id} no longer leads {self._name(led)}",
            )

    def _name(self, led: _Led) -> str:
        return f"{self.topic.name}-{led.number}"

    def _out_of_range(self, led: _Led, offset: int, start: int, end: int) -> KafkaError:
        return KafkaError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"offset {offset} of {self._name(led)} is not in its log, {start} to {end}",
        )

    # --- retention --------------------------------------------------------------------------------

    async def expire(self) -> None:
        """See `Elsewhere`: trim all that is led here."""
        for led in list(self._led.values()):
            await self._trim(led)

    async def _trim(self, led: _Led) -> None:
        """Remove rows as long as the first is too old or all are too large, some at a time."""
        try:
            async with self._trimming:
                led.grown_bytes = 0
                while not self._closed and self._holds(led):
                    before = await self._kept_from(led)
                    if before is None or not await self._store.trim_journal(led.lease, led.epoch, before):
                        break
                    led.changed()
        except StoreError as error:
            _log.warning("events could not be trimmed", partition=self._name(led), why=str(error))

    async def _kept_from(self, led: _Led) -> int | None:
        """The offset below which rows may go now; None when there are none."""
        start, end, size_bytes = await self._store.journal_bounds(led.lease)
        before = start
        config = self.topic.config
        if config.retention_ms >= 0 and start < end:
            oldest_ms = self._clock.now_ms() - config.retention_ms
            kept = await self._store.journal_offset_at(led.lease, oldest_ms)
            before = end if kept is None else kept
        surplus_bytes = size_bytes - config.retention_bytes
        if surplus_bytes > 0:
            # As many as that is on average: a row that cannot be read must not keep others from going.
            before = max(before, start + ceil(surplus_bytes * (end - start) / size_bytes))
        return min(before, start + TRIMMED_ROWS_MAX) if before > start else None


def _fitting(rows: list[StoredJournalRow], limit: int, *, first_may_exceed: bool) -> list[StoredJournalRow]:
    """The first of `rows` whose batch has at most `limit` bytes; the first one anyway if it may exceed it."""
    size = HEADER_BYTES
    for count, row in enumerate(rows):
        size += row.size_bytes + _RECORD_OVERHEAD_BYTES
        if size > limit and (count or not first_may_exceed):
            return rows[:count]
    return rows


def _batch(rows: Sequence[StoredJournalRow], leader_epoch: int) -> bytes:
    return build(
        [Record(row.offset, row.at_ms, row.key, row.value) for row in rows], leader_epoch=leader_epoch
    )

"""The topic `__group_events`: the journals of the group shards, as clients read them (see `rows`).

Partition n is the journal of group lease n. A row is a record.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import ceil
from typing import Final

from muster.coordinator.base.clock import Clock
from muster.coordinator.base.log import Logger
from muster.coordinator.storage.store import Lease, LeaseKind, Store, StoreError
from muster.coordinator.topics.catalogue import Topic
from muster.coordinator.topics.log import ListTimestamp
from muster.coordinator.topics.rows import BATCH_RECORDS_MAX, LedRows, RowBounds, RowPartitions, RowsRead
from muster.protocol.record_batch import Record

TRIMMED_ROWS_MAX: Final = 1_000
"""Rows that one transaction of the store removes."""
_GROWTH_SHARE: Final = 8
"""A partition may grow by one part in this many of its retention bytes before it is checked again."""

_log = Logger(part="events")


class GroupEvents(RowPartitions):
    """The partitions of `__group_events` that one broker leads. `written` must be called when rows are
    durable."""

    kind = LeaseKind.GROUP
    gapless = True
    read_rows_max = BATCH_RECORDS_MAX

    def __init__(
        self, topic: Topic, store: Store, clock: Clock, *, node_id: int, serving: Callable[[Lease], bool]
    ) -> None:
        """As `RowPartitions`."""
        super().__init__(topic, store, clock, node_id=node_id, serving=serving)
        self._grown_bytes: dict[int, int] = {}  # of partitions led here, since they were trimmed
        self._trimming = asyncio.Lock()
        self._trims: dict[int, asyncio.Task[None]] = {}

    def written(self, number: int, size_bytes: int) -> None:
        """Rows of `size_bytes` in all are durable in the journal of group lease `number`. Does not raise."""
        led = self._led.get(number)
        if led is None:
            return
        led.changed()
        led.credit(size_bytes)
        grown_bytes = self._grown_bytes.get(number, 0) + size_bytes
        self._grown_bytes[number] = grown_bytes
        due = grown_bytes > self.topic.config.retention_bytes // _GROWTH_SHARE
        if due and number not in self._trims:
            task = asyncio.get_running_loop().create_task(self._trim(led), name="trim events")
            self._trims[number] = task
            task.add_done_callback(lambda _: self._trims.pop(number))

    def disown(self, number: int) -> None:
        super().disown(number)
        self._grown_bytes.pop(number, None)

    async def close(self) -> None:
        await super().close()
        if self._trims:
            await asyncio.wait(self._trims.values())

    def abandon(self) -> None:
        super().abandon()
        for task in self._trims.values():
            task.cancel()

    # --- reading ----------------------------------------------------------------------------------

    async def _stored_bounds(self, lease: Lease) -> RowBounds:
        return RowBounds(*await self._store.journal_bounds(lease))

    async def _stored_rows(
        self, lease: Lease, offset: int, *, bytes_max: int, rows_max: int = BATCH_RECORDS_MAX
    ) -> RowsRead:
        rows = await self._store.read_journal(lease, offset, rows_max=rows_max, bytes_max=bytes_max)
        records = [Record(row.offset, row.at_ms, row.key, row.value) for row in rows]
        return RowsRead(records, rows[-1].offset + 1 if rows else offset, len(rows))

    async def _stored_at(self, lease: Lease, timestamp: int) -> tuple[int, int] | None:
        if timestamp == ListTimestamp.MAX_TIMESTAMP:
            offset = await self._store.journal_newest(lease)
        else:
            offset = await self._store.journal_offset_at(lease, timestamp)
        if offset is None:
            return None
        # It may have been trimmed meanwhile; the next row is then the first there is.
        records = (await self._stored_rows(lease, offset, bytes_max=0, rows_max=1)).records
        return (records[0].offset, records[0].timestamp) if records else None

    # --- retention --------------------------------------------------------------------------------

    async def expire(self) -> None:
        """See `Elsewhere`: trims all partitions led here."""
        for led in list(self._led.values()):
            await self._trim(led)

    async def _trim(self, led: LedRows) -> None:
        """Remove rows, some at a time, while the first is too old or the total is too large."""
        try:
            async with self._trimming:
                self._grown_bytes.pop(led.number, None)
                while not self._closed and self._holds(led):
                    before = await self._kept_from(led)
                    if before is None or not await self._store.trim_journal(led.lease, led.epoch, before):
                        break
                    led.changed()
        except StoreError as error:
            _log.warning("failed to trim group events", partition=self._name(led), why=str(error))

    async def _kept_from(self, led: LedRows) -> int | None:
        """The offset below which rows may be removed now; None when there are none."""
        start, end, size_bytes = await self._store.journal_bounds(led.lease)
        before = start
        config = self.topic.config
        if config.retention_ms >= 0 and start < end:
            oldest_ms = self._clock.date_ms() - config.retention_ms
            kept = await self._store.journal_offset_at(led.lease, oldest_ms)
            before = end if kept is None else kept
        surplus_bytes = size_bytes - config.retention_bytes
        if surplus_bytes > 0:
            # As many rows as that is on average: an unreadable row must not keep others from being removed.
            before = max(before, start + ceil(surplus_bytes * (end - start) / size_bytes))
        return min(before, start + TRIMMED_ROWS_MAX) if before > start else None

"""Topics that show the records of a coordinator's shards, as clients read them (see `rows`).

Partition n holds the records of shard n, whose keys and values are already in Kafka's schemas. It reads like
Kafka's own compacted topic: the last value of each key, then what is written from then on, with a tombstone
for each delete. A record's offset is its `seq` in the store, which neither a restart nor another holder of
the lease changes, so a reader that comes back continues where it was. Tombstones stay for
delete.retention.ms, as in Kafka: a reader that is away for longer reads from the start to learn of deletes.

Rows hidden from readers are offsets without a record, as a cleaner leaves them.

Writers pay nothing for it: no row is kept, encoded or numbered for readers, and as there is no index on
`seq`, each read looks at every row of its shard.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Sequence
from typing import Final

from muster.coordinator.base.log import Logger
from muster.coordinator.storage.store import FIRST_SEQ, Lease, StoredRecord, StoreError
from muster.coordinator.topics.log import ListTimestamp
from muster.coordinator.topics.rows import BATCH_RECORDS_MAX, RowBounds, RowPartitions, RowsRead
from muster.protocol.errors import DecodeError
from muster.protocol.record_batch import Record

READ_ROWS_MAX: Final = 4 * BATCH_RECORDS_MAX
"""Rows that one read of the store returns: several batches, since each read looks at the whole shard."""
TOMBSTONES_MAX: Final = 100_000
"""Per partition; beyond it the oldest are removed before their time."""
_LOOKED_THROUGH_BYTES: Final = 1_048_576
NO_TIMESTAMP: Final = -1

_log = Logger(part="topics")


class KeyedRows(RowPartitions):
    """The partitions of such a topic that one broker leads. `written` must be called when records are
    durable."""

    gapless = False
    read_rows_max = READ_ROWS_MAX

    @abstractmethod
    def _made_ms(self, key: bytes, value: bytes) -> int:
        """When the record was made, according to its value; -1 if that does not say. DecodeError."""

    def _is_shown(self, key: bytes) -> bool:
        """Whether the record is visible to readers."""
        return True

    def written(self, number: int, records: Sequence[tuple[bytes, bytes | None]]) -> None:
        """`records` of shard `number` are durable. Does not raise."""
        led = self._led.get(number)
        if led is None:
            return
        led.changed()
        if led.watchers:
            led.credit(sum(len(key) + len(value or b"") for key, value in records if self._is_shown(key)))

    async def expire(self) -> None:
        """Remove the tombstones that have been kept long enough."""
        before_ms = self._clock.now_ms() - self.topic.config.delete_retention_ms
        for led in list(self._led.values()):
            try:
                removed = await self._store.remove_tombstones(
                    led.lease, led.epoch, before_ms=before_ms, count_max=TOMBSTONES_MAX
                )
            except StoreError as error:
                _log.warning("failed to remove tombstones", partition=self._name(led), why=str(error))
                return
            if removed:
                led.changed()

    # --- reading ----------------------------------------------------------------------------------

    async def _stored_bounds(self, lease: Lease) -> RowBounds:
        bounds = await self._store.record_bounds(lease)
        return RowBounds(0, bounds.next_seq - FIRST_SEQ, bounds.size_bytes)

    async def _stored_ends(self, lease: Lease) -> tuple[int, int]:
        return 0, await self._store.next_seq(lease) - FIRST_SEQ

    async def _stored_rows(self, lease: Lease, offset: int, *, bytes_max: int) -> RowsRead:
        rows = await self._store.read_records(
            lease, offset + FIRST_SEQ, rows_max=READ_ROWS_MAX, bytes_max=bytes_max
        )
        records = []
        for number, row in enumerate(rows, 1):
            if self._is_shown(row.key):
                records.append(Record(row.seq - FIRST_SEQ, self._timestamp(row), row.key, row.value))
            if not number % BATCH_RECORDS_MAX:
                await asyncio.sleep(0)
        end = rows[-1].seq - FIRST_SEQ + 1 if rows else offset
        return RowsRead(records, end, len(rows))

    def _timestamp(self, row: StoredRecord) -> int:
        if row.value is None:
            return row.deleted_ms
        try:
            return self._made_ms(row.key, row.value)
        except DecodeError:
            return NO_TIMESTAMP  # readers see for themselves

    async def _stored_at(self, lease: Lease, timestamp: int) -> tuple[int, int] | None:
        newest: tuple[int, int] | None = None
        offset = 0
        while True:
            read = await self._stored_rows(lease, offset, bytes_max=_LOOKED_THROUGH_BYTES)
            if not read.rows:
                return newest
            for record in read.records:
                if timestamp != ListTimestamp.MAX_TIMESTAMP:
                    if record.timestamp >= timestamp:
                        return record.offset, record.timestamp
                elif newest is None or record.timestamp > newest[1]:
                    newest = record.offset, record.timestamp
            offset = read.end

"""From the rows of a lease to a shard, by the same `apply` that the shard's own steps go through; and from
its journal to the newest entries."""

from __future__ import annotations

import asyncio
from typing import Final, cast

from muster.coordinator.base.log import Logger
from muster.coordinator.group.effects import Record
from muster.coordinator.group.shard import Shard
from muster.coordinator.journal.entries import Entry
from muster.coordinator.storage.store import Lease, Store, StoreError
from muster.protocol.message import Message
from muster.protocol.messages.coordinator_records import decode_record

_log: Final = Logger(part="groups")

_ROWS_PER_TURN = 1_000
_ENTRIES_MAX: Final = 1_000
_ENTRIES_BYTES_MAX: Final = 1_048_576
_ENTRIES_PER_TURN: Final = 100


async def load(store: Store, lease: Lease, shard: Shard) -> None:
    """Apply every live row of the lease, oldest first, giving the loop a turn now and then.

    Rows of unknown types are passed over, as Kafka does. Raises StoreError, or DecodeError for a row that is
    damaged: to serve a group without its offsets would send its consumers to the beginning.
    """
    for index, (_, key, value) in enumerate(await store.load(lease), 1):
        decoded = decode_record(key, value)
        if decoded is not None:
            # Every value starts with its schema version (int16).
            shard.apply(Record(decoded[0], cast(Message, decoded[1]), int.from_bytes(value[:2], "big")))
        if index % _ROWS_PER_TURN == 0:
            await asyncio.sleep(0)


async def newest_entries(store: Store, lease: Lease) -> list[Entry]:
    """The end of the lease's journal, oldest first. Never raises: groups are served without it too."""
    entries: list[Entry] = []
    try:
        start, end, _ = await store.journal_bounds(lease)
        if start == end:
            return entries
        count = _ENTRIES_MAX
        rows = await store.read_journal(lease, end - count, rows_max=count, bytes_max=_ENTRIES_BYTES_MAX)
        while rows and rows[-1].offset < end - 1 and count > 1:
            # Not all of them have room, and the newest are what is wanted.
            count = min(count, end - rows[0].offset) // 2
            rows = await store.read_journal(lease, end - count, rows_max=count, bytes_max=_ENTRIES_BYTES_MAX)
    except StoreError as error:
        _log.warning("the journal cannot be read", shard=lease.number, why=str(error))
        return entries
    for index, row in enumerate(rows, 1):
        try:
            entries.append(Entry.from_json(row.value))
        except ValueError as error:
            _log.warning("not an entry", shard=lease.number, offset=row.offset, why=str(error))
        if index % _ENTRIES_PER_TURN == 0:
            await asyncio.sleep(0)
    return entries

"""Loads a machine from the rows of a lease, and the newest entries from its journal."""

from __future__ import annotations

import asyncio
from typing import Final

from muster.coordinator.base.log import Logger
from muster.coordinator.journal.entries import Entry
from muster.coordinator.runtime.machine import Machine
from muster.coordinator.storage.store import Lease, Store, StoreError

_log: Final = Logger(part="groups")

_ROWS_PER_TURN = 1_000
_ENTRIES_MAX: Final = 1_000
_ENTRIES_BYTES_MAX: Final = 1_048_576
_ENTRIES_PER_TURN: Final = 100


async def load(store: Store, lease: Lease, machine: Machine) -> None:
    """Apply every live row of the lease, oldest first, yielding to the loop now and then.

    Raises StoreError, or DecodeError for a damaged row.
    """
    for index, (_, key, value) in enumerate(await store.load(lease), 1):
        machine.apply(key, value)
        if index % _ROWS_PER_TURN == 0:
            await asyncio.sleep(0)


async def newest_entries(store: Store, lease: Lease) -> list[Entry]:
    """Read the end of the lease's journal, oldest first. Never raises: groups are served without it too."""
    entries: list[Entry] = []
    try:
        start, end, _ = await store.journal_bounds(lease)
        if start == end:
            return entries
        count = _ENTRIES_MAX
        rows = await store.read_journal(lease, end - count, rows_max=count, bytes_max=_ENTRIES_BYTES_MAX)
        while rows and rows[-1].offset < end - 1 and count > 1:
            # Not all of them fit, and the newest are wanted.
            count = min(count, end - rows[0].offset) // 2
            rows = await store.read_journal(lease, end - count, rows_max=count, bytes_max=_ENTRIES_BYTES_MAX)
    except StoreError as error:
        _log.warning("cannot read the journal", shard=lease.number, why=str(error))
        return entries
    for index, row in enumerate(rows, 1):
        try:
            entries.append(Entry.from_json(row.value))
        except ValueError as unreadable:
            _log.warning(
                "skipped an unreadable journal row",
                shard=lease.number,
                offset=row.offset,
                why=str(unreadable),
            )
        if index % _ENTRIES_PER_TURN == 0:
            await asyncio.sleep(0)
    return entries

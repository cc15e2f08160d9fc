"""Leases' journals."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from muster.coordinator.storage.sqlite.batches import Inserts, Lookups
from muster.coordinator.storage.sqlite.schema import checksum
from muster.coordinator.storage.sqlite.statements.leases import lease_id_of, owned_in
from muster.coordinator.storage.store import JournalBounds, JournalRow, Lease, StoredJournalRow, whole_rows

_JOURNAL_ROWS: Final = Inserts(
    "journal_rows", ("lease_id", "row_offset", "at_ms", "key", "value", "checksum")
)
_JOURNALS: Final = Inserts(
    "journals",
    ("lease_id", "start_offset", "next_offset", "size_bytes"),
    "ON CONFLICT (lease_id) DO UPDATE "
    "SET next_offset = excluded.next_offset, size_bytes = excluded.size_bytes",
)
_BOUNDS: Final = Lookups("journals", ("lease_id",), ("lease_id", "start_offset", "next_offset", "size_bytes"))


def append(connection: sqlite3.Connection, journals: Mapping[int, Sequence[JournalRow]]) -> None:
    bounds = dict.fromkeys(journals, (0, 0, 0))
    for lease_id, *found in _BOUNDS.run(connection, [(lease_id,) for lease_id in journals]):
        start, end, size_bytes = found
        bounds[lease_id] = start, end, size_bytes
    _JOURNAL_ROWS.run(
        connection,
        [
            (lease_id, offset, row.at_ms, row.key, row.value, checksum(row.key, row.value))
            for lease_id, told in journals.items()
            for offset, row in enumerate(told, bounds[lease_id][1])
        ],
    )
    grown = []
    for lease_id, told in journals.items():
        start, end, size_bytes = bounds[lease_id]
        added = sum(row.size_bytes for row in told)
        grown.append((lease_id, start, end + len(told), size_bytes + added))
    _JOURNALS.run(connection, grown)


def _bounds(connection: sqlite3.Connection, lease_id: int) -> JournalBounds:
    row = connection.execute(
        "SELECT start_offset, next_offset, size_bytes FROM journals WHERE lease_id = ?", (lease_id,)
    ).fetchone()
    return JournalBounds(0, 0, 0) if row is None else JournalBounds(*row)


def bounds(connection: sqlite3.Connection, lease: Lease) -> JournalBounds:
    return _bounds(connection, lease_id_of(connection, lease))


def read(
    connection: sqlite3.Connection, lease: Lease, offset: int, rows_max: int, bytes_max: int
) -> list[StoredJournalRow]:
    """Raises sqlite3.DatabaseError, as for a page that sqlite cannot read, if a row is not what was
    written."""
    found = connection.execute(
        "SELECT row_offset, at_ms, key, value, checksum FROM journal_rows "
        "WHERE lease_id = ? AND row_offset >= ? ORDER BY row_offset LIMIT ?",
        (lease_id_of(connection, lease), offset, rows_max),
    )

    def checked() -> Iterator[StoredJournalRow]:
        for *columns, written in found:
            row = StoredJournalRow(*columns)
            if checksum(row.key, row.value) != written:
                raise sqlite3.DatabaseError(
                    f"journal row {row.offset} of {lease.kind} lease {lease.number} has changed"
                )
            yield row

    return whole_rows(checked(), bytes_max)


def offset_at(connection: sqlite3.Connection, lease: Lease, at_ms: int) -> int | None:
    row = connection.execute(
        "SELECT row_offset FROM journal_rows WHERE lease_id = ? AND at_ms >= ? ORDER BY row_offset LIMIT 1",
        (lease_id_of(connection, lease), at_ms),
    ).fetchone()
    return None if row is None else row[0]


def newest(connection: sqlite3.Connection, lease: Lease) -> int | None:
    row = connection.execute(
        "SELECT row_offset FROM journal_rows WHERE lease_id = ? ORDER BY at_ms DESC, row_offset LIMIT 1",
        (lease_id_of(connection, lease),),
    ).fetchone()
    return None if row is None else row[0]


def trim(connection: sqlite3.Connection, lease: Lease, epoch: int, before_offset: int) -> bool:
    lease_id = lease_id_of(connection, lease)
    if not owned_in(connection, lease_id, epoch):
        return False
    bounds = _bounds(connection, lease_id)
    start = min(before_offset, bounds.end)
    if start > bounds.start:
        below = "FROM journal_rows WHERE lease_id = ? AND row_offset < ?"
        (removed_bytes,) = connection.execute(
            f"SELECT SUM(LENGTH(value) + COALESCE(LENGTH(key), 0)) {below}", (lease_id, start)
        ).fetchone()
        connection.execute(f"DELETE {below}", (lease_id, start))
        connection.execute(
            "UPDATE journals SET start_offset = ?, size_bytes = size_bytes - ? WHERE lease_id = ?",
            (start, removed_bytes, lease_id),
        )
    return True

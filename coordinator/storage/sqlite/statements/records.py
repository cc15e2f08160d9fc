"""Keyed records and their tombstones."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from typing import Final

from muster.coordinator.storage.sqlite.batches import Deletes, Inserts
from muster.coordinator.storage.sqlite.schema import checksum
from muster.coordinator.storage.sqlite.statements import journal
from muster.coordinator.storage.sqlite.statements.leases import NO_LEASE, KnownLeases, lease_id_of, owned_in
from muster.coordinator.storage.store import (
    Append,
    JournalRow,
    Lease,
    Outcome,
    RecordBounds,
    StoredRecord,
    whole_rows,
)


def append(connection: sqlite3.Connection, known: KnownLeases, appends: Sequence[Append]) -> list[Outcome]:
    """Several writes of one key are folded into the last, which takes the last `seq`."""
    rows = known.rows_of(connection, [one.lease for one in appends])
    next_seqs: dict[Lease, int] = {}  # of the leases written to
    last: dict[tuple[int, bytes], tuple[int, bytes | None, int]] = {}
    journals: dict[int, list[JournalRow]] = {}
    outcomes = []
    for one in appends:
        lease_id, epoch, seq = rows.get(one.lease, NO_LEASE)
        if epoch != one.epoch or one.epoch < 1:  # below 1: never claimed
            outcomes.append(Outcome.FENCED)
            continue
        if one.records:
            seq = next_seqs.get(one.lease, seq)
            for key, value in one.records:
                last[lease_id, key] = (seq, value, one.at_ms)
                seq += 1
            next_seqs[one.lease] = seq
        if one.journal:
            journals.setdefault(lease_id, []).extend(one.journal)
        outcomes.append(Outcome.WRITTEN)
    if last:
        upserts: list[tuple[int, bytes, int, bytes, int]] = []
        tombstones: list[tuple[int, int, bytes, int]] = []
        for (lease_id, key), (seq, value, at_ms) in last.items():
            if value is None:
                tombstones.append((lease_id, seq, key, at_ms))
            else:
                upserts.append((lease_id, key, seq, value, checksum(key, value)))
        _UPSERTS.run(connection, upserts)
        _DELETES.run(connection, [(lease_id, key) for lease_id, _, key, _ in tombstones])
        _TOMBSTONES.run(connection, tombstones)
        known.move(connection, next_seqs)
    if journals:
        journal.append(connection, journals)
    return outcomes


_UPSERTS: Final = Inserts(
    "records",
    ("lease_id", "key", "seq", "value", "checksum"),
    "ON CONFLICT (lease_id, key) DO UPDATE "
    "SET seq = excluded.seq, value = excluded.value, checksum = excluded.checksum",
)
_DELETES: Final = Deletes("records", ("lease_id", "key"))
_TOMBSTONES: Final = Inserts("tombstones", ("lease_id", "seq", "key", "deleted_ms"))


def load(connection: sqlite3.Connection, lease: Lease) -> list[tuple[int, bytes, bytes]]:
    """Raises sqlite3.DatabaseError, as for a page that sqlite cannot read, if a record is not what was
    written."""
    rows = connection.execute(
        "SELECT seq, key, value, checksum FROM records WHERE lease_id = ? ORDER BY seq",
        (lease_id_of(connection, lease),),
    )
    found = []
    for seq, key, value, written in rows:
        if checksum(key, value) != written:
            raise sqlite3.DatabaseError(f"record {key!r} of {lease.kind} lease {lease.number} has changed")
        found.append((seq, key, value))
    return found


def read(
    connection: sqlite3.Connection, lease: Lease, seq: int, rows_max: int, bytes_max: int
) -> list[StoredRecord]:
    """Raises sqlite3.DatabaseError, as for a page that sqlite cannot read, if a record is not what was
    written."""
    lease_id = lease_id_of(connection, lease)
    found = connection.execute(
        "SELECT seq, key, value, -1, checksum FROM records WHERE lease_id = ?1 AND seq >= ?2 "
        "UNION ALL SELECT seq, key, NULL, deleted_ms, 0 FROM tombstones WHERE lease_id = ?1 AND seq >= ?2 "
        "ORDER BY seq LIMIT ?3",
        (lease_id, seq, rows_max),
    )

    def checked() -> Iterator[StoredRecord]:
        for *columns, written in found:
            record = StoredRecord(*columns)
            if record.value is not None and checksum(record.key, record.value) != written:
                raise sqlite3.DatabaseError(
                    f"record {record.key!r} of {lease.kind} lease {lease.number} has changed"
                )
            yield record

    return whole_rows(checked(), bytes_max)


def next_seq(connection: sqlite3.Connection, lease: Lease) -> int:
    (found,) = connection.execute(
        "SELECT next_seq FROM leases WHERE lease_id = ?", (lease_id_of(connection, lease),)
    ).fetchone()
    return int(found)


def bounds(connection: sqlite3.Connection, lease: Lease) -> RecordBounds:
    (size_bytes,) = connection.execute(
        "SELECT (SELECT COALESCE(SUM(LENGTH(key) + LENGTH(value)), 0) FROM records WHERE lease_id = ?1) + "
        "(SELECT COALESCE(SUM(LENGTH(key)), 0) FROM tombstones WHERE lease_id = ?1)",
        (lease_id_of(connection, lease),),
    ).fetchone()
    return RecordBounds(next_seq(connection, lease), size_bytes)


def remove_tombstones(
    connection: sqlite3.Connection, lease: Lease, epoch: int, before_ms: int, count_max: int
) -> int:
    lease_id = lease_id_of(connection, lease)
    if not owned_in(connection, lease_id, epoch):
        return 0
    return connection.execute(
        "DELETE FROM tombstones WHERE lease_id = ?1 "
        "AND seq < (SELECT next_seq - 1 FROM leases WHERE lease_id = ?1) AND (deleted_ms < ?2 OR "
        "seq <= (SELECT seq FROM tombstones WHERE lease_id = ?1 ORDER BY seq DESC LIMIT 1 OFFSET ?3))",
        (lease_id, before_ms, count_max),
    ).rowcount

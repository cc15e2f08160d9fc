"""Checks that a sqlite store is what was written."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol
from uuid import UUID

from muster.coordinator.storage.sqlite.schema import APPLICATION_ID, SCHEMA_VERSION, checksum
from muster.coordinator.storage.store import StoreError


class Counts(Protocol):
    group_rows: int


def refuse_what_is_not_ours(connection: sqlite3.Connection, path: Path) -> None:
    """Raise StoreError if the file is not muster's, or of another version than this one checks; sqlite3.Error
    if it cannot be read at all."""
    (application_id,) = connection.execute("PRAGMA application_id").fetchone()
    if application_id != APPLICATION_ID:
        raise StoreError(f"{path} is a sqlite database, but not muster's")
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > SCHEMA_VERSION:
        raise StoreError(
            f"{path} was written by a newer muster (schema {version}; this one checks {SCHEMA_VERSION}): "
            "use that version to check it"
        )
    if version < SCHEMA_VERSION:
        raise StoreError(
            f"{path} was written by an older muster (schema {version}; this one checks {SCHEMA_VERSION}): "
            "use that version to check it, or make a backup, start a broker on it once, and check it then"
        )


def check_store(connection: sqlite3.Connection, counts: Counts) -> Iterator[tuple[str, str]]:
    """Yield (where in the file, what is wrong) for each fault. Raises sqlite3.Error if it cannot be read at
    all."""
    for (said,) in connection.execute("PRAGMA integrity_check"):
        if said != "ok":
            yield "", said
    leases = {
        lease_id: f"{kind} shard {number}"
        for lease_id, kind, number in connection.execute("SELECT lease_id, kind, number FROM leases")
    }
    for lease_id, key, value, seq, next_seq, written in connection.execute(
        "SELECT records.lease_id, key, value, seq, next_seq, checksum "
        "FROM records LEFT JOIN leases USING (lease_id)"
    ):
        counts.group_rows += 1
        where = f", table records, {leases.get(lease_id, lease_id)}, key {key!r}"
        if checksum(key, value) != written:
            yield where, "its checksum does not match"
        elif next_seq is None or seq >= next_seq:
            yield where, f"its number {seq} was never assigned"
    yield from _check_journals(connection, leases, counts)


def _check_journals(
    connection: sqlite3.Connection, leases: dict[int, str], counts: Counts
) -> Iterator[tuple[str, str]]:
    if not _has(connection, "journals"):
        return  # written by a muster that had none
    bounds = {
        lease_id: (start, end)
        for lease_id, start, end in connection.execute(
            "SELECT lease_id, start_offset, next_offset FROM journals"
        )
    }
    expected = {lease_id: start for lease_id, (start, _) in bounds.items()}
    for lease_id, offset, key, value, written in connection.execute(
        "SELECT lease_id, row_offset, key, value, checksum FROM journal_rows ORDER BY lease_id, row_offset"
    ):
        counts.group_rows += 1
        where = f", table journal_rows, {leases.get(lease_id, lease_id)}, offset {offset}"
        if checksum(key, value) != written:
            yield where, "its checksum does not match"
        if expected.get(lease_id, offset) != offset:
            yield where, f"offset {expected[lease_id]} should be here"
        expected[lease_id] = offset + 1
    for lease_id, (_, end) in bounds.items():
        if expected[lease_id] != end:
            where = f", table journal_rows, {leases.get(lease_id, lease_id)}"
            yield where, f"offsets {expected[lease_id]} to {end - 1} are missing"


def _has(connection: sqlite3.Connection, table: str) -> bool:
    found = connection.execute("SELECT COUNT(*) FROM sqlite_master WHERE name = ?", (table,)).fetchone()
    return bool(found[0])


def topic_names(connection: sqlite3.Connection) -> dict[str, str]:
    """Topic names by topic id."""
    return {
        str(UUID(bytes=topic_id)): name
        for topic_id, name in connection.execute("SELECT topic_id, name FROM topics")
    }

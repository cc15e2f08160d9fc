"""The sqlite file: its tables, its durability settings, and the check that it is ours and not too new."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from secrets import randbits
from uuid import UUID, uuid4
from zlib import crc32

from muster.coordinator.base.system import sync_folder
from muster.coordinator.storage.left_behind import (
    FIRST_MARK,
    MADE,
    MARKER,
    UNKNOWN,
    Expected,
    Mark,
    mark_of,
    refuse_records_without,
    refuse_without_records,
)
from muster.coordinator.storage.store import LeaseKind, StoreCounts, StoreError

SCHEMA_VERSION = 4
"""Stored in the file's user_version; grows with every change that an older muster could not read."""

APPLICATION_ID = 0x4D555354  # "MUST": distinguishes our files from other sqlite databases
_BUSY_TIMEOUT_S = 5.0  # another store object of this process may be writing

# Every lease has a row from the start, so that claiming and writing never insert one. Its holder is not
# stored, since a holder does not outlive the process (`DataDirectory.lease_table`). Records refer to their
# lease by its row: four bytes less in each index entry than kind and number. A record keeps its rowid when it
# is upserted again, so the index on its key is written once, and only `seq` gives the order.
_TABLES = """
CREATE TABLE store (
    only_row INTEGER PRIMARY KEY CHECK (only_row = 1),
    cluster_id BLOB NOT NULL,
    revision INTEGER NOT NULL DEFAULT 0,
    next_producer_id INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE leases (
    lease_id INTEGER PRIMARY KEY,
    kind TEXT NOT NULL,
    number INTEGER NOT NULL,
    epoch INTEGER NOT NULL DEFAULT 0,
    next_seq INTEGER NOT NULL DEFAULT 1,
    UNIQUE (kind, number)
);
CREATE TABLE records (
    lease_id INTEGER NOT NULL,
    key BLOB NOT NULL,
    seq INTEGER NOT NULL,
    value BLOB NOT NULL,
    checksum INTEGER NOT NULL,
    UNIQUE (lease_id, key)
);
CREATE TABLE topics (
    topic_id BLOB PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    partitions INTEGER NOT NULL,
    configs TEXT NOT NULL,
    created_ms INTEGER NOT NULL,
    assignments TEXT NOT NULL DEFAULT ''
);
"""
_REPLICA_LISTS = "CREATE TABLE replica_lists (number INTEGER PRIMARY KEY, replicas TEXT NOT NULL UNIQUE)"
# Not in every file of this version, since a muster that does not know them leaves them alone and misses
# nothing. A lease has a row in `journals` from its first journal row on. `tombstones` says which records were
# deleted, for readers that see records as a log; the coordinator itself never reads it.
_ADDED = (
    """
CREATE TABLE IF NOT EXISTS broker_configs (
    broker TEXT PRIMARY KEY,
    configs TEXT NOT NULL
)
""",
    """
CREATE TABLE IF NOT EXISTS journals (
    lease_id INTEGER PRIMARY KEY,
    start_offset INTEGER NOT NULL,
    next_offset INTEGER NOT NULL,
    size_bytes INTEGER NOT NULL
)
""",
    """
CREATE TABLE IF NOT EXISTS journal_rows (
    lease_id INTEGER NOT NULL,
    row_offset INTEGER NOT NULL,
    at_ms INTEGER NOT NULL,
    key BLOB,
    value BLOB NOT NULL,
    checksum INTEGER NOT NULL,
    PRIMARY KEY (lease_id, row_offset)
) WITHOUT ROWID
""",
    """
CREATE TABLE IF NOT EXISTS tombstones (
    lease_id INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    key BLOB NOT NULL,
    deleted_ms INTEGER NOT NULL,
    PRIMARY KEY (lease_id, seq)
) WITHOUT ROWID
""",
)


def connect(path: Path) -> sqlite3.Connection:
    """A connection in autocommit mode, durable at every COMMIT; used by one thread at a time, no matter
    which. A file that it creates can be read only by its owner: it holds password hashes.
    """
    with suppress(OSError):  # it exists, or SQLite says what is wrong
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    connection = sqlite3.connect(path, timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        # On macOS fsync leaves the data in the drive's cache; elsewhere this changes nothing.
        connection.execute("PRAGMA fullfsync = ON")
    except BaseException:
        connection.close()
        raise
    return connection


def prepare(
    connection: sqlite3.Connection, path: Path, topics: Path, lease_counts: Mapping[LeaseKind, int]
) -> StoreCounts:
    """Create the tables in an empty file, check those in an old one, and move the revision on: earlier lease
    holders and registered nodes may be gone. Creates `topics`, and marks it as this store's.

    Raises StoreDamaged if `topics` has records but the file has no tables (a copy without the write-ahead log
    that they were in), or if the file lists topics but `topics` is missing or has not its mark (a copy
    without their records, a volume that is not mounted).
    """
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > SCHEMA_VERSION:
        raise StoreError(
            f"{path} was written by a newer muster (schema {version}; this one knows {SCHEMA_VERSION}): "
            "use that version, or another data directory"
        )
    connection.execute("BEGIN IMMEDIATE")
    with connection:  # commits, or rolls back on an exception
        if version == 0:
            _create(connection, path, topics, lease_counts)
        (application_id,) = connection.execute("PRAGMA application_id").fetchone()
        if application_id != APPLICATION_ID:
            raise StoreError(f"{path} is a sqlite database, but not muster's")
        _add_checksums(connection)
        _add_replicas(connection, lease_counts[LeaseKind.REPLICAS])
        _add_transactions(connection, lease_counts[LeaseKind.TRANSACTION])
        for table in _ADDED:
            connection.execute(table)
        connection.execute("UPDATE store SET revision = revision + 1")
        counts = connection.execute("SELECT kind, COUNT(*) FROM leases GROUP BY kind").fetchall()
        expected = expected_folder(connection)
        refuse_without_records(path, topics, expected)
        _make_folder(connection, topics, expected.mark.number)
        _mark_folder(connection, topics, expected.mark)
    return StoreCounts(expected.mark.store_id, {LeaseKind(kind): count for kind, count in counts})


def expected_folder(connection: sqlite3.Connection) -> Expected:
    """What the file says of its folder of topics. Raises sqlite3.DatabaseError if it does not say whose the
    file is."""
    columns = connection.execute("SELECT name FROM pragma_table_info('store')").fetchall()
    has_column = ("topics_folder",) in columns  # a file from before has not
    row = connection.execute(
        f"SELECT cluster_id, {'topics_folder' if has_column else UNKNOWN}, (SELECT COUNT(*) FROM topics) "
        "FROM store"
    ).fetchone()
    try:
        cluster_id, number, topics = row
        return Expected(Mark(UUID(bytes=cluster_id), number), topics)
    except (AssertionError, TypeError, ValueError):
        raise sqlite3.DatabaseError("table store has no row with a cluster id") from None


def _make_folder(connection: sqlite3.Connection, topics: Path, number: int) -> None:
    try:
        if not topics.exists():
            topics.mkdir(exist_ok=True)
            sync_folder(str(topics.parent))  # before a topic is listed
    except OSError as error:
        raise StoreError(f"cannot create {topics}: {error.strerror}") from error
    if number == UNKNOWN:
        connection.execute(f"ALTER TABLE store ADD COLUMN topics_folder INTEGER NOT NULL DEFAULT {MADE}")


def _mark_folder(connection: sqlite3.Connection, topics: Path, expected: Mark) -> None:
    """Mark `topics`, unless it may not be the right folder: a store from before there were marks lists
    topics, and none is there. If it cannot be written (a full disk), a later start does it."""
    if expected.is_given and mark_of(topics) == expected:
        return
    mark, is_marked = Mark(expected.store_id, FIRST_MARK + randbits(40)), False
    names = {str(UUID(bytes=topic_id)) for (topic_id,) in connection.execute("SELECT topic_id FROM topics")}
    with suppress(OSError):
        if not names or not names.isdisjoint(os.listdir(topics)):
            with (topics / MARKER).open("w") as file:
                file.write(f"{mark}\n")
                file.flush()
                os.fsync(file.fileno())
            sync_folder(str(topics))
            is_marked = True
    connection.execute("UPDATE store SET topics_folder = ?", (mark.number if is_marked else MADE,))


def _create(
    connection: sqlite3.Connection, path: Path, topics: Path, lease_counts: Mapping[LeaseKind, int]
) -> None:
    # Checked inside the transaction: two stores of one process may be opening a new file at once.
    tables = connection.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()[0]
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version:
        return
    if tables:
        raise StoreError(f"{path} is a sqlite database, but not muster's")
    refuse_records_without(path, topics)
    for statement in _TABLES.split(";"):
        connection.execute(statement)
    connection.execute(_REPLICA_LISTS)
    connection.execute("INSERT INTO store (only_row, cluster_id) VALUES (1, ?)", (uuid4().bytes,))
    _add_leases(connection, lease_counts)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def _add_checksums(connection: sqlite3.Connection) -> None:
    """Upgrade a file from schema 1 to 2."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version == 1:
        connection.create_function("checksum", 2, checksum, deterministic=True)
        connection.execute("ALTER TABLE records ADD COLUMN checksum INTEGER NOT NULL DEFAULT 0")
        connection.execute("UPDATE records SET checksum = checksum(key, value)")
        connection.execute("PRAGMA user_version = 2")


def _add_replicas(connection: sqlite3.Connection, lists: int) -> None:
    """Upgrade a file from schema 2 to 3."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version == 2:
        connection.execute("ALTER TABLE topics ADD COLUMN assignments TEXT NOT NULL DEFAULT ''")
        connection.execute(_REPLICA_LISTS)
        _add_leases(connection, {LeaseKind.REPLICAS: lists})
        connection.execute("PRAGMA user_version = 3")


def _add_transactions(connection: sqlite3.Connection, shards: int) -> None:
    """Upgrade a file from schema 3 to 4."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version == 3:
        _add_leases(connection, {LeaseKind.TRANSACTION: shards})
        connection.execute("PRAGMA user_version = 4")


def _add_leases(connection: sqlite3.Connection, lease_counts: Mapping[LeaseKind, int]) -> None:
    connection.executemany(
        "INSERT INTO leases (kind, number) VALUES (?, ?)",
        [(kind.value, number) for kind, count in lease_counts.items() for number in range(count)],
    )


def checksum(key: bytes | None, value: bytes) -> int:
    """The checksum stored with a record or journal row: sqlite notices a page that makes no sense, but not a
    byte that changed."""
    return crc32(value, crc32(key or b""))

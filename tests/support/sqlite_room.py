"""A full disk for one sqlite store, without a real disk: sqlite's own limit on its file size."""

from __future__ import annotations

import asyncio
import sqlite3

from muster.coordinator.storage.sqlite import SqliteStore

_UNLIMITED = 2**30
# On a full disk not even an existing page can be rewritten, since it goes to the end of the log first. The
# limit knows only pages, so every transaction is made to need some.
_GROW = """
CREATE TEMP TRIGGER grow_{table} AFTER UPDATE ON main.{table}
BEGIN INSERT INTO records (lease_id, key, seq, value, checksum)
VALUES (-1, randomblob(8), 0, zeroblob(65536), 0); END
"""


async def limit_room(store: SqliteStore) -> None:
    """Stop the file from growing."""

    def limit(connection: sqlite3.Connection) -> None:
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {pages}")

    await _on_writer(store, limit)


async def take_all_room(store: SqliteStore) -> None:
    """From now on, no write succeeds (SQLITE_FULL)."""
    await limit_room(store)
    await _on_writer(store, lambda c: [c.execute(_GROW.format(table=table)) for table in ("leases", "store")])


async def make_room(store: SqliteStore) -> None:
    """Lift the limit set by `limit_room` or `take_all_room`."""

    def free(connection: sqlite3.Connection) -> None:
        connection.execute(f"PRAGMA max_page_count = {_UNLIMITED}")
        for table in ("leases", "store"):
            connection.execute(f"DROP TRIGGER IF EXISTS temp.grow_{table}")

    await _on_writer(store, free)


async def _on_writer(store: SqliteStore, change: object) -> None:
    assert store._files is not None
    assert callable(change)
    await asyncio.get_running_loop().run_in_executor(store._writer, change, store._files.writing)

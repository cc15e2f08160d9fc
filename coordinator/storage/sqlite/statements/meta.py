"""The store as a whole: its revision and producer ids."""

from __future__ import annotations

import sqlite3


def revision(connection: sqlite3.Connection) -> int:
    (number,) = connection.execute("SELECT revision FROM store").fetchone()
    return int(number)


def move_revision(connection: sqlite3.Connection) -> None:
    connection.execute("UPDATE store SET revision = revision + 1")


def allocate_producer_ids(connection: sqlite3.Connection, count: int) -> int:
    (first,) = connection.execute("SELECT next_producer_id FROM store").fetchone()
    connection.execute("UPDATE store SET next_producer_id = ?", (first + count,))
    return int(first)

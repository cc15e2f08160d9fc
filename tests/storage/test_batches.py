"""Many rows in one statement."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing

import pytest

from muster.coordinator.storage.sqlite.batches import Changes, Deletes, Inserts, Lookups

COUNTS = [0, 1, 2, 3, 127, 128, 129, 1_000, 2_049]


@pytest.fixture
def connection() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.execute("CREATE TABLE t (kind TEXT, number INTEGER, value INTEGER, UNIQUE (kind, number))")
        yield connection


def rows_of(count: int) -> list[tuple[str, int, int]]:
    return [("odd" if number % 2 else "even", number, -number) for number in range(count)]


def stored(connection: sqlite3.Connection) -> list[tuple[str, int, int]]:
    return connection.execute("SELECT kind, number, value FROM t ORDER BY number").fetchall()


@pytest.mark.parametrize("count", COUNTS)
def test_every_row_is_inserted_once(connection: sqlite3.Connection, count: int) -> None:
    Inserts("t", ("kind", "number", "value")).run(connection, rows_of(count))
    assert stored(connection) == rows_of(count)


def test_rows_that_are_there_are_changed_as_the_conflict_says(connection: sqlite3.Connection) -> None:
    conflict = "ON CONFLICT (kind, number) DO UPDATE SET value = excluded.value"
    upserts = Inserts("t", ("kind", "number", "value"), conflict)
    upserts.run(connection, rows_of(300))
    upserts.run(connection, [(kind, number, 7) for kind, number, _ in rows_of(200)])
    assert [value for *_, value in stored(connection)] == [7] * 200 + [-number for number in range(200, 300)]


@pytest.mark.parametrize("count", COUNTS)
def test_what_is_there_is_found(connection: sqlite3.Connection, count: int) -> None:
    Inserts("t", ("kind", "number", "value")).run(connection, rows_of(count))
    asked = [(kind, number) for kind, number, _ in rows_of(count + 5)] + [("odd", 0)]
    found = Lookups("t", ("kind", "number"), ("number", "value")).run(connection, asked)
    assert sorted(found) == [(number, value) for _, number, value in rows_of(count)]


@pytest.mark.parametrize("count", COUNTS)
def test_what_is_named_is_deleted_and_nothing_else(connection: sqlite3.Connection, count: int) -> None:
    Inserts("t", ("kind", "number", "value")).run(connection, rows_of(count + 2))
    named = [(kind, number) for kind, number, _ in rows_of(count)] + [("even", count + 1 - count % 2)]
    Deletes("t", ("kind", "number")).run(connection, named)
    gone = {(kind, number) for kind, number in named}
    assert stored(connection) == [row for row in rows_of(count + 2) if row[:2] not in gone]


@pytest.mark.parametrize("count", COUNTS)
def test_each_row_gets_its_own_value_and_no_other_any(connection: sqlite3.Connection, count: int) -> None:
    Inserts("t", ("kind", "number", "value")).run(connection, rows_of(count + 2))
    Changes("t", "number", "value").run(connection, {number: number * 3 for number in range(count)})
    values = [number * 3 if number < count else -number for number in range(count + 2)]
    assert [value for *_, value in stored(connection)] == values


def test_large_values_go_in_small_statements(connection: sqlite3.Connection) -> None:
    """A cached statement keeps its values, too."""
    statements: list[str] = []
    connection.set_trace_callback(statements.append)
    Inserts("t", ("kind", "number", "value")).run(
        connection, [("even", number, b"x" * 100_000) for number in range(10)]
    )
    assert len([each for each in statements if each.startswith("INSERT")]) == 5
    assert len(stored(connection)) == 10


def test_a_transaction_takes_few_statements(connection: sqlite3.Connection) -> None:
    statements: list[str] = []
    connection.set_trace_callback(statements.append)
    Inserts("t", ("kind", "number", "value")).run(connection, rows_of(1_024))
    found = list(Lookups("t", ("kind", "number"), ("value",)).run(connection, [("odd", 1)] * 128))
    assert len(statements) <= (3 if sqlite3.sqlite_version_info >= (3, 32) else 5)
    assert found == [(-1,)]

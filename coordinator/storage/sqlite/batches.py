"""Many rows in one statement.

For each statement, and for each row that it returns, Python's module lets other threads run and then has to
wait for its turn again: five milliseconds if a loop is busy, a hundred times what the row takes. So a
transaction changes many rows in few statements, and what it looks up about many comes back as one row.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final, TypeVar

T = TypeVar("T")

_PARAMETERS_MAX: Final = 32_766 if sqlite3.sqlite_version_info >= (3, 32) else 999
"""Maximum for one statement, as sqlite is compiled by default."""
_INSERTED_MAX: Final = 512
_INSERTED_BYTES: Final = 256 * 1024
"""Approximate maximum for one statement: a compiled one keeps hold of the values that it was last run
with."""
_NAMED_MAX: Final = 128
"""Rows named in one condition; sqlite allows it to be a thousand deep."""


class Inserts:
    """Inserts rows into `table`; `conflict` says what happens if a row is there already."""

    def __init__(self, table: str, columns: Sequence[str], conflict: str = "") -> None:
        self._into = f"INSERT INTO {table} ({', '.join(columns)}) VALUES "
        self._row = f"({', '.join('?' * len(columns))})"
        self._conflict = conflict
        self._rows_max = min(_INSERTED_MAX, _PARAMETERS_MAX // len(columns))
        self._statements: dict[int, str] = {}  # by their number of rows

    def run(self, connection: sqlite3.Connection, rows: Sequence[tuple[Any, ...]]) -> None:
        # In lists, not one by one: this looks at every value that a broker commits.
        largest = max([len(each) for row in rows for each in row if type(each) is bytes], default=0)
        rows_max = max(1, min(self._rows_max, _INSERTED_BYTES // max(1, largest)))
        for some in _chunks(rows, rows_max):
            connection.execute(self._statement(len(some)), _bound(chain.from_iterable(some)))

    def _statement(self, count: int) -> str:
        statement = self._statements.get(count)
        if statement is None:
            rows = ", ".join([self._row] * count)
            statement = self._statements[count] = f"{self._into}{rows} {self._conflict}"
        return statement


class Lookups:
    """Looks up the integer columns `found` of the rows of `table` with given values in `by`."""

    def __init__(self, table: str, by: Sequence[str], found: Sequence[str]) -> None:
        columns = " || ' ' || ".join(found)
        self._select = f"SELECT GROUP_CONCAT({columns}) FROM {table} WHERE "
        self._one = _equal(by)

    def run(
        self, connection: sqlite3.Connection, keys: Sequence[tuple[Any, ...]]
    ) -> Iterator[tuple[int, ...]]:
        """In no particular order, and nothing for a key that is not there."""
        for some in _chunks(keys, _NAMED_MAX):
            asked = " OR ".join([self._one] * len(some))
            (rows,) = connection.execute(f"{self._select}{asked}", list(chain.from_iterable(some))).fetchone()
            for row in rows.split(",") if rows else ():
                yield tuple(map(int, row.split(" ")))


class Changes:
    """Sets the integer `column` of rows of `table`, each to its own value; the integer `by` names the row."""

    def __init__(self, table: str, by: str, column: str) -> None:
        self._set = f"UPDATE {table} SET {column} = CASE {by} "
        self._named = f"END WHERE {by} IN "

    def run(self, connection: sqlite3.Connection, values: Mapping[int, int]) -> None:
        rows = list(values.items())
        for at in range(0, len(rows), _NAMED_MAX):
            some = rows[at : at + _NAMED_MAX]
            cases, named = "WHEN ? THEN ? " * len(some), ", ".join("?" * len(some))
            parameters = [*chain.from_iterable(some), *(row for row, _ in some)]
            connection.execute(f"{self._set}{cases}{self._named}({named})", parameters)


class Deletes:
    """Deletes the rows of `table` with given values in `by`."""

    def __init__(self, table: str, by: Sequence[str]) -> None:
        self._delete = f"DELETE FROM {table} WHERE "
        self._one = _equal(by)

    def run(self, connection: sqlite3.Connection, keys: Sequence[tuple[Any, ...]]) -> None:
        for some in _chunks(keys, _NAMED_MAX):
            asked = " OR ".join([self._one] * len(some))
            connection.execute(f"{self._delete}{asked}", list(chain.from_iterable(some)))


def _bound(values: Iterable[Any]) -> list[Any]:
    """Values as they are passed to sqlite. Before Python 3.12, its module looks for an adapter for each
    `bytes`, which takes a third of an insert's time; it takes a bytearray unchanged."""
    if sys.version_info >= (3, 12):
        return list(values)
    return [bytearray(each) if type(each) is bytes else each for each in values]


def _equal(columns: Sequence[str]) -> str:
    return f"({' AND '.join(f'{column} = ?' for column in columns)})"


def _chunks(rows: Sequence[T], count_max: int) -> Iterator[Sequence[T]]:
    """Chunks whose sizes are powers of two: statements of each size are compiled and kept."""
    at, count = 0, 1 << count_max.bit_length() - 1
    while at < len(rows):
        while count > len(rows) - at:
            count //= 2
        yield rows[at : at + count]
        at += count

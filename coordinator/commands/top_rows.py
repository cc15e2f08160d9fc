"""The rows of `muster top`: columns, order and cells."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from muster.coordinator.commands.top_facts import Look, Row

COLUMNS: Final = {
    "group_id": "GROUP",
    "state": "STATE",
    "members": "MEMBERS",
    "partitions": "PARTITIONS",
    "lag": "LAG",
    "records_per_second": "RECORDS/S",
    "rebalances": "REBALANCES/H",
}
"""Headings by field."""
SORTS: Final = {
    "group": "group_id",
    "state": "state",
    "members": "members",
    "lag": "lag",
    "rate": "records_per_second",
    "rebalances": "rebalances",
}
"""Sort keys."""
KEYS: Final = {"g": "group", "s": "state", "m": "members", "l": "lag", "r": "rate", "b": "rebalances"}


def sort(rows: Sequence[Row], by: str) -> list[Row]:
    """Names ascending, numbers descending, unknown values last; ties by group."""
    field = SORTS[by]

    def place(row: Row) -> tuple[Any, ...]:
        value = getattr(row, field)
        if isinstance(value, str):
            return (value, row.group_id)
        return (value is None, -(value or 0), row.group_id)

    return sorted(rows, key=place)


def cells(row: Row) -> list[object]:
    """A row's cells in tables."""
    shown = row._asdict()
    if row.records_per_second is not None:
        shown["records_per_second"] = round(row.records_per_second)
    return [shown[each] for each in COLUMNS]


def more_said(look: Look) -> str:
    """The note that there are more groups than shown; empty if there are not."""
    return f"{look.more} more not shown; name groups to see them" if look.more else ""

"""Lakes like those of `muster-pipeline rebalances`, built from rows without Spark; and pages, parsed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from muster.pipeline.journal import tables

NOON_MS: Final = 1_767_268_800_000
"""2026-01-01 12:00:00 UTC."""
Rows = Iterable[Mapping[str, Any]]

_SIMPLE: Final = {
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "binary": pa.binary(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}


def arrow(ddl: str) -> pa.DataType:
    """The Arrow type for a type in Spark's DDL."""
    if ddl in _SIMPLE:
        return _SIMPLE[ddl]
    inner = ddl[ddl.index("<") + 1 : -1]
    if ddl.startswith("array<"):
        return pa.list_(arrow(inner))
    assert ddl.startswith("struct<"), ddl
    return pa.struct([(name, arrow(type)) for name, type in re.findall(r"(\w+):(\w+)", inner)])


def write(lake: Path, rows: Mapping[str, Rows] | None = None) -> Path:
    """Write every table of silver and gold; columns that a row lacks are NULL."""
    given = dict(rows or {})
    for table in (*tables.SILVER, *tables.GOLD):
        schema = pa.schema([(each.name, arrow(each.type)) for each in table.columns])
        mine = [dict(each) for each in given.pop(table.name, ())]
        assert not {name for row in mine for name in row} - set(table.names), table.name
        folder = lake / table.layer / table.name
        folder.mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist(mine, schema=schema), folder / "part-0.parquet")
        (folder / "_SUCCESS").touch()
    assert not given, f"there is no table {list(given)}"
    return lake


def rebalance(number: int, group: str = "billing", **more: Any) -> dict[str, Any]:
    """A row of silver.rebalances; the number determines its time and duration."""
    started_ms = NOON_MS + number * 60_000
    took_ms = 1_000 + number * 10
    return {
        "rebalance_id": f"7-{number}", "group": group, "shard": 7, "generation": number,
        "outcome": "completed", "state": "Stable",
        "started_ms": started_ms, "ended_ms": started_ms + took_ms, "duration_ms": took_ms,
        "cause": "member joined", "diagnosis": "new-member", "certainty": "certain", "client_id": "worker-1",
        "host": "10.0.0.7", "members": 2, "moved": 3, "bounced": 1, "unowned_partitions": 2,
        "unowned_partition_ms": 500 + number, "unowned_max_ms": 400, "commits_refused": 0, **more,
    }  # fmt: skip


def health(group: str = "billing", **more: Any) -> dict[str, Any]:
    """A row of gold.group_health."""
    span = {"first_ms": NOON_MS - 1_000, "last_ms": NOON_MS + 7_200_000}
    return {"group": group, "state": "Stable", "stable_share": 0.5, **span, **more}


class Page(HTMLParser):
    """A page: its text, its tables by id as rows of cells (exact values for numbers and times), and every
    tag."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.text = ""
        self.tables: dict[str, list[list[Any]]] = {}
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self._table = ""
        self._skips = False
        self._cell: list[Any] | None = None
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.tags.append((tag, given))
        self._skips = self._skips or tag == "style"
        if tag == "table":
            self._table = given["id"] or ""
            self.tables[self._table] = []
        elif tag == "tr":
            self.tables[self._table].append([])
        elif tag in ("td", "th"):
            self._cell = []
        elif tag == "data" and self._cell is not None:
            self._cell.append(float(given["value"] or ""))
        elif tag == "time" and self._cell is not None:
            self._cell.append(given["datetime"])

    def handle_endtag(self, tag: str) -> None:
        if tag == "style":
            self._skips = False
        elif tag in ("td", "th") and self._cell is not None:
            exact = [each for each in self._cell if not isinstance(each, tuple)]
            said = "".join(each[0] for each in self._cell if isinstance(each, tuple))
            self.tables[self._table][-1].append(exact[0] if exact else said)
            self._cell = None

    def handle_data(self, data: str) -> None:
        if self._skips:
            return
        self.text += data
        if self._cell is not None:
            self._cell.append((data,))

    def rows(self, table: str) -> list[dict[str, Any]]:
        """Rows of a table, by heading."""
        head, *rows = self.tables[f"table-{table}"]
        return [dict(zip(head, row, strict=True)) for row in rows]

"""Output of commands: tables for people, JSON and CSV for programs."""

from __future__ import annotations

import csv as csv_files
import io
import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final

from muster.coordinator.arguments import printable

FORMATS: Final = ("table", "json", "csv")
"""Formats of commands that print rows."""
_WIDTH_MAX: Final = 100
"""A wider cell shifts the rest of its own row instead of widening the column."""


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table with headings, numbers right-aligned, two spaces between columns; None is shown as -."""
    rows = list(rows)
    shown = [[_cell(value) for value in row] for row in rows]
    right = [
        bool(rows) and all(isinstance(row[i], int) or row[i] is None for row in rows)
        for i in range(len(columns))
    ]
    lines = [list(columns), *shown]
    widths = [min(max(len(line[i]) for line in lines), _WIDTH_MAX) for i in range(len(columns))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if is_right else cell.ljust(width)
            for cell, width, is_right in zip(line, widths, right, strict=True)
        ).rstrip()
        for line in lines
    )


def _cell(value: object) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        value = ",".join(str(each) for each in value) or "-"
    return printable(str(value))


def local_time(at_ms: int) -> str:
    """A time in epoch ms as local time, to the second. Producers choose timestamps, so one may be out of
    range."""
    try:
        return datetime.fromtimestamp(at_ms // 1000).isoformat(" ")
    except (ValueError, OverflowError, OSError):
        return f"{at_ms} ms"


def document(value: Any) -> str:
    """An indented JSON document."""
    return json.dumps(value, indent=2, ensure_ascii=False)


def line(value: Any) -> str:
    """One line of JSON."""
    return json.dumps(value, ensure_ascii=False)


def csv(rows: Iterable[Sequence[object]]) -> str:
    """RFC 4180 with \\n line ends, like Kafka's tools. None is an empty field; lists are joined by commas."""
    text = io.StringIO()
    writer = csv_files.writer(text, lineterminator="\n")
    for row in rows:
        writer.writerow(
            [",".join(map(str, each)) if isinstance(each, (list, tuple)) else each for each in row]
        )
    return text.getvalue()

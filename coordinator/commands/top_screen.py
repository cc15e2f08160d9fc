"""The terminal that `muster top` draws on, and its keys."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import sys
import time
from collections.abc import Callable
from datetime import datetime
from types import TracebackType
from typing import Final, Self

from rich.cells import cell_len
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from muster.coordinator.arguments import printable
from muster.coordinator.base.system import unbuffer_keys
from muster.coordinator.commands.top_facts import Look, Row
from muster.coordinator.commands.top_rows import COLUMNS, KEYS, SORTS, cells, more_said, sort

_AROUND_LINES: Final = 5
"""Lines around the rows: two above, the headings, two below."""
_GAP: Final = 2  # between columns
_GROUP_MIN: Final = 12
"""The fewest characters of a group's name that a narrow window shows."""
_LEFT_OUT_FIRST: Final = ("partitions", "rebalances", "records_per_second", "members", "state", "lag")
"""The columns that a narrow window leaves out, in this order, except the one it is sorted by."""
_KEYS: Final = "  ".join(f"{key} {name}" for key, name in KEYS.items())

_ESCAPES: Final = re.compile(rb"\x1b(\[[0-9;]*[A-Za-z~]|O.)?")
"""Escape sequences of arrow keys and the like; ignored."""


class Screen:
    """Draws the last snapshot, and the error since, if any."""

    def __init__(self, bootstrap: str, interval_s: float, by: str) -> None:
        self._bootstrap = bootstrap
        self._interval_s = interval_s
        self._by = by
        self._look = Look((), 0, "")
        self._found_at = time.time()
        self._trouble = ""
        self._console = Console(highlight=False)
        self._live = Live(
            console=self._console,
            screen=True,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def found(self, look: Look) -> None:
        """Show a new snapshot."""
        self._look, self._trouble, self._found_at = look, look.trouble, time.time()
        self.draw()

    def trouble(self, why: str) -> None:
        """Show why there is no new snapshot."""
        self._trouble = why
        self.draw()

    def sort_by(self, by: str | None) -> None:
        """Sort by this column."""
        self._by = by or self._by
        self.draw()

    def draw(self) -> None:
        """Redraw at the terminal's current size. Raises OSError if the terminal is gone: under nohup, no
        signal ends us when its window closes."""
        if not self._console.is_terminal:
            raise OSError(errno.EIO, "the terminal is gone")
        self._live.update(self._picture(), refresh=True)

    def _picture(self) -> Group:
        rows = sort(self._look.rows, self._by)
        room = max(self._console.size.height - _AROUND_LINES, 1)
        hidden = max(len(rows) - room, 0)
        count = f"{len(rows)} group{'s' if len(rows) != 1 else ''}"
        found_at = datetime.fromtimestamp(self._found_at).strftime("%H:%M:%S")
        head = f"muster top  {printable(self._bootstrap)}  {count}  {found_at}  every {self._interval_s:g} s"
        below = [f"{hidden} more not shown: the window is too small"] if hidden else []
        if said := more_said(self._look):
            below.append(said)
        return Group(
            Text(head, style="bold", no_wrap=True, overflow="ellipsis"),
            Text(self._said(), style="bold red", no_wrap=True, overflow="ellipsis"),
            _table(
                rows[: room if not below else max(room - 1, 1)], SORTS[self._by], self._console.size.width
            ),
            *[Text("; ".join(below), style="bright_black", no_wrap=True, overflow="ellipsis")] * bool(below),
            Text(
                f"sorted by {self._by}: {_KEYS}  q quit",
                style="bright_black",
                no_wrap=True,
                overflow="ellipsis",
            ),
        )

    def _said(self) -> str:
        if not self._trouble:
            return ""
        age_s = time.time() - self._found_at
        stale = f"; this is {age_s:.0f} s old" if age_s > 2 * self._interval_s else ""
        return f"{printable(self._trouble)}{stale}"


def _table(rows: list[Row], sorted_by: str, width: int) -> Table:
    """The rows in a window of this width. Where it is narrow, groups' names are cut off and columns left out:
    a figure that is cut off says nothing."""
    shown = [dict(zip(COLUMNS, map(_cell, cells(each)), strict=True)) for each in rows]
    widths = {
        field: _GAP + max(cell_len(each) for each in (heading, *(row[field] for row in shown)))
        for field, heading in COLUMNS.items()
    }
    for_group = min(widths.pop("group_id"), _GAP + _GROUP_MIN)
    for field in _LEFT_OUT_FIRST:
        if for_group + sum(widths.values()) > width and field != sorted_by:
            del widths[field]
    for_group = max(width - sum(widths.values()), for_group)
    table = Table(box=None, padding=(0, _GAP, 0, 0), header_style="bold")
    for field in ("group_id", *widths):
        table.add_column(
            COLUMNS[field],
            justify="right" if field not in ("group_id", "state") else "left",
            no_wrap=True,
            overflow="ellipsis",
            header_style="bold reverse" if field == sorted_by else "bold",
            max_width=for_group - _GAP if field == "group_id" else None,
        )
    for row, cell in zip(rows, shown, strict=True):
        style = "" if row.state in ("Stable", "Empty") else "yellow"
        table.add_row(*(Text(cell[field]) for field in ("group_id", *widths)), style=style)
    return table


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else printable(str(value))


class Keys:
    """Keys as they are pressed, without Enter; none if standard input is not a terminal. Ctrl-C works as
    usual. Ctrl-Z is ignored: it would garble the screen."""

    def __init__(self) -> None:
        self._pressed: asyncio.Queue[str] = asyncio.Queue()
        self._descriptor = -1
        self._restore: Callable[[], None] | None = None

    async def next(self) -> str:
        """The next key."""
        return await self._pressed.get()

    def __enter__(self) -> Self:
        if sys.stdin is not None and sys.stdin.isatty():
            self._descriptor = sys.stdin.fileno()
            self._restore = unbuffer_keys(self._descriptor)
        if self._restore is not None:
            asyncio.get_running_loop().add_reader(self._descriptor, self._read)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._restore is not None:
            asyncio.get_running_loop().remove_reader(self._descriptor)
            self._restore()

    def _read(self) -> None:
        try:
            read = os.read(self._descriptor, 64)
        except OSError:
            read = b""
        if not read:  # the terminal is gone
            asyncio.get_running_loop().remove_reader(self._descriptor)
        for key in _ESCAPES.sub(b"", read).decode(errors="ignore"):
            self._pressed.put_nowait(key)

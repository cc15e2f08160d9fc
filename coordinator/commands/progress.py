"""Progress of long commands: a line on the terminal, redrawn and finally removed.

It goes to standard error, and only if that is a terminal.
"""

from __future__ import annotations

import asyncio
import logging
import os
import select
import sys
import time
from collections import deque
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

_DELAY_S: Final = 1.0
"""Shorter commands show nothing."""
_EVERY_S: Final = 0.25
_WINDOW_S: Final = 5.0
"""The rates shown cover this much time, or the whole run if that is shorter."""
_ERASE: Final = "\r\x1b[K"
_UNITS: Final = ("B", "kB", "MB", "GB", "TB")


class Progress(logging.Filter):
    """Counts work, and shows the count while a `with` block runs in an asyncio task. If anything was shown,
    ends with a summary line.

    `command`: start of the line. `noun`: what is counted, singular; None shows the time only. `total`,
    `total_bytes`: the expected amounts, if known. `shown`: whether a line may be drawn at all.
    """

    def __init__(
        self,
        command: str,
        noun: str | None,
        *,
        total: int | None = None,
        total_bytes: int | None = None,
        shown: bool = True,
    ) -> None:
        super().__init__()
        self._command = command
        self._noun = noun
        self._total = total
        self._total_bytes = total_bytes
        self._count = 0
        self._bytes = 0
        self._terminal = _terminal() if shown else None
        self._drawn = False
        self._ever_drawn = False
        self._timer: asyncio.TimerHandle | None = None
        self._began = 0.0
        self._seen = deque([(0.0, 0, 0)])
        """(seconds, count, bytes) of the last draws."""

    def advance(self, count: int = 1, size_bytes: int = 0) -> None:
        """Count this much more."""
        self._count += count
        self._bytes += size_bytes

    def line(self, took_s: float) -> str:
        """The line after this many seconds."""
        then, count, size_bytes = self._seen[0]
        rates = self._rates(took_s - then, self._count - count, self._bytes - size_bytes)
        parts = [self._amounts(final=False), rates, _duration(took_s)]
        return f"{self._command}: {', '.join(each for each in parts if each)}"

    def erase(self) -> None:
        """Remove the line before something else is printed; the next draw restores it."""
        if self._drawn:
            self._drawn = False
            self._write(_ERASE)

    def filter(self, record: logging.LogRecord) -> bool:
        """Remove the line before a log message."""
        self.erase()
        return True

    def __enter__(self) -> Self:
        self._began = time.monotonic()
        if self._terminal is not None:
            self._timer = asyncio.get_running_loop().call_later(_DELAY_S, self._draw)
            for handler in logging.getLogger().handlers:
                handler.addFilter(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is None:
            return
        self._timer.cancel()
        for handler in logging.getLogger().handlers:
            handler.removeFilter(self)
        self.erase()
        if self._ever_drawn:
            took_s = time.monotonic() - self._began
            done = f"{self._amounts(final=True)} in {_duration(took_s)}"
            rates = self._rates(took_s, self._count, self._bytes)
            self._write(f"{self._command}: {done}{f' ({rates})' if rates else ''}\n")

    def _draw(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_EVERY_S, self._draw)
        assert self._terminal is not None
        if not _writable(self._terminal):  # stopped with Ctrl-S: the work goes on
            return
        took_s = time.monotonic() - self._began
        self._seen.append((took_s, self._count, self._bytes))
        while len(self._seen) > 2 and took_s - self._seen[0][0] > _WINDOW_S:
            self._seen.popleft()
        text = self.line(took_s)
        self._drawn = self._ever_drawn = True
        with suppress(OSError):
            text = text[: max(os.get_terminal_size(self._terminal).columns - 1, 10)]
        self._write(_ERASE + text)

    def _amounts(self, *, final: bool) -> str:
        """`1,200 records, 3.4 MB of 10 MB (34%)`; the final one has no total."""
        parts = []
        if self._noun is not None:
            total = "" if final or self._total is None else f" of {self._total:,}"
            noun = self._noun if (self._total or self._count) == 1 else f"{self._noun}s"
            parts.append(f"{self._count:,}{total} {noun}")
        if self._total_bytes and not final:
            share = min(self._bytes / self._total_bytes, 1.0)
            parts.append(f"{_size(self._bytes)} of {_size(self._total_bytes)} ({share:.0%})")
        elif self._bytes:
            parts.append(_size(self._bytes))
        return ", ".join(parts) or ("done" if final else "working")

    def _rates(self, took_s: float, count: int, size_bytes: int) -> str:
        if self._noun is None or took_s <= 0:
            return ""
        per_s = count / took_s
        rates = [f"{per_s:,.0f} {self._noun}s/s" if per_s >= 10 else f"{per_s:.1f} {self._noun}s/s"]
        if self._bytes:
            rates.append(f"{_size(size_bytes / took_s)}/s")
        return ", ".join(rates)

    def _write(self, text: str) -> None:
        assert self._terminal is not None
        with suppress(OSError):  # the terminal is gone; the work goes on
            os.write(self._terminal, text.encode(errors="replace"))


def _terminal() -> int | None:
    """The descriptor of standard error, if it is a terminal."""
    if os.environ.get("TERM", "dumb") == "dumb":
        return None
    try:
        descriptor = sys.stderr.fileno()
        return descriptor if os.isatty(descriptor) else None
    except (OSError, ValueError):  # replaced or closed
        return None


def _writable(descriptor: int) -> bool:
    try:
        return bool(select.select([], [descriptor], [], 0)[1])
    except (OSError, ValueError):  # select on Windows takes sockets only
        return True


def _size(size_bytes: float) -> str:
    """In decimal units: 950 B, 1.2 kB, 34 MB."""
    unit = 0
    while size_bytes >= 999.5 and unit < len(_UNITS) - 1:
        size_bytes /= 1000
        unit += 1
    digits = 1 if unit and size_bytes < 9.95 else 0
    return f"{size_bytes:.{digits}f} {_UNITS[unit]}"


def _duration(seconds: float) -> str:
    """0.4 s, 12 s, 3 min 5 s, 2 h 10 min."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"

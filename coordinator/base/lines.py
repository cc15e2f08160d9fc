"""Lines written by a separate thread.

The reader of a process's log may stall: a stuck log driver, a terminal held with Ctrl-S. A write then blocks,
and on the event loop it would hold up the broker until its leases expire.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from threading import Condition, Thread, get_ident
from typing import Final

from muster.coordinator.base.system import wait_writable

_QUEUED_BYTES_MAX: Final = 1024 * 1024


class LineWriter:
    """Writes to a file descriptor without ever blocking its caller. Lines that arrive while a megabyte is
    queued, or that cannot be written (a full disk, a closed pipe), are dropped and counted; one that was cut
    is ended before the next."""

    def __init__(
        self, descriptor: int, lost: Callable[[int], None], bytes_max: int = _QUEUED_BYTES_MAX
    ) -> None:
        """`lost(count)` is called on the writing thread once there is room again after `count` lines were
        dropped; it may write a line, which stands for them should it be dropped, too."""
        self._descriptor = descriptor
        self._on_lost = lost
        self._bytes_max = bytes_max
        self._changed = Condition()
        self._lines: list[tuple[bytes, int]] = []  # each with the number of lines that it stands for
        self._queued_bytes = 0
        self._lost = 0
        self._reporting = 0  # how many are being reported as lost
        self._room = True  # the last write succeeded
        self._cut = False  # the last write ended within a line
        self._writing = False
        self._closed = False
        # A daemon: a blocked write must not keep the process from exiting.
        self._thread = Thread(target=self._run, name="muster-log", daemon=True)
        self._thread.start()

    def write(self, text: str) -> None:
        """Queue whole lines."""
        line = text.encode("utf-8", "backslashreplace")
        stands_for = self._reporting if self._reporting and get_ident() == self._thread.ident else 1
        with self._changed:
            if self._queued_bytes + len(line) > self._bytes_max:
                self._lost += stands_for
                return
            self._lines.append((line, stands_for))
            self._queued_bytes += len(line)
            self._changed.notify_all()

    def flush(self) -> None:
        """Do nothing: the thread writes as soon as it can. See `drain`."""

    def drain(self, timeout_s: float) -> None:
        """Wait until everything is written, at most `timeout_s`."""
        with self._changed:
            self._changed.wait_for(lambda: not (self._lines or self._writing or self._owes_report), timeout_s)

    def close(self) -> None:
        """End the thread once everything is written, without waiting for it."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._writing = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._lines or self._closed or self._owes_report)
                if self._closed and not self._lines:
                    return
                lines, self._lines, self._queued_bytes = self._lines, [], 0
                lost = self._lost if self._owes_report else 0
                self._lost -= lost
                self._writing = True
            if lost:
                self._reporting = lost
                self._on_lost(lost)
                self._reporting = 0
            if lines:
                self._write(lines)

    @property
    def _owes_report(self) -> bool:
        return self._room and self._lost > 0

    def _write(self, lines: Sequence[tuple[bytes, int]]) -> None:
        before = b"\n" if self._cut else b""
        content = before + b"".join(line for line, _ in lines)
        written = _write_all(self._descriptor, content) - len(before)
        lost = end = 0
        cut = written < 0
        for line, stands_for in lines:
            start, end = end, end + len(line)
            cut = cut or start < written < end
            if written < end - 1:  # only its line end may be missing: it will come before the next line
                lost += stands_for
        with self._changed:
            self._lost += lost
            self._room, self._cut = written == end, cut


def _write_all(descriptor: int, content: bytes) -> int:
    """Write until the system refuses; return how many bytes were written."""
    # Not through a Python file: it holds its lock while it blocks, and the interpreter needs that lock to
    # exit.
    position = 0
    with memoryview(content) as left:
        while position < len(left):
            try:
                position += os.write(descriptor, left[position:])
            except BlockingIOError:  # another process shares the pipe and does not block
                wait_writable(descriptor)
            except OSError:
                break
    return position

"""Lines written by a separate thread.

The reader of a process's log may stall: a stuck log driver, a terminal held with Ctrl-S. A write then blocks,
and on the event loop it would hold up the broker until its leases expire.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from threading import Condition, Thread
from typing import Final

_QUEUED_BYTES_MAX: Final = 1024 * 1024


class LineWriter:
    """Writes to a file descriptor without ever blocking its caller. Lines that arrive while a megabyte is
    queued are dropped and counted."""

    def __init__(
        self, descriptor: int, lost: Callable[[int], None], bytes_max: int = _QUEUED_BYTES_MAX
    ) -> None:
        """`lost(count)` is called on the writing thread once there is room again after `count` lines were
        dropped; it may write."""
        self._descriptor = descriptor
        self._on_lost = lost
        self._bytes_max = bytes_max
        self._changed = Condition()
        self._lines: list[bytes] = []
        self._queued_bytes = 0
        self._lost = 0
        self._writing = False
        self._closed = False
        # A daemon: a blocked write must not keep the process from exiting.
        Thread(target=self._run, name="muster-log", daemon=True).start()

    def write(self, text: str) -> None:
        """Queue whole lines."""
        line = text.encode("utf-8", "backslashreplace")
        with self._changed:
            if self._queued_bytes + len(line) > self._bytes_max:
                self._lost += 1
                return
            self._lines.append(line)
            self._queued_bytes += len(line)
            self._changed.notify_all()

    def flush(self) -> None:
        """Do nothing: the thread writes as soon as it can. See `drain`."""

    def drain(self, timeout_s: float) -> None:
        """Wait until everything is written, at most `timeout_s`."""
        with self._changed:
            self._changed.wait_for(lambda: not self._lines and not self._writing, timeout_s)

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
                self._changed.wait_for(lambda: self._lines or self._closed)
                if not self._lines:
                    return
                lines, self._lines, self._queued_bytes = self._lines, [], 0
                lost, self._lost = self._lost, 0
                self._writing = True
            if lost:
                self._on_lost(lost)
            # The reader may be gone (a closed pipe): then the lines are lost.
            with suppress(OSError):
                _write_all(self._descriptor, b"".join(lines))


def _write_all(descriptor: int, content: bytes) -> None:
    # Not through a Python file: it holds its lock while it blocks, and the interpreter needs that lock to
    # exit.
    with memoryview(content) as left:
        position = 0
        while position < len(left):
            position += os.write(descriptor, left[position:])

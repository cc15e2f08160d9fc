"""Standard input and output of long-running commands. Both may block forever, which must not hold up
heartbeats or Ctrl-C."""

from __future__ import annotations

import errno
import os
import select
import sys
from collections.abc import AsyncIterator
from typing import Final

from muster.client.network.threads import in_thread

_PIECE_BYTES: Final = 256 * 1024
LINE_BYTES_MAX: Final = 64 * 1024 * 1024
"""The longest line accepted; no topic takes a record this large by default."""


class LineTooLong(Exception):
    """A line longer than LINE_BYTES_MAX."""


async def lines(descriptor: int) -> AsyncIterator[list[bytes]]:
    """The lines of a file, pipe or terminal without their ends, as many at a time as have arrived."""
    begun: list[bytes] = []  # the start of an incomplete line; joined once, not per piece
    begun_bytes = 0
    while piece := await in_thread(os.read, descriptor, _PIECE_BYTES):
        *whole, rest = piece.split(b"\n")
        if whole:
            whole[0] = b"".join((*begun, whole[0]))
            begun, begun_bytes = [], 0
            yield [each.removesuffix(b"\r") for each in whole]
        begun.append(rest)
        begun_bytes += len(rest)
        if begun_bytes > LINE_BYTES_MAX:
            raise LineTooLong
    if begun_bytes:
        yield [b"".join(begun).removesuffix(b"\r")]


async def write(text: bytes) -> None:
    """Write all of it to standard output. Raises BrokenPipeError when the reader is gone."""
    if sys.stdout is not None:  # None if the shell closed it: `>&-`
        await in_thread(_write, sys.stdout.fileno(), text)


def check_reader() -> None:
    """Raise BrokenPipeError if the reader of standard output is gone, which otherwise only a write shows."""
    if sys.platform == "win32" or sys.stdout is None:
        return
    poll = select.poll()
    poll.register(sys.stdout.fileno(), select.POLLOUT)
    if any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0)):
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def _write(descriptor: int, text: bytes) -> None:
    # Not through sys.stdout: a thread left behind would hold its lock and block the exit.
    view = memoryview(text)
    while view:
        view = view[os.write(descriptor, view) :]

"""Ends sockets for their peers even if another process has a duplicate of them."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import Any


def shut_down(each: socket.socket) -> None:
    """Before a socket is closed: a process that was forked meanwhile has duplicates of the descriptors and
    keeps open what is merely closed. What was written before is still sent."""
    with suppress(OSError):  # not connected any more; some systems do not shut listening sockets down
        each.shutdown(socket.SHUT_RDWR)


def hang_up(transport: asyncio.BaseTransport) -> None:
    """Likewise for the socket of a transport, in `connection_lost`: it has sent or dropped everything, and
    closes its socket afterwards."""
    found: Any = transport.get_extra_info("socket")
    if found is None:
        return
    # A duplicate, since uvloop's sockets cannot be shut down.
    with suppress(OSError), socket.fromfd(found.fileno(), found.family, found.type) as duplicate:
        shut_down(duplicate)

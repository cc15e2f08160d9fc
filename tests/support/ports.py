"""Ports that can be left and taken again."""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack
from typing import Final

_FIRST: Final = 20_000
_COUNT: Final = 10_000


def free_ports(count: int) -> int:
    """The first of `count` free ports of the loopback interface, side by side.

    They lie below the range from which systems give ports to outgoing connections, where any of those may
    take a neighbour, or a port whose server is down for a moment. Where to look first depends on the process.
    """
    offset = os.getpid() * 16 % _COUNT
    for step in range(0, _COUNT - count, count):
        first = _FIRST + (offset + step) % (_COUNT - count)
        with ExitStack() as held:
            try:
                for port in range(first, first + count):
                    held.enter_context(socket.create_server(("127.0.0.1", port)))
            except OSError:
                continue
            return first
    raise AssertionError(f"no {count} free ports side by side")

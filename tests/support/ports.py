"""Ports that can be left and taken again."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterable
from contextlib import ExitStack
from typing import Final

_FIRST: Final = 20_000
_COUNT: Final = 10_000
_given: Final[set[int]] = set()
_giving: Final = threading.Lock()


def free_ports(count: int) -> int:
    """The first of `count` free ports of the loopback interface, side by side.

    They lie below the range from which systems give ports to outgoing connections, where any of those may
    take a neighbour, or a port whose server is down for a moment. Where to look first depends on the process,
    and no port is given twice in one, for the same reason.
    """
    offset = os.getpid() * 997 % _COUNT  # far from those of neighbours: tests run in several processes
    with _giving:
        for step in range(0, _COUNT - count, count):
            first = _FIRST + (offset + step) % (_COUNT - count)
            wanted = range(first, first + count)
            if _given.isdisjoint(wanted) and _are_free(wanted):
                _given.update(wanted)
                return first
    raise AssertionError(f"no {count} free ports side by side")


def _are_free(ports: Iterable[int]) -> bool:
    with ExitStack() as held:
        try:
            for port in ports:
                held.enter_context(socket.create_server(("127.0.0.1", port)))
        except OSError:
            return False
        return True

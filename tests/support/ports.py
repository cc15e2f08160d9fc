"""Ports that can be released and taken again."""

from __future__ import annotations

import atexit
import os
import socket
import threading
from collections.abc import Iterable
from contextlib import ExitStack
from typing import Final

_FIRST: Final = 20_000
_BLOCK: Final = 200
_BLOCKS: Final = 60


def free_ports(count: int) -> int:
    """The first of `count` consecutive free ports of the loopback interface.

    They lie below the range from which systems assign ports to outgoing connections, any of which could take
    a neighbour, or a port whose server is down for a moment. For the same reason no port is handed out twice:
    a process claims blocks of ports for its lifetime, since tests run in several processes.
    """
    return _ports.take(count)


def has_ipv6() -> bool:
    """Whether the loopback interface has an address of IPv6."""
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


class _Ports:
    """The ports of this process. The first port of a block is its claim: the process listens there."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._claims: list[socket.socket] = []
        self._left = range(0)

    def take(self, count: int) -> int:
        with self._lock:
            if self._pid != os.getpid():  # forked: the claims are the parent's
                self._pid, self._left = os.getpid(), range(0)
            while True:
                while len(self._left) >= count:
                    wanted = self._left[:count]
                    if _are_free(wanted):
                        self._left = self._left[count:]
                        return wanted[0]
                    self._left = self._left[1:]
                self._left = self._claim()

    def _claim(self) -> range:
        for first in range(_FIRST, _FIRST + _BLOCKS * _BLOCK, _BLOCK):
            try:
                self._claims.append(socket.create_server(("127.0.0.1", first)))
            except OSError:
                continue  # taken by another process or by us
            return range(first + 1, first + _BLOCK)
        raise AssertionError(f"no ports are left: each of {_BLOCKS} blocks is in use")

    def release(self) -> None:
        for claim in self._claims:
            claim.close()


def _are_free(ports: Iterable[int]) -> bool:
    with ExitStack() as held:
        try:
            for port in ports:
                held.enter_context(socket.create_server(("127.0.0.1", port)))
        except OSError:
            return False
        return True


_ports: Final = _Ports()
atexit.register(_ports.release)

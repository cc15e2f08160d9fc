"""The listening sockets of one broker."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final

from muster.coordinator.base.system import claim_port
from muster.coordinator.server.hanging_up import shut_down

_BACKLOG: Final = 4096
"""Connections that wait to be accepted; systems have a limit of their own. One too many looks open to its
client, which resends what nobody takes after 1, 3, 7 and more seconds."""
_SAME_PORT_TRIES: Final = 20
_PRIVILEGED: Final = 1024
_ACCEPTED_A_TURN: Final = 16
"""Connections accepted per address. A turn that serves a thousand members takes milliseconds: with one
connection per turn, clients that come back after a failover would wait for seconds."""


class BindError(Exception):
    """The address cannot be listened on; the text says which, and why, in one line."""


class Listener:
    """Accepts connections on one port, at every address its host name stands for.

    `localhost` stands for 127.0.0.1 and ::1, and clients differ in which they try first, so both are bound,
    to the same port, even if the system chooses it.
    """

    def __init__(
        self,
        host: str,
        port: int,
        connect: Callable[[], asyncio.BaseProtocol],
        option: str = "--port",
    ) -> None:
        """`connect` makes the protocol of a connection; `option` sets the port, and is named in errors."""
        self.host = host
        self.port = port
        self.connect = connect
        self._option = option
        self._sockets: list[socket.socket] = []
        self._servers: list[asyncio.Server] = []

    async def bind(self) -> int:
        """Bind the port, without accepting yet; returns the port. Raises BindError."""
        addresses = await _resolve(self.host)
        for _ in range(_SAME_PORT_TRIES):
            try:
                self._sockets = _bind_all(addresses, self.port)
            except _SecondTaken:
                continue  # The port the system chose for the first address is in use at the second one.
            except OSError as error:
                raise BindError(_explain(error, self.host, self.port, self._option)) from None
            self.port = self._sockets[0].getsockname()[1]
            return self.port
        raise BindError(f"no port is free on every address of {self.host}")

    async def accept(self) -> None:
        """Start accepting connections. Raises BindError: two that bound the same port find out only now."""
        loop = asyncio.get_running_loop()
        try:
            for each in self._sockets:
                each.listen(_BACKLOG)  # here, since uvloop does not report a failure
            for each in self._watched(loop):
                self._servers.append(await loop.create_server(self.connect, sock=each, backlog=_BACKLOG))
        except OSError as error:
            raise BindError(_explain(error, self.host, self.port, self._option)) from None

    def _watched(self, loop: asyncio.AbstractEventLoop) -> Iterator[socket.socket]:
        """The listening sockets, and duplicates with other descriptors: asyncio accepts all waiting
        connections in a turn, libuv (since 1.45) one from each descriptor that it watches."""
        own = isinstance(loop, asyncio.BaseEventLoop)
        for each in self._sockets:
            yield each
            for _ in range(0 if own else _ACCEPTED_A_TURN - 1):
                yield each.dup()

    async def close(self) -> None:
        """Stop accepting and release the port; open connections stay. Harmless when repeated."""
        if self._servers:
            loop = asyncio.get_running_loop()
            with suppress(NotImplementedError):  # Windows' loop has no readers, and no such turn
                for each in self._sockets:
                    loop.remove_reader(each)
            # asyncio hands a connection to its server in the turn after it was accepted. If the server were
            # closed by then, the connection would stay open with nobody to answer.
            await asyncio.sleep(0)
        for each in self._sockets:
            shut_down(each)  # before the servers, which close them
        for server in self._servers:
            server.close()
        self.release()

    def release(self) -> None:
        """Release the port of a listener that has not begun to accept."""
        for each in self._sockets:
            shut_down(each)
            each.close()
        self._servers, self._sockets = [], []


class _SecondTaken(Exception):
    pass


async def _resolve(host: str) -> list[tuple[socket.AddressFamily, str]]:
    """The addresses `host` stands for, IPv4 first (what most clients try first)."""
    try:
        found = socket.getaddrinfo(
            host or None, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE | socket.AI_NUMERICHOST
        )
    except socket.gaierror:
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host, 0, type=socket.SOCK_STREAM)
        except socket.gaierror as error:
            why = "give it without brackets" if host.startswith("[") else error.strerror
            raise BindError(f"{host} is not an address of this machine ({why})") from None
    addresses = {(family, str(address[0])) for family, _, _, _, address in found}
    if host == "localhost":  # Not every hosts file names both.
        addresses |= {(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")}
    if host == "::":  # Every interface, and clients are told localhost, which may be either family.
        addresses.add((socket.AF_INET, "0.0.0.0"))
    return sorted(addresses)


def _bind_all(addresses: list[tuple[socket.AddressFamily, str]], port: int) -> list[socket.socket]:
    """A bound socket per address, all on one port; addresses of a family this machine lacks are skipped."""
    bound: list[socket.socket] = []
    lacking: OSError | None = None
    try:
        for family, address in addresses:
            try:
                bound.append(_bind(family, address, bound[0].getsockname()[1] if bound else port))
            except OSError as error:
                if error.errno in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
                    lacking = error
                elif error.errno == errno.EADDRINUSE and bound and port == 0:
                    raise _SecondTaken from None
                else:
                    raise
        if not bound:
            raise lacking or OSError(errno.EADDRNOTAVAIL, "no address")
    except BaseException:
        for each in bound:
            each.close()
        raise
    return bound


def _bind(family: socket.AddressFamily, address: str, port: int) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        claim_port(made)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.setblocking(False)
        made.bind((address, port))
    except BaseException:
        made.close()
        raise
    return made


def _explain(error: OSError, host: str, port: int, option: str) -> str:
    at = f"{host or '*'}:{port}"
    match error.errno:
        case errno.EADDRINUSE:
            return f"{at} is in use; choose another {option}, or 0 for any free one"
        case errno.EACCES:
            if port and port < _PRIVILEGED:
                return f"not allowed to listen on {at} (ports below {_PRIVILEGED} need privileges)"
            return f"{at} is in use or reserved by the system; choose another {option}, or 0 for any free one"
        case errno.EADDRNOTAVAIL:
            return f"{host} is not an address of this machine"
    return f"cannot listen on {at}: {error.strerror}"

"""Limits connections: caps their number, and closes those that send no request or take no answer.

If all places are taken, a new connection gets that of the oldest one without a request in progress: an honest
request takes milliseconds, so strangers cannot keep others out. Who has logged in keeps the place. Where a
login is required, nobody else does, so a request that is held back or takes no answer is no way to keep one.
"""

from __future__ import annotations

import asyncio
from typing import Final, cast

from aiohttp import web
from aiohttp.typedefs import Handler

from muster.coordinator.web.login import Login

CONNECTIONS_MAX: Final = 256
"""The brokers' connections need open files, too."""
FIRST_REQUEST_S: Final = 30.0
"""A connection without a request by then is closed."""
TAKE_S: Final = 30.0
"""How often to look for connections that have taken nothing of their answers since the last look."""

_Connection = asyncio.BaseProtocol


class Door:
    """Creates the protocol of each connection, once the server is set."""

    def __init__(self, login: Login | None) -> None:
        self.server: web.Server | None = None
        self._login = login
        self._silent: dict[_Connection, asyncio.TimerHandle] = {}
        self._left: dict[asyncio.Transport, int] = {}
        """Bytes that each connection with a request had not taken at the last look."""
        self._asking: set[_Connection] = set()
        """Connections with a request in progress."""
        self._logged_in: set[asyncio.Transport] = set()
        self._look: asyncio.TimerHandle | None = None

    def __call__(self) -> _Connection:
        assert self.server is not None
        if len(self.server.connections) >= CONNECTIONS_MAX and not self._make_way(self.server.connections):
            return _Refusal()
        connection = self.server()
        loop = asyncio.get_running_loop()
        self._silent[connection] = loop.call_later(FIRST_REQUEST_S, self._give_up, connection)
        return connection

    @web.middleware
    async def heard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Note that a request arrived on a connection, and when it is answered."""
        timer = self._silent.pop(request.protocol, None)
        if timer is not None:
            timer.cancel()
            if request.transport is not None:
                self._left[request.transport] = 0
                if self._look is None:
                    self._look_later()
        self._asking.add(request.protocol)
        try:
            return await handler(request)
        finally:
            self._asking.discard(request.protocol)

    @web.middleware
    async def let_in(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Note who has logged in. It comes after the login."""
        if self._login is not None and self._login.has(request) and request.transport is not None:
            self._logged_in.add(request.transport)
        return await handler(request)

    def close(self) -> None:
        """Stop watching connections."""
        for timer in self._silent.values():
            timer.cancel()
        self._silent.clear()
        if self._look is not None:
            self._look.cancel()
        self._left.clear()
        self._logged_in.clear()

    def _make_way(self, connections: list[web.RequestHandler]) -> bool:
        """Close connections, which are in the order they came, until there is a place for another. Returns
        whether there is one."""
        there = [
            (each, transport)
            for each in connections
            if (transport := each.transport) is not None and not transport.is_closing()
        ]
        idle: list[tuple[web.RequestHandler, asyncio.Transport]] = []
        busy: list[tuple[web.RequestHandler, asyncio.Transport]] = []
        for each, transport in there:
            if transport not in self._logged_in:
                is_idle = each not in self._asking and not transport.get_write_buffer_size()
                (idle if is_idle else busy).append((each, transport))
        yielding = idle if self._login is None else idle + busy
        excess = max(len(there) + 1 - CONNECTIONS_MAX, 0)
        for each, transport in yielding[:excess]:
            if (timer := self._silent.pop(each, None)) is not None:
                timer.cancel()
            if transport.get_write_buffer_size():
                transport.abort()  # to close it would be to wait until the rest is taken
            else:
                each.force_close()
        return len(yielding) >= excess

    def _give_up(self, connection: _Connection) -> None:
        del self._silent[connection]
        assert isinstance(connection, web.RequestHandler)
        connection.force_close()

    def _look_later(self) -> None:
        self._look = asyncio.get_running_loop().call_later(TAKE_S, self._close_stuck)

    def _close_stuck(self) -> None:
        for transport, before in list(self._left.items()):
            left = self._left[transport] = transport.get_write_buffer_size()
            if left and left == before:
                transport.abort()  # to close it would be to wait until the rest is taken
                left = 0
            if not left and transport.is_closing():
                del self._left[transport]
                self._logged_in.discard(transport)
        self._look = None
        if self._left:
            self._look_later()


class _Refusal(asyncio.Protocol):
    """Closes the connection at once."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).abort()

"""Limits connections: caps their number, and closes those that send no request or take no answer."""

from __future__ import annotations

import asyncio
from typing import Final, cast

from aiohttp import web
from aiohttp.typedefs import Handler

CONNECTIONS_MAX: Final = 256
"""The brokers' connections need open files, too."""
FIRST_REQUEST_S: Final = 30.0
"""A connection without a request by then is closed."""
TAKE_S: Final = 30.0
"""How often to look for connections that have taken nothing of their answers since the last look."""

_Connection = asyncio.BaseProtocol


class Door:
    """Creates the protocol of each connection, once the server is set."""

    def __init__(self) -> None:
        self.server: web.Server | None = None
        self._silent: dict[_Connection, asyncio.TimerHandle] = {}
        self._left: dict[asyncio.Transport, int] = {}
        """Bytes that each connection with a request had not taken at the last look."""
        self._look: asyncio.TimerHandle | None = None

    def __call__(self) -> _Connection:
        assert self.server is not None
        if len(self.server.connections) >= CONNECTIONS_MAX:
            return _Refusal()
        connection = self.server()
        loop = asyncio.get_running_loop()
        self._silent[connection] = loop.call_later(FIRST_REQUEST_S, self._give_up, connection)
        return connection

    @web.middleware
    async def heard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Note that a request arrived on a connection."""
        timer = self._silent.pop(request.protocol, None)
        if timer is not None:
            timer.cancel()
            if request.transport is not None:
                self._left[request.transport] = 0
                if self._look is None:
                    self._look_later()
        return await handler(request)

    def close(self) -> None:
        """Stop watching connections."""
        for timer in self._silent.values():
            timer.cancel()
        self._silent.clear()
        if self._look is not None:
            self._look.cancel()
        self._left.clear()

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
        self._look = None
        if self._left:
            self._look_later()


class _Refusal(asyncio.Protocol):
    """Closes the connection at once."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).abort()

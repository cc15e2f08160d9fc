"""Limits connections: caps their number, and closes those that send no request."""

from __future__ import annotations

import asyncio
from typing import Final, cast

from aiohttp import web
from aiohttp.typedefs import Handler

CONNECTIONS_MAX: Final = 256
"""The brokers' connections need open files, too."""
FIRST_REQUEST_S: Final = 30.0
"""A connection without a request by then is closed."""

_Connection = asyncio.BaseProtocol


class Door:
    """Creates the protocol of each connection, once the server is set."""

    def __init__(self) -> None:
        self.server: web.Server | None = None
        self._silent: dict[_Connection, asyncio.TimerHandle] = {}

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
        return await handler(request)

    def close(self) -> None:
        """Stop watching connections."""
        for timer in self._silent.values():
            timer.cancel()
        self._silent.clear()

    def _give_up(self, connection: _Connection) -> None:
        del self._silent[connection]
        assert isinstance(connection, web.RequestHandler)
        connection.force_close()


class _Refusal(asyncio.Protocol):
    """Closes the connection at once."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).abort()

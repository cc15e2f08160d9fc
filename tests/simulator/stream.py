"""The client's end of a simulated connection, for code that wants an asyncio transport: muster's own client.

`loop.create_connection` calls within a `Process` end up here. A process dies as a whole: its connections end,
noticed by their peers or not, and it opens no more.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import random
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any
from unittest import mock

from muster.protocol.api import ApiKey, request_class
from muster.protocol.codec import decode
from muster.protocol.frame import FrameSplitter
from muster.protocol.header import decode_request_header
from tests.simulator.member import Asked
from tests.simulator.network import Address, Disconnected, Link, Network

CLIENT_HOST = "10.0.0.2"


class Process:
    """The process in which a client runs."""

    def __init__(self, network: Network, asking: Callable[[Link, Asked], None], rng: random.Random) -> None:
        self.dead = False
        self.rng = rng
        """Used for code that draws from the shared random generator."""
        self._network = network
        self._asking = asking
        self._links: list[StreamLink] = []

    @property
    def links(self) -> list[StreamLink]:
        """Its open connections, the oldest first."""
        self._links = [link for link in self._links if link.open]
        return self._links

    def die(self, *, silently: bool) -> None:
        """`silently`: brokers do not even notice that the connections are gone."""
        self.dead = True
        for link in self.links:
            if silently:
                link.vanish()
            else:
                link.close()

    async def connect(self, factory: Callable[[], asyncio.BaseProtocol], address: Address) -> _ClientEnd:
        try:
            link = await self._network.connect(address, CLIENT_HOST, StreamLink)
        except Disconnected:
            raise _refused() from None
        if self.dead:
            link.close()
            raise _refused()
        assert isinstance(link, StreamLink)
        self._links.append(link)
        protocol = factory()
        assert isinstance(protocol, asyncio.BufferedProtocol)
        link.end = _ClientEnd(link, protocol, self._asking)
        protocol.connection_made(link.end)
        return link.end


def _refused() -> ConnectionRefusedError:
    return ConnectionRefusedError(errno.ECONNREFUSED, "simulated")


PROCESS: ContextVar[Process] = ContextVar("process")
"""The process whose task connects."""


def own_luck() -> contextlib.AbstractContextManager[object]:
    """Make code that draws from the shared random generator draw from its process's own instead, so that its
    draws do not depend on what other processes do.
    """
    mocks = contextlib.ExitStack()
    for name in ("uniform", "random", "shuffle"):

        def drawn(*given: Any, _name: str = name) -> Any:
            return getattr(PROCESS.get().rng, _name)(*given)

        mocks.enter_context(mock.patch.object(random, name, drawn))
    return mocks


async def dial(
    factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
) -> tuple[asyncio.BaseTransport, asyncio.BaseProtocol]:
    """Stands in for a loop's `create_connection`. Raises OSError."""
    end = await PROCESS.get().connect(factory, (host, port))
    return end, end.protocol


class StreamLink(Link):
    """A connection whose client has a transport."""

    end: _ClientEnd | None = None

    def _arrive(self, data: bytes) -> None:
        if self.open and self.end is not None:
            self.end.received(data)

    def _ended_by_broker(self, *, reset: bool) -> None:
        super()._ended_by_broker(reset=reset)
        if self.end is not None:
            self.end.ended(reset=reset)

    def cut(self, *, silently: bool = False) -> None:
        """Break it: both ends notice, or, if `silently`, only the client."""
        if self.open:
            if silently:
                self.vanish()
            else:
                self.close()
            if self.end is not None:
                self.end.ended(reset=True)


class _Socket:
    """Accepts any option."""

    def setsockopt(self, *_: object) -> None:
        pass


class _ClientEnd(asyncio.Transport):
    def __init__(
        self, link: StreamLink, protocol: asyncio.BufferedProtocol, asking: Callable[[Link, Asked], None]
    ) -> None:
        super().__init__({"peername": link.address, "socket": _Socket()})
        self.protocol = protocol
        self._link = link
        self._asking = asking
        self._splitter = FrameSplitter()
        self._closing = False

    def received(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest and not self._closing:
            room = memoryview(self.protocol.get_buffer(len(rest)))
            taken = min(len(room), len(rest))
            room[:taken] = rest[:taken]
            rest = rest[taken:]
            self.protocol.buffer_updated(taken)

    def ended(self, *, reset: bool) -> None:
        """Ended by the other side or the network."""
        if self._closing:
            return
        if not reset:
            self.protocol.eof_received()
        if not self._closing:
            self._finish(ConnectionResetError("simulated") if reset else None)

    # --- asyncio.Transport ------------------------------------------------------------------------

    def write(self, data: Any) -> None:
        if self._closing or not self._link.open:
            return
        for frame in self._splitter.feed(bytes(data)):
            header, offset = decode_request_header(frame)
            api = ApiKey(header.api_key)
            request = decode(request_class(api), header.api_version, frame, offset)
            asked = Asked(api, header.api_version, header.correlation_id, request, header.client_id or "")
            self._asking(self._link, asked)
        self._link.send(bytes(data))

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if not self._closing:
            self._link.close()
            self._finish(None)

    def abort(self) -> None:
        """Drops what is still in flight: the client asks the system for that (SO_LINGER 0)."""
        if not self._closing:
            self._link.reset()
            self._finish(None)

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Ignored: nothing is ever buffered here."""

    def _finish(self, error: Exception | None) -> None:
        self._closing = True
        self._link._loop.call_soon(self.protocol.connection_lost, error)

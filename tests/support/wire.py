"""A wire protocol client for tests: it sends whatever it is given, in any version, and checks nothing."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from typing import Any, Self

from muster.protocol.api import response_class
from muster.protocol.codec import decode
from muster.protocol.header import decode_response_header, encode_request
from muster.protocol.message import Message

DEADLINE_S = 30.0


class Wire:
    """One connection. Requests may be pipelined: `send` several, then `receive` each."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, client_id: str | None
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._client_id = client_id
        self._correlation_id = 0
        self._expected: dict[int, tuple[int, int]] = {}

    @classmethod
    async def connect(
        cls,
        port: int,
        host: str = "127.0.0.1",
        *,
        client_id: str | None = "wire",
        from_host: str | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> Self:
        """`from_host` is the local address that the broker will see."""
        local = None if from_host is None else (from_host, 0)
        reader, writer = await asyncio.open_connection(host, port, limit=2**27, local_addr=local, ssl=tls)
        return cls(reader, writer, client_id)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        self._writer.close()
        with suppress(ConnectionError):
            await self._writer.wait_closed()

    def abort(self) -> None:
        """Disconnect abruptly: the broker sees a reset."""
        self._writer.transport.abort()

    async def call(self, request: Message, version: int) -> Any:
        """The response to `request`, within the deadline and with nothing else pipelined."""
        await self.send(request, version)
        return await self.receive()

    async def send(self, request: Message, version: int) -> int:
        """Send without waiting; returns the correlation id."""
        self._correlation_id += 1
        api_key = request.__schema__.api_key
        self._expected[self._correlation_id] = (api_key, version)
        await self.send_bytes(
            encode_request(api_key, version, self._correlation_id, self._client_id, request)
        )
        return self._correlation_id

    async def send_bytes(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def receive(self) -> Any:
        """The next response."""
        return (await self.receive_correlated())[1]

    async def receive_correlated(self) -> tuple[int, Any]:
        """Correlation id and message of the next response."""
        frame = await self.receive_bytes()
        correlation_id = int.from_bytes(frame[:4], "big")
        api_key, version = self._expected.pop(correlation_id)
        _, offset = decode_response_header(api_key, version, frame)
        return correlation_id, decode(response_class(api_key), version, frame, offset)

    async def receive_bytes(self, deadline_s: float = DEADLINE_S) -> bytes:
        """The next response frame, without its size."""
        async with asyncio.timeout(deadline_s):
            size = int.from_bytes(await self._reader.readexactly(4), "big")
            return await self._reader.readexactly(size)

    async def closed(self, deadline_s: float = DEADLINE_S) -> bool:
        """Wait for the broker to close the connection; True if it sent nothing more before that."""
        async with asyncio.timeout(deadline_s):
            try:
                return await self._reader.read(1) == b""
            except ConnectionError:
                return True

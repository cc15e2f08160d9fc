"""Servers that are bad brokers, and one that stands in front of a good broker and loses its answers."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

from muster.client.network.connection import Address
from muster.protocol import api, codec, header
from muster.protocol.errors import ErrorCode
from muster.protocol.header import RequestHeader, decode_request_header
from muster.protocol.message import Message
from muster.protocol.messages.connection import ApiVersionsResponse
from tests.support.facts import turns

Handle = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def listener(handle: Handle, port: int = 0, *, receive_bytes: int = 0) -> AsyncIterator[Address]:
    """Listen, and call `handle` for every connection; connections that are still open at the end are closed.
    `receive_bytes`: the kernel accepts little more than this of unread data."""
    handling: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        handling.add(task)
        try:
            await handle(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()
            handling.discard(task)

    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if receive_bytes:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    sock.bind(("127.0.0.1", port))
    server = await asyncio.start_server(connected, sock=sock)
    try:
        yield Address("127.0.0.1", server.sockets[0].getsockname()[1])
    finally:
        await turns()  # an accepted connection is on its way to its handler, and needs the server until then
        server.close()
        for task in handling:
            task.cancel()
        if handling:
            await asyncio.wait(handling)
        await server.wait_closed()


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    return await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))


async def read_request(reader: asyncio.StreamReader) -> tuple[RequestHeader, Message]:
    """The next request. ApiVersions of any version is read as the newest version we know."""
    frame = await read_frame(reader)
    head, offset = decode_request_header(frame)
    return head, codec.decode(api.request_class(head.api_key), head.api_version, frame, offset)


def answer(writer: asyncio.StreamWriter, head: RequestHeader, message: Message) -> None:
    writer.write(header.encode_response(head.api_key, head.api_version, head.correlation_id, message))


async def shake_hands(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    versions: dict[int, tuple[int, int]],
    features: Mapping[str, int] | None = None,
) -> None:
    """Answer ApiVersions as a broker with these versions does: a version too new for it gets error 35 in v0.
    `features`: the levels that the cluster has finalized."""
    while True:
        head, _ = await read_request(reader)
        first, last = versions[18]
        if first <= head.api_version <= last:
            break
        entry = ApiVersionsResponse.ApiVersion(api_key=18, min_version=first, max_version=last)
        refusal = ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[entry])
        writer.write(header.encode_response(18, 0, head.correlation_id, refusal))
    entries = [
        ApiVersionsResponse.ApiVersion(api_key=key, min_version=low, max_version=high)
        for key, (low, high) in versions.items()
    ]
    finalized = [
        ApiVersionsResponse.FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
        for name, level in (features or {}).items()
    ]
    answer(writer, head, ApiVersionsResponse(api_keys=entries, finalized_features=finalized))


@asynccontextmanager
async def losing_answers(broker_port: int, api_key: int, times: int, port: int = 0) -> AsyncIterator[Address]:
    """A proxy to the broker on `broker_port` that closes the connection instead of passing on the first
    `times` answers to `api_key` requests. The broker has carried them out."""
    left = times

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal left
        to_reader, to_writer = await asyncio.open_connection("127.0.0.1", broker_port)
        try:
            while True:
                frame = await read_frame(reader)
                to_writer.write(len(frame).to_bytes(4, "big") + frame)
                back = await read_frame(to_reader)
                if int.from_bytes(frame[:2], "big") == api_key and left:
                    left -= 1
                    return
                writer.write(len(back).to_bytes(4, "big") + back)
                await writer.drain()
        finally:
            to_writer.close()

    async with listener(handle, port) as address:
        yield address
    assert not left, f"{left} answers fewer were lost than the test is about"

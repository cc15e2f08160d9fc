"""Connections: only so many, none without a request, and none that take no answer."""

from __future__ import annotations

import asyncio
import socket

import pytest

from muster.coordinator.web import door
from tests.http.conftest import Show, Shown
from tests.server.security.conftest import Keys
from tests.support.facts import DEADLINE_S


async def closed(reader: asyncio.StreamReader) -> bool:
    """Return whether the other side closed the connection within the deadline."""
    async with asyncio.timeout(DEADLINE_S):
        try:
            return await reader.read() == b""
        except ConnectionError:
            return True


async def test_above_the_limit_connections_are_closed(shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (await shown.get("/healthz"))[0] == 200  # over one connection that stays open
    monkeypatch.setattr(door, "CONNECTIONS_MAX", 1)
    reader, writer = await asyncio.open_connection("127.0.0.1", shown.page.port)
    assert await closed(reader)
    writer.close()
    assert (await shown.get("/healthz"))[0] == 200


async def test_who_asks_nothing_is_closed_and_who_asks_is_not(
    shown: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door, "FIRST_REQUEST_S", 0.2)
    silent, silent_writer = await asyncio.open_connection("127.0.0.1", shown.page.port)
    stream = await shown.http.get(shown.page.url + "/api/events/stream")
    assert await closed(silent)
    silent_writer.close()
    # The stream is older than this connection, so it would be closed by then if it were to be closed at all.
    later, later_writer = await asyncio.open_connection("127.0.0.1", shown.page.port)
    assert await closed(later)
    later_writer.close()
    assert not stream.content.at_eof()
    stream.close()


@pytest.mark.parametrize("secured", [False, True], ids=["http", "https"])
async def test_who_takes_no_answer_is_closed_and_who_has_taken_it_is_not(
    show: Show, keys: Keys, monkeypatch: pytest.MonkeyPatch, secured: bool
) -> None:
    monkeypatch.setattr(door, "TAKE_S", 0.1)
    monkeypatch.setattr(door, "CONNECTIONS_MAX", 2)
    shown = await show(**({"http_ssl_keystore_location": str(keys.server.both)} if secured else {}))
    there, tls = ("127.0.0.1", shown.page.port), keys.context() if secured else None

    async def answered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        try:
            answer = await reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            return False
        return b"HTTP/1.1 200 " in answer  # after the body of the answer before

    async def answered_anew() -> bool:
        try:
            reader, writer = await asyncio.open_connection(*there, ssl=tls)
        except ConnectionError:
            return False
        said = await answered(reader, writer)
        writer.close()
        return said

    taking = await asyncio.open_connection(*there, ssl=tls)
    with socket.socket() as narrow:
        narrow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        narrow.setblocking(False)
        await asyncio.get_running_loop().sock_connect(narrow, there)
        named = {"ssl": tls, "server_hostname": there[0]} if secured else {}
        reader, stuck = await asyncio.open_connection(sock=narrow, limit=1, **named)
        async with asyncio.timeout(DEADLINE_S):
            assert await answered(*taking)
            stuck.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 2_000)
            await reader.readexactly(1)  # and no more: its buffer is full
            while not await answered_anew():
                pass
            assert await answered(*taking)
        stuck.transport.abort()
    taking[1].close()

"""Connections: only so many, none without a request, and none that take no answer."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from muster.coordinator.web import door
from muster.coordinator.web.login import Login
from tests.http.conftest import Show, Shown
from tests.server.security.conftest import Keys
from tests.support.facts import DEADLINE_S, until


async def closed(reader: asyncio.StreamReader) -> bool:
    """Return whether the other side closed the connection within the deadline."""
    async with asyncio.timeout(DEADLINE_S):
        try:
            return await reader.read() == b""
        except ConnectionError:
            return True


class Visitor:
    """A connection, and what is asked over it."""

    def __init__(self, streams: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> None:
        self._reader, self._writer = streams

    @classmethod
    async def come(cls, shown: Shown, keys: Keys) -> Visitor:
        tls = keys.context() if shown.page.has_tls else None
        return cls(await asyncio.open_connection("127.0.0.1", shown.page.port, ssl=tls))

    def ask(self, path: str, token: str | None = None) -> None:
        login = "" if token is None else f"Authorization: Bearer {token}\r\n"
        self._writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{login}\r\n".encode())

    async def status(self, path: str, token: str | None = None) -> int | None:
        """The status of the answer, within the deadline; None if the connection is closed instead."""
        async with asyncio.timeout(DEADLINE_S):
            try:
                self.ask(path, token)
                head = await self._reader.readuntil(b"\r\n\r\n")
                length = re.search(rb"Content-Length: (\d+)", head)
                if length is not None:
                    await self._reader.readexactly(int(length[1]))
            except (asyncio.IncompleteReadError, ConnectionError):
                return None
        return int(head.split()[1])

    async def closed(self) -> bool:
        """Whether the other side closes the connection within the deadline."""
        return await closed(self._reader)

    def leave(self) -> None:
        self._writer.transport.abort()


@pytest.fixture
async def come(keys: Keys) -> AsyncIterator[Callable[[Shown], Awaitable[Visitor]]]:
    there: list[Visitor] = []

    async def come(shown: Shown) -> Visitor:
        there.append(await Visitor.come(shown, keys))
        return there[-1]

    yield come
    for each in there:
        each.leave()


Come = Callable[[Shown], Awaitable[Visitor]]
STREAM = "/api/events/stream"
TOKEN = "a-token"


@pytest.fixture(params=[False, True], ids=["http", "https"])
async def locked(request: pytest.FixtureRequest, show: Show, keys: Keys, tmp_path: Path) -> Shown:
    """A page with a token, and places for three connections."""
    file = tmp_path / "token"
    file.write_text(TOKEN)
    file.chmod(0o600)
    tls = {"http_ssl_keystore_location": str(keys.server.both)} if request.param else {}
    request.getfixturevalue("monkeypatch").setattr(door, "CONNECTIONS_MAX", 3)
    return await show(http_token_file=str(file), connection_failed_authentication_delay_ms=600_000, **tls)


async def test_strangers_that_ask_nothing_make_way(locked: Shown, come: Come) -> None:
    silent, asked, user = [await come(locked) for _ in range(3)]
    assert await asked.status("/healthz") == 200
    assert await user.status("/metrics", TOKEN) == 200
    assert await (await come(locked)).status("/healthz") == 200
    assert await silent.closed()
    for _ in range(5):
        assert await (await come(locked)).status("/readyz") == 200
    assert await asked.closed()
    assert await user.status("/metrics", TOKEN) == 200, "who has logged in stays"


async def test_strangers_whose_requests_are_held_back_make_way_last(
    locked: Shown, come: Come, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, hold_back = 0, Login._hold_back

    async def counted(*what: Any) -> None:
        nonlocal held
        held += 1
        await hold_back(*what)

    monkeypatch.setattr(Login, "_hold_back", counted)
    guesses = [await come(locked) for _ in range(2)]
    for each in guesses:
        each.ask("/metrics", "a-guess")
    await until(lambda: held == 2)
    silent, user = await come(locked), await come(locked)
    assert await user.status(STREAM, TOKEN) == 200
    assert await (await come(locked)).status("/healthz") == 200
    assert await silent.closed()
    assert await guesses[0].closed()


async def test_nobody_makes_way_who_has_logged_in(locked: Shown, come: Come) -> None:
    users = [await come(locked) for _ in range(3)]
    for each in users:
        assert await each.status("/metrics", TOKEN) == 200
    assert await (await come(locked)).status("/healthz") is None
    users.pop().leave()
    async with asyncio.timeout(DEADLINE_S):
        while await (await come(locked)).status("/healthz") is None:
            pass
    for each in users:
        assert await each.status("/metrics", TOKEN) == 200


async def test_without_a_login_requests_in_progress_keep_their_place(
    shown: Shown, come: Come, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door, "CONNECTIONS_MAX", 2)
    streams, idle = [await come(shown)], await come(shown)
    assert await idle.status("/healthz") == 200
    assert await streams[0].status(STREAM) == 200
    streams.append(await come(shown))
    assert await streams[1].status(STREAM) == 200
    assert await idle.closed()
    assert await (await come(shown)).status("/healthz") is None
    streams.pop().leave()
    async with asyncio.timeout(DEADLINE_S):
        while await (await come(shown)).status("/healthz") is None:
            pass


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
    taking[1].write(f"GET {STREAM} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    with socket.socket() as narrow:
        narrow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        narrow.setblocking(False)
        await asyncio.get_running_loop().sock_connect(narrow, there)
        named = {"ssl": tls, "server_hostname": there[0]} if secured else {}
        reader, stuck = await asyncio.open_connection(sock=narrow, limit=1, **named)
        async with asyncio.timeout(DEADLINE_S):
            assert b" 200 " in await taking[0].readuntil(b"\r\n\r\n")
            stuck.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 2_000)
            await reader.readexactly(1)  # and no more: its buffer is full
            while not await answered_anew():
                pass
            assert not taking[0].at_eof()
        stuck.transport.abort()
    taking[1].close()

"""Connections: only so many, and none without a request."""

from __future__ import annotations

import asyncio

import pytest

from muster.coordinator.web import door
from tests.http.conftest import Shown
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

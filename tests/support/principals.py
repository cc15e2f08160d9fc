"""Clients with principals but without SASL: brokers in this process know each connection's user."""

from __future__ import annotations

import asyncio
import socket
from typing import Final

import pytest

from muster.coordinator.base.step import ANONYMOUS
from muster.coordinator.server.doors import Entrance
from tests.support.wire import Wire

_COMING: Final[dict[int, str]] = {}
"""Principals by the local port from which they will connect."""


def know_users(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make brokers identify users who connect with `as_user`; everybody else is anonymous."""
    monkeypatch.setattr(Entrance, "identify", property(lambda entrance: _identify))


def _identify(transport: asyncio.Transport) -> str:
    return _COMING.pop(transport.get_extra_info("peername")[1], ANONYMOUS)


async def as_user(port: int, name: str = "alice", *, client_id: str = "wire") -> Wire:
    """Connect as User:`name`."""
    with socket.socket() as bound:
        bound.setblocking(False)
        bound.bind(("127.0.0.1", 0))
        _COMING[bound.getsockname()[1]] = f"User:{name}"
        await asyncio.get_running_loop().sock_connect(bound, ("127.0.0.1", port))
        reader, writer = await asyncio.open_connection(sock=bound.dup())
    return Wire(reader, writer, client_id)

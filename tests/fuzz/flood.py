"""Thousands of connections: those that stay open and send nothing, and those that come and go at once.

Each function runs in a process of its own. Connections are reset at the end, so that no port stays in
TIME_WAIT.
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from multiprocessing.connection import Connection
from typing import Final

from muster.protocol.header import encode_request
from muster.protocol.messages.connection import ApiVersionsRequest
from tests.bench import load

_REQUEST: Final = encode_request(18, 0, 1, None, ApiVersionsRequest())
_LINGER_NOT: Final = struct.pack("ii", 1, 0)
_AT_ONCE: Final = 64
_CONNECTED_S: Final = 600.0
"""For all of them together, on a busy machine."""
_IN_ORDER: Final = 0.05
"""Share of the flood that closes in order: each keeps a port of this machine busy for a minute."""


def stand_idle(port: int, seed: str, count: int, report: Connection) -> None:
    """Open `count` connections, send nothing on most, report how many are open, and wait for the word to
    close. A tenth as many again begin a request and never finish it; they are not part of `count`."""
    report.send(load.run(_stand(port, random.Random(f"{seed} idle"), count, report)))


async def _stand(port: int, rng: random.Random, count: int, report: Connection) -> int:
    standing = await _connected(port, count)
    beginning = await _connected(port, count // 10)
    for link in (*standing, *beginning):
        link.on_frame = _nothing
    for link in rng.sample(standing, count // 10):
        link.write(_REQUEST)
    for link in beginning:
        link.write(_REQUEST[: rng.randrange(1, len(_REQUEST))])
    report.send(len(standing))
    await asyncio.to_thread(report.recv)
    stood = sum(not link.lost for link in standing)
    for link in (*standing, *beginning):
        link.close()
    return stood


async def _connected(port: int, count: int) -> list[load.Link]:
    loop = asyncio.get_running_loop()
    links: list[load.Link] = []
    async with asyncio.timeout(_CONNECTED_S):
        while len(links) < count:
            some = min(_AT_ONCE, count - len(links))
            opening = [loop.create_connection(load.Link, "127.0.0.1", port) for _ in range(some)]
            links += [link for _, link in await asyncio.gather(*opening)]
    return links


def _nothing(frame: bytes) -> None:
    """Ignore responses."""


def connect_flood(port: int, seed: str, count: int, report: Connection) -> None:
    """Connect `count` times as fast as possible and disconnect: reset or closed, some after sending a few
    bytes."""
    report.send(load.run(_flood(port, random.Random(f"{seed} flood"), count)))


async def _flood(port: int, rng: random.Random, count: int) -> int:
    left = iter(range(count))

    async def one_after_the_other() -> int:
        made = 0
        for _ in left:
            with socket.socket() as one:
                one.setblocking(False)
                await asyncio.get_running_loop().sock_connect(one, ("127.0.0.1", port))
                made += 1
                said = rng.random()
                if said < 0.3:
                    one.send(_REQUEST)
                elif said < 0.5:
                    one.send(rng.randbytes(rng.randrange(1, 40)))
                if rng.random() > _IN_ORDER:
                    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NOT)
        return made

    return sum(await asyncio.gather(*(one_after_the_other() for _ in range(_AT_ONCE))))

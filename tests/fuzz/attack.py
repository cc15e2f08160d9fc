"""Connections that send a broker what no client would: garbage, partial requests, too much at once, or
nothing.

Connection number n of a seed always sends the same bytes in the same way.
"""

from __future__ import annotations

import asyncio
import random
import socket
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Final, NamedTuple

from muster.protocol.header import encode_request
from muster.protocol.messages.connection import ApiVersionsRequest
from tests.fuzz.inputs import LIVE_KINDS, Inputs

MANNERS: Final = {
    "asks": 40,
    "cuts": 15,
    "closes": 10,
    "half-closes": 5,
    "dribbles": 10,
    "reads nothing": 10,
    "sips": 5,
    "never finishes": 10,
}
"""asks: waits until all it sent has been looked at; cuts: is reset after some byte; closes: closes after some
byte; half-closes: announces that it will send no more; dribbles: sends byte by byte; reads nothing: reads no
response and stays; sips: sends valid requests for much data, reads few bytes at a time through a small
window, and stays; never finishes: sends part of a request and stays."""

_AT_ONCE: Final = 24
_STAYING_MAX: Final = 64
_PATIENCE_S: Final = 0.5
"""How long to wait for a response that may rightly be slow, such as to a parked join. A timeout proves
nothing."""

_LIVE_FIRST: Final = 1 << 39  # so that the inputs differ from those judged without a broker
_FRAMES_MAX: Final = 64
_WINDOW_BYTES: Final = 2_048
_SIPS_MAX: Final = 200
_DRIBBLED_MAX: Final = 600
_LAST_ID: Final = 0x7EAD_BEEF
_ASKS_FOR_MUCH: Final = encode_request(18, 2, _LAST_ID, None, ApiVersionsRequest())
_LAST: Final = encode_request(18, 0, _LAST_ID, None, ApiVersionsRequest())


class Script(NamedTuple):
    manner: str
    stream: bytes
    frames: int


class Sent(NamedTuple):
    connections: int
    frames: int
    answered_to_the_end: int
    """Connections on which the broker answered a valid request sent after everything else."""
    closed: int
    """Connections that the broker closed."""


def script(inputs: Inputs, number: int) -> Script:
    """Return what connection `number` does."""
    rng = random.Random((inputs.seed << 40) + _LIVE_FIRST + number * _FRAMES_MAX)
    (manner,) = rng.choices(list(MANNERS), list(MANNERS.values()))
    frames = rng.choice((1, 1, 2, 3, 5)) if manner != "reads nothing" else rng.randint(5, _FRAMES_MAX)
    stream = b""
    for index in range(frames):
        given = inputs.make(_LIVE_FIRST + number * _FRAMES_MAX + index, LIVE_KINDS)
        framed = given.kind != "stream"
        stream += (len(given.data).to_bytes(4, "big") if framed else b"") + given.data
    if manner == "sips":
        frames = rng.randint(20, 2_000)
        stream = _ASKS_FOR_MUCH * frames
    if manner in ("cuts", "closes", "never finishes"):
        stream = stream[: rng.randrange(len(stream) + 1)]
    return Script(manner, stream, frames)


def attack(port: int, seed: int, numbers: range, report: Connection) -> None:
    """Play the connections `numbers`, some at once. Runs in a process of its own."""
    report.send(asyncio.run(_attack(port, Inputs(seed), numbers)))


async def _attack(port: int, inputs: Inputs, numbers: range) -> Sent:
    scripts = (script(inputs, number) for number in numbers)
    staying: deque[asyncio.StreamWriter] = deque()
    players = [_play_all(port, scripts, staying) for _ in range(_AT_ONCE)]
    sent = [each for played in await asyncio.gather(*players) for each in played]
    for writer in staying:
        writer.transport.abort()
    return Sent(*map(sum, zip(*sent, strict=True)))


async def _play_all(port: int, scripts: Iterator[Script], staying: deque[asyncio.StreamWriter]) -> list[Sent]:
    sent = []
    for each in scripts:
        reader, writer = await _connect(port, small=each.manner == "sips")
        answered = closed = False
        with suppress(ConnectionError):
            answered, closed = await _play(each, reader, writer)
        sent.append(Sent(1, each.frames, int(answered), int(closed)))
        if each.manner in ("reads nothing", "sips", "never finishes"):
            staying.append(writer)
            if len(staying) > _STAYING_MAX:
                staying.popleft().transport.abort()
        elif each.manner == "closes":
            writer.close()
        else:
            writer.transport.abort()
    return sent


async def _connect(port: int, *, small: bool) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """`small` gives the socket a small receive buffer, so that the broker soon has to wait when writing."""
    if not small:
        return await asyncio.open_connection("127.0.0.1", port)
    made = socket.socket()
    made.setblocking(False)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _WINDOW_BYTES)
    await asyncio.get_running_loop().sock_connect(made, ("127.0.0.1", port))
    return await asyncio.open_connection(sock=made, limit=_WINDOW_BYTES // 2)


async def _sip(reader: asyncio.StreamReader) -> tuple[bool, bool]:
    for _ in range(_SIPS_MAX):
        try:
            async with asyncio.timeout(_PATIENCE_S):
                if not await reader.read(7):
                    return False, True
        except TimeoutError:
            break
    return False, False


async def _play(
    each: Script, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> tuple[bool, bool]:
    """Return whether the last request was answered, and whether the broker closed the connection."""
    if each.manner == "dribbles":
        for at in range(len(each.stream[:_DRIBBLED_MAX])):
            writer.write(each.stream[at : at + 1])
            await asyncio.sleep(0)  # byte by byte, letting other tasks run in between
            if writer.is_closing():
                return False, True
        writer.write(each.stream[_DRIBBLED_MAX:])
    else:
        writer.write(each.stream)
    if each.manner == "half-closes":
        writer.write_eof()
    elif each.manner == "asks":
        writer.write(_LAST)
    elif each.manner == "sips":
        return await _sip(reader)
    if each.manner not in ("asks", "half-closes"):
        return False, False
    try:
        async with asyncio.timeout(_PATIENCE_S):
            await writer.drain()
            while True:
                size = int.from_bytes(await reader.readexactly(4), "big")
                answer = await reader.readexactly(size)
                if answer[:4] == _LAST_ID.to_bytes(4, "big"):
                    return True, False
    except asyncio.IncompleteReadError:
        return False, True
    except TimeoutError:
        return False, False

"""Every API in every version over live connections: valid requests with random content, nonexistent versions
and APIs, and the valid requests again with a lie in them.

A valid request must get a response that decodes as declared. Only those in `PARKING` may take their time, and
a Produce without acks is not checked.
"""

from __future__ import annotations

import asyncio
import random
import struct
from collections import Counter
from collections.abc import Iterable, Iterator
from multiprocessing.connection import Connection
from typing import Any, Final, NamedTuple

from muster.protocol import api
from muster.protocol.api import ApiKey
from muster.protocol.codec import decode
from muster.protocol.errors import DecodeError
from muster.protocol.header import decode_response_header, encode_request
from muster.protocol.messages.connection import ApiVersionsRequest
from muster.protocol.messages.data import ProduceRequest
from tests.fuzz.bystanders import DEADLINE_S
from tests.fuzz.inputs import Inputs, Valid
from tests.fuzz.mutations import lying
from tests.protocol.sampling import sample, versions_of

PARKING: Final = frozenset({ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP, ApiKey.FETCH})
"""Requests that a broker may park for as long as they say."""

_PATIENCE_S: Final = 0.5
_AT_ONCE: Final = 24
_LAST_ID: Final = 0x7EAD_BEEF
_LAST: Final = encode_request(ApiKey.API_VERSIONS, 0, _LAST_ID, None, ApiVersionsRequest())
_NO_KEYS: Final = (-1, 4, 5, 6, 7, 94, 95, 1000, 32767, -32768)
_NO_VERSIONS: Final = (-1, 99, 32767, -32768)
_KEY_AND_VERSION: Final = struct.Struct(">hh")

Tally = Counter[tuple[int, int, bool, str]]
"""(API key, version, whether it was valid, outcome) -> requests. The outcome is "answered", "kept" (parked,
or the protocol has no response) or "closed"."""


Swept = tuple[Tally, list[str], set[int]]


class Ask(NamedTuple):
    """One request on a connection of its own. `valid`: it must be answered."""

    api_key: int
    version: int
    frame: bytes
    valid: bool

    def __str__(self) -> str:
        name = ApiKey(self.api_key).name if self.api_key in list(ApiKey) else str(self.api_key)
        return f"{name} v{self.version}, {'valid' if self.valid else 'damaged'}: {self.frame.hex()[:2000]}"


def asks(inputs: Inputs, served: set[int], sweep: int) -> list[Ask]:
    """The requests of sweep number `sweep` of a seed, in random order."""
    rng = random.Random(f"{inputs.seed} sweep {sweep}")
    made = []
    for each in inputs.requests:
        frame = each.marked.data
        key, version = _KEY_AND_VERSION.unpack_from(frame)
        # Without acks, a Produce that fails closes the connection, and one that succeeds has no response.
        made.append(Ask(key, version, frame, key in served and key != ApiKey.PRODUCE))
        made.append(Ask(key, version, lying(rng, each.marked), False))
    for version in versions_of(api.versions(ApiKey.PRODUCE)):
        produce: Any = sample(ProduceRequest, version, rng)
        produce.acks = -1
        frame = encode_request(ApiKey.PRODUCE, version, version, "fuzz", produce)[4:]
        made.append(Ask(ApiKey.PRODUCE, version, frame, True))
    for key in api.declared_apis():
        some = rng.choice([each for each in inputs.requests if _key(each) == key])
        first, last = api.versions(key)
        for version in (first - 1, last + 1, *_NO_VERSIONS):
            # A version of ApiVersions that is too new is answered (KIP-511).
            frame = _KEY_AND_VERSION.pack(key, version) + some.marked.data[4:]
            made.append(Ask(key, version, frame, False))
    for unknown in _NO_KEYS:
        body = rng.choice(inputs.requests).marked.data[4:]
        made.append(Ask(unknown, 0, _KEY_AND_VERSION.pack(unknown, 0) + body, False))
    rng.shuffle(made)
    return made


def _key(each: Valid) -> int:
    return int(_KEY_AND_VERSION.unpack_from(each.marked.data)[0])


def sweep(port: int, seed: int, number: int, share: tuple[int, int], report: Connection) -> None:
    """Send every `share[1]`-th request from `share[0]` on, in a process of its own. Reports (the outcomes,
    what went wrong, the API keys the broker serves)."""
    report.send(asyncio.run(_sweep(port, Inputs(seed), number, share)))


async def _sweep(port: int, inputs: Inputs, number: int, share: tuple[int, int]) -> Swept:
    served = set(await _served(port))
    left = iter(asks(inputs, served, number)[share[0] :: share[1]])
    tally: Tally = Counter()
    wrong: list[str] = []
    await asyncio.gather(*(_ask_all(port, left, tally, wrong) for _ in range(_AT_ONCE)))
    return tally, wrong, served


async def _served(port: int) -> list[int]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(_LAST)
    answer = decode(api.response_class(ApiKey.API_VERSIONS), 0, await _frame(reader), 4)
    writer.transport.abort()
    return [each.api_key for each in answer.api_keys]


async def _ask_all(port: int, left: Iterator[Ask], tally: Tally, wrong: list[str]) -> None:
    for ask in left:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            became, why = await _ask(ask, reader, writer)
        finally:
            writer.transport.abort()
        tally[ask.api_key, ask.version, ask.valid, became] += 1
        if why:
            wrong.append(f"{why}\n  {ask}")


async def _ask(
    ask: Ask, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> tuple[str, str | None]:
    """Return the outcome, and what is wrong with it."""
    writer.write(len(ask.frame).to_bytes(4, "big") + ask.frame)
    if ask.api_key not in PARKING:
        writer.write(_LAST)
    try:
        async with asyncio.timeout(DEADLINE_S if ask.api_key not in PARKING else _PATIENCE_S):
            answer = await _frame(reader)
    except (asyncio.IncompleteReadError, ConnectionError):
        return "closed", "closed the connection on a valid request" if ask.valid else None
    except TimeoutError:
        unanswered = ask.valid and ask.api_key not in PARKING
        return "kept", "no answer to a valid request" if unanswered else None
    if int.from_bytes(answer[:4], "big") == _LAST_ID:
        return "kept", "passed over a valid request" if ask.valid else None
    return "answered", _misread(ask, answer) if ask.valid else None


def _misread(ask: Ask, answer: bytes) -> str | None:
    """Return what is wrong with the response to a valid request."""
    correlation_id = int.from_bytes(ask.frame[4:8], "big")
    try:
        answered_id, at = decode_response_header(ask.api_key, ask.version, answer)
        if answered_id != correlation_id:
            return f"answered {answered_id} for {correlation_id}"
        decode(api.response_class(ask.api_key), ask.version, answer, at)
    except DecodeError as error:
        return f"answered with what is no response: {error}: {answer.hex()[:2000]}"
    return None


async def _frame(reader: asyncio.StreamReader) -> bytes:
    return await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))


def unasked(tally: Tally, served: Iterable[int]) -> list[str]:
    """Return the APIs and versions of a broker that were never answered, apart from those that park."""
    return [
        f"{ApiKey(key).name} v{version}"
        for key in served
        for version in range(api.versions(key).first, api.versions(key).last + 1)
        if key not in PARKING and not tally[key, version, True, "answered"]
    ]

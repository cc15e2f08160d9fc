"""Mutated requests over real sockets, from clients that leave without reading the answer: nothing fails
inside, and no task is left.

`tests/fuzz` attacks a broker from outside, with many more mutations, and reads its answers; this test looks
inside, on either event loop.
"""

from __future__ import annotations

import io
import os
import random

import pytest

from muster.coordinator.base import log
from muster.coordinator.server.apis import APIS
from muster.protocol.api import versions
from muster.protocol.header import encode_request
from tests.server.conftest import StartBrokers
from tests.server.test_api_versions import SOFTWARE, smallest_request
from tests.support.wire import Wire

REQUESTS = 1_000
_HEADER_BYTES = 10  # API, version, correlation id, length of the client id: another test's


def mutated(random_: random.Random) -> bytes:
    """A request frame with some bytes changed, missing or added after its fixed header."""
    api_key = random_.choice(list(APIS))
    version = random_.randint(*versions(api_key))
    frame = bytearray(encode_request(api_key, version, 1, "c", smallest_request(api_key, version))[4:])
    for _ in range(random_.randint(0, 3)):
        position = random_.randrange(_HEADER_BYTES, len(frame)) if len(frame) > _HEADER_BYTES else 0
        match random_.choice(("change", "change", "change", "remove", "add")):
            case "change" if position:
                frame[position] = random_.choice((0, 1, 2, 127, 128, 255, random_.randrange(256)))
            case "remove" if position:
                del frame[position : position + random_.randint(1, 4)]
            case "add":
                frame[position or len(frame) :] = random_.randbytes(random_.randint(1, 8))
    return len(frame).to_bytes(4, "big") + bytes(frame)


async def test_mutated_requests(start_brokers: StartBrokers, monkeypatch: pytest.MonkeyPatch) -> None:
    seed = int(os.environ.get("MUSTER_TEST_SEED", random.SystemRandom().randrange(2**32)))
    print(f"MUSTER_TEST_SEED={seed}")
    random_ = random.Random(seed)
    stream = io.StringIO()
    for name, value in {"level": 40, "format": "json", "stream": stream, "logger": None}.items():
        monkeypatch.setattr(log._Output, name, value)
    brokers = await start_brokers(group_min_session_timeout_ms=1)
    broker = brokers.brokers[0]
    await broker.catalogue.create("t", partitions=2)
    async with await Wire.connect(broker.port) as good:
        wires = []
        for _ in range(REQUESTS):
            wire = await Wire.connect(broker.port)
            wires.append(wire)
            await wire.send_bytes(mutated(random_))
            if len(wires) == 100:
                assert (await good.call(SOFTWARE, 3)).error_code == 0
                for each in wires:
                    each.abort()
                wires.clear()
    await brokers.stop()
    assert stream.getvalue() == "", f"seed {seed}"
    assert not broker.connections.alive

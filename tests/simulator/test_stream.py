"""Simulated connections as a client's transport sees them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest

from muster.client.errors import ConnectionLost, Unreachable
from muster.client.network.connection import Address, Connection, deadline
from muster.protocol.api import ApiKey, decode_api_versions
from muster.protocol.frame import FrameSplitter
from muster.protocol.header import decode_request_header
from muster.protocol.messages.connection import ApiVersionsRequest
from tests.simulator.member import Asked
from tests.simulator.network import Latency, Link, Network
from tests.simulator.stream import PROCESS, Process, dial
from tests.simulator.virtual_loop import VirtualLoop

BROKER = ("10.1.0.1", 9092)


class Broker(asyncio.Protocol):
    """Answers ApiVersions unless told to keep silent."""

    def __init__(self) -> None:
        self.silent = False
        self.received: list[int] = []
        self.lost = False
        self._splitter = FrameSplitter()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        for frame in self._splitter.feed(data):
            header, _ = decode_request_header(frame)
            self.received.append(header.correlation_id)
            if not self.silent:
                # No error, no APIs, no throttling, no tags: version 3 and later.
                body = header.correlation_id.to_bytes(4, "big") + bytes(2) + b"\x01" + bytes(4) + b"\x00"
                self.transport.write(len(body).to_bytes(4, "big") + body)

    def connection_lost(self, error: Exception | None) -> None:
        self.lost = True


class World:
    """One broker, one process, and the requests that the network carried."""

    def __init__(self) -> None:
        self.loop = VirtualLoop()
        self.loop.dial = dial
        self.network = Network(self.loop, Latency(random.Random(1)), self)
        self.brokers: list[Broker] = []
        self.asked: list[tuple[ApiKey, str]] = []
        self.replies = 0
        self.process = Process(self.network, self._asking, random.Random(1))
        PROCESS.set(self.process)
        self.network.listen(BROKER, self._accept)

    def _accept(self) -> Broker:
        self.brokers.append(Broker())
        return self.brokers[-1]

    def _asking(self, link: Link, asked: Asked) -> None:
        self.asked.append((asked.api_key, asked.client))

    def replied(self, link: Link, frame: bytes) -> None:
        decode_api_versions(3, frame[4:])
        self.replies += 1

    def closed(self, link: Link) -> None:
        pass

    def run(self, story: Coroutine[Any, Any, None]) -> None:
        self.loop.run_until_complete(story)

    async def connect(self) -> Connection:
        return await Connection.open(Address(*BROKER), "a client", deadline(5))


async def ask(connection: Connection) -> None:
    await connection._call(ApiVersionsRequest(), ApiKey.API_VERSIONS, 3, deadline(5))


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.loop.close()


def test_requests_and_replies_are_told(world: World) -> None:
    async def story() -> None:
        connection = await world.connect()
        await asyncio.gather(ask(connection), ask(connection))
        assert world.asked == [(ApiKey.API_VERSIONS, "a client")] * 3
        assert world.replies == 3
        await connection.close()
        await asyncio.sleep(1)
        assert world.brokers[0].lost
        assert world.process.links == []

    world.run(story())


def test_nobody_listens(world: World) -> None:
    async def story() -> None:
        world.network.unlisten(BROKER)
        with pytest.raises(Unreachable, match="connection refused"):
            await world.connect()

    world.run(story())


@pytest.mark.parametrize("how", ["close", "abort"])
def test_the_broker_ends_it(world: World, how: str) -> None:
    async def story() -> None:
        connection = await world.connect()
        world.brokers[0].silent = True
        asked = asyncio.create_task(ask(connection))
        await asyncio.sleep(1)
        getattr(world.brokers[0].transport, how)()
        with pytest.raises(ConnectionLost, match="closed the connection" if how == "close" else "broke"):
            await asked

    world.run(story())


def test_a_break_is_told_to_both_ends(world: World) -> None:
    async def story() -> None:
        connection = await world.connect()
        world.brokers[0].silent = True
        asked = asyncio.create_task(ask(connection))
        await asyncio.sleep(0)
        world.process.links[0].cut()
        with pytest.raises(ConnectionLost, match="broke"):
            await asked
        await asyncio.sleep(1)
        assert world.brokers[0].lost

    world.run(story())


def test_an_abort_takes_back_what_has_not_arrived(world: World) -> None:
    async def story() -> None:
        connection = await world.connect()
        before = len(world.brokers[0].received)
        asked = asyncio.create_task(ask(connection))
        await asyncio.sleep(0)
        assert connection._transport is not None
        connection._transport.abort()
        with pytest.raises(ConnectionLost):
            await asked
        await asyncio.sleep(1)
        assert len(world.brokers[0].received) == before
        assert world.brokers[0].lost

    world.run(story())


@pytest.mark.parametrize("direction", ["requests", "replies"])
def test_half_open(world: World, direction: str) -> None:
    async def story() -> None:
        connection = await world.connect()
        link = world.process.links[0]
        link.lose(requests=direction == "requests", replies=direction == "replies")
        with pytest.raises(Exception, match="did not answer"):
            await ask(connection)
        assert len(world.brokers[0].received) == (1 if direction == "requests" else 2)
        assert not world.brokers[0].lost

    world.run(story())


@pytest.mark.parametrize("silently", [False, True])
def test_a_process_that_dies(world: World, silently: bool) -> None:
    async def story() -> None:
        await world.connect()
        world.process.die(silently=silently)
        await asyncio.sleep(1)
        assert world.brokers[0].lost is not silently
        with pytest.raises(Unreachable):
            await world.connect()

    world.run(story())


def test_a_broker_out_of_reach(world: World) -> None:
    async def story() -> None:
        connection = await world.connect()
        world.network.cut_off(BROKER, 2.0)
        await ask(connection)
        assert world.loop.time() > 2.0

    world.run(story())

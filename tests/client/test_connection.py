"""One connection: the handshake, answers matched to requests, and every way in which a broker can fail it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Any

import pytest

from muster.client import connection as connection_module
from muster.client.connection import IN_FLIGHT_MAX, Address, Connection, deadline
from muster.client.errors import ConnectionLost, NotKafka, RequestTimedOut, Unreachable
from muster.coordinator.testing import Broker
from muster.protocol.api import ApiKey
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.metadata import FindCoordinatorRequest, MetadataRequest, MetadataResponse
from muster.protocol.messages.topics import CreateTopicsRequest
from tests.client.listeners import answer, listener, read_frame, read_request, shake_hands
from tests.support.facts import until
from tests.support.ports import free_ports

LONG_S = 30.0
SHORT_S = 0.3

METADATA = MetadataRequest(topics=[])


def metadata_of(cluster_id: str) -> MetadataResponse:
    return MetadataResponse(brokers=[], cluster_id=cluster_id, topics=[])


@contextlib.asynccontextmanager
async def connected(address: Address):  # type: ignore[no-untyped-def]
    connection = await Connection.open(address, "test", deadline(LONG_S))
    try:
        yield connection
    finally:
        await connection.close()


async def test_requests_are_answered_in_the_newest_version_both_know() -> None:
    with Broker() as broker:
        async with connected(Address("127.0.0.1", broker.port)) as connection:
            assert connection.version_of(ApiKey.METADATA) == 13
            assert connection.version_of(ApiKey.FETCH) == 12  # by name, see LAST_VERSIONS
            answers = await asyncio.gather(*(connection.call(METADATA, deadline(LONG_S)) for _ in range(50)))
            assert len({each.cluster_id for each in answers}) == 1


async def test_an_older_broker_is_asked_again_in_what_it_knows() -> None:
    seen = []

    async def old(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await shake_hands(reader, writer, {18: (0, 2), 3: (0, 5)})
        head, _ = await read_request(reader)
        seen.append(head.api_version)
        answer(writer, head, metadata_of("old"))
        await reader.read()

    async with listener(old) as address, connected(address) as connection:
        assert (await connection.call(METADATA, deadline(LONG_S))).cluster_id == "old"
        assert seen == [5]
        with pytest.raises(KafkaError, match="CREATE_TOPICS") as refused:
            await connection.call(CreateTopicsRequest(topics=[]), deadline(LONG_S))
        assert refused.value.code is ErrorCode.UNSUPPORTED_VERSION


async def test_answers_go_to_who_asked_even_when_an_earlier_one_went_away() -> None:
    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await shake_hands(reader, writer, {18: (0, 4), 3: (0, 12)})
        first, _ = await read_request(reader)
        second, _ = await read_request(reader)
        answer(writer, first, metadata_of("first"))
        answer(writer, second, metadata_of("second"))
        await reader.read()

    async with listener(slow) as address, connected(address) as connection:
        first = asyncio.create_task(connection.call(METADATA, deadline(LONG_S)))
        await asyncio.sleep(0)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert (await connection.call(METADATA, deadline(LONG_S))).cluster_id == "second"


async def test_no_more_than_so_many_requests_are_in_flight() -> None:
    arrived = 0
    let_go = asyncio.Event()

    async def parking(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal arrived
        await shake_hands(reader, writer, {18: (0, 4), 3: (0, 12)})
        heads = []
        for _ in range(IN_FLIGHT_MAX):
            heads.append((await read_request(reader))[0])
            arrived += 1
        further = asyncio.ensure_future(read_request(reader))
        await let_go.wait()
        assert not further.done()
        answer(writer, heads.pop(0), metadata_of("parked"))
        heads.append((await further)[0])
        for head in heads:
            answer(writer, head, metadata_of("parked"))
        await reader.read()

    async with listener(parking) as address, connected(address) as connection:
        calls = [
            asyncio.create_task(connection.call(METADATA, deadline(LONG_S))) for _ in range(IN_FLIGHT_MAX + 1)
        ]
        await until(lambda: arrived == IN_FLIGHT_MAX)
        let_go.set()
        assert len(await asyncio.gather(*calls)) == IN_FLIGHT_MAX + 1


async def test_nobody_listens() -> None:
    address = Address("127.0.0.1", free_ports(1))
    with pytest.raises(Unreachable, match=rf"{address}.*connection refused"):
        await Connection.open(address, "test", deadline(LONG_S))


async def test_no_such_host() -> None:
    with pytest.raises(Unreachable, match="no such host"):
        await Connection.open(Address("no..such", 9092), "test", deadline(LONG_S))


async def test_of_the_addresses_of_a_name_one_that_hangs_is_passed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened = asyncio.open_connection

    async def hanging(host: str, port: int, **options: Any) -> Any:
        if host == "192.0.2.1":
            await asyncio.Event().wait()
        return await opened(host, port, **options)

    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, 0)) for host in ("192.0.2.1", "127.0.0.1")]
    with Broker() as broker:
        monkeypatch.setattr(asyncio, "open_connection", hanging)
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_: found)
        # A short first share; half of a deadline that is long enough would be long.
        shares = {1: LONG_S, 2: SHORT_S}
        monkeypatch.setattr(connection_module, "share_of", lambda _, parts: deadline(shares[parts]))
        async with connected(Address("two", broker.port)) as connection:
            assert connection.is_open


async def test_a_broker_that_says_nothing_is_given_up_at_the_deadline() -> None:
    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with listener(mute) as address:
        # Unreachable where even connecting took that long.
        with pytest.raises((RequestTimedOut, Unreachable), match=rf"{address} .*in time"):
            await Connection.open(address, "test", deadline(SHORT_S))


async def test_a_request_without_an_answer_ends_the_connection_and_those_behind_it() -> None:
    async def stuck(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await shake_hands(reader, writer, {18: (0, 4), 3: (0, 12), 10: (0, 3)})
        await reader.read()

    async with listener(stuck) as address, connected(address) as connection:
        behind = asyncio.create_task(connection.call(FindCoordinatorRequest(key="g"), deadline(LONG_S)))
        with pytest.raises(RequestTimedOut, match="METADATA"):
            await connection.call(METADATA, deadline(SHORT_S))
        with pytest.raises(ConnectionLost, match="METADATA in time"):
            await behind
        assert not connection.is_open
        with pytest.raises(ConnectionLost):
            await connection.call(METADATA, deadline(LONG_S))


async def test_a_listener_that_closes_at_once_is_suspected_of_tls() -> None:
    async def closing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_frame(reader)

    async with listener(closing) as address:
        with pytest.raises(ConnectionLost, match="without TLS and SASL"):
            await Connection.open(address, "test", deadline(LONG_S))


@pytest.mark.parametrize(
    "garbage",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"\x00\x00\x00\x04\x00\x00\x00\x63",  # an answer to nobody
        b"\x00\x00\x00\x02\x00\x00",
        b"\x00\x00\x00\x08\x00\x00\x00\x01\x00\x00\x00\xff",
        b"\xff\xff\xff\xff",
    ],
)
async def test_what_is_no_answer_is_not_taken_for_one(garbage: bytes) -> None:
    async def garbling(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_frame(reader)
        writer.write(garbage)
        await reader.read()

    async with listener(garbling) as address:
        with pytest.raises(NotKafka, match=rf"{address} does not answer as a Kafka broker"):
            await Connection.open(address, "test", deadline(LONG_S))


async def test_a_connection_that_ends_fails_what_is_in_flight() -> None:
    async def leaving(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await shake_hands(reader, writer, {18: (0, 4), 3: (0, 12)})
        await read_request(reader)

    async with listener(leaving) as address, connected(address) as connection:
        with pytest.raises(ConnectionLost, match="closed the connection"):
            await connection.call(METADATA, deadline(LONG_S))


async def test_closing_leaves_no_socket_to_a_broker_that_does_not_read() -> None:
    async def deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await shake_hands(reader, writer, {18: (0, 4), 3: (0, 12)})
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        await asyncio.Event().wait()

    async with listener(deaf) as address, connected(address) as connection:
        names = [MetadataRequest.Topic(name="x" * 30_000) for _ in range(1_000)]
        with pytest.raises(RequestTimedOut):
            await connection.call(MetadataRequest(topics=names), deadline(SHORT_S))
        await connection.close()
        await until(lambda: connection._writer.get_extra_info("socket").fileno() == -1)


async def test_closing_twice_is_harmless_and_fails_what_is_in_flight() -> None:
    with Broker() as broker:
        async with connected(Address("127.0.0.1", broker.port)) as connection:
            await connection.close()
            await connection.close()
            with pytest.raises(ConnectionLost):
                await connection.call(METADATA, deadline(LONG_S))

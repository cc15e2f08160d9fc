"""One connection: the handshake, matching answers to requests, and every way in which a broker can fail
it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import uuid
from typing import Any

import pytest

from muster.client.errors import ConnectionLost, NotKafka, RequestTimedOut, Unreachable, WrongBroker
from muster.client.network import connection as connection_module
from muster.client.network.connection import (
    IN_FLIGHT_MAX,
    Address,
    BrokerIdentity,
    Connection,
    Versioned,
    deadline,
)
from muster.coordinator.testing import Broker
from muster.protocol.api import ApiKey
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.header import encode_response
from muster.protocol.messages.classic_group import LeaveGroupRequest
from muster.protocol.messages.data import ProduceRequest
from muster.protocol.messages.metadata import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataResponse,
)
from muster.protocol.messages.offsets import OffsetCommitRequest
from muster.protocol.messages.topics import CreateTopicsRequest
from tests.client.listeners import answer, listener, read_frame, read_request, shake_hands
from tests.support.facts import turns, until
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
        with pytest.raises(RequestTimedOut, match="METADATA in time"):
            await connection.call(METADATA, deadline(0.1))
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
    dialled = connection_module._dial

    async def hanging(make: Any, host: str, *where: Any) -> Any:
        if host == "192.0.2.1":
            await asyncio.Event().wait()
        return await dialled(make, host, *where)

    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, 0)) for host in ("192.0.2.1", "127.0.0.1")]
    with Broker() as broker:
        monkeypatch.setattr(connection_module, "_dial", hanging)
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_: found)
        # A short first share; half of a sufficiently long deadline would be long.
        shares = {1: LONG_S, 2: SHORT_S}
        monkeypatch.setattr(connection_module, "share_of", lambda _, parts: deadline(shares[parts]))
        async with connected(Address("two", broker.port)) as connection:
            assert connection.is_open


async def test_a_broker_that_says_nothing_is_given_up_at_the_deadline() -> None:
    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with listener(mute) as address:
        # Unreachable if even connecting took that long.
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


@pytest.mark.parametrize("answers", [True, False])
async def test_little_patience_costs_nobody_else_the_connection(answers: bool) -> None:
    """The request timeout ends it, if nothing has arrived by then."""

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await shake_hands(reader, writer, {18: (0, 4), 3: (0, 12), 10: (0, 3)})
        heads = [(await read_request(reader))[0] for _ in range(2)]
        await let_go.wait()
        answer(writer, heads[0], FindCoordinatorResponse(node_id=7))
        answer(writer, heads[1], metadata_of("late"))
        await reader.read()

    let_go = asyncio.Event()
    timeout_s = LONG_S if answers else 4 * SHORT_S
    async with listener(slow) as address:
        connection = await Connection.open(address, "test", deadline(LONG_S), request_timeout_s=timeout_s)
        try:
            patient = asyncio.create_task(connection.call(FindCoordinatorRequest(key="g"), deadline(LONG_S)))
            await turns()
            with pytest.raises(RequestTimedOut, match="METADATA in time"):
                await connection.call(METADATA, deadline(SHORT_S))
            assert connection.suspect
            if answers:
                let_go.set()
                assert (await patient).node_id == 7
                await until(lambda: not connection.in_flight)
                assert connection.is_open
                assert not connection.suspect
            else:
                with pytest.raises(ConnectionLost, match="METADATA in time"):
                    await patient
                assert not connection.is_open
        finally:
            await connection.close()


async def test_a_listener_that_closes_at_once_is_suspected_of_tls() -> None:
    async def closing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_frame(reader)

    async with listener(closing) as address:
        with pytest.raises(ConnectionLost, match="may be a listener for TLS or SASL"):
            await Connection.open(address, "test", deadline(LONG_S))


@pytest.mark.parametrize(
    "garbage",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"\x00\x00\x00\x04\x00\x00\x00\x63",  # answers no request
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
        await until(lambda: connection._transport.get_extra_info("socket").fileno() == -1)


async def test_closing_twice_is_harmless_and_fails_what_is_in_flight() -> None:
    with Broker() as broker:
        async with connected(Address("127.0.0.1", broker.port)) as connection:
            await connection.close()
            await connection.close()
            with pytest.raises(ConnectionLost):
                await connection.call(METADATA, deadline(LONG_S))


class ReadsLate:
    """A broker that reads nothing but ApiVersions before `let_go`; `received` is what came after that."""

    def __init__(self) -> None:
        self.let_go = asyncio.Event()
        self.over = asyncio.Event()
        self.received = bytearray()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await shake_hands(reader, writer, {18: (0, 4), 0: (3, 9), 8: (2, 8), 13: (0, 5)})
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        await self.let_go.wait()
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        with contextlib.suppress(ConnectionResetError):
            while some := await reader.read(10_000):
                self.received += some
        self.over.set()

    async def heard(self) -> tuple[int, bytes]:
        """The length that the first request announces, and the part of it that arrived."""
        self.let_go.set()
        async with asyncio.timeout(LONG_S):
            await self.over.wait()
        return int.from_bytes(self.received[:4], "big"), bytes(self.received[4:])


MUCH = "x" * 30_000  # more than the broker's kernel buffers unread, less than ours buffers unsent


@pytest.mark.parametrize("gives_up", ["at the request timeout", "by closing", "by another way"])
async def test_what_was_given_up_does_not_arrive_later(gives_up: str) -> None:
    late = ReadsLate()
    async with listener(late.serve, receive_bytes=4_096) as address, connected(address) as connection:
        part = OffsetCommitRequest.Topic.Partition(
            partition_index=0, committed_offset=401, committed_metadata=MUCH
        )
        commit = OffsetCommitRequest(
            group_id="g", member_id="", topics=[OffsetCommitRequest.Topic(name="t", partitions=[part])]
        )
        at_timeout = gives_up == "at the request timeout"
        committing = asyncio.create_task(connection.call(commit, deadline(SHORT_S if at_timeout else LONG_S)))
        await until(lambda: connection.in_flight)
        assert connection._transport.get_write_buffer_size() == 0  # the kernel has it by now
        if gives_up == "by closing":
            await connection.close()
        elif not at_timeout:
            connection.abandon("test")
        with pytest.raises(RequestTimedOut if at_timeout else ConnectionLost):
            await committing
        await connection.close()
        length, received = await late.heard()
        assert len(received) < length or not received


@pytest.mark.parametrize("asks", ["to leave", "for nothing"])
async def test_what_does_no_harm_late_is_delivered_after_the_end(asks: str) -> None:
    """LeaveGroup, and requests sent without waiting for an answer."""
    late = ReadsLate()
    async with listener(late.serve, receive_bytes=4_096) as address, connected(address) as connection:
        if asks == "to leave":
            member = LeaveGroupRequest.MemberIdentity(member_id="m", reason=MUCH)
            leave = LeaveGroupRequest(group_id="g", members=[member])
            with pytest.raises(RequestTimedOut):
                await connection.call(leave, deadline(SHORT_S))
        else:
            part = ProduceRequest.TopicProduceData.PartitionProduceData(index=0, records=MUCH.encode())
            topic = ProduceRequest.TopicProduceData(name="t", partition_data=[part])
            await connection.tell(
                ProduceRequest(acks=0, timeout_ms=30_000, topic_data=[topic]), deadline(LONG_S)
            )
        assert connection._transport.get_write_buffer_size() == 0
        await connection.close()
        length, received = await late.heard()
        assert len(received) == length > len(MUCH)


async def test_a_name_without_an_address_that_answers_says_what_was_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def failing(make: Any, host: str, *where: Any) -> Any:
        raise {"192.0.2.1": TimeoutError(), "127.0.0.1": ConnectionRefusedError(errno.ECONNREFUSED, "")}[host]

    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, 0)) for host in ("192.0.2.1", "127.0.0.1")]
    monkeypatch.setattr(connection_module, "_dial", failing)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: found)
    with pytest.raises(Unreachable) as failed:
        await Connection.open(Address("two", 9092), "test", deadline(LONG_S))
    assert str(failed.value) == (
        "no connection to two:9092: 192.0.2.1: no answer in time, 127.0.0.1: connection refused"
    )


async def test_an_answer_that_trickles_in_is_an_answer() -> None:
    async def trickling(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await shake_hands(reader, writer, {18: (0, 4), 3: (0, 12)})
        head, _ = await read_request(reader)
        for byte in encode_response(head.api_key, head.api_version, head.correlation_id, metadata_of("slow")):
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0)
        await reader.read()

    async with listener(trickling) as address, connected(address) as connection:
        assert (await connection.call(METADATA, deadline(LONG_S))).cluster_id == "slow"


@pytest.mark.parametrize("kept", [1, 4, 7, 20])
async def test_an_answer_that_is_cut_off_is_a_lost_connection(kept: int) -> None:
    async def cutting(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await shake_hands(reader, writer, {18: (0, 4), 3: (0, 12)})
        head, _ = await read_request(reader)
        whole = encode_response(head.api_key, head.api_version, head.correlation_id, metadata_of("c" * 50))
        writer.write(whole[:kept])
        writer.write_eof()
        await reader.read()

    async with listener(cutting) as address, connected(address) as connection:
        with pytest.raises(ConnectionLost, match="closed the connection, in the middle of an answer"):
            await connection.call(METADATA, deadline(LONG_S))


async def test_an_answer_of_many_megabytes_comes_whole() -> None:
    async def large(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await shake_hands(reader, writer, {18: (0, 4), 3: (0, 12)})
        for _ in range(2):
            head, _ = await read_request(reader)
            answer(writer, head, many)
        await reader.read()

    topics = [
        MetadataResponse.Topic(name=f"{index:05d}" * 1_000, topic_id=uuid.UUID(int=index), partitions=[])
        for index in range(2_000)
    ]
    many = MetadataResponse(brokers=[], cluster_id="large", topics=topics)
    async with listener(large) as address, connected(address) as connection:
        answers = await asyncio.gather(*(connection.call(METADATA, deadline(LONG_S)) for _ in range(2)))
        assert answers == [many, many]


async def test_versions_can_be_capped_and_layouts_made_to_measure() -> None:
    seen = []

    def build(version: int) -> MetadataRequest:
        seen.append(version)
        return MetadataRequest(topics=[])

    with Broker() as broker:
        async with connected(Address("127.0.0.1", broker.port)) as connection:
            assert connection.version_of(ApiKey.FETCH, 17) == 17
            assert connection.version_of(ApiKey.FIND_COORDINATOR) == 3
            await connection.call(Versioned(ApiKey.METADATA, build, 9), deadline(LONG_S))
            await connection.call(Versioned(ApiKey.METADATA, build), deadline(LONG_S))
            assert seen == [9, 13]
            # Version 3 cannot carry several keys, 4 can.
            several = FindCoordinatorRequest(coordinator_keys=["a", "b"])
            with pytest.raises(
                KafkaError,
                match=r"coordinator_keys: not in version \d, .*; no newer version",
            ) as refused:
                await connection.call(several, deadline(LONG_S))
            assert refused.value.code is ErrorCode.UNSUPPORTED_VERSION
            found = await connection.call(several, deadline(LONG_S), last_version=4)
            assert [each.key for each in found.coordinators] == ["a", "b"]


async def test_another_broker_than_the_one_expected() -> None:
    with Broker() as broker:
        address = Address("127.0.0.1", broker.port)
        with pytest.raises(WrongBroker, match="is not broker 7 of cluster elsewhere any more"):
            await Connection.open(address, "test", deadline(LONG_S), expected=BrokerIdentity("elsewhere", 7))


async def test_whoever_cannot_send_waits_for_the_socket_and_no_longer_than_he_may() -> None:
    async def deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await shake_hands(reader, writer, {18: (0, 4), 3: (0, 12)})
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        await let_go.wait()
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        await reader.read()

    names = [MetadataRequest.Topic(name="x" * 30_000) for _ in range(1_000)]
    for give_up in (False, True):
        let_go = asyncio.Event()
        async with listener(deaf) as address, connected(address) as connection:
            telling = asyncio.create_task(
                connection.tell(MetadataRequest(topics=names), deadline(SHORT_S if give_up else LONG_S))
            )
            await until(lambda: connection._writable is not None)
            if give_up:
                with pytest.raises(RequestTimedOut):
                    await telling
                assert not connection.is_open
            else:
                let_go.set()
                await telling
            let_go.set()


@pytest.mark.parametrize("turns", range(40))
async def test_opening_and_asking_can_be_cancelled_at_every_turn(turns: int) -> None:
    """Nothing is left behind: the fixture of all tests checks for tasks and transports."""

    async def good(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await shake_hands(reader, writer, {18: (0, 3), 3: (0, 12)})
        while True:
            answer(writer, (await read_request(reader))[0], metadata_of("c"))

    async def open_and_ask() -> None:
        async with connected(address) as connection:
            for _ in range(2):
                await connection.call(METADATA, deadline(LONG_S))

    async with listener(good) as address:
        task = asyncio.create_task(open_and_ask())
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

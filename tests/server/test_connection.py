"""Connections over real sockets, with made-up sessions: order, refusals, freezing and the end."""

from __future__ import annotations

import asyncio
import gc
from contextlib import suppress

import pytest

from muster.coordinator.server.connection import Connection
from muster.coordinator.server.connections import Connections
from muster.coordinator.server.unserved import CloseConnection
from muster.protocol.api import ApiKey
from muster.protocol.errors import DecodeError
from muster.protocol.header import encode_request
from muster.protocol.messages.metadata import MetadataRequest
from tests.server.conftest import StartBrokers
from tests.server.made_up import (
    DEADLINE_S,
    Answer,
    Gate,
    echo,
    framed,
    is_closed,
    read_frame,
    serving,
)
from tests.support.wire import Wire


async def test_requests_of_a_connection_are_answered_one_at_a_time_and_in_order() -> None:
    gate = Gate()
    async with serving(gate) as server:
        reader, writer = await server.connect()
        writer.write(b"".join(framed(b"%d" % number) for number in range(5)))
        await gate.until(lambda: gate.asked == [b"0"])
        assert gate.asked == [b"0"]  # the others wait, though they have arrived
        gate.open()
        assert [await read_frame(reader) for _ in range(5)] == [b"0", b"1", b"2", b"3", b"4"]
        writer.close()


async def test_connections_do_not_wait_for_each_other() -> None:
    gate = Gate()

    async def answer(connection: Connection, frame: bytes) -> bytes | None:
        return await gate(connection, frame) if frame == b"parked" else framed(frame)

    async with serving(answer) as server:
        _, parked = await server.connect()
        parked.write(framed(b"parked"))
        await gate.until(lambda: gate.asked == [b"parked"])
        reader, writer = await server.connect()
        writer.write(framed(b"heartbeat"))
        assert await read_frame(reader) == b"heartbeat"
        for each in (parked, writer):
            each.close()


async def test_a_frame_in_many_pieces_is_one_request() -> None:
    async with serving() as server:
        reader, writer = await server.connect()
        for byte in framed(b"slowly"):
            writer.write(bytes([byte]))
            await writer.drain()
        assert await read_frame(reader) == b"slowly"
        writer.close()


async def test_no_response_is_written_where_there_is_none() -> None:
    async def answer(connection: Connection, frame: bytes) -> bytes | None:
        return None if frame == b"acks=0" else framed(frame)

    async with serving(answer) as server:
        reader, writer = await server.connect()
        writer.write(framed(b"acks=0") + framed(b"next"))
        assert await read_frame(reader) == b"next"
        writer.close()


@pytest.mark.parametrize("error", [DecodeError("garbage"), CloseConnection("acks=0 failed")])
async def test_what_cannot_be_answered_closes_the_connection(error: Exception) -> None:
    async def answer(connection: Connection, frame: bytes) -> bytes | None:
        raise error

    async with serving(answer) as server:
        reader, writer = await server.connect()
        writer.write(framed(b"x"))
        assert await is_closed(reader)
        counts = server.connections.counts
        assert (counts.undecodable, counts.unserved) == ((1, 0) if isinstance(error, DecodeError) else (0, 1))
        assert server.closed == [1]
        writer.close()


async def test_an_error_while_the_client_is_looked_at_closes_the_connection() -> None:
    def identify(transport: asyncio.Transport) -> str:
        raise ZeroDivisionError("a certificate that nobody expected")

    async with serving(identify=identify) as server:
        reader, writer = await server.connect()
        assert await is_closed(reader)
        await server.until(lambda: server.closed == [1])
        writer.close()


# --- the end ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("abandonable", [True, False])
async def test_losing_the_connection_drops_only_what_may_be_dropped(abandonable: bool) -> None:
    gate = Gate()

    async def answer(connection: Connection, frame: bytes) -> bytes | None:
        if abandonable:
            connection.abandonable()
        return await gate(connection, frame)

    async with serving(answer) as server:
        _, writer = await server.connect()
        writer.write(framed(b"x"))
        await gate.until(lambda: gate.asked == [b"x"])
        writer.transport.abort()
        await server.until(lambda: server.closed == [1])
        if not abandonable:
            assert server.connections.alive  # a write is not cut off in the middle
            gate.open()
        await server.until(lambda: not server.connections.alive)
        assert gate.abandoned == ([b"x"] if abandonable else [])


def produce(acks: int, number: int) -> bytes:
    """A Produce request as far as a connection reads it: the API key comes first."""
    return bytes([0, 0, acks, number])


@pytest.mark.parametrize(
    ("sent", "processed"),
    [
        ([produce(0, 1), produce(0, 2), produce(0, 3)], 3),
        ([produce(0, 1), produce(1, 2), produce(0, 3)], 2),  # nobody takes the answer: that is the end
        ([produce(0, 1), b"\0\3 metadata", produce(0, 3)], 1),
    ],
)
async def test_what_was_produced_without_acknowledgements_before_the_client_closed_is_processed(
    sent: list[bytes], processed: int
) -> None:
    gate = Gate()

    async def answer(connection: Connection, frame: bytes) -> bytes | None:
        response = await gate(connection, frame)
        return None if frame[2] == 0 else response

    async with serving(answer) as server:
        _, writer = await server.connect()
        writer.write(b"".join(map(framed, sent)))
        await gate.until(lambda: gate.asked == sent[:1])
        writer.close()
        await server.until(lambda: server.closed == [1])
        gate.open()
        await server.until(lambda: not server.connections.alive)
        assert gate.asked == sent[:processed]


@pytest.mark.parametrize("cut", [False, True])
async def test_nothing_more_is_processed_of_a_client_whose_connection_broke(cut: bool) -> None:
    gate = Gate()
    async with serving(gate) as server:
        _, writer = await server.connect()
        writer.write(framed(produce(0, 1)) + framed(produce(0, 2)))
        await gate.until(lambda: gate.asked == [produce(0, 1)])
        if cut:
            await server.connections.cut()
        else:
            writer.transport.abort()
        await server.until(lambda: server.closed == [1])
        gate.open()
        await server.until(lambda: not server.connections.alive)
        assert gate.asked == [produce(0, 1)]
        writer.close()


async def test_finishing_answers_what_was_received_and_closes() -> None:
    gate = Gate()
    async with serving(gate) as server:
        reader, writer = await server.connect()
        writer.write(framed(b"1") + framed(b"2"))
        await gate.until(lambda: gate.asked == [b"1"])
        server.connections.finish()
        gate.open()
        assert [await read_frame(reader), await read_frame(reader)] == [b"1", b"2"]
        assert await is_closed(reader)
        await server.connections.drained(DEADLINE_S)
        assert not server.connections.alive
        writer.close()


async def test_a_frozen_connection_neither_reads_nor_answers_until_thawed() -> None:
    gate = Gate()
    async with serving(gate) as server:
        reader, writer = await server.connect()
        writer.write(framed(b"1"))
        await gate.until(lambda: gate.asked == [b"1"])
        server.connections.freeze()
        gate.open()
        writer.write(framed(b"2"))
        later_reader, later = await server.connect()  # the kernel accepts for a stopped process too
        later.write(framed(b"3"))
        await server.until(lambda: len(server.connections.open) == 2)
        answer = asyncio.ensure_future(read_frame(reader))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not answer.done()
        assert gate.asked == [b"1"]
        for connection in server.connections.open.values():
            assert connection._transport is not None
            assert not connection._transport.is_reading()
        server.connections.thaw()
        assert await answer == b"1"
        assert await read_frame(reader) == b"2"
        assert await read_frame(later_reader) == b"3"
        for each in (writer, later):
            each.close()


async def until_closed(connection: Connection, frame: bytes) -> bytes | None:
    connection.abandonable()
    await asyncio.get_running_loop().create_future()
    return None


@pytest.mark.parametrize("answer", [echo, until_closed])
async def test_a_connection_that_is_over_is_gone(answer: Answer) -> None:
    """Freed without a garbage collection, which is slow when many objects are alive."""
    gc.collect()
    gc.disable()
    try:
        async with serving(answer) as server:
            for _ in range(3):
                reader, writer = await server.connect()
                writer.write(framed(b"hello"))
                if answer is echo:
                    assert await reader.readexactly(9) == framed(b"hello")
                else:
                    await server.until(lambda: any(each._abandonable for each in left_of(server.connections)))
                writer.close()
                await server.until(lambda: not server.connections.alive)
            await server.until(lambda: not left_of(server.connections))
    finally:
        gc.enable()


async def test_a_connection_that_is_one_too_many_is_gone() -> None:
    gc.collect()
    gc.disable()
    try:
        async with serving(echo, connections_max=1) as server:
            _, admitted = await server.connect()
            await server.until(lambda: bool(server.connections.open))
            reader, writer = await server.connect()
            with suppress(ConnectionError):
                assert await reader.read() == b""
            writer.close()
            await server.until(lambda: len(left_of(server.connections)) == 1)
            admitted.close()
    finally:
        gc.enable()


def left_of(connections: Connections) -> list[Connection]:
    """Connections of this server only; those of an earlier test may still exist."""
    return [
        each for each in gc.get_objects() if type(each) is Connection and each._connections is connections
    ]


async def test_a_request_in_a_bytearray_is_answered(start_brokers: StartBrokers) -> None:
    """asyncio's loop on Windows passes one when it reads again after a pause."""
    node = (await start_brokers()).brokers[0]
    request = MetadataRequest(topics=None)
    async with await Wire.connect(node.port) as wire:
        await wire.call(request, 12)
        (connection,) = node.connections.open.values()
        frame = encode_request(ApiKey.METADATA, 12, 2, "wire", request)
        connection.data_received(bytearray(frame))
        assert (await wire.receive_bytes())[:4] == b"\0\0\0\2"

"""Connections over real sockets, with made-up sessions."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from muster.coordinator.base.answers import Later
from muster.coordinator.base.clock import ManualClock
from muster.coordinator.server import unserved
from muster.coordinator.server.apis import check_request_size
from muster.coordinator.server.connection import Connection
from muster.coordinator.server.connections import Connections
from muster.coordinator.server.unserved import CloseConnection, Unserved
from muster.coordinator.server.wire import Response, Traffic
from muster.protocol.api import ApiKey
from muster.protocol.errors import DecodeError

Answer = Callable[[Connection, bytes], Awaitable[bytes | None]]
AnswerAtOnce = Callable[[Connection, bytes], Response | Later | None]
"""None: it is for `Answer`."""
HEARTBEAT = int(ApiKey.HEARTBEAT)
DEADLINE_S = 30


async def echo(connection: Connection, frame: bytes) -> bytes | None:
    return framed(frame)


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


class Gate:
    """An answer that waits until the test lets it through, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[bytes] = []
        self.abandoned: list[bytes] = []
        self.arrived = asyncio.Condition()
        self._open = asyncio.Event()

    async def __call__(self, connection: Connection, frame: bytes) -> bytes | None:
        self.asked.append(frame)
        async with self.arrived:
            self.arrived.notify_all()
        try:
            await self._open.wait()
        except asyncio.CancelledError:
            self.abandoned.append(frame)
            raise
        return framed(frame)

    def open(self) -> None:
        self._open.set()

    async def until(self, fact: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE_S), self.arrived:
            await self.arrived.wait_for(fact)


class Server:
    def __init__(self, connections: Connections, clock: ManualClock, port: int, closed: list[int]) -> None:
        self.connections = connections
        self.clock = clock
        self.port = port
        self.closed = closed

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def until(self, fact: Callable[[], bool]) -> None:
        """Wait for something the server does; its loop is ours, so a turn at a time is enough."""
        async with asyncio.timeout(DEADLINE_S):
            while not fact():  # noqa: ASYNC110 - nothing to await: any turn may bring it
                await asyncio.sleep(0)


class MadeUp:
    """A session of a test: asks `at_once`, and starts a task that awaits `answer` where that has none."""

    client_id = ""

    def __init__(self, connection: Connection, answer: Answer, at_once: AnswerAtOnce | None) -> None:
        self._connection: Connection | None = connection
        self._answer = answer
        self._at_once = at_once

    def begin(self, frame: bytes) -> Response | None:
        connection = self._connection
        assert connection is not None
        response = None if self._at_once is None else self._at_once(connection, frame)
        if response is None:
            task = asyncio.get_running_loop().create_task(self._respond(connection, frame))
            connection.under_way(task, False)
        return None if isinstance(response, Later) else response

    async def _respond(self, connection: Connection, frame: bytes) -> None:
        try:
            response = await self._answer(connection, frame)
        except Exception as error:
            connection.failed(error)
        else:
            connection.respond(response or b"")

    def forget(self) -> None:
        pass

    def close(self) -> None:
        self._connection = None


@asynccontextmanager
async def serving(
    answer: Answer = echo,
    *,
    connections_max: int = 100,
    idle_ms: int = 1_000,
    frame_bytes_max: int = 1 << 20,
    request_bytes_max: int = 1 << 20,
    response_bytes_max: int = 1 << 20,
    receive_timeout_ms: int = 60_000,
    answer_at_once: AnswerAtOnce | None = None,
) -> AsyncIterator[Server]:
    clock = ManualClock()
    closed: list[int] = []
    connections = Connections(
        lambda connection: MadeUp(connection, answer, answer_at_once),
        Traffic(check_request_size, paced=set(range(256)) - {HEARTBEAT}, outlives={bytes(2)}),
        clock,
        connections_max=connections_max,
        idle_ms=idle_ms,
        frame_bytes_max=frame_bytes_max,
        request_bytes_max=request_bytes_max,
        response_bytes_max=response_bytes_max,
        receive_timeout_ms=receive_timeout_ms,
        unserved=Unserved(clock),
        closed=closed.append,
    )
    server = await asyncio.get_running_loop().create_server(connections.connect, "127.0.0.1", 0)
    try:
        yield Server(connections, clock, server.sockets[0].getsockname()[1], closed)
    finally:
        server.close()
        await connections.cut()


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(DEADLINE_S):
        size = int.from_bytes(await reader.readexactly(4), "big")
        return await reader.readexactly(size)


async def is_closed(reader: asyncio.StreamReader) -> bool:
    async with asyncio.timeout(DEADLINE_S):
        with suppress(ConnectionError):
            return await reader.read(1) == b""
        return True


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


@pytest.mark.parametrize("size", [-1, 1_001, 2**31 - 1])
async def test_a_frame_size_out_of_bounds_closes_the_connection_and_is_counted(size: int) -> None:
    async with serving(frame_bytes_max=1_000) as server:
        reader, writer = await server.connect()
        writer.write(size.to_bytes(4, "big", signed=True) + b"x")
        assert await is_closed(reader)
        assert server.connections.counts.undecodable == 1
        writer.close()


async def test_the_first_frame_is_bounded_until_a_valid_header_was_seen() -> None:
    async def answer(connection: Connection, frame: bytes) -> bytes | None:
        connection.wire.recognised()
        return framed(b"%d" % len(frame))

    async with serving(answer, frame_bytes_max=1 << 24, request_bytes_max=1 << 25) as server:
        large = framed(bytes(3 << 20))
        reader, writer = await server.connect()
        writer.write(large)
        assert await is_closed(reader)
        writer.close()
        reader, writer = await server.connect()
        writer.write(framed(b"hello"))
        assert await read_frame(reader) == b"5"
        writer.write(large)
        assert await read_frame(reader) == b"%d" % (3 << 20)
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


async def test_connections_above_the_limit_are_closed() -> None:
    async with serving(connections_max=1) as server:
        reader, writer = await server.connect()
        writer.write(framed(b"first"))
        assert await read_frame(reader) == b"first"
        refused, refused_writer = await server.connect()
        assert await is_closed(refused)
        assert server.connections.counts.refused == 1
        writer.write(framed(b"still here"))
        assert await read_frame(reader) == b"still here"
        writer.close()
        await server.until(lambda: not server.connections.open)
        reader, writer = await server.connect()
        writer.write(framed(b"room again"))
        assert await read_frame(reader) == b"room again"
        for each in (writer, refused_writer):
            each.close()


async def test_an_idle_connection_is_closed_and_a_busy_one_is_not() -> None:
    gate = Gate()
    async with serving(gate, idle_ms=1_000) as server:
        busy_reader, busy = await server.connect()
        busy.write(framed(b"parked"))
        idle_reader, idle = await server.connect()
        await gate.until(lambda: gate.asked == [b"parked"])
        await server.until(lambda: len(server.connections.open) == 2)
        server.clock.advance(900)
        assert server.connections.counts.idle == 0
        server.clock.advance(300)
        assert await is_closed(idle_reader)
        assert server.connections.counts.idle == 1
        gate.open()
        assert await read_frame(busy_reader) == b"parked"
        for each in (busy, idle):
            each.close()


async def test_connections_wait_for_memory_and_one_at_a_time_goes_beyond_the_bound() -> None:
    gate = Gate()
    async with serving(gate, request_bytes_max=500_000) as server:
        streams = []
        for number in range(4):
            reader, writer = await server.connect()
            writer.write(framed(b"%d" % number * 400_000))
            streams.append((reader, writer))
            await server.until(lambda: len(server.connections.open) == len(streams))
            if number < 2:  # the first fits, the second goes beyond the bound
                await gate.until(lambda: len(gate.asked) == len(streams))
        late = [server.connections.open[3], server.connections.open[4]]
        await server.until(lambda: all(each.wire._requests.waiting for each in late))
        assert len(gate.asked) == 2
        # Who sends little is not concerned.
        reader, writer = await server.connect()
        writer.write(framed(b"small")[:6])
        streams.append((reader, writer))
        await server.until(lambda: len(server.connections.open) == 5)
        await server.until(lambda: server.connections.open[5].wire._splitter.pending_bytes == 6)
        assert not server.connections.open[5].wire._stops
        writer.write(framed(b"small")[6:])
        await gate.until(lambda: gate.asked[-1] == b"small")
        gate.open()
        for number, (reader, _) in enumerate(streams[:4]):
            assert await read_frame(reader) == b"%d" % number * 400_000
        for _, writer in streams:
            writer.close()
        await server.until(lambda: server.connections.requests.held_bytes == 0)


async def test_frames_half_received_do_not_block_each_other() -> None:
    async with serving(request_bytes_max=800_000) as server:
        frame = framed(b"x" * 600_000)
        streams = [await server.connect() for _ in range(5)]
        for _, writer in streams:
            writer.write(frame[:500_000])
        connections = server.connections
        await server.until(lambda: sum(c.wire._requests.waiting for c in connections.open.values()) >= 2)
        for _, writer in streams:
            writer.write(frame[500_000:])
        for reader, writer in streams:
            assert len(await read_frame(reader)) == 600_000
            writer.close()
        await server.until(lambda: connections.requests.held_bytes == 0)


async def test_what_is_only_announced_takes_nobody_s_room() -> None:
    async with serving(request_bytes_max=1_000_000) as server:
        holding = []
        for _ in range(20):
            _, writer = await server.connect()
            writer.write(framed(b"x" * 1_000_000)[:30])
            holding.append(writer)
        opened = server.connections.open
        await server.until(lambda: sum(c.wire._splitter.pending_bytes == 30 for c in opened.values()) == 20)
        reader, writer = await server.connect()
        writer.write(framed(b"y" * 600_000))
        assert await read_frame(reader) == b"y" * 600_000
        assert server.connections.requests.held_bytes < 2_000
        for each in (*holding, writer):
            each.close()


async def test_a_request_that_does_not_arrive_whole_closes_its_connection() -> None:
    async with serving(idle_ms=1_000_000, receive_timeout_ms=1_000) as server:
        reader, writer = await server.connect()
        writer.write(framed(b"whole") + framed(b"cut off")[:6])
        assert await read_frame(reader) == b"whole"
        (connection,) = server.connections.open.values()
        server.clock.advance(600)
        writer.write(b"o")  # a byte now and then does not help
        await server.until(lambda: connection.wire._splitter.pending_bytes == 7)
        server.clock.advance(300)
        assert server.connections.counts.unfinished == 0
        server.clock.advance(200)
        assert await is_closed(reader)
        assert server.connections.counts.unfinished == 1
        writer.close()


async def test_while_it_is_not_read_from_a_connection_cannot_be_late() -> None:
    async with serving(idle_ms=1_000_000, receive_timeout_ms=1_000) as server:
        reader, writer = await server.connect()
        writer.write(framed(b"slowly")[:6])
        await server.until(lambda: len(server.connections.open) == 1)
        (connection,) = server.connections.open.values()
        await server.until(lambda: connection.wire._splitter.pending_bytes == 6)
        server.connections.freeze()
        server.clock.advance(5_000)
        server.connections.thaw()
        server.clock.advance(800)
        writer.write(framed(b"slowly")[6:])
        assert await read_frame(reader) == b"slowly"
        writer.close()


@pytest.mark.parametrize(
    ("api", "allowed"),
    [
        (ApiKey.JOIN_GROUP, 16 << 20),
        (ApiKey.SYNC_GROUP, 16 << 20),
        (ApiKey.METADATA, 4 << 20),
        (ApiKey.FETCH, 4 << 20),
    ],
)
async def test_a_request_larger_than_its_api_may_have_is_refused_at_its_api_key(
    api: ApiKey, allowed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    warnings = Warnings()
    monkeypatch.setattr(unserved, "_log", warnings)

    async def answer(connection: Connection, frame: bytes) -> bytes | None:
        connection.wire.recognised()
        return framed(b"ok")

    async with serving(answer, frame_bytes_max=1 << 27) as server:
        for size in (allowed, allowed + 1):
            reader, writer = await server.connect()
            writer.write(framed(b"hello"))
            assert await read_frame(reader) == b"ok"
            writer.write(size.to_bytes(4, "big") + api.to_bytes(2, "big"))
            if size > allowed:
                assert await is_closed(reader)
            else:
                splitter = server.connections.open[1].wire._splitter
                await server.until(lambda splitter=splitter: splitter.announced_bytes == allowed + 4)
            writer.close()
        assert warnings.why == [
            f"request too large: {api.name}: a request of {allowed + 1} bytes; the limit is {allowed}"
        ]
        assert server.connections.counts.too_large == 1


class Warnings:
    def __init__(self) -> None:
        self.why: list[object] = []

    def warning(self, event: str, **fields: object) -> None:
        self.why.append(fields["why"])


async def test_a_response_that_is_not_taken_counts_until_it_is() -> None:
    async def answer(connection: Connection, frame: bytes) -> bytes | None:
        return framed(bytes(8 << 20))

    async with serving(answer, response_bytes_max=10 << 20) as server:
        responses = server.connections.responses
        taken, taken_writer = await server.connect()
        taken._transport.pause_reading()  # type: ignore[attr-defined]
        taken_writer.write(framed(b"x"))
        await server.until(lambda: responses.held_bytes > 8 << 20)
        assert responses.room() < 2 << 20
        dropped, dropped_writer = await server.connect()
        dropped._transport.pause_reading()  # type: ignore[attr-defined]
        dropped_writer.write(framed(b"x"))
        await server.until(lambda: responses.held_bytes > 16 << 20)
        assert responses.room() == 0
        taken._transport.resume_reading()  # type: ignore[attr-defined]
        assert len(await read_frame(taken)) == 8 << 20
        dropped_writer.transport.abort()
        await server.until(lambda: responses.held_bytes == 0)
        taken_writer.close()


async def test_room_comes_back_when_connections_die_while_they_hold_or_wait() -> None:
    gate = Gate()
    async with serving(gate, request_bytes_max=100_000) as server:
        writers = []
        for number in range(4):
            _, writer = await server.connect()
            writer.write(framed(b"x" * 80_000)[: 80_004 - number])  # the first whole, the others cut short
            writers.append(writer)
        await gate.until(lambda: len(gate.asked) == 1)
        await server.until(lambda: len(server.connections.open) == 4)
        for writer in writers:
            writer.transport.abort()
        gate.open()
        await server.until(lambda: not server.connections.alive)
        assert server.connections.requests.held_bytes == 0
        reader, writer = await server.connect()
        writer.write(framed(b"y" * 80_000))
        assert len(await read_frame(reader)) == 80_000
        writer.close()


async def test_many_small_requests_pause_reading_and_all_are_answered() -> None:
    async with serving() as server:
        reader, writer = await server.connect()
        count = 5_000
        writer.write(framed(b"x") * count)
        for _ in range(count):
            assert await read_frame(reader) == b"x"
        assert server.connections.counts.requests == count
        writer.close()


async def test_a_peer_that_takes_no_responses_is_not_read_from() -> None:
    asked = 0

    async def answer(connection: Connection, frame: bytes) -> bytes | None:
        nonlocal asked
        asked += 1
        return framed(bytes(1 << 20))

    async with serving(answer) as server:
        reader, writer = await server.connect()
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(framed(b"x") * 60)
        (connection,) = [each async for each in _opened(server)]
        await server.until(lambda: connection.wire._barred)
        assert asked < 60
        reader._transport.resume_reading()  # type: ignore[attr-defined]
        for _ in range(60):
            assert len(await read_frame(reader)) == 1 << 20
        writer.close()


@pytest.mark.parametrize("cut", [False, True])
async def test_a_peer_that_has_closed_its_side_and_takes_nothing_is_idle_some_day(cut: bool) -> None:
    async def answer(connection: Connection, frame: bytes) -> bytes | None:
        return framed(bytes(24 << 20))  # more than the buffers of both sockets take

    async with serving(answer, idle_ms=1_000) as server:
        _, writer = await server.connect()
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(framed(b"x"))
        (connection,) = [each async for each in _opened(server)]
        await server.until(lambda: connection.wire._barred)
        writer.write_eof()
        await server.until(lambda: connection._transport is not None and connection._transport.is_closing())
        if cut:
            await server.connections.cut()
        else:
            server.clock.advance(5_000)
        await server.until(lambda: server.closed == [1])
        await server.until(lambda: not server.connections.alive)
        writer.close()


async def _opened(server: Server) -> AsyncIterator[Connection]:
    await server.until(lambda: len(server.connections.open) == 1)
    for connection in server.connections.open.values():
        yield connection


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
            assert server.connections.alive  # a write is not torn in the middle
            gate.open()
        await server.until(lambda: not server.connections.alive)
        assert gate.abandoned == ([b"x"] if abandonable else [])


def produce(acks: int, number: int) -> bytes:
    """As far as a connection looks at it: the API key in front."""
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
    """Without a search for garbage, which takes long where there is much that is none."""
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
    """Those of an earlier test may be anywhere."""
    return [
        each for each in gc.get_objects() if type(each) is Connection and each._connections is connections
    ]

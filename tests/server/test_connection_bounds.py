"""How much of requests and responses connections may hold, and for how long, over real sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from muster.coordinator.server import unserved
from muster.coordinator.server.connection import Connection
from muster.protocol.api import ApiKey
from tests.server.made_up import (
    Gate,
    Server,
    framed,
    is_closed,
    read_frame,
    serving,
)

# --- sizes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [-1, 1_001, 2**31 - 1])
async def test_a_frame_size_out_of_bounds_closes_the_connection_and_is_counted(size: int) -> None:
    async with serving(frame_bytes_max=1_000) as server:
        reader, writer = await server.connect()
        writer.write(size.to_bytes(4, "big", signed=True) + b"x")
        assert await is_closed(reader)
        counts = server.connections.counts
        assert (counts.undecodable, counts.too_large) == ((1, 0) if size < 0 else (0, 1))
        writer.close()


async def test_the_first_frame_is_bounded_until_a_valid_header_was_seen() -> None:
    async def answer(connection: Connection, frame: bytes) -> bytes | None:
        connection.wire.recognised()
        return framed(b"%d" % len(frame))

    async with serving(answer, strangers=True, frame_bytes_max=1 << 24, request_bytes_max=1 << 25) as server:
        large = framed(b"\0\3" + bytes((3 << 20) - 2))
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
        reader, writer = await server.connect()
        writer.write(framed(bytes(9 << 20)))  # a Produce, larger than what strangers may hold together
        assert await read_frame(reader) == b"%d" % (9 << 20)
        writer.close()
        await server.until(lambda: not server.connections.open)
        requests = server.connections.requests
        assert requests.held_bytes == requests.of_strangers.held_bytes == 0


async def test_large_first_requests_together_keep_to_the_bound() -> None:
    gate = Gate()

    async def answer(connection: Connection, frame: bytes) -> bytes | None:
        connection.wire.recognised()
        await gate(connection, frame)
        return framed(b"ok")

    size = 5 << 20
    async with serving(answer, strangers=True, frame_bytes_max=1 << 24, request_bytes_max=4 << 20) as server:
        readers, sending = [], []
        for _ in range(4):
            reader, writer = await server.connect()
            writer.write(framed(bytes(size)))
            readers.append(reader)
            sending.append(writer)
        requests = server.connections.requests
        await gate.until(lambda: len(gate.asked) == 1)
        opened = server.connections.open
        await server.until(lambda: sum(each.wire._requests.waiting for each in opened.values()) == 3)
        assert requests.held_bytes + requests.of_strangers.held_bytes < 2 * size
        gate.open()
        for reader in readers:
            assert await read_frame(reader) == b"ok"
        for writer in sending:
            writer.close()
        await server.until(lambda: not opened)
        assert requests.held_bytes == requests.of_strangers.held_bytes == 0


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

    async with serving(answer, strangers=True, frame_bytes_max=1 << 27) as server:
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


# --- connections and memory ---------------------------------------------------------------------------------


async def test_connections_above_the_limit_are_closed_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    warnings = Warnings()
    monkeypatch.setattr(unserved, "_log", warnings)
    async with serving(connections_max=1) as server:
        reader, writer = await server.connect()
        writer.write(framed(b"first"))
        assert await read_frame(reader) == b"first"
        refused, refused_writer = await server.connect()
        assert await is_closed(refused)
        assert server.connections.counts.refused == 1
        assert warnings.why == ["the broker has max.connections connections"]
        writer.write(framed(b"still here"))
        assert await read_frame(reader) == b"still here"
        writer.close()
        await server.until(lambda: not server.connections.open)
        reader, writer = await server.connect()
        writer.write(framed(b"room again"))
        assert await read_frame(reader) == b"room again"
        for each in (writer, refused_writer):
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
        # A client that sends little is not affected.
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


async def _opened(server: Server) -> AsyncIterator[Connection]:
    await server.until(lambda: len(server.connections.open) == 1)
    for connection in server.connections.open.values():
        yield connection


# --- time ---------------------------------------------------------------------------------------------------


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

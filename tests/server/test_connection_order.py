"""A connection keeps its promises about order, bounds and its end when requests that are answered at once,
later and by tasks meet on it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from muster.coordinator.base.answers import LATER, Later
from muster.coordinator.server import connections as connections_module
from muster.coordinator.server.connection import Connection
from muster.coordinator.server.unserved import CloseConnection
from muster.protocol.api import ApiKey
from tests.server.made_up import DEADLINE_S, Gate, Server, framed, is_closed, read_frame, serving
from tests.support.facts import until


class AtOnce:
    """A made-up `answer_at_once`: "now…" is answered now, "later…" when the test says so, and the rest is
    left to tasks."""

    def __init__(self) -> None:
        self.waiting: dict[bytes, Callable[[], None]] = {}

    def __call__(self, connection: Connection, frame: bytes) -> bytes | Later | None:
        if frame.startswith(b"now"):
            return framed(frame)
        if frame.startswith(b"later"):
            self.waiting[frame] = lambda: connection.respond(framed(frame))
            return LATER
        return None

    async def asked(self, frame: bytes) -> None:
        await until(lambda: frame in self.waiting, f"{frame!r} to arrive")

    def answer(self, frame: bytes) -> None:
        self.waiting.pop(frame)()


Streams = list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]


@asynccontextmanager
async def side_by_side(
    count: int, at_once: Callable[[Connection, bytes], bytes | Later | None]
) -> AsyncIterator[tuple[Server, Streams, list[Connection]]]:
    """A server with `count` connections; yields the clients' ends, and its own in the same order."""
    async with serving(answer_at_once=at_once) as server:
        streams = [await server.connect() for _ in range(count)]
        await server.until(lambda: len(server.connections.open) == count)
        yield server, streams, list(server.connections.open.values())
        for _, writer in streams:
            writer.close()


async def nothing_more(reader: asyncio.StreamReader, server: Server) -> None:
    """Check that everything that could be answered has been."""
    for _ in range(20):
        await asyncio.sleep(0)
    assert not reader._buffer  # type: ignore[attr-defined]


async def test_now_later_and_the_plain_way_keep_their_order() -> None:
    at_once, gate = AtOnce(), Gate()
    async with serving(gate, answer_at_once=at_once) as server:
        reader, writer = await server.connect()
        writer.write(framed(b"now 1"))
        assert await read_frame(reader) == b"now 1"
        assert gate.asked == []
        writer.write(framed(b"later 2"))
        await at_once.asked(b"later 2")
        writer.write(framed(b"now 3") + framed(b"plain 4"))
        (connection,) = server.connections.open.values()
        await server.until(lambda: len(connection.wire._frames) == 2)
        await nothing_more(reader, server)
        assert gate.asked == []
        at_once.answer(b"later 2")
        gate.open()
        assert [await read_frame(reader) for _ in range(3)] == [b"later 2", b"now 3", b"plain 4"]
        writer.write(framed(b"now 5"))
        assert await read_frame(reader) == b"now 5"
        assert b"now 5" not in gate.asked  # the short way is open again
        assert server.connections.counts.requests == 5
        writer.close()


async def test_what_fails_behind_a_line_closes_the_connection_when_that_is_answered() -> None:
    lined: dict[bytes, Callable[[], None]] = {}

    def at_once(connection: Connection, frame: bytes) -> bytes | Later | None:
        if frame.startswith(b"line"):
            place = connection.enter_line(frame)
            lined[frame] = lambda: connection.respond(framed(frame), place)
            return LATER
        raise CloseConnection("this one")

    async with serving(answer_at_once=at_once) as server:
        reader, writer = await server.connect()
        writer.write(b"".join(map(framed, (b"line 1", b"line 2", b"li fails", b"line 4"))))
        await server.until(lambda: len(lined) == 2)
        (connection,) = server.connections.open.values()
        lined[b"line 2"]()
        await nothing_more(reader, server)
        assert connection.wire.busy
        lined[b"line 1"]()
        assert [await read_frame(reader) for _ in range(2)] == [b"line 1", b"line 2"]
        assert await is_closed(reader)
        assert len(lined) == 2
        assert server.connections.counts.requests == 2
        await server.until(lambda: not server.connections.alive)
        assert server.connections.requests.held_bytes == 0
        writer.close()


@pytest.mark.parametrize("lost", [False, True])
async def test_what_fails_behind_a_line_closes_the_connection_when_that_was_answered_while_frozen(
    lost: bool,
) -> None:
    lined: list[Callable[[], None]] = []

    def at_once(connection: Connection, frame: bytes) -> bytes | Later | None:
        if frame.startswith(b"line"):
            place = connection.enter_line(frame)
            lined.append(lambda: connection.respond(framed(frame), place))
            return LATER
        raise CloseConnection("this one")

    async with serving(answer_at_once=at_once) as server:
        reader, writer = await server.connect()
        writer.write(framed(b"line 1") + framed(b"li fails"))
        await server.until(lambda: any(each.wire.busy for each in server.connections.open.values()))
        server.connections.freeze()
        lined[0]()
        (connection,) = server.connections.open.values()
        if lost:
            connection.abort()
        else:
            server.connections.thaw()
            assert await read_frame(reader) == b"line 1"
        assert await is_closed(reader)
        await server.until(lambda: not server.connections.alive)
        assert server.connections.requests.held_bytes == 0
        writer.close()


async def test_what_arrives_in_pieces_or_several_at_a_time_takes_the_plain_way() -> None:
    async with serving(answer_at_once=AtOnce()) as server:
        reader, writer = await server.connect()
        writer.write(framed(b"now 1") + framed(b"now 2") + framed(b"now 3")[:6])
        assert [await read_frame(reader) for _ in range(2)] == [b"now 1", b"now 2"]
        writer.write(framed(b"now 3")[6:])
        assert await read_frame(reader) == b"now 3"
        writer.close()


async def test_what_is_answered_later_counts_as_memory_until_then() -> None:
    at_once = AtOnce()
    async with serving(answer_at_once=at_once) as server:
        reader, writer = await server.connect()
        frame = b"later" + bytes(1_000)
        writer.write(framed(frame))
        await at_once.asked(frame)
        assert server.connections.requests.held_bytes == len(frame)
        at_once.answer(frame)
        assert await read_frame(reader) == frame
        assert server.connections.requests.held_bytes == 0
        writer.close()


async def test_a_connection_that_waits_for_an_answer_is_not_idle() -> None:
    at_once = AtOnce()
    async with serving(answer_at_once=at_once, idle_ms=1_000) as server:
        reader, writer = await server.connect()
        writer.write(framed(b"later"))
        await at_once.asked(b"later")
        server.clock.advance(5_000)
        assert server.connections.counts.idle == 0
        at_once.answer(b"later")
        assert await read_frame(reader) == b"later"
        server.clock.advance(5_000)
        assert await is_closed(reader)
        assert server.connections.counts.idle == 1
        writer.close()


async def test_finishing_waits_for_what_is_answered_later() -> None:
    at_once = AtOnce()
    async with serving(answer_at_once=at_once) as server:
        reader, writer = await server.connect()
        writer.write(framed(b"later"))
        await at_once.asked(b"later")
        server.connections.finish()
        await nothing_more(reader, server)
        at_once.answer(b"later")
        assert await read_frame(reader) == b"later"
        assert await is_closed(reader)
        await server.connections.drained(DEADLINE_S)
        assert not server.connections.alive
        writer.close()


async def test_an_answer_for_a_connection_that_is_gone_is_dropped() -> None:
    at_once = AtOnce()
    async with serving(answer_at_once=at_once) as server:
        _, writer = await server.connect()
        writer.write(framed(b"later"))
        await at_once.asked(b"later")
        writer.transport.abort()
        await server.until(lambda: server.closed == [1])
        at_once.answer(b"later")
        await server.until(lambda: not server.connections.alive)
        assert server.connections.requests.held_bytes == 0


async def test_a_frozen_connection_keeps_an_answer_until_it_is_thawed() -> None:
    at_once = AtOnce()
    async with serving(answer_at_once=at_once) as server:
        reader, writer = await server.connect()
        writer.write(framed(b"later"))
        await at_once.asked(b"later")
        server.connections.freeze()
        writer.write(framed(b"now"))
        at_once.answer(b"later")
        await nothing_more(reader, server)
        server.connections.thaw()
        assert [await read_frame(reader), await read_frame(reader)] == [b"later", b"now"]
        writer.close()


async def test_a_client_that_takes_no_responses_is_not_answered_on() -> None:
    large = b"now" + bytes(24 << 20)  # more than the buffers of both sockets take

    def at_once(connection: Connection, frame: bytes) -> bytes | Later | None:
        return framed(large) if frame == b"first" else framed(frame)

    async with serving(answer_at_once=at_once, response_bytes_max=1 << 30) as server:
        reader, writer = await server.connect()
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(framed(b"first"))
        await server.until(lambda: len(server.connections.open) == 1)
        (connection,) = server.connections.open.values()
        await server.until(lambda: connection.wire._barred)
        assert server.connections.responses.held_bytes == len(framed(large))
        writer.write(framed(b"second"))
        await server.until(lambda: bool(connection.wire._frames))
        await nothing_more(reader, server)
        assert server.connections.counts.requests == 1
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        assert await read_frame(reader) == large
        assert await read_frame(reader) == b"second"
        assert server.connections.responses.held_bytes == 0
        writer.close()


@pytest.mark.interpreted
async def test_more_than_a_turn_takes_wait_for_the_next_in_order_and_heartbeats_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections_module, "_A_TURN_MAX", 2)
    begun: list[bytes] = []

    def at_once(connection: Connection, frame: bytes) -> bytes | Later | None:
        begun.append(frame)
        return None if frame.startswith(b"pl") else framed(frame)

    async with side_by_side(8, at_once) as (server, streams, opened):
        heartbeat = bytes([0, ApiKey.HEARTBEAT]) + b"beat"
        frames = [b"1st", b"2nd", b"3rd", b"plain", b"5th", heartbeat, b"6th", b"7th"]
        for connection, frame in zip(opened, frames, strict=True):
            connection.data_received(framed(frame))  # all in one turn
        assert begun == [b"1st", b"2nd", heartbeat]
        held = sum(map(len, (b"3rd", b"plain", b"5th", b"6th", b"7th")))
        assert server.connections.requests.held_bytes == held
        await asyncio.sleep(0)
        assert begun == [b"1st", b"2nd", heartbeat, b"3rd", b"plain"]
        opened[0].data_received(framed(b"8th"))
        assert begun[-1] == b"plain"  # a newcomer does not overtake those that wait
        for (reader, _), frame in zip(streams, frames, strict=True):
            assert await read_frame(reader) == frame
        assert await read_frame(streams[0][0]) == b"8th"
        assert begun == [b"1st", b"2nd", heartbeat, b"3rd", b"plain", b"5th", b"6th", b"7th", b"8th"]
        await server.until(lambda: server.connections.requests.held_bytes == 0)


@pytest.mark.interpreted
async def test_requests_that_wait_for_a_turn_outlive_their_connection_and_stand_still_when_frozen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections_module, "_A_TURN_MAX", 1)
    begun: list[bytes] = []

    def at_once(connection: Connection, frame: bytes) -> bytes | Later | None:
        begun.append(frame)
        return framed(frame)

    async with side_by_side(4, at_once) as (server, streams, opened):
        for connection, frame in zip(opened, (b"first", b"second", b"gone", b"frozen"), strict=True):
            connection.data_received(framed(frame))
        opened[2].abort()  # like a client that leaves its group without waiting for the answer
        opened[3].freeze()
        assert await read_frame(streams[0][0]) == b"first"
        await server.until(lambda: begun == [b"first", b"second", b"gone"])
        await server.until(lambda: server.closed[:1] == [3])
        # Whoever was notified before the request was processed is notified again.
        await server.until(lambda: len(server.connections.alive) == 3)
        assert server.closed in ([3], [3, 3])
        await nothing_more(streams[3][0], server)
        opened[3].thaw()
        assert await read_frame(streams[3][0]) == b"frozen"
        assert begun[-1] == b"frozen"
        await server.until(lambda: server.connections.requests.held_bytes == 0)


@pytest.mark.interpreted
async def test_the_end_of_a_connection_is_told_again_behind_its_last_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections_module, "_A_TURN_MAX", 1)
    told_before: list[int] = []

    def at_once(connection: Connection, frame: bytes) -> bytes | Later | None:
        told_before.append(len(server.closed))
        return framed(frame)

    async with side_by_side(2, at_once) as (server, _, (first, leaver)):
        first.data_received(framed(b"first"))
        leaver.data_received(framed(b"leave"))
        leaver.connection_lost(None)
        assert server.closed == [2]
        await server.until(lambda: len(told_before) == 2)
        assert told_before == [0, 1]
        assert server.closed == [2, 2]
        leaver.abort()


async def test_what_is_read_between_a_thaw_and_a_kept_answer_waits_for_that() -> None:
    gate = Gate()
    async with serving(gate, answer_at_once=AtOnce()) as server:
        reader, writer = await server.connect()
        writer.write(framed(b"plain"))
        await gate.until(lambda: gate.asked == [b"plain"])
        (connection,) = server.connections.open.values()
        server.connections.freeze()
        gate.open()
        await nothing_more(reader, server)
        server.connections.thaw()
        connection.data_received(framed(b"now"))  # uvloop reads before it wakes the connection's task
        assert [await read_frame(reader), await read_frame(reader)] == [b"plain", b"now"]
        writer.close()


@pytest.mark.interpreted
@pytest.mark.parametrize("waits", [False, True])
async def test_an_exception_on_the_short_way_closes_that_connection_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, waits: bool
) -> None:
    monkeypatch.setattr(connections_module, "_A_TURN_MAX", 1 if waits else 100)

    def at_once(connection: Connection, frame: bytes) -> bytes | Later | None:
        if frame == b"broken":
            raise ZeroDivisionError("a bug")
        return framed(frame)

    async with side_by_side(4, at_once) as (server, streams, opened):
        frames = (b"1st", b"broken", b"3rd", b"4th")
        for connection, frame in zip(opened, frames, strict=True):
            connection.data_received(framed(frame))
        for (reader, _), frame in zip(streams, frames, strict=True):
            if frame == b"broken":
                assert await is_closed(reader)
            else:
                assert await read_frame(reader) == frame
        await server.until(lambda: len(server.connections.alive) == 3)
        streams[0][1].write(framed(b"and on"))
        assert await read_frame(streams[0][0]) == b"and on"
        assert server.connections.requests.held_bytes == 0

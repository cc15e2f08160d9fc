"""A server with real sockets and made-up sessions, to test connections alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

from muster.coordinator.base.answers import Later
from muster.coordinator.base.clock import ManualClock
from muster.coordinator.server.apis import check_greeting_size, check_request_size
from muster.coordinator.server.connection import Connection, Identify
from muster.coordinator.server.connections import Connections
from muster.coordinator.server.unserved import Unserved
from muster.coordinator.server.wire import Response, Traffic
from muster.protocol.api import ApiKey

Answer = Callable[[Connection, bytes], Awaitable[bytes | None]]
AnswerAtOnce = Callable[[Connection, bytes], Response | Later | None]
"""None: leave it to `Answer`."""
HEARTBEAT = int(ApiKey.HEARTBEAT)
DEADLINE_S = 30


async def echo(connection: Connection, frame: bytes) -> bytes | None:
    return framed(frame)


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


class Gate:
    """An answer that waits until the test lets it through, and records what it was asked."""

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
        """Wait for something the server does; it runs in our loop, so one turn at a time is enough."""
        async with asyncio.timeout(DEADLINE_S):
            while not fact():  # noqa: ASYNC110 - nothing to await: any turn may bring it
                await asyncio.sleep(0)


class MadeUp:
    """A session of a test: tries `at_once`, and if that has no answer, starts a task that awaits `answer`."""

    client_id = ""

    def __init__(
        self, connection: Connection, answer: Answer, at_once: AnswerAtOnce | None, *, strangers: bool
    ) -> None:
        self._connection: Connection | None = connection
        if not strangers:
            connection.wire.recognised()
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
    identify: Identify | None = None,
    strangers: bool = False,
) -> AsyncIterator[Server]:
    """Of `strangers`, only `answer` recognises who they are."""
    clock = ManualClock()
    closed: list[int] = []
    connections = Connections(
        lambda connection: MadeUp(connection, answer, answer_at_once, strangers=strangers),
        Traffic(
            check_request_size,
            check_greeting_size,
            paced=set(range(256)) - {HEARTBEAT},
            outlives={bytes(2)},
        ),
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
    server = await asyncio.get_running_loop().create_server(
        lambda: connections.connect("", identify), "127.0.0.1", 0
    )
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

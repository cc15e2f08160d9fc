"""The connections of one broker: how many there may be, when they are closed, and whose turn it is."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from muster.coordinator.base.clock import Clock, Timer
from muster.coordinator.server.admission import Admission
from muster.coordinator.server.connection import Connection, Identify, Session
from muster.coordinator.server.memory import RequestMemory, ResponseMemory
from muster.coordinator.server.unserved import Cause, Unserved
from muster.coordinator.server.wire import Traffic

_A_TURN_MAX: Final = 128
"""Requests begun in a turn of the event loop: some milliseconds."""


_TOO_MANY: Final = Cause(
    "the broker has max.connections connections",
    "close some, or raise max.connections or the limit on open files, which may lower it",
)
_CUT_S: Final = 1.0
"""How long to wait for aborted sockets to close."""


@dataclass(slots=True)
class Counts:
    """What happened to the connections of a broker since it started."""

    accepted: int = 0
    refused: int = 0
    """Above the connection limit."""
    requests: int = 0
    undecodable: int = 0
    """Closed because of bytes that are not a request."""
    unserved: int = 0
    """Closed because of an API or version this broker does not serve, or an acks=0 error."""
    too_large: int = 0
    """Closed because of a request larger than its API or socket.request.max.bytes allows."""
    idle: int = 0
    """Closed because nothing was sent or taken for connections.max.idle.ms."""
    unfinished: int = 0
    """Closed because a request did not arrive completely within request.receive.timeout.ms."""


class _Turn:
    """Limits how many requests begin in one turn of the event loop.

    A turn reads from every connection that has data, which may be thousands that all join at once. Requests
    above `_A_TURN_MAX` wait for the next turns, in order.
    """

    def __init__(self) -> None:
        self._left = _A_TURN_MAX
        self._waiting: deque[tuple[Connection, bytes]] = deque()
        self._counting = False

    def is_over(self, connection: Connection, frame: bytes) -> bool:
        """Whether the request has to wait; `connection.take_turn` will be called with it."""
        if not self._counting:
            self._counting = True
            asyncio.get_running_loop().call_soon(self._next)
        self._left -= 1
        if self._left >= 0:
            return False
        self._waiting.append((connection, frame))
        return True

    def _next(self) -> None:
        begun = min(len(self._waiting), _A_TURN_MAX)
        # New requests do not overtake those that go on waiting.
        self._left = 0 if len(self._waiting) > begun else _A_TURN_MAX - begun
        self._counting = begun > 0
        if self._counting:
            asyncio.get_running_loop().call_soon(self._next)
        for _ in range(begun):
            connection, frame = self._waiting.popleft()
            connection.take_turn(frame)

    @property
    def at_rest(self) -> bool:
        return not self._waiting


class Connections:
    """The connections of one broker and the limits they share."""

    def __init__(
        self,
        open_session: Callable[[Connection], Session],
        traffic: Traffic,
        clock: Clock,
        *,
        connections_max: int,
        idle_ms: int,
        frame_bytes_max: int,
        request_bytes_max: int,
        response_bytes_max: int,
        receive_timeout_ms: int,
        unserved: Unserved,
        closed: Callable[[int], None],
    ) -> None:
        """`clock` is real time, as clients count it. `closed(connection_id)` is called for each connection
        that is gone; again if one of its requests had to wait for its turn and was processed afterwards."""
        self.open_session = open_session
        self.traffic = traffic
        self.turn = _Turn()
        self.frame_bytes_max = frame_bytes_max
        self.counts = Counts()
        self.unserved = unserved
        self.open: dict[int, Connection] = {}
        self.alive: set[Connection] = set()
        """Connections that are open, or have a request that is still being answered."""
        self.abandoned: set[asyncio.Task[None]] = set()
        """Tasks that were answering a request and have just been cancelled."""
        self.closed = closed
        self.requests = RequestMemory(request_bytes_max, RequestMemory(request_bytes_max // 8))
        self.responses = ResponseMemory(response_bytes_max)
        self.connections_max = connections_max
        self._clock = clock
        self._idle_ms = idle_ms
        self._receive_timeout_ms = receive_timeout_ms
        self._next_id = 0
        self._sweep: Timer | None = None
        self._swept_ms = 0
        self._none_alive: asyncio.Future[None] | None = None
        self.frozen = False
        self._mute = False
        self._over = False

    # --- membership -----------------------------------------------------------------------------------------

    def connect(
        self,
        listener: str = "",
        identify: Identify | None = None,
        greeting_bytes_max: int | None = None,
        admission: Admission | None = None,
    ) -> Connection:
        """A protocol for a connection being accepted by `listener`; the rest as in Connection."""
        self._next_id += 1
        return Connection(self, self._next_id, listener, identify, greeting_bytes_max, admission)

    def admit(self, connection: Connection) -> bool:
        """Whether to serve a new connection: it must fit under max.connections, and the broker must not have
        stopped listening since it was accepted."""
        if self._over:
            return False
        if len(self.open) >= self.connections_max:
            self.counts.refused += 1
            self.unserved.tell(connection.client_host, _TOO_MANY)
            return False
        self.counts.accepted += 1
        self.open[connection.connection_id] = connection
        self.alive.add(connection)
        if self.frozen:
            connection.freeze()
        if self._mute:
            connection.wire.mute()
        if self._sweep is None:
            self._arm_sweep()
        return True

    def gone(self, connection: Connection) -> None:
        """A connection was lost or closed."""
        if self.open.pop(connection.connection_id, None) is not None:
            self.closed(connection.connection_id)

    def ended(self, connection: Connection) -> None:
        """A connection is gone, and none of its requests is being answered any more."""
        self.alive.discard(connection)
        if not self.alive and self._none_alive is not None and not self._none_alive.done():
            self._none_alive.set_result(None)

    async def _until_none_is_alive(self, timeout_s: float) -> None:
        if self.alive:
            self._none_alive = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._none_alive], timeout=timeout_s)
            self._none_alive = None

    # --- idle connections, unfinished requests --------------------------------------------------------------

    def _arm_sweep(self) -> None:
        # Bytes that moved between two sweeps count as moved at the later one, so a connection lives at most a
        # tenth longer than it may, for the price of one timer.
        span_ms = min(self._idle_ms, self._receive_timeout_ms)
        self._swept_ms = self._clock.now_ms()
        self._sweep = self._clock.at(self._swept_ms + max(span_ms // 20, 10), self._close_idle)

    def _close_idle(self) -> None:
        elapsed_ms = self._clock.now_ms() - self._swept_ms
        self._sweep = None
        for connection in list(self.open.values()):
            wire = connection.wire
            wire.elapsed(elapsed_ms)
            if wire.idle_ms >= self._idle_ms:
                self.counts.idle += connection.abort()
            elif wire.receiving_ms >= self._receive_timeout_ms:
                self.counts.unfinished += connection.abort_unfinished(self._receive_timeout_ms)
        if self.open:
            self._arm_sweep()

    # --- the end --------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Read no more; answer what was received and close each connection once that is done. No new one is
        served."""
        self._over = True
        for connection in list(self.open.values()):
            connection.finish()

    async def drained(self, timeout_s: float) -> None:
        """Return when every connection has ended, or after `timeout_s`."""
        await self._until_none_is_alive(timeout_s)

    async def close(self) -> None:
        """Close every connection now, whatever it is doing. No new one is served."""
        self._over = True
        await self.cut()

    async def cut(self) -> None:
        """Close every connection now, whatever it is doing."""
        for connection in list(self.alive):
            connection.cut()
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        await asyncio.sleep(0)
        if self.abandoned:
            await asyncio.wait(self.abandoned)
        for connection in list(self.alive):
            if connection.connection_id not in self.open:
                connection.give_up()  # what it waits for goes on, but its response is lost
        await self._until_none_is_alive(_CUT_S)

    def freeze(self) -> None:
        """Read nothing and answer nothing until `thaw`, as a stopped process would."""
        self.frozen = True
        for connection in self.open.values():
            connection.freeze()

    def mute(self) -> None:
        """Read nothing until `unmute`; what was read before is answered."""
        self._mute = True
        for connection in self.open.values():
            connection.wire.mute()

    def unmute(self) -> None:
        """Undo `mute`. Harmless without it."""
        self._mute = False
        for connection in list(self.open.values()):
            connection.wire.unmute()

    def forget(self) -> None:
        """Make all sessions forget earlier requests, since decisions about them may have changed."""
        for connection in self.open.values():
            if connection.session is not None:
                connection.session.forget()

    def under_way(self) -> Iterator[str]:
        """Describes what was read but is not being answered yet, in words."""
        if not self.turn.at_rest or any(connection.wire.has_unanswered for connection in self.open.values()):
            yield "requests are still unanswered"

    def thaw(self) -> None:
        """Undo `freeze`."""
        self.frozen = False
        for connection in list(self.open.values()):
            connection.thaw()

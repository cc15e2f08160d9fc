"""The connections of one broker: how many there may be, when they are closed, and whose turn it is."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from typing import Final

from muster.coordinator.base.clock import Clock, Timer
from muster.coordinator.server.connection import Answer, AnswerAtOnce, Connection
from muster.coordinator.server.memory import RequestMemory, ResponseMemory
from muster.coordinator.server.unserved import Unserved

_AT_ONCE_MAX: Final = 128
"""Requests processed the short way in a turn of the event loop: some milliseconds."""


@dataclass(slots=True)
class Counts:
    """What happened to the connections of a broker since it started."""

    accepted: int = 0
    refused: int = 0
    """Above the limit of connections."""
    requests: int = 0
    undecodable: int = 0
    """Closed because of bytes that are no request."""
    unserved: int = 0
    """Closed because of an API or version this broker does not serve, or an acks=0 error."""
    too_large: int = 0
    """Closed because of a request larger than its API may have."""
    idle: int = 0
    """Closed because nothing was sent or taken for connections.max.idle.ms."""
    unfinished: int = 0
    """Closed because a request did not arrive whole within request.receive.timeout.ms."""


class _Turn:
    """How much is processed the short way in one turn of the event loop.

    A turn reads from every connection that has something, and that may be thousands that all join at once.
    Those above `_AT_ONCE_MAX` wait for the next turns, in order; heartbeats, which take no time, do not.
    """

    def __init__(self) -> None:
        self._left = _AT_ONCE_MAX
        self._waiting: deque[tuple[Connection, bytes]] = deque()
        self._counting = False

    def is_over(self, connection: Connection, frame: bytes) -> bool:
        """Whether the request has to wait; `connection.begin` will be called with it."""
        if not self._counting:
            self._counting = True
            asyncio.get_running_loop().call_soon(self._next)
        self._left -= 1
        if self._left >= 0:
            return False
        self._waiting.append((connection, frame))
        return True

    def _next(self) -> None:
        begun = min(len(self._waiting), _AT_ONCE_MAX)
        # Nobody goes past those who go on waiting.
        self._left = 0 if len(self._waiting) > begun else _AT_ONCE_MAX - begun
        self._counting = begun > 0
        if self._counting:
            asyncio.get_running_loop().call_soon(self._next)
        for _ in range(begun):
            connection, frame = self._waiting.popleft()
            connection.begin(frame)

    @property
    def at_rest(self) -> bool:
        return not self._waiting


class Connections:
    """The connections of one broker and the limits they share."""

    def __init__(
        self,
        answer: Answer,
        clock: Clock,
        *,
        connections_max: int,
        idle_ms: int,
        frame_bytes_max: int,
        request_bytes_max: int,
        response_bytes_max: int,
        receive_timeout_ms: int,
        closed: Callable[[int], None],
        answer_at_once: AnswerAtOnce | None = None,
        apis_at_once: Container[int] = range(256),
    ) -> None:
        """`clock` is real time, as clients count it. `closed(connection_id)` is called for each connection
        that is gone; again when a request of it had to wait for its turn and was processed behind that.
        `answer_at_once` is only asked about `apis_at_once`."""
        self.answer = answer
        self.answer_at_once = answer_at_once
        self.apis_at_once = apis_at_once
        self.turn = _Turn()
        self.clock = clock
        self.frame_bytes_max = frame_bytes_max
        self.counts = Counts()
        self.unserved = Unserved(clock)
        self.open: dict[int, Connection] = {}
        self.tasks: set[asyncio.Task[None]] = set()
        """One per connection; it may outlive its connection by the request it is answering."""
        self.closed = closed
        self.requests = RequestMemory(request_bytes_max)
        self.responses = ResponseMemory(response_bytes_max)
        self.connections_max = connections_max
        self._idle_ms = idle_ms
        self._receive_timeout_ms = receive_timeout_ms
        self._next_id = 0
        self._sweep: Timer | None = None
        self.frozen = False
        self._deaf = False
        self._over = False

    # --- membership -----------------------------------------------------------------------------------------

    def connect(self, listener: str = "") -> Connection:
        """A protocol for a connection being accepted by `listener`."""
        self._next_id += 1
        return Connection(self, self._next_id, listener)

    def admit(self, connection: Connection) -> bool:
        """Whether a new connection is served: it fits under max.connections, and is none that was accepted
        while the broker still listened and is handed over only now."""
        if self._over:
            return False
        if len(self.open) >= self.connections_max:
            self.counts.refused += 1
            return False
        self.counts.accepted += 1
        self.open[connection.connection_id] = connection
        if self.frozen:
            connection.freeze()
        if self._deaf:
            connection.hear_nothing()
        if self._sweep is None:
            self._arm_sweep()
        return True

    def gone(self, connection: Connection) -> None:
        """A connection was lost or closed."""
        if self.open.pop(connection.connection_id, None) is not None:
            self.closed(connection.connection_id)

    # --- idle connections, unfinished requests --------------------------------------------------------------

    def _arm_sweep(self) -> None:
        # A connection lives at most a tenth longer than it may, for the price of one timer.
        span_ms = min(self._idle_ms, self._receive_timeout_ms)
        self._sweep = self.clock.at(self.clock.now_ms() + max(span_ms // 10, 10), self._close_idle)

    def _close_idle(self) -> None:
        self._sweep = None
        now_ms = self.clock.now_ms()
        for connection in list(self.open.values()):
            if connection.idle_since_ms() <= now_ms - self._idle_ms:
                self.counts.idle += connection.abort()
            elif connection.receiving_since_ms() <= now_ms - self._receive_timeout_ms:
                self.counts.unfinished += connection.abort_unfinished(self._receive_timeout_ms)
        if self.open:
            self._arm_sweep()

    # --- the end --------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Read no more; answer what was received and close each connection once that is done. No other is
        served."""
        self._over = True
        for connection in list(self.open.values()):
            connection.finish()

    async def drained(self, timeout_s: float) -> None:
        """Return when every connection has ended, or after `timeout_s`."""
        if self.tasks:
            await asyncio.wait(self.tasks, timeout=timeout_s)

    async def close(self) -> None:
        """Close every connection now, whatever it is doing. No other is served."""
        self._over = True
        await self.cut()

    async def cut(self) -> None:
        """Close every connection now, whatever it is doing."""
        for connection in list(self.open.values()):
            connection.abort()
        for task in self.tasks:
            task.cancel()
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        if self.tasks:
            await asyncio.wait(self.tasks)

    def freeze(self) -> None:
        """Read nothing and answer nothing until `thaw`, as a stopped process would."""
        self.frozen = True
        for connection in self.open.values():
            connection.freeze()

    def hear_nothing(self) -> None:
        """Read nothing until `hear_again`; what was read before is answered."""
        self._deaf = True
        for connection in self.open.values():
            connection.hear_nothing()

    def hear_again(self) -> None:
        """Undo `hear_nothing`. Harmless without it."""
        self._deaf = False
        for connection in list(self.open.values()):
            connection.hear_again()

    def under_way(self) -> Iterator[str]:
        """What was read and is not being answered yet, in words."""
        if not self.turn.at_rest or any(connection.has_unanswered for connection in self.open.values()):
            yield "requests wait to be answered"

    def thaw(self) -> None:
        """Undo `freeze`."""
        self.frozen = False
        for connection in list(self.open.values()):
            connection.thaw()

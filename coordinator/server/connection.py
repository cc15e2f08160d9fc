"""One client's connection: a `Wire` on a socket, and a session above it that answers its requests.

Connections never wait for each other, so a heartbeat is not delayed by another connection's parked Fetch or
JoinGroup. A request is begun as its bytes arrive.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol, cast

from muster.coordinator.base.log import Logger
from muster.coordinator.base.step import ANONYMOUS
from muster.coordinator.server.admission import Admission
from muster.coordinator.server.hanging_up import hang_up
from muster.coordinator.server.unserved import Cause, CloseConnection, undecodable, unfinished
from muster.coordinator.server.wire import Place, Response, Wire
from muster.protocol.errors import DecodeError, TooLargeError

if TYPE_CHECKING:
    from muster.coordinator.server.connections import Connections

log: Final = Logger(part="connection")

Identify = Callable[[asyncio.Transport], str]
"""Maps the transport of a connection to the principal of its client."""


class Session(Protocol):
    """Answers the requests of one connection."""

    @property
    def client_id(self) -> str:
        """The client id in the last request."""

    def begin(self, frame: bytes) -> Response | None:
        """Process a request; returns its response. None: `Connection.respond` was or will be called with it.

        Raises CloseConnection or DecodeError when the connection cannot go on; any other exception closes it,
        too.
        """

    def forget(self) -> None:
        """Forget earlier requests."""

    def close(self) -> None:
        """The connection has ended, and none of its requests is being answered."""


class Connection(asyncio.Protocol):
    """The protocol object of one accepted socket."""

    __slots__ = (
        "_abandonable",
        "_admission",
        "_begin",
        "_connections",
        "_counts",
        "_failure",
        "_identify",
        "_paced",
        "_task",
        "_transport",
        "_turn",
        "client_host",
        "connection_id",
        "listener",
        "principal",
        "session",
        "wire",
    )

    def __init__(
        self,
        connections: Connections,
        connection_id: int,
        listener: str,
        identify: Identify | None = None,
        greeting_bytes_max: int | None = None,
        admission: Admission | None = None,
    ) -> None:
        """`identify` says who the client is by its certificate, or raises CloseConnection.
        `greeting_bytes_max`: see Wire. `admission` counts it by address; None if it is already counted."""
        self.connection_id = connection_id
        self.listener = listener
        self.principal = ANONYMOUS
        """Who the client is, going by the connection alone."""
        self.client_host = ""
        self.session: Session | None = None
        self.wire = Wire(
            self._listen,
            connections.requests,
            connections.responses,
            traffic=connections.traffic,
            frame_bytes_max=connections.frame_bytes_max,
            greeting_bytes_max=greeting_bytes_max,
        )
        self._identify = identify
        self._admission = admission
        self._begin = _nothing
        self._connections = connections
        self._counts = connections.counts
        self._paced = connections.traffic.paced
        self._turn = connections.turn
        self._transport: asyncio.Transport | None = None
        self._task: asyncio.Task[None] | None = None
        self._abandonable = False
        self._failure: Exception | None = None  # of the last begun request, while others are before it

    def __repr__(self) -> str:
        return f"<Connection {self.connection_id} {self.client_host} {self.wire!r}>"

    # --- asyncio.Protocol -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not an assertion: uvloop's transports only look like asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        # Send responses as they are written. uvloop would keep them until it has read from every connection
        # that has data, which may be thousands of requests later.
        self._transport.set_write_buffer_limits(high=0)
        peer = self._transport.get_extra_info("peername")
        self.client_host = f"/{peer[0]}" if peer else "/unknown"
        if self._admission is not None and not self._admission.let_in(self._transport, self.client_host[1:]):
            self._admission = None
            self.wire.forget()
            return
        if not self._connections.admit(self):
            self.wire.forget()
            self._transport.abort()
            return
        try:
            if self._identify is not None:
                self.principal = self._identify(self._transport)
            self.session = session = self._connections.open_session(self)
        except Exception as error:
            self.failed(error)
            return
        self._begin = session.begin

    def data_received(self, data: bytes | bytearray) -> None:
        wire = self.wire
        data = bytes(data)  # asyncio's loop on Windows passes a bytearray after a pause
        frame = wire.take(data)
        if frame is None:
            self._receive(data)
            return
        if frame[1] in self._paced and self._turn.is_over(self, frame):
            wire.hold(frame)
            return
        try:
            response = self._begin(frame)
        except Exception as error:
            self.failed(error)
            return
        if response is None:
            if wire.busy:  # unless `respond` was called meanwhile
                wire.hold(frame)
            return
        wire.busy = False
        self._counts.requests += 1
        self._send(response)

    def eof_received(self) -> bool:
        self.wire.hang_up()
        return False

    def pause_writing(self) -> None:
        self.wire.untaken()

    def resume_writing(self) -> None:
        self.wire.taken()
        self._go_on_soon()

    def connection_lost(self, error: Exception | None) -> None:
        self.wire.lost()
        if self._admission is not None:
            self._admission.left(self.client_host[1:])
            self._admission = None
        if self._transport is not None:
            hang_up(self._transport)
        # Break the reference cycle, to spare the garbage collector the work.
        self._transport = None
        self._connections.gone(self)
        if self._abandonable and self._task is not None:
            self._abandon()
        else:
            self._go_on()

    # --- requests -------------------------------------------------------------------------------------------

    def _receive(self, data: bytes) -> None:
        """Take bytes that are not a single small request to begin now."""
        if not self.wire.reading and self._transport is not None:
            # uvloop starts to read after connection_made, even if that paused it for a frozen broker.
            self._transport.pause_reading()
        try:
            self.wire.receive(data)
        except DecodeError as error:
            self._end_for(error)
            return
        self._go_on()

    def _go_on(self) -> None:
        """Begin what may be begun; close when nothing more will be."""
        wire = self.wire
        if self._failure is not None and not wire.in_line:  # what was before it left while frozen
            self._end_for(self._failure)
            return
        while (frame := wire.next()) is not None:
            if len(frame) > 1 and frame[1] in self._paced and self._turn.is_over(self, frame):
                return
            self._process(frame)
        if wire.is_done:
            self._close()

    def _go_on_soon(self) -> None:
        asyncio.get_running_loop().call_soon(self._go_on)

    def _process(self, frame: bytes) -> None:
        try:
            response = self._begin(frame)
        except Exception as error:
            self.failed(error)
            return
        if response is not None:
            self._answered(response)

    def take_turn(self, frame: bytes) -> None:
        """Process a request that had to wait for a turn of the loop, even if the connection has ended
        meanwhile: a client that leaves a group need not wait for the answer."""
        if self.wire.frozen or self._connections.frozen:
            if self._transport is not None and not self._transport.is_closing():
                self.wire.put_back(frame)
                return
            self.respond(b"")
            return
        self._process(frame)
        if self.connection_id not in self._connections.open:
            self._connections.closed(self.connection_id)  # again, for a shard that has heard of it only now
        if self.wire.goes_on:
            self._go_on_soon()

    def under_way(self, task: asyncio.Task[None], abandonable: bool) -> None:
        """`task` answers the current request. `abandonable`: losing the connection may cancel it, since it
        changes nothing."""
        self._task, self._abandonable = task, abandonable

    def abandonable(self) -> None:
        """From now on, losing the connection may cancel the task under way."""
        self._abandonable = True

    def _abandon(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            self._connections.abandoned.add(task)
            task.add_done_callback(self._abandoned)
            task.cancel()

    def _abandoned(self, task: asyncio.Task[None]) -> None:
        self._connections.abandoned.discard(task)
        self.wire.stop()
        self._go_on()

    def enter_line(self, frame: bytes) -> Place:
        """Let requests like the current one begin before it is answered; returns its place, for `respond`."""
        return self.wire.enter_line(frame)

    def respond(self, response: Response, place: Place | None = None) -> None:
        """Send the response to a request that is answered later: the last one begun, or one in line."""
        if place is None:
            self._task = None
        self._answered(response, place)
        if self._failure is not None and not self.wire.in_line:
            self._end_for(self._failure)
            return
        # Not within this call, which may come from a shard.
        if self.wire.goes_on:
            self._go_on_soon()

    def _answered(self, response: Response, place: Place | None = None) -> None:
        if place is not None or not self.wire.frozen:
            self._counts.requests += 1
        sent = self.wire.answered(response, place)
        if sent is not None:
            self._send(sent)

    def _send(self, response: Response) -> None:
        transport = self._transport
        if transport is None or not response or transport.is_closing():
            return  # nobody would read it, and uvloop's closed transports raise
        if isinstance(response, bytes):
            transport.write(response)
            self.wire.sent(len(response))
        else:
            transport.writelines(response)
            self.wire.sent(sum(map(len, response)))

    def failed(self, error: Exception) -> None:
        """Instead of a response to the last request begun: end the connection once those in line are
        answered."""
        if self.wire.in_line:
            self._task = None
            self._failure = error
        else:
            self._end_for(error)

    def _end_for(self, error: Exception) -> None:
        self._task = self._failure = None
        if isinstance(error, DecodeError):
            self._undecodable(error)
        elif isinstance(error, CloseConnection):
            self._counts.unserved += 1
            if error.cause is not None:
                self._tell(error.cause)
            log.debug(
                "connection closed", connection=self.connection_id, host=self.client_host, why=str(error)
            )
        else:
            log.error("connection closed after an error", connection=self.connection_id, exc_info=error)
            self.abort()
        self.wire.stop()
        self._close()

    # --- the end --------------------------------------------------------------------------------------------

    def _close(self) -> None:
        """Close, since nothing more will be answered."""
        if self._transport is not None:
            self._transport.close()
        elif self._task is None:
            self.give_up()

    def give_up(self) -> None:
        """End even if requests are still being answered."""
        self.wire.forget()
        self._begin = _nothing
        if self.session is not None:
            self.session.close()
        self._connections.ended(self)

    def end(self) -> None:
        """Close once the response to the current request, if any, has been sent; drop what else was read."""
        self.wire.end()

    def finish(self) -> None:
        """Read no more, answer what was read, close."""
        self.wire.finish()
        self._go_on()

    def abort(self) -> bool:
        """Close now and drop unsent bytes; a request being answered goes on, but its response is lost.
        False if it was closing already."""
        if self._transport is None:
            return False
        closing = self._transport.is_closing()
        # Even if it is closing: it would wait until its peer has taken everything, which may be never.
        self._transport.abort()
        return not closing

    def cut(self) -> None:
        """Close now, and cancel what is being answered."""
        self.abort()
        self._abandon()

    def abort_unfinished(self, timeout_ms: int) -> bool:
        """Close because a request did not arrive completely in time; see `abort`."""
        self._tell(unfinished(self.wire.beginning, timeout_ms))
        return self.abort()

    def freeze(self) -> None:
        """See Connections.freeze."""
        self.wire.freeze()

    def thaw(self) -> None:
        """See Connections.thaw."""
        kept = self.wire.thaw()
        if kept is not None:
            self.respond(kept)
        elif (sent := self.wire.leave_line()) is not None:
            self._send(sent)
        self._go_on_soon()

    def throttle(self) -> None:
        """Read nothing and begin nothing until `unthrottle`; the response under way is sent."""
        self.wire.throttle()

    def unthrottle(self) -> None:
        """Undo `throttle`. Harmless when the connection has ended."""
        self.wire.unthrottle()
        self._go_on_soon()

    # --- facts ----------------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        return self._transport is not None

    @property
    def client_id(self) -> str:
        """The client id in its last request that reached a handler."""
        return "" if self.session is None else self.session.client_id

    def _listen(self, reading: bool) -> None:
        if self._transport is not None and not self._transport.is_closing():
            if reading:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def _undecodable(self, error: DecodeError) -> None:
        if isinstance(error, TooLargeError):
            self._counts.too_large += 1
        else:
            self._counts.undecodable += 1
        self._tell(undecodable(error))
        log.debug("undecodable bytes", connection=self.connection_id, host=self.client_host, why=str(error))
        self.abort()

    def _tell(self, cause: Cause) -> None:
        self._connections.unserved.tell(self.client_host, cause, self.client_id)


def _nothing(frame: bytes) -> Response | None:
    """Stands in for `Session.begin` when there is no session."""
    return b""

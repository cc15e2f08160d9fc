"""One client's connection: frames in, responses out, in order.

Kafka mutes a channel while one of its requests is processed, and clients rely on it: the requests of one
connection are processed one at a time, and their responses leave in request order. Connections never wait for
each other, so a heartbeat is not delayed by another connection's parked Fetch or JoinGroup.

A request that needs no coroutine takes a short way (`AnswerAtOnce`): it is processed as its bytes arrive,
and no task is woken for it. Only a connection with nothing else to do takes it, so the order stays.

Every queue has a bound. A connection stops reading when it has `_QUEUED_FRAMES` requests waiting, when its
peer does not take its responses, or when the broker has `queued.max.request.bytes` of requests in memory
(`muster.coordinator.server.memory`); TCP then holds the client.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from itertools import takewhile
from math import inf
from typing import TYPE_CHECKING, Any, Final, cast

from muster.coordinator.base.log import Logger
from muster.coordinator.group.effects import RequestContext
from muster.coordinator.runtime.shard_host import LATER, Later
from muster.coordinator.server.limits import check_request_size
from muster.coordinator.server.memory import SMALL_BYTES, RequestShare, ResponseShare
from muster.coordinator.server.unserved import Cause, undecodable, unfinished
from muster.protocol.api import ApiKey
from muster.protocol.compiler import Pieces
from muster.protocol.errors import DecodeError, TooLargeError
from muster.protocol.frame import FrameSplitter

if TYPE_CHECKING:
    from muster.coordinator.server.connections import Connections

_QUEUED_FRAMES: Final = 64
_API_KEY_AT: Final = 5  # behind the size; its low byte tells the APIs apart, they are fewer than 256
_HEARTBEAT: Final = int(ApiKey.HEARTBEAT)
_PRODUCE: Final = int(ApiKey.PRODUCE).to_bytes(2, "big")  # how a request begins
_GREETING_BYTES_MAX: Final = 2 * 1024 * 1024
"""Largest first frame: whoever has not sent one valid header yet cannot make us wait for 100 MiB. Clients
that are told the broker's version skip ApiVersions and may begin with a Produce, which they keep below a
megabyte or so."""

log = Logger(part="connection")


class CloseConnection(Exception):
    """The request cannot be answered in Kafka's protocol; the connection is closed. The text is the reason;
    `cause` is there where the client's user has to hear of it."""

    def __init__(self, reason: str | Cause) -> None:
        self.cause = reason if isinstance(reason, Cause) else None
        super().__init__(reason if isinstance(reason, str) else f"{reason.why} {reason.detail}".rstrip())


Answer = Callable[["Connection", bytes], Coroutine[Any, Any, "bytes | Pieces | None"]]
"""Processes one request frame; the response frame, or None where the protocol has none (acks=0).

Raises CloseConnection or DecodeError when the connection cannot go on.
"""

AnswerAtOnce = Callable[["Connection", bytes], "bytes | Later | None"]
"""The fast twin of Answer: the response frame; LATER when `Connection.respond` has been or will be called
with it; or None for a request that Answer has to see. What it raises closes the connection.
"""


class Connection(asyncio.Protocol):
    """The protocol object of one accepted socket."""

    __slots__ = (
        "_abandon",
        "_active_ms",
        "_answering",
        "_answering_bytes",
        "_connections",
        "_context",
        "_finishing",
        "_frames",
        "_hung_up",
        "_kept",
        "_last",
        "_later",
        "_queued_bytes",
        "_receiving_ms",
        "_request",
        "_response",
        "_splitter",
        "_stopped_ms",
        "_stops",
        "_task",
        "_thawed",
        "_transport",
        "_wake",
        "_writable",
        "client_host",
        "connection_id",
        "listener",
        "repeated",
    )

    def __init__(self, connections: Connections, connection_id: int, listener: str) -> None:
        self.connection_id = connection_id
        self.listener = listener
        self.client_host = ""
        self._context: RequestContext | None = None
        self.repeated: dict[bytes, Any] = {}
        """What the router remembers of the last requests, for those that are repeated."""
        self._connections = connections
        self._splitter = FrameSplitter(
            min(_GREETING_BYTES_MAX, connections.frame_bytes_max), check_request_size, SMALL_BYTES
        )
        self._frames: deque[bytes] = deque()
        self._queued_bytes = 0
        self._answering_bytes = 0
        self._request = RequestShare(connections.requests, self._room_has_come)
        self._response = ResponseShare(connections.responses)
        self._transport: asyncio.Transport | None = None
        self._task: asyncio.Task[None] | None = None
        self._wake: asyncio.Future[None] | None = None
        self._writable: asyncio.Future[None] | None = None
        self._thawed: asyncio.Future[None] | None = None
        self._stops: set[str] = set()  # why reading is paused
        self._answering = False
        self._later = False  # `respond` will be called with the response to what is being answered
        self._kept: bytes | None = None  # that response, when it came while frozen
        self._finishing = False
        self._hung_up = False  # the client, in the middle of what it has sent or after it
        self._last = False  # nothing is answered behind what is being answered
        self._abandon = False
        self._active_ms = connections.clock.now_ms()
        self._receiving_ms: int | None = None  # since when a frame has been arriving, not counting pauses
        self._stopped_ms = 0

    def __repr__(self) -> str:
        state = "answering" if self._answering else "waiting"
        return f"<Connection {self.connection_id} {self.client_host} {state} queued={len(self._frames)}>"

    # --- asyncio.Protocol -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not an assertion: uvloop's transports only look like asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        # Responses go out as they are written. uvloop would keep them until it has read from every connection
        # that has something, which may be thousands of requests later.
        self._transport.set_write_buffer_limits(high=0)
        peer = self._transport.get_extra_info("peername")
        self.client_host = f"/{peer[0]}" if peer else "/unknown"
        if not self._connections.admit(self):
            self._request.end()
            self._transport.abort()
            return
        self._task = asyncio.get_running_loop().create_task(
            self._serve(), name=f"connection {self.connection_id}"
        )
        self._connections.tasks.add(self._task)
        self._task.add_done_callback(self._connections.tasks.discard)

    def data_received(self, data: bytes) -> None:
        if self._task is None or self._finishing or self._taken_at_once(data):
            return
        if self._stops and self._transport is not None:
            # uvloop begins to read behind connection_made, though that has paused it for a frozen broker.
            self._transport.pause_reading()
        self._active_ms = self._connections.clock.now_ms()
        try:
            frames = self._splitter.feed(data)
        except DecodeError as error:
            self._undecodable(error)
            return
        self._frames.extend(frames)
        self._queued_bytes += sum(map(len, frames))
        if not self._splitter.pending_bytes:
            self._receiving_ms = None
        elif frames or self._receiving_ms is None:
            self._receiving_ms = self._active_ms
        self._count_held()
        if len(self._frames) >= _QUEUED_FRAMES:
            self._stop_reading("queue")
        if frames:
            _set(self._wake)

    def eof_received(self) -> bool:
        # As Kafka: a client that has closed its side is gone, and takes no more answers.
        self._hung_up = True
        return False

    def pause_writing(self) -> None:
        self._writable = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        self._active_ms = self._connections.clock.now_ms()
        self._response.hold(0)
        _set(self._writable)
        self._writable = None

    def connection_lost(self, error: Exception | None) -> None:
        self._finishing = True
        # As Kafka: what a client has produced with acks=0 before it closed is written, and what else it has
        # waiting is dropped.
        left = takewhile(lambda frame: frame.startswith(_PRODUCE), self._frames) if self._hung_up else ()
        self._frames = deque(left)
        self._queued_bytes = sum(map(len, self._frames))
        _set(self._wake)
        _set(self._writable)
        _set(self._thawed)
        self._writable = self._thawed = None  # or _next would wait for them again and again
        self._response.hold(0)
        self._count_held()
        if self._abandon and self._task is not None:
            self._task.cancel()
        # As the share in memory does when it ends: without circles nobody has to look for what has gone.
        self._transport = None
        self._connections.gone(self)

    # --- serving, the short way -----------------------------------------------------------------------------

    def _taken_at_once(self, data: bytes) -> bool:
        """Whether `data` was one small request that was processed here and now."""
        answer_at_once = self._connections.answer_at_once
        if (
            answer_at_once is None
            or (len(data) > _API_KEY_AT and data[_API_KEY_AT] not in self._connections.apis_at_once)
            or self._frames
            or self._answering
            or self._writable is not None
            or self._thawed is not None
        ):
            return False
        frame = self._splitter.whole(data)
        if frame is None:
            return False
        # Before the call, since `respond` may come within it.
        self._answering = self._later = True
        if frame[1] != _HEARTBEAT and self._connections.turn.is_over(self, frame):
            response: bytes | Later | None = LATER
        else:
            try:
                response = answer_at_once(self, frame)
            except Exception as error:
                self.failed(error)
                return True
        if response is LATER:
            if self._later:
                self._answering_bytes = len(frame)
                self._request.hold_whole(len(frame))
            return True
        self._answering = self._later = False
        if response is None:
            return False
        self._active_ms = self._connections.clock.now_ms()
        self._connections.counts.requests += 1
        self._send(response)
        return True

    def begin(self, frame: bytes) -> None:
        """Process a request that had to wait for a turn of the loop. Also when the connection has ended
        meanwhile: who leaves a group need not wait for the answer."""
        answer_at_once = self._connections.answer_at_once
        response: bytes | Later | None = None
        if answer_at_once is not None and self._thawed is None and not self._connections.frozen:
            try:
                response = answer_at_once(self, frame)
            except Exception as error:
                self.failed(error)
                return
            if self.connection_id not in self._connections.open:
                self._connections.closed(self.connection_id)  # for the shard that has heard of it only now
        if response is LATER:
            return
        if response is not None:
            self.respond(response)
            return
        self._answering = self._later = False
        self._answering_bytes = 0
        if self._transport is not None and not self._transport.is_closing():
            self._frames.appendleft(frame)
            self._queued_bytes += len(frame)
        self._count_held()
        _set(self._wake)

    def failed(self, error: Exception) -> None:
        """In place of `respond`, when no response could be made."""
        log.error("no response could be made", connection=self.connection_id, exc_info=error)
        self._answering = self._later = False
        self._answering_bytes = 0
        self.abort()
        self._count_held()
        _set(self._wake)

    def respond(self, response: bytes) -> None:
        """The response to the request that was to be answered later."""
        if self._thawed is not None:
            self._kept = response  # for `_next`, when it goes on
            _set(self._wake)
            return
        self._answering = self._later = False
        self._answering_bytes = 0
        self._kept = None
        self._active_ms = self._connections.clock.now_ms()
        self._connections.counts.requests += 1
        self._send(response)
        if self._frames or self._finishing or self._splitter.pending_bytes:
            self._count_held()
            _set(self._wake)
        else:
            self._request.hold_whole(0)

    def _send(self, response: bytes | Pieces) -> None:
        if self._transport is None or self._transport.is_closing():
            return  # nobody reads it, and uvloop's transports raise when they are closed
        if isinstance(response, bytes):
            self._transport.write(response)
        else:
            self._transport.writelines(response)
        if self._writable is not None:
            self._response.hold(len(response) if isinstance(response, bytes) else sum(map(len, response)))

    # --- serving --------------------------------------------------------------------------------------------

    async def _serve(self) -> None:
        try:
            while await self._next():
                frame = self._frames.popleft()
                self._queued_bytes -= len(frame)
                self._answering_bytes = len(frame)
                self._answering = True
                response = await self._connections.answer(self, frame)
                self._answering_bytes = 0
                self._request.answered()
                self._connections.counts.requests += 1
                self._active_ms = self._connections.clock.now_ms()
                while self._thawed is not None:
                    await self._thawed
                if response is not None:
                    self._send(response)
                    if self._hung_up:
                        break
                if self._last:
                    break
                # Only now: what is read between a thaw and this must not be answered before.
                self._answering = False
                del frame, response
                self._count_held()
        except DecodeError as error:
            self._undecodable(error)
        except CloseConnection as reason:
            self._connections.counts.unserved += 1
            if reason.cause is not None:
                self._tell(reason.cause)
            log.debug(
                "connection closed", connection=self.connection_id, host=self.client_host, why=str(reason)
            )
        finally:
            self._answering = False
            self._finishing = True
            self._frames.clear()
            self._queued_bytes = self._answering_bytes = 0
            self._request.end()
            self._response.hold(0)
            if self._transport is not None:
                self._transport.close()
            self._task = None  # which keeps, if it was cancelled, the way back to here

    async def _next(self) -> bool:
        """Wait for a frame that may be answered now; False when there will be none."""
        while self._later or not self._frames or self._thawed is not None or self._writable is not None:
            if self._thawed is not None:
                await self._thawed
                continue
            if self._kept is not None:
                self.respond(self._kept)
                continue
            if self._writable is not None:
                await self._writable
                continue
            if not self._later:
                if self._finishing:
                    return False
                self._resume_reading("queue")
            self._wake = asyncio.get_running_loop().create_future()
            await self._wake
            self._wake = None
        if len(self._frames) < _QUEUED_FRAMES // 2:
            self._resume_reading("queue")
        return True

    def context(self, api_version: int, client_id: str) -> RequestContext:
        """Who asks. A client hardly ever changes what it asks in, so the last one made is kept."""
        made = self._context
        if made is None or made.api_version != api_version or made.client_id != client_id:
            made = self._context = RequestContext(
                api_version=api_version,
                client_id=client_id,
                client_host=self.client_host,
                connection_id=self.connection_id,
                listener=self.listener,
            )
        return made

    @property
    def client_id(self) -> str:
        """As its last request that was put to a handler has it."""
        return "" if self._context is None else self._context.client_id

    def recognised(self) -> None:
        """A valid request header was seen: frames may have their full size from here on."""
        self._splitter.frame_bytes_max = self._connections.frame_bytes_max

    def abandonable(self, yes: bool) -> None:
        """Whether losing the connection may cancel what is being answered: only what changes nothing."""
        self._abandon = yes

    def end(self) -> None:
        """Close once what `Answer` returns for the present request has been sent, if that is anything; what
        else was read is dropped."""
        self._last = True

    def idle_since_ms(self) -> int:
        """When bytes last moved; now, while a request is being answered (it has a deadline of its own)."""
        if self._answering or self._thawed is not None:
            return self._connections.clock.now_ms()
        return self._active_ms

    def receiving_since_ms(self) -> float:
        """When the first bytes of an unfinished request came, later by as long as it was not read; infinite
        when there is none."""
        return inf if self._receiving_ms is None or self._stops else self._receiving_ms

    def abort_unfinished(self, timeout_ms: int) -> bool:
        """Close it for a request that did not arrive whole in time; see `abort`."""
        self._tell(unfinished(self._splitter.beginning, timeout_ms))
        return self.abort()

    # --- stopping -------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Read no more, answer what was read, close."""
        self._finishing = True
        self._stop_reading("finishing")
        _set(self._wake)

    def abort(self) -> bool:
        """Close now, unsent bytes are dropped; a request being answered goes on unheard. False: it was
        closing already."""
        if self._transport is None:
            return False
        closing = self._transport.is_closing()
        # Also then: a transport that is closing waits until its peer has taken all, which may be never.
        self._transport.abort()
        return not closing

    def hear_nothing(self) -> None:
        """See Connections.hear_nothing."""
        self._stop_reading("deaf")

    def hear_again(self) -> None:
        """See Connections.hear_again."""
        self._resume_reading("deaf")

    @property
    def has_unanswered(self) -> bool:
        """Whether there is a request that could be answered now."""
        able = self._thawed is None and self._writable is None
        return bool(self._frames) and able and not self._answering

    def freeze(self) -> None:
        """See Connections.freeze."""
        if self._thawed is None:
            self._thawed = asyncio.get_running_loop().create_future()
        self._stop_reading("frozen")

    def thaw(self) -> None:
        """See Connections.thaw."""
        _set(self._thawed)
        self._thawed = None
        self._resume_reading("frozen")

    # --- bounds ---------------------------------------------------------------------------------------------

    def _count_held(self) -> None:
        """Count what is in memory, and stop reading when there is no room for more."""
        pending = 0 if self._finishing else self._splitter.pending_bytes
        missing = self._splitter.announced_bytes - pending if pending else 0
        held = self._queued_bytes + self._answering_bytes + pending
        if self._request.hold(held, arrived=pending, missing=missing):
            self._resume_reading("memory")
        else:
            self._stop_reading("memory")

    def _room_has_come(self) -> None:
        self._resume_reading("memory")

    def _stop_reading(self, why: str) -> None:
        if not self._stops:
            self._stopped_ms = self._connections.clock.now_ms()
            if self._transport is not None and not self._transport.is_closing():
                self._transport.pause_reading()
        self._stops.add(why)

    def _resume_reading(self, why: str) -> None:
        if why in self._stops:
            self._stops.discard(why)
            if self._stops:
                return
            if self._receiving_ms is not None:
                self._receiving_ms += self._connections.clock.now_ms() - self._stopped_ms
            if self._transport is not None and not self._transport.is_closing():
                self._transport.resume_reading()

    def _undecodable(self, error: DecodeError) -> None:
        if isinstance(error, TooLargeError):
            self._connections.counts.too_large += 1
        else:
            self._connections.counts.undecodable += 1
        self._tell(undecodable(error))
        log.debug("undecodable bytes", connection=self.connection_id, host=self.client_host, why=str(error))
        self.abort()

    def _tell(self, cause: Cause) -> None:
        self._connections.unserved.tell(self.client_host, cause, self.client_id)


def _set(future: asyncio.Future[None] | None) -> None:
    if future is not None and not future.done():
        future.set_result(None)

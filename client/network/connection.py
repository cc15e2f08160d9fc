"""One socket to one broker: requests out, answers matched to them, versions agreed at the start (KIP-35).

Requests are pipelined; a broker answers in the order it was asked, so one that waits (a Fetch, a JoinGroup)
holds up those behind it. Who has little patience goes away at his deadline and leaves his place to the
answer, which is dropped when it comes: the broker may only be slow. When it has not come by the request
timeout either, the connection ends.

Nothing here has a task: answers are taken as their bytes arrive, and a timer each ends what waits too long.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, NamedTuple, Self, TypeAlias, TypeVar, cast

from muster import __version__
from muster.client.errors import (
    ClientError,
    ConnectionLost,
    NotKafka,
    RequestTimedOut,
    Unreachable,
    WrongBroker,
    again,
    refusal,
)
from muster.client.network.receive import FrameReceiver
from muster.client.network.threads import in_thread
from muster.protocol import api, codec, foreign, header
from muster.protocol.api import ApiKey
from muster.protocol.errors import DecodeError, ErrorCode, ForeignProtocolError, KafkaError
from muster.protocol.frame import FRAME_BYTES_MAX_DEFAULT
from muster.protocol.message import VERSION_MAX, Message, Versions
from muster.protocol.messages.connection import ApiVersionsRequest, ApiVersionsResponse

_HINTS: Final = {
    foreign.HTTP: "; give the port of the Kafka listener, not that of a web server",
    foreign.TLS: "; this client speaks no TLS: give the port of a plaintext listener",
}

IN_FLIGHT_MAX: Final = 16
"""Requests sent and not answered; the next one waits for a place, up to its deadline."""

_CLOSE_S: Final = 1.0  # how long closing waits for what is still to be written
_WRITE_BUFFER_BYTES: Final = 1024 * 1024  # beyond it, senders wait for the socket
_LINGER_NOT_AT_ALL: Final = struct.pack("ii", 1, 0)
_MAY_COME_LATE: Final = frozenset(
    {
        ApiKey.API_VERSIONS,
        ApiKey.METADATA,
        ApiKey.FIND_COORDINATOR,
        ApiKey.FETCH,
        ApiKey.LIST_OFFSETS,
        ApiKey.OFFSET_FOR_LEADER_EPOCH,
        ApiKey.OFFSET_FETCH,
        ApiKey.HEARTBEAT,
        ApiKey.LEAVE_GROUP,
    }
)
"""Requests that do no harm when they arrive after they were given up: those that change no data, and
LeaveGroup, which a closing member wants delivered even if it cannot wait for the answer."""

LAST_VERSIONS: Final[dict[ApiKey, int]] = {
    # Topics by name: who knows their ids says so with `last_version` (Produce 13, Fetch 13, OffsetCommit 10).
    ApiKey.PRODUCE: 12,
    ApiKey.FETCH: 12,
    ApiKey.OFFSET_COMMIT: 9,
    # One layout for all brokers: later versions ask for several groups, keys or ids at once (`Versioned`).
    ApiKey.OFFSET_FETCH: 7,
    ApiKey.FIND_COORDINATOR: 3,
    ApiKey.DELETE_TOPICS: 5,
}
"""Where a plain request stops short of the newest version that `muster.protocol` knows."""


class Address(NamedTuple):
    """Where a broker listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Versioned(NamedTuple):
    """A request whose layout depends on the version: `build(version)` makes it, for the newest version up to
    `last_version` that both sides know."""

    api_key: ApiKey
    build: Callable[[int], Message]
    last_version: int = VERSION_MAX


Request: TypeAlias = Message | Versioned


class BrokerIdentity(NamedTuple):
    """Who is expected to answer (KIP-1242)."""

    cluster_id: str
    node_id: int


C = TypeVar("C", bound=asyncio.BaseProtocol)


class _Waiting(NamedTuple):
    """A request in flight."""

    api_key: ApiKey
    version: int
    answer: asyncio.Future[Any]
    ends_at: float
    timer: asyncio.TimerHandle


def deadline(seconds: float) -> float:
    """The moment in `seconds` from now, in the running loop's time: what every call of this package takes."""
    return asyncio.get_running_loop().time() + seconds


def share_of(until: float, parts: int) -> float:
    """The end of the first of so many equal parts of the time that is left."""
    now = deadline(0)
    return now + (until - now) / parts


class Connection(asyncio.BufferedProtocol):
    """An open connection; `open` makes one. Raises ConnectionLost from every call once it has ended.

    (The methods that asyncio calls are those of a protocol; nobody else needs them.)
    """

    def __init__(self, address: Address, client_id: str, request_timeout_s: float = 0.0) -> None:
        self.address = address
        self.versions: dict[int, Versions] = {}
        """What the broker offers, by api key."""
        self.used_at = deadline(0)
        """When something was last sent or received, in the loop's time."""
        self.suspect = False
        """Whether somebody has waited in vain, and nothing has come since."""
        self.node_id = -1
        """Whom its owner takes the other side for; -1 when it does not know."""
        self.on_failed: Callable[[Address], None] | None = None
        """Called when the other side ends it, or has to be given up, while it owes an answer."""
        self._client_id = client_id
        self._request_timeout_s = request_timeout_s
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._receiver = FrameReceiver(FRAME_BYTES_MAX_DEFAULT)
        self._waiting: dict[int, _Waiting] = {}
        self._places = asyncio.Semaphore(IN_FLIGHT_MAX)
        self._correlation_id = 0
        self._ended: ClientError | None = None
        self._gone: asyncio.Future[None] = self._loop.create_future()
        self._writable: asyncio.Future[None] | None = None  # there while the socket takes no more

    def __repr__(self) -> str:
        state = "open" if self._ended is None else f"ended: {self._ended}"
        return f"<Connection {self.address} {len(self._waiting)} in flight, {state}>"

    @classmethod
    async def open(
        cls,
        address: Address,
        client_id: str,
        until: float,
        *,
        expected: BrokerIdentity | None = None,
        request_timeout_s: float = 0.0,
    ) -> Self:
        """Connect and agree on versions. A request that is not answered ends the connection after
        `request_timeout_s`, or at the deadline of its call, if that is later.

        Raises Unreachable, NotKafka, ConnectionLost or RequestTimedOut; WrongBroker when a broker that can
        tell (Kafka 4.4) is not the one `expected`.
        """
        connection = await _connect(address, lambda: cls(address, client_id, request_timeout_s), until)
        try:
            await connection._shake_hands(until, expected)
        except BaseException:
            await connection.close()
            raise
        return connection

    @property
    def is_open(self) -> bool:
        return self._ended is None

    @property
    def in_flight(self) -> int:
        """Requests that were sent and not answered."""
        return len(self._waiting)

    async def call(self, request: Request, until: float, *, last_version: int | None = None) -> Any:
        """The response to `request`, in the newest version both sides know: up to `last_version`, or, where
        that is None, what LAST_VERSIONS says.

        Raises ConnectionLost, RequestTimedOut, KafkaError(UNSUPPORTED_VERSION) when there is no such version,
        EncodeError when it cannot carry the request.
        """
        api_key, version, message = self._agreed(request, last_version)
        return await self._call(message, api_key, version, until)

    async def tell(self, request: Request, until: float, *, last_version: int | None = None) -> None:
        """Send what is not answered: a Produce with acks=0. Raises as `call` does."""
        api_key, version, message = self._agreed(request, last_version)
        _, frame = self._frame(message, api_key, version)
        self._write(frame)
        if self._writable is not None:
            await self._drain(api_key, until)

    def version_of(self, api_key: ApiKey, last_version: int | None = None) -> int:
        """The version requests of this API go out in. Raises KafkaError(UNSUPPORTED_VERSION)."""
        if last_version is None:
            last_version = LAST_VERSIONS.get(api_key, VERSION_MAX)
        return api.agree(api_key, self.versions, last=last_version)

    def abandon(self, why: str) -> None:
        """End it, without waiting for anything; what is in flight fails with ConnectionLost, saying why."""
        self._end(ConnectionLost(why))

    def abort(self) -> None:
        """End it, and its socket with it, whatever is still to be written."""
        self._end(ConnectionLost(f"the connection to {self.address} was closed"))
        self._abort()

    async def close(self) -> None:
        """End it; what is in flight fails with ConnectionLost, what is still to be written gets a second, if
        it does no harm later on. Harmless when repeated."""
        self._end(ConnectionLost(f"the connection to {self.address} was closed"), at_once=False)
        if self._transport is None or self._gone.done():
            return
        try:
            await asyncio.wait([self._gone], timeout=_CLOSE_S)
        finally:
            # It would stay open for as long as the broker does not read what is still to be written.
            self._abort()

    def _abort(self) -> None:
        # asyncio's own transports fail when they are gone already, if they were closed with a full buffer.
        if self._transport is not None and not self._gone.done():
            self._transport.abort()

    # --- out ------------------------------------------------------------------------------------------------

    def _agreed(self, request: Request, last_version: int | None) -> tuple[ApiKey, int, Message]:
        if isinstance(request, Versioned):
            version = self.version_of(request.api_key, request.last_version)
            return request.api_key, version, request.build(version)
        api_key = request.__schema__.api_key
        assert api_key is not None, f"{type(request).__name__} is no request"
        return (key := ApiKey(api_key)), self.version_of(key, last_version), request

    async def _call(self, request: Message, api_key: ApiKey, version: int, until: float) -> Any:
        if self._places.locked():
            await self._wait_for_place(api_key, until)
        else:
            await self._places.acquire()
        try:
            correlation_id, frame = self._frame(request, api_key, version)
        except BaseException:
            self._places.release()
            raise
        answer: asyncio.Future[Any] = self._loop.create_future()
        timer = self._loop.call_at(until, self._expire, correlation_id)
        ends_at = max(until, self._loop.time() + self._request_timeout_s)
        self._waiting[correlation_id] = _Waiting(api_key, version, answer, ends_at, timer)
        self._write(frame)
        # A caller that goes away leaves the place taken, and the timer running: the broker still answers.
        return await answer

    async def _wait_for_place(self, api_key: ApiKey, until: float) -> None:
        try:
            async with asyncio.timeout_at(until):
                await self._places.acquire()
        except TimeoutError:
            self.suspect = True  # those in flight have their own ends
            raise RequestTimedOut(self._timed_out_text(api_key)) from None

    def _frame(self, request: Message, api_key: ApiKey, version: int) -> tuple[int, bytes]:
        if self._ended is not None:
            raise again(self._ended)
        self._correlation_id = (self._correlation_id + 1) & 0x7FFF_FFFF
        return self._correlation_id, header.encode_request(
            api_key, version, self._correlation_id, self._client_id, request
        )

    def _write(self, frame: bytes) -> None:
        assert self._transport is not None
        self.used_at = self._loop.time()
        self._transport.write(frame)

    async def _drain(self, api_key: ApiKey, until: float) -> None:
        """Wait until the socket takes more. (Who waits for an answer need not.)"""
        try:
            async with asyncio.timeout_at(until):
                while self._writable is not None:
                    await asyncio.wait([self._writable])
        except TimeoutError:
            why = self._timed_out_text(api_key)
            self._fail(ConnectionLost(why))
            raise RequestTimedOut(why) from None
        if self._ended is not None:
            raise again(self._ended)

    async def _shake_hands(self, until: float, expected: BrokerIdentity | None) -> None:
        version = api.versions(ApiKey.API_VERSIONS).last
        answer = await self._ask_versions(version, until, expected)
        if answer.error_code == ErrorCode.UNSUPPORTED_VERSION:
            try:
                version = api.retry_version(answer)
            except KafkaError as error:
                raise NotKafka(f"{self.address}: {error}") from None
            answer = await self._ask_versions(version, until, expected)
        if answer.error_code == ErrorCode.REBOOTSTRAP_REQUIRED and expected is not None:
            raise WrongBroker(
                f"{self.address} is not broker {expected.node_id} of cluster {expected.cluster_id} any more"
            )
        if answer.error_code:
            raise NotKafka(f"{self.address} refuses to say what it speaks: {refusal(answer.error_code)}")
        self.versions = {
            each.api_key: Versions(each.min_version, each.max_version) for each in answer.api_keys
        }

    async def _ask_versions(
        self, version: int, until: float, expected: BrokerIdentity | None
    ) -> ApiVersionsResponse:
        request = ApiVersionsRequest(client_software_name="muster", client_software_version=__version__)
        if expected is not None:
            request.cluster_id, request.node_id = expected
        try:
            response: ApiVersionsResponse = await self._call(request, ApiKey.API_VERSIONS, version, until)
        except ConnectionLost as error:
            raise ConnectionLost(
                f"{error}, before it said what it speaks: is this a Kafka listener without TLS and SASL?"
            ) from None
        return response

    # --- in -------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are not of its class
        self._transport.set_write_buffer_limits(high=_WRITE_BUFFER_BYTES)
        sock = transport.get_extra_info("socket")
        with suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._receiver.room()

    def buffer_updated(self, nbytes: int) -> None:
        if self._ended is not None:
            return
        self.used_at = self._loop.time()
        try:
            for frame in self._receiver.received(nbytes):
                self._take(frame)
        except DecodeError as error:
            self._fail(NotKafka(_not_kafka(self.address, error)))

    def eof_received(self) -> bool:
        cut = ", in the middle of an answer" if self._receiver.unfinished else ""
        self._fail(ConnectionLost(f"{self.address} closed the connection{cut}"))
        return False

    def connection_lost(self, error: Exception | None) -> None:
        why = f"{self.address} closed the connection"
        if isinstance(error, OSError):
            why = f"the connection to {self.address} broke: {reason(error)}"
        self._fail(ConnectionLost(why))
        self.resume_writing()
        if not self._gone.done():
            self._gone.set_result(None)

    def pause_writing(self) -> None:
        self._writable = self._loop.create_future()

    def resume_writing(self) -> None:
        if self._writable is not None:
            self._writable.set_result(None)
            self._writable = None

    def _take(self, frame: bytes | bytearray) -> None:
        correlation_id = int.from_bytes(frame[:4], "big", signed=True)
        waiting = self._waiting.get(correlation_id)
        if waiting is None:
            raise DecodeError(f"an answer to request {correlation_id}, which was not asked")
        api_key, version, answer, _, timer = waiting
        if api_key == ApiKey.API_VERSIONS:
            message: Message = api.decode_api_versions(version, bytes(frame[4:]))
        else:
            _, offset = header.decode_response_header(api_key, version, frame)
            decode = codec.decode_with_views if api_key == ApiKey.FETCH else codec.decode
            message = decode(api.response_class(api_key), version, frame, offset)
        del self._waiting[correlation_id]
        self.suspect = False
        timer.cancel()
        self._places.release()
        if not answer.done():
            answer.set_result(message)

    def _fail(self, why: ClientError) -> None:
        """The end, by the other side's fault if it owes an answer, or does not take what is sent."""
        owes = self._ended is None and (self._waiting or self._writable is not None)
        self._end(why)
        if owes and self.on_failed is not None:
            self.on_failed(self.address)

    def _end(self, why: ClientError, *, at_once: bool = True) -> None:
        """The end, once; `at_once`: what is still to be written is not worth waiting for."""
        if self._ended is not None:
            return
        self._ended = why
        transport = self._transport
        if transport is not None and not transport.is_closing():
            unwritten = at_once and transport.get_write_buffer_size()
            if unwritten or any(each.api_key not in _MAY_COME_LATE for each in self._waiting.values()):
                self._take_back(transport)
                transport.abort()
            else:
                transport.close()
        waiting, self._waiting = self._waiting, {}
        for _, _, answer, _, timer in waiting.values():
            timer.cancel()
            self._places.release()
            if not answer.done():
                answer.set_exception(again(why))
                answer.exception()  # looked at, so that asyncio does not complain when the caller went away

    def _take_back(self, transport: asyncio.Transport) -> None:
        """Have the kernel drop what it has not delivered, and reset the connection.

        After an ordinary close, and an abort as well, it goes on sending for minutes. Once the network is
        well again, the broker would carry out what was given up long ago: an OffsetCommit, say, after those
        that were made over another connection since, and the group's offset would go back.
        """
        with suppress(OSError):
            sock = transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NOT_AT_ALL)

    def _expire(self, correlation_id: int) -> None:
        """The caller's deadline, and later, if need be, the request's."""
        waiting = self._waiting.get(correlation_id)
        if waiting is None:
            return
        self.suspect = True
        why = self._timed_out_text(waiting.api_key)
        if not waiting.answer.done():
            waiting.answer.set_exception(RequestTimedOut(why))
            waiting.answer.exception()
        if self._loop.time() >= waiting.ends_at:
            self._fail(ConnectionLost(why))
            return
        timer = self._loop.call_at(waiting.ends_at, self._expire, correlation_id)
        self._waiting[correlation_id] = waiting._replace(timer=timer)

    def _timed_out_text(self, api_key: ApiKey) -> str:
        return f"{self.address} did not answer {api_key.name} in time"


def _not_kafka(address: Address, error: DecodeError) -> str:
    hint = _HINTS.get(error.protocol, "") if isinstance(error, ForeignProtocolError) else ""
    return f"{address} does not answer as a Kafka broker does: {error}{hint}"


def reason(error: OSError) -> str:
    """What the system says about a failed call, without numbers and addresses."""
    if isinstance(error, socket.gaierror):
        return "no such host"
    if isinstance(error, TimeoutError) and not error.errno:
        return "no answer in time"
    return os.strerror(error.errno).lower() if error.errno else str(error) or type(error).__name__


async def _connect(address: Address, make: Callable[[], C], until: float) -> C:
    """Try every address the name stands for, in the system's order, each for its share of the time."""
    failed: dict[str, str] = {}
    try:
        async with asyncio.timeout_at(until):
            found = await _look_up(address)
            for index, (family, _, _, _, where) in enumerate(found):
                host = str(where[0])
                try:
                    async with asyncio.timeout_at(share_of(until, len(found) - index)):
                        return await _dial(make, host, address.port, family)
                except OSError as error:  # TimeoutError as well
                    failed[host] = reason(error)
    except TimeoutError:
        failed.setdefault(address.host, "no answer in time")
    except (OSError, UnicodeError) as error:
        failed[address.host] = reason(error if isinstance(error, OSError) else socket.gaierror(str(error)))
    whys = set(failed.values())
    why = whys.pop() if len(whys) == 1 else ", ".join(f"{host}: {each}" for host, each in failed.items())
    raise Unreachable(f"no connection to {address}: {why}")


async def _dial(make: Callable[[], C], host: str, port: int, family: int) -> C:
    _, connection = await asyncio.get_running_loop().create_connection(make, host, port, family=family)
    return connection


async def _look_up(address: Address) -> list[Any]:
    """What the name stands for. Numbers need no look-up; names may take longer than we have."""
    with suppress(socket.gaierror):
        return socket.getaddrinfo(*address, 0, socket.SOCK_STREAM, 0, socket.AI_NUMERICHOST)
    return await in_thread(socket.getaddrinfo, *address, 0, socket.SOCK_STREAM)

"""One socket to one broker: sends requests, matches responses, negotiates versions at the start (KIP-35).

Requests are pipelined; a broker responds in order, so a request that it holds (Fetch, JoinGroup) holds up
those behind it. A caller gives up at its deadline, and a later response is dropped: the broker may only be
slow. If there is no response by the request timeout either, the connection ends. Responses are handled as
their bytes arrive; a timer per request ends those that wait too long. The only task authenticates again
before the session ends.
"""

from __future__ import annotations

import asyncio
import math
import os
import random
import socket
import ssl
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, NamedTuple, Self, TypeAlias, TypeVar, cast

from muster import __version__
from muster.client.errors import (
    AuthenticationFailed,
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
from muster.client.security import tls
from muster.client.security.security import Security
from muster.protocol import api, codec, foreign, header
from muster.protocol.api import ApiKey
from muster.protocol.errors import (
    DecodeError,
    ErrorCode,
    ForeignProtocolError,
    KafkaError,
    NotInVersionError,
)
from muster.protocol.frame import FRAME_BYTES_MAX_DEFAULT
from muster.protocol.message import VERSION_MAX, Message, Versions
from muster.protocol.messages.connection import ApiVersionsRequest, ApiVersionsResponse

_HINTS: Final = {
    foreign.HTTP: "; give the port of the Kafka listener, not that of a web server",
    foreign.TLS: "; it is a TLS listener: set security_protocol to SSL or SASL_SSL",
}

IN_FLIGHT_MAX: Final = 16
"""The maximum number of requests in flight; the next one waits for a place, up to its deadline."""

_LOGIN_S: Final = 30.0
_CLOSE_S: Final = 1.0  # how long closing waits for unsent data
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
"""Requests that are harmless if they arrive after the caller gave up: those that change no data, and
LeaveGroup, which a closing member wants delivered even if it cannot wait for the response."""

LAST_VERSIONS: Final[dict[ApiKey, int]] = {
    # Topics by name: callers that know topic ids pass `last_version` (Produce 13, Fetch 13, OffsetCommit 10).
    ApiKey.PRODUCE: 12,
    ApiKey.FETCH: 12,
    ApiKey.OFFSET_COMMIT: 9,
    # One layout for all brokers: later versions take several groups, keys or ids at once (`Versioned`).
    ApiKey.OFFSET_FETCH: 7,
    ApiKey.FIND_COORDINATOR: 3,
    ApiKey.DELETE_TOPICS: 5,
    # Later versions are for brokers.
    ApiKey.ADD_PARTITIONS_TO_TXN: 3,
}
"""APIs for which a plain request uses an older version than the newest in `muster.protocol`."""


class Address(NamedTuple):
    """Where a broker listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Versioned(NamedTuple):
    """A request whose layout depends on the version: `build(version)` makes it, for the newest version up to
    `last_version` that both sides support."""

    api_key: ApiKey
    build: Callable[[int], Message]
    last_version: int = VERSION_MAX


Request: TypeAlias = Message | Versioned


class BrokerIdentity(NamedTuple):
    """The broker expected to respond (KIP-1242)."""

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
    """The time `seconds` from now on the running loop's clock, as every call in this package expects it."""
    return asyncio.get_running_loop().time() + seconds


def share_of(until: float, parts: int) -> float:
    """The end of the first part when the remaining time is divided into `parts` equal parts."""
    now = deadline(0)
    return now + (until - now) / parts


class Connection(asyncio.BufferedProtocol):
    """An open connection, created by `open`. Every call raises ConnectionLost once it has ended. (asyncio
    calls the protocol methods; nobody else should.)
    """

    def __init__(
        self,
        address: Address,
        client_id: str,
        request_timeout_s: float = 0.0,
        security: Security | None = None,
    ) -> None:
        self.address = address
        self.versions: dict[int, Versions] = {}
        """The broker's versions, by api key."""
        self.features: dict[str, int] = {}
        """The cluster's finalized feature levels (KIP-584) when the connection was opened."""
        self.used_at = deadline(0)
        """When something was last sent or received, by the loop's clock."""
        self.suspect = False
        """Whether a request has timed out and nothing has been received since."""
        self.node_id = -1
        """The node that the owner believes it is connected to; -1 if unknown."""
        self.on_failed: Callable[[Address], None] | None = None
        """Called when the connection ends or is given up while a response is outstanding."""
        self._client_id = client_id
        self._security = security
        self._renew_at = math.inf  # when to authenticate again, by the loop's clock
        self._renewal: asyncio.Task[None] | None = None
        self._request_timeout_s = request_timeout_s
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._receiver = FrameReceiver(FRAME_BYTES_MAX_DEFAULT)
        self._waiting: dict[int, _Waiting] = {}
        self._places = asyncio.Semaphore(IN_FLIGHT_MAX)
        self._correlation_id = 0
        self._accepted = False  # whether a request other than ApiVersions has been answered
        self._ended: ClientError | None = None
        self._gone: asyncio.Future[None] = self._loop.create_future()
        self._writable: asyncio.Future[None] | None = None  # set while the socket accepts no more

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
        security: Security | None = None,
    ) -> Self:
        """Connect, negotiate versions, and authenticate. A request without a response ends the connection
        after `request_timeout_s`, or at its call's deadline if that is later. Raises Unreachable, NotKafka,
        ConnectionLost, RequestTimedOut or AuthenticationFailed; WrongBroker if a broker that can tell (Kafka
        4.4) is not the `expected` one.
        """
        context = None if security is None else security.context
        connection = await _connect(
            address, lambda: cls(address, client_id, request_timeout_s, security), until, context
        )
        try:
            await connection._shake_hands(until, expected)
            await connection._log_in(until)
        except BaseException:
            await connection.close()
            raise
        return connection

    @property
    def is_open(self) -> bool:
        return self._ended is None

    @property
    def in_flight(self) -> int:
        """Requests sent but not answered."""
        return len(self._waiting)

    async def call(self, request: Request, until: float, *, last_version: int | None = None) -> Any:
        """The response to `request`, in the newest version both sides support, up to `last_version` (None:
        LAST_VERSIONS). Raises ConnectionLost, RequestTimedOut, KafkaError(UNSUPPORTED_VERSION) if there is no
        such version, or if it lacks a field that the request needs.
        """
        api_key, version, message = self._agreed(request, last_version)
        if self._loop.time() >= self._renew_at:
            await self._renew(until)
        return await self._call(message, api_key, version, until)

    async def tell(self, request: Request, until: float, *, last_version: int | None = None) -> None:
        """Send a request that gets no response: a Produce with acks=0. Raises like `call`."""
        api_key, version, message = self._agreed(request, last_version)
        if self._loop.time() >= self._renew_at:
            await self._renew(until)
        _, frame = self._frame(message, api_key, version)
        self._write(frame)
        if self._writable is not None:
            await self._drain(api_key, until)

    def version_of(self, api_key: ApiKey, last_version: int | None = None) -> int:
        """The version used for requests of this API. Raises KafkaError(UNSUPPORTED_VERSION)."""
        if last_version is None:
            last_version = LAST_VERSIONS.get(api_key, VERSION_MAX)
        return api.agree(api_key, self.versions, last=last_version)

    def abandon(self, why: str) -> None:
        """End the connection without waiting; requests in flight fail with ConnectionLost and this reason."""
        self._end(ConnectionLost(why))

    def abort(self) -> None:
        """End the connection and its socket, dropping unsent data."""
        self._end(ConnectionLost(f"the connection to {self.address} was closed"))
        self._abort()

    async def close(self) -> None:
        """End the connection; requests in flight fail with ConnectionLost. Unsent requests that are harmless
        when late get a second to go out. Safe to call again."""
        self._end(ConnectionLost(f"the connection to {self.address} was closed"), at_once=False)
        if self._transport is None or self._gone.done():
            return
        try:
            await asyncio.wait([self._gone], timeout=_CLOSE_S)
        finally:
            # Otherwise it would stay open until the broker reads the unsent data.
            self._abort()

    def _abort(self) -> None:
        # asyncio's own transports raise here if they are already gone and were closed with a full buffer.
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
        # A cancelled caller leaves the place taken and the timer running: the broker still responds.
        return await answer

    async def _wait_for_place(self, api_key: ApiKey, until: float) -> None:
        try:
            async with asyncio.timeout_at(until):
                await self._places.acquire()
        except TimeoutError:
            self.suspect = True  # requests in flight end by themselves
            raise RequestTimedOut(self._timed_out_text(api_key)) from None

    def _frame(self, request: Message, api_key: ApiKey, version: int) -> tuple[int, bytes]:
        if self._ended is not None:
            raise again(self._ended)
        self._correlation_id = (self._correlation_id + 1) & 0x7FFF_FFFF
        try:
            frame = header.encode_request(api_key, version, self._correlation_id, self._client_id, request)
        except NotInVersionError as error:
            why = f"{error}; no newer version can be used with this broker, it may be too old"
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, why) from error
        return self._correlation_id, frame

    def _write(self, frame: bytes) -> None:
        assert self._transport is not None
        self.used_at = self._loop.time()
        self._transport.write(frame)

    async def _drain(self, api_key: ApiKey, until: float) -> None:
        """Wait until the socket accepts more. (Callers that wait for a response need not.)"""
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
        self.features = {each.name: each.max_version_level for each in answer.finalized_features}

    async def _log_in(self, until: float) -> None:
        """Authenticate, if configured. Raises AuthenticationFailed."""
        mechanism = None if self._security is None else self._security.mechanism
        if mechanism is None:
            return
        from muster.client.security.login import log_in  # with the messages that only SASL needs

        async def ask(request: Message) -> Any:
            api_key, version, message = self._agreed(request, None)
            return await self._call(message, api_key, version, until)

        try:
            lifetime_ms = await log_in(mechanism, ask, until)
        except (AuthenticationFailed, Unreachable) as error:
            raise type(error)(f"{self.address}: {error}") from error.__cause__
        except KafkaError as error:
            raise AuthenticationFailed(f"{self.address}: {error}") from None
        self._renew_at = math.inf
        if lifetime_ms:
            # As in Java's client: between 85 and 95 % of it, so that not all clients come at once.
            self._renew_at = deadline(lifetime_ms / 1000 * random.uniform(0.85, 0.95))

    async def _renew(self, until: float) -> None:
        """Authenticate again before the session ends (KIP-368). New requests wait meanwhile; earlier ones are
        answered first. Raises RequestTimedOut, and ConnectionLost if the connection has ended: the next
        connection logs in anew and raises the actual cause."""
        if self._ended is not None:
            raise again(self._ended)
        if self._renewal is None or self._renewal.done():
            self._renewal = asyncio.create_task(self._log_in_again(), name=f"login at {self.address}")
        await asyncio.wait([self._renewal], timeout=max(0.0, until - self._loop.time()))
        if not self._renewal.done():
            raise RequestTimedOut(f"{self.address} did not let this client in again in time")
        if self._ended is not None:
            raise again(self._ended)

    async def _log_in_again(self) -> None:
        """Runs as its own task: in the middle of an exchange a connection is good for nothing else, so it
        must not end with the caller that began it."""
        until = deadline(self._request_timeout_s or _LOGIN_S)
        try:
            await self._log_in(until)
        except Exception as error:
            self._fail(ConnectionLost(f"authenticating again failed: {error}"))

    async def _ask_versions(
        self, version: int, until: float, expected: BrokerIdentity | None
    ) -> ApiVersionsResponse:
        request = ApiVersionsRequest(client_software_name="muster", client_software_version=__version__)
        if expected is not None:
            request.cluster_id, request.node_id = expected
        try:
            response: ApiVersionsResponse = await self._call(request, ApiKey.API_VERSIONS, version, until)
        except ConnectionLost as error:
            if self._security is None:
                likely = "it may be a listener for TLS or SASL (security_protocol)"
            else:
                likely = f"is this a Kafka listener for {self._security.protocol}?"
            raise ConnectionLost(f"{error}, before it said what it speaks: {likely}") from None
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
        cut = ", in the middle of an answer" if self._receiver.unfinished else self._unless_logged_in()
        self._fail(ConnectionLost(f"{self.address} closed the connection{cut}"))
        return False

    def _unless_logged_in(self) -> str:
        """The end of the sentence if this may be a SASL listener, which closes the connection at the first
        request of a client that has not logged in."""
        has_sasl = self._security is not None and self._security.mechanism is not None
        if has_sasl or self._accepted or not (self.versions and self._waiting):
            return ""
        return " at the first request: it may be a listener for SASL (security_protocol)"

    def connection_lost(self, error: Exception | None) -> None:
        why: ClientError = ConnectionLost(f"{self.address} closed the connection")
        if isinstance(error, ssl.SSLError) and not self.versions:
            # With TLS 1.3, a server reports a missing or bad certificate once the client is done.
            why = AuthenticationFailed(f"{self.address}: {tls.what_failed(error)}")
        elif isinstance(error, OSError):
            why = ConnectionLost(f"the connection to {self.address} broke: {reason(error)}")
        self._fail(why)
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
            self._accepted = True
        del self._waiting[correlation_id]
        self.suspect = False
        timer.cancel()
        self._places.release()
        if not answer.done():
            answer.set_result(message)

    def _fail(self, why: ClientError) -> None:
        """End the connection; the other side is at fault if it owes a response or does not read."""
        owes = self._ended is None and (self._waiting or self._writable is not None)
        self._end(why)
        if owes and self.on_failed is not None:
            self.on_failed(self.address)

    def _end(self, why: ClientError, *, at_once: bool = True) -> None:
        """End the connection, once. `at_once`: do not wait for unsent data."""
        if self._ended is not None:
            return
        self._ended = why
        if self._renewal is not None and self._renewal is not asyncio.current_task():
            self._renewal.cancel()
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
                answer.exception()  # retrieved, so that asyncio does not warn if the caller went away

    def _take_back(self, transport: asyncio.Transport) -> None:
        """Make the kernel drop undelivered data, and reset the connection. After an ordinary close or abort,
        it keeps sending for minutes. Once the network recovers, the broker would apply requests given up long
        ago: say, an OffsetCommit after later ones over another connection, which would move the group's
        offset back.
        """
        with suppress(OSError):
            sock = transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NOT_AT_ALL)

    def _expire(self, correlation_id: int) -> None:
        """Apply the caller's deadline, and later the request's if necessary."""
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
    """The system's message for a failed call, without numbers and addresses."""
    if isinstance(error, socket.gaierror):
        return "no such host"
    if isinstance(error, ssl.SSLError):
        return tls.what_failed(error)
    if isinstance(error, TimeoutError) and not error.errno:
        return "no answer in time"
    return os.strerror(error.errno).lower() if error.errno else str(error) or type(error).__name__


async def _connect(
    address: Address, make: Callable[[], C], until: float, context: ssl.SSLContext | None
) -> C:
    """Try every address of the host, in the system's order, each for its share of the time."""
    failed: dict[str, str] = {}
    try:
        async with asyncio.timeout_at(until):
            found = await _look_up(address)
            for index, (family, _, _, _, where) in enumerate(found):
                host = str(where[0])
                try:
                    async with asyncio.timeout_at(share_of(until, len(found) - index)):
                        return await _dial(make, host, address, family, context)
                except ssl.SSLError as error:
                    if tls.is_not_tls(error):
                        raise NotKafka(
                            f"{address} does not speak TLS: it may be a listener for PLAINTEXT or "
                            "SASL_PLAINTEXT (security_protocol)"
                        ) from None
                    raise AuthenticationFailed(f"{address}: {tls.what_failed(error)}") from None
                except OSError as error:  # TimeoutError as well
                    failed[host] = reason(error)
                    if context is not None and isinstance(error, ConnectionError) and not error.errno:
                        failed[host] = (
                            "it closed the connection during the TLS handshake; it may be a listener for "
                            "PLAINTEXT or SASL_PLAINTEXT (security_protocol)"
                        )
    except TimeoutError:
        failed.setdefault(address.host, "no answer in time")
    except (OSError, UnicodeError) as error:
        failed[address.host] = reason(error if isinstance(error, OSError) else socket.gaierror(str(error)))
    whys = set(failed.values())
    why = whys.pop() if len(whys) == 1 else ", ".join(f"{host}: {each}" for host, each in failed.items())
    raise Unreachable(f"no connection to {address}: {why}")


async def _dial(
    make: Callable[[], C], host: str, address: Address, family: int, context: ssl.SSLContext | None
) -> C:
    # Certificates contain neither the zone of an IPv6 address nor the trailing dot of a full name.
    name = None if context is None else address.host.partition("%")[0].removesuffix(".")
    _, connection = await asyncio.get_running_loop().create_connection(
        make, host, address.port, family=family, ssl=context, server_hostname=name
    )
    return connection


async def _look_up(address: Address) -> list[Any]:
    """The host's addresses. Numeric ones need no look-up; names may take longer than we have."""
    with suppress(socket.gaierror):
        return socket.getaddrinfo(*address, 0, socket.SOCK_STREAM, 0, socket.AI_NUMERICHOST)
    return await in_thread(socket.getaddrinfo, *address, 0, socket.SOCK_STREAM)

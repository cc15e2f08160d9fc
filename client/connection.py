"""One socket to one broker: requests out, answers matched to them, versions agreed at the start (KIP-35).

Requests may be pipelined; a broker answers in the order it was asked, so one that waits (a Fetch, a
JoinGroup) holds up those behind it. A request without an answer at its deadline therefore ends the
connection; one whose caller went away leaves its place to the answer, which is dropped when it comes.
"""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import suppress
from typing import Any, Final, NamedTuple, Self

from muster import __version__
from muster.client.errors import ClientError, ConnectionLost, NotKafka, RequestTimedOut, Unreachable, refusal
from muster.client.threads import in_thread
from muster.protocol import api, codec, header
from muster.protocol.api import ApiKey
from muster.protocol.errors import DecodeError, ErrorCode, KafkaError
from muster.protocol.frame import FrameSplitter
from muster.protocol.message import VERSION_MAX, Message, Versions
from muster.protocol.messages.connection import ApiVersionsRequest, ApiVersionsResponse

IN_FLIGHT_MAX: Final = 16
"""Requests sent and not answered; the next one waits for a place, up to its deadline."""

_PIECE_BYTES: Final = 256 * 1024
_CLOSE_S: Final = 1.0  # how long closing waits for what is still to be written

LAST_VERSIONS: Final[dict[ApiKey, int]] = {
    # By name: topic ids (Produce 13, Fetch 13, OffsetCommit 10) come with a client that keeps track of them.
    ApiKey.PRODUCE: 12,
    ApiKey.FETCH: 12,
    ApiKey.OFFSET_COMMIT: 9,
    # One layout for all brokers: later versions ask for several groups, keys or ids at once.
    ApiKey.OFFSET_FETCH: 7,
    ApiKey.FIND_COORDINATOR: 3,
    ApiKey.DELETE_TOPICS: 5,
}
"""Where we stop short of the newest version that `muster.protocol` knows."""


class Address(NamedTuple):
    """Where a broker listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class _Waiting(NamedTuple):
    """A request in flight."""

    api_key: ApiKey
    version: int
    answer: asyncio.Future[Any]


def deadline(seconds: float) -> float:
    """The moment in `seconds` from now, in the running loop's time: what every call of this package takes."""
    return asyncio.get_running_loop().time() + seconds


def share_of(until: float, parts: int) -> float:
    """The end of the first of so many equal parts of the time that is left."""
    now = deadline(0)
    return now + (until - now) / parts


class Connection:
    """An open connection; `open` makes one. Raises ConnectionLost from every call once it has ended."""

    def __init__(
        self,
        address: Address,
        client_id: str,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self.address = address
        self.versions: dict[int, Versions] = {}
        """What the broker offers, by api key."""
        self._client_id = client_id
        self._reader = reader
        self._writer = writer
        self._waiting: dict[int, _Waiting] = {}
        self._places = asyncio.Semaphore(IN_FLIGHT_MAX)
        self._correlation_id = 0
        self._ended: ClientError | None = None
        self._closing = False
        self._reading = asyncio.create_task(self._read(), name=f"answers of {address}")

    def __repr__(self) -> str:
        state = "open" if self._ended is None else f"ended: {self._ended}"
        return f"<Connection {self.address} {len(self._waiting)} in flight, {state}>"

    @classmethod
    async def open(cls, address: Address, client_id: str, until: float) -> Self:
        """Connect and agree on versions. Raises Unreachable, NotKafka, ConnectionLost or RequestTimedOut."""
        reader, writer = await _connect(address, until)
        connection = cls(address, client_id, reader, writer)
        try:
            await connection._shake_hands(until)
        except BaseException:
            await connection.close()
            raise
        return connection

    @property
    def is_open(self) -> bool:
        return self._ended is None

    async def call(self, request: Message, until: float) -> Any:
        """The response to `request`, in the newest version both sides know.

        Raises ConnectionLost, RequestTimedOut, KafkaError(UNSUPPORTED_VERSION) when there is no such version,
        EncodeError when it cannot carry the request.
        """
        api_key = _api_key(request)
        return await self._call(request, api_key, self.version_of(api_key), until)

    async def tell(self, request: Message, until: float) -> None:
        """Send what is not answered: a Produce with acks=0. Raises as `call` does."""
        api_key = _api_key(request)
        _, frame = self._frame(request, api_key, self.version_of(api_key))
        await self._write(frame, api_key, until)

    def version_of(self, api_key: ApiKey) -> int:
        """The version requests of this API go out in. Raises KafkaError(UNSUPPORTED_VERSION)."""
        return api.agree(api_key, self.versions, last=LAST_VERSIONS.get(api_key, VERSION_MAX))

    async def close(self) -> None:
        """End it; what is in flight fails with ConnectionLost. Harmless when repeated."""
        self._end(ConnectionLost(f"the connection to {self.address} was closed"))
        self._reading.cancel()
        if self._closing:
            return  # waiting for the transport a second time may end in the cancellation of the first
        self._closing = True
        try:
            await asyncio.wait([self._reading])
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(_CLOSE_S):
                    await self._writer.wait_closed()
        finally:
            # It would stay open for as long as the broker does not read what is still to be written.
            self._writer.transport.abort()

    # --- out ------------------------------------------------------------------------------------------------

    async def _call(self, request: Message, api_key: ApiKey, version: int, until: float) -> Any:
        try:
            async with asyncio.timeout_at(until):
                await self._places.acquire()
        except TimeoutError:
            raise self._timed_out(api_key) from None
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        answer.add_done_callback(self._leave_place)
        try:
            correlation_id, frame = self._frame(request, api_key, version)
        except BaseException:
            answer.cancel()
            raise
        self._waiting[correlation_id] = _Waiting(api_key, version, answer)
        await self._write(frame, api_key, until)
        try:
            async with asyncio.timeout_at(until):
                # A caller that goes away leaves the place taken: the broker still answers.
                return await asyncio.shield(answer)
        except TimeoutError:
            raise self._timed_out(api_key) from None

    def _frame(self, request: Message, api_key: ApiKey, version: int) -> tuple[int, bytes]:
        if self._ended is not None:
            raise type(self._ended)(str(self._ended))
        self._correlation_id = (self._correlation_id + 1) & 0x7FFF_FFFF
        return self._correlation_id, header.encode_request(
            api_key, version, self._correlation_id, self._client_id, request
        )

    async def _write(self, frame: bytes, api_key: ApiKey, until: float) -> None:
        self._writer.write(frame)
        try:
            async with asyncio.timeout_at(until):
                await self._writer.drain()
        except TimeoutError:
            raise self._timed_out(api_key) from None
        except OSError as error:
            why = ConnectionLost(f"the connection to {self.address} broke: {reason(error)}")
            self._end(why)
            raise why from error

    def _leave_place(self, answer: asyncio.Future[Any]) -> None:
        self._places.release()
        if not answer.cancelled():
            answer.exception()  # looked at, so that asyncio does not complain when the caller went away

    async def _shake_hands(self, until: float) -> None:
        version = api.versions(ApiKey.API_VERSIONS).last
        answer = await self._ask_versions(version, until)
        if answer.error_code == ErrorCode.UNSUPPORTED_VERSION:
            try:
                version = api.retry_version(answer)
            except KafkaError as error:
                raise NotKafka(f"{self.address}: {error}") from None
            answer = await self._ask_versions(version, until)
        if answer.error_code:
            raise NotKafka(f"{self.address} refuses to say what it speaks: {refusal(answer.error_code)}")
        self.versions = {
            each.api_key: Versions(each.min_version, each.max_version) for each in answer.api_keys
        }

    async def _ask_versions(self, version: int, until: float) -> ApiVersionsResponse:
        request = ApiVersionsRequest(client_software_name="muster", client_software_version=__version__)
        try:
            response: ApiVersionsResponse = await self._call(request, ApiKey.API_VERSIONS, version, until)
        except ConnectionLost as error:
            raise ConnectionLost(
                f"{error}, before it said what it speaks: is this a Kafka listener without TLS and SASL?"
            ) from None
        return response

    # --- in -------------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        splitter = FrameSplitter()
        try:
            while piece := await self._reader.read(_PIECE_BYTES):
                for frame in splitter.feed(piece):
                    self._take(frame)
            self._end(ConnectionLost(f"{self.address} closed the connection"))
        except OSError as error:
            self._end(ConnectionLost(f"the connection to {self.address} broke: {reason(error)}"))
        except DecodeError as error:
            self._end(NotKafka(f"{self.address} does not answer as a Kafka broker does: {error}"))

    def _take(self, frame: bytes) -> None:
        correlation_id = int.from_bytes(frame[:4], "big", signed=True)
        waiting = self._waiting.get(correlation_id)
        if waiting is None:
            raise DecodeError(f"an answer to request {correlation_id}, which was not asked")
        api_key, version, answer = waiting
        if api_key == ApiKey.API_VERSIONS:
            message: Message = api.decode_api_versions(version, frame[4:])
        else:
            _, offset = header.decode_response_header(api_key, version, frame)
            message = codec.decode(api.response_class(api_key), version, frame, offset)
        del self._waiting[correlation_id]
        answer.set_result(message)

    def _end(self, why: ClientError) -> None:
        if self._ended is not None:
            return
        self._ended = why
        self._writer.close()
        waiting, self._waiting = self._waiting, {}
        for _, _, answer in waiting.values():
            answer.set_exception(type(why)(str(why)))

    def _timed_out(self, api_key: ApiKey) -> RequestTimedOut:
        """What the request at fault raises; those behind it would wait in vain as well."""
        why = RequestTimedOut(f"{self.address} did not answer {api_key.name} in time")
        self._end(ConnectionLost(str(why)))
        return why


def reason(error: OSError) -> str:
    """What the system says about a failed call, without numbers and addresses."""
    if isinstance(error, socket.gaierror):
        return "no such host"
    return os.strerror(error.errno).lower() if error.errno else str(error) or type(error).__name__


async def _connect(address: Address, until: float) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Try every address the name stands for, in the order the system gives."""
    failed: OSError | None = None
    try:
        async with asyncio.timeout_at(until):
            # Looking up a name may take longer than we have.
            found = await in_thread(socket.getaddrinfo, address.host, address.port, 0, socket.SOCK_STREAM)
            for index, (family, _, _, _, where) in enumerate(found):
                try:
                    async with asyncio.timeout_at(share_of(until, len(found) - index)):
                        return await asyncio.open_connection(str(where[0]), address.port, family=family)
                except OSError as error:  # TimeoutError as well
                    failed = error
        if isinstance(failed, TimeoutError):
            raise failed
    except TimeoutError:
        raise Unreachable(f"{address} does not let us connect: no answer in time") from None
    except (OSError, UnicodeError) as error:
        failed = error if isinstance(error, OSError) else socket.gaierror(str(error))
    assert failed is not None
    raise Unreachable(f"{address} does not let us connect: {reason(failed)}") from None


def _api_key(request: Message) -> ApiKey:
    api_key = request.__schema__.api_key
    assert api_key is not None, f"{type(request).__name__} is no request"
    return ApiKey(api_key)

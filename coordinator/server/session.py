"""From a request frame to a response frame: read it, take it through the gates, begin it, and turn the
outcome into an answer.

A request passes the gates in order, and each costs nothing where it has nothing to do:

    size          when its first bytes arrive (`apis.check_request_size`)
    authenticate  on SASL listeners, until the client is let in (`authentication`); what logs it in meets the
                  faults, but no other gate
    complete      where a client leaves out what the broker knows: fetch sessions (`fetch_sessions`)
    authorize     where ACLs are in force: what the API needs (`authorize`)
    faults        test mode's rules, if any concern its API
    quota         where a client has any: measures what the next step uses, and throttles (`quota_gate`)
    begin         `Api.begin`

Bytes that are not a request raise DecodeError, an API or version that is not served raises CloseConnection
(Kafka has no error response for either); both close the connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Final, Protocol, cast

from muster.coordinator.base.answers import IN_LINE, LATER, Later
from muster.coordinator.base.step import RequestContext
from muster.coordinator.server.api import Api, Begin
from muster.coordinator.server.apis import APIS
from muster.coordinator.server.apis.connection import unsupported_api_versions
from muster.coordinator.server.authentication import Authentication, Door
from muster.coordinator.server.authorize import decided
from muster.coordinator.server.connection import Connection
from muster.coordinator.server.serving import Broker
from muster.coordinator.server.unexpected import unexpected
from muster.coordinator.server.unserved import (
    CloseConnection,
    api_not_served,
    produce_failed,
    version_not_served,
)
from muster.coordinator.server.wire import Place, Response
from muster.protocol.api import ApiKey, request_class, versions
from muster.protocol.codec import decode_prefix
from muster.protocol.errors import EncodeError, KafkaError
from muster.protocol.header import (
    RequestHeader,
    decode_request_header,
    encode_response,
    encode_response_pieces,
)
from muster.protocol.message import Message
from muster.protocol.messages.data import ProduceRequest

_REPEATED_BYTES_MAX: Final = 1024
_REPEATED_MAX: Final = 2
"""Requests that a session remembers: a member's heartbeat and its commit. Longer ones are not remembered."""
_NO_ANSWER: Final = object()


class Gate(Protocol):
    """A gate that may hold a request back, or keep it from being begun."""

    def begins(self, asked: Asked) -> Begin | None:
        """What begins the request instead of its API; None: the API does."""


class QuotaGate(Protocol):
    """The quota gate, which wraps all gates after it."""

    def metered(self, asked: Asked, size_bytes: int) -> Begin:
        """What begins the request, of a frame of this size, and measures what it uses."""


class Sessions:
    """What the sessions of one broker have in common."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.elements_max = broker.settings.request_elements_max
        self.doors: Mapping[str, Door] = {}
        """How clients of SASL listeners are let in, by listener name."""
        self.faults: Gate | None = None
        """To be set only together with `Connections.forget`: remembered requests pass no gate."""
        self.quotas: QuotaGate | None = None
        """Likewise. None if no quotas are set."""

    def open(self, connection: Connection) -> Session:
        """The session of a connection that was accepted."""
        session = Session(self, connection)
        door = self.doors.get(connection.listener)
        if door is not None:
            session.authentication = Authentication(door, connection, session.let_in, session.forget)
        return session


class Session:
    """Answers the requests of one connection, one at a time."""

    __slots__ = (
        "_broker",
        "_context",
        "_remembered",
        "_sessions",
        "authentication",
        "connection",
        "principal",
    )

    def __init__(self, sessions: Sessions, connection: Connection) -> None:
        self.connection: Connection | None = connection
        """None when it has ended."""
        self.principal = connection.principal
        self.authentication: Authentication | None = None
        """None if clients need not authenticate."""
        self._sessions = sessions
        self._broker = sessions.broker
        self._context: RequestContext | None = None
        self._remembered: dict[bytes, Asked] = {}

    @property
    def client_id(self) -> str:
        return "" if self._context is None else self._context.client_id

    def let_in(self, principal: str) -> None:
        """The client has authenticated."""
        self.principal = principal
        self._context = None
        self.forget()
        if self.connection is not None:
            self.connection.wire.recognised()

    def forget(self) -> None:
        self._remembered.clear()

    def close(self) -> None:
        self._remembered.clear()
        if self.authentication is not None:
            self.authentication.close()
        self.connection = None

    def begin(self, frame: bytes) -> Response | None:
        """See connection.Session."""
        asked = self._remembered.get(frame[:4])
        if asked is None or frame[8 : asked.at] != asked.front or frame[asked.end :] != asked.tail:
            read = self._read(frame)
            if not isinstance(read, Asked):
                return read
            asked = read
        elif asked.update is not None:
            asked.update(frame, asked.at)
        asked.correlation = frame[4:8]
        answer: object
        try:
            answer = asked.begin(self._broker, asked.request, asked.context, asked.respond)
        except Exception as error:
            answer = error
        if answer is asked.answer:  # as in `Asked.response_to`; spares heartbeats the call
            return asked.response[:4] + frame[4:8] + asked.response[8:]
        if answer is LATER:
            return None
        if answer is IN_LINE:
            if self.connection is not None:
                asked.place = self.connection.enter_line(frame)
            return None
        if isinstance(answer, asyncio.Task):
            if self.connection is not None:
                self.connection.under_way(answer, asked.api.reads)
            return None
        return asked.response_to(answer)

    def _read(self, frame: bytes) -> Asked | Response | None:
        """The request, after it has passed the gates; None for a token without a header; or the response to
        ApiVersions in a version that is not served. Raises DecodeError and CloseConnection."""
        authentication = self.authentication
        taking: Authentication | None = None
        if authentication is not None and authentication.takes(frame):
            taking = authentication
            if taking.takes_bare_tokens:
                taking.step(frame)
                return None
        header, offset = decode_request_header(frame)
        api_key, version, correlation_id, client_id = header
        if taking is not None:
            taking.check(api_key)
        api = APIS.get(api_key)
        if api is None:
            raise CloseConnection(api_not_served(api_key))
        connection = self.connection
        assert connection is not None
        if authentication is None:
            connection.wire.recognised()
        if api.about_the_cluster and self._broker.membership.cut_off:
            # As long as it answered, clients would ask it and no other. Not sooner: librdkafka takes a broker
            # that closes during ApiVersions for one without groups, and never asks it again.
            raise CloseConnection(
                f"{api.key.name}: this broker cannot reach the store, the other brokers may"
            )
        declared = _declared(api_key, version)
        if declared is None:
            if api_key == ApiKey.API_VERSIONS:
                response, version = unsupported_api_versions(version)
                return encode_response(api_key, version, correlation_id, response)
            raise CloseConnection(version_not_served(api_key, version))
        # As in Kafka, what follows the message is ignored: librdkafka 2.16 leaves three bytes behind a
        # Metadata request for all topics (it writes the null array with the length of an old one).
        request, _ = decode_prefix(declared, version, frame, offset, self._sessions.elements_max)
        asked = Asked(self, api, header, request, self._context_of(version, client_id or ""))
        quotas = self._sessions.quotas
        if taking is not None:
            asked.begin = asked.allowed = taking.begin
            self._meets_faults(asked)
        elif authentication is not None and authentication.refuses:
            asked.begin = authentication.refuse
        elif api.complete is not None and (error := api.complete(self._broker, request, asked.context)):
            asked.begin = lambda *_: error
        elif self._broker.authorizer is None or self._authorize(asked):
            meets_faults = self._meets_faults(asked)
            if api.repeats is not None and not meets_faults and asked.begin is api.begin and quotas is None:
                self._remember(asked, frame, offset)
        if quotas is not None and taking is None and (authentication is None or authentication.is_in):
            # As in Kafka: who has not logged in could use up the quotas of any client id.
            asked.begin = quotas.metered(asked, len(frame))
        return asked

    def _meets_faults(self, asked: Asked) -> bool:
        """Whether the gate of the faults begins the request."""
        faults = self._sessions.faults
        begin = None if faults is None else faults.begins(asked)
        if begin is None:
            return False
        asked.begin = begin
        return True

    def _authorize(self, asked: Asked) -> bool:
        """Whether to begin the request, if only in part. Remembered requests have been allowed in full, to
        this principal, by the ACLs that are still in force (`Connections.forget`)."""
        broker, request, context = self._broker, asked.request, asked.context
        decision = decided(broker, asked.api, request, context)
        if isinstance(decision, KafkaError):
            error = decision
            asked.begin = lambda *_: error
            return False
        if decision is not None:
            asked.begin = asked.allowed = decision
        return True

    def _remember(self, asked: Asked, frame: bytes, offset: int) -> None:
        """Remember a request that its client may repeat: heartbeats differ only in the correlation id,
        commits of a partition only in that and the position. The same bytes decode to the same request, and
        the same answer encodes to the same bytes. The message begins at `offset`."""
        assert asked.api.repeats is not None
        if len(frame) > _REPEATED_BYTES_MAX:
            return
        repeated = asked.api.repeats(asked.request, asked.header.api_version, frame[offset:])
        if repeated is None:
            return
        asked.end = len(frame) - repeated.behind
        asked.at = asked.end - repeated.size
        asked.front, asked.tail = frame[8 : asked.at], frame[asked.end :]
        asked.update = repeated.update
        if len(self._remembered) >= _REPEATED_MAX:
            self._remembered.clear()
        self._remembered[frame[:4]] = asked

    def _context_of(self, api_version: int, client_id: str) -> RequestContext:
        """The context of a request. It hardly ever changes on a connection, so the last one made is kept."""
        made = self._context
        if made is None or made.api_version != api_version or made.client_id != client_id:
            connection = self.connection
            assert connection is not None
            made = self._context = RequestContext(
                api_version=api_version,
                client_id=client_id,
                client_host=connection.client_host,
                connection_id=connection.connection_id,
                listener=connection.listener,
                principal=self.principal,
            )
        return made

    async def handle(self, asked: Asked, request: Message) -> Message | None:
        """The answer to `request` instead of the one asked, which may be its refusal; None where the protocol
        has none. Raises CloseConnection."""
        later: asyncio.Future[object] = asyncio.get_running_loop().create_future()

        def answered(answer: object) -> None:
            if not later.done():
                later.set_result(answer)

        answer: object
        try:
            answer = asked.allowed(self._broker, request, asked.context, answered)
        except Exception as error:
            answer = error
        if isinstance(answer, Later | asyncio.Task):
            task = answer
            try:
                answer = await later
            except asyncio.CancelledError:
                if isinstance(task, asyncio.Task):
                    task.cancel()
                raise
        if isinstance(answer, Exception):
            return asked.refusal(answer, request)
        return cast("Message | None", answer)


class Asked:
    """A request that is being answered, or was, and may be repeated."""

    __slots__ = (
        "allowed",
        "answer",
        "api",
        "at",
        "begin",
        "context",
        "correlation",
        "end",
        "front",
        "header",
        "place",
        "request",
        "response",
        "session",
        "tail",
        "update",
    )

    def __init__(
        self, session: Session, api: Api, header: RequestHeader, request: Message, context: RequestContext
    ) -> None:
        self.session = session
        self.api = api
        self.begin = self.allowed = api.begin
        """`allowed`: what begins the part of the request that its client is allowed."""
        self.header = header
        self.request = request
        self.context = context
        self.place: Place | None = None
        """Its place in line, if it has one."""
        self.correlation = b""
        """The correlation id of the last repetition."""
        self.front: bytes | None = None  # after the correlation id, up to `at`; None: not remembered
        self.at = self.end = 0  # repetitions differ between these
        self.tail = b""
        self.update: Callable[[bytes, int], None] | None = None
        self.answer: object = _NO_ANSWER  # the last one, and the frame it became
        self.response = b""

    def respond(self, answer: object) -> None:
        """Send the answer, if it comes later."""
        connection = self.session.connection
        if connection is None:
            return
        try:
            response = self.response_to(answer)
        except Exception as error:  # must not reach the shard, which may call this
            connection.failed(error)
            return
        connection.respond(response, self.place)

    def response_to(self, answer: object) -> Response:
        """The frame of an answer; an answer that is a frame already is returned unchanged. Raises
        CloseConnection."""
        if answer is self.answer:
            return self.response[:4] + self.correlation + self.response[8:]
        if answer is None:
            return b""
        if isinstance(answer, bytes | list):
            return answer
        if isinstance(answer, Exception):
            return self.framed(self.refusal(answer, self.request))
        response = self.framed(cast(Message, answer))
        if self.front is not None:
            self.answer, self.response = answer, cast(bytes, response)
        return response

    def framed(self, answer: Message, version: int | None = None) -> Response:
        """The response frame of an answer, which may be in another version than the request."""
        api = self.api
        encode = encode_response_pieces if api.pieces else encode_response
        version = self.header.api_version if version is None else version
        correlation_id = int.from_bytes(self.correlation, "big", signed=True)
        try:
            return encode(api.key, version, correlation_id, answer)
        except EncodeError as error:
            # A response that its version cannot encode is our mistake; every version can encode the refusal.
            return encode(api.key, version, correlation_id, self.refusal(error, self.request))

    def refusal(self, error: Exception, request: Message) -> Message:
        """The answer to a request that failed. Raises CloseConnection."""
        if isinstance(error, CloseConnection):
            raise error
        if not isinstance(error, KafkaError):
            header = self.header
            error = unexpected(error, header.api_key, header.api_version, header.client_id)
        self.session._broker.unserved.refused(error, self.context)
        if isinstance(request, ProduceRequest) and request.acks == 0:
            # It gets no response, so closing is the protocol's only way to say that it failed.
            raise produce_failed(str(error))
        return self.api.refusal(request, self.header.api_version, error)


@lru_cache(maxsize=1024)
def _declared(api_key: int, version: int) -> type[Message] | None:
    """The request class of an API; None if the version is not served."""
    return request_class(api_key) if version in versions(api_key) else None

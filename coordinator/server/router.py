"""From a request frame to a response frame: decode, find the handler, and turn whatever it raises into an
answer.

Exactly the APIs in `HANDLERS` are advertised and served. A handler answers with a response, or None where the
protocol has no response (Produce with acks=0). It refuses with KafkaError, which becomes the API's refusal
(`refusals`); any other exception becomes UNKNOWN_SERVER_ERROR (KAFKA_STORAGE_ERROR when it was the store's)
and a line in the log, found by a reference that the client's error text carries. Bytes that are no request
raise DecodeError, an API or version not served raises CloseConnection (Kafka has no error response for
either); the connection closes on both.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final, cast

from muster.coordinator.group import sessions
from muster.coordinator.group.effects import RequestContext
from muster.coordinator.runtime.shard_host import LATER, Later
from muster.coordinator.server.at_once import AT_ONCE, Begin
from muster.coordinator.server.connection import CloseConnection, Connection
from muster.coordinator.server.handlers import (
    classic_group,
    cluster,
    configs,
    data,
    group_admin,
    metadata,
    offsets,
    topics,
    transactions,
)
from muster.coordinator.server.handlers import (
    connection as connections,
)
from muster.coordinator.server.refusals import REFUSALS
from muster.coordinator.server.unexpected import unexpected
from muster.protocol.api import ApiKey, request_class, versions
from muster.protocol.codec import decode_prefix
from muster.protocol.errors import DecodeError, EncodeError, KafkaError
from muster.protocol.header import RequestHeader, decode_request_header, encode_response
from muster.protocol.message import Message
from muster.protocol.messages.data import ProduceRequest

if TYPE_CHECKING:
    from muster.coordinator.server.broker import Broker

Handler = Callable[["Broker", Any, RequestContext], Awaitable[Message | None]]

HANDLERS: Final[dict[ApiKey, Handler]] = {
    ApiKey.PRODUCE: data.produce,
    ApiKey.FETCH: data.fetch,
    ApiKey.LIST_OFFSETS: data.list_offsets,
    ApiKey.METADATA: metadata.metadata,
    ApiKey.OFFSET_COMMIT: offsets.offset_commit,
    ApiKey.OFFSET_FETCH: offsets.offset_fetch,
    ApiKey.FIND_COORDINATOR: metadata.find_coordinator,
    ApiKey.JOIN_GROUP: classic_group.join_group,
    ApiKey.HEARTBEAT: classic_group.heartbeat,
    ApiKey.LEAVE_GROUP: classic_group.leave_group,
    ApiKey.SYNC_GROUP: classic_group.sync_group,
    ApiKey.DESCRIBE_GROUPS: group_admin.describe_groups,
    ApiKey.LIST_GROUPS: group_admin.list_groups,
    ApiKey.API_VERSIONS: connections.api_versions,
    ApiKey.CREATE_TOPICS: topics.create_topics,
    ApiKey.DELETE_TOPICS: topics.delete_topics,
    ApiKey.DELETE_RECORDS: data.delete_records,
    ApiKey.INIT_PRODUCER_ID: transactions.init_producer_id,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: data.offset_for_leader_epoch,
    ApiKey.CREATE_PARTITIONS: topics.create_partitions,
    ApiKey.DESCRIBE_CONFIGS: configs.describe_configs,
    ApiKey.ALTER_CONFIGS: configs.alter_configs,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: configs.incremental_alter_configs,
    ApiKey.LIST_CONFIG_RESOURCES: configs.list_config_resources,
    ApiKey.DELETE_GROUPS: group_admin.delete_groups,
    ApiKey.OFFSET_DELETE: offsets.offset_delete,
    ApiKey.DESCRIBE_CLUSTER: metadata.describe_cluster,
    ApiKey.DESCRIBE_LOG_DIRS: cluster.describe_log_dirs,
    ApiKey.ELECT_LEADERS: cluster.elect_leaders,
    ApiKey.DESCRIBE_PRODUCERS: transactions.describe_producers,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: metadata.describe_topic_partitions,
}

_ABANDONABLE: Final = frozenset({ApiKey.FETCH, ApiKey.LIST_OFFSETS, ApiKey.OFFSET_FOR_LEADER_EPOCH})
"""Requests that only read: when their connection is lost they are dropped, so that a Fetch that may wait for
days does not."""


_REPEATED_BYTES_MAX: Final = 1024
"""Longer heartbeats are not remembered: every connection may have one."""


class Router:
    """Answers the requests of one broker's connections."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._elements_max = broker.settings.request_elements_max

    async def answer(self, connection: Connection, frame: bytes) -> bytes | None:
        """The response frame, or None where the protocol has none. Raises DecodeError and CloseConnection."""
        header, offset = decode_request_header(frame)
        api_key, version, correlation_id, client_id = header
        handler = HANDLERS.get(api_key)  # type: ignore[call-overload]
        if handler is None:
            raise CloseConnection(f"{ApiKey(api_key).name} is not served")
        connection.recognised()
        if version not in versions(api_key):
            if api_key == ApiKey.API_VERSIONS:
                response, version = connections.unsupported_api_versions(version)
                return encode_response(api_key, version, correlation_id, response)
            raise CloseConnection(f"{ApiKey(api_key).name} v{version} is not served")
        # What follows the message is ignored, as Kafka does: librdkafka 2.16 leaves three bytes behind a
        # Metadata request for all topics (it writes the null array with the length of an old one).
        request, _ = decode_prefix(request_class(api_key), version, frame, offset, self._elements_max)
        context = connection.context(version, client_id or "")
        connection.abandonable(api_key in _ABANDONABLE)
        try:
            answer = await handler(self._broker, request, context)
        except KafkaError as error:
            answer = _refusal(request, header, error)
        except (CloseConnection, asyncio.CancelledError):
            raise
        except Exception as error:
            answer = _refusal(request, header, unexpected(error, api_key, version, client_id))
        finally:
            connection.abandonable(False)
        return None if answer is None else _frame(request, header, answer)

    def answer_at_once(self, connection: Connection, frame: bytes) -> bytes | Later | None:
        """The fast twin of `answer`, for what `AT_ONCE` can begin; see AnswerAtOnce. What is to be refused by
        closing the connection is left to `answer`."""
        asked: _Asked | None = connection.repeated
        if asked is None or frame[8:] != asked.behind or frame[:4] != asked.before:
            begin = AT_ONCE.get(HANDLERS.get((frame[0] << 8) | frame[1]))  # type: ignore[call-overload]
            asked = None if begin is None else self._read(connection, frame, begin)
            if asked is None:
                return None
        try:
            answer = asked.begin(
                self._broker, asked.request, asked.context, partial(_respond, connection, asked, frame)
            )
        except Exception as error:
            answer = unexpected(error, asked.header.api_key, asked.header.api_version, asked.header.client_id)
        if answer is sessions.ALIVE and asked.alive is not None:
            return asked.alive[:4] + frame[4:8] + asked.alive[8:]
        if answer is LATER or answer is None:
            return answer
        return asked.answered(frame, answer)

    def _read(self, connection: Connection, frame: bytes, begin: Begin) -> _Asked | None:
        """The request; None for one that cannot be read, or not in this version."""
        try:
            header, offset = decode_request_header(frame)
            api_key, version, _, client_id = header
            declared = _declared(api_key, version)
            if declared is None:
                return None
            request, _ = decode_prefix(declared, version, frame, offset, self._elements_max)
        except DecodeError:
            return None
        connection.recognised()
        asked = _Asked(begin, header, request, connection.context(version, client_id or ""))
        if api_key == ApiKey.HEARTBEAT and len(frame) <= _REPEATED_BYTES_MAX:
            asked.remember(frame)
            connection.repeated = asked
        return asked


class _Asked:
    """A request that is begun at once.

    A client sends the same heartbeat again and again, the same bytes but for the correlation id. So a
    connection remembers its last one: bytes that are the same decode to the same request, and the same answer
    encodes to the same bytes.
    """

    __slots__ = ("alive", "before", "begin", "behind", "context", "header", "request")

    def __init__(
        self, begin: Begin, header: RequestHeader, request: Message, context: RequestContext
    ) -> None:
        self.begin = begin
        self.header = header
        self.request = request
        self.context = context
        self.before = self.behind = b""
        self.alive: bytes | None = None

    def remember(self, frame: bytes) -> None:
        self.before, self.behind = frame[:4], frame[8:]
        self.alive = _frame(self.request, self.header, sessions.ALIVE)

    def answered(self, frame: bytes, answer: object) -> bytes:
        """The response frame to `frame`, which differs from the one read in the correlation id at most."""
        header = self.header
        if self.alive is not None:
            correlation_id = int.from_bytes(frame[4:8], "big", signed=True)
            header = header._replace(correlation_id=correlation_id)
        if isinstance(answer, KafkaError):
            answer = _refusal(self.request, header, answer)
        return _frame(self.request, header, cast(Message, answer))


@lru_cache(maxsize=1024)
def _declared(api_key: int, version: int) -> type[Message] | None:
    """The request of an API in a version; None in a version that is not served."""
    return request_class(api_key) if version in versions(api_key) else None


def _respond(connection: Connection, asked: _Asked, frame: bytes, answer: object) -> None:
    connection.respond(asked.answered(frame, answer))


def _frame(request: Message, header: RequestHeader, answer: Message) -> bytes:
    api_key, version, correlation_id, client_id = header
    try:
        return encode_response(api_key, version, correlation_id, answer)
    except EncodeError as error:
        # A response that its version cannot carry is a mistake of ours; every version can carry the refusal.
        refusal = _refusal(request, header, unexpected(error, api_key, version, client_id))
        return encode_response(api_key, version, correlation_id, refusal)


def _refusal(request: Message, header: RequestHeader, error: KafkaError) -> Message:
    if isinstance(request, ProduceRequest) and request.acks == 0:
        # Nothing is answered to it, so closing is all the protocol has to say that it failed.
        raise CloseConnection(f"a Produce with acks=0 failed: {error}")
    return REFUSALS[ApiKey(header.api_key)](request, header.api_version, error)

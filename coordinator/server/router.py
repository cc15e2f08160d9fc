"""From a request frame to a response frame: decode, find the handler, and turn whatever it raises into an
answer.

The APIs in `HANDLERS` are advertised and served, those in `REFUSED` advertised and refused. A handler answers
with a response, or None where the protocol has no response (Produce with acks=0). It refuses with KafkaError,
which becomes the API's refusal (`refusals`); any other exception becomes UNKNOWN_SERVER_ERROR
(KAFKA_STORAGE_ERROR when it was the store's) and a line in the log, found by a reference that the client's
error text carries. Bytes that are no request raise DecodeError, an API or version not served raises
CloseConnection (Kafka has no error response for either); the connection closes on both.
"""

from __future__ import annotations

import asyncio
import struct as structs
from collections.abc import Awaitable, Callable
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from muster.coordinator.group.effects import RequestContext
from muster.coordinator.runtime.shard_host import LATER, Later
from muster.coordinator.server.at_once import AT_ONCE, Begin
from muster.coordinator.server.connection import CloseConnection, Connection
from muster.coordinator.server.handlers import (
    classic_group,
    cluster,
    configs,
    data,
    features,
    group_admin,
    metadata,
    offsets,
    quotas,
    replicas,
    security,
    topics,
    transactions,
)
from muster.coordinator.server.handlers import (
    connection as connections,
)
from muster.coordinator.server.refusals import REFUSALS
from muster.coordinator.server.unexpected import unexpected
from muster.coordinator.server.unserved import REFUSED, api_not_served, version_not_served
from muster.protocol.api import ApiKey, request_class, versions
from muster.protocol.codec import decode_prefix, encode
from muster.protocol.compiler import Pieces
from muster.protocol.errors import DecodeError, EncodeError, KafkaError
from muster.protocol.header import (
    RequestHeader,
    decode_request_header,
    encode_response,
    encode_response_pieces,
)
from muster.protocol.message import Message
from muster.protocol.messages.classic_group import HeartbeatRequest
from muster.protocol.messages.data import ProduceRequest
from muster.protocol.messages.offsets import OffsetCommitRequest

if TYPE_CHECKING:
    from muster.coordinator.server.broker import Broker

F = TypeVar("F", bytes, "bytes | Pieces")

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
    ApiKey.ELECT_LEADERS: replicas.elect_leaders,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: replicas.alter_partition_reassignments,
    ApiKey.LIST_PARTITION_REASSIGNMENTS: replicas.list_partition_reassignments,
    ApiKey.DESCRIBE_PRODUCERS: transactions.describe_producers,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: metadata.describe_topic_partitions,
    ApiKey.UPDATE_FEATURES: features.update_features,
    ApiKey.DESCRIBE_CLIENT_QUOTAS: quotas.describe_client_quotas,
    ApiKey.ALTER_CLIENT_QUOTAS: quotas.alter_client_quotas,
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: security.describe_user_scram_credentials,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: security.alter_user_scram_credentials,
}

_ABANDONABLE: Final = frozenset({ApiKey.FETCH, ApiKey.LIST_OFFSETS, ApiKey.OFFSET_FOR_LEADER_EPOCH})
"""Requests that only read: when their connection is lost they are dropped, so that a Fetch that may wait for
days does not."""


APIS_AT_ONCE: Final = frozenset(int(api_key) for api_key, handler in HANDLERS.items() if handler in AT_ONCE)
"""What `Router.answer_at_once` can be asked."""

_REPEATED_BYTES_MAX: Final = 1024
_REPEATED_MAX: Final = 2
"""Requests that a connection remembers: a member's heartbeat and its commit. Longer ones are not."""

_POSITION: Final = structs.Struct(">qi")
"""Offset and leader epoch, as a commit has them."""
_BEHIND_POSITION_BYTES: Final = 4
_SHORT_BYTES_MAX: Final = 126
_TAGS_TO_COMMIT_FROM: Final = 8
_ABOUT_THE_CLUSTER: Final = frozenset(
    {ApiKey.METADATA, ApiKey.FIND_COORDINATOR, ApiKey.DESCRIBE_TOPIC_PARTITIONS}
)
"""What a broker that has lost sight of the cluster answers by closing the connection: as long as it answers,
clients go on asking it and no other. Not sooner: librdkafka takes a broker that closes during ApiVersions for
one without groups, and never asks it again."""
_NO_ANSWER: Final = object()


class Router:
    """Answers the requests of one broker's connections."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._elements_max = broker.settings.request_elements_max

    async def answer(self, connection: Connection, frame: bytes) -> bytes | Pieces | None:
        """The response frame, in pieces where it is large; None where the protocol has none. Raises
        DecodeError and CloseConnection."""
        read = self.read(connection, frame)
        if isinstance(read, bytes):
            return read
        header, request = read
        answer = await self.handle(connection, header, request)
        if answer is None:
            return None
        if header.api_key == ApiKey.FETCH:
            return _framed(encode_response_pieces, request, header, answer)
        return framed(request, header, answer)

    def read(self, connection: Connection, frame: bytes) -> tuple[RequestHeader, Message] | bytes:
        """The request; or the response frame to ApiVersions in a version that is not served. Raises
        DecodeError and CloseConnection."""
        header, offset = decode_request_header(frame)
        api_key, version, correlation_id, _ = header
        if api_key not in HANDLERS and api_key not in REFUSED:
            raise CloseConnection(api_not_served(api_key))
        connection.recognised()
        if api_key in _ABOUT_THE_CLUSTER and self._broker.membership.cut_off:
            raise CloseConnection(f"{ApiKey(api_key).name}: cut off from the store, others know")
        if version not in versions(api_key):
            if api_key == ApiKey.API_VERSIONS:
                response, version = connections.unsupported_api_versions(version)
                return encode_response(api_key, version, correlation_id, response)
            raise CloseConnection(version_not_served(api_key, version))
        # What follows the message is ignored, as Kafka does: librdkafka 2.16 leaves three bytes behind a
        # Metadata request for all topics (it writes the null array with the length of an old one).
        request, _ = decode_prefix(request_class(api_key), version, frame, offset, self._elements_max)
        return header, request

    async def handle(self, connection: Connection, header: RequestHeader, request: Message) -> Message | None:
        """The answer to a request, which may be its refusal; None where the protocol has none. Raises
        CloseConnection."""
        api_key, version, _, client_id = header
        context = connection.context(version, client_id or "")
        connection.abandonable(api_key in _ABANDONABLE)
        try:
            if api_key in REFUSED:
                raise REFUSED[ApiKey(api_key)](request)
            return await HANDLERS[ApiKey(api_key)](self._broker, request, context)
        except KafkaError as error:
            self._broker.connections.unserved.refused(error, context)
            return _refusal(request, header, error)
        except (CloseConnection, asyncio.CancelledError):
            raise
        except Exception as error:
            return _refusal(request, header, unexpected(error, api_key, version, client_id))
        finally:
            connection.abandonable(False)

    def answer_at_once(self, connection: Connection, frame: bytes) -> bytes | Later | None:
        """The fast twin of `answer`, for what `AT_ONCE` can begin; see AnswerAtOnce. What is to be refused by
        closing the connection is left to `answer`."""
        asked: _Asked | None = connection.repeated.get(frame[:4])
        if asked is None or frame[8 : asked.at] != asked.front or frame[asked.end :] != asked.tail:
            begin = AT_ONCE.get(HANDLERS.get((frame[0] << 8) | frame[1]))  # type: ignore[call-overload]
            asked = None if begin is None else self._read(connection, frame, begin)
            if asked is None:
                return None
        elif asked.position is not None:
            position = asked.position
            position.committed_offset, position.committed_leader_epoch = _POSITION.unpack_from(
                frame, asked.at
            )
        try:
            answer = asked.begin(
                self._broker, asked.request, asked.context, partial(_respond, connection, asked, frame)
            )
        except Exception as error:
            answer = unexpected(error, asked.header.api_key, asked.header.api_version, asked.header.client_id)
        if answer is asked.answer:  # as `answered` has it; a heartbeat does without the call
            return asked.response[:4] + frame[4:8] + asked.response[8:]
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
        if len(frame) <= _REPEATED_BYTES_MAX and asked.remember(frame, offset):
            if len(connection.repeated) >= _REPEATED_MAX:
                connection.repeated.clear()
            connection.repeated[frame[:4]] = asked
        return asked


class _Asked:
    """A request that is begun at once.

    A client sends the same heartbeat again and again, the same bytes but for the correlation id, and the same
    commit of a partition, but for that and the position. So a connection remembers its last ones: bytes that
    are the same decode to the same request, and the same answer encodes to the same bytes.
    """

    __slots__ = (
        "answer",
        "at",
        "begin",
        "context",
        "end",
        "front",
        "header",
        "position",
        "request",
        "response",
        "tail",
    )

    def __init__(
        self, begin: Begin, header: RequestHeader, request: Message, context: RequestContext
    ) -> None:
        self.begin = begin
        self.header = header
        self.request = request
        self.context = context
        self.front: bytes | None = None  # behind the correlation id, up to `at`; None: it is not remembered
        self.answer: object = _NO_ANSWER  # the last one, and the frame it became
        self.response = b""

    def remember(self, frame: bytes, offset: int) -> bool:
        """Keep what a repetition has in common with `frame`, whose message begins at `offset`; False for a
        request that is not repeated."""
        self.at = self.end = len(frame)
        self.position = None
        if isinstance(self.request, OffsetCommitRequest):
            self.position = _position(self.request, self.header.api_version, frame[offset:])
            if self.position is None:
                return False
            self.end -= len((self.position.committed_metadata or "").encode()) + _BEHIND_POSITION_BYTES
            self.at = self.end - _POSITION.size
        elif not isinstance(self.request, HeartbeatRequest):
            return False
        self.front, self.tail = frame[8 : self.at], frame[self.end :]
        return True

    def answered(self, frame: bytes, answer: object) -> bytes:
        """The response frame to `frame`, which is the one read or repeats it."""
        if answer is self.answer:
            return self.response[:4] + frame[4:8] + self.response[8:]
        header = self.header
        if self.front is not None:
            correlation_id = int.from_bytes(frame[4:8], "big", signed=True)
            header = header._replace(correlation_id=correlation_id)
        if isinstance(answer, KafkaError):
            return framed(self.request, header, _refusal(self.request, header, answer))
        self.answer, self.response = answer, framed(self.request, header, cast(Message, answer))
        return self.response


def _position(
    request: OffsetCommitRequest, version: int, message: bytes
) -> OffsetCommitRequest.Partition | None:
    """The partition of a commit that has one only, in bytes that say where it stands: with nothing behind its
    position but the metadata, the length of that in front of it, and three empty blocks of tags."""
    if version < _TAGS_TO_COMMIT_FROM or [len(topic.partitions) for topic in request.topics] != [1]:
        return None
    ((partition,),) = (topic.partitions for topic in request.topics)
    if len((partition.committed_metadata or "").encode()) > _SHORT_BYTES_MAX:
        return None  # its length takes more than a byte
    return partition if encode(request, version) == message else None


@lru_cache(maxsize=1024)
def _declared(api_key: int, version: int) -> type[Message] | None:
    """The request of an API in a version; None in a version that is not served."""
    return request_class(api_key) if version in versions(api_key) else None


def _respond(connection: Connection, asked: _Asked, frame: bytes, answer: object) -> None:
    try:
        response = asked.answered(frame, answer)
    except Exception as error:  # not the shard's fault, which calls this
        connection.failed(error)
        return
    connection.respond(response)


def framed(request: Message, header: RequestHeader, answer: Message) -> bytes:
    """The response frame of an answer."""
    return _framed(encode_response, request, header, answer)


def _framed(
    encode_: Callable[[int, int, int, Message], F], request: Message, header: RequestHeader, answer: Message
) -> F:
    api_key, version, correlation_id, client_id = header
    try:
        return encode_(api_key, version, correlation_id, answer)
    except EncodeError as error:
        # A response that its version cannot carry is a mistake of ours; every version can carry the refusal.
        refusal = _refusal(request, header, unexpected(error, api_key, version, client_id))
        return encode_(api_key, version, correlation_id, refusal)


def _refusal(request: Message, header: RequestHeader, error: KafkaError) -> Message:
    if isinstance(request, ProduceRequest) and request.acks == 0:
        # Nothing is answered to it, so closing is all the protocol has to say that it failed.
        raise CloseConnection(f"a Produce with acks=0 failed: {error}")
    return REFUSALS[ApiKey(header.api_key)](request, header.api_version, error)

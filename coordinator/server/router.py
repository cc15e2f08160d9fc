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
from typing import TYPE_CHECKING, Any, Final

from muster.coordinator.group.effects import RequestContext
from muster.coordinator.server.connection import CloseConnection, Connection
from muster.coordinator.server.handlers import (
    classic_group,
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
from muster.protocol.errors import EncodeError, KafkaError
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
    ApiKey.DELETE_GROUPS: group_admin.delete_groups,
    ApiKey.OFFSET_DELETE: offsets.offset_delete,
    ApiKey.DESCRIBE_CLUSTER: metadata.describe_cluster,
}

_ABANDONABLE: Final = frozenset({ApiKey.FETCH, ApiKey.LIST_OFFSETS, ApiKey.OFFSET_FOR_LEADER_EPOCH})
"""Requests that only read: when their connection is lost they are dropped, so that a Fetch that may wait for
days does not."""


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
        context = RequestContext(
            api_version=version,
            client_id=client_id or "",
            client_host=connection.client_host,
            connection_id=connection.connection_id,
        )
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
        if answer is None:
            return None
        try:
            return encode_response(api_key, version, correlation_id, answer)
        except EncodeError as error:
            # A response that its version cannot carry is a mistake of ours; every version can carry the
            # refusal.
            refusal = _refusal(request, header, unexpected(error, api_key, version, client_id))
            return encode_response(api_key, version, correlation_id, refusal)


def _refusal(request: Message, header: RequestHeader, error: KafkaError) -> Message:
    if isinstance(request, ProduceRequest) and request.acks == 0:
        # Nothing is answered to it, so closing is all the protocol has to say that it failed.
        raise CloseConnection(f"a Produce with acks=0 failed: {error}")
    return REFUSALS[ApiKey(header.api_key)](request, header.api_version, error)

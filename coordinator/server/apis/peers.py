"""Requests of brokers to each other, answered without the gates that clients come through."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from muster.coordinator.base.step import RequestContext
from muster.coordinator.server.apis.producers import write_txn_markers
from muster.coordinator.server.apis.transactions import add_partitions_to_txn
from muster.coordinator.server.serving import Broker
from muster.protocol.api import ApiKey
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.message import Message

_HANDLERS: Final[Mapping[ApiKey, Callable[[Broker, Any, RequestContext], Awaitable[Any]]]] = {
    ApiKey.ADD_PARTITIONS_TO_TXN: add_partitions_to_txn,
    ApiKey.WRITE_TXN_MARKERS: write_txn_markers,
}


async def answer_peer(broker: Broker, api: ApiKey, version: int, request: Message) -> Message:
    """The response to another broker, or to this one. Raises KafkaError."""
    handler = _HANDLERS.get(api)
    if handler is None:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"{api.name} is not a question for brokers")
    answer: Message = await handler(broker, request, RequestContext(version, "", "", 0))
    return answer

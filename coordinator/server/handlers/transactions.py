"""InitProducerId. There are no transactions yet, and whoever wants one is told at once and for good."""

from __future__ import annotations

from typing import TYPE_CHECKING

from muster.coordinator.group.effects import RequestContext
from muster.coordinator.server.handlers.metadata import NO_TRANSACTIONS
from muster.coordinator.storage.store import StoreError
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.transactions import InitProducerIdRequest, InitProducerIdResponse

if TYPE_CHECKING:
    from muster.coordinator.server.broker import Broker


async def init_producer_id(
    broker: Broker, request: InitProducerIdRequest, context: RequestContext
) -> InitProducerIdResponse:
    """A new id with epoch 0 for an idempotent producer.

    One that comes back with the id it has (KIP-360) gets a new one too, as from Kafka: only transactional ids
    keep theirs.
    """
    if request.transactional_id is not None:
        raise KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, NO_TRANSACTIONS)
    if (request.producer_id == -1) != (request.producer_epoch == -1):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "producer id and epoch belong together")
    try:
        producer_id = await broker.producer_ids.allocate()
    except StoreError as error:
        # Clients try again after it; the store may have recovered.
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(error)) from error
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)

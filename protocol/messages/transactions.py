"""Producer ids: InitProducerId. (The transactional requests follow when there are transactions.)"""

from __future__ import annotations

from muster.protocol.message import Message, field, request, response
from muster.protocol.types import Int16, Int32, Int64, String


@request(22, versions="0-5", flexible="2+")
class InitProducerIdRequest(Message):
    """InitProducerId v0-5: v1 no change here, v2 flexible, v3 the id and epoch the producer has, to continue
    after an error (KIP-360), v4-5 no change here. (v6, two-phase commit of KIP-939, is not stable and not
    spoken.)

    A null `transactional_id` asks for an idempotent producer.
    """

    transactional_id: str | None = field(String, "0+", nullable="0+")
    transaction_timeout_ms: int = field(Int32, "0+")
    producer_id: int = field(Int64, "3+", default=-1)
    producer_epoch: int = field(Int16, "3+", default=-1)


@response(22, versions="0-5", flexible="2+")
class InitProducerIdResponse(Message):
    """InitProducerId v0-5: v1 throttling after the reply, v2 flexible, v3 no change here, v4 PRODUCER_FENCED
    possible (KIP-588), v5 TRANSACTION_ABORTABLE possible (KIP-890)."""

    throttle_time_ms: int = field(Int32, "0+", default=0, ignorable=True)
    error_code: int = field(Int16, "0+", default=0)
    producer_id: int = field(Int64, "0+", default=-1)
    producer_epoch: int = field(Int16, "0+")

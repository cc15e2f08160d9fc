"""ConsumerGroupHeartbeat (KIP-848): refused, as by a Kafka with group.version=0."""

from __future__ import annotations

from typing import Any, Final

from muster.coordinator.base.answers import Answered
from muster.coordinator.base.step import RequestContext
from muster.coordinator.server.api import Api
from muster.coordinator.server.refusal import Refusal
from muster.coordinator.server.serving import Broker
from muster.coordinator.server.unserved import no_consumer_protocol
from muster.protocol.api import ApiKey


def no_groups(broker: Broker, request: Any, context: RequestContext, answered: Answered) -> object:
    return no_consumer_protocol()


APIS: Final = (
    Api(
        ApiKey.CONSUMER_GROUP_HEARTBEAT,
        no_groups,
        refuse=Refusal(fields={"member_epoch": 0, "heartbeat_interval_ms": 0}),
    ),
)

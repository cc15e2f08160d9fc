"""SaslHandshake, SaslAuthenticate: refused, as on a Kafka listener without SASL. On one with SASL
`authentication` answers them."""

from __future__ import annotations

from typing import Any, Final

from muster.coordinator.base.answers import Answered
from muster.coordinator.base.step import RequestContext
from muster.coordinator.server.api import Api
from muster.coordinator.server.needs import nothing
from muster.coordinator.server.serving import Broker
from muster.coordinator.server.unserved import no_sasl
from muster.protocol.api import ApiKey


def sasl(broker: Broker, request: Any, context: RequestContext, answered: Answered) -> object:
    return no_sasl(getattr(request, "mechanism", None))


_NEEDS: Final = nothing("who authenticates is not yet known")

APIS: Final = (
    Api(ApiKey.SASL_HANDSHAKE, sasl, needs=_NEEDS, reads=True),
    Api(ApiKey.SASL_AUTHENTICATE, sasl, needs=_NEEDS, reads=True),
)

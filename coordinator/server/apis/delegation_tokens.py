"""Delegation tokens: refused."""

from __future__ import annotations

from typing import Any, Final

from muster.coordinator.base.answers import Answered
from muster.coordinator.base.step import RequestContext
from muster.coordinator.server.api import Api
from muster.coordinator.server.needs import nothing
from muster.coordinator.server.refusal import Refusal
from muster.coordinator.server.serving import Broker
from muster.protocol.api import ApiKey
from muster.protocol.errors import ErrorCode, KafkaError


def no_tokens(broker: Broker, request: Any, context: RequestContext, answered: Answered) -> object:
    """Kafka answers this to every unauthenticated client, before it checks whether tokens are enabled."""
    return KafkaError(
        ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED,
        "delegation tokens need an authenticated connection, and muster has none",
    )


# The principal of a connection without authentication.
_ANYBODY: Final = {
    "principal_type": "User",
    "principal_name": "ANONYMOUS",
    "token_requester_principal_type": "User",
    "token_requester_principal_name": "ANONYMOUS",
}

_NEEDS: Final = nothing("there are no tokens")

APIS: Final = (
    Api(ApiKey.CREATE_DELEGATION_TOKEN, no_tokens, needs=_NEEDS, refuse=Refusal(fields=_ANYBODY)),
    Api(ApiKey.RENEW_DELEGATION_TOKEN, no_tokens, needs=_NEEDS),
    Api(ApiKey.EXPIRE_DELEGATION_TOKEN, no_tokens, needs=_NEEDS),
    Api(ApiKey.DESCRIBE_DELEGATION_TOKEN, no_tokens, needs=_NEEDS),
)

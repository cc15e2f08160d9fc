"""Delegation tokens: refused."""

from __future__ import annotations

from typing import Any, Final

from muster.coordinator.base.answers import Answered
from muster.coordinator.base.step import ANONYMOUS, RequestContext
from muster.coordinator.server.api import Api
from muster.coordinator.server.needs import nothing
from muster.coordinator.server.refusal import Refusal
from muster.coordinator.server.serving import Broker
from muster.protocol.api import ApiKey, response_class
from muster.protocol.errors import ErrorCode, KafkaError


def no_tokens(broker: Broker, request: Any, context: RequestContext, answered: Answered) -> KafkaError:
    """As Kafka without delegation.token.secret.key, which first refuses whoever has not authenticated."""
    if context.principal == ANONYMOUS:
        return KafkaError(
            ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED,
            "delegation tokens need an authenticated client, and muster has none",
        )
    return KafkaError(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED, "muster has no delegation tokens")


def no_change(broker: Broker, request: Any, context: RequestContext, answered: Answered) -> object:
    """What Kafka leaves to its controller: that has 0 for a time that is not there, and its brokers -1."""
    error = no_tokens(broker, request, context, answered)
    if error.code != ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED:
        return error
    fields: dict[str, Any] = {"expiry_timestamp_ms": 0}
    key = request.__schema__.api_key
    if key == ApiKey.CREATE_DELEGATION_TOKEN:
        fields |= {"issue_timestamp_ms": 0, "max_timestamp_ms": 0, **_named(context.principal)}
    return Refusal(fields=fields).of(response_class(key), request, context.api_version, error)


def _named(principal: str) -> dict[str, str]:
    """The fields of CreateDelegationToken that say whose token it would be, and who asked for it."""
    type, _, name = principal.partition(":")
    return {
        "principal_type": type,
        "principal_name": name,
        "token_requester_principal_type": type,
        "token_requester_principal_name": name,
    }


_NEEDS: Final = nothing("there are no tokens")

APIS: Final = (
    Api(ApiKey.CREATE_DELEGATION_TOKEN, no_change, needs=_NEEDS, refuse=Refusal(fields=_named(ANONYMOUS))),
    Api(ApiKey.RENEW_DELEGATION_TOKEN, no_change, needs=_NEEDS),
    Api(ApiKey.EXPIRE_DELEGATION_TOKEN, no_change, needs=_NEEDS),
    Api(ApiKey.DESCRIBE_DELEGATION_TOKEN, no_tokens, needs=_NEEDS),
)

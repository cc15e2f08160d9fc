"""DescribeAcls, CreateAcls, DeleteAcls: refused, as by a Kafka without an authorizer."""

from __future__ import annotations

from typing import Any, Final

from muster.coordinator.base.answers import Answered
from muster.coordinator.base.step import RequestContext
from muster.coordinator.server.api import Api
from muster.coordinator.server.refusal import listing
from muster.coordinator.server.serving import Broker
from muster.protocol.api import ApiKey
from muster.protocol.errors import ErrorCode, KafkaError


def no_acls(broker: Broker, request: Any, context: RequestContext, answered: Answered) -> object:
    return KafkaError(ErrorCode.SECURITY_DISABLED, "No authorizer is configured: muster has no ACLs")


APIS: Final = (
    Api(ApiKey.DESCRIBE_ACLS, no_acls),
    Api(ApiKey.CREATE_ACLS, no_acls, refuse=listing("results", "creations")),
    Api(ApiKey.DELETE_ACLS, no_acls, refuse=listing("filter_results", "filters")),
)

"""DescribeClientQuotas, AlterClientQuotas (KIP-546): muster enforces no quotas, so there are none to
describe, and none can be set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from muster.coordinator.base.step import RequestContext
from muster.coordinator.server.api import Api
from muster.coordinator.server.needs import Needs, cluster
from muster.coordinator.server.refusal import Each, Refusal
from muster.coordinator.server.serving import Broker
from muster.protocol.api import ApiKey
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.acls import Operation
from muster.protocol.messages.quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)

_IP: Final = "ip"
_ENTITY_TYPES: Final = frozenset({"user", "client-id", _IP})
_EXACT, _DEFAULT, _ANY = range(3)


async def describe_client_quotas(
    broker: Broker, request: DescribeClientQuotasRequest, context: RequestContext
) -> DescribeClientQuotasResponse:
    """Nothing; or, as in Kafka, INVALID_REQUEST for a filter that means nothing, UNSUPPORTED_VERSION for one
    by an unknown type of entity."""
    for each in request.components:
        if each.match_type not in (_EXACT, _DEFAULT, _ANY):
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown match type {each.match_type}")
        if (each.match is not None) != (each.match_type == _EXACT):
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, "an exact match must name an entity, and no other match type may"
            )
        if each.entity_type == "":
            raise KafkaError(ErrorCode.INVALID_REQUEST, "the entity type is empty")
        if each.entity_type not in _ENTITY_TYPES:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"unknown entity type {each.entity_type}")
    _check_types([each.entity_type for each in request.components])
    return DescribeClientQuotasResponse(error_message=None, entries=[])


async def alter_client_quotas(
    broker: Broker, request: AlterClientQuotasRequest, context: RequestContext
) -> AlterClientQuotasResponse:
    """INVALID_REQUEST for each entity that a quota is to be set for. To remove one that is not there
    succeeds, as in Kafka."""
    return AlterClientQuotasResponse(entries=[_altered(each, _unaltered(each)) for each in request.entries])


def _altered(
    entry: AlterClientQuotasRequest.EntryData, error: KafkaError | None
) -> AlterClientQuotasResponse.EntryData:
    Told = AlterClientQuotasResponse.EntryData
    return Told(
        error_code=ErrorCode.NONE if error is None else error.code,
        error_message=None if error is None else error.why,
        entity=[
            Told.EntityData(entity_type=each.entity_type, entity_name=each.entity_name)
            for each in entry.entity
        ],
    )


def _unaltered(entry: AlterClientQuotasRequest.EntryData) -> KafkaError | None:
    try:
        _check_entity(entry.entity)
    except KafkaError as error:
        return error
    setting = [each.key for each in entry.ops if not each.remove]
    if not setting:
        return None
    return KafkaError(
        ErrorCode.INVALID_REQUEST, f"muster enforces no quotas, so {', '.join(setting)} cannot be set"
    )


def _check_entity(entity: Sequence[AlterClientQuotasRequest.EntryData.EntityData]) -> None:
    if not entity:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "the entity has no type")
    for each in entity:
        if each.entity_type not in _ENTITY_TYPES:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"unknown entity type {each.entity_type}")
        if each.entity_name == "":
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"the {each.entity_type} entity's name is empty")
    _check_types([each.entity_type for each in entity])


def _check_types(types: Sequence[str]) -> None:
    if len(set(types)) < len(types):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "an entity type is named twice")
    if _IP in types and len(types) > 1:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "an ip cannot be combined with a user or a client id")


APIS: Final = (
    Api(
        ApiKey.DESCRIBE_CLIENT_QUOTAS,
        describe_client_quotas,
        needs=Needs((cluster(Operation.DESCRIBE_CONFIGS),)),
    ),
    Api(
        ApiKey.ALTER_CLIENT_QUOTAS,
        alter_client_quotas,
        needs=Needs((cluster(Operation.ALTER_CONFIGS),)),
        refuse=Refusal((Each("entries", "entries", Each("entity", "entity")),)),
    ),
)

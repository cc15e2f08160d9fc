"""DescribeClientQuotas, AlterClientQuotas (KIP-546)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from muster.coordinator.base.step import RequestContext
from muster.coordinator.security.quotas import (
    ENTITY_TYPES,
    Component,
    Entity,
    check_types,
    check_value,
    entity_of,
    selected,
)
from muster.coordinator.server.api import Api
from muster.coordinator.server.apis.several import Attempts
from muster.coordinator.server.kept_quotas import Changed
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

_EXACT, _DEFAULT, _ANY = range(3)

_Described = DescribeClientQuotasResponse.EntryData
_Altered = AlterClientQuotasResponse.EntryData
_Asked = AlterClientQuotasRequest.EntryData


async def describe_client_quotas(
    broker: Broker, request: DescribeClientQuotasRequest, context: RequestContext
) -> DescribeClientQuotasResponse:
    """The quotas of the entities that meet every condition. As in Kafka, INVALID_REQUEST for a meaningless
    condition, UNSUPPORTED_VERSION for one with an unknown entity type."""
    components = [_component(each) for each in request.components]
    check_types(each.type for each in components)
    found = selected(broker.quotas.in_force, components, strict=request.strict)
    return DescribeClientQuotasResponse(
        error_message=None,
        entries=[
            _Described(
                entity=[
                    _Described.EntityData(entity_type=type, entity_name=name)
                    for type, name in sorted(entity, key=lambda part: part[0], reverse=True)
                ],
                values=[_Described.ValueData(key=key, value=value) for key, value in sorted(values.items())],
            )
            for entity, values in found
        ],
    )


def _component(asked: DescribeClientQuotasRequest.ComponentData) -> Component:
    if asked.match_type not in (_EXACT, _DEFAULT, _ANY):
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown match type {asked.match_type}")
    if (asked.match is not None) != (asked.match_type == _EXACT):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, "an exact match must name an entity, and no other match type may"
        )
    if asked.entity_type == "":
        raise KafkaError(ErrorCode.INVALID_REQUEST, "the entity type is empty")
    if asked.entity_type not in ENTITY_TYPES:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"unknown entity type {asked.entity_type}")
    return Component(asked.entity_type, asked.match_type != _ANY, asked.match)


async def alter_client_quotas(
    broker: Broker, request: AlterClientQuotasRequest, context: RequestContext
) -> AlterClientQuotasResponse:
    """Set and remove quotas, one entity after the other: refusing one does not affect the others. Removing a
    quota that is not set succeeds."""
    attempts = Attempts(ApiKey.ALTER_CLIENT_QUOTAS, context)
    named = [frozenset(map(_part, entry.entity)) for entry in request.entries]
    times = Counter(named)
    entries: dict[Entity, _Altered] = {}
    for entry, entity in zip(request.entries, named, strict=True):
        if entity in entries:
            continue
        error: KafkaError | None = None
        try:
            checked = entity_of(map(_part, entry.entity))
            if times[entity] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "the entity is named twice")
            changed = _changed(checked, entry.ops)
            if not request.validate_only:
                await attempts.make(broker.quotas.alter(checked, changed))
        except KafkaError as refused:
            error = refused
        entries[entity] = _told(entry, error)
    return AlterClientQuotasResponse(entries=list(entries.values()))


def _part(asked: _Asked.EntityData) -> tuple[str, str | None]:
    return asked.entity_type, asked.entity_name


def _changed(entity: Entity, ops: Iterable[_Asked.OpData]) -> Changed:
    changed: dict[str, float | None] = {}
    for each in ops:
        if each.key in changed:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"the quota {each.key} is named twice")
        if not each.remove:  # removing what cannot exist succeeds, as in Kafka
            check_value(entity, each.key, each.value)
        changed[each.key] = None if each.remove else each.value
    return changed


def _told(asked: _Asked, error: KafkaError | None) -> _Altered:
    return _Altered(
        error_code=ErrorCode.NONE if error is None else error.code,
        error_message=None if error is None else error.why,
        entity=[
            _Altered.EntityData(entity_type=each.entity_type, entity_name=each.entity_name)
            for each in asked.entity
        ],
    )


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

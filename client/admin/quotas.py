"""Client quotas: describe, set, remove (KIP-546)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Final, NamedTuple

from muster.client.admin.answers import Outcomes, of_controller, refused
from muster.client.errors import refusal
from muster.client.network.cluster import ANY, Cluster
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)

QUOTAS: Final = (
    "producer_byte_rate",
    "consumer_byte_rate",
    "request_percentage",
    "controller_mutation_rate",
    "connection_creation_rate",
)
"""Kafka's quota names; the last applies to IP addresses, the others to users and client ids."""

_USER, _CLIENT_ID, _IP = "user", "client-id", "ip"
_EXACTLY, _DEFAULT, _ANY = range(3)


class QuotaName(Enum):
    """Used in place of a name."""

    DEFAULT = "default"
    """The default, for all without a quota by name."""
    ANY = "any"
    """When describing: every name, and the default."""


Name = str | QuotaName


class QuotaEntity(NamedTuple):
    """What a quota applies to: a user, a client id, a user together with a client id, or an IP address. A
    part that is None is left out."""

    user: Name | None = None
    client_id: Name | None = None
    ip: Name | None = None

    def __str__(self) -> str:
        parts = [
            _WORDS[name].format(kind) if isinstance(name, QuotaName) else f"{kind} {name}"
            for kind, name in (("user", self.user), ("client id", self.client_id), ("address", self.ip))
            if name is not None
        ]
        return " with ".join(parts) or "nobody"

    def _parts(self) -> Iterator[tuple[str, Name]]:
        for kind, name in ((_USER, self.user), (_CLIENT_ID, self.client_id), (_IP, self.ip)):
            if name is not None:
                yield kind, name


Quotas = Mapping[str, float]
"""An entity's quotas, by Kafka's names: bytes per second, percent of a thread, partitions or connections per
second."""


async def describe_client_quotas(
    cluster: Cluster, entity: QuotaEntity, until: float, *, strict: bool = False
) -> dict[QuotaEntity, Quotas]:
    """The quotas of every entity that has the parts of this one and, if `strict`, no others."""
    Component = DescribeClientQuotasRequest.ComponentData
    request = DescribeClientQuotasRequest(
        components=[
            Component(
                entity_type=kind,
                match_type=_MATCH[name] if isinstance(name, QuotaName) else _EXACTLY,
                match=name if isinstance(name, str) else None,
            )
            for kind, name in entity._parts()
        ],
        strict=strict,
    )

    async def ask() -> DescribeClientQuotasResponse:
        response: DescribeClientQuotasResponse = await cluster.call(request, until, node=ANY)
        if response.error_code:
            raise refusal(response.error_code, response.error_message)
        return response

    response = await cluster.retrying(ask, until)
    return {
        _entity({part.entity_type: part.entity_name for part in entry.entity}): {
            each.key: each.value for each in entry.values
        }
        for entry in response.entries or ()
    }


async def alter_client_quotas(
    cluster: Cluster,
    changes: Mapping[QuotaEntity, Mapping[str, float | None]],
    until: float,
    *,
    validate_only: bool = False,
) -> Outcomes[QuotaEntity, None]:
    """Set the quotas of entities; None removes one. Raises ValueError for an entity with QuotaName.ANY."""
    for entity in changes:
        if any(name is QuotaName.ANY for _, name in entity._parts()):
            raise ValueError(f"changes: {entity} stands for many; quotas are set one entity at a time")
    Entry = AlterClientQuotasRequest.EntryData

    async def ask(node: int, wanted: list[QuotaEntity]) -> dict[QuotaEntity, KafkaError | None]:
        request = AlterClientQuotasRequest(
            entries=[
                Entry(
                    entity=[
                        Entry.EntityData(
                            entity_type=kind, entity_name=name if isinstance(name, str) else None
                        )
                        for kind, name in each._parts()
                    ],
                    ops=[
                        Entry.OpData(key=key, value=0.0 if value is None else value, remove=value is None)
                        for key, value in changes[each].items()
                    ],
                )
                for each in wanted
            ],
            validate_only=validate_only,
        )
        response: AlterClientQuotasResponse = await cluster.call(request, until, node=node)
        told = {
            _entity({part.entity_type: part.entity_name for part in entry.entity}): refused(
                entry.error_code, entry.error_message
            )
            for entry in response.entries
        }
        return {each: told.get(each, _LEFT_OUT) for each in wanted}

    return await of_controller(cluster, changes, ask, until, api="AlterClientQuotas")


_WORDS: Final = {QuotaName.DEFAULT: "the default {}", QuotaName.ANY: "any {}"}
_MATCH: Final = {QuotaName.DEFAULT: _DEFAULT, QuotaName.ANY: _ANY}
_LEFT_OUT: Final = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "the broker did not say what became of it")


def _entity(names: Mapping[str, str | None]) -> QuotaEntity:
    def name(kind: str) -> Name | None:
        found = names.get(kind)
        return QuotaName.DEFAULT if found is None and kind in names else found

    return QuotaEntity(name(_USER), name(_CLIENT_ID), name(_IP))

"""Client quotas: DescribeClientQuotas, AlterClientQuotas."""

from __future__ import annotations

from muster.protocol.message import Message, Struct, field, request, response, struct
from muster.protocol.types import Array, Boolean, Float64, Int8, Int16, Int32, String


@request(48, versions="0-1", flexible="1+")
class DescribeClientQuotasRequest(Message):
    """DescribeClientQuotas v0-1 (KIP-546): v1 flexible.

    `match_type` 0: the name in `match`; 1: the default entity; 2: any name. `strict`: entities of exactly
    these types.
    """

    @struct
    class ComponentData(Struct):
        entity_type: str = field(String, "0+")
        match_type: int = field(Int8, "0+")
        match: str | None = field(String, "0+", nullable="0+")

    components: list[ComponentData] = field(Array(ComponentData), "0+")
    strict: bool = field(Boolean, "0+")


@response(48, versions="0-1", flexible="1+")
class DescribeClientQuotasResponse(Message):
    """DescribeClientQuotas v0-1 (KIP-546): v1 flexible. `entity_name` null is the default entity."""

    @struct
    class EntryData(Struct):
        @struct
        class EntityData(Struct):
            entity_type: str = field(String, "0+")
            entity_name: str | None = field(String, "0+", nullable="0+")

        @struct
        class ValueData(Struct):
            key: str = field(String, "0+")
            value: float = field(Float64, "0+")

        entity: list[EntityData] = field(Array(EntityData), "0+")
        values: list[ValueData] = field(Array(ValueData), "0+")

    throttle_time_ms: int = field(Int32, "0+", default=0)
    error_code: int = field(Int16, "0+", default=0)
    error_message: str | None = field(String, "0+", nullable="0+")
    entries: list[EntryData] | None = field(Array(EntryData), "0+", nullable="0+")


@request(49, versions="0-1", flexible="1+")
class AlterClientQuotasRequest(Message):
    """AlterClientQuotas v0-1 (KIP-546): v1 flexible. `entity_name` null is the default entity."""

    @struct
    class EntryData(Struct):
        @struct
        class EntityData(Struct):
            entity_type: str = field(String, "0+")
            entity_name: str | None = field(String, "0+", nullable="0+")

        @struct
        class OpData(Struct):
            key: str = field(String, "0+")
            value: float = field(Float64, "0+")
            remove: bool = field(Boolean, "0+")

        entity: list[EntityData] = field(Array(EntityData), "0+")
        ops: list[OpData] = field(Array(OpData), "0+")

    entries: list[EntryData] = field(Array(EntryData), "0+")
    validate_only: bool = field(Boolean, "0+")


@response(49, versions="0-1", flexible="1+")
class AlterClientQuotasResponse(Message):
    """AlterClientQuotas v0-1 (KIP-546): v1 flexible. One entry for each entity."""

    @struct
    class EntryData(Struct):
        @struct
        class EntityData(Struct):
            entity_type: str = field(String, "0+")
            entity_name: str | None = field(String, "0+", nullable="0+")

        error_code: int = field(Int16, "0+", default=0)
        error_message: str | None = field(String, "0+", nullable="0+")
        entity: list[EntityData] = field(Array(EntityData), "0+")

    throttle_time_ms: int = field(Int32, "0+", default=0)
    entries: list[EntryData] = field(Array(EntryData), "0+")

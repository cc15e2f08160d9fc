"""Configs of topics, brokers and groups: DescribeConfigs, AlterConfigs, IncrementalAlterConfigs,
ListConfigResources."""

from __future__ import annotations

from enum import IntEnum
from typing import TypeAlias

from muster.protocol.message import Message, Struct, field, request, response, struct
from muster.protocol.types import Array, Boolean, Int8, Int16, Int32, String


class ResourceType(IntEnum):
    """Resources that have configs: `resource_type` of these messages (Kafka's ConfigResource.Type)."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


@request(32, versions="1-4", flexible="4+")
class DescribeConfigsRequest(Message):
    """DescribeConfigs v1-4 (KIP-133): v1 synonyms (KIP-226), v2 throttling after the reply, v3 type and
    documentation (KIP-569), v4 flexible.

    Null `configuration_keys` ask for all; Apache Kafka treats an empty list the same way.
    """

    @struct
    class DescribeConfigsResource(Struct):
        resource_type: int = field(Int8, "0+")
        resource_name: str = field(String, "0+")
        configuration_keys: list[str] | None = field(Array(String), "0+", nullable="0+")

    resources: list[DescribeConfigsResource] = field(Array(DescribeConfigsResource), "0+")
    include_synonyms: bool = field(Boolean, "1+", default=False)
    include_documentation: bool = field(Boolean, "3+", default=False)


@response(32, versions="1-4", flexible="4+")
class DescribeConfigsResponse(Message):
    """DescribeConfigs v1-4 (KIP-133): v1 the config's source and synonyms (KIP-226), v2 throttling after the
    reply, v3 type and documentation (KIP-569), v4 flexible.

    The value of a sensitive config is null.
    """

    @struct
    class DescribeConfigsResult(Struct):
        @struct
        class DescribeConfigsResourceResult(Struct):
            @struct
            class DescribeConfigsSynonym(Struct):
                name: str = field(String, "1+")
                value: str | None = field(String, "1+", nullable="0+")
                source: int = field(Int8, "1+")

            name: str = field(String, "0+")
            value: str | None = field(String, "0+", nullable="0+")
            read_only: bool = field(Boolean, "0+")
            config_source: int = field(Int8, "1+", default=-1, ignorable=True)
            is_sensitive: bool = field(Boolean, "0+")
            synonyms: list[DescribeConfigsSynonym] = field(
                Array(DescribeConfigsSynonym), "1+", default_factory=list, ignorable=True
            )
            config_type: int = field(Int8, "3+", default=0, ignorable=True)
            documentation: str | None = field(String, "3+", nullable="0+", default="", ignorable=True)

        DescribeConfigsSynonym: TypeAlias = DescribeConfigsResourceResult.DescribeConfigsSynonym  # type: ignore[misc]

        error_code: int = field(Int16, "0+")
        error_message: str | None = field(String, "0+", nullable="0+")
        resource_type: int = field(Int8, "0+")
        resource_name: str = field(String, "0+")
        configs: list[DescribeConfigsResourceResult] = field(Array(DescribeConfigsResourceResult), "0+")

    DescribeConfigsResourceResult: TypeAlias = DescribeConfigsResult.DescribeConfigsResourceResult  # type: ignore[misc]

    throttle_time_ms: int = field(Int32, "0+", default=0)
    results: list[DescribeConfigsResult] = field(Array(DescribeConfigsResult), "0+")


@request(33, versions="0-2", flexible="2+")
class AlterConfigsRequest(Message):
    """AlterConfigs v0-2 (KIP-133): v1 throttling after the reply, v2 flexible.

    Configs of a resource that the request does not name revert to their defaults.
    """

    @struct
    class AlterConfigsResource(Struct):
        @struct
        class AlterableConfig(Struct):
            name: str = field(String, "0+")
            value: str | None = field(String, "0+", nullable="0+")

        resource_type: int = field(Int8, "0+")
        resource_name: str = field(String, "0+")
        configs: list[AlterableConfig] = field(Array(AlterableConfig), "0+")

    AlterableConfig: TypeAlias = AlterConfigsResource.AlterableConfig  # type: ignore[misc]

    resources: list[AlterConfigsResource] = field(Array(AlterConfigsResource), "0+")
    validate_only: bool = field(Boolean, "0+")


@response(33, versions="0-2", flexible="2+")
class AlterConfigsResponse(Message):
    """AlterConfigs v0-2 (KIP-133): v1 throttling after the reply, v2 flexible."""

    @struct
    class AlterConfigsResourceResponse(Struct):
        error_code: int = field(Int16, "0+")
        error_message: str | None = field(String, "0+", nullable="0+")
        resource_type: int = field(Int8, "0+")
        resource_name: str = field(String, "0+")

    throttle_time_ms: int = field(Int32, "0+", default=0)
    responses: list[AlterConfigsResourceResponse] = field(Array(AlterConfigsResourceResponse), "0+")


@request(44, versions="0-1", flexible="1+")
class IncrementalAlterConfigsRequest(Message):
    """IncrementalAlterConfigs v0-1 (KIP-339): v1 flexible.

    `config_operation`: 0 SET, 1 DELETE, 2 APPEND, 3 SUBTRACT.
    """

    @struct
    class AlterConfigsResource(Struct):
        @struct
        class AlterableConfig(Struct):
            name: str = field(String, "0+")
            config_operation: int = field(Int8, "0+")
            value: str | None = field(String, "0+", nullable="0+")

        resource_type: int = field(Int8, "0+")
        resource_name: str = field(String, "0+")
        configs: list[AlterableConfig] = field(Array(AlterableConfig), "0+")

    AlterableConfig: TypeAlias = AlterConfigsResource.AlterableConfig  # type: ignore[misc]

    resources: list[AlterConfigsResource] = field(Array(AlterConfigsResource), "0+")
    validate_only: bool = field(Boolean, "0+")


@response(44, versions="0-1", flexible="1+")
class IncrementalAlterConfigsResponse(Message):
    """IncrementalAlterConfigs v0-1 (KIP-339): v1 flexible."""

    @struct
    class AlterConfigsResourceResponse(Struct):
        error_code: int = field(Int16, "0+")
        error_message: str | None = field(String, "0+", nullable="0+")
        resource_type: int = field(Int8, "0+")
        resource_name: str = field(String, "0+")

    throttle_time_ms: int = field(Int32, "0+", default=0)
    responses: list[AlterConfigsResourceResponse] = field(Array(AlterConfigsResourceResponse), "0+")


@request(74, versions="0-1", flexible="0+")
class ListConfigResourcesRequest(Message):
    """ListConfigResources v0-1: v0 client metrics only (KIP-714), v1 the requested types, none meaning all
    (KIP-1142)."""

    resource_types: list[int] = field(Array(Int8), "1+", default_factory=list)


@response(74, versions="0-1", flexible="0+")
class ListConfigResourcesResponse(Message):
    """ListConfigResources v0-1: v0 client metrics only (KIP-714), v1 each resource's type (KIP-1142)."""

    @struct
    class ConfigResource(Struct):
        resource_name: str = field(String, "0+")
        resource_type: int = field(Int8, "1+", default=16, ignorable=True)

    throttle_time_ms: int = field(Int32, "0+", default=0)
    error_code: int = field(Int16, "0+")
    config_resources: list[ConfigResource] = field(Array(ConfigResource), "0+")

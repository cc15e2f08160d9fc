"""Configs of topics, brokers and groups: describe, alter."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import partial
from typing import Final, NamedTuple, Self

from muster.client.admin.answers import Outcomes, controller, of_nodes, present, refused
from muster.client.errors import refusal
from muster.client.network.cluster import ANY, Cluster
from muster.protocol.errors import KafkaError
from muster.protocol.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    IncrementalAlterConfigsRequest,
)
from muster.protocol.messages.configs import ResourceType as ResourceType


class ConfigResource(NamedTuple):
    """A resource that has configs."""

    type: ResourceType
    name: str

    @classmethod
    def of_topic(cls, name: str) -> Self:
        return cls(ResourceType.TOPIC, name)

    @classmethod
    def of_broker(cls, node_id: int | None = None) -> Self:
        """A broker; None is the cluster-wide default."""
        return cls(ResourceType.BROKER, "" if node_id is None else str(node_id))

    @classmethod
    def of_broker_logger(cls, node_id: int) -> Self:
        """The log levels of a broker."""
        return cls(ResourceType.BROKER_LOGGER, str(node_id))

    @classmethod
    def of_group(cls, group_id: str) -> Self:
        return cls(ResourceType.GROUP, group_id)

    def __str__(self) -> str:
        kind = self.type.name.lower().replace("_", " ")
        return f"{kind} {self.name}" if self.name else f"every {kind}"


class ConfigSource(StrEnum):
    """Where a config was set."""

    UNKNOWN = "unknown"
    TOPIC = "topic"
    DYNAMIC_BROKER = "dynamic broker"
    DYNAMIC_DEFAULT_BROKER = "dynamic cluster"
    STATIC_BROKER = "broker"
    DEFAULT = "default"
    DYNAMIC_BROKER_LOGGER = "broker logger"
    CLIENT_METRICS = "client metrics"
    GROUP = "group"


_SOURCES: Final = dict(enumerate(ConfigSource))
"""By Kafka's numbers, which follow this order."""


class ConfigSynonym(NamedTuple):
    """One source of a config's value; the first one that is set wins."""

    name: str
    value: str | None
    source: ConfigSource


class Config(NamedTuple):
    """A config in effect. The value is None if it is sensitive; `documentation` is None unless requested."""

    name: str
    value: str | None
    source: ConfigSource
    read_only: bool
    sensitive: bool
    synonyms: tuple[ConfigSynonym, ...]
    documentation: str | None


class Append(NamedTuple):
    """Adds a value to a config that is a list."""

    value: str


class Subtract(NamedTuple):
    """Removes a value from a config that is a list."""

    value: str


ConfigChange = str | None | Append | Subtract
"""A string sets a config, None resets it to the inherited value."""

_SET, _DELETE, _APPEND, _SUBTRACT = range(4)


async def describe_configs(
    cluster: Cluster,
    resources: Iterable[ConfigResource],
    until: float,
    *,
    names: Iterable[str] | None = None,
    synonyms: bool = False,
    documentation: bool = False,
) -> Outcomes[ConfigResource, dict[str, Config]]:
    """The configs of each resource, by name; `names` selects some, None means all."""
    keys = None if names is None else list(names)

    async def ask(
        node: int, wanted: list[ConfigResource]
    ) -> dict[ConfigResource, dict[str, Config] | KafkaError]:
        request = DescribeConfigsRequest(
            resources=[
                DescribeConfigsRequest.DescribeConfigsResource(
                    resource_type=each.type, resource_name=each.name, configuration_keys=keys
                )
                for each in wanted
            ],
            include_synonyms=synonyms,
            include_documentation=documentation,
        )
        response = await cluster.call(request, until, node=node)
        return {
            where: refusal(told.error_code, told.error_message, about=str(where))
            if told.error_code
            else {each.name: _config(each, documentation) for each in told.configs}
            for told in response.results
            for where in [_resource(told.resource_type, told.resource_name)]
        }

    find = partial(_nodes, cluster, until, ANY)
    return await of_nodes(cluster, resources, find, ask, until, api="DescribeConfigs")


def _config(told: DescribeConfigsResponse.DescribeConfigsResourceResult, documentation: bool) -> Config:
    return Config(
        told.name,
        told.value,
        _source(told.config_source),
        told.read_only,
        told.is_sensitive,
        tuple(ConfigSynonym(each.name, each.value, _source(each.source)) for each in told.synonyms),
        told.documentation if documentation else None,
    )


def _source(number: int) -> ConfigSource:
    return _SOURCES.get(number, ConfigSource.UNKNOWN)


async def alter_configs(
    cluster: Cluster,
    changes: Mapping[ConfigResource, Mapping[str, ConfigChange]],
    until: float,
    *,
    validate_only: bool = False,
) -> Outcomes[ConfigResource, None]:
    """Change configs; others stay unchanged (IncrementalAlterConfigs, KIP-339). Either all changes to a
    resource are made, or none."""

    altered = {
        resource: [_change(name, change) for name, change in wanted.items()]
        for resource, wanted in changes.items()
    }

    async def ask(node: int, wanted: list[ConfigResource]) -> dict[ConfigResource, KafkaError | None]:
        request = IncrementalAlterConfigsRequest(
            resources=[
                IncrementalAlterConfigsRequest.AlterConfigsResource(
                    resource_type=each.type, resource_name=each.name, configs=altered[each]
                )
                for each in wanted
            ],
            validate_only=validate_only,
        )
        response = await cluster.call(request, until, node=node)
        return {
            where: refused(told.error_code, told.error_message, about=str(where))
            for told in response.responses
            for where in [_resource(told.resource_type, told.resource_name)]
        }

    async def find(wanted: list[ConfigResource]) -> dict[ConfigResource, int | KafkaError]:
        return await _nodes(cluster, until, await controller(cluster, until), wanted)

    return await of_nodes(cluster, changes, find, ask, until, api="IncrementalAlterConfigs", repeatable=False)


def _change(name: str, change: ConfigChange) -> IncrementalAlterConfigsRequest.AlterableConfig:
    match change:
        case None:
            operation, value = _DELETE, None
        case Append(text):
            operation, value = _APPEND, text
        case Subtract(text):
            operation, value = _SUBTRACT, text
        case text:
            operation, value = _SET, text
    if not isinstance(value, str | None):
        raise TypeError(f"config {name}: it takes text such as {str(value)!r}, not {value!r}")
    return IncrementalAlterConfigsRequest.AlterableConfig(name=name, config_operation=operation, value=value)


async def _nodes(
    cluster: Cluster, until: float, of_others: int, resources: list[ConfigResource]
) -> dict[ConfigResource, int | KafkaError]:
    """Which node to ask: each broker about itself, `of_others` about the rest."""
    of_brokers = {
        each: each.name
        for each in resources
        if each.type in (ResourceType.BROKER, ResourceType.BROKER_LOGGER) and each.name
    }
    nodes = await present(cluster, of_brokers.values(), until) if of_brokers else {}
    return {each: nodes[of_brokers[each]] if each in of_brokers else of_others for each in resources}


def _resource(type: int, name: str) -> ConfigResource:
    return ConfigResource(ResourceType(type), name)

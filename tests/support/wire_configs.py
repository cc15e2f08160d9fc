"""Config requests, in a form short enough for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from muster.protocol.messages.configs import (
    AlterConfigsRequest,
    DescribeConfigsRequest,
    IncrementalAlterConfigsRequest,
)

TOPIC: Final = 2
BROKER: Final = 4
BROKER_LOGGER: Final = 8
CLIENT_METRICS: Final = 16
GROUP: Final = 32

SET, DELETE, APPEND, SUBTRACT = range(4)

Resource = tuple[int, str]
Change = tuple[str, int, str | None]


def describing(
    *resources: Resource,
    keys: Sequence[str] | None = None,
    synonyms: bool = False,
    documentation: bool = False,
) -> DescribeConfigsRequest:
    return DescribeConfigsRequest(
        resources=[
            DescribeConfigsRequest.DescribeConfigsResource(
                resource_type=type, resource_name=name, configuration_keys=keys and list(keys)
            )
            for type, name in resources
        ],
        include_synonyms=synonyms,
        include_documentation=documentation,
    )


def replacing(
    *resources: tuple[int, str, Mapping[str, str | None]], validate_only: bool = False
) -> AlterConfigsRequest:
    Asked = AlterConfigsRequest.AlterConfigsResource
    return AlterConfigsRequest(
        resources=[
            Asked(
                resource_type=type,
                resource_name=name,
                configs=[Asked.AlterableConfig(name=key, value=value) for key, value in configs.items()],
            )
            for type, name, configs in resources
        ],
        validate_only=validate_only,
    )


def altering(
    *resources: tuple[int, str, Sequence[Change]], validate_only: bool = False
) -> IncrementalAlterConfigsRequest:
    Asked = IncrementalAlterConfigsRequest.AlterConfigsResource
    return IncrementalAlterConfigsRequest(
        resources=[
            Asked(
                resource_type=type,
                resource_name=name,
                configs=[
                    Asked.AlterableConfig(name=key, config_operation=operation, value=value)
                    for key, operation, value in changes
                ],
            )
            for type, name, changes in resources
        ],
        validate_only=validate_only,
    )

"""ListGroups, DescribeGroups, DeleteGroups."""

from __future__ import annotations

from typing import TYPE_CHECKING

from muster.coordinator.group.effects import RequestContext
from muster.coordinator.group.shard import Shard
from muster.coordinator.server.handlers.operations import GROUP_OPERATIONS
from muster.coordinator.server.handlers.several import several
from muster.coordinator.server.refusals import deleted_group_error, described_group_error
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.group_admin import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListGroupsRequest,
    ListGroupsResponse,
)

if TYPE_CHECKING:
    from muster.coordinator.server.broker import Broker


async def list_groups(
    broker: Broker, request: ListGroupsRequest, context: RequestContext
) -> ListGroupsResponse:
    """The groups of the shards this broker holds; clients ask every broker and put the answers together."""
    states = {state.lower() for state in request.states_filter}
    types = {type.lower() for type in request.types_filter}
    groups: list[ListGroupsResponse.ListedGroup] = []
    for of_shard in await broker.runtime.call_shards(Shard.list_groups, None, context):
        groups += (
            group
            for group in of_shard
            if (not states or group.group_state.lower() in states)
            and (not types or group.group_type.lower() in types)
        )
    return ListGroupsResponse(groups=groups)


async def describe_groups(
    broker: Broker, request: DescribeGroupsRequest, context: RequestContext
) -> DescribeGroupsResponse:
    """Every group asked for is in the answer, whatever became of it: librdkafka aborts its process
    otherwise."""

    async def describe(group_id: str) -> DescribeGroupsResponse.DescribedGroup:
        try:
            group: DescribeGroupsResponse.DescribedGroup = await broker.runtime.call(
                group_id, Shard.describe, group_id, context
            )
        except KafkaError as error:
            return described_group_error(group_id, context.api_version, error)
        if request.include_authorized_operations and group.error_code == ErrorCode.NONE:
            group.authorized_operations = GROUP_OPERATIONS
        return group

    return DescribeGroupsResponse(groups=await several(describe, request.groups))


async def delete_groups(
    broker: Broker, request: DeleteGroupsRequest, context: RequestContext
) -> DeleteGroupsResponse:
    """Delete groups without members, and their offsets; a group named twice is deleted once."""

    async def delete(group_id: str) -> DeleteGroupsResponse.DeletableGroupResult:
        try:
            deleted: DeleteGroupsResponse.DeletableGroupResult = await broker.runtime.call(
                group_id, Shard.delete_group, group_id, context
            )
        except KafkaError as error:
            return deleted_group_error(group_id, error)
        return deleted

    return DeleteGroupsResponse(results=await several(delete, list(dict.fromkeys(request.groups_names))))

"""ListGroups, DescribeGroups, DeleteGroups."""

from __future__ import annotations

from typing import Final

from muster.coordinator.base.step import RequestContext
from muster.coordinator.group.shard import Shard
from muster.coordinator.server.api import Api
from muster.coordinator.server.apis.several import Turns, several
from muster.coordinator.server.names import Listed, Names, itself
from muster.coordinator.server.needs import Needs, Twice, decided_by_handler
from muster.coordinator.server.needs import groups as on_groups
from muster.coordinator.server.refusal import Each, Refusal, entry, listing
from muster.coordinator.server.serving import Broker
from muster.protocol.api import ApiKey
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.acls import Operation, ResourceType
from muster.protocol.messages.group_admin import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListGroupsRequest,
    ListGroupsResponse,
)


async def list_groups(
    broker: Broker, request: ListGroupsRequest, context: RequestContext
) -> ListGroupsResponse:
    """The groups of the shards this broker holds that the client may see; clients ask every broker and merge
    the answers."""
    states = {state.strip().lower() for state in request.states_filter}
    types = {type.lower() for type in request.types_filter}
    groups: list[ListGroupsResponse.ListedGroup] = []
    for of_shard in await broker.runtime.call_shards(Shard.list_groups, None, context):
        groups += (
            group
            for group in of_shard
            if (not states or group.group_state.lower() in states)
            and (not types or group.group_type.lower() in types)
        )
    rights = broker.rights(context)
    if not rights.may_with_cluster(Operation.DESCRIBE, logged=False):
        seen: list[ListGroupsResponse.ListedGroup] = []
        turns = Turns()
        for each in groups:
            await turns.next()
            if rights.may(Operation.DESCRIBE, ResourceType.GROUP, each.group_id, logged=False):
                seen.append(each)
        groups = seen
    return ListGroupsResponse(groups=groups)


async def describe_groups(
    broker: Broker, request: DescribeGroupsRequest, context: RequestContext
) -> DescribeGroupsResponse:
    """Every requested group is in the answer, whatever the outcome: librdkafka aborts its process
    otherwise. One that is named twice is there once: an answer is large."""
    rights = broker.rights(context)

    async def describe(group_id: str) -> DescribeGroupsResponse.DescribedGroup:
        try:
            group: DescribeGroupsResponse.DescribedGroup = await broker.runtime.call(
                group_id, Shard.describe, group_id, context
            )
        except KafkaError as error:
            return entry(DescribeGroupsResponse.DescribedGroup, context.api_version, error, group_id=group_id)
        if request.include_authorized_operations and group.error_code == ErrorCode.NONE:
            group.authorized_operations = rights.operations(ResourceType.GROUP, group_id)
        return group

    return DescribeGroupsResponse(groups=await several(describe, list(dict.fromkeys(request.groups))))


def deleted_group_error(
    group_id: str, version: int, error: KafkaError
) -> DeleteGroupsResponse.DeletableGroupResult:
    """The answer for one group that was not deleted; Kafka gives no text."""
    return entry(
        DeleteGroupsResponse.DeletableGroupResult, version, error, group_id=group_id, error_message=None
    )


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
            return deleted_group_error(group_id, context.api_version, error)
        return deleted

    return DeleteGroupsResponse(results=await several(delete, list(dict.fromkeys(request.groups_names))))


_DELETED: Final = Each("results", "groups_names", itself="group_id", fields={"error_message": None})

APIS: Final = (
    Api(
        ApiKey.DESCRIBE_GROUPS,
        describe_groups,
        needs=Needs(elements=on_groups(Operation.DESCRIBE, "groups")),
        names=Names(groups=Listed("groups", itself)),
        refuse=listing("groups", "groups", "group_id"),
    ),
    Api(
        ApiKey.LIST_GROUPS, list_groups, needs=decided_by_handler("groups that may not be seen are left out")
    ),
    Api(
        ApiKey.DELETE_GROUPS,
        delete_groups,
        needs=Needs(elements=on_groups(Operation.DELETE, "groups_names", twice=Twice.ONCE)),
        names=Names(groups=Listed("groups_names", itself)),
        refuse=Refusal((_DELETED,)),
    ),
)

"""JoinGroup, SyncGroup, Heartbeat, LeaveGroup: passed on to the shard of the group, which answers when the
group does."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from muster.coordinator.group.effects import RequestContext
from muster.coordinator.group.shard import Shard
from muster.protocol.messages.classic_group import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)

if TYPE_CHECKING:
    from muster.coordinator.server.broker import Broker

T = TypeVar("T")


async def join_group(broker: Broker, request: JoinGroupRequest, context: RequestContext) -> JoinGroupResponse:
    """Parked until the group's join phase is over."""
    response: JoinGroupResponse = await broker.runtime.call(request.group_id, Shard.join, request, context)
    return joined(response, context)


async def sync_group(broker: Broker, request: SyncGroupRequest, context: RequestContext) -> SyncGroupResponse:
    """Parked until the leader has sent the assignment."""
    response: SyncGroupResponse = await broker.runtime.call(request.group_id, Shard.sync, request, context)
    return response


async def heartbeat(broker: Broker, request: HeartbeatRequest, context: RequestContext) -> HeartbeatResponse:
    """A sign of life; REBALANCE_IN_PROGRESS asks the member to join again."""
    response: HeartbeatResponse = await broker.runtime.call(
        request.group_id, Shard.heartbeat, request, context
    )
    return response


async def leave_group(
    broker: Broker, request: LeaveGroupRequest, context: RequestContext
) -> LeaveGroupResponse:
    """One member up to v2, any number from v3 on."""
    response: LeaveGroupResponse = await broker.runtime.call(request.group_id, Shard.leave, request, context)
    return response


def joined(answer: T, context: RequestContext) -> T:
    """A JoinGroup's answer as its version can say it: before v7 a protocol that is missing is not null."""
    if isinstance(answer, JoinGroupResponse) and answer.protocol_name is None and context.api_version < 7:
        answer.protocol_name = ""
    return answer

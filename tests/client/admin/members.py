"""Members of a group that do nothing but exist."""

from __future__ import annotations

import asyncio

from muster.client.admin.groups import GroupDescription, describe_groups
from muster.client.network.cluster import Cluster
from muster.client.network.connection import deadline
from muster.protocol.errors import ErrorCode
from muster.protocol.messages.classic_group import (
    JoinGroupRequest,
    JoinGroupResponse,
    SyncGroupRequest,
)
from tests.support.embedded import assignment, subscription

SESSION_TIMEOUT_MS = 300_000
LONG_S = 60.0


async def join(
    cluster: Cluster, group_id: str, topic: str, member_id: str = "", instance_id: str | None = None
) -> JoinGroupResponse:
    """Join, and return once the group has a generation."""
    while True:
        node = await cluster.coordinator(group_id, deadline(LONG_S))
        joined: JoinGroupResponse = await cluster.call(
            JoinGroupRequest(
                group_id=group_id,
                session_timeout_ms=SESSION_TIMEOUT_MS,
                rebalance_timeout_ms=SESSION_TIMEOUT_MS,
                member_id=member_id,
                group_instance_id=instance_id,
                protocol_type="consumer",
                protocols=[JoinGroupRequest.Protocol(name="range", metadata=subscription([topic]))],
            ),
            deadline(LONG_S),
            node=node,
            lane=f"{member_id}{instance_id}",
        )
        if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            member_id = joined.member_id
        elif joined.error_code not in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS):
            assert joined.error_code == ErrorCode.NONE, joined
            return joined


async def sync(
    cluster: Cluster, group_id: str, joined: JoinGroupResponse, assigned: dict[str, dict[str, list[int]]]
) -> None:
    """Send the leader's SyncGroup; `assigned` maps member id to topic to partitions."""
    assignments = [
        SyncGroupRequest.Assignment(
            member_id=member_id,
            assignment=assignment(topics),
        )
        for member_id, topics in assigned.items()
    ]
    synced = await cluster.call(
        SyncGroupRequest(
            group_id=group_id,
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            protocol_type="consumer",
            protocol_name="range",
            assignments=assignments,
        ),
        deadline(LONG_S),
        node=await cluster.coordinator(group_id, deadline(LONG_S)),
        lane=joined.member_id,
    )
    assert synced.error_code == ErrorCode.NONE, synced


async def stable(cluster: Cluster, group_id: str, topic: str, instance_id: str | None = None) -> str:
    """Create a group of one member, which has partition 0 of the topic; return its member id."""
    joined = await join(cluster, group_id, topic, instance_id=instance_id)
    await sync(cluster, group_id, joined, {joined.member_id: {topic: [0]}})
    return joined.member_id


async def two(cluster: Cluster, group_id: str, topic: str, instance_id: str) -> tuple[str, str]:
    """Create a group of two members, one static and one dynamic, that are about to get their assignments;
    return their member ids."""
    static = await join(cluster, group_id, topic, instance_id=instance_id)
    joining = asyncio.create_task(join(cluster, group_id, topic))
    async with asyncio.timeout(LONG_S):  # until the group waits for the static one
        while (await _described(cluster, group_id)).state != "PreparingRebalance":
            pass
    again = await join(cluster, group_id, topic, static.member_id, instance_id)
    return again.member_id, (await joining).member_id


async def _described(cluster: Cluster, group_id: str) -> GroupDescription:
    found = await describe_groups(cluster, [group_id], deadline(LONG_S))
    return found.raise_for_failures()[group_id]

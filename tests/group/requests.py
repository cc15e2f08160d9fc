"""Requests for unit tests, with defaults for what most tests do not care about."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from muster.coordinator.base.step import RequestContext
from muster.coordinator.group.classic.member import ClassicMember
from muster.coordinator.group.shard import Shard
from muster.protocol.api import ApiKey, versions
from muster.protocol.messages.classic_group import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    SyncGroupRequest,
)
from muster.protocol.messages.offsets import OffsetCommitRequest
from muster.protocol.types import ZERO_UUID
from tests.group.harness import Harness
from tests.support import embedded

GROUP = "orders"


def subscription(*topics: str) -> bytes:
    return embedded.subscription(topics, 1)


TOO_MANY = bytes(2) + (100_001).to_bytes(4, "big") + bytes(2 * 100_001) + bytes(4)
"""A sound subscription to more topics than a coordinator reads, all without a name."""


def assignment(*partitions: int) -> bytes:
    return embedded.assignment({"orders": partitions}, 1)


def context(
    api: ApiKey, client_id: str = "alice", version: int | None = None, connection_id: int = 1
) -> RequestContext:
    return RequestContext(
        versions(api)[1] if version is None else version, client_id, "/10.0.0.1", connection_id
    )


def join_request(
    member_id: str = "",
    *,
    protocols: Sequence[tuple[str, bytes]] = (("range", subscription("orders")),),
    protocol_type: str = "consumer",
    instance_id: str | None = None,
    session_timeout_ms: int = 45_000,
    rebalance_timeout_ms: int = 300_000,
    reason: str | None = None,
    group_id: str = GROUP,
) -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=group_id,
        session_timeout_ms=session_timeout_ms,
        rebalance_timeout_ms=rebalance_timeout_ms,
        member_id=member_id,
        group_instance_id=instance_id,
        protocol_type=protocol_type,
        protocols=[JoinGroupRequest.Protocol(name=name, metadata=metadata) for name, metadata in protocols],
        reason=reason,
    )


def sync_request(
    member_id: str, generation_id: int, assignments: dict[str, bytes] | None = None, **fields: Any
) -> SyncGroupRequest:
    return SyncGroupRequest(
        **{
            "group_id": GROUP,
            "generation_id": generation_id,
            "member_id": member_id,
            "protocol_type": "consumer",
            "protocol_name": "range",
            "assignments": [
                SyncGroupRequest.Assignment(member_id=each, assignment=assigned)
                for each, assigned in (assignments or {}).items()
            ],
            **fields,
        }
    )


def heartbeat_request(member_id: str, generation_id: int, instance_id: str | None = None) -> HeartbeatRequest:
    return HeartbeatRequest(
        group_id=GROUP, generation_id=generation_id, member_id=member_id, group_instance_id=instance_id
    )


def leave_request(*member_ids: str) -> LeaveGroupRequest:
    return LeaveGroupRequest(
        group_id=GROUP,
        members=[LeaveGroupRequest.MemberIdentity(member_id=member_id) for member_id in member_ids],
    )


def commit_request(
    offsets: dict[tuple[str, int], int],
    *,
    member_id: str = "",
    generation_id: int = -1,
    retention_time_ms: int = -1,
    topic_id: Any = ZERO_UUID,
    metadata: str | None = "",
    group_id: str = GROUP,
) -> OffsetCommitRequest:
    return OffsetCommitRequest(
        group_id=group_id,
        generation_id_or_member_epoch=generation_id,
        member_id=member_id,
        retention_time_ms=retention_time_ms,
        topics=[
            OffsetCommitRequest.Topic(
                name=topic,
                topic_id=topic_id,
                partitions=[
                    OffsetCommitRequest.Topic.Partition(
                        partition_index=partition, committed_offset=offset, committed_metadata=metadata
                    )
                ],
            )
            for (topic, partition), offset in offsets.items()
        ],
    )


def join(harness: Harness, request: JoinGroupRequest, client_id: str = "alice", version: int = 3) -> int:
    """Send a JoinGroup and return its ticket. Version 3 admits new members at once."""
    return harness.send(Shard.join, request, context(ApiKey.JOIN_GROUP, client_id, version))


def stable(harness: Harness, *clients: str, **join_fields: Any) -> list[str]:
    """Make a Stable group of these clients and return their member ids. The first one leads."""
    ids: list[str] = []
    tickets: list[int] = []
    for client in clients:
        tickets.append(join(harness, join_request(**join_fields), client))
    if len(clients) > 1:
        first: JoinGroupResponse = harness.answers[tickets[0]]
        tickets[0] = join(harness, join_request(first.member_id, **join_fields), clients[0])
    for ticket in tickets:
        ids.append(harness.answers[ticket].member_id)
    generation_id = harness.answers[tickets[0]].generation_id
    for number, (client, member_id) in enumerate(zip(clients, ids, strict=True)):
        assigned = {each: assignment(index) for index, each in enumerate(ids)} if number == 0 else {}
        request = sync_request(member_id, generation_id, assigned, protocol_type=None, protocol_name=None)
        harness.ask(Shard.sync, request, context(ApiKey.SYNC_GROUP, client, 4))
    return ids


def member(
    member_id: str = "alice-1",
    *,
    protocols: Sequence[tuple[str, bytes]] = (("range", subscription("orders")),),
    instance_id: str | None = None,
    session_timeout_ms: int = 45_000,
    rebalance_timeout_ms: int = 300_000,
) -> ClassicMember:
    return ClassicMember(
        member_id=member_id,
        group_instance_id=instance_id,
        client_id=member_id.partition("-")[0],
        client_host="/10.0.0.1",
        rebalance_timeout_ms=rebalance_timeout_ms,
        session_timeout_ms=session_timeout_ms,
        protocols=tuple(protocols),
        heard_ms=0,
    )

"""The requests to a group's coordinator. Pure."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from muster.client.assignors import Assignor, subscription_bytes
from muster.client.group.assignor_calls import calling
from muster.client.group.membership_types import Generation, GroupSettings
from muster.client.partitions import OffsetAndMetadata, TopicPartition
from muster.protocol.messages.classic_group import (
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
)
from muster.protocol.messages.offsets import OffsetCommitRequest
from muster.protocol.types import ZERO_UUID

PROTOCOL_TYPE: Final = "consumer"
REASON_CHARACTERS_MAX: Final = 255
"""Kafka's clients truncate reasons to this length (KIP-800)."""


def join_request(
    settings: GroupSettings,
    generation: Generation,
    topics: Iterable[str],
    owned: Iterable[TopicPartition],
    reason: str,
) -> JoinGroupRequest:
    """Carries the metadata of every assignor. Equal subscriptions give equal bytes, since the coordinator
    compares them. Raises AssignorFailed."""
    topics, owned = sorted(topics), sorted(owned)
    return JoinGroupRequest(
        group_id=settings.group_id,
        session_timeout_ms=settings.session_timeout_ms,
        rebalance_timeout_ms=settings.max_poll_interval_ms,
        member_id=generation.member_id,
        group_instance_id=settings.group_instance_id,
        protocol_type=PROTOCOL_TYPE,
        protocols=[
            JoinGroupRequest.Protocol(
                name=each.name, metadata=_subscription(settings, generation, topics, owned, each)
            )
            for each in settings.assignors
        ],
        reason=reason[:REASON_CHARACTERS_MAX],
    )


def _subscription(
    settings: GroupSettings,
    generation: Generation,
    topics: Iterable[str],
    owned: Iterable[TopicPartition],
    assignor: Assignor,
) -> bytes:
    with calling(assignor, settings.group_id):
        user_data = assignor.user_data(topics, owned, generation.generation_id)
        return subscription_bytes(topics, owned, generation.generation_id, settings.rack, user_data)


def sync_request(
    settings: GroupSettings, generation: Generation, assignments: list[SyncGroupRequest.Assignment]
) -> SyncGroupRequest:
    return SyncGroupRequest(
        group_id=settings.group_id,
        generation_id=generation.generation_id,
        member_id=generation.member_id,
        group_instance_id=settings.group_instance_id,
        protocol_type=PROTOCOL_TYPE,
        protocol_name=generation.protocol_name,
        assignments=assignments,
    )


def heartbeat_request(settings: GroupSettings, generation: Generation) -> HeartbeatRequest:
    return HeartbeatRequest(
        group_id=settings.group_id,
        generation_id=generation.generation_id,
        member_id=generation.member_id,
        group_instance_id=settings.group_instance_id,
    )


def leave_request(settings: GroupSettings, generation: Generation, reason: str) -> LeaveGroupRequest:
    member = LeaveGroupRequest.MemberIdentity(
        member_id=generation.member_id,
        group_instance_id=settings.group_instance_id,
        reason=reason[:REASON_CHARACTERS_MAX],
    )
    return LeaveGroupRequest(group_id=settings.group_id, members=[member])


def offset_topics(
    offsets: Iterable[tuple[TopicPartition, OffsetAndMetadata]],
    topic_ids: Mapping[TopicPartition, uuid.UUID] = MappingProxyType({}),
) -> list[OffsetCommitRequest.Topic]:
    """Offsets as OffsetCommit lists them: with topic names and, from v10 on, the given topic ids."""
    topics: dict[tuple[str, uuid.UUID], list[OffsetCommitRequest.Partition]] = {}
    for where, each in offsets:
        topics.setdefault((where.topic, topic_ids.get(where, ZERO_UUID)), []).append(
            OffsetCommitRequest.Partition(
                partition_index=where.partition,
                committed_offset=each.offset,
                committed_leader_epoch=each.leader_epoch,
                committed_metadata=each.metadata,
            )
        )
    return [
        OffsetCommitRequest.Topic(name=name, topic_id=topic_id, partitions=partitions)
        for (name, topic_id), partitions in topics.items()
    ]

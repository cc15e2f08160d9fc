"""The heartbeats of the consumer protocol (KIP-848). Pure."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Final, NamedTuple, TypeAlias

from muster.client.group.membership_types import GroupSettings
from muster.protocol.messages.consumer_group import ConsumerGroupHeartbeatRequest

JOIN_EPOCH: Final = 0
LEAVE_EPOCH: Final = -1
LEAVE_FOR_A_WHILE_EPOCH: Final = -2
"""For a static member: it keeps its partitions until its session expires."""

Assignment: TypeAlias = frozenset[tuple[uuid.UUID, int]]
"""Partitions by topic id, as the coordinator sends them."""


class Told(NamedTuple):
    """What a member reports to its coordinator, and need not repeat after a response."""

    topics: frozenset[str] = frozenset()
    regex: str | None = None
    owned: Assignment = frozenset()


def heartbeat_request(
    settings: GroupSettings, member_id: str, epoch: int, told: Told, known: Told | None
) -> ConsumerGroupHeartbeatRequest:
    """`known` is what was reported before: only differences are sent. None: everything is sent."""
    request = ConsumerGroupHeartbeatRequest(
        group_id=settings.group_id,
        member_id=member_id,
        member_epoch=epoch,
        instance_id=settings.group_instance_id,
    )
    if known is None:
        request.rack_id = settings.rack or None
        request.rebalance_timeout_ms = settings.max_poll_interval_ms
        request.server_assignor = settings.group_remote_assignor
    if known is None or known.topics != told.topics:
        request.subscribed_topic_names = sorted(told.topics)
    if known is None and settings.group_instance_id is None:
        request.subscribed_topic_regex = told.regex
    elif known is None or known.regex != told.regex:
        # Null would leave it unchanged; a static member takes over that of the one before it.
        request.subscribed_topic_regex = told.regex or ""
    if known is None or known.owned != told.owned:
        request.topic_partitions = _by_topic(told.owned)
    return request


def leave_request(settings: GroupSettings, member_id: str, epoch: int) -> ConsumerGroupHeartbeatRequest:
    """`epoch` is LEAVE_EPOCH or LEAVE_FOR_A_WHILE_EPOCH."""
    return ConsumerGroupHeartbeatRequest(
        group_id=settings.group_id,
        member_id=member_id,
        member_epoch=epoch,
        instance_id=settings.group_instance_id,
    )


def _by_topic(
    partitions: Iterable[tuple[uuid.UUID, int]],
) -> list[ConsumerGroupHeartbeatRequest.TopicPartitions]:
    topics: dict[uuid.UUID, list[int]] = {}
    for topic_id, partition in sorted(partitions):
        topics.setdefault(topic_id, []).append(partition)
    return [
        ConsumerGroupHeartbeatRequest.TopicPartitions(topic_id=topic_id, partitions=numbers)
        for topic_id, numbers in topics.items()
    ]

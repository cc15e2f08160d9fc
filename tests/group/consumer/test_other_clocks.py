"""A consumer group moves to a broker whose wall clock is behind: times stored by the previous broker lie in
the future, but must not delay anything."""

from __future__ import annotations

import uuid

import pytest

from muster.coordinator.group.config import GroupConfig
from muster.coordinator.group.consumer.group import ConsumerGroup
from muster.coordinator.group.effects import TopicsImage
from muster.coordinator.group.shard import Shard
from muster.protocol.api import ApiKey
from muster.protocol.messages.consumer_group import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from tests.group.harness import Harness
from tests.group.requests import GROUP, context

BEHIND_MS = 7_200_000


@pytest.fixture
def harness() -> Harness:
    harness = Harness(GroupConfig(group_consumer_assignment_interval_ms=15_000))
    know(harness, "orders")
    return harness


def know(harness: Harness, *names: str) -> None:
    live = {name: uuid.UUID(int=number) for number, name in enumerate(names, 1)}
    harness.topics_changed(TopicsImage(live=live, partitions=dict.fromkeys(names, 2)))


def beat(
    harness: Harness, member_id: str, epoch: int, *, topics: list[str] | None = None, regex: str | None = None
) -> ConsumerGroupHeartbeatResponse:
    request = ConsumerGroupHeartbeatRequest(
        group_id=GROUP,
        member_id=member_id,
        member_epoch=epoch,
        rebalance_timeout_ms=60_000 if epoch == 0 else -1,
        subscribed_topic_names=topics,
        subscribed_topic_regex=regex,
        topic_partitions=[] if epoch == 0 else None,
    )
    answer = harness.ask(
        Shard.consumer_heartbeat, request, context(ApiKey.CONSUMER_GROUP_HEARTBEAT, member_id)
    )
    assert isinstance(answer, ConsumerGroupHeartbeatResponse)
    return answer


def move(harness: Harness) -> None:
    harness.now_ms -= BEHIND_MS
    harness.reload()


def test_a_target_is_made_though_the_last_one_seems_to_be_yet_to_come(harness: Harness) -> None:
    assert beat(harness, "alice", 0, topics=["orders"]).member_epoch == 2
    assert beat(harness, "bob", 0, topics=["orders"]).member_epoch == 2  # until the interval is over
    move(harness)
    know(harness, "orders")
    assert beat(harness, "bob", 2).member_epoch == 3


def test_a_regular_expression_is_looked_up_though_the_last_time_seems_to_be_yet_to_come(
    harness: Harness,
) -> None:
    beat(harness, "alice", 0, regex=".*")
    move(harness)
    know(harness, "orders", "clicks")
    beat(harness, "alice", 1)
    group = harness.shard.groups[GROUP]
    assert isinstance(group, ConsumerGroup)
    assert group.state.subscribed_topics() == {"orders", "clicks"}

"""Heartbeats of a member that owns its target: every single change it reports is processed, and a heartbeat
that reports nothing changes nothing."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from muster.coordinator.group.config import GroupConfig
from muster.coordinator.group.consumer.group import ConsumerGroup
from muster.coordinator.group.consumer.state import Subscription
from muster.coordinator.group.effects import TopicsImage
from muster.coordinator.group.shard import Shard
from muster.protocol.api import ApiKey
from muster.protocol.messages.consumer_group import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from tests.group.harness import Harness
from tests.group.requests import GROUP, context

_TOPICS = {"orders": uuid.UUID(int=1), "clicks": uuid.UUID(int=2)}


@pytest.fixture
def harness() -> Harness:
    """A harness with alice in the group."""
    harness = Harness(GroupConfig(group_consumer_assignment_interval_ms=0))
    harness.topics_changed(TopicsImage(live=_TOPICS, partitions=dict.fromkeys(_TOPICS, 2)))
    beat(
        harness,
        0,
        rebalance_timeout_ms=60_000,
        subscribed_topic_names=["orders"],
        topic_partitions=[],
    )
    return harness


def beat(
    harness: Harness, epoch: int, client_id: str = "alice", **said: Any
) -> ConsumerGroupHeartbeatResponse:
    request = ConsumerGroupHeartbeatRequest(group_id=GROUP, member_id="alice", member_epoch=epoch, **said)
    answer = harness.ask(
        Shard.consumer_heartbeat, request, context(ApiKey.CONSUMER_GROUP_HEARTBEAT, client_id)
    )
    assert isinstance(answer, ConsumerGroupHeartbeatResponse)
    return answer


def group(harness: Harness) -> ConsumerGroup:
    found = harness.shard.groups[GROUP]
    assert isinstance(found, ConsumerGroup)
    return found


def said(harness: Harness) -> Subscription:
    return group(harness).subscription("alice")


@pytest.mark.parametrize(
    ("news", "field", "heard"),
    [
        ({"subscribed_topic_names": ["clicks"]}, "topics", ("clicks",)),
        ({"subscribed_topic_regex": "cl.*"}, "regex", "cl.*"),
        ({"server_assignor": "range"}, "server_assignor", "range"),
        ({"rack_id": "a"}, "rack_id", "a"),
        ({"rebalance_timeout_ms": 5_000}, "rebalance_timeout_ms", 5_000),
        ({"client_id": "another"}, "client_id", "another"),
    ],
    ids=lambda each: next(iter(each)) if isinstance(each, dict) else "",
)
def test_a_single_piece_of_news_is_heard(
    harness: Harness, news: dict[str, Any], field: str, heard: object
) -> None:
    epoch, before = group(harness).generation_id, said(harness)
    beat(harness, epoch, **news)
    assert said(harness) == before._replace(**{field: heard})
    assert getattr(before, field) != heard


def test_what_says_nothing_is_a_sign_of_life_and_nothing_else(harness: Harness) -> None:
    member, written, events = group(harness).members["alice"], len(harness.log), len(harness.events)
    harness.now_ms += 5_000
    answer = beat(harness, group(harness).generation_id)
    assert (answer.member_epoch, answer.assignment) == (2, None)
    assert member.session_from_ms == member.heard_ms == harness.now_ms
    assert (len(harness.log), len(harness.events)) == (written, events)


def test_another_epoch_of_the_group_is_heard_of(harness: Harness) -> None:
    harness.topics_changed(TopicsImage(live=_TOPICS, partitions=dict.fromkeys(_TOPICS, 3)))
    assert beat(harness, 2).member_epoch == 3

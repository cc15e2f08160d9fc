"""Heartbeats while the store is full: members stay, what would be written waits or is refused."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from muster.coordinator.group.config import GroupConfig
from muster.coordinator.group.consumer.group import ConsumerGroup
from muster.coordinator.group.consumer.state import MemberState
from muster.coordinator.group.effects import TopicsImage
from muster.coordinator.group.shard import Shard
from muster.protocol.api import ApiKey
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.consumer_group import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from tests.group.harness import Harness
from tests.group.requests import GROUP, context

T = uuid.UUID(int=1)
FULL = KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the disk is full")
ALL: dict[str, Any] = {"rebalance_timeout_ms": 60_000, "subscribed_topic_names": ["t"]}
OWNED = ConsumerGroupHeartbeatRequest.TopicPartitions


def beat(harness: Harness, epoch: int, member_id: str = "alice", client: str = "c", **said: Any) -> Any:
    request = ConsumerGroupHeartbeatRequest(group_id=GROUP, member_id=member_id, member_epoch=epoch, **said)
    return harness.ask(Shard.consumer_heartbeat, request, context(ApiKey.CONSUMER_GROUP_HEARTBEAT, client))


def joined(harness: Harness, member_id: str = "alice", **said: Any) -> int:
    """Have a member join; returns its epoch."""
    answer = beat(harness, 0, member_id, **{**ALL, "topic_partitions": []} | said)
    assert isinstance(answer, ConsumerGroupHeartbeatResponse), answer
    return answer.member_epoch


def assigned(answer: Any) -> list[int] | None:
    """The partitions of t in an answer; None: as before."""
    assert isinstance(answer, ConsumerGroupHeartbeatResponse), answer
    if answer.assignment is None:
        return None
    return [each for topic in answer.assignment.topic_partitions for each in topic.partitions]


def group(harness: Harness) -> ConsumerGroup:
    found = harness.shard.groups[GROUP]
    assert isinstance(found, ConsumerGroup)
    return found


@pytest.fixture
def harness() -> Harness:
    harness = Harness(GroupConfig(group_consumer_assignment_interval_ms=0))
    harness.topics_changed(TopicsImage(live={"t": T}, partitions={"t": 4}))
    return harness


@pytest.mark.parametrize("by", ["names", "regex"])
@pytest.mark.parametrize("loaded_again", [False, True])
def test_members_stay_as_long_as_they_send_heartbeats(harness: Harness, by: str, loaded_again: bool) -> None:
    said = {"subscribed_topic_names": [], "subscribed_topic_regex": "t"} if by == "regex" else {}
    epoch = joined(harness, **said)
    epoch = beat(harness, epoch).member_epoch
    if loaded_again:
        harness.reload()
        harness.topics_changed(TopicsImage(live={"t": T}, partitions={"t": 4}))
    harness.full = FULL
    for _ in range(20):
        harness.advance(5_000)
        answer = beat(harness, epoch, client="moved")
        assert (answer.error_code, answer.member_epoch, answer.assignment) == (0, epoch, None)
    assert group(harness).members["alice"].heard_ms == harness.now_ms
    repeated = beat(harness, epoch, **{**ALL, "topic_partitions": []} | said)  # as after a failure
    assert (repeated.member_epoch, assigned(repeated)) == (epoch, [0, 1, 2, 3])
    harness.full = None
    assert beat(harness, epoch, client="moved").member_epoch == epoch
    assert group(harness).subscription("alice").client_id == "moved"


def test_what_the_group_has_for_a_member_waits(harness: Harness) -> None:
    epoch = joined(harness)
    harness.topics_changed(TopicsImage(live={"t": T}, partitions={"t": 5}))
    harness.full = FULL
    answer = beat(harness, epoch)
    assert (answer.member_epoch, assigned(answer)) == (epoch, None)
    harness.full = None
    answer = beat(harness, epoch)
    assert (answer.member_epoch, assigned(answer)) == (epoch + 1, [0, 1, 2, 3, 4])


@pytest.mark.parametrize(
    "news",
    [
        {"subscribed_topic_names": ["u"]},
        {"subscribed_topic_regex": "t.*"},
        {"server_assignor": "range"},
        {"rack_id": "a"},
        {"rebalance_timeout_ms": 5_000},
    ],
    ids=lambda each: next(iter(each)),
)
def test_a_members_news_is_refused_and_the_member_is_heard(harness: Harness, news: dict[str, Any]) -> None:
    epoch = joined(harness)
    harness.full = FULL
    harness.advance(3_000)
    assert beat(harness, epoch, **news) is FULL
    assert group(harness).members["alice"].heard_ms == harness.now_ms
    harness.full = None
    assert beat(harness, epoch, **news).error_code == 0


def test_what_a_member_has_given_up_is_refused_until_the_group_can_take_it(harness: Harness) -> None:
    epoch = joined(harness)
    joined(harness, "bob")
    kept = assigned(beat(harness, epoch))
    assert kept is not None
    assert group(harness).current("alice").state is MemberState.UNREVOKED_PARTITIONS
    given_up = [OWNED(topic_id=T, partitions=kept)]
    harness.full = FULL
    assert beat(harness, epoch).error_code == 0
    assert beat(harness, epoch, topic_partitions=[OWNED(topic_id=T, partitions=[0, 1, 2, 3])]).error_code == 0
    harness.advance(3_000)
    assert beat(harness, epoch, topic_partitions=given_up) is FULL
    assert group(harness).members["alice"].heard_ms == harness.now_ms
    harness.full = None
    assert beat(harness, epoch, topic_partitions=given_up).member_epoch == epoch + 1


def test_nobody_joins_or_leaves(harness: Harness) -> None:
    epoch = joined(harness, instance_id="i")
    harness.full = FULL
    for said in ({"epoch": -1}, {"epoch": -1, "instance_id": "i"}, {"epoch": -2, "instance_id": "i"}):
        assert beat(harness, **said) is FULL
    assert beat(harness, 0, **ALL, topic_partitions=[], instance_id="i") is FULL
    assert beat(harness, 0, "bob", **ALL, topic_partitions=[]) is FULL
    assert beat(harness, epoch, instance_id="i").error_code == 0


def test_who_is_no_member_is_told(harness: Harness) -> None:
    epoch = joined(harness)
    harness.full = FULL
    codes = [beat(harness, 1, "bob").code, beat(harness, epoch + 1).code]
    assert codes == [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH]

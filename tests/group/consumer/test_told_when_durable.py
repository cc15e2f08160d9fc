"""A member learns its epoch and assignment only once the records that hold them are durable, even if its
request writes none."""

from __future__ import annotations

import uuid

from muster.coordinator.group.effects import TopicsImage
from muster.coordinator.group.shard import Shard
from muster.protocol.api import ApiKey
from muster.protocol.messages.classic_group import JoinGroupResponse
from muster.protocol.messages.consumer_group import ConsumerGroupHeartbeatRequest
from tests.group.harness import Harness
from tests.group.requests import GROUP, context, join, join_request


def beat(harness: Harness, epoch: int, topics: list[str] | None = None) -> None:
    request = ConsumerGroupHeartbeatRequest(
        group_id=GROUP,
        member_id="alice",
        member_epoch=epoch,
        rebalance_timeout_ms=60_000 if epoch == 0 else -1,
        subscribed_topic_names=topics,
        topic_partitions=[] if epoch == 0 else None,
    )
    harness.ask(Shard.consumer_heartbeat, request, context(ApiKey.CONSUMER_GROUP_HEARTBEAT))


def test_a_heartbeat_and_a_join_that_write_nothing() -> None:
    harness = Harness()
    harness.topics_changed(TopicsImage(live={"orders": uuid.UUID(int=1)}, partitions={"orders": 2}))
    beat(harness, 0, ["orders"])
    beat(harness, 0, ["orders"])  # it has not received the answer
    assert (harness.last.rows, harness.last.reads_hard_state) == ([], True)
    joined = harness.answers[join(harness, join_request(), "bob")]
    assert isinstance(joined, JoinGroupResponse)
    beat(harness, 2)
    join(harness, join_request(joined.member_id), "bob")
    join(harness, join_request(joined.member_id), "bob")
    assert (harness.last.rows, harness.last.reads_hard_state) == ([], True)

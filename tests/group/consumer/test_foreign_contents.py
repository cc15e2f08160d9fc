"""Members of the classic protocol put bytes into a group that the coordinator reads only once the group moves
to the other protocol: whatever they hold, the group moves, and its shard goes on."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from muster.coordinator.group.classic.states import GroupState
from muster.coordinator.group.consumer.group import ConsumerGroup
from muster.coordinator.group.effects import TopicsImage
from muster.coordinator.group.shard import Shard
from muster.protocol.api import ApiKey
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.classic_group import JoinGroupResponse
from muster.protocol.messages.consumer_group import ConsumerGroupHeartbeatRequest
from tests.group.harness import Harness
from tests.group.requests import (
    GROUP,
    TOO_MANY,
    assignment,
    context,
    heartbeat_request,
    join,
    join_request,
    subscription,
    sync_request,
)

ORDERS, CLICKS = uuid.UUID(int=1), uuid.UUID(int=2)
Owned = ConsumerGroupHeartbeatRequest.TopicPartitions


def harness_of(**partitions: int) -> Harness:
    harness = Harness()
    ids = {"orders": ORDERS, "clicks": CLICKS}
    harness.topics_changed(TopicsImage(live={name: ids[name] for name in partitions}, partitions=partitions))
    return harness


def beat(harness: Harness, client: str, epoch: int, *topics: str, owned: Any = ()) -> Any:
    request = ConsumerGroupHeartbeatRequest(
        group_id=GROUP,
        member_id=client,
        member_epoch=epoch,
        rebalance_timeout_ms=300_000 if epoch == 0 else -1,
        subscribed_topic_names=list(topics) or None,
        topic_partitions=[Owned(topic_id=topic_id, partitions=list(numbers)) for topic_id, numbers in owned]
        if owned or epoch == 0
        else None,
    )
    return harness.ask(Shard.consumer_heartbeat, request, context(ApiKey.CONSUMER_GROUP_HEARTBEAT, client))


def joined(harness: Harness, client: str, **protocols: bytes) -> JoinGroupResponse:
    answer = harness.answers[join(harness, join_request(protocols=list(protocols.items())), client)]
    assert isinstance(answer, JoinGroupResponse), answer
    return answer


def group_of(harness: Harness) -> ConsumerGroup:
    group = harness.shard.groups[GROUP]
    assert isinstance(group, ConsumerGroup)
    return group


def led(harness: Harness, assigned: bytes) -> str:
    """The id of the only member of a classic group, which has assigned itself this."""
    member_id = joined(harness, "alice", range=subscription("orders")).member_id
    request = sync_request(member_id, 1, {member_id: assigned}, protocol_type=None, protocol_name=None)
    harness.ask(Shard.sync, request, context(ApiKey.SYNC_GROUP, "alice", 4))
    return member_id


@pytest.mark.parametrize("metadata", [b"", b"\xff\xff"])
@pytest.mark.parametrize("goes", ["leaves", "expires"])
def test_a_subscription_that_cannot_be_read_does_not_stop_the_downgrade(goes: str, metadata: bytes) -> None:
    harness = harness_of(orders=3)
    beat(harness, "zoe", 0, "orders")
    classic = [
        joined(harness, "xenia", range=subscription("orders"), own=metadata),
        joined(harness, "yuri", own=subscription("orders")),
    ]
    if goes == "leaves":
        beat(harness, "zoe", -1)
    else:
        for _ in range(2):
            harness.advance(30_000)
            for each in classic:
                request = heartbeat_request(each.member_id, each.generation_id)
                harness.ask(Shard.heartbeat, request, context(ApiKey.HEARTBEAT))
    assert harness.group().state is GroupState.PREPARING_REBALANCE
    assert set(harness.group().members) == {each.member_id for each in classic}


def test_a_protocol_offered_twice_counts_once() -> None:
    harness = harness_of(orders=3)
    beat(harness, "zoe", 0, "orders")
    offered = [(name, subscription("orders")) for name in ("a", "a", "c")]
    first = harness.answers[join(harness, join_request(protocols=offered), "xenia")]
    assert isinstance(first, JoinGroupResponse)
    joined(harness, "yuri", c=subscription("orders"), b=subscription("orders"))
    refused = harness.answers[join(harness, join_request(protocols=[("a", subscription("orders"))]), "will")]
    assert isinstance(refused, KafkaError)
    assert refused.code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    beat(harness, "zoe", -1)
    assert len(harness.group().members) == 2


def test_who_subscribes_to_too_many_topics_does_not_join_a_consumer_group() -> None:
    harness = harness_of(orders=3)
    beat(harness, "zoe", 0, "orders")
    refused = harness.answers[join(harness, join_request(protocols=[("range", TOO_MANY)]), "will")]
    assert isinstance(refused, KafkaError)
    assert refused.code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_a_group_that_lists_too_much_stays_classic() -> None:
    subscribed, assigned = harness_of(orders=3), harness_of(orders=3)
    joined(subscribed, "alice", range=TOO_MANY)
    led(assigned, assignment(*range(100_000)))
    for harness in (subscribed, assigned):
        refused = beat(harness, "bob", 0, "orders")
        assert isinstance(refused, KafkaError)
        assert refused.code is ErrorCode.GROUP_ID_NOT_FOUND


@pytest.mark.parametrize("subscribed", [("orders",), ("orders", "clicks")])
def test_a_partition_below_zero_is_no_partition(subscribed: tuple[str, ...]) -> None:
    harness = harness_of(orders=3, clicks=1)
    led(harness, assignment(-1, -100, 0))
    answer = beat(harness, "bob", 0, *subscribed)
    assert answer.member_epoch > 0
    state = group_of(harness).state
    given = [number for has in state.targets.values() for number in has.get(ORDERS, ())]
    assert sorted(given) == [0, 1, 2]


def test_a_topic_that_is_named_twice_is_owned_with_all_its_partitions() -> None:
    harness = harness_of(orders=2)
    epoch = beat(harness, "alice", 0, "orders").member_epoch
    beat(harness, "alice", epoch, owned=[(ORDERS, [0, 1])])
    beat(harness, "bob", 0, "orders")
    harness.advance(harness.config.group_consumer_assignment_interval_ms)
    told = beat(harness, "alice", epoch, owned=[(ORDERS, [0, 1])])
    (kept,) = told.assignment.topic_partitions[0].partitions
    revoked = 1 - kept
    told = beat(harness, "alice", epoch, owned=[(ORDERS, [revoked]), (ORDERS, [kept])])
    assert told.member_epoch == epoch, "it has not given up what it was told to"
    assert beat(harness, "alice", epoch, owned=[(ORDERS, [kept])]).member_epoch > epoch


def test_what_the_classic_protocol_expected_of_a_member_ends_when_it_changes_over() -> None:
    harness = harness_of(orders=2)
    beat(harness, "alice", 0, "orders")
    joining = join_request(rebalance_timeout_ms=60_000)
    member_id = harness.answers[join(harness, joining, "bob")].member_id
    beat(harness, member_id, 0, "orders")
    for _ in range(3):
        harness.advance(30_000)
        for each in ("alice", member_id):
            beat(harness, each, group_of(harness).current(each).epoch)
    assert member_id in group_of(harness).members

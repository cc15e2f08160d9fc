"""Consumer groups that a shard loads: records of other versions, group configs, and responses that wait for
what was written."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from muster.coordinator.group.config import GroupOverrides
from muster.coordinator.group.consumer import records
from muster.coordinator.group.consumer.state import Current, MemberState, Subscription
from muster.coordinator.group.effects import Record, TopicsImage
from muster.coordinator.group.events import Trigger
from muster.coordinator.group.group import RebalanceView
from muster.coordinator.group.shard import Shard
from muster.protocol.api import ApiKey
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.consumer_group import ConsumerGroupHeartbeatRequest
from muster.protocol.messages.coordinator_records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
)
from tests.group.harness import Harness
from tests.group.requests import context, join_request, sync_request

GROUP, ORDERS = "orders", uuid.UUID(int=1)
_Held = ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions


def current(state: int, *, epochs: list[int] | None) -> Record:
    """alice's record: she owns partitions 0 and 1, may have to revoke 2, and is in epoch 7."""
    held = [
        [_Held(topic_id=ORDERS, partitions=numbers, assignment_epochs=epochs and epochs[: len(numbers)])]
        for numbers in ([0, 1], [2])
    ]
    return Record(
        ConsumerGroupCurrentMemberAssignmentKey(group_id=GROUP, member_id="alice"),
        ConsumerGroupCurrentMemberAssignmentValue(
            member_epoch=7,
            previous_member_epoch=6,
            state=state,
            assigned_partitions=held[0],
            partitions_pending_revocation=held[1] if state == MemberState.UNREVOKED_PARTITIONS else [],
        ),
        0,
    )


def loaded(has: Record) -> Harness:
    harness = Harness()
    for record in (
        records.subscription(GROUP, "alice", Subscription(topics=("orders",), rebalance_timeout_ms=60_000)),
        records.group_epoch(GROUP, 7, 1),
        records.target(GROUP, "alice", {ORDERS: frozenset({0, 1})}),
        records.target_epoch(GROUP, 7, 1),
        has,
    ):
        harness.log.append(record.row())
        harness.shard.apply(*record.row())
        harness.replica.apply(record)
    harness.reload()
    with_topics(harness, 3)
    return harness


def with_topics(harness: Harness, partitions: int) -> None:
    harness.topics_changed(
        TopicsImage(frozenset(), partitions={"orders": partitions}, live={"orders": ORDERS})
    )


def beat(harness: Harness, epoch: int, owned: list[int] | None, **fields: Any) -> Any:
    request = ConsumerGroupHeartbeatRequest(
        group_id=GROUP,
        member_id=fields.pop("member_id", "alice"),
        member_epoch=epoch,
        topic_partitions=None
        if owned is None
        else [
            ConsumerGroupHeartbeatRequest.TopicPartitions(topic_id=ORDERS, partitions=[number])
            for number in owned
        ],
        **fields,
    )
    return harness.ask(Shard.consumer_heartbeat, request, context(ApiKey.CONSUMER_GROUP_HEARTBEAT))


def join(harness: Harness, **fields: Any) -> Any:
    return beat(harness, 0, [], rebalance_timeout_ms=60_000, subscribed_topic_names=["orders"], **fields)


def test_partitions_without_epochs_are_held_since_the_members_own() -> None:
    """Records from before KIP-1251."""
    harness = loaded(current(MemberState.UNREVOKED_PARTITIONS, epochs=None))
    assert harness.shard.hard.consumers[GROUP].current["alice"] == Current(
        7, 6, MemberState.UNREVOKED_PARTITIONS, {ORDERS: {0: 7, 1: 7}}, {ORDERS: {2: 7}}
    )


def test_partitions_are_held_since_their_epochs() -> None:
    harness = loaded(current(MemberState.UNREVOKED_PARTITIONS, epochs=[3, 5]))
    has = harness.shard.hard.consumers[GROUP].current["alice"]
    assert (has.assigned, has.revoking) == ({ORDERS: {0: 3, 1: 5}}, {ORDERS: {2: 3}})


@pytest.mark.parametrize("owned", [None, [0]])
def test_a_member_in_a_state_that_nobody_knows_begins_anew(owned: list[int] | None) -> None:
    """It was written by a later version; its other partitions may be anything."""
    harness = loaded(current(100, epochs=[3, 5]))
    assert harness.shard.hard.consumers[GROUP].current["alice"].state is MemberState.UNKNOWN
    refusal = beat(harness, 7, owned)
    assert isinstance(refusal, KafkaError)
    assert refusal.code == ErrorCode.FENCED_MEMBER_EPOCH
    assert "unknown state" in str(refusal)


def test_a_member_in_a_state_that_nobody_knows_goes_on_once_it_has_nothing() -> None:
    harness = loaded(current(100, epochs=[3, 5]))
    answer = beat(harness, 7, [])
    assert answer.error_code == ErrorCode.NONE
    assert harness.shard.hard.consumers[GROUP].current["alice"].state is MemberState.STABLE


def set_for_the_group(harness: Harness, *, assignment_interval_ms: int) -> None:
    default = harness.shard.configs.of("another")
    harness.shard.configs.become(default, {GROUP: GroupOverrides(20_000, 3_000, assignment_interval_ms)})


def test_what_is_set_for_a_group_holds_for_its_members() -> None:
    harness = Harness()
    with_topics(harness, 2)
    set_for_the_group(harness, assignment_interval_ms=0)
    assert join(harness).heartbeat_interval_ms == 3_000
    assert join(harness, member_id="bob").member_epoch == 3, "the second target waits for no interval"
    harness.advance(19_999)
    assert len(harness.shard.groups[GROUP].members) == 2
    harness.advance(1)
    assert not harness.shard.groups[GROUP].members


def test_what_is_set_for_a_group_delays_its_targets() -> None:
    harness = Harness()
    with_topics(harness, 2)
    set_for_the_group(harness, assignment_interval_ms=5_000)
    join(harness)
    assert join(harness, member_id="bob").member_epoch == 2
    harness.advance(4_999)
    assert beat(harness, 2, None, member_id="bob").member_epoch == 2
    harness.advance(1)
    assert beat(harness, 2, None, member_id="bob").member_epoch == 3


def test_the_assignment_of_a_classic_member_waits_for_what_was_written() -> None:
    harness = Harness()
    with_topics(harness, 2)
    join(harness)
    joined = harness.ask(Shard.join, join_request(), context(ApiKey.JOIN_GROUP, "bob", version=3))
    request = sync_request(joined.member_id, joined.generation_id)
    synced = harness.ask(Shard.sync, request, context(ApiKey.SYNC_GROUP, "bob"))
    assert synced.error_code == ErrorCode.NONE
    assert harness.last.reads_hard_state, "it shows what earlier steps have written"


# --- how it is shown ----------------------------------------------------------------------------------------


def test_a_rebalance_found_when_loading_began_with_the_load() -> None:
    harness = loaded(current(MemberState.UNREVOKED_PARTITIONS, epochs=[3, 5]))
    loaded_ms = harness.now_ms
    harness.advance(1_000)
    view = harness.shard.groups[GROUP].view()
    assert (view.state, view.is_rebalancing) == ("Reconciling", True)
    assert view.rebalance == RebalanceView(loaded_ms, Trigger.SHARD_UNLOADED, 1)


def test_a_rebalance_began_with_its_epoch_not_with_its_target() -> None:
    harness = Harness()
    with_topics(harness, 2)
    set_for_the_group(harness, assignment_interval_ms=5_000)
    join(harness)
    harness.advance(1_000)
    join(harness, member_id="bob")
    began_ms = harness.now_ms
    harness.advance(5_000)
    beat(harness, 2, None, member_id="bob")
    view = harness.shard.groups[GROUP].view()
    assert (view.state, view.state_since_ms) == ("Reconciling", began_ms + 5_000)
    assert view.rebalance is not None
    assert view.rebalance.started_ms == began_ms


def test_a_static_member_that_is_away_is_no_rebalance_and_not_waited_for() -> None:
    harness = Harness()
    with_topics(harness, 2)
    set_for_the_group(harness, assignment_interval_ms=0)
    join(harness, instance_id="one")
    beat(harness, -2, None, instance_id="one")
    view = harness.shard.groups[GROUP].view()
    assert (view.state, view.is_rebalancing, view.rebalance) == ("Reconciling", False, None)
    join(harness, member_id="bob")
    view = harness.shard.groups[GROUP].view()
    assert view.rebalance is not None
    assert view.rebalance.waiting_for == 1, "bob, who waits for what is free"

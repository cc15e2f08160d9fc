"""Each checker of consumer groups on its own: what it accepts and what it rejects."""

from __future__ import annotations

from typing import Any

import pytest

from muster.protocol.api import ApiKey
from muster.protocol.errors import ErrorCode
from muster.protocol.messages.classic_group import (
    JoinGroupRequest,
    LeaveGroupRequest,
)
from muster.protocol.messages.consumer_group import (
    ConsumerGroupHeartbeatResponse,
)
from muster.protocol.messages.coordinator_records import (
    ConsumerGroupMemberMetadataKey,
    OffsetCommitKey,
    OffsetCommitValue,
)
from tests.simulator.checkers import Violation
from tests.simulator.consumer_world import OLD_ORDERS, Row, World
from tests.support import embedded


@pytest.fixture
def world() -> World:
    return World()


# --- held once --------------------------------------------------------------------------------------------


def test_a_partition_is_given_when_nobody_has_it(world: World) -> None:
    world.give("a", 0, 1)
    world.give("a", 0)  # 1 has to be revoked
    world.give("b", 2)
    with pytest.raises(Violation, match=r"\('orders', 1\).*has not given them up"):
        world.give("b", 1, 2)


def test_a_member_gives_up_by_saying_so(world: World) -> None:
    world.give("a", 0, 1)
    world.beat("a")  # says nothing of what it owns
    with pytest.raises(Violation, match="has not given them up"):
        world.give("b", 1)
    world.beat("a", owned=[0])
    world.give("b", 1)
    world.beat("a", -1)
    world.give("b", 0, 1)


@pytest.mark.parametrize("code", [ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID])
def test_a_member_that_is_told_that_it_is_none_has_nothing(world: World, code: ErrorCode) -> None:
    world.give("a", 0)
    exchange = world.beat("a")
    world.held_once.replied(exchange, world.told_to(exchange, code=code))
    world.give("b", 0)


def test_a_member_that_is_gone_from_the_disk_has_nothing(world: World) -> None:
    world.give("a", 0)
    world.gone("a")
    world.give("b", 0)


def test_what_a_member_is_not_told_it_does_not_have(world: World) -> None:
    exchange = world.beat("a")
    exchange.link.open = False
    world.held_once.replied(exchange, world.told_to(exchange, 0))
    world.give("b", 0)


def test_a_member_that_is_gone_when_it_is_answered_has_nothing(world: World) -> None:
    exchange = world.beat("a")
    world.held_once.replied(exchange, world.told_to(exchange, 0))
    world.give("b", 0)


def test_a_member_of_the_classic_protocol_gives_up_by_joining(world: World) -> None:
    world.sync("a", 0, 1)
    with pytest.raises(Violation, match="has not given them up"):
        world.give("b", 0)
    protocol = JoinGroupRequest.Protocol(
        name="range", metadata=embedded.subscription(["orders"], owned=[("orders", 1)])
    )
    request = JoinGroupRequest(
        group_id="g", session_timeout_ms=1, member_id="a", protocol_type="consumer", protocols=[protocol]
    )
    world.held_once.asked(world.exchange(ApiKey.JOIN_GROUP, request))
    world.give("b", 0)
    with pytest.raises(Violation, match="has not given them up"):
        world.give("b", 0, 1)
    leaving = LeaveGroupRequest.MemberIdentity(member_id="a")
    world.held_once.asked(
        world.exchange(ApiKey.LEAVE_GROUP, LeaveGroupRequest(group_id="g", members=[leaving]))
    )
    world.give("b", 0, 1)


def test_a_generation_ends_what_members_had_in_the_last(world: World) -> None:
    world.sync("a", 0)
    world.sync("b", 1)
    world.classic(2, "b")
    world.sync("b", 0, 1, generation=2)
    world.classic(2, "b", "c")  # the same generation again
    with pytest.raises(Violation, match="has not given them up"):
        world.sync("c", 0, generation=2)


def test_a_group_that_becomes_a_consumer_group_has_dropped_who_is_not_among_its_members(world: World) -> None:
    world.sync("a", 0)
    world.sync("b", 1)
    world.classic(None)
    world.subscription("b")
    world.epoch(1)
    world.give("c", 0)
    with pytest.raises(Violation, match="has not given them up"):
        world.give("c", 0, 1)


def test_of_a_name_that_two_topics_had_nothing_is_said(world: World) -> None:
    world.topics = [Row(OLD_ORDERS, "orders")]
    world.names.look()
    assert world.names.deleted == {"orders"}
    world.sync("a", 0)
    world.give("b", 0)


# --- commits ----------------------------------------------------------------------------------------------


def test_commits_of_the_present_epoch_are_taken(world: World) -> None:
    world.member("a", 4, {0: 2})
    world.commit("a", 4)
    world.commit("a", 4, partition=3)  # whatever the partition, as in Kafka
    with pytest.raises(Violation, match="stale epoch"):
        world.commit("a", 5)
    with pytest.raises(Violation, match="stale epoch"):
        world.commit("b", 4)


def test_commits_of_an_earlier_epoch_are_for_what_the_member_has_had_since(world: World) -> None:
    world.member("a", 4, {0: 2, 1: 4})
    world.current("a", 4, {0: 2, 1: 4}, {2: 3})
    world.commit("a", 3)
    world.commit("a", 3, partition=2)
    with pytest.raises(Violation, match="stale epoch"):
        world.commit("a", 3, partition=1)
    with pytest.raises(Violation, match="stale epoch"):
        world.commit("a", 1)


def test_anybody_commits_for_a_group_without_members(world: World) -> None:
    world.epoch(3)
    world.commit("", -1)
    world.member("a", 3, {})
    with pytest.raises(Violation, match="stale epoch"):
        world.commit("", -1, offset=6)


def test_what_counts_is_the_moment_when_a_commit_is_stored(world: World) -> None:
    world.member("a", 4, {0: 4})
    world.write(
        OffsetCommitKey(group="g", topic="orders", partition=0),
        OffsetCommitValue(offset=5, metadata="m", commit_timestamp=0),
    )
    world.current("a", 5, {})
    world.commit("a", 4)  # the same commit again


# --- the disk ---------------------------------------------------------------------------------------------


def test_a_whole_group(world: World) -> None:
    world.member("a", 2, {0: 2})
    world.member("b", 2, {1: 2})
    world.target("a")
    world.epoch(3)
    world.target_epoch(2)
    world.whole.appended()


def test_a_group_of_both_kinds(world: World) -> None:
    world.classic(1, "a")
    world.member("a", 1, {})
    with pytest.raises(Violation, match="of both kinds"):
        world.whole.appended()
    world.classic(None)
    world.whole.appended()


@pytest.mark.parametrize(
    ("what", "fault"),
    [
        (lambda world: world.subscription("c"), "assignments of"),
        (lambda world: world.current("c", 2, {}), "assignments of"),
        (lambda world: world.target("c"), "targets of"),
        (lambda world: world.member("c", 2, {0: 2}), "two owners"),
        (lambda world: world.member("c", 3, {}), "is in epoch 3, the target in 2"),
        (lambda world: world.target_epoch(4), "its target is of epoch 4, it is in 3"),
    ],
)
def test_a_group_that_is_not_whole(world: World, what: Any, fault: str) -> None:
    test_a_whole_group(world)
    what(world)
    with pytest.raises(Violation, match=fault):
        world.whole.appended()


def test_a_group_that_is_made_anew_in_one_append_begins_again(world: World) -> None:
    test_a_whole_group(world)
    world.epoch(None)
    world.epoch(2)
    world.whole.appended()


def test_epochs_only_grow(world: World) -> None:
    test_a_whole_group(world)
    world.epoch(2)
    with pytest.raises(Violation, match="goes back from epochs"):
        world.whole.appended()
    with pytest.raises(Violation, match="goes back from epoch 2"):
        world.current("a", 1, {})
    world.current("a", -2, {})  # it leaves temporarily
    world.gone("a")
    world.current("a", 1, {})


# --- fenced late ------------------------------------------------------------------------------------------


def hear(world: World, at_s: float, instance_id: str | None = None) -> None:
    """A heartbeat of member "a", which is then in the group."""
    world.subscription("a", instance_id)
    exchange = world.beat("a")
    exchange.sent_s = at_s
    world.fenced_late.replied(exchange, world.told_to(exchange))


def remove(world: World) -> None:
    world.write(ConsumerGroupMemberMetadataKey(group_id="g", member_id="a"), None)


def test_a_member_is_removed_when_its_session_has_run_out(world: World) -> None:
    hear(world, 3.0)
    remove(world)
    world.fenced_late.appended(11.0)
    hear(world, 12.0005)
    remove(world)
    world.fenced_late.appended(20.0)  # for the broker, it was heard at 12.000
    hear(world, 22.0)
    remove(world)
    with pytest.raises(Violation, match=r"removed 7\.9 s after it was heard of"):
        world.fenced_late.appended(29.9)


def test_a_member_that_leaves_is_removed_at_once(world: World) -> None:
    hear(world, 3.0)
    world.fenced_late.asked(world.beat("a", -1))
    remove(world)
    world.fenced_late.appended(3.1)
    hear(world, 4.0)
    joins = world.beat("a", 0)
    joins.sent_s = 4.0
    world.fenced_late.asked(joins)  # its leave may still be in flight to the store
    remove(world)
    world.fenced_late.appended(4.1)
    hear(world, 4.0)
    world.fenced_late.replied(joins, world.told_to(joins))
    remove(world)
    with pytest.raises(Violation, match="after it was heard of"):
        world.fenced_late.appended(4.1)


def test_a_static_member_is_removed_when_its_successor_comes(world: World) -> None:
    hear(world, 3.0, "i")
    remove(world)
    world.subscription("b", "i")
    world.fenced_late.appended(3.1)


# --- the wire ---------------------------------------------------------------------------------------------


def test_a_heartbeat_is_answered_with_what_was_written(world: World) -> None:
    exchange = world.beat("a")
    with pytest.raises(Violation, match="before it was durable"):
        world.told.replied(exchange, world.told_to(exchange, 0))
    world.current("a", 2, {0: 2})
    world.told.replied(exchange, world.told_to(exchange, 0))
    unchanged = ConsumerGroupHeartbeatResponse(member_id="a", member_epoch=2, heartbeat_interval_ms=1)
    world.told.replied(exchange, unchanged)
    with pytest.raises(Violation, match="before it was durable"):
        world.told.replied(exchange, world.told_to(exchange, 0, 1))
    with pytest.raises(Violation, match="before it was durable"):
        world.told.replied(exchange, world.told_to(exchange, 0, epoch=3))

"""What the events say about connections: who was heard over a closed one, and who returns over it."""

from __future__ import annotations

import pytest

from muster.coordinator.group.classic.states import GroupState
from muster.coordinator.group.events import MemberAdded, MemberDisconnected
from muster.coordinator.group.shard import Shard
from muster.protocol.api import ApiKey
from tests.group.harness import Harness, told, who
from tests.group.requests import (
    context,
    heartbeat_request,
    join,
    join_request,
    leave_request,
    stable,
)

LEAVE = context(ApiKey.LEAVE_GROUP)


@pytest.fixture
def harness() -> Harness:
    return Harness()


def leave(harness: Harness, member_id: str, group_id: str = "orders") -> None:
    request = leave_request(member_id)
    request.group_id = group_id
    harness.ask(Shard.leave, request, LEAVE)


# --- they close ---------------------------------------------------------------------------------------------


def test_the_end_of_a_connection_concerns_those_last_heard_over_it(harness: Harness) -> None:
    alice, bob = stable(harness, "alice", "bob")  # both over connection 1
    harness.ask(Shard.heartbeat, heartbeat_request(bob, 2), context(ApiKey.HEARTBEAT, "bob", connection_id=2))
    harness.take_events()
    harness.disconnect(7)
    assert harness.take_events() == []
    harness.disconnect(1)
    [event] = harness.take_events()
    assert isinstance(event, MemberDisconnected)
    assert event.member is not None
    assert event.member.member_id == alice
    harness.disconnect(1)
    assert harness.take_events() == []
    harness.disconnect(2)
    assert len(harness.take_events()) == 1
    assert harness.group().state is GroupState.STABLE
    assert repr(harness.group().connections) == "<Connections 0 of members, 0 of former ones>"


def test_the_connection_of_who_left_is_told_with_how_long_ago_it_left(harness: Harness) -> None:
    alice, bob = stable(harness, "alice", "bob")  # both over connection 1
    harness.advance(500)
    harness.ask(Shard.leave, leave_request(alice), context(ApiKey.LEAVE_GROUP))
    harness.take_events()
    harness.advance(20)
    harness.disconnect(1)
    assert [
        (event.member and event.member.member_id, event.silent_ms, event.after_removal_ms)
        for event in harness.take_events()
        if isinstance(event, MemberDisconnected)
    ] == [(bob, 520, None), (alice, 520, 20)]
    assert not harness.shard.knows_connection(1)


def test_a_member_that_was_dropped_is_told_with_how_long_ago(harness: Harness) -> None:
    alice, bob = stable(harness, "alice", "bob", rebalance_timeout_ms=10_000)
    join(harness, join_request(alice, rebalance_timeout_ms=10_000))
    harness.advance(10_000)
    assert bob not in harness.group().members
    harness.advance(30)
    harness.take_events()
    harness.disconnect(1)
    assert [(who(event), event.after_removal_ms) for event in told(harness, MemberDisconnected)] == [
        (alice, None),
        (bob, 30),
    ]


def test_a_connection_is_known_by_its_members_and_its_former_members(harness: Harness) -> None:
    [alice] = stable(harness, "alice")
    assert harness.shard.knows_connection(1)
    leave(harness, alice)
    assert harness.shard.knows_connection(1)
    assert not harness.shard.knows_connection(2)


# --- they are used again ------------------------------------------------------------------------------------


def test_who_comes_back_to_one_group_is_still_a_former_member_of_another(harness: Harness) -> None:
    for group_id in ("orders", "clicks"):
        leave(harness, harness.answers[join(harness, join_request(group_id=group_id))].member_id, group_id)
    join(harness, join_request(group_id="orders"))
    harness.take_events()
    harness.disconnect(1)
    assert [(event.group_id, event.after_removal_ms) for event in told(harness, MemberDisconnected)] == [
        ("orders", None),
        ("clicks", 0),
    ]


def test_a_client_that_was_removed_is_known_by_its_connection(harness: Harness) -> None:
    [alice] = stable(harness, "alice")
    harness.ask(Shard.leave, leave_request(alice), LEAVE)
    join(harness, join_request(), "stranger", version=3)  # over the same connection
    join(harness, join_request(), "another", version=3)
    assert [event.former_member_id for event in told(harness, MemberAdded)] == [None, alice, None]
    elsewhere = context(ApiKey.JOIN_GROUP, "alice", 3, connection_id=9)
    harness.send(Shard.join, join_request(), elsewhere)
    assert [event.former_member_id for event in told(harness, MemberAdded)] == [None]


def test_a_former_member_of_a_group_that_is_gone_is_not_told_of(harness: Harness) -> None:
    [alice] = stable(harness, "alice")
    harness.ask(Shard.leave, leave_request(alice), LEAVE)
    harness.ask(Shard.delete_group, "orders", context(ApiKey.DELETE_GROUPS))
    harness.take_events()
    harness.disconnect(1)
    assert harness.take_events() == []


def test_former_members_of_a_connection_are_bounded(harness: Harness) -> None:
    members = [harness.answers[join(harness, join_request(group_id=f"g-{n}"))].member_id for n in range(40)]
    for number, member_id in enumerate(members):
        request = leave_request(member_id)
        request.group_id = f"g-{number}"
        harness.ask(Shard.leave, request, LEAVE)
    harness.take_events()
    harness.disconnect(1)
    assert len(harness.take_events()) == 16

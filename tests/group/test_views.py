"""How groups appear outside: on the page, and in tests of applications."""

from __future__ import annotations

import pytest

from muster.coordinator.group.events import MemberIdentity, Trigger
from muster.coordinator.group.group import GroupView, MemberView, PendingMember, RebalanceView
from muster.coordinator.group.shard import Shard
from muster.protocol.api import ApiKey
from muster.protocol.codec import encode
from muster.protocol.messages.group_admin import DescribeGroupsResponse
from tests.group.harness import START_MS, Harness
from tests.group.requests import (
    TOO_MANY,
    assignment,
    commit_request,
    context,
    join,
    join_request,
    leave_request,
    member,
    stable,
    subscription,
    sync_request,
)
from tests.support.each import each

SYNC = context(ApiKey.SYNC_GROUP)
COMMIT = context(ApiKey.OFFSET_COMMIT)


@pytest.fixture
def harness() -> Harness:
    return Harness()


# --- groups -------------------------------------------------------------------------------------------------


def test_a_group_without_members(harness: Harness) -> None:
    harness.advance(5)
    member_id = harness.ask(Shard.join, join_request(), context(ApiKey.JOIN_GROUP)).member_id
    pending = PendingMember(MemberIdentity(member_id, "alice", "/10.0.0.1"), START_MS + 5)
    assert harness.group().view() == GroupView(
        group_id="orders",
        state="Empty",
        state_since_ms=START_MS + 5,
        is_rebalancing=False,
        is_stable=False,
        generation_id=0,
        protocol_type="",
        protocol_name=None,
        leader=None,
        subscribed_topics=frozenset(),
        rebalance=None,
        members=0,
        pending=(pending,),
    )


def test_a_group_from_one_generation_to_the_next(harness: Harness) -> None:
    alice, bob, carol = stable(harness, "alice", "bob", "carol")
    harness.advance(10)
    stood = harness.group().view()
    assert stood == GroupView(
        group_id="orders",
        state="Stable",
        state_since_ms=START_MS,
        is_rebalancing=False,
        is_stable=True,
        generation_id=2,
        protocol_type="consumer",
        protocol_name="range",
        leader=alice,
        subscribed_topics=frozenset({"orders"}),
        rebalance=None,
        members=3,
        pending=(),
    )
    join(harness, join_request(alice))
    waiting = stood._replace(is_stable=False, is_rebalancing=True)
    rebalance = RebalanceView(START_MS + 10, Trigger.LEADER_REJOINED, 2)
    assert harness.group().view() == waiting._replace(
        state="PreparingRebalance", state_since_ms=START_MS + 10, rebalance=rebalance
    )
    assert owed(harness) == {alice: None, bob: "JoinGroup", carol: "JoinGroup"}
    join(harness, join_request(), "dave", version=4)
    assert harness.group().view().rebalance == rebalance._replace(waiting_for=3), "for one who was told an id"
    harness.ask(Shard.leave, leave_request(*harness.group().pending_members), context(ApiKey.LEAVE_GROUP))
    harness.advance(10)
    for member_id in (bob, carol):
        join(harness, join_request(member_id))
    assert harness.group().view() == waiting._replace(
        state="CompletingRebalance",
        state_since_ms=START_MS + 20,
        generation_id=3,
        rebalance=rebalance._replace(waiting_for=3),
    )
    assert owed(harness) == {alice: "SyncGroup", bob: "SyncGroup", carol: "SyncGroup"}
    harness.send(Shard.sync, sync_request(bob, 3), SYNC)
    assert harness.group().view().rebalance == rebalance._replace(waiting_for=2)
    assert owed(harness) == {alice: "SyncGroup", bob: None, carol: "SyncGroup"}
    harness.ask(Shard.sync, sync_request(alice, 3), SYNC)
    assert harness.group().view() == stood._replace(generation_id=3, state_since_ms=START_MS + 20)
    assert owed(harness) == {alice: None, bob: None, carol: None}, (
        "though carol has not fetched its assignment"
    )


def owed(harness: Harness) -> dict[str, str | None]:
    """The request that each member still has to send, by member id."""
    return {view.member_id: view.owes for view in harness.group().member_views()}


def test_an_assignment_does_not_wait_for_who_was_told_an_id(harness: Harness) -> None:
    alice, bob = stable(harness, "alice", "bob")
    join(harness, join_request(alice))
    join(harness, join_request(bob), "bob")
    join(harness, join_request(), "carol", version=4)
    view = harness.group().view()
    assert (view.state, len(view.pending)) == ("CompletingRebalance", 1)
    assert view.rebalance is not None
    assert view.rebalance.waiting_for == 2


def test_a_group_that_is_given_up_rebalances_no_more(harness: Harness) -> None:
    alice, _ = stable(harness, "alice", "bob")
    join(harness, join_request(alice))
    harness.unload()
    view = harness.group().view()
    assert (view.state, view.is_rebalancing, view.rebalance) == ("Dead", False, None)
    assert set(owed(harness).values()) == {None}


def test_members_may_go_while_they_are_read(harness: Harness) -> None:
    alice, bob = stable(harness, "alice", "bob")
    views = harness.group().member_views()
    assert next(views).member_id == alice
    harness.ask(Shard.leave, leave_request(alice), context(ApiKey.LEAVE_GROUP))
    assert [view.member_id for view in views] == [bob]


def test_members_are_shown_by_the_protocol_of_their_group(harness: Harness) -> None:
    protocols = [("sticky", subscription("clicks")), ("range", subscription("orders"))]
    stable(harness, "alice", protocols=protocols)
    harness.group().protocol_name = "range"
    [view] = harness.group().member_views()
    assert view.topics() == ["orders"]


# --- members ------------------------------------------------------------------------------------------------


def test_a_member() -> None:
    shop = member("shop-1", instance_id="s", session_timeout_ms=10_000, rebalance_timeout_ms=20_000)
    shop.identity = shop.identity._replace(client_host="/10.0.0.2")
    shop.heard_ms, shop.connection_id = 1_234, 7
    view = shop.view("range", "JoinGroup")
    assert view == MemberView(
        member_id="shop-1",
        identity=MemberIdentity("shop-1", "shop", "/10.0.0.2", "s"),
        client_id="shop",
        client_host="/10.0.0.1",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=20_000,
        heard_ms=1_234,
        connection_id=7,
        owes="JoinGroup",
        topics=view.topics,
        assignment=view.assignment,
    )


@each(
    "protocol_name, protocols, topics",
    [
        ("range", [("sticky", subscription("a")), ("range", subscription("c", "b"))], ["b", "c"]),
        # Before a protocol is chosen: the member's most preferred one.
        (None, [("sticky", subscription("a")), ("range", subscription("b"))], ["a"]),
        ("other", [("sticky", subscription("a"))], ["a"]),
        ("range", [("range", b"garbage")], None),
        ("range", [("range", TOO_MANY)], None),
    ],
)
def test_what_a_member_subscribes_to(
    protocol_name: str | None, protocols: list[tuple[str, bytes]], topics: list[str] | None
) -> None:
    assert member(protocols=protocols).view(protocol_name, None).topics() == topics


@each(
    "assigned, partitions",
    [
        (assignment(1, 0), [("orders", 1), ("orders", 0)]),
        (b"", []),
        (b"garbage", None),
        (assignment(*range(100_000)), None),  # with the topic, one more than is read
    ],
)
def test_what_a_member_was_assigned(assigned: bytes, partitions: list[tuple[str, int]] | None) -> None:
    alice = member()
    alice.assignment = assigned
    assert alice.view(None, None).assignment() == partitions


# --- shards -------------------------------------------------------------------------------------------------


def test_how_many_groups_there_are(harness: Harness) -> None:
    assert harness.shard.contents() == {}
    stable(harness, "alice")
    harness.ask(Shard.commit_offsets, commit_request({("orders", 0): 1}, group_id="simple"), COMMIT)
    assert harness.shard.contents() == {"groups": 2}
    loading = Shard(0, harness.config)
    for key, value in harness.log:
        loading.apply(key, value)
    assert loading.contents() == {"groups": 2}, "by its rows, before it serves them"
    harness.unload()
    assert harness.shard.contents() == {"groups": 2}


# --- DescribeGroups -----------------------------------------------------------------------------------------


def described(harness: Harness) -> DescribeGroupsResponse:
    group = harness.ask(Shard.describe, "orders", context(ApiKey.DESCRIBE_GROUPS))
    return DescribeGroupsResponse(groups=[group])


def test_members_are_described_alike_in_every_version(harness: Harness) -> None:
    stable(harness, "alice", "bob", "carol")
    whole = described(harness)
    (group,) = described(harness).groups
    group.members = list(group.members)
    assert [each.client_id for each in group.members] == ["alice", "bob", "carol"]
    for version in range(7):
        assert encode(whole, version) == encode(DescribeGroupsResponse(groups=[group]), version)

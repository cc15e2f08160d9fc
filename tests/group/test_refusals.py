"""What the events say about refused requests, and how often."""

from __future__ import annotations

from typing import Any

import pytest

from muster.coordinator.base.rate_limiter import RateLimiter
from muster.coordinator.group.config import GroupConfig
from muster.coordinator.group.events import (
    CommitRefused,
    JoinRefused,
    MemberFenced,
    MemberIdentity,
    Trigger,
)
from muster.coordinator.group.rate_limiters import RateLimiters
from muster.coordinator.group.shard import Shard
from muster.protocol.api import ApiKey
from muster.protocol.errors import KafkaError
from muster.protocol.messages.classic_group import LeaveGroupRequest
from tests.group.harness import START_MS, Harness, told
from tests.group.requests import (
    assignment,
    commit_request,
    context,
    heartbeat_request,
    join,
    join_request,
    leave_request,
    stable,
    sync_request,
)
from tests.support.each import each

JOIN = context(ApiKey.JOIN_GROUP)
HEARTBEAT = context(ApiKey.HEARTBEAT)
SYNC = context(ApiKey.SYNC_GROUP)
COMMIT = context(ApiKey.OFFSET_COMMIT)
LEAVE = context(ApiKey.LEAVE_GROUP)


@pytest.fixture
def harness() -> Harness:
    return Harness()


# --- joins --------------------------------------------------------------------------------------------------


def test_a_client_that_finds_the_group_full_is_told_once_a_minute() -> None:
    harness = Harness(GroupConfig(group_initial_rebalance_delay_ms=0, group_max_size=1))
    stable(harness, "alice", session_timeout_ms=1_800_000)
    harness.take_events()
    for client, after_ms in (("bob", 0), ("bob", 0), ("carol", 20_000), ("bob", 40_000)):
        harness.advance(after_ms)
        join(harness, join_request(), client)
    refused = told(harness, JoinRefused)
    assert [event.member and event.member.client_id for event in refused] == ["bob", "carol", "bob"]


@each(
    "offered, kind, error, trigger, facts",
    [
        ("range", "consumer", "GROUP_MAX_SIZE_REACHED", Trigger.GROUP_FULL, {"size_max": 1}),
        (
            "sticky",
            "consumer",
            "INCONSISTENT_GROUP_PROTOCOL",
            Trigger.REQUESTED,
            {"size_max": None, "offered": ("sticky",), "shared": ("range",)},
        ),
        (
            "range",
            "connect",
            "INCONSISTENT_GROUP_PROTOCOL",
            Trigger.REQUESTED,
            {"size_max": None, "protocol_types": ("connect", "consumer")},
        ),
    ],
)
def test_what_is_told_of_a_refused_join(
    offered: str, kind: str, error: str, trigger: Trigger, facts: dict[str, Any]
) -> None:
    config = GroupConfig(group_initial_rebalance_delay_ms=0, group_max_size=facts["size_max"] or 2)
    harness = Harness(config)
    stable(harness, "alice")
    harness.take_events()
    request = join_request("ghost", protocols=[(offered, b"")], instance_id="s", reason="to help")
    request.protocol_type = kind
    join(harness, request, "bob")
    assert told(harness, JoinRefused) == [
        JoinRefused(
            START_MS,
            "orders",
            1,
            trigger,
            MemberIdentity("ghost", "bob", "/10.0.0.1", "s"),
            "to help",
            error=error,
            **facts,
        )
    ]


# --- fenced members -----------------------------------------------------------------------------------------


def test_each_kind_of_request_of_a_fenced_process_is_told(harness: Harness) -> None:
    old = harness.answers[join(harness, join_request(instance_id="s"))].member_id
    harness.ask(Shard.sync, sync_request(old, 1), SYNC)
    new = harness.answers[join(harness, join_request(instance_id="s"))].member_id
    away = {"client_id": "zombie", "connection_id": 7}
    commit = commit_request({("orders", 0): 1}, member_id=old, generation_id=1)
    commit.group_instance_id = "s"
    leave = LeaveGroupRequest(
        group_id="orders",
        members=[LeaveGroupRequest.MemberIdentity(member_id=old, group_instance_id="s")],
    )
    sync = sync_request(old, 1, group_instance_id="s")
    requests = [
        (Shard.join, join_request(old, instance_id="s"), ApiKey.JOIN_GROUP, "JoinGroup"),
        (Shard.sync, sync, ApiKey.SYNC_GROUP, "SyncGroup"),
        (Shard.heartbeat, heartbeat_request(old, 1, "s"), ApiKey.HEARTBEAT, "Heartbeat"),
        (Shard.commit_offsets, commit, ApiKey.OFFSET_COMMIT, "OffsetCommit"),
        (Shard.leave, leave, ApiKey.LEAVE_GROUP, "LeaveGroup"),
    ]
    for operation, request, api, name in requests:
        harness.take_events()
        for after_ms in (0, 1_000):
            harness.advance(after_ms)
            harness.ask(Shard.heartbeat, heartbeat_request(new, 1, "s"), HEARTBEAT)
            harness.send(operation, request, context(api, **away))  # type: ignore[arg-type]
        [fenced] = told(harness, MemberFenced)
        assert fenced.member == MemberIdentity(new, "alice", "/10.0.0.1", "s")
        assert (fenced.api, fenced.old_member_id) == (name, old)
        assert (fenced.old_client_id, fenced.old_client_host) == ("zombie", "/10.0.0.1")
        for _ in range(2):
            harness.advance(30_000)
            harness.ask(Shard.heartbeat, heartbeat_request(new, 1, "s"), HEARTBEAT)


def test_each_instance_is_told_of(harness: Harness) -> None:
    zombies: list[str] = []
    for instance_id in ("s", "t"):
        first = harness.send(Shard.join, join_request(instance_id=instance_id), JOIN)
        if instance_id == "t":
            join(harness, join_request(harness.group().leader or "", instance_id="s"))
        leader, generation_id = harness.group().leader or "", harness.group().generation_id
        harness.ask(Shard.sync, sync_request(leader, generation_id), SYNC)
        zombies.append(harness.answers[first].member_id)
    for instance_id in ("s", "t"):
        join(harness, join_request(instance_id=instance_id))
    harness.take_events()
    for member_id, instance_id in zip(zombies, ("s", "t"), strict=True):
        harness.ask(Shard.heartbeat, heartbeat_request(member_id, generation_id, instance_id), HEARTBEAT)
    assert [event.old_member_id for event in told(harness, MemberFenced)] == zombies


def test_other_refusals_fence_nobody(harness: Harness) -> None:
    member_id = harness.answers[join(harness, join_request(instance_id="s"))].member_id
    for request in (heartbeat_request(member_id, 7, "s"), heartbeat_request("ghost", 1)):
        assert isinstance(harness.ask(Shard.heartbeat, request, HEARTBEAT), KafkaError)
    assert told(harness, MemberFenced) == []


# --- commits ------------------------------------------------------------------------------------------------


def test_a_refused_commit_says_who_has_the_partition_now(harness: Harness) -> None:
    alice, bob = stable(harness, "alice", "bob")  # orders-0, orders-1
    bob_identity = harness.group().members[bob].identity
    harness.advance(1_000)
    harness.ask(Shard.leave, leave_request(alice), LEAVE)
    harness.advance(500)
    join(harness, join_request(bob), "bob")
    harness.advance(200)
    harness.ask(Shard.sync, sync_request(bob, 3, {bob: assignment(0, 1)}), SYNC)
    harness.take_events()
    commit = commit_request({("orders", 0): 5, ("orders", 1): 6}, member_id=alice, generation_id=2)
    harness.ask(Shard.commit_offsets, commit, COMMIT)
    assert told(harness, CommitRefused) == [
        CommitRefused(
            START_MS + 1_700,
            "orders",
            3,
            Trigger.REQUESTED,
            MemberIdentity(alice, "alice", "/10.0.0.1"),
            None,
            error="UNKNOWN_MEMBER_ID",
            committed_generation_id=2,
            partitions=2,
            superseded_ms=200,
            owner=bob_identity,
            topic="orders",
            partition=0,
        )
    ]


def test_a_commit_refused_while_nobody_has_the_partition(harness: Harness) -> None:
    alice, bob = stable(harness, "alice", "bob")
    harness.ask(Shard.leave, leave_request(alice), LEAVE)
    for offsets in ({("orders", 0): 5}, {}):
        harness.take_events()
        commit = commit_request(offsets, member_id=alice, generation_id=2)
        harness.ask(Shard.commit_offsets, commit, COMMIT)
        [refused] = told(harness, CommitRefused)
        assert (refused.owner, refused.superseded_ms) == (None, None)
    assert (refused.partitions, refused.topic, refused.partition) == (0, "", -1)
    assert bob in harness.group().members


def test_a_refused_commit_of_a_static_member_says_its_instance(harness: Harness) -> None:
    """OffsetCommit has it from version 7 on; aiokafka sends version 3 at most."""
    [alice] = stable(harness, "alice", instance_id="pod-a")
    for member_id, told_as in ((alice, "pod-a"), ("ghost", None)):
        harness.take_events()
        commit = commit_request({("orders", 0): 5}, member_id=member_id, generation_id=7)
        harness.ask(Shard.commit_offsets, commit, COMMIT)
        [refused] = told(harness, CommitRefused)
        assert refused.member == MemberIdentity(member_id, "alice", "/10.0.0.1", told_as)


def test_the_generation_of_a_commit_may_be_too_long_ago_to_say_when_it_ended(harness: Harness) -> None:
    [alice] = stable(harness, "alice")
    for generation_id in range(2, 21):
        harness.advance(10)
        join(harness, join_request(alice))
        harness.ask(Shard.sync, sync_request(alice, generation_id), SYNC)
    harness.take_events()
    for generation_id in (3, 4, 19, 20):
        commit = commit_request({("orders", 0): 5}, member_id=alice, generation_id=generation_id)
        harness.ask(Shard.commit_offsets, commit, COMMIT)
    assert [event.superseded_ms for event in told(harness, CommitRefused)] == [None, 150, 0]


def test_refused_commits_of_one_group_do_not_hide_those_of_another(harness: Harness) -> None:
    for group_id in ("orders", "clicks"):
        join(harness, join_request(group_id=group_id))
    harness.take_events()
    for group_id, count in (("orders", 21), ("clicks", 1)):
        commit = commit_request({("orders", 0): 5}, member_id="ghost", generation_id=1, group_id=group_id)
        for _ in range(count):
            harness.ask(Shard.commit_offsets, commit, COMMIT)
        assert {event.group_id for event in told(harness, CommitRefused)} == {group_id}


def test_refused_commits_are_told_twenty_times_in_ten_seconds(harness: Harness) -> None:
    stable(harness, "alice")
    harness.take_events()
    commit = commit_request({("orders", 0): 5}, member_id="ghost", generation_id=1)
    for _ in range(30):
        harness.ask(Shard.commit_offsets, commit, COMMIT)
    assert len(told(harness, CommitRefused)) == 20
    harness.advance(10_000)
    harness.ask(Shard.commit_offsets, commit, COMMIT)
    assert len(told(harness, CommitRefused)) == 1


# --- their limits -------------------------------------------------------------------------------------------


LIMITS = [("commits_refused", 20, 10_000), ("fenced", 1, 60_000), ("joins_refused", 1, 60_000)]
"""Each limiter of a shard, with how often it allows a key, and within how many milliseconds."""


@each("name, count, within_ms", LIMITS)
def test_a_key_is_told_of_so_often(name: str, count: int, within_ms: int) -> None:
    limiter: RateLimiter = getattr(RateLimiters(), name)
    assert [limiter.allows("orders", 0) for _ in range(count + 1)] == [True] * count + [False]
    assert not limiter.allows("orders", within_ms - 1)
    assert limiter.allows("orders", within_ms)


@each("name", [name for name, _, _ in LIMITS])
def test_a_thousand_keys_are_told_of(name: str) -> None:
    limiter: RateLimiter = getattr(RateLimiters(), name)
    assert [limiter.allows(key, 0) for key in range(1_001)] == [True] * 1_000 + [False]

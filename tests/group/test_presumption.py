"""Members that are presumed alive while the clock is moved."""

from __future__ import annotations

import pytest

from muster.coordinator.group.classic.states import GroupState
from muster.coordinator.group.config import GroupConfig
from muster.coordinator.group.events import HeartbeatLate, MemberRemoved
from muster.coordinator.group.shard import Shard
from muster.coordinator.group.timers import PRESUMPTION
from muster.protocol.api import ApiKey
from tests.group.harness import START_MS, Harness
from tests.group.requests import (
    assignment,
    context,
    heartbeat_request,
    join,
    join_request,
    stable,
    sync_request,
)

WEEK_MS = 7 * 86_400_000
SYNC = context(ApiKey.SYNC_GROUP)


@pytest.fixture
def harness() -> Harness:
    return Harness()


def presume(harness: Harness, by_ms: int, *stalled: str) -> None:
    harness.presume_alive(harness.now_ms + by_ms, [("orders", member_id) for member_id in stalled])


def removed(harness: Harness) -> list[tuple[str, int]]:
    return [
        (event.member.member_id, event.silent_ms)
        for event in harness.take_events()
        if isinstance(event, MemberRemoved) and event.member is not None
    ]


def beat(harness: Harness, member_id: str, client: str = "alice", connection_id: int = 1) -> None:
    generation_id = harness.group().generation_id
    who = context(ApiKey.HEARTBEAT, client, connection_id=connection_id)
    harness.ask(Shard.heartbeat, heartbeat_request(member_id, generation_id), who)


def test_members_live_through_a_week_and_begin_a_full_session(harness: Harness) -> None:
    alice, bob = stable(harness, "alice", "bob")
    harness.advance(10_000)
    presume(harness, WEEK_MS)
    harness.advance(WEEK_MS)
    assert harness.group().state is GroupState.STABLE
    harness.take_events()
    harness.advance(44_000)
    beat(harness, alice)
    harness.advance(1_000)
    assert removed(harness) == [(bob, 45_000)]


def test_a_week_takes_few_deadlines(harness: Harness) -> None:
    """None of the deadlines that members would have had in the meantime."""
    stable(harness, *(f"m{number}" for number in range(50)))
    presume(harness, WEEK_MS)
    deadlines = 0
    until_ms = harness.now_ms + WEEK_MS
    sweeps = WEEK_MS // harness.config.offsets_retention_check_interval_ms
    while (deadline_ms := harness.shard.next_deadline()) is not None and deadline_ms <= until_ms:
        harness.advance(deadline_ms - harness.now_ms)
        deadlines += 1
    assert deadlines == sweeps  # it ends with the last of them


def test_a_stalled_member_goes(harness: Harness) -> None:
    alice, bob = stable(harness, "alice", "bob")
    presume(harness, 60_000, bob)
    harness.advance(60_000)
    assert removed(harness) == [(bob, 45_000)]
    assert list(harness.group().members) == [alice]


def test_one_whose_connection_has_closed_goes(harness: Harness) -> None:
    alice, bob = stable(harness, "alice", "bob")
    beat(harness, bob, "bob", connection_id=2)
    harness.disconnect(2)
    presume(harness, 60_000)
    harness.advance(60_000)
    assert removed(harness) == [(bob, 45_000)]
    assert list(harness.group().members) == [alice]


def test_after_a_failover_those_whose_clients_are_connected_live_on(harness: Harness) -> None:
    alice, bob, carol = stable(harness, "alice", "bob", "carol")
    harness.reload()
    beat(harness, carol, "carol", connection_id=2)
    harness.disconnect(2)  # its client was connected here and has gone
    harness.presume_alive(harness.now_ms + 60_000, [], clients=["alice", "carol"])
    harness.advance(60_000)
    assert removed(harness) == [(bob, 45_000), (carol, 45_000)]
    assert list(harness.group().members) == [alice]


def test_after_a_failover_they_begin_a_full_session_too(harness: Harness) -> None:
    [alice] = stable(harness, "alice")
    harness.reload()
    harness.presume_alive(harness.now_ms + WEEK_MS, [], clients=["alice"])
    harness.advance(WEEK_MS + 44_999)
    assert removed(harness) == []
    harness.advance(1)
    assert removed(harness) == [(alice, 45_000)]


def test_one_that_was_late_goes(harness: Harness) -> None:
    alice, bob = stable(harness, "alice", "bob")
    for _ in range(10):
        harness.advance(3_000)
        for member_id in (alice, bob):
            beat(harness, member_id)
    harness.advance(16_000)
    beat(harness, alice)
    harness.take_events()
    presume(harness, 60_000)
    harness.advance(60_000)
    assert removed(harness) == [(bob, 45_000)]


def test_a_connection_that_closes_meanwhile_ends_it(harness: Harness) -> None:
    alice, bob = stable(harness, "alice", "bob")
    beat(harness, bob, "bob", connection_id=2)
    presume(harness, WEEK_MS)
    harness.advance(100_000)
    harness.disconnect(2)
    harness.take_events()
    harness.advance(44_999)
    assert removed(harness) == []
    harness.advance(1)
    assert removed(harness) == [(bob, 145_000)]
    assert list(harness.group().members) == [alice]


def test_a_connection_that_closes_gives_the_stalled_no_more_time(harness: Harness) -> None:
    alice, bob = stable(harness, "alice", "bob")
    beat(harness, bob, "bob", connection_id=2)
    presume(harness, WEEK_MS, bob)
    harness.advance(30_000)
    harness.disconnect(2)
    harness.advance(15_000)
    assert removed(harness) == [(bob, 45_000)]
    assert list(harness.group().members) == [alice]


def test_a_connection_that_closes_takes_no_time_from_a_new_member() -> None:
    harness = Harness(GroupConfig(group_initial_rebalance_delay_ms=400_000))
    join(harness, join_request(rebalance_timeout_ms=500_000), "alice")
    presume(harness, WEEK_MS)
    harness.disconnect(1)
    harness.advance(299_999)
    assert harness.group().members
    harness.advance(1)
    assert not harness.group().members


def test_what_was_rebalanced_meanwhile_lives_on(harness: Harness) -> None:
    alice, bob = stable(harness, "alice", "bob")
    presume(harness, WEEK_MS, bob)
    harness.advance(45_000)
    join(harness, join_request(alice))
    harness.ask(Shard.sync, sync_request(alice, 3, {alice: assignment(0, 1)}), SYNC)
    harness.advance(WEEK_MS - 45_000)
    assert list(harness.group().members) == [alice]
    assert harness.group().state is GroupState.STABLE


def test_one_that_heartbeats_meanwhile_lives_on(harness: Harness) -> None:
    [alice] = stable(harness, "alice")
    presume(harness, WEEK_MS)
    harness.advance(100_000)
    beat(harness, alice)
    harness.advance(WEEK_MS)
    assert removed(harness) == [(alice, 45_000)], "in its turn, when all is over"


def test_the_next_heartbeat_is_not_late(harness: Harness) -> None:
    [alice] = stable(harness, "alice")
    for _ in range(5):
        harness.advance(3_000)
        beat(harness, alice)
    presume(harness, WEEK_MS)
    harness.advance(WEEK_MS)
    for _ in range(3):
        harness.advance(3_000)
        beat(harness, alice)
    assert not [event for event in harness.take_events() if isinstance(event, HeartbeatLate)]
    assert harness.group().members[alice].heartbeat_interval_ms() == 3_000


def test_who_rejoins_late_is_dropped_all_the_same(harness: Harness) -> None:
    """Rebalances follow the clock."""
    alice, bob = stable(harness, "alice", "bob", rebalance_timeout_ms=10_000)
    join(harness, join_request(alice, rebalance_timeout_ms=10_000))
    harness.take_events()
    presume(harness, 60_000)
    harness.advance(60_000)
    assert removed(harness)[0] == (bob, 10_000)


def test_new_members_and_those_told_an_id_get_no_more_time() -> None:
    harness = Harness(GroupConfig(group_initial_rebalance_delay_ms=400_000))
    join(harness, join_request(rebalance_timeout_ms=500_000), "alice")
    join(harness, join_request(group_id="other"), "bob", version=9)
    assert harness.group("other").pending_members
    presume(harness, WEEK_MS)
    harness.advance(45_000)
    assert not harness.group("other").pending_members
    harness.advance(254_999)
    assert harness.group().members
    harness.advance(1)
    assert not harness.group().members


def test_it_is_over_when_it_is_over(harness: Harness) -> None:
    [alice] = stable(harness, "alice")
    presume(harness, 10_000)
    harness.advance(10_000 + 44_999)
    assert removed(harness) == []
    harness.advance(1)
    assert removed(harness) == [(alice, 45_000)]


def test_the_second_replaces_the_first(harness: Harness) -> None:
    alice, bob = stable(harness, "alice", "bob")
    presume(harness, WEEK_MS)
    harness.advance(1_000)
    presume(harness, 60_000, bob)
    harness.advance(60_000)
    assert removed(harness) == [(bob, 45_000)]
    presume(harness, 0)
    harness.advance(45_000)
    assert removed(harness) == [(alice, 45_000)]


def test_none_is_begun_for_a_time_that_has_come(harness: Harness) -> None:
    stable(harness, "alice")
    harness.advance(10_000)
    presume(harness, 0)
    assert harness.shard.next_deadline() == START_MS + 45_000


def test_one_that_is_over_early_leaves_no_deadline(harness: Harness) -> None:
    stable(harness, "alice")
    presume(harness, WEEK_MS)
    presume(harness, 0)
    assert PRESUMPTION not in harness.shard.deadlines


def test_a_session_of_no_length_is_no_endless_loop() -> None:
    harness = Harness(GroupConfig(group_initial_rebalance_delay_ms=0, group_min_session_timeout_ms=0))
    presume(harness, 60_000)
    [alice] = stable(harness, "alice", session_timeout_ms=0)
    assert harness.shard.deadlines.get(harness.group().session_timer(alice)) == START_MS + 60_001


def test_a_shard_that_is_given_up_has_nothing_left_to_end(harness: Harness) -> None:
    stable(harness, "alice")
    presume(harness, WEEK_MS)
    harness.unload()
    assert harness.shard.next_deadline() is None

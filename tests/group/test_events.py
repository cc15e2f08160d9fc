"""What the events say of members, beyond what the transcripts show."""

from __future__ import annotations

import contextlib
from typing import TypeVar

import pytest

from muster.coordinator.base.step import RequestContext, Step
from muster.coordinator.group.config import GroupConfig
from muster.coordinator.group.effects import TopicsImage
from muster.coordinator.group.events import (
    AllSynced,
    Assigned,
    CommitRefused,
    Event,
    HeartbeatLate,
    JoinRefused,
    LeaderChanged,
    MemberAdded,
    MemberFenced,
    MemberIdentity,
    MemberRejoined,
    MemberRemoved,
    MetadataChanged,
    ProtocolChosen,
    RebalanceCompleted,
    TopicsGrown,
    Trigger,
)
from muster.coordinator.group.shard import Shard
from muster.protocol.api import ApiKey
from muster.protocol.errors import KafkaError
from muster.protocol.messages.classic_group import LeaveGroupRequest
from tests.group.harness import START_MS, Harness
from tests.group.requests import (
    assignment,
    commit_request,
    context,
    heartbeat_request,
    join,
    join_request,
    leave_request,
    stable,
    subscription,
    sync_request,
)
from tests.support import embedded

E = TypeVar("E", bound=Event)
HEARTBEAT = context(ApiKey.HEARTBEAT)
SYNC = context(ApiKey.SYNC_GROUP)
COMMIT = context(ApiKey.OFFSET_COMMIT)
LEAVE = context(ApiKey.LEAVE_GROUP)


@pytest.fixture
def harness() -> Harness:
    return Harness()


def told(harness: Harness, kind: type[E]) -> list[E]:
    """The events of a kind since this was asked last."""
    return [event for event in harness.take_events() if isinstance(event, kind)]


def who(event: Event) -> str | None:
    return event.member and event.member.member_id


# --- joining ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("protocol_type", "metadata", "topics"),
    [
        ("consumer", subscription("orders", "clicks"), ("orders", "clicks")),
        ("consumer", b"garbage", None),
        ("connect", subscription("orders"), None),
    ],
)
def test_a_new_member_is_told_with_what_it_wants(
    harness: Harness, protocol_type: str, metadata: bytes, topics: tuple[str, ...] | None
) -> None:
    protocols = [("sticky", metadata), ("range", subscription("other"))]
    request = join_request(
        protocols=protocols,
        protocol_type=protocol_type,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=20_000,
    )
    join(harness, request)
    [added] = told(harness, MemberAdded)
    assert (added.protocols, added.topics) == (("sticky", "range"), topics)
    assert (added.session_timeout_ms, added.rebalance_timeout_ms) == (10_000, 20_000)


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


def test_rejoining_is_told_in_small_groups(harness: Harness) -> None:
    alice, bob = stable(harness, "alice", "bob")
    harness.take_events()
    join(harness, join_request(alice))
    harness.advance(300)
    join(harness, join_request(bob), "bob")
    [rejoined] = told(harness, MemberRejoined)
    assert (who(rejoined), rejoined.after_ms) == (bob, 300)


def test_rejoining_is_not_told_in_large_groups(harness: Harness) -> None:
    members = stable(harness, *(f"m{number}" for number in range(101)))
    harness.take_events()
    for number, member_id in enumerate(members[:5]):
        join(harness, join_request(member_id), f"m{number}")
    assert told(harness, MemberRejoined) == []


def test_a_rejoin_that_is_repeated_is_told_once(harness: Harness) -> None:
    alice, bob, _ = stable(harness, "alice", "bob", "carol")
    harness.take_events()
    for member_id in (alice, bob, bob):
        join(harness, join_request(member_id))
    assert len(told(harness, MemberRejoined)) == 1


def test_a_client_that_finds_the_group_full_is_told_once_a_minute() -> None:
    harness = Harness(GroupConfig(group_initial_rebalance_delay_ms=0, group_max_size=1))
    stable(harness, "alice", session_timeout_ms=1_800_000)
    harness.take_events()
    for client, after_ms in (("bob", 0), ("bob", 0), ("carol", 20_000), ("bob", 40_000)):
        harness.advance(after_ms)
        join(harness, join_request(), client)
    refused = told(harness, JoinRefused)
    assert [event.member and event.member.client_id for event in refused] == ["bob", "carol", "bob"]
    assert (refused[0].error, refused[0].size_max) == ("GROUP_MAX_SIZE_REACHED", 1)
    assert refused[0].trigger is Trigger.GROUP_FULL


def test_a_client_with_other_protocols_is_told(harness: Harness) -> None:
    stable(harness, "alice")
    harness.take_events()
    ticket = join(harness, join_request(protocols=[("sticky", b"")]), "bob")
    assert isinstance(harness.answers[ticket], KafkaError)
    [refused] = told(harness, JoinRefused)
    assert (refused.error, refused.size_max, who(refused)) == ("INCONSISTENT_GROUP_PROTOCOL", None, "")


# --- metadata -----------------------------------------------------------------------------------------------


def cooperative(*owned: int, topics: tuple[str, ...] = ("orders",)) -> list[tuple[str, bytes]]:
    return [("range", embedded.subscription(topics, 1, owned=[("orders", each) for each in owned]))]


def test_a_cooperative_member_that_gave_partitions_up(harness: Harness) -> None:
    _, bob = stable(harness, "alice", "bob", protocols=cooperative(0, 1))
    harness.take_events()
    join(harness, join_request(bob, protocols=cooperative(0)), "bob")
    [changed] = told(harness, MetadataChanged)
    assert (changed.topics_added, changed.topics_removed, changed.user_data_changed) == ((), (), False)
    assert changed.owned_changed


def test_during_a_rebalance_only_another_subscription_is_news(harness: Harness) -> None:
    alice, bob, carol = stable(harness, "alice", "bob", "carol", protocols=cooperative(0, 1))
    join(harness, join_request(alice, protocols=cooperative(0, 1)))
    harness.take_events()
    join(harness, join_request(bob, protocols=cooperative(0)), "bob")
    join(harness, join_request(carol, protocols=cooperative(topics=("clicks",))), "carol")
    [changed] = told(harness, MetadataChanged)
    assert who(changed) == carol
    assert (changed.topics_added, changed.topics_removed) == (("clicks",), ("orders",))
    assert changed.trigger is Trigger.MEMBER_REJOINED


def test_what_a_loaded_member_offered_before_is_not_known(harness: Harness) -> None:
    protocols = [("range", subscription("orders")), ("sticky", subscription("orders"))]
    alice, bob, carol = stable(harness, "alice", "bob", "carol", protocols=protocols)
    harness.reload()
    join(harness, join_request(bob, protocols=protocols), "bob")
    [changed] = told(harness, MetadataChanged)
    assert (changed.protocols_before, changed.protocols_after) == ((), ("range", "sticky"))
    join(harness, join_request(alice, protocols=protocols))
    assert told(harness, MetadataChanged) == []
    other = [("range", subscription("clicks"))]
    join(harness, join_request(carol, protocols=other), "carol")
    [changed] = told(harness, MetadataChanged)
    assert (changed.topics_added, changed.protocols_before) == (("clicks",), ())


@pytest.mark.parametrize("same", [True, False])
def test_a_static_member_that_returns_with_another_subscription(harness: Harness, same: bool) -> None:
    first = harness.answers[join(harness, join_request(instance_id="s"))].member_id
    harness.ask(Shard.sync, sync_request(first, 1), SYNC)
    harness.take_events()
    topics = ("orders",) if same else ("orders", "clicks")
    join(harness, join_request(instance_id="s", protocols=cooperative(3, topics=topics)))
    changes = [event.topics_added for event in told(harness, MetadataChanged)]
    assert changes == ([] if same else [("clicks",)])


# --- topics -------------------------------------------------------------------------------------------------


def there_are(harness: Harness, **partitions: int) -> None:
    harness.topics_changed(TopicsImage(partitions=partitions))


def rebalance(harness: Harness, *members: str) -> None:
    """Everybody joins, the first of them first, who leads and assigns nothing."""
    for member_id in members:
        join(harness, join_request(member_id, protocols=[("range", subscription("orders", "clicks"))]))
    generation_id = harness.group().generation_id
    for member_id in members:
        harness.ask(Shard.sync, sync_request(member_id, generation_id), SYNC)


def test_topics_that_have_grown_are_told_when_the_leader_rejoins(harness: Harness) -> None:
    there_are(harness, orders=3)
    alice, bob = stable(harness, "alice", "bob", protocols=[("range", subscription("orders", "clicks"))])
    there_are(harness, orders=6, clicks=1, payments=2)
    harness.take_events()
    rebalance(harness, alice, bob)
    events = harness.take_events()
    grown = [event for event in events if isinstance(event, TopicsGrown)]
    assert [(event.topics, event.trigger) for event in grown] == [
        ((("clicks", 0, 1), ("orders", 3, 6)), Trigger.LEADER_REJOINED)
    ]
    assert events[0] is grown[0], "before the state that it explains"
    rebalance(harness, alice, bob)
    assert told(harness, TopicsGrown) == []


def test_growth_that_was_seen_late_is_told_with_the_assignment(harness: Harness) -> None:
    """The leader may hear of it from another broker, before this one does."""
    there_are(harness, orders=3)
    alice, bob = stable(harness, "alice", "bob")
    join(harness, join_request(alice))
    there_are(harness, orders=4)
    join(harness, join_request(bob), "bob")
    assert told(harness, TopicsGrown) == []
    harness.ask(Shard.sync, sync_request(alice, 3), SYNC)
    events = [type(event) for event in harness.take_events()]
    assert events[:2] == [TopicsGrown, Assigned]


def test_a_loaded_group_counts_from_what_it_is_told_first(harness: Harness) -> None:
    there_are(harness, orders=3)
    alice, bob = stable(harness, "alice", "bob", protocols=[("range", subscription("orders", "clicks"))])
    harness.reload()
    there_are(harness, orders=4)
    there_are(harness, orders=5)
    harness.take_events()
    rebalance(harness, alice, bob)
    assert [event.topics for event in told(harness, TopicsGrown)] == [(("orders", 4, 5),)]


def test_without_an_image_nothing_has_grown(harness: Harness) -> None:
    alice, bob = stable(harness, "alice", "bob", protocols=[("range", subscription("orders", "clicks"))])
    harness.topics_changed(TopicsImage())
    rebalance(harness, alice, bob)
    assert told(harness, TopicsGrown) == []


# --- a rebalance --------------------------------------------------------------------------------------------


def test_what_nobody_can_read_is_assigned_without_moves(harness: Harness) -> None:
    alice = harness.answers[join(harness, join_request())].member_id
    harness.ask(Shard.sync, sync_request(alice, 1, {alice: b"\x00\x01garbage"}), SYNC)
    [assigned] = told(harness, Assigned)
    assert (assigned.partitions, assigned.moves, assigned.owned, assigned.truncated) == (
        None,
        None,
        None,
        False,
    )


def test_what_others_than_consumers_are_assigned_is_not_looked_into(harness: Harness) -> None:
    alice = harness.answers[join(harness, join_request(protocol_type="connect"))].member_id
    request = sync_request(alice, 1, {alice: assignment(0)}, protocol_type="connect")
    harness.ask(Shard.sync, request, SYNC)
    [assigned] = told(harness, Assigned)
    assert assigned.partitions is None


def test_a_group_that_was_loaded_knows_who_owned_what(harness: Harness) -> None:
    alice, bob = stable(harness, "alice", "bob")
    harness.reload()
    harness.advance(44_000)
    harness.ask(Shard.heartbeat, heartbeat_request(alice, 2), HEARTBEAT)
    harness.advance(1_000)  # bob is gone
    join(harness, join_request(alice))
    harness.take_events()
    harness.ask(Shard.sync, sync_request(alice, 3, {alice: assignment(0, 1)}), SYNC)
    [assigned] = told(harness, Assigned)
    assert assigned.moves == (("orders", 1, bob, alice),)
    assert (assigned.kept, assigned.moved) == (1, 1)


def test_an_assignment_that_never_came_moves_nothing(harness: Harness) -> None:
    """Compared is what was assigned last, though a generation has come and gone since."""
    alice, bob = stable(harness, "alice", "bob")
    for _ in range(2):
        join(harness, join_request(alice))
        join(harness, join_request(bob), "bob")
    # The leader's join with the same metadata in CompletingRebalance is answered again; bob's new one is not.
    join(harness, join_request(bob, protocols=[("range", subscription("clicks"))]), "bob")
    join(harness, join_request(alice))
    harness.take_events()
    generation_id = harness.group().generation_id
    request = sync_request(alice, generation_id, {alice: assignment(1), bob: assignment(0)})
    harness.ask(Shard.sync, request, SYNC)
    [assigned] = told(harness, Assigned)
    assert generation_id == 4
    assert assigned.moves == (("orders", 0, alice, bob), ("orders", 1, bob, alice))


def test_after_an_empty_generation_everything_is_newly_assigned(harness: Harness) -> None:
    [alice] = stable(harness, "alice")
    harness.ask(Shard.leave, leave_request(alice), LEAVE)
    harness.take_events()
    stable(harness, "alice")
    events = harness.take_events()
    [assigned] = [event for event in events if isinstance(event, Assigned)]
    assert (assigned.partitions, assigned.kept, assigned.moved, assigned.lost) == (1, 0, 0, 0)
    [chosen] = [event for event in events if isinstance(event, ProtocolChosen)]
    assert (chosen.protocol, chosen.before) == ("range", None)
    assert not [event for event in events if isinstance(event, LeaderChanged)]


def test_the_votes(harness: Harness) -> None:
    both = [("range", b""), ("sticky", b"")]
    for client in ("alice", "bob"):
        join(harness, join_request(protocols=both), client)
    harness.take_events()
    first = harness.group().leader or ""
    join(harness, join_request(protocols=both[::-1]), "carol")
    join(harness, join_request(first, protocols=both[::-1]))
    [chosen] = told(harness, ProtocolChosen)
    assert (chosen.protocol, chosen.before) == ("sticky", "range")
    assert chosen.votes == {"sticky": 2, "range": 1}


def test_everybody_has_synced(harness: Harness) -> None:
    alice, bob = stable(harness, "alice", "bob")
    join(harness, join_request(alice))
    join(harness, join_request(bob), "bob")
    harness.take_events()
    harness.ask(Shard.sync, sync_request(alice, 3), SYNC)
    assert told(harness, AllSynced) == []
    harness.advance(700)
    harness.ask(Shard.sync, sync_request(bob, 3), SYNC)
    harness.ask(Shard.sync, sync_request(bob, 3), SYNC)  # it may ask again
    [synced] = told(harness, AllSynced)
    assert (synced.after_ms, synced.last.member_id, who(synced)) == (700, bob, bob)
    assert synced.trigger is Trigger.MEMBER_SYNCED


def test_the_slowest_joins(harness: Harness) -> None:
    clients = [f"m{number}" for number in range(7)]
    members = stable(harness, *clients)
    for client, member_id in zip(clients, members, strict=True):
        join(harness, join_request(member_id), client)
        harness.advance(100)
        if client == "m2":
            join(harness, join_request(members[1]), "m1")  # again: only the last one counts
    harness.take_events()
    harness.ask(Shard.sync, sync_request(members[0], 3), SYNC)
    [completed] = told(harness, RebalanceCompleted)
    assert [(member.client_id, after_ms) for member, after_ms in completed.joins] == [
        ("m6", 600),
        ("m5", 500),
        ("m4", 400),
        ("m3", 300),
        ("m1", 300),
    ]
    assert completed.last_joined == completed.joins[0][0]


# --- heartbeats ---------------------------------------------------------------------------------------------


def beat(harness: Harness, member_id: str, *after_ms: int) -> None:
    for each in after_ms:
        harness.advance(each)
        harness.ask(Shard.heartbeat, heartbeat_request(member_id, 1), HEARTBEAT)


@pytest.mark.parametrize(
    ("interval_ms", "gap_ms", "late"),
    [
        (3_000, 14_999, False),  # less than a third of the session
        (3_000, 15_000, True),
        (6_000, 18_000, False),  # three times what is usual, not more
        (6_000, 18_001, True),
        (14_000, 29_999, False),
        (14_000, 30_000, True),  # two thirds of the session
    ],
)
def test_what_is_late(harness: Harness, interval_ms: int, gap_ms: int, late: bool) -> None:
    [alice] = stable(harness, "alice")
    beat(harness, alice, *[interval_ms] * 5)
    assert told(harness, HeartbeatLate) == []
    beat(harness, alice, gap_ms)
    assert [
        (event.late_ms, event.heartbeat_interval_ms, event.session_timeout_ms)
        for event in told(harness, HeartbeatLate)
    ] == [(gap_ms, interval_ms, 45_000)] * late
    assert harness.group().members[alice].late_count(harness.now_ms) == late


def test_a_late_heartbeat_does_not_change_what_is_usual(harness: Harness) -> None:
    [alice] = stable(harness, "alice")
    beat(harness, alice, *[3_000] * 5, 20_000, 3_000)
    assert harness.group().members[alice].heartbeat_interval_ms() == 3_000


def test_what_is_usual_is_known_from_five_heartbeats_on_and_stays_known(harness: Harness) -> None:
    [alice] = stable(harness, "alice")
    member = harness.group().members[alice]
    beat(harness, alice, *[3_000] * 4)
    assert member.heartbeat_interval_ms() is None
    beat(harness, alice, 3_000)
    assert member.heartbeat_interval_ms() == 3_000
    join(harness, join_request(alice))
    assert member.heartbeat_interval_ms() == 3_000


def test_waiting_for_others_is_not_late(harness: Harness) -> None:
    alice, bob = stable(harness, "alice", "bob")
    join(harness, join_request(alice))
    harness.advance(40_000)
    join(harness, join_request(bob), "bob")
    harness.advance(3_000)
    harness.ask(Shard.heartbeat, heartbeat_request(alice, 3), HEARTBEAT)
    assert told(harness, HeartbeatLate) == []
    for _ in range(4):
        harness.advance(3_000)
        harness.ask(Shard.heartbeat, heartbeat_request(alice, 3), HEARTBEAT)
    assert harness.group().members[alice].heartbeat_interval_ms() == 3_000


def test_a_client_that_is_always_late_is_told_ten_times_in_ten_minutes(harness: Harness) -> None:
    [alice] = stable(harness, "alice", session_timeout_ms=6_000)
    beat(harness, alice, *[4_000] * 200)  # over thirteen minutes
    assert len(told(harness, HeartbeatLate)) == 10
    assert harness.group().members[alice].late_count(harness.now_ms) == 100
    harness.advance(600_000)
    [removed] = told(harness, MemberRemoved)
    assert (removed.late, removed.heartbeat_interval_ms) == (100, 4_000)


def test_a_removed_member_is_told_with_how_it_was_doing(harness: Harness) -> None:
    [alice] = stable(harness, "alice")
    beat(harness, alice, *[3_000] * 5, 20_000, 31_000)
    harness.advance(10_000)
    harness.disconnect(1)
    harness.advance(35_000)
    [removed] = told(harness, MemberRemoved)
    assert (removed.silent_ms, removed.connected, removed.disconnected_ms) == (45_000, False, 35_000)
    assert (removed.late, removed.heartbeat_interval_ms, removed.session_timeout_ms) == (2, 3_000, 45_000)


def test_a_member_that_was_loaded_had_no_connection_to_lose(harness: Harness) -> None:
    stable(harness, "alice")
    harness.disconnect(1)
    harness.reload()
    harness.advance(45_000)
    [removed] = told(harness, MemberRemoved)
    assert (removed.connected, removed.disconnected_ms) == (False, None)


def test_coming_back_on_another_connection_forgets_the_first(harness: Harness) -> None:
    [alice] = stable(harness, "alice")
    harness.disconnect(1)
    again = context(ApiKey.HEARTBEAT, connection_id=2)
    harness.ask(Shard.heartbeat, heartbeat_request(alice, 1), again)
    harness.advance(45_000)
    [removed] = told(harness, MemberRemoved)
    assert (removed.connected, removed.disconnected_ms) == (True, None)


def test_a_heartbeat_returns_its_answer_and_tells_events_at_most(harness: Harness) -> None:
    first = harness.answers[join(harness, join_request(instance_id="s"))].member_id
    harness.ask(Shard.sync, sync_request(first, 1), SYNC)
    second = harness.answers[join(harness, join_request(instance_id="s"))].member_id
    told: list[Event] = []
    for member_id, after_ms in ((second, 3_000), (second, 31_000), (first, 1), (second, 40_000)):
        harness.now_ms += after_ms
        step = Step(harness.now_ms, HEARTBEAT)
        refused = pytest.raises(KafkaError) if member_id == first else contextlib.nullcontext()
        with refused:
            answer = harness.shard.heartbeat(heartbeat_request(member_id, 1, "s"), step)
            assert answer.error_code == 0
        assert (step.rows, step.replies) == ([], [])
        told += step.events
    assert [type(event) for event in told] == [HeartbeatLate, MemberFenced, HeartbeatLate]


# --- fencing, leaving, commits ------------------------------------------------------------------------------


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


@pytest.mark.parametrize(
    ("client_id", "host", "connection_id", "told_by"),
    [
        ("alice", "/10.0.0.1", 1, None),
        ("alice", "/10.0.0.1", 2, None),  # a client may leave over a new connection
        ("admin", "/10.0.0.1", 1, None),
        ("admin", "/10.0.0.1", 2, MemberIdentity("", "admin", "/10.0.0.1")),
        ("alice", "/10.0.0.2", 2, MemberIdentity("", "alice", "/10.0.0.2")),
    ],
)
def test_who_let_a_member_go(
    harness: Harness, client_id: str, host: str, connection_id: int, told_by: MemberIdentity | None
) -> None:
    [alice] = stable(harness, "alice")
    harness.ask(Shard.leave, leave_request(alice), RequestContext(5, client_id, host, connection_id))
    [removed] = told(harness, MemberRemoved)
    assert removed.requested_by == told_by


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

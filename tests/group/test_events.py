"""What the events say about members, beyond what the transcripts show."""

from __future__ import annotations

import contextlib

import pytest

from muster.coordinator.base.step import RequestContext, Step
from muster.coordinator.group.consumer.course import Course
from muster.coordinator.group.effects import TopicsImage
from muster.coordinator.group.events import (
    DROPPED_MAX,
    AllSynced,
    Assigned,
    Event,
    HeartbeatLate,
    LeaderChanged,
    MemberAdded,
    MemberFenced,
    MemberIdentity,
    MemberRejoined,
    MemberRemoved,
    MetadataChanged,
    ProtocolChosen,
    RebalanceCompleted,
    StateChanged,
    TopicsGrown,
    Trigger,
)
from muster.coordinator.group.shard import Shard
from muster.protocol.api import ApiKey
from muster.protocol.errors import KafkaError
from tests.group.harness import START_MS, Harness, told, who
from tests.group.requests import (
    assignment,
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

HEARTBEAT = context(ApiKey.HEARTBEAT)
SYNC = context(ApiKey.SYNC_GROUP)
COMMIT = context(ApiKey.OFFSET_COMMIT)
LEAVE = context(ApiKey.LEAVE_GROUP)


@pytest.fixture
def harness() -> Harness:
    return Harness()


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


def test_rejoining_is_told_in_small_groups(harness: Harness) -> None:
    alice, bob = stable(harness, "alice", "bob")
    harness.take_events()
    join(harness, join_request(alice))
    harness.advance(300)
    join(harness, join_request(bob), "bob")
    [rejoined] = told(harness, MemberRejoined)
    assert (who(rejoined), rejoined.after_ms) == (bob, 300)


@pytest.mark.parametrize(("size", "count"), [(100, 4), (101, 0)])
def test_rejoining_is_not_told_in_large_groups(harness: Harness, size: int, count: int) -> None:
    members = stable(harness, *(f"m{number}" for number in range(size)))
    harness.take_events()
    for number, member_id in enumerate(members[:5]):
        join(harness, join_request(member_id), f"m{number}")
    assert len(told(harness, MemberRejoined)) == count


def test_a_rejoin_that_is_repeated_is_told_once(harness: Harness) -> None:
    alice, bob, _ = stable(harness, "alice", "bob", "carol")
    harness.take_events()
    for member_id in (alice, bob, bob):
        join(harness, join_request(member_id))
    assert len(told(harness, MemberRejoined)) == 1


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


def test_during_a_rebalance_another_protocol_is_news(harness: Harness) -> None:
    alice, bob = stable(harness, "alice", "bob")
    join(harness, join_request(alice))
    harness.take_events()
    both = [("range", subscription("orders")), ("sticky", subscription("orders"))]
    join(harness, join_request(bob, protocols=both), "bob")
    [changed] = told(harness, MetadataChanged)
    assert (who(changed), changed.trigger) == (bob, Trigger.MEMBER_REJOINED)
    assert (changed.protocols_before, changed.protocols_after) == (("range",), ("range", "sticky"))


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
    """All members rejoin; the first one leads and assigns nothing."""
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
    """The leader may learn of it from another broker before this one does."""
    there_are(harness, orders=3)
    alice, bob = stable(harness, "alice", "bob")
    join(harness, join_request(alice))
    there_are(harness, orders=4)
    join(harness, join_request(bob), "bob")
    assert told(harness, TopicsGrown) == []
    harness.ask(Shard.sync, sync_request(alice, 3, {alice: assignment(0, 1, 2, 3)}), SYNC)
    events = [type(event) for event in harness.take_events()]
    assert events[:2] == [TopicsGrown, Assigned]


def test_growth_is_told_again_when_it_goes_on(harness: Harness) -> None:
    there_are(harness, orders=3)
    alice, bob = stable(harness, "alice", "bob")
    there_are(harness, orders=4)
    join(harness, join_request(alice))
    there_are(harness, orders=5)
    join(harness, join_request(bob), "bob")
    harness.ask(Shard.sync, sync_request(alice, 3, {alice: assignment(0, 1, 2, 3, 4)}), SYNC)
    assert [event.topics for event in told(harness, TopicsGrown)] == [
        (("orders", 3, 4),),
        (("orders", 4, 5),),
    ]


def test_growth_is_not_told_when_another_rejoins_or_the_leader_joins_a_rebalance(harness: Harness) -> None:
    there_are(harness, orders=3)
    alice, bob = stable(harness, "alice", "bob")
    there_are(harness, orders=4)
    for member_id in (bob, alice):
        join(harness, join_request(member_id, protocols=[("range", subscription("orders", "clicks"))]))
        assert told(harness, TopicsGrown) == []
    harness.ask(Shard.sync, sync_request(alice, 3, {bob: assignment(3)}), SYNC)
    assert [event.topics for event in told(harness, TopicsGrown)] == [(("orders", 3, 4),)]


def assign(harness: Harness, leader: str, other: str, owned: dict[str, tuple[int, ...]]) -> None:
    """Rebalance because of the other member, with these topics; the leader assigns it all of them."""
    topics = tuple(owned)
    for member_id, offered in ((other, ("range", "sticky")), (other, ("range",)), (leader, ("range",))):
        join(harness, join_request(member_id, protocols=[(name, subscription(*topics)) for name in offered]))
    assigned = {other: embedded.assignment(owned, 1)}
    generation_id = harness.group().generation_id
    for member_id in (leader, other):
        sent = assigned if member_id == leader else None
        harness.ask(Shard.sync, sync_request(member_id, generation_id, sent), SYNC)


def grown_at_rejoin(harness: Harness, leader: str, *topics: str) -> list[tuple[str, int, int]]:
    """What is told when the leader rejoins, as it does when it sees another partition count."""
    harness.take_events()
    join(harness, join_request(leader, protocols=[("range", subscription(*topics))]))
    return [each for event in told(harness, TopicsGrown) for each in event.topics]


def test_growth_that_the_leader_has_not_seen_is_told_when_it_rejoins(harness: Harness) -> None:
    """It assigned by its own metadata, older than what the coordinator knows."""
    there_are(harness, orders=2, clicks=1, gone=2, later=0)
    alice, bob = stable(harness, "alice", "bob")
    before = {"orders": (0, 1), "clicks": (0,), "gone": (0, 1), "later": ()}
    assign(harness, alice, bob, before)
    there_are(harness, orders=4, clicks=2, later=1)
    harness.take_events()
    assign(harness, alice, bob, before)
    assert told(harness, TopicsGrown) == []
    assign(harness, alice, bob, before | {"clicks": (0, 1)})
    assert [event.topics for event in told(harness, TopicsGrown)] == [(("clicks", 1, 2),)]
    grown = grown_at_rejoin(harness, alice, *before)
    assert grown == [("gone", 2, 0), ("later", 0, 1), ("orders", 2, 4)]
    assign(harness, alice, bob, before)
    assert grown_at_rejoin(harness, alice, *before) == [], "once, also if the leader never sees it"


def test_of_topics_that_nobody_reads_any_more_no_growth_is_kept(harness: Harness) -> None:
    there_are(harness, orders=2, clicks=1, gone=2)
    alice, bob = stable(harness, "alice", "bob")
    assign(harness, alice, bob, {"orders": (0, 1), "clicks": (0,), "gone": (0, 1)})
    there_are(harness, orders=2, clicks=2)
    harness.take_events()
    assign(harness, alice, bob, {"orders": (0, 1)})
    assert [event.topics for event in told(harness, TopicsGrown)] == [(("gone", 2, 0),)]
    assign(harness, alice, bob, {"orders": (0, 1), "clicks": (0, 1)})
    assert grown_at_rejoin(harness, alice, "orders", "clicks") == []


def test_growth_is_told_of_a_leader_that_names_what_another_owns_no_more(harness: Harness) -> None:
    """What it names is what it was assigned, with an eager assignor too."""
    there_are(harness, orders=2)
    alice, _ = stable(harness, "alice", "bob", protocols=cooperative(0, 1))
    there_are(harness, orders=4)
    harness.take_events()
    join(harness, join_request(alice, protocols=cooperative(0)))
    assert [event.topics for event in told(harness, TopicsGrown)] == [(("orders", 2, 4),)]


def test_of_an_assignment_that_nobody_can_read_growth_is_told_at_once(harness: Harness) -> None:
    there_are(harness, orders=3)
    alice, bob = stable(harness, "alice", "bob")
    there_are(harness, orders=4)
    harness.take_events()
    for member_id in (bob, alice):
        join(harness, join_request(member_id, protocols=[("range", subscription("orders", "clicks"))]))
    harness.ask(Shard.sync, sync_request(alice, 3, {alice: b"garbage"}), SYNC)
    assert [event.topics for event in told(harness, TopicsGrown)] == [(("orders", 3, 4),)]


@pytest.mark.parametrize("deleted", [False, True])
def test_growth_is_not_told_of_a_leader_that_gives_partitions_up(harness: Harness, deleted: bool) -> None:
    """It rejoins for that reason (KIP-429), unless what it gives up is gone."""
    there_are(harness, orders=3)
    alice, bob = stable(harness, "alice", "bob", protocols=cooperative(0, 1, 2))
    there_are(harness, orders=2 if deleted else 4)
    harness.take_events()
    join(harness, join_request(alice, protocols=cooperative(0, 1)))
    grown = [event.topics for event in told(harness, TopicsGrown)]
    assert grown == ([(("orders", 3, 2),)] if deleted else [])
    join(harness, join_request(bob, protocols=cooperative(0, 1, 2)), "bob")
    harness.ask(Shard.sync, sync_request(alice, 3, {alice: assignment(0, 1)}), SYNC)
    assert told(harness, TopicsGrown) == []
    harness.ask(Shard.sync, sync_request(bob, 3), SYNC)
    join(harness, join_request(alice, protocols=cooperative(0, 1)))
    grown = [event.topics for event in told(harness, TopicsGrown)]
    assert grown == ([] if deleted else [(("orders", 3, 4),)])


def test_of_topics_that_nobody_can_read_none_has_grown(harness: Harness) -> None:
    there_are(harness, orders=3)
    [alice] = stable(harness, "alice", protocols=[("range", b"garbage")])
    there_are(harness, orders=4)
    join(harness, join_request(alice, protocols=[("range", b"garbage")]))
    harness.ask(Shard.sync, sync_request(alice, 2), SYNC)
    assert told(harness, TopicsGrown) == []


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
    assert assigned.protocol == "range"


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
    harness.advance(1_000)  # bob expires
    join(harness, join_request(alice))
    harness.take_events()
    harness.ask(Shard.sync, sync_request(alice, 3, {alice: assignment(0, 1)}), SYNC)
    [assigned] = told(harness, Assigned)
    assert assigned.moves == (("orders", 1, bob, alice),)
    assert (assigned.kept, assigned.moved) == (1, 1)


def test_a_group_that_was_loaded_knows_who_led_it(harness: Harness) -> None:
    alice, bob = stable(harness, "alice", "bob")
    harness.reload()
    harness.ask(Shard.leave, leave_request(alice), LEAVE)
    join(harness, join_request(bob), "bob")
    [changed] = told(harness, LeaderChanged)
    assert (who(changed), changed.old_member_id) == (bob, alice)


def test_an_assignment_that_never_came_moves_nothing(harness: Harness) -> None:
    """The comparison is with the last actual assignment, though a generation has come and gone since."""
    alice, bob = stable(harness, "alice", "bob")
    for _ in range(2):
        join(harness, join_request(alice))
        join(harness, join_request(bob), "bob")
    # A repeat of the leader's join in CompletingRebalance is answered again; bob's changed join is not.
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
    harness.ask(Shard.sync, sync_request(bob, 3), SYNC)  # it may send it again
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


def test_who_was_dropped_before_a_restart_is_waited_for_no_more(harness: Harness) -> None:
    alice, bob, carol = stable(harness, "alice", "bob", "carol", rebalance_timeout_ms=10_000)
    harness.take_events()
    join(harness, join_request(alice, rebalance_timeout_ms=10_000))
    join(harness, join_request(carol, rebalance_timeout_ms=10_000), "carol")
    harness.advance(10_000)  # without bob
    join(harness, join_request(rebalance_timeout_ms=10_000), "dave")
    join(harness, join_request(alice, rebalance_timeout_ms=10_000))
    harness.advance(10_000)  # without carol
    waits = [
        (change.from_state, [each.member_id for each in change.waiting_for])
        for change in told(harness, StateChanged)
    ]
    assert waits == [
        ("Stable", [bob, carol]),
        ("PreparingRebalance", [bob]),
        ("CompletingRebalance", [alice, carol]),
        ("PreparingRebalance", [carol]),
    ]
    harness.ask(Shard.sync, sync_request(alice, 4), SYNC)
    [completed] = told(harness, RebalanceCompleted)
    assert [each.member_id for each in completed.dropped] == [bob, carol]
    assert (completed.restarts, completed.members) == (1, 2)


def test_a_rebalance_that_restarts_for_ever_remembers_so_many_of_those_it_dropped(harness: Harness) -> None:
    alice, bob = stable(harness, "alice", "bob", rebalance_timeout_ms=10_000)
    join(harness, join_request(alice, rebalance_timeout_ms=10_000))
    harness.advance(10_000)  # without bob
    rebalance = harness.group().rebalance
    assert rebalance is not None
    rebalance.dropped += rebalance.dropped * DROPPED_MAX
    join(harness, join_request(rebalance_timeout_ms=10_000), "carol")  # it begins again
    assert (len(rebalance.dropped), rebalance.dropped_before) == (DROPPED_MAX, DROPPED_MAX)
    harness.take_events()
    harness.advance(10_000)  # without alice
    [completing] = told(harness, StateChanged)
    assert [each.member_id for each in completing.waiting_for] == [alice]
    assert [each.member_id for each in rebalance.dropped[-2:]] == [bob, alice]


def test_so_does_that_of_a_consumer_group() -> None:
    course = Course(START_MS)
    course.dropped += [MemberIdentity("bob", "bob", "/127.0.0.1", None)] * (DROPPED_MAX + 5)
    course.restart(START_MS)
    completed = course.completed((START_MS, "orders", 3, Trigger.MEMBER_JOINED, None, None), ())
    assert len(completed.dropped) == DROPPED_MAX


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
        (6_000, 18_000, False),  # three times the usual interval, not more
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


# --- leaving ------------------------------------------------------------------------------------------------


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

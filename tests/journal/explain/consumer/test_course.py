"""How a consumer group's rebalance went, even across coordinators: its epochs, what moved and what stood
still."""

from __future__ import annotations

from muster.coordinator.journal.explain import Outcome, Tracks, about, rebalances
from muster.coordinator.journal.explain.cost import Unowned
from muster.coordinator.journal.explain.tracks import Standing
from muster.coordinator.journal.explain.vocabulary import Kind
from tests.journal.explain.consumer.stories import lines, told, why

MOVES = """
topic orders 4

alice beat topics=orders
advance 1s
bob beat topics=orders
advance 500ms
alice beat
advance 2s
alice beat owned=orders-0,orders-1
advance 300ms
bob beat
"""


def test_partitions_that_moved_stood_still_and_others_did_not() -> None:
    found = why(MOVES)
    assert (found.generation, found.outcome, found.state) == (3, Outcome.COMPLETED, "Stable")
    assert found.ended_ms == found.started_ms + 2_800
    assert found.cost is not None
    assert found.cost.unowned == (Unowned((("orders", 2), ("orders", 3)), 300),)
    phases = found.phases
    assert phases is not None
    assert (phases.target_ms, phases.reconcile_ms, phases.join_ms) == (0, 2_800, None)
    (revoked,) = phases.revocations
    assert (revoked.member.client_id, revoked.ms) == ("alice", 2_000)
    assert lines(MOVES)[2:] == [
        "phases    target after 0 ms · reached by all members 2.8 s later (last: bob) · alice revoked "
        "orders-2..3 in",
        "2.0 s",
        "moved     orders-2, orders-3: alice → bob   (2 of 4 partitions; 2 kept)",
        "cost      orders-2..3 stood still for 0.3 s; the other 2 never stopped",
    ]


def test_partitions_of_a_member_that_is_gone_stood_still_since_its_last_sign_of_life() -> None:
    found = why(f"{MOVES}\nadvance 30s\nalice beat\nadvance 15s\nadvance 1s\nalice beat\n")
    assert (found.cause, found.generation) == ("session expired", 4)
    assert found.cost is not None
    assert found.cost.unowned == (Unowned((("orders", 2), ("orders", 3)), 46_000),)
    assert found.moved is not None
    assert [(each.from_member, each.to_member) for each in found.moved.moves] == [("bob-1", "alice-1")] * 2


def test_partitions_of_a_static_member_that_came_back_stood_still_since_it_revoked_them() -> None:
    story = """
    topic orders 6

    alice beat topics=orders instance=one
    advance 1s
    bob beat topics=orders
    alice beat
    alice beat owned=orders-0,orders-1,orders-2
    alice beat epoch=-2
    advance 20s
    alice beat topics=orders
    advance 10s
    carol beat topics=orders
    alice beat
    advance 2s
    alice beat owned=orders-0,orders-1
    bob beat
    carol beat
    """
    found = why(story)
    assert (found.outcome, found.started_ms) == (Outcome.COMPLETED, told(story)[0].at_ms + 1_000)
    assert found.cost is not None
    assert found.cost.unowned == (
        Unowned((("orders", 3), ("orders", 4)), 32_000),
        Unowned((("orders", 5),), 30_000),
        Unowned((("orders", 2),), 0),
    )


def test_partitions_of_a_member_that_is_back_before_the_next_target_stood_still_meanwhile() -> None:
    story = """
    config group.consumer.assignment.interval.ms 10000
    topic orders 4

    alice beat topics=orders
    advance 11s
    bob beat topics=orders
    alice beat
    alice beat owned=orders-0,orders-1
    bob beat
    advance 2s
    bob beat epoch=-1
    advance 3s
    bob beat epoch=0 topics=orders
    advance 6s
    bob beat
    alice beat
    """
    found = why(story)
    assert (found.cause, found.outcome) == ("member left", Outcome.COMPLETED)
    assert found.moved is not None
    assert found.moved.moves == ()
    assert found.cost is not None
    assert found.cost.unowned == (Unowned((("orders", 2), ("orders", 3)), 9_000),)


def test_partitions_that_were_revoked_and_came_back_did_stop() -> None:
    story = """
    topic orders 4

    alice beat topics=orders
    bob beat topics=orders
    alice beat
    alice beat owned={owned}
    bob beat epoch=-1
    advance 4s
    alice beat
    """
    found = why(story.format(owned="orders-0,orders-1"))
    assert found.moved is not None
    assert (found.moved.kept, found.moved.moves) == (4, ())
    assert lines(story.format(owned="orders-0,orders-1"))[-1] == (
        "cost      orders-2..3 stood still for 4.0 s; the other 2 never stopped"
    )
    story = story.replace("topic orders 4", "config group.consumer.assignors range\n    topic orders 1")
    story = story.replace("alice", "zoe")
    assert lines(story.format(owned="none"))[-1] == "cost      orders-0 stood still for 4.0 s"


def test_a_rebalance_that_is_over_in_one_step() -> None:
    found = rebalances(
        told("topic orders 2\ntopic more 1\n\nalice beat topics=orders\nalice beat topics=orders,more\n")
    )
    assert [each.generation for each in found] == [2, 3]
    assert {each.outcome for each in found} == {Outcome.COMPLETED}
    assert [each.kind for each in found] == [Kind.CONSUMER] * 2


def test_a_static_member_that_was_away_reaches_its_target_when_it_is_back() -> None:
    found = why("""
    topic orders 2

    dan beat topics=orders
    bob beat topics=orders
    ann beat topics=orders instance=one
    advance 1s
    ann beat epoch=-2
    dan beat owned=orders-0
    bob beat
    advance 1s
    ann beat topics=orders
    """)
    assert found.phases is not None
    slowest = [(each.client_id, ms) for each, ms in found.phases.slowest]
    assert slowest == [("ann", 2_000), ("bob", 1_000), ("dan", 1_000)]


def test_epochs_before_all_have_the_target_belong_to_one_rebalance() -> None:
    story = f"{MOVES.replace('alice beat owned=orders-0,orders-1', 'carol beat topics=orders')}"
    (first, second) = rebalances(told(story))
    assert (first.generation, second.generation, second.outcome) == (2, 4, Outcome.UNDER_WAY)
    assert [each.member and each.member.client_id for each in second.starts] == ["bob", "carol"]
    assert second.state == "Reconciling"


def test_phases_add_up_over_all_epochs() -> None:
    """The target of each is made at once; what takes time is a member that does not revoke."""
    story = MOVES.replace(
        "advance 2s\nalice beat owned=orders-0,orders-1", "advance 2s\ncarol beat topics=orders"
    )
    story += (
        "advance 3s\nalice beat owned=orders-0\nbob beat\ncarol beat\nadvance 400ms\nbob beat\ncarol beat\n"
    )
    entries = told(story)
    completed = entries[-1]
    found = why(story)
    assert (completed.type, found.outcome) == ("rebalance_completed", Outcome.COMPLETED)
    assert found.phases is not None
    assert (found.phases.restarts, found.phases.target_ms) == (1, 0)
    assert found.phases.reconcile_ms == (found.ended_ms or 0) - found.started_ms > 5_000
    assert (completed.data["target_ms"], completed.data["reconcile_ms"]) == (0, found.phases.reconcile_ms)


def test_a_rebalance_goes_on_with_another_coordinator() -> None:
    story = MOVES.replace("advance 300ms", "reload\nadvance 300ms")
    found = why(story)
    assert (found.generation, found.outcome, found.ended_ms) == (
        3,
        Outcome.COMPLETED,
        found.started_ms + 2_800,
    )


def test_a_journal_that_begins_in_the_middle() -> None:
    entries = told(MOVES)
    begin = next(index for index, each in enumerate(entries) if each.type == "revocation_requested")
    (found,) = rebalances(entries[begin:])
    assert (found.kind, found.generation, found.began_in_sight) == (Kind.CONSUMER, 3, False)
    assert found.starts[0].trigger == "member joined"


def test_a_group_that_becomes_empty() -> None:
    found = why("topic orders 2\n\nalice beat topics=orders\nadvance 5s\nalice beat epoch=-1\n")
    assert (found.state, found.outcome, found.cause) == ("Empty", Outcome.COMPLETED, "member left")


def test_the_timeline() -> None:
    said = [text for _, text in about(told(MOVES))]
    assert said[-8:] == [
        "member joined (bob): epoch 3, 2 members",
        "target of epoch 3 by uniform: 4 partitions, 2 to move, 2 kept",
        "member joined (bob at 127.0.0.1): Reconciling, after 1.0 s of Stable",
        "alice has to revoke orders-2..3 within 300.0 s",
        "alice has revoked orders-2..3 after 2.0 s",
        "bob has orders-2..3 in epoch 3",
        "heartbeat (bob at 127.0.0.1): Stable, after 2.8 s of Reconciling",
        "member joined (bob at 127.0.0.1): rebalanced to epoch 3 in 2.8 s, 2 members",
    ]


def test_the_rows_of_members() -> None:
    tracks = Tracks(told(MOVES))
    alice, bob = tracks.members
    lived = [each.standing for each in alice.spans if each.end_ms != each.start_ms]
    assert lived == [Standing.STABLE, Standing.REVOKING, Standing.STABLE]
    assert bob.spans[-1].standing == Standing.STABLE
    assert [each.standing for each in tracks.group.spans] == ["Empty", "Stable", "Reconciling", "Stable"]

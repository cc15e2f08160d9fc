"""What a rebalance moved, and what it cost."""

from __future__ import annotations

from datetime import UTC
from typing import Any

import pytest

from muster.coordinator.journal.entries import Member
from muster.coordinator.journal.explain import Explanation, explain
from muster.coordinator.journal.explain.cost import Unowned
from tests.journal.explain.writing import T0, WEB_1, WEB_2, WEB_3, Life


def rebalanced(life: Life, trigger: str, moves: list[list[Any]], **facts: Any) -> Explanation:
    """A rebalance from a step at 0 to the assignment at 2,700."""
    given = {"partitions": 12, "kept": 9, "moved": len(moves), "lost": 0, "owned": {}, "truncated": False}
    life.preparing(WEB_2, trigger).at(2_400).joined().at(2_700)
    life.add("assigned", WEB_1, moves=moves, **(given | facts)).stable(WEB_2, trigger, 0, 2_400)
    found = explain(life.entries, generation=life.generation)
    assert found is not None
    return found


def test_partitions_of_one_that_was_evicted_had_no_owner_since_its_last_heartbeat() -> None:
    life = Life().at(0).add("member_removed", WEB_2, trigger="session expired", silent_ms=45_000)
    moves = [["orders", 3, WEB_2.id, WEB_1.id], ["orders", 4, WEB_1.id, WEB_3.id]]
    found = rebalanced(life, "session expired", moves)
    assert found.cost is not None
    assert [(each.partitions, each.ms) for each in found.cost.unowned] == [
        ((("orders", 3),), 47_700),
        ((("orders", 4),), 2_700),
    ]
    assert "orders-3 unowned for 47.7 s, orders-4 unowned for 2.7 s" in found.lines(UTC)[-1]


def test_who_is_still_there_works_on_until_it_rejoins() -> None:
    life = Life().at(0).add("member_removed", WEB_2, trigger="member left", silent_ms=10)
    life.preparing(WEB_2, "member left")
    for at in (1_900, 2_300):  # twice, since the rebalance restarted
        life.at(at).add("member_rejoined", WEB_1, trigger="member rejoined", after_ms=at)
    moves = [["orders", 3, WEB_2.id, WEB_1.id], ["orders", 4, WEB_1.id, WEB_3.id]]
    life.at(2_400).joined().at(2_700).add("assigned", WEB_1, partitions=12, kept=10, moved=2, moves=moves)
    found = explain(life.stable(WEB_2, "member left", 0, 2_400).entries)
    assert found is not None
    assert found.cost is not None
    assert [(each.partitions, each.ms) for each in found.cost.unowned] == [
        ((("orders", 3),), 2_700),
        ((("orders", 4),), 800),
    ]


@pytest.mark.parametrize(("silent_ms", "unowned_ms"), [(115_000, 117_700), (100, 62_700)])
def test_partitions_of_one_that_never_synced_had_no_owner_since_its_generation(
    silent_ms: int, unowned_ms: int
) -> None:
    life = Life().at(-61_000).preparing(WEB_1, "leader rejoined").at(-60_000).joined()
    life.at(0).add("member_removed", WEB_2, trigger="sync timed out", silent_ms=silent_ms)
    found = rebalanced(life, "sync timed out", [["orders", 3, WEB_2.id, WEB_1.id]])
    assert found.cost is not None
    assert [each.ms for each in found.cost.unowned] == [unowned_ms]


@pytest.mark.parametrize("trigger", ["rebalance timed out", "revocation timed out"])
def test_partitions_of_one_that_was_dropped_had_no_owner_since_its_last_heartbeat(trigger: str) -> None:
    """Its session timeout is longer than its rebalance timeout."""
    life = Life().at(-95_000).add("lag_at_commit", WEB_1, total=3).at(0)
    life.add("member_added", WEB_3, trigger="member joined").preparing(WEB_3, "member joined").at(60_000)
    life.add("member_removed", WEB_2, trigger=trigger, silent_ms=150_000, connected=False).joined()
    moves = [["orders", 3, WEB_2.id, WEB_3.id]]
    life.at(60_100).add("assigned", WEB_1, partitions=2, kept=1, moved=1, lost=0, moves=moves)
    found = explain(life.stable(WEB_3, "member joined", 0, 60_000, lag_before=90, lag=120).entries)
    assert found is not None
    assert found.cost is not None
    assert found.cost.unowned == (Unowned((("orders", 3),), 150_100),)
    assert found.cost.lag_before == 3


def test_partitions_of_one_that_left_had_no_owner_since_then() -> None:
    life = Life().at(0).add("member_removed", WEB_2, trigger="member left", silent_ms=3_000)
    found = rebalanced(life, "member left", [["orders", 3, WEB_2.id, WEB_1.id]])
    assert found.cost is not None
    assert [each.ms for each in found.cost.unowned] == [2_700]


def test_what_nobody_has_yet_is_not_counted() -> None:
    life = Life().at(0).add("member_added", WEB_2, trigger="member joined")
    found = rebalanced(life, "member joined", [["orders", 3, WEB_1.id, None]], lost=1, moved=0)
    assert found.cost is None
    assert found.moved is not None
    assert found.lines(UTC)[-1] == (
        "  moved     orders-3: web-1 → nobody   (1 of 13 partitions; 9 kept; 1 without an owner)"
    )


def test_a_first_assignment_is_counted_by_member() -> None:
    life = Life(generation=0).at(0).add("member_added", WEB_1, trigger="member joined")
    life.add("member_added", WEB_2, trigger="member joined")
    moves = [["orders", each, None, WEB_1.id] for each in range(12)]
    found = rebalanced(life, "member joined", moves, kept=0, owned={WEB_1.id: 6, WEB_2.id: 6})
    assert found.lines(UTC)[-1] == "  moved     12 partitions newly assigned: web-1 6, web-2 6"


def test_new_partitions_beside_those_that_are_kept() -> None:
    moves = [["refunds", 0, None, WEB_2.id], ["orders", 3, WEB_2.id, WEB_1.id]]
    found = rebalanced(Life().at(0).add("heartbeat_late", WEB_1), "leader rejoined", moves[:1], partitions=10)
    assert found.lines(UTC)[-1] == (
        "  moved     refunds-0: nobody → web-2   (0 of 10 partitions; 1 new; 9 kept)"
    )
    found = rebalanced(Life().at(0).add("heartbeat_late", WEB_1), "leader rejoined", moves, partitions=11)
    assert found.lines(UTC)[-2] == (
        "  moved     refunds-0: nobody → web-2; orders-3: web-2 → web-1   (1 of 11 partitions; 1 new; 9 kept)"
    )


def test_nothing_moved() -> None:
    found = rebalanced(Life().at(0), "leader rejoined", [], kept=12)
    assert found.lines(UTC)[-1] == "  moved     nothing (12 partitions kept)"


def test_with_an_eager_assignor_what_is_kept_stands_still_too() -> None:
    def after(protocol: str, rejoined: int) -> Explanation:
        life = Life().at(-60_000).add("protocol_chosen", trigger="all members joined", protocol=protocol)
        life.at(0).add("member_added", WEB_2, trigger="member joined").preparing(WEB_2, "member joined")
        life.at(rejoined).add("member_rejoined", WEB_1, trigger="member rejoined", after_ms=rejoined)
        return rebalanced(life, "member joined", [], partitions=9, kept=9)

    found = after("range", 200)
    assert found.cost is not None
    assert found.cost.to_json()["kept_stopped"] == {"partitions": 9, "ms": 2_500, "protocol": "range"}
    text = " ".join(" ".join(found.lines(UTC)).split())
    assert (
        "cost 9 kept partitions stood still for up to 2.5 s: with range, members give up everything in each "
        "rebalance"
    ) in text
    assert after("cooperative-sticky", 200).cost is None
    assert after("range", 2_000).cost is None, "less than a second"


def test_the_assignor_is_also_known_from_the_last_assignment() -> None:
    """It was chosen long ago."""
    life = Life().at(-60_000).add("assigned", WEB_1, partitions=9, protocol="range")
    life.at(0).add("member_added", WEB_2, trigger="member joined").preparing(WEB_2, "member joined")
    life.at(200).add("member_rejoined", WEB_1, trigger="member rejoined", after_ms=200)
    found = rebalanced(life, "member joined", [], partitions=9, kept=9)
    assert found.cost is not None
    assert found.cost.kept_stopped == (9, 2_500, "range")


def test_who_began_it_by_rejoining_gave_up_its_partitions_then() -> None:
    def began_by(trigger: str, *gone: Member) -> Explanation:
        life = Life().at(-60_000).add("protocol_chosen", trigger="all members joined", protocol="range")
        life.at(0).preparing(WEB_2, trigger, waiting_for=(WEB_1,)).at(2_300)
        life.add("member_rejoined", WEB_1, trigger="member rejoined", after_ms=2_300)
        for each in gone:
            life.add("member_removed", each, trigger="member left", silent_ms=10)
        life.at(2_400).joined().at(2_700)
        moves = [["orders", 4, WEB_2.id, WEB_1.id]]
        life.add("assigned", WEB_1, partitions=9, kept=8, moved=1, lost=0, moves=moves)
        found = explain(life.stable(WEB_2, trigger, 0, 2_400).entries)
        assert found is not None
        return found

    for trigger in ("leader rejoined", "subscription or protocols changed"):
        found = began_by(trigger)
        assert found.cost is not None
        assert found.cost.kept_stopped == (8, 2_700, "range")
        assert [each.ms for each in found.cost.unowned] == [2_700]
        found = began_by(trigger, WEB_2)
        assert found.cost is not None
        assert found.cost.kept_stopped is None, "what it had, it did not get back"


def test_who_rejoined_twice_stopped_at_first() -> None:
    life = Life().at(0).preparing(WEB_1, "leader rejoined", waiting_for=(WEB_2,)).at(100).joined().at(900)
    life.preparing(WEB_3, "member joined", from_state="CompletingRebalance", waiting_for=(WEB_1, WEB_2))
    life.at(2_000).add("member_rejoined", WEB_1, after_ms=2_000).joined().at(2_700)
    moves = [["orders", 4, WEB_1.id, WEB_3.id]]
    life.add("assigned", WEB_1, partitions=9, kept=8, moved=1, lost=0, moves=moves)
    found = explain(life.stable(WEB_3, "member joined", 0, 2_000, restarts=1).entries)
    assert found is not None
    assert found.cost is not None
    assert [each.ms for each in found.cost.unowned] == [2_700]


def test_lag_that_grew_and_recovered() -> None:
    life = Life().at(-60_000).add("lag_at_commit", total=10).at(0)
    life.add("member_removed", WEB_2, trigger="session expired", silent_ms=45_000)
    rebalanced(life, "session expired", [])
    life.at(8_000).add("lag_at_commit", total=1_214).at(18_588).add("lag_at_commit", total=10)
    found = explain(life.entries)
    assert found is not None
    assert found.cost is not None
    assert (found.cost.lag_before, found.cost.lag.peak, found.cost.lag.growth) == (10, 1_214, 1_204)
    assert found.cost.recovered_ms == T0 + 18_588
    assert found.lines(UTC)[-1] == "  cost      lag grew by 1,204 records meanwhile, recovered at 14:03:31"


def test_a_lag_while_the_member_was_silent_already_is_not_that_before() -> None:
    life = Life().at(-60_000).add("lag_at_commit", total=10).at(-9_000).add("lag_at_commit", total=800).at(0)
    life.add("member_removed", WEB_2, trigger="session expired", silent_ms=45_000)
    found = rebalanced(life, "session expired", [])
    assert found.cost is None, "nothing was seen after it"
    life.at(4_000).add("lag_at_commit", total=900)
    told = explain(life.entries)
    assert told is not None
    assert told.cost is not None
    assert (told.cost.lag_before, told.cost.recovered_ms) == (10, None)
    assert told.lines(UTC)[-1] == "  cost      lag grew by 890 records meanwhile, not recovered yet"


def test_the_lag_as_the_rebalance_began_is_not_that_before_the_silence() -> None:
    life = Life().at(-60_000).add("lag_at_commit", total=14).at(0)
    life.add("member_removed", WEB_2, trigger="session expired", silent_ms=45_000)
    life.preparing(WEB_2, "session expired").at(2_400).joined().at(2_700)
    life.stable(WEB_2, "session expired", 0, 2_400, lag_before=1_100, lag=1_214)
    life.at(4_000).add("lag_at_commit", total=1_000, recovered=True)  # the lag as it began: not good enough
    told = explain(life.entries)
    assert told is not None
    assert told.cost is not None
    assert (told.cost.lag_before, told.cost.lag.growth, told.cost.recovered_ms) == (14, 1_200, None)
    told = explain(life.at(9_000).add("lag_at_commit", total=134).entries)
    assert told is not None
    assert told.cost is not None
    assert told.cost.recovered_ms == T0 + 9_000, "a tenth of it is taken for the group's pace of committing"

    unknown = explain([each for each in life.entries if each.data.get("total") != 14])
    assert unknown is not None
    assert unknown.cost is not None
    assert (unknown.cost.lag_before, unknown.cost.recovered_ms) == (None, None)
    assert unknown.lines(UTC)[-1] == "  cost      lag 1,214 records"


def test_a_lag_that_shrank_while_the_member_was_silent_is_no_growth() -> None:
    life = Life().at(-60_000).add("lag_at_commit", total=5_000).at(0)
    life.add("member_removed", WEB_2, trigger="session expired", silent_ms=45_000)
    life.preparing(WEB_2, "session expired").at(2_400).joined().at(2_700)
    told = explain(life.stable(WEB_2, "session expired", 0, 2_400, lag_before=60, lag=75).entries)
    assert told is not None
    assert told.cost is not None
    assert (told.cost.lag_before, told.cost.lag.growth) == (60, 15)


def test_the_lags_that_the_completion_says() -> None:
    life = Life().at(0).preparing(WEB_1, "leader rejoined").at(100).joined().at(200)
    life.stable(WEB_1, "leader rejoined", 0, 100, lag_before=5, lag=25)
    life.at(900).add("lag_at_commit", total=24, recovered=True)
    found = explain(life.entries)
    assert found is not None
    assert found.cost is not None
    assert (found.cost.lag.growth, found.cost.recovered_ms) == (20, T0 + 900)


def test_refused_commits_of_the_generation_before() -> None:
    life = Life().at(0).preparing(WEB_1, "leader rejoined")
    life.at(50).add("commit_refused", WEB_2, error="REBALANCE_IN_PROGRESS", committed_generation_id=6)
    life.at(100).joined().at(200).stable(WEB_1, "leader rejoined", 0, 100)
    life.at(900).add("commit_refused", WEB_2, error="ILLEGAL_GENERATION", committed_generation_id=6)
    life.at(950).add("commit_refused", WEB_2, error="OFFSET_METADATA_TOO_LARGE", committed_generation_id=7)
    life.at(960).add("commit_refused", error="UNKNOWN_MEMBER_ID", committed_generation_id=-1)
    life.at(970).add("commit_refused", error="UNKNOWN_MEMBER_ID")
    found = explain(life.entries)
    assert found is not None
    assert found.cost is not None
    assert found.cost.commits_refused == 2

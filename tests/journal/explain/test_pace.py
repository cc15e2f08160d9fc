"""The cost of a rebalance is distinguished from lag that grows because members read too slowly."""

from __future__ import annotations

from datetime import UTC
from typing import Any

from muster.coordinator.journal.explain import Explanation, explain
from muster.coordinator.journal.explain.cost import Cost
from muster.coordinator.journal.explain.names import per_second
from tests.journal.explain.writing import WEB_1, WEB_2, Life

BEGINS_MS = 60_000
ENDS_MS = 60_500


def positions(at_s: float, slow_since_s: float = 60, *, read: float = 5) -> list[list[Any]]:
    """Forty records a second arrive in each of two partitions. web-1 keeps up; web-2 reads `read` a second
    from `slow_since_s` on."""
    end = round(40 * at_s)
    kept_up = min(at_s, slow_since_s)
    committed = round(40 * kept_up + read * (at_s - kept_up))
    return [["orders", 0, end, 0], ["orders", 1, committed, end - committed]]


class Told(Life):
    """A group of web-1 and web-2 with one partition each."""

    def lag(self, at_s: float, slow_since_s: float = 60, **facts: Any) -> Told:
        there = positions(at_s, slow_since_s, **facts)
        total = sum(each[3] for each in there)
        self.at(round(at_s * 1_000)).add("lag_at_commit", total=total, partitions=there)
        return self

    def half_a_second(self, began_ms: int, *, slow_since_s: float = 60, read: float = 5, **told: Any) -> Told:
        """A half-second rebalance: web-1 rejoins a millisecond before its end and gives up orders-1 to
        web-2."""
        ended_ms = began_ms + 500
        there = positions(ended_ms / 1_000, slow_since_s, read=read)
        self.at(began_ms).add("member_added", WEB_2, trigger="member joined")
        self.preparing(WEB_2, "member joined").at(ended_ms - 1)
        self.add("member_rejoined", WEB_1, trigger="member rejoined", after_ms=499).joined().at(ended_ms)
        moves = [["orders", 0, None, WEB_1.id], ["orders", 1, WEB_1.id, WEB_2.id]]
        self.add("assigned", WEB_1, partitions=2, kept=1, moved=1, moves=moves, owned={})
        lag = {"lag_before": 0, "lag": sum(each[3] for each in there), "lag_partitions": there}
        self.stable(WEB_2, "member joined", began_ms, ended_ms - 1, **(lag | told))
        return self


def of(life: Life, generation: int = 7, now_ms: int | None = None) -> tuple[Explanation, Cost, list[str]]:
    found = explain(life.entries, generation=generation, now_ms=now_ms)
    assert found is not None
    assert found.cost is not None
    return found, found.cost, found.lines(UTC)


def test_a_slow_handler_after_a_short_rebalance_is_not_its_cost() -> None:
    life = Told().lag(10).lag(30).half_a_second(BEGINS_MS)
    for at_s in (70, 90, 130, 210, 370, 600):
        life.lag(at_s)
    _, cost, lines = of(life)
    assert lines[-2:] == [
        "  cost      orders-1 unowned for 1 ms",
        "  lag       also grew after it: web-2 reads 5 records/s where 40 arrive",
    ]
    assert (cost.arrived, cost.waited) == (0, 0)
    assert cost.falling_behind is not None
    (slow,) = cost.falling_behind.members
    assert (slow.member, round(slow.reads), round(slow.arrive)) == (WEB_2.id, 5, 40)
    assert cost.to_json()["falling_behind"]["members"][0]["member"] == WEB_2.id


def test_what_arrived_while_partitions_stood_still_is_its_cost() -> None:
    life = Told().lag(10).lag(30)
    life.at(60_000).add("member_removed", WEB_2, trigger="session expired", silent_ms=45_000)
    life.preparing(WEB_2, "session expired").at(60_500).joined()
    moves = [["orders", 1, WEB_2.id, WEB_1.id]]
    life.add("assigned", WEB_1, partitions=2, kept=1, moved=1, moves=moves, owned={})
    there = positions(60.5, 15, read=0)
    lag = {"lag_before": 1_800, "lag": 1_820, "lag_partitions": there}
    life.stable(WEB_2, "session expired", 60_000, 60_500, **lag)
    life.lag(90, 90)
    _, cost, lines = of(life)
    assert cost.arrived == round(40 * 45.5)
    assert cost.falling_behind is None
    assert lines[-1] == (
        "  cost      orders-1 unowned for 45.5 s; about 1,820 records arrived meanwhile, recovered at "
        "14:04:42"
    )


def test_lag_that_rose_already_is_said_to() -> None:
    life = Told().lag(-200, -300).lag(0, -300).half_a_second(BEGINS_MS, slow_since_s=-300, lag_before=12_600)
    life.lag(70, -300).lag(130, -300)
    _, cost, lines = of(life)
    assert cost.falling_behind is not None
    assert cost.falling_behind.already
    assert lines[-1] == (
        "  lag       was growing before the rebalance, and still is: web-2 reads 5 records/s where 40 arrive"
    )


def test_who_commits_nothing() -> None:
    life = Told().lag(10).lag(30).half_a_second(BEGINS_MS, read=0).lag(130, read=0)
    assert of(life)[2][-1].endswith("web-2 commits nothing where 40 records/s arrive")


def test_the_pace_of_commits_is_no_falling_behind() -> None:
    """Offsets are committed every five seconds, so a sample may fall before or after a commit."""
    life = Told().lag(10).lag(30).half_a_second(BEGINS_MS)
    life.at(70_000).add("lag_at_commit", total=200, partitions=[["orders", 1, 2_600, 200]])
    assert of(life)[1].falling_behind is None


def test_without_the_assignments_it_is_the_group_that_reads() -> None:
    life = Told().lag(10).half_a_second(BEGINS_MS).lag(130)
    entries = [each for each in life.entries if each.type != "assigned"]
    found = explain(entries, generation=7)
    assert found is not None
    assert found.lines(UTC)[-1].endswith("the group reads 45 records/s where 80 arrive")


def test_offsets_that_were_reset_tell_no_rate() -> None:
    life = Told().lag(10).half_a_second(BEGINS_MS)
    life.at(130_000).add("lag_at_commit", total=5_200, partitions=[["orders", 1, 0, 5_200]])
    assert of(life)[1].falling_behind is None


def test_a_group_that_commits_nothing_has_no_lag_to_tell_of() -> None:
    life = Told()
    life.half_a_second(BEGINS_MS)
    for name in ("lag_before", "lag", "lag_partitions"):
        del life.entries[-1].data[name]  # type: ignore[attr-defined]
    _, cost, lines = of(life)
    assert (cost.arrived, cost.waited, cost.falling_behind) == (None, None, None)
    assert lines[-1] == "  cost      orders-1 unowned for 1 ms"


# --- recovery -----------------------------------------------------------------------------------------------


def grown(life: Life) -> Life:
    """A rebalance from 0 to 2,000 in which lag grew from 10 to 500."""
    life.at(0).preparing(WEB_1, "leader rejoined").at(1_900).joined().at(2_000)
    return life.stable(WEB_1, "leader rejoined", 0, 1_900, lag_before=10, lag=500)


def again(life: Life, began: int, lag: int) -> Life:
    life.at(began).preparing(WEB_2, "leader rejoined").at(began + 100).joined().at(began + 200)
    return life.stable(WEB_2, "leader rejoined", began, began + 100, lag_before=lag, lag=lag)


def test_recovery_during_the_next_generation() -> None:
    life = again(grown(Life()), 5_000, 480).at(15_200).add("lag_at_commit", total=12)
    _, cost, lines = of(life)
    assert (cost.recovered_ms, cost.lag.recovered_in) == (life.at_ms, 8)
    assert lines[-1] == (
        "  cost      lag grew by 490 records meanwhile, recovered at 14:03:27, during generation 8"
    )
    assert of(life, 8)[2][-1] != lines[-1]


def test_the_next_rebalance_before_it_had_recovered() -> None:
    life = again(grown(Life()), 5_000, 480).at(15_200).add("lag_at_commit", total=300)
    assert of(life)[2][-1] == (
        "  cost      lag grew by 490 records meanwhile, not recovered when the next rebalance began at "
        "14:03:17"
    )


def test_recovered_as_it_was_when_another_rebalance_began_is_said_of_that_one() -> None:
    life = again(grown(Life()), 5_000, 480).at(15_200).add("lag_at_commit", total=470, recovered=True)
    assert of(life)[1].recovered_ms is None


def test_not_recovered_yet_ends_with_the_time_that_is_watched() -> None:
    life = grown(Life()).at(30_000).add("lag_at_commit", total=400)
    assert of(life)[2][-1].endswith("lag grew by 490 records meanwhile, not recovered yet")
    later_ms = life.at_ms + 600_000
    assert of(life, now_ms=later_ms)[2][-1].endswith("meanwhile, not recovered within 10 min")
    life.at(700_000).add("lag_at_commit", total=0)
    found, cost, _ = of(life)
    assert cost.recovered_ms is None, "that may have any reason"
    assert found.to_json()["cost"]["lag_peak"] == 500


def test_a_coordinator_that_was_restarted_in_between() -> None:
    life = grown(Life()).at(3_000).shard_event("shard_loaded", took_ms=5, from_broker=1)
    life.at(20_000).add("lag_at_commit", total=11)
    assert of(life)[1].recovered_ms == life.at_ms


def test_rates_are_said_in_words() -> None:
    assert [per_second(each) for each in (0, 0.05, 0.5, 1, 2.46, 12.4, 1_234.5)] == [
        "0 records/s", "3 records/min", "30 records/min", "1 record/s", "2.5 records/s", "12 records/s",
        "1,234 records/s",
    ]  # fmt: skip

"""The text that people read."""

from __future__ import annotations

import json
from datetime import UTC
from pathlib import Path

import pytest

from muster.coordinator.journal.entries import Entry
from muster.coordinator.journal.explain import Diagnosis, describe, explain
from muster.coordinator.journal.explain.names import count, duration, listed, names_in, partitions
from muster.coordinator.journal.explain.telling import about
from tests.journal.explain.writing import T0, WEB_1, WEB_2, Life, member


def stall() -> Life:
    """A process stalls after three near misses; its partitions go to another member."""
    life = Life()
    for at in (-500_000, -300_000, -100_000):
        life.at(at).add("heartbeat_late", WEB_2, late_ms=16_000, session_timeout_ms=45_000)
    there = [["orders", 3, 1_000, 4], ["orders", 4, 1_000, 3], ["orders", 5, 1_000, 3]]
    life.at(-46_000).add("lag_at_commit", total=10, partitions=there)
    life.at(0).add(
        "member_removed",
        WEB_2,
        trigger="session expired",
        silent_ms=45_000,
        connected=True,
        disconnected_ms=None,
        late=3,
        heartbeat_interval_ms=3_000,
        session_timeout_ms=45_000,
    )
    life.preparing(WEB_2, "session expired", waiting_for=(WEB_1,)).at(2_400).joined().at(2_650)
    moves = [["orders", number, WEB_2.id, WEB_1.id] for number in (3, 4, 5)]
    life.add("assigned", WEB_1, partitions=12, kept=9, moved=3, lost=0, moves=moves, owned={WEB_1.id: 12})
    lag = {"lag": 1_239, "lag_partitions": [["orders", number, 1_000, 413] for number in (3, 4, 5)]}
    life.stable(WEB_2, "session expired", 0, 2_400, joins=[[WEB_1, 2_400]], **lag)
    life.at(2_780).add("all_synced", WEB_1, after_ms=130)
    return life.at(19_000).add("lag_at_commit", total=9, recovered=True)


_STALL = """\
billing · generation 7 · 14:03:12.412 → 14:03:15.062 (2.7 s)
  cause     member web-2 (host 10.0.0.7) was evicted: heartbeats stopped 45.0 s before, its connection stayed
            open
            → likely: the process stalled (a blocked event loop, GC or CPU). It had been late 3 times in the
            10 minutes before (stalled)
  evidence  until then one came every 3.0 s
  phases    waiting for joins 2.4 s (slowest: web-1, 2.4 s) · assignment 0.3 s · sync 0.1 s
  moved     orders-3, orders-4, orders-5: web-2 → web-1   (3 of 12 partitions; 9 kept)
  cost      orders-3..5 unowned for 47.7 s; about 1,204 records arrived meanwhile, recovered at 14:03:31"""


def test_an_explanation_for_people() -> None:
    found = explain(stall().entries)
    assert found is not None
    assert "\n".join(found.lines(UTC)) == _STALL
    assert max(map(len, found.lines(UTC))) <= 110


def test_near_misses_since_then_are_said() -> None:
    life = stall()
    for at, late_ms in ((60_000, 16_000), (90_000, 31_000)):
        life.at(at).add("heartbeat_late", WEB_1, late_ms=late_ms, session_timeout_ms=45_000)
    found = explain(life.entries)
    assert found is not None
    assert found.lines(UTC)[-1] == (
        "  since     heartbeats of web-1 were late 2 times, silent for up to 31.0 s of its 45.0 s "
        "session timeout"
    )


def test_the_date_is_said_when_it_is_another_one() -> None:
    found = explain(stall().entries, now_ms=T0 + 86_400_000)
    assert found is not None
    assert found.lines(UTC)[0].startswith("billing · generation 7 · 2026-01-01 14:03:12.412 → 14:03:15.062")


def test_an_explanation_for_programs() -> None:
    found = explain(stall().entries)
    assert found is not None
    read = json.loads(json.dumps(found.to_json()))
    assert (read["cause"], read["diagnosis"], read["certainty"]) == ("session expired", "stalled", "likely")
    assert read["member"] == WEB_2.to_json()
    assert read["phases"]["slowest"] == [[WEB_1.to_json(), 2_400]]
    assert read["cost"]["unowned"] == [
        {"partitions": [["orders", 3], ["orders", 4], ["orders", 5]], "ms": 47_650}
    ]
    assert (read["cost"]["arrived"], read["cost"]["lag_growth"]) == (1_204, 1_229)


def test_what_a_terminal_would_obey_is_written_out() -> None:
    nasty = member("web\x1b[31m\n", "10.0.0.7")
    life = Life("bil\rling").at(0).add("member_removed", nasty, trigger="member left", reason="\x07")
    found = explain(life.rebalanced(nasty, "member left", reason="\x07").entries)
    assert found is not None
    assert all(each.isprintable() for each in found.lines(UTC))
    assert "web\\x1b[31m\\n" in " ".join(found.lines(UTC))


def test_members_of_one_client_id_are_told_apart() -> None:
    one, other, third = (member("app", tail=each * 6) for each in "123")
    life = Life().at(0).add("member_removed", one, trigger="member left", connected=True)
    life.preparing(one, "member left", waiting_for=(other, third)).at(100).joined().at(200)
    life.add("assigned", other, partitions=2, kept=1, moved=1, moves=[["orders", 0, one.id, other.id]])
    found = explain(life.stable(one, "member left", 0, 100).entries)
    assert found is not None
    assert "orders-0: app/111111 → app/222222" in " ".join(found.lines(UTC))
    assert found.to_json()["names"] == {one.id: "app/111111", other.id: "app/222222", third.id: "app/333333"}
    assert next(said for _, said in about(life.entries)).startswith("member left: app/111111 at ")
    assert names_in(life.entries).short(WEB_1) == "web-1"


@pytest.mark.parametrize(
    ("ms", "said"),
    [
        (-5, "0 ms"),
        (0, "0 ms"),
        (99, "99 ms"),
        (100, "0.1 s"),
        (2_749, "2.7 s"),
        (599_949, "599.9 s"),
        (600_000, "10 min"),
        (725_000, "12 min 5 s"),
        (3_600_000, "1 h"),
        (12_000_000, "3 h 20 min"),
        (187_200_000, "2 d 4 h"),
    ],
)
def test_durations(ms: int, said: str) -> None:
    assert duration(ms) == said


def test_lists() -> None:
    assert partitions([("b", 1), ("a", 0), ("a", 1), ("a", 2), ("a", 5), ("a", 5)]) == "a-0..2, a-5, b-1"
    assert partitions([("a", 0), ("a", 1)], singly=3) == "a-0, a-1"
    assert listed(list("abcdef")) == "a, b, c, d and 2 more"
    assert (count(1, "record"), count(1_204, "record")) == ("1 record", "1,204 records")


def test_every_entry_is_a_line_with_its_cause_first() -> None:
    told = [text for _, text in about(stall().entries)]
    assert told[0] == "near miss: no heartbeat from web-2 at 10.0.0.7 for 16.0 s; session timeout 45.0 s"
    assert told[4] == (
        "session expired: web-2 at 10.0.0.7 was removed; last heard from 45.0 s before; "
        "its connection is open; late 3 times in the 10 minutes before"
    )
    assert told[5] == (
        "session expired (web-2 at 10.0.0.7): PreparingRebalance, generation 6, after 60.0 s of Stable; "
        "waiting for web-1"
    )
    assert told[9] == (
        "session expired (web-2 at 10.0.0.7): rebalanced to generation 7 in 2.7 s, 2 members; "
        "lag 1,239 records"
    )


def test_who_has_yet_to_ask_for_its_assignment_is_still_a_member() -> None:
    life = Life().add(
        "state_changed",
        WEB_1,
        trigger="leader sent the assignment",
        from_state="CompletingRebalance",
        to_state="Stable",
        phase_ms=4,
        waiting_for=[WEB_2],
    )
    assert describe(life.entries[0]) == (
        "leader sent the assignment (web-1 at 10.0.0.6): Stable, generation 6, after 4 ms of "
        "CompletingRebalance; have not sent SyncGroup: web-2"
    )


def test_who_did_not_come_in_time_is_not_waited_for() -> None:
    life = Life().joined("rebalance timed out", waiting_for=(WEB_2,), leader=WEB_1)
    assert describe(life.entries[0]) == (
        "rebalance timed out: CompletingRebalance, generation 7, after 0 ms of PreparingRebalance; "
        "without web-2; web-1 computes the assignment"
    )


def test_an_unknown_entry_is_told_too() -> None:
    assert (
        describe(Entry("member_promoted", T0, 1, 3, "billing", 4, member=WEB_1)) == "member promoted: web-1"
    )
    assert describe(Entry("weather_changed", T0, 1, 3, None, None)) == "weather changed"


def test_the_page_about_it_has_every_diagnosis() -> None:
    page = (Path(__file__).parents[3] / "docs" / "why.md").read_text()
    assert [each.value for each in Diagnosis if f"`{each}`" not in page] == []
    assert _STALL in page

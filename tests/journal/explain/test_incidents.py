"""Events worth knowing that are not rebalances."""

from __future__ import annotations

from datetime import UTC
from typing import Any

from muster.coordinator.journal.explain import Explanation, describe, explain
from tests.journal.explain.writing import WEB_2, WEB_3, Life
from tests.support.each import each


def why(life: Life) -> Explanation:
    found = explain(life.entries)
    assert found is not None
    return found


def test_a_coordinator_that_moved_and_changed_nothing() -> None:
    life = Life().at(0).rebalanced(WEB_2, "leader rejoined").at(60_000)
    life.shard_event("shard_unloaded", epoch=3, why="handed over")
    life.broker = 2
    life.at(60_200).shard_event("shard_loaded", epoch=4, groups=1, took_ms=40, from_broker=1)
    found = why(life)
    assert (found.cause, found.diagnosis.value, found.certainty.value) == (
        "coordinator moved",
        "coordinator-moved",
        "certain",
    )
    assert not found.rebalanced
    assert found.generation == 7
    assert found.meaning == "from broker 1 to broker 2, loaded in 40 ms: members and generation are unchanged"
    assert found.lines(UTC)[0] == "billing · generation 7 · 14:04:12.612 · no rebalance"
    assert found.before is not None
    assert found.before.startswith("generation 7: the leader web-2")
    rebalance = explain(life.entries, generation=7)
    assert rebalance is not None
    assert rebalance.diagnosis.value == "leader-rejoined"


def test_for_how_long_at_most_nobody_coordinated_the_group() -> None:
    life = Life().at(0).rebalanced(WEB_2, "leader rejoined").at(60_000)
    life.broker = 2
    life.shard_event("shard_loaded", epoch=4, took_ms=40, from_broker=1, from_silent_ms=3_200)
    assert why(life).evidence[1] == (
        "broker 1 was last seen 3.2 s before: the group had no coordinator for at most that long"
    )
    handed_over = Life().at(0).rebalanced(WEB_2, "leader rejoined").at(60_000)
    handed_over.shard_event("shard_unloaded", epoch=3, why="handed over")
    handed_over.broker = 2
    handed_over.shard_event("shard_loaded", epoch=4, took_ms=40, from_broker=1, from_silent_ms=200)
    assert len(why(handed_over).evidence) == 1


def test_the_broker_before_is_known_from_what_it_wrote() -> None:
    life = Life().at(0).rebalanced(WEB_2, "leader rejoined")
    life.broker = 2
    life.at(60_200).shard_event("shard_loaded", epoch=4, took_ms=40)
    assert "from broker 1 to broker 2" in why(life).meaning


def test_a_broker_that_was_restarted_does_not_stand_before_what_happened_last() -> None:
    life = Life().at(0).rebalanced(WEB_2, "leader rejoined").at(60_200)
    life.shard_event("shard_loaded", epoch=4, took_ms=40, from_broker=1)
    found = why(life)
    assert found.rebalanced
    assert found.diagnosis.value == "leader-rejoined"
    kept = "members and generation are unchanged"
    assert found.since == (f"broker 1 restarted or reloaded the group 60.0 s later; {kept}",)
    said = "broker 1 reloaded the group in 40 ms, after a restart or a lapse of its lease"
    assert describe(life.entries[-1]) == said

    life.at(70_000).add("join_refused", WEB_3, trigger="group full", error="GROUP_MAX_SIZE_REACHED")
    life.at(80_000).shard_event("shard_loaded", epoch=5, took_ms=40)  # its entries name the former holder
    found = why(life)
    assert found.diagnosis.value == "group-full"
    assert found.since == (f"broker 1 restarted or reloaded the group 10.0 s later; {kept}",)


def test_a_journal_that_begins_with_a_load_tells_of_no_move() -> None:
    life = Life().at(0).shard_event("shard_loaded", epoch=1, took_ms=4)
    life.at(5).add("group_created", trigger="requested")
    assert explain(life.entries) is None


def test_after_a_move_the_next_rebalance_is_what_happened_last() -> None:
    life = Life().at(0).rebalanced(WEB_2, "leader rejoined")
    life.at(5_000).shard_event("shard_loaded", epoch=4, took_ms=40, from_broker=1)
    assert why(life.at(9_000).rebalanced(WEB_2, "leader rejoined")).rebalanced


def test_a_client_that_a_full_group_refused() -> None:
    life = Life().at(0).rebalanced(WEB_2, "leader rejoined").at(5_000)
    life.add("join_refused", WEB_3, trigger="group full", error="GROUP_MAX_SIZE_REACHED", size_max=2)
    found = why(life)
    assert (found.cause, found.diagnosis.value, found.rebalanced) == ("group full", "group-full", False)
    assert found.meaning == "group.max.size is 2 members; the others are unaffected"
    assert found.what == "a client web-3 (host 10.0.0.8) was refused: the group is full"


def test_a_client_without_a_common_assignor() -> None:
    life = Life().at(0).rebalanced(WEB_2, "leader rejoined").at(5_000)
    life.add("join_refused", WEB_3, trigger="requested", error="INCONSISTENT_GROUP_PROTOCOL", size_max=None)
    found = why(life)
    assert (found.cause, found.diagnosis.value, found.rebalanced) == (
        "join refused",
        "assignor-changed",
        False,
    )
    assert found.evidence == ("refused with INCONSISTENT_GROUP_PROTOCOL",)


@each(
    "facts, diagnosis, meaning, evidence",
    [
        (
            {"protocol_types": None, "offered": ["range", "roundrobin"], "shared": ["cooperative-sticky"]},
            "assignor-changed",
            "it supports no assignor common to all members; the others are unaffected",
            "it offers range, roundrobin; all members support cooperative-sticky",
        ),
        (
            {"protocol_types": ["connect", "consumer"], "offered": None, "shared": None},
            "assignor-changed",
            "it is another kind of client with the same group id; the others are unaffected",
            "its protocol type is connect, the group's is consumer",
        ),
        (
            {"protocol_types": None, "offered": None, "shared": None},
            "unknown",
            "group.consumer.migration.policy keeps clients of the classic protocol out of this group, or its "
            "subscription is malformed",
            None,
        ),
    ],
)
def test_how_a_refused_client_differs(
    facts: dict[str, Any], diagnosis: str, meaning: str, evidence: str | None
) -> None:
    life = Life().at(0).rebalanced(WEB_2, "leader rejoined").at(5_000)
    life.add("join_refused", WEB_3, error="INCONSISTENT_GROUP_PROTOCOL", size_max=None, **facts)
    found = why(life)
    assert (found.diagnosis.value, found.meaning) == (diagnosis, meaning)
    assert found.evidence[1:] == (() if evidence is None else (evidence,))


def test_what_a_test_did_is_evidence() -> None:
    life = Life().at(-30_000).shard_event("clock_moved", shard=-1, by_ms=45_000)
    life.at(-20_000).add("fault_fired", rule="1", api="Heartbeat", action="drop_response")
    life.at(0).shard_event("clock_moved", shard=-1, by_ms=10_000)
    life.add("member_removed", WEB_2, trigger="session expired", silent_ms=45_000, connected=True)
    found = why(life.rebalanced(WEB_2, "session expired"))
    assert found.evidence[-3:] == (
        "the test clock was advanced by 45.0 s",
        "injected fault: drop_response on Heartbeat",
        "the test clock was advanced by 10.0 s",
    )

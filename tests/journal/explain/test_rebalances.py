"""Splitting a stream of entries into rebalances: complete, partial and restarted ones."""

from __future__ import annotations

from muster.coordinator.journal.explain import Explanation, Outcome, explain, rebalances
from muster.coordinator.journal.explain.vocabulary import TRIGGERS_OF_INCIDENTS, Trigger
from tests.journal.explain.writing import T0, WEB_1, WEB_2, WEB_3, Life, member

WEB_4 = member("web-4")


def test_what_was_recorded_in_the_same_step_belongs_to_it() -> None:
    life = Life().at(-5_000).add("heartbeat_late", WEB_2)
    life.at(0).add("member_removed", WEB_2, trigger="session expired").rebalanced(WEB_2, "session expired")
    (found,) = rebalances(life.at(9_000).add("all_synced", WEB_1, after_ms=9).entries)
    assert [each.type for each in found.entries] == [
        "member_removed",
        "state_changed",
        "state_changed",
        "state_changed",
        "rebalance_completed",
    ]
    assert (found.generation, found.started_ms, found.ended_ms) == (7, T0, T0 + 200)
    assert (found.outcome, found.state, found.from_state) == (Outcome.COMPLETED, "Stable", "Stable")
    assert [each.type for each in found.after] == ["all_synced"]


def test_a_rebalance_that_begins_anew_is_one_with_several_starts() -> None:
    life = Life().at(0).add("member_added", WEB_2, trigger="member joined")
    life.preparing(WEB_2, "member joined").at(100).joined()
    life.at(150).add("member_added", WEB_3, trigger="member joined")
    life.preparing(WEB_3, "member joined", from_state="CompletingRebalance").at(250).joined()
    life.at(300).stable(WEB_3, "member joined", 0, 250, restarts=1)
    (found,) = rebalances(life.entries)
    assert [each.member for each in found.starts] == [WEB_2, WEB_3]
    assert found.generation == 8
    told = explain(life.entries)
    assert told is not None
    assert (told.cause, told.member) == ("member joined", WEB_2)
    assert told.also == ("member joined (web-3: new-member)",)
    assert told.phases is not None
    assert told.phases.restarts == 1


def test_rebalances_of_a_group_stay_in_order_if_the_clock_was_set_back() -> None:
    life = Life().at(0).rebalanced(WEB_1, "leader rejoined").at(-60_000).rebalanced(WEB_1, "leader rejoined")
    other = Life("other").at(-30_000).rebalanced(WEB_2, "leader rejoined")
    assert [each.generation for each in rebalances(life.entries)] == [7, 8]
    both = [each.group for each in rebalances([*life.entries, *other.entries])]
    assert both == ["other", "billing", "billing"]


def test_who_else_came_and_went_meanwhile() -> None:
    life = Life().at(0).add("member_removed", WEB_2, trigger="member left").preparing(WEB_2, "member left")
    life.at(40).add("member_added", WEB_3, trigger="member joined")
    life.at(50).add("member_removed", WEB_1, trigger="member left")
    life.at(60).add("member_added", WEB_4, trigger="member joined").at(100).joined()
    told = explain(life.at(150).stable(WEB_2, "member left", 0, 100).entries)
    assert told is not None
    assert told.also == ("member joined (web-3, web-4)", "member left (web-1)")


def test_one_that_came_and_restarted_it_by_leaving_again() -> None:
    life = Life().at(0).add("member_added", WEB_2, trigger="member joined").preparing(WEB_2, "member joined")
    life.at(100).add("member_added", WEB_3, trigger="member joined").joined()
    life.at(200).add("member_removed", WEB_3, trigger="member left", silent_ms=100)
    life.preparing(WEB_3, "member left", from_state="CompletingRebalance").at(300).joined()
    told = explain(life.at(310).stable(WEB_3, "member left", 0, 300, restarts=1).entries)
    assert told is not None
    assert (told.cause, told.member) == ("member joined", WEB_2)
    assert [each.partition(":")[0] for each in told.also] == ["member left (web-3", "member joined (web-3)"]


def test_one_after_the_other_even_in_the_same_millisecond() -> None:
    life = Life()
    for _ in range(3):
        life.at(0).rebalanced(WEB_2, "leader rejoined", took=0)
    found = rebalances(life.entries)
    assert [each.generation for each in found] == [7, 8, 9]
    assert [each.first for each in found[1:]] == [each.until for each in found[:-1]]


def test_a_journal_that_begins_in_the_middle() -> None:
    whole = (
        Life().at(0).add("member_added", WEB_2, trigger="member joined").rebalanced(WEB_2, "member joined")
    )
    for missing in range(1, len(whole.entries)):
        (found,) = rebalances(whole.entries[missing:])
        assert found.generation == 7
        told = explain(whole.entries[missing:])
        assert told is not None
        assert (told.cause, told.diagnosis.value) == ("member joined", "new-member")
        assert (told.started_ms, told.ended_ms) == (T0, T0 + 200)


def test_a_journal_that_begins_with_a_restart() -> None:
    life = Life().at(0).preparing(WEB_2, "member joined").at(100).joined()
    missing = len(life.entries)
    life.at(6_100).add("member_removed", WEB_3, trigger="member left")
    life.preparing(WEB_3, "member left", from_state="CompletingRebalance").at(6_300).joined()
    under_way = explain(life.entries[missing:])
    assert under_way is not None
    assert (under_way.started_ms, under_way.cause) == (T0 + 100, "member left")
    life.at(6_310).stable(WEB_3, "member left", 0, 6_300, restarts=1)
    (found,) = rebalances(life.entries[missing:])
    assert not found.began_in_sight
    told = explain(life.entries[missing:])
    assert told is not None
    assert (told.started_ms, told.ended_ms) == (T0, T0 + 6_310)
    assert (told.cause, told.member) == ("member left", WEB_3)
    for each in (under_way, told):
        assert each.also == ("the journal lacks its beginning: this cause restarted it",)


def test_a_journal_that_lacks_all_but_the_end() -> None:
    def also(restarts: int) -> tuple[str, ...]:
        life = Life().at(6_310).completed(WEB_3, "member left", 0, 6_300, restarts=restarts)
        told = explain(life.entries)
        assert told is not None
        return told.also

    assert also(0) == (), "its only cause"
    assert also(1) == ("the journal lacks its beginning: this cause restarted it",)


def test_a_journal_that_ends_before_the_completion_is_noted() -> None:
    life = Life().at(0).rebalanced(WEB_2, "leader rejoined")
    assert rebalances(life.entries[:2])[0].outcome is Outcome.UNDER_WAY
    without = [each for each in life.entries if each.type != "rebalance_completed"]
    (found,) = rebalances(without)
    assert (found.outcome, found.ended_ms) == (Outcome.COMPLETED, T0 + 200)
    life.at(60_000).rebalanced(WEB_1, "leader rejoined")
    without = [each for each in life.entries if each.type != "rebalance_completed"]
    assert [each.generation for each in rebalances(without)] == [7, 8]


def test_a_completion_that_is_late_is_not_another_rebalance() -> None:
    life = Life().at(0).rebalanced(WEB_2, "leader rejoined")
    done = life.entries.pop()
    life.at(5_000).add("heartbeat_late", WEB_1)
    (found,) = rebalances([*life.entries, done])
    assert found.completed is done


def test_a_group_that_becomes_empty() -> None:
    life = Life().at(0).add("member_removed", WEB_1, trigger="member left").preparing(WEB_1, "member left")
    life.generation += 1
    life.add("state_changed", from_state="PreparingRebalance", to_state="Empty", phase_ms=0)
    life.completed(WEB_1, "member left", 0, 0, members=0)
    (found,) = rebalances(life.entries)
    assert (found.state, found.outcome, found.ended_ms) == ("Empty", Outcome.COMPLETED, T0)
    told = explain(life.entries)
    assert told is not None
    assert "no members left: Empty" in told.lines()[0]


def test_a_rebalance_cut_short_by_a_move() -> None:
    life = Life().at(0).preparing(WEB_2, "leader rejoined")
    life.at(400).shard_event("shard_unloaded", epoch=3, why="handed over")
    (found,) = rebalances(life.entries)
    assert (found.outcome, found.ended_ms) == (Outcome.INTERRUPTED, T0 + 400)
    assert _header(life).endswith("interrupted: broker 1 stopped or handed over the group")
    life.broker = 2
    life.at(500).shard_event("shard_loaded", epoch=4, took_ms=3, from_broker=1)
    life.at(900).rebalanced(WEB_2, "leader rejoined")
    assert [each.outcome for each in rebalances(life.entries)] == [Outcome.INTERRUPTED, Outcome.COMPLETED]


def lost(*, by: int = 2, state: str = "PreparingRebalance") -> Life:
    """A rebalance during which the coordinator moves."""
    life = Life().at(-60_000).rebalanced(WEB_1, "member joined")
    life.at(0).preparing(WEB_2, "leader rejoined", waiting_for=(WEB_1,))
    if state == "CompletingRebalance":
        life.at(100).joined()
    life.at(400).shard_event("shard_unloaded", epoch=3, why="handed over")
    life.broker = by
    return life.at(500).shard_event("shard_loaded", epoch=4, took_ms=3, from_broker=1)


def test_a_rebalance_that_a_move_cut_short_is_lost() -> None:
    for state in ("PreparingRebalance", "CompletingRebalance"):
        told = explain(lost(state=state).entries)
        assert told is not None
        assert (told.diagnosis.value, told.generation) == ("coordinator-moved", None)
        assert told.meaning == (
            "from broker 1 to broker 2, loaded in 3 ms: the rebalance under way is lost, and the group is "
            "back where it was before"
        )
    told = explain(lost(by=1).entries)
    assert told is not None
    assert told.since == (
        "broker 1 restarted or reloaded the group 0.1 s later; the rebalance under way is lost, and the "
        "group is back where it was before",
    )


def test_a_rebalance_is_lost_once() -> None:
    def moved_again(at: int) -> Life:
        life = lost().at(at).shard_event("shard_unloaded", epoch=4, why="handed over")
        life.broker = 3
        return life.at(at + 100).shard_event("shard_loaded", epoch=5, took_ms=3, from_broker=2)

    told = explain(moved_again(600_000).entries)
    assert told is not None
    assert told.meaning == ("from broker 2 to broker 3, loaded in 3 ms: members and generation are unchanged")
    assert told.generation is None
    life = moved_again(600).at(900)
    told = explain(life.rebalanced(WEB_2, "leader rejoined").entries)
    assert told is not None
    assert told.evidence == ("broker 3 loaded the group 0.2 s before",)
    assert told.diagnosis.value == "coordinator-moved"


def test_the_rejoins_after_a_move_that_cut_a_rebalance_short_follow_from_it() -> None:
    def rejoined(life: Life, trigger: str, at: int = 900) -> Explanation:
        life.generation = 7
        life.at(at).add("metadata_changed", WEB_2, trigger=trigger, protocols_before=[])
        told = explain(life.rebalanced(WEB_2, trigger).entries)
        assert told is not None
        return told

    for trigger in ("leader rejoined", "subscription or protocols changed"):
        told = rejoined(lost(), trigger)
        assert (told.diagnosis.value, told.certainty.value) == ("coordinator-moved", "likely")
        assert told.meaning == "the coordinator moved during a rebalance, which is lost: members join again"
        assert told.evidence == ("broker 2 loaded the group 0.4 s before",)
        assert rejoined(lost(), trigger, at=90_000).diagnosis.value != "coordinator-moved"
        whole = Life().at(-60_000).rebalanced(WEB_1, "member joined")
        whole.at(500).shard_event("shard_loaded", epoch=4, took_ms=3, from_broker=2)
        assert rejoined(whole, trigger).diagnosis.value != "coordinator-moved"


def test_a_rebalance_cut_short_by_a_restart_or_by_a_migration() -> None:
    life = Life().at(0).preparing(WEB_2, "leader rejoined")
    life.at(400).shard_event("shard_loaded", epoch=4, took_ms=3, from_broker=1)
    assert _header(life).endswith("interrupted: broker 1 restarted or took over the group")
    life = Life().at(0).preparing(WEB_2, "leader rejoined")
    life.at(400).add("protocol_migrated", WEB_3, from_type="classic", to_type="consumer", members=1)
    assert _header(life).endswith("interrupted: the group became a consumer group")
    told = explain(life.entries, generation=7)
    assert told is not None
    assert told.to_json()["interrupted"] == "the group became a consumer group"
    life = Life().at(0).preparing(WEB_2, "leader rejoined").at(400).add("group_removed")
    assert _header(life).endswith("interrupted: the group was deleted")


def _header(life: Life) -> str:
    """The first line of the explanation of the last rebalance, in one piece."""
    told = explain(life.entries, generation=7)
    assert told is not None
    return " ".join(" ".join(told.lines()).partition("  cause ")[0].split())


def test_groups_are_told_apart_and_get_the_events_of_their_shard_alone() -> None:
    one, other = Life("one", shard=3), Life("other", shard=4)
    one.at(0).preparing(WEB_1, "leader rejoined")
    other.at(50).preparing(WEB_1, "leader rejoined").at(150).joined().at(250)
    other.stable(WEB_1, "leader rejoined", 50, 150)
    one.at(200).shard_event("shard_unloaded", epoch=1)
    mixed = sorted([*one.entries, *other.entries], key=lambda each: each.at_ms)
    found = rebalances(mixed)
    assert {each.group: each.outcome for each in found} == {
        "one": Outcome.INTERRUPTED,
        "other": Outcome.COMPLETED,
    }
    told = explain(mixed, group="one")
    assert told is not None
    assert told.group == "one"
    assert explain(mixed, group="third") is None
    assert explain([]) is None


def test_a_generation_that_was_given_up_on_the_way() -> None:
    reason = "removed by an administrator"
    life = Life().at(0).add("member_removed", WEB_2, trigger="member left", reason=reason)
    life.preparing(WEB_2, "member left", reason=reason).at(100).joined()
    life.at(150).add("member_added", WEB_3, trigger="member joined", former_member_id=WEB_2.id)
    life.preparing(WEB_3, "member joined", from_state="CompletingRebalance").at(250).joined()
    life.at(300).stable(WEB_3, "member joined", 0, 250, restarts=1)
    for generation in (7, 8):
        told = explain(life.entries, generation=generation)
        assert told is not None
        assert (told.generation, told.diagnosis.value) == (generation, "evicted-by-admin")
    told = explain(life.entries, generation=7)
    assert told is not None
    assert told.also == (
        "generation 7 was abandoned: the group went on to 8",
        "member joined (web-3: rejoined-after-eviction)",
    )


def test_a_generation_that_is_not_there() -> None:
    life = Life().at(0).rebalanced(WEB_2, "leader rejoined")
    assert explain(life.entries, generation=6) is None
    found = explain(life.entries, generation=7)
    assert found is not None
    assert found.generation == 7


def test_triggers_are_those_of_the_core() -> None:
    from muster.coordinator.group.events import Trigger as Recorded

    recorded = {each.value for each in Recorded}
    assert {each.value for each in Trigger} - recorded == {each.value for each in TRIGGERS_OF_INCIDENTS}


def test_a_group_that_rebalances_again_and_again() -> None:
    life = Life().at(-900_000).rebalanced(WEB_2, "leader rejoined")
    for at in range(5):
        found = explain(life.at(at * 30_000).rebalanced(WEB_2, "leader rejoined").entries)
        assert found is not None
        often = ("5 rebalances within 10 min: see groups timeline",) if at == 4 else ()
        assert found.also == often

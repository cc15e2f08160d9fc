"""Why members left: the rules for expired sessions and for LeaveGroup."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from muster.coordinator.journal.entries import Member
from muster.coordinator.journal.explain import Explanation, explain
from tests.journal.explain.writing import T0, WEB_1, WEB_2, WEB_3, Life, member

STATIC = member("web-2", instance="web-2")


def why(life: Life, now: int | None = None) -> Explanation:
    found = explain(life.entries, now_ms=None if now is None else T0 + now)
    assert found is not None
    return found


def said(explanation: Explanation) -> tuple[str, str]:
    return explanation.diagnosis.value, explanation.certainty.value


def others(explanation: Explanation) -> set[str]:
    return {each.diagnosis.value for each in explanation.alternatives}


def expired(who: Member = WEB_2, **facts: Any) -> Life:
    """A member's session expires at 0, and the group rebalances."""
    given = {"silent_ms": 45_000, "connected": True, "late": 0, "heartbeat_interval_ms": 3_000} | facts
    life = Life().at(0).add("member_removed", who, trigger="session expired", **given)
    return life.rebalanced(who, "session expired")


def left(who: Member = WEB_2, reason: str | None = None, **facts: Any) -> Life:
    """A member leaves at 0, and the group rebalances."""
    given = {"silent_ms": 1_200, "connected": True, "late": 0, "heartbeat_interval_ms": 3_000} | facts
    life = Life().at(0).add("member_removed", who, trigger="member left", reason=reason, **given)
    return life.rebalanced(who, "member left", reason=reason)


# --- session expired ----------------------------------------------------------------------------------------


def test_a_connection_that_closed_without_leaving_is_a_crash() -> None:
    found = why(expired(connected=False, disconnected_ms=44_100))
    assert said(found) == ("crashed", "likely")
    assert (found.cause, found.member, found.generation) == ("session expired", WEB_2, 7)
    assert found.what == (
        "member web-2 (host 10.0.0.7) was evicted: heartbeats stopped 45.0 s before, "
        "its connection closed 44.1 s before"
    )
    assert "it sent no LeaveGroup" in found.evidence
    assert not found.alternatives


def test_a_crash_shows_in_the_disconnection_alone() -> None:
    life = Life().at(-44_100).add("member_disconnected", WEB_2, trigger="connection closed")
    life.at(0).add("member_removed", WEB_2, trigger="session expired").rebalanced(WEB_2, "session expired")
    found = why(life)
    assert said(found) == ("crashed", "likely")
    assert "its connection closed 44.1 s before" in found.evidence


def test_a_connection_that_closed_before_it_was_heard_of_over_another_one_says_nothing() -> None:
    life = Life().at(-44_100).add("member_disconnected", WEB_2, trigger="connection closed")
    facts = {"silent_ms": 20_000, "connected": True, "disconnected_ms": None}
    life.at(0).add("member_removed", WEB_2, trigger="session expired", **facts)
    assert said(why(life.rebalanced(WEB_2, "session expired"))) == ("stalled", "likely")


def test_heartbeats_that_stop_on_an_open_connection_are_a_stall() -> None:
    found = why(expired())
    assert said(found) == ("stalled", "likely")
    assert others(found) == {"crashed"}, "a host without power closes nothing either"
    assert "its connection stayed open" in found.what


def test_near_misses_speak_for_a_stall() -> None:
    life = Life()
    for at in (-700_000, -400_000, -200_000, -60_000):  # the first one is too long ago
        life.at(at).add("heartbeat_late", WEB_2, late_ms=12_000)
    life.at(-50_000).add("heartbeat_late", WEB_1, late_ms=12_000)
    life.at(0).add("member_removed", WEB_2, trigger="session expired", connected=True, silent_ms=45_000)
    found = why(life.rebalanced(WEB_2, "session expired"))
    assert said(found) == ("stalled", "likely")
    assert "It had been late 3 times in the 10 minutes before" in found.meaning
    assert not others(found)


def test_who_comes_back_on_its_connection_did_not_crash() -> None:
    life = expired().at(30_000).add("member_id_issued", WEB_3, former_member_id=WEB_2.id)
    found = why(life)
    assert said(found) == ("stalled", "likely"), "a connection outlives a short outage of the network"
    assert found.meaning.endswith("or its network did")
    assert "it came back on the same connection 30.0 s later" in found.evidence
    assert not others(found)


def test_hardly_any_heartbeats_point_to_their_interval() -> None:
    found = why(expired(heartbeat_interval_ms=None))
    assert said(found) == ("stalled", "likely")
    assert "or its heartbeat.interval.ms is not below its session.timeout.ms" in found.meaning
    seen = "fewer than five heartbeats were seen from it since it last joined or its broker took over"
    assert seen in found.evidence
    assert "heartbeat.interval.ms" not in why(expired()).meaning


@pytest.mark.parametrize(("loaded", "offered"), [(-70_000, True), (-50_000, False)])
def test_heartbeats_that_another_broker_saw_say_nothing_of_their_interval(loaded: int, offered: bool) -> None:
    life = Life()
    for at in sorted([loaded, -60_000]):
        if at == loaded:
            life.at(at).shard_event("shard_loaded", epoch=4, groups=1, took_ms=12, from_broker=2)
        else:
            life.at(at).add("member_added", WEB_2, trigger="member joined")
    facts = {"silent_ms": 45_000, "connected": True, "heartbeat_interval_ms": None}
    life.at(0).add("member_removed", WEB_2, trigger="session expired", **facts)
    found = why(life.rebalanced(WEB_2, "session expired"))
    assert said(found) == ("stalled", "likely")
    assert ("heartbeat.interval.ms" in found.meaning) == offered


def test_a_static_member_that_is_gone_was_stopped_or_crashed() -> None:
    found = why(expired(STATIC, connected=False, disconnected_ms=44_000))
    assert said(found) == ("crashed", "possible")
    assert others(found) == {"clean-shutdown"}


def test_a_static_member_that_goes_quiet_may_have_missed_its_poll_deadline() -> None:
    found = why(expired(STATIC))
    assert said(found) == ("stalled", "likely")
    assert others(found) == {"poll-deadline-missed", "crashed"}


def test_a_member_that_did_not_follow_a_moved_coordinator() -> None:
    life = Life().at(-60_000).add("heartbeat_late", WEB_1)
    life.broker = 2
    life.at(-45_000).shard_event("shard_loaded", epoch=4, groups=1, took_ms=12, from_broker=1)
    life.at(0).add("member_removed", WEB_2, trigger="session expired", silent_ms=45_000, connected=False)
    found = why(life.rebalanced(WEB_2, "session expired"))
    assert said(found) == ("crashed", "likely")
    assert found.evidence == ("it was not heard of after broker 2 took over the group 45.0 s before",)


def leave_lost(stored: bool = False, reason: str | None = "the consumer was closed") -> Life:
    """A member leaves at -47 s, and the coordinator moves at -45 s, mostly before that rebalance is over."""
    life = (
        Life().at(-47_000).add("member_removed", WEB_2, trigger="member left", reason=reason, silent_ms=900)
    )
    life.preparing(WEB_2, "member left", reason=reason, waiting_for=(WEB_1,))
    life.at(-46_900).add("member_disconnected", WEB_2, after_removal_ms=100)
    if stored:
        life.joined().stable(WEB_2, "member left", -47_000, -46_900)
    life.broker = 2
    life.at(-45_000).shard_event("shard_loaded", epoch=4, groups=1, took_ms=12, from_broker=1)
    life.at(0).add("member_removed", WEB_2, trigger="session expired", silent_ms=45_000, connected=False)
    return life.rebalanced(WEB_2, "session expired")


def test_a_member_whose_leave_was_lost_with_its_rebalance() -> None:
    found = why(leave_lost())
    assert said(found) == ("clean-shutdown", "certain")
    assert found.cause == "session expired"
    lost = "it was removed 47.0 s before, in a rebalance that was lost when the coordinator moved"
    assert found.evidence == (lost, 'reason given: "the consumer was closed"')
    assert said(why(leave_lost(reason="consumer poll timeout has expired"))) == (
        "poll-deadline-missed",
        "certain",
    )
    assert said(why(leave_lost(stored=True))) == ("crashed", "likely")


def test_without_any_facts_both_are_possible() -> None:
    found = why(Life().rebalanced(WEB_2, "session expired"))
    assert said(found) == ("crashed", "possible")
    assert others(found) == {"stalled"}


# --- left ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reason", "diagnosis"),
    [
        ("consumer poll timeout has expired.", "poll-deadline-missed"),
        ("nobody asked for records for 300000 ms (max.poll.interval.ms)", "poll-deadline-missed"),
        ("the consumer is being closed", "clean-shutdown"),
        ("the consumer unsubscribed from all topics", "clean-shutdown"),
        ("the consumer is closed", "clean-shutdown"),
        ("member was removed by an admin", "evicted-by-admin"),
        ("member was removed by an admin: it is broken", "evicted-by-admin"),
        ("removed by an administrator", "evicted-by-admin"),
    ],
)
def test_the_clients_own_words_decide(reason: str, diagnosis: str) -> None:
    life = left(reason=reason).at(300).add("member_disconnected", WEB_2, after_removal_ms=4)
    found = why(life)
    assert said(found) == (diagnosis, "certain")
    assert f'reason given: "{reason}"' in found.evidence
    assert not others(found)


def test_leave_then_fin_is_a_clean_shutdown() -> None:
    life = left().at(300).add("member_disconnected", WEB_2, after_removal_ms=4, silent_ms=4)
    found = why(life, now=60_000)
    assert said(found) == ("clean-shutdown", "certain")
    assert "its connection closed 4 ms after it left" in found.evidence


def test_a_connection_that_closes_much_later_is_only_likely_to_belong_to_it() -> None:
    found = why(left().at(60_000).add("member_disconnected", WEB_2, after_removal_ms=60_000))
    assert said(found) == ("clean-shutdown", "likely")


def test_leave_on_an_open_connection_and_back_again_is_a_missed_poll_deadline() -> None:
    life = left().at(20_000).add("member_id_issued", WEB_3, former_member_id=WEB_2.id)
    found = why(life)
    assert said(found) == ("poll-deadline-missed", "likely")
    assert found.evidence[0] == "the same connection rejoined 20.0 s later"
    assert "max.poll.interval.ms" in found.meaning
    assert others(found) == {"clean-shutdown"}


def test_what_closes_after_the_return_is_no_sign_of_a_shutdown() -> None:
    life = left().at(5_000).add("member_id_issued", WEB_3, former_member_id=WEB_2.id)
    life.at(5_400).add("member_disconnected", WEB_2, after_removal_ms=5_400)
    assert said(why(life)) == ("poll-deadline-missed", "likely")


def test_the_same_client_id_is_enough_when_nothing_says_more() -> None:
    again = member("web-2", tail="222222")
    found = why(left().at(20_000).add("member_added", again, trigger="member joined"))
    assert said(found) == ("poll-deadline-missed", "likely")


def test_another_process_on_another_connection_is_no_return() -> None:
    life = left().at(300).add("member_disconnected", WEB_2, after_removal_ms=4)
    again = member("web-2", tail="222222")
    found = why(life.at(20_000).add("member_added", again, trigger="member joined", former_member_id=None))
    assert said(found) == ("clean-shutdown", "certain")


def test_leave_on_a_connection_that_stays_open_is_likely_a_missed_poll_deadline() -> None:
    assert said(why(left(), now=30_000)) == ("poll-deadline-missed", "likely")
    assert others(why(left(), now=30_000)) == {"clean-shutdown"}


def test_a_connection_is_said_to_have_been_open_only_until_it_closed() -> None:
    life = left().at(3_600_000).add("member_disconnected", WEB_2, after_removal_ms=3_600_000)
    found = why(life, now=5 * 3_600_000)
    assert said(found) == ("poll-deadline-missed", "likely")
    assert found.evidence[0] == "its connection was still open 1 h after it left"


def test_a_connection_is_said_to_have_been_open_only_until_it_rejoined() -> None:
    life = left().at(3_600_000).add("member_id_issued", WEB_3, former_member_id=WEB_2.id)
    assert why(life, now=5 * 3_600_000).evidence[0] == "its connection was still open 1 h after it left"


@pytest.mark.parametrize("handed_over", [True, False])
def test_what_became_of_a_connection_after_the_coordinator_moved_is_unknown(handed_over: bool) -> None:
    def moved(ms: int) -> Explanation:
        life = left().at(ms)
        if handed_over:
            life.shard_event("shard_unloaded", epoch=3, why="handed over")
        else:
            life.add("lag_at_commit", total=0)  # the last that the former coordinator wrote
        life.broker = 2
        life.at(50_000).shard_event("shard_loaded", epoch=4, groups=1, took_ms=12, from_broker=1)
        found = explain(life.entries, generation=7, now_ms=T0 + 50_000_000)
        assert found is not None
        return found

    soon = moved(300)
    assert said(soon) == ("clean-shutdown", "possible")
    assert not others(soon)
    later = moved(20_000)
    assert said(later) == ("poll-deadline-missed", "likely")
    assert later.evidence[0] == "its connection was still open 20.0 s after it left"


def test_a_coordinator_that_died_is_known_to_have_lived_until_it_was_last_heard_from() -> None:
    life = left()
    life.broker = 2
    life.at(3_600_000).shard_event("shard_loaded", epoch=4, from_broker=1, from_silent_ms=10_000)
    found = explain(life.entries, generation=7, now_ms=T0 + 50_000_000)
    assert found is not None
    assert said(found) == ("poll-deadline-missed", "likely")
    assert found.evidence[0] == "its connection was still open 59 min 50 s after it left"


def test_a_poll_deadline_cannot_be_missed_before_it_has_passed() -> None:
    def after(age_ms: int) -> Explanation:
        life = (
            Life()
            .at(-age_ms)
            .add("member_added", WEB_2, trigger="member joined", rebalance_timeout_ms=300_000)
        )
        facts = {"silent_ms": 1_200, "connected": True, "late": 0, "heartbeat_interval_ms": 3_000}
        life.rebalanced(WEB_2, "member joined").at(0)
        life.add("member_removed", WEB_2, trigger="member left", **facts).rebalanced(WEB_2, "member left")
        return why(life.at(20_000).add("member_id_issued", WEB_3, former_member_id=WEB_2.id))

    soon = after(298_000)
    assert said(soon) == ("clean-shutdown", "likely")
    assert soon.meaning == "the consumer was closed, or the application unsubscribed"
    assert others(soon) == {"poll-deadline-missed"}
    assert (
        "it left 298.0 s after it had joined, sooner than its rebalance timeout (usually "
        "max.poll.interval.ms) of 300.0 s"
    ) in soon.evidence
    assert said(after(299_000)) == ("poll-deadline-missed", "likely"), "it may have begun before it joined"


def test_a_consumer_that_unsubscribed_was_not_closed() -> None:
    found = why(left(reason="the consumer unsubscribed from all topics"))
    assert said(found) == ("clean-shutdown", "certain")
    assert found.meaning == "the application unsubscribed"


def test_just_after_a_leave_both_are_possible() -> None:
    found = why(left(), now=500)
    assert {found.diagnosis.value, *others(found)} == {"clean-shutdown", "poll-deadline-missed"}
    assert found.certainty.value == "possible"


def test_leave_of_a_member_that_was_silent_for_long_is_no_missed_poll_deadline() -> None:
    found = why(left(silent_ms=20_000), now=30_000)
    assert said(found) == ("clean-shutdown", "possible")
    assert not others(found)


def test_an_admin_is_known_by_the_connection() -> None:
    by = Member("", "kafka-admin-client", "10.0.0.99")
    life = left(requested_by=by, reason="broken").at(500)
    found = why(life.add("member_id_issued", WEB_3, former_member_id=WEB_2.id))
    assert not others(found), "that it comes back says nothing, then"
    life = left(requested_by=by, reason="broken").at(300)
    found = why(life.add("member_disconnected", WEB_2, after_removal_ms=4))
    assert not others(found), "nor that its connection closes"
    assert said(found) == ("evicted-by-admin", "certain")
    assert "kafka-admin-client at 10.0.0.99" in found.evidence[0]
    assert 'reason given: "broken"' in found.evidence


# --- other ways out -----------------------------------------------------------------------------------------


def test_sync_timeouts_name_who_did_not_sync() -> None:
    life = Life().at(0)
    for each in (WEB_2, WEB_3):
        life.add("member_removed", each, trigger="sync timed out", silent_ms=300_000, connected=True)
    found = why(life.rebalanced(WEB_2, "sync timed out"))
    assert said(found) == ("sync-timeout", "certain")
    assert "2 members did not send SyncGroup" in found.evidence[0]


STATIC = Member("db-1-a", "db", "10.0.0.5", "db-1")


def stayed_away(*, connected: bool) -> Life:
    """A static member does not rejoin, and keeps its place; later it is removed for not syncing."""
    life = Life().at(0).preparing(WEB_1, "leader rejoined", waiting_for=(WEB_3, STATIC))
    life.at(60_000).joined("rebalance timed out", waiting_for=(WEB_3, STATIC), leader=WEB_1)
    life.at(60_100).stable(WEB_1, "leader rejoined", 0, 60_000, dropped=[WEB_3], waiting_for=(STATIC,))
    life.at(120_000)
    life.add("member_removed", STATIC, trigger="sync timed out", silent_ms=115_000, connected=connected)
    return life.rebalanced(STATIC, "sync timed out")


def test_a_static_member_that_did_not_rejoin_is_not_said_to_have_hung() -> None:
    for connected, diagnoses in ((False, ["crashed", "clean-shutdown"]), (True, ["poll-deadline-missed"])):
        found = why(stayed_away(connected=connected))
        assert [found.diagnosis.value, *(each.diagnosis.value for each in found.alternatives)] == diagnoses
        assert found.certainty.value == "possible"
        assert found.evidence[0] == (
            "it did not rejoin within the rebalance timeout, kept its place as a static member, and did not "
            "come back"
        )


def test_a_static_member_that_was_away_does_not_hide_one_that_hung() -> None:
    life = Life().at(0).preparing(WEB_2, "member joined", waiting_for=(WEB_1, STATIC))
    life.at(60_000).joined("rebalance timed out", waiting_for=(STATIC,), leader=WEB_1)
    hung_leader = copy.deepcopy(life)
    for each in (life.at(60_100).stable(WEB_2, "member joined", 0, 60_000), hung_leader):
        each.at(120_000)
        for who in (STATIC, WEB_1):
            each.add("member_removed", who, trigger="sync timed out", silent_ms=60_000, connected=False)
    found = why(life.rebalanced(STATIC, "sync timed out"))
    assert said(found) == ("sync-timeout", "certain")
    assert found.meaning.startswith("web-1 joined but never sent SyncGroup")
    hung_leader.preparing(STATIC, "sync timed out", from_state="CompletingRebalance")
    assert why(hung_leader).also[0] == "sync timed out (db-1: sync-timeout)"


def test_static_members_that_were_away_are_too_many_to_be_listed() -> None:
    others = [member(f"db-{number}", instance=f"db-{number}") for number in range(2, 5)]
    life = Life().at(0).preparing(WEB_2, "member joined", waiting_for=(STATIC, *others))
    life.at(60_000).joined("rebalance timed out", waiting_for=(STATIC,), leader=WEB_2)
    life.entries[-1].data["cut"] = {"waiting_for": 4}
    life.at(60_100).stable(WEB_2, "member joined", 0, 60_000).at(120_000)
    for each in (STATIC, *others):
        life.add("member_removed", each, trigger="sync timed out", silent_ms=115_000, connected=False)
    assert said(why(life.rebalanced(STATIC, "sync timed out"))) == ("crashed", "possible")


def test_the_phases_tell_which_static_members_keep_their_place() -> None:
    found = explain(stayed_away(connected=False).entries, generation=7)
    assert found is not None
    assert found.phases is not None
    assert (found.phases.dropped, found.phases.kept) == ((WEB_3,), (STATIC,))
    text = " ".join(" ".join(found.lines()).split())
    assert "did not rejoin in time, but are static and keep their place: db-1" in text


@pytest.mark.parametrize("trigger", ["group full", "loaded with more members than allowed"])
def test_a_group_that_is_full(trigger: str) -> None:
    life = Life().at(0).add("member_removed", WEB_3, trigger=trigger, silent_ms=0, connected=True)
    assert said(why(life.rebalanced(WEB_3, trigger))) == ("group-full", "certain")


def test_a_new_member_that_waited_too_long() -> None:
    life = Life().at(0).add("member_removed", WEB_3, trigger="new member expired", silent_ms=300_000)
    assert said(why(life.rebalanced(WEB_3, "new member expired"))) == ("slow-join", "certain")

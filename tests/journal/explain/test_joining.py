"""Why members joined, rejoined, or rejoined with other metadata."""

from __future__ import annotations

import pytest

from muster.coordinator.journal.entries import Member
from muster.coordinator.journal.explain import Explanation, explain
from muster.coordinator.journal.explain.facts import everybody
from tests.journal.explain.consumer import stories
from tests.journal.explain.writing import T0, WEB_1, WEB_2, WEB_3, Life, member


def why(life: Life, generation: int | None = None) -> Explanation:
    found = explain(life.entries, generation=generation)
    assert found is not None
    return found


def said(explanation: Explanation) -> tuple[str, str]:
    return explanation.diagnosis.value, explanation.certainty.value


def others(explanation: Explanation) -> set[str]:
    return {each.diagnosis.value for each in explanation.alternatives}


AGAIN = member("web-2", tail="222222")


# --- joined -------------------------------------------------------------------------------------------------


def test_the_first_member_of_a_group() -> None:
    life = Life(generation=0).at(0).add("group_created", trigger="requested")
    life.add("member_added", WEB_1, trigger="member joined")
    life.preparing(WEB_1, "member joined", from_state="Empty")
    life.at(3_000).joined("initial rebalance delay over").at(3_010).stable(WEB_1, "member joined", 0, 3_000)
    found = why(life)
    assert said(found) == ("new-member", "certain")
    assert found.what.endswith("joined the empty group")
    assert found.phases is not None
    assert (found.phases.join_ms, found.phases.ended_by) == (3_000, "initial rebalance delay over")


def test_a_client_that_is_refused_meanwhile() -> None:
    life = Life().at(0).add("member_added", WEB_2, trigger="member joined").preparing(WEB_2, "member joined")
    life.at(50).add("join_refused", WEB_3, error="INCONSISTENT_GROUP_PROTOCOL", size_max=None)
    life.at(100).joined().at(200).stable(WEB_2, "member joined", 0, 100)
    assert why(life).also == ("refused with INCONSISTENT_GROUP_PROTOCOL (web-3)",)


def test_one_more_member() -> None:
    life = Life().at(0).add("member_added", WEB_2, trigger="member joined")
    assert said(why(life.rebalanced(WEB_2, "member joined"))) == ("new-member", "certain")


def test_who_replaces_a_member_on_another_host_lets_no_group_grow() -> None:
    """A rolling deploy on Kubernetes: each process comes back with another address."""
    one, other, third = (member("app", f"10.0.0.{number}", tail=f"{number}") for number in (1, 2, 3))
    life = Life().at(0).add("member_removed", one, trigger="member left").rebalanced(one, "member left")
    life.at(5_000).add("member_added", other, trigger="member joined").rebalanced(other, "member joined")
    found = why(life)
    assert said(found) == ("new-member", "likely")
    assert found.meaning == (
        "a new process; app/app-1, of the same client id, was gone 5.0 s before: probably its replacement "
        "on another host"
    )
    life.at(9_000).add("member_added", third, trigger="member joined").rebalanced(third, "member joined")
    assert said(why(life)) == ("new-member", "certain"), "it has been replaced already"


def test_a_member_that_was_evicted_and_comes_back_on_its_connection() -> None:
    life = Life().at(0).add("member_removed", WEB_2, trigger="session expired", connected=True)
    life.rebalanced(WEB_2, "session expired")
    life.at(30_000).add("member_id_issued", AGAIN, former_member_id=WEB_2.id)
    life.at(30_005).add("member_added", AGAIN, trigger="member joined", former_member_id=WEB_2.id)
    found = why(life.rebalanced(AGAIN, "member joined"))
    assert said(found) == ("rejoined-after-eviction", "certain")
    assert "this rebalance follows from that one" in found.meaning
    assert not others(found)
    assert said(why(life, generation=7)) == ("stalled", "likely")


def test_a_member_that_an_admin_removed_comes_back() -> None:
    admin = member("admin").to_json()
    life = (
        Life().at(0).add("member_removed", WEB_2, trigger="member left", connected=True, requested_by=admin)
    )
    life.rebalanced(WEB_2, "member left")
    life.at(300).add("member_added", AGAIN, trigger="member joined", former_member_id=WEB_2.id)
    found = why(life.rebalanced(AGAIN, "member joined"))
    assert said(found) == ("rejoined-after-eviction", "certain")
    how = "was removed at the request of another client"
    assert found.meaning.startswith(f"the client that {how} 0.3 s before")

    by_name = Life().at(0).add("member_removed", WEB_2, trigger="member left", requested_by=admin)
    by_name.rebalanced(WEB_2, "member left").at(300).add("member_added", AGAIN, trigger="member joined")
    assert said(why(by_name.rebalanced(AGAIN, "member joined"))) == ("rejoined-after-eviction", "likely")


def test_the_return_of_an_evicted_client_is_told_by_its_name() -> None:
    life = Life().at(0).add("member_removed", WEB_2, trigger="session expired", connected=True)
    life.rebalanced(WEB_2, "session expired")
    life.at(30_000).add("member_added", AGAIN, trigger="member joined")
    found = why(life.rebalanced(AGAIN, "member joined"))
    assert said(found) == ("rejoined-after-eviction", "likely")
    assert others(found) == {"new-member"}


def test_who_leads_no_more_is_not_taken_for_who_leads_now() -> None:
    """A change of leader does not make the former leader a namesake of the new one."""
    life = Life().at(0).add("member_removed", WEB_2, trigger="session expired", connected=True)
    life.rebalanced(WEB_2, "session expired")
    life.at(30_000).add("member_added", AGAIN, trigger="member joined")
    life.preparing(AGAIN, "member joined").at(30_100).joined().at(30_200)
    life.add("assigned", WEB_1, owned={WEB_1.id: 6, AGAIN.id: 6}, partitions=12)
    life.stable(AGAIN, "member joined", 30_000, 30_100)
    assert said(why(life)) == ("rejoined-after-eviction", "likely")
    life.at(60_000).add("member_removed", WEB_1, trigger="member left").preparing(WEB_1, "member left")
    life.at(60_100).add("leader_changed", AGAIN, old_member_id=WEB_1.id).joined()
    assert said(why(life, generation=8)) == ("rejoined-after-eviction", "likely")
    assert everybody(life.entries)[WEB_1.id] == WEB_1


def left_and_came_back(
    reason: str | None = None, *, joined: int = 600_000, from_state: str = "Stable"
) -> Explanation:
    """A client leaves, and comes back on its connection."""
    life = Life().at(-joined).add("member_added", WEB_2, rebalance_timeout_ms=300_000).at(0)
    life.add("member_removed", WEB_2, trigger="member left", reason=reason, silent_ms=900, connected=True)
    life.rebalanced(WEB_2, "member left").at(9_000)
    life.add("member_added", AGAIN, trigger="member joined", former_member_id=WEB_2.id)
    return why(life.preparing(AGAIN, "member joined", from_state=from_state))


def test_a_client_that_missed_its_poll_deadline_comes_back() -> None:
    found = left_and_came_back("consumer poll timeout has expired.")
    assert said(found) == ("rejoined-after-eviction", "certain")
    assert "the client that left 9.0 s before came back" in found.meaning
    assert not others(found)


def test_a_client_that_unsubscribed_and_subscribed_again_was_not_evicted() -> None:
    found = left_and_came_back("the consumer unsubscribed from all topics")
    assert said(found) == ("new-member", "certain")
    assert found.meaning == (
        "the application unsubscribed, and subscribed again 9.0 s later: the group did not grow"
    )
    assert found.evidence == ("it came on the same connection",)
    assert not others(found)
    first = left_and_came_back("the consumer unsubscribed from all topics", from_state="Empty")
    assert first.meaning.endswith("9.0 s later: it is the first member of the group")
    closed = left_and_came_back("the consumer is being closed")
    assert said(closed) == ("new-member", "certain")
    assert closed.meaning.startswith("the consumer was closed, and its process joined again 9.0 s later")


def test_a_client_that_left_without_a_reason_and_comes_back() -> None:
    """It missed its poll deadline or unsubscribed; the latter if the deadline cannot have passed."""
    found = left_and_came_back()
    assert said(found) == ("rejoined-after-eviction", "likely")
    assert [(each.diagnosis.value, each.certainty.value) for each in found.alternatives] == [
        ("new-member", "possible")
    ]
    found = left_and_came_back(joined=20_000)
    assert said(found) == ("new-member", "likely")
    assert [(each.diagnosis.value, each.certainty.value) for each in found.alternatives] == [
        ("rejoined-after-eviction", "possible")
    ]


def test_a_consumer_that_was_closed_and_started_again_is_a_new_member() -> None:
    life = Life().at(0).add("member_removed", WEB_2, trigger="member left", silent_ms=900, connected=True)
    life.rebalanced(WEB_2, "member left").at(250).add("member_disconnected", WEB_2, after_removal_ms=3)
    life.at(9_000).add("member_added", AGAIN, trigger="member joined", former_member_id=None)
    found = why(life.rebalanced(AGAIN, "member joined"))
    assert said(found) == ("new-member", "likely")
    assert "probably a restart" in found.meaning


def crash_and_restart(closed: int = 900) -> Life:
    """A process is killed and started again at once, long before its session expires."""
    life = Life().at(-60_000).add("member_added", WEB_2, trigger="member joined", session_timeout_ms=15_000)
    life.rebalanced(WEB_2, "member joined")
    life.at(-closed).add("member_disconnected", WEB_2, silent_ms=200, after_removal_ms=None)
    return life.at(0).add("member_added", AGAIN, trigger="member joined", former_member_id=None)


def test_a_process_that_crashed_and_was_started_again_before_its_session_expired() -> None:
    life = crash_and_restart().preparing(AGAIN, "member joined", waiting_for=(WEB_1, WEB_2))
    life.at(400).add("member_rejoined", WEB_1, after_ms=400)
    at_once = why(life)
    assert said(at_once) == ("crashed", "likely")
    assert others(at_once) == {"new-member"}

    life.at(13_000).add("member_removed", WEB_2, trigger="session expired", connected=False, silent_ms=15_000)
    life.joined().at(13_100).stable(AGAIN, "member joined", 0, 13_000, joins=[[WEB_1, 400]])
    found = why(life)
    assert said(found) == ("crashed", "likely")
    assert (
        found.meaning == "web-2/111111 crashed or was killed, and was started again: the group did not grow"
    )
    assert found.evidence == (
        "the connection of web-2/111111 closed 0.9 s before, without a LeaveGroup",
        "its session expired 13.0 s later",
    )
    assert found.phases is not None
    assert found.phases.expired == ((WEB_2, 13_000),)
    assert found.also == ("session expired (web-2/111111: crashed)",)
    text = " ".join(" ".join(found.lines()).split())
    assert "waited 13.0 s for web-2/111111, until its session expired" in text


def test_a_closed_connection_is_no_crash_if_its_member_came_back_or_left() -> None:
    long_ago = crash_and_restart(closed=20_000)  # longer than its session: it has another connection
    assert said(why(long_ago.rebalanced(AGAIN, "member joined"))) == ("new-member", "certain")

    alive = crash_and_restart().preparing(AGAIN, "member joined", waiting_for=(WEB_1, WEB_2))
    alive.at(50).add("member_rejoined", WEB_2, after_ms=50)
    assert said(why(alive)) == ("new-member", "certain")

    left = Life().at(-900).add("member_removed", WEB_2, trigger="member left", silent_ms=900, connected=True)
    left.rebalanced(WEB_2, "member left").at(-600).add("member_disconnected", WEB_2, after_removal_ms=300)
    left.at(0).add("member_added", AGAIN, trigger="member joined")
    assert said(why(left.rebalanced(AGAIN, "member joined"))) == ("new-member", "likely")

    other = Life().at(-900).add("member_disconnected", WEB_3, silent_ms=200, after_removal_ms=None)
    other.at(0).add("member_added", WEB_2, trigger="member joined")
    assert said(why(other.rebalanced(WEB_2, "member joined"))) == ("new-member", "certain")


def test_a_namesake_that_gets_partitions_in_the_same_rebalance_did_not_crash() -> None:
    """In a large group, its rejoin over another connection is not recorded."""
    life = crash_and_restart().preparing(AGAIN, "member joined").at(900).joined().at(1_000)
    owned = {WEB_2.id: 6, AGAIN.id: 6}
    life.add("assigned", WEB_1, partitions=12, owned=owned).stable(AGAIN, "member joined", 0, 900)
    assert said(why(life)) == ("new-member", "certain")


def broker_was_away(away: int) -> Life:
    life = Life().at(-90_000).add("member_added", WEB_2, trigger="member joined", session_timeout_ms=6_000)
    life.rebalanced(WEB_2, "member joined")
    life.at(-300 - away).shard_event("shard_unloaded", epoch=1, why="handed over, or the broker was stopped")
    life.at(-300).shard_event("shard_loaded", epoch=2, took_ms=94, from_broker=1)
    return life.at(0).add("member_added", AGAIN, trigger="member joined", former_member_id=None)


def test_clients_whose_sessions_ended_while_there_was_no_coordinator_join_anew() -> None:
    found = why(broker_was_away(9_000).rebalanced(AGAIN, "member joined"))
    assert said(found) == ("coordinator-moved", "likely")
    assert found.meaning.startswith("the group had no coordinator for 9.0 s, and its clients gave up")
    assert found.evidence == (
        "broker 1 loaded the group 0.3 s before and has not heard from web-2/111111 since",
    )
    assert others(found) == {"new-member"}
    stood_still = broker_was_away(500)
    stood_still.entries[-3].data["why"] = (
        "its lease was not renewed in time: the broker or its store stood still"  # type: ignore[index]
    )
    found = why(stood_still.rebalanced(AGAIN, "member joined"))
    assert said(found) == ("coordinator-moved", "likely")
    assert found.meaning.startswith("the group had no coordinator, and its clients gave up")
    # A short absence ends no session.
    assert said(why(broker_was_away(500).rebalanced(AGAIN, "member joined"))) == ("new-member", "certain")


# --- other metadata -----------------------------------------------------------------------------------------


def changed(reason: str | None = None, **facts: object) -> Explanation:
    given = {
        "topics_added": [],
        "topics_removed": [],
        "protocols_before": ["range"],
        "protocols_after": ["range"],
        "user_data_changed": False,
        "owned_changed": False,
    } | facts
    trigger = "subscription or protocols changed"
    life = Life().at(0).add("metadata_changed", WEB_2, trigger=trigger, **given)
    return why(life.rebalanced(WEB_2, trigger, reason=reason))


def test_topics_that_came_and_went() -> None:
    found = changed(topics_added=["payments", "refunds"], topics_removed=["orders"])
    assert said(found) == ("subscription-changed", "certain")
    assert found.meaning == "its subscription changed: now with payments, refunds, without orders"


def test_other_assignors() -> None:
    found = changed(protocols_before=["range"], protocols_after=["cooperative-sticky", "range"])
    assert said(found) == ("assignor-changed", "certain")
    assert found.meaning == "its assignors changed from range to cooperative-sticky, range"


def test_both_at_once_are_both_said() -> None:
    found = changed(topics_added=["payments"], protocols_after=["sticky"])
    assert said(found) == ("subscription-changed", "certain")
    assert others(found) == {"assignor-changed"}


def test_assignors_that_were_not_known_before_have_not_changed() -> None:
    assert changed(protocols_before=[], user_data_changed=True).diagnosis.value == "unknown"
    (evidence,) = changed(protocols_before=[]).evidence
    assert evidence == "its metadata is not known from before the coordinator loaded the group"


def test_partitions_given_up_are_the_second_half_of_a_cooperative_rebalance() -> None:
    assert said(changed(owned_changed=True)) == ("cooperative-follow-up", "likely")
    assert said(changed("need to revoke partitions and re-join")) == ("cooperative-follow-up", "likely")


def test_an_eager_assignor_has_no_second_half() -> None:
    trigger = "subscription or protocols changed"

    def rejoined(who: Member, protocol: str) -> Explanation:
        life = (
            Life().at(-9_000).add("protocol_chosen", protocol=protocol).add("assigned", WEB_1, partitions=4)
        )
        life.at(0).add("metadata_changed", who, trigger=trigger, owned_changed=True)
        return why(life.rebalanced(who, trigger))

    assert said(rejoined(WEB_1, "cooperative-sticky")) == ("cooperative-follow-up", "likely")
    assert said(rejoined(WEB_1, "range")) == ("leader-rejoined", "likely")
    assert said(rejoined(WEB_2, "range")) == ("unknown", "possible")
    assert "only the partitions it owns changed" in rejoined(WEB_2, "range").evidence[0]


def test_any_assignor_may_be_cooperative_if_the_client_says_so() -> None:
    trigger, reason = "subscription or protocols changed", "need to revoke partitions and re-join"
    life = Life().at(-9_000).add("protocol_chosen", protocol="stream")
    life.at(0).add("metadata_changed", WEB_2, trigger=trigger, user_data_changed=True)
    assert said(why(life.rebalanced(WEB_2, trigger, reason=reason))) == ("cooperative-follow-up", "likely")


def test_where_nothing_was_withheld_there_is_no_second_half() -> None:
    """A member also owns other partitions than before because it got some."""
    trigger = "subscription or protocols changed"
    life = Life().at(-9_000).add("protocol_chosen", protocol="cooperative-sticky")
    life.add("assigned", WEB_1, partitions=4, lost=0)
    life.at(0).add("metadata_changed", WEB_2, trigger=trigger, owned_changed=True)
    assert said(why(life.rebalanced(WEB_2, trigger))) == ("unknown", "possible")


def test_withheld_partitions_make_that_certain() -> None:
    trigger = "subscription or protocols changed"
    moves = [["orders", 3, WEB_1.id, None]]
    life = Life().at(0).add("member_added", WEB_2, trigger="member joined").preparing(WEB_2, "member joined")
    life.at(100).joined().at(200).add("assigned", WEB_1, partitions=5, kept=5, moved=0, lost=1, moves=moves)
    life.stable(WEB_2, "member joined", 0, 100)
    life.at(300).add("metadata_changed", WEB_1, trigger=trigger, owned_changed=True)
    life.preparing(WEB_1, trigger).at(400).joined()
    life.at(500).add("assigned", WEB_1, partitions=6, kept=5, moved=0, moves=[["orders", 3, None, WEB_2.id]])
    found = why(life.stable(WEB_1, trigger, 300, 400))
    assert said(found) == ("cooperative-follow-up", "certain")
    assert found.cost is not None
    assert [(each.partitions, each.ms) for each in found.cost.unowned] == [((("orders", 3),), 300)]


@pytest.mark.parametrize("story", ["late", "new topic", "subscribed", "emptied", "deleted"])
def test_what_nobody_had_for_other_reasons_is_no_cost_of_the_next_rebalance(story: str) -> None:
    life = Life().at(0).add("heartbeat_late", WEB_1, late_ms=5_000).preparing(WEB_1, "leader rejoined")
    moves = [["orders", 3, WEB_1.id, None]]
    life.joined().at(200).add("assigned", WEB_1, partitions=5, kept=5, moved=0, lost=1, moves=moves)
    life.stable(WEB_1, "leader rejoined", 0, 100)
    if story == "emptied":
        life.at(300).add("member_removed", WEB_1, trigger="member left").preparing(WEB_1, "member left")
        life.add("state_changed", from_state="PreparingRebalance", to_state="Empty")
        life.completed(WEB_1, "member left", 300, 300, members=0)
    elif story == "deleted":
        life.at(300).add("group_removed", trigger="requested")
    now = 70_000 if story == "late" else 5_000
    life.at(now)
    if story == "new topic":
        life.add("topics_grown", WEB_1, trigger="leader rejoined", topics=[["orders", 0, 4]])
    elif story == "subscribed":
        life.add("metadata_changed", WEB_1, trigger="leader rejoined", topics_added=["orders"])
    life.preparing(WEB_1, "leader rejoined").at(now + 100).joined().at(now + 200)
    life.add("assigned", WEB_1, partitions=6, kept=5, moved=0, moves=[["orders", 3, None, WEB_1.id]])
    found = why(life.stable(WEB_1, "leader rejoined", now, now + 100))
    assert (found.started_ms, found.cost) == (T0 + now, None)


def test_what_a_rebalance_withholds_itself_is_not_from_the_one_before() -> None:
    """The journal begins in the middle of the rebalance."""
    trigger = "subscription or protocols changed"
    life = Life().at(100).joined().at(200).add("assigned", WEB_1, partitions=5, kept=5, moved=0, lost=1)
    found = why(life.stable(WEB_1, trigger, 0, 100))
    assert said(found) == ("subscription-changed", "possible")


def test_without_the_difference_either_may_have_changed() -> None:
    found = why(Life().rebalanced(WEB_2, "subscription or protocols changed"))
    assert said(found) == ("subscription-changed", "possible")
    assert others(found) == {"assignor-changed"}


def test_members_other_than_consumers_have_reasons_that_cannot_be_read() -> None:
    """Kafka Connect workers, leader or not, when tasks have changed; so far as the journal shows."""

    def rejoined(who: Member, trigger: str, topics: list[str] | None = None) -> Explanation:
        life = Life().at(-9_000).add("member_added", WEB_1, trigger="member joined", topics=topics)
        life.add("assigned", WEB_1, partitions=None).at(0)
        if trigger != "leader rejoined":
            life.add("metadata_changed", who, trigger=trigger, user_data_changed=True)
        return why(life.rebalanced(who, trigger))

    for who in (WEB_1, WEB_2):
        found = rejoined(who, "subscription or protocols changed")
        assert said(found) == ("unknown", "possible")
        assert "does not look like a consumer group" in found.meaning
        assert found.evidence == ("its metadata changed, which is not in the consumer protocol's format",)
    found = rejoined(WEB_1, "leader rejoined")
    assert said(found) == ("leader-rejoined", "likely")
    assert "does not look like a consumer group" in found.meaning
    consumers = rejoined(WEB_1, "subscription or protocols changed", ["orders"])
    assert said(consumers) == ("leader-rejoined", "likely")
    assert "new topics or partitions" in consumers.meaning


# --- the leader ---------------------------------------------------------------------------------------------


def test_a_topic_that_grew() -> None:
    life = Life().at(0).add("topics_grown", WEB_1, trigger="leader rejoined", topics=[["orders", 6, 12]])
    found = why(life.rebalanced(WEB_1, "leader rejoined"))
    assert said(found) == ("topics-grown", "certain")
    assert found.meaning == "the number of partitions changed: orders 6 → 12"


def test_a_topic_that_was_deleted_is_no_change_of_the_application() -> None:
    life = Life().at(0).add("metadata_changed", WEB_1, topics_added=[], topics_removed=["old"])
    life.add("topics_grown", WEB_1, topics=[["old", 4, 0]])
    found = why(life.rebalanced(WEB_1, "subscription or protocols changed"))
    assert said(found) == ("topics-grown", "certain")
    assert found.meaning == "topic old was deleted"
    assert not others(found)

    life = Life().at(0).add("metadata_changed", WEB_1, topics_added=["new"], topics_removed=["old"])
    life.add("topics_grown", WEB_1, topics=[["old", 4, 0]])
    found = why(life.rebalanced(WEB_1, "subscription or protocols changed"))
    assert said(found) == ("subscription-changed", "certain")


def test_growth_that_is_found_with_the_assignment() -> None:
    life = Life().at(0).preparing(WEB_1, "leader rejoined").at(100).joined()
    life.at(200).add("topics_grown", WEB_1, trigger="leader sent the assignment", topics=[["orders", 6, 12]])
    assert said(why(life.stable(WEB_1, "leader rejoined", 0, 100))) == ("topics-grown", "certain")


def grown_later(who: Member, lost: int, moves: list[object], now: int = 12, **facts: object) -> Explanation:
    """A rejoin with other metadata; topics are found to have grown when the leader, WEB_1, assigns them."""
    trigger = "subscription or protocols changed"
    life = Life().at(-300).add("protocol_chosen", protocol="cooperative-sticky")
    life.add("assigned", WEB_1, partitions=6, kept=6, moved=0, lost=lost, moves=moves)
    life.at(0).add("metadata_changed", who, trigger=trigger, **facts).preparing(who, trigger)
    life.at(100).joined().at(2_000).add("topics_grown", WEB_1, topics=[["orders", 6, now]])
    return why(life.stable(who, trigger, 0, 100))


def test_growth_that_is_found_later_is_not_why_others_than_the_leader_rejoined() -> None:
    assert said(grown_later(WEB_1, 0, [], user_data_changed=True)) == ("topics-grown", "certain")
    assert said(grown_later(WEB_2, 0, [], user_data_changed=True)) == ("unknown", "possible")
    assert said(grown_later(WEB_2, 0, [], now=0, topics_removed=["orders"])) == ("topics-grown", "certain")


def test_growth_that_is_found_later_is_not_why_partitions_given_up_are_handed_out() -> None:
    for who in (WEB_1, WEB_2):
        found = grown_later(who, 1, [["orders", 3, who.id, None]], owned_changed=True)
        assert said(found) == ("cooperative-follow-up", "certain")
        assert not others(found)


def test_growth_that_the_leader_sees_a_rebalance_later() -> None:
    """A deploy after partitions were added: whoever leads assigns by older metadata, refreshed at times."""
    entries = stories.told("""
        topic orders 2

        alice join v3 topics=orders
        alice sync v2 $alice=orders-0,orders-1
        grow-topic orders 3
        bob join v3 topics=orders
        advance 1s
        alice join v3 topics=orders
        alice sync v2 $alice=orders-0 $bob=orders-1
        bob sync v2
        advance 30s
        alice heartbeat
        bob heartbeat
        alice join v3 topics=orders
        bob join v3 topics=orders
        alice sync v2 $alice=orders-0,orders-2 $bob=orders-1
        bob sync v2
    """)
    deploy, growth = (explain(entries, generation=each) for each in (2, 3))
    assert deploy is not None
    assert growth is not None
    assert said(deploy) == ("new-member", "certain")
    assert [each.trigger for each in entries if each.type == "topics_grown"] == ["leader rejoined"]
    assert (said(growth), growth.meaning) == (
        ("topics-grown", "certain"),
        "the number of partitions changed: orders 2 → 3",
    )


def test_a_leader_that_says_that_topics_changed() -> None:
    found = why(Life().rebalanced(WEB_1, "leader rejoined", reason="cached metadata has changed from a to b"))
    assert said(found) == ("topics-grown", "likely")


def test_a_leader_that_just_rejoins() -> None:
    assert said(why(Life().rebalanced(WEB_1, "leader rejoined"))) == ("leader-rejoined", "likely")


# --- static members -----------------------------------------------------------------------------------------


def instance(name: str, host: str, tail: str) -> Member:
    return member(name, host, instance=name, tail=tail)


def replaced(life: Life, who: Member, old: str, old_host: str, **facts: object) -> Life:
    given = {"old_silent_ms": 2_000, "old_connected": False} | facts
    return life.add(
        "member_replaced",
        who,
        trigger="static member returned",
        old_member_id=old,
        old_client_host=old_host,
        **given,
    )


def test_a_static_member_that_was_started_anew() -> None:
    who = instance("web-2", "10.0.0.9", "b")
    found = why(replaced(Life(), who, "web-2-a", "10.0.0.7"))
    assert said(found) == ("static-member-replaced", "likely")
    assert not found.rebalanced
    assert found.meaning == "its process was restarted on another host, 10.0.0.9 instead of 10.0.0.7"


def test_it_rebalances_when_the_assignor_changed_with_it() -> None:
    who = instance("web-2", "10.0.0.7", "b")
    life = replaced(Life(), who, "web-2-a", "10.0.0.7")
    found = why(life.rebalanced(who, "static member returned"))
    assert said(found) == ("static-member-replaced", "likely")
    assert found.rebalanced


def test_two_live_processes_of_one_instance() -> None:
    who = instance("web-2", "10.0.0.9", "b")
    found = why(replaced(Life(), who, "web-2-a", "10.0.0.7", old_connected=True))
    assert said(found) == ("duplicate-instance-id", "likely")
    assert others(found) == {"static-member-replaced"}
    assert "(hosts 10.0.0.7, 10.0.0.9)" in found.meaning


def test_replacing_a_live_one_twice_is_certain_even_on_one_host() -> None:
    life = Life()
    for turn in range(2):
        who = instance("web-2", "10.0.0.7", f"{turn + 1}")
        replaced(life.at(turn * 5_000), who, f"web-2-{turn}", "10.0.0.7", old_connected=True)
    assert said(why(life)) == ("duplicate-instance-id", "certain")


def test_the_fenced_one_makes_it_certain() -> None:
    who = instance("web-2", "10.0.0.9", "b")
    life = replaced(Life(), who, "web-2-a", "10.0.0.7", old_connected=True)
    found = why(life.at(900).add("member_fenced", who, api="Heartbeat", old_member_id="web-2-a"))
    assert said(found) == ("duplicate-instance-id", "certain")


def test_a_fenced_request_is_what_happened_last() -> None:
    who = instance("web-2", "10.0.0.9", "b")
    life = replaced(Life(), who, "web-2-a", "10.0.0.7", old_connected=True)
    life.at(500).rebalanced(who, "leader rejoined").at(3_000)
    life.add("member_fenced", who, trigger="requested", api="Heartbeat", old_client_host="10.0.0.7")
    found = why(life)
    assert said(found) == ("duplicate-instance-id", "certain")
    assert (found.cause, found.rebalanced) == ("static member returned", False)
    assert found.what.startswith("a Heartbeat of another process, at 10.0.0.7, was fenced")
    life.add("member_fenced", who, api="OffsetCommit", old_client_host="10.0.0.7")
    assert why(life).what.startswith("an OffsetCommit of another process")
    assert found.before is not None
    assert "leader-rejoined" in found.before
    alone = Life().add("member_fenced", who, api="Heartbeat", old_client_host="10.0.0.7")
    assert said(why(alone)) == ("duplicate-instance-id", "certain")
    assert "(hosts 10.0.0.7, 10.0.0.9)" in why(alone).meaning


def test_replacements_in_turns_are_certain() -> None:
    life, hosts = Life(), ["10.0.0.7", "10.0.0.9"]
    for turn in range(4):
        who = instance("web-2", hosts[(turn + 1) % 2], f"{turn + 1}")
        replaced(life.at(turn * 5_000), who, f"web-2-{turn}", hosts[turn % 2])
    found = why(life)
    assert said(found) == ("duplicate-instance-id", "certain")
    assert "web-2 moved from 10.0.0.7 to 10.0.0.9 and back" in found.evidence


def there_and_back(*names: str, **facts: object) -> Explanation:
    """A deploy to other hosts that is rolled back seven minutes later."""
    life = Life()
    for turn, (old, new) in enumerate((("10.0.0", "10.0.1"), ("10.0.1", "10.0.0"))):
        for number, name in enumerate(names):
            who = instance(name, f"{new}.{number}", f"{turn + 1}")
            at = turn * 420_000 + number * 30_000
            replaced(life.at(at), who, f"{name}-{turn}", f"{old}.{number}", **facts)
    return why(life)


def test_a_deploy_to_other_hosts_that_is_rolled_back_is_possibly_two_processes() -> None:
    found = there_and_back("web-1", "web-2")
    assert (said(found), others(found)) == (("rolling-restart", "likely"), {"duplicate-instance-id"})
    assert found.alternatives[0].certainty == "possible"
    found = there_and_back("web-1")
    assert (said(found), others(found)) == (("static-member-replaced", "likely"), {"duplicate-instance-id"})
    found = there_and_back("web-1", old_connected=True)
    assert said(found) == ("duplicate-instance-id", "certain")


def test_a_rolling_restart_of_static_members() -> None:
    life = Life()
    for number in range(3):
        name, host = f"web-{number}", f"10.0.0.{number}"
        replaced(life.at(number * 20_000), instance(name, host, "b"), f"{name}-a", host)
    found = why(life)
    assert said(found) == ("rolling-restart", "likely")
    assert found.evidence == ("restarted: web-0, web-1, web-2",)
    assert not others(found)


def test_a_static_member_that_took_too_long_to_restart_is_part_of_it() -> None:
    life = replaced(Life(), instance("web-0", "10.0.0.6", "b"), "web-0-a", "10.0.0.6")
    slow, back = instance("web-1", "10.0.0.7", "a"), instance("web-1", "10.0.0.7", "b")
    life.at(60_000).add("member_removed", slow, trigger="session expired", connected=False)
    life.rebalanced(slow, "session expired")
    life.at(90_000).add("member_added", back, trigger="member joined")
    life.rebalanced(back, "member joined")
    assert said(why(life)) == ("rolling-restart", "likely")
    assert said(why(life, generation=7)) == ("rolling-restart", "likely")


def test_another_member_is_no_restart() -> None:
    life = Life().at(0).add("member_removed", WEB_3, trigger="session expired", connected=True)
    life.rebalanced(WEB_3, "session expired").at(9_000).add("member_added", WEB_2, trigger="member joined")
    assert said(why(life.rebalanced(WEB_2, "member joined"))) == ("new-member", "certain")

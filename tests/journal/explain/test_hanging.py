"""Unfinished rebalances: who is waited for, since when, and until when."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC

import pytest

from muster.coordinator.journal.entries import Member
from muster.coordinator.journal.explain import Explanation, explain
from muster.coordinator.journal.explain.timing import Led
from tests.journal.explain.consumer.stories import told
from tests.journal.explain.writing import T0, WEB_1, WEB_2, WEB_3, Life, member

GHOST = Member("rdkafka-3f9a1c", "rdkafka", "10.0.0.9")


def why(life: Life, now: int) -> Explanation:
    found = explain(life.entries, now_ms=T0 + now)
    assert found is not None
    return found


def hanging() -> Life:
    """A client takes a member id and does not come back; another one joins, and everybody waits."""
    life = (
        Life().at(-2_000).add("member_id_issued", GHOST, trigger="member id issued", expires_ms=T0 + 43_000)
    )
    life.at(0).add("member_added", WEB_2, trigger="member joined")
    life.preparing(WEB_2, "member joined", waiting_for=(WEB_1,), pending=(GHOST.id,), until_ms=T0 + 300_000)
    return life.at(100).add("member_rejoined", WEB_1, after_ms=100)


def test_a_pending_member_that_everybody_waits_for() -> None:
    found = why(hanging(), 10_000)
    assert (found.diagnosis.value, found.certainty.value) == ("pending-member", "certain")
    assert (found.cause, found.member) == ("member joined", GHOST)
    assert (found.ended_ms, found.generation, found.state) == (None, 7, "PreparingRebalance")
    assert not found.alternatives
    assert found.evidence[-1].startswith("it began with: ")
    assert found.evidence[-1].endswith("(new-member)")
    (waiting,) = found.waiting
    assert (waiting.member, waiting.pending) == (GHOST, True)
    assert (waiting.since_ms, waiting.until_ms) == (T0 - 2_000, T0 + 43_000)
    lines = found.lines(UTC)
    assert (
        lines[0] == "billing · generation 7 · since 14:03:12.412 (10.0 s) · in progress: PreparingRebalance"
    )
    text = " ".join(" ".join(lines).split())
    assert (
        "waiting for rdkafka (host 10.0.0.9): got a member id 12.0 s ago and has not joined "
        "with it; the group waits until 14:03:55 (in 33.0 s)"
    ) in text


def test_a_join_that_has_just_begun_does_not_hang() -> None:
    found = why(hanging(), 500)
    assert found.diagnosis.value == "new-member"
    assert [each.member for each in found.waiting] == [GHOST]


def test_once_the_id_has_expired_the_phases_tell_of_it() -> None:
    life = hanging().at(43_000)
    life.add("pending_member_removed", GHOST, trigger="pending member expired", waited_ms=45_000)
    life.joined().at(43_100).stable(WEB_2, "member joined", 0, 43_000, joins=[[WEB_1, 100]])
    found = why(life, 60_000)
    assert (found.diagnosis.value, found.waiting) == ("new-member", ())
    text = " ".join(" ".join(found.lines(UTC)).split())
    assert "waiting for joins 43.0 s (slowest: web-1, 0.1 s; rdkafka got a member id and did not" in text
    assert "join with it for 45.0 s)" in text


def test_who_came_back_with_its_id_is_not_waited_for() -> None:
    life = hanging().at(300).add("member_added", GHOST, trigger="member joined")
    assert why(life, 10_000).waiting == ()


def test_an_id_that_is_known_by_its_number_alone() -> None:
    life = Life().at(0).preparing(WEB_2, "member joined", pending=("rdkafka-3f9a1c",))
    found = why(life, 10_000)
    assert found.diagnosis.value == "pending-member"
    assert found.waiting[0].member.id == "rdkafka-3f9a1c"


@pytest.mark.parametrize("kind", ["shard_loaded", "shard_unloaded"])
def test_an_id_from_before_the_coordinator_moved_is_not_waited_for(kind: str) -> None:
    life = Life().at(-30_000).add("member_id_issued", GHOST, expires_ms=T0 + 15_000)
    life.broker = 2
    life.at(-20_000).shard_event(kind)
    life.at(0).preparing(WEB_2, "member joined", waiting_for=(WEB_1,))
    found = why(life, 10_000)
    assert found.diagnosis.value == "slow-join"
    assert [each.member for each in found.waiting] == [WEB_1]


def test_an_id_that_a_deleted_group_gave_is_not_waited_for() -> None:
    life = Life().at(-3_600_000).add("member_id_issued", GHOST, expires_ms=T0 - 1_800_000)
    life.at(-3_500_000).add("group_removed", trigger="requested")
    life.at(-10_000).rebalanced(WEB_1, "member joined")
    life.at(0).preparing(WEB_2, "member joined", waiting_for=(WEB_1,))
    found = why(life, 10_000)
    assert found.diagnosis.value == "slow-join"
    assert [each.member for each in found.waiting] == [WEB_1]


def test_an_id_from_before_it_moved_does_not_hide_one_from_after_it() -> None:
    life = Life().at(-30_000).add("member_id_issued", GHOST, expires_ms=T0 + 15_000)
    life.at(-20_000).shard_event("shard_loaded")
    life.at(0).preparing(WEB_2, "member joined", pending=("rdkafka-77",))
    assert [each.member.id for each in why(life, 10_000).waiting] == ["rdkafka-77"]


def test_members_that_have_not_rejoined() -> None:
    life = Life().at(0).add("member_removed", WEB_3, trigger="member left", connected=True)
    life.preparing(WEB_3, "member left", waiting_for=(WEB_1, WEB_2), until_ms=T0 + 300_000)
    life.at(200).add("member_rejoined", WEB_1, after_ms=200)
    found = why(life, 12_000)
    assert (found.diagnosis.value, found.certainty.value) == ("slow-join", "certain")
    assert found.cause == "member left"
    assert [(each.member, each.until_ms) for each in found.waiting] == [(WEB_2, T0 + 300_000)]
    text = " ".join(" ".join(found.lines(UTC)).split())
    assert "web-2 (host 10.0.0.7) to rejoin, 12.0 s so far; the group waits until 14:08:12" in text


@pytest.mark.parametrize("age_ms", [1_000, 4_000])
def test_a_client_that_has_just_got_an_id_does_not_hide_who_was_waited_for_before(age_ms: int) -> None:
    life = Life().at(0).preparing(WEB_3, "member joined", waiting_for=(WEB_2,), until_ms=T0 + 300_000)
    life.at(120_000).add("member_id_issued", GHOST, expires_ms=T0 + 165_000)
    found = why(life, 120_000 + age_ms)
    assert (found.diagnosis.value, found.certainty.value, found.member) == ("slow-join", "certain", WEB_2)
    assert [each.member for each in found.waiting] == [GHOST, WEB_2]


def test_a_member_whose_connection_closed_is_waited_for_until_its_session_expires() -> None:
    life = Life().at(-60_000).add("member_added", WEB_2, trigger="member joined", session_timeout_ms=15_000)
    life.rebalanced(WEB_2, "member joined")
    life.at(-900).add("member_disconnected", WEB_2, silent_ms=100, after_removal_ms=None)
    life.at(0).add("member_added", WEB_3, trigger="member joined")
    life.preparing(WEB_3, "member joined", waiting_for=(WEB_1, WEB_2), until_ms=T0 + 300_000)
    life.at(200).add("member_rejoined", WEB_1, after_ms=200)
    found = why(life, 5_000)
    assert (found.diagnosis.value, found.certainty.value) == ("crashed", "likely")
    (waiting,) = found.waiting
    assert (waiting.member, waiting.until_ms) == (WEB_2, T0 - 1_000 + 15_000)
    assert waiting.to_json()["disconnected_ms"] == T0 - 900
    text = " ".join(" ".join(found.lines(UTC)).split())
    assert "web-2 has not rejoined, and its connection closed 5.9 s ago: the process is probably gone" in text
    assert "its connection closed 5.9 s ago; the group waits until 14:03:26 (in 9.0 s)" in text

    life.at(5_500).add("member_rejoined", WEB_2, after_ms=5_500)  # over another connection
    assert not why(life, 6_000).waiting


_TWO = """
topic orders 3

bob join v3 topics=orders session=60s
alice join v3 topics=orders session=10s
bob join topics=orders session=60s
"""
_SYNCGROUP_ANSWERED = f"""{_TWO}
alice sync
advance 30s
bob sync $alice=orders-0 $bob=orders-1
advance 1s
disconnect alice
carol join v3 topics=orders session=60s
bob join topics=orders session=60s
"""
_SYNCGROUP_REFUSED = f"""{_TWO}
advance 1s
alice sync
advance 1s
disconnect alice
advance 28s
carol join v3 topics=orders session=60s
bob join topics=orders session=60s
"""
_ASSIGNMENT_NOT_FETCHED = f"""{_TWO}
alice sync
bob sync $alice=orders-0 $bob=orders-1
advance 1s
carol join v3 topics=orders session=60s
alice join topics=orders session=10s
advance 1s
disconnect alice
advance 28s
bob join topics=orders session=60s
advance 4s
bob sync $bob=orders-1
dave join v3 topics=orders session=60s
bob join topics=orders session=60s
carol join topics=orders session=60s
"""
_JOINGROUP_ANSWERED = """
topic orders 3

alice join v3 topics=orders session=10s
bob join v3 topics=orders session=60s
alice join topics=orders session=10s
alice sync $alice=orders-0 $bob=orders-1
bob sync
advance 1s
alice join topics=orders session=10s
advance 1s
disconnect alice
advance 28s
bob join topics=orders session=60s
"""
_STATIC_AND_KEPT = """
topic orders 3

bob join v5 topics=orders session=60s rebalance=20s
alice join v5 topics=orders instance=i1 session=30s rebalance=20s
bob join topics=orders session=60s rebalance=20s
alice sync
bob sync $alice=orders-0 $bob=orders-1
disconnect alice
bob join topics=orders session=60s rebalance=20s
advance 20s
bob sync $alice=orders-0 $bob=orders-1
advance 12s
carol join v3 topics=orders session=60s rebalance=60s
bob join topics=orders session=60s rebalance=20s
"""


@pytest.mark.parametrize(
    "story",
    [
        _SYNCGROUP_ANSWERED,
        _SYNCGROUP_REFUSED,
        _JOINGROUP_ANSWERED,
        _ASSIGNMENT_NOT_FETCHED,
        _STATIC_AND_KEPT,
    ],
    ids=["SyncGroup answered", "SyncGroup refused", "JoinGroup answered", "not fetched", "static and kept"],
)
def test_a_session_that_began_when_a_request_was_answered(story: str) -> None:
    """The member is killed, and was last heard from longer ago than its session lasts."""
    entries = told(story)
    found = explain(entries, now_ms=entries[-1].at_ms + 4_000)
    assert found is not None
    (waiting,) = found.waiting
    (removed, *_) = (each for each in told(f"{story}\nadvance 60s\n") if each.type == "member_removed")
    assert removed.member is not None
    assert (removed.member.client_id, removed.trigger) == ("alice", "session expired")
    assert waiting.member.client_id == "alice"
    assert waiting.until_ms == removed.at_ms
    assert waiting.disconnected_ms is not None


class _Listed(list[object]):
    """Members in an entry; counts how often such lists are read."""

    read = 0

    def __iter__(self) -> Iterator[object]:
        _Listed.read += 1
        return super().__iter__()


def test_the_work_for_rebalances_since_members_went_does_not_grow_with_their_number() -> None:
    def read(size: int) -> int:
        gone = tuple(member(f"gone-{number:02}", instance=f"i{number}") for number in range(size))
        life = Life().at(-90_000)
        for each in gone:
            life.add("member_disconnected", each, silent_ms=100, session_timeout_ms=1_800_000)
        for number in range(5):
            began = -80_000 + 10_000 * number
            life.at(began).preparing(WEB_1, "leader rejoined", waiting_for=gone)
            life.at(began + 5_000).joined("rebalance timed out", waiting_for=gone)
            life.at(began + 5_100).stable(WEB_1, "leader rejoined", began, began + 5_000, waiting_for=gone)
        life.at(0).preparing(WEB_1, "leader rejoined", waiting_for=gone)
        for index, entry in enumerate(life.entries):
            if listed := entry.data.get("waiting_for"):
                life.entries[index] = entry._replace(data={**entry.data, "waiting_for": _Listed(listed)})
        _Listed.read = 0
        assert {each.member for each in why(life, 20_000).waiting} == set(gone)
        return _Listed.read

    assert 0 < read(50) == read(5)


def large_group(began: int = 0) -> tuple[Life, list[Member]]:
    """A rebalance in a group in which rejoins are not recorded."""
    many = [member(f"old-{number:03}") for number in range(100)]  # the list in the journal is cut here
    life = Life().at(began - 900).add("member_disconnected", many[7], silent_ms=100, after_removal_ms=None)
    life.at(began).add("member_added", WEB_3, trigger="member joined")
    life.preparing(WEB_3, "member joined", waiting_for=tuple(many), until_ms=T0 + 300_000)
    return life, many


def test_in_a_large_group_nobody_is_said_not_to_have_rejoined() -> None:
    life, _ = large_group()
    del life.entries[0]
    assert why(life, 500).diagnosis.value == "new-member"
    found = why(life, 10_000)
    assert (found.diagnosis.value, found.certainty.value) == ("slow-join", "certain")
    assert (found.member, found.waiting) == (None, ())
    assert found.meaning.startswith("some members have not rejoined")
    assert found.evidence[:2] == (
        "the group has waited for them for 10.0 s",
        "in a group of more than 100 members, the journal does not tell who has rejoined",
    )


def test_a_large_group_that_is_starting_up_waits_for_nobody_to_rejoin() -> None:
    first, *others = [member(f"new-{number:03}") for number in range(121)]
    life = Life(generation=0).at(0).add("member_added", first, trigger="member joined")
    life.preparing(first, "member joined", from_state="Empty", until_ms=T0 + 3_000)  # it is prolonged
    for each in others:
        life.at(2_000).add("member_added", each, trigger="member joined")
    assert why(life, 10_000).diagnosis.value == "new-member"


def test_in_a_large_group_those_whose_connections_had_closed_before_are_named() -> None:
    life, many = large_group()
    life.at(1_000).add("member_disconnected", many[8], silent_ms=100, after_removal_ms=None)
    found = why(life, 10_000)
    assert (found.diagnosis.value, found.certainty.value) == ("crashed", "likely")
    assert [each.member for each in found.waiting] == [many[7]]


def test_in_a_large_group_those_that_came_back_before_an_earlier_generation_are_not_named() -> None:
    life, many = large_group()
    start = life.entries[1:]
    del life.entries[:]
    life.at(-60_000).add("member_added", many[7], trigger="member joined", session_timeout_ms=15_000)
    life.at(-20_000).add("member_disconnected", many[7], silent_ms=100, after_removal_ms=None)
    life.at(-10_000).rebalanced(WEB_2, "member joined", took=2_000)
    life.entries += start
    assert why(life, 2_000).diagnosis.value == "new-member"
    found = why(life, 4_000)
    assert (found.diagnosis.value, found.member) == ("slow-join", None)


def test_members_that_are_out_are_not_waited_for() -> None:
    life = Life().at(0).preparing(WEB_1, "leader rejoined", waiting_for=(WEB_2, WEB_3))
    life.at(9_000).add("member_removed", WEB_2, trigger="session expired")
    assert [each.member for each in why(life, 12_000).waiting] == [WEB_3]


def test_the_initial_delay_is_no_hanging() -> None:
    life = Life(generation=0).at(0).add("member_id_issued", GHOST, expires_ms=T0 + 45_000)
    life.add("member_added", WEB_1, trigger="member joined")
    life.preparing(WEB_1, "member joined", from_state="Empty", pending=(GHOST.id,), until_ms=T0 + 10_000)
    assert why(life, 5_000).diagnosis.value == "new-member"


def test_one_that_left_after_it_was_waited_for_is_explained() -> None:
    life = Life().at(-60_000).add("member_added", WEB_1, trigger="member joined", rebalance_timeout_ms=8_000)
    life.at(0).preparing(WEB_2, "member joined", waiting_for=(WEB_1, WEB_3), until_ms=T0 + 8_000)
    life.at(50).add("member_rejoined", WEB_3, after_ms=50).at(7_000)
    facts = {"silent_ms": 200, "connected": True, "heartbeat_interval_ms": 500}
    life.add("member_removed", WEB_1, trigger="member left", **facts).joined(leader=WEB_3).at(7_010)
    life.stable(WEB_2, "member joined", 0, 7_000, joins=[[WEB_3, 50]])
    found = why(life, 60_000)
    assert (found.diagnosis.value, found.member) == ("new-member", WEB_2)
    assert found.also == ("member left (web-1: poll-deadline-missed)",)
    assert found.phases is not None
    assert found.phases.left == ((WEB_1, 7_000),)
    text = " ".join(" ".join(found.lines(UTC)).split())
    assert "joins 7.0 s (slowest: web-3, 50 ms; waited 7.0 s for web-1, until it left)" in text


def leaderless() -> Life:
    """web-1 rejoined and leads; web-3 did not come in time."""
    life = Life().at(-60_000).add("member_added", WEB_1, trigger="member joined", session_timeout_ms=15_000)
    life.at(0).preparing(WEB_2, "member joined", waiting_for=(WEB_1, WEB_3))
    life.at(50).add("member_rejoined", WEB_1, after_ms=50).at(100)
    return life.joined("rebalance timed out", waiting_for=(WEB_3,), leader=WEB_1, until_ms=T0 + 300_100)


def test_an_assignment_that_does_not_come() -> None:
    found = why(leaderless(), 20_100)
    assert (found.diagnosis.value, found.certainty.value) == ("sync-timeout", "likely")
    assert (found.member, [each.member for each in found.waiting]) == (WEB_1, [WEB_1])
    text = " ".join(" ".join(found.lines(UTC)).split())
    assert (
        "the leader web-1 has not sent the assignment: its assignor hangs, or its process has stalled" in text
    )
    assert "for the leader web-1 (host 10.0.0.6) to send the assignment (SyncGroup), 20.0 s so far" in text


def test_an_assignment_whose_leader_is_gone() -> None:
    life = leaderless().at(200)
    life.add("member_disconnected", WEB_1, silent_ms=100, after_removal_ms=None)
    found = why(life, 5_200)
    assert (found.diagnosis.value, found.certainty.value, found.member) == ("crashed", "likely", WEB_1)
    assert found.waiting[0].until_ms == T0 + 100 + 15_000
    text = " ".join(" ".join(found.lines(UTC)).split())
    assert "the leader web-1 has not sent the assignment, and its connection closed 5.0 s ago" in text
    assert "5.1 s so far, its connection closed 5.0 s ago; the group waits until 14:03:27" in text


def test_a_journal_that_does_not_name_the_leader() -> None:
    life = Life().at(0).preparing(WEB_2, "member joined", waiting_for=(WEB_1, WEB_3))
    assert why(life.at(100).joined("rebalance timed out", waiting_for=(WEB_3,)), 20_100).waiting == ()


def test_who_does_not_fetch_its_assignment_is_named() -> None:
    def life(*missing: Member) -> Life:
        begun = Life().at(0).preparing(WEB_2, "member joined").at(100).joined(leader=WEB_1).at(110)
        return begun.stable(WEB_2, "member joined", 0, 100, waiting_for=missing)

    def since(life: Life, now: int = 4_110) -> str:
        return " ".join(why(life, now).since)

    assert since(life(WEB_2)) == (
        "web-2 has not fetched its assignment (SyncGroup) for 4.0 s: nobody reads its partitions"
    )
    two = life(WEB_2, WEB_3)
    assert since(two) == (
        "one or more of web-2, web-3 have not fetched their assignment (SyncGroup) for 4.0 s: nobody reads "
        "their partitions"
    )
    two.at(900).add("member_replaced", member("web-9", instance="web-9"), old_member_id=WEB_2.id)
    assert since(two) == "", "web-3 may have fetched it before"
    assert since(life(WEB_2), now=200) == since(life()) == ""
    assert since(life(WEB_2).at(120).add("all_synced", WEB_2, after_ms=10)) == ""
    assert since(life(WEB_2).at(900).add("member_removed", WEB_2, trigger="session expired")) == ""


def test_nobody_has_an_assignment_to_fetch_from_a_broker_without_the_group() -> None:
    def since(kind: str, **facts: str) -> tuple[str, ...]:
        life = Life().at(0).preparing(WEB_2, "member joined").at(100).joined(leader=WEB_1).at(110)
        life.stable(WEB_2, "member joined", 0, 100, waiting_for=(WEB_2,)).at(900)
        life.add(kind, trigger="coordinator moved", **facts)
        found = explain(life.entries, generation=7, now_ms=T0 + 4_110)
        assert found is not None
        return found.since

    assert since("heartbeat_late")
    assert not since("state_changed", from_state="Stable", to_state="Dead")
    assert not since("shard_unloaded", why="handed over")
    assert not since("group_removed")


def test_the_phases_tell_whose_assignment_was_waited_for() -> None:
    life = leaderless().at(15_100)
    life.add("member_removed", WEB_1, trigger="session expired", connected=False, silent_ms=15_000)
    life.preparing(WEB_1, "session expired", from_state="CompletingRebalance", waiting_for=(WEB_2,))
    life.at(15_300).add("member_rejoined", WEB_2, after_ms=15_300).joined(leader=WEB_2).at(15_310)
    given = {"join_ms": 300, "assignment_ms": 15_010, "restarts": 1, "joins": [[WEB_2, 15_300]]}
    found = why(life.stable(WEB_1, "session expired", 0, 0, **given), 20_000)
    assert found.phases is not None
    assert (found.phases.expired, found.phases.leaders_expired) == ((), ((WEB_1, 15_000),))
    assert found.phases.leaders == (Led(WEB_1, T0 + 100, 15_000), Led(WEB_2, T0 + 15_300, 10))
    assert found.phases.to_json()["leaders"][0] == {
        "member": WEB_1.to_json(),
        "since_ms": T0 + 100,
        "ms": 15_000,
    }
    text = " ".join(" ".join(found.lines(UTC)).split())
    assert "waiting for joins 0.3 s (last: web-2, 15.3 s after the rebalance began)" in text
    assert "assignment 15.0 s (waited 15.0 s for the leader web-1, until its session expired)" in text


def test_a_leader_that_left_held_up_the_assignment_not_the_joins() -> None:
    life = leaderless().at(6_100)
    life.add("member_removed", WEB_1, trigger="member left", connected=True, silent_ms=100)
    life.preparing(WEB_1, "member left", from_state="CompletingRebalance", waiting_for=(WEB_2,))
    life.at(6_300).add("member_rejoined", WEB_2, after_ms=6_300).joined(leader=WEB_2).at(6_310)
    given = {"join_ms": 300, "assignment_ms": 6_010, "restarts": 1, "joins": [[WEB_2, 6_300]]}
    found = why(life.stable(WEB_1, "member left", 0, 0, **given), 20_000)
    assert found.phases is not None
    assert (found.phases.left, found.phases.leaders_left) == ((), ((WEB_1, 6_000),))
    assert found.phases.to_json()["leaders_left"] == [[WEB_1.to_json(), 6_000]]
    text = " ".join(" ".join(found.lines(UTC)).split())
    assert "waiting for joins 0.3 s (last: web-2, 6.3 s after the rebalance began) · assignment" in text
    assert "assignment 6.0 s (waited 6.0 s for the leader web-1, until it left) · restarted" in text


def test_a_wait_for_an_assignment_is_none_for_its_leader_to_rejoin() -> None:
    life = leaderless().at(6_100)  # the leader rejoins with other metadata, then leaves
    life.preparing(
        WEB_1, "subscription or protocols changed", from_state="CompletingRebalance", waiting_for=(WEB_2,)
    )
    life.at(6_200).add("member_removed", WEB_1, trigger="member left", connected=True, silent_ms=100)
    found = why(life, 6_300)
    assert found.phases is not None
    assert found.phases.left == found.phases.leaders_left == ()


def gone(*members: Member, trigger: str, after: int = 15_000, newcomers: int = 0) -> Explanation:
    """Members that are waited for are gone at once, after some time."""
    life = Life().at(0).add("member_added", WEB_2, trigger="member joined")
    life.preparing(WEB_2, "member joined", waiting_for=(WEB_1, *members)).at(100)
    life.add("member_rejoined", WEB_1, after_ms=100)
    for number in range(newcomers):
        life.add("member_added", member(f"new-{number}"), trigger="member joined")
    life.at(after)
    for each in members:
        life.add("member_removed", each, trigger=trigger, connected=False, disconnected_ms=after)
    life.joined(leader=WEB_1).at(after + 10)
    return why(life.stable(WEB_2, "member joined", 0, after, joins=[[WEB_1, 100]]), after + 20)


def test_many_that_held_it_up_are_told_together() -> None:
    many = [member(f"old-{number:02}") for number in range(28)]
    found = gone(*many, trigger="session expired")
    assert found.phases is not None
    assert len(found.phases.expired) == 28
    who = ", ".join(f"old-{number:02}" for number in range(8)) + " and 20 more"
    assert found.also == (f"session expired ({who}: crashed)",)
    text = " ".join(" ".join(found.lines(UTC)).split())
    assert f"; waited up to 15.0 s for {who}, until their sessions expired)" in text


def test_who_was_hardly_waited_for_held_nobody_up() -> None:
    for trigger in ("session expired", "member left"):
        found = gone(WEB_3, member("web-4"), trigger=trigger, after=0)
        assert found.phases is not None
        assert found.phases.expired == found.phases.left == ()
        assert found.also == (f"{trigger} (web-3, web-4)",)
        assert "waited" not in " ".join(found.lines(UTC))


def test_in_a_group_whose_rejoins_are_not_recorded_who_left_may_have_rejoined() -> None:
    def left(others: int, trigger: str = "member left", newcomers: int = 0) -> int:
        some = (member(f"other-{number}") for number in range(others))
        found = gone(*some, trigger=trigger, newcomers=newcomers)
        assert found.phases is not None
        return len((*found.phases.left, *found.phases.expired))

    assert left(98) == 98  # with the one that joined, and another one, a hundred
    assert left(99) == left(98, newcomers=1) == 0
    assert left(99, "session expired") == 99, "the session of one that has rejoined does not expire"


def test_phases_add_up_before_it_is_over_and_if_its_end_is_missing() -> None:
    def phases(life: Life) -> tuple[int | None, int | None]:
        found = explain(life.entries, generation=life.generation)
        assert found is not None
        assert found.phases is not None
        return found.phases.join_ms, found.phases.assignment_ms

    life = leaderless()
    assert phases(life) == (100, None)
    life.at(6_100).preparing(WEB_2, "leader rejoined", from_state="CompletingRebalance")
    life.at(6_300).joined(leader=WEB_2)
    assert phases(life) == (300, 6_000)
    before = list(life.entries)
    life.at(6_320).shard_event("shard_unloaded", epoch=3, why="handed over")
    assert phases(life) == (300, 6_020), "interrupted"
    life.entries = before
    life.at(6_350).stable(WEB_2, "leader rejoined", 0, 300)
    life.entries.pop()
    assert phases(life.at(9_000).add("heartbeat_late", WEB_1)) == (300, 6_050)


def test_a_member_whose_leave_was_lost_when_the_coordinator_moved() -> None:
    """It got its place back, and the group waits for its session to expire."""

    def waits(**facts: object) -> Explanation:
        life = Life().at(0).add("member_removed", WEB_2, trigger="member left", **facts)
        life.preparing(WEB_2, "member left", waiting_for=(WEB_1,))
        life.at(100).add("member_disconnected", WEB_2, after_removal_ms=100)
        life.at(500).shard_event("shard_loaded", epoch=4)
        life.at(1_000).preparing(WEB_1, "leader rejoined", waiting_for=(WEB_2,), until_ms=T0 + 301_000)
        return why(life, 21_000)

    found = waits()
    assert (found.diagnosis.value, found.certainty.value) == ("clean-shutdown", "certain")
    assert found.meaning == "web-2 has not rejoined: the consumer was closed"
    assert found.evidence[0] == "it left 21.0 s ago, in a rebalance that was lost when the coordinator moved"
    assert "the group waits for it until its session expires, for 20.0 s so far" in found.evidence
    assert waits(requested_by=WEB_3.to_json()).diagnosis.value == "crashed"

"""The states of members over time."""

from __future__ import annotations

import pytest

from muster.coordinator.journal.explain.facts import present
from muster.coordinator.journal.explain.tracks import Standing, Track, Tracks
from tests.journal.explain.writing import T0, WEB_1, WEB_2, WEB_3, Life, member


def spans(track: Track) -> list[tuple[int, int | None, str]]:
    return [
        (each.start_ms - T0, None if each.end_ms is None else each.end_ms - T0, each.standing)
        for each in track.spans
    ]


def test_a_member_from_its_id_to_its_end() -> None:
    life = Life(generation=0).at(0).add("member_id_issued", WEB_2, expires_ms=T0 + 45_000)
    life.at(5).add("member_added", WEB_2, trigger="member joined")
    life.preparing(WEB_2, "member joined", from_state="Empty").at(100).joined()
    life.at(150).stable(WEB_2, "member joined", 5, 100).at(900).add("member_disconnected", WEB_2)
    life.at(950).add("member_removed", WEB_2, trigger="session expired")
    (track,) = Tracks(life.entries).members
    assert (track.name, track.host, track.is_present) == ("web-2", "10.0.0.7", False)
    assert spans(track) == [
        (0, 5, Standing.PENDING),
        (5, 100, Standing.JOINING),
        (100, 150, Standing.SYNCING),
        (150, 900, Standing.STABLE),
        (900, 950, Standing.SILENT),
    ]


def test_the_group_and_who_it_waits_for() -> None:
    life = Life().at(0).add("member_added", WEB_2, trigger="member joined")
    life.preparing(WEB_2, "member joined", waiting_for=(WEB_1,)).at(40).add("member_rejoined", WEB_1)
    life.at(100).joined().at(150).stable(WEB_2, "member joined", 0, 100)
    tracks = Tracks(life.entries)
    assert spans(tracks.group) == [
        (0, 0, "Stable"),
        (0, 100, "PreparingRebalance"),
        (100, 150, "CompletingRebalance"),
        (150, None, "Stable"),
    ]
    by_name = {each.name: spans(each)[-4:] for each in tracks.members}
    assert by_name["web-1"] == [
        (0, 40, Standing.AWAITED),
        (40, 100, Standing.JOINING),
        (100, 150, Standing.SYNCING),
        (150, None, Standing.STABLE),
    ]


def test_who_was_there_before_the_journal_begins() -> None:
    life = Life().at(-9_000).add("heartbeat_late", WEB_1).at(0)
    life.add("member_removed", WEB_2, trigger="session expired")
    tracks = {each.name: spans(each) for each in Tracks(life.entries).members}
    assert tracks == {
        "web-1": [(-9_000, None, Standing.STABLE)],
        "web-2": [(-9_000, 0, Standing.STABLE)],
    }


def test_a_static_member_keeps_its_row() -> None:
    old, new = member("web-2", instance="web-2", tail="a"), member("web-2", instance="web-2", tail="b")
    life = Life().at(0).add("member_added", old).preparing(old, "member joined", from_state="Empty")
    life.at(100).joined().at(150).stable(old, "member joined", 0, 100)
    life.at(300).add("member_replaced", new, old_member_id=old.id, old_client_host="10.0.0.7")
    (track,) = Tracks(life.entries).members
    assert spans(track)[-1] == (150, None, Standing.STABLE)


def test_a_static_member_that_is_gone_stays_gone() -> None:
    old, new = member("web-2", instance="web-2", tail="a"), member("web-2", instance="web-2", tail="b")
    life = Life().at(0).add("member_added", old).preparing(old, "member joined", from_state="Empty")
    life.at(100).joined().at(150).stable(old, "member joined", 0, 100)
    life.at(300).add("member_replaced", new, old_member_id=old.id, old_client_host="10.0.0.7")
    life.at(400).add("member_removed", new, trigger="session expired").rebalanced(new, "session expired")
    (track,) = Tracks(life.entries).members
    assert not track.is_present


def test_who_only_has_an_id_is_no_member_of_the_generation() -> None:
    life = Life().at(0).add("member_id_issued", WEB_1).rebalanced(WEB_2, "leader rejoined")
    tracks = {each.name: spans(each) for each in Tracks(life.entries).members}
    assert tracks["web-1"] == [(0, None, Standing.PENDING)]


def test_who_only_had_an_id_is_gone_with_the_group() -> None:
    life = Life().at(0).add("member_id_issued", WEB_1).at(500).add("group_removed", trigger="requested")
    (track,) = Tracks(life.entries).members
    assert spans(track) == [(0, 500, Standing.PENDING)]


def test_who_was_dropped_from_the_generation_stays_out() -> None:
    life = Life().at(-60_000).add("member_added", WEB_1).add("member_added", WEB_2).at(0)
    life.preparing(WEB_1, "leader rejoined", waiting_for=(WEB_2,)).at(100)
    life.add("member_removed", WEB_2, trigger="rebalance timed out")
    life.joined("rebalance timed out", waiting_for=(WEB_2,), leader=WEB_1)
    life.at(150).stable(WEB_1, "leader rejoined", 0, 100)
    there = {each.name: each.is_present for each in Tracks(life.entries).members}
    assert there == {"web-1": True, "web-2": False}
    assert present(life.entries) == {WEB_1.id}


def hiccup(session_ms: int | None = 30_000) -> Life:
    """WEB_1's connection closes at 60 s, 2 s after its last heartbeat."""
    life = Life(generation=0).at(0).add("member_added", WEB_1, session_timeout_ms=session_ms)
    life.rebalanced(WEB_1, "member joined")
    return life.at(60_000).add("member_disconnected", WEB_1, silent_ms=2_000)


def tail(life: Life, now: int) -> list[tuple[int, int | None, str]]:
    """The spans of the only member since its connection closed."""
    (track,) = Tracks(life.entries, now_ms=T0 + now).members
    return [each for each in spans(track) if each[0] >= 60_000]


def test_who_outlives_its_session_came_back_on_another_connection() -> None:
    silent, since = (60_000, None, Standing.SILENT), (88_000, None, Standing.STABLE)
    assert tail(hiccup(), 93_000) == [silent]
    assert tail(hiccup(), 93_001) == tail(hiccup(), 9_000_000) == [(60_000, 88_000, Standing.SILENT), since]
    # A journal that begins later does not show its timeout; it is at most half an hour.
    assert tail(hiccup(None), 1_800_000) == [silent]
    assert tail(hiccup(None), 1_863_001)[1:] == [(1_858_000, None, Standing.STABLE)]


def test_who_was_heard_from_came_back() -> None:
    late = hiccup().at(70_000).add("heartbeat_late", WEB_1, late_ms=12_000)
    assert tail(late, 71_000) == [(60_000, 70_000, Standing.SILENT), (70_000, None, Standing.STABLE)]
    again = hiccup().at(80_000).add("member_disconnected", WEB_1, silent_ms=3_000)
    assert tail(again, 90_000) == [
        (60_000, 77_000, Standing.SILENT),
        (77_000, 80_000, Standing.STABLE),
        (80_000, None, Standing.SILENT),
    ]


def test_what_removes_a_member_tells_whether_it_had_come_back() -> None:
    def removed(at: int, silent_ms: int) -> list[tuple[int, int | None, str]]:
        life = hiccup().at(at).add("member_removed", WEB_1, trigger="session expired", silent_ms=silent_ms)
        return tail(life, at + 1_000)

    assert removed(99_000, 41_000) == [(60_000, 99_000, Standing.SILENT)]
    assert removed(99_000, 30_000) == [(60_000, 69_000, Standing.SILENT), (69_000, 99_000, Standing.STABLE)]
    assert removed(500_000, 30_000) == [(60_000, 88_000, Standing.SILENT), (88_000, 500_000, Standing.STABLE)]


def test_who_is_awaited_is_still_awaited_when_it_is_back() -> None:
    life = Life().at(-60_000).add("member_added", WEB_1, session_timeout_ms=10_000)
    life.add("member_added", WEB_2, session_timeout_ms=10_000).at(0)
    life.preparing(WEB_2, "leader rejoined", waiting_for=(WEB_1,))
    life.at(5_000).add("member_disconnected", WEB_1, silent_ms=1_000)
    # It has asked to join: it has no session until it is answered.
    life.add("member_disconnected", WEB_2, silent_ms=5_000)
    one, two = Tracks(life.entries, now_ms=T0 + 60_000).members
    assert spans(one)[-2:] == [(5_000, 14_000, Standing.SILENT), (14_000, None, Standing.AWAITED)]
    assert spans(two)[-1] == (5_000, None, Standing.SILENT)


def test_sessions_begin_anew_with_another_coordinator() -> None:
    life = hiccup().at(85_000).shard_event("shard_loaded", epoch=4)
    assert tail(life, 119_000) == [(60_000, None, Standing.SILENT)]
    assert tail(life, 121_000)[1:] == [(115_000, None, Standing.STABLE)]
    # While it has none, nobody is removed.
    away = hiccup().at(900_000).shard_event("shard_loaded", epoch=4)
    assert tail(away, 901_000) == [(60_000, None, Standing.SILENT)]
    back = hiccup().at(800_000).add("lag_at_commit", total=0)
    back.at(900_000).shard_event("shard_loaded", epoch=4)
    assert tail(back, 901_000)[1:] == [(88_000, None, Standing.STABLE)]


def test_an_empty_group_has_nobody() -> None:
    life = Life().at(0).add("member_added", WEB_2).preparing(WEB_2, "member joined", from_state="Empty")
    life.at(50).add("state_changed", from_state="PreparingRebalance", to_state="Empty")
    (track,) = Tracks(life.entries).members
    assert not track.is_present


def moved_during_a_join(*, state: str = "Stable", with_id: bool = False) -> Life:
    """The coordinator moves while WEB_3 joins the group, or only has an id."""
    life = Life().at(-60_000)
    if state == "Stable":
        life.add("member_added", WEB_1).rebalanced(WEB_1, "member joined")
    life.at(0).add("member_id_issued" if with_id else "member_added", WEB_3)
    who, waiting = (WEB_1, ()) if with_id else (WEB_3, (WEB_1,) if state == "Stable" else ())
    life.preparing(who, "member joined", from_state=state, waiting_for=waiting)
    life.broker = 2
    return life.at(500).shard_event("shard_loaded", epoch=4, groups=1, took_ms=12, from_broker=1)


@pytest.mark.parametrize("with_id", [False, True])
def test_who_was_joining_when_the_coordinator_moved_is_not_known_to_the_next(with_id: bool) -> None:
    life = moved_during_a_join(with_id=with_id)
    tracks = Tracks(life.entries)
    assert spans(tracks.group)[-2:] == [(0, 500, "PreparingRebalance"), (500, None, "Stable")]
    assert [each.is_present for each in tracks.members] == [True, False]
    again = member("web-3", "10.0.0.8", tail="222222")
    life.at(700).add("member_added", again).rebalanced(again, "member joined")
    one, former, new = Tracks(life.entries).members
    assert spans(one)[-1][2] == spans(new)[-1][2] == Standing.STABLE
    assert spans(former) == [(0, 500, Standing.PENDING if with_id else Standing.JOINING)]
    assert present(life.entries) == {WEB_1.id, again.id}


def test_who_waits_for_the_others_is_stable_when_the_coordinator_has_moved() -> None:
    life = moved_during_a_join()
    awaited = Tracks(life.entries).members[0]
    assert spans(awaited)[-2:] == [(0, 500, Standing.AWAITED), (500, None, Standing.STABLE)]


def test_a_group_whose_first_join_is_lost_is_empty() -> None:
    life = moved_during_a_join(state="Empty")
    tracks = Tracks(life.entries)
    assert spans(tracks.group)[-1] == (500, None, "Empty")
    assert not any(each.is_present for each in tracks.members)
    assert not present(life.entries)


def test_a_move_of_a_stable_or_a_consumer_group_loses_nobody() -> None:
    stable = Life().at(0).add("member_added", WEB_2).rebalanced(WEB_2, "member joined")
    of_consumers = Life().at(0).add("member_added", WEB_2)
    of_consumers.add("state_changed", from_state="Empty", to_state="Reconciling")
    for life in (stable, of_consumers):
        before = Tracks(life.entries)
        life.at(500).shard_event("shard_loaded", epoch=4)
        tracks = Tracks(life.entries)
        assert [spans(each) for each in tracks.members] == [spans(each) for each in before.members]
        assert spans(tracks.group) == spans(before.group)
        assert present(life.entries) == {WEB_2.id}


def test_who_left_in_a_rebalance_that_is_lost_is_back() -> None:
    life = Life().at(-9_000).add("heartbeat_late", WEB_1).add("heartbeat_late", WEB_2)
    life.at(0).add("member_removed", WEB_2, trigger="member left")
    life.preparing(WEB_2, "member left", waiting_for=(WEB_1,))
    life.at(500).shard_event("shard_loaded", epoch=4)
    life.at(45_500)
    tracks = {each.name: spans(each)[-2:] for each in Tracks(life.entries).members}
    assert tracks["web-2"] == [(-9_000, 0, Standing.STABLE), (500, None, Standing.STABLE)]
    assert present(life.entries) == {WEB_1.id, WEB_2.id}
    life.add("member_removed", WEB_2, trigger="session expired")
    assert present(life.entries) == {WEB_1.id}


def test_who_came_and_left_in_a_rebalance_that_is_lost_is_not_back() -> None:
    life = Life().at(-9_000).add("heartbeat_late", WEB_1).at(0).add("member_added", WEB_2)
    life.preparing(WEB_2, "member joined", waiting_for=(WEB_1,))
    life.at(100).add("member_removed", WEB_2, trigger="member left")
    assert present(life.at(500).shard_event("shard_loaded", epoch=4).entries) == {WEB_1.id}

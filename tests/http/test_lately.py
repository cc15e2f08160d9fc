"""What the overview says of groups: how often they rebalance, why they last did, and how their lag
developed."""

from __future__ import annotations

from itertools import groupby

import pytest

from muster.coordinator.journal.explain.names import names_in
from muster.coordinator.runtime.ring import GROUP_ENTRIES_MAX
from muster.coordinator.web import app, trends
from muster.coordinator.web.lately import HOUR_MS, Digest, Lately, digested
from muster.coordinator.web.trends import Trends, thinned
from muster.protocol.errors import ErrorCode
from muster.protocol.messages.group_admin import DeleteGroupsRequest
from tests.http.conftest import Show, Shown
from tests.http.member import Member
from tests.journal.explain.writing import T0, WEB_1, WEB_2, WEB_3, Life
from tests.support.each import each


async def rebalance(member: Member) -> None:
    """Rebalance, by having the leader join again."""
    await member.alone([0, 1, 2])


async def listed(shown: Shown) -> dict[str, object]:
    _, body = await shown.get("/api/groups")
    found: dict[str, object] = body["groups"][0]
    return found


async def test_the_list_has_the_last_diagnosis(shown: Shown, member: Member) -> None:
    await shown.journalled("all_synced")
    last = (await listed(shown))["last_rebalance"]
    assert isinstance(last, dict)
    assert last["generation"] == 1
    assert last["cause"] == "member joined"
    assert (last["diagnosis"], last["certainty"]) == ("new-member", "certain")
    assert last["meaning"] == "the first member of the group joined"


def life_of(shown: Shown) -> Life:
    """More of the group's life, from a second on."""
    journal = shown.broker.journal
    shard = next(each.shard for each in journal.of("billing") if each.group is not None)
    return Life(shard=shard).at(shown.broker.clock.now_ms() + 1_000 - T0)


async def test_the_cause_is_the_one_that_is_diagnosed_if_the_rebalance_restarted(
    shown: Shown, member: Member
) -> None:
    await shown.journalled("all_synced")
    life = life_of(shown)
    began = life.at_ms - T0
    expired = {"silent_ms": 45_000, "session_timeout_ms": 45_000, "connected": True}
    life.add("member_removed", WEB_2, trigger="session expired", **expired)
    life.preparing(WEB_2, "session expired").at(began + 100).joined().at(began + 200)
    life.add("member_added", WEB_3, trigger="member joined")
    life.preparing(WEB_3, "member joined", from_state="CompletingRebalance").at(began + 250).joined()
    life.at(began + 300).stable(WEB_3, "member joined", began, began + 250, restarts=1)
    shown.broker.journal.add(life.entries)
    last = (await listed(shown))["last_rebalance"]
    assert isinstance(last, dict)
    assert (last["cause"], last["member"]["name"], last["diagnosis"]) == (
        "session expired",
        "web-2",
        "stalled",
    )


async def test_the_last_rebalance_is_the_newest_also_after_the_group_was_elsewhere(
    shown: Shown, member: Member
) -> None:
    await shown.journalled("all_synced")
    life = life_of(shown)
    life.generation, began = 4, life.at_ms - T0
    shown.broker.journal.add(life.rebalanced(WEB_1, "leader rejoined").entries)
    for second in range(1, 4):  # elsewhere
        life.at(began + 1_000 * second).rebalanced(WEB_1, "leader rejoined")
    shown.broker.journal.restore(life.shard, life.entries)
    last = (await listed(shown))["last_rebalance"]
    assert isinstance(last, dict)
    assert (last["generation"], last["at_ms"]) == (8, life.at_ms)
    assert last["diagnosis"] is not None


async def test_rebalances_are_counted_over_an_hour_or_what_is_known(shown: Shown, member: Member) -> None:
    await rebalance(member)
    await shown.journalled("all_synced", times=2)
    found = (await listed(shown))["rebalances"]
    assert isinstance(found, dict)
    assert found["count"] == 2
    assert found["within_ms"] < HOUR_MS
    await shown.brokers.advance(2 * HOUR_MS)
    assert (await listed(shown))["rebalances"] == {"count": 0, "within_ms": HOUR_MS}
    await rebalance(member)
    await shown.journalled("all_synced", times=3)
    assert (await listed(shown))["rebalances"] == {"count": 1, "within_ms": HOUR_MS}


@pytest.mark.parametrize("path", ["/api/groups", "/api/groups?find=console", "/api/groups/{group}"])
async def test_groups_that_are_gone_are_forgotten_whatever_is_asked_for(
    show: Show, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    made = Lately()
    monkeypatch.setattr(app, "Lately", lambda: made)
    shown = await show()
    await shown.create_topic()
    for group in ("console-1", "console-2", "console-3"):
        async with await Member.connect(shown.port, group) as member:
            await member.alone([0])
            assert (await shown.get(path.format(group=group)))[0] == 200
            assert list(made._known) == [group]
            await member.leave()
            await member.wire.call(DeleteGroupsRequest(groups_names=[group]), 2)


async def test_the_lag_has_a_trend(shown: Shown, member: Member) -> None:
    assert await member.commit({0: 0}) is ErrorCode.NONE
    await listed(shown)
    for count in (10, 20):
        await member.produce(0, count)
        await shown.brokers.advance(10_000)
        await listed(shown)
    trend = (await listed(shown))["lag_trend"]
    assert isinstance(trend, list)
    assert [lag for lag, _ in groupby(lag for _, lag in trend)][-3:] == [0, 10, 30]
    assert trend == sorted(trend)


@each(
    "now_ms, told",
    [
        (100_000, {"count": 2, "within_ms": 73_000}),
        (27_000 + HOUR_MS, {"count": 2, "within_ms": HOUR_MS}),
        (60_000 + HOUR_MS, {"count": 1, "within_ms": HOUR_MS}),
        (10 * HOUR_MS, {"count": 0, "within_ms": HOUR_MS}),
        (10_000, {"count": 2, "within_ms": 0}),
    ],
)
def test_a_count_never_says_more_than_is_known(now_ms: int, told: dict[str, int]) -> None:
    assert Digest((30_000, 90_000), 27_000, None, ()).how_often(now_ms) == told


@each("others, within_ms", [(GROUP_ENTRIES_MAX, 120_000), (GROUP_ENTRIES_MAX - 1, HOUR_MS)])
def test_lag_from_before_a_full_ring_of_others_does_not_count_as_known(others: int, within_ms: int) -> None:
    life = Life().at(-2 * HOUR_MS).add("lag_at_commit", total=7).at(-120_000)
    while len(life.entries) <= others:
        life.add("heartbeat_late", WEB_1)
    digest = digested(life.entries, names_in(life.entries), T0)
    assert digest.how_often(T0)["within_ms"] == within_ms
    assert digest.lags == ((T0 - 2 * HOUR_MS, 7),)


def test_trends_are_bounded_and_reach_back_an_hour() -> None:
    found = Trends(groups_max=2)
    for second in range(0, 7_200, 5):
        found.note("a", second * 1_000, second)
    points = found.of("a", 7_195_000)
    assert len(points) <= trends.POINTS_SHOWN
    assert points[-1] == (7_195_000, 7_195)
    assert points[0][0] >= 7_195_000 - trends.SPAN_MS
    assert points == sorted(points)
    found.note("b", 1, 1)
    found.note("c", 1, 1)
    assert found.of("a", 7_195_000) == [], "the one that was noted longest ago is forgotten"
    found.note("c", 2, None)
    found.note("c", 500, 7)  # too soon
    assert found.of("c", 1_000, before=[(0, 9), (1, 8)]) == [(0, 9), (1, 1)]


def test_a_thinned_trend_keeps_its_ends() -> None:
    points = [(at, at % 7) for at in range(1_000)]
    found = thinned(points, 10)
    assert len(found) <= 10
    assert (found[0], found[-1]) == (points[0], points[-1])
    assert thinned(points[:3], 10) == points[:3]

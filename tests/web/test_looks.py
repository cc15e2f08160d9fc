"""How the page looks and reads: at three widths, when sorted, over hours, and the time zone it shows."""

from __future__ import annotations

import re
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import Any

import pytest
from playwright.async_api import Page, Route, expect

from muster.coordinator.journal.explain import phases
from muster.protocol.errors import ErrorCode
from muster.protocol.messages.classic_group import LeaveGroupRequest
from muster.protocol.messages.consumer_group import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from tests.http.conftest import Show, Shown
from tests.http.member import Member
from tests.http.test_transactions_api import MINUTE_MS, now_ms
from tests.http.transactional import Transactional
from tests.support.wire import Wire
from tests.web.conftest import Open, look_again

_VIEWS = {
    "#/": "#groups tbody tr",
    "#/groups/billing": "#partitions tbody tr",
    "#/topics": "#topics tbody tr",
    "#/topics/orders": "#topic-partitions tbody tr",
    "#/topics/orders/0": "#records tbody tr",
    "#/transactions": "#held tbody tr",
    "#/brokers": "#shards tbody tr",
}

_CUT_OFF = """() => {
  const cut = [];
  for (const cell of document.querySelectorAll("table tr:first-child > *")) {
    const box = cell.getBoundingClientRect();
    if (!box.width || (box.right <= innerWidth + 1 && cell.scrollWidth <= cell.clientWidth + 1)) continue;
    const scroll = cell.closest(".scroll");
    const shade = getComputedStyle(scroll).backgroundImage.includes("gradient");
    if (shade && scroll.scrollWidth > scroll.clientWidth) continue;
    cut.push(`${cell.closest("table").id}: ${cell.textContent}`);
  }
  return cut;
}"""


async def test_at_every_width_every_column_is_seen_or_that_there_are_more(
    shown: Shown, member: Member, open_page: Open
) -> None:
    await member.produce(0, 3)
    assert await member.commit({0: 1}) is ErrorCode.NONE
    async with await Transactional.connect(shown.port) as open:
        await open.begin(1)
        await open.write(1, 1, at_ms=now_ms(shown) - MINUTE_MS)
        page = await open_page(shown)
        for width in (1440, 768, 390):
            await page.set_viewport_size({"width": width, "height": 900})
            for path, rows in _VIEWS.items():
                await page.goto(f"{shown.page.url}/{path}")
                await expect(page.locator(rows).first).to_be_visible()
                assert await page.evaluate("document.documentElement.scrollWidth") <= width, (width, path)
                assert await page.evaluate(_CUT_OFF) == [], (width, path)
    # These used to be cut off on a phone: lag, behind and the last rebalance.
    await page.goto(f"{shown.page.url}/#/")
    for label in ("Lag", "Behind", "Rebalances", "Last rebalance"):
        cell = page.locator(f'#groups tbody td[data-label="{label}"]')
        box = await cell.bounding_box()
        assert box is not None
        assert box["x"] + box["width"] <= 390
        shown_label = await cell.evaluate('cell => getComputedStyle(cell, "::before").content')
        assert shown_label == f'"{label}"', "a card says what its figures are"


async def names(page: Page) -> list[str]:
    return await page.locator("#groups tbody td.name").all_text_contents()


async def test_columns_sort_by_their_buttons_and_on_a_phone_by_a_list(
    shown: Shown, member: Member, open_page: Open
) -> None:
    await member.produce(0, 30)
    assert await member.commit({0: 28}) is ErrorCode.NONE
    async with (
        await Member.connect(shown.port, "alpha") as other,
        await Member.connect(shown.port, "zeta") as last,
    ):
        await other.alone([0])
        assert await other.commit({0: 5}) is ErrorCode.NONE
        await last.alone([1])  # its lag is unknown
        page = await open_page(shown)
        await expect(page.locator("#groups tbody tr")).to_have_count(3)
        header = page.get_by_role("columnheader", name="Lag")
        await expect(header).to_have_attribute("aria-sort", "none")
        await page.get_by_role("button", name="Lag", exact=True).click()
        await expect(header).to_have_attribute("aria-sort", "descending")
        assert await names(page) == ["alpha", "billing", "zeta"]
        await page.keyboard.press("Enter")
        await expect(header).to_have_attribute("aria-sort", "ascending")
        assert await names(page) == ["billing", "alpha", "zeta"], "what is not known stays last"
        await page.get_by_role("button", name="Group", exact=True).click()
        await expect(header).to_have_attribute("aria-sort", "none")
        await member.produce(0, 5)
        assert await member.commit({0: 29}) is ErrorCode.NONE
        await expect(page.locator("#groups tbody tr", has_text="billing").locator("td").nth(3)).to_have_text(
            "6"
        )
        assert await names(page) == ["alpha", "billing", "zeta"], "it stays so as figures change"
        await page.set_viewport_size({"width": 390, "height": 900})
        await page.locator("#groups-view").get_by_label("Sort by").select_option("Group ↓")
        assert await names(page) == ["zeta", "billing", "alpha"]


async def advance(shown: Shown, by: str) -> None:
    async with shown.http.post(f"{shown.page.url}/test/clock/advance", json={"by": by}) as answer:
        assert answer.status == 200


async def test_fit_has_the_rebalances_of_hours_ago(shown: Shown, member: Member, open_page: Open) -> None:
    await advance(shown, "3h")
    await member.alone([0])
    await shown.journalled("all_synced", times=2)
    page = await open_page(shown, "/#/groups/billing")
    bands = page.locator("#timeline rect.band")
    await expect(bands).to_have_count(2)
    # The page is redrawn every second, so a single look may find bands that were just removed.
    await page.wait_for_function(
        "() => { const bands = [...document.querySelectorAll('#timeline rect.band')];"
        " return bands.length === 2 && bands.every(each => each.getBBox().width >= 2); }"
    )
    await page.get_by_role("button", name="15 min").click()
    await expect(bands).to_have_count(1)
    await page.get_by_role("button", name="6 h").click()
    await expect(bands).to_have_count(2)
    # An opened rebalance can be viewed closely.
    await page.locator("#rebalances summary").last.click()
    await page.get_by_role("button", name="g1", exact=True).click()
    await expect(bands).to_have_count(1)
    await expect(page.locator("#timeline rect.band.chosen")).to_have_count(1)


async def test_a_member_that_left_is_seen(shown: Shown, member: Member, open_page: Open) -> None:
    await member.leave()
    await shown.journalled("member_removed")
    page = await open_page(shown, "/#/groups/billing")
    mark = page.locator("#timeline path.end.left")
    await expect(mark).to_have_count(1)
    # In a single call: the mark is redrawn every second.
    width, height, ink, text = await page.evaluate(
        """() => {
          const mark = document.querySelector("path.end.left"), box = mark.getBBox();
          return [box.width, box.height, getComputedStyle(mark).fill, getComputedStyle(document.body).color];
        }"""
    )
    assert min(width, height) >= 10
    assert ink == text, "as dark as text"


async def test_a_member_that_an_admin_removed_was_evicted(
    shown: Shown, member: Member, open_page: Open
) -> None:
    async with await Member.connect(shown.port, client_id="admin") as admin:
        removed = LeaveGroupRequest.MemberIdentity(member_id=member.id)
        await admin.wire.call(LeaveGroupRequest(group_id="billing", members=[removed]), 5)
    await shown.journalled("member_removed")
    page = await open_page(shown, "/#/groups/billing")
    await expect(page.locator("#timeline path.end.bad")).to_have_count(1)
    await expect(page.locator("#timeline path.end.left")).to_have_count(0)


_PICTURE = """() => {
  const all = (selector) => [...document.querySelectorAll(`#timeline ${selector}`)];
  const rects = all("rect.owe, rect.wait"), names = all("text").filter((text) => text.querySelector("title"));
  return Object.fromEntries(names.map((text) => {
    const mine = rects.filter((rect) => Math.abs(rect.getAttribute("y") - text.getAttribute("y")) < 11);
    const said = (rect) => `${rect.getAttribute("class")}: ${rect.querySelector("title").textContent}`;
    const time = (rect) => rect.getAttribute("x");
    return [text.firstChild.data, mine.sort((a, b) => time(a) - time(b)).map(said)];
  }));
}"""
"""The bars of each row of the timeline that are about rebalances, oldest first."""


async def draws(page: Page, last: dict[str, str]) -> None:
    """Wait until the timeline has rows with these names, and these as their last bars."""
    drawn = f"({_PICTURE})()"
    await page.wait_for_function(
        f"""(last) => {{
          const drawn = {drawn};
          return Object.entries(last).every(([name, said]) => (drawn[name]?.at(-1) ?? "") === said);
        }}""",
        arg=last,
    )


async def test_the_timeline_shows_the_leader_that_does_not_send_the_assignment(
    shown: Shown, member: Member, open_page: Open
) -> None:
    async with await Member.connect(shown.port, client_id="web-2") as other:
        await other.ask_to_join()
        await member.ask_to_join()
        await member.joined()
        await other.joined()
        await other.sync()
        await shown.journalled("state_changed", times=5)
        await advance(shown, "5s")
        page = await open_page(shown, "/#/groups/billing")
        mine = page.locator("#members tbody tr", has_text=member.id)
        await expect(mine).to_contain_text("its SyncGroup is waited for")
        await expect(page.locator("#rebalances .what").first).to_contain_text("has not sent the assignment")
        waits = "wait: waits for the assignment"
        await draws(page, {"web-1": "owe: its SyncGroup is waited for", "web-2": waits})
        await member.sync({member.id: [0], other.id: [1, 2]})
        await member.synced()
        await other.synced()
        await expect(page.locator("#group-state")).to_contain_text("Stable")
        await look_again(page)
        await expect(page.locator("#rebalances .took").first).not_to_contain_text("so far")
        await draws(page, {"web-1": "owe: its SyncGroup is waited for", "web-2": waits})


async def test_the_timeline_shows_who_has_not_rejoined_where_the_journal_does_not_tell(
    shown: Shown, member: Member, open_page: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In groups of more than 100 members."""
    monkeypatch.setattr(phases, "REJOINS_TOLD_MAX", 1)
    async with await Member.connect(shown.port, client_id="web-2") as other:
        await other.ask_to_join()
        page = await open_page(shown, "/#/groups/billing")
        await expect(page.locator("#members tbody tr", has_text=member.id)).to_contain_text("JoinGroup")
        owes, waits = "owe: its JoinGroup is waited for", "wait: waits for the assignment"
        await draws(page, {"web-1": owes, "web-2": waits})


async def heartbeat(
    wire: Wire,
    member_id: str,
    epoch: int,
    owned: list[ConsumerGroupHeartbeatRequest.TopicPartitions] | None = None,
) -> ConsumerGroupHeartbeatResponse:
    """Of a member of the consumer group billing that reads orders; with epoch 0 it joins."""
    request = ConsumerGroupHeartbeatRequest(
        group_id="billing", member_id=member_id, member_epoch=epoch, topic_partitions=owned
    )
    if epoch == 0:
        request.topic_partitions, request.rebalance_timeout_ms = [], 60_000
        request.subscribed_topic_names = ["orders"]
    return await wire.call(request, 1)


async def test_the_timeline_shows_who_waits_for_partitions_of_a_consumer_group(
    show: Show, open_page: Open
) -> None:
    shown = await show(group_consumer_assignment_interval_ms=0)
    await shown.create_topic()
    async with AsyncExitStack() as stack:
        first, second = [
            await stack.enter_async_context(await Wire.connect(shown.port, client_id=each))
            for each in ("app-a", "app-b")
        ]
        got = await heartbeat(first, "A" * 22, 0)
        assert got.assignment is not None
        parts = ConsumerGroupHeartbeatRequest.TopicPartitions
        owned = [
            parts(topic_id=each.topic_id, partitions=each.partitions)
            for each in got.assignment.topic_partitions
        ]
        await heartbeat(first, "A" * 22, got.member_epoch, owned)
        await heartbeat(second, "B" * 22, 0)
        await heartbeat(first, "A" * 22, got.member_epoch)  # it is told to revoke, and does not
        await shown.journalled("revocation_requested")
        page = await open_page(shown, "/#/groups/billing")
        await expect(page.locator("#members tbody tr", has_text="app-a")).to_contain_text("its revocation")
        await draws(
            page,
            {
                "app-a": "owe: has partitions to give up that others wait for",
                "app-b": "wait: waits for partitions that others have to give up",
            },
        )


async def test_the_timeline_shows_a_client_that_has_a_member_id_and_does_not_join(
    shown: Shown, member: Member, open_page: Open
) -> None:
    async with await Member.connect(shown.port, client_id="web-2") as other:
        await other.ask_for_id()
        await member.ask_to_join()
        page = await open_page(shown, "/#/groups/billing")
        await expect(page.locator("#members tbody tr")).to_have_count(2)
        owes = "owe: was given a member id and has not joined with it"
        await draws(page, {"web-1": "wait: waits for the assignment", "web-2": owes})
        await other.ask_to_join()
        await member.joined()
        await other.joined()
        await draws(page, {"web-1": "owe: its SyncGroup is waited for"})
        # That of its id is a row of one that is in the group, since it joined.
        await expect(page.locator("#timeline rect.calm")).to_have_count(2)
        await expect(page.locator("#timeline path.end")).to_have_count(0)


_ISSUED = """async () => {
  const { lives, duties } = await import("/static/timeline.js");
  const named = (id) => ({ id, client_id: id, host: "h" });
  const of = (type, at_ms, id, more = {}) => ({ type, at_ms, member: id && named(id), ...more });
  const entries = [
    of("member_id_issued", 500, "deleted"), of("group_removed", 700, null),
    of("member_id_issued", 1000, "late"), of("member_id_issued", 1000, "lost"),
    of("shard_loaded", 2000, null), of("member_id_issued", 3000, "expired"),
    of("pending_member_removed", 3100, "before", { trigger: "pending member expired", waited_ms: 3000 }),
    of("member_added", 4000, "late"),
    of("pending_member_removed", 6000, "expired", { trigger: "pending member expired", waited_ms: 3000 }),
  ];
  const group = { members: [named("late")], pending: [{ ...named("old"), issued_ms: 500 }], at_ms: 9000 };
  const found = lives({ entries, rebalances: [], at_ms: 9000 }, group);
  const leaders = [{ member: named("late"), since_ms: 6000, ms: 900 }];
  const past = [{ type: "classic", started_ms: 4000, ended_ms: 6900, state: "Stable", phases: { leaders } }];
  const short = ({ from, to, how, pending }) => [from, to, how, pending];
  const owed = (life) => duties(life, past, new Map(), 9000).map(({ from, to, kind }) => [from, to, kind]);
  const told = (life) => [life.spans.map(short), owed(life)];
  return Object.fromEntries(found.map((life) => [life.member.id, told(life)]));
}"""


async def test_what_became_of_clients_that_were_given_a_member_id(shown: Shown, open_page: Open) -> None:
    found = await (await open_page(shown)).evaluate(_ISSUED)
    assert found.pop("late")[0] == [[1000, 2000, "forgotten", True], [4000, None, None, False]]
    assert found == {
        "deleted": [[[500, 700, "forgotten", True]], []],
        "lost": [[[1000, 2000, "forgotten", True]], []],
        "before": [[[100, 3100, "evicted", True]], []],
        "expired": [[[3000, 6000, "evicted", True]], [[4000, 6000, "owe"]]],
        "old": [[[500, None, None, True]], [[4000, 6000, "owe"]]],
    }


_VAIN = """async () => {
  const { duties } = await import("/static/timeline.js");
  const [one, two] = ["one", "two"].map((id) => ({ id, client_id: id, host: "h" }));
  const phases = {
    slowest: [[two, 7000]], expired: [], left: [], dropped: [], kept: [],
    leaders: [{ member: one, since_ms: 1000, ms: 5000 }, { member: two, since_ms: 7000, ms: 500 }],
  };
  const past = [{ type: "classic", started_ms: 0, ended_ms: 8000, waiting: [], phases }];
  const of = (member, to) => duties({ member, spans: [{ from: -9, to }] }, past, new Map(), 9000);
  const short = (part) => [part.from, part.to, part.said];
  return [of(one, 6000).map(short), of(two, null).map(short)];
}"""


_FAR = """async (leads) => {
  const { draw } = await import("/static/timeline.js"), holder = document.createElement("div");
  const member = { id: "m", client_id: "m", host: "h" };
  const phases = { slowest: [], leaders: [{ member, since_ms: 100 - leads, ms: leads }] };
  const said = { type: "classic", rebalanced: true, what: "", meaning: "", diagnosis: "", generation: 1 };
  const rebalances = [{ ...said, started_ms: 0, ended_ms: 100, waiting: [], phases }];
  const timeline = { entries: [], rebalances, at_ms: 9e7 }, span = { now: 9e7, from: -9e7, to: 9e7 };
  draw(holder, { timeline, group: { members: [member] }, ...span, chosen: null, label: () => "m" });
  return [...holder.querySelectorAll("rect.owe, rect.wait")].at(-1).getAttribute("class");
}"""


async def test_a_rebalance_too_short_to_be_seen_is_shown_as_what_it_was_mostly(
    shown: Shown, open_page: Open
) -> None:
    page = await open_page(shown)
    assert await page.evaluate(_FAR, 1) == "wait", "its leader held up nobody"
    assert await page.evaluate(_FAR, 99) == "owe"


async def test_an_assignment_that_was_waited_for_in_vain_was_its_leaders(
    shown: Shown, open_page: Open
) -> None:
    """The others had to join again afterwards, and held up nobody before."""
    one, two = await (await open_page(shown)).evaluate(_VAIN)
    sync, join, wait = (
        "its SyncGroup is waited for", "its JoinGroup is waited for", "waits for the assignment",
    )  # fmt: skip
    assert one == [[0, 1000, wait], [1000, 6000, sync]]
    assert two == [
        [0, 6000, wait], [6000, 7000, join], [7000, 7500, sync], [7500, 8000, wait],
    ]  # fmt: skip


_MANY = """async () => {
  const { draw } = await import("/static/timeline.js"), holder = document.createElement("div");
  const members = Array.from({ length: 200 }, (_, each) => ({ id: `m-${each}`, client_id: "m", host: "h" }));
  const timeline = { entries: [], rebalances: [], at_ms: 9000 };
  const span = { now: 9000, from: 0, to: 9000 };
  draw(holder, { timeline, group: { members }, ...span, chosen: null, label: (each) => each.id });
  return [holder.firstChild.getAttribute("aria-label"), holder.querySelector(".more").textContent];
}"""


async def test_a_timeline_with_more_members_than_rows_says_how_many(shown: Shown, open_page: Open) -> None:
    page = await open_page(shown)
    label, more = await page.evaluate(_MANY)
    assert label.startswith("Timeline of 200 members")
    assert more == "and 160 more members"


_NAMED = """async (ids) => {
  const { draw } = await import("/static/timeline.js"), holder = document.createElement("div");
  holder.className = "timeline";
  holder.style.width = "1000px";
  document.body.append(holder);
  const members = ids.map((id) => ({ id, client_id: id, host: "h" }));
  const timeline = { entries: [], rebalances: [], at_ms: 9000 }, span = { now: 9000, from: 0, to: 9000 };
  draw(holder, { timeline, group: { members }, ...span, chosen: null, label: (each) => each.id });
  const bars = holder.querySelector("rect.calm").getBBox().x, end = (box) => box.x + box.width;
  const names = [...holder.querySelectorAll("text")].filter((each) => each.querySelector("title"));
  return [bars, names.map((text) => [text.firstChild.data, end(text.getBBox())])];
}"""


async def test_names_fit_and_can_be_told_apart(shown: Shown, open_page: Open) -> None:
    """Whatever their letters; those of consumers differ at the end."""
    page = await open_page(shown)
    short = ["web-1", "支払い処理"]
    bars, names = await page.evaluate(_NAMED, short)
    assert {name for name, _ in names} == set(short)
    long = [
        "consumer-payments-service-prod-1/aaaaa1",
        "consumer-payments-service-prod-1/bbbbb2",
        "PAYMENTS-WORKER-PROD-EU-WEST-1-MMWW",
        "支払い処理サービス本番環境東京リージョン一号機追加",
        "\N{ROCKET}" * 20,
        "x" * 10_000,
    ]
    bars, names = await page.evaluate(_NAMED, long)
    for name, end in names:
        assert end < bars, name
        name.encode()  # no halves of a sign
        assert end > bars - 30 or name in long, "as much of it as there is room for"
    shown_names = {name for name, _ in names}
    assert len(shown_names) == len(long)
    for end in ("…d-1/aaaaa1", "…d-1/bbbbb2"):
        assert any(name.startswith("consumer-") and name.endswith(end) for name in shown_names)


_CROWD = """async ({ there, gone }) => {
  const { draw } = await import("/static/timeline.js"), holder = document.createElement("div");
  const named = (id) => ({ id, client_id: id, host: "h" });
  const members = Array.from({ length: there }, (_, each) => named(`app-${String(each).padStart(4, "0")}`));
  const over = Array.from({ length: gone }, (_, each) => named(`old-${String(each).padStart(4, "0")}`));
  const why = (each) => (each === 7 ? "session expired" : "member left");
  const entries = over.flatMap((member, each) => [
    { type: "member_added", at_ms: 100, member },
    { type: "member_removed", trigger: why(each), at_ms: 4000 + each, member },
  ]);
  const phases = { slowest: [[members[46], 3000], [members[1], 20]] };
  const said = { type: "classic", rebalanced: true, what: "", meaning: "", diagnosis: "" };
  const rebalances = [
    { ...said, started_ms: 1000, ended_ms: 4000, generation: 1, waiting: [], phases },
    { ...said, started_ms: 5000, ended_ms: null, generation: 2, phases: { slowest: [] },
      waiting: [{ member: members[48], since_ms: 5000 }] },
  ];
  const timeline = { at_ms: 9000, entries, rebalances };
  const group = { members, more_members: 0, at_ms: 9000 }, span = { now: 9000, from: 0, to: 9000 };
  draw(holder, { timeline, group, ...span, chosen: null, label: (each) => each.id });
  const rows = [...holder.querySelectorAll("text")].filter((each) => each.querySelector("title"));
  return {
    rows: rows.map((text) => text.firstChild.data),
    owing: holder.querySelectorAll("rect.owe title").length,
    evicted: holder.querySelectorAll(".end.bad").length,
  };
}"""


@pytest.mark.parametrize(("there", "gone"), [(50, 1), (50, 300), (50, 8), (2_000, 300)])
async def test_those_that_matter_have_a_row(shown: Shown, open_page: Open, there: int, gone: int) -> None:
    """Who is waited for, was evicted, or was the slowest; and half of the rows are of who is there."""
    found = await (await open_page(shown)).evaluate(_CROWD, {"there": there, "gone": gone})
    rows = found["rows"]
    assert len(rows) == 40
    assert {"app-0048", "app-0046"} <= set(rows)
    assert found["evicted"] == (gone > 7)
    assert found["owing"] >= 2
    left = [each for each in rows if each.startswith("old-")]
    assert len(left) == min(gone, 20)
    assert f"old-{gone - 1:04}" in left, "of those that left, the last"
    assert rows == sorted(rows), "in the order they have without the others"


_UNLISTED = """async () => {
  const { lives } = await import("/static/timeline.js");
  const added = (id, at_ms) => ({ type: "member_added", at_ms, member: { id, client_id: id, host: "h" } });
  const entries = [added("gone", 1000), added("here", 2000), added("new", 8000)];
  const timeline = { entries, rebalances: [], at_ms: 9000 };
  const group = { members: [entries[1].member], more_members: 0, at_ms: 7000 };
  const over = (life) => life.spans.at(-1).to !== null;
  const left = (known) => lives(timeline, known).filter(over).map((life) => life.member.id);
  return [left(group), left({ ...group, more_members: 1 })];
}"""


async def test_members_that_are_not_listed_have_not_left(shown: Shown, open_page: Open) -> None:
    """Those that joined after the list was made, and those that are too many for it."""
    page = await open_page(shown)
    complete, cut = await page.evaluate(_UNLISTED)
    assert complete == ["gone"]
    assert cut == []


_RESTARTED = """async () => {
  const { lives } = await import("/static/timeline.js");
  const named = (id, instance = "pod-1") => ({ id, client_id: "web", host: "h", instance });
  const replaced = (at_ms, old_member_id, id) => (
    { type: "member_replaced", at_ms, old_member_id, member: named(id) }
  );
  const known = [{ type: "member_added", at_ms: 1000, member: named("a") }, replaced(2000, "a", "b")];
  const cut = [{ type: "commit_refused", at_ms: 1500, member: named("zz", null) }];
  const group = { members: [named("c"), named("d", "pod-2")], at_ms: 9000 };
  const told = (entries) => lives({ entries: [...entries, replaced(3000, "b", "c")], at_ms: 9000 }, group)
    .map(({ member, spans }) => [member.id, spans.map(({ from, to, how }) => [String(from), to, how])]);
  return [told(known), told(cut)];
}"""


async def test_a_static_member_that_restarts_keeps_its_row(shown: Shown, open_page: Open) -> None:
    known, cut = await (await open_page(shown)).evaluate(_RESTARTED)
    other = ["d", [["-Infinity", None, None]]]
    restarts = [["1000", 2000, "replaced"], ["2000", 3000, "replaced"], ["3000", None, None]]
    assert known == [["c", restarts], other]
    # The journal begins after it came.
    assert cut == [["c", [["-Infinity", 3000, "replaced"], ["3000", None, None]]], other]


async def test_rows_that_open_have_a_mark(shown: Shown, member: Member, open_page: Open) -> None:
    page = await open_page(shown, "/#/groups/billing")
    summary = page.locator("#rebalances summary").first
    mark = 'summary => getComputedStyle(summary, "::before").content'
    assert (await summary.evaluate(mark)).startswith('"▸"')
    await summary.click()
    assert (await summary.evaluate(mark)).startswith('"▾"')


async def test_times_say_their_zone(shown: Shown, member: Member, open_page: Open) -> None:
    asked: list[str] = []
    page = await open_page(shown, "/#/groups/billing", timezone_id="Asia/Kolkata")
    page.on("request", lambda request: asked.append(request.url))
    await expect(page.locator("#rebalances-count")).to_have_text("1 · times in UTC+5:30")
    await expect(page.locator("#events-title")).to_contain_text("times in UTC+5:30")
    await expect(page.locator("#timeline-span")).to_have_text(
        re.compile(r"^\d\d:\d\d:\d\d to \d\d:\d\d:\d\d UTC\+5:30$")
    )
    await expect(page.locator("#timeline svg text", has_text="UTC+5:30")).to_have_count(1)
    when = page.locator("#rebalances time").first
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} UTC\+5:30", await when.get_attribute("title") or ""
    )
    await page.reload()
    await expect(when).to_be_visible()
    asks = "zone=Asia%2FCalcutta&utc_offset=330", "zone=Asia%2FKolkata&utc_offset=330"
    assert any(each.endswith(asks) for each in asked), "sentences tell times in the same zone"


async def test_headings_name_the_zone_that_their_times_are_in(
    shown: Shown, member: Member, open_page: Open
) -> None:
    """Which may be another than today's, or two."""
    winter, summer = (int(datetime(2026, month, 10, 12, tzinfo=UTC).timestamp() * 1000) for month in (1, 7))
    begun: list[int] = []

    async def earlier(route: Route) -> None:
        answer = await route.fetch()
        told = await answer.json()
        (one,) = told["rebalances"]
        told["rebalances"] = [{**one, "started_ms": each, "ended_ms": each + 9} for each in begun]
        told["entries"] = [{**told["entries"][0], "at_ms": each} for each in begun]
        await route.fulfill(response=answer, json=told)

    page = await open_page(shown, timezone_id="Europe/Berlin")
    await page.route("**/api/groups/billing/timeline*", earlier)
    for begun, zone in ([winter], "UTC+1"), ([summer], "UTC+2"), ([winter, summer], "Europe/Berlin"):
        await page.goto(f"{shown.page.url}/#/groups/billing")
        await expect(page.locator("#rebalances-count")).to_have_text(f"{len(begun)} · times in {zone}")
        await expect(page.locator("#events-title")).to_contain_text(f"times in {zone}")
        await page.goto(f"{shown.page.url}/#/")


async def test_nothing_is_said_where_there_is_nothing_to_say(
    shown: Shown, member: Member, open_page: Open
) -> None:
    page = await open_page(shown, "/#/groups/billing")
    await expect(page.locator("#rebalances li")).to_have_count(1)
    await expect(page.locator("#events li", has_text="all members have their assignment")).to_have_count(1)
    text = await page.locator("main").inner_text()
    assert "instance -" not in text
    assert ", 0 ms after the leader sent it" not in text


async def test_the_overview_tells_how_often_why_and_how_the_lag_went(
    shown: Shown, member: Member, open_page: Open
) -> None:
    await member.produce(0, 5)
    assert await member.commit({0: 1}) is ErrorCode.NONE
    page = await open_page(shown)
    billing = page.locator("#groups tbody tr", has_text="billing")
    cell: Any = lambda label: billing.locator(f'td[data-label="{label}"]')  # noqa: E731
    await expect(cell("Rebalances")).to_have_text(re.compile(r"^1 in \d+ s$"))
    await expect(cell("Last rebalance")).to_contain_text("new-member")
    await advance(shown, "10s")
    await expect(cell("Trend").get_by_role("img", name=re.compile("^lag over .*from 4 to 4"))).to_be_visible()
    await advance(shown, "2h")
    await expect(cell("Rebalances")).to_have_text("0 per hour")


async def test_a_broker_that_takes_requests_and_never_answers_is_said(
    shown: Shown, member: Member, open_page: Open
) -> None:
    page = await open_page(shown)
    await expect(page.locator("#groups tbody tr")).to_have_count(1)
    await page.evaluate(
        """() => {
          const limit = AbortSignal.timeout, answered = window.fetch;
          window.mend = () => { AbortSignal.timeout = limit; window.fetch = answered; };
          AbortSignal.timeout = (ms) => limit.call(AbortSignal, ms / 50);
          window.fetch = (path, { signal }) => new Promise((_, reject) => {
            signal.addEventListener("abort", () => reject(signal.reason));
          });
        }"""
    )
    await look_again(page)
    await expect(page.locator("#notice")).to_contain_text(
        "The broker is not answering. This page shows its state as of "
    )
    await expect(page.locator("#groups tbody tr")).to_have_count(1)
    await page.evaluate("window.mend()")
    await look_again(page)
    await expect(page.locator("#notice")).to_be_hidden()


async def test_the_skip_link_keeps_the_view(shown: Shown, member: Member, open_page: Open) -> None:
    page = await open_page(shown, "/#/groups/billing")
    await page.locator(".skip").focus()
    await page.keyboard.press("Enter")
    await expect(page.locator("#main")).to_be_focused()
    await expect(page.locator("#group-view")).to_be_visible()

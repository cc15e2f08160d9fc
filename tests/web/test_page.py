"""What a person sees and can do, in Chromium."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from playwright.async_api import Page, Route, expect

from muster.coordinator.web import api, app
from muster.coordinator.web.binding import prepare
from muster.protocol.errors import ErrorCode
from muster.protocol.messages.group_admin import DeleteGroupsRequest
from tests.http.conftest import Show, Shown
from tests.http.member import Member
from tests.support.facts import until
from tests.web.conftest import Open, look_again


def row(page: Page, table: str, text: str):  # type: ignore[no-untyped-def]
    """The row of a table that contains this text."""
    return page.locator(f"#{table} tbody tr", has_text=text)


async def test_without_groups_it_says_how_to_get_one(shown: Shown, open_page: Open) -> None:
    page = await open_page(shown)
    await expect(page.locator("#groups-empty")).to_contain_text("No consumer groups yet.")
    commands = page.locator("#groups-empty pre")
    await expect(commands).to_contain_text(f"muster produce --bootstrap-server {shown.broker.address}")
    await expect(page.locator("#groups")).to_be_hidden()
    await expect(page.locator("#live")).to_have_text("live")
    await expect(page).to_have_title("Groups · muster")


async def test_the_list_follows_the_groups_by_itself(shown: Shown, open_page: Open) -> None:
    page = await open_page(shown)
    await expect(page.locator("#groups-empty")).to_be_visible()
    async with await Member.connect(shown.port) as member:
        await member.alone([0, 1, 2])
        billing = row(page, "groups", "billing")
        await expect(billing).to_contain_text("Stable")
        await expect(billing.locator("td").nth(2)).to_have_text("1")
        await expect(billing).to_contain_text("member joined: web-1")
        await member.produce(0, 1_200)
        assert await member.commit({0: 0}) is ErrorCode.NONE
        await expect(billing.locator("td").nth(3)).to_have_text("1,200")
        await member.leave()
        await expect(billing).to_contain_text("Empty")
        await member.wire.call(DeleteGroupsRequest(groups_names=["billing"]), 2)
        await expect(billing).to_have_count(0)
        await expect(page.locator("#groups-empty")).to_be_visible()


async def test_a_group_shows_members_assignment_offsets_and_why_it_rebalanced(
    shown: Shown, member: Member, open_page: Open
) -> None:
    await member.produce(0, 12)
    assert await member.commit({0: 5}) is ErrorCode.NONE
    page = await open_page(shown, "/#/groups/billing")
    await expect(page.locator("#group-title")).to_contain_text("billing")
    await expect(page.locator("#group-state")).to_contain_text("Stable")
    mine = row(page, "members", member.id)
    await expect(mine).to_contain_text("web-1")
    await expect(mine).to_contain_text("orders 0–2")
    offsets = await row(page, "partitions", "orders-0").locator("td").all_text_contents()
    assert offsets[:5] == ["orders-0", "web-1", "5", "12", "7"]
    rebalance = page.locator("#rebalances li").first
    await expect(rebalance).to_contain_text("joined the empty group")
    await expect(rebalance).to_contain_text("new-member")
    await expect(page.locator("#timeline svg text", has_text="web-1")).to_have_count(1)
    await expect(page.locator("#events li").first).not_to_be_empty()

    # A second member joins and waits. The page shows that it waits, and for whom.
    async with await Member.connect(shown.port, client_id="web-2") as second:
        await second.ask_to_join()
        await expect(page.locator("#group-state")).to_contain_text("waits for 1")
        await expect(mine).to_contain_text("its JoinGroup is waited for")
        await expect(page.locator("#timeline svg rect.owe", has_text="its JoinGroup")).to_have_count(1)
        await member.ask_to_join()
        await member.joined()
        await second.joined()
        await second.sync()
        await member.sync({member.id: [0], second.id: [1, 2]})
        await member.synced()
        await second.synced()
        await expect(page.locator("#group-state")).to_contain_text("Stable")
        await expect(row(page, "members", second.id)).to_contain_text("orders 1, 2")
        await expect(page.locator("#rebalances li")).to_have_count(2)
        await expect(page.locator("#announcer")).to_have_text("billing is Stable with 2 members")
        await page.locator("#rebalances summary").first.click()
        await expect(page.locator("#rebalances dl").first).to_contain_text("web-1 → web-2")
        await expect(page.locator("#timeline rect.band.chosen")).to_have_count(1)


async def test_it_can_be_used_by_keyboard_alone(shown: Shown, member: Member, open_page: Open) -> None:
    page = await open_page(shown)
    await expect(row(page, "groups", "billing")).to_be_visible()
    await page.keyboard.press("Tab")
    await expect(page.locator(".skip")).to_be_focused()
    await page.locator("#find").focus()
    await page.keyboard.type("nothing like it")
    await expect(page.locator("#groups-empty")).to_contain_text("No group here has “nothing like it”")
    await page.keyboard.press("Control+A")
    await page.keyboard.type("ORDERS")  # topics are searched too
    await expect(row(page, "groups", "billing")).to_be_visible()
    await page.keyboard.press("Tab")
    await expect(page.get_by_role("button", name="Group", exact=True)).to_be_focused()
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("columnheader", name="Group")).to_have_attribute("aria-sort", "ascending")
    for _ in range(await page.locator("#groups thead button:visible").count()):
        await page.keyboard.press("Tab")
    await expect(page.locator("#groups tbody a")).to_be_focused()
    await page.keyboard.press("Enter")
    await expect(page.locator("#main")).to_be_focused()
    await expect(page).to_have_title("billing · muster")
    summary = page.locator("#rebalances summary").first
    await summary.focus()
    await page.keyboard.press("Enter")
    await expect(page.locator("#rebalances details[open]")).to_have_count(1)
    span = page.get_by_role("button", name="5 min", exact=True)
    await span.focus()
    await page.keyboard.press("Space")
    await expect(span).to_have_attribute("aria-pressed", "true")
    await page.go_back()
    await expect(page.locator("#groups-view")).to_be_visible()


async def test_what_was_opened_and_focused_stays_so_when_figures_change(
    shown: Shown, member: Member, open_page: Open
) -> None:
    page = await open_page(shown, "/#/groups/billing")
    summary = page.locator("#rebalances summary").first
    await summary.click()
    await summary.focus()
    await member.produce(1, 9)
    assert await member.commit({1: 2}) is ErrorCode.NONE
    await expect(row(page, "partitions", "orders-1").locator("td").nth(4)).to_have_text("7")
    await expect(page.locator("#rebalances details[open]")).to_have_count(1)
    await expect(summary).to_be_focused()
    link = page.locator("#group-facts a")
    await link.focus()
    assert await member.commit({1: 5}) is ErrorCode.NONE
    await expect(row(page, "partitions", "orders-1").locator("td").nth(4)).to_have_text("4")
    await expect(link).to_be_focused()


async def test_groups_that_are_not_listed_are_not_denied(
    shown: Shown, member: Member, open_page: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "GROUPS_MAX", 1)
    async with await Member.connect(shown.port, "shipping") as other:
        await other.alone([0])
        page = await open_page(shown)
        await expect(row(page, "groups", "billing")).to_have_count(1)
        await expect(page.locator("#groups-more")).to_have_text(
            "1 more group: search by name at /api/groups?find=…"
        )
        await page.locator("#find").fill("shipping")
        await expect(page.locator("#groups-empty")).to_contain_text("No group listed here has “shipping”")


async def test_a_group_of_many_topics_says_how_many_more(
    shown: Shown, open_page: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "_TOPICS_SHOWN", 1)
    await shown.create_topic("returns")
    for topic in ("orders", "returns"):
        async with await Member.connect(shown.port, topic=topic) as member:
            assert await member.commit({0: 0}, generation=-1) is ErrorCode.NONE
    page = await open_page(shown, "/#/groups/billing")
    await expect(page.locator("#group-facts")).to_contain_text("orders and 1 more")


async def test_the_group_with_the_empty_id_has_its_page(shown: Shown, open_page: Open) -> None:
    async with await Member.connect(shown.port, "") as member:
        assert await member.commit({0: 0}, generation=-1) is ErrorCode.NONE
    page = await open_page(shown)
    await page.locator("#groups tbody a").click()
    await expect(page.locator("#group-name")).to_have_text("(the empty name)")
    await expect(row(page, "partitions", "orders-0")).to_have_count(1)


async def test_events_of_the_same_moment_are_shown_once_each(
    shown: Shown, member: Member, open_page: Open
) -> None:
    """They are alike to the last character."""
    now_ms = shown.broker.clock.now_ms()
    shown.broker.clock.now_ms = lambda: now_ms  # type: ignore[method-assign]
    for _ in range(3):
        assert await member.commit({0: 1}, generation=77) is ErrorCode.ILLEGAL_GENERATION
    await shown.journalled("commit_refused", times=3)
    page = await open_page(shown, "/#/groups/billing")
    refused = page.locator("#events li", has_text="ILLEGAL_GENERATION")
    await expect(refused).to_have_count(3)
    for times in (4, 5):
        assert await member.commit({0: 1}, generation=77) is ErrorCode.ILLEGAL_GENERATION
        await expect(refused).to_have_count(times)
        # The answer of a look replaces what was heard meanwhile.
        async with page.expect_response(re.compile("/api/groups/billing/timeline")):
            await look_again(page)
        await expect(refused).to_have_count(times)


async def test_a_tab_that_nobody_sees_holds_no_connection(
    shown: Shown, member: Member, open_page: Open
) -> None:
    """A browser has six for all tabs of a broker; with as many streams, no tab would get an answer."""
    page = await open_page(shown, "/#/groups/billing")
    await expect(page.locator("#live")).to_have_text("live")
    assert shown.page_feed.subscribers == 1
    await page.evaluate(_BE_SEEN, False)
    await until(lambda: shown.page_feed.subscribers == 0)
    await member.leave()
    await page.evaluate(_BE_SEEN, True)
    await expect(page.locator("#group-state")).to_contain_text("Empty")
    await until(lambda: shown.page_feed.subscribers == 1)
    await expect(page.locator("#live")).to_have_text("live")


_BE_SEEN = """seen => {
  Object.defineProperty(document, "hidden", { value: !seen, configurable: true });
  document.dispatchEvent(new Event("visibilitychange"));
}"""


async def test_shards_without_a_broker_are_said_and_not_taken_for_no_groups(
    shown: Shown, open_page: Open
) -> None:
    page = await open_page(shown)
    await expect(page.locator("#groups-empty")).to_contain_text("No consumer groups yet.")

    async def as_without_database(route: Route) -> None:
        """What this says once leases have run out."""
        answer = await route.fetch()
        await route.fulfill(response=answer, json={**await answer.json(), "without_broker": 150})

    await page.route("**/api/brokers", as_without_database)
    await look_again(page)
    await expect(page.locator("#notice")).to_contain_text("150 shards have no broker, and what is in them is")
    await expect(page.locator("#groups-empty")).to_contain_text("some shards have no broker")
    await page.get_by_role("link", name="Transactions").click()
    await expect(page.locator("#transactions-empty")).to_contain_text("some shards have no broker")
    await page.unroute("**/api/brokers")
    await look_again(page)
    await expect(page.locator("#notice")).to_be_hidden()
    await expect(page.locator("#transactions-empty")).to_contain_text("No transactional ids yet.")


async def test_names_are_text_whatever_is_in_them(shown: Shown, open_page: Open) -> None:
    name = '<img src=x onerror="document.title=1">/ä #?%'
    async with await Member.connect(shown.port, name, client_id="<b>web</b>") as member:
        await member.alone([0])
        page = await open_page(shown)
        await page.locator("#groups tbody a").click()
        await expect(page.locator("#group-name")).to_have_text(name)
        await expect(row(page, "members", member.id)).to_contain_text("<b>web</b>")
        assert await page.locator("main img, table b, ol b").count() == 0


async def test_a_very_long_name_leaves_room_for_the_others(
    shown: Shown, member: Member, open_page: Open
) -> None:
    async with await Member.connect(shown.port, "x" * 10_000) as other:
        await other.alone([1])
        page = await open_page(shown)
        rows = page.locator("#groups tbody tr")
        await expect(rows).to_have_count(2)
        heights = await rows.evaluate_all("rows => rows.map((each) => each.offsetHeight)")
        assert max(heights) < 150, "it may be some lines high, not the whole page"
        topics = row(page, "groups", "billing").locator("td.topics")
        assert await topics.evaluate("cell => cell.clientWidth") >= 80


async def test_a_group_that_is_not_here_says_where_it_is_or_that_there_is_none(
    show: Show, open_page: Open
) -> None:
    shown = await show(brokers=2, advertised_http="pages.example:8080")
    group = (await shown.groups_of_brokers())[2]
    shown.brokers._running.discard(1)  # as if it ran in another process
    try:
        page = await open_page(shown, f"/#/groups/{group}", down=True)
        link = page.locator("#group-empty a")
        await expect(link).to_have_attribute("href", f"http://pages.example:8080/#/groups/{group}")
        await expect(page.locator("#group-body")).to_be_hidden()
        mine = (await shown.groups_of_brokers())[1]
        await page.goto(f"{shown.page.url}/#/groups/{mine}")
        await expect(page.locator("#group-empty")).to_contain_text(f"there is no group '{mine}'.")
        await page.locator("#group-empty a").click()
        elsewhere = page.locator("#elsewhere")
        await expect(elsewhere.locator("a")).to_have_attribute("href", "http://pages.example:8080")
        await expect(elsewhere).to_contain_text("broker 2 with ")
    finally:
        shown.brokers._running.add(1)


async def test_it_survives_the_server_and_says_so_meanwhile(
    shown: Shown, member: Member, open_page: Open
) -> None:
    page = await open_page(shown, down=True)
    await expect(row(page, "groups", "billing")).to_be_visible()
    await shown.page.close()
    await expect(page.locator("#live")).to_have_text("reconnecting")
    await expect(page.locator("#notice")).to_contain_text("is not answering")
    await expect(row(page, "groups", "billing")).to_be_visible()
    shown.brokers.settings = replace(shown.brokers.settings, http=f"127.0.0.1:{shown.page.port}")
    again = await app.start(await prepare(shown.brokers))
    try:
        await expect(page.locator("#live")).to_have_text("live")
        await expect(page.locator("#notice")).to_be_hidden()
    finally:
        await again.close()


async def test_a_timeline_does_not_go_on_without_the_server(
    shown: Shown, member: Member, open_page: Open
) -> None:
    page = await open_page(shown, "/#/groups/billing", down=True)
    calm, span = page.locator("#timeline rect.calm"), page.locator("#timeline-span")
    await expect(calm).to_have_count(1)
    await shown.page.close()
    await expect(page.locator("#notice")).to_contain_text("is not answering")
    said = await page.locator("#notice").text_content()
    as_of = re.search(r"as of (\d\d:\d\d:\d\d)", said or "")
    assert as_of is not None
    await expect(span).to_contain_text(f"to {as_of[1]} UTC")
    # It is drawn again every second; the browser goes on.
    await page.evaluate("() => { window.now = Date.now; Date.now = () => window.now() + 60000; }")
    await page.evaluate("document.querySelector('#timeline svg').id = 'before'")
    await expect(page.locator("#before")).to_have_count(0)
    await expect(span).to_contain_text(f"to {as_of[1]} UTC")
    await page.evaluate("() => { Date.now = window.now; }")
    shown.brokers.settings = replace(shown.brokers.settings, http=f"127.0.0.1:{shown.page.port}")
    again = await app.start(await prepare(shown.brokers))
    try:
        await look_again(page)
        await expect(page.locator("#notice")).to_be_hidden()
        await expect(span).not_to_contain_text(f"to {as_of[1]} UTC")
    finally:
        await again.close()


async def test_the_notice_names_the_day_on_which_the_server_last_answered(
    shown: Shown, open_page: Open
) -> None:
    page = await open_page(shown, down=True)
    notice = page.locator("#notice")
    await expect(page.locator("#groups-empty")).to_be_visible()
    await shown.page.close()
    await look_again(page)
    await expect(notice).to_contain_text(re.compile(r"as of \d\d:\d\d:\d\d UTC"))
    await page.evaluate("() => { const now = Date.now; Date.now = () => now() + 86400000; }")
    await look_again(page)
    await expect(notice).to_contain_text(re.compile(r"as of \d+ [A-Z][a-z]{2,3} \d\d:\d\d:\d\d UTC"))


_CONTRAST = """() => {
  const style = getComputedStyle(document.documentElement);
  const channel = (value) => (value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
  const luminance = (name) => {
    let text = style.getPropertyValue(name).trim().slice(1);
    if (text.length === 3) text = [...text].map((each) => each + each).join("");
    const [r, g, b] = [0, 2, 4].map((at) => channel(parseInt(text.slice(at, at + 2), 16) / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const found = {};
  for (const ground of ["--ground", "--panel", "--hover"])
    for (const ink of ["--text", "--quiet", "--accent", "--calm-text", "--owe-text", "--bad"]) {
      const [low, high] = [luminance(ground), luminance(ink)].sort((a, b) => a - b);
      found[`${ink} on ${ground}`] = (high + 0.05) / (low + 0.05);
    }
  return found;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_text_has_contrast_in_both_schemes(shown: Shown, open_page: Open, scheme: str) -> None:
    page = await open_page(shown, color_scheme=scheme)
    await expect(page.locator("#groups-empty")).to_be_visible()
    found: dict[str, float] = await page.evaluate(_CONTRAST)
    assert {pair: ratio for pair, ratio in found.items() if ratio < 4.5} == {}  # WCAG AA
    ground = await page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    bright = int(re.findall(r"\d+", ground)[0]) > 128
    assert bright is (scheme == "light")


@pytest.mark.parametrize("width", [420, 320])
async def test_a_narrow_window_needs_no_scrolling_sideways(
    shown: Shown, member: Member, open_page: Open, width: int
) -> None:
    page = await open_page(shown, "/#/groups/billing", viewport={"width": width, "height": 800})
    await expect(page.locator("#members tbody tr")).to_have_count(1)
    assert await page.evaluate("document.documentElement.scrollWidth") <= width


async def test_tables_and_regions_have_names_for_screen_readers(
    shown: Shown, member: Member, open_page: Open
) -> None:
    page = await open_page(shown, "/#/groups/billing")
    for name in ("Members 1", "Rebalances 1", "Offsets 3"):
        await expect(page.get_by_role("region", name=name)).to_be_visible()
    await expect(page.get_by_role("heading", level=1)).to_contain_text("billing")
    await expect(page.get_by_role("img", name=re.compile("Timeline of 1 members"))).to_be_visible()
    assert await page.locator("th:not([scope])").count() == 0

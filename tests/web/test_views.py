"""The views of topics, records and brokers, in Chromium."""

from __future__ import annotations

import asyncio

import pytest
from playwright.async_api import Page, Route, expect

from muster.coordinator.web import records as looks
from muster.coordinator.web import topics_api
from muster.protocol.errors import ErrorCode
from tests.http.conftest import Show, Shown
from tests.http.member import Member
from tests.http.test_topics_api import produce, values
from tests.support.facts import until
from tests.web.conftest import Open, look_again

_TOFU = '<img src=x onerror="document.title=1">'


def row(page: Page, table: str, text: str):  # type: ignore[no-untyped-def]
    """The row of a table that contains this text."""
    return page.locator(f"#{table} tbody tr", has_text=text)


async def test_topics_lead_to_their_partitions_and_those_to_records(
    shown: Shown, member: Member, open_page: Open
) -> None:
    await member.produce(0, 12)
    assert await member.commit({0: 5}) is ErrorCode.NONE
    page = await open_page(shown)
    await page.get_by_role("link", name="Topics").click()
    await expect(page).to_have_title("Topics · muster")
    await expect(page.locator("#views a[aria-current=page]")).to_have_text("Topics")
    orders = row(page, "topics", "orders")
    for place, text in enumerate(["orders", "3", "12"]):
        await expect(orders.locator("td").nth(place)).to_have_text(text)
    await expect(orders.get_by_role("link", name="billing")).to_be_visible()
    await expect(row(page, "topics", "__group_events")).to_have_count(0)
    await page.get_by_label("internal").check()
    await expect(row(page, "topics", "__group_events")).to_have_count(1)
    await page.locator("#find-topic").fill("nothing like it")
    await expect(page.locator("#topics-empty")).to_have_text("No topic has “nothing like it” in its name.")
    await page.locator("#find-topic").fill("")

    await orders.get_by_role("link", name="orders").click()
    await expect(page).to_have_title("orders · muster")
    billing = row(page, "topic-groups", "billing")
    await expect(billing.locator("td")).to_have_text(["billing", "7", "0–2", "0"])
    first = page.locator("#topic-partitions tbody tr").first
    await expect(first).to_contain_text("billing 7 behind")
    await first.get_by_role("link", name="look at records").click()
    await expect(page).to_have_title("orders-0 · muster")
    await expect(page.locator("#records tbody tr")).to_have_count(12)
    await page.go_back()
    await expect(page.locator("#topic-view")).to_be_visible()


async def test_records_are_shown_as_what_they_are_and_page_by_page(shown: Shown, open_page: Open) -> None:
    await produce(shown.port, values(*(f"old {each}".encode() for each in range(20))))
    big = b'{"id": 12345678901234567890, "tags": ["a", {}], "text": "' + _TOFU.encode().replace(b'"', b"'")
    await produce(shown.port, values(big + b'"}', _TOFU.encode(), bytes(range(20)), None))
    page = await open_page(shown, "/#/topics/orders/0", down=True)  # the browser complains about the 400 too
    rows = page.locator("#records tbody tr")
    await expect(rows).to_have_count(20)
    await expect(page.locator("#records-said")).to_contain_text(
        "20 records, offsets 4 to 23; the partition has 0 to 23"
    )
    assert await page.locator("main img").count() == 0
    await expect(rows.nth(0).locator("td.value")).to_have_text("null")
    await expect(rows.nth(1).locator("summary")).to_contain_text("0x000102")
    await expect(rows.nth(2).locator("summary")).to_have_text(_TOFU)

    json = rows.nth(3).locator("td.value")
    await json.locator("summary").click()
    await expect(json.locator("pre")).to_contain_text(
        '  "id": 12345678901234567890,\n  "tags": [\n    "a",\n    {}\n  ],'
    )
    await expect(json).to_contain_text("value, JSON, ")
    await rows.nth(1).locator("summary").focus()
    await page.keyboard.press("Enter")
    await expect(rows.nth(1).locator("pre")).to_contain_text("0010  10 11 12 13")
    await expect(rows.nth(1)).to_contain_text("value, binary, 20 B")

    await expect(page.locator("#records-newer")).to_be_disabled()
    await page.get_by_role("button", name="Older").click()
    await expect(rows).to_have_count(4)
    await expect(page.locator("#records-older")).to_be_disabled()
    await page.get_by_role("button", name="Newer").click()
    await expect(page.locator("#records-said")).to_contain_text("offsets 4 to 23")
    await page.get_by_label("From offset").fill("21")
    await page.keyboard.press("Enter")
    await expect(rows).to_have_count(3)
    await page.get_by_label("From offset").fill("x")
    await page.keyboard.press("Enter")
    await expect(page.locator("#records-said")).to_contain_text("offset: 'x' is not a whole number")


async def test_batches_that_are_not_shown_are_no_dead_end(
    shown: Shown, open_page: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(looks, "_READ_BYTES_MAX", 1)  # one read for a look
    monkeypatch.setattr(looks, "_UNPACKED_BYTES_MAX", 1_000)
    for some in ([b"old"], [b"x" * 900] * 2, [b"x" * 900] * 2):
        await produce(shown.port, values(*some))
    page = await open_page(shown, "/#/topics/orders/0")
    said, none = page.locator("#records-said"), page.locator("#records-empty")
    for offset in (3, 1):
        await expect(said).to_contain_text(f"A batch of 2 records at offset {offset} is not shown")
        await expect(none).to_contain_text("There may be others before and after them.")
        await page.get_by_role("button", name="Older").click()
    rows = page.locator("#records tbody tr")
    await expect(rows).to_have_count(1)
    await expect(none).to_be_hidden()
    await expect(page.locator("#records-older")).to_be_disabled()
    await page.get_by_role("button", name="Newer").click()
    await expect(said).to_contain_text("at offset 1 is not shown")
    await expect(page.locator("#records-newer")).to_be_disabled()


async def test_what_is_empty_says_what_to_do(show: Show, open_page: Open) -> None:
    shown = await show()
    page = await open_page(shown, "/#/topics", down=True)
    await expect(page.locator("#topics-empty")).to_contain_text("No topics yet.")
    await shown.create_topic()
    await page.goto(f"{shown.page.url}/#/topics/orders/0")
    await expect(page.locator("#records-empty")).to_contain_text("The partition is empty.")
    await produce(shown.port, values(b"one"))
    await page.get_by_role("button", name="Newest").click()
    await expect(page.locator("#records tbody tr")).to_have_count(1)
    await page.goto(f"{shown.page.url}/#/topics/orders")
    await expect(page.locator("#topic-groups-empty")).to_contain_text(
        "No group coordinated here reads this topic."
    )
    await page.goto(f"{shown.page.url}/#/topics/nothing")
    await expect(page.locator("#topic-empty")).to_contain_text("there is no topic 'nothing'.")
    await page.locator("#topic-empty a").click()
    await expect(page.locator("#topics-view")).to_be_visible()


async def test_a_partition_without_a_leader_is_never_called_empty(shown: Shown, open_page: Open) -> None:
    led = False

    async def answer(route: Route) -> None:
        if led:
            await route.continue_()
        else:
            await route.fulfill(status=503, json={"error": "no broker leads it"})

    page = await open_page(shown, down=True)
    await page.route("**/records?*", answer)
    await page.goto(f"{shown.page.url}/#/topics/orders/0")
    said = page.locator("#records-empty")
    await expect(said).to_contain_text("no broker leads it")
    led = True
    await look_again(page)
    await expect(said).to_contain_text("The partition is empty.")
    led = False
    async with page.expect_response("**/records?*"):
        await page.get_by_role("button", name="Newest").click()
    await expect(said).to_contain_text("no broker leads it")


async def test_a_look_under_way_takes_nothing_from_the_view_that_is_opened(
    shown: Shown, open_page: Open
) -> None:
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def hold(route: Route) -> None:
        asked.set()
        await go_on.wait()
        await route.continue_()

    page = await open_page(shown)
    await page.route("**/api/brokers", hold)
    await look_again(page)
    await asyncio.wait_for(asked.wait(), 30)
    await page.goto(f"{shown.page.url}/#/topics/orders/0")
    await expect(page.locator("#records-view")).to_be_visible()
    go_on.set()
    await expect(page.locator("#records-empty")).to_contain_text("The partition is empty.")


async def test_topics_that_are_not_listed_are_not_denied(
    shown: Shown, open_page: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    await shown.create_topic("zebra")
    monkeypatch.setattr(topics_api, "TOPICS_MAX", len(shown.broker.catalogue.topics()) - 1)
    page = await open_page(shown, "/#/topics")
    await expect(row(page, "topics", "orders")).to_have_count(1)
    await expect(page.locator("#topics-more")).to_have_text(
        "1 more topic: search by name at /api/topics?find=…"
    )
    await page.locator("#find-topic").fill("zebra")
    await expect(page.locator("#topics-empty")).to_have_text("No topic listed here has “zebra” in its name.")


async def test_brokers_and_shards_are_shown_and_who_goes_away_is_said(show: Show, open_page: Open) -> None:
    # A broker that does not hand over its leases in time is listed until they expire.
    shown = await show(brokers=2, shutdown_grace_ms=25_000)
    page = await open_page(shown, "/#/brokers")
    brokers = page.locator("#broker-table tbody tr")
    await expect(brokers).to_have_count(2)
    await expect(brokers.nth(1)).to_contain_text("serving")
    await expect(page.locator("#shards tbody tr")).to_have_count(shown.brokers.shards)
    await page.get_by_role("button", name="topic data").click()
    await expect(page.locator("#shards-note")).to_contain_text("leads those partitions")
    await page.get_by_role("button", name="Leader").click()
    await expect(page.locator("#shards tbody tr").first).to_contain_text("broker 1")
    await page.get_by_role("button", name="Leader").click()
    await expect(page.locator("#shards tbody tr").first).to_contain_text("broker 2")

    await shown.brokers.stop_one(1)
    await until(lambda: list(shown.broker.topology.nodes) == [1], "the second broker gone")
    await look_again(page)
    await expect(page.locator("#notice")).to_contain_text("Broker 2 (127.0.0.1:")
    await expect(page.locator("#notice")).to_contain_text("left at ")
    await expect(brokers.nth(1)).to_contain_text("gone for ")
    await shown.brokers.start_one(1)
    await until(lambda: list(shown.broker.topology.nodes) == [1, 2], "the second broker back")
    await look_again(page)
    await expect(page.locator("#notice")).to_be_hidden()
    await expect(brokers.nth(1)).to_contain_text("serving")


async def test_records_of_another_process_link_to_its_page(show: Show, open_page: Open) -> None:
    shown = await show(brokers=2, advertised_http="pages.example:8080")
    await shown.create_topic(partitions=20)
    topic, other = shown.broker.catalogue.named("orders"), shown.brokers.brokers[1]
    theirs = next(each for each in range(20) if other.partitions.leader_epoch(topic, each) is not None)
    shown.brokers._running.discard(1)  # as if it ran in another process
    try:
        page = await open_page(shown, f"/#/topics/orders/{theirs}", down=True)
        link = page.locator("#records-empty a")
        await expect(link).to_have_attribute("href", f"http://pages.example:8080/#/topics/orders/{theirs}")
        await expect(page.locator("#records-empty")).to_contain_text(
            f"Broker 2 leads partition {theirs} of orders"
        )
        await page.goto(f"{shown.page.url}/#/topics/orders")
        elsewhere = page.locator("#topic-elsewhere a")
        await expect(elsewhere).to_have_attribute("href", "http://pages.example:8080/#/topics/orders")
        await page.goto(f"{shown.page.url}/#/brokers")
        await expect(page.locator("#broker-table a")).to_have_attribute(
            "href", "http://pages.example:8080/#/brokers"
        )
    finally:
        shown.brokers._running.add(1)

"""The transactions view, in Chromium."""

from __future__ import annotations

import re

import pytest
from playwright.async_api import expect

from muster.coordinator.web import transactions_api
from muster.protocol.errors import ErrorCode
from tests.http.conftest import Show, Shown
from tests.http.member import Member
from tests.http.test_transactions_api import MINUTE_MS, is_over, now_ms
from tests.http.transactional import STRAY, UNVERIFIED, Transactional
from tests.web.conftest import Open, look_again
from tests.web.test_views import row


async def test_it_says_who_holds_back_whom_since_when(show: Show, open_page: Open) -> None:
    shown = await show(**UNVERIFIED)
    await shown.create_topic()
    page = await open_page(shown, "/#/transactions")
    await expect(page).to_have_title("Transactions · muster")
    await expect(page.locator("#views a[aria-current=page]")).to_have_text("Transactions")
    await expect(page.locator("#transactions-empty")).to_contain_text("No transactional ids yet.")
    await expect(page.locator("#held-part")).to_be_hidden()

    since_ms = now_ms(shown) - 3 * MINUTE_MS
    async with (
        await Member.connect(shown.port) as member,
        await Transactional.connect(shown.port) as open,
        await Transactional.stray(shown.port) as stray,
    ):
        await member.alone([0, 1])
        await member.produce(0, 2)
        assert await member.commit({0: 2, 1: 0}) is ErrorCode.NONE
        await stray.write(0, 3, at_ms=since_ms)
        await open.begin(1)
        await open.write(1, 1, at_ms=now_ms(shown) - 10_000)
        await look_again(page)
        await expect(page.locator("#held-count")).to_have_text("2 partitions, 1 by hanging transactions")
        hangs = page.locator("#held tbody tr").first
        await expect(hangs.locator(".hanging")).to_have_text("hanging")
        for said in (
            "orders-0",
            f"producer {STRAY[0]}",
            "3 min",
            f"no coordinator knows producer id {STRAY[0]}",
            "muster transactions abort --topic orders --partition 0 --start-offset 2",
            "billing stands there, 3 behind",
        ):
            await expect(hangs).to_contain_text(said)
        other = row(page, "held", "orders-1")
        await expect(other).to_contain_text("under way")
        await expect(other).to_contain_text("billing stands there, 1 behind")
        mine = row(page, "transactions", "etl-1")
        await expect(mine.locator(".state")).to_have_text(re.compile(r"^Ongoing \d+ s$"))

        await open.end(commits=True)
        await is_over(shown, open)
        await look_again(page)
        await expect(mine.locator(".state")).to_contain_text("CompleteCommit")
        await expect(page.locator("#held tbody tr")).to_have_count(1)
        await hangs.get_by_role("link", name="billing").click()
        await expect(page).to_have_title("billing · muster")


async def test_offsets_that_hang_can_be_ended_as_it_says(show: Show, open_page: Open) -> None:
    shown = await show(**UNVERIFIED)
    await shown.create_topic()
    number = shown.broker.runtime.number_of("billing")
    page = await open_page(shown, "/#/transactions")
    async with await Transactional.stray(shown.port) as stray:
        await stray.write_offset("billing", 0, 5)
        await look_again(page)
        await expect(page.locator("#held tbody tr")).to_contain_text(
            f"muster transactions abort --topic __consumer_offsets --partition {number}"
            f" --producer-id {STRAY[0]}"
        )


async def test_ids_are_found_and_are_text(shown: Shown, open_page: Open) -> None:
    odd = '<img src=x onerror="document.title=1">'
    async with (
        await Transactional.connect(shown.port, odd),
        await Transactional.connect(shown.port, "etl-1") as open,
    ):
        await open.begin(0)
        page = await open_page(shown, "/#/transactions")
        await expect(page.locator("#transactions tbody tr")).to_have_count(2)
        await expect(page.locator("#transactions tbody td.name")).to_have_text(["etl-1", odd])
        assert await page.locator("main img").count() == 0
        await page.locator("#find-transaction").fill("orders")
        await expect(page.locator("#transactions-count")).to_have_text("1 of 2")
        await page.locator("#find-transaction").fill("nothing like it")
        await expect(page.locator("#transactions-empty")).to_have_text(
            "No transactional id here has “nothing like it” in its name or its topics."
        )


async def test_ids_that_are_not_listed_are_not_denied_and_neither_is_what_is_held_back(
    show: Show, open_page: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TRANSACTIONS_MAX", "HELD_MAX"):
        monkeypatch.setattr(transactions_api, name, 1)
    shown = await show(**UNVERIFIED)
    await shown.create_topic()
    async with (
        await Transactional.connect(shown.port, "etl-1"),
        await Transactional.connect(shown.port, "etl-2"),
        await Transactional.stray(shown.port) as stray,
    ):
        for partition in (0, 1):
            await stray.write(partition, 1, at_ms=now_ms(shown) - MINUTE_MS)
        page = await open_page(shown, "/#/transactions")
        await expect(page.locator("#held-count")).to_have_text(
            "1 partition and 1 more, 1 by hanging transactions"
        )
        await expect(page.locator("#transactions-more")).to_have_text(
            "1 more transactional id: search by name at /api/transactions?find=…"
        )
        await page.locator("#find-transaction").fill("etl-2")
        await expect(page.locator("#transactions-empty")).to_contain_text(
            "No transactional id listed here has “etl-2”"
        )

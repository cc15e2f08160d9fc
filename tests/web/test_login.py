"""The page when a token is required, over TLS, in Chromium."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.async_api import Browser, Error, expect

from muster.protocol.errors import ErrorCode
from tests.http.conftest import Show, Shown
from tests.http.member import Member
from tests.server.security.conftest import Keys, keys
from tests.web.conftest import Open

__all__ = ["keys"]

TOKEN = "sesame"
LOGIN = {"http_credentials": {"username": "me", "password": TOKEN}}


@pytest.fixture
async def locked(show: Show, keys: Keys, tmp_path: Path) -> Shown:
    token = tmp_path / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    shown = await show(http_token_file=str(token), http_ssl_keystore_location=str(keys.server.both))
    await shown.create_topic()
    return shown


async def test_after_the_login_everything_is_there_and_goes_on(locked: Shown, open_page: Open) -> None:
    """The browser does not know the test's CA, as with one that its user made."""
    page = await open_page(locked, ignore_https_errors=True, **LOGIN)
    await expect(page.locator("#groups-empty")).to_contain_text("No consumer groups yet.")
    await expect(page.locator("#live")).to_have_text("live")  # the event stream
    async with await Member.connect(locked.port) as member:
        await member.alone([0, 1, 2])
        billing = page.locator("#groups tbody tr", has_text="billing")
        await expect(billing).to_contain_text("member joined: web-1")
        await member.produce(0, 7)
        assert await member.commit({0: 0}) is ErrorCode.NONE
        await page.evaluate("location.hash = '#/topics/orders/0'")
        await expect(page.locator("#records tbody tr")).to_have_count(7)


async def test_a_login_in_the_address_is_as_good(locked: Shown, browser: Browser) -> None:
    """Browsers fetch nothing from an address that contains a password."""
    context = await browser.new_context(ignore_https_errors=True)
    page = await context.new_page()
    await page.goto(locked.page.url.replace("://", f"://me:{TOKEN}@"))
    await expect(page.locator("#groups-empty")).to_contain_text("No consumer groups yet.")
    await expect(page.locator("#live")).to_have_text("live")
    await context.close()


async def test_without_a_login_there_is_nothing(locked: Shown, browser: Browser) -> None:
    for credentials in ({}, {"http_credentials": {"username": "me", "password": "guess"}}):
        context = await browser.new_context(ignore_https_errors=True, **credentials)  # type: ignore[arg-type]
        page = await context.new_page()
        try:
            answer = await page.goto(locked.page.url)
        except Error as failed:  # the browser would prompt its user, and there is none
            said = str(failed)
        else:
            said = "" if answer is None else str(answer.status)
        assert "ERR_INVALID_AUTH_CREDENTIALS" in said or said == "401"
        await expect(page.locator("#groups-empty")).to_have_count(0)
        await context.close()

"""Chromium, and a page in it that must report no errors."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from playwright.async_api import Browser, BrowserContext, Page, Request, async_playwright, expect

from tests.http.conftest import Shown, member, show, shown

__all__ = ["member", "show", "shown"]

_CHROMIUM = ("chromium", "chromium-browser", "google-chrome")

Open = Callable[..., Awaitable[Page]]

expect.set_options(timeout=30_000)


async def look_again(page: Page) -> None:
    """Have the page refresh now instead of in a few seconds."""
    await page.evaluate("window.dispatchEvent(new Event('look'))")


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    """The system's Chromium; Playwright's own download is not needed."""
    found = next((path for name in _CHROMIUM if (path := shutil.which(name))), None)
    if found is None:
        pytest.exit("the tests of the page need Chromium: make web-tools installs it", 2)
    # As root, Chromium starts only without its sandbox; containers have little shared memory.
    flags = ["--disable-dev-shm-usage", *(["--no-sandbox"] if os.getuid() == 0 else [])]
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=found, args=flags, timeout=90_000)
        yield browser
        await browser.close()


@pytest.fixture
async def open_page(browser: Browser) -> AsyncIterator[Open]:
    """Open the brokers' page at a path. Fails the test at the end if a script raised, the console showed an
    error (such as a policy violation), or anything was requested from elsewhere."""
    contexts: list[BrowserContext] = []
    complaints: list[str] = []
    expected: list[str] = []

    async def start(shown: Shown, path: str = "/", *, down: bool = False, **context: object) -> Page:
        """`down`: the server will be down for some time, which a browser complains about."""
        made = await browser.new_context(**context)  # type: ignore[arg-type]
        contexts.append(made)
        page = await made.new_page()
        page.set_default_timeout(30_000)

        def asked(request: Request) -> None:
            if not request.url.startswith(f"{shown.page.url}/"):
                complaints.append(f"asked for {request.url}")

        page.on("request", asked)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        if down:
            expected.append("Failed to load resource")
        page.on("console", lambda said: complaints.append(said.text) if said.type == "error" else None)
        await page.goto(shown.page.url + path)
        return page

    yield start
    for each in contexts:
        await each.close()
    assert [each for each in complaints if not any(known in each for known in expected)] == []

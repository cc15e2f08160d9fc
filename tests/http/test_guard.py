"""Who may send requests, how errors look, and what a browser is told to refuse."""

from __future__ import annotations

import asyncio
import io
import re
import socket
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from muster.coordinator.base import log
from muster.coordinator.web import facts
from tests.http.conftest import Show, Shown


async def ask(shown: Shown, method: str, path: str, **headers: str) -> tuple[int, Any]:
    async with shown.http.request(method, shown.page.url + path, headers=headers) as answer:
        return answer.status, await answer.json()


async def test_nothing_but_reading_is_served_outside_of_test_mode(show: Show) -> None:
    shown = await show(test_mode=False)
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        status, answer = await ask(shown, method, "/api/groups")
        assert (status, answer) == (405, {"error": f"{method} is not served at /api/groups"})
    status, answer = await ask(shown, "POST", "/test/clock/advance")
    assert status == 404
    assert "--test-mode" in answer["error"]
    async with shown.http.head(shown.page.url + "/readyz") as head:
        assert head.status == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "10.0.0.1:1", "localhost.evil.example", "["]
)
async def test_a_name_that_was_pointed_at_this_machine_is_not_answered(shown: Shown, host: str) -> None:
    status, answer = await ask(shown, "GET", "/api/groups", Host=host)
    assert status == 421
    assert "listens on this machine alone" in answer["error"]


@pytest.mark.parametrize("host", ["localhost:1", "127.0.0.1", "[::1]:8080", "muster.localhost"])
async def test_names_of_this_machine_are_answered(shown: Shown, host: str) -> None:
    assert (await ask(shown, "GET", "/api/groups", Host=host))[0] == 200


@pytest.mark.parametrize("name", ["pages.example", "Pages.Example"])
async def test_the_name_that_is_advertised_is_answered(show: Show, name: str) -> None:
    shown = await show(advertised_http=f"{name}:443")  # as forwarded by a proxy on this machine
    assert (await ask(shown, "GET", "/api/groups", Host="pages.example"))[0] == 200
    assert (await ask(shown, "GET", "/api/groups", Host="pages.example.org"))[0] == 421


async def test_a_request_without_a_host_waits_for_no_name_server(
    shown: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes from no browser; HAProxy's health checks are like that."""

    def asked(name: str = "") -> str:
        raise AssertionError("a name server was asked")

    monkeypatch.setattr(socket, "getfqdn", asked)
    reader, writer = await asyncio.open_connection("127.0.0.1", shown.page.port)
    writer.write(b"GET /readyz HTTP/1.0\r\n\r\n")
    status = await asyncio.wait_for(reader.readline(), 10)
    writer.close()
    await writer.wait_closed()
    assert status.split()[1] == b"200"


_RECORDS = "/api/topics/orders/partitions/0/records"


@pytest.mark.parametrize("host", ["10.0.0.7:8080", "[fd00::1]:8080", "localhost", "pages.example:80"])
async def test_records_are_shown_under_addresses_and_the_name_that_is_advertised(
    show: Show, host: str
) -> None:
    shown = await show(http="0.0.0.0:0", http_insecure=True, advertised_http="pages.example:80")
    await shown.create_topic()
    assert (await ask(shown, "GET", _RECORDS, Host=host))[0] == 200


@pytest.mark.parametrize("host", ["evil.example", "broker-1:8080"])
async def test_records_are_not_shown_under_a_name_that_any_web_page_may_have(show: Show, host: str) -> None:
    shown = await show(http="0.0.0.0:0", http_insecure=True)
    await shown.create_topic()
    status, answer = await ask(shown, "GET", _RECORDS, Host=host)
    assert status == 421
    assert "open the page by its address, or name what it is called in --advertised-http" in answer["error"]
    assert (await ask(shown, "GET", "/api/topics/orders", Host=host))[0] == 200


async def test_records_can_be_kept_off_the_page(show: Show) -> None:
    shown = await show(http_records=False)
    await shown.create_topic()
    status, answer = await ask(shown, "GET", _RECORDS)
    assert (status, answer) == (403, {"error": "records are not shown here: http_records is false"})


async def test_on_every_interface_any_name_is_answered(show: Show) -> None:
    shown = await show(http="0.0.0.0:0", http_insecure=True)
    assert (await ask(shown, "GET", "/api/groups", Host="broker-1:8080"))[0] == 200
    assert shown.brokers.page is None  # not an address that others could use
    assert shown.page.url == f"http://localhost:{shown.page.port}"


async def test_pages_of_others_may_not_change_anything(shown: Shown) -> None:
    status, answer = await ask(shown, "DELETE", "/test/faults", Origin="http://evil.example")
    assert (status, answer["error"]) == (
        403,
        "requests from pages of http://evil.example are not allowed to change anything",
    )
    assert (await ask(shown, "DELETE", "/test/faults", Origin=shown.page.url))[0] == 200
    assert (await ask(shown, "DELETE", "/test/faults"))[0] == 200


async def test_every_answer_says_what_a_browser_may_do_with_it(shown: Shown) -> None:
    for path in ("/", "/static/page.js", "/api/groups", "/metrics", "/none", "/api/events/stream"):
        async with shown.http.get(shown.page.url + path) as answer:
            assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
            assert "unsafe" not in answer.headers["Content-Security-Policy"]
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
            assert answer.headers["Server"] == "muster"
            assert "Access-Control-Allow-Origin" not in answer.headers
            assert answer.headers["Cache-Control"] in ("no-store", "no-cache")


async def test_an_error_of_ours_shows_nothing_of_the_inside(
    shown: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged = io.StringIO()
    # Replace whatever a command in this process has set up before.
    for name, value in {
        "level": log.LEVELS["error"],
        "stream": logged,
        "writer": None,
        "logger": None,
    }.items():
        monkeypatch.setattr(log._Output, name, value)

    def broken(brokers: object) -> None:
        raise RuntimeError("the inside")

    monkeypatch.setattr(facts, "elsewhere", broken)
    status, answer = await shown.get("/api/groups")
    assert status == 500
    (reference,) = re.findall("under ([0-9a-f]{8})$", answer["error"])
    assert "the inside" not in answer["error"]
    assert reference in logged.getvalue()
    assert "the inside" in logged.getvalue()


async def test_what_is_not_there_is_named(shown: Shown) -> None:
    assert await shown.get("/nothing") == (404, {"error": "there is nothing at /nothing"})


async def test_the_page_loads_from_here_alone_and_is_kept_by_the_browser(shown: Shown) -> None:
    page = await shown.text("/")
    files = re.findall(r'(?:src|href)="(/static/[^"]+)"', page)
    assert {Path(each).suffix for each in files} == {".css", ".js", ".svg"}
    for path in ("/", *files):
        text = await shown.text(path)
        # Nothing from other hosts, and nothing that a strict policy would have to allow.
        assert not re.findall(r"https?://(?!www\.w3\.org/)", text), path
        assert not re.findall(r"\son\w+=|\sstyle=|@import", text), path
        async with shown.http.get(shown.page.url + path) as first:
            tag = first.headers["ETag"]
        async with shown.http.get(shown.page.url + path, headers={"If-None-Match": tag}) as second:
            assert (second.status, await second.read()) == (304, b"")
    async with shown.http.get(shown.page.url + "/static/../app.py", allow_redirects=False) as answer:
        assert answer.status == 404


async def test_the_port_can_be_taken_again_after_the_end(show: Show) -> None:
    shown = await show()
    await shown.page.close()
    await shown.page.close()
    with pytest.raises(aiohttp.ClientConnectionError):
        await shown.get("/healthz")
    again = await show(http=f"127.0.0.1:{shown.page.port}")
    assert (await again.get("/healthz"))[0] == 200

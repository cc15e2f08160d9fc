"""Who is let in when a token is required, and what everyone else is told."""

from __future__ import annotations

import asyncio
import base64
import os
from pathlib import Path
from typing import Any

import pytest

from muster.coordinator.security.exchange import SecurityError
from muster.coordinator.server import guessing, renewed, unserved
from tests.http.conftest import Show, Shown
from tests.server.test_unserved import Lines

TOKEN = "hjklo-7.Q~w+E/r_t=="
BEARER = {"Authorization": f"Bearer {TOKEN}"}
PATHS = ("/", "/static/page.js", "/api/groups", "/metrics", "/test/clock", "/api/events/stream")


def basic(user: str, password: str) -> dict[str, str]:
    return {"Authorization": f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    path.chmod(0o600)
    return path


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Lines:
    made = Lines()
    monkeypatch.setattr(unserved, "_log", made)
    return made


@pytest.fixture
async def locked(show: Show, file: Path, lines: Lines) -> Shown:
    """One broker in test mode that requires the token and answers failed logins at once."""
    shown = await show(http_token_file=str(file), connection_failed_authentication_delay_ms=0)
    await shown.create_topic()
    return shown


async def status(shown: Shown, path: str, method: str = "GET", **headers: str) -> int:
    async with shown.http.request(method, shown.page.url + path, headers=headers) as answer:
        return answer.status


@pytest.mark.parametrize("path", PATHS)
async def test_the_token_lets_in_as_bearer_and_as_any_user_s_password(locked: Shown, path: str) -> None:
    for shows in (BEARER, {"Authorization": f"bearer  {TOKEN}"}, basic("anyone", TOKEN), basic("", TOKEN)):
        assert await status(locked, path, **shows) == 200


@pytest.mark.parametrize("path", [*PATHS, "/nothing"])
async def test_without_it_nothing_is_told(locked: Shown, lines: Lines, path: str) -> None:
    async with locked.http.get(locked.page.url + path) as answer:
        assert answer.status == 401
        assert answer.headers["WWW-Authenticate"] == 'Basic realm="muster"'
        assert answer.headers["Cache-Control"] == "no-store"
        assert await answer.json() == {"error": "a login is required: the token of --http-token-file"}
    assert await status(locked, "/test/clock/advance", "POST") == 401
    assert lines.why == []  # every browser starts like this


@pytest.mark.parametrize(
    ("shows", "why"),
    [
        ({"Authorization": f"Bearer {TOKEN}x"}, "wrong token, as Bearer"),
        ({"Authorization": f"Bearer {TOKEN[:-1]}"}, "wrong token, as Bearer"),
        ({"Authorization": "Bearer"}, "wrong token, as Bearer"),
        ({"Authorization": "Bearer schlüssel"}, "wrong token, as Bearer"),
        (basic(TOKEN, ""), "wrong token, as Basic"),
        (basic("admin", "sesame"), "wrong token, as Basic"),
        ({"Authorization": f"Basic {TOKEN}"}, "Basic without base64"),
        ({"Authorization": f"Digest {TOKEN}"}, "Authorization that is neither Bearer nor Basic"),
        ({"Authorization": ""}, "Authorization that is neither Bearer nor Basic"),
    ],
)
async def test_what_is_not_the_token_is_refused_everywhere_and_told_once(
    locked: Shown, lines: Lines, shows: dict[str, str], why: str
) -> None:
    for path in ("/", "/api/groups", "/healthz", "/readyz"):
        async with locked.http.get(locked.page.url + path, headers=shows) as answer:
            assert (answer.status, answer.headers["Connection"]) == (401, "close")
            assert answer.headers["WWW-Authenticate"] == 'Basic realm="muster"'
            assert TOKEN not in await answer.text()
    (line,) = lines.fields
    assert (line["host"], line["why"]) == ("/127.0.0.1", f"HTTP login failed: {why}")
    assert "--http-token-file" in line["remedy"]
    assert TOKEN[:-1] not in str(line)


async def test_health_is_told_to_all_and_why_not_to_those_who_have_logged_in(locked: Shown) -> None:
    assert await locked.get("/healthz") == (200, {"alive": True})
    assert await locked.get("/readyz") == (200, {"ready": True})
    _, whole = await locked.get("/readyz", headers=BEARER)
    assert whole == {"ready": True, "brokers": [{"node_id": 1, "ready": True, "why": None}]}
    locked.page.stopping()
    assert await locked.get("/readyz") == (503, {"ready": False})
    _, whole = await locked.get("/readyz", headers=BEARER)
    assert whole["brokers"][0]["why"] == "it is stopping"


async def test_guessing_is_slowed_down_and_keeps_nobody_out(
    locked: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guessing, "SLOW_MS", 600_000)
    for _ in range(10):
        assert await status(locked, "/api/groups", Authorization="Bearer guess") == 401
    slowed = asyncio.create_task(status(locked, "/api/groups", Authorization="Bearer guess"))
    for _ in range(20):
        assert await status(locked, "/api/groups", **BEARER) == 200
        assert await status(locked, "/api/groups") == 401
    assert not slowed.done()
    slowed.cancel()


async def test_a_failure_is_held_back_as_on_kafka_listeners(show: Show, file: Path, lines: Lines) -> None:
    shown = await show(http_token_file=str(file), connection_failed_authentication_delay_ms=600_000)
    refused = asyncio.create_task(status(shown, "/api/groups", Authorization="Bearer guess"))
    for _ in range(20):
        assert await status(shown, "/api/groups", **BEARER) == 200
    assert not refused.done()
    refused.cancel()


async def test_a_new_token_is_read_and_what_is_none_is_not(
    locked: Shown, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(renewed, "_LOOK_MS", 0)
    new = file.with_name("new")

    def replace(text: str | None) -> None:
        if text is None:
            file.unlink()
        else:
            new.write_text(text)
            os.replace(new, file)

    replace("")
    assert await status(locked, "/api/groups", **BEARER) == 200
    replace(None)
    assert await status(locked, "/api/groups", **BEARER) == 200
    replace("another\r\n")
    assert await status(locked, "/api/groups", **BEARER) == 401
    assert await status(locked, "/api/groups", Authorization="Bearer another") == 200


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "it is empty"),
        (b"\n", "it is empty"),
        (b"two words", "one line of visible ASCII characters without spaces"),
        (b"two\nlines\n", "one line of visible ASCII characters without spaces"),
        ("schlüssel".encode(), "one line of visible ASCII characters without spaces"),
        (b"x" * 4_097, "longer than 4096 bytes"),
    ],
)
async def test_what_is_no_token_keeps_the_broker_from_starting(
    show: Show, file: Path, content: bytes, why: str
) -> None:
    await asyncio.to_thread(file.write_bytes, content)
    with pytest.raises(SecurityError) as raised:
        await show(http_token_file=str(file))
    assert str(raised.value).startswith(f"--http-token-file {file}: ")
    assert str(raised.value).endswith(why)


# --- what browsers can be made to do ------------------------------------------------------------------------


async def test_any_name_is_answered_since_a_login_is_for_one_name_alone(locked: Shown) -> None:
    for path in ("/api/groups", "/api/topics/orders/partitions/0/records"):
        assert await status(locked, path, Host="pages.example", **BEARER) == 200
        assert await status(locked, path, Host="pages.example") == 401


async def test_pages_of_others_may_not_use_a_browser_s_login_to_change_anything(locked: Shown) -> None:
    changes = {"path": "/test/faults", "method": "DELETE"}
    logged_in = basic("me", TOKEN)
    assert await status(locked, **changes, Origin=locked.page.url, **logged_in) == 200
    for origin in ("http://evil.example", "null", locked.page.url.replace("http:", "https:")):
        assert await status(locked, **changes, Origin=origin, **logged_in) == 403


async def test_a_page_whose_name_was_pointed_here_may_not_change_anything(show: Show) -> None:
    """Everyone is let in, on every interface. Under its own name for this address, the page counts as
    same-origin."""
    shown = await show(http="0.0.0.0:0", http_insecure=True, advertised_http="pages.example:80")

    async def change(host: str, **headers: str) -> Any:
        async with shown.http.delete(
            shown.page.url + "/test/faults", headers={"Host": host, **headers}
        ) as answer:
            return answer.status, await answer.json()

    refused, answer = await change("evil.example:80", Origin="http://evil.example:80")
    assert refused == 421
    assert "pages may not change anything under the name 'evil.example'" in answer["error"]
    assert (await change("pages.example", Origin="http://pages.example"))[0] == 200
    assert (await change("10.0.0.7:80", Origin="http://10.0.0.7:80"))[0] == 200
    assert (await change("broker-1:8080"))[0] == 200  # not a browser

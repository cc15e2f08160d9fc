"""Tokens from an issuer, over HTTPS: when they are requested, and the errors when there are none."""

from __future__ import annotations

import base64
import json
import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from muster.client import AuthenticationFailed, ClientCredentials, Unreachable
from muster.client.security import client_credentials
from tests.support.certificates import Authority
from tests.support.issuer import SECRET, Issuer

LONG_S = 5.0
"""Less than a provider waits for the issuer."""


@pytest.fixture
def issuer(tmp_path: Path) -> Iterator[Issuer]:
    with Issuer(tmp_path) as made:
        yield made


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_000_000.0
        monkeypatch.setattr(client_credentials.time, "time", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def jwt(expires_at: float) -> str:
    claims = base64.urlsafe_b64encode(json.dumps({"exp": expires_at}).encode()).decode().rstrip("=")
    return f"x.{claims}.x"


def test_what_it_asks(issuer: Issuer) -> None:
    assert issuer.provider()() == "a.b.c"
    ((headers, body),) = issuer.requests
    assert headers["Authorization"] == f"Basic {base64.b64encode(f'billing:{SECRET}'.encode()).decode()}"
    assert headers["Content-Type"] == "application/x-www-form-urlencoded"
    assert body == "grant_type=client_credentials&scope=kafka"
    issuer.provider(urlencode_header=True, scope=None)()
    headers, body = issuer.requests[-1]
    assert base64.b64decode(headers["Authorization"].split()[1]) == b"billing:hush+%26+hush"
    assert body == "grant_type=client_credentials"


def test_it_keeps_a_token_for_four_fifths_of_its_life(issuer: Issuer, clock: Clock) -> None:
    provider = issuer.provider()
    with ThreadPoolExecutor(8) as pool:
        assert {each.result() for each in [pool.submit(provider) for _ in range(8)]} == {"a.b.c"}
    clock.now += 79
    provider()
    assert len(issuer.requests) == 1
    clock.now += 2
    issuer.answer = {"access_token": jwt(clock.now + 10)}
    assert provider() == issuer.answer["access_token"]
    clock.now += 7.9
    provider()
    assert len(issuer.requests) == 2
    clock.now += 0.2
    issuer.answer = {"id_token": "opaque"}  # with an unknown lifetime
    assert [provider(), provider()] == ["opaque", "opaque"]
    assert len(issuer.requests) == 4


def test_the_last_token_serves_while_the_issuer_is_away(
    issuer: Issuer, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    provider = issuer.provider()
    provider()
    issuer.status = 503
    clock.now += 90
    with caplog.at_level(logging.WARNING):
        assert provider() == "a.b.c"
    assert "it answered 503; the last token still serves for 10 s" in caplog.text
    clock.now += 10
    with pytest.raises(Unreachable, match="it answered 503"):
        provider()


def test_a_token_that_a_broker_refused_is_not_kept(issuer: Issuer) -> None:
    provider = issuer.provider()
    provider()
    provider.forget("another")
    provider()
    assert len(issuer.requests) == 1
    provider.forget("a.b.c")
    provider()
    assert len(issuer.requests) == 2


def test_a_refused_token_is_forgotten_while_the_issuer_is_asked(issuer: Issuer, clock: Clock) -> None:
    """Event loops call `forget`, so it must not wait for the issuer. The token serves no more, even if the
    issuer has no other."""
    provider = issuer.provider()
    provider()
    clock.now += 90
    asked, answering = threading.Event(), threading.Event()

    def answer() -> bytes:
        asked.set()
        assert answering.wait(LONG_S)
        return b""

    issuer.answer, issuer.status = answer, 503
    with ThreadPoolExecutor(2) as pool:
        try:
            renewal = pool.submit(provider)
            assert asked.wait(LONG_S)
            pool.submit(provider.forget, "a.b.c").result(LONG_S)
            assert not renewal.done()
        finally:
            answering.set()
        with pytest.raises(Unreachable, match="it answered 503"):
            renewal.result(LONG_S)


@pytest.mark.parametrize(
    ("status", "answer", "kind", "said"),
    [
        (
            401,
            {"error": "invalid_client"},
            AuthenticationFailed,
            r"invalid_client\); check the id \(billing\)",
        ),
        (400, {"error": "invalid_scope", "error_description": "no\nkafka"}, AuthenticationFailed, "no kafka"),
        (400, {"error": f"you sent {SECRET}"}, AuthenticationFailed, r"you sent \.\.\."),
        (404, b"<html>", AuthenticationFailed, "it answered 404; check its URL"),
        (302, b"", AuthenticationFailed, "redirects are not followed"),
        (429, b"", Unreachable, "it answered 429"),
        (200, b"<html>", AuthenticationFailed, "there is no access_token in its answer"),
        (200, {"access_token": 7}, AuthenticationFailed, "there is no access_token in its answer"),
    ],
)
def test_answers_without_a_token(
    issuer: Issuer, status: int, answer: Any, kind: type[Exception], said: str
) -> None:
    issuer.status, issuer.answer = status, answer
    with pytest.raises(kind, match=said) as raised:
        issuer.provider()()
    text = str(raised.value)
    assert text.startswith(f"token endpoint {issuer.url.partition('?')[0]}")
    assert SECRET not in text
    assert len(issuer.requests) == 1


def test_an_issuer_whose_certificate_nobody_knows(issuer: Issuer, tmp_path: Path) -> None:
    provider = issuer.provider(cafile=str(Authority(tmp_path, "another").certificate))
    with pytest.raises(AuthenticationFailed, match="its certificate is not accepted"):
        provider()
    assert issuer.requests == []


def test_an_issuer_that_is_not_there(issuer: Issuer) -> None:
    issuer.close()
    with pytest.raises(Unreachable, match="connection refused"):
        issuer.provider()()


def test_its_secret_is_not_shown(issuer: Issuer) -> None:
    assert repr(issuer.provider()) == f"<ClientCredentials billing at {issuer.url.partition('?')[0]}>"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("issuer", "a", "b"), "token_url='issuer': it takes https://host/path"),
        (("https://x:99999/", "a", "b"), "it takes https://host/path"),
        (("https://[a/b", "a", "b"), "token_url: it takes https://host/path"),
        (("https://x/a b", "a", "b"), "token_url='https://x/a b': write a blank as %20"),
        (("https://x/a\nb", "a", "b"), "write a blank as %20"),
        (("https://x/ü", "a", "b"), "token_url='https://x/ü': write a blank as %20, and what is not ASCII"),
        (("https://x/?ü", "a", "b"), "and what is not ASCII likewise"),
        (("https://a..b/t", "a", "b"), "token_url='https://a..b/t': it takes https://host/path"),
        ((f"https://{'x' * 64}/t", "a", "b"), "it takes https://host/path"),
        (("https://x/", "a\udcff", "b"), "client_id is no Unicode text"),
        (("https://x/", "a", "b\udcff"), "client_secret is no Unicode text"),
        (("https://x/", "", "b"), "client_id is missing"),
        (("https://x/", "a", ""), "client_secret is missing"),
    ],
)
def test_arguments_that_cannot_be_used(arguments: tuple[str, str, str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ClientCredentials(*arguments)


def test_a_secret_without_tls_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    ClientCredentials("http://issuer/", "a", "b")
    assert "the client secret is sent without TLS" in caplog.text


@pytest.mark.parametrize(
    "url", ["http://x/token", "ftp://x/token", "https://x:99999/token", "https://x/a token"]
)
@pytest.mark.parametrize("rest", ["?api_key=geheim", "#geheim"])
def test_no_more_than_the_path_of_a_url_is_shown(
    url: str, rest: str, caplog: pytest.LogCaptureFixture
) -> None:
    try:
        ClientCredentials(url + rest, "a", "b")
    except ValueError as error:
        said = str(error)
    else:
        said = caplog.text
    assert url in said
    assert "geheim" not in said

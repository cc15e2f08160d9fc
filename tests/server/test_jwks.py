"""The keys of OAUTHBEARER: when they are read, from where, and what is refused; and what a broker needs to
start with OAUTHBEARER."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from muster.coordinator.config import Settings
from muster.coordinator.security.exchange import AuthenticationRefused, Mechanism, SecurityError
from muster.coordinator.security.oauth import OAuthBearer
from muster.coordinator.security.scram import MadeUp
from muster.coordinator.security.unsecured import UnsecuredClaims, UnsecuredOAuthBearer
from muster.coordinator.server import jwks
from muster.coordinator.server import users as users_module
from muster.coordinator.server.config_rows import ConfigRows
from muster.coordinator.server.jwks import BYTES_MAX, MISSING_MAX, Jwks, parsed, read_url
from muster.coordinator.server.users import Users, mechanisms
from muster.coordinator.storage.memory import MemoryStore

HOUR_MS = 3_600_000


class Source:
    """The keys to be read, and a clock."""

    def __init__(self, *kids: str) -> None:
        self.kids = list(kids)
        self.now_s = 1_000.0
        self.reads = 0
        self.fails = False
        self.gate = threading.Event()
        self.gate.set()
        self.keys = Jwks("https://issuer/keys", HOUR_MS, self.read, lambda: self.now_s)

    def read(self, url: str) -> bytes:
        self.reads += 1
        assert self.gate.wait(10)
        if self.fails:
            raise OSError("no route to host")
        return json.dumps({"keys": [{"kid": kid, "kty": "RSA"} for kid in self.kids]}).encode()

    async def has(self, kid: str) -> bool:
        return await self.keys.of(kid) is not None

    async def settled(self) -> None:
        """Wait until the read in progress has finished."""
        if self.keys._reading is not None:
            await self.keys._reading


async def test_keys_are_read_once_for_all_who_wait() -> None:
    source = Source("a")
    source.gate.clear()
    asked = [asyncio.create_task(source.has(kid)) for kid in "aab"]
    await asyncio.sleep(0)
    asked.pop(0).cancel()  # a caller that gives up does not take it from the others
    source.gate.set()
    assert await asyncio.gather(*asked) == [True, False]
    assert source.reads == 1


async def test_keys_are_read_again_beside_what_is_asked() -> None:
    source = Source("a")
    assert await source.has("a")
    source.now_s += HOUR_MS / 1_000
    source.kids = ["b"]
    assert await source.has("a")  # from the last read, while keys are read again
    await source.settled()
    assert (await source.has("b"), await source.has("a"), source.reads) == (True, False, 3)


async def test_a_new_key_is_read_at_once_and_one_that_there_is_not_once_a_minute() -> None:
    source = Source("a")
    assert await source.has("a")
    source.now_s += 2
    source.kids.append("b")
    assert (await source.has("b"), source.reads) == (True, 2)
    source.now_s += 2
    for _ in range(5):
        assert not await source.has("c")
        source.now_s += 2
    assert source.reads == 3
    source.now_s += 60
    assert not await source.has("c")
    assert source.reads == 4


async def test_a_storm_of_unknown_keys() -> None:
    source = Source("a")
    for number in range(2 * MISSING_MAX):
        assert not await source.has(f"unknown {number}")
        source.now_s += 0.01  # 20 s
    assert source.reads <= 22
    for number in range(2 * MISSING_MAX):
        source.now_s += 2
        assert not await source.has(f"other {number}")
    assert len(source.keys._missing) == MISSING_MAX


async def test_old_keys_stay_in_use_while_they_cannot_be_read() -> None:
    source = Source("a")
    assert await source.has("a")
    source.fails = True
    source.now_s += HOUR_MS / 1_000
    for _ in range(12):
        assert await source.has("a")
        await source.settled()
        source.now_s += 0.01
    assert source.reads == 3  # at once, 0.1 s later, and not yet again
    for _ in range(100):
        source.now_s += 1
        assert await source.has("a")
        await source.settled()
    assert source.reads < 25
    assert not await source.has("b")
    source.fails = False
    source.kids = ["b"]
    source.now_s += 11
    assert await source.has("b")


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", '{"keys": {}}', "\0", "[" * 100_000, json.dumps({"keys": [{}] * 1_001})],
    ids=range(7),
)
async def test_what_is_no_jwks(content: str) -> None:
    with pytest.raises((ValueError, RecursionError)):
        parsed(content.encode())
    keys = Jwks("file:///keys", HOUR_MS, lambda url: content.encode())
    with pytest.raises(AuthenticationRefused) as refused:
        await keys.of("a")
    assert refused.value.why == "no keys have been read yet from file:///keys"
    assert "correct sasl.oauthbearer.jwks.endpoint.url" in refused.value.remedy


async def test_keys_that_were_never_read_are_not_taken_for_missing_ones() -> None:
    source = Source("b")
    source.fails = True
    for _ in range(3):  # at the first reading, and while none is due
        with pytest.raises(AuthenticationRefused):
            await source.has("a")
    source.fails = False
    source.now_s += 1
    assert not await source.has("a")
    source.fails = True
    source.now_s += HOUR_MS / 1_000
    assert not await source.has("a")


def test_keys_without_an_id_are_of_no_use() -> None:
    assert parsed(b'{"keys": [{"kid": "a"}, {}, 7, {"kid": 7}, {"kid": null}]}') == {"a": {"kid": "a"}}


class _Site(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/elsewhere":
            self.send_response(302)
            self.send_header("Location", "/keys")
            self.end_headers()
        elif self.path == "/broken":
            self.wfile.write(b"what?\r\n")
        else:
            self.send_response(200 if self.path != "/failing" else 500)
            self.end_headers()
            self.wfile.write(b"x" * (BYTES_MAX + 1) if self.path == "/large" else b"some keys")

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def site() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Site) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_where_keys_are_read(site: str, tmp_path: Path) -> None:
    file = tmp_path / "the keys.json"
    file.write_bytes(b"of a file")
    assert read_url(file.as_uri()) == b"of a file"
    assert read_url(f"{site}/keys") == b"some keys"
    file.write_bytes(b"x" * (BYTES_MAX + 1))
    for url in (file.as_uri(), f"{site}/large"):
        with pytest.raises(ValueError, match="more than 1048576 bytes"):
            read_url(url)
    for path in ("/elsewhere", "/failing"):
        with pytest.raises(OSError, match="HTTP Error"):
            read_url(site + path)
    with pytest.raises(OSError, match="No such file"):
        read_url((tmp_path / "none").as_uri())


async def test_what_cannot_be_read_is_no_key(site: str) -> None:
    for path in ("/broken", "/elsewhere", "/large", "/keys"):
        with pytest.raises(AuthenticationRefused):
            await Jwks(site + path, HOUR_MS).of("a")


def test_it_may_not_take_long(site: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jwks, "READ_S", 10.0)
    times = iter([0.0, 11.0])
    monkeypatch.setattr(jwks.RealTime, "monotonic", lambda: next(times, 11.0))
    with pytest.raises(TimeoutError, match="longer than 10 s"):
        read_url(f"{site}/keys")


COMPLETE = {
    "sasl_oauthbearer_jwks_endpoint_url": "https://issuer/keys",
    "sasl_oauthbearer_expected_audience": ("muster",),
    "sasl_oauthbearer_expected_issuer": "https://issuer",
}


def mechanism_of(**settings: Any) -> Mechanism:
    users = Users(ConfigRows(MemoryStore()))
    listeners = "SASL_PLAINTEXT://127.0.0.1:0"
    enabled = Settings(listeners=listeners, sasl_enabled_mechanisms=("OAUTHBEARER",), **settings)
    (mechanism,) = mechanisms(enabled.on("SASL_PLAINTEXT"), users, MadeUp()).values()
    return mechanism


def made(**settings: Any) -> OAuthBearer:
    mechanism = mechanism_of(**settings)
    assert isinstance(mechanism, OAuthBearer)
    return mechanism


@pytest.mark.parametrize("lacking", COMPLETE)
def test_what_it_does_not_start_without(lacking: str) -> None:
    settings = {name: value for name, value in COMPLETE.items() if name != lacking}
    with pytest.raises(SecurityError, match="--" + lacking.replace("_", "-")):
        made(**settings)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "no such file or directory"),
        ("{", "Expecting property name"),
        ("[]", 'not a JWKS: {"keys": [...]} was expected'),
    ],
)
def test_a_file_of_keys_has_to_be_there_at_startup(tmp_path: Path, content: str | None, why: str) -> None:
    """As in Apache Kafka. A server may come later."""
    file = tmp_path / "keys.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(SecurityError) as raised:
        made(**{**COMPLETE, "sasl_oauthbearer_jwks_endpoint_url": file.as_uri()})
    assert str(raised.value).startswith(f"--sasl-oauthbearer-jwks-endpoint-url {file.as_uri()}: {why}")


def test_what_may_be_waived() -> None:
    claims = made(**COMPLETE).claims
    assert (claims.audience, claims.issuer, claims.user) == (("muster",), "https://issuer", "sub")
    waived = made(
        sasl_oauthbearer_jwks_endpoint_url="https://issuer/keys",
        sasl_oauthbearer_allow_unverified_audience=True,
        sasl_oauthbearer_allow_unverified_issuer=True,
    ).claims
    assert (waived.audience, waived.issuer) == ((), None)


UNSECURED = {"sasl_oauthbearer_allow_unsecured": True}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *COMPLETE.items(),
        ("sasl_oauthbearer_allow_unverified_audience", True),
        ("sasl_oauthbearer_allow_unverified_issuer", True),
    ],
)
def test_unsigned_tokens_are_not_taken_where_somebody_signs_them(name: str, value: object) -> None:
    with pytest.raises(SecurityError) as raised:
        mechanism_of(**UNSECURED, **{name: value})
    assert str(raised.value) == (
        "--sasl-oauthbearer-allow-unsecured takes tokens that nobody signed; leave out "
        f"--{name.replace('_', '-')}"
    )


def test_unsigned_tokens_are_taken_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, dict[str, Any]]] = []

    class Log:
        def warning(self, event: str, **fields: Any) -> None:
            told.append((event, fields))

    monkeypatch.setattr(users_module, "_log", Log())
    names = {"sub_claim_name": "name", "scope_claim_name": "may", "clock_skew_seconds": 7}
    made = mechanism_of(**UNSECURED, **{f"sasl_oauthbearer_{name}": value for name, value in names.items()})
    assert isinstance(made, UnsecuredOAuthBearer)
    assert made.claims == UnsecuredClaims("name", "may", 7)
    ((event, fields),) = told
    assert event == "unsigned OAUTHBEARER tokens are accepted: anyone who can connect can act as any user"
    assert fields == {"listener": "SASL_PLAINTEXT", "option": "--sasl-oauthbearer-allow-unsecured"}


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "muster.coordinator.security.oauth", None)
    with pytest.raises(SecurityError, match=r"pip install 'muster-kafka\[security\]'"):
        made(**COMPLETE)

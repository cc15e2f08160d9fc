"""SASL on the wire: the answers of Apache Kafka and muster, and whether they close the connection."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import math
import re
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import pytest

from muster.coordinator.server import guessing
from muster.coordinator.testing import Broker
from muster.protocol.errors import ErrorCode
from muster.protocol.message import Message
from muster.protocol.messages.classic_group import HeartbeatRequest
from muster.protocol.messages.connection import ApiVersionsRequest
from muster.protocol.messages.metadata import MetadataRequest
from muster.protocol.messages.sasl import SaslAuthenticateRequest, SaslHandshakeRequest
from tests.interop.security.conftest import PASSWORD, SESSION_MS, USER, Secured, secured
from tests.support.facts import DEADLINE_S
from tests.support.wire_blocking import ConnectionClosed, WireConnection

pytestmark = pytest.mark.kafka

__all__ = ["secured"]

_METADATA: Final = MetadataRequest(topics=[])
_HEARTBEAT: Final = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
_VERSIONS: Final = {ApiVersionsRequest: 0, MetadataRequest: 9, HeartbeatRequest: 4}
_HASH: Final = "SCRAM-SHA-256"
_UNSIGNED: Final = {"alg": "none"}
_AGAIN_S: Final = 1.0
"""Clients may not reauthenticate sooner (KIP-368)."""


@dataclass(frozen=True)
class Side:
    """Where to log in, and as which user."""

    host: str
    port: int
    user: str
    password: str


class Talk:
    """One connection and the outcome of each request: an error code and a text, or `closed`."""

    def __init__(self, side: Side) -> None:
        self.side = side
        self._wire = WireConnection(side.host, side.port, "talk")
        self.heard: list[str] = []
        self.answer: Any = None

    def close(self) -> None:
        self._wire.close()

    def ask(self, request: Message, version: int | None = None) -> None:
        if self.heard[-1:] == ["closed"]:
            return
        try:
            self._wire.send(request, _VERSIONS[type(request)] if version is None else version)
            self.answer = self._wire.receive()
        except (ConnectionClosed, ConnectionError):
            self.heard.append("closed")
            return
        code = getattr(self.answer, "error_code", 0)
        text = getattr(self.answer, "error_message", None)
        said = ErrorCode(code).name + (f" {text}" if text else "")
        self.heard.append(said.replace(self.side.user, "USER"))

    def shake(self, mechanism: str = "PLAIN", version: int = 1) -> None:
        self.ask(SaslHandshakeRequest(mechanism=mechanism), version)

    def token(self, token: bytes, version: int = 2) -> None:
        self.ask(SaslAuthenticateRequest(auth_bytes=token), version)

    def bare(self, token: bytes) -> None:
        """Send a token after SaslHandshake v0."""
        raw = self._wire._socket
        raw.sendall(len(token).to_bytes(4, "big") + token)
        try:
            size = raw.recv(4, socket.MSG_WAITALL)
            received = raw.recv(int.from_bytes(size, "big"), socket.MSG_WAITALL) if size else b""
        except ConnectionError:
            size = received = b""
        self.heard.append(f"token {received!r}" if size else "closed")

    def plain(self, *, user: str | None = None, password: str | None = None, authzid: str = "") -> bytes:
        user = self.side.user if user is None else user
        password = self.side.password if password is None else password
        return f"{authzid}\0{user}\0{password}".encode()

    def log_in(self) -> None:
        self.shake()
        self.token(self.plain())

    def scram(self, *, password: str | None = None, proof: str | None = None, nonce: str = "") -> None:
        """Log in with SCRAM; `proof` and `nonce` (appended to the true one) spoil it."""
        self.shake(_HASH)
        first = f"n={self.side.user},r=abcdefgh"
        self.token(f"n,,{first}".encode())
        answer = self.answer.auth_bytes.decode()
        given = dict(each.split("=", 1) for each in answer.split(","))
        salted = hashlib.pbkdf2_hmac(
            "sha256",
            (self.side.password if password is None else password).encode(),
            base64.b64decode(given["s"]),
            int(given["i"]),
        )
        key = hmac.digest(salted, b"Client Key", "sha256")
        final = f"c=biws,r={given['r']}{nonce}"
        signed = hmac.digest(hashlib.sha256(key).digest(), f"{first},{answer},{final}".encode(), "sha256")
        if proof is None:
            proof = base64.b64encode(bytes(a ^ b for a, b in zip(key, signed, strict=True))).decode()
        self.token(f"{final},p={proof}".encode())

    def bear(
        self, *, header: Any = _UNSIGNED, claims: Any = None, signature: str = "", **changes: Any
    ) -> None:
        """Log in with an unsigned token. Changes apply to its claims: None omits one, and times are relative
        to now."""
        times = {"iat": 0, "exp": 60} | {
            name: changes.pop(name) for name in ("iat", "exp") if name in changes
        }
        for name, value in times.items():
            times[name] = time.time() + value if isinstance(value, int | float) else value
        given = {"sub": self.side.user, **times, **changes}
        made = {name: value for name, value in given.items() if value is not None}
        parts = (
            base64.urlsafe_b64encode(json.dumps(each).encode()).rstrip(b"=").decode()
            for each in (header, made if claims is None else claims)
        )
        self.shake("OAUTHBEARER")
        self.token(f"n,,\x01auth=Bearer {'.'.join(parts)}.{signature}\x01\x01".encode())
        if self.heard[-1] != "closed" and self.answer.auth_bytes:
            self.heard.append(self.answer.auth_bytes.decode())
            self.token(b"\x01")

    def pass_s(self, seconds: float) -> None:
        """Let time pass on a real broker, which does not use our clock."""
        time.sleep(seconds)


def _again(*steps: Callable[[Talk], None], after_s: float = _AGAIN_S + 0.1) -> Callable[[Talk], None]:
    def run(talk: Talk) -> None:
        talk.log_in()
        talk.pass_s(after_s)
        for step in steps:
            step(talk)

    return run


def _steps(*steps: Callable[[Talk], None]) -> Callable[[Talk], None]:
    def run(talk: Talk) -> None:
        for step in steps:
            step(talk)

    return run


def _plain(token: bytes) -> Callable[[Talk], None]:
    return _steps(lambda t: t.shake(), lambda t: t.token(token))


def _first(token: bytes) -> Callable[[Talk], None]:
    return _steps(lambda t: t.shake(_HASH), lambda t: t.token(token))


_CASES: Final[dict[str, Callable[[Talk], None]]] = {
    "logs in": _steps(lambda t: t.log_in(), lambda t: t.ask(_METADATA)),
    "logs in with SCRAM": _steps(lambda t: t.scram(), lambda t: t.ask(_METADATA)),
    "second ApiVersions": _steps(
        lambda t: t.ask(ApiVersionsRequest()), lambda t: t.ask(ApiVersionsRequest())
    ),
    "request before the handshake": lambda t: t.ask(_METADATA),
    "ApiVersions behind the handshake": _steps(lambda t: t.shake(), lambda t: t.ask(ApiVersionsRequest())),
    "unknown mechanism": _steps(lambda t: t.shake("NONE"), lambda t: t.shake()),
    "token without a handshake": lambda t: t.token(t.plain()),
    "request in place of a token": _steps(
        lambda t: t.shake(), lambda t: t.ask(_HEARTBEAT), lambda t: t.ask(_METADATA)
    ),
    "second handshake": _steps(lambda t: t.shake(), lambda t: t.shake()),
    "bare tokens": _steps(
        lambda t: t.shake(version=0), lambda t: t.bare(t.plain()), lambda t: t.ask(_METADATA)
    ),
    "bare token, wrong": _steps(lambda t: t.shake(version=0), lambda t: t.bare(t.plain(password="no"))),
    "framed token behind handshake v0": _steps(lambda t: t.shake(version=0), lambda t: t.token(t.plain())),
    "PLAIN, wrong password": _steps(
        lambda t: t.shake(), lambda t: t.token(t.plain(password="no")), lambda t: t.ask(_METADATA)
    ),
    "PLAIN, unknown user": _steps(lambda t: t.shake(), lambda t: t.token(t.plain(user="nobody"))),
    "PLAIN, authzid of another": _steps(lambda t: t.shake(), lambda t: t.token(t.plain(authzid="bob"))),
    "PLAIN, own authzid": _steps(lambda t: t.shake(), lambda t: t.token(t.plain(authzid=t.side.user))),
    "PLAIN, empty": _plain(b""),
    "PLAIN, one part": _plain(b"alice"),
    "PLAIN, two parts": _plain(b"\0alice"),
    "PLAIN, four parts": _plain(b"\0alice\0a\0b"),
    "PLAIN, six parts": _plain(b"\0alice\0a\0b\0c\0d"),
    "PLAIN, no user": _plain(b"\0\0secret"),
    "PLAIN, no password": _plain(b"\0alice\0"),
    "PLAIN, no UTF-8": _plain(b"\0alice\0\xff"),
    "SCRAM, wrong password": _steps(lambda t: t.scram(password="no"), lambda t: t.ask(_METADATA)),
    "SCRAM, another nonce": lambda t: t.scram(nonce="x"),
    "SCRAM, proof of another length": lambda t: t.scram(proof="YQ=="),
    "SCRAM, proof that is no Base64": lambda t: t.scram(proof="!"),
    "SCRAM, empty": _first(b""),
    "SCRAM, garbage": _first(b"garbage"),
    "SCRAM, no nonce": _first(b"n,,n=alice"),
    "SCRAM, channel binding": _first(b"p=tls-unique,,n=alice,r=abc"),
    "SCRAM, authzid of another": _steps(
        lambda t: t.shake(_HASH), lambda t: t.token(f"n,a=bob,n={t.side.user},r=abc".encode())
    ),
    "SCRAM, unknown user": _first(b"n,,n=nobody,r=abc"),
    "SCRAM, no UTF-8": _first(b"n,,n=\xff,r=abc"),
    "SCRAM, garbage in the end": _steps(
        lambda t: t.shake(_HASH),
        lambda t: t.token(f"n,,n={t.side.user},r=abc".encode()),
        lambda t: t.token(b"garbage"),
    ),
    "unsigned token": _steps(lambda t: t.bear(), lambda t: t.ask(_METADATA)),
    "unsigned token, expired": lambda t: t.bear(iat=-60, exp=-5),
    "unsigned token, without an end": lambda t: t.bear(exp=None),
    "unsigned token, end is text": lambda t: t.bear(exp="tomorrow"),
    "unsigned token, without a beginning": lambda t: t.bear(iat=None),
    "unsigned token, beginning is text": lambda t: t.bear(iat="today"),
    "unsigned token, issued later": lambda t: t.bear(iat=20),
    "unsigned token, issued behind its end": lambda t: t.bear(iat=70),
    "unsigned token, without a user": lambda t: t.bear(sub=None),
    "unsigned token, user is a number": lambda t: t.bear(sub=5),
    "unsigned token, user is blank": lambda t: t.bear(sub=" "),
    "unsigned token, scope": lambda t: t.bear(scope="read write"),
    "unsigned token, scopes": lambda t: t.bear(scope=["read", "write"]),
    "unsigned token, scope is a number": lambda t: t.bear(scope=5),
    "unsigned token, scopes are numbers": lambda t: t.bear(scope=[5]),
    "unsigned token with a signature": lambda t: t.bear(signature="c2lnbmVk"),
    "unsigned token, alg is another": lambda t: t.bear(header={"alg": "RS256"}),
    "unsigned token, alg is missing": lambda t: t.bear(header={}),
    "unsigned token, alg in upper case": lambda t: t.bear(header={"alg": "NONE"}),
    "unsigned token, header is a list": lambda t: t.bear(header=[1]),
    "unsigned token, claims are a list": lambda t: t.bear(claims=[1]),
    "token behind the login": _steps(
        lambda t: t.log_in(), lambda t: t.token(t.plain()), lambda t: t.ask(_METADATA)
    ),
    "again at once": _steps(lambda t: t.log_in(), lambda t: t.log_in(), lambda t: t.ask(_METADATA)),
    "twice again within a second": _steps(
        lambda t: t.log_in(), lambda t: t.log_in(), lambda t: t.shake(), lambda t: t.ask(_METADATA)
    ),
    "again": _again(lambda t: t.log_in(), lambda t: t.ask(_METADATA)),
    "again, wrong password": _again(lambda t: t.shake(), lambda t: t.token(t.plain(password="no"))),
    "again, by another mechanism": _again(
        lambda t: t.shake(_HASH), lambda t: t.token(f"n,,n={t.side.user},r=abc".encode())
    ),
    "again, by an unknown mechanism": _again(lambda t: t.shake("NONE"), lambda t: t.ask(_METADATA)),
    "again, a request in place of the token": _again(lambda t: t.shake(), lambda t: t.ask(_HEARTBEAT)),
    "expired": _again(lambda t: t.ask(_METADATA), after_s=SESSION_MS / 1000 + 0.3),
    "expired, ApiVersions": _again(lambda t: t.ask(ApiVersionsRequest()), after_s=SESSION_MS / 1000 + 0.3),
    "expired, again": _again(
        lambda t: t.log_in(), lambda t: t.ask(_METADATA), after_s=SESSION_MS / 1000 + 0.3
    ),
}
_WITHIN_S: Final[dict[str, float]] = {
    "again at once": _AGAIN_S,
    "twice again within a second": _AGAIN_S,
    **{name: SESSION_MS / 1000 for name in _CASES if re.match("again(,|$)", name)},
}
"""How long a case may take, for those in which time must not run out."""
_WAITING: Final = tuple(name for name in _CASES if re.match("(again|expired)(,|$)", name))
"""Cases that let time pass."""


@pytest.fixture(scope="module")
def kafka_side(secured: Secured) -> Side:
    host, _, port = secured.kafka.bootstrap_of("SASL_PLAINTEXT").rpartition(":")
    return Side(host, int(port), USER, PASSWORD)


@pytest.fixture(scope="module")
def muster_side() -> Iterator[Side]:
    with (
        pytest.MonkeyPatch.context() as patched,
        Broker(
            security="SASL_PLAINTEXT",
            connections_max_reauth_ms=SESSION_MS,
            sasl_enabled_mechanisms=("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"),
            sasl_oauthbearer_allow_unsecured=True,
            sasl_oauthbearer_clock_skew_seconds=0,
        ) as broker,
    ):
        patched.setattr(guessing, "SLOW_MS", 0)  # most of these fail, all from one address
        settings = broker.client_settings("muster")
        host, _, port = broker.bootstrap.rpartition(":")
        yield Side(host, int(port), settings["sasl_plain_username"], settings["sasl_plain_password"])


def _heard(side: Side, name: str) -> list[str]:
    """What a connection hears. On a busy machine a case can take too long; then it is played again."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        began = time.monotonic()
        talk = Talk(side)
        try:
            _CASES[name](talk)
        finally:
            talk.close()
        now = time.monotonic()
        if now - began < _WITHIN_S.get(name, math.inf):
            return talk.heard
        assert now < deadline, f"{name}: never fast enough"


_OUT: Final = (
    "SASL_AUTHENTICATION_FAILED Authentication failed during authentication due to invalid credentials "
    "with SASL mechanism "
)
_INVALID: Final = '{"status":"invalid_token"}'
_BAD_TOKEN: Final = ["NONE", "NONE", _INVALID, f"SASL_AUTHENTICATION_FAILED {_INVALID}"]
_DIFFERENCES: Final[dict[str, tuple[list[str], list[str]]]] = {
    # The client learns why; Kafka fails unexpectedly.
    "SCRAM, proof of another length": (["NONE", "NONE", "closed"], ["NONE", "NONE", _OUT + _HASH]),
    # Nobody learns which users exist.
    "SCRAM, unknown user": (["NONE", _OUT + _HASH], ["NONE", "NONE"]),
    # Scopes are strings, signed or not; Kafka does not look into the list.
    "unsigned token, scopes are numbers": (["NONE", "NONE"], _BAD_TOKEN),
    # The client learns why; Kafka fails unexpectedly.
    "unsigned token, alg is missing": (["NONE", "closed"], _BAD_TOKEN),
    "unsigned token, header is a list": (["NONE", "closed"], _BAD_TOKEN),
    # As at the first login: the client learns which mechanisms are enabled.
    "again, by an unknown mechanism": (
        ["NONE", "NONE", "closed"],
        ["NONE", "NONE", "UNSUPPORTED_SASL_MECHANISM", "closed"],
    ),
}
"""By case: Kafka's answers and muster's, where they differ."""


Heard = Callable[[str], tuple[list[str], list[str]]]
"""By case: what a connection hears from Kafka, and from muster."""


@pytest.fixture(scope="module")
def heard(kafka_side: Side, muster_side: Side) -> Iterator[Heard]:
    """Both sides are asked side by side, and so are the cases that wait for the same time to pass, when the
    first of them is wanted."""
    sides = (kafka_side, muster_side)
    with ThreadPoolExecutor(len(sides) * len(_WAITING)) as side_by_side:

        def begin(name: str) -> list[Future[list[str]]]:
            return [side_by_side.submit(_heard, side, name) for side in sides]

        waiting = cache(lambda: {name: begin(name) for name in _WAITING})

        def heard(name: str) -> tuple[list[str], list[str]]:
            kafka, muster = waiting()[name] if name in _WAITING else begin(name)
            return kafka.result(), muster.result()

        yield heard


@pytest.mark.parametrize("name", _CASES)
def test_answered_as_kafka_does(name: str, heard: Heard) -> None:
    kafka, muster = heard(name)
    if name in _DIFFERENCES:
        assert (kafka, muster) == _DIFFERENCES[name]
    else:
        assert muster == kafka

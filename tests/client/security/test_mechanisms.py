"""What each mechanism sends, from the examples of the RFCs, and which answers it rejects."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable

import pytest

from muster.client.errors import AuthenticationFailed
from muster.client.security.mechanism import Exchange
from muster.client.security.mechanisms import OAuthBearer, Plain, Scram

NONCE = "rOprNGfwEbeRWgbNEkqO"
FIRST = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def test_the_example_of_rfc_7677() -> None:
    exchange = Scram("SCRAM-SHA-256", "user", "pencil")._rounds(NONCE)
    assert next(exchange) == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    assert exchange.send(FIRST) == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert _ends(exchange, FINAL)


def _ends(exchange: Exchange, answer: bytes) -> bool:
    try:
        exchange.send(answer)
    except StopIteration:
        return True
    return False


@pytest.mark.parametrize("name", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_both_hashes_with_a_server_that_only_knows_the_stored_keys(name: str) -> None:
    kind = name.removeprefix("SCRAM-").replace("-", "").lower()
    password, salt = "pässwörd,=", b"0123456789abcdef"
    salted = hashlib.pbkdf2_hmac(kind, password.encode(), salt, 8192)
    stored_key = hashlib.new(kind, hmac.digest(salted, b"Client Key", kind)).digest()
    server_key = hmac.digest(salted, b"Server Key", kind)

    exchange = Scram(name, "a,b=c", password)._rounds(NONCE)
    first = next(exchange).decode()
    assert first == f"n,,n=a=2Cb=3Dc,r={NONCE}"
    server_first = f"r={NONCE}more,s={base64.b64encode(salt).decode()},i=8192"
    final = exchange.send(server_first.encode()).decode()
    without_proof, _, proof = final.rpartition(",p=")
    signed = f"{first[3:]},{server_first},{without_proof}".encode()
    signature = hmac.digest(stored_key, signed, kind)
    client_key = bytes(a ^ b for a, b in zip(base64.b64decode(proof), signature, strict=True))
    assert hashlib.new(kind, client_key).digest() == stored_key
    assert _ends(exchange, b"v=" + base64.b64encode(hmac.digest(server_key, signed, kind)))


@pytest.mark.parametrize(
    ("first", "why"),
    [
        (b"", "cannot be read"),
        (b"r=x,i=4096", "cannot be read"),
        (FIRST.replace(b"4096", b"many"), "cannot be read"),
        (FIRST.replace(b"W22Z", b"\xff\xff\xff\xff"), "cannot be read"),
        (FIRST.replace(b"rOpr", b"else"), "nonce does not continue ours"),
        (b"r=" + NONCE.encode() + b",s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096", "nonce does not continue ours"),
        (FIRST.replace(b"4096", b"4095"), "4095 iterations"),
        (FIRST.replace(b"4096", b"1000001"), "1000001 iterations"),
    ],
)
def test_a_first_message_that_is_not_accepted(first: bytes, why: str) -> None:
    exchange = Scram("SCRAM-SHA-256", "user", "pencil")._rounds(NONCE)
    next(exchange)
    with pytest.raises(AuthenticationFailed, match=why):
        exchange.send(first)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda final: b"",
        lambda final: b"v=",
        lambda final: final.replace(b"6rri", b"7rri"),
        lambda final: b"e=invalid-proof",
    ],
)
def test_a_broker_that_does_not_know_the_password(spoil: Callable[[bytes], bytes]) -> None:
    exchange = Scram("SCRAM-SHA-256", "user", "pencil")._rounds(NONCE)
    next(exchange)
    exchange.send(FIRST)
    with pytest.raises(
        AuthenticationFailed, match=r"^SCRAM-SHA-256: (the broker cannot prove|invalid-proof)"
    ):
        exchange.send(spoil(FINAL))


async def test_no_nonce_comes_twice() -> None:
    scram = Scram("SCRAM-SHA-256", "user", "pencil")
    assert len({next(await scram.exchange()) for _ in range(100)}) == 100


async def test_plain() -> None:
    exchange = await Plain("tim", "tänstaaf").exchange()
    assert next(exchange) == "\0tim\0tänstaaf".encode()
    assert _ends(exchange, b"")


async def test_oauthbearer() -> None:
    exchange = await OAuthBearer(lambda: "a.b.c").exchange()
    assert next(exchange) == b"n,,\x01auth=Bearer a.b.c\x01\x01"
    assert _ends(exchange, b"")
    exchange = await OAuthBearer(lambda: "a.b.c").exchange()
    next(exchange)
    assert exchange.send(b'{"status":"invalid_token"}') == b"\x01"


async def test_a_provider_without_a_token() -> None:
    def fails() -> str:
        raise OSError("the issuer is away")

    with pytest.raises(AuthenticationFailed, match="has no token: the issuer is away"):
        await OAuthBearer(fails).exchange()
    with pytest.raises(AuthenticationFailed, match="returned NoneType; it takes text"):
        await OAuthBearer(lambda: None).exchange()  # type: ignore[arg-type,return-value]


def test_credentials_are_not_shown() -> None:
    for mechanism in (
        Plain("tim", "secret"),
        Scram("SCRAM-SHA-256", "tim", "secret"),
        OAuthBearer(lambda: "x"),
    ):
        assert "secret" not in repr(mechanism)

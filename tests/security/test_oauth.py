"""OAUTHBEARER on the server side: whose tokens are accepted, and how the others are refused."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import json
import time
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st
from jwt.algorithms import get_default_algorithms

from muster.client.security.mechanisms import OAuthBearer as ClientOAuthBearer
from muster.coordinator.security.bearer import REFUSED
from muster.coordinator.security.exchange import Authenticated, AuthenticationRefused
from muster.coordinator.security.oauth import Claims, OAuthBearer

PRIVATE: dict[str, Any] = {
    "rsa": rsa.generate_private_key(65_537, 2_048),
    "small": rsa.generate_private_key(65_537, 1_024),
    "P-256": ec.generate_private_key(ec.SECP256R1()),
    "P-384": ec.generate_private_key(ec.SECP384R1()),
    "P-521": ec.generate_private_key(ec.SECP521R1()),
    "ed": ed25519.Ed25519PrivateKey.generate(),
}
ALGORITHMS = {
    **{f"{kind}{bits}": "rsa" for kind in ("RS", "PS") for bits in (256, 384, 512)},
    "ES256": "P-256",
    "ES384": "P-384",
    "ES512": "P-521",
    "EdDSA": "ed",
}
_OF_KEYS = {"rsa": "RS256", "small": "RS256", "ed": "EdDSA"}
JWKS: dict[str, dict[str, Any]] = {
    kid: get_default_algorithms()[_OF_KEYS.get(kid, "ES256")].to_jwk(key.public_key(), as_dict=True)
    for kid, key in PRIVATE.items()
}
JWKS["for encryption"] = {**JWKS["rsa"], "use": "enc"}
JWKS["for PS256"] = {**JWKS["rsa"], "alg": "PS256"}
JWKS["secret"] = {"kty": "oct", "k": base64.urlsafe_b64encode(b"s" * 32).decode()}
JWKS["broken"] = {"kty": "RSA", "n": 7}

ISSUER, AUDIENCE = "https://issuer", "muster"
EXPECTED = Claims((AUDIENCE, "other"), ISSUER)


class Keys:
    async def of(self, kid: str) -> Mapping[str, Any] | None:
        return JWKS.get(kid)


class In(NamedTuple):
    """Seconds from when the token is made."""

    seconds: float


def claims(**changes: Any) -> dict[str, Any]:
    """Claims of a good token; None leaves a claim out."""
    now = int(time.time())
    made = {"sub": "alice", "iat": now, "exp": now + 300, "iss": ISSUER, "aud": AUDIENCE, **changes}
    return {
        name: now + value.seconds if isinstance(value, In) else value
        for name, value in made.items()
        if value is not None
    }


def signed(
    kid: str = "rsa", algorithm: str = "RS256", headers: Mapping[str, Any] | None = None, **changes: Any
) -> str:
    key = PRIVATE.get(kid, PRIVATE["rsa"])
    with warnings.catch_warnings(action="ignore"):  # about the small key
        content = json.dumps(claims(**changes)).encode()
        return jwt.PyJWS().encode(content, key, algorithm, headers={"kid": kid, **(headers or {})})


def message(token: str, authzid: str = "", more: str = "") -> bytes:
    return f"n,{authzid and 'a=' + authzid},\x01auth=Bearer {token}\x01{more}\x01".encode()


def step(first: bytes, expected: Claims = EXPECTED) -> tuple[bytes, Authenticated | None]:
    return asyncio.run(OAuthBearer(Keys(), expected).begin().step(first))


def refused(token: str, expected: Claims = EXPECTED) -> str:
    """Return the reason logged for the refusal. The client is always told the same, in two rounds."""

    async def ask() -> str:
        exchange = OAuthBearer(Keys(), expected).begin()
        assert await exchange.step(message(token)) == (REFUSED.encode(), None)
        with pytest.raises(AuthenticationRefused) as raised:
            await exchange.step(b"\x01")
        assert str(raised.value) == REFUSED
        assert token not in raised.value.why
        return raised.value.why

    return asyncio.run(ask())


@pytest.mark.parametrize(("algorithm", "kid"), ALGORITHMS.items())
def test_signed_tokens(algorithm: str, kid: str) -> None:
    expires = int(time.time()) + 60
    assert step(message(signed(kid, algorithm, exp=expires))) == (
        b"",
        Authenticated("alice", expires * 1_000),
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"aud": ["x", "other"]},
        {"scope": "a b"},
        {"scope": ["a", "b"]},
        {"exp": In(-20)},  # within the skew
        {"exp": In(10.5)},
        {"exp": 10**30},
    ],
)
def test_claims_that_are_good(changes: dict[str, Any]) -> None:
    assert step(message(signed(**changes)))[1] is not None


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"exp": In(-31)}, "ExpiredSignatureError"),
        ({"exp": None}, "MissingRequiredClaimError"),
        ({"iat": None}, "MissingRequiredClaimError"),
        ({"iat": In(300)}, "ImmatureSignatureError"),
        ({"nbf": In(300)}, "ImmatureSignatureError"),
        ({"aud": None}, "MissingRequiredClaimError"),
        ({"aud": "else"}, "InvalidAudienceError"),
        ({"aud": ["else", "more"]}, "InvalidAudienceError"),
        ({"aud": 7}, "InvalidAudienceError"),
        ({"iss": None}, "MissingRequiredClaimError"),
        ({"iss": "https://issuer/"}, "InvalidIssuerError"),
        ({"iss": [ISSUER]}, "InvalidIssuerError"),
        ({"sub": None}, "names no user"),
        ({"sub": " "}, "names no user"),
        ({"sub": 7}, "names no user"),
        ({"sub": ["alice"]}, "names no user"),
        ({"scope": 7}, "neither text nor a list"),
        ({"scope": [7]}, "neither text nor a list"),
        ({"exp": float("inf")}, ""),
        ({"exp": float("nan")}, ""),
        ({"exp": "soon"}, "DecodeError"),
        ({"exp": [1]}, ""),
    ],
)
def test_claims_that_are_refused(changes: dict[str, Any], why: str) -> None:
    assert why in refused(signed(**changes))


def test_claims_that_are_waived_or_named_otherwise() -> None:
    assert step(message(signed(aud="else", iss="else")), Claims())[1] is not None
    assert step(message(signed(aud=None, iss=None)), Claims())[1] is not None
    named = Claims(user="client_id")
    assert step(message(signed(client_id="bob")), named)[1][0] == "bob"  # type: ignore[index]
    assert "client_id" in refused(signed(), named)


def _forged(header: dict[str, Any], sign: bytes | None = None) -> str:
    parts = [base64.urlsafe_b64encode(json.dumps(each).encode()).rstrip(b"=") for each in (header, claims())]
    text = b".".join(parts)
    signature = b"" if sign is None else hmac.digest(sign, text, hashlib.sha256)
    return (text + b"." + base64.urlsafe_b64encode(signature).rstrip(b"=")).decode()


def test_forged_tokens() -> None:
    public = PRIVATE["rsa"].public_key()
    pem = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    for algorithm in ("none", "None", "NONE", "", None, 7, "HS256", "HS384", "ES256K"):
        assert "is not one of" in refused(_forged({"alg": algorithm, "kid": "rsa"}, pem))
        assert "is not one of" in refused(_forged({"alg": algorithm, "kid": "rsa"}))
    assert "is not one of" in refused(_forged({"alg": "HS256", "kid": "secret"}, b"s" * 32))
    assert "InvalidSignatureError" in refused(_forged({"alg": "RS256", "kid": "rsa"}, pem))
    assert "InvalidSignatureError" in refused(_forged({"alg": "RS256", "kid": "rsa"}))
    header, payload, _ = signed().split(".")
    other = signed(sub="root").split(".")[1]
    assert "InvalidSignatureError" in refused(f"{header}.{other}.{signed().split('.')[2]}")
    refused(f"{header}.{payload}.")
    refused(f"{header}.{payload}")


def test_keys_that_a_token_brings_along_are_ignored() -> None:
    stranger = rsa.generate_private_key(65_537, 2_048)
    jwk = get_default_algorithms()["RS256"].to_jwk(stranger.public_key(), as_dict=True)
    for headers in ({"jwk": jwk}, {"jku": "https://stranger/keys"}, {"x5u": "file:///etc/passwd"}):
        token = jwt.encode(claims(), stranger, "RS256", headers={"kid": "rsa", **headers})
        assert "InvalidSignatureError" in refused(token)


@pytest.mark.parametrize(
    ("token", "why"),
    [
        (signed("P-256", "ES256", {"kid": "rsa"}), "not of its key's type"),
        (signed("rsa", "RS256", {"kid": "P-256"}), "not of its key's type"),
        (signed("P-256", "ES256", {"kid": "P-384"}), "not of its key's type"),
        (signed("rsa", "RS256", {"kid": "ed"}), "not of its key's type"),
        (signed("for encryption"), "not for RS256 signatures"),
        (signed("for PS256"), "not for RS256 signatures"),
        (signed("small"), "has 1024 bits"),
        (signed("broken"), "cannot be used"),
        (signed("secret"), "not of its key's type"),
        (signed("../../etc/passwd"), "there is no key"),
        (signed("k" * 2_000), "does not name its key"),
        (signed("rsa", headers={"kid": ""}), "does not name its key"),
        (signed("rsa", headers={"crit": ["exp"]}), "cannot be read"),
        (signed(padding="x" * 70_000), "at most 65536"),
        ("x", "cannot be read"),
        ("....", "cannot be read"),
    ],
)
def test_tokens_that_are_refused(token: str, why: str) -> None:
    assert why in refused(token)


@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"\x01",
        b"n,,",
        b"y,,\x01auth=Bearer x\x01\x01",
        b"n,,\x01auth=Bearer x\x01",
        b"n,,\x01\x01",
        b"n,,\x01auth=Basic x\x01\x01",
        b"n,,\x01auth=Bearer\x01\x01",
        b"n,,\x01auth=Bearer x y\x01\x01",
        b"n,,\x01auth=Bearer x\x01auth=Bearer y\x01\x01",
        b"n,,\x01auth=Bearer x\x01k1=v\x01\x01",
        b"n,,\x01auth=Bearer x\x01key=\x01\x01",
        b"n,a=,\x01auth=Bearer x\x01\x01",
        b"n,,\x01auth=Bearer \xff\x01\x01",
    ],
)
def test_what_is_no_first_message(first: bytes) -> None:
    with pytest.raises(AuthenticationRefused) as raised:
        step(first)
    assert "Invalid OAUTHBEARER client first message" in str(raised.value)


def test_extensions_and_authorization_ids() -> None:
    assert step(message(signed(), "alice", "traceId=1 2\x01"))[1] is not None
    assert step(message(signed(sub="a,b=c"), "a=2Cb=3Dc"))[1] is not None
    assert step(message(signed()).replace(b"Bearer", b"bEARER"))[1] is not None
    with pytest.raises(AuthenticationRefused, match="authorization id"):
        step(message(signed(), "root"))


def test_another_token_behind_the_first() -> None:
    async def ask(first: str, second: bytes) -> None:
        exchange = OAuthBearer(Keys(), EXPECTED).begin()
        await exchange.step(message(first))
        with pytest.raises(AuthenticationRefused):
            await exchange.step(second)

    for first in (signed(), "x"):
        for second in (b"", b"\x01", message(signed())):
            asyncio.run(ask(first, second))


def test_the_client_of_muster() -> None:
    rounds = ClientOAuthBearer(lambda: "unused")._rounds(signed(), {"traceid": "x"})
    reply, who = step(next(rounds))
    assert who is not None
    with pytest.raises(StopIteration):
        rounds.send(reply)


@given(st.one_of(st.binary(max_size=200), st.text(max_size=200).map(lambda each: message(each))))
def test_whatever_comes_lets_nobody_in(first: bytes) -> None:
    with contextlib.suppress(AuthenticationRefused):
        assert step(first) == (REFUSED.encode(), None)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(
    header=st.dictionaries(st.sampled_from(["alg", "kid", "typ", "crit", "b64", "jwk"]), _JSON, max_size=4)
    | _JSON
)
def test_headers_of_whatever_kind(header: Any) -> None:
    assert step(message(_forged(header)))[1] is None


@given(
    changes=st.dictionaries(
        st.sampled_from(["exp", "iat", "nbf", "aud", "iss", "sub", "scope", "jti"]), _JSON, min_size=1
    )
)
def test_claims_of_whatever_kind(changes: dict[str, Any]) -> None:
    """Signed with a key that may sign."""
    text = json.dumps({**claims(), **changes}).encode()
    token = jwt.PyJWS().encode(text, PRIVATE["ed"], "EdDSA", headers={"kid": "ed"})
    reply, who = step(message(token))
    assert (reply == b"") == (who is not None)

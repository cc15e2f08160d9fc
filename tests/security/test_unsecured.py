"""Unsigned OAUTHBEARER tokens: whose are accepted, and how the others are refused."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.coordinator.security.bearer import EXPIRES_S_MAX, REFUSED, TOKEN_MAX
from muster.coordinator.security.exchange import Authenticated, AuthenticationRefused
from muster.coordinator.security.unsecured import UnsecuredClaims, UnsecuredOAuthBearer

NOW_S = 1_000
MECHANISM = UnsecuredOAuthBearer(UnsecuredClaims(skew_s=30), lambda: NOW_S)


def encoded(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def token(header: Any = None, signature: str = "", **changes: Any) -> str:
    """A good token with `changes` to its claims; None leaves a claim out."""
    claims = {"sub": "alice", "iat": NOW_S, "exp": NOW_S + 60, **changes}
    made = {name: value for name, value in claims.items() if value is not None}
    return f"{encoded({'alg': 'none'} if header is None else header)}.{encoded(made)}.{signature}"


def check(bearer: str, mechanism: UnsecuredOAuthBearer = MECHANISM) -> Authenticated:
    return asyncio.run(mechanism.check(bearer))


def refused(bearer: str) -> str:
    """Return the reason logged for the refusal; the client is told the same for every reason."""
    with pytest.raises(AuthenticationRefused) as raised:
        check(bearer)
    assert str(raised.value) == REFUSED
    return raised.value.why


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"iat": None},
        {"iat": NOW_S + 30},  # within the skew
        {"iat": 900, "exp": NOW_S - 29},
        {"scope": "a b"},
        {"scope": ["a", "b"]},
        {"iat": 999.5, "exp": 1_000.5},
        {"header": {"alg": "none", "typ": "JWT"}},
    ],
)
def test_tokens_that_are_good(changes: dict[str, Any]) -> None:
    assert check(token(**changes)) == Authenticated("alice", int(changes.get("exp", 1_060) * 1_000))


def test_claims_may_have_other_names_and_no_end_is_too_far() -> None:
    named = UnsecuredOAuthBearer(UnsecuredClaims(user="name"), lambda: NOW_S)
    assert check(token(name="bob"), named).user == "bob"
    for expires in (10**30, float("inf")):
        assert check(token(exp=expires)).expires_ms == EXPIRES_S_MAX * 1_000


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"exp": None}, "the token has no time when it expires (exp)"),
        ({"iat": 900, "exp": NOW_S - 30}, "the token has expired (exp)"),
        ({"exp": float("nan")}, "the token has expired (exp)"),
        ({"exp": "1060"}, "the claim exp is no number"),
        ({"exp": True}, "the claim exp is no number"),
        ({"iat": NOW_S + 31}, "the token was issued in the future (iat)"),
        ({"iat": float("nan")}, "the token was issued in the future (iat)"),
        ({"iat": NOW_S + 5, "exp": NOW_S + 5}, "the token was issued when it had expired (iat, exp)"),
        ({"iat": "now"}, "the claim iat is no number"),
        ({"sub": None}, "the claim sub names no user"),
        ({"sub": " "}, "the claim sub names no user"),
        ({"sub": 5}, "the claim sub names no user"),
        ({"scope": 5}, "the claim scope is neither text nor a list of text"),
        ({"scope": [5]}, "the claim scope is neither text nor a list of text"),
        ({"signature": "c2lnbmVk"}, "the token is said to be unsigned, and has a signature"),
        ({"header": {"alg": "RS256"}}, "alg 'RS256' is not none: only unsigned tokens are taken here"),
        ({"header": {"alg": ["none"]}}, "alg \"['none']\" is not none: only unsigned tokens are taken here"),
        ({"header": {}}, "alg 'None' is not none: only unsigned tokens are taken here"),
        ({"header": [1]}, "no JSON object where the token has its header"),
    ],
)
def test_tokens_that_are_refused(changes: dict[str, Any], why: str) -> None:
    assert refused(token(**changes)) == why


@pytest.mark.parametrize(
    ("bearer", "why"),
    [
        ("", "the token has 1 parts, a JWT has 3"),
        ("a.b", "the token has 2 parts, a JWT has 3"),
        ("a.b.c.d", "the token has 4 parts, a JWT has 3"),
        ("A.b.", "the token's header cannot be read: Error"),
        (f"{encoded({'alg': 'none'})}.{encoded([1])}.", "no JSON object where the token has its claims"),
        ("." * (TOKEN_MAX + 1), f"the token has {TOKEN_MAX + 1} characters, at most {TOKEN_MAX} are taken"),
    ],
)
def test_what_is_no_token(bearer: str, why: str) -> None:
    assert refused(bearer) == why


@given(st.text("abcDEF012-_.", max_size=40), st.recursive(st.none() | st.floats() | st.text(), st.lists))
def test_garbage_is_refused_and_nothing_else(bearer: str, claim: Any) -> None:
    refused(bearer)
    refused(f"{encoded({'alg': 'none'})}.{encoded({'sub': 'alice', 'exp': claim, 'iat': 'x'})}.")

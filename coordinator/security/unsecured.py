"""OAUTHBEARER with unsigned tokens (RFC 7519, section 6), for development: whoever can connect can be any
user. Tokens are checked as Kafka's OAuthBearerUnsecuredValidatorCallbackHandler does (KIP-255)."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from muster.coordinator.security.bearer import (
    EXPIRES_S_MAX,
    NAME,
    TOKEN_MAX,
    OAuthBearerExchange,
    invalid,
    shown,
)
from muster.coordinator.security.exchange import Authenticated

_PARTS: Final = 3


class UnsecuredClaims(NamedTuple):
    """How to check a token's claims."""

    user: str = "sub"
    """The claim that names the user."""
    scope: str = "scope"
    """The claim that holds scopes; they must be text or a list of text, and are otherwise ignored."""
    skew_s: int = 30


class UnsecuredOAuthBearer:
    """The OAUTHBEARER mechanism with unsigned tokens."""

    name = NAME

    def __init__(self, claims: UnsecuredClaims, now: Callable[[], float]) -> None:
        """`now` is in epoch seconds."""
        self.claims = claims
        self.now = now

    def begin(self, host: str = "") -> OAuthBearerExchange:
        """See exchange.Mechanism."""
        return OAuthBearerExchange(self)

    async def check(self, token: str) -> Authenticated:
        """Check a token; returns whose it is. Raises AuthenticationRefused."""
        claims, expected = _claims(token), self.claims
        user = claims.get(expected.user)
        if not isinstance(user, str) or not user.strip():
            raise invalid(f"the claim {expected.user} names no user")
        now_s, expires_s = self.now(), _seconds(claims, "exp")
        if expires_s is None:
            raise invalid("the token has no time when it expires (exp)")
        if not now_s - expected.skew_s < expires_s:
            raise invalid("the token has expired (exp)")
        issued_s = _seconds(claims, "iat")
        if issued_s is not None and not issued_s <= now_s + expected.skew_s:
            raise invalid("the token was issued in the future (iat)")
        if issued_s is not None and not issued_s < expires_s:
            raise invalid("the token was issued when it had expired (iat, exp)")
        scope = claims.get(expected.scope, "")
        scopes = [scope] if isinstance(scope, str) else scope
        if not isinstance(scopes, list) or not all(isinstance(each, str) for each in scopes):
            raise invalid(f"the claim {expected.scope} is neither text nor a list of text")
        return Authenticated(user, int(min(expires_s, EXPIRES_S_MAX) * 1_000))


def _claims(token: str) -> Mapping[str, Any]:
    if len(token) > TOKEN_MAX:
        raise invalid(f"the token has {len(token)} characters, at most {TOKEN_MAX} are taken")
    parts = token.split(".")
    if len(parts) != _PARTS:
        raise invalid(f"the token has {len(parts)} parts, a JWT has {_PARTS}")
    algorithm = _object("header", parts[0]).get("alg")
    if algorithm != "none":
        raise invalid(f"alg {shown(algorithm)} is not none: only unsigned tokens are taken here")
    if parts[2]:
        raise invalid("the token is said to be unsigned, and has a signature")
    return _object("claims", parts[1])


def _object(what: str, part: str) -> Mapping[str, Any]:
    try:
        read = json.loads(base64.b64decode(part + "=" * (-len(part) % 4), b"-_", validate=True))
    except (ValueError, RecursionError) as error:
        raise invalid(f"the token's {what} cannot be read: {type(error).__name__}") from None
    if not isinstance(read, dict):
        raise invalid(f"no JSON object where the token has its {what}")
    return read


def _seconds(claims: Mapping[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise invalid(f"the claim {name} is no number")
    return value

"""OAUTHBEARER with signed tokens (KIP-768): a JWT says who a client is, and until when. Needs the extra
`security`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import jwt

from muster.coordinator.security.bearer import (
    EXPIRES_S_MAX,
    NAME,
    TOKEN_MAX,
    OAuthBearerExchange,
    invalid,
    shown,
)
from muster.coordinator.security.exchange import Authenticated

_KID_MAX: Final = 1_024
_RSA_BITS_MIN: Final = 2_048

_EC: Final = {"ES256": "P-256", "ES384": "P-384", "ES512": "P-521"}
_FAMILIES: Final[Mapping[str, tuple[str, str | None]]] = {
    **{f"{kind}{bits}": ("RSA", None) for kind in ("RS", "PS") for bits in (256, 384, 512)},
    **{name: ("EC", curve) for name, curve in _EC.items()},
    "EdDSA": ("OKP", "Ed25519"),
}
"""The algorithms that a token may be signed with, and the type and curve of their keys. None is symmetric:
otherwise anybody could sign with the public key."""
_PUBLIC: Final = ("kty", "crv", "n", "e", "x", "y")


class Keys(Protocol):
    """The keys that sign tokens."""

    async def of(self, kid: str) -> Mapping[str, Any] | None:
        """The key with that id, as a JWK (RFC 7517); None if there is none. Raises AuthenticationRefused, and
        nothing else, if no keys have been read yet."""


@dataclass(frozen=True, slots=True)
class Claims:
    """How to check a token's claims."""

    audience: Sequence[str] = ()
    """A token must be for one of these; if empty, for anybody."""
    issuer: str | None = None
    """None for any issuer."""
    user: str = "sub"
    """The claim that names the user."""
    scope: str = "scope"
    """The claim that holds scopes; they must be text or a list of text, and are otherwise ignored."""
    skew_s: int = 30


class OAuthBearer:
    """The OAUTHBEARER mechanism with signed tokens."""

    name = NAME

    def __init__(self, keys: Keys, claims: Claims) -> None:
        self.keys = keys
        self.claims = claims

    def begin(self, host: str = "") -> OAuthBearerExchange:
        """See exchange.Mechanism."""
        return OAuthBearerExchange(self)

    async def check(self, token: str) -> Authenticated:
        """Check a token; returns whose it is. Raises AuthenticationRefused."""
        if len(token) > TOKEN_MAX:
            raise invalid(f"the token has {len(token)} characters, at most {TOKEN_MAX} are taken")
        try:
            header = jwt.get_unverified_header(token)
            algorithm, kid = header.get("alg"), header.get("kid")
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError) as error:
            raise invalid(f"the token cannot be read: {type(error).__name__}") from None
        if not isinstance(algorithm, str) or algorithm not in _FAMILIES:
            raise invalid(f"alg {shown(algorithm)} is not one of {', '.join(_FAMILIES)}")
        if not isinstance(kid, str) or not 0 < len(kid) <= _KID_MAX:
            raise invalid("the token does not name its key (kid)")
        if "crit" in header:
            raise invalid("the token has critical headers (crit), of which none is known")
        jwk = await self.keys.of(kid)
        if jwk is None:
            raise invalid(f"there is no key {shown(kid)}")
        return self._verified(token, _key(jwk, algorithm), algorithm)

    def _verified(self, token: str, key: jwt.PyJWK, algorithm: str) -> Authenticated:
        expected = self.claims
        try:
            claims = jwt.decode(
                token,
                key,
                algorithms=[algorithm],
                audience=list(expected.audience) or None,
                issuer=expected.issuer,
                leeway=expected.skew_s,
                options={
                    "require": ["exp", "iat"],
                    "verify_aud": bool(expected.audience),
                    "verify_iss": expected.issuer is not None,
                    "verify_sub": False,
                    "verify_jti": False,
                },
            )
            expires_s = min(int(claims["exp"]), EXPIRES_S_MAX)
        except (jwt.PyJWTError, ValueError, TypeError, ArithmeticError, RecursionError) as error:
            raise invalid(f"{type(error).__name__}: {shown(error)}") from None
        user = claims.get(expected.user)
        if not isinstance(user, str) or not user.strip():
            raise invalid(f"the claim {expected.user} names no user")
        scope = claims.get(expected.scope, "")
        scopes = scope.split() if isinstance(scope, str) else scope
        if not isinstance(scopes, list) or not all(isinstance(each, str) for each in scopes):
            raise invalid(f"the claim {expected.scope} is neither text nor a list of text")
        return Authenticated(user, expires_s * 1_000)


def _key(jwk: Mapping[str, Any], algorithm: str) -> jwt.PyJWK:
    """The key to verify with. Raises AuthenticationRefused for a key of another type or for another use."""
    kty, curve = _FAMILIES[algorithm]
    if jwk.get("kty") != kty or (curve is not None and jwk.get("crv") != curve):
        raise invalid(f"the token's alg {algorithm} is not of its key's type")
    if jwk.get("alg", algorithm) != algorithm or jwk.get("use", "sig") != "sig":
        raise invalid(f"the token's key is not for {algorithm} signatures")
    try:
        key = jwt.PyJWK({name: jwk[name] for name in _PUBLIC if name in jwk}, algorithm)
    except (jwt.PyJWTError, ValueError, TypeError, LookupError) as error:
        raise invalid(f"the token's key cannot be used: {type(error).__name__}") from None
    if kty == "RSA" and key.key.key_size < _RSA_BITS_MIN:
        raise invalid(f"the token's key has {key.key.key_size} bits, fewer than {_RSA_BITS_MIN}")
    return key

"""The messages of OAUTHBEARER (RFC 7628, KIP-255): a client sends a token, which says who it is and until
when. `oauth` and `unsecured` decide which tokens are accepted."""

from __future__ import annotations

import re
from typing import Final, Protocol

from muster.coordinator.security.exchange import Authenticated, AuthenticationRefused

NAME: Final = "OAUTHBEARER"
REFUSED: Final = '{"status":"invalid_token"}'
"""What a client is told when its token is refused, whatever the reason."""

TOKEN_MAX: Final = 65_536
"""Maximum characters of a token."""
EXPIRES_S_MAX: Final = 253_402_300_799  # the end of the year 9999
_ACKNOWLEDGED: Final = b"\x01"

_FIRST: Final = re.compile(
    r"n,(?:a=(?P<authzid>(?:[^=,\0\x01]|=2C|=3D)+))?,\x01"
    r"(?P<pairs>(?:[A-Za-z]+=[\x21-\x7e \t\r\n]+\x01)*)\x01"
)
_BEARER: Final = re.compile(r"bearer +(?P<token>[-_.A-Za-z0-9]+)", re.IGNORECASE)


class Tokens(Protocol):
    """Decides which tokens are accepted."""

    async def check(self, token: str) -> Authenticated:
        """Check a token; returns whose it is. Raises AuthenticationRefused."""


class OAuthBearerExchange:
    """One authentication: a token and, if it is refused, the client's acknowledgement."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._refused: AuthenticationRefused | None = None

    async def step(self, token: bytes) -> tuple[bytes, Authenticated | None]:
        """See exchange.Exchange."""
        if (refused := self._refused) is not None:
            told = "Authentication failed: the error was to be answered by the byte 0x01"
            if token == _ACKNOWLEDGED:
                told = REFUSED
            raise AuthenticationRefused(told, refused.why, refused.remedy)
        bearer, authzid = _read(token)
        try:
            who = await self._tokens.check(bearer)
        except AuthenticationRefused as error:
            self._refused = error
            return REFUSED.encode(), None
        if authzid and authzid != who.user:
            raise AuthenticationRefused(
                "Authentication failed: Client requested an authorization id that is different from the "
                "token's principal name",
                f"{who.user} asked to be {authzid}",
            )
        self._refused = invalid("a token came behind the last one")
        return b"", who


def _read(message: bytes) -> tuple[str, str]:
    """The bearer token, and the authorization id. Raises AuthenticationRefused."""
    try:
        found = _FIRST.fullmatch(message.decode())
    except UnicodeDecodeError:
        found = None
    if found is None:
        raise AuthenticationRefused("Authentication failed: Invalid OAUTHBEARER client first message")
    pairs = [pair.partition("=")[::2] for pair in found["pairs"].split("\x01")[:-1]]
    bearers = [value for key, value in pairs if key == "auth"]
    bearer = _BEARER.fullmatch(bearers[0]) if len(bearers) == 1 else None
    if bearer is None:
        raise AuthenticationRefused(
            "Authentication failed: Invalid OAUTHBEARER client first message: no bearer token in auth"
        )
    return bearer["token"], (found["authzid"] or "").replace("=2C", ",").replace("=3D", "=")


def invalid(why: str, remedy: str = "") -> AuthenticationRefused:
    """The error for a token that is refused; `why` and `remedy` are for the log."""
    return AuthenticationRefused(REFUSED, why, remedy)


def shown(value: object) -> str:
    """Untrusted input in a form that is safe to log."""
    text = str(value)
    return ascii(text if len(text) <= 100 else text[:100] + "...")

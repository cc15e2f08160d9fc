"""Authentication: SaslHandshake, SaslAuthenticate."""

from __future__ import annotations

from muster.protocol.message import Message, field, request, response
from muster.protocol.types import Array, Bytes, Int16, Int64, String


@request(17, versions="0-1")
class SaslHandshakeRequest(Message):
    """SaslHandshake v0-1 (KIP-43): v1 the tokens follow in SaslAuthenticate requests (KIP-152; after v0 they
    follow bare, each preceded by its size). Never flexible."""

    mechanism: str = field(String, "0+")


@response(17, versions="0-1")
class SaslHandshakeResponse(Message):
    """SaslHandshake v0-1 (KIP-43): v1 no change here. Never flexible.

    `mechanisms` are those the broker offers.
    """

    error_code: int = field(Int16, "0+", default=0)
    mechanisms: list[str] = field(Array(String), "0+")


@request(36, versions="0-2", flexible="2+")
class SaslAuthenticateRequest(Message):
    """SaslAuthenticate v0-2 (KIP-152): v1 no change here, v2 flexible.

    The mechanism defines `auth_bytes`.
    """

    auth_bytes: bytes = field(Bytes, "0+", secret=True)


@response(36, versions="0-2", flexible="2+")
class SaslAuthenticateResponse(Message):
    """SaslAuthenticate v0-2 (KIP-152): v1 the session's lifetime, after which the client authenticates again
    (KIP-368; 0: forever), v2 flexible."""

    error_code: int = field(Int16, "0+", default=0)
    error_message: str | None = field(String, "0+", nullable="0+")
    auth_bytes: bytes = field(Bytes, "0+", secret=True)
    session_lifetime_ms: int = field(Int64, "1+", default=0, ignorable=True)

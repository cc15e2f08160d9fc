"""The interface of SASL mechanisms, and the names of those that `mechanisms` implements.

A client over PLAINTEXT or TLS imports only this, and none of the modules for hashes and tokens.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Generator
from typing import Final, TypeAlias

PLAIN: Final = "PLAIN"
OAUTHBEARER: Final = "OAUTHBEARER"
SCRAM_HASHES: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
MECHANISMS: Final = (PLAIN, *SCRAM_HASHES, OAUTHBEARER)

TokenProvider: TypeAlias = Callable[[], str] | Callable[[], Awaitable[str]]
"""Returns a token as its issuer wrote it: for most, a JWT in compact form. If it has an attribute
`extensions`, a mapping, it is sent with the token (KIP-342)."""

Exchange: TypeAlias = Generator[bytes, bytes, None]
"""Yields what to send, and receives the broker's responses. Returns when it is satisfied. If the broker
refuses, AuthenticationFailed is thrown into it, and must leave it."""


def check_unicode(name: str, text: str) -> None:
    """Raises ValueError that names a text which no request can carry, without showing it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{name} is no Unicode text (it has a lone surrogate)") from None


class Mechanism(ABC):
    """A way to authenticate, with the credentials for it."""

    name: str
    is_slow = False
    """Whether a round may block the loop for long."""

    @abstractmethod
    async def exchange(self) -> Exchange:
        """The rounds of one authentication. Raises AuthenticationFailed if there are no credentials."""

    def __repr__(self) -> str:
        return f"<{self.name}>"  # never the credentials

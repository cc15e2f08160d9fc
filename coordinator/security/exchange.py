"""The interface of a SASL mechanism, and the error for listeners that cannot be secured."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class SecurityError(Exception):
    """The listeners cannot be secured as the settings say; the text names the setting and what to do."""


class Authenticated(NamedTuple):
    """Who a client has proved to be."""

    user: str
    """The authorization id; the principal is `User:` followed by this."""
    expires_ms: int | None = None
    """When the credential expires (epoch milliseconds, by the wall clock); None for never."""


class AuthenticationRefused(Exception):
    """The client is not let in. The text is sent to it, so it says nothing that helps to guess: unknown users
    and wrong passwords get the same text. `why` and `remedy` are for the log alone, and never contain a
    secret; `remedy` is given if the client is not at fault."""

    def __init__(self, told: str, why: str = "", remedy: str = "") -> None:
        super().__init__(told)
        self.why = why or told
        self.remedy = remedy


class Exchange(Protocol):
    """One authentication, token by token."""

    async def step(self, token: bytes) -> tuple[bytes, Authenticated | None]:
        """The answer to a client's token, and who the client is once that is proved. Raises
        AuthenticationRefused, and nothing else, whatever a client sends."""


class Mechanism(Protocol):
    """A way to authenticate."""

    name: str
    """Its name in SASL, such as `SCRAM-SHA-256`."""

    def begin(self, host: str = "") -> Exchange:
        """Begin a new authentication, of a client at this address."""

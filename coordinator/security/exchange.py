"""What a SASL mechanism is to the server, and what keeps a broker from securing its listeners."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class SecurityError(Exception):
    """The listeners cannot be secured as the settings say; the text names the setting and what to do."""


class Authenticated(NamedTuple):
    """Who a client has proved to be."""

    user: str
    """The authorization id; the principal is `User:` and this."""
    expires_ms: int | None = None
    """When the credential ends (epoch milliseconds); None: never."""


class AuthenticationRefused(Exception):
    """The client is not let in. The text is sent to it, so it says nothing that helps to guess: unknown users
    and wrong passwords get the same one. `why` is for the log alone, and never has a secret in it."""

    def __init__(self, told: str, why: str = "") -> None:
        super().__init__(told)
        self.why = why or told


class Exchange(Protocol):
    """One authentication, token by token."""

    async def step(self, token: bytes) -> tuple[bytes, Authenticated | None]:
        """What to send in answer to a token of the client, and who it is once that is proved. Raises
        AuthenticationRefused; no other exception for anything that a client can send."""


class Mechanism(Protocol):
    """A way to authenticate."""

    name: str
    """As SASL has it: `SCRAM-SHA-256`."""

    def begin(self) -> Exchange:
        """A new authentication."""

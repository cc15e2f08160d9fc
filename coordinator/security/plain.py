"""PLAIN (RFC 4616), checked against the credentials that SCRAM has: no password is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from muster.coordinator.security.exchange import Authenticated, AuthenticationRefused
from muster.coordinator.security.scram import Lookup, MadeUp

NAME: Final = "PLAIN"
_CHECKS_AT_ONCE: Final = 2
"""To hash a password takes milliseconds of a processor: strangers get no more of it than this."""
_PARTS: Final = 3
_WRONG: Final = "Authentication failed: Invalid username or password"


class Plain:
    """The mechanism."""

    name = NAME

    def __init__(self, lookup: Lookup, made_up: MadeUp, hashes: Sequence[str]) -> None:
        """`hashes`: the SCRAM mechanisms, the one that is preferred first."""
        self.lookup = lookup
        self.made_up = made_up
        self.hashes = hashes
        self.room = asyncio.Semaphore(_CHECKS_AT_ONCE)

    def begin(self) -> PlainExchange:
        """See exchange.Mechanism."""
        return PlainExchange(self)


class PlainExchange:
    """One authentication: one token."""

    def __init__(self, mechanism: Plain) -> None:
        self._mechanism = mechanism

    async def step(self, token: bytes) -> tuple[bytes, Authenticated | None]:
        """See exchange.Exchange."""
        try:
            parts = token.decode().split("\0")
        except UnicodeDecodeError:
            raise AuthenticationRefused(_WRONG, "the message is no UTF-8") from None
        if len(parts) != _PARTS:
            raise AuthenticationRefused(
                f"Invalid SASL/PLAIN response: expected {_PARTS} tokens, got {min(len(parts), _PARTS + 1)}"
            )
        authzid, user, password = parts
        if not user:
            raise AuthenticationRefused("Authentication failed: username not specified")
        if not password:
            raise AuthenticationRefused("Authentication failed: password not specified")
        known, right = await self._check(user, password)
        if not right:
            why = "wrong password" if known else "there is no such user"
            raise AuthenticationRefused(_WRONG, f"{user}: {why}")
        if authzid and authzid != user:
            raise AuthenticationRefused(
                "Authentication failed: Client requested an authorization id that is different from username",
                f"{user} asked to be {authzid}",
            )
        return b"", Authenticated(user)

    async def _check(self, user: str, password: str) -> tuple[bool, bool]:
        """Whether there is such a user, and whether that is the password; takes as long if there is none."""
        mechanism = self._mechanism
        found = ((name, mechanism.lookup(user, name)) for name in mechanism.hashes)
        name, kept = next(
            ((name, kept) for name, kept in found if kept is not None), (mechanism.hashes[0], None)
        )
        credential = mechanism.made_up.of(user, name) if kept is None else kept
        async with mechanism.room:
            right = await asyncio.to_thread(credential.has_password, name, password)
        return kept is not None, right and kept is not None

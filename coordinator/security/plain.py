"""PLAIN (RFC 4616), checked against SCRAM credentials: no password is stored.

A check hashes the password with every hash that counts, for as many iterations as any credential can have.
So it takes equally long for a user that does not exist, and whatever a user's credentials are.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final
from weakref import WeakValueDictionary

from muster.coordinator.security.exchange import Authenticated, AuthenticationRefused
from muster.coordinator.security.scram import (
    HASHES,
    ITERATIONS,
    Lookup,
    MadeUp,
    ScramCredential,
)

NAME: Final = "PLAIN"
_CHECKS_AT_ONCE: Final = 2
"""A check takes some 13 ms of CPU time; this limits what strangers can use. Checks have their own threads,
since a check that has begun outlives its connection. No address has more of them in line, so guesses from
one address barely delay logins from others."""
_PARTS: Final = 3
_WRONG: Final = "Authentication failed: Invalid username or password"


class Plain:
    """The PLAIN mechanism."""

    name = NAME

    def __init__(self, lookup: Lookup, made_up: MadeUp, hashes: Sequence[str]) -> None:
        """`hashes`: the SCRAM mechanisms that count. The password for any of them is accepted."""
        self.lookup = lookup
        self.made_up = made_up
        self.hashes = hashes
        self.threads = ThreadPoolExecutor(_CHECKS_AT_ONCE, thread_name_prefix="passwords")
        self._turns: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        """By address, as long as a client there is being authenticated."""

    def begin(self, host: str = "") -> PlainExchange:
        """See exchange.Mechanism."""
        turns = self._turns.setdefault(host, asyncio.Semaphore(_CHECKS_AT_ONCE))
        return PlainExchange(self, turns)


class PlainExchange:
    """One authentication: one token."""

    def __init__(self, mechanism: Plain, turns: asyncio.Semaphore) -> None:
        """`turns` lets checks for the client's address begin."""
        self._mechanism = mechanism
        self._turns = turns

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
        """Whether the user exists, and whether the password is right."""
        mechanism = self._mechanism
        kept = {name: mechanism.lookup(user, name) for name in mechanism.hashes}
        usable = {name for name, each in kept.items() if each is not None and each.iterations in ITERATIONS}
        credentials = {
            name: each if each is not None and name in usable else mechanism.made_up.of(user, name)
            for name, each in kept.items()
        }
        async with self._turns:
            right = await asyncio.get_running_loop().run_in_executor(
                mechanism.threads, _passed, credentials, password
            )
        return bool(usable), not usable.isdisjoint(right)


def _passed(credentials: Mapping[str, ScramCredential], password: str) -> set[str]:
    """The mechanisms whose credential matches the password."""
    passed = set()
    for name, each in credentials.items():
        if each.has_password(name, password):
            passed.add(name)
        left = ITERATIONS[-1] - each.iterations
        if left:
            hashlib.pbkdf2_hmac(HASHES[name], password.encode(), each.salt, left)
    return passed

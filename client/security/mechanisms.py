"""The client's side of SASL mechanisms: what to send in each round, and how to check what comes back.

A mechanism makes an exchange for each authentication: a generator that yields what to send and receives the
broker's responses. It returns when it is satisfied, and raises AuthenticationFailed if the broker cannot
prove that it knows the password, or refuses.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Mapping
from typing import Final

from muster.client.errors import AuthenticationFailed, ClientError
from muster.client.security.mechanism import (
    OAUTHBEARER,
    PLAIN,
    SCRAM_HASHES,
    Exchange,
    Mechanism,
    TokenProvider,
)
from muster.client.security.oauth import extensions_of, token_of

ITERATIONS_MIN: Final = 4_096
"""RFC 7677: with fewer, an eavesdropper can cheaply guess a password. Java's client insists on it too."""
ITERATIONS_MAX: Final = 1_000_000
"""Apache Kafka's brokers allow 16,384. More than this would be an attack on the client's CPU."""


class Plain(Mechanism):
    """RFC 4616. The password itself is sent: use it only over TLS, or where nobody can listen."""

    name = PLAIN

    def __init__(self, username: str, password: str) -> None:
        self._message = b"\0".join([b"", username.encode(), password.encode()])

    async def exchange(self) -> Exchange:
        return self._rounds()

    def _rounds(self) -> Exchange:
        yield self._message


class Scram(Mechanism):
    """RFC 5802, without SASLprep, as in Kafka."""

    is_slow = True

    def __init__(self, name: str, username: str, password: str) -> None:
        self.name = name
        self._hash = SCRAM_HASHES[name]
        self._username = username.replace("=", "=3D").replace(",", "=2C")
        self._password = password.encode()

    async def exchange(self) -> Exchange:
        return self._rounds(secrets.token_urlsafe(24))

    def _rounds(self, nonce: str) -> Exchange:
        first_bare = f"n={self._username},r={nonce}"
        server_first = (yield f"n,,{first_bare}".encode()).decode("utf-8", "replace")
        salt, iterations, full_nonce = self._server_first(server_first, nonce)
        salted = hashlib.pbkdf2_hmac(self._hash, self._password, salt, iterations)
        client_key = self._hmac(salted, b"Client Key")
        without_proof = f"c=biws,r={full_nonce}"
        signed = f"{first_bare},{server_first},{without_proof}".encode()
        signature = self._hmac(hashlib.new(self._hash, client_key).digest(), signed)
        proof = bytes(one ^ other for one, other in zip(client_key, signature, strict=True))
        final = yield f"{without_proof},p={base64.b64encode(proof).decode()}".encode()
        self._check_server(final.decode("utf-8", "replace"), self._hmac(salted, b"Server Key"), signed)

    def _server_first(self, message: str, nonce: str) -> tuple[bytes, int, str]:
        fields = _fields(message)
        try:
            full_nonce, iterations = fields["r"], int(fields["i"])
            salt = base64.b64decode(fields["s"], validate=True)
        except (KeyError, ValueError):
            raise self._failed("the broker's first message cannot be read") from None
        if not full_nonce.startswith(nonce) or full_nonce == nonce:
            raise self._failed("the broker's nonce does not continue ours: somebody may be in between")
        if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
            raise self._failed(
                f"the broker wants {iterations} iterations; {ITERATIONS_MIN} to {ITERATIONS_MAX} are accepted"
            )
        return salt, iterations, full_nonce

    def _check_server(self, message: str, server_key: bytes, signed: bytes) -> None:
        fields = _fields(message)
        if "e" in fields:
            raise self._failed(fields["e"])
        expected = base64.b64encode(self._hmac(server_key, signed)).decode()
        if not hmac.compare_digest(fields.get("v", "").encode(), expected.encode()):
            raise self._failed("the broker cannot prove that it knows the password")

    def _hmac(self, key: bytes, message: bytes) -> bytes:
        return hmac.digest(key, message, self._hash)

    def _failed(self, why: str) -> AuthenticationFailed:
        return AuthenticationFailed(f"{self.name}: {why}")


class OAuthBearer(Mechanism):
    """RFC 7628, KIP-255."""

    name = OAUTHBEARER

    def __init__(self, provider: TokenProvider) -> None:
        self._provider = provider

    async def exchange(self) -> Exchange:
        """Raises any ClientError of the provider, and AuthenticationFailed for whatever else it raises."""
        try:
            extensions = extensions_of(self._provider)
            token = await token_of(self._provider)
        except ClientError:
            raise
        except Exception as error:
            raise AuthenticationFailed(f"sasl_oauth_token_provider has no token: {error}") from error
        return self._rounds(token, extensions)

    def _rounds(self, token: str, extensions: Mapping[str, str]) -> Exchange:
        fields = {"auth": f"Bearer {token}", **extensions}
        said = "".join(f"{name}={value}\x01" for name, value in fields.items())
        try:
            refused = yield f"n,,\x01{said}\x01".encode()
        except AuthenticationFailed:
            self._forget(token)
            raise
        if refused:
            self._forget(token)
            yield b"\x01"  # the broker then says why

    def _forget(self, token: str) -> None:
        forget = getattr(self._provider, "forget", None)
        if callable(forget):
            forget(token)


def _fields(message: str) -> dict[str, str]:
    """The fields of `r=...,s=...`, by letter."""
    return {part[:1]: part[2:] for part in message.split(",") if part[1:2] == "="}

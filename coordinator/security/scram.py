"""The server side of SCRAM (RFC 5802), with Kafka's choices: no SASLprep, no channel binding."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from collections.abc import Callable, Collection, Mapping
from typing import Final, NamedTuple, Self

from muster.coordinator.security.exchange import Authenticated, AuthenticationRefused

HASHES: Final[Mapping[str, str]] = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
ITERATIONS: Final = range(4_096, 16_385)
"""What Kafka accepts (KIP-554)."""

_SALT_BYTES: Final = 18
_NAME: Final = r"(?:[^=,\0]|=2C|=3D)+"
_FIRST: Final = re.compile(
    rf"n,(?:a=(?P<authzid>{_NAME}))?,(?P<bare>(?:m=[^,\0]+,)?n=(?P<user>{_NAME}),r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+)"
    r"(?:,[A-Za-z]=[^,\0]+)*)"
)
_FINAL: Final = re.compile(
    r"(?P<unproved>c=(?P<binding>[A-Za-z0-9+/]+=*),r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+)(?:,[A-Za-z]=[^,\0]+)*?)"
    r",p=(?P<proof>[A-Za-z0-9+/]+=*)"
)


class ScramCredential(NamedTuple):
    """What is stored of a password: enough to check it, but not enough to log in with."""

    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes

    @classmethod
    def of_password(
        cls, mechanism: str, password: str, iterations: int = ITERATIONS[-1], salt: bytes | None = None
    ) -> Self:
        """Made the way a client makes it to alter a credential; takes milliseconds."""
        salt = secrets.token_bytes(_SALT_BYTES) if salt is None else salt
        salted = hashlib.pbkdf2_hmac(HASHES[mechanism], password.encode(), salt, iterations)
        return cls.of_salted(mechanism, salted, salt, iterations)

    @classmethod
    def of_salted(cls, mechanism: str, salted: bytes, salt: bytes, iterations: int) -> Self:
        """Made from the salted password, as AlterUserScramCredentials carries it."""
        name = HASHES[mechanism]
        client_key = hmac.digest(salted, b"Client Key", name)
        return cls(
            salt, iterations, hashlib.new(name, client_key).digest(), hmac.digest(salted, b"Server Key", name)
        )

    def __repr__(self) -> str:
        return f"<ScramCredential iterations={self.iterations}>"

    def has_password(self, mechanism: str, password: str) -> bool:
        """Whether this is the password; takes milliseconds."""
        other = self.of_password(mechanism, password, self.iterations, self.salt)
        return hmac.compare_digest(other.stored_key, self.stored_key)

    def encode(self) -> str:
        """The text kept in the store."""
        parts = (self.salt, self.stored_key, self.server_key)
        return f"{self.iterations}:{':'.join(base64.b64encode(each).decode() for each in parts)}"

    @classmethod
    def decode(cls, text: str) -> Self:
        """Undo `encode`. Raises ValueError."""
        iterations, *parts = text.split(":")
        salt, stored_key, server_key = (base64.b64decode(each, validate=True) for each in parts)
        return cls(salt, int(iterations), stored_key, server_key)


Lookup = Callable[[str, str], ScramCredential | None]
"""The credential of a user for a mechanism."""


class Shape(NamedTuple):
    """What a client is told about a credential before it proves anything, except for the salt itself."""

    iterations: int
    salt_bytes: int


_SHAPE: Final = Shape(ITERATIONS[-1], _SALT_BYTES)
"""The shape of credentials that muster's own commands make."""


class MadeUp:
    """Credentials for users that do not exist. They look like those of users that do, and are always the
    same for a name, so that nobody can tell the difference."""

    def __init__(
        self, secret: bytes = b"", shapes: Callable[[str], Collection[Shape]] = lambda mechanism: ()
    ) -> None:
        """`shapes` returns those of the existing credentials for a mechanism."""
        self.secret = secret
        """The cluster's: all its brokers make up the same credentials, and nobody else can."""
        self.shapes = shapes

    def of(self, user: str, mechanism: str) -> ScramCredential:
        def made(what: str, size: int) -> bytes:
            key = f"{what}\0{mechanism}\0{user}".encode()
            return hashlib.shake_256(self.secret + key).digest(size)

        # Each shape bids, and the highest bid wins: a name's shape changes only to a new one, or if its own
        # is gone.
        shape = max(self.shapes(mechanism) or (_SHAPE,), key=lambda each: made(str(each), 8))
        size = hashlib.new(HASHES[mechanism]).digest_size
        return ScramCredential(
            made("salt", shape.salt_bytes), shape.iterations, made("stored", size), made("server", size)
        )


class Scram:
    """A mechanism, SCRAM-SHA-256 or -512."""

    def __init__(self, name: str, lookup: Lookup, made_up: MadeUp) -> None:
        self.name = name
        self.lookup = lookup
        self.made_up = made_up

    def begin(self, host: str = "") -> ScramExchange:
        """See exchange.Mechanism."""
        return ScramExchange(self)


class ScramExchange:
    """One authentication: two tokens from the client, each answered."""

    def __init__(self, mechanism: Scram) -> None:
        self._mechanism = mechanism
        self._hash = HASHES[mechanism.name]
        self._user = ""
        self._known = False
        self._credential: ScramCredential | None = None
        self._nonce = ""
        self._signed = ""
        self._over = False

    async def step(self, token: bytes) -> tuple[bytes, Authenticated | None]:
        """See exchange.Exchange."""
        if self._over:
            raise self._refused("a token came behind the last one")
        try:
            text = token.decode()
        except UnicodeDecodeError:
            raise self._refused("the message is no UTF-8") from None
        return self._first(text) if self._credential is None else self._final(text)

    def _first(self, text: str) -> tuple[bytes, None]:
        found = _FIRST.fullmatch(text)
        if found is None:
            raise self._refused("the client's first message cannot be read")
        user, authzid = _name(found["user"]), _name(found["authzid"] or "")
        if authzid and authzid != user:
            raise AuthenticationRefused(
                "Authentication failed: Client requested an authorization id that is different from username",
                f"{user} asked to be {authzid}",
            )
        self._user = user
        kept = self._mechanism.lookup(user, self._mechanism.name)
        self._known = kept is not None and kept.iterations >= ITERATIONS[0]
        self._credential = credential = (
            kept
            if kept is not None and self._known
            else self._mechanism.made_up.of(user, self._mechanism.name)
        )
        self._nonce = found["nonce"] + secrets.token_urlsafe(24)
        salt = base64.b64encode(credential.salt).decode()
        reply = f"r={self._nonce},s={salt},i={credential.iterations}"
        self._signed = f"{found['bare']},{reply}"
        return reply.encode(), None

    def _final(self, text: str) -> tuple[bytes, Authenticated]:
        self._over = True
        credential = self._credential
        assert credential is not None
        found = _FINAL.fullmatch(text)
        if found is None:
            raise self._refused("the client's final message cannot be read")
        if not hmac.compare_digest(found["nonce"].encode(), self._nonce.encode()):
            # Kafka refuses it since 3.8.1 (CVE-2024-56128).
            raise self._refused(
                "the nonce is not the one that was sent, as with librdkafka before 2.6.1: update the client"
            )
        try:
            proof = base64.b64decode(found["proof"], validate=True)
        except binascii.Error:
            raise self._refused("the proof cannot be read") from None
        signed = f"{self._signed},{found['unproved']}".encode()
        signature = hmac.digest(credential.stored_key, signed, self._hash)
        if len(proof) != len(signature):
            raise self._refused("the proof has another length")
        client_key = bytes(one ^ other for one, other in zip(proof, signature, strict=True))
        proved = hashlib.new(self._hash, client_key).digest()
        if not hmac.compare_digest(proved, credential.stored_key) or not self._known:
            raise self._refused("wrong password" if self._known else "there is no such user")
        verifier = base64.b64encode(hmac.digest(credential.server_key, signed, self._hash))
        return b"v=" + verifier, Authenticated(self._user)

    def _refused(self, why: str) -> AuthenticationRefused:
        user = f"{self._user}: " if self._user else ""
        return AuthenticationRefused(invalid_credentials(self._mechanism.name), f"{user}{why}")


def invalid_credentials(mechanism: str) -> str:
    """What a client is told about credentials that are wrong in any way: Kafka's words."""
    return (
        "Authentication failed during authentication due to invalid credentials with SASL mechanism "
        f"{mechanism}"
    )


def _name(escaped: str) -> str:
    return escaped.replace("=2C", ",").replace("=3D", "=")

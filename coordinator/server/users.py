"""The users of a cluster: their SCRAM credentials, kept in the store beside configs."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Final

from muster.coordinator.base.log import Logger
from muster.coordinator.config import OnListener
from muster.coordinator.security.bearer import NAME as OAUTHBEARER
from muster.coordinator.security.exchange import Mechanism, SecurityError
from muster.coordinator.security.plain import NAME as PLAIN
from muster.coordinator.security.plain import Plain
from muster.coordinator.security.scram import HASHES, ITERATIONS, MadeUp, Scram, ScramCredential, Shape
from muster.coordinator.security.unsecured import UnsecuredClaims, UnsecuredOAuthBearer
from muster.coordinator.server.config_rows import ConfigRows, Rows
from muster.realtime import RealTime

_log: Final = Logger(part="users")

_USER: Final = "user:"
"""Prefix of the row names of users."""
_OF_SIGNED: Final = tuple(
    f"sasl_oauthbearer_{name}"
    for name in (
        "jwks_endpoint_url",
        "expected_audience",
        "expected_issuer",
        "allow_unverified_audience",
        "allow_unverified_issuer",
    )
)
"""Settings about who signs tokens, and for whom."""
_SECRET: Final = "users"
"""The row with the secret that made-up credentials are derived from."""

Altered = Mapping[str, ScramCredential | None]
"""A user's new credentials by mechanism; None deletes one."""


class Users:
    """The users, as last read."""

    def __init__(self, rows: ConfigRows) -> None:
        self._rows = rows
        self._users: dict[str, dict[str, ScramCredential]] = {}
        self._shapes: dict[str, set[Shape]] = {}
        rows.listeners.append(self._read)

    def __repr__(self) -> str:
        return f"<Users {len(self._users)}>"

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._users))

    def of(self, user: str) -> Mapping[str, ScramCredential]:
        """A user's credentials by mechanism; empty if there is no such user."""
        return self._users.get(user, {})

    def credential(self, user: str, mechanism: str) -> ScramCredential | None:
        """See scram.Lookup."""
        return self.of(user).get(mechanism)

    def shapes(self, mechanism: str) -> Collection[Shape]:
        """See scram.MadeUp."""
        return self._shapes.get(mechanism, ())

    async def refresh(self) -> None:
        """Read the store, for what another broker has just changed. Raises StoreError."""
        await self._rows.refresh()

    async def alter(self, user: str, altered: Altered) -> None:
        """Set and delete a user's credentials; deleting the last one deletes the user. Raises KafkaError
        REQUEST_TIMED_OUT, and StoreError."""

        def after(before: Mapping[str, str]) -> Mapping[str, str]:
            now = {**before, **{name: each.encode() for name, each in altered.items() if each is not None}}
            return {name: text for name, text in now.items() if altered.get(name, ...) is not None}

        await self._rows.change(_USER + user, after)

    async def secret(self) -> bytes:
        """The secret that made-up credentials are derived from, created on first use. Raises what `alter`
        raises."""
        made = secrets.token_hex(32)
        kept = made

        def after(before: Mapping[str, str]) -> Mapping[str, str]:
            nonlocal kept
            kept = before.get("secret", made)
            return {"secret": kept}

        await self._rows.change(_SECRET, after)
        return bytes.fromhex(kept)

    def _read(self, rows: Rows) -> None:
        self._users = {
            name.removeprefix(_USER): _decoded(name, row)
            for name, row in rows.items()
            if name.startswith(_USER)
        }
        self._shapes = {name: set() for name in HASHES}
        for kept in self._users.values():
            for name, each in kept.items():
                if each.iterations in ITERATIONS:
                    self._shapes[name].add(Shape(each.iterations, len(each.salt)))


def _decoded(name: str, row: Mapping[str, str]) -> dict[str, ScramCredential]:
    found = {}
    for mechanism, text in row.items():
        if mechanism not in HASHES:
            continue  # written by a newer muster
        try:
            found[mechanism] = ScramCredential.decode(text)
        except ValueError:
            _log.error("a credential cannot be read", user=name.removeprefix(_USER), mechanism=mechanism)
    return found


def mechanisms(on: OnListener, users: Users, made_up: MadeUp) -> dict[str, Mechanism]:
    """The SASL mechanisms enabled on a listener, by name. Raises SecurityError."""
    enabled = on.settings.mechanisms
    hashes = [name for name in HASHES if name in enabled] or list(HASHES)
    make: dict[str, Callable[[], Mechanism]] = {
        PLAIN: lambda: Plain(users.credential, made_up, hashes),
        **{name: lambda name=name: Scram(name, users.credential, made_up) for name in HASHES},  # type: ignore[misc]
        OAUTHBEARER: lambda: (
            _unsecured(on) if on.settings.sasl_oauthbearer_allow_unsecured else _oauth_bearer(on)
        ),
    }
    return {name: make[name]() for name in enabled}


def _unsecured(on: OnListener) -> Mechanism:
    """Raises SecurityError if a setting for signed tokens is given, too."""
    settings, allowed = on.settings, on.option("sasl_oauthbearer_allow_unsecured")
    for name in _OF_SIGNED:
        if getattr(settings, name):
            raise SecurityError(f"{allowed} takes tokens that nobody signed; leave out {on.option(name)}")
    _log.warning(
        "unsigned OAUTHBEARER tokens are accepted: anyone who can connect can act as any user",
        listener=on.listener,
        option=allowed,
    )
    claims = UnsecuredClaims(
        settings.sasl_oauthbearer_sub_claim_name,
        settings.sasl_oauthbearer_scope_claim_name,
        settings.sasl_oauthbearer_clock_skew_seconds,
    )
    return UnsecuredOAuthBearer(claims, RealTime.time)


def _oauth_bearer(on: OnListener) -> Mechanism:
    """Raises SecurityError."""
    settings = on.settings
    try:
        from muster.coordinator.security.oauth import Claims, OAuthBearer
        from muster.coordinator.server.jwks import Jwks, parsed, read_url
    except ImportError:
        raise SecurityError("OAUTHBEARER needs more packages: pip install 'muster-kafka[security]'") from None
    url = settings.sasl_oauthbearer_jwks_endpoint_url
    if url is None:
        raise SecurityError(
            f"OAUTHBEARER needs the keys that sign tokens: {on.option('sasl_oauthbearer_jwks_endpoint_url')} "
            "https://... or file:///..."
        )
    if url.startswith("file:"):
        try:
            parsed(read_url(url))
        except (OSError, ValueError, RecursionError) as error:
            why = (error.strerror or str(error)).lower() if isinstance(error, OSError) else str(error)
            raise SecurityError(f"{on.option('sasl_oauthbearer_jwks_endpoint_url')} {url}: {why}") from None
    for what, expected, waived in (
        (
            "audience",
            settings.sasl_oauthbearer_expected_audience,
            settings.sasl_oauthbearer_allow_unverified_audience,
        ),
        (
            "issuer",
            settings.sasl_oauthbearer_expected_issuer,
            settings.sasl_oauthbearer_allow_unverified_issuer,
        ),
    ):
        if not expected and not waived:
            raise SecurityError(
                f"OAUTHBEARER needs the {what} of tokens: --sasl-oauthbearer-expected-{what}, or "
                f"--sasl-oauthbearer-allow-unverified-{what} to accept any"
            )
    claims = Claims(
        settings.sasl_oauthbearer_expected_audience,
        settings.sasl_oauthbearer_expected_issuer,
        settings.sasl_oauthbearer_sub_claim_name,
        settings.sasl_oauthbearer_scope_claim_name,
        settings.sasl_oauthbearer_clock_skew_seconds,
    )
    return OAuthBearer(Jwks(url, settings.sasl_oauthbearer_jwks_endpoint_refresh_ms), claims)

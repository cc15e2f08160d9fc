"""The TLS and SASL settings that Consumer, Producer and Admin share.

Names are those of Kafka's Java clients with underscores, or of kafka-python where Java uses files of another
kind.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypedDict

from muster.client.security.mechanism import (
    MECHANISMS,
    OAUTHBEARER,
    PLAIN,
    Mechanism,
    TokenProvider,
    check_unicode,
)
from muster.client.security.security import Security
from muster.client.security.tls import client_context
from muster.client.settings import check
from muster.settings import Type, either, setting

_OF_TLS: Final = (
    "ssl_context",
    "ssl_cafile",
    "ssl_cadata",
    "ssl_certfile",
    "ssl_certdata",
    "ssl_keyfile",
    "ssl_keydata",
    "ssl_password",
)
_OF_SASL: Final = (
    "sasl_mechanism",
    "sasl_plain_username",
    "sasl_plain_password",
    "sasl_oauth_token_provider",
)


class SecurityOptions(TypedDict, total=False):
    """The keyword arguments for TLS and SASL; see `SecuritySettings`."""

    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
    ssl_context: ssl.SSLContext | None
    ssl_cafile: str | None
    ssl_cadata: str | None
    ssl_certfile: str | None
    ssl_certdata: str | None
    ssl_keyfile: str | None
    ssl_keydata: str | None
    ssl_password: str | None
    ssl_check_hostname: bool
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"] | None
    sasl_plain_username: str | None
    sasl_plain_password: str | None
    sasl_oauth_token_provider: TokenProvider | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SecuritySettings:
    """TLS and SASL settings. Raises ValueError that names the setting and says what it takes."""

    security_protocol: str = setting(
        "PLAINTEXT",
        "how to talk to brokers: over TLS (SSL), with a user's credentials (SASL), both, or neither",
        choices=("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
    )
    ssl_context: ssl.SSLContext | None = None
    """The caller's own context, in place of the files below and of ssl_check_hostname."""
    ssl_cafile: str | None = setting(
        None,
        "PEM file of the CAs that sign the brokers' certificates; None: those of the system",
        optional=True,
        length_max=4096,
        shape="the path of a file",
    )
    ssl_cadata: str | None = setting(
        None, "those CAs as PEM text, in place of ssl_cafile", optional=True, shape="PEM text"
    )
    ssl_certfile: str | None = setting(
        None,
        "PEM file of the client's certificate and its chain, for brokers that ask for one (mTLS)",
        optional=True,
        length_max=4096,
        shape="the path of a file",
    )
    ssl_certdata: str | None = setting(
        None, "that certificate as PEM text, in place of ssl_certfile", optional=True, shape="PEM text"
    )
    ssl_keyfile: str | None = setting(
        None,
        "PEM file of that certificate's private key; None: it is in ssl_certfile",
        optional=True,
        length_max=4096,
        shape="the path of a file",
    )
    ssl_keydata: str | None = setting(
        None,
        "that private key as PEM text, in place of ssl_keyfile; it is not written to a disk on Linux",
        type=Type.PASSWORD,
        optional=True,
        shape="PEM text",
    )
    ssl_password: str | None = setting(
        None, "the private key's password", type=Type.PASSWORD, optional=True, shape="text"
    )
    ssl_check_hostname: bool = setting(
        True, "whether a broker's certificate must name the host that was connected to"
    )
    sasl_mechanism: str | None = setting(
        None, "how to authenticate", optional=True, choices=MECHANISMS, shape=either(MECHANISMS)
    )
    sasl_plain_username: str | None = setting(
        None, "the user, for PLAIN and SCRAM", optional=True, length_max=32_767, shape="text"
    )
    sasl_plain_password: str | None = setting(
        None, "the user's password, for PLAIN and SCRAM", type=Type.PASSWORD, optional=True, shape="text"
    )
    sasl_oauth_token_provider: TokenProvider | None = field(default=None, repr=False)
    """Returns a token for OAUTHBEARER whenever a connection authenticates: a function, which runs in a
    thread, or a coroutine function. (`ClientCredentials` gets tokens from an issuer.)"""

    security: Security | None = field(init=False, repr=False, compare=False, default=None)
    """Derived from the other settings; None for PLAINTEXT."""

    def __post_init__(self) -> None:
        check(self)
        sasl, over_tls = "SASL" in self.security_protocol, self.security_protocol.endswith("SSL")
        self._refuse_stray(_OF_TLS, wanted=over_tls, instead="SSL or SASL_SSL")
        self._refuse_stray(_OF_SASL, wanted=sasl, instead="SASL_SSL or SASL_PLAINTEXT")
        context = self._context() if over_tls else None
        mechanism = self._mechanism() if sasl else None
        if over_tls or sasl:
            object.__setattr__(self, "security", Security(context, mechanism))

    def _refuse_stray(self, names: tuple[str, ...], *, wanted: bool, instead: str) -> None:
        given = [name for name in names if getattr(self, name) is not None]
        if given and not wanted:
            raise ValueError(
                f"{given[0]} is given with security_protocol={self.security_protocol!r}, which does not use "
                f"it: set security_protocol to {instead}"
            )

    def _context(self) -> ssl.SSLContext:
        if self.ssl_context is None:
            files = {name.removeprefix("ssl_"): getattr(self, name) for name in _OF_TLS[1:]}
            return client_context(**files, check_hostname=self.ssl_check_hostname)
        if not isinstance(self.ssl_context, ssl.SSLContext):
            raise ValueError(f"ssl_context={self.ssl_context!r}: it takes an ssl.SSLContext")
        for name in _OF_TLS[1:]:
            if getattr(self, name) is not None:
                raise ValueError(f"{name} is given with ssl_context, which has its own: leave one out")
        return self.ssl_context

    def _mechanism(self) -> Mechanism:
        name = self.sasl_mechanism
        if name is None:
            raise ValueError(
                f"security_protocol={self.security_protocol!r} requires sasl_mechanism: one of "
                f"{', '.join(MECHANISMS)}"
            )
        from muster.client.security.mechanisms import OAuthBearer, Plain, Scram  # slow to import

        if name == OAUTHBEARER:
            provider = self._needed(name, "sasl_oauth_token_provider")
            if not callable(provider):
                raise ValueError(  # the value may be the token
                    f"sasl_oauth_token_provider is {type(provider).__name__}: it takes a function that "
                    "returns a token"
                )
            return OAuthBearer(provider)
        user, password = self._needed(name, "sasl_plain_username"), self._needed(name, "sasl_plain_password")
        for setting_name, value in (("sasl_plain_username", user), ("sasl_plain_password", password)):
            if "\0" in value:
                raise ValueError(f"{setting_name} has a NUL character in it, which no broker takes")
            check_unicode(setting_name, value)
        return Plain(user, password) if name == PLAIN else Scram(name, user, password)

    def _needed(self, mechanism: str, name: str) -> Any:
        value = getattr(self, name)
        if value is None:
            raise ValueError(f"sasl_mechanism={mechanism!r} requires {name}")
        return value

"""Why a broker does not let a client in, and what its user should change: TLS handshakes, authentication."""

from __future__ import annotations

import ssl
from typing import Final, NamedTuple

from muster.coordinator.server.unserved import FOREIGN, TEXT_MAX, Cause
from muster.protocol import foreign

_WHY_MAX: Final = 300  # characters of a reason, which may contain the client's words

_PLAINTEXT: Final = Cause(
    "plaintext on a TLS listener", "connect with security.protocol=SSL or SASL_SSL, as the listener has it"
)
_NO_HTTPS: Final = Cause("plaintext on the HTTPS port", "open it with https://")
_NO_PRINCIPAL: Final = Cause(
    "no rule of ssl.principal.mapping.rules makes a user of the client certificate",
    "end the rules with DEFAULT, or give one that matches",
)
_NOT_TLS: Final = frozenset(
    {"WRONG_VERSION_NUMBER", "UNEXPECTED_MESSAGE", "RECORD_LAYER_FAILURE", "UNKNOWN_PROTOCOL"}
)
"""OpenSSL's reasons for bytes that are not TLS."""
_ALERTS: Final = {
    "UNKNOWN_CA": (
        "the client does not trust the CA of the broker's certificate",
        "give the CA to the client: ssl.truststore.location, ssl.ca.location, ssl_cafile or --ca-file",
    ),
    **dict.fromkeys(
        ("BAD_CERTIFICATE", "CERTIFICATE_UNKNOWN"),
        (
            "the client does not accept the broker's certificate",
            "check that the client trusts its CA, and that it is for the name that the client connects to",
        ),
    ),
    "CERTIFICATE_EXPIRED": ("the broker's certificate has expired", "renew it: the file is read again"),
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": (
        "the client presents no certificate",
        "give it one: ssl.keystore.location, ssl.certificate.location or ssl_certfile",
    ),
    "UNSUPPORTED_PROTOCOL": (
        "the client and the listener share no TLS version",
        "use a client with TLS 1.2 or 1.3; ssl.enabled.protocols says what is served",
    ),
    "NO_SHARED_CIPHER": (
        "the client and the listener share no cipher suite",
        "use a client with TLS 1.2 or 1.3 and modern ciphers",
    ),
}
"""Causes and remedies of failed handshakes, by the end of OpenSSL's reason."""


class Spoken(NamedTuple):
    """The protocol above TLS, and what clients that connect without TLS are told."""

    http: Cause
    """For an HTTP request in plaintext."""
    plaintext: Cause
    how: str
    """How to connect."""


SPOKEN_KAFKA: Final = Spoken(
    FOREIGN[foreign.HTTP], _PLAINTEXT, "connect with security.protocol=SSL or SASL_SSL; check the network"
)
SPOKEN_HTTP: Final = Spoken(_NO_HTTPS, _NO_HTTPS, "open it with https://; check the network")


def failed_handshake(error: ssl.SSLError, spoken: Spoken) -> Cause:
    """Why a TLS handshake failed."""
    reason = error.reason or ""
    if reason == "HTTP_REQUEST":
        return spoken.http
    if reason in _NOT_TLS:
        return spoken.plaintext
    if isinstance(error, ssl.SSLCertVerificationError):
        return Cause(
            "client certificate refused",
            "use one that is valid now, of a CA in ssl.truststore.location",
            error.verify_message,
        )
    why, remedy = next(
        (words for alert, words in _ALERTS.items() if reason.endswith(alert)),
        ("TLS handshake failed", "check the TLS settings of client and listener"),
    )
    return Cause(why, remedy, reason.replace("_", " ").lower())


def handshake_given_up() -> Cause:
    """Why a TLS handshake failed when the client closed without an alert."""
    return Cause(
        "the client closed during the TLS handshake",
        "check that it trusts the CA of the broker's certificate, and connects to a name that this is for",
    )


def slow_handshake(timeout_ms: int, spoken: Spoken) -> Cause:
    """Why an unfinished TLS handshake was ended."""
    return Cause(f"TLS handshake incomplete after {timeout_ms} ms", spoken.how)


def no_principal(subject: str) -> Cause:
    """Why a client with a valid certificate is not let in."""
    return _NO_PRINCIPAL._replace(detail=subject[:TEXT_MAX])


def not_authenticated(what: str) -> Cause:
    """Why a client that sends requests before it has authenticated is not served."""
    return Cause(
        "no SASL authentication on a listener that requires it",
        "set security.protocol to SASL_SSL or SASL_PLAINTEXT, as the listener has it, and sasl.mechanism",
        what,
    )


def mechanism_not_enabled(mechanism: str, enabled: str) -> Cause:
    """Why a client with another SASL mechanism is not let in."""
    return Cause(
        "SASL mechanism not enabled",
        f"set sasl.mechanism to one of {enabled}, or enable it in sasl.enabled.mechanisms",
        mechanism[:TEXT_MAX],
    )


def failed_authentication(why: str, remedy: str = "") -> Cause:
    """Why a client that failed to prove its identity is not let in; with a `remedy` it is not at fault."""
    return Cause("authentication failed", remedy or "check the client's credentials", why[:_WHY_MAX])


def failed_login(why: str) -> Cause:
    """Why an HTTP request with anything but the token is refused."""
    return Cause(
        "HTTP login failed",
        "send the token of --http-token-file: as `Authorization: Bearer`, or as the password in a browser",
        why[:_WHY_MAX],
    )


def slow_authentication(timeout_ms: int) -> Cause:
    """Why a client that does not authenticate in time is cut off."""
    return Cause(
        f"no authentication within {timeout_ms} ms",
        "set security.protocol to SASL_SSL or SASL_PLAINTEXT, as the listener has it",
    )


def expired_authentication() -> Cause:
    """Why a client whose authentication has expired is cut off."""
    return Cause(
        "authentication has expired (connections.max.reauth.ms, or the token's time)",
        "use a client that authenticates again (KIP-368); others connect anew",
    )

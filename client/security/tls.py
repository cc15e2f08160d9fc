"""TLS contexts from PEM files, and words for what goes wrong with TLS."""

from __future__ import annotations

import ssl
from typing import Final

_PLAINTEXT: Final = frozenset(
    {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNEXPECTED_MESSAGE", "RECORD_LAYER_FAILURE"}
)
"""What OpenSSL calls bytes that are no TLS."""
_ALERTS: Final = {
    "CERTIFICATE_REQUIRED": "it asks for a client certificate: set ssl_certfile and ssl_keyfile",
    "HANDSHAKE_FAILURE": (
        "it refused the handshake: it may ask for a client certificate (ssl_certfile), or share no cipher"
    ),
    "BAD_CERTIFICATE": "it does not accept the certificate in ssl_certfile",
    "UNKNOWN_CA": "it does not know the CA of the certificate in ssl_certfile",
    "CERTIFICATE_UNKNOWN": "it does not accept the certificate in ssl_certfile",
    "CERTIFICATE_EXPIRED": "the certificate in ssl_certfile has expired",
    "PROTOCOL_VERSION": "it shares no version of TLS with this client (1.2 and 1.3)",
}


def client_context(
    cafile: str | None,
    certfile: str | None,
    keyfile: str | None,
    password: str | None,
    *,
    check_hostname: bool,
) -> ssl.SSLContext:
    """A client's context: TLS 1.2 and later, brokers verified. Raises ValueError that names the setting."""
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = check_hostname
    if cafile is not None:
        # Those of the system would let in brokers that the caller has not meant.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.check_hostname = check_hostname
        try:
            context.load_verify_locations(cafile)
        except OSError as error:  # SSLError as well
            raise ValueError(f"ssl_cafile={cafile!r}: {_why(error, 'no PEM certificate in it')}") from None
    if certfile is None:
        for name, given in (("ssl_keyfile", keyfile), ("ssl_password", password)):
            if given is not None:
                raise ValueError(f"{name} is given without ssl_certfile, the certificate that it belongs to")
        return context

    def no_password() -> str:
        raise ValueError("the private key is encrypted: set ssl_password")

    try:
        context.load_cert_chain(certfile, keyfile, password if password is not None else no_password)
    except ssl.SSLError as error:
        raise ValueError(
            f"ssl_certfile={certfile!r}, ssl_keyfile={keyfile!r}: "
            f"{_why(error, 'no PEM certificate with its private key, or a wrong ssl_password')}"
        ) from None
    except OSError as error:
        name, path = ("ssl_certfile", certfile) if keyfile is None else ("ssl_certfile or ssl_keyfile", None)
        named = f"{name}={path!r}" if path is not None else f"{name} ({certfile!r}, {keyfile!r})"
        raise ValueError(f"{named}: {_why(error, '')}") from None
    return context


def _why(error: OSError, otherwise: str) -> str:
    if not isinstance(error, ssl.SSLError):
        return (error.strerror or str(error)).lower()
    if error.reason == "KEY_VALUES_MISMATCH":
        return "the private key is not that of the certificate"
    return otherwise


def is_not_tls(error: ssl.SSLError) -> bool:
    """Whether the other side answered the handshake with something that is no TLS."""
    return error.reason in _PLAINTEXT


def what_failed(error: ssl.SSLError) -> str:
    """What went wrong in a handshake, and what may help."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {_verification(error)}"
    reason = error.reason or ""
    for alert, words in _ALERTS.items():
        if reason.endswith(f"ALERT_{alert}"):
            return words
    return reason.replace("_", " ").lower() or "the TLS handshake failed"


def _verification(error: ssl.SSLCertVerificationError) -> str:
    said: str = error.verify_message
    if "self-signed" in said or "unable to get" in said:
        return f"{said} (ssl_cafile names the CAs that are trusted)"
    if "mismatch" in said.lower():
        return f"{said} (ssl_check_hostname=False accepts any name)"
    return said

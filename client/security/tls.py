"""TLS contexts from PEM files, and messages for TLS failures."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Final

from muster.client.security.pem import path_of, tidied

_PLAINTEXT: Final = frozenset(
    {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNEXPECTED_MESSAGE", "RECORD_LAYER_FAILURE"}
)
"""OpenSSL's reasons for bytes that are not TLS."""
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
    *,
    cafile: str | None = None,
    cadata: str | None = None,
    certfile: str | None = None,
    certdata: str | None = None,
    keyfile: str | None = None,
    keydata: str | None = None,
    password: str | None = None,
    check_hostname: bool = True,
    cafile_name: str = "ssl_cafile",
) -> ssl.SSLContext:
    """A client's context: TLS 1.2 and later, servers verified. `cadata`, `certdata` and `keydata` are PEM
    text in place of files. Raises ValueError, naming the setting; `cafile_name` is the name of the first."""
    # The system's CAs would also admit brokers that the caller does not intend.
    own = cafile is not None or cadata is not None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if own else ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = check_hostname
    for one, other in (("cafile", "cadata"), ("certfile", "certdata"), ("keyfile", "keydata")):
        if locals()[one] is not None and locals()[other] is not None:
            raise ValueError(f"ssl_{one} is given with ssl_{other}: leave one out")
    if own:
        _trust(context, cafile, cadata, cafile_name)
    if certfile is None and certdata is None:
        given = {"ssl_keyfile": keyfile, "ssl_keydata": keydata, "ssl_password": password}
        for name, value in given.items():
            if value is not None:
                raise ValueError(f"{name} is given without ssl_certfile, the certificate that it belongs to")
        return context
    with ExitStack() as stack:
        chain = certfile if certdata is None else stack.enter_context(path_of(_pem("ssl_certdata", certdata)))
        key = keyfile if keydata is None else stack.enter_context(path_of(_pem("ssl_keydata", keydata)))
        assert chain is not None
        names = {
            "ssl_certfile" if certdata is None else "ssl_certdata": certfile,
            "ssl_keyfile" if keydata is None else "ssl_keydata": keyfile,
        }
        _identify(context, chain, key, password, names)
    return context


def _trust(context: ssl.SSLContext, cafile: str | None, cadata: str | None, name: str) -> None:
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # as in Java: any CA given, not just a root
    try:
        if cadata is not None:
            name = "ssl_cadata"
            context.load_verify_locations(cadata=_pem(name, cadata))
        else:
            context.load_verify_locations(cafile)
    except OSError as error:  # SSLError as well
        shown = name if cadata is not None else f"{name}={cafile!r}"
        raise ValueError(f"{shown}: {_why(error, 'no PEM certificate in it')}") from None


def _identify(
    context: ssl.SSLContext,
    chain: str,
    key: str | None,
    password: str | None,
    names: Mapping[str, str | None],
) -> None:
    """Load certificate and key. `names` are the settings they come from, with the file paths."""

    def no_password() -> str:
        raise ValueError("the private key is encrypted: set ssl_password")

    try:
        context.load_cert_chain(chain, key, password if password is not None else no_password)
    except ssl.SSLError as error:
        shown = ", ".join(
            name if name.endswith("data") else f"{name}={path!r}" for name, path in names.items()
        )
        otherwise = "no PEM certificate with its private key, or a wrong ssl_password"
        raise ValueError(f"{shown}: {_why(error, otherwise)}") from None
    except OSError as error:
        files = {name: path for name, path in names.items() if path is not None}
        if len(files) == 1:
            shown = "".join(f"{name}={path!r}" for name, path in files.items())
        else:
            shown = f"{' or '.join(files)} ({', '.join(map(repr, files.values()))})"
        raise ValueError(f"{shown}: {_why(error, '')}") from None


def _pem(name: str, text: str) -> str:
    try:
        return tidied(text)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _why(error: OSError, otherwise: str) -> str:
    if not isinstance(error, ssl.SSLError):
        return (error.strerror or str(error)).lower()
    if error.reason == "KEY_VALUES_MISMATCH":
        return "the private key is not that of the certificate"
    return otherwise


def is_not_tls(error: ssl.SSLError) -> bool:
    """Whether the other side answered the handshake with something that is not TLS."""
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

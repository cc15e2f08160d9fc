"""Keys and certificates, and the CAs of clients, from PEM files that may change."""

from __future__ import annotations

import ssl
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from muster.coordinator.base.clock import Clock
from muster.coordinator.base.log import Logger
from muster.coordinator.config import OnListener, Settings, option
from muster.coordinator.security.exchange import SecurityError
from muster.coordinator.server.renewed import Renewed

_log: Final = Logger(part="tls")

_VERIFY: Final = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}

_NOT_NOW: Final = (9, 10)
"""OpenSSL's codes for certificates that are not valid yet, or have expired."""


class Given(NamedTuple):
    """A setting's value, with the option that gave it."""

    value: str | None
    option: str


class Pem(NamedTuple):
    """The TLS files and settings for one kind of connection."""

    keystore: Given
    """File with the key and its certificate chain."""
    password: Given
    """Password of the key, if it is encrypted."""
    truststore: Given
    """File with the CAs of clients."""
    client_auth: str
    """ssl.client.auth, as it applies here."""
    versions: tuple[str, ...]

    @classmethod
    def on_listener(cls, on: OnListener) -> Pem:
        """For the connections of a listener."""
        settings = on.settings
        return cls(
            Given(settings.ssl_keystore_location, on.option("ssl_keystore_location")),
            Given(settings.ssl_key_password, on.option("ssl_key_password")),
            Given(settings.ssl_truststore_location, on.option("ssl_truststore_location")),
            settings.ssl_client_auth,
            settings.ssl_enabled_protocols,
        )

    @classmethod
    def of_http(cls, settings: Settings) -> Pem:
        """For --http, whose clients present a token, not a certificate."""
        return cls(
            Given(settings.http_ssl_keystore_location, option("http_ssl_keystore_location")),
            Given(settings.http_ssl_key_password, option("http_ssl_key_password")),
            Given(None, ""),
            "none",
            settings.ssl_enabled_protocols,
        )


class Certificates:
    """The contexts of new TLS connections. Open connections keep what they began with."""

    def __init__(self, pem: Pem, clock: Clock) -> None:
        """Raises SecurityError."""
        self._pem = pem
        files = {each.option: each.value for each in (pem.keystore, pem.truststore) if each.value is not None}
        self._context = Renewed(files, self._read, clock, _log, "certificates")

    def __repr__(self) -> str:
        return f"<Certificates {self._pem.keystore.value}>"

    def context(self) -> ssl.SSLContext:
        """The context for a connection that begins now."""
        return self._context.content

    def read_again(self) -> None:
        """Read the files now. If they cannot be used, that is logged, and the old ones stay."""
        self._context.read_again()

    def _read(self) -> ssl.SSLContext:
        pem = self._pem
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = min(_VERSIONS[each] for each in pem.versions)
        context.maximum_version = max(_VERSIONS[each] for each in pem.versions)
        context.options |= ssl.OP_NO_RENEGOTIATION
        _load_key(context, pem.keystore, pem.password)
        why = _why_not_valid(context, pem.keystore)
        if why is not None:
            _log.warning(
                "clients will not accept the broker's certificate",
                file=pem.keystore.value,
                option=pem.keystore.option,
                why=why,
            )
        if pem.client_auth != "none":
            _load_trusted(context, pem.truststore)
            context.verify_mode = _VERIFY[pem.client_auth]
        return context


def _load_key(context: ssl.SSLContext, keystore: Given, password: Given) -> None:
    path = keystore.value
    assert path is not None

    def no_password() -> str:
        raise SecurityError(f"{keystore.option} {path}: its key is encrypted; give {password.option}")

    try:
        context.load_cert_chain(path, password=no_password if password.value is None else password.value)
    except OSError as error:  # includes SSLError
        guess = "" if password.value is None else f"; {password.option} may be wrong"
        raise SecurityError(f"{keystore.option} {path}: {_why_no_key(error, path, guess)}") from None


def _why_not_valid(context: ssl.SSLContext, keystore: Given) -> str | None:
    """Why the broker's certificate is not valid at this time; None if it is. Found out as clients do, by a
    handshake: `ssl` does not show a context's own certificate."""
    path = keystore.value
    assert path is not None
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # whoever issued it
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    try:
        client.load_verify_locations(path)
        ends = client.wrap_bio(back, there), context.wrap_bio(there, back, server_side=True)
        for end in (*ends, ends[0]):  # hello; hello and certificate; verified
            with suppress(ssl.SSLWantReadError):
                end.do_handshake()
    except ssl.SSLCertVerificationError as error:
        return error.verify_message if error.verify_code in _NOT_NOW else None
    except OSError:  # includes SSLError
        return None
    return None


def _why_no_key(error: OSError, path: str, guess: str) -> str:
    if not isinstance(error, ssl.SSLError):
        return (error.strerror or str(error)).lower()
    if error.reason == "KEY_VALUES_MISMATCH":
        return "its private key does not belong to its first certificate"
    try:
        text = Path(path).read_bytes()
    except OSError:
        text = b""
    if b"-----BEGIN CERTIFICATE-----" not in text:
        return "no PEM certificate is in it (JKS and PKCS12 files are not read: export them as PEM)"
    if b"PRIVATE KEY-----" not in text:
        return "no private key is in it; put the key and the certificate chain into one PEM file"
    return f"its private key cannot be read{guess}"


def _load_trusted(context: ssl.SSLContext, truststore: Given) -> None:
    path = truststore.value
    assert path is not None
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # as in Java: any CA in the file, not just a root
    try:
        context.load_verify_locations(path)
    except ssl.SSLError:
        raise SecurityError(f"{truststore.option} {path}: no PEM certificate is in it") from None
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise SecurityError(f"{truststore.option} {path}: {why}") from None

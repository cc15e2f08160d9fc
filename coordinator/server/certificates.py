"""Keys and certificates, and the CAs of clients, from PEM files that may change."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Final

from muster.coordinator.base.clock import Clock
from muster.coordinator.base.log import Logger
from muster.coordinator.config import Settings, option
from muster.coordinator.security.exchange import SecurityError
from muster.coordinator.server.renewed import Renewed

_log: Final = Logger(part="tls")

HTTP_PREFIX: Final = "http_"
"""Of the settings of what --http serves."""
_VERIFY: Final = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}


class Certificates:
    """The contexts of new TLS connections. Those that are open go on with what they began with."""

    def __init__(self, settings: Settings, clock: Clock, prefix: str = "") -> None:
        """Those of the listeners, or with HTTP_PREFIX of what --http serves. Raises SecurityError."""
        self._settings = settings
        self._keystore = f"{prefix}ssl_keystore_location"
        self._password = f"{prefix}ssl_key_password"
        truststores = () if prefix else ("ssl_truststore_location",)
        named = {each: getattr(settings, each) for each in (self._keystore, *truststores)}
        files = {name: path for name, path in named.items() if path is not None}
        self._kinds = (False,) if prefix else (False, True)
        self._contexts = Renewed(files, self._read_all, clock, _log, "certificates")

    def __repr__(self) -> str:
        return f"<Certificates {getattr(self._settings, self._keystore)}>"

    def context(self, *, of_clients: bool) -> ssl.SSLContext:
        """The context for a connection that begins now; `of_clients`: ssl.client.auth applies, as it does to
        SSL listeners and, as in Kafka (KIP-684), not to SASL_SSL."""
        return self._contexts.content[of_clients]

    def read_again(self) -> None:
        """Read the files now. What cannot be used is told to the log, and the old ones stay."""
        self._contexts.read_again()

    def _read_all(self) -> dict[bool, ssl.SSLContext]:
        return {of_clients: self._read(of_clients=of_clients) for of_clients in self._kinds}

    def _read(self, *, of_clients: bool) -> ssl.SSLContext:
        settings = self._settings
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = min(_VERSIONS[each] for each in settings.ssl_enabled_protocols)
        context.maximum_version = max(_VERSIONS[each] for each in settings.ssl_enabled_protocols)
        context.options |= ssl.OP_NO_RENEGOTIATION
        self._load_key(context)
        if of_clients and settings.ssl_client_auth != "none":
            assert settings.ssl_truststore_location is not None
            _load_trusted(context, settings.ssl_truststore_location)
            context.verify_mode = _VERIFY[settings.ssl_client_auth]
        return context

    def _load_key(self, context: ssl.SSLContext) -> None:
        path: str = getattr(self._settings, self._keystore)
        password: str | None = getattr(self._settings, self._password)
        where = f"{option(self._keystore)} {path}"

        def no_password() -> str:
            raise SecurityError(f"{where}: its key is encrypted; give {option(self._password)}")

        try:
            context.load_cert_chain(path, password=no_password if password is None else password)
        except OSError as error:  # SSLError as well
            guess = "" if password is None else f"; {option(self._password)} may be wrong"
            raise SecurityError(f"{where}: {_why_no_key(error, path, guess)}") from None


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


def _load_trusted(context: ssl.SSLContext, path: str) -> None:
    try:
        context.load_verify_locations(path)
    except ssl.SSLError:
        raise SecurityError(f"--ssl-truststore-location {path}: no PEM certificate is in it") from None
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise SecurityError(f"--ssl-truststore-location {path}: {why}") from None

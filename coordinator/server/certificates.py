"""The broker's key and certificate, and the CAs of its clients, from PEM files that may change."""

from __future__ import annotations

import os
import ssl
from pathlib import Path
from typing import Final

from muster.coordinator.base.clock import Clock
from muster.coordinator.base.log import Logger
from muster.coordinator.config import Settings, option
from muster.coordinator.security.exchange import SecurityError

_log: Final = Logger(part="tls")

_LOOK_MS: Final = 1_000
"""How often it is looked whether the files have changed, at most, and only when a client connects."""
_VERIFY: Final = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}

_Stamp = tuple[tuple[int, int, int], ...]


class Certificates:
    """The contexts of new TLS connections. Those that are open go on with what they began with."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        """Raises SecurityError."""
        self._settings = settings
        self._clock = clock
        self._stamp = self._look()
        self._looked_ms = clock.now_ms()
        self._contexts = {of_clients: self._read(of_clients=of_clients) for of_clients in (False, True)}

    def __repr__(self) -> str:
        return f"<Certificates {self._settings.ssl_keystore_location}>"

    def context(self, *, of_clients: bool) -> ssl.SSLContext:
        """The context for a connection that begins now; `of_clients`: ssl.client.auth applies, as it does to
        SSL listeners and, as in Kafka (KIP-684), not to SASL_SSL."""
        now_ms = self._clock.now_ms()
        if now_ms - self._looked_ms >= _LOOK_MS:
            self._looked_ms = now_ms
            self._read_again_if_changed()
        return self._contexts[of_clients]

    def read_again(self) -> None:
        """Read the files now. What cannot be used is told to the log, and the old ones stay."""
        try:
            self._stamp = self._look()
            self._contexts = {of_clients: self._read(of_clients=of_clients) for of_clients in (False, True)}
        except SecurityError as error:
            _log.error("new certificates cannot be used; the old ones stay", why=str(error))
        else:
            _log.info("certificates read again", file=self._settings.ssl_keystore_location)

    def _read_again_if_changed(self) -> None:
        try:
            stamp = self._look()
        except SecurityError:
            return  # on its way to being replaced
        if stamp != self._stamp:
            self._stamp = stamp
            self.read_again()

    def _look(self) -> _Stamp:
        return tuple(
            _stamp_of(name, path)
            for name, path in (
                ("ssl_keystore_location", self._settings.ssl_keystore_location),
                ("ssl_truststore_location", self._settings.ssl_truststore_location),
            )
            if path is not None
        )

    def _read(self, *, of_clients: bool) -> ssl.SSLContext:
        settings = self._settings
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = min(_VERSIONS[each] for each in settings.ssl_enabled_protocols)
        context.maximum_version = max(_VERSIONS[each] for each in settings.ssl_enabled_protocols)
        context.options |= ssl.OP_NO_RENEGOTIATION
        assert settings.ssl_keystore_location is not None
        _load_key(context, settings.ssl_keystore_location, settings.ssl_key_password)
        if of_clients and settings.ssl_client_auth != "none":
            assert settings.ssl_truststore_location is not None
            _load_trusted(context, settings.ssl_truststore_location)
            context.verify_mode = _VERIFY[settings.ssl_client_auth]
        return context


def _stamp_of(name: str, path: str) -> tuple[int, int, int]:
    try:
        found = os.stat(path)
    except OSError as error:
        raise SecurityError(f"{option(name)} {path}: {(error.strerror or str(error)).lower()}") from None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _load_key(context: ssl.SSLContext, path: str, password: str | None) -> None:
    def no_password() -> str:
        raise SecurityError(f"--ssl-keystore-location {path}: its key is encrypted; give --ssl-key-password")

    try:
        context.load_cert_chain(path, password=no_password if password is None else password)
    except OSError as error:  # SSLError as well
        raise SecurityError(f"--ssl-keystore-location {path}: {_why_no_key(error, path, password)}") from None


def _why_no_key(error: OSError, path: str, password: str | None) -> str:
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
    return "its private key cannot be read" + (
        "" if password is None else "; --ssl-key-password may be wrong"
    )


def _load_trusted(context: ssl.SSLContext, path: str) -> None:
    try:
        context.load_verify_locations(path)
    except ssl.SSLError:
        raise SecurityError(f"--ssl-truststore-location {path}: no PEM certificate is in it") from None
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise SecurityError(f"--ssl-truststore-location {path}: {why}") from None

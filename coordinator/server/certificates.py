"""The broker's key and certificate, and the CAs of its clients, from PEM files that may change."""

from __future__ import annotations

import os
import ssl
from pathlib import Path
from typing import Final

from muster.coordinator.base.clock import Clock
from muster.coordinator.base.log import Logger
from muster.coordinator.config import OnListener
from muster.coordinator.security.exchange import SecurityError

_log: Final = Logger(part="tls")

_LOOK_MS: Final = 1_000
"""How often it is looked whether the files have changed, at most, and only when a client connects."""
_VERIFY: Final = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}

_KEYSTORE: Final = "ssl_keystore_location"
_PASSWORD: Final = "ssl_key_password"
_TRUSTSTORE: Final = "ssl_truststore_location"

_Stamp = tuple[tuple[int, int, int], ...]


class Certificates:
    """The contexts of new TLS connections. Those that are open go on with what they began with."""

    def __init__(self, on: OnListener, clock: Clock) -> None:
        """Raises SecurityError."""
        self._on = on
        self._settings = on.settings
        self._clock = clock
        self._stamp = self._look()
        self._looked_ms = clock.now_ms()
        self._context = self._read()

    def __repr__(self) -> str:
        return f"<Certificates {self._settings.ssl_keystore_location}>"

    def context(self) -> ssl.SSLContext:
        """The context for a connection that begins now."""
        now_ms = self._clock.now_ms()
        if now_ms - self._looked_ms >= _LOOK_MS:
            self._looked_ms = now_ms
            self._read_again_if_changed()
        return self._context

    def read_again(self) -> None:
        """Read the files now. What cannot be used is told to the log, and the old ones stay."""
        try:
            self._stamp = self._look()
            self._context = self._read()
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
            _stamp_of(self._on.option(name), path)
            for name, path in (
                (_KEYSTORE, self._settings.ssl_keystore_location),
                (_TRUSTSTORE, self._settings.ssl_truststore_location),
            )
            if path is not None
        )

    def _read(self) -> ssl.SSLContext:
        settings, option = self._settings, self._on.option
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = min(_VERSIONS[each] for each in settings.ssl_enabled_protocols)
        context.maximum_version = max(_VERSIONS[each] for each in settings.ssl_enabled_protocols)
        context.options |= ssl.OP_NO_RENEGOTIATION
        assert settings.ssl_keystore_location is not None
        _load_key(
            context,
            settings.ssl_keystore_location,
            settings.ssl_key_password,
            option(_KEYSTORE),
            option(_PASSWORD),
        )
        if settings.ssl_client_auth != "none":
            assert settings.ssl_truststore_location is not None
            _load_trusted(context, settings.ssl_truststore_location, option(_TRUSTSTORE))
            context.verify_mode = _VERIFY[settings.ssl_client_auth]
        return context


def _stamp_of(option: str, path: str) -> tuple[int, int, int]:
    try:
        found = os.stat(path)
    except OSError as error:
        raise SecurityError(f"{option} {path}: {(error.strerror or str(error)).lower()}") from None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _load_key(
    context: ssl.SSLContext, path: str, password: str | None, keystore: str, key_password: str
) -> None:
    """`keystore` and `key_password` are the options that gave them."""

    def no_password() -> str:
        raise SecurityError(f"{keystore} {path}: its key is encrypted; give {key_password}")

    try:
        context.load_cert_chain(path, password=no_password if password is None else password)
    except OSError as error:  # SSLError as well
        why = _why_no_key(error, path, None if password is None else key_password)
        raise SecurityError(f"{keystore} {path}: {why}") from None


def _why_no_key(error: OSError, path: str, password_of: str | None) -> str:
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
    wrong = "" if password_of is None else f"; {password_of} may be wrong"
    return f"its private key cannot be read{wrong}"


def _load_trusted(context: ssl.SSLContext, path: str, truststore: str) -> None:
    try:
        context.load_verify_locations(path)
    except ssl.SSLError:
        raise SecurityError(f"{truststore} {path}: no PEM certificate is in it") from None
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise SecurityError(f"{truststore} {path}: {why}") from None

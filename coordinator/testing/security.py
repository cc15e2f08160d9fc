"""`Broker(security="SASL_SSL")`: a CA and a user for one test, and the settings for each client."""

from __future__ import annotations

import os
import secrets
import shutil
import ssl
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any, Final, Literal

from muster.coordinator.base.endpoints import Endpoint
from muster.coordinator.security.scram import HASHES, ITERATIONS, ScramCredential

if TYPE_CHECKING:
    from muster.coordinator.server.broker import Broker as Node

Protocol = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
Client = Literal["confluent-kafka", "kafka-python", "aiokafka", "muster", "java", "kafkajs"]

USER: Final = "muster"
MECHANISM: Final = "SCRAM-SHA-256"
_HOSTS: Final = ("localhost", "127.0.0.1", "::1")


class Security:
    """Certificates and credentials for clients of these brokers. Its files are deleted with it."""

    def __init__(self, protocol: str) -> None:
        """Raises TypeError for an unknown protocol, and ImportError without the extra `security`."""
        known = Protocol.__args__  # type: ignore[attr-defined]
        if protocol not in known:
            raise TypeError(f"security={protocol!r} is not one of {', '.join(known)}")
        self.protocol = protocol
        self.password = secrets.token_urlsafe(16)
        self._folder: str | None = None
        if self.has_tls:
            self._make_certificates()

    @property
    def has_tls(self) -> bool:
        return "SSL" in self.protocol

    @property
    def has_sasl(self) -> bool:
        return "SASL" in self.protocol

    def _make_certificates(self) -> None:
        try:
            import trustme
        except ImportError:
            raise ImportError(
                f"security={self.protocol!r} needs more packages: pip install 'muster-kafka[security]'"
            ) from None
        self._folder = mkdtemp(prefix="muster-")
        weakref.finalize(self, _remove, self._folder, os.getpid())
        authority = trustme.CA()
        authority.cert_pem.write_to_path(self._path("ca.pem"))
        for name, issued in (
            ("server", authority.issue_cert(*_HOSTS)),
            ("client", authority.issue_cert(USER, common_name=USER)),
        ):
            chain = b"".join(each.bytes() for each in issued.cert_chain_pems)
            key = _pkcs8(issued.private_key_pem.bytes())
            for end, content in ((".pem", chain), ("-key.pem", key), ("-both.pem", key + chain)):
                Path(self._path(name + end)).write_bytes(content)

    def _path(self, name: str) -> str:
        assert self._folder is not None
        return str(Path(self._folder) / name)

    def _text(self, name: str) -> str:
        return Path(self._path(name)).read_text(encoding="ascii")

    # --- the broker's side ----------------------------------------------------------------------------------

    def broker_settings(self, host: str, port: int) -> dict[str, Any]:
        """Fields of `muster.coordinator.config.Settings`."""
        settings: dict[str, Any] = {"listeners": str(Endpoint(self.protocol, host, port))}
        if self.has_tls:
            settings["ssl_keystore_location"] = self._path("server-both.pem")
        if self.protocol == "SSL":
            settings["ssl_truststore_location"] = self._path("ca.pem")
            settings["ssl_client_auth"] = "required"
            settings["ssl_principal_mapping_rules"] = r"RULE:^CN=(\w+),.*$/$1/,DEFAULT"
        if self.has_sasl:
            settings["sasl_enabled_mechanisms"] = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
        return settings

    async def let_in(self, node: Node) -> None:
        """Create the user. Must run on the brokers' thread."""
        if self.has_sasl:
            credentials = {
                name: ScramCredential.of_password(name, self.password, ITERATIONS[0]) for name in HASHES
            }
            await node.users.alter(USER, credentials)

    # --- the clients' side ----------------------------------------------------------------------------------

    def client_settings(self, client: str, bootstrap: str) -> dict[str, Any]:
        """The settings for a client. Raises TypeError for an unknown one."""
        made = _CLIENTS.get(client)
        if made is None:
            raise TypeError(f"settings of {client!r} are not known; choose from {', '.join(_CLIENTS)}")
        return made(self, bootstrap)

    @property
    def context(self) -> ssl.SSLContext:
        """A TLS context, for clients that take one."""
        context = ssl.create_default_context(cafile=self._path("ca.pem"))
        if not self.has_sasl:
            context.load_cert_chain(self._path("client-both.pem"))
        return context


def _remove(folder: str, process: int) -> None:
    """Called in forks too when they end, though the folder is not theirs."""
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)


def _confluent(security: Security, bootstrap: str) -> dict[str, Any]:
    settings: dict[str, Any] = {"bootstrap.servers": bootstrap, "security.protocol": security.protocol}
    if security.has_tls:
        settings["ssl.ca.location"] = security._path("ca.pem")
    if security.protocol == "SSL":
        settings["ssl.certificate.location"] = security._path("client.pem")
        settings["ssl.key.location"] = security._path("client-key.pem")
    if security.has_sasl:
        settings |= {
            "sasl.mechanism": MECHANISM,
            "sasl.username": USER,
            "sasl.password": security.password,
        }
    return settings


def _java(security: Security, bootstrap: str) -> dict[str, Any]:
    settings: dict[str, Any] = {"bootstrap.servers": bootstrap, "security.protocol": security.protocol}
    if security.has_tls:
        settings["ssl.truststore.type"] = "PEM"
        settings["ssl.truststore.location"] = security._path("ca.pem")
    if security.protocol == "SSL":
        settings["ssl.keystore.type"] = "PEM"
        settings["ssl.keystore.location"] = security._path("client-both.pem")
    if security.has_sasl:
        settings["sasl.mechanism"] = MECHANISM
        settings["sasl.jaas.config"] = (
            "org.apache.kafka.common.security.scram.ScramLoginModule required "
            f'username="{USER}" password="{security.password}";'
        )
    return settings


def _kafkajs(security: Security, bootstrap: str) -> dict[str, Any]:
    """The argument of `new Kafka(...)`, as JSON."""
    settings: dict[str, Any] = {"brokers": bootstrap.split(",")}
    if security.has_tls:
        settings["ssl"] = {"ca": [security._text("ca.pem")]}
    if security.protocol == "SSL":
        settings["ssl"] |= {"cert": security._text("client.pem"), "key": security._text("client-key.pem")}
    if security.has_sasl:
        settings["sasl"] = {
            "mechanism": MECHANISM.lower(),
            "username": USER,
            "password": security.password,
        }
    return settings


def _muster(security: Security, bootstrap: str) -> dict[str, Any]:
    settings = _logged_in(security, bootstrap)
    if security.has_tls:
        settings["ssl_cafile"] = security._path("ca.pem")
    if security.protocol == "SSL":
        settings["ssl_certfile"] = security._path("client.pem")
        settings["ssl_keyfile"] = security._path("client-key.pem")
    return settings


def _aiokafka(security: Security, bootstrap: str) -> dict[str, Any]:
    settings = _logged_in(security, bootstrap)
    if security.has_tls:
        settings["ssl_context"] = security.context
    return settings


def _logged_in(security: Security, bootstrap: str) -> dict[str, Any]:
    settings: dict[str, Any] = {"bootstrap_servers": bootstrap, "security_protocol": security.protocol}
    if security.has_sasl:
        settings["sasl_mechanism"] = MECHANISM
        settings["sasl_plain_username"] = USER
        settings["sasl_plain_password"] = security.password
    return settings


_CLIENTS: Final[Mapping[str, Callable[[Security, str], dict[str, Any]]]] = {
    "confluent-kafka": _confluent,
    "kafka-python": _muster,
    "aiokafka": _aiokafka,
    "muster": _muster,
    "java": _java,
    "kafkajs": _kafkajs,
}


def _pkcs8(key: bytes) -> bytes:
    """The key in a form that Java can read."""
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
        load_pem_private_key,
    )

    return load_pem_private_key(key, None).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())

"""How a client logs in, and the settings that each stock client needs for it."""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from aiokafka.abc import AbstractTokenProvider as AiokafkaTokenProvider
from kafka.net.sasl.oauth import AbstractTokenProvider as KafkaPythonTokenProvider

from tests.support.certificates import Pem

Settings = dict[str, Any]

_SECURITY: Final = "org.apache.kafka.common.security"
_MODULES: Final = {
    "PLAIN": f"{_SECURITY}.plain.PlainLoginModule",
    "SCRAM-SHA-256": f"{_SECURITY}.scram.ScramLoginModule",
    "SCRAM-SHA-512": f"{_SECURITY}.scram.ScramLoginModule",
}
_TOKEN_S: Final = 3_600.0


@dataclass(frozen=True)
class Login:
    """Where a client connects, which CA it trusts, and who it is: by its certificate on SSL, otherwise by
    SASL."""

    bootstrap: str
    ca: Path
    certificate: Pem | None = None
    mechanism: str = ""
    user: str = ""
    password: str = ""
    token: str = ""
    """For OAUTHBEARER, like `token_file`."""
    token_file: Path | None = None
    """A file with the same token; None for an unsigned one, which Java's client generates itself."""

    @property
    def protocol(self) -> str:
        return "SASL_SSL" if self.mechanism else "SSL"


def librdkafka(login: Login) -> Settings:
    """Under librdkafka's names, without a token."""
    settings = {
        "bootstrap.servers": login.bootstrap,
        "security.protocol": login.protocol,
        "ssl.ca.location": str(login.ca),
    }
    if login.certificate is not None:
        settings["ssl.certificate.location"] = str(login.certificate.certificate)
        settings["ssl.key.location"] = str(login.certificate.key)
    if login.mechanism:
        settings["sasl.mechanism"] = login.mechanism
    if login.password:
        settings |= {"sasl.username": login.user, "sasl.password": login.password}
    return settings


def confluent(login: Login) -> Settings:
    settings = librdkafka(login)
    if login.token:
        settings["oauth_cb"] = lambda _: (login.token, time.time() + _TOKEN_S)
    return settings


def franz_go(login: Login) -> Settings:
    """The settings that `tests/interop/programs/franz_go/security.go` reads."""
    return librdkafka(login) | ({"sasl.oauthbearer.token": login.token} if login.token else {})


def java(login: Login) -> Settings:
    settings = {
        "bootstrap.servers": login.bootstrap,
        "security.protocol": login.protocol,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(login.ca),
    }
    if login.certificate is not None:
        settings |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(login.certificate.both)}
    if login.mechanism:
        settings["sasl.mechanism"] = login.mechanism
    if login.password:
        password = login.password.replace("\\", "\\\\").replace('"', '\\"')
        settings["sasl.jaas.config"] = (
            f'{_MODULES[login.mechanism]} required username="{login.user}" password="{password}";'
        )
    if login.token:
        settings |= _java_token(login)
    return settings


def _java_token(login: Login) -> Settings:
    oauth = f"{_SECURITY}.oauthbearer"
    if login.token_file is None:
        claim = f'unsecuredLoginStringClaim_sub="{login.user}"'
        return {"sasl.jaas.config": f"{oauth}.OAuthBearerLoginModule required {claim};"}
    return {
        "sasl.jaas.config": f"{oauth}.OAuthBearerLoginModule required;",
        "sasl.login.callback.handler.class": f"{oauth}.OAuthBearerLoginCallbackHandler",
        "sasl.oauthbearer.token.endpoint.url": login.token_file.as_uri(),
    }


def kafkajs(login: Login) -> Settings:
    """The argument of `new Kafka` as JSON; a token replaces the function that provides it."""
    tls = {"ca": [login.ca.read_text()]}
    if login.certificate is not None:
        tls |= {"cert": login.certificate.certificate.read_text(), "key": login.certificate.key.read_text()}
    settings: Settings = {"brokers": [login.bootstrap], "ssl": tls}
    if login.mechanism:
        sasl = {"token": login.token} if login.token else {"username": login.user, "password": login.password}
        settings["sasl"] = {"mechanism": login.mechanism.lower(), **sasl}
    return settings


def kafka_python(login: Login) -> Settings:
    settings = _of_python(login) | {"ssl_cafile": str(login.ca)}
    if login.certificate is not None:
        settings["ssl_certfile"] = str(login.certificate.certificate)
        settings["ssl_keyfile"] = str(login.certificate.key)
    if login.token:
        settings["sasl_oauth_token_provider"] = _KafkaPythonToken(login.token)
    return settings


def muster(login: Login) -> Settings:
    settings = kafka_python(login)
    if login.token:
        settings["sasl_oauth_token_provider"] = lambda: login.token
    return settings


def aiokafka(login: Login) -> Settings:
    settings = _of_python(login)
    settings["ssl_context"] = context = ssl.create_default_context(cafile=login.ca)
    if login.certificate is not None:
        context.load_cert_chain(login.certificate.both)
    if login.token:
        settings["sasl_oauth_token_provider"] = _AiokafkaToken(login.token)
    return settings


def _of_python(login: Login) -> Settings:
    settings: Settings = {"bootstrap_servers": login.bootstrap, "security_protocol": login.protocol}
    if login.mechanism:
        settings["sasl_mechanism"] = login.mechanism
    if login.password:
        settings |= {"sasl_plain_username": login.user, "sasl_plain_password": login.password}
    return settings


class _KafkaPythonToken(KafkaPythonTokenProvider):
    def __init__(self, token: str) -> None:
        super().__init__()
        self._token = token

    def token(self) -> str:
        return self._token


class _AiokafkaToken(AiokafkaTokenProvider):
    def __init__(self, token: str) -> None:
        self._token = token

    async def token(self) -> str:
        return self._token


# --- files --------------------------------------------------------------------------------------------------


def write_properties(settings: Mapping[str, str], path: Path) -> Path:
    """Write them in the format of Java's `Properties.load`."""
    lines = (f"{name}={_escaped(value)}\n" for name, value in settings.items())
    path.write_text("".join(lines), encoding="ascii")
    return path


def _escaped(value: str) -> str:
    value = value.replace("\\", "\\\\")
    return "".join(each if each.isascii() else f"\\u{ord(each):04x}" for each in value)


def write_json(settings: Mapping[str, object], path: Path) -> Path:
    path.write_text(json.dumps(settings), encoding="utf-8")
    return path


SETTINGS: Final[Mapping[str, Callable[[Login], Settings]]] = {
    "java-client": java,
    "kafka-console-tools": java,
    "confluent-kafka": confluent,
    "kafka-python": kafka_python,
    "aiokafka": aiokafka,
    "kafkajs": kafkajs,
    "franz-go": franz_go,
    "kcat": librdkafka,
    "muster-kafka": muster,
}
"""Keyed by client names in the table of docs/compatibility.md."""

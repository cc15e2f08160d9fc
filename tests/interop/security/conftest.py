"""An Apache Kafka with a listener of every kind, and a CA that it trusts."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from muster.protocol.messages.scram import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
)
from tests.support.apache_kafka import ApacheKafka
from tests.support.certificates import Authority, Pem
from tests.support.wire_blocking import WireConnection
from tests.support.wire_topics import await_published

USER: Final = "alice"
"""May do everything, as may anybody with the certificate of `CLIENT`."""
STRANGER: Final = "bob"
"""May do nothing. Has the same password, but no token."""
CLIENT: Final = "client"
PASSWORD: Final = 'p,a=s"s wörd'
SESSION_MS: Final = 2_500
"""Session lifetime on SASL_PLAINTEXT."""
_SASL: Final = "org.apache.kafka.common.security"


@dataclass(frozen=True)
class Secured:
    """The broker, and what is needed to log in."""

    kafka: ApacheKafka
    ca: Path
    client: Pem
    encrypted: Pem
    stranger: Pem
    """Signed by another CA."""
    stranger_ca: Path


@pytest.fixture(scope="session")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("certificates")
    authority, other = Authority(folder), Authority(folder, "stranger")
    server = authority.issue("localhost")
    # Quoted for a JAAS config, itself within a properties file.
    quoted = PASSWORD.replace('"', '\\\\"')
    quoted = "".join(each if each.isascii() else f"\\u{ord(each):04x}" for each in quoted)
    login = {
        "plain": (
            f'{_SASL}.plain.PlainLoginModule required user_{USER}="{quoted}" user_{STRANGER}="{quoted}";'
        ),
        "scram-sha-256": f"{_SASL}.scram.ScramLoginModule required;",
        "scram-sha-512": f"{_SASL}.scram.ScramLoginModule required;",
        "oauthbearer": f"{_SASL}.oauthbearer.OAuthBearerLoginModule required;",
    }
    configs = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(server.both),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority.certificate),
        "listener.name.ssl.ssl.client.auth": "required",
        "ssl.principal.mapping.rules": r"RULE:^CN=(\\w+),.*$/$1/,DEFAULT",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": f"User:ANONYMOUS;User:{USER};User:{CLIENT}",
        "group.initial.rebalance.delay.ms": "0",
        "sasl.enabled.mechanisms": ",".join(login).upper(),
        **{
            f"listener.name.{listener}.{mechanism}.sasl.jaas.config": module
            for listener in ("sasl_ssl", "sasl_plaintext")
            for mechanism, module in login.items()
        },
        **{
            f"listener.name.sasl_plaintext.{mechanism}.connections.max.reauth.ms": str(SESSION_MS)
            for mechanism in login
        },
    }
    with ApacheKafka(configs, listeners=("SSL", "SASL_SSL", "SASL_PLAINTEXT")) as kafka:
        with WireConnection(kafka.host, kafka.port, "security") as connection:
            for user in (USER, STRANGER):
                _make_user(connection, user)
            await_published(connection)
        yield Secured(
            kafka,
            authority.certificate,
            authority.issue("client", common_name=CLIENT),
            authority.issue("client", common_name=CLIENT, password="open sesame"),
            other.issue("client", common_name=CLIENT),
            other.certificate,
        )


def _make_user(connection: WireConnection, user: str) -> None:
    """Create a user with a SCRAM credential of each kind."""
    for number, hash_name in ((1, "sha256"), (2, "sha512")):
        salt = secrets.token_bytes(16)
        upsertion = AlterUserScramCredentialsRequest.ScramCredentialUpsertion(
            name=user,
            mechanism=number,
            iterations=4096,
            salt=salt,
            salted_password=hashlib.pbkdf2_hmac(hash_name, PASSWORD.encode(), salt, 4096),
        )
        # A request may contain each user only once.
        request = AlterUserScramCredentialsRequest(deletions=[], upsertions=[upsertion])
        answer = connection.call(request, 0, AlterUserScramCredentialsResponse)
        assert [each.error_code for each in answer.results] == [0]

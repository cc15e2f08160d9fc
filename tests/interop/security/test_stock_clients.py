"""Stock clients with Apache Kafka and muster: each produces, joins, reads, commits and leaves through every
door, and is told why when it is not let in."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from muster.coordinator.server import authorizer, unserved
from muster.coordinator.testing import Broker
from tests.interop.security import targets
from tests.interop.security.conftest import STRANGER, Secured
from tests.interop.security.errands import Clients, Failed
from tests.interop.security.logins import SETTINGS, Login
from tests.interop.security.targets import SCRAM, Target
from tests.interop.story.clients import CLIENTS, by_name
from tests.interop.story.clients.java import JAVA_COOPERATIVE
from tests.support.wire_topics import until

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clients]:
    with Clients(tmp_path_factory.mktemp("clients")) as clients:
        yield clients


@pytest.fixture(scope="module", params=["kafka", "muster"])
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    if request.param == "kafka":
        yield targets.kafka(request.getfixturevalue("secured"))
        return
    with targets.muster(tmp_path_factory.mktemp("muster")) as ours:
        yield ours


def test_every_client_of_the_table_is_played() -> None:
    """Java's client has both of its assignors by default."""
    assert SETTINGS.keys() == {client.name for client in CLIENTS} - {JAVA_COOPERATIVE.name}


@pytest.mark.parametrize("client", SETTINGS)
def test_a_group_goes_on_from_its_commit_by_every_door(target: Target, clients: Clients, client: str) -> None:
    topic = f"orders-{client}"
    target.make_topic(topic)
    for door in by_name(client).doors:
        settings = SETTINGS[client](target.login(door))
        clients[client].produce(settings, topic, f"by {door}")
        assert clients[client].consume(settings, topic, topic) == f"by {door}"


@pytest.mark.parametrize("security", ["SSL", "SASL_SSL"])
@pytest.mark.parametrize("name", ["java", "confluent-kafka", "kafka-python", "aiokafka", "kafkajs"])
def test_what_a_broker_of_tests_lets_in(clients: Clients, name: str, security: str) -> None:
    client = "java-client" if name == "java" else name
    with Broker(security=security) as broker:
        broker.create_topic("orders")
        settings = broker.client_settings(name)
        clients[client].produce(settings, "orders", "first")
        assert clients[client].consume(settings, "orders", "billing") == "first"


def _door(client: str) -> str:
    return "PLAIN" if client == "kcat" else SCRAM


def _wrong(target: Target, client: str) -> dict[str, Login]:
    """Rejected logins, and one that succeeds but has no rights, by the mistake."""
    door = _door(client)
    right = target.login(door)
    return {
        "password": replace(right, password="guessed"),
        "CA": replace(right, ca=target.stranger_ca),
        "ACL": target.login(door, STRANGER),
    }


_TOLD: Final = {
    "java-client": {
        "password": "SaslAuthenticationException: .*invalid credentials",
        "CA": "SslAuthenticationException",
        "ACL": "TopicAuthorizationException",
    },
    "kafka-console-tools": {
        "password": "SaslAuthenticationException",
        "CA": "SslAuthenticationException",
        "ACL": "TopicAuthorizationException",
    },
    "confluent-kafka": {
        "password": "_AUTHENTICATION: .*invalid credentials",
        # Depends on how soon the answer arrives.
        "CA": "(_SSL|_TRANSPORT): .*certificate verify failed",
        "ACL": "(TOPIC|GROUP)_AUTHORIZATION_FAILED",
    },
    "kcat": {
        "password": "SASL authentication error: .*Invalid username or password",
        "CA": "certificate verify failed",
        "ACL": "(Topic|Group) authorization failed|not authorized",
    },
    "franz-go": {
        "password": "SASL_AUTHENTICATION_FAILED: .*invalid credentials",
        "CA": "certificate signed by unknown authority",
        "ACL": "TOPIC_AUTHORIZATION_FAILED",
    },
    "kafkajs": {
        "password": "KafkaJSSASLAuthenticationError: .*invalid credentials",
        "CA": "unable to verify the first certificate",
        "ACL": "Not authorized to access topics",
    },
    "muster-kafka": {
        "password": "AuthenticationFailed: .*the broker refused SCRAM-SHA-256: .*invalid credentials",
        "CA": "AuthenticationFailed: .*its certificate is not accepted",
        "ACL": "(TOPIC|GROUP)_AUTHORIZATION_FAILED",
    },
    # These two only log the reason, and kafka-python retries for half a minute before giving up.
    "aiokafka": {
        "password": "KafkaConnectionError",
        "CA": "KafkaConnectionError",
        "ACL": "TopicAuthorizationFailedError",
    },
    "kafka-python": {"ACL": "(Topic|Group)AuthorizationFailedError"},
}
"""The error a client gets, by the mistake: a pattern of its name and text."""
_SILENT: Final = {"kafkajs", "aiokafka", "muster-kafka"}
"""They abort a TLS handshake without an alert."""
_LOGGED: Final = {
    "password": "authentication failed: (SCRAM-SHA-256|PLAIN): alice: wrong password",
    "CA": "the client (does not trust the CA of|does not accept) the broker's certificate",
}
_AT_ONCE_S: Final = 15.0
"""Less than the SOON_S of an errand that is tried again and again."""


def _logged(client: str, mistake: str) -> str:
    if mistake == "CA" and client in _SILENT:
        return "the client closed during the TLS handshake"
    return _LOGGED[mistake]


def _boot(target: Target, clients: Clients, client: str) -> None:
    """Let the client's program start: a JVM takes a while, which is not to be measured."""
    topic = f"allowed-{client}"
    target.make_topic(topic)
    clients[client].produce(SETTINGS[client](target.login(_door(client))), topic, "first")


def _told_why(target: Target, clients: Clients, client: str, mistake: str) -> None:
    topic = f"forbidden-{client}"
    settings = SETTINGS[client](_wrong(target, client)[mistake])
    for errand in (clients[client].produce, clients[client].consume):
        began_s = time.monotonic()
        with pytest.raises(Failed, match=_TOLD[client][mistake]):
            errand(settings, topic, "group")
        assert time.monotonic() - began_s < _AT_ONCE_S, f"{client} tried again and again"


@pytest.mark.parametrize("client", _TOLD)
def test_apache_kafka_tells_why_at_once(secured: Secured, clients: Clients, client: str) -> None:
    target = targets.kafka(secured)
    target.make_topic(f"forbidden-{client}")
    _boot(target, clients, client)
    for mistake in _TOLD[client]:
        _told_why(target, clients, client, mistake)


@pytest.mark.parametrize("client", _TOLD)
def test_muster_tells_why_at_once_and_logs_a_line(
    clients: Clients, client: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A repeated log line is suppressed for a minute, so each client has its own broker."""
    turned_away, denied = Log(), Log()
    monkeypatch.setattr(unserved, "_log", turned_away)
    monkeypatch.setattr(authorizer, "_log", denied)
    topic = f"forbidden-{client}"
    with targets.muster(tmp_path) as target:
        target.make_topic(topic)
        _boot(target, clients, client)
        for mistake in _TOLD[client]:
            _told_why(target, clients, client, mistake)
            if mistake in _LOGGED:
                # The broker may be the last to learn that a client rejects its certificate.
                until(
                    lambda mistake=mistake: turned_away.of(_logged(client, mistake)),
                    f"a line on the {mistake}",
                )
    for mistake in _LOGGED.keys() & _TOLD[client].keys():
        (line,) = turned_away.of(_logged(client, mistake))
        assert ("CA" if mistake == "CA" else "credentials") in line["remedy"]
    told = [(line["principal"], line["operation"], line["resource"]) for line in denied.lines]
    assert (f"User:{STRANGER}", "DESCRIBE", f"topic {topic}") in told
    assert len(set(told)) == len(told), "a line was repeated"


class Log:
    """Collects what is logged about clients, in place of a `Logger`."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def warning(self, event: str, **fields: Any) -> None:
        self.lines.append(fields)

    info = warning

    def of(self, why: str) -> list[dict[str, Any]]:
        """The lines about clients that were not let in, by the pattern of the reason."""
        return [line for line in self.lines if re.match(why, line["why"])]


def test_an_old_librdkafka_is_not_let_in_with_scram(
    clients: Clients, secured: Secured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Debian's kcat has one that repeats its nonce, which Kafka has refused since 3.8.1. muster says so in
    its log."""
    log = Log()
    monkeypatch.setattr(unserved, "_log", log)
    with targets.muster(tmp_path) as ours:
        for target in (targets.kafka(secured), ours):
            with pytest.raises(Failed, match="invalid credentials with SASL mechanism SCRAM-SHA-256"):
                clients["kcat"].produce(SETTINGS["kcat"](target.login(SCRAM)), "orders", "first")
    (line,) = log.lines
    assert line["why"].endswith("as with librdkafka before 2.6.1: update the client")


def test_librdkafka_with_unsigned_tokens(clients: Clients) -> None:
    with Broker(
        security="SASL_PLAINTEXT",
        sasl_enabled_mechanisms=("OAUTHBEARER",),
        sasl_oauthbearer_allow_unsecured=True,
    ) as ours:
        settings = {
            "bootstrap.servers": ours.bootstrap,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "enable.sasl.oauthbearer.unsecure.jwt": True,
            "sasl.oauthbearer.config": "principal=alice scope=orders",
        }
        ours.create_topic("unsigned")
        librdkafka = clients["confluent-kafka"]
        librdkafka.produce(settings, "unsigned", "hello")
        assert librdkafka.consume(settings, "unsigned", "unsigned") == "hello"

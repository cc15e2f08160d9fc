"""Stock clients over mTLS and SASL_SSL: groups go on from their commits, and librdkafka says why it fails."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, Final, NamedTuple

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, KafkaError, Producer
from kafka import KafkaConsumer, KafkaProducer

from muster.coordinator.testing import Broker
from tests.interop.security.conftest import PASSWORD, USER, Secured
from tests.support.wire_blocking import WireConnection
from tests.support.wire_topics import create_topics

_DEADLINE_S: Final = 20.0
Settings = dict[str, Any]

pytestmark = pytest.mark.interop


class Target(NamedTuple):
    """`settings(client)` is what a client is started with; `make_topic` makes a topic of one partition."""

    settings: Callable[[str], Settings]
    make_topic: Callable[[str], object]


def _of_kafka(secured: Secured, protocol: str) -> Target:
    bootstrap, ca = secured.kafka.bootstrap_of(protocol), str(secured.ca)
    certificate, key, both = (str(each) for each in secured.client)

    def settings(client: str) -> Settings:
        if client == "confluent-kafka":
            made: Settings = {
                "bootstrap.servers": bootstrap,
                "security.protocol": protocol,
                "ssl.ca.location": ca,
            }
            if protocol == "SSL":
                return made | {"ssl.certificate.location": certificate, "ssl.key.location": key}
            return made | {
                "sasl.mechanism": "SCRAM-SHA-256",
                "sasl.username": USER,
                "sasl.password": PASSWORD,
            }
        made = {"bootstrap_servers": bootstrap, "security_protocol": protocol}
        if client == "aiokafka":
            made["ssl_context"] = context = ssl.create_default_context(cafile=ca)
            if protocol == "SSL":
                context.load_cert_chain(both)
        else:
            made["ssl_cafile"] = ca
            if protocol == "SSL":
                made |= {"ssl_certfile": certificate, "ssl_keyfile": key}
        if protocol != "SSL":
            made |= {
                "sasl_mechanism": "SCRAM-SHA-256",
                "sasl_plain_username": USER,
                "sasl_plain_password": PASSWORD,
            }
        return made

    def make_topic(name: str) -> None:
        with WireConnection(secured.kafka.host, secured.kafka.port, "topics") as connection:
            create_topics(connection, {name: 1})

    return Target(settings, make_topic)


@pytest.fixture(scope="module", params=["kafka-SASL_SSL", "kafka-SSL", "muster-SASL_SSL", "muster-SSL"])
def target(request: pytest.FixtureRequest, secured: Secured) -> Iterator[Target]:
    broker, _, protocol = request.param.partition("-")
    if broker == "kafka":
        yield _of_kafka(secured, protocol)
        return
    with Broker(security=protocol) as ours:
        yield Target(ours.client_settings, ours.create_topic)


def _confluent(settings: Settings, topic: str, value: bytes) -> bytes:
    """Produce `value`; then join, read one record, commit, and leave."""
    producer = Producer(settings)
    producer.produce(topic, value)
    assert producer.flush(_DEADLINE_S) == 0
    config = {"group.id": topic, "auto.offset.reset": "earliest", "enable.auto.commit": False}
    with closing(Consumer(settings | config)) as consumer:
        consumer.subscribe([topic])
        record = consumer.poll(_DEADLINE_S)
        assert record is not None
        assert record.error() is None
        consumer.commit(record, asynchronous=False)
        read = record.value()
        assert isinstance(read, bytes)
        return read


def _kafka_python(settings: Settings, topic: str, value: bytes) -> bytes:
    with closing(KafkaProducer(**settings)) as producer:
        producer.send(topic, value).get(_DEADLINE_S)
    consumer = KafkaConsumer(
        topic, group_id=topic, auto_offset_reset="earliest", enable_auto_commit=False, **settings
    )
    with closing(consumer):
        (records,) = consumer.poll(_DEADLINE_S * 1000, max_records=1).values()
        consumer.commit()
        read: bytes = records[0].value
        return read


def _aiokafka(settings: Settings, topic: str, value: bytes) -> bytes:
    async def run() -> bytes:
        async with AIOKafkaProducer(**settings) as producer:
            await producer.send_and_wait(topic, value)
        async with AIOKafkaConsumer(
            topic, group_id=topic, auto_offset_reset="earliest", enable_auto_commit=False, **settings
        ) as consumer:
            record = await asyncio.wait_for(consumer.getone(), _DEADLINE_S)
            await consumer.commit()
            read: bytes = record.value
            return read

    return asyncio.run(run())


_CLIENTS: Final = {"confluent-kafka": _confluent, "kafka-python": _kafka_python, "aiokafka": _aiokafka}


@pytest.mark.parametrize("client", _CLIENTS)
def test_a_group_goes_on_from_its_commit(target: Target, client: str) -> None:
    protocol = target.settings("aiokafka")["security_protocol"]
    topic = f"orders-{protocol}-{client}"
    target.make_topic(topic)
    for value in (b"first", b"second"):
        assert _CLIENTS[client](target.settings(client), topic, value) == value


@pytest.mark.parametrize("target", ["kafka-SASL_SSL", "muster-SASL_SSL"], indirect=True)
def test_librdkafka_says_why_it_is_not_let_in(target: Target) -> None:
    settings = target.settings("confluent-kafka")
    errors: list[KafkaError] = []
    wrong = {"sasl.password": "no", "error_cb": errors.append}
    producer = Producer(settings | wrong)
    deadline = time.monotonic() + _DEADLINE_S
    while not errors and time.monotonic() < deadline:
        producer.poll(0.1)
    assert errors[0].code() == KafkaError._AUTHENTICATION
    assert "invalid credentials with SASL mechanism SCRAM-SHA-256" in errors[0].str()


def test_librdkafka_with_unsigned_tokens() -> None:
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
        assert _confluent(settings, "unsigned", b"hello") == b"hello"

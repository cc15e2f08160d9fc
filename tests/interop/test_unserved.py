"""Stock clients that request what muster does not serve: they get an error, and the broker logs it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer

from muster.coordinator.server import unserved
from muster.coordinator.testing import Broker
from tests.interop.polling import DEADLINE_S

pytestmark = pytest.mark.interop


class Lines:
    def __init__(self) -> None:
        self.why: list[str] = []

    def warning(self, event: str, **fields: Any) -> None:
        self.why.append(f"{fields['why']}; {fields['remedy']}")


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Lines:
    made = Lines()
    monkeypatch.setattr(unserved, "_log", made)
    return made


@pytest.fixture
def broker(lines: Lines) -> Iterator[Broker]:
    with Broker() as broker:
        broker.create_topic("orders")
        yield broker


def polled(poll: Callable[[], object], fact: Callable[[], bool]) -> None:
    """Poll the client until the fact holds."""
    deadline = time.monotonic() + DEADLINE_S
    while not fact():
        assert time.monotonic() < deadline
        poll()


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (
            {"security.protocol": "SSL"},
            "TLS handshake on a plaintext listener; connect to an SSL",
        ),
        (
            {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"},
            "SASL authentication on a listener without SASL: mechanism PLAIN; connect to a SASL_SSL",
        ),
        (
            {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-512"},
            "SASL authentication on a listener without SASL: mechanism SCRAM-SHA-512; connect",
        ),
    ],
    ids=["TLS", "SASL PLAIN", "SASL SCRAM"],
)
def test_security(broker: Broker, lines: Lines, settings: dict[str, str], why: str) -> None:
    errors: list[KafkaError] = []
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "log_level": 0,
            "sasl.username": "app",
            "sasl.password": "secret",
            "error_cb": errors.append,
            **settings,
        }
    )
    polled(lambda: producer.poll(0.05), lambda: bool(lines.why))
    assert len(lines.why) == 1
    assert lines.why[0].startswith(why)
    if "sasl.mechanism" in settings:
        told = "Request not valid in current SASL state"
        polled(lambda: producer.poll(0.05), lambda: any(told in str(each) for each in errors))


def test_a_consumer_of_a_protocol_that_is_switched_off(lines: Lines) -> None:
    """It used to wait for ever, without any message."""
    with Broker(group_coordinator_rebalance_protocols=("classic",)) as broker:
        failure = _first_failure(broker.bootstrap)
    assert failure.code() == KafkaError._FATAL
    assert "API version not supported" in str(failure)
    assert len(lines.why) == 1
    assert lines.why[0].startswith(
        "the consumer protocol (KIP-848) is switched off; set group.protocol=classic on the consumer"
    )


def _first_failure(bootstrap: str) -> KafkaError:
    """The first failure of a consumer with group.protocol=consumer."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "billing",
            "group.protocol": "consumer",
            "log_level": 0,
        }
    )
    consumer.subscribe(["orders"])
    failures: list[KafkaError] = []

    def poll() -> None:
        message = consumer.poll(0.05)
        if message is not None and message.error() is not None:
            failures.append(message.error())

    polled(poll, lambda: bool(failures))
    consumer.close()
    return failures[0]

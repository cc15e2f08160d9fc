"""The brokers that the suite is run against, each a process of its own that can be killed and started."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support.apache_kafka import ApacheKafka
from tests.support.served import Served

KAFKA: Final = "kafka"
TARGETS: Final = ("muster", "muster-3", KAFKA)
"""One broker, three in a process, and Apache Kafka."""
CONSUMER_PROTOCOL: Final = (KAFKA,)
"""Those that serve the consumer protocol (KIP-848)."""


@dataclass(frozen=True)
class Target:
    """A cluster that runs. No group waits for its first members."""

    name: str
    bootstrap: str
    restart: Callable[[], None]
    """Kill all its brokers, and start them again on the same data; returns when they serve."""


@contextmanager
def running(name: str) -> Iterator[Target]:
    if name == KAFKA:
        configs = {
            "group.initial.rebalance.delay.ms": "0",
            "auto.create.topics.enable": "true",
            # So long a broker that was killed is waited for when it registers again.
            "broker.session.timeout.ms": "4000",
            # Members are quick to hear of what is assigned, and do not wait for others that may come.
            "group.consumer.min.heartbeat.interval.ms": "100",
            "group.consumer.heartbeat.interval.ms": "200",
            "group.consumer.assignment.interval.ms": "0",
        }
        with ApacheKafka(configs) as kafka:
            yield Target(name, kafka.bootstrap, kafka.restart)
        return
    brokers = 3 if name == "muster-3" else 1
    with tempfile.TemporaryDirectory(prefix="muster-behaviour-") as directory:
        folder = Path(directory)
        options = ("--brokers", str(brokers), "--lease-term-ms", "1000")
        with Served(folder / "data", *options, log=folder / "log.txt", ports=brokers) as served:
            ports = range(served.port, served.port + brokers)

            def restart() -> None:
                served.kill()
                served.start()

            yield Target(name, ",".join(f"127.0.0.1:{port}" for port in ports), restart)

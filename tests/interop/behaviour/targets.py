"""The brokers that the suite runs against, each a separate process that can be killed and started."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support.apache_kafka import ApacheKafka
from tests.support.postgres import Postgres
from tests.support.served import Served

KAFKA: Final = "kafka"
KAFKA_BEFORE_890: Final = "kafka-transaction-version-1"
"""Apache Kafka with the transactions of before KIP-890."""
TARGETS: Final = ("muster", "muster-3", "cluster", KAFKA)
"""One broker, three in one process, three processes over PostgreSQL, and Apache Kafka."""
_BROKERS_OF_A_PROCESS: Final = {"muster": 1, "muster-3": 3}
_QUICK_MEMBERS: Final = {
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "200",
    "group.consumer.assignment.interval.ms": "0",
}
"""Makes members of the consumer protocol learn quickly of their assignments, and not wait for others that may
join."""
_LEASES: Final = ("--lease-term-ms", "1000")
"""Of brokers with a store of their own. In a database, whoever does not get its leases within a third of the
term does not start."""
_GROUPS: Final = tuple(
    part for name, value in _QUICK_MEMBERS.items() for part in (f"--{name.replace('.', '-')}", value)
)


@dataclass(frozen=True)
class Target:
    """A running cluster. Its groups do not wait for their first members."""

    name: str
    bootstrap: str
    restart: Callable[[], None]
    """Kill all its brokers and restart them on the same data; returns when they serve."""


@contextmanager
def running(name: str) -> Iterator[Target]:
    with ExitStack() as stack:
        if name == KAFKA:
            yield _kafka(name, stack)
        elif name == KAFKA_BEFORE_890:
            yield _kafka(name, stack, {"transaction.version": 1})
        elif name in _BROKERS_OF_A_PROCESS:
            yield _process(name, _BROKERS_OF_A_PROCESS[name], stack)
        else:
            yield _cluster(name, stack)


def _kafka(name: str, stack: ExitStack, features: Mapping[str, int] | None = None) -> Target:
    configs = {
        "group.initial.rebalance.delay.ms": "0",
        "auto.create.topics.enable": "true",
        # How long a killed broker is waited for when it registers again.
        "broker.session.timeout.ms": "4000",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
        **_QUICK_MEMBERS,
    }
    kafka = stack.enter_context(ApacheKafka(configs, features=features))
    return Target(name, kafka.bootstrap, kafka.restart)


def _process(name: str, brokers: int, stack: ExitStack) -> Target:
    folder = _folder(stack)
    options = ("--brokers", str(brokers), *_LEASES, *_GROUPS)
    log = folder / "log.txt"
    served = stack.enter_context(Served(folder / "data", *options, log=log, ports=brokers))
    ports = range(served.port, served.port + brokers)
    bootstrap = ",".join(f"127.0.0.1:{port}" for port in ports)
    return Target(name, bootstrap, lambda: _restart([served]))


def _cluster(name: str, stack: ExitStack) -> Target:
    folder = _folder(stack)
    url = stack.enter_context(Postgres()).new_database()
    nodes = []
    for node_id in (1, 2, 3):
        options = ("--store", url, "--node-id", str(node_id), *_GROUPS)
        nodes.append(stack.enter_context(Served(None, *options, log=folder / f"log-{node_id}.txt")))
    return Target(name, ",".join(node.bootstrap for node in nodes), lambda: _restart(nodes))


def _folder(stack: ExitStack) -> Path:
    return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="muster-behaviour-")))


def _restart(nodes: Sequence[Served]) -> None:
    """All of them die before the first one is restarted."""
    for node in nodes:
        node.kill()
    for node in nodes:
        node.start()

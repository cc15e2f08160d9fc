"""The clients that transform a topic exactly once, and how their programs are called.

A program is a worker in a group. Its arguments are, in this order: BOOTSTRAP, GROUP, SOURCE, TARGET,
TRANSACTIONAL_ID, SESSION_TIMEOUT_MS, ABORT_EVERY, RECORDS_MAX. It reads SOURCE from the earliest offset where
the group has no commit. The records' values are numbers; for n it writes the key `k<n>` and the value `<n>
<n²>` to partition n / 3 mod 3 of TARGET. At most RECORDS_MAX records and the offsets after them are one
transaction. Every ABORT_EVERYth (0: none) is aborted once everything is sent. After that, and after a failed
one that can be aborted, the worker fetches the committed offsets and goes back there.

It prints the lines of a member (`story/clients/base.py`): `assigned` and `revoked`, where the generation may
be null, `left` once its standard input has ended and it has closed everything cleanly, and for each
transaction

    {"event": "transaction", "step": "began", "records": 7}
    {"event": "transaction", "step": "sent", "records": 7}       all were acknowledged
    {"event": "transaction", "step": "offsets", "records": 7}    if the client has a call for that
    {"event": "transaction", "step": "committed", "records": 7}  or "aborted", on purpose, or "failed", with 0
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from tests.interop.programs import python
from tests.interop.story.clients.base import PROGRAMS, StockClient
from tests.interop.story.clients.built import FRANZ_GO
from tests.interop.story.clients.java import HINT, JAVA, compiled
from tests.interop.story.clients.program import need
from tests.interop.story.clients.python import AIOKAFKA, CONFLUENT, KAFKA_PYTHON, MUSTER
from tests.support.java import java
from tests.support.kafka_artifacts import (
    KAFKA_BEFORE_4_VERSION,
    SPRING_KAFKA,
    clients_classpath,
    spring_classpath,
)

PARTITIONS: Final = 3
"""Partition count of both topics."""


@dataclass(frozen=True)
class Transformer(ABC):
    """A client that is set up to work exactly once."""

    name: str
    kip_890: bool
    """Whether it uses the transactions of KIP-890, which give each transaction its own epoch, if the cluster
    has finalized `transaction.version` 2; others use the older ones everywhere."""

    steps: tuple[str, ...] = field(default=("began", "sent", "offsets"), kw_only=True)
    """The steps it reports for a transaction before its end."""

    starts_late: bool = field(default=False, kw_only=True)
    """Its producer starts with its first record. If it is restarted and gets none, an open transaction is
    left until transaction.timeout.ms."""

    outlives_brokers: bool = field(default=True, kw_only=True)
    """It goes on when a broker was killed and is back. Those that do not stop for good, with Apache Kafka as
    well: librdkafka if it was about to commit offsets, kafka-python if its membership was lost meanwhile."""

    @abstractmethod
    def version(self) -> str:
        """The installed version, queried; `prepare` has been called."""

    def prepare(self) -> None:  # noqa: B027 - most clients have nothing to prepare
        """Install or compile what it needs, once per machine. Raises RuntimeError that names what is
        missing."""

    @abstractmethod
    def command(self) -> list[str]:
        """The program's command line; its arguments follow."""


@dataclass(frozen=True)
class Stock(Transformer):
    """One of the clients of the story."""

    client: StockClient
    call: Callable[[], list[str]]

    def version(self) -> str:
        return self.client.version()

    def prepare(self) -> None:
        self.client.prepare()

    def command(self) -> list[str]:
        return self.call()


@dataclass(frozen=True)
class JavaBefore4(Transformer):
    """Kafka's Java client as of before KIP-890, compiled from the same source."""

    def version(self) -> str:
        return KAFKA_BEFORE_4_VERSION

    def prepare(self) -> None:
        need("java", "javac", "mvn", hint=HINT)
        self.command()

    def command(self) -> list[str]:
        sources = [PROGRAMS / "java" / name for name in ("Lines.java", "Transform.java")]
        return [*java(compiled(sources, clients_classpath(self.version()))), "Transform"]


@dataclass(frozen=True)
class Spring(Transformer):
    """Spring for Apache Kafka, with the Java client that it brings."""

    def version(self) -> str:
        return SPRING_KAFKA.version

    def prepare(self) -> None:
        need("java", "javac", "mvn", hint=HINT)
        self.command()

    def command(self) -> list[str]:
        sources = [PROGRAMS / "java" / "Lines.java", PROGRAMS / "spring" / "Listener.java"]
        return [*java(compiled(sources, spring_classpath())), "Listener"]


def _python(
    client: StockClient, module: str, *, kip_890: bool = False, outlives_brokers: bool = True
) -> Stock:
    command = [sys.executable, "-m", f"{python.__name__}.{module}_transform"]
    return Stock(client.name, kip_890, client, lambda: command, outlives_brokers=outlives_brokers)


TRANSFORMERS: Final[tuple[Transformer, ...]] = (
    Stock(JAVA.name, True, JAVA, lambda: [*java(JAVA.classpath()), "Transform"]),
    JavaBefore4("java-client-3", False),
    Stock(FRANZ_GO.name, True, FRANZ_GO, lambda: [*FRANZ_GO.command(), "transform"], steps=("began", "sent")),
    _python(CONFLUENT, "confluent", outlives_brokers=False),
    _python(KAFKA_PYTHON, "kafka_python", outlives_brokers=False),
    _python(AIOKAFKA, "aiokafka"),
    _python(MUSTER, "muster", kip_890=True),
)
SPRING: Final = Spring("spring-kafka", True, steps=("began", "sent"), starts_late=True)


def by_name(name: str) -> Transformer:
    return next(each for each in TRANSFORMERS if each.name == name)

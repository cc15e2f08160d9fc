"""The servers that are measured: each is started the same way, and says what is to be known of it.

    with KINDS["kafka"].start(Options(topics={"orders": 100})) as running:
        ...

Every one is new, alone, on loopback, and writes to a temporary folder on the same disk.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from muster.coordinator.cluster.membership import TERM_MS_DEFAULT
from muster.protocol.api import ApiKey
from tests.bench import cluster, database, processes, sink
from tests.compiled.environment import server_python
from tests.support.apache_kafka import SHIPPED_JVM, ApacheKafka
from tests.support.cache import digest, filled_once
from tests.support.certificates import Authority
from tests.support.kafka_artifacts import KAFKA_VERSION
from tests.support.ports import free_ports
from tests.support.served import Served
from tests.support.wire_blocking import ConnectionClosed, WireConnection
from tests.support.wire_topics import brokers_alive, create_topics

_KFAKE: Final = Path(__file__).with_name("kfake")
_NODES: Final = 3
_BUILD_SECONDS_MAX: Final = 300


@dataclass(frozen=True, slots=True)
class Options:
    """What a measure asks of every server, by Kafka's names where it has them."""

    initial_delay_ms: int = 0
    """group.initial.rebalance.delay.ms"""
    session_min_ms: int = 6_000
    """group.min.session.timeout.ms"""
    topics: Mapping[str, int] = field(default_factory=dict)
    """Partitions of each topic to be there."""
    ready: bool = True
    """Whether to wait until all its coordinators answer; otherwise it only has been started."""
    tls: bool = False
    """Whether its port is that of a listener with TLS."""


@dataclass(frozen=True, slots=True)
class Running:
    """A server under measurement. The first port is its bootstrap address."""

    ports: list[int]
    pids: list[int]
    families: list[int]
    """Processes that are counted with their children."""
    launched_s: float
    """When its process was called, by `time.monotonic`."""
    at_most: Mapping[int, int] = field(default_factory=dict)
    """Versions of APIs above which it answers wrongly, although it says that it has them."""
    group_max: int | None = None
    """Members of a group that it can do."""
    tls: bool = False
    """Whether that port takes TLS."""

    def as_json(self) -> dict[str, Any]:
        """What a driver is told (`driver.Target.ask`)."""
        return {
            "ports": self.ports,
            "pids": self.pids,
            "families": self.families,
            "at_most": list(self.at_most.items()),
            "group_max": self.group_max,
            "tls": self.tls,
        }


@dataclass(frozen=True, slots=True)
class Kind:
    """A server that may be asked for by its name."""

    name: str
    title: str
    start: Callable[[Options], AbstractContextManager[Running]]
    durable: str
    """What an answered offset commit survives."""
    only: frozenset[str] = frozenset()
    """Names of the measures it is for, if it is not for all."""
    once: bool = False
    """Shown for comparison alone: one round of it is enough."""

    def plays(self, measure: str) -> bool:
        return not self.only or measure in self.only


def _muster_options(options: Options) -> list[str]:
    return [
        *("--group-initial-rebalance-delay-ms", str(options.initial_delay_ms)),
        *("--group-min-session-timeout-ms", str(options.session_min_ms)),
    ]


@contextmanager
def _muster(options: Options, *, brokers: int = 1, compiled: bool = True) -> Iterator[Running]:
    with tempfile.TemporaryDirectory(prefix="muster-peers-") as directory:
        # As users have it; brokers of tests have longer leases.
        lease = ("--lease-term-ms", str(TERM_MS_DEFAULT))
        given = [*_muster_options(options), *lease, "--brokers", str(brokers)]
        log = Path(directory) / "server.log"
        first = free_ports(2) if options.tls else 0
        if options.tls:
            given += _muster_listeners(first, Path(directory))
        python = server_python() if compiled else None
        served = Served(Path(directory) / "data", *given, log=log, ports=brokers, python=python)
        launched_s = time.monotonic()
        with served:
            ports = [first] if options.tls else list(range(served.port, served.port + brokers))
            if options.ready:
                cluster.settle(dict(enumerate(ports, 1)))
            _create(ports[0], options)
            reached = [first + 1] if options.tls else ports
            yield Running(reached, [served.process.pid], [], launched_s, tls=options.tls)


def _muster_listeners(first: int, folder: Path) -> list[str]:
    """A listener for what is done before, and behind it one with TLS."""
    return [
        *("--listeners", f"PLAINTEXT://127.0.0.1:{first},SSL://127.0.0.1:{first + 1}"),
        *("--ssl-keystore-location", str(_keystore(folder))),
    ]


def _keystore(folder: Path) -> Path:
    """A key of the curve P-256, which is what most have today, and its certificate."""
    return Authority(folder).issue("localhost").both


@contextmanager
def _muster_over_postgres(options: Options) -> Iterator[Running]:
    with database.server() as postgres:
        url = postgres.new_database()
        launched_s = time.monotonic()
        given = _muster_options(options)
        with cluster.brokers(url, *given, count=2, settled=options.ready, python=server_python()) as served:
            ports = [broker.port for broker in served.values()]
            _create(ports[0], options)
            pids = [broker.process.pid for broker in served.values()]
            yield Running(ports, pids, [postgres.pid], launched_s)


# What config/server.properties of Kafka's own archive says, and defaults where tests have something smaller.
_SHIPPED: Final[Mapping[str, str]] = {
    "num.network.threads": "3",
    "num.io.threads": "8",
    "background.threads": "10",
    "log.cleaner.enable": "true",
    "transaction.state.log.num.partitions": "50",
    "share.coordinator.state.topic.num.partitions": "50",
    "socket.send.buffer.bytes": "102400",
    "socket.receive.buffer.bytes": "102400",
    "log.retention.hours": "168",
}


def _kafka_configs(options: Options) -> dict[str, str]:
    return {
        **_SHIPPED,
        "group.initial.rebalance.delay.ms": str(options.initial_delay_ms),
        "group.min.session.timeout.ms": str(options.session_min_ms),
    }


@contextmanager
def _kafka(options: Options, **more: str) -> Iterator[Running]:
    configs = {**_kafka_configs(options), **more}
    is_ready = None if options.ready else lambda host, port: True
    with tempfile.TemporaryDirectory() as folder:
        listeners = []
        if options.tls:
            listeners = ["SSL"]
            configs |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(_keystore(Path(folder)))}
        with ApacheKafka(configs, jvm=SHIPPED_JVM, is_ready=is_ready, listeners=listeners) as kafka:
            if options.ready:
                _create(kafka.port, options)
            reached = [kafka.port_of("SSL") if options.tls else kafka.port]
            yield Running(reached, [kafka.pid], [], kafka.launched_s, tls=options.tls)


@contextmanager
def _kafka_nodes(options: Options) -> Iterator[Running]:
    """Three nodes, each a broker and a controller; internal topics are kept by all."""
    configs = {
        **_kafka_configs(options),
        "offsets.topic.replication.factor": str(_NODES),
        "transaction.state.log.replication.factor": str(_NODES),
        "share.coordinator.state.topic.replication.factor": str(_NODES),
    }
    first = free_ports(2 * _NODES)
    ports = {node_id: first + 2 * (node_id - 1) for node_id in range(1, _NODES + 1)}
    launched_s = time.monotonic()
    with ExitStack() as stack, ThreadPoolExecutor(_NODES) as starting:
        nodes = [
            ApacheKafka(configs, jvm=SHIPPED_JVM, node_id=node_id, ports=ports, is_ready=_all_nodes_alive)
            for node_id in ports
        ]
        for node in starting.map(ApacheKafka.__enter__, nodes):
            stack.push(node)
        cluster.settle(ports)
        _create(nodes[0].port, options)
        yield Running([node.port for node in nodes], [node.pid for node in nodes], [], launched_s)


def _all_nodes_alive(host: str, port: int) -> bool:
    """Before that internal topics would be created with leaders on some of the nodes alone."""
    try:
        with WireConnection(host, port, "peers") as connection:
            return brokers_alive(connection) == _NODES
    except (OSError, ConnectionClosed):
        return False


@contextmanager
def _kfake(options: Options) -> Iterator[Running]:
    topics = ",".join(f"{name}:{count}" for name, count in options.topics.items())
    command = [str(_kfake_binary()), "-topics", topics, "-session-min", f"{options.session_min_ms}ms"]
    with _printing_its_port(command) as running:
        yield running


# What librdkafka's own consumer sends: the mock cluster hangs up on a flexible JoinGroup.
_OF_LIBRDKAFKA: Final = {
    ApiKey.JOIN_GROUP: 5,
    ApiKey.SYNC_GROUP: 3,
    ApiKey.HEARTBEAT: 3,
    ApiKey.LEAVE_GROUP: 1,
}


@contextmanager
def _mock(options: Options) -> Iterator[Running]:
    command = [sys.executable, "-m", "tests.bench.peers.mock_cluster"]
    # Its timer of 0 ms never ends.
    command += ["--initial-delay-ms", str(max(options.initial_delay_ms, 1))]
    command += [f"--topic={name}:{count}" for name, count in options.topics.items()]
    with _printing_its_port(command) as running:
        # A member that syncs after its leader is refused by it, so groups of several are a matter of luck.
        yield replace(running, at_most=_OF_LIBRDKAFKA, group_max=1)


@contextmanager
def _printing_its_port(command: list[str]) -> Iterator[Running]:
    """A process whose first line ends with its address."""
    with tempfile.TemporaryDirectory() as folder:
        launched_s = time.monotonic()
        with processes.printing_its_port(command, Path(folder, "log")) as server:
            yield Running([server.port], [server.pid], [], launched_s)


def _kfake_binary() -> Path:
    """Built once per machine; needs Go."""
    sources = sorted(path for path in _KFAKE.iterdir() if path.suffix in {".go", ".mod", ".sum"})
    named = digest(*(f"{source.name}\n{source.read_text()}" for source in sources))

    def build(folder: Path) -> None:
        command = ["go", "build", "-trimpath", "-o", str(folder / "kfake"), "."]
        subprocess.run(command, cwd=_KFAKE, check=True, timeout=_BUILD_SECONDS_MAX)

    return filled_once(f"kfake/{named}", build) / "kfake"


def prepare(names: list[str]) -> None:
    """Build and fetch now what would otherwise be built and fetched within a measurement. RuntimeError if the
    compiled wheel is needed and not there."""
    if {"muster", "muster-3", "muster-postgres"} & set(names):
        server_python()
    if "kfake" in names:
        _kfake_binary()
    if any(name.startswith("kafka") for name in names):
        from tests.support.kafka_artifacts import broker_classpath

        broker_classpath()


def _create(port: int, options: Options) -> None:
    if options.topics:
        with WireConnection("127.0.0.1", port, "peers") as connection:
            create_topics(connection, options.topics)


@contextmanager
def _echo(options: Options) -> Iterator[Running]:
    launched_s = time.monotonic()
    with processes.echo() as server:
        yield Running([server.port], [server.pid], [], launched_s)


ECHO: Final = Kind("echo", "a bare uvloop echo", _echo, "nothing", only=frozenset({"heartbeats"}), once=True)
"""Not a server, but what a request costs that is only read and written."""


@contextmanager
def _sink(options: Options) -> Iterator[Running]:
    with tempfile.TemporaryDirectory(prefix="muster-peers-") as folder:
        path = Path(folder) / "sink"
        path.write_bytes(bytes(2 * sink.FETCHED_BYTES))
        launched_s = time.monotonic()
        with processes.sink(path) as server:
            yield Running([server.port], [server.pid], [], launched_s)


SINK: Final = Kind("sink", "bare uvloop and a file", _sink, "nothing", only=frozenset({"records"}), once=True)
"""Likewise, of requests that bring or take records."""

_OF_THE_PROCESS: Final = "death of the process (no fsync)"
_OF_THE_MACHINE: Final = "loss of power (fsync)"

KINDS: Final[Mapping[str, Kind]] = {
    kind.name: kind
    for kind in (
        Kind("muster", "muster, 1 broker", _muster, _OF_THE_MACHINE),
        Kind(
            "muster-pure",
            "muster, 1 broker, not compiled",
            partial(_muster, compiled=False),
            _OF_THE_MACHINE,
            once=True,
        ),
        Kind(
            "muster-3",
            "muster, 3 brokers in one process",
            partial(_muster, brokers=3),
            _OF_THE_MACHINE,
            once=True,
        ),
        Kind(
            "muster-postgres", "muster, 2 processes over PostgreSQL", _muster_over_postgres, _OF_THE_MACHINE
        ),
        Kind("kafka", f"Apache Kafka {KAFKA_VERSION}, defaults", _kafka, _OF_THE_PROCESS),
        Kind(
            "kafka-flush",
            f"Apache Kafka {KAFKA_VERSION}, flush.messages=1",
            partial(_kafka, **{"log.flush.interval.messages": "1"}),
            _OF_THE_MACHINE,
        ),
        Kind(
            "kafka-3",
            f"Apache Kafka {KAFKA_VERSION}, 3 nodes",
            _kafka_nodes,
            "death of two processes (no fsync)",
            only=frozenset({"failover"}),
        ),
        Kind("mock", "librdkafka's mock cluster", _mock, "nothing", once=True),
        Kind("kfake", "franz-go's kfake", _kfake, "nothing", once=True),
        ECHO,
        SINK,
    )
}

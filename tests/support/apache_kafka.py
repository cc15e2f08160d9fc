"""A real Apache Kafka for tests: one node in KRaft mode, on loopback, in a temporary folder.

    with ApacheKafka({"group.max.size": "2"}) as kafka:
        connect(kafka.bootstrap)

It is ready when the coordinators of all its 50 `__consumer_offsets` partitions answer, so no test meets
COORDINATOR_LOAD_IN_PROGRESS. Leaving the block kills the process and removes its folder.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.java import SMALL, java
from tests.support.kafka_artifacts import broker_classpath
from tests.support.ports import free_ports
from tests.support.wire_blocking import ConnectionClosed, WireConnection
from tests.support.wire_topics import coordinators_answer

_FORMAT_SECONDS_MAX = 300
_READY_SECONDS_MAX = 300
_CLUSTER_ID = "bXVzdGVyLXRlc3RzLTAwMA"  # 16 bytes in URL-safe base64, which is the form Kafka wants
_NODE_ID = 1
# Enough names that no one of 50 partitions goes without a group.
_GROUPS_ON_EVERY_PARTITION = [f"readiness-{number}" for number in range(500)]

SHIPPED_JVM = (
    *("-Xms1G", "-Xmx1G", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"),
    *("-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent"),
    *("-XX:MaxInlineLevel=15", "-Djava.awt.headless=true"),
)
"""What Kafka's own scripts start a broker with (kafka-server-start.sh, kafka-run-class.sh)."""

_CONFIGS: Mapping[str, str] = {
    "process.roles": "broker,controller",
    "node.id": str(_NODE_ID),
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "auto.create.topics.enable": "false",
    "num.partitions": "1",
    "default.replication.factor": "1",
    "min.insync.replicas": "1",
    "offsets.topic.num.partitions": "50",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "log.cleaner.enable": "false",
    # Many tests write records from 1970, which retention would delete.
    "log.retention.check.interval.ms": str(2**63 - 1),
    "log.initial.task.delay.ms": str(2**31 - 1),  # which the first check waits for, 30 s otherwise
    # One of each, so that requests are taken in the order in which they arrive, whatever their connection.
    "num.io.threads": "1",
    "num.network.threads": "1",
    "background.threads": "2",
}


class ApacheKafka:
    """A running Apache Kafka. `configs` are broker configs by Kafka's names, put over those above.

    `advertised_port` is told to clients in place of the one it listens on, for a proxy between the two. `jvm`
    are the virtual machine's options. `is_ready(host, port)` is asked until it is true, in place of the
    question whether all coordinators answer. `ports` are those of all nodes of a cluster by node id, of which
    `node_id` is this one: clients get the port that is named, controllers the next. `listeners` are more of
    them, by security protocol. `features` are levels to begin with, where they are not those of the release.
    """

    def __init__(
        self,
        configs: Mapping[str, str] | None = None,
        *,
        advertised_port: int | None = None,
        jvm: Sequence[str] = SMALL,
        is_ready: Callable[[str, int], bool] | None = None,
        node_id: int = _NODE_ID,
        ports: Mapping[int, int] | None = None,
        listeners: Sequence[str] = (),
        features: Mapping[str, int] | None = None,
    ) -> None:
        self._configs = {**_CONFIGS, **(configs or {}), "node.id": str(node_id)}
        self._node_id = node_id
        self._ports = ports
        self._advertised_port = advertised_port
        self._jvm = jvm
        self._is_ready = is_ready or _is_ready
        self._listeners = dict.fromkeys(listeners, 0)
        self._features = features or {}
        self._folder: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        self.host = "127.0.0.1"
        self.port = 0
        self.start_seconds = 0.0
        """From the call of the first JVM to ready."""
        self.launched_s = 0.0
        """When the broker's JVM was called last, by `time.monotonic`; the formatting was done by then."""

    @property
    def bootstrap(self) -> str:
        return f"{self.host}:{self.port}"

    def bootstrap_of(self, listener: str) -> str:
        """The address of one of the `listeners`."""
        return f"localhost:{self.port_of(listener)}"

    def port_of(self, listener: str) -> int:
        """The port of one of the `listeners`."""
        return self._listeners[listener]

    @property
    def pid(self) -> int:
        assert self._process is not None, "not started"
        return self._process.pid

    @property
    def folder(self) -> Path:
        """All that it writes."""
        assert self._folder is not None, "not started"
        return self._folder

    def __enter__(self) -> Self:
        classpath = broker_classpath()
        self._folder = Path(tempfile.mkdtemp(prefix="apache-kafka-"))
        try:
            began = time.monotonic()
            self._start(classpath, self._folder)
            self.start_seconds = time.monotonic() - began
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """End the process and remove its folder; to do so twice is harmless."""
        self._kill()
        if self._folder is not None:
            shutil.rmtree(self._folder)
            self._folder = None

    def restart(self) -> None:
        """Kill the process, and start it again on the same data and port; returns when it is ready."""
        self._kill()
        self._run(broker_classpath(), self.folder)

    def _kill(self) -> None:
        if self._guard is not None:
            self._guard.kill()
            self._guard.communicate()
            self._guard = None
        if self._process is not None:
            # Nothing it holds outlives it, so it is spared the seconds of an orderly shutdown.
            self._process.kill()
            self._process.wait()
            self._process = None

    def _start(self, classpath: str, folder: Path) -> None:
        ports = {self._node_id: free_ports(2)} if self._ports is None else self._ports
        self.port = ports[self._node_id]
        here = f"PLAINTEXT://{self.host}:{self.port}"
        if self._listeners:
            first = free_ports(len(self._listeners))
            self._listeners = {name: first + number for number, name in enumerate(self._listeners)}
        more = "".join(f",{name}://localhost:{port}" for name, port in self._listeners.items())
        addresses = {
            "listeners": f"{here},CONTROLLER://{self.host}:{self.port + 1}{more}",
            "advertised.listeners": f"PLAINTEXT://{self.host}:{self._advertised_port or self.port}{more}",
            "controller.quorum.voters": ",".join(
                f"{node_id}@{self.host}:{port + 1}" for node_id, port in ports.items()
            ),
            "log.dirs": str(folder / "logs"),
        }
        if self._listeners:
            protocols = ",".join(f"{name}:{name}" for name in ("PLAINTEXT", *self._listeners))
            addresses["listener.security.protocol.map"] = f"{protocols},CONTROLLER:PLAINTEXT"
        properties = folder / "server.properties"
        lines = [f"{name}={value}\n" for name, value in {**self._configs, **addresses}.items()]
        properties.write_text("".join(lines))
        output = folder / "output.txt"
        with output.open("wb") as out:
            formatting = [
                *java(classpath),
                "kafka.tools.StorageTool",
                "format",
                "-t",
                _CLUSTER_ID,
                "-c",
                str(properties),
                *(
                    part
                    for name, level in self._features.items()
                    for part in ("--feature", f"{name}={level}")
                ),
            ]
            formatted = subprocess.run(formatting, stdout=out, stderr=out, timeout=_FORMAT_SECONDS_MAX)
            if formatted.returncode != 0:
                raise RuntimeError(f"Apache Kafka refuses its configs:\n{output.read_text()}")
        self._run(classpath, folder)

    def _run(self, classpath: str, folder: Path) -> None:
        output = folder / "output.txt"
        command = [*java(classpath, options=self._jvm), "kafka.Kafka", str(folder / "server.properties")]
        self.launched_s = time.monotonic()
        with output.open("ab") as out:
            self._process = subprocess.Popen(command, stdout=out, stderr=out)
        # Reads a pipe that only we hold: when this process dies without a word, it cleans up in our place.
        self._guard = subprocess.Popen(
            ["sh", "-c", 'read _; kill -9 "$1"; rm -rf "$2"', "sh", str(self._process.pid), str(folder)],
            stdin=subprocess.PIPE,
        )
        self._wait_until_ready(output)

    def _wait_until_ready(self, output: Path) -> None:
        assert self._process is not None
        deadline = time.monotonic() + _READY_SECONDS_MAX
        while not self._is_ready(self.host, self.port):
            if self._process.poll() is not None:
                raise RuntimeError(f"Apache Kafka ended while starting:\n{output.read_text()}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"not ready after {_READY_SECONDS_MAX} s:\n{output.read_text()}")
            time.sleep(0.05)  # between two questions, not in place of one


def _is_ready(host: str, port: int) -> bool:
    """Whether Kafka listens, and the coordinators of all partitions of `__consumer_offsets` answer."""
    try:
        with WireConnection(host, port, "readiness") as connection:
            return coordinators_answer(connection, _GROUPS_ON_EVERY_PARTITION)
    except (OSError, ConnectionClosed):
        return False

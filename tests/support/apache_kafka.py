"""A real Apache Kafka for tests: one node in KRaft mode, on loopback, in a temporary folder.

    with ApacheKafka({"group.max.size": "2"}) as kafka:
        connect(kafka.bootstrap)

It is ready when the coordinators of all 50 `__consumer_offsets` partitions answer, so no test sees
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

from tests.support.cache import digest, filled_once
from tests.support.java import SMALL, java
from tests.support.kafka_artifacts import broker_classpath
from tests.support.ports import free_ports
from tests.support.wire_blocking import ConnectionClosed, WireConnection
from tests.support.wire_topics import coordinators_answer

_FORMAT_SECONDS_MAX = 300
_READY_SECONDS_MAX = 300
_CLUSTER_ID = "bXVzdGVyLXRlc3RzLTAwMA"  # 16 bytes in URL-safe base64, the form Kafka requires
_NODE_ID = 1
_LOGS = "logs"
_ARCHIVE = "classes.jsa"
# Enough names that each of the 50 partitions gets a group.
_GROUPS_ON_EVERY_PARTITION = [f"readiness-{number}" for number in range(500)]

SHIPPED_JVM = (
    *("-Xms1G", "-Xmx1G", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"),
    *("-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent"),
    *("-XX:MaxInlineLevel=15", "-Djava.awt.headless=true"),
)
"""The JVM options of Kafka's own start scripts (kafka-server-start.sh, kafka-run-class.sh)."""

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
    "log.initial.task.delay.ms": str(2**31 - 1),  # how long the first check waits; 30 s otherwise
    # One of each, so that requests are processed in order of arrival, whatever their connection.
    "num.io.threads": "1",
    "num.network.threads": "1",
    "background.threads": "2",
}


class ApacheKafka:
    """A running Apache Kafka. `configs` are broker configs under Kafka's names; they override those above.

    `advertised_port` is advertised to clients instead of the port it listens on, for a proxy between the two.
    `jvm` holds the JVM options. `is_ready(host, port)` is polled until it is true; by default it checks that
    all coordinators answer. `ports` maps the node ids of a cluster to ports, and `node_id` is this node:
    clients use the given port, controllers the next one. `listeners` are additional listeners, named by
    security protocol. `features` are initial feature levels where they differ from the release's defaults.
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
        """From its launch until ready."""
        self.launched_s = 0.0
        """When its JVM was last launched, by `time.monotonic`; the folder of logs was there by then."""

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
        """Holds everything it writes."""
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
        """End the process and remove its folder; calling it twice is harmless."""
        self._kill()
        if self._folder is not None:
            shutil.rmtree(self._folder)
            self._folder = None

    def restart(self) -> None:
        """Kill the process and start it again on the same data and port; returns when it is ready."""
        self._kill()
        self._run(broker_classpath(), self.folder)

    def _kill(self) -> None:
        if self._guard is not None:
            self._guard.kill()
            self._guard.communicate()
            self._guard = None
        if self._process is not None:
            # Nothing it holds outlives it, so skip the seconds that an orderly shutdown takes.
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
            "log.dirs": str(folder / _LOGS),
        }
        if self._listeners:
            protocols = ",".join(f"{name}:{name}" for name in ("PLAINTEXT", *self._listeners))
            addresses["listener.security.protocol.map"] = f"{protocols},CONTROLLER:PLAINTEXT"
        properties = folder / "server.properties"
        lines = [f"{name}={value}\n" for name, value in {**self._configs, **addresses}.items()]
        properties.write_text("".join(lines))
        shutil.copytree(_formatted(classpath, self._node_id, self._features), folder / _LOGS)
        self._run(classpath, folder)

    def _run(self, classpath: str, folder: Path) -> None:
        output = folder / "output.txt"
        archive = _with_archive(classpath) if self._jvm == SMALL else ()
        command = [*java(classpath, *archive, options=self._jvm), "kafka.Kafka"]
        command.append(str(folder / "server.properties"))
        self.launched_s = time.monotonic()
        with output.open("ab") as out:
            self._process = subprocess.Popen(command, stdout=out, stderr=out)
        # Reads a pipe that only we hold: if this process dies suddenly, the guard cleans up in our place.
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
            time.sleep(0.05)  # between two checks, not in place of one


def _with_archive(classpath: str) -> list[str]:
    """The JVM option for a broker whose classes come from an archive (class data sharing), already parsed:
    it starts with two thirds of the CPU time. The archive is made once per machine, by a broker that is ready
    and shuts down. A JVM that it does not fit loads the classes from the jars."""

    def fill(folder: Path) -> None:
        with ApacheKafka(jvm=(*SMALL, f"-XX:ArchiveClassesAtExit={folder / _ARCHIVE}")) as kafka:
            assert kafka._process is not None
            kafka._process.terminate()
            kafka._process.wait(_READY_SECONDS_MAX)

    program = Path(shutil.which("java") or "java").resolve()
    made_for = digest(classpath, str(program), str(program.stat().st_mtime_ns), *SMALL)
    archive = filled_once(f"kafka-classes/{made_for}", fill) / _ARCHIVE
    return [f"-XX:SharedArchiveFile={archive}"] if archive.exists() else []


def _formatted(classpath: str, node_id: int, features: Mapping[str, int]) -> Path:
    """A node's folder of logs, as Kafka's own tool formats it once per machine: node id and initial feature
    levels alone decide what is in it."""

    def fill(folder: Path) -> None:
        properties = folder / "server.properties"
        wanted = {
            "process.roles": "broker,controller",
            "node.id": str(node_id),
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": f"{node_id}@127.0.0.1:1",
            "listeners": "PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:1",
            "log.dirs": str(folder / _LOGS),
        }
        properties.write_text("".join(f"{name}={value}\n" for name, value in wanted.items()))
        command = [*java(classpath), "kafka.tools.StorageTool", "format"]
        command += ["-t", _CLUSTER_ID, "-c", str(properties)]
        for name, level in features.items():
            command += ["--feature", f"{name}={level}"]
        formatted = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=_FORMAT_SECONDS_MAX
        )
        if formatted.returncode != 0:
            raise RuntimeError(f"Apache Kafka formats no folder:\n{formatted.stdout}")

    contents = digest(classpath, _CLUSTER_ID, str(node_id), repr(sorted(features.items())))
    return filled_once(f"kafka-formatted/{contents}", fill) / _LOGS


def _is_ready(host: str, port: int) -> bool:
    """Whether Kafka listens and the coordinators of all `__consumer_offsets` partitions answer."""
    try:
        with WireConnection(host, port, "readiness") as connection:
            return coordinators_answer(connection, _GROUPS_ON_EVERY_PARTITION)
    except (OSError, ConnectionClosed):
        return False

"""Jars of Apache Kafka and of frameworks that use it, resolved by Maven and kept in the user's cache.

Maven knows where artifacts live and verifies its downloads, so no registry is named here. A set of jars is
resolved once per machine; later runs find its folder and do not start Maven.

To raise the version of Kafka: set `KAFKA_VERSION`, run `make kafka`, and judge every difference it reports.
If Maven misses an artifact of the new release that a broker does not need, add it to `_NOT_NEEDED_TO_RUN`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

from tests.support.cache import digest, filled_once

KAFKA_VERSION = "4.4.0"
# The newest release whose command line tools and file connectors are published.
KAFKA_TOOLS_VERSION = "4.3.1"

_KAFKA = "org.apache.kafka"
_DEPENDENCY_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1"
_MAVEN_SECONDS_MAX = 300
# Published later than the rest of 4.4.0, and used only by the command line tools.
_NOT_NEEDED_TO_RUN = (f"{_KAFKA}:kafka-tools-api",)


class Coordinates(NamedTuple):
    """Maven coordinates of a jar."""

    group: str
    name: str
    version: str


KAFKA_CLIENTS = Coordinates(_KAFKA, "kafka-clients", KAFKA_VERSION)
KAFKA_STREAMS = Coordinates(_KAFKA, "kafka-streams", KAFKA_VERSION)
KAFKA_CONNECT = (
    Coordinates(_KAFKA, "connect-runtime", KAFKA_TOOLS_VERSION),
    Coordinates(_KAFKA, "connect-file", KAFKA_TOOLS_VERSION),
)
# Jobs within one process, and what the connector expects from the cluster it runs in.
_FLINK = "org.apache.flink"
FLINK_VERSION = "2.2.1"
FLINK_CONNECTOR_VERSION = "5.0.0-2.2"
FLINK = (
    Coordinates(_FLINK, "flink-connector-kafka", FLINK_CONNECTOR_VERSION),
    *(
        Coordinates(_FLINK, name, FLINK_VERSION)
        for name in ("flink-connector-base", "flink-streaming-java", "flink-clients")
    ),
)
SPRING_KAFKA = Coordinates("org.springframework.kafka", "spring-kafka", "4.1.2")
KAFKA_BROKER = Coordinates(_KAFKA, "kafka_2.13", KAFKA_VERSION)
# Most tools are in the first, kafka-configs is in the second.
KAFKA_TOOLS = (
    Coordinates(_KAFKA, "kafka-tools", KAFKA_TOOLS_VERSION),
    Coordinates(_KAFKA, "kafka_2.13", KAFKA_TOOLS_VERSION),
)
# The tools' dependencies for Kafka Connect and its web server, unused by the tools for topics and groups.
_NOT_NEEDED_BY_TOOLS = (f"{_KAFKA}:connect-runtime", f"{_KAFKA}:connect-api", f"{_KAFKA}:connect-json")
KAFKA_BEFORE_4_VERSION = "3.9.1"
"""The last release line of clients that know only the transactions before KIP-890."""
# Kafka logs through slf4j-api 1.7 and brings no back end; this one prints to standard error.
_SLF4J_TO_STDERR = Coordinates("org.slf4j", "slf4j-simple", "1.7.36")
_SLF4J_2_TO_STDERR = Coordinates("org.slf4j", "slf4j-simple", "2.0.17")


def artifact(group: str, name: str, version: str) -> Path:
    """The jar with these Maven coordinates, without its dependencies."""
    return jars([Coordinates(group, name, version)])[0]


def jars(wanted: Sequence[Coordinates]) -> list[Path]:
    """The jars with these coordinates, without their dependencies."""
    folder = _resolve(wanted, exclusions=["*:*"])
    return [folder / f"{each.name}-{each.version}.jar" for each in wanted]


def broker_classpath() -> str:
    """The `java -cp` argument for running `kafka.Kafka` of `KAFKA_VERSION`."""
    return _wildcard(_resolve([KAFKA_BROKER, _SLF4J_TO_STDERR], exclusions=_NOT_NEEDED_TO_RUN))


def clients_classpath(version: str = KAFKA_VERSION) -> str:
    """The `java -cp` argument for running a program that uses Kafka's own Java clients."""
    return _wildcard(_resolve([Coordinates(_KAFKA, "kafka-clients", version), _SLF4J_TO_STDERR]))


def streams_classpath() -> str:
    """The `java -cp` argument for running a Kafka Streams program."""
    return _wildcard(_resolve([KAFKA_STREAMS, _SLF4J_TO_STDERR]))


def connect_classpath() -> str:
    """The `java -cp` argument for running a Kafka Connect worker with file connectors, of
    `KAFKA_TOOLS_VERSION`."""
    return _wildcard(_resolve([*KAFKA_CONNECT, _SLF4J_TO_STDERR]))


def flink_classpath() -> str:
    """The `java -cp` argument for running a Flink job that reads and writes topics, with the Java client that
    its connector brings."""
    return _wildcard(_resolve([*FLINK, _SLF4J_TO_STDERR]))


def spring_classpath() -> str:
    """The `java -cp` argument for running a program of Spring for Apache Kafka, with its Java client."""
    return _wildcard(_resolve([SPRING_KAFKA, _SLF4J_2_TO_STDERR]))


def tools_classpath() -> str:
    """The `java -cp` argument for running Kafka's command line tools, of `KAFKA_TOOLS_VERSION`."""
    return _wildcard(_resolve([*KAFKA_TOOLS, _SLF4J_TO_STDERR], exclusions=_NOT_NEEDED_BY_TOOLS))


def _wildcard(folder: Path) -> str:
    return f"{folder}{os.sep}*"


def _resolve(wanted: Sequence[Coordinates], *, exclusions: Sequence[str] = ()) -> Path:
    """The folder with the `wanted` jars and their runtime dependencies, minus `exclusions` ("group:name")."""
    pom = _pom(wanted, exclusions)

    def fill(folder: Path) -> None:
        (folder / "pom.xml").write_text(pom)
        _copy_dependencies(folder / "pom.xml", folder)

    return filled_once(f"jars/{wanted[0].name}-{wanted[0].version}-{digest(pom)}", fill)


def _copy_dependencies(pom: Path, jars: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise RuntimeError("these tests need Maven (mvn) and Java 17 or later on the PATH")
    goal = [f"{_DEPENDENCY_PLUGIN}:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={jars}"]
    command = [maven, "--batch-mode", "--quiet", "--file", str(pom), *goal]
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=_MAVEN_SECONDS_MAX
        )
    except subprocess.TimeoutExpired as expired:
        raise RuntimeError(f"Maven took more than {_MAVEN_SECONDS_MAX} s: {expired.output}") from expired
    if done.returncode != 0:
        raise RuntimeError(f"Maven could not resolve jars:\n{done.stdout}")


def _pom(wanted: Sequence[Coordinates], exclusions: Sequence[str]) -> str:
    excluded = "".join(
        f"<exclusion>{_elements(groupId=group, artifactId=name)}</exclusion>"
        for group, _, name in (exclusion.partition(":") for exclusion in exclusions)
    )
    dependencies = "".join(
        f"<dependency>{_elements(groupId=group, artifactId=name, version=version)}"
        f"<exclusions>{excluded}</exclusions></dependency>"
        for group, name, version in wanted
    )
    itself = _elements(modelVersion="4.0.0", groupId="muster", artifactId="tests", version="1")
    return f"<project>{itself}<dependencies>{dependencies}</dependencies></project>"


def _elements(**texts: str) -> str:
    return "".join(f"<{tag}>{escape(text)}</{tag}>" for tag, text in texts.items())

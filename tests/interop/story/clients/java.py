"""The clients that run on a JVM: Kafka's own Java client, and Kafka's console tools."""

from __future__ import annotations

import os
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.interop.programs import wrapped
from tests.interop.story.clients.base import PROGRAMS, StockClient
from tests.interop.story.clients.program import ALL_CODECS, ProgramClient, need, run
from tests.support.cache import digest, filled_once
from tests.support.java import java
from tests.support.kafka_artifacts import clients_classpath, tools_classpath

HINT: Final = "install a JDK of Java 17 or later, and Maven"


@dataclass(frozen=True)
class JavaClient(StockClient):
    """Kafka's Java client with one of its assignors; the programs are compiled once per machine."""

    assignor: str
    """Its class name."""

    def version(self) -> str:
        return _kafka_version(clients_classpath())

    def prepare(self) -> None:
        need("java", "javac", "mvn", hint=HINT)
        self.classpath()

    def produce(self, bootstrap: str, topic: str, codec: str, first: int, count: int) -> list[str]:
        return self._program("Produce", bootstrap, topic, codec, str(first), str(count))

    def member(
        self, bootstrap: str, group: str, topic: str, session_timeout_ms: int, *configs: str
    ) -> list[str]:
        told = (bootstrap, group, topic, str(session_timeout_ms), *configs)
        return self._program("Member", self.assignor, *told)

    def admin(self, bootstrap: str, prefix: str) -> list[str] | None:
        return self._program("AdminCalls", bootstrap, prefix)

    def _program(self, name: str, *arguments: str) -> list[str]:
        return [*java(self.classpath()), name, *arguments]

    def classpath(self) -> str:
        """Includes its programs."""
        return compiled(sorted((PROGRAMS / "java").glob("*.java")), clients_classpath())


@dataclass(frozen=True)
class ConsoleTools(ProgramClient):
    """The tools in Kafka's bin folder, behind a wrapper that converts their output into the story's lines."""

    def version(self) -> str:
        return _kafka_version(tools_classpath())

    def prepare(self) -> None:
        need("java", "javac", "mvn", hint=HINT)
        self.classpath()

    def command(self) -> list[str]:
        return [sys.executable, "-m", f"{wrapped.__name__}.console", *java(self.classpath()), "--"]

    def classpath(self) -> str:
        """Includes the class `Tools`, which runs them."""
        return compiled(
            [PROGRAMS / "wrapped" / "Tools.java", PROGRAMS / "java" / "Lines.java"], tools_classpath()
        )


def compiled(sources: Sequence[Path], classpath: str) -> str:
    """`classpath`, preceded by these sources in compiled form."""
    contents = digest(classpath, *(source.read_bytes() for source in sources))

    def compile_into(folder: Path) -> None:
        run(["javac", "-nowarn", "-d", str(folder), "-cp", classpath, *map(str, sources)])

    return f"{filled_once(f'java/{contents}', compile_into)}{os.pathsep}{classpath}"


def _kafka_version(classpath: str) -> str:
    """The version in the kafka-clients jar there."""
    (jar,) = Path(classpath).parent.glob("kafka-clients-*.jar")
    with zipfile.ZipFile(jar) as archive:
        lines = archive.read("kafka/kafka-version.properties").decode().splitlines()
    (version,) = (line.removeprefix("version=") for line in lines if line.startswith("version="))
    return version


JAVA: Final = JavaClient("java-client", ALL_CODECS, "RangeAssignor")
JAVA_COOPERATIVE: Final = JavaClient("java-client-cooperative", ALL_CODECS, "CooperativeStickyAssignor")
# The two doors most used, of those that the Java client behind these tools supports.
CONSOLE: Final = ConsoleTools(
    "kafka-console-tools", ALL_CODECS, doors=("mTLS", "SCRAM-SHA-256", "SCRAM-SHA-512")
)

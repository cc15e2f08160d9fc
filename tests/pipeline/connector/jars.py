"""Spark's own Kafka connector, for the class path of a session.

The jars come from Maven, like those of Apache Kafka. One part of the connector is not available there: the
few classes that fetch delegation tokens. Brokers on loopback need no tokens, so classes of ours without
tokens, below no_tokens/, replace them; none of these reads or writes records.

To raise the version: set CONNECTOR_VERSION to the newest published one, the other versions to those in its
parent POM, and run `make test-spark`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from tests.support.cache import digest, filled_once
from tests.support.kafka_artifacts import Coordinates, jars

CONNECTOR_VERSION: Final = "4.2.0"
"""It also runs on the next Spark version, for which no connector is published yet."""

_WANTED: Final = (
    Coordinates("org.apache.spark", "spark-sql-kafka-0-10_2.13", CONNECTOR_VERSION),
    Coordinates("org.apache.kafka", "kafka-clients", "3.9.2"),
    Coordinates("org.apache.commons", "commons-pool2", "2.13.1"),
)
_NO_TOKENS: Final = Path(__file__).with_name("no_tokens")
_COMPILE_SECONDS_MAX: Final = 120


def connector_jars() -> list[Path]:
    """The jars for the setting `spark.jars`; fetched and compiled on their first use on a machine."""
    return [*jars(_WANTED), _without_tokens()]


def _without_tokens() -> Path:
    sources = sorted(_NO_TOKENS.glob("*.java"))

    def fill(folder: Path) -> None:
        classes = folder / "classes"
        javac, jar = _tool("javac"), _tool("jar")
        on_path = f"{_spark_jars()}{os.sep}*"
        _run([javac, "-nowarn", "--release", "17", "-cp", on_path, "-d", str(classes), *map(str, sources)])
        _run([jar, "--create", "--file", str(folder / "no-tokens.jar"), "-C", str(classes), "."])

    named = digest(*(part for each in sources for part in (each.name, each.read_bytes())))
    return filled_once(f"jars/no-tokens-{named}", fill) / "no-tokens.jar"


def _spark_jars() -> Path:
    found = find_spec("pyspark")
    assert found is not None, "pyspark is not installed"
    assert found.origin is not None
    return Path(found.origin).parent / "jars"


def _tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise RuntimeError(f"these tests need a JDK of Java 17 or later: there is no {name} on the PATH")
    return found


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=_COMPILE_SECONDS_MAX
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[:1])} failed:\n{done.stdout}")

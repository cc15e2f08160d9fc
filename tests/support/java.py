"""How the tests start their JVMs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

_QUICK: Final = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:+UnlockDiagnosticVMOptions",
    "-XX:-BytecodeVerificationRemote",
)
"""For a JVM that lives for seconds or minutes, where a quick start matters more than speed: one GC thread,
only the first compiler, and no bytecode verification of released classes."""
SMALL: Final = (*_QUICK, "-Xms128m", "-Xmx512m")
"""The options for a client, a tool or a broker."""
SPARK: Final = " ".join((*_QUICK, "-XX:ReservedCodeCacheSize=240m"))
"""The options for Spark. TieredStopAtLevel=1 leaves 48 MB for compiled code, which making the tables twice
fills. A JVM without room drops code and recompiles it for the rest of its life."""


def java(classpath: str, *more: str, options: Sequence[str] = SMALL, log: str = "warn") -> list[str]:
    """The command of a JVM up to its class, with `more` options. `log` is the level at which Kafka's classes
    log to standard error."""
    level = f"-Dorg.slf4j.simpleLogger.defaultLogLevel={log}"
    return ["java", *options, level, *more, "-cp", classpath]

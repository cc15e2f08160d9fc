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
"""For a JVM that lives for seconds or minutes, where a quick start counts for more than speed: one thread
collects, only the first compiler compiles, and the bytecode of released classes is not verified."""
SMALL: Final = (*_QUICK, "-Xms128m", "-Xmx512m")
"""The options of a client, a tool or a broker."""
SPARK: Final = " ".join((*_QUICK, "-XX:ReservedCodeCacheSize=240m"))
"""Those of Spark. TieredStopAtLevel=1 leaves 48 MB for compiled code, as much as making the tables twice
takes. A JVM without room drops code and compiles it again for the rest of its life."""


def java(classpath: str, *more: str, options: Sequence[str] = SMALL, log: str = "warn") -> list[str]:
    """The command of a JVM up to its class, with `more` options. `log` is the level of what Kafka's classes
    write to the standard error."""
    level = f"-Dorg.slf4j.simpleLogger.defaultLogLevel={log}"
    return ["java", *options, level, *more, "-cp", classpath]

"""How every Spark of the tests starts its JVMs."""

from __future__ import annotations

from typing import Final

QUICK: Final = " ".join(
    (
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        # TieredStopAtLevel=1 leaves 48 MB for compiled code, as much as making the tables twice takes. A JVM
        # without room drops code and compiles it again for the rest of its life.
        "-XX:ReservedCodeCacheSize=240m",
        "-XX:+UnlockDiagnosticVMOptions",
        "-XX:-BytecodeVerificationRemote",
    )
)
"""Options for a quick start: one thread collects, only the first compiler compiles, and the bytecode of
Spark's classes is not verified."""

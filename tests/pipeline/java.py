"""What lets a JVM begin sooner, for every Spark that the tests start."""

from __future__ import annotations

from typing import Final

QUICK: Final = (
    "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
"""One thread collects, only the first compiler compiles, and Spark's own classes are not verified: each JVM
ends before it could be fast."""

"""A store's default clock, apart from the contract, which code without a clock imports."""

from __future__ import annotations

import time


def monotonic_ms() -> int:
    """Milliseconds that the wall clock's steps leave alone: it is set back and forth, and no term may follow
    it.

    One source for every store object of a process, since they compare their times with each other's; it means
    nothing to another process.
    """
    return time.monotonic_ns() // 1_000_000

"""Real time, which goes on while a test stands still.

freezegun replaces the functions of `time`, in that module and in all that have imported them. Brokers and
clients of the same process measure leases, sessions and timeouts with those that came first. time-machine
changes the functions themselves, and so these, too: `time` and `time_ns`; in 2.13 to 2.19 also `monotonic`.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop


class RealTime:
    """The functions of `time` as they were at the import; in a class, where nobody replaces them."""

    monotonic = staticmethod(time.monotonic)
    monotonic_ns = staticmethod(time.monotonic_ns)
    perf_counter = staticmethod(time.perf_counter)
    time_ns = staticmethod(time.time_ns)
    time = staticmethod(time.time)


def keep_real(loop: AbstractEventLoop) -> None:
    """Keep a loop's own time real. asyncio's loops ask `time.monotonic`; others, such as uvloop's, do not."""
    from asyncio import BaseEventLoop

    if isinstance(loop, BaseEventLoop):
        loop.time = RealTime.monotonic  # type: ignore[method-assign]

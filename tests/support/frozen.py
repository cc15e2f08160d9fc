"""Time that stands still in the whole process, as under freezegun: no module can read `time` any more."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import BuiltinFunctionType
from typing import Any, Final
from unittest import mock

AT_S: Final = 1_704_067_200
"""2024-01-01, which freezegun's `monotonic` returns, too."""
_CLOCKS: Final = ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns")
_SPARED: Final = ("threading", "queue", "multiprocessing", "_pytest", "execnet", "xdist", "pytest")


@contextmanager
def frozen() -> Iterator[None]:
    """asyncio's loops stand still with it."""
    stopped = {
        getattr(time, name): partial(int, AT_S * 10**9 if name.endswith("_ns") else AT_S) for name in _CLOCKS
    }
    patched: list[Any] = []
    try:
        for module in list(sys.modules.values()):
            if getattr(module, "__name__", "").startswith(_SPARED):
                continue
            for name, value in list(getattr(module, "__dict__", {}).items()):
                if isinstance(value, BuiltinFunctionType) and value in stopped:
                    patched.append(mock.patch.object(module, name, stopped[value]))
                    patched[-1].start()
        yield
    finally:
        for each in patched:
            each.stop()

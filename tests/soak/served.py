"""`muster serve` that reports what it holds: `python -m tests.soak.served serve ...`.

It is the command itself with a probe on its event loop. What it remembers of removed groups has bounds that
hours of traffic do not reach (some 100 MB); here the bounds are small, so growth up to a bound is over before
anything is judged, and unbounded growth shows. It answers each line on standard input with a line of JSON on
standard output: "facts" for the current figures; "collected" for the same after a garbage collection, with
the most frequent types. When its input ends, its parent is gone, and it stops as after SIGTERM.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import sys
from collections import Counter
from functools import lru_cache
from typing import Any, Final

from muster.coordinator import cli
from muster.coordinator.runtime.ring import Journal
from muster.coordinator.server import brokers as brokers_of_process
from muster.coordinator.web.tallies import Tallies
from tests.soak.lag import LoopLag
from tests.support.held import held

_Brokers: Final = brokers_of_process.Brokers
_JOURNAL_WEIGHT_MAX: Final = 2_000
_TALLIED_GROUPS_MAX: Final = 20
_CACHED_MAX: Final = 32
_TYPES_TOLD: Final = 60


class Watched(_Brokers):
    """Brokers with the probe on their event loop."""

    async def start(self) -> None:
        await super().start()
        lag = LoopLag()
        lag.start()
        await asyncio.get_running_loop().connect_read_pipe(lambda: _Probe(self, lag), sys.stdin)


class _Probe(asyncio.Protocol):
    def __init__(self, brokers: _Brokers, lag: LoopLag) -> None:
        self._brokers = brokers
        self._lag = lag

    def data_received(self, data: bytes) -> None:
        for line in data.split():
            # The probe's own work does not count as lag of the broker.
            self._lag.pause()
            facts = self._collected() if line == b"collected" else self._facts()
            print(json.dumps(facts), flush=True)
            self._lag.start()

    def connection_lost(self, error: Exception | None) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    def _facts(self) -> dict[str, Any]:
        return {
            **held(self._brokers.running),
            "objects": len(gc.get_objects()),
            "journals": [repr(broker.journal) for broker in self._brokers.running],
            "lag": self._lag.take(),
        }

    def _collected(self) -> dict[str, Any]:
        gc.collect()
        types = Counter(f"{type(each).__module__}.{type(each).__qualname__}" for each in gc.get_objects())
        return {**self._facts(), "types": dict(types.most_common(_TYPES_TOLD))}


def _bound_caches() -> None:
    """Shrink every `lru_cache` of muster's modules, so that it is full before anything is judged."""
    bounded: dict[Any, Any] = {}
    for module in [each for name, each in sys.modules.items() if name.partition(".")[0] == "muster"]:
        for name, found in vars(module).copy().items():
            if isinstance(found, type(_any_cached)) and (found.cache_info().maxsize or 0) > _CACHED_MAX:
                if found not in bounded:
                    bounded[found] = lru_cache(maxsize=_CACHED_MAX)(found.__wrapped__)
                setattr(module, name, bounded[found])


@lru_cache
def _any_cached() -> None:
    """A sample `lru_cache`, for its type."""


def main() -> int:
    _bound_caches()
    brokers_of_process.Brokers = Watched  # type: ignore[misc]
    weight_max: Any = Journal.__init__.__kwdefaults__
    weight_max["weight_max"] = _JOURNAL_WEIGHT_MAX
    Tallies.__init__.__defaults__ = (_TALLIED_GROUPS_MAX,)
    return cli.main()


if __name__ == "__main__":
    sys.exit(main())

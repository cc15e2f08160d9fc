"""Runs, one after the other or side by side in separate processes.

A module apart from the program: what another process calls must not live in `__main__`, which that process
would look for in its own.
"""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from itertools import islice
from multiprocessing import get_context
from typing import Final

from tests.simulator.simulation import STEPS_DEFAULT, Outcome, simulate

_UNDER_WAY: Final = 4  # runs queued for each process


@dataclass(frozen=True, slots=True)
class Runs:
    """How each run is made, apart from its seed."""

    steps: int = STEPS_DEFAULT
    """Acts of harm."""
    bug: str | None = None
    """The planted bug."""
    traced: bool = False
    """Whether its outcome lists everything that happened."""

    def one(self, seed: int) -> Outcome:
        return simulate(seed, self.steps, bug=self.bug, logged=self.traced)

    def outcomes(
        self, seeds: Iterable[int], *, processes: int = 1, until_s: float | None = None
    ) -> Iterator[Outcome]:
        """Yields each outcome when it is done; no run begins after `until_s` on the monotonic clock."""
        if processes > 1:
            yield from self._side_by_side(iter(seeds), processes, until_s)
            return
        for seed in seeds:
            if _is_over(until_s):
                return
            yield self.one(seed)

    def _side_by_side(self, seeds: Iterator[int], processes: int, until_s: float | None) -> Iterator[Outcome]:
        with ProcessPoolExecutor(processes, mp_context=get_context("spawn"), initializer=_begin) as pool:
            under_way: set[Future[Outcome]] = set()
            while True:
                if not _is_over(until_s):
                    for seed in islice(seeds, _UNDER_WAY * processes - len(under_way)):
                        under_way.add(pool.submit(self.one, seed))
                if not under_way:
                    return
                done, under_way = wait(under_way, return_when=FIRST_COMPLETED)
                for each in done:
                    yield each.result()


def hush() -> None:
    """Silence asyncio's own complaints; what brokers log goes into the trace, if anywhere."""
    logging.disable(logging.CRITICAL)


def _begin() -> None:
    """Initialise a new process: an interrupt from the terminal is left to the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    hush()


def _is_over(until_s: float | None) -> bool:
    return until_s is not None and time.monotonic() >= until_s

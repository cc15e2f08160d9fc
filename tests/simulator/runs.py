"""Runs one after the other, or side by side in processes of their own.

A module apart from the program: what another process is to call must not lie in `__main__`, which that
process would look for in its own.
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

_UNDER_WAY: Final = 4  # runs that each process has before it


@dataclass(frozen=True, slots=True)
class Runs:
    """How each run is made, but for its seed."""

    steps: int = STEPS_DEFAULT
    """Acts of harm."""
    bug: str | None = None
    """The one that is planted."""
    traced: bool = False
    """Whether its outcome tells everything that happened."""

    def one(self, seed: int) -> Outcome:
        return simulate(seed, self.steps, bug=self.bug, logged=self.traced)

    def outcomes(
        self, seeds: Iterable[int], *, processes: int = 1, until_s: float | None = None
    ) -> Iterator[Outcome]:
        """Each as it is done; no run begins after `until_s`, by the monotonic clock."""
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
    """Leave out asyncio's own complaints; what the brokers log goes into the trace, if anywhere."""
    logging.disable(logging.CRITICAL)


def _begin() -> None:
    """In a new process: an end that a terminal asks for is the parent's to make."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    hush()


def _is_over(until_s: float | None) -> bool:
    return until_s is not None and time.monotonic() >= until_s

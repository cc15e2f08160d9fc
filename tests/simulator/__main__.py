"""`python -m tests.simulator`: one run of the simulator, or as many as fit into a given time."""

from __future__ import annotations

import argparse
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from typing import Final

from tests.simulator import coverage
from tests.simulator.bugs import BUGS
from tests.simulator.runs import Runs, hush
from tests.simulator.simulation import STEPS_DEFAULT

_TOLD_EVERY: Final = 1_000  # runs, in a long and quiet series


def main(arguments: Sequence[str]) -> int:
    options = _parser().parse_args(arguments)
    hush()
    first = random.randrange(2**32) if options.seed is None else options.seed
    several = options.bugs_within or options.for_seconds or options.seeds > 1
    if options.seed is None and several:
        print(f"from seed {first}", flush=True)  # now: a series that hangs or is killed tells nothing later
    if options.bugs_within:
        return _hunt(first, options.bugs_within)
    seeds = count(first) if options.for_seconds else range(first, first + options.seeds)
    until_s = time.monotonic() + options.for_seconds if options.for_seconds else None
    runs, broken, seen = 0, 0, Counter[str]()
    series = Runs(options.steps, options.bug, options.trace)
    with suppress(KeyboardInterrupt):  # whatever was seen until then is reported
        for outcome in series.outcomes(seeds, processes=options.processes, until_s=until_s):
            runs += 1
            broken += outcome.violation is not None
            seen.update(outcome.seen)
            if options.trace:
                print("\n".join(outcome.trace))
            if not options.quiet or outcome.violation is not None:
                print(outcome, flush=True)
            if options.quiet and runs % _TOLD_EVERY == 0:
                print(f"{runs} runs from seed {first}, {broken} of them broken so far", flush=True)
    if several:
        print(coverage.report(seen, runs))
        print(f"{runs} runs from seed {first}, {broken} of them broken")
    unseen = coverage.unseen(seen) if options.covered else []
    if unseen:
        print(f"never seen: {', '.join(unseen)}")
    if options.bug and not broken:
        print(f"{options.bug} was not caught")
    return 1 if broken or unseen else 0


def _hunt(first: int, seeds_max: int) -> int:
    """Plant each bug in run after run until it is caught; returns 1 if any is not."""
    missed = 0
    for bug in BUGS:
        runs = Runs(bug=bug).outcomes(range(first, first + seeds_max))
        caught = next((outcome for outcome in runs if outcome.violation is not None), None)
        if caught is None:
            missed += 1
            print(f"{bug}: not caught in {seeds_max} runs from seed {first}", flush=True)
        else:
            print(f"{bug}: caught in run {caught.seed - first + 1}: {caught.replay}", flush=True)
    return 1 if missed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulator", description="simulate brokers and consumers"
    )
    parser.add_argument("--seed", type=int, help="decides everything (default: a new one)")
    how_many = parser.add_mutually_exclusive_group()
    how_many.add_argument(
        "--seeds", type=int, default=1, help="how many runs, with seeds counting up (default 1)"
    )
    how_many.add_argument(
        "--for-seconds", type=float, help="as many runs as begin within that time, with seeds counting up"
    )
    parser.add_argument("--processes", type=int, default=1, help="how many run side by side (default 1)")
    parser.add_argument(
        "--steps", type=int, default=STEPS_DEFAULT, help=f"acts of harm (default {STEPS_DEFAULT})"
    )
    parser.add_argument("--bug", choices=sorted(BUGS), help="plant a bug; the run should then fail")
    parser.add_argument(
        "--bugs-within", type=int, help="plant each bug, in so many runs at most, until it is caught"
    )
    parser.add_argument("--trace", action="store_true", help="print everything that happened in virtual time")
    parser.add_argument("--quiet", action="store_true", help="print only runs that broke a promise")
    parser.add_argument(
        "--covered", action="store_true", help="fail when a situation was seen in none of the runs"
    )
    return parser


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main(sys.argv[1:]))

"""`python -m tests.simulator`: one run of the simulator, or several."""

from __future__ import annotations

import argparse
import logging
import random
import sys
from collections.abc import Sequence

from tests.simulator.bugs import BUGS
from tests.simulator.simulation import STEPS_DEFAULT, simulate


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulator", description="simulate brokers and consumers"
    )
    parser.add_argument("--seed", type=int, help="decides everything (default: a new one)")
    parser.add_argument(
        "--seeds", type=int, default=1, help="how many runs, with seeds counting up (default 1)"
    )
    parser.add_argument(
        "--steps", type=int, default=STEPS_DEFAULT, help=f"acts of harm (default {STEPS_DEFAULT})"
    )
    parser.add_argument("--bug", choices=sorted(BUGS), help="plant a bug; the run should then fail")
    parser.add_argument("--trace", action="store_true", help="print everything that happened in virtual time")
    options = parser.parse_args(arguments)
    if not options.trace:
        logging.disable(logging.CRITICAL)
    first = random.randrange(2**32) if options.seed is None else options.seed
    broken = 0
    for seed in range(first, first + options.seeds):
        outcome = simulate(seed, options.steps, bug=options.bug)
        if options.trace:
            print("\n".join(outcome.trace))
        print(outcome, flush=True)
        broken += outcome.violation is not None
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Fuzzing: `python -m tests.fuzz --help`."""

from __future__ import annotations

import argparse
import os
import random
import sys
from typing import Final

INPUTS: Final = 5_000_000
CONNECTIONS: Final = 10_000
REACH_INPUTS: Final = 100_000


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--inputs", type=int, default=INPUTS, help="decoded in this process's children")
    parser.add_argument("--processes", type=int, default=min(os.cpu_count() or 1, 4))
    parser.add_argument("--connections", type=int, default=CONNECTIONS, help="to a live broker")
    parser.add_argument(
        "--live-minutes", type=float, help="nothing but a live broker, so many minutes of the processor"
    )
    parser.add_argument("--input", type=int, help="repeat this one input alone")
    parser.add_argument("--connection", type=int, help="repeat this one connection alone")
    parser.add_argument("--reach", action="store_true", help="print which branches the inputs reach")
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    if given.reach:
        from tests.fuzz.reach import print_reach

        print_reach(given.seed, given.inputs if given.inputs != INPUTS else REACH_INPUTS)
        return 0
    from tests.fuzz import live, run

    try:
        if given.input is not None:
            from tests.fuzz.inputs import Inputs

            kind, accepted = run.try_one(Inputs(given.seed), given.input)
            print(f"input {given.input}, {kind}: {'accepted' if accepted else 'refused'}")
            return 0
        if given.live_minutes is not None:
            from tests.fuzz import campaign

            print(campaign.run(given.seed, given.live_minutes))
            return 0
        if given.connection is not None:
            print(live.run(given.seed, 1, first=given.connection))
            return 0
        if given.connections:
            print(live.run(given.seed, given.connections), flush=True)
        if given.inputs:
            result = run.run(given.seed, given.inputs, given.processes)
            print(run.table(result.tally))
            print(
                f"{given.inputs:,} inputs in {result.seconds:.0f} s: each a message or DecodeError; "
                f"at most {result.memory_bytes >> 20} MiB resident, "
                f"limit {run.MEMORY_BYTES >> 20} MiB above the corpus"
            )
            run.check_reach(result.tally)
    except run.Failed as failed:
        print(f"FAILED: {failed}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

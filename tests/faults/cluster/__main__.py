"""`python -m tests.faults.cluster --rounds 20`: drills as often as asked, all of them or some."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from pathlib import Path

from tests.faults.batches import Violation
from tests.faults.cluster.drill import campaign
from tests.faults.cluster.faults import FAULTS


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.cluster", description=__doc__)
    parser.add_argument("--rounds", type=int, default=20, help="of each fault")
    parser.add_argument("--seed", type=int, default=random.randrange(2**32), help="replays the plan of a run")
    parser.add_argument("--fault", choices=sorted(FAULTS), action="append", help="only this one (repeatable)")
    given = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="muster-drills-"))
    print(f"seed {given.seed}; logs of a failure stay in {directory}", flush=True)
    try:
        figures = campaign(
            given.seed,
            given.rounds,
            directory,
            lambda said: print(said, flush=True),
            given.fault or tuple(FAULTS),
        )
    except Violation as found:
        sys.exit(str(found))
    directory.rmdir()
    print(figures)


if __name__ == "__main__":
    main()

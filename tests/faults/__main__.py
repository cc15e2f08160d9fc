"""`python -m tests.faults --kills 500`: kill -9 under load, as often as asked."""

from __future__ import annotations

import argparse
import random
import shutil
import tempfile
from pathlib import Path

from tests.faults.kills import campaign


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32), help="replays the plan of a run")
    given = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="muster-kills-"))
    print(f"seed {given.seed}; data and logs of a failure stay in {directory}", flush=True)
    figures = campaign(given.seed, given.kills, directory, lambda said: print(said, flush=True))
    shutil.rmtree(directory)
    print(figures)


if __name__ == "__main__":
    main()

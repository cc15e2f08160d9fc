"""Soak: `python -m tests.soak --hours 2`. SIGTERM or SIGINT ends it early, with a verdict."""

from __future__ import annotations

import argparse
import asyncio
import random
import signal
import sys
from pathlib import Path

from tests.soak.report import report
from tests.soak.run import Outcome, Soak


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--hours", type=float, default=2.0, help="a fraction is fine")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--brokers", type=int, default=1, help="in the one process")
    parser.add_argument("--lanes", type=int, default=3, help="topics with all their clients at a time")
    parser.add_argument("--samples", type=Path, default=Path("soak-samples.jsonl"), help="a line each")
    given = parser.parse_args()
    print(f"seed {given.seed}, samples in {given.samples}", flush=True)
    given.samples.unlink(missing_ok=True)

    async def soak() -> Outcome:
        run = Soak(
            given.hours * 3600,
            given.seed,
            brokers=given.brokers,
            lanes=given.lanes,
            samples=given.samples,
        )
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, run.stop)
        return await run.run()

    outcome = asyncio.run(soak())
    print(report(outcome))
    return 0 if outcome.good else 1


if __name__ == "__main__":
    sys.exit(main())

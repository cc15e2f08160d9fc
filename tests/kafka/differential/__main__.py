"""`python -m tests.kafka.differential`: see the package."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time

from tests.kafka.differential.campaign import Campaign
from tests.kafka.differential.servers import servers


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.kafka.differential", description=__doc__)
    parser.add_argument("--sequences", type=int, default=1000, help="how many without pauses")
    parser.add_argument("--timed", type=int, default=200, help="how many with timeouts that run out")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000_000, help="the first one's")
    parser.add_argument("--at-once", type=int, default=16, help="how many are played side by side")
    parser.add_argument("--kafka", type=int, metavar="PORT", help="where one like that of `servers` runs")
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", flush=True)
    with servers(arguments.kafka) as (kafka, muster):
        campaign = Campaign(arguments.seed, arguments.sequences, arguments.timed, arguments.at_once)
        asyncio.run(campaign.run(kafka, muster))
    print(campaign.summary())
    return 1 if campaign.findings else 0


if __name__ == "__main__":
    sys.exit(main())

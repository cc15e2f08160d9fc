"""`python -m tests.kafka.differential`: see the package."""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.compiled.environment import server_python
from tests.kafka.compared import Compared
from tests.kafka.differential import proof
from tests.kafka.differential.campaign import Campaign, Kind
from tests.kafka.differential.deliberate import RULES
from tests.kafka.differential.servers import builds, servers


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.kafka.differential", description=__doc__)
    parser.add_argument("--sequences", type=int, default=2000, help="how many of each kind without pauses")
    parser.add_argument("--timed", type=int, default=200, help="how many with timeouts that run out")
    parser.add_argument(
        "--kind", type=Kind, choices=list(Kind), help="of groups; both kinds if none is named"
    )
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000_000, help="the first one's")
    parser.add_argument("--at-once", type=int, default=12, help="how many are played side by side")
    parser.add_argument("--minutes", type=float, default=60.0, help="after which none is begun")
    parser.add_argument("--kafka", type=int, metavar="PORT", help="where one like that of `servers` runs")
    parser.add_argument(
        "--compiled",
        action="store_true",
        help="with the compiled muster of the wheel in dist/ in Apache Kafka's place: nothing may differ",
    )
    parser.add_argument(
        "--write", action="store_true", help=f"tell the stories, too, and write {proof.PAGE.name}"
    )
    parser.add_argument(
        "--counted", type=Path, help="with --write: what `pytest --counted-to` wrote, in their place"
    )
    arguments = parser.parse_args()
    if arguments.compiled and (arguments.kafka or arguments.write):
        parser.error("--compiled asks no Apache Kafka: leave out --kafka and --write")
    try:
        compiled = server_python() if arguments.compiled else None
    except RuntimeError as missing:
        parser.error(str(missing))
    print(f"seed {arguments.seed}", flush=True)
    wanted = (arguments.seed, arguments.sequences, arguments.timed, arguments.at_once)
    rules = () if compiled else RULES
    campaigns = [
        Campaign(kind, *wanted, minutes_max=arguments.minutes, rules=rules)
        for kind in Kind
        if arguments.kind in (None, kind)
    ]
    for campaign in campaigns:
        both = builds(compiled) if compiled else servers(arguments.kafka)
        with both as (other, muster):
            asyncio.run(campaign.run(other, muster))
        print(campaign.summary(), flush=True)
    if arguments.write:
        proof.write(campaigns, _counted(arguments.counted) if arguments.counted else _told())
    return 1 if any(campaign.findings for campaign in campaigns) else 0


def _told() -> Compared:
    """Tell all scenarios and stories to both. Raises CalledProcessError when they differ."""
    with tempfile.TemporaryDirectory() as folder:
        counted = Path(folder) / "counted.json"
        tests = [sys.executable, "-m", "pytest", "-q", "tests/kafka", "--ignore", "tests/kafka/differential"]
        subprocess.run([*tests, "--counted-to", str(counted)], check=True)
        return _counted(counted)


def _counted(path: Path) -> Compared:
    return Compared.from_json(json.loads(path.read_text(encoding="utf-8")))


if __name__ == "__main__":
    sys.exit(main())

"""Play the story of some clients against some targets, and say how it went."""

from __future__ import annotations

import argparse
import sys

from tests.interop.story import table
from tests.interop.story.clients import CLIENTS, by_name
from tests.interop.story.run import run_all
from tests.interop.story.targets import KAFKA_CUT, TARGETS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.interop.story", description=__doc__)
    names = [client.name for client in CLIENTS]
    parser.add_argument("--client", action="append", choices=names, help="default: all")
    parser.add_argument("--target", action="append", choices=[*TARGETS, KAFKA_CUT], help="default: all")
    parser.add_argument(
        "--table",
        action="store_true",
        help="all clients and targets; write the table in docs/compatibility.md",
    )
    parser.add_argument("--verbose", action="store_true", help="what happened when, and each admin call")
    chosen = parser.parse_args()
    if chosen.table and (chosen.client or chosen.target):
        parser.error("--table is about all clients and all targets")
    clients = [by_name(name) for name in chosen.client or names]
    outcomes = []
    for outcome in run_all(clients, chosen.target or list(TARGETS)):
        outcomes.append(outcome)
        print(outcome.report(), flush=True)
        if chosen.verbose:
            print(*outcome.steps, *(f"  {call}" for call in outcome.calls or ()), sep="\n", flush=True)
    if any(outcome.problems for outcome in outcomes):
        return 1
    if chosen.table:
        table.write(table.render(clients, outcomes))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Live some lives of some clients on some targets, and say how they went."""

from __future__ import annotations

import argparse
import sys
import time

from tests.interop.protocols.clients import CLIENTS
from tests.interop.protocols.lives import LIVES, live
from tests.interop.story.targets import CLUSTER, KAFKA, running

TARGETS = ("serve", CLUSTER, KAFKA)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.interop.protocols", description=__doc__)
    parser.add_argument("--client", action="append", choices=list(CLIENTS), help="default: all")
    parser.add_argument("--target", action="append", choices=TARGETS, help="default: all")
    parser.add_argument("--life", action="append", choices=list(LIVES), help="default: all")
    chosen = parser.parse_args()
    failed = False
    for name in chosen.client or CLIENTS:
        client = CLIENTS[name]
        client.prepare()
        for target_name in chosen.target or TARGETS:
            for life in chosen.life or LIVES:
                began_s = time.monotonic()
                with running(target_name) as target:
                    outcome = live(life, client, target)
                how = "FAILED" if outcome.problems else "passed"
                print(f"{life} of {name} {client.version()} on {target_name}: {how} in ", end="")
                print(f"{time.monotonic() - began_s:.1f} s; {outcome.figures}", flush=True)
                print(*outcome.steps, *outcome.problems, outcome.details, sep="\n", flush=True)
                failed = failed or bool(outcome.problems)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

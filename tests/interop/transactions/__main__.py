"""Play exactly once with some clients and frameworks, as long as wanted, and say how it went."""

from __future__ import annotations

import argparse
import secrets
import sys

from tests.interop.story.targets import KAFKA, TARGETS, running
from tests.interop.transactions.clients import TRANSFORMERS, by_name
from tests.interop.transactions.frameworks import FRAMEWORKS
from tests.interop.transactions.play import CONFIGS, Plan, play

_PLAYABLE = tuple(name for name in TARGETS if name in ("kafka", "serve", "cluster"))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.interop.transactions", description=__doc__)
    names = [*(each.name for each in TRANSFORMERS), *FRAMEWORKS]
    parser.add_argument("--client", action="append", choices=names, help="default: all that outlive brokers")
    parser.add_argument("--target", action="append", choices=_PLAYABLE, help=f"default: {KAFKA}")
    parser.add_argument("--records", type=int, default=2_000, help="default: 2000")
    parser.add_argument("--kills", type=int, default=3, help="of workers; default: 3")
    parser.add_argument("--broker-kills", type=int, default=0, help="under clients alone; default: 0")
    parser.add_argument("--seed", type=int, help="of a run that printed it")
    chosen = parser.parse_args()
    seed = secrets.randbelow(1_000_000) if chosen.seed is None else chosen.seed
    plan = Plan.of(seed, chosen.records, chosen.kills, chosen.broker_kills)
    print(
        f"seed {seed}: {len(plan.kills)} kills, {plan.records} records, up to {plan.records_max} each",
        flush=True,
    )
    able = [each.name for each in TRANSFORMERS if each.outlives_brokers or not chosen.broker_kills]
    able += FRAMEWORKS
    failed = False
    for name in chosen.target or [KAFKA]:
        with running(name, CONFIGS) as target:
            for client in chosen.client or able:
                if client in FRAMEWORKS:
                    outcome = FRAMEWORKS[client](target, seed, chosen.records, chosen.kills)
                else:
                    transformer = by_name(client)
                    transformer.prepare()
                    outcome = play(transformer, target, plan)
                failed = failed or bool(outcome.problems)
                print(outcome.report(), flush=True)
                if not outcome.problems:
                    print(*outcome.steps, sep="\n", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

"""`python -m tests.bench.peers`: muster and its peers under the same load, in turn.

    --only start,memory     these measures; by default all
    --servers muster,kafka  these kinds of server; by default all
    --quick                 a small round of everything: it shows that all of it works
    --cold                  servers that were just started, into docs/first-ten-seconds.md
    --rounds N              in place of each measure's own number
    --results FILE          where parts are kept; what is there already is not measured again
    --again                 measure what was asked for again
    --write                 put tables and charts of what is kept into docs/PEERS.md and docs/proof/, and what
                            was wanted and came of it into docs/PROOF.md

The servers take turns: one round of a measure goes over all of them before the next one begins. What each
found is kept in a file, so a run that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import resource
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from tests.bench import figures
from tests.bench.peers import charts, servers, table, usage
from tests.bench.peers.measure import Measure, Scale
from tests.bench.peers.measures import MEASURES
from tests.bench.peers.results import BUSY, Part, Results
from tests.bench.peers.servers import KINDS, Kind

_ROOT: Final = Path(__file__).parents[3]
PAGE: Final = _ROOT / "docs" / "PEERS.md"
COLD: Final = _ROOT / "docs" / "first-ten-seconds.md"
PROOF: Final = _ROOT / "docs" / "PROOF.md"
CHARTS: Final = _ROOT / "docs" / "proof"
_BUSY_PARTS: Final = 0.05
"""The share of parts that may have been measured on a busy machine, for figures to be written."""


def main(arguments: Sequence[str]) -> int:
    options = _options(arguments)
    scale = Scale(quick=options.quick, cold=options.cold)
    path = options.results or _ROOT / "build" / "bench-peers" / f"{scale.name}.jsonl"
    results = Results(path)
    facts = figures.machine().partition(", load ")[0]
    print(f"{facts}; parts are kept in {path}", flush=True)
    try:
        servers.prepare(options.servers)
    except RuntimeError as missing:
        print(missing, file=sys.stderr)
        return 1
    failed = False
    began_s = time.monotonic()
    for measure, kind, number in _plan(options, scale):
        if results.has((measure.name, kind.name, number)) and not options.again:
            continue
        part = _measured(measure, kind, number, scale, facts)
        results.add(part)
        failed |= bool(part.failed)
    print(f"took {(time.monotonic() - began_s) / 60:.1f} minutes", flush=True)
    for measure in (MEASURES[name] for name in options.only):
        if results.values(measure.name):
            print(f"\n{table.section(measure, results)}")
    print(f"\n{(table.places if scale.cold else table.goals)(list(MEASURES.values()), results)}")
    busy = results.busy()
    if busy:
        print(f"\n{len(busy)} parts were measured while others had more than {BUSY:.0%} of the machine")
    if options.write:
        if len(busy) > _BUSY_PARTS * sum(not part.failed for part in results):
            print("nothing is written: figures of a busy machine say nothing", file=sys.stderr)
            return 1
        if scale.cold:
            table.write(COLD, table.cold_page(list(MEASURES.values()), results))
            print(f"written: {COLD}")
        else:
            _write(results)
    return int(failed)


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.peers", description="muster beside its peers"
    )

    def names(known: Sequence[str]) -> object:
        def parsed(text: str) -> list[str]:
            found = text.split(",")
            unknown = set(found) - set(known)
            if unknown:
                raise argparse.ArgumentTypeError(
                    f"{', '.join(sorted(unknown))}: not one of {', '.join(known)}"
                )
            return [name for name in known if name in found]

        return parsed

    parser.add_argument("--only", type=names(list(MEASURES)), default=list(MEASURES), metavar="MEASURE,...")
    parser.add_argument("--servers", type=names(list(KINDS)), default=list(KINDS), metavar="KIND,...")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--quick", action="store_true", help="a small round of everything")
    how.add_argument("--cold", action="store_true", help="servers that were just started")
    parser.add_argument("--rounds", type=int, help="in place of each measure's own number")
    parser.add_argument("--results", type=Path, help="the file of parts")
    parser.add_argument("--again", action="store_true", help="measure also what is in that file")
    parser.add_argument(
        "--write",
        action="store_true",
        help=f"into {PAGE.name}, with charts, and {PROOF.name}; with --cold into {COLD.name}",
    )
    return parser.parse_args(arguments)


def _plan(options: argparse.Namespace, scale: Scale) -> Iterator[tuple[Measure, Kind, int]]:
    for name in options.only:
        measure = MEASURES[name]
        if scale.cold and not measure.cold:
            continue
        for number in range(options.rounds or (1 if scale.quick else measure.rounds)):
            for kind in (KINDS[name] for name in options.servers):
                once = number > 0 and kind.once and not options.rounds
                if kind.plays(measure.name) and kind.name not in measure.cannot and not once:
                    yield measure, kind, number


def _measured(measure: Measure, kind: Kind, number: int, scale: Scale, facts: str) -> Part:
    machine, began_s = usage.Machine(), time.monotonic()
    points, failed = [], ""
    try:
        points = measure.run(kind, scale)
    except Exception as error:
        traceback.print_exc()
        failed = f"{type(error).__name__}: {error}".splitlines()[0]
    took_s = time.monotonic() - began_s
    found = failed or ", ".join(
        f"{point.key}{'' if point.at is None else f'@{point.at}'} {table.number(point.value)}"
        for point in points
    )
    print(f"{measure.name} {kind.name} round {number + 1}, {took_s:.1f} s: {found}", flush=True)
    return Part(
        measure.name,
        kind.name,
        number,
        [point.as_json() for point in points],
        failed,
        machine.others(),
        took_s,
        facts,
        time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    )


def _write(results: Results) -> None:
    drawn = {
        measure.name: [str(path.relative_to(PAGE.parent)) for path in charts.draw(measure, results, CHARTS)]
        for measure in MEASURES.values()
    }
    measures = list(MEASURES.values())
    table.write(PAGE, table.page(measures, results, drawn))
    table.write(PROOF, table.summary(measures, results))
    print(f"written: {PAGE}, {CHARTS}, {PROOF}")


def _prepare_process() -> None:
    """What the servers inherit, and their end when this process is told to end."""
    _, files_max = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files_max, files_max))
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))


if __name__ == "__main__":
    _prepare_process()
    sys.exit(main(sys.argv[1:]))

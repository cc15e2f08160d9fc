"""`python -m tests.causes [--table] [NAME ...]`: play the cases, print what muster said of each, and with
`--table` put that into docs/why.md."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from tests.causes.acting import SHOWN
from tests.causes.all_cases import CASES
from tests.causes.cases import Case
from tests.causes.judging import Judged, judge

PAGE: Final = Path(__file__).parents[2] / "docs" / "why.md"
BEGIN: Final = "<!-- clients: begin -->"
END: Final = "<!-- clients: end -->"
_AT_ONCE: Final = 3


def main(arguments: Sequence[str]) -> int:
    names = [each.name for each in CASES]
    parser = argparse.ArgumentParser(prog="python -m tests.causes", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(names)}; default all")
    parser.add_argument("--table", action="store_true", help="put what was said into docs/why.md")
    given = parser.parse_args(arguments)
    if unknown := sorted(set(given.names) - set(names)):
        parser.error(f"no case named {', '.join(unknown)}")
    if given.table and given.names:
        parser.error("--table replaces the whole table, so it goes with all cases: leave out the names")
    played = [
        (case, client)
        for case in CASES
        for client in case.clients
        if not given.names or case.name in given.names
    ]
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        judged = list(threads.map(lambda each: _judge(*each), played))
    if given.table:
        _write(_table(judged))
    return 1 if any(each.wrong for each in judged) else 0


def _judge(case: Case, client: str) -> Judged:
    with tempfile.TemporaryDirectory() as folder:
        judged = judge(case, client, Path(folder))
    said = "; ".join(judged.wrong) or "right"
    print(f"{case.name} ({client}): {said}", flush=True)
    return judged


def _table(judged: Sequence[Judged]) -> list[str]:
    lines = ["| what was done | client | muster said | sure | right |", "| --- | --- | --- | --- | --- |"]
    for each in judged:
        said = each.said
        words = "nothing" if said is None else f"{said.cause or 'no rebalance'}: {said.diagnosis}"
        sure = "" if said is None else said.certainty
        right = "yes" if not each.wrong else f"**no**: {'; '.join(each.wrong)}"
        lines.append(f"| {each.case.what} | {SHOWN[each.client]} | {words} | {sure} | {right} |")
    return lines


def _write(table: Sequence[str]) -> None:
    before, found, rest = PAGE.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not found or not end:
        raise SystemExit(f"{PAGE} has no place for the table: {BEGIN} ... {END}")
    PAGE.write_text("\n".join([before + BEGIN, *table, END + after]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

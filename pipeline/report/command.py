"""`muster-pipeline report`: a page with pictures from the tables that `muster-pipeline rebalances` wrote."""

from __future__ import annotations

import os
import re
from argparse import ArgumentTypeError, Namespace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from muster.pipeline.arguments import command, positive
from muster.pipeline.errors import OptionError, PipelineError

PAGE: Final = "report.html"
TOP_MAX: Final = 1_000
_PART: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*(ms|s|min|m|h|d|w)\s*")
_UNITS_MS: Final = {
    "ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000
}  # fmt: skip
_PICTURES: Final = (
    "groups", "causes-over-time", "durations", "unavailability", "costs", "worst-rebalance", "flapping",
    "before-and-after", "failover", "lag", "open",
)  # fmt: skip


class Moment(NamedTuple):
    """A time: absolute, or relative to the journal's end."""

    at_ms: int | None
    ago_ms: int = 0

    def in_journal(self, until_ms: float) -> int:
        """Epoch ms."""
        return int(until_ms) - self.ago_ms if self.at_ms is None else self.at_ms


def declare(commands: Any) -> None:
    """Add the command to `commands`."""
    parser = command(
        commands,
        "report",
        "a page with pictures from the tables of rebalances",
        f"""
Says which groups rebalance most and why, how long partitions stood still, what each cause cost, who comes and
goes, what deploys and failovers did, and what is still open. It writes {PAGE}, one file with everything in
it that can be sent and printed, and its pictures as PNG. It starts no Spark, and needs no Java and no broker.

--since and --until take a duration (2h, 1h30m, 7d), counted back from the journal's last entry, or a moment
(2026-01-31T14:00:00Z; UTC where it names no zone). Before and after are shown of the deploy in that time
that cost most, or else of the failover, or of the worst rebalance.
""",
        on_spark=False,
    )
    parser.add_argument("--from", dest="lake", metavar="LAKE", required=True, help="the folder of the tables")
    parser.add_argument("--to", metavar="FOLDER", required=True, help="where the page and the PNG files go")
    parser.add_argument(
        "--group", action="append", default=[], metavar="NAME", help="only this group; may be given again"
    )
    parser.add_argument("--since", type=moment, metavar="TIME", help="only what began after it")
    parser.add_argument("--until", type=moment, metavar="TIME", help="only what began before it")
    parser.add_argument(
        "--top", type=_top, default=10, metavar="ROWS",
        help=f"how many groups, causes and so on each table has (default 10, {TOP_MAX} at most)",
    )  # fmt: skip
    parser.set_defaults(work=run)


def run(given: Namespace) -> int:
    """Run the command. Returns the exit code. Raises PipelineError."""
    from muster.pipeline.report.facts import Asked, facts, span_of
    from muster.pipeline.report.lake import Lake
    from muster.pipeline.report.page import page
    from muster.pipeline.report.sections import sections
    from muster.pipeline.report.telling import Figured

    to = Path(given.to)
    if to.exists() and not to.is_dir():
        raise PipelineError(f"--to: {given.to} is a file; it takes a folder")
    lake = Lake(given.lake)
    journal = span_of(lake)
    end_ms = 0.0 if journal is None else journal.until_ms
    since, until = (each and each.in_journal(end_ms) for each in (given.since, given.until))
    if since is not None and until is not None and since >= until:
        raise OptionError("--since is not before --until")
    found = facts(lake, Asked(tuple(dict.fromkeys(given.group)), since, until, given.top))
    told = sections(found)
    drawn = [each.picture for section in told for each in section.shown if isinstance(each, Figured)]
    pictures = {each.name: each for each in drawn}
    try:
        to.mkdir(parents=True, exist_ok=True)
        for name in _PICTURES:
            if name in pictures:
                _write(to / f"{name}.png", pictures[name].light)
            else:  # of an earlier report: it would be taken for part of this one
                (to / f"{name}.png").unlink(missing_ok=True)
        _write(to / PAGE, page(found, told, given.lake).encode())
    except OSError as error:
        raise PipelineError(f"--to: {error.filename or given.to}: {error.strerror}") from None
    print(
        f"{len(found.rebalances):,} rebalances of {len(found.groups):,} groups: {to / PAGE}"
        f" and {len(pictures)} pictures beside it"
    )
    return 0


def moment(text: str) -> Moment:
    """Reads a duration, or a moment."""
    at, ms = 0, 0.0
    while part := _PART.match(text, at):
        ms += float(part[1]) * _UNITS_MS[part[2]]
        at = part.end()
    if text and at == len(text):
        return Moment(None, round(ms))
    if re.match(r"\d{4}-\d\d-\d\d", text):
        try:
            found = datetime.fromisoformat(text)
        except ValueError:
            pass
        else:
            if found.tzinfo is None:
                found = found.replace(tzinfo=UTC)
            return Moment(round(found.timestamp() * 1_000))
    raise ArgumentTypeError(
        f"{text!r} is not allowed; it takes a duration like 2h, 1h30m or 7d, or a moment like "
        "2026-01-31T14:00:00Z"
    )


def _top(text: str) -> int:
    number = positive(text)
    if number > TOP_MAX:
        raise ArgumentTypeError(f"{text!r} is not allowed; it takes a number of {TOP_MAX:,} at most")
    return number


def _write(path: Path, data: bytes) -> None:
    """Write the file atomically."""
    aside = path.with_name(f".{path.name}.new")
    aside.write_bytes(data)
    os.replace(aside, path)

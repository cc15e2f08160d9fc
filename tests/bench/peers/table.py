"""The page's tables: a column for each kind of server, a line for each figure and size."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.bench.peers.measure import Measure, Quantity
from tests.bench.peers.results import Results, Value
from tests.bench.peers.servers import KINDS

BEGIN: Final = "<!-- figures: written by make bench-peers WRITE=1 -->"
END: Final = "<!-- end of figures -->"
_BOUND: Final = "†"
_ASIDE: Final = ("muster", "muster-pure", "muster-3", "muster-postgres", "kfake", "echo", "sink")
"""In the comparison with the best of the others: ourselves, what keeps nothing, and what is no server."""


def number(value: float) -> str:
    """Three digits that count."""
    if value >= 1_000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def cell(value: Value | None) -> str:
    """The median, with the least and the most in brackets when there was more than one round."""
    if value is None:
        return ""
    spread = f" ({number(value.least)}–{number(value.most)})" if value.rounds > 1 else ""
    return f"{number(value.median)}{_BOUND if value.driver_bound else ''}{spread}"


def section(measure: Measure, results: Results) -> str:
    """A measure's heading, words, table, what is missing and why, and its charts."""
    values = results.values(measure.name)
    kinds = [name for name in KINDS if any(kind == name for _, _, kind in values)]
    lines = [f"### {measure.title}", "", measure.words, ""]
    lines += ["| | " + " | ".join(KINDS[name].title for name in kinds) + " |", "|---|" + "---:|" * len(kinds)]
    for quantity in measure.quantities:
        for at in sizes(quantity, results, measure):
            cells = [cell(values.get((quantity.key, at, kind))) for kind in kinds]
            lines.append(f"| {title(quantity, at)} | " + " | ".join(cells) + " |")
        if quantity.slope:
            slopes = [_slope(quantity, kind, values) for kind in kinds]
            cells = ["" if each is None else f"{each:.2f}" for each in slopes]
            lines.append(f"| slope of the {quantity.title}, by {quantity.axis} | " + " | ".join(cells) + " |")
    missing = {**measure.cannot, **results.failures(measure.name)}
    if missing:
        lines += ["", *(f"- {KINDS[kind].title}: {why}" for kind, why in missing.items())]
    return "\n".join(lines)


def _slope(
    quantity: Quantity, kind: str, values: Mapping[tuple[str, int | None, str], Value]
) -> float | None:
    """Of the line through the medians (least squares), both axes logarithmic; None for less than two."""
    points = [
        (math.log(at), math.log(value.median))
        for (key, at, of), value in values.items()
        if (key, of) == (quantity.key, kind) and at and value.median
    ]
    return statistics.linear_regression(*zip(*points, strict=True)).slope if len(points) > 1 else None


def title(quantity: Quantity, at: int | None) -> str:
    where = "" if at is None else f", {at:,} {quantity.axis}"
    return f"{quantity.title}{where}" + (f" ({quantity.unit})" if quantity.unit else "")


def sizes(quantity: Quantity, results: Results, measure: Measure) -> list[int | None]:
    found = {at for key, at, _ in results.values(measure.name) if key == quantity.key}
    return sorted(found, key=lambda at: -1 if at is None else at)


class Wanted:
    """A goal at a size, and what came of it."""

    def __init__(self, what: str, times: float, ours: Value, theirs: Value, *, more: bool) -> None:
        self.what = what
        self.times = times
        self.ours = ours
        self.theirs = theirs
        good, bad = (ours, theirs) if more else (theirs, ours)
        self.ratio = good.median / bad.median if bad.median else float("inf")
        self.reached = self.ratio >= times


def wanted(measures: Sequence[Measure], results: Results) -> Iterator[Wanted]:
    for measure in measures:
        values = results.values(measure.name)
        for quantity in measure.quantities:
            for at in sizes(quantity, results, measure):
                for goal in quantity.goals:
                    ours = values.get((quantity.key, at, "muster"))
                    theirs = values.get((quantity.key, at, goal.beside))
                    if (goal.at and at not in goal.at) or ours is None or theirs is None:
                        continue
                    what = f"{title(quantity, at)}, beside {KINDS[goal.beside].title}"
                    yield Wanted(what, goal.times, ours, theirs, more=quantity.better == "more")


def goals(measures: Sequence[Measure], results: Results) -> str:
    lines = ["| | muster | peer | better by | wanted | |", "|---|---:|---:|---:|---:|---|"]
    for each in wanted(measures, results):
        lines.append(
            f"| {each.what} | {cell(each.ours)} | {cell(each.theirs)} | {number(each.ratio)} times | "
            f"{number(each.times)} times | {'reached' if each.reached else 'MISSED'} |"
        )
    return "\n".join(lines)


def places(measures: Sequence[Measure], results: Results) -> str:
    """Each figure of muster beside the best of the others; those in `_ASIDE` are not counted."""
    lines = ["| | muster | best of the others | better by | |", "|---|---:|---:|---:|---|"]
    for measure in measures:
        values = results.values(measure.name)
        for quantity in measure.quantities:
            for at in sizes(quantity, results, measure):
                ours = values.get((quantity.key, at, "muster"))
                others = {
                    kind: value
                    for (key, size, kind), value in values.items()
                    if (key, size) == (quantity.key, at) and kind not in _ASIDE
                }
                if ours is None or not ours.median or not others:
                    continue  # or too little of the processor for its clock
                more = quantity.better == "more"
                best = (max if more else min)(others, key=lambda kind: others[kind].median)
                good, bad = (ours, others[best]) if more else (others[best], ours)
                ratio = good.median / bad.median if bad.median else float("inf")
                lines.append(
                    f"| {title(quantity, at)} | {cell(ours)} | {cell(others[best])}, {KINDS[best].title} | "
                    f"{number(ratio)} times | {'first' if ratio >= 1 else 'BEHIND'} |"
                )
    return "\n".join(lines)


def cold_page(measures: Sequence[Measure], results: Results) -> str:
    """All between the markers of the page about servers that were just started."""
    measured = [measure for measure in measures if results.values(measure.name)]
    parts = [BEGIN, "", _measured_on(results), "", "### Who is first", "", places(measured, results)]
    for measure in measured:
        parts += ["", section(measure, results)]
    return "\n".join([*parts, "", END])


def page(measures: Sequence[Measure], results: Results, charts: dict[str, list[str]]) -> str:
    """All between the markers. `charts` are paths of images by measure."""
    measured = [measure for measure in measures if results.values(measure.name)]
    others = [part.others for part in results if not part.failed]
    used = {kind for part in results for kind in (part.kind,)}
    parts = [
        BEGIN,
        "",
        f"{_measured_on(results)} Each cell is the median of its rounds with the least and the most "
        "in brackets; the servers took turns in every round. Other processes used at most "
        f"{100 * max(others, default=0.0):.0f} % of the machine during any measurement. "
        f"{_BOUND}: the driver had no CPU left, so the server might do more.",
        "",
        "| server | an acknowledged offset commit survives |",
        "|---|---|",
        *(f"| {kind.title} | {kind.durable} |" for kind in KINDS.values() if kind.name in used),
        "",
        "### Targets",
        "",
        goals(measured, results),
    ]
    for measure in measured:
        parts += ["", section(measure, results)]
        for image in charts.get(measure.name, []):
            parts += ["", f"![{measure.title}]({image})"]
    return "\n".join([*parts, "", END])


def summary(measures: Sequence[Measure], results: Results) -> str:
    """The same for a page that shows no more than what was wanted."""
    return "\n".join([BEGIN, "", _measured_on(results), "", goals(measures, results), "", END])


def _measured_on(results: Results) -> str:
    facts = sorted({f"{part.machine}, {part.when[:10]}" for part in results if part.machine})
    return f"Measured on: {'; '.join(facts)}."


def write(path: Path, text: str) -> None:
    """Put it between the markers of a page that has them."""
    before, begin, rest = path.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise RuntimeError(f"{path} has no place for figures: {BEGIN} ... {END}")
    path.write_text(before + text + after)

"""Pictures of many rebalances at once: causes over time, groups, durations, unowned time, flapping."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from muster.pipeline.report import drawing
from muster.pipeline.report.drawing import Theme, named, when
from muster.pipeline.report.facts import Facts
from muster.pipeline.report.facts import costs as summed
from muster.pipeline.report.words import duration

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

ROWS_MAX: Final = 30
"""As many rows as a readable picture can have."""
_BINS_MAX: Final = 60
_LENGTHS_MS: Final = (100, 1_000, 5_000, 30_000, 120_000)
"""The boundaries between columns of lengths."""


def causes_over_time(facts: Facts, colour: dict[str, str], theme: Theme) -> Figure:
    """Rebalances that began in each step of time, stacked by diagnosis."""
    import numpy as np

    given = facts.rebalances
    each_ms = drawing.step_ms(facts.span.ms, _BINS_MAX)
    first = facts.span.from_ms // each_ms * each_ms
    count = max(int((facts.span.until_ms - 1 - first) // each_ms) + 1, 1)
    starts = [when(first + number * each_ms) for number in range(count)]
    made, axes = drawing.canvas(3.6)
    below = np.zeros(count)
    for diagnosis in colour:
        mine = given.started_ms[(given.diagnosis == diagnosis).to_numpy()].to_numpy(dtype="float64")
        found = np.bincount(((mine - first) // each_ms).astype(int), minlength=count)[:count]
        axes.bar(
            starts, found, bottom=below, width=_width(each_ms), align="edge", color=colour[diagnosis],
            edgecolor=theme.page, linewidth=0.4 if count > 1 else 0,
        )  # fmt: skip
        below += found
    axes.yaxis.grid(True)
    drawing.count_axis(axes.yaxis)
    axes.set_ylim(0, max(float(below.max()), 1) * 1.08)
    axes.set_ylabel(f"rebalances begun per {_step(each_ms)}")
    drawing.time_axis(axes, first, first + count * each_ms)
    drawing.causes_legend(made, colour, given.diagnosis.unique())
    return made


def groups(facts: Facts, colour: dict[str, str], theme: Theme) -> Figure:
    """The groups that lost most: how much, and how often they rebalanced, by diagnosis."""
    top = facts.groups.head(min(facts.asked.top, ROWS_MAX))
    lost = _by_diagnosis(facts.rebalances, top.group, "unowned_partition_ms")
    counted = _by_diagnosis(facts.rebalances, top.group, None)
    made, panels = drawing.canvas(_height(len(top)), 1, 2, sharey=True)
    _stacked(panels[0], top.group, lost, colour, theme, lambda value: duration(value) if value else "0")
    _stacked(panels[1], top.group, counted, colour, theme, lambda value: f"{value:,.0f}")
    for axes, title in zip(panels, ("partition-time without owner", "rebalances"), strict=True):
        axes.set_title(title)
        axes.set_xticks([])
        axes.spines["bottom"].set_visible(False)
    panels[1].tick_params(axis="y", length=0)
    panels[1].spines["left"].set_color(theme.line)
    drawing.causes_legend(made, colour, counted.columns)
    return made


def stood_still(facts: Facts) -> pd.DataFrame:
    """The groups that had partitions without an owner, the longest time first."""
    found = facts.groups[facts.groups.unowned_partition_ms > 0]
    return found.sort_values(["unowned_partition_ms", "group"], ascending=[False, True], ignore_index=True)


def costs(facts: Facts, colour: dict[str, str], theme: Theme) -> Figure:
    """What each diagnosis cost: how often it occurred, partition-time without an owner, records that
    waited."""
    found = by_diagnosis(facts).head(ROWS_MAX)
    made, panels = drawing.canvas(_height(len(found)) - 0.1, 1, 3, sharey=True)
    for axes, column, title, say in (
        (panels[0], "rebalances", "rebalances", lambda value: f"{value:,.0f}"),
        (panels[1], "unowned_partition_ms", "partition-time without owner", duration),
        (panels[2], "lag_growth", "records that came to wait", lambda value: f"{value:,.0f}"),
    ):
        values = found[column].to_numpy(dtype="float64")
        axes.barh(range(len(found)), values, height=0.68, color=[colour[each] for each in found.diagnosis])
        for row, value in enumerate(values):
            unknown = column == "lag_growth" and not found.lag_known[row]
            axes.annotate(
                "not known" if unknown else say(value) if value else "0", (value, row), xytext=(4, 0),
                textcoords="offset points", va="center", fontsize=9,
            )  # fmt: skip
        axes.set_xlim(0, max(float(values.max(initial=0)), 1) * 1.35)
        axes.set_xticks([])
        axes.spines["bottom"].set_visible(False)
        axes.set_title(title, fontsize=9.5)
    drawing.rows_axis(panels[0], found.diagnosis)
    for axes in panels[1:]:
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_color(theme.line)
    return made


def by_diagnosis(facts: Facts) -> pd.DataFrame:
    """What each diagnosis cost, over all causes that the coordinator recorded; the costliest first."""
    found = summed(facts.rebalances, ["diagnosis"])
    return found.sort_values(
        ["unowned_partition_ms", "rebalances", "diagnosis"], ascending=[False, False, True], ignore_index=True
    )


def still_open(facts: Facts, colour: dict[str, str], theme: Theme) -> Figure:
    """How long open rebalances have been under way."""
    top = facts.open.head(min(facts.asked.top, ROWS_MAX))
    made, axes = drawing.canvas(_height(len(top)))
    values = (facts.end_ms - top.started_ms).to_numpy(dtype="float64")
    axes.barh(range(len(top)), values, height=0.68, color=[colour[each] for each in top.diagnosis])
    for row, value in enumerate(values):
        axes.annotate(
            duration(value), (value, row), xytext=(5, 0), textcoords="offset points", va="center", fontsize=9
        )
    axes.set_xlim(0, max(float(values.max(initial=0)), 1) * 1.12)
    drawing.duration_axis(axes.xaxis)
    axes.set_xlabel("under way for, at the end of the journal")
    drawing.rows_axis(axes, [named(each) for each in top.group])
    drawing.causes_legend(made, colour, top.diagnosis)
    return made


def durations(facts: Facts, colour: dict[str, str], theme: Theme) -> Figure:
    """How many rebalances took how long, and how often a partition had no owner for how long, by cause."""
    made, panels = drawing.canvas(3.9, 1, 2)
    gaps = facts.gaps[facts.gaps.until_ms.notna()]
    for axes, title, rows, column in (
        (panels[0], "rebalances, by how long they took", facts.rebalances, "duration_ms"),
        (panels[1], "times without an owner, by how long", gaps, "gap_ms"),
    ):
        axes.set_title(title)
        _by_length(axes, rows, column, colour, theme)
    there = {*facts.rebalances.diagnosis.dropna(), *gaps.diagnosis.dropna()}
    drawing.causes_legend(made, colour, there)
    return made


def flapping(facts: Facts, theme: Theme) -> Figure:
    """When flapping members were in their groups, and how that ended."""
    top = facts.flapping[(facts.flapping.kind == "member").to_numpy()]
    top = top.head(min(facts.asked.top, ROWS_MAX))
    members = list(zip(top["name"], top["group"], strict=True))
    made, axes = drawing.canvas(_height(len(top)))
    ends: dict[bool, tuple[list[Any], list[int]]] = {True: ([], []), False: ([], [])}
    first, last = facts.span.until_ms, facts.span.from_ms
    for row, (name, group) in enumerate(members):
        for each in sessions_of(facts, name, group).itertuples():
            begun = facts.span.from_ms if each.joined_ms != each.joined_ms else each.joined_ms
            ended = facts.end_ms if each.ended_ms != each.ended_ms else each.ended_ms
            first, last = min(first, begun), max(last, ended)
            axes.broken_barh(
                [(when(begun), when(ended) - when(begun))], (row - 0.28, 0.56),
                facecolors=drawing.PALETTE[4], edgecolors=theme.page, linewidths=1,
            )  # fmt: skip
            if each.ended_ms == each.ended_ms:
                ends[bool(each.evicted)][0].append(when(ended))
                ends[bool(each.evicted)][1].append(row)
    axes.scatter(*ends[False], marker="o", s=34, color=drawing.PALETTE[0], label="left or replaced", zorder=3)
    axes.scatter(*ends[True], marker="X", s=64, color=drawing.PALETTE[5], label="put out", zorder=4)
    drawing.rows_axis(axes, [f"{named(name, 20)} · {named(group, 22)}" for name, group in members])
    margin = max((last - first) * 0.02, 1_000)
    drawing.time_axis(axes, first - margin, last + margin)
    handles, labels = axes.get_legend_handles_labels()
    made.legend(handles, labels, loc="outside lower center", ncols=2)
    return made


def sessions_of(facts: Facts, name: object, group: object) -> pd.DataFrame:
    """The sessions of a member, as gold.flapping names it."""
    mine = facts.sessions[(facts.sessions.group == group).to_numpy()]
    names = mine.instance.astype("object").where(
        mine.instance.notna(), mine.client_id.astype("object") + "@" + mine.host.astype("object")
    )
    return mine[(names == name).to_numpy()]


def _by_diagnosis(rebalances: pd.DataFrame, groups: pd.Series, summed: str | None) -> pd.DataFrame:
    """A row for each of the groups, a column for each diagnosis: the number of rebalances, or the sum of a
    column."""
    mine = rebalances[rebalances.group.isin(groups).to_numpy()]
    of_each = mine.groupby([mine.group.astype("object"), mine.diagnosis.astype("object")])
    found = of_each.size() if summed is None else of_each[summed].sum()
    return found.unstack(fill_value=0).reindex(groups).fillna(0)


def _stacked(
    axes: Any, names: pd.Series, found: pd.DataFrame, colour: dict[str, str], theme: Theme, say: Any
) -> None:
    import numpy as np

    left = np.zeros(len(found))
    for diagnosis in (each for each in colour if each in found.columns):
        values = found[diagnosis].to_numpy(dtype="float64")
        axes.barh(
            range(len(found)), values, left=left, height=0.68, color=colour[diagnosis],
            edgecolor=theme.page, linewidth=0.6,
        )  # fmt: skip
        left += values
    for row, total in enumerate(left):
        axes.annotate(
            say(total), (total, row), xytext=(5, 0), textcoords="offset points", va="center", fontsize=9
        )
    axes.set_xlim(0, max(float(left.max(initial=0)), 1) * 1.22)
    drawing.rows_axis(axes, [named(each) for each in names])


def _by_length(axes: Any, rows: pd.DataFrame, column: str, colour: dict[str, str], theme: Theme) -> None:
    """Columns: how many lasted how long, stacked by cause, each with its total on top."""
    import numpy as np

    rows = rows[rows[column].notna().to_numpy()]
    steps = [*_LENGTHS_MS, math.inf]
    bins = np.searchsorted(steps, rows[column].to_numpy(dtype="float64"), side="right")
    below = np.zeros(len(steps))
    for diagnosis in colour:
        mine = bins[(rows.diagnosis == diagnosis).to_numpy()]
        found = np.bincount(mine, minlength=len(steps))[: len(steps)]
        axes.bar(
            range(len(steps)), found, bottom=below, width=0.8, color=colour[diagnosis],
            edgecolor=theme.page, linewidth=0.6,
        )  # fmt: skip
        below += found
    for place, total in enumerate(below):
        if total:
            axes.annotate(
                f"{total:,.0f}", (place, total), xytext=(0, 3), textcoords="offset points", ha="center",
                fontsize=9,
            )  # fmt: skip
    said = [duration(each) for each in _LENGTHS_MS]
    between = [f"{low} to\n{high}" for low, high in pairwise(said)]
    axes.set_xticks(range(len(steps)), [f"under\n{said[0]}", *between, f"{said[-1]}\nand more"], fontsize=8)
    axes.tick_params(axis="x", length=0)
    axes.set_ylim(0, max(float(below.max()), 1) * 1.15)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)


def _height(rows: int) -> float:
    return 1.5 + 0.32 * max(rows, 1)


def _width(ms: float) -> Any:
    from datetime import timedelta

    return timedelta(milliseconds=ms)


def _step(ms: float) -> str:
    """A step of time as people say it: minute, 5 min, hour."""
    return {1_000: "second", 60_000: "minute", 3_600_000: "hour", 86_400_000: "day"}.get(
        int(ms), duration(ms)
    )

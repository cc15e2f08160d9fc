"""Pictures of many rebalances at once: causes over time, groups, durations, what had no owner, flapping."""

from __future__ import annotations

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
"""As many rows as a picture can have and be read."""
_BINS_MAX: Final = 60
_POINTS_MAX: Final = 400
"""Of a curve."""


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
    """How often the groups that rebalance most did, by diagnosis."""
    top = facts.groups.head(min(facts.asked.top, ROWS_MAX))
    counted = _by_diagnosis(facts.rebalances, top.group, None)
    made, axes = drawing.canvas(_height(len(top)))
    _stacked(axes, top.group, counted, colour, theme, lambda value: f"{value:,.0f}")
    drawing.count_axis(axes.xaxis)
    axes.set_xlabel("rebalances")
    drawing.causes_legend(made, colour, counted.columns)
    return made


def unavailability(facts: Facts, colour: dict[str, str], theme: Theme) -> Figure:
    """Partition-time without an owner of the groups that lost most of it, by diagnosis."""
    top = stood_still(facts).head(min(facts.asked.top, ROWS_MAX))
    lost = _by_diagnosis(facts.rebalances, top.group, "unowned_partition_ms")
    made, axes = drawing.canvas(_height(len(top)))
    _stacked(axes, top.group, lost, colour, theme, duration)
    drawing.duration_axis(axes.xaxis)
    axes.set_xlabel("time without an owner, summed over the group's partitions")
    drawing.causes_legend(made, colour, lost.columns[(lost > 0).any()])
    return made


def stood_still(facts: Facts) -> pd.DataFrame:
    """The groups of which partitions had no owner for some time, the longest first."""
    found = facts.groups[facts.groups.unowned_partition_ms > 0]
    return found.sort_values(["unowned_partition_ms", "group"], ascending=[False, True], ignore_index=True)


def costs(facts: Facts, colour: dict[str, str], theme: Theme) -> Figure:
    """What each diagnosis cost: how often it was, partition-time without an owner, records that waited."""
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
    """What each diagnosis cost, over all that the coordinator recorded as causes; the costliest first."""
    found = summed(facts.rebalances, ["diagnosis"])
    return found.sort_values(
        ["unowned_partition_ms", "rebalances", "diagnosis"], ascending=[False, False, True], ignore_index=True
    )


def still_open(facts: Facts, colour: dict[str, str], theme: Theme) -> Figure:
    """How long the rebalances under way have been so."""
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
    """Two distributions: how long rebalances took, how long partitions had no owner."""
    made, panels = drawing.canvas(4.1, 1, 2, sharey=True)
    gaps = facts.gaps[facts.gaps.until_ms.notna()]
    _distribution(panels[0], facts.rebalances, "duration_ms", colour, theme)
    panels[0].set_title("a rebalance took")
    panels[0].set_ylabel("share that took at most so long")
    _distribution(panels[1], gaps, "gap_ms", colour, theme)
    panels[1].set_title("a partition had no owner for")
    there = {*facts.rebalances.diagnosis.dropna(), *gaps.diagnosis.dropna()}
    drawing.causes_legend(made, colour, (each for each in there if colour.get(each) != drawing.OTHER))
    return made


def flapping(facts: Facts, theme: Theme) -> Figure:
    """When the members that flap were there, and how they ended."""
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
    """A row for each of the groups, a column for each diagnosis: how many, or the sum of a column."""
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
    axes.set_xlim(0, max(float(left.max(initial=0)), 1) * 1.12)
    axes.xaxis.grid(True)
    drawing.rows_axis(axes, [named(each) for each in names])


def _distribution(axes: Any, rows: pd.DataFrame, column: str, colour: dict[str, str], theme: Theme) -> None:
    """Cumulative, on a logarithmic axis: all in the colour of the text, and each cause."""
    import numpy as np

    values = np.maximum(rows[column].dropna().to_numpy(dtype="float64"), 1)
    axes.yaxis.grid(True)
    axes.set_ylim(0, 1.02)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 0.95, 1], ["0 %", "25 %", "50 %", "75 %", "95 %", "100 %"])
    if not len(values):
        axes.text(0.5, 0.5, "none", transform=axes.transAxes, ha="center", color=theme.faint)
        axes.set_xticks([])
        return
    for diagnosis in [each for each in colour if colour[each] != drawing.OTHER]:
        mine = rows[column][(rows.diagnosis == diagnosis).to_numpy()].dropna().to_numpy(dtype="float64")
        if len(mine):
            axes.step(
                *_curve(np.maximum(mine, 1)), where="post", color=colour[diagnosis], linewidth=1.5,
                marker="o" if len(mine) == 1 else None, markersize=4,
            )  # fmt: skip
    axes.step(*_curve(values), where="post", color=theme.text, linewidth=2.4)
    axes.set_xscale("log")
    low, high = float(values.min()) / 1.6, float(values.max()) * 1.6
    axes.set_xlim(low, high)
    for part, name in ((0.5, "p50"), (0.95, "p95")):
        at = float(np.quantile(values, part))
        axes.plot([at, at], [0, part], color=theme.text, linewidth=1, linestyle=(0, (4, 3)))
        axes.plot([at], [part], marker="o", color=theme.text, markersize=6)
        is_right = np.log(at / low) > 0.6 * np.log(high / low)
        axes.annotate(
            f"{name} {duration(at)}", (at, part), xytext=(-8 if is_right else 8, -4),
            textcoords="offset points", ha="right" if is_right else "left", va="top", fontweight="bold",
            bbox={"facecolor": theme.page, "edgecolor": "none", "alpha": 0.8, "pad": 1},
        )  # fmt: skip
    drawing.duration_axis(axes.xaxis, log=True)
    axes.set_xlabel(f"{len(values):,} in all; thick line: of any cause")


def _curve(values: Any) -> tuple[Any, Any]:
    """Of a cumulative distribution: at all values, or at as many as can be seen."""
    import numpy as np

    ordered = np.sort(values)
    shares = np.arange(1, len(ordered) + 1) / len(ordered)
    if len(ordered) > _POINTS_MAX:
        kept = np.unique(np.linspace(0, len(ordered) - 1, _POINTS_MAX).astype(int))
        ordered, shares = ordered[kept], shares[kept]
    return np.concatenate([ordered[:1], ordered]), np.concatenate([[0], shares])


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

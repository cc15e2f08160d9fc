"""Pictures of one moment: owners around a rebalance, before and after a deploy, a failover; and lag."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from muster.pipeline.report import drawing
from muster.pipeline.report.drawing import Theme, named, when
from muster.pipeline.report.facts import Facts, Span
from muster.pipeline.report.pictures import ROWS_MAX
from muster.pipeline.report.words import duration, moment

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

PARTITIONS_MAX: Final = 40
"""Rows of the Gantt chart."""
_OWNERS_MAX: Final = 18
"""Owners that its legend names."""
_CARRIED_MS: Final = 5 * 60_000
"""The longest time between samples of lag while a group commits."""
_LINES_MAX: Final = 6
"""As many as can be told apart."""


def ownership(facts: Facts, theme: Theme) -> Figure:
    """Who owned each partition of the group around its worst rebalance, and when nobody did."""
    from matplotlib.patches import Patch

    frame, rows, gaps = gantt(facts)
    owners = list(dict.fromkeys(rows.sort_values("from_ms").owner))
    fill = dict(zip(owners, drawing.fills(len(owners)), strict=True))
    parts = list(dict.fromkeys(zip(rows.topic, rows.partition, strict=True)))
    made, axes = drawing.canvas(1.9 + 0.22 * len(parts) + 0.2 * (min(len(owners), _OWNERS_MAX) // 3))
    place = {part: row for row, part in enumerate(parts)}
    for each in gaps.itertuples():
        row = place.get((each.topic, each.partition))
        if row is None:
            continue
        until = min(frame.until_ms, each.until_ms if each.until_ms == each.until_ms else frame.until_ms)
        begun = max(each.from_ms, frame.from_ms)
        axes.barh(
            row, (until - begun) / 1_000, left=(begun - _zero(facts)) / 1_000, height=0.8,
            facecolor=theme.gap, edgecolor=drawing.PALETTE[5], hatch="////", linewidth=0.6,
        )  # fmt: skip
    for each in rows.itertuples():
        begun = max(each.from_ms, frame.from_ms)
        ended = min(each.until_ms if each.until_ms == each.until_ms else frame.until_ms, frame.until_ms)
        if ended <= begun:
            continue
        colour, hatch = fill[each.owner]
        axes.barh(
            place[each.topic, each.partition], (ended - begun) / 1_000,
            left=(begun - _zero(facts)) / 1_000, height=0.8, color=colour, hatch=hatch,
            edgecolor=theme.page, linewidth=0.6,
        )  # fmt: skip
    worst = facts.worst
    assert worst is not None
    took_s = (min(_ended(facts), frame.until_ms) - worst.started_ms) / 1_000
    axes.axvspan(0, max(took_s, 0), color=theme.text, alpha=0.13, zorder=0)
    for at in (0, took_s):
        axes.axvline(at, color=theme.text, linewidth=1.2, linestyle=(0, (2, 2)))
    several = len({topic for topic, _ in parts}) > 1
    drawing.rows_axis(axes, [_part(topic, number, several) for topic, number in parts])
    axes.set_xlim((frame.from_ms - _zero(facts)) / 1_000, (frame.until_ms - _zero(facts)) / 1_000)
    _seconds_axis(axes)
    axes.set_xlabel(f"time from the beginning of the rebalance at {moment(worst.started_ms)}")
    if not several and parts:
        axes.set_ylabel(f"partition of {named(parts[0][0])}")
    handles = [
        Patch(facecolor=fill[each][0], hatch=fill[each][1], edgecolor=theme.page, label=named(each, 28))
        for each in owners[:_OWNERS_MAX]
    ]
    if len(owners) > _OWNERS_MAX:
        handles.append(Patch(color="none", label=f"and {len(owners) - _OWNERS_MAX} more"))
    if len(gaps):
        handles.append(Patch(facecolor=theme.gap, hatch="////", edgecolor=drawing.PALETTE[5], label="nobody"))
    made.legend(handles=handles, loc="outside lower center", ncols=3, handlelength=2)
    return made


def gantt(facts: Facts) -> tuple[Span, pd.DataFrame, pd.DataFrame]:
    """What the picture of ownership shows: its time span, rows of silver.ownership, rows of
    gold.unavailability.

    At most `PARTITIONS_MAX` partitions: those without an owner for longest, in order."""
    import numpy as np

    worst = facts.worst
    assert worst is not None
    started, ended = float(worst.started_ms), _ended(facts)
    gaps = facts.gaps[(facts.gaps.group == worst.group).to_numpy()]
    mine = gaps[(gaps.rebalance_id == worst.rebalance_id).to_numpy()]  # those that it ended
    first = min(started, float(mine.from_ms.min()) if len(mine) else started)
    last = max(ended, float(mine.until_ms.max()) if len(mine) else ended)
    margin = max((last - first) * 0.15, 1_000)
    frame = Span(first - margin, last + margin)
    gaps = gaps[
        ((gaps.from_ms < frame.until_ms) & ~(gaps.until_ms <= frame.from_ms)).to_numpy()  # NaN: still
    ]
    rows = facts.owned
    rows = rows[(rows.from_ms < frame.until_ms) & (rows.until_ms.isna() | (rows.until_ms > frame.from_ms))]
    ids = rows.assign(owner=[facts.names.short(worst.group, each) for each in rows.member_id])
    longest = mine.groupby(["topic", "partition"], observed=True)["gap_ms"].max()
    parts = sorted(
        {(str(topic), int(number)) for topic, number in zip(ids.topic, ids.partition, strict=True)},
        key=lambda each: (-longest.get(each, 0), each),
    )[:PARTITIONS_MAX]
    keep = set(parts)
    there = [(topic, number) in keep for topic, number in zip(ids.topic, ids.partition, strict=True)]
    ids = ids[np.array(there, dtype=bool)]
    return frame, ids.sort_values(["topic", "partition", "from_ms"]), gaps


def lag_lines(facts: Facts, theme: Theme) -> Figure:
    """How far behind groups were, one line for each of those furthest behind."""
    names = _behind(facts)[:_LINES_MAX]
    made, axes = drawing.canvas(3.8)
    for number, group in enumerate(names):
        mine = facts.lag[(facts.lag.group == group).to_numpy()]
        # If samples are further apart than those of a group that commits, lag between them is not known.
        apart = mine.at_ms.diff().to_numpy(dtype="float64") > _CARRIED_MS * 1.5
        lag = mine.lag.to_numpy(dtype="float64")
        at = [when(each) for each in mine.at_ms]
        begun = 0
        for place in [*(index for index, each in enumerate(apart) if each), len(at)]:
            axes.plot(
                at[begun:place], lag[begun:place], color=drawing.PALETTE[number], linewidth=1.8, marker="o",
                markersize=3,
            )  # fmt: skip
            begun = place
    axes.set_ylim(0, max(float(facts.lag.lag.max()), 1) * 1.08)
    axes.yaxis.grid(True)
    drawing.count_axis(axes.yaxis)
    axes.set_ylabel("records behind")
    first, last = float(facts.lag.at_ms.min()), float(facts.lag.at_ms.max())
    margin = max((last - first) * 0.02, 1_000)
    drawing.time_axis(axes, first - margin, last + margin)
    handles = [_line(each, drawing.PALETTE[number]) for number, each in enumerate(names)]
    made.legend(handles=handles, loc="outside lower center", ncols=3)
    return made


def _line(group: str, colour: str) -> Any:
    from matplotlib.lines import Line2D

    return Line2D([], [], color=colour, linewidth=1.8, marker="o", markersize=3, label=named(group))


def before_and_after(facts: Facts, colour: dict[str, str], theme: Theme) -> Figure:
    """Lag and rebalances before, during and after an event."""
    import numpy as np

    around = facts.around
    assert around is not None
    span = Span(around.before.from_ms, around.after.until_ms)
    made, (upper, lower) = drawing.canvas(4.6, 2, 1, sharex=True, height_ratios=[3, 2])
    shown = sorted(
        around.groups, key=lambda each: _behind(facts).index(each) if each in _behind(facts) else 1e9
    )
    lines = ("-", "--", "-.", ":")
    found = 0
    for group in shown:
        mine = facts.lag[(facts.lag.group == group).to_numpy()]
        mine = mine[mine.at_ms.between(*span).to_numpy()]
        if len(mine) and found < 4:
            upper.plot(
                [when(each) for each in mine.at_ms], mine.lag, color=drawing.PALETTE[found],
                linestyle=lines[found], marker="o", markersize=3.5, linewidth=1.6, label=named(group),
            )  # fmt: skip
            found += 1
    upper.set_ylabel("lag, records")
    drawing.count_axis(upper.yaxis)
    upper.yaxis.grid(True)
    upper.set_ylim(bottom=0)
    if found:
        upper.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2, borderaxespad=0)
    else:
        upper.text(0.5, 0.5, "no sample of lag", transform=upper.transAxes, ha="center", color=theme.faint)
        upper.set_yticks([])
    each_ms = drawing.step_ms(max(span.ms, 1), 60)
    first = span.from_ms // each_ms * each_ms
    count = max(int((span.until_ms - 1 - first) // each_ms) + 1, 1)
    mine = facts.rebalances[facts.rebalances.group.isin(around.groups).to_numpy()]
    mine = mine[mine.started_ms.between(*span).to_numpy()]
    below = np.zeros(count)
    for diagnosis in colour:
        begun = mine.started_ms[(mine.diagnosis == diagnosis).to_numpy()].to_numpy(dtype="float64")
        bars = np.bincount(np.minimum((begun - first) // each_ms, count - 1).astype(int), minlength=count)
        lower.bar(
            [when(first + number * each_ms) for number in range(count)], bars, bottom=below,
            width=when(each_ms) - when(0), align="edge", color=colour[diagnosis], edgecolor=theme.page,
            linewidth=0.5,
        )  # fmt: skip
        below += bars
    lower.set_ylabel("rebalances")
    drawing.count_axis(lower.yaxis)
    lower.set_ylim(0, max(float(below.max()), 1) * 1.1)
    lower.yaxis.grid(True)
    for axes in (upper, lower):
        axes.axvspan(when(around.during.from_ms), when(around.during.until_ms), color=theme.text, alpha=0.13)
        axes.axvline(when(around.during.from_ms), color=theme.text, linewidth=1.2, linestyle=(0, (2, 2)))
    upper.annotate(
        around.what, (when(around.during.from_ms), 1), xycoords=("data", "axes fraction"),
        xytext=(0, 4), textcoords="offset points", fontweight="bold", ha="center",
    )  # fmt: skip
    drawing.time_axis(lower, first, first + count * each_ms)
    drawing.causes_legend(made, colour, mine.diagnosis.dropna().unique())
    return made


def failover(facts: Facts, colour: dict[str, str], theme: Theme) -> Figure:
    """Rebalances of the groups that moved, around the costliest failover."""
    at, span, mine = failed_over(facts)
    names = list(dict.fromkeys(mine.group.value_counts().head(ROWS_MAX).index))
    names = [each for each in names if (mine.group == each).any()]
    made, axes = drawing.canvas(1.9 + 0.3 * len(names))
    stood_ms, said = facts.failovers.iloc[0].unavailable_max_ms, "failover"
    span = _frame(span, at - (stood_ms if stood_ms == stood_ms else 0), mine)
    for row, name in enumerate(names):
        for each in mine[(mine.group == name).to_numpy()].itertuples():
            ended = each.ended_ms if each.ended_ms == each.ended_ms else span.until_ms
            left, right = (each.started_ms - at) / 1_000, (min(ended, span.until_ms) - at) / 1_000
            # Even a rebalance of a second must be visible.
            wide = max(right - left, span.ms / 1_000 / 150)
            axes.barh(
                row,
                wide,
                left=left,
                height=0.6,
                color=colour[each.diagnosis],
                edgecolor=theme.page,
                linewidth=0.4,
            )
    if stood_ms == stood_ms:
        at_most = "" if facts.failovers.iloc[0].planned else "at most "
        said += f": no coordinator for {at_most}{duration(stood_ms)}"
        axes.axvspan(-stood_ms / 1_000, 0, color=theme.gap, zorder=0)
    axes.axvline(0, color=theme.text, linewidth=1.6)
    axes.annotate(
        said, (0, 1), xycoords=("data", "axes fraction"), xytext=(0, 4), textcoords="offset points",
        fontweight="bold", ha="center",
    )  # fmt: skip
    drawing.rows_axis(axes, [named(each) for each in names])
    axes.xaxis.grid(True)
    axes.set_xlim((span.from_ms - at) / 1_000, (span.until_ms - at) / 1_000)
    _seconds_axis(axes)
    axes.set_xlabel(f"time from the failover at {moment(at)}")
    drawing.causes_legend(made, colour, mine.diagnosis.dropna().unique())
    return made


def _frame(span: Span, since_ms: float, rebalances: pd.DataFrame) -> Span:
    """The part of the span that contains anything: from `since_ms` on, and all rebalances."""
    first = min(since_ms, float(rebalances.started_ms.min()))
    last = max(since_ms, float(rebalances.ended_ms.fillna(span.until_ms).max()))
    middle = (span.from_ms + span.until_ms) / 2
    margin = max((max(last, middle) - first) * 0.08, 1_000)
    return Span(max(span.from_ms, first - margin), min(span.until_ms, max(last, middle) + margin))


def failed_over(facts: Facts) -> tuple[float, Span, pd.DataFrame]:
    """When the costliest failover was, five minutes on both sides, and the rebalances of its groups then."""
    last = facts.failovers.iloc[0]
    at = float(last.at_ms)
    span = Span(at - 300_000, at + 300_000)
    mine = facts.rebalances[facts.rebalances.shard.isin(last.shards).to_numpy()]
    mine = mine[(mine.started_ms < span.until_ms) & (mine.ended_ms.isna() | (mine.ended_ms > span.from_ms))]
    return at, span, mine.assign(group=mine.group.astype("object"))


def _behind(facts: Facts) -> list[str]:
    """The groups with lag, furthest behind first, as many as are shown."""
    most = facts.lag.groupby("group", observed=True)["lag"].max().reset_index()
    most["group"] = most.group.astype("object")
    return list(most.sort_values(["lag", "group"], ascending=[False, True]).group.head(ROWS_MAX))


def _ended(facts: Facts) -> float:
    assert facts.worst is not None
    ended = facts.worst.ended_ms
    return float(ended if ended == ended and ended is not None else facts.end_ms)


def _zero(facts: Facts) -> float:
    assert facts.worst is not None
    return float(facts.worst.started_ms)


def _part(topic: str, number: int, several: bool) -> str:
    return f"{named(topic, 22)}-{number}" if several else str(number)


def _seconds_axis(axes: Any) -> None:
    """An axis of seconds before and after an event: −30 s, 0, +1 min."""
    from matplotlib import ticker

    low, high = axes.get_xlim()
    steps = (0.1, 0.2, 0.5, *(each / 1_000 for each in drawing.STEPS_MS))
    each_s = next((each for each in steps if (high - low) / each <= 9), steps[-1])
    axes.xaxis.set_major_locator(ticker.MultipleLocator(each_s))
    axes.xaxis.set_major_formatter(
        ticker.FuncFormatter(
            lambda s, _: "0" if abs(s) < 1e-6 else ("+" if s > 0 else "") + duration(round(s * 1_000))
        )
    )

"""Sections about all rebalances: which groups, how long, at what cost."""

from __future__ import annotations

from typing import Any

from muster.pipeline.report import columns, pictures
from muster.pipeline.report.html_tables import Shown, name, rows
from muster.pipeline.report.telling import Section, Telling, happened, word
from muster.pipeline.report.words import count, counted, duration, known, often, share


def groups(telling: Telling) -> Section:
    """Who rebalances most, and what is behind it."""
    found = telling.facts.groups
    made = Section("groups", "Which groups lose most to rebalances, and why?", [])
    if found.empty:
        made.answers.append("No group rebalanced.")
        return made
    first, busiest = found.iloc[0], found.loc[found.rebalances.idxmax()]
    cause = telling.causes.loc[telling.causes.rebalances.idxmax()]
    total = int(found.rebalances.sum())
    made.answers = [
        f"{name(first.group)} lost most: {duration(first.unowned_partition_ms)} of partition-time, "
        f"{share(first.costly_share)} of it because {happened(first.costly_diagnosis)}. It rebalanced "
        f"{_how_often(first)}."
        if first.unowned_partition_ms
        else f"{name(first.group)} rebalanced most: {_because(first)}. No partition was without an owner.",
        *(
            [f"{name(busiest.group)} rebalanced most: {_because(busiest)}."]
            if first.unowned_partition_ms and busiest.rebalances > first.rebalances
            else []
        ),
        f"In all there {'was' if total == 1 else 'were'} {counted(total, 'rebalance')} of "
        f"{counted(len(found), 'group')}. What was most often behind one: "
        f"{happened(cause.diagnosis)}: {share(cause.rebalances / total)} of all.",
    ]
    head = found.head(telling.top)
    if len(found) > len(head) > 1:
        part = head.rebalances.sum() / total
        made.answers.append(f"The first {count(len(head))} groups made {share(part)} of all rebalances.")
    made.shown.append(
        telling.coloured(
            "groups",
            "Bars: partition-time that each group lost, and its rebalances, by cause.",
            pictures.groups,
            "One row for each group, the one that lost most on top; colours say why. Partition-time is for "
            "how long partitions had no owner, summed over them.",
        )
    )
    made.shown.append(
        telling.coloured(
            "causes-over-time",
            "Columns: rebalances in each step of time, by cause.",
            pictures.causes_over_time,
            "When they began. A single high column is an event, such as a deploy; even columns all "
            "along are something that keeps happening.",
        )
    )
    made.shown.append(
        Shown(
            "table-groups",
            "Groups by what they lost",
            columns.GROUPS,
            rows(
                head,
                "group unowned_partition_ms rebalances per_hour top_diagnosis top_diagnosis_share p50_ms "
                "p95_ms max_ms evictions moved bounced stable_share",
            ),
            len(found),
        )
    )
    return made


def stood_still(telling: Telling) -> Section:
    """How long partitions had no owner."""
    facts, gaps = telling.facts, telling.facts.gaps
    made = Section("unavailability", "How long did partitions stand still?", [])
    lost = float(facts.groups.unowned_partition_ms.sum())
    if gaps.empty and not lost:
        made.answers.append("No partition was without an owner.")
        return made
    over = gaps[gaps.until_ms.notna()]
    waiting = gaps[gaps.until_ms.isna()]
    if len(over):
        worst = over.iloc[0]
        why = f" ({word(worst.diagnosis)})" if known(worst.diagnosis) else ""
        made.answers.append(
            f"The longest that a partition had no owner was {duration(worst.gap_ms)}: "
            f"{name(f'{worst.topic}-{worst.partition}')} of {name(worst.group)}{why}."
        )
        made.answers.append(
            f"{counted(len(over), 'time')} a partition was without an owner and then had one again: half "
            f"of these were over after {duration(over.gap_ms.quantile(0.5))}, 95 % after "
            f"{duration(over.gap_ms.quantile(0.95))}."
        )
    if len(waiting):
        worst = waiting.iloc[0]
        made.answers.append(
            f"{counted(len(waiting), 'partition has', 'partitions have')} no owner at the end of the "
            f"journal, the longest for {duration(worst.gap_ms)}: {name(f'{worst.topic}-{worst.partition}')} "
            f"of {name(worst.group)}. Those of groups that were shut down are among them."
        )
    made.answers.append(
        f"Rebalances cost {duration(lost)} of partition-time in all: one partition without an owner "
        "for a minute and six for ten seconds are a minute each. Records that come meanwhile wait."
    )
    made.shown.append(
        telling.coloured(
            "durations",
            "Columns: how many rebalances took how long, and how many times a partition had no owner for how "
            "long.",
            pictures.durations,
            "The further to the right, the worse; colours say why. A partition is without an owner from its "
            "owner's last sign of life: where a member died, for much longer than the rebalance took.",
        )
    )
    still_stood = pictures.stood_still(facts)
    if len(still_stood):
        head = still_stood.head(telling.top)
        longest = gaps.astype({"group": "object"}).groupby("group")["gap_ms"].max()
        made.shown.append(
            Shown(
                "table-unavailability",
                "Groups by partition-time without an owner",
                columns.UNAVAILABILITY,
                [
                    (r.group, r.unowned_partition_ms, longest.get(r.group), r.rebalances)
                    for r in head.itertuples()
                ],
                len(still_stood),
            )
        )
    head = gaps.head(telling.top)
    made.shown.append(
        Shown(
            "table-gaps",
            "The longest times of a partition without an owner",
            columns.GAPS,
            rows(
                head.assign(
                    part=[f"{t}-{p}" for t, p in zip(head.topic, head.partition, strict=True)],
                    before=[
                        facts.names.short(*each) for each in zip(head.group, head.from_member, strict=True)
                    ],
                    after=[facts.names.short(*each) for each in zip(head.group, head.to_member, strict=True)],
                ),
                "group part gap_ms from_ms until_ms diagnosis before after",
            ),
            len(gaps),
        )
    )
    return made


def costs(telling: Telling) -> Section:
    """What each cause cost."""
    made = Section("costs", "What did each cause cost?", [])
    found = telling.facts.causes
    if found.empty:
        made.answers.append("There was no rebalance.")
        return made
    costly = pictures.by_diagnosis(telling.facts).iloc[0]
    total = float(found.unowned_partition_ms.sum())
    if total:
        made.answers.append(
            f"Most partition-time was lost when {happened(costly.diagnosis)}: "
            f"{duration(costly.unowned_partition_ms)}, {share(costly.unowned_partition_ms / total)} "
            f"of all, by {counted(costly.rebalances, 'rebalance')}."
        )
    else:
        made.answers.append("No rebalance left a partition without an owner.")
    bounced, moved = float(found.bounced.sum()), float(found.moved.sum())
    if moved:
        made.answers.append(
            f"{counted(moved, 'partition')} changed hands, {share(bounced / moved)} of them "
            "needlessly: the member that had it was still there. A cooperative or sticky assignor "
            "avoids that."
            if bounced
            else f"{counted(moved, 'partition')} changed hands, none of them needlessly."
        )
    refused = float(found.commits_refused.sum())
    if refused:
        made.answers.append(
            f"{counted(refused, 'commit was', 'commits were')} refused: what they were for was "
            "delivered again."
        )
    made.shown.append(
        telling.coloured(
            "costs",
            "Bars: rebalances, partition-time and lag by cause.",
            pictures.costs,
            "Causes by what they cost; each column has a scale of its own. What happens most often "
            "is seldom what costs most. Lag is known only where groups commit offsets.",
        )
    )
    made.shown.append(
        Shown(
            "table-costs",
            "Causes by what they cost",
            columns.COSTS,
            rows(
                found,
                "diagnosis cause rebalances groups p50_ms p95_ms max_ms unowned_partition_ms moved "
                "bounced lag_growth lag_known recovered recovery_p50_ms commits_refused",
            ),
            len(found),
        )
    )
    return made


def _because(group: Any) -> str:
    if group.rebalances == 1:
        return f"once, because {happened(group.top_diagnosis)}"
    part = share(group.top_diagnosis_share)
    return f"{_how_often(group)}, {part} of these because {happened(group.top_diagnosis)}"


def _how_often(group: Any) -> str:
    per_hour = group.per_hour if known(group.per_hour) else None
    return often(group.rebalances, per_hour, group.seen_ms)

"""Sections about single things: the worst rebalance, who flaps, deploys, failovers, lag, what is open."""

from __future__ import annotations

from html import escape
from shlex import quote
from typing import Any

from muster.pipeline.report import columns, moments, pictures
from muster.pipeline.report.facts import Facts, Span, per_hour
from muster.pipeline.report.html_tables import Shown, moment, name, rows
from muster.pipeline.report.telling import Section, Telling, happened
from muster.pipeline.report.words import count, counted, duration, known, times


def worst(telling: Telling) -> Section:
    """The costliest rebalance."""
    facts, worst = telling.facts, telling.facts.worst
    assert worst is not None
    made = Section("worst", "The worst rebalance, partition by partition", [])
    lost = float(worst.unowned_partition_ms) if known(worst.unowned_partition_ms) else 0
    took = f"took {duration(worst.duration_ms)}" if known(worst.duration_ms) else "is under way"
    made.answers.append(
        f"The costliest rebalance was {name(worst.group)}'s at {moment(worst.started_ms)}: it {took}, and "
        + (
            f"{counted(worst.unowned_partitions, 'partition')} had no owner for up to "
            f"{duration(worst.unowned_max_ms)}."
            if lost
            else "no partition was without an owner."
        )
    )
    who = f", {name(_who(facts, worst))}" if _who(facts, worst) else ""
    made.answers.append(
        f"Behind it ({escape(str(worst.certainty))}): {happened(worst.diagnosis)}{who}. To see "
        f"more: <code>muster groups why</code> {name(quote(str(worst.group)))} <code>--generation "
        f"{worst.generation:.0f}</code>."
        if known(worst.generation)
        else f"Behind it ({escape(str(worst.certainty))}): {happened(worst.diagnosis)}{who}."
    )
    _, owned, _ = moments.gantt(facts)
    if len(owned):
        parts = len(set(zip(owned.topic, owned.partition, strict=True)))
        alt = "Bars: which member owned each partition, with the times in which nobody did."
        rest = (
            f" Of its partitions those {parts} are shown that had no owner the longest."
            if parts == moments.PARTITIONS_MAX
            else ""
        )
        made.shown.append(
            telling.plain(
                "worst-rebalance",
                alt,
                moments.ownership,
                "One row for each partition, one colour for each member; hatched: nobody had it. "
                "Between the dotted lines the group rebalanced." + rest,
            )
        )
    made.shown.append(
        Shown(
            "table-worst",
            "This rebalance",
            columns.WORST,
            [
                tuple(
                    worst[each]
                    for each in [
                        "group",
                        "started_ms",
                        "duration_ms",
                        "diagnosis",
                        "certainty",
                        "generation",
                        "members",
                        "moved",
                        "unowned_partition_ms",
                        "lag_before",
                        "lag_peak",
                    ]
                )
            ],
            1,
        )
    )
    _before_and_after(telling, made, "rebalance")
    return made


def flapping(telling: Telling) -> Section:
    """Members and hosts that come and go."""
    found = telling.facts.flapping
    made = Section("flapping", "Who comes and goes?", [])
    members = found[(found.kind == "member").to_numpy()]
    hosts = found[(found.kind == "host").to_numpy()]
    if members.empty and hosts.empty:
        made.answers.append("No member and no host was lost or left three times within an hour.")
        return made
    if len(members):
        first = members.iloc[0]
        made.answers.append(
            f"{counted(len(members), 'member')} went three times or more within an hour; most often "
            f"{name(first['name'])} of {name(first['group'])}, {times(first.ends_in_hour_max)} "
            f"within an hour, and was put out {times(first.evictions)}."
            if first.evictions
            else f"{counted(len(members), 'member')} went three times or more within an hour; most often "
            f"{name(first['name'])} of {name(first['group'])}, {times(first.ends_in_hour_max)}, of "
            "its own accord."
        )
    if len(hosts):
        first = hosts.iloc[0]
        made.answers.append(
            f"Of hosts, {name(first['name'])} lost {counted(first.ends_in_hour_max, 'member')} "
            f"within an hour, in {counted(first.groups, 'group')}."
        )
    if len(members):
        made.shown.append(
            telling.plain(
                "flapping",
                "Bars: when each flapping member was there, and how it ended.",
                pictures.flapping,
                "One row for each member, a bar while it was in the group. A cross ends it where "
                "it was put out, a dot where it left by itself, or came back under another id.",
            )
        )
    for found, kind in ((members, "member"), (hosts, "host")):
        if found.empty:
            continue
        made.shown.append(
            Shown(
                f"table-flapping-{kind}s",
                f"{kind.capitalize()}s with three ends or more within an hour, over the whole journal",
                columns.FLAPPING_MEMBERS if kind == "member" else columns.FLAPPING_HOSTS,
                rows(
                    found.head(telling.top),
                    f"name {'group' if kind == 'member' else 'groups'} ends_in_hour_max sessions "
                    "ends evictions late first_ms last_ms",
                ),
                len(found),
            )
        )
    return made


def deploys(telling: Telling) -> Section:
    """Rolling restarts, with a comparison before and after the costliest."""
    found = telling.facts.deploys
    made = Section("deploys", "What did each deploy do?", [])
    if found.empty:
        made.answers.append("No rolling restart was seen: half of a group or more going and coming back.")
    else:
        most = found.iloc[0]
        made.answers.append(
            (
                "One rolling restart, of "
                if len(found) == 1
                else f"{count(len(found))} rolling restarts; the costliest, of "
            )
            + f"{name(most.group)}, took {duration(most.duration_ms)} for "
            f"{counted(most.restarted, 'member')}: "
            + (
                f"{counted(most.rebalances, 'rebalance')}, {counted(most.moved, 'partition')} "
                f"moved, {duration(most.unowned_partition_ms)} of partition-time without an owner."
                if most.rebalances
                else "no rebalance came of it."
            )
        )
        quiet = found[(found.rebalances == 0).to_numpy()]
        if len(quiet):
            made.answers.append(
                f"{counted(len(quiet), 'rolling restart')} went without a rebalance, as static members' do "
                "(group.instance.id)."
            )
    _before_and_after(telling, made, "deploy")
    if len(found):
        made.shown.append(
            Shown(
                "table-deploys",
                "Rolling restarts by what they cost",
                columns.DEPLOYS,
                rows(
                    found.head(telling.top).assign(
                        static=["yes" if each else "no" for each in found.is_static.head(telling.top)]
                    ),
                    "group started_ms duration_ms restarted members static rebalances moved "
                    "bounced unowned_partition_ms",
                ),
                len(found),
            )
        )
    return made


def _before_and_after(telling: Telling, made: Section, what: str) -> None:
    """Add the comparison to the section if it is about `what`."""
    facts, around = telling.facts, telling.facts.around
    if around is None or around.what != what:
        return
    whom = name(around.groups[0])
    if len(around.groups) > 1:
        whom += f" and {counted(len(around.groups) - 1, 'more group')}"
    times_compared = [
        (label, *_in(facts, span))
        for label, span in (
            ("before", around.before),
            (f"during the {around.what}", around.during),
            ("after", around.after),
        )
    ]
    made.shown.append(
        telling.coloured(
            "before-and-after",
            f"Lag and rebalances before and after a {around.what}.",
            moments.before_and_after,
            f"Before and after a {around.what} of {whom}, which the grey band is. Above, how many "
            "records the group was behind, where that was sampled; below, when it rebalanced, and why.",
        )
    )
    made.shown.append(
        Shown(
            "table-around",
            "Before and after",
            columns.AROUND,
            times_compared,
            3,
        )
    )


def failovers(telling: Telling) -> Section:
    """What moved to another broker, and what followed."""
    facts, found = telling.facts, telling.facts.failovers
    made = Section("failovers", "What did each failover do?", [])
    if found.empty:
        made.answers.append("No failover was seen: all groups stayed with their broker.")
        return made
    most = found.iloc[0]
    made.answers.append(
        ("One failover, " if len(found) == 1 else f"{count(len(found))} failovers; the costliest, ")
        + f"{moment(most.at_ms)}: {_brokers(most)}, {counted(len(most.shards), 'shard')} with "
        f"{counted(most.groups, 'group')}. {_stood_still(most)} "
        f"{_nothing(most.rebalances_interrupted, 'rebalance was', 'rebalances were')} interrupted, "
        f"{_nothing(most.rebalances_after, 'rebalance', 'rebalances').lower()} began within five "
        "minutes, "
        + (
            f"{counted(most.members_lost, 'member')} did not come back."
            if most.members_lost
            else "every member came back."
        )
    )
    _before_and_after(telling, made, "failover")
    if len(moments.failed_over(facts)[2]):
        made.shown.append(
            telling.coloured(
                "failover",
                "Marks: rebalances round the costliest failover, by group.",
                moments.failover,
                "Rebalances of the groups that moved, five minutes before and after; one row for "
                "each group that had any. A failover by itself makes no group rebalance; one right "
                "after it may be of a member that did not find the new coordinator in time.",
            )
        )
    made.shown.append(
        Shown(
            "table-failovers",
            "Failovers by how long groups had no coordinator",
            columns.FAILOVERS,
            [
                (
                    r.at_ms,
                    _brokers(r),
                    "yes" if r.planned else "no",
                    r.unavailable_max_ms,
                    len(r.shards),
                    r.groups,
                    r.took_max_ms,
                    r.rebalances_interrupted,
                    r.rebalances_after,
                    r.members_lost,
                )
                for r in found.head(telling.top).itertuples()
            ],
            len(found),
        )
    )
    return made


def lag(telling: Telling) -> Section:
    """How far behind groups were."""
    facts = telling.facts
    made = Section("lag", "Who was behind, and when?", [])
    if facts.lag.empty:
        made.answers.append("Not known: lag is sampled when a group commits offsets, and none did.")
        return made
    samples = facts.lag.astype({"group": "object"}).sort_values("at_ms")
    of_each = samples.groupby("group")
    found = of_each["lag"].agg(["max", "median", "last", "size"])
    found["at_ms"] = samples.loc[of_each["lag"].idxmax().to_numpy(), "at_ms"].to_numpy()
    found = found.reset_index().sort_values(["max", "group"], ascending=[False, True], ignore_index=True)
    first = found.iloc[0]
    made.answers.append(
        f"{name(first['group'])} was furthest behind: {counted(first['max'], 'record')}, "
        f"{moment(first.at_ms)}; at its last sample, {count(first['last'])}."
        if first["max"]
        else "Nobody was behind: no sample of lag was above 0."
    )
    made.shown.append(
        telling.plain(
            "lag",
            "Lines: lag of the groups that were furthest behind, over time.",
            moments.lag_lines,
            "One line for each group, of those that were furthest behind. A line breaks off where the group "
            "committed nothing: how far behind it was then is not known.",
        )
    )
    made.shown.append(
        Shown(
            "table-lag",
            "Groups by their highest lag",
            columns.LAG,
            rows(found.head(telling.top), "group max at_ms median last size"),
            len(found),
        )
    )
    return made


def still_open(telling: Telling) -> Section:
    """Rebalances under way."""
    facts, found = telling.facts, telling.facts.open
    made = Section("open", "Which rebalances are still open?", [])
    if found.empty:
        made.answers.append("No rebalance is open: every one is over.")
        return made
    first = found.iloc[0]
    made.answers.append(
        f"{counted(len(found), 'rebalance is', 'rebalances are')} under way at the end of the "
        f"journal, that of {name(first.group)} the longest: "
        f"{duration(facts.end_ms - first.started_ms)}."
    )
    made.shown.append(
        telling.coloured(
            "open",
            "Bars: how long rebalances have been under way.",
            pictures.still_open,
            "The longest on top; colours say what began it.",
        )
    )
    made.shown.append(
        Shown(
            "table-open",
            "Rebalances under way, the longest first",
            columns.OPEN,
            [
                (r.group, r.started_ms, facts.end_ms - r.started_ms, r.state, r.diagnosis, _who(facts, r))
                for r in found.head(telling.top).itertuples()
            ],
            len(found),
        )
    )
    return made


def _who(facts: Facts, rebalance: Any) -> str:
    who = facts.names.short(rebalance.group, rebalance.member_id)
    for each in (who, rebalance.instance, rebalance.client_id):
        if known(each):
            host = f" on {rebalance.host}" if known(rebalance.host) else ""
            return f"{each}{host}"
    return ""


def _stood_still(failover: Any) -> str:
    """How long groups had no coordinator."""
    if not known(failover.unavailable_max_ms):
        return "For how long they had no coordinator is not known."
    took = duration(failover.unavailable_max_ms)
    if failover.planned:
        return f"They had no coordinator for {took}."
    return f"They had no coordinator for at most {took}, counted from the former one's last sign of life."


def _brokers(failover: Any) -> str:
    source = f"from broker {failover.from_broker:.0f} " if known(failover.from_broker) else ""
    return f"{source}to broker {failover.broker:.0f}"


def _nothing(number: float, noun: str, plural: str) -> str:
    return f"No {noun}" if not number else counted(number, noun, plural)


def _in(facts: Facts, span: Span) -> tuple[Any, ...]:
    """The figures of the before-and-after table for one time span."""
    assert facts.around is not None
    mine = facts.rebalances[facts.rebalances.group.isin(facts.around.groups).to_numpy()]
    mine = mine[mine.started_ms.between(*span, inclusive="left").to_numpy()]
    lag = facts.lag[facts.lag.group.isin(facts.around.groups).to_numpy()]
    lag = lag[lag.at_ms.between(*span, inclusive="left").to_numpy()].lag
    return (
        span.ms,
        len(mine),
        per_hour(len(mine), span.ms),
        mine.unowned_partition_ms.sum(),
        lag.median() if len(lag) else None,
        lag.max() if len(lag) else None,
    )

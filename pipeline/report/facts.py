"""The facts of the report, from the tables; nothing here is drawn or worded.

A rebalance, a deploy or a failover counts if it began in the window; a time without an owner, if any part of
it is in the window. Percentiles are interpolated, as in the gold tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from muster.pipeline.errors import PipelineError
from muster.pipeline.journal import tables
from muster.pipeline.report.lake import Lake
from muster.pipeline.report.members import MemberNames

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow.compute as pc

_REBALANCE: Final = [
    "rebalance_id", "group", "shard", "generation", "outcome", "state", "started_ms", "ended_ms",
    "duration_ms", "cause", "diagnosis", "certainty", "member_id", "client_id", "host", "instance",
    "members", "moved", "bounced", "unowned_partitions", "unowned_partition_ms", "unowned_max_ms",
    "lag_before", "lag", "lag_peak", "recovered_ms", "recovery_ms", "commits_refused",
]  # fmt: skip
_SESSION: Final = [
    "group", "member_id", "client_id", "host", "instance", "joined_ms", "ended_ms", "end_cause", "evicted"
]  # fmt: skip
_SUMMED: Final = ("moved", "bounced", "unowned_partition_ms", "commits_refused", "duration_ms")
_QUANTILES: Final = {"duration_ms": "", "recovery_ms": "recovery_"}
"""Columns that get percentiles, and the prefix of these percentiles' names."""
_AROUND_MIN_MS: Final = 10 * 60_000
_AROUND_SHARE: Final = 5
"""The times before and after a deploy are each this many times as long as it, and at least ten minutes."""
_APART_MS: Final = 60_000
"""Shards that move from one broker to another within this time belong to one failover."""


class Asked(NamedTuple):
    """What the user wants to see. Times are epoch ms; None means no limit."""

    groups: tuple[str, ...] = ()
    since_ms: int | None = None
    until_ms: int | None = None
    top: int = 10


class Span(NamedTuple):
    """From one moment to another, epoch ms."""

    from_ms: float
    until_ms: float

    @property
    def ms(self) -> float:
        """Its length."""
        return self.until_ms - self.from_ms


class Around(NamedTuple):
    """Something that happened, and the times compared: before it and after it."""

    what: str
    """deploy, failover, or rebalance"""
    groups: tuple[str, ...]
    during: Span
    before: Span
    after: Span


@dataclass
class Facts:
    """All facts; a table has no rows if there is nothing to tell."""

    asked: Asked
    journal: Span | None
    """The time that the journal covers; None if it is empty."""
    span: Span
    """The window within it."""
    end_ms: float
    """The last moment that the window contains."""
    rebalances: pd.DataFrame
    causes: pd.DataFrame
    groups: pd.DataFrame
    gaps: pd.DataFrame
    flapping: pd.DataFrame
    sessions: pd.DataFrame
    deploys: pd.DataFrame
    failovers: pd.DataFrame
    lag: pd.DataFrame
    open: pd.DataFrame
    around: Around | None
    worst: pd.Series | None
    owned: pd.DataFrame
    """Who owned what around the worst rebalance, in its group."""
    names: MemberNames

    @property
    def is_whole(self) -> bool:
        """Whether the window is the whole journal."""
        return self.asked.since_ms is None and self.asked.until_ms is None


def span_of(lake: Lake) -> Span | None:
    """From the first to the last entry of any group in the journal; None if there is none."""
    health = lake.read(tables.GROUP_HEALTH, ["first_ms", "last_ms"])
    if health.empty:
        return None
    return Span(float(health.first_ms.min()), float(health.last_ms.max()))


def facts(lake: Lake, asked: Asked) -> Facts:
    """Read and compute everything. Raises PipelineError, which names the option that selects nothing."""
    import pyarrow.compute as pc

    journal = span_of(lake)
    span = Span(
        max(x for x in (asked.since_ms, journal and journal.from_ms, 0) if x is not None),
        min(x for x in (asked.until_ms, journal and journal.until_ms + 1, 1 << 62) if x is not None),
    )
    if journal is None:
        span = Span(0, 0)
    elif span.from_ms >= span.until_ms:
        raise PipelineError("--since, --until: the journal has nothing in that time: " + _told(journal))

    def of_groups(more: pc.Expression | None = None) -> pc.Expression | None:
        if not asked.groups:
            return more
        mine = pc.field("group").isin(list(asked.groups))
        return mine if more is None else mine & more

    # As the user asked: what the journal reports can have begun before its first entry.
    since_ms, until_ms = asked.since_ms or 0, 1 << 62 if asked.until_ms is None else asked.until_ms

    def within(name: str) -> pc.Expression:
        return (pc.field(name) >= since_ms) & (pc.field(name) < until_ms)

    health = lake.read(tables.GROUP_HEALTH, ["group", "first_ms", "stable_share"], of_groups())
    unknown = [each for each in asked.groups if each not in set(health.group)]
    if unknown and journal is not None:
        raise PipelineError(f"--group: the journal tells nothing of a group {unknown[0]!r}")

    rebalances = lake.read(tables.REBALANCES, _REBALANCE, of_groups(within("started_ms")))
    rebalances = rebalances.sort_values(["started_ms", "rebalance_id"], ignore_index=True)
    lag = lake.read(tables.LAG_SAMPLES, ["group", "at_ms", "source", "lag"], of_groups(within("at_ms")))
    shards = lake.read(tables.FAILOVER_IMPACT, tables.FAILOVER_IMPACT.names, within("at_ms"))
    if journal is not None:
        span = _with_all(span, (rebalances.started_ms, lag.at_ms, shards.at_ms))
    gaps = lake.read(
        tables.UNAVAILABILITY,
        tables.UNAVAILABILITY.names,
        of_groups(
            (pc.field("from_ms") < until_ms)
            & (pc.field("until_ms").is_null() | (pc.field("until_ms") > since_ms))
        ),
    )
    sessions = lake.read(tables.MEMBER_SESSIONS, _SESSION, of_groups())
    flapping = _flapping(lake, span, of_groups(pc.field("flapping")))
    deploys = lake.read(tables.DEPLOYS, tables.DEPLOYS.names, of_groups(within("started_ms")))
    deploys = deploys.sort_values(
        ["unowned_partition_ms", "rebalances", "started_ms"], ascending=False, ignore_index=True
    )
    failovers = _failovers(shards, rebalances, asked)
    end_ms = span.until_ms if asked.until_ms is not None else max(span.until_ms - 1, span.from_ms)
    around = _around(rebalances, deploys, failovers, Span(span.from_ms, end_ms))
    worst = _worst(rebalances)
    owned = _owned(lake, worst)
    return Facts(
        asked=asked,
        journal=journal,
        span=span,
        end_ms=end_ms,
        rebalances=rebalances,
        causes=costs(rebalances, ["cause", "diagnosis"]),
        groups=_groups(rebalances, sessions, health, Span(span.from_ms, end_ms)),
        gaps=gaps.sort_values("gap_ms", ascending=False, ignore_index=True),
        flapping=flapping,
        sessions=sessions,
        deploys=deploys,
        failovers=failovers,
        lag=lag.sort_values("at_ms", ignore_index=True),
        open=rebalances[rebalances.outcome == "under way"].sort_values("started_ms", ignore_index=True),
        around=around,
        worst=worst,
        owned=owned,
        names=MemberNames(sessions, owned),
    )


def _with_all(span: Span, moments: Sequence[pd.Series]) -> Span:
    """The window, extended to everything that was found in it."""
    found = [each.astype("float64") for each in moments if len(each)]
    return Span(
        min([span.from_ms, *(each.min() for each in found)]),
        max([span.until_ms, *(each.max() + 1 for each in found)]),
    )


def costs(rebalances: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """The figures of gold.cost_per_cause, by any columns; the costliest first."""
    import pandas as pd

    known = rebalances.lag.notna() & rebalances.lag_before.notna()
    given = rebalances.assign(
        growth=(rebalances.lag - rebalances.lag_before).clip(lower=0).where(known), is_known=known
    )
    given = given.astype(dict.fromkeys((*_SUMMED, *_QUANTILES, "growth", "recovered_ms"), "float64"))
    of_each = given.groupby(list(by), observed=True, dropna=False)
    found = pd.DataFrame(
        {
            "rebalances": of_each.size(),
            "groups": of_each["group"].nunique(),
            **{f"{name}p50_ms": of_each[each].quantile(0.5) for each, name in _QUANTILES.items()},
            **{f"{name}p95_ms": of_each[each].quantile(0.95) for each, name in _QUANTILES.items()},
            **{f"{name}max_ms": of_each[each].max() for each, name in _QUANTILES.items()},
            **{each: of_each[each].sum() for each in _SUMMED},
            "lag_growth": of_each["growth"].sum(),
            "lag_known": of_each["is_known"].sum(),
            "recovered": of_each["recovered_ms"].count(),
        }
    ).reset_index()
    return _most(found, ["unowned_partition_ms", "rebalances"], by)


def per_hour(number: float, ms: float) -> float | None:
    """The rate per hour of `number` in `ms`; None if that is too short to say."""
    return number * 3_600_000 / ms if ms >= tables.RATE_MIN_MS else None


def _most(found: pd.DataFrame, columns: Sequence[str], names: Sequence[str]) -> pd.DataFrame:
    """Sort largest first, ties by name."""
    found = found.astype(dict.fromkeys(names, "object"))
    order = [*columns, *names]
    return found.sort_values(
        order, ascending=[*(False for _ in columns), *(True for _ in names)], ignore_index=True
    )


def _groups(
    rebalances: pd.DataFrame, sessions: pd.DataFrame, health: pd.DataFrame, span: Span
) -> pd.DataFrame:
    """A row for each group with a rebalance in the window, as gold.group_health has them."""
    found = costs(rebalances, ["group"])
    top = costs(rebalances, ["group", "diagnosis"]).sort_values(["rebalances", "diagnosis"], ascending=False)
    top = top.drop_duplicates("group").set_index("group")
    found["top_diagnosis"] = found.group.map(top.diagnosis)
    found["top_diagnosis_share"] = found.group.map(top.rebalances) / found.rebalances
    costly = costs(rebalances, ["group", "diagnosis"]).drop_duplicates("group").set_index("group")
    found["costly_diagnosis"] = found.group.map(costly.diagnosis)
    found["costly_share"] = found.group.map(costly.unowned_partition_ms) / found.unowned_partition_ms
    out = sessions[(sessions.evicted == True) & sessions.ended_ms.between(*span)]  # noqa: E712
    found["evictions"] = found.group.map(out.groupby("group", observed=True).size()).fillna(0)
    over = rebalances[rebalances.ended_ms.notna()].groupby("group", observed=True).size()
    by_name = health.drop_duplicates("group").set_index("group")
    found["seen_ms"] = span.until_ms - found.group.map(by_name.first_ms).clip(lower=span.from_ms)
    ended = found.group.map(over).fillna(0)
    found["per_hour"] = [per_hour(*each) for each in zip(ended, found.seen_ms, strict=True)]
    found["stable_share"] = found.group.map(by_name.stable_share)
    return found


def _flapping(lake: Lake, span: Span, where: pc.Expression | None) -> pd.DataFrame:
    """Members that flap, and hosts too unless only some groups are asked for."""
    found = lake.read(tables.FLAPPING, tables.FLAPPING.names, where)
    found = found[(found.first_ms < span.until_ms) & (found.last_ms >= span.from_ms)]
    return _most(found, ["ends_in_hour_max", "ends", "evictions"], ["name", "group"])


def _failovers(shards: pd.DataFrame, rebalances: pd.DataFrame, asked: Asked) -> pd.DataFrame:
    """One row for all shards that moved together; the longest without a coordinator first."""
    import pandas as pd

    shards = shards.sort_values(["at_ms", "shard"], ignore_index=True)
    made: list[dict[str, Any]] = []
    last: dict[tuple[Any, ...], dict[str, Any]] = {}
    counts = ("groups", "rebalances_interrupted", "rebalances_after", "members_lost")
    for row in shards.to_dict("records"):
        brokers = tuple(None if row[each] != row[each] else row[each] for each in ("from_broker", "broker"))
        key = (*brokers, bool(row["planned"]))
        one = last.get(key)
        if one is None or row["at_ms"] - one["until_ms"] > _APART_MS:
            one = {"at_ms": row["at_ms"], "from_broker": brokers[0], "broker": brokers[1]}
            one |= {"planned": key[2], "unavailable_max_ms": float("nan"), "took_max_ms": float("nan")}
            one |= {"shards": [], **dict.fromkeys(counts, 0)}
            made.append(one)
            last[key] = one
        one["until_ms"] = row["at_ms"]
        one["shards"].append(row["shard"])
        for each in counts:
            one[each] += 0 if row[each] != row[each] else int(row[each])
        for each in ("unavailable", "took"):
            value = row[f"{each}_ms"]
            if value == value and value is not None:
                one[f"{each}_max_ms"] = max(value, one[f"{each}_max_ms"], key=lambda x: -1 if x != x else x)
    columns = ["at_ms", "until_ms", "from_broker", "broker", "planned", "shards", *counts]
    found = pd.DataFrame(made[::-1], columns=[*columns, "unavailable_max_ms", "took_max_ms"])
    found = found.sort_values(
        ["unavailable_max_ms", "at_ms"], ascending=False, na_position="last", ignore_index=True
    )
    if asked.groups:  # their shards are known from their rebalances
        mine = set(rebalances.shard)
        found = found.loc[[bool(mine & set(each)) for each in found.shards]].reset_index(drop=True)
    return found


def _around(
    rebalances: pd.DataFrame, deploys: pd.DataFrame, failovers: pd.DataFrame, within: Span
) -> Around | None:
    """The costliest deploy that cost anything, preferably one whose aftermath is in sight; or else the
    costliest failover; or else the worst rebalance."""
    costly = deploys[(deploys.unowned_partition_ms > 0).to_numpy()]
    worst = _worst(rebalances)
    if len(costly):
        told = costly[costly.ended_ms + costly.duration_ms < within.until_ms]  # its aftermath is in sight
        most = (told if len(told) else costly).iloc[0]
        what, groups = "deploy", [str(most.group)]
        during = Span(float(most.started_ms), float(most.ended_ms))
    elif len(failovers):
        most = failovers.iloc[0]
        stood_ms = 0.0 if most.unavailable_max_ms != most.unavailable_max_ms else most.unavailable_max_ms
        what, during = "failover", Span(float(most.at_ms - stood_ms), float(most.until_ms))
        mine = rebalances[rebalances.shard.isin(most.shards)]
        groups = [str(each) for each in mine.group.unique()]
    elif worst is None:
        return None
    else:
        what, groups = "rebalance", [str(worst.group)]
        ended = worst.ended_ms if worst.ended_ms == worst.ended_ms else within.until_ms
        during = Span(float(worst.started_ms), float(ended))
    if not groups:
        return None
    each_ms = max(_AROUND_MIN_MS, _AROUND_SHARE * during.ms)
    before = Span(max(during.from_ms - each_ms, min(within.from_ms, during.from_ms)), during.from_ms)
    after = Span(during.until_ms, min(during.until_ms + each_ms, max(within.until_ms, during.until_ms)))
    return Around(what, tuple(groups), during, before, after)


def _worst(rebalances: pd.DataFrame) -> pd.Series | None:
    """The one that cost most partition-time, or else took longest, or else began first."""
    if rebalances.empty:
        return None
    order = rebalances.assign(
        unowned=rebalances.unowned_partition_ms.astype("float64").fillna(0),
        took=rebalances.duration_ms.astype("float64").fillna(0),
    )
    return order.sort_values(["unowned", "took", "started_ms"], ascending=[False, False, True]).iloc[0]


def _owned(lake: Lake, worst: pd.Series | None) -> pd.DataFrame:
    import pyarrow.compute as pc

    names = tables.OWNERSHIP.names
    if worst is None:
        return lake.read(tables.OWNERSHIP, names, pc.field("from_ms") < 0)
    return lake.read(tables.OWNERSHIP, names, pc.field("group") == str(worst.group))


def _told(span: Span) -> str:
    from muster.pipeline.report.words import moment

    return f"it has {moment(span.from_ms)} to {moment(span.until_ms)}"

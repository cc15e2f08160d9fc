"""Offset commits of groups of one: how what a commit costs grows with the number of groups that commit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tests.bench.peers.measure import IN_PROCESS, Goal, Measure, Point, Quantity, Scale, drive, over_sizes
from tests.bench.peers.measures.commits import OPTIONS, commit
from tests.bench.peers.servers import Kind, Running


def _run(kind: Kind, scale: Scale) -> list[Point]:
    def measured(running: Running, groups: int, times: Mapping[str, float]) -> list[Point]:
        return drive(commit, running, groups=groups, size=1, at=groups, **times)

    return over_sizes(kind, OPTIONS, scale, scale.sizes((64,), (64, 1_000), cold=(64,)), measured)


_GOALS: Final = (Goal(1.0), Goal(2.0, beside="kafka-flush"))

MEASURE: Final = Measure(
    "committing_groups",
    "Offset commits of many groups",
    "As above, but each member is a group of its own: what commits of different groups have in common is the "
    "transaction alone.",
    (
        Quantity("rate", "commits a second", "/s", "more", axis="groups", goals=_GOALS),
        Quantity("p50_ms", "median of a commit", "ms", "less", axis="groups", chart=False),
        Quantity("p99_ms", "99th percentile of a commit", "ms", "less", axis="groups", chart=False),
        Quantity("p999_ms", "99.9th percentile of a commit", "ms", "less", axis="groups", chart=False),
        Quantity("cpu_us", "CPU of a commit", "us", "less", axis="groups", chart=False),
    ),
    _run,
    cannot={"muster-3": IN_PROCESS, "mock": "commits of 64 groups stay unanswered."},
    cold=True,
)

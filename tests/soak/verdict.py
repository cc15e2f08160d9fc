"""Samples of a soak, the straight lines through them, and the verdict. Pure: no clock, no files."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

WARM_UP_SHARE: Final = 0.2
"""This share of the time, at most WARM_UP_S_MAX, is left out of the lines: caches fill, retention begins."""
WARM_UP_S_MAX: Final = 1_200.0
JUDGED_S_MIN: Final = 1_800.0
"""A line through less than this means nothing: the traffic itself rises and falls by the minute."""

MEMORY_MIB_PER_HOUR_MAX: Final = 6.0
"""Over a month that would be 4 GB; below it, allocators and a busy machine cause more noise than leaks do."""
OBJECTS_SHARE_PER_HOUR_MAX: Final = 0.05
"""Growth of the number of objects that Python's collector tracks, as a share of their mean."""

_TYPES_TOLD: Final = 5

POOLED_THREADS_MAX: Final = 40
"""Thread pools start threads when work first finds none idle, and keep them: 4 for files, 1 for upkeep, 1 for
validation, at most 32 of the loop's own pool."""


class Line(NamedTuple):
    """A least-squares line: its mean, its slope per hour, and the standard error of that slope."""

    mean: float
    per_hour: float
    error: float


class Judged(NamedTuple):
    what: str
    good: bool | None
    """None: there was too little data to judge."""
    why: str

    def __str__(self) -> str:
        said = {True: "ok", False: "FAILED", None: "not judged"}[self.good]
        return f"{said:>10}  {self.what}: {self.why}"


def fit(points: Sequence[tuple[float, float]]) -> Line:
    """The line through (seconds, value) points; there must be at least three, at different times."""
    count = len(points)
    mean_at = sum(at for at, _ in points) / count
    mean = sum(value for _, value in points) / count
    spread = sum((at - mean_at) ** 2 for at, _ in points)
    slope = sum((at - mean_at) * (value - mean) for at, value in points) / spread
    residual = sum((value - mean - slope * (at - mean_at)) ** 2 for at, value in points)
    error = math.sqrt(residual / (count - 2) / spread)
    return Line(mean, slope * 3600, error * 3600)


def after_warm_up(samples: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """The samples that lines are drawn through, selected by their `at_s`."""
    if not samples:
        return samples
    from_s = min(samples[-1]["at_s"] * WARM_UP_SHARE, WARM_UP_S_MAX)
    return [sample for sample in samples if sample["at_s"] >= from_s]


def flat(samples: Sequence[Mapping[str, Any]], side: str) -> list[Judged]:
    """Whether memory and objects of one side, "server" or "client", grew without end."""
    judged = after_warm_up(samples)
    if len(judged) < 10 or judged[-1]["at_s"] - judged[0]["at_s"] < JUDGED_S_MIN:
        return [
            Judged(f"memory of the {side}", None, f"less than {JUDGED_S_MIN / 60:.0f} minutes of samples")
        ]
    memory = fit([(each["at_s"], each[side]["resident_bytes"] / 2**20) for each in judged])
    objects = fit([(each["at_s"], each[side]["objects"]) for each in judged])
    share = objects.per_hour / objects.mean
    return [
        Judged(
            f"memory of the {side}",
            memory.per_hour <= MEMORY_MIB_PER_HOUR_MAX,
            f"{memory.per_hour:+.2f} ± {2 * memory.error:.2f} MiB an hour around {memory.mean:.1f} MiB, "
            f"at most {MEMORY_MIB_PER_HOUR_MAX:g}",
        ),
        Judged(
            f"objects of the {side}",
            share <= OBJECTS_SHARE_PER_HOUR_MAX,
            f"{share:+.1%} ± {2 * objects.error / objects.mean:.1%} an hour around {objects.mean:,.0f}, "
            f"at most {OBJECTS_SHARE_PER_HOUR_MAX:.0%}{_most_grown([each[side] for each in judged])}",
        ),
    ]


def _most_grown(samples: Sequence[Mapping[str, Any]]) -> str:
    """The types that keep growing, from the first to the last quarter of the samples that include types."""
    told = [Counter(sample["types"]) for sample in samples if "types" in sample]
    quarter = len(told) // 4
    if not quarter:
        return ""
    grown = sum(told[-quarter:], Counter[str]())
    grown.subtract(sum(told[:quarter], Counter[str]()))
    most = [f"{name} {count / quarter:+,.0f}" for name, count in grown.most_common(_TYPES_TOLD) if count > 0]
    return f"; most grew {', '.join(most)}" if most else ""


def left(before: Mapping[str, Any], after: Mapping[str, Any], names: Sequence[str], side: str) -> Judged:
    """Whether the figures are back where they were before the clients came, now that all are gone."""
    more = [name for name in names if after[name] > before[name]]
    if after["threads"] > before["threads"] + POOLED_THREADS_MAX:
        more.append("threads")
    told = ", ".join(f"{name} {before[name]} -> {after[name]}" for name in (*names, "threads"))
    return Judged(f"left behind in the {side}", not more, told)

"""Durations counted by upper bounds, for metrics."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate


class Histogram:
    """Counts of durations in seconds by upper bounds; the last count is for those above all bounds."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def copy(self) -> Histogram:
        """A snapshot for another thread."""
        made = Histogram(self.bounds)
        made.counts, made.sum = list(self.counts), self.sum
        return made

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.sum += seconds

    def buckets(self) -> list[tuple[str, float]]:
        """Cumulative counts by upper bound, as Prometheus expects them."""
        below = accumulate(self.counts)
        return [*((str(bound), float(next(below))) for bound in self.bounds), ("+Inf", float(next(below)))]

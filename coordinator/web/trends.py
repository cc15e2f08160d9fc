"""The lag of groups over time: points are noted whenever a page asks; for the time before, the journal's
`lag_at_commit` entries fill in."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import takewhile
from typing import Final

SPAN_MS: Final = 3_600_000
"""The longest span of a trend."""
POINTS_SHOWN: Final = 30
_POINTS_MAX: Final = 120
_APART_MS: Final = 2_000
_GROUPS_MAX: Final = 2_000

Point = tuple[int, int]
"""Epoch milliseconds, and records."""


class Trends:
    """The lag of each group over the last hour, in a bounded number of points, denser towards the present."""

    def __init__(self, groups_max: int = _GROUPS_MAX) -> None:
        self._points: dict[str, list[Point]] = {}
        self._groups_max = groups_max

    def note(self, group_id: str, at_ms: int, lag: int | None) -> None:
        """Note the group's current lag; None (unknown) is ignored."""
        if lag is None:
            return
        points = self._points.pop(group_id, [])
        self._points[group_id] = points  # keeps the most recently noted last
        if len(self._points) > self._groups_max:
            del self._points[next(iter(self._points))]
        if points and at_ms < points[-1][0] + _APART_MS:
            return
        points.append((at_ms, lag))
        if len(points) > _POINTS_MAX:
            del points[1 : _POINTS_MAX // 2 : 2]
        del points[: bisect_left(points, (at_ms - SPAN_MS, -1))]

    def of(self, group_id: str, now_ms: int, before: Sequence[Point] = ()) -> list[Point]:
        """The points of the last hour, oldest first, at most POINTS_SHOWN; `before` are points from
        elsewhere, used up to the first one noted here."""
        noted = self._points.get(group_id, [])
        first_ms = noted[0][0] if noted else now_ms
        points = [*takewhile(lambda point: point[0] < first_ms, before), *noted]
        return thinned([each for each in points if each[0] >= now_ms - SPAN_MS])


def thinned(points: Sequence[Point], at_most: int = POINTS_SHOWN) -> list[Point]:
    """At most this many points: the first, the last, and others evenly spaced in time."""
    if len(points) <= at_most:
        return list(points)
    first_ms, last_ms = points[0][0], points[-1][0]
    slot_ms = max((last_ms - first_ms) / (at_most - 2), 1)
    newest = {int((each[0] - first_ms) / slot_ms): each for each in points[1:]}  # of each slot
    return [points[0], *(newest[slot] for slot in sorted(newest))]

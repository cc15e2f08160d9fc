"""What a run has found so far, a line of JSON for each part, so that it goes on where it was stopped.

A part is one measure on one kind of server in one round.
"""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.bench.peers.measure import DRIVER_BOUND, Point

BUSY: Final = 0.1
"""A machine of which others take a larger share than that is not idle."""


@dataclass(frozen=True, slots=True)
class Part:
    measure: str
    kind: str
    round: int
    points: list[dict[str, Any]] = field(default_factory=list)
    failed: str = ""
    """Why there are no points."""
    others: float = 0.0
    """The share of the machine that went to processes which are not ours."""
    took_s: float = 0.0
    machine: str = ""
    when: str = ""

    @property
    def key(self) -> tuple[str, str, int]:
        return self.measure, self.kind, self.round


class Value(NamedTuple):
    """The median of the rounds and their spread."""

    median: float
    least: float
    most: float
    rounds: int
    driver_bound: bool
    """In the median round or a better one the driver had no CPU left to speak of."""


class Results:
    """The parts in a file; the newest of the same name counts."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._parts: dict[tuple[str, str, int], Part] = {}
        if path.exists():
            for line in path.read_text().splitlines():
                part = Part(**json.loads(line))
                self._parts[part.key] = part

    def has(self, key: tuple[str, str, int]) -> bool:
        """Whether this part was measured, without failing."""
        return key in self._parts and not self._parts[key].failed

    def add(self, part: Part) -> None:
        self._parts[part.key] = part
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            file.write(json.dumps(asdict(part)) + "\n")

    def __iter__(self) -> Iterator[Part]:
        return iter(self._parts.values())

    def values(self, measure: str) -> dict[tuple[str, int | None, str], Value]:
        """By figure, size and kind."""
        found: dict[tuple[str, int | None, str], list[Point]] = defaultdict(list)
        for part in self:
            if part.measure == measure and not part.failed:
                for each in part.points:
                    point = Point(**each)
                    found[point.key, point.at, part.kind].append(point)
        return {key: _value(points) for key, points in found.items()}

    def failures(self, measure: str) -> dict[str, str]:
        """Why kinds have no figures at all, by kind."""
        parts = [part for part in self if part.measure == measure]
        measured = {part.kind for part in parts if not part.failed}
        return {part.kind: part.failed for part in parts if part.failed and part.kind not in measured}

    def busy(self) -> list[Part]:
        """Parts that were measured while others used the machine."""
        return [part for part in self if not part.failed and part.others > BUSY]


def _value(points: Sequence[Point]) -> Value:
    values = [point.value for point in points]
    drivers = [point.driver for point in points if point.driver is not None]
    bound = bool(drivers) and statistics.median(drivers) > DRIVER_BOUND
    return Value(statistics.median(values), min(values), max(values), len(values), bound)

"""How fast records arrive and are consumed: how a group's lag changes between two samples, and whose lag it
is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

from muster.coordinator.journal.entries import Entry
from muster.coordinator.journal.explain.facts import Position, moves, positions
from muster.coordinator.journal.explain.rebalances import LOOK_ENTRIES_MAX, Rebalance

Partition = tuple[str, int]

WINDOW_MS: Final = 10 * 60_000
"""Lag changes later than this after a rebalance are not its doing. Brokers sample for this long."""
BEFORE_MS: Final = 60 * 60_000
"""An older sample says nothing about the lag before."""
_APART_MIN_MS: Final = 5_000
"""Over less time, a rate reflects commit times rather than consumption."""
_SHORT_OF: Final = 0.9
"""A consumer slower than this share of the arrival rate is falling behind."""
_COMMITS_S: Final = 10
"""Lag worth this many seconds of arrivals fluctuates with commits: consumers commit every five by default."""
_GROWTH_MIN: Final = 10
"""Minimum growth in records on top of that."""


class Sample(NamedTuple):
    """A group's positions at one time."""

    at_ms: int
    positions: Mapping[Partition, Position]


class Pace(NamedTuple):
    """A member that reads more slowly than records arrive, or the whole group if the owners are unknown."""

    member: str | None
    """Member id; None if the journal does not show who owns the partitions."""
    reads: float
    """Records per second, from its commits."""
    arrive: float
    """Records per second, in its partitions."""

    def to_json(self) -> dict[str, Any]:
        return {
            "member": self.member,
            "reads_per_second": round(self.reads, 2),
            "arrive_per_second": round(self.arrive, 2),
        }


class FallingBehind(NamedTuple):
    """Lag that grows after a rebalance because members read more slowly than records arrive."""

    members: tuple[Pace, ...]
    """The fastest-growing lag first."""
    growth: int
    """Growth of their lag between the samples, in records."""
    already: bool
    """It also grew before the rebalance."""

    def to_json(self) -> dict[str, Any]:
        return {
            "members": [each.to_json() for each in self.members],
            "growth": self.growth,
            "already": self.already,
        }


def falling_behind(rebalance: Rebalance) -> FallingBehind | None:
    """Members falling behind between a rebalance and the next; None if there are none."""
    if rebalance.ended_ms is None:
        return None
    until_ms = rebalance.ended_ms + WINDOW_MS
    done = [] if rebalance.completed is None else [rebalance.completed]
    later = _samples(each for each in (*done, *rebalance.after[:LOOK_ENTRIES_MAX]) if each.at_ms <= until_ms)
    owners = _owners(rebalance.stream, max(rebalance.last - 1, 0))
    slow, growth = _slow(later, owners)
    if not slow:
        return None
    before, _ = _slow(_earlier(rebalance)[-2:], {})
    return FallingBehind(tuple(slow), growth, bool(before))


def arrived(rebalance: Rebalance, without_owner: Iterable[tuple[Sequence[Partition], int]]) -> int | None:
    """Approximate number of records that arrived in partitions while they had no owner: arrival rate times
    duration (ms). None if one of the rates is unknown."""
    done = [] if rebalance.completed is None else [rebalance.completed]
    later = _samples((*done, *islice(rebalance.after, LOOK_ENTRIES_MAX)))
    around = [*_earlier(rebalance)[-1:], *later[:1]]
    total = 0.0
    for partitions, ms in without_owner:
        for each in partitions:
            rate = _arrival(around, each)
            if rate is None:
                rate = _arrival(later[:2], each)
            if rate is None:
                return None
            total += rate * ms / 1_000
    return round(total)


def _samples(entries: Iterable[Entry]) -> list[Sample]:
    found = (Sample(each.at_ms, positions(each)) for each in entries)
    return [each for each in found if each.positions]


def _earlier(rebalance: Rebalance) -> list[Sample]:
    """The samples of the previous hour, oldest first."""
    return _samples(list(rebalance.earlier(BEFORE_MS))[::-1])


def _arrival(samples: Sequence[Sample], partition: Partition) -> float | None:
    """A partition's arrival rate (records/s) between the first and last of these samples."""
    if len(samples) < 2:
        return None
    first, last = samples[0], samples[-1]
    before, after = first.positions.get(partition), last.positions.get(partition)
    apart_ms = last.at_ms - first.at_ms
    if before is None or after is None or apart_ms < _APART_MIN_MS or after.end < before.end:
        return None
    return (after.end - before.end) * 1_000 / apart_ms


def _slow(samples: Sequence[Sample], owners: Mapping[Partition, str | None]) -> tuple[list[Pace], int]:
    """Members that read more slowly than records arrived between the first and last sample, and how many
    records they fell behind."""
    if len(samples) < 2 or samples[-1].at_ms - samples[0].at_ms < _APART_MIN_MS:
        return [], 0
    first, last = samples[0], samples[-1]
    read: dict[str | None, int] = {}
    came: dict[str | None, int] = {}
    for partition, after in last.positions.items():
        before = first.positions.get(partition)
        if before is None or after.end < before.end or after.committed < before.committed:
            continue  # not in both samples, or records or offsets were reset
        who = owners.get(partition)
        read[who] = read.get(who, 0) + after.committed - before.committed
        came[who] = came.get(who, 0) + after.end - before.end
    seconds = (last.at_ms - first.at_ms) / 1_000
    behind = {
        who: came[who] - read[who]
        for who in came
        if read[who] < _SHORT_OF * came[who]
        and came[who] - read[who] >= _GROWTH_MIN + came[who] * _COMMITS_S / seconds
    }
    slowest = sorted(behind, key=lambda who: (-behind[who], who or ""))
    return [Pace(who, read[who] / seconds, came[who] / seconds) for who in slowest], sum(behind.values())


def _owners(stream: Sequence[Entry], at: int) -> dict[Partition, str | None]:
    """The owner of each partition after stream[at], according to the assignments up to it."""
    found: dict[Partition, str | None] = {}
    for index in range(at, max(-1, at - LOOK_ENTRIES_MAX), -1):
        if stream[index].type in ("assigned", "target_assigned"):
            for each in moves(stream[index]):
                found.setdefault((each.topic, each.partition), each.to_member)
    return found

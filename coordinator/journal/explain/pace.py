"""How fast records arrive and are read: what a group's lag does between two samples, and whose lag it is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

from muster.coordinator.journal.entries import Entry
from muster.coordinator.journal.explain.facts import Position, moves, positions
from muster.coordinator.journal.explain.rebalances import LOOK_ENTRIES_MAX, Rebalance

Partition = tuple[str, int]

WINDOW_MS: Final = 10 * 60_000
"""What happens to lag later than this after a rebalance is not its doing. Brokers watch for as long."""
BEFORE_MS: Final = 60 * 60_000
"""A lag that was told longer ago says nothing about the moment before."""
_APART_MIN_MS: Final = 5_000
"""Over less, a rate shows when somebody committed and not how fast they read."""
_SHORT_OF: Final = 0.9
"""Who reads less than this share of what arrives falls behind."""
_COMMITS_S: Final = 10
"""What arrives in so many seconds comes and goes with the commits: consumers make one every five, unless told
otherwise."""
_GROWTH_MIN: Final = 10
"""Records beside those."""


class Sample(NamedTuple):
    """Where a group's partitions were at a moment."""

    at_ms: int
    positions: Mapping[Partition, Position]


class Pace(NamedTuple):
    """A member that reads more slowly than records arrive, or all that is known of the group's partitions."""

    member: str | None
    """Its id; None where the journal does not have who owns the partitions."""
    reads: float
    """Records a second, by its commits."""
    arrive: float
    """Records a second, in its partitions."""

    def to_json(self) -> dict[str, Any]:
        return {
            "member": self.member,
            "reads_per_second": round(self.reads, 2),
            "arrive_per_second": round(self.arrive, 2),
        }


class FallingBehind(NamedTuple):
    """Lag that grows after a rebalance, because members read more slowly than records arrive."""

    members: tuple[Pace, ...]
    """Those whose lag grows fastest first."""
    growth: int
    """Records by which their lag grew between the samples."""
    already: bool
    """It grew before the rebalance too."""

    def to_json(self) -> dict[str, Any]:
        return {
            "members": [each.to_json() for each in self.members],
            "growth": self.growth,
            "already": self.already,
        }


def falling_behind(rebalance: Rebalance) -> FallingBehind | None:
    """Who falls behind after a rebalance and before the next one; None where nobody is seen to."""
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
    """About how many records arrived in partitions while they had no owner, given how long (ms) each had
    none: the rate at which they arrive, times that. None where the rate of one of them is not known."""
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
    """The samples of the hour before, oldest first."""
    return _samples(list(rebalance.earlier(BEFORE_MS))[::-1])


def _arrival(samples: Sequence[Sample], partition: Partition) -> float | None:
    """Records a second that arrived in a partition between the first and the last of these samples."""
    if len(samples) < 2:
        return None
    first, last = samples[0], samples[-1]
    before, after = first.positions.get(partition), last.positions.get(partition)
    apart_ms = last.at_ms - first.at_ms
    if before is None or after is None or apart_ms < _APART_MIN_MS or after.end < before.end:
        return None
    return (after.end - before.end) * 1_000 / apart_ms


def _slow(samples: Sequence[Sample], owners: Mapping[Partition, str | None]) -> tuple[list[Pace], int]:
    """Who reads more slowly than records arrive between the first and the last sample, and by how many
    records they fell behind."""
    if len(samples) < 2 or samples[-1].at_ms - samples[0].at_ms < _APART_MIN_MS:
        return [], 0
    first, last = samples[0], samples[-1]
    read: dict[str | None, int] = {}
    came: dict[str | None, int] = {}
    for partition, after in last.positions.items():
        before = first.positions.get(partition)
        if before is None or after.end < before.end or after.committed < before.committed:
            continue  # not seen both times, or records or offsets were reset
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
    """Who had each partition after stream[at], as far as the assignments up to it say."""
    found: dict[Partition, str | None] = {}
    for index in range(at, max(-1, at - LOOK_ENTRIES_MAX), -1):
        if stream[index].type == "assigned":
            for each in moves(stream[index]):
                found.setdefault((each.topic, each.partition), each.to_member)
    return found

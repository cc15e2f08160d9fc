"""Reads everything that one group's members printed, and reports what must not have happened. Pure.

A *stint* is an unbroken time in which one member owns one partition: it fetches from the group's committed
offset as of the start of the stint. Reports of two members are compared by generation, since that is the
order the coordinator gave them; arrival times count only where a client cannot report its generation.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from tests.interop.story.lines import (
    Assigned,
    CommitFailed,
    Committed,
    Heard,
    Killed,
    Left,
    Record,
    Revoked,
)

_PROBLEMS_OF_A_KIND: Final = 5
_UNORDERED_S: Final = 0.5
"""Lines of two members that arrive this close together may have been printed in the opposite order."""


@dataclass(frozen=True)
class Part:
    """Records produced together: `first` to `first + count - 1`."""

    codec: str
    first: int
    count: int

    def values(self) -> Iterator[str]:
        return (f"{self.codec}-{number}" for number in range(self.first, self.first + self.count))


@dataclass
class Stint:
    member: str
    partition: int
    generation: int | None
    """The generation in which it began."""
    last_generation: int | None
    """The last one in which the member owned it, as far as it reported."""
    began_s: float
    ended_s: float | None = None
    """None: it was still going on at the end of the output."""
    killed: bool = False
    """It ended by SIGKILL, possibly between a commit's acknowledgement and its line."""
    offsets: list[int] = field(default_factory=list)
    committed: list[int] = field(default_factory=list)
    attempted: list[int] = field(default_factory=list)
    """Commits whose outcome the member does not know."""

    def __str__(self) -> str:
        generation = "?" if self.generation is None else self.generation
        return f"{self.member} (generation {generation})"


def later_rebalances(before: Sequence[Heard], heard: Sequence[Heard]) -> list[Heard]:
    """Reports of rebalances that began after `before`, which `heard` begins with: a member may report late
    what the previous rebalance assigned to it."""
    known = [each.event.generation for each in before if isinstance(each.event, Assigned)]
    newest = max((each for each in known if each is not None), default=-1)
    return [
        each
        for each in heard[len(before) :]
        if not (
            isinstance(each.event, Assigned)
            and each.event.generation is not None
            and each.event.generation <= newest
        )
    ]


def check(heard: Sequence[Heard], produced: Iterable[Part], session_timeout_s: float) -> list[str]:
    """What is wrong, one sentence each; empty if nothing is. At most five of a kind, plus how many more."""
    stints, strays = _stints(heard)
    by_partition: dict[int, list[Stint]] = defaultdict(list)
    for stint in stints:
        by_partition[stint.partition].append(stint)
    problems = [
        _some(strays),
        _some(_double_owners(by_partition)),
        _some(_lost_records(heard, produced)),
        _some(_wrong_records(heard)),
    ]
    for _, of_one in sorted(by_partition.items()):
        of_one.sort(key=_order)
        problems += [
            _some(_overlaps(of_one, session_timeout_s)),
            _some(_gaps(of_one)),
            _some(_commits_going_back(of_one)),
            _some(_wrong_resumes(of_one)),
        ]
    return [problem for each in problems for problem in each]


def last_commits(heard: Sequence[Heard]) -> dict[int, int]:
    """By partition: the last commit of the last member that owned it and committed."""
    stints, _ = _stints(heard)
    stints.sort(key=lambda stint: (stint.partition, _order(stint)))
    return {stint.partition: stint.committed[-1] for stint in stints if stint.committed}


def _order(stint: Stint) -> tuple[int, float]:
    """Its place in a partition's life. Either all members of a client report generations, or none."""
    return (-1 if stint.generation is None else stint.generation, stint.began_s)


def _stints(heard: Sequence[Heard]) -> tuple[list[Stint], list[str]]:
    """All stints, and the reports about partitions that the member did not own."""
    stints: list[Stint] = []
    strays: list[str] = []
    open_: dict[str, dict[int, Stint]] = defaultdict(dict)

    def end(
        member: str,
        keep: frozenset[int],
        at_s: float,
        *,
        generation: int | None = None,
        killed: bool = False,
    ) -> None:
        for partition in [each for each in open_[member] if each not in keep]:
            stint = open_[member].pop(partition)
            stint.ended_s, stint.killed = at_s, killed
            if stint.last_generation is not None and generation is not None:
                stint.last_generation = max(stint.last_generation, generation)

    for each in heard:
        mine = open_[each.member]
        match each.event:
            case Assigned(generation, owned):
                end(each.member, owned, each.at_s)
                for stint in mine.values():
                    stint.last_generation = generation
                for partition in owned - mine.keys():
                    mine[partition] = Stint(each.member, partition, generation, generation, each.at_s)
                    stints.append(mine[partition])
            case Revoked(owned, generation):
                end(each.member, owned, each.at_s, generation=generation)
            case Left():
                end(each.member, frozenset(), each.at_s)
            case Killed():
                end(each.member, frozenset(), each.at_s, killed=True)
            case (
                Record(partition=partition)
                | Committed(partition=partition)
                | CommitFailed(partition=partition)
            ):
                if partition not in mine:
                    strays.append(f"{each.member} does not own partition {partition}, but said {each.event}")
                    continue
                match each.event:
                    case Record(offset=offset):
                        mine[partition].offsets.append(offset)
                    case Committed(offset=offset):
                        mine[partition].committed.append(offset)
                    case CommitFailed(offset=offset):
                        mine[partition].attempted.append(offset)
    return stints, strays


def _double_owners(by_partition: Mapping[int, list[Stint]]) -> Iterator[str]:
    """Partitions with two owners in a generation. A cooperative member gives up a partition in the generation
    that revokes it, so the next owner's is a later one."""
    for partition, stints in sorted(by_partition.items()):
        holder: Stint | None = None
        for stint in sorted((each for each in stints if each.generation is not None), key=_order):
            if holder is None or stint.member == holder.member or _follows(stint, holder):
                holder = stint
            else:
                yield (
                    f"partition {partition} has two owners in generation {stint.generation}: "
                    f"{holder.member} and {stint.member}"
                )


def _follows(stint: Stint, holder: Stint) -> bool:
    assert stint.generation is not None
    assert holder.last_generation is not None
    return stint.generation > holder.last_generation


def _overlaps(stints: Sequence[Stint], session_timeout_s: float) -> Iterator[str]:
    """Overlapping stints of members that cannot report their generation. A killed member owns its partitions
    until it could be expired: at most a third of the session may have passed since its last heartbeat."""
    for earlier, later in pairwise(stints):
        if earlier.generation is not None or later.generation is not None or earlier.member == later.member:
            continue
        ended_s = float("inf") if earlier.ended_s is None else earlier.ended_s
        if earlier.killed:
            ended_s += session_timeout_s * 2 / 3
        if later.began_s < ended_s - _UNORDERED_S:
            yield (
                f"partition {later.partition} has two owners at a time: "
                f"{later} got it at {later.began_s:.2f} s, {earlier} had it until {ended_s:.2f} s"
            )


def _lost_records(heard: Sequence[Heard], produced: Iterable[Part]) -> Iterator[str]:
    delivered = {each.event.value for each in heard if isinstance(each.event, Record)}
    return (
        f"{value} was never delivered"
        for part in produced
        for value in part.values()
        if value not in delivered
    )


def _wrong_records(heard: Sequence[Heard]) -> Iterator[str]:
    """Contents that nobody produced, and offsets that hold another record the second time."""
    at: dict[tuple[int, int], str] = {}
    for each in heard:
        if isinstance(each.event, Record):
            record = each.event
            if record.key.removeprefix("k") != record.value.rpartition("-")[2]:
                yield f"{each.member} got a record that nobody produced: {record}"
            known = at.setdefault((record.partition, record.offset), record.value)
            if known != record.value:
                yield (
                    f"partition {record.partition} offset {record.offset} was {known}, "
                    f"and {record.value} to {each.member}"
                )


def _gaps(stints: Sequence[Stint]) -> Iterator[str]:
    """Within a stint, every offset must follow the previous one."""
    for stint in stints:
        for one, following in pairwise(stint.offsets):
            if following != one + 1:
                yield f"partition {stint.partition}: {stint} got offset {following} after {one}"


def _commits_going_back(stints: Sequence[Stint]) -> Iterator[str]:
    highest, whose = -1, ""
    for stint in stints:
        for offset in stint.committed:
            if offset < highest:
                what = f"{stint} committed {offset} after {whose} committed {highest}"
                yield f"partition {stint.partition}: {what}"
            else:
                highest, whose = offset, str(stint)


def _wrong_resumes(stints: Sequence[Stint]) -> Iterator[str]:
    """A stint begins at the group's commit: no record before it comes again, none after it is skipped.

    A commit with an unknown outcome (a member was killed, or reported so) may have been made.
    """
    committed = 0  # without a commit: the earliest offset
    unknown: set[int] = set()
    handled = 0
    for stint in stints:
        if stint.offsets:
            first = stint.offsets[0]
            if first != committed and first not in unknown:
                what = f"{stint} began at offset {first}, committed was {committed}"
                yield f"partition {stint.partition}: {what}"
            handled = stint.offsets[-1] + 1
        if stint.committed:
            committed = stint.committed[-1]
        unknown = {offset for offset in (*unknown, *stint.attempted) if offset > committed}
        if stint.killed:
            unknown |= set(range(committed + 1, handled + 1))


def _some(problems: Iterable[str]) -> list[str]:
    found = list(problems)
    more = len(found) - _PROBLEMS_OF_A_KIND
    return found if more <= 0 else [*found[:_PROBLEMS_OF_A_KIND], f"... and {more} more of this kind"]

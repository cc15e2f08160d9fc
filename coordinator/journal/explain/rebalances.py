"""Cutting a stream of entries into rebalances.

A rebalance begins when the group enters PreparingRebalance, begins anew whenever it does so again before it
is Stable, and is over when the group is Stable or Empty. What was recorded in the same step just before
(who was removed, what changed) belongs to it. A journal may begin in the middle of one, and end there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from muster.coordinator.journal.entries import Entry, Member
from muster.coordinator.journal.explain.facts import everybody, present, text, whole
from muster.coordinator.journal.explain.vocabulary import COMPLETING, DEAD, EMPTY, PREPARING, STABLE

LOOK_ENTRIES_MAX: Final = 3_000
"""How many entries before or after something are looked at to explain it."""
_COMPLETED: Final = "rebalance_completed"
_BOUNDS: Final = frozenset({"state_changed", _COMPLETED, "shard_loaded", "shard_unloaded"})


class Outcome(StrEnum):
    """What became of a rebalance."""

    COMPLETED = "completed"
    UNDER_WAY = "under way"
    INTERRUPTED = "interrupted"
    """The coordinator moved, or the group was deleted, before it was over."""
    NONE = "no rebalance"
    """Something worth knowing that was no rebalance."""


@dataclass(frozen=True, slots=True)
class Start:
    """What began a rebalance, or began it anew."""

    index: int
    """Of `entry` in the stream."""
    entry: Entry
    trigger: str | None
    """Recorded at the moment; None where the journal does not have it."""

    @property
    def member(self) -> Member | None:
        return self.entry.member


@dataclass(slots=True)
class Rebalance:
    """One rebalance, as places in the stream of its group's entries."""

    group: str
    stream: Sequence[Entry]
    """All entries of the group and of its shard."""
    members: Mapping[str, Member]
    """Everybody in them, by member id."""
    present: frozenset[str]
    """The ids of those that are in the group after the last of them."""
    first: int
    last: int
    """Its entries are stream[first:last]."""
    started_ms: int
    generation: int | None = None
    """The one it led to, or will lead to; None where no entry says it."""
    starts: list[Start] = field(default_factory=list)
    """At least one."""
    reached: dict[int, int] = field(default_factory=dict)
    """The generations that it made, given up or not, and which of the starts led to each."""
    outcome: Outcome = Outcome.UNDER_WAY
    ended_ms: int | None = None
    state: str = PREPARING
    """The group's at the end, or now."""
    began_in_sight: bool = True
    """Whether the journal has its beginning."""
    from_state: str | None = None
    joined: Entry | None = None
    """The change to CompletingRebalance."""
    assigned: Entry | None = None
    completed: Entry | None = None
    until: int = 0
    """Where the next one begins, or the stream ends: what came after this one."""

    @property
    def entries(self) -> Sequence[Entry]:
        return self.stream[self.first : self.last]

    @property
    def after(self) -> Sequence[Entry]:
        """What came after it and before the next one."""
        return self.stream[self.last : self.until]

    def step(self, start: Start) -> Iterator[Entry]:
        """What was recorded in the step that `start` belongs to."""
        for index in range(start.index - 1, max(-1, start.index - LOOK_ENTRIES_MAX), -1):
            each = self.stream[index]
            if each.at_ms != start.entry.at_ms or each.type in _BOUNDS:
                break
            yield each
        for index in range(start.index + 1, min(len(self.stream), start.index + LOOK_ENTRIES_MAX)):
            each = self.stream[index]
            if each.at_ms != start.entry.at_ms or each.type in _BOUNDS:
                break
            yield each

    def earlier(self, window_ms: int) -> Iterator[Entry]:
        """What came before it, the newest first, no more than `window_ms` before."""
        for index in range(self.first - 1, max(-1, self.first - LOOK_ENTRIES_MAX), -1):
            each = self.stream[index]
            if each.at_ms < self.started_ms - window_ms:
                break
            yield each

    def later(self, start: Start, window_ms: int) -> Iterator[Entry]:
        """What came after `start`, no more than `window_ms` after, into later rebalances."""
        for index in range(start.index + 1, min(len(self.stream), start.index + LOOK_ENTRIES_MAX)):
            each = self.stream[index]
            if each.at_ms > start.entry.at_ms + window_ms:
                break
            yield each


def rebalances(entries: Iterable[Entry]) -> list[Rebalance]:
    """All rebalances of all groups that the entries tell of, oldest first, the one under way last."""
    found = [each for stream in streams(entries).values() for each in cut(stream)]
    return sorted(found, key=lambda each: (each.ended_ms is None, each.started_ms))


def streams(entries: Iterable[Entry]) -> dict[str, list[Entry]]:
    """For each group its entries, with those of its shard between them, in the order given."""
    entries = list(entries)
    shards = {entry.group: entry.shard for entry in entries if entry.group is not None}
    by_shard: dict[int, list[str]] = {}
    for group, shard in shards.items():
        by_shard.setdefault(shard, []).append(group)
    found: dict[str, list[Entry]] = {group: [] for group in shards}
    for entry in entries:
        if entry.group is not None:
            found[entry.group].append(entry)
        else:
            # A negative shard stands for all that its broker has.
            for group in by_shard.get(entry.shard, ()) if entry.shard >= 0 else shards:
                found[group].append(entry)
    return found


def cut(stream: Sequence[Entry]) -> list[Rebalance]:
    """The rebalances of one group, in order; `stream` has entries of that group and of its shard."""
    group = next((each.group for each in stream if each.group is not None), None)
    if group is None:
        return []
    cutting = _Cutting(group, stream)
    for index, entry in enumerate(stream):
        cutting.see(index, entry)
    return cutting.end()


class _Cutting:
    """What has been found so far, and the rebalance that is being read."""

    def __init__(self, group: str, stream: Sequence[Entry]) -> None:
        self._group, self._stream = group, stream
        self._members, self._present = everybody(stream), frozenset(present(stream))
        self._found: list[Rebalance] = []
        self._open: Rebalance | None = None

    def see(self, index: int, entry: Entry) -> None:
        current = self._open
        if (
            current is not None
            and current.ended_ms is not None
            and entry.type != _COMPLETED
            and (entry.at_ms != current.ended_ms or entry.type in _BOUNDS)
        ):
            # Stable or Empty, and nothing that says it is completed: that entry is lost.
            self._close(index, Outcome.COMPLETED)
        match entry.type:
            case "state_changed":
                self._state_changed(index, entry)
            case "assigned" if self._open is not None:
                self._open.assigned = entry
            case "rebalance_completed":
                self._completed(index, entry)
            case "shard_loaded" | "shard_unloaded" if self._open is not None:
                self._interrupted(index, entry)

    def end(self) -> list[Rebalance]:
        if self._open is not None:
            outcome = Outcome.UNDER_WAY if self._open.ended_ms is None else Outcome.COMPLETED
            self._close(len(self._stream), outcome)
        for each, following in zip(self._found, self._found[1:], strict=False):
            each.until = following.first
        if self._found:
            self._found[-1].until = len(self._stream)
        return self._found

    def _state_changed(self, index: int, entry: Entry) -> None:
        match text(entry, "to_state"):
            case "PreparingRebalance":
                current = self._open or self._begin(index, entry)
                current.starts.append(Start(index, entry, entry.trigger))
                current.state, current.joined, current.assigned = PREPARING, None, None
                if entry.generation is not None:
                    current.generation = entry.generation + 1
            case "CompletingRebalance":
                current = self._open or self._begin_unseen(index, entry)
                current.state, current.joined = COMPLETING, entry
                current.generation = current.generation if entry.generation is None else entry.generation
                if current.generation is not None:
                    current.reached[current.generation] = max(len(current.starts) - 1, 0)
            case ("Stable" | "Empty") as state if self._open is not None:
                current = self._open
                current.state, current.ended_ms = state, max(entry.at_ms, current.started_ms)
                current.generation = current.generation if entry.generation is None else entry.generation
            case "Dead" if self._open is not None:
                self._open.state = DEAD
                self._interrupted(index, entry)

    def _completed(self, index: int, entry: Entry) -> None:
        if self._open is None and self._found:
            before = self._found[-1]
            if before.completed is None and before.generation == entry.generation is not None:
                before.completed = entry  # late, or out of order
                return
        current = self._open or self._begin_unseen(index, entry)
        current.completed = entry
        if not current.began_in_sight:
            started_ms = whole(entry, "started_ms")
            current.started_ms = min(
                current.started_ms, current.started_ms if started_ms is None else started_ms
            )
        current.ended_ms = max(entry.at_ms, current.started_ms)
        current.generation = current.generation if entry.generation is None else entry.generation
        if current.state not in (STABLE, EMPTY):
            current.state = EMPTY if whole(entry, "members") == 0 else STABLE
        self._close(index + 1, Outcome.COMPLETED)

    def _interrupted(self, index: int, entry: Entry) -> None:
        assert self._open is not None
        self._open.ended_ms = max(entry.at_ms, self._open.started_ms)
        self._close(index + 1, Outcome.INTERRUPTED)

    def _begin(self, index: int, entry: Entry) -> Rebalance:
        first = index
        while (
            first > self._free
            and index - first < LOOK_ENTRIES_MAX
            and self._stream[first - 1].at_ms == entry.at_ms
            and self._stream[first - 1].type not in _BOUNDS
        ):
            first -= 1
        began = Rebalance(self._group, self._stream, self._members, self._present, first, first, entry.at_ms)
        began.from_state = text(entry, "from_state")
        self._open = began
        return began

    def _begin_unseen(self, index: int, entry: Entry) -> Rebalance:
        """The journal does not have its beginning; what is known of that is in `entry`."""
        started_ms = whole(entry, "started_ms")
        if started_ms is None:
            started_ms = entry.at_ms - max(whole(entry, "phase_ms") or 0, 0)
        began = Rebalance(
            self._group,
            self._stream,
            self._members,
            self._present,
            self._free,
            index,
            min(started_ms, entry.at_ms),
        )
        began.began_in_sight = False
        self._open = began
        return began

    @property
    def _free(self) -> int:
        """The first entry that belongs to no rebalance yet."""
        return self._found[-1].last if self._found else 0

    def _close(self, index: int, outcome: Outcome) -> None:
        current, self._open = self._open, None
        assert current is not None
        current.last, current.outcome = index, outcome
        if not current.starts:
            # Of the triggers only the last one is known, which the entry of its completion repeats. A change
            # to CompletingRebalance has a trigger of its own: that all had joined.
            known = current.completed or Entry(
                "state_changed", current.started_ms, -1, -1, current.group, current.generation
            )
            current.starts.append(Start(max(current.last - 1, 0), known, known.trigger))
        self._found.append(current)

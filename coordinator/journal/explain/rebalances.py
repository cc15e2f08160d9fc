"""Splits a stream of entries into rebalances.

A rebalance begins when the group enters PreparingRebalance, restarts whenever it does so again before it is
Stable, and ends when the group is Stable or Empty. A consumer group's rebalance (KIP-848) begins with a new
epoch, restarts with each further one, and ends when every member has its target; it survives a move of the
coordinator. Entries recorded just before in the same step (who was removed, what changed) belong to the
rebalance. A journal may begin or end in the middle of one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from heapq import merge
from typing import Final

from muster.coordinator.journal.entries import Entry, Member
from muster.coordinator.journal.explain.consumer.protocols import Mix, Protocols
from muster.coordinator.journal.explain.facts import everybody, present, text, whole
from muster.coordinator.journal.explain.vocabulary import (
    ASSIGNING,
    COMPLETING,
    DEAD,
    EMPTY,
    PREPARING,
    RECONCILING,
    STABLE,
    Kind,
)

LOOK_ENTRIES_MAX: Final = 3_000
"""How many entries before or after another are searched to explain it."""
FOLLOW_UP_MS: Final = 60_000
"""How soon after partitions were withheld the follow-up rebalance begins."""
_COMPLETED: Final = "rebalance_completed"
BOUNDS: Final = frozenset({"state_changed", _COMPLETED, "epoch_bumped", "shard_loaded", "shard_unloaded"})
"""Entries that change the state or epoch of the group, or end its stay with a coordinator."""


class Outcome(StrEnum):
    """How a rebalance ended."""

    COMPLETED = "completed"
    UNDER_WAY = "under way"
    INTERRUPTED = "interrupted"
    """The coordinator moved, or the group was deleted or changed its type, before it was over."""
    NONE = "no rebalance"
    """An incident that was not a rebalance."""


@dataclass(frozen=True, slots=True)
class Start:
    """What began or restarted a rebalance."""

    index: int
    """The index of `entry` in the stream."""
    entry: Entry
    trigger: str | None
    """The recorded trigger; None if the journal lacks it."""

    @property
    def member(self) -> Member | None:
        return self.entry.member


@dataclass(slots=True)
class Rebalance:
    """One rebalance, as positions in the stream of its group's entries."""

    group: str
    stream: Sequence[Entry]
    """All entries of the group and its shard."""
    members: Mapping[str, Member]
    """All members in them, by member id."""
    present: frozenset[str]
    """The ids of the members in the group after the last entry."""
    first: int
    last: int
    """Its entries are stream[first:last]."""
    started_ms: int
    generation: int | None = None
    """The generation it led to, or will lead to; None if unknown."""
    starts: list[Start] = field(default_factory=list)
    """At least one."""
    reached: dict[int, int] = field(default_factory=dict)
    """The generations it created, including abandoned ones, and the index of the start that led to each."""
    outcome: Outcome = Outcome.UNDER_WAY
    ended_ms: int | None = None
    state: str = PREPARING
    """The group's state at the end, or now."""
    began_in_sight: bool = True
    """Whether the journal shows its beginning."""
    from_state: str | None = None
    joined: Entry | None = None
    """The change to CompletingRebalance."""
    assigned: Entry | None = None
    """The last assignment, or target assignment."""
    targets: list[Entry] = field(default_factory=list)
    """All target assignments of a consumer group, in order."""
    kind: Kind = Kind.CLASSIC
    mix_before: Mix | None = None
    """Which protocols the members spoke before it; None: unknown."""
    mix: Mix | None = None
    """The same at its end, or now."""
    completed: Entry | None = None
    until: int = 0
    """Where the next one begins or the stream ends."""
    interrupted_by: Entry | None = None
    """What ended it before it was over."""

    @property
    def begins_with_restart(self) -> bool:
        """Whether its first start is known to be a restart, since the journal lacks its beginning."""
        first = self.starts[0]
        if self.began_in_sight or first.trigger is None:
            return False
        if first.entry.type in ("state_changed", "epoch_bumped"):
            return True
        return self.completed is not None and bool(whole(self.completed, "restarts"))

    @property
    def entries(self) -> Sequence[Entry]:
        return self.stream[self.first : self.last]

    @property
    def after(self) -> Sequence[Entry]:
        """Entries after it and before the next one."""
        return self.stream[self.last : self.until]

    def step(self, start: Start) -> Iterator[Entry]:
        """Entries recorded in the step of `start`."""
        for index in range(start.index - 1, max(-1, start.index - LOOK_ENTRIES_MAX), -1):
            each = self.stream[index]
            if each.at_ms != start.entry.at_ms or each.type in BOUNDS:
                break
            yield each
        for index in range(start.index + 1, min(len(self.stream), start.index + LOOK_ENTRIES_MAX)):
            each = self.stream[index]
            if each.at_ms != start.entry.at_ms or each.type in BOUNDS:
                break
            yield each

    def earlier(self, window_ms: int) -> Iterator[Entry]:
        """Entries before it, newest first, at most `window_ms` before."""
        for index in range(self.first - 1, max(-1, self.first - LOOK_ENTRIES_MAX), -1):
            each = self.stream[index]
            if each.at_ms < self.started_ms - window_ms:
                break
            yield each

    def before(self, start: Start) -> Iterator[Entry]:
        """Entries before a start, newest first."""
        # If the start is missing, entries of the rebalance itself do not count as earlier.
        begin = start.index if self.began_in_sight else self.first
        for index in range(begin - 1, max(-1, begin - LOOK_ENTRIES_MAX), -1):
            yield self.stream[index]

    def protocol_before(self, start: Start) -> str | None:
        """The assignor in use before a start; None if the journal does not show it."""
        for each in self.before(start):
            if each.type in ("protocol_chosen", "assigned") and text(each, "protocol") is not None:
                return text(each, "protocol")
        return None

    def later(self, start: Start, window_ms: int | None) -> Iterator[Entry]:
        """Entries at most `window_ms` after `start`, or of any time, including those of later rebalances."""
        for index in range(start.index + 1, min(len(self.stream), start.index + LOOK_ENTRIES_MAX)):
            each = self.stream[index]
            if window_ms is not None and each.at_ms > start.entry.at_ms + window_ms:
                break
            yield each


def kind_before(stream: Sequence[Entry], index: int) -> Kind:
    """The group's type as of stream[index], as far as the entries up to it show."""
    for at in range(min(index, len(stream) - 1), max(-1, index - LOOK_ENTRIES_MAX), -1):
        entry = stream[at]
        if entry.type in ("epoch_bumped", "target_assigned", "partitions_assigned"):
            return Kind.CONSUMER
        if entry.type == "protocol_migrated":
            return Kind.CONSUMER if text(entry, "to_type") == Kind.CONSUMER else Kind.CLASSIC
        if entry.type in ("assigned", "member_rejoined"):
            return Kind.CLASSIC
    return Kind.CLASSIC


def rebalances(entries: Iterable[Entry]) -> list[Rebalance]:
    """All rebalances of all groups, oldest first, those in progress last."""
    of_groups = map(cut, streams(entries).values())
    # Those of one group stay in order, also where a clock was set back.
    return list(merge(*of_groups, key=lambda each: (each.ended_ms is None, each.started_ms)))


def streams(entries: Iterable[Entry]) -> dict[str, list[Entry]]:
    """The entries of each group, merged with those of its shard, in the given order."""
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
            # A negative shard stands for all shards of its broker.
            for group in by_shard.get(entry.shard, ()) if entry.shard >= 0 else shards:
                found[group].append(entry)
    return found


def cut(stream: Sequence[Entry]) -> list[Rebalance]:
    """The rebalances of one group, in order; `stream` holds the entries of the group and its shard."""
    group = next((each.group for each in stream if each.group is not None), None)
    if group is None:
        return []
    cutting = _Cutting(group, stream)
    for index, entry in enumerate(stream):
        cutting.see(index, entry)
    return cutting.end()


class _Cutting:
    """Rebalances found so far, and the one being read."""

    def __init__(self, group: str, stream: Sequence[Entry]) -> None:
        self._group, self._stream = group, stream
        self._members, self._present = everybody(stream), frozenset(present(stream))
        self._found: list[Rebalance] = []
        self._open: Rebalance | None = None
        self._state: str | None = None
        """The group's state according to the last entry."""
        self._protocols = Protocols()
        self._mix: Mix | None = None
        """The mix at the end of the last rebalance."""

    def see(self, index: int, entry: Entry) -> None:
        current = self._open
        if (
            current is not None
            and current.ended_ms is not None
            and entry.type != _COMPLETED
            and (entry.at_ms != current.ended_ms or entry.type in BOUNDS)
        ):
            # Stable or Empty without a completion: that entry was lost.
            self._close(index, Outcome.COMPLETED)
        self._protocols.see(entry)
        match entry.type:
            case "state_changed":
                self._state_changed(index, entry)
            case "assigned" if self._open is not None:
                self._open.assigned = entry
            case "epoch_bumped":
                self._epoch_bumped(index, entry)
            case "target_assigned":
                self._target_assigned(index, entry)
            case "rebalance_completed":
                self._completed(index, entry)
            case "shard_loaded" | "shard_unloaded" if self._is_open(Kind.CLASSIC):
                self._interrupted(index, entry)
            case "protocol_migrated":
                self._migrated(index, entry)
            case "group_created":
                self._state = EMPTY
            case "group_removed" if self._open is not None:
                self._interrupted(index, entry)

    def _is_open(self, kind: Kind) -> bool:
        return self._open is not None and self._open.kind is kind

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
        self._state = text(entry, "to_state")
        match self._state:
            case "PreparingRebalance":
                current = self._open or self._begin_classic(index, entry)
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
            case ("Assigning" | "Reconciling") as state if self._open is not None:
                self._open.state = state
            case "Dead" if self._is_open(Kind.CLASSIC):
                assert self._open is not None
                self._open.state = DEAD
                self._interrupted(index, entry)

    def _epoch_bumped(self, index: int, entry: Entry) -> None:
        restarts = whole(entry, "restarts")
        if self._open is not None and (restarts == 0 or self._open.kind is not Kind.CONSUMER):
            self._interrupted(index - 1, entry)  # the entry of its end was lost
        current = self._open
        if current is None:
            current = self._begin(index, entry)
            current.kind, current.from_state = Kind.CONSUMER, self._state
            current.began_in_sight = not restarts
        current.starts.append(Start(index, entry, entry.trigger))
        current.state, current.assigned = ASSIGNING, None
        if entry.generation is not None:
            current.generation = entry.generation
            current.reached[entry.generation] = len(current.starts) - 1

    def _target_assigned(self, index: int, entry: Entry) -> None:
        current = self._open or self._begin_unseen(index, entry)
        current.kind, current.state, current.assigned = Kind.CONSUMER, RECONCILING, entry
        current.targets.append(entry)
        current.generation = current.generation if entry.generation is None else entry.generation

    def _migrated(self, index: int, entry: Entry) -> None:
        """The group has changed its type, which ends a rebalance of its former type."""
        self._state = STABLE
        former = Kind.CLASSIC if text(entry, "to_type") == Kind.CONSUMER else Kind.CONSUMER
        if self._is_open(former):
            self._interrupted(index, entry)

    def _completed(self, index: int, entry: Entry) -> None:
        if self._open is None and self._found:
            before = self._found[-1]
            if before.completed is None and before.generation == entry.generation is not None:
                before.completed = entry  # late, or out of order
                return
        current = self._open or self._begin_unseen(index, entry)
        current.completed = entry
        if whole(entry, "target_ms") is not None:
            current.kind = Kind.CONSUMER
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
        self._open.interrupted_by = entry
        self._close(index + 1, Outcome.INTERRUPTED)

    def _begin(self, index: int, entry: Entry) -> Rebalance:
        first = index
        while (
            first > self._free
            and index - first < LOOK_ENTRIES_MAX
            and self._stream[first - 1].at_ms == entry.at_ms
            and self._stream[first - 1].type not in BOUNDS
        ):
            first -= 1
        began = Rebalance(self._group, self._stream, self._members, self._present, first, first, entry.at_ms)
        began.from_state = text(entry, "from_state")
        self._open = began
        return began

    def _begin_classic(self, index: int, entry: Entry) -> Rebalance:
        began = self._begin(index, entry)
        if began.from_state in (PREPARING, COMPLETING):  # a restart: the journal lacks the beginning
            began.began_in_sight = False
            began.started_ms -= max(whole(entry, "phase_ms") or 0, 0)
        return began

    def _begin_unseen(self, index: int, entry: Entry) -> Rebalance:
        """The journal lacks the beginning; `entry` holds what is known about it."""
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
        """The index of the first entry that belongs to no rebalance yet."""
        return self._found[-1].last if self._found else 0

    def _close(self, index: int, outcome: Outcome) -> None:
        current, self._open = self._open, None
        assert current is not None
        current.last, current.outcome = index, outcome
        current.mix_before, self._mix = self._mix, self._protocols.mix()
        current.mix = self._mix
        if not current.starts:
            # Only the last trigger is known, which the completion entry repeats. A change to
            # CompletingRebalance has its own trigger: all had joined.
            known = (
                current.completed
                or (current.targets[0] if current.targets else None)
                or Entry("state_changed", current.started_ms, -1, -1, current.group, current.generation)
            )
            current.starts.append(Start(max(current.last - 1, 0), known, known.trigger))
        self._found.append(current)

"""Counts journal entries as they arrive, for metrics and lists. This must be cheap, since a step of a group
waits for it; slow work (explaining a rebalance) is left until requested."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

from muster.coordinator.base.histogram import Histogram
from muster.coordinator.journal.entries import Entry, Member

GROUPS_MAX: Final = 10_000
"""Maximum groups counted; beyond that, those idle longest are forgotten."""
_UNEXPLAINED_MAX: Final = 100
"""Maximum rebalances of a group waiting for an explanation."""
_LABELS_MAX: Final = 50
"""Maximum distinct causes, errors and so on of a group."""
OTHER: Final = "other"
UNKNOWN: Final = "unknown"
"""The diagnosis if the cause is unknown."""

PHASE_BUCKETS: Final = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 60.0, 120.0, 300.0)
LATENESS_BUCKETS: Final = (1.0, 3.0, 5.0, 10.0, 15.0, 20.0, 30.0, 45.0, 60.0, 120.0, 300.0)

_Label = TypeVar("_Label")

REQUESTED: Final = "requested"
"""A removal requested by another client, such as an admin tool."""
EVICTIONS: Final = frozenset(
    {
        "session expired",
        "new member expired",
        "sync timed out",
        "rebalance timed out",
        "group full",
        "revocation timed out",
        REQUESTED,
    }
)
"""Triggers of removals that the member did not ask for."""


_OF_CLASSIC: Final = (("join", "join_ms"), ("assignment", "assignment_ms"))
_OF_CONSUMERS: Final = (("target", "target_ms"), ("reconcile", "reconcile_ms"))
"""Phases of rebalances, and the fields that hold their times."""


class Unexplained(NamedTuple):
    """A completed rebalance not explained yet."""

    generation: int | None
    trigger: str


class LastRebalance(NamedTuple):
    """The newest rebalance of a group, as recorded: its trigger, not its diagnosis."""

    at_ms: int
    generation: int | None
    cause: str
    member: Member | None

    def to_json(self) -> dict[str, object]:
        return {**self._asdict(), "member": None if self.member is None else self.member.to_json()}


class GroupTally:
    """The counts of one group."""

    __slots__ = (
        "commits_refused",
        "evicted",
        "joined",
        "last",
        "late",
        "left",
        "moved",
        "phases",
        "rebalances",
        "shard",
        "unexplained",
    )

    def __init__(self, shard: int) -> None:
        self.shard = shard
        self.last: LastRebalance | None = None
        """Since the shard was loaded; those before are in the journal."""
        self.rebalances: Counter[tuple[str, str]] = Counter()
        """By trigger and diagnosis."""
        self.unexplained: deque[Unexplained] = deque()
        self.phases: dict[str, tuple[int, float]] = {}
        """Count and total seconds, by phase."""
        self.evicted: Counter[str] = Counter()
        self.commits_refused: Counter[str] = Counter()
        self.joined = self.left = self.late = self.moved = 0

    def copy(self) -> GroupTally:
        """A copy of the counts, for another thread."""
        made = GroupTally(self.shard)
        made.rebalances, made.unexplained = self.rebalances.copy(), self.unexplained.copy()
        made.phases, made.evicted = self.phases.copy(), self.evicted.copy()
        made.commits_refused = self.commits_refused.copy()
        made.joined, made.left, made.late, made.moved = self.joined, self.left, self.late, self.moved
        return made

    def give_up_on_the_oldest(self) -> None:
        """Count the oldest as unknown: its evidence is about to be dropped before anybody asked."""
        oldest = self.unexplained.popleft()
        self.count_rebalance(oldest.trigger, UNKNOWN)

    def count_rebalance(self, cause: str, diagnosis: str) -> None:
        """Count an explained rebalance."""
        _count(self.rebalances, (cause, diagnosis), (OTHER, UNKNOWN))


_UNHEARD: Final = GroupTally(-1)


class Tallies:
    """Counts of entries, by group, since the process started."""

    def __init__(self, groups_max: int = GROUPS_MAX) -> None:
        self.groups: dict[str, GroupTally] = {}
        self.phases: dict[str, Histogram] = {}
        """Over all groups, by phase."""
        self.lateness = Histogram(LATENESS_BUCKETS)
        self.epochs = 0
        """New epochs of consumer groups."""
        self.completed = 0
        """Completed rebalances of classic groups, except those that left them Empty."""
        self._groups_max = groups_max

    def observe(self, entries: Sequence[Entry]) -> None:
        """Count entries, in the order they happened."""
        for entry in entries:
            if entry.group is None:
                if entry.type == "shard_loaded":
                    self._loaded(entry.shard)
            elif entry.type == "group_removed":
                self.groups.pop(entry.group, None)
            else:
                self._of_group(entry.group, entry)

    def copy_of(self, group_id: str) -> GroupTally:
        """A copy of a group's counts, for another thread; all 0 if nothing has been heard of it."""
        return self.groups.get(group_id, _UNHEARD).copy()

    def keep(self, groups: Collection[str], shards: Collection[int]) -> None:
        """Forget groups that are not in `groups`, unless one of `shards` may bring them back: they are gone,
        or have moved to another process."""
        for group_id in [each for each in self.groups if each not in groups]:
            if self.groups[group_id].shard not in shards:
                del self.groups[group_id]

    def _loaded(self, shard: int) -> None:
        """Its groups may have rebalanced elsewhere meanwhile."""
        for tally in self.groups.values():
            if tally.shard == shard:
                tally.last = None

    def _of_group(self, group_id: str, entry: Entry) -> None:
        tally = self.groups.pop(group_id, None) or GroupTally(entry.shard)
        self.groups[group_id] = tally  # most recently heard of last
        if len(self.groups) > self._groups_max:
            del self.groups[next(iter(self.groups))]
        match entry.type:
            case "rebalance_completed":
                self._rebalanced(tally, entry)
            case "epoch_bumped":
                self.epochs += 1
            case "member_added":
                tally.joined += 1
            case "member_removed" if entry.data.get("requested_by") is not None:
                tally.evicted[REQUESTED] += 1
            case "member_removed" if entry.trigger in EVICTIONS:
                tally.evicted[entry.trigger or OTHER] += 1
            case "member_removed":
                tally.left += 1
            case "heartbeat_late":
                tally.late += 1
                self.lateness.observe(_seconds(entry.data, "late_ms"))
            case "commit_refused":
                _count(tally.commits_refused, str(entry.data.get("error", OTHER)), OTHER)
            case "assigned" | "target_assigned":
                moved = entry.data.get("moved")
                tally.moved += moved if isinstance(moved, int) else 0

    def _rebalanced(self, tally: GroupTally, entry: Entry) -> None:
        trigger = entry.trigger or OTHER
        tally.last = LastRebalance(entry.at_ms, entry.generation, trigger, entry.member)
        if len(tally.unexplained) >= _UNEXPLAINED_MAX:
            tally.give_up_on_the_oldest()
        tally.unexplained.append(Unexplained(entry.generation, trigger))
        of_consumers = entry.data.get("target_ms") is not None
        became_empty = entry.data.get("members") == 0
        self.completed += not of_consumers and not became_empty  # as Kafka counts them
        for phase, name in _OF_CONSUMERS if of_consumers else _OF_CLASSIC:
            seconds = _seconds(entry.data, name)
            if became_empty and (of_consumers or not seconds):
                continue  # there was no such phase, unless members were waited for and given up
            count, total = tally.phases.get(phase, (0, 0.0))
            tally.phases[phase] = count + 1, total + seconds
            self.phases.setdefault(phase, Histogram(PHASE_BUCKETS)).observe(seconds)


def _count(counts: Counter[_Label], label: _Label, other: _Label) -> None:
    counts[label if label in counts or len(counts) < _LABELS_MAX else other] += 1


def _seconds(data: Mapping[str, object], name: str) -> float:
    value = data.get(name)
    return value / 1000 if isinstance(value, int | float) else 0.0

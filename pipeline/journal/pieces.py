"""What to remember of each group, so that its rebalances come out as from the whole journal.

The rules that make `rebalances` look at all entries of a group (`muster.coordinator.journal.explain`). A
stream has only those of one batch, and a long journal does not fit into memory. So for each group, the
entries that these rules may still need are kept, and each batch yields a *piece*: the kept entries, followed
by the new ones. The same rules over the piece make the same rows, except for rebalances before the piece's
`live_offset`, which are only context and incomplete.

A rebalance is live while later entries may change its row: the last of its group; those that began less than
30 minutes ago, since a client that comes back explains why it left; and those that ended less than ten
minutes ago, since lag shows what they cost. All entries of live ones are kept. From before, these are kept:
lag in the hour before the first live one; members that joined, left or were late in the ten minutes before
it; the leader and the assignor; the last assignment, and the last rebalance that reported the number of
members, with all their changes of state, which make them rebalances.

What is kept is bounded, although the last rebalance of a group may be months old: refused commits are
counted, and a lag that is neither higher nor lower than those before it says nothing new. (One that climbs
for ever, with a fall after each new peak, is kept whole: a sample every five minutes.)

Time is that of the group's own entries: groups in a replayed journal have no common order in time. Brokers'
clocks may differ by `SKEW_MS`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from muster.coordinator.journal.entries import Entry
from muster.coordinator.journal.explain.facts import flag, lag, text, whole
from muster.coordinator.journal.explain.findings import LOOK_AHEAD_MS, LOOK_BACK_MS
from muster.coordinator.journal.explain.pace import BEFORE_MS, WINDOW_MS
from muster.coordinator.journal.explain.rebalances import BOUNDS
from muster.coordinator.journal.explain.vocabulary import COMPLETING, DEAD, EMPTY, PREPARING, STABLE
from muster.pipeline.errors import PipelineError
from muster.pipeline.journal.entries import SHARD_TYPES, Told, read, told_to

SKEW_MS: Final = 10 * 60_000
SHARD_ENTRIES: Final = 256
"""How many entries about a whole shard are kept for groups that are new or have been quiet."""

_SETTLED: Final = (STABLE, EMPTY)
_OF_CONSUMERS: Final = (
    "metadata_changed",
    "partitions_assigned",
    "protocol_migrated",
    "revocation_requested",
    "target_assigned",
)
"""Entries that also explain a rebalance of a consumer group."""
_AROUND: Final = frozenset(
    (
        "member_removed",
        "member_disconnected",
        "member_added",
        "member_id_issued",
        "member_replaced",
        "member_fenced",
        "heartbeat_late",
        "shard_loaded",
        *_OF_CONSUMERS,
    )
)
_LED: Final = ("assigned", "leader_changed")
_OUTCOMES: Final = ("protocol_chosen", "assigned", "leader_changed", "all_synced", "target_assigned")
"""Entries that occur once or a few times in a rebalance: always kept."""
_REACHING: Final = ("epoch_bumped", "target_assigned")
"""Entries that only rebalances of consumer groups have."""
_COUNTED: Final = (
    *_OUTCOMES,
    "member_added",
    "member_removed",
    "member_replaced",
    "member_rejoined",
    "topics_grown",
)


def is_bound(told: Told) -> bool:
    """Whether the entry changes the state of the group."""
    return told.entry.type in BOUNDS


def is_opener(told: Told) -> bool:
    """Whether a rebalance begins with the entry."""
    if told.entry.type == "epoch_bumped":
        return whole(told.entry, "restarts") == 0
    before = text(told.entry, "from_state")
    return text(told.entry, "to_state") == PREPARING and before in (*_SETTLED, DEAD)


@dataclass(slots=True)
class Rebalance:
    """A rebalance, and the entries after it until the next one begins; or those before the first."""

    is_first: bool
    """Whether it comes first, so that its beginning may be missing."""
    entries: list[Told] = field(default_factory=list)
    ends: int = 0
    """How many of the entries belong to it; the others follow it."""

    @property
    def has_row(self) -> bool:
        """Whether the table has a row for it."""
        return any(
            text(each.entry, "to_state") in (PREPARING, COMPLETING)
            or each.entry.type in ("rebalance_completed", *_REACHING)
            for each in self.entries[: self.ends]
        )

    @property
    def of_consumers(self) -> bool:
        """Whether it is of a consumer group (KIP-848), so that a move of the coordinator does not end it."""
        return any(each.entry.type in _REACHING for each in self.entries[: self.ends])

    @property
    def is_open(self) -> bool:
        return self.ends == len(self.entries) and not _is_closer(self.entries[-1], None, self.of_consumers)

    @property
    def began_ms(self) -> int:
        """When it began, or a later time if its beginning is missing."""
        own = [each for each in self.entries if each.entry.type not in SHARD_TYPES]
        bound = next((each for each in own if is_bound(each)), (own or self.entries)[-1])
        return bound.entry.at_ms

    @property
    def ended_ms(self) -> int:
        """The time of the last of its own entries."""
        return self.entries[max(self.ends - 1, 0)].entry.at_ms

    def last(self, wanted: Callable[[Told], bool], *, own: bool = False) -> Told | None:
        """The last entry that is `wanted`; `own`: without those that only follow it."""
        entries = self.entries[: self.ends] if own else self.entries
        return next((each for each in reversed(entries) if wanted(each)), None)


def _is_closer(told: Told, next_bound: Told | None, of_consumers: bool) -> bool:
    to_state = text(told.entry, "to_state")
    if told.entry.type in ("rebalance_completed", "group_removed"):
        return True
    if told.entry.type in SHARD_TYPES or to_state == DEAD:
        return not of_consumers
    completes = next_bound is not None and next_bound.entry.type == "rebalance_completed"
    return to_state in _SETTLED and not completes


def rebalances(entries: Sequence[Told]) -> list[Rebalance]:
    """Cut the entries of a group, in order, into parts to be kept or forgotten together."""
    nexts: list[Told | None] = []
    bound: Told | None = None
    for each in reversed(entries):
        nexts.append(bound)
        if is_bound(each):
            bound = each
    nexts.reverse()
    found: dict[int, Rebalance] = {}
    closed: set[int] = set()
    openers = 0
    for each, following in zip(entries, nexts, strict=True):
        openers += is_opener(each)
        begins_next = (
            not is_bound(each)
            and following is not None
            and is_opener(following)
            and following.entry.at_ms == each.entry.at_ms
        )
        number = openers + begins_next
        rebalance = found.setdefault(number, Rebalance(is_first=number == 0))
        rebalance.entries.append(each)
        if number not in closed:
            rebalance.ends = len(rebalance.entries)
            if _is_closer(each, following, rebalance.of_consumers):
                closed.add(number)
    return [found[number] for number in sorted(found)]


class Group(NamedTuple):
    """What is remembered of a group."""

    entries: tuple[Told, ...] = ()
    live_offset: int = -1
    """Rebalances from here on are live."""
    newest_ms: int = 0
    shard_offset: int = -1
    """`entries` include those about its shard up to here."""

    def to_json(self) -> str:
        return json.dumps([_kept(self.entries), *self[1:]], separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str, group: str) -> Group:
        entries, *rest = json.loads(text)
        return cls(tuple(told_to(group, each) for each in _told(entries)), *rest)


class Piece(NamedTuple):
    """A part of a group's journal: everything from `live_offset` on, and what is needed from before."""

    group: str
    live_offset: int
    entries: tuple[Told, ...]


def remembered(piece: Piece, newest_ms: int, shard_offset: int) -> tuple[Group, bool]:
    """What to keep of a piece, and whether the last rebalance in it is under way."""
    cut = rebalances(piece.entries)
    # Those before the piece's live ones have lost some of their entries.
    first = next(i for i, each in enumerate(cut) if each.entries[0].offset >= piece.live_offset)
    since_ms = newest_ms - LOOK_AHEAD_MS - SKEW_MS
    watched_ms = newest_ms - WINDOW_MS - SKEW_MS
    may_change = (
        i for i in range(first, len(cut)) if cut[i].began_ms >= since_ms or cut[i].ended_ms >= watched_ms
    )
    live = next(may_change, len(cut) - 1)
    kept = _context(cut[:live], min(each.began_ms for each in cut[live:]))
    changes_until_ms = max(each.began_ms for each in cut[live:]) + LOOK_AHEAD_MS
    for each in cut[live:]:
        kept += _thinned(each, newest_ms, changes_until_ms)
    live_offset = min(each.entries[0].offset for each in cut[live:])
    kept.sort(key=lambda each: each.offset)
    last = cut[-1]
    return Group(tuple(kept), live_offset, newest_ms, shard_offset), last.has_row and last.is_open


def _context(cut: Sequence[Rebalance], live_ms: int) -> list[Told]:
    """What live rebalances, which began no earlier than `live_ms`, may need from those before."""
    if not cut:
        return []
    lag_ms, around_ms = live_ms - BEFORE_MS - SKEW_MS, live_ms - LOOK_BACK_MS - SKEW_MS
    kept: dict[int, Told] = {}
    # To the rules too, changes of state make a rebalance. Those of the last one keep what is before them out
    # of the step in which the first live one began.
    unchanged = [cut[-1]]
    for each in cut:
        for told in each.entries:
            entry = told.entry
            if entry.type in _AROUND and entry.at_ms >= around_ms:
                kept[told.offset] = told
            if entry.at_ms >= lag_ms and _lag(told) is not None:
                kept[told.offset] = told
                if entry.type == "rebalance_completed":
                    unchanged.append(each)
    for wanted, own in (
        (lambda each: text(each.entry, "protocol") is not None, False),
        (lambda each: each.entry.type in _LED and each.entry.member is not None, False),
        (lambda each: each.entry.type == "assigned", False),
        (lambda each: each.entry.type == "assigned", True),
        (lambda each: _tells_members(each.entry), True),
    ):
        for each in reversed(cut):
            found = each.last(wanted, own=own)
            if found is not None:
                kept[found.offset] = found
                unchanged.append(each)
                break
    for each in unchanged:
        kept.update((told.offset, told) for told in each.entries if is_bound(told))
    return list(kept.values())


def _tells_members(entry: Entry) -> bool:
    return entry.type == "rebalance_completed" and whole(entry, "members") is not None


def _lag(told: Told) -> int | None:
    return lag(told.entry) if told.entry.type in ("lag_at_commit", "rebalance_completed") else None


def _thinned(rebalance: Rebalance, newest_ms: int, changes_until_ms: int) -> list[Told]:
    """The entries of a live rebalance, without those that follow it and will not be needed."""
    # Entries not known to be a rebalance may turn out to be one whose beginning is lost, named after its
    # first entry.
    is_doubtful = rebalance.is_first and not rebalance.has_row
    ends = 1 if is_doubtful else rebalance.ends
    kept = rebalance.entries[:ends]
    following = rebalance.entries[ends:]
    telling = _telling(rebalance)
    # Until its first move, the coordinator knew the connections of members that had left.
    moved = next((at for at, each in enumerate(following) if each.entry.type in SHARD_TYPES), -1)
    until_moved = {each.offset for each in following[max(moved - 1, 0) : moved + 1]}
    refused: dict[int | None, int] = {}
    before = next((each for each in reversed(kept) if is_bound(each)), None)
    for each in following:
        type, at_ms = each.entry.type, each.entry.at_ms
        old = at_ms < newest_ms - BEFORE_MS - SKEW_MS and at_ms > changes_until_ms
        if type == "commit_refused" and at_ms < newest_ms - SKEW_MS and each.offset not in until_moved:
            generation = whole(each.entry, "committed_generation_id")
            first = refused.get(generation)
            if first is None:
                refused[generation] = len(kept)
                kept.append(each)
            else:
                kept[first] = kept[first]._replace(times=kept[first].times + each.times)
            continue
        if each.offset in until_moved:
            is_needed = True
        elif old and type in SHARD_TYPES:
            is_needed = before is None or before.entry.type == "state_changed"
        elif old and type == "lag_at_commit":
            is_needed = each.offset in telling
        else:
            is_needed = not old or is_bound(each) or type in (_COUNTED if is_doubtful else _OUTCOMES)
        if is_needed:
            kept.append(each)
        if is_bound(each):
            before = each
    return kept


def _telling(rebalance: Rebalance) -> set[int]:
    """Offsets of the lags after a rebalance that may be its peak, or the first to be back at what it was.

    A lag that is not lower than all those since the peak is not the first to be back; nor is one that is
    higher than all before it, which only counts until a higher one comes.
    """
    found: list[int] = []
    peak = lowest = -1
    has_sample = is_back = is_rise = False
    for at, each in enumerate(rebalance.entries):
        is_sample = each.entry.type == "lag_at_commit" and at >= rebalance.ends
        behind, recovered = _lag(each), flag(each.entry, "recovered") is True
        if behind is None or not (is_sample or each.entry.type == "rebalance_completed"):
            continue
        if behind > peak:
            if is_rise:
                found.pop()
            peak, lowest = behind, behind if is_sample else -1
            is_rise = is_sample and has_sample and not recovered
            found.append(each.offset)
        elif is_sample and (lowest < 0 or behind < lowest or (recovered and not is_back)):
            lowest = behind if lowest < 0 else min(lowest, behind)
            is_rise = False
            found.append(each.offset)
        has_sample |= is_sample
        is_back |= recovered
    return set(found)


@dataclass(slots=True)
class Shard:
    """What is remembered of a shard: the entries about it as a whole, and the groups that these concern at
    once. The caller of `take` remembers the groups, one by one."""

    entries: list[Told] = field(default_factory=list)
    open_groups: list[str] = field(default_factory=list)
    """The groups with a rebalance under way, which entries about the shard end."""
    end_offset: int = -1

    def to_json(self) -> str:
        return json.dumps([_kept(self.entries), self.open_groups, self.end_offset], separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Shard:
        entries, open_groups, end_offset = json.loads(text)
        return cls(_told(entries), open_groups, end_offset)

    def take(
        self,
        told: Iterable[Told],
        recall: Callable[[str], Group],
        remember: Callable[[str, Group], Any],
    ) -> Iterator[Piece]:
        """Take the next entries of the shard, in any order. Yields the pieces of the groups that they
        concern. Raises PipelineError for entries from before."""
        ordered = sorted(told, key=lambda each: each.offset)
        if not ordered:
            return
        if ordered[0].offset <= self.end_offset:
            raise PipelineError(
                f"the journal has begun anew: offset {ordered[0].offset} of one of its partitions comes"
                f" after {self.end_offset}. Keep the tables that there are, and give --to another folder"
            )
        self.end_offset = ordered[-1].offset
        concerned: dict[str, list[Told]] = {}
        for each in ordered:
            if each.entry.group is None:
                self.entries.append(each)
                for name in self.open_groups:
                    concerned.setdefault(name, [])
            else:
                concerned.setdefault(each.entry.group, []).append(each)
        under_way = set(self.open_groups)
        for group, own in concerned.items():
            known = recall(group)
            unknown = self._unknown_to(known, own[0].offset if own else -1)
            of_shard = [told_to(group, each) for each in unknown]
            entries = sorted((*known.entries, *of_shard, *own), key=lambda each: each.offset)
            piece = Piece(group, known.live_offset, tuple(entries))
            yield piece
            shard_offset = max((each.offset for each in of_shard), default=known.shard_offset)
            newest_ms = max((each.entry.at_ms for each in own), default=known.newest_ms)
            kept, is_open = remembered(piece, max(newest_ms, known.newest_ms), shard_offset)
            remember(group, kept)
            (under_way.add if is_open else under_way.discard)(group)
        self.open_groups = sorted(under_way)
        del self.entries[:-SHARD_ENTRIES]

    def _unknown_to(self, known: Group, first_offset: int) -> list[Told]:
        """Entries about the shard that a group does not have yet; for a new group, only the last of those
        before its own first entry."""
        found = [each for each in self.entries if each.offset > known.shard_offset]
        if not known.entries:
            earlier = sum(each.offset < first_offset for each in found)
            found = found[max(earlier - 1, 0) :]
        return found


def _kept(entries: Iterable[Told]) -> list[tuple[int, int, str]]:
    return [(each.offset, each.times, each.value) for each in entries]


def _told(kept: Iterable[Sequence[Any]]) -> list[Told]:
    # Checkpoints of 0.1 also contain the value's fields: offset, ten more, times, value.
    found = (read(each[0], each[-1], each[-2]) for each in kept)
    return [each for each in found if each is not None]

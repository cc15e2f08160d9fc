"""What a stream must remember of each group, so that its rebalances come out as from the whole journal.

`rebalances` is made by SQL that looks at all entries of a group (cutting, rebalances, diagnoses). A stream
has those of one batch. So it keeps, for each group, the entries that this SQL may still look at, and hands
out with each batch a *piece*: what it has kept, followed by what is new. The same SQL over the piece makes
the same rows, but for those before the piece's `live_offset`, which are there as context and not in full.

A rebalance is live while anything that is still to come may change its row: the last of its group, those that
began less than 30 minutes ago, since a client that comes back explains why it went, and those that ended less
than ten minutes ago, since lag tells what they cost. All entries of live ones are kept. Of those before are
kept: what was told of lag in the hour before the first live one; who came, went or was late in the ten
minutes before; who led, by which assignor; the last assignment, and the last rebalance that told how many
members there are, with all their changes of state, which make them rebalances.

What is kept is bounded, though the last rebalance of a group may lie months back: refused commits are
counted, and a lag that is neither higher nor lower than those before it says nothing new. (One that climbs
for ever, with a fall after each new height, is kept whole: a sample every five minutes.)

Time is that of the group's own entries: the groups of a journal that is replayed are not in a common order of
time. Brokers' clocks may differ by `SKEW_MS`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from muster.pipeline.errors import PipelineError

SKEW_MS: Final = 10 * 60_000
AHEAD_MS: Final = 30 * 60_000
"""For how long what comes later may change what is said of a rebalance (diagnoses.py)."""
BACK_MS: Final = 10 * 60_000
"""How far back it is looked for who came and went (diagnoses.py)."""
LAG_AHEAD_MS: Final = 10 * 60_000
"""For how long after its end lag tells of it (rebalances.py)."""
LAG_BACK_MS: Final = 60 * 60_000
"""And what the lag was (rebalances.py)."""
SHARD_ENTRIES: Final = 256
"""How many of the entries about a whole shard are kept for groups that are new, or have been quiet."""

_SHARD_TYPES: Final = ("shard_loaded", "shard_unloaded")
_BOUNDS: Final = ("state_changed", "rebalance_completed", *_SHARD_TYPES)
_SETTLED: Final = ("Stable", "Empty")
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
    )
)
_LED: Final = ("assigned", "leader_changed")
_OUTCOMES: Final = ("protocol_chosen", "assigned", "leader_changed", "all_synced")
"""What is told once in a rebalance, or a few times: always kept."""
_COUNTED: Final = (
    *_OUTCOMES,
    "member_added",
    "member_removed",
    "member_replaced",
    "member_rejoined",
    "topics_grown",
)


class Entry(NamedTuple):
    """An entry of the journal: what the cutting goes by, and the record's value as it is."""

    offset: int
    at_ms: int
    type: str
    from_state: str
    to_state: str
    member_id: str
    has_protocol: bool
    has_members: bool
    """It tells how many members there are."""
    lag: int
    """-1: it tells of none."""
    recovered: bool
    generation: int
    """Under which a refused commit came; -2: not told."""
    times: int
    """For how many entries of its like it stands."""
    value: str

    @property
    def is_bound(self) -> bool:
        """It changes the state of the group."""
        return self.type in _BOUNDS

    @property
    def is_opener(self) -> bool:
        """A rebalance begins with it."""
        return self.to_state == "PreparingRebalance" and self.from_state in ("Stable", "Empty", "Dead")


@dataclass(slots=True)
class Rebalance:
    """The entries of a number of `cutting`: a rebalance, and what follows it until the next one."""

    is_first: bool
    """Its beginning may not be in sight."""
    entries: list[Entry] = field(default_factory=list)
    ends: int = 0
    """How many of the entries belong to it; the others follow it."""

    @property
    def has_row(self) -> bool:
        """The table has it."""
        return any(
            each.to_state in ("PreparingRebalance", "CompletingRebalance")
            or each.type == "rebalance_completed"
            for each in self.entries[: self.ends]
        )

    @property
    def is_open(self) -> bool:
        return self.ends == len(self.entries) and not _is_closer(self.entries[-1], None)

    @property
    def began_ms(self) -> int:
        """When it began; not before that, where its beginning is not in sight."""
        own = [each for each in self.entries if each.type not in _SHARD_TYPES]
        bound = next((each for each in own if each.is_bound), (own or self.entries)[-1])
        return bound.at_ms

    @property
    def ended_ms(self) -> int:
        """The last of its own entries."""
        return self.entries[max(self.ends - 1, 0)].at_ms

    def last(self, wanted: Callable[[Entry], bool], *, own: bool = False) -> Entry | None:
        """The last entry that is wanted; `own`: of those that do not just follow it."""
        entries = self.entries[: self.ends] if own else self.entries
        return next((each for each in reversed(entries) if wanted(each)), None)


def _is_closer(entry: Entry, next_bound: Entry | None) -> bool:
    if entry.type in ("rebalance_completed", *_SHARD_TYPES) or entry.to_state == "Dead":
        return True
    completes = next_bound is not None and next_bound.type == "rebalance_completed"
    return entry.to_state in _SETTLED and not completes


def rebalances(entries: Sequence[Entry]) -> list[Rebalance]:
    """Cut the entries of a group, in order, as `cutting` does."""
    nexts: list[Entry | None] = []
    bound: Entry | None = None
    for each in reversed(entries):
        nexts.append(bound)
        if each.is_bound:
            bound = each
    nexts.reverse()
    found: dict[int, Rebalance] = {}
    closed: set[int] = set()
    openers = 0
    for each, following in zip(entries, nexts, strict=True):
        openers += each.is_opener
        begins_next = (
            not each.is_bound
            and following is not None
            and following.is_opener
            and following.at_ms == each.at_ms
        )
        number = openers + begins_next
        rebalance = found.setdefault(number, Rebalance(is_first=number == 0))
        rebalance.entries.append(each)
        if number not in closed:
            rebalance.ends = len(rebalance.entries)
            if _is_closer(each, following):
                closed.add(number)
    return [found[number] for number in sorted(found)]


class Group(NamedTuple):
    """What is remembered of a group."""

    entries: tuple[Entry, ...] = ()
    live_offset: int = -1
    """Rebalances from here on are live."""
    newest_ms: int = 0
    shard_offset: int = -1
    """Entries about its shard are among `entries` up to here."""

    def to_json(self) -> str:
        return json.dumps(self, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Group:
        entries, *rest = json.loads(text)
        return cls(tuple(Entry(*each) for each in entries), *rest)


class Piece(NamedTuple):
    """A part of a group's journal: all from `live_offset` on, and what is asked for of the time before."""

    group: str
    live_offset: int
    entries: tuple[Entry, ...]


def remembered(piece: Piece, newest_ms: int, shard_offset: int) -> tuple[Group, bool]:
    """What to keep of a piece, and whether the last rebalance in it is under way."""
    cut = rebalances(piece.entries)
    # Of those before the piece's live ones not all entries are there any more.
    first = next(i for i, each in enumerate(cut) if each.entries[0].offset >= piece.live_offset)
    since_ms = newest_ms - AHEAD_MS - SKEW_MS
    watched_ms = newest_ms - LAG_AHEAD_MS - SKEW_MS
    may_change = (
        i for i in range(first, len(cut)) if cut[i].began_ms >= since_ms or cut[i].ended_ms >= watched_ms
    )
    live = next(may_change, len(cut) - 1)
    kept = _context(cut[:live], min(each.began_ms for each in cut[live:]))
    changes_until_ms = max(each.began_ms for each in cut[live:]) + AHEAD_MS
    for each in cut[live:]:
        kept += _thinned(each, newest_ms, changes_until_ms)
    live_offset = min(each.entries[0].offset for each in cut[live:])
    kept.sort()
    last = cut[-1]
    return Group(tuple(kept), live_offset, newest_ms, shard_offset), last.has_row and last.is_open


def _context(cut: Sequence[Rebalance], live_ms: int) -> list[Entry]:
    """What live rebalances, which began no earlier than `live_ms`, may have to be told of those before."""
    if not cut:
        return []
    lag_ms, around_ms = live_ms - LAG_BACK_MS - SKEW_MS, live_ms - BACK_MS - SKEW_MS
    kept: set[Entry] = set()
    # With its changes of state a rebalance is one to the SQL too. Those of the last one keep what is before
    # them out of the step in which the first live one began.
    whole = [cut[-1]]
    for each in cut:
        for entry in each.entries:
            if entry.type in _AROUND and entry.at_ms >= around_ms:
                kept.add(entry)
            if entry.lag >= 0 and entry.at_ms >= lag_ms:
                kept.add(entry)
                if entry.type == "rebalance_completed":
                    whole.append(each)
    for wanted, own in (
        (lambda e: e.has_protocol, False),
        (lambda e: e.type in _LED and e.member_id != "", False),
        (lambda e: e.type == "assigned", False),
        (lambda e: e.type == "assigned", True),
        (lambda e: e.type == "rebalance_completed" and e.has_members, True),
    ):
        for each in reversed(cut):
            found = each.last(wanted, own=own)
            if found is not None:
                kept.add(found)
                whole.append(each)
                break
    for each in whole:
        kept.update(entry for entry in each.entries if entry.is_bound)
    return list(kept)


def _thinned(rebalance: Rebalance, newest_ms: int, changes_until_ms: int) -> list[Entry]:
    """The entries of a live rebalance, without those among what follows it that nobody will ask for."""
    # What is not known to be a rebalance may turn out to be one whose beginning is lost, and has its first
    # entry for a name.
    is_doubtful = rebalance.is_first and not rebalance.has_row
    ends = 1 if is_doubtful else rebalance.ends
    kept = rebalance.entries[:ends]
    following = rebalance.entries[ends:]
    telling = _telling(rebalance)
    refused: dict[int, int] = {}
    before = next((each for each in reversed(kept) if each.is_bound), None)
    for each in following:
        old = each.at_ms < newest_ms - LAG_BACK_MS - SKEW_MS and each.at_ms > changes_until_ms
        if each.type == "commit_refused" and each.at_ms < newest_ms - SKEW_MS:
            first = refused.get(each.generation)
            if first is None:
                refused[each.generation] = len(kept)
                kept.append(each)
            else:
                kept[first] = kept[first]._replace(times=kept[first].times + each.times)
            continue
        if old and each.type in _SHARD_TYPES:
            is_needed = before is None or before.type == "state_changed"
        elif old and each.type == "lag_at_commit":
            is_needed = each.offset in telling
        else:
            is_needed = not old or each.is_bound or each.type in (_COUNTED if is_doubtful else _OUTCOMES)
        if is_needed:
            kept.append(each)
        if each.is_bound:
            before = each
    return kept


def _telling(rebalance: Rebalance) -> set[int]:
    """Offsets of the lags after a rebalance that may be its peak, or the one at which it was back.

    A lag that is no lower than one since the peak is not the first to be back; nor is one that is higher than
    all before it, which only counts until a higher one comes.
    """
    found: list[int] = []
    peak = lowest = -1
    has_sample = is_back = is_rise = False
    for at, each in enumerate(rebalance.entries):
        is_sample = each.type == "lag_at_commit" and at >= rebalance.ends
        if each.lag < 0 or not (is_sample or each.type == "rebalance_completed"):
            continue
        if each.lag > peak:
            if is_rise:
                found.pop()
            peak, lowest = each.lag, each.lag if is_sample else -1
            is_rise = is_sample and has_sample and not each.recovered
            found.append(each.offset)
        elif is_sample and (lowest < 0 or each.lag < lowest or (each.recovered and not is_back)):
            lowest = each.lag if lowest < 0 else min(lowest, each.lag)
            is_rise = False
            found.append(each.offset)
        has_sample |= is_sample
        is_back |= each.recovered
    return set(found)


@dataclass(slots=True)
class Shard:
    """What is remembered of a shard: what was told of it as a whole, and which groups that concerns at once.
    Groups are remembered one by one, by whoever calls `take`."""

    entries: list[Entry] = field(default_factory=list)
    open_groups: list[str] = field(default_factory=list)
    """The groups with a rebalance under way: what happens to the shard ends it."""
    end_offset: int = -1

    def to_json(self) -> str:
        return json.dumps([self.entries, self.open_groups, self.end_offset], separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Shard:
        entries, open_groups, end_offset = json.loads(text)
        return cls([Entry(*each) for each in entries], open_groups, end_offset)

    def take(
        self,
        told: Iterable[tuple[str | None, Entry]],
        recall: Callable[[str], Group],
        remember: Callable[[str, Group], Any],
    ) -> Iterator[Piece]:
        """Take the next entries of the shard, each with its group (None: it is about the shard), in any
        order; the pieces of the groups that they concern. Raises PipelineError for entries of before."""
        ordered = sorted(told, key=lambda each: each[1].offset)
        if not ordered:
            return
        if ordered[0][1].offset <= self.end_offset:
            raise PipelineError(
                f"the journal has begun anew: offset {ordered[0][1].offset} of one of its partitions comes"
                f" after {self.end_offset}. Keep the tables that there are, and give --to another folder"
            )
        self.end_offset = ordered[-1][1].offset
        concerned: dict[str, list[Entry]] = {}
        for group, entry in ordered:
            if group is None:
                if not _is_readable(entry):
                    continue
                self.entries.append(entry)
                for name in self.open_groups:
                    concerned.setdefault(name, [])
            else:
                concerned.setdefault(group, []).append(entry)
        under_way = set(self.open_groups)
        for group, own in concerned.items():
            known = recall(group)
            unknown = self._unknown_to(known, own[0].offset if own else -1)
            of_shard = [_told_to(group, each) for each in unknown]
            piece = Piece(group, known.live_offset, tuple(sorted((*known.entries, *of_shard, *own))))
            yield piece
            shard_offset = max((each.offset for each in of_shard), default=known.shard_offset)
            newest_ms = max((each.at_ms for each in own), default=known.newest_ms)
            kept, is_open = remembered(piece, max(newest_ms, known.newest_ms), shard_offset)
            remember(group, kept)
            (under_way.add if is_open else under_way.discard)(group)
        self.open_groups = sorted(under_way)
        del self.entries[:-SHARD_ENTRIES]

    def _unknown_to(self, known: Group, first_offset: int) -> list[Entry]:
        """What a group has not been told yet: of what came before its own first entry, the last."""
        found = [each for each in self.entries if each.offset > known.shard_offset]
        if not known.entries:
            earlier = sum(each.offset < first_offset for each in found)
            found = found[max(earlier - 1, 0) :]
        return found


def _is_readable(entry: Entry) -> bool:
    """Spark reads more than JSON; what it reads so is not of a coordinator."""
    try:
        return isinstance(json.loads(entry.value), dict)
    except ValueError:
        return False


def _told_to(group: str, entry: Entry) -> Entry:
    """What concerns a whole shard happened to each of its groups."""
    return entry._replace(value=json.dumps(json.loads(entry.value) | {"group": group}))

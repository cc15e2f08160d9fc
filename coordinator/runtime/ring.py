"""The newest entries of a broker's groups, in memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from heapq import merge
from itertools import count, islice
from typing import Any, Final

from muster.coordinator.journal.entries import WHOLE_BROKER, Entry

GROUP_ENTRIES_MAX: Final = 1_000
LAG_ENTRIES_MAX: Final = 100
"""Of a group; lag entries come steadily, and must not push out those that explain its last rebalance."""
OUTLINE_ENTRIES_MAX: Final = 300
"""Of a group's older entries, those of a type in `_OUTLINE`: a rebalance of a large group brings hundreds of
joins, which must not push out its beginning."""
_OUTLINE: Final = frozenset(
    {
        "state_changed",
        "assigned",
        "rebalance_completed",
        "protocol_chosen",
        "leader_changed",
        "epoch_bumped",
        "target_assigned",
    }
)
SHARD_ENTRIES_MAX: Final = 100
"""Entries that concern a shard as a whole."""
WEIGHT_MAX: Final = 100_000
"""Of all groups' entries: each counts one, plus one for every eight elements of its lists and one for every
`_LONG_CHARACTERS` of long texts. That is about 100 MB at most."""
_LONG_CHARACTERS: Final = 512
_SHORT_TEXT: Final = 128
"""Characters of a text that are not counted: most names are shorter, and entries share them."""


_Kept = tuple[int, int, Entry]
"""An entry, preceded by its time and an increasing number, by which rings are merged. The time is that of an
earlier entry of the shard if that is later: the clock of a former broker may have been ahead."""


class Journal:
    """Rings of entries for each group, and one for what concerns a shard as a whole. Used only from the
    broker's loop.

    Beyond `group_entries_max` a ring drops its oldest entries, except those that outline rebalances; beyond
    `weight_max` in total, the groups that have been silent longest are dropped.
    """

    def __init__(self, *, group_entries_max: int = GROUP_ENTRIES_MAX, weight_max: int = WEIGHT_MAX) -> None:
        self.listeners: list[Callable[[Sequence[Entry]], None]] = []
        """Called with added entries, in order; must be quick and not raise."""
        self._entries_max = group_entries_max
        self._weight_max = weight_max
        self._weight = 0
        self._groups: dict[str, _OfGroup] = {}  # the one with the newest entry comes last
        self._shards: dict[int, deque[_Kept]] = {}
        self._newest_ms: dict[int, int] = {}
        """By shard, the latest time of its entries."""
        self._number = count()

    def __repr__(self) -> str:
        return f"<Journal groups={len(self._groups)} weight={self._weight}>"

    def add(self, entries: Sequence[Entry]) -> None:
        """Add entries, in the order in which they happened."""
        if entries:
            self._add(entries)
            for listener in self.listeners:
                listener(entries)

    def of(self, group_id: str) -> list[Entry]:
        """The entries of a group, of its shard and of the whole broker, by time; empty if the group has none
        here."""
        group = self._groups.get(group_id)
        if group is None:
            return []
        wider = [self._shards.get(shard, ()) for shard in (WHOLE_BROKER, group.shard)]
        return [kept[2] for kept in merge(*wider, *group.rings)]

    def groups(self) -> list[str]:
        """The groups that have entries."""
        return sorted(self._groups)

    def latest(self, count: int = 100) -> list[Entry]:
        """The newest entries of all groups and shards, the newest last."""
        rings = [*self._shards.values()]
        for group in self._groups.values():
            rings += group.rings
        newest_first = merge(*map(reversed, rings), reverse=True)
        return [kept[2] for kept in islice(newest_first, max(count, 0))][::-1]

    def restore(self, shard: int, entries: Sequence[Entry]) -> None:
        """A shard was loaded, and `entries` were read from its journal: merge them with what is still known
        of it here. Listeners are not called."""
        known = [(kept, kept[2].to_json()) for kept in self._take(shard)]
        # A broker may reload a shard that it had: stored entries are known twice, and those not stored (there
        # was no room) only here. Those known keep their place, and the others follow the one stored before,
        # at their time at the earliest.
        places = {text: kept[:2] for kept, text in known}
        stored: set[bytes] = set()
        merged: list[_Kept] = []
        for entry in entries:
            text = entry.to_json()
            at_ms, number = places.get(text, (entry.at_ms, -1))
            if merged:
                at_ms, number = max((at_ms, number), merged[-1][:2])
            merged.append((at_ms, number, entry))
            stored.add(text)
        not_stored = [kept for kept, text in known if text not in stored]
        self._add([kept[2] for kept in merge(merged, not_stored, key=_place)])

    def forget(self, shard: int) -> None:
        """Drop all entries of a shard: it is another broker's now."""
        self._take(shard)

    def _take(self, shard: int) -> list[_Kept]:
        groups = [group_id for group_id, group in self._groups.items() if group.shard == shard]
        self._newest_ms.pop(shard, None)
        rings = [self._shards.pop(shard, deque())]
        for group in map(self._drop, groups):
            rings += group.rings
        return list(merge(*rings))

    def _add(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            at_ms = max(entry.at_ms, self._newest_ms.get(entry.shard, entry.at_ms))
            self._newest_ms[entry.shard] = at_ms
            kept = at_ms, next(self._number), entry
            if entry.group is None:
                self._shards.setdefault(entry.shard, deque(maxlen=SHARD_ENTRIES_MAX)).append(kept)
                continue
            group = self._groups.pop(entry.group, None)
            if group is None:
                group = _OfGroup(entry.shard)
            self._groups[entry.group] = group
            of_lag = entry.type == "lag_at_commit"
            ring = group.lags if of_lag else group.entries
            ring.append(kept)
            self._weight += _weight(entry)
            if len(ring) > (LAG_ENTRIES_MAX if of_lag else self._entries_max):
                self._weight -= group.retire(ring.popleft())
        while self._weight > self._weight_max:
            longest_silent = next(iter(self._groups))
            if len(self._groups) > 1:
                self._drop(longest_silent)
                continue
            group = self._groups[longest_silent]
            if sum(map(len, group.rings)) == 1:
                break  # a single entry may be of any weight
            self._weight -= _weight((group.lags or group.outline or group.entries).popleft()[2])

    def _drop(self, group_id: str) -> _OfGroup:
        group = self._groups.pop(group_id)
        self._weight -= sum(_weight(kept[2]) for ring in group.rings for kept in ring)
        return group


class _OfGroup:
    __slots__ = ("entries", "lags", "outline", "shard")

    def __init__(self, shard: int) -> None:
        self.shard = shard
        self.entries: deque[_Kept] = deque()
        self.lags: deque[_Kept] = deque()
        self.outline: deque[_Kept] = deque()
        """Entries older than `entries`."""

    @property
    def rings(self) -> tuple[deque[_Kept], ...]:
        return self.entries, self.lags, self.outline

    def retire(self, oldest: _Kept) -> int:
        """Keep what is dropped from another ring, if it belongs to the outline. Returns the weight that is
        lost."""
        if oldest[2].type not in _OUTLINE:
            return _weight(oldest[2])
        self.outline.append(oldest)
        return _weight(self.outline.popleft()[2]) if len(self.outline) > OUTLINE_ENTRIES_MAX else 0


def together(journals: Sequence[Sequence[Entry]]) -> list[Entry]:
    """Merge the journals of several brokers by time, without duplicates: a broker that takes a shard over
    reads the entries of its predecessors, and every broker notes that the clock was moved."""
    some = [each for each in journals if each]
    if len(some) == 1:
        return list(some[0])
    found: list[Entry] = []
    seen: set[bytes] = set()
    for entries in some:
        keys = [_without_broker(each).to_json() for each in entries]
        found += [each for each, key in zip(entries, keys, strict=True) if key not in seen]
        seen.update(keys)
    return sorted(found, key=_at_ms)


def _without_broker(entry: Entry) -> Entry:
    return entry._replace(broker=0) if entry.type == "clock_moved" else entry


def _at_ms(entry: Entry) -> int:
    return entry.at_ms


def _place(kept: _Kept) -> tuple[int, int]:
    return kept[:2]


def _weight(entry: Entry) -> int:
    elements = 0
    for value in entry.data.values():
        if isinstance(value, list | dict):
            elements += len(value)
    long = _long_texts(entry.data.values()) + _long_texts((entry.group, entry.reason))
    if entry.member is not None:
        long += _long_texts(entry.member)
    return 1 + elements // 8 + long // _LONG_CHARACTERS


def _long_texts(values: Iterable[Any]) -> int:
    """Count the characters of long texts beyond `_SHORT_TEXT`, including those in lists."""
    found = 0
    for value in values:
        kind = value.__class__
        if kind is str:
            if len(value) > _SHORT_TEXT:
                found += len(value) - _SHORT_TEXT
        elif kind is list:
            found += _long_texts(value)
        elif kind is dict:
            found += _long_texts(value) + _long_texts(value.values())
    return found

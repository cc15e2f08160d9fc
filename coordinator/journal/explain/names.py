"""Formats partitions, times and durations for sentences, and finds the members that entries mention."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, tzinfo
from typing import Final

from muster.coordinator.journal.entries import Entry, Member
from muster.coordinator.journal.explain.facts import counts, everybody, mentioned, moves, present
from muster.coordinator.journal.explain.rebalances import Rebalance
from muster.coordinator.journal.names import Names

_LISTED_MAX: Final = 4
NAMED_MAX: Final = 8
"""How many members are named where all matter."""
_MS_MAX: Final = 253_402_300_799_000  # the last second a datetime can hold


def names_in(entries: Iterable[Entry], there: Iterable[Member] | None = None) -> Names:
    """The names of the members in a group's entries; `there` are its current members, if known: they may have
    joined before the first entry."""
    entries = list(entries)
    if there is None:
        return Names(everybody(entries).values(), present(entries))
    now = {each.id: each for each in there}
    return Names((everybody(entries) | now).values(), now)


def owners(rebalance: Rebalance, names: Names) -> list[Member]:
    """The known members that the rebalance assigned partitions to."""
    if rebalance.assigned is None:
        return []
    known = (names.of_id(each) for each in counts(rebalance.assigned, "owned"))
    return [each for each in known if each is not None]


def ids_in(entries: Iterable[Entry]) -> list[str]:
    """The member ids in entries."""
    found: dict[str, None] = {}
    for entry in entries:
        found.update((each.id, None) for each in mentioned(entry))
        found.update(dict.fromkeys(counts(entry, "owned")))
        for move in moves(entry):
            found.update((each, None) for each in (move.from_member, move.to_member) if each)
    return list(found)


def listed(names: Sequence[str], at_most: int = _LISTED_MAX, *, between: str = ", ") -> str:
    """For example: a, b and 3 more."""
    if len(names) <= at_most:
        return between.join(names)
    return f"{between.join(names[:at_most])} and {len(names) - at_most} more"


def count(number: int, noun: str, plural: str = "") -> str:
    """For example: 1 partition, 12 partitions."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def partitions(numbered: Iterable[tuple[str, int]], *, singly: int = 0) -> str:
    """For example: orders-3..5, orders-9; up to `singly` of them are listed individually."""
    ordered = sorted(set(numbered))
    if len(ordered) <= singly:
        return ", ".join(f"{topic}-{number}" for topic, number in ordered)
    runs: list[tuple[str, int, int]] = []
    for topic, number in ordered:
        if runs and runs[-1][0] == topic and runs[-1][2] == number - 1:
            runs[-1] = (topic, runs[-1][1], number)
        else:
            runs.append((topic, number, number))
    return listed(
        [f"{topic}-{low}" if low == high else f"{topic}-{low}..{high}" for topic, low, high in runs]
    )


def per_second(rate: float) -> str:
    """For example: 40 records/s, 2.5 records/s, 12 records/min."""
    if 0 < rate < 0.95:
        return f"{count(max(round(rate * 60), 1), 'record')}/min"
    said = f"{rate:,.0f}" if rate >= 9.95 else f"{rate:.1f}".removesuffix(".0")
    return f"{said} record{'' if said == '1' else 's'}/s"


def duration(ms: int) -> str:
    """For example: 42 ms, 2.7 s, 12 min 5 s, 3 h 20 min, 2 d 4 h."""
    ms = max(ms, 0)
    if ms < 100:
        return f"{ms} ms"
    if ms < 600_000:
        return f"{(ms + 50) // 100 / 10:.1f} s"
    seconds = ms // 1000
    for unit, size, below, part in (("d", 86_400, "h", 3_600), ("h", 3_600, "min", 60), ("min", 60, "s", 1)):
        if seconds >= size:
            rest = seconds % size // part
            return f"{seconds // size} {unit}" + (f" {rest} {below}" if rest else "")
    raise AssertionError(ms)


def moment(at_ms: int, zone: tzinfo | None, *, near_ms: int | None = None, exact: bool = False) -> str:
    """For example: 14:03:31, or 14:03:31.412 if `exact`; with the date if it differs from that of `near_ms`.
    Local time without a zone."""
    at = _datetime(at_ms, zone)
    clock = at.strftime("%H:%M:%S") + (f".{at.microsecond // 1000:03}" if exact else "")
    if near_ms is not None and _datetime(near_ms, zone).date() != at.date():
        return f"{at.date()} {clock}"
    return clock


def _datetime(at_ms: int, zone: tzinfo | None) -> datetime:
    try:
        return datetime.fromtimestamp(min(max(at_ms, 0), _MS_MAX) / 1000, zone)
    except (ValueError, OverflowError, OSError):  # out of range with a zone
        return datetime(1970, 1, 1, tzinfo=zone)

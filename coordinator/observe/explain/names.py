"""What members, partitions, moments and durations are called in sentences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, tzinfo
from typing import Final

from muster.coordinator.observe.explain.facts import counts, mentioned, moves
from muster.coordinator.observe.explain.rebalances import Rebalance
from muster.coordinator.observe.journal.entries import Entry, Member

_ID_TAIL: Final = 6
_LISTED_MAX: Final = 4
_MS_MAX: Final = 253_402_300_799_000  # the last second that a datetime can say


class Names:
    """The members that a group's entries mention. Members of one name (several processes under one client id)
    are told apart by the end of their ids where `within` mentions several."""

    def __init__(self, members: Mapping[str, Member], within: Iterable[Entry] | None = None) -> None:
        """`members` by id; without `within` all of them count."""
        self._members = members
        self._ids: dict[str, set[str]] = {}
        shown = members.values() if within is None else (who for each in within for who in self._in(each))
        for each in shown:
            self._ids.setdefault(_plain(each), set()).add(each.id)

    def _in(self, entry: Entry) -> list[Member]:
        return [*mentioned(entry), *self._moved(entry)]

    def _moved(self, entry: Entry) -> list[Member]:
        ids = [each for move in moves(entry) for each in (move.from_member, move.to_member) if each]
        return [self._members[each] for each in ids if each in self._members]

    def of(self, member_id: str) -> Member | None:
        return self._members.get(member_id)

    def short(self, member: Member | str | None) -> str:
        """As web-2, or web-2/3f9a1c where several go by that name."""
        if isinstance(member, str):
            known = self._members.get(member)
            if known is None:
                return member or "nobody"
            member = known
        if member is None:
            return "nobody"
        name = _plain(member)
        several = len(self._ids.get(name, ())) > 1 and member.instance is None
        return f"{name}/{member.id[-_ID_TAIL:]}" if several and member.id != name else name

    def long(self, member: Member | None) -> str:
        """As web-2 (host 10.0.0.7), or web-2 (host 10.0.0.7, instance web-2)."""
        if member is None:
            return "a member"
        instance = "" if member.instance is None else f", instance {member.instance}"
        return f"{self.short(member)} (host {member.host or '-'}{instance})"

    def owners(self, rebalance: Rebalance) -> list[Member]:
        """The members that the rebalance assigned to, as far as they are known."""
        if rebalance.assigned is None:
            return []
        known = (self._members.get(each) for each in counts(rebalance.assigned, "owned"))
        return [each for each in known if each is not None]


def _plain(member: Member) -> str:
    return member.instance or member.client_id or member.id


def listed(names: Sequence[str], at_most: int = _LISTED_MAX) -> str:
    """As a, b and 3 more."""
    if len(names) <= at_most:
        return ", ".join(names)
    return f"{', '.join(names[:at_most])} and {len(names) - at_most} more"


def count(number: int, noun: str, plural: str = "") -> str:
    """As 1 partition, 12 partitions."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def partitions(numbered: Iterable[tuple[str, int]], *, singly: int = 0) -> str:
    """As orders-3..5, orders-9; up to `singly` of them each by itself."""
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


def duration(ms: int) -> str:
    """As 42 ms, 2.7 s, 12 min 5 s, 3 h 20 min, 2 d 4 h."""
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
    """As 14:03:31, or 14:03:31.412 if `exact`; with the date when it is another than that of `near_ms`. In
    local time without a zone."""
    at = _datetime(at_ms, zone)
    clock = at.strftime("%H:%M:%S") + (f".{at.microsecond // 1000:03}" if exact else "")
    if near_ms is not None and _datetime(near_ms, zone).date() != at.date():
        return f"{at.date()} {clock}"
    return clock


def _datetime(at_ms: int, zone: tzinfo | None) -> datetime:
    try:
        return datetime.fromtimestamp(min(max(at_ms, 0), _MS_MAX) / 1000, zone)
    except (ValueError, OverflowError, OSError):  # at the very ends, with a zone
        return datetime(1970, 1, 1, tzinfo=zone)

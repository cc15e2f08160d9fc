"""What members, partitions, moments and durations are called in sentences."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime, tzinfo
from typing import Final

from muster.coordinator.observe.explain.facts import counts, everybody, mentioned, moves, present
from muster.coordinator.observe.explain.rebalances import Rebalance
from muster.coordinator.observe.journal.entries import Entry, Member

_ID_TAIL: Final = 6
_SHORT_ID_MAX: Final = 12
_LISTED_MAX: Final = 4
_MS_MAX: Final = 253_402_300_799_000  # the last second that a datetime can say
_MADE_ID: Final = re.compile(r"(.*)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.DOTALL)
"""A member id as coordinators make it: the client id, a dash, a UUID."""


class Names:
    """The short names of one group's members. Every view of the group takes them from here: commands, the
    page, log lines and tests.

    A static member goes by its group.instance.id. A dynamic member goes by its client id, as web-2, while it
    is the only one in the group with that client id; otherwise by client id and the end of its member id, as
    web-2/3f9a1c. A member that has gone keeps the plain name unless another one has, or had, the same client
    id. So a plain name always means the one member that has it now.
    """

    def __init__(self, members: Iterable[Member], present: Collection[str] | None = None) -> None:
        """`members` are all that are known, `present` the ids of those in the group now; None: all of
        them."""
        self._members = {each.id: each for each in members}
        self._present = frozenset(self._members if present is None else present)
        for each in self._present - self._members.keys():
            self._members[each] = _unknown(each)
        self._known: dict[str, set[str]] = {}
        self._there: dict[str, set[str]] = {}
        for member in self._members.values():
            # One instance is one member, under whatever ids it came.
            one = member.id if member.instance is None else ""
            self._known.setdefault(_plain(member), set()).add(one)
            if member.id in self._present:
                self._there.setdefault(_plain(member), set()).add(one)

    @classmethod
    def of(cls, entries: Iterable[Entry], there: Iterable[Member] | None = None) -> Names:
        """Those of the members that a group's entries mention; `there` are the members that it has now, where
        that is known from elsewhere: entries may begin after they came."""
        entries = list(entries)
        if there is None:
            return cls(everybody(entries).values(), present(entries))
        now = {each.id: each for each in there}
        return cls((everybody(entries) | now).values(), now)

    def of_id(self, member_id: str) -> Member | None:
        return self._members.get(member_id)

    def short(self, member: Member | str | None) -> str:
        """As web-2, or web-2/3f9a1c where several go by that client id."""
        if not member:
            return "nobody"
        if isinstance(member, str):
            member = self._members.get(member) or _unknown(member)
        plain = _plain(member)
        if member.instance is not None or plain == member.id:
            return plain
        there = self._there if member.id in self._present else self._known
        is_alone = there.get(plain, {member.id}) == {member.id}
        return plain if plain and is_alone else f"{plain or 'member'}/{member.id[-_ID_TAIL:]}"

    def long(self, member: Member | None) -> str:
        """As web-2 (host 10.0.0.7), or web-2 (host 10.0.0.7, instance web-2)."""
        if member is None:
            return "a member"
        instance = "" if member.instance is None else f", instance {member.instance}"
        return f"{self.short(member)} (host {member.host or '-'}{instance})"

    def by_id(self, ids: Iterable[str]) -> dict[str, str]:
        """Member id -> short name."""
        return {each: self.short(each) for each in dict.fromkeys(ids)}

    def meant(self, name: str) -> list[Member]:
        """The members that somebody may mean: by member id, or else by short name, or else by instance id or
        client id, or else by client id and the end of the member id. Where the group has members, only those
        in it."""
        there = sorted(self._members.values(), key=lambda each: each.id)
        there = [each for each in there if each.id in self._present] or there
        for found in (
            [each for each in there if each.id == name],
            [each for each in there if self.short(each) == name],
            [each for each in there if name in (each.instance, each.client_id)],
            [each for each in there if f"{_plain(each) or 'member'}/{each.id[-_ID_TAIL:]}" == name],
        ):
            if found:
                return found
        return []

    def owners(self, rebalance: Rebalance) -> list[Member]:
        """The members that the rebalance assigned to, as far as they are known."""
        if rebalance.assigned is None:
            return []
        known = (self._members.get(each) for each in counts(rebalance.assigned, "owned"))
        return [each for each in known if each is not None]


def ids_in(entries: Iterable[Entry]) -> list[str]:
    """The member ids that entries hold."""
    found: dict[str, None] = {}
    for entry in entries:
        found.update((each.id, None) for each in mentioned(entry))
        found.update(dict.fromkeys(counts(entry, "owned")))
        for move in moves(entry):
            found.update((each, None) for each in (move.from_member, move.to_member) if each)
    return list(found)


def _plain(member: Member) -> str:
    if member.instance is not None:
        return member.instance
    return member.client_id or (member.id if len(member.id) <= _SHORT_ID_MAX else "")


def _unknown(member_id: str) -> Member:
    """A member of which only the id is known; that begins with its client id."""
    made = _MADE_ID.fullmatch(member_id)
    return Member(member_id, member_id if made is None else made[1], "")


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


def per_second(rate: float) -> str:
    """As 40 records/s, 2.5 records/s, 12 records/min."""
    if 0 < rate < 0.95:
        return f"{count(max(round(rate * 60), 1), 'record')}/min"
    said = f"{rate:,.0f}" if rate >= 9.95 else f"{rate:.1f}".removesuffix(".0")
    return f"{said} record{'' if said == '1' else 's'}/s"


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

"""Sticky assignment among members that subscribe to the same topics: shares differ by at most one, and each
member keeps what it had, up to its share."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Sequence

from muster.client.assignors.layout import Layout
from muster.client.assignors.racks import Racks


def share_equally(owned: Sequence[list[int]], layout: Layout, racks: Racks | None) -> list[list[int]]:
    """Each member's share of the layout's partitions, given what it had. The first members, in order, that
    had a longer share keep it."""
    dealing = _Dealing(owned, layout, racks)
    left = dealing.left()
    if racks is not None:
        left = dealing.deal_nearby(racks, left)
    dealing.deal(left)
    return dealing.shares


class _Dealing:
    def __init__(self, owned: Sequence[list[int]], layout: Layout, racks: Racks | None) -> None:
        self.layout = layout
        self.share, self.longer = divmod(layout.total, len(owned))
        """What every member gets, and how many get one more."""
        self.longest = self.share + (self.longer > 0)
        self.shares: list[list[int]] = []
        self.short: list[int] = []
        """Members with less than the share."""
        self.even: deque[int] = deque()
        """Members with the share that may get one more."""
        for member, had in enumerate(owned):
            mine = had if racks is None else [each for each in had if not racks.apart(member, each)]
            if len(mine) < self.share:
                self.shares.append(list(mine))
                self.short.append(member)
            elif len(mine) >= self.longest and self.longer:
                self.shares.append(self.first(mine, self.longest))
                self.longer -= 1
                if not self.longer:
                    self.even.clear()
            else:
                self.shares.append(self.first(mine, self.share))
                if self.longer:
                    self.even.append(member)

    def first(self, numbers: list[int], count: int) -> list[int]:
        """What a member that had too much keeps: the low partitions of every topic."""
        if len(numbers) == count:
            return list(numbers)
        return sorted(numbers, key=self.layout.within_topic)[:count]

    def left(self) -> list[int]:
        """The partitions that nobody keeps."""
        taken = bytearray(self.layout.total)
        for mine in self.shares:
            for number in mine:
                taken[number] = 1
        return [number for number in range(self.layout.total) if not taken[number]]

    def deal(self, left: Sequence[int]) -> None:
        """Deal one partition at a time to members with less than the share, in turn; then one to each that
        may get one more."""
        numbers = iter(left)
        turn = self.short
        while turn:
            again = []
            # zip takes a member first: a number taken first would be lost when the members run out.
            for member, number in zip(turn, numbers, strict=False):
                mine = self.shares[member]
                mine.append(number)
                if len(mine) < self.share:
                    again.append(member)
                else:
                    self.even.append(member)
            turn = again
        for number in numbers:
            self.shares[self.even.popleft()].append(number)

    def deal_nearby(self, racks: Racks, left: Sequence[int]) -> list[int]:
        """Deal partitions with a replica in the rack of a member that may get more, those with the least
        choice of members first. Members with less than the share take turns; if none of them is near, the
        first near one that may get one more is next. Returns the partitions left."""
        in_turn = sorted(left, key=racks.members_near)
        short = _Circle(self.short, racks)
        even = _Line(self.even, racks)
        rest = []
        for number in in_turn:
            near = racks.of_partitions[number]
            member = short.next(near)
            if member is None:
                member = even.first(near) if self.longer else None
                if member is None:
                    rest.append(number)
                    continue
                even.leave(member)
                self.longer -= 1
            elif len(self.shares[member]) + 1 >= self.share:
                short.leave(member)
                if self.longer:
                    even.join(member)
            self.shares[member].append(number)
        self.short = short.members()
        self.even = deque(even.members())
        return rest


class _Circle:
    """Members in turn, found by their racks."""

    def __init__(self, members: Sequence[int], racks: Racks) -> None:
        self._places: dict[str | None, list[int]] = {}
        self._members = list(members)
        self._racks = racks
        self._gone: set[int] = set()
        self._next = 0
        for place, member in enumerate(members):
            self._places.setdefault(racks.of_members[member], []).append(place)

    def next(self, near: frozenset[str]) -> int | None:
        """The next member in one of these racks; the circle turns to the one after it."""
        found: int | None = None
        count = len(self._members)
        for rack in near:
            places = self._places.get(rack)
            if places:
                place = places[bisect_left(places, self._next) % len(places)]
                if found is None or (place - self._next) % count < (found - self._next) % count:
                    found = place
        if found is None:
            return None
        self._next = (found + 1) % count
        return self._members[found]

    def leave(self, member: int) -> None:
        """Remove the member that was found last."""
        place = (self._next - 1) % len(self._members)
        places = self._places[self._racks.of_members[member]]
        del places[bisect_left(places, place)]
        self._gone.add(member)

    def members(self) -> list[int]:
        return [member for member in self._members if member not in self._gone]


class _Line:
    """Members in a line, found by their racks."""

    def __init__(self, members: Iterable[int], racks: Racks) -> None:
        self._racks = racks
        self._places: dict[str | None, deque[int]] = {}
        self._line: dict[int, int] = {}
        self._joined = 0
        for member in members:
            self.join(member)

    def join(self, member: int) -> None:
        self._line[member] = self._joined
        self._joined += 1
        self._places.setdefault(self._racks.of_members[member], deque()).append(member)

    def first(self, near: frozenset[str]) -> int | None:
        heads = [places[0] for rack in near if (places := self._places.get(rack))]
        return min(heads, key=self._line.__getitem__, default=None)

    def leave(self, member: int) -> None:
        """Remove a member that was first."""
        self._places[self._racks.of_members[member]].popleft()
        del self._line[member]

    def members(self) -> list[int]:
        return list(self._line)

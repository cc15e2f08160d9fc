"""Sticky assignment among members that subscribe to different topics: loads as even as the subscriptions
allow, with few partitions moved."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush, heapreplace

from muster.client.assignors.racks import Racks


def share_unequally(
    owned: Sequence[list[int]],
    previous: Mapping[int, int],
    subscribers: Sequence[tuple[range, tuple[int, ...]]],
    racks: Racks | None,
    *,
    keeps_apart: bool,
) -> list[list[int]]:
    """Each member's share of the partitions, given what it had.

    `subscribers` holds, for each topic in order of names, its partitions and the members that want it,
    ascending. `previous` maps some partitions to the member that had them before their owner.
    `keeps_apart`: members may keep what they had in a foreign rack.
    """
    balance = _Balance(owned, previous, subscribers, racks)
    balance.keep(owned, None if keeps_apart else racks)
    balance.deal()
    balance.even_out()
    return balance.shares()


class _Balance:
    def __init__(
        self,
        owned: Sequence[list[int]],
        previous: Mapping[int, int],
        subscribers: Sequence[tuple[range, tuple[int, ...]]],
        racks: Racks | None,
    ) -> None:
        self.previous = previous
        self.racks = racks
        self.load = [0] * len(owned)
        """How many partitions each member has."""
        total = sum(len(numbers) for numbers, _ in subscribers)
        self.owner = [-1] * total
        self.queue_of = [_Queue((), self.load)] * total
        """The subscribers of each partition's topic; topics with the same subscribers share a queue."""
        self.queues_with: list[list[_Queue]] = [[] for _ in owned]
        """For each member, the queues it is in."""
        self.topic_of = [0] * total
        self.order: list[int] = []
        """Partitions, those whose topic has few subscribers first: later there is less choice for them."""
        queues: dict[tuple[int, ...], _Queue] = {}
        for numbers, members in sorted(subscribers, key=lambda each: len(each[1])):
            queue = queues.get(members)
            if queue is None:
                queue = queues[members] = _Queue(members, self.load)
                for member in members:
                    self.queues_with[member].append(queue)
            self.order += numbers
            self.queue_of[numbers.start : numbers.stop] = [queue] * len(numbers)
            self.topic_of[numbers.start : numbers.stop] = [numbers.start] * len(numbers)
        self.queues = list(queues.values())
        self.gave_up = False
        """Whether some member may not keep all it had."""
        self.began_empty = False
        """Whether nobody keeps anything."""
        self.dealt: list[int] = []
        self.moves = _Moves()

    def shares(self) -> list[list[int]]:
        found: list[list[int]] = [[] for _ in self.load]
        for number, member in enumerate(self.owner):
            if member >= 0:
                found[member].append(number)
        return found

    def keep(self, owned: Sequence[list[int]], racks: Racks | None) -> None:
        """Let members keep what they had, as far as they still subscribe to it and racks, if given, allow."""
        for member, numbers in enumerate(owned):
            for number in numbers:
                if member not in self.queue_of[number].members or (
                    racks is not None and racks.apart(member, number)
                ):
                    self.gave_up = True
                else:
                    self.owner[number] = member
                    self.load[member] += 1

    def deal(self) -> None:
        """Give what nobody keeps to the subscriber with the lowest load; if racks matter, first give
        partitions with a replica in some subscriber's rack to such a subscriber."""
        self.began_empty = not any(self.load)
        self.dealt = [number for number in self.order if self.owner[number] < 0]
        if self.racks is not None:
            self._deal_nearby(self.racks)
        for queue in self.queues:
            queue.restart()
        for number in self.dealt:
            if self.owner[number] < 0:
                self._give(number, self.queue_of[number].lowest())

    def _deal_nearby(self, racks: Racks) -> None:
        """A member without a rack is near everything."""
        near_queues: dict[_Queue, dict[str | None, _Queue]] = {}
        for queue in self.queues:
            by_rack: dict[str | None, list[int]] = {}
            for member in queue.members:
                by_rack.setdefault(racks.of_members[member], []).append(member)
            near_queues[queue] = {rack: _Queue(members, self.load) for rack, members in by_rack.items()}
        for number in self.dealt:
            queues = near_queues[self.queue_of[number]]
            near = (None, *racks.of_partitions[number])
            lowest = [queues[rack].lowest() for rack in near if rack in queues]
            if lowest:
                self._give(number, min(lowest, key=lambda member: (self.load[member], member)))

    def _give(self, number: int, member: int) -> None:
        self.owner[number] = member
        self.load[member] += 1

    def even_out(self) -> None:
        """Move partitions from members with a higher load to members with a lower one, those just dealt
        first. Undone if the loads are no more even than before."""
        before_owner, before_load = list(self.owner), list(self.load)
        if not self.gave_up:
            self._move([number for number in self.dealt if self.queue_of[number].has_choice])
        moved = self._move([number for number in self.order if self.queue_of[number].has_choice])
        if moved and not self.began_empty:
            taking_part = {member for queue in self.queues if queue.has_choice for member in queue.members}
            after = _unevenness(self.load[member] for member in taking_part)
            if after >= _unevenness(before_load[member] for member in taking_part):
                self.owner = before_owner

    def _move(self, numbers: Sequence[int]) -> bool:
        """Repeat until nothing moves, or moving no longer evens out the loads. Returns whether anything
        moved."""
        moved_ever = False
        while True:
            moved = False
            squares = sum(each * each for each in self.load)
            for number in numbers:
                load = self.load[self.owner[number]]
                had = self.previous.get(number, -1)
                if had in self.queue_of[number].members and load > self.load[had] + 1:
                    self._move_one(number, had)
                    moved = True
                    continue
                to = self.queue_of[number].lowest()
                if load > self.load[to] + 1:
                    self._move_one(number, to)
                    moved = True
            moved_ever = moved_ever or moved
            if not moved or sum(each * each for each in self.load) >= squares:
                return moved_ever

    def _move_one(self, number: int, to: int) -> None:
        number = self.moves.instead(self.topic_of[number], number, self.owner[number], to)
        source = self.owner[number]
        self.moves.record(self.topic_of[number], number, source, to)
        self.owner[number] = to
        self.load[to] += 1
        self.load[source] -= 1
        for queue in self.queues_with[source]:
            queue.push(source)


class _Queue:
    """The members that subscribe to some topics, by load and then by number, the lowest first.

    An entry is a load and a member. A load that grew is noticed when its entry comes up, so growing costs
    nothing; a member whose load fell is pushed again.
    """

    def __init__(self, members: Sequence[int], load: list[int]) -> None:
        self.members = frozenset(members)
        self.has_choice = len(members) > 1
        self._load = load
        self.restart()

    def restart(self) -> None:
        """Rebuild the queue from the current loads."""
        self._heap = [(self._load[member], member) for member in self.members]
        heapify(self._heap)

    def push(self, member: int) -> None:
        heappush(self._heap, (self._load[member], member))

    def lowest(self) -> int:
        """The first member, -1 if there is none."""
        heap, load = self._heap, self._load
        while heap:
            noted, member = heap[0]
            if noted == load[member]:
                return member
            if noted < load[member]:
                heapreplace(heap, (load[member], member))
            else:
                heappop(heap)
        return -1


class _Moves:
    """Which partition moved from which member to which. Instead of two partitions of a topic moving in
    opposite directions, neither moves: the one that moved before moves back."""

    def __init__(self) -> None:
        self._of: dict[int, tuple[int, int]] = {}
        self._between: dict[tuple[int, int, int], list[int]] = {}

    def instead(self, topic: int, number: int, source: int, to: int) -> int:
        """The partition to move in place of this one, or this one itself. Of several that moved the other
        way, it is the last; Kafka takes the first of a hash set."""
        if number in self._of:
            source = self._of[number][0]
        back = self._between.get((topic, to, source))
        return back[-1] if back else number

    def record(self, topic: int, number: int, source: int, to: int) -> None:
        earlier = self._of.pop(number, None)
        if earlier is not None:
            self._between[topic, *earlier].remove(number)
            source = earlier[0]
        if source != to:
            self._of[number] = (source, to)
            insort(self._between.setdefault((topic, source, to), []), number)


def _unevenness(loads: Iterable[int]) -> int:
    """The sum of the differences between all pairs."""
    found = below = 0
    for index, load in enumerate(sorted(loads)):
        found += load * index - below
        below += load
    return found

"""Kafka's RangeAssignor: each topic is cut into runs, one for each of its subscribers."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping
from itertools import islice
from typing import Final

from muster.client.assignors.interface import Assignor, MemberSubscription, TopicPartitions, partitions_of
from muster.client.assignors.members import in_order, subscribers, text_order
from muster.client.assignors.racks import racks_matter
from muster.client.partitions import TopicPartition

_NOWHERE: Final = frozenset[str]()
_NOBODY: Final = deque[str]()


class RangeAssignor(Assignor):
    """Cuts each topic into as many runs of partitions as it has subscribers; if they do not divide evenly,
    the first runs are longer by one. Topics with equally many partitions and the same subscribers are cut
    alike, so that a member gets the same partition numbers of all of them.

    Where racks matter (KIP-881), each member first gets partitions with a replica in its rack, up to its
    share; topics that are cut alike are dealt together, one partition number at a time. The rest is cut into
    runs.
    """

    name = "range"

    def assign(
        self, members: Mapping[str, MemberSubscription], topics: Mapping[str, TopicPartitions]
    ) -> dict[str, list[TopicPartition]]:
        assigned: dict[str, list[TopicPartition]] = {member_id: [] for member_id in members}
        who = subscribers(in_order(members), members)
        cuts = [
            _Cut(topic, topics[topic], {each: members[each].rack or None for each in who[topic]})
            for topic in sorted(who.keys() & topics.keys(), key=text_order)
            if topics[topic].count
        ]
        if any(cut.racks_matter for cut in cuts):
            _match_racks(cuts)
        for cut in cuts:
            cut.deal_runs()
            for member_id, numbers in cut.taken.items():
                assigned[member_id] += partitions_of(cut.topic, sorted(numbers))
        return assigned


class _Cut:
    """A topic while it is divided among its subscribers."""

    def __init__(self, topic: str, partitions: TopicPartitions, rack_of: Mapping[str, str | None]) -> None:
        self.topic = topic
        self.count = partitions.count
        self.rack_of = rack_of
        """The subscribers in order, each with its rack."""
        self.taken: dict[str, list[int]] = {member_id: [] for member_id in rack_of}
        self.racks_matter = racks_matter(filter(None, rack_of.values()), partitions.racks)
        self._racks = partitions.racks
        self._is_taken = bytearray(partitions.count)
        self._share, self._longer = divmod(partitions.count, len(rack_of))

    def racks(self, number: int) -> frozenset[str]:
        return self._racks[number] if number < len(self._racks) else _NOWHERE

    def room(self, member_id: str) -> int:
        """How many more partitions the member may get; never grows."""
        return max(0, self._share + (self._longer > 0) - len(self.taken[member_id]))

    def take(self, member_id: str, numbers: Collection[int]) -> None:
        mine = self.taken[member_id]
        mine += numbers
        if len(mine) > self._share:
            self._longer -= 1
        for number in numbers:
            self._is_taken[number] = True

    def deal_runs(self) -> None:
        """Give each member in turn as many of the first partitions left as it may get."""
        left = self._left(range(self.count))
        for member_id in self.taken:
            self._deal(member_id, left)

    def deal_nearby(self) -> None:
        """The same, but only partitions with a replica in the member's rack. A member without a rack gets
        any."""
        here: dict[str | None, list[int]] = {}
        for number in range(self.count):
            for rack in (None, *self.racks(number)):
                here.setdefault(rack, []).append(number)
        left = {rack: self._left(numbers) for rack, numbers in here.items()}
        for member_id, wanted in self.rack_of.items():
            if wanted in left:
                self._deal(member_id, left[wanted])

    def _left(self, numbers: Collection[int]) -> Iterator[int]:
        return (number for number in numbers if not self._is_taken[number])

    def _deal(self, member_id: str, left: Iterator[int]) -> None:
        room = self.room(member_id)
        if numbers := list(islice(left, room)):
            self.take(member_id, numbers)


def _match_racks(cuts: Collection[_Cut]) -> None:
    alike: dict[tuple[int, tuple[str, ...]], list[_Cut]] = {}
    for cut in cuts:
        alike.setdefault((cut.count, tuple(cut.taken)), []).append(cut)
    for together in alike.values():
        if len(together) > 1:
            _match_racks_together(together)
        elif together[0].racks_matter:
            together[0].deal_nearby()


def _match_racks_together(cuts: list[_Cut]) -> None:
    """Give each partition number, of all these topics, to the first member that is near all of them and may
    get more. Nothing else has been dealt yet, so it may get equally many of each topic."""
    first = cuts[0]
    place = {member_id: index for index, member_id in enumerate(first.taken)}
    waiting: dict[str | None, deque[str]] = {}
    for member_id, rack in first.rack_of.items():
        waiting.setdefault(rack, deque()).append(member_id)
    for number in range(first.count):
        heads = []
        common = frozenset.intersection(*(cut.racks(number) for cut in cuts))
        for rack in (None, *common):
            queue = waiting.get(rack, _NOBODY)
            while queue and not first.room(queue[0]):
                queue.popleft()
            heads += [queue[0]] if queue else []
        if heads:
            nearest = min(heads, key=place.__getitem__)
            for cut in cuts:
                cut.take(nearest, (number,))

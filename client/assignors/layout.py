"""Numbers the partitions of a group's topics: the sticky assignors work with ints."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping

from muster.client.assignors.interface import TopicPartitions, partitions_of
from muster.client.assignors.members import text_order
from muster.client.partitions import TopicPartition


class Layout:
    """Numbers partitions from 0 to `total` - 1, in order of topic names, and in order within each topic."""

    def __init__(self, topics: Mapping[str, TopicPartitions]) -> None:
        self.topics = sorted((topic for topic in topics if topics[topic].count), key=text_order)
        self.ranges: dict[str, range] = {}
        self.total = 0
        for topic in self.topics:
            self.ranges[topic] = range(self.total, self.total + topics[topic].count)
            self.total += topics[topic].count
        self._extents = {topic: (each.start, len(each)) for topic, each in self.ranges.items()}
        self._starts = [of_topic.start for of_topic in self.ranges.values()]
        self._racks = {topic: topics[topic].racks for topic in self.topics}

    def numbers(self, partitions: Iterable[tuple[str, int]]) -> list[int]:
        """The numbers of the partitions that exist, in the order given."""
        found = []
        extents, nowhere = self._extents, (0, 0)
        for topic, partition in partitions:
            start, count = extents.get(topic, nowhere)
            if 0 <= partition < count:
                found.append(start + partition)
        return found

    def within_topic(self, number: int) -> tuple[int, int]:
        """A sort key: by partition, then by topic."""
        start = self._starts[bisect_right(self._starts, number) - 1]
        return number - start, start

    def names(self) -> list[TopicPartition]:
        """The partition of each number."""
        return [
            each
            for topic, of_topic in self.ranges.items()
            for each in partitions_of(topic, range(len(of_topic)))
        ]

    def racks(self) -> list[frozenset[str]]:
        """The racks of each partition's replicas."""
        found: list[frozenset[str]] = []
        for topic, of_topic in self.ranges.items():
            known = self._racks[topic][: len(of_topic)]
            found += known
            found += [frozenset()] * (len(of_topic) - len(known))
        return found

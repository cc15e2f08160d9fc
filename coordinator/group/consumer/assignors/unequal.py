"""The assignor `uniform` for members that subscribe to different topics.

Every member keeps what it has of its topics, free partitions go to the subscribers with the lowest load, and
then partitions move from high loads to low ones, topic by topic, until the loads of each topic's subscribers
differ by one at most, as far as the members with the high loads have partitions of that topic.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from itertools import chain, repeat
from typing import Final

from muster.coordinator.group.consumer.assignors.assignor import Assignment, Spec
from muster.coordinator.group.consumer.assignors.kept import kept
from muster.protocol.java import uuid_order

ROUNDS_MAX: Final = 16
"""Maximum number of rounds over all topics; Kafka's bound. With subscriptions that overlap in a chain, every
round may find more to move."""


def share_unequally(spec: Spec) -> dict[str, Assignment]:
    group = _Group(spec)
    group.deal()
    group.balance()
    return group.shares()


class _Group:
    """Represents members by numbers, in the group's order."""

    def __init__(self, spec: Spec) -> None:
        self.ids = list(spec.members)
        self.subscribers: dict[uuid.UUID, list[int]] = {}
        for member, subscriber in enumerate(spec.members.values()):
            for topic in subscriber.topics:
                self.subscribers.setdefault(topic, []).append(member)

        def pressing(topic: uuid.UUID) -> tuple[float, int, int]:
            subscribers = len(self.subscribers[topic])
            return -spec.partitions[topic] / subscribers, subscribers, uuid_order(topic)

        self.topics = sorted(self.subscribers, key=pressing)
        """Those with the most partitions per subscriber first."""
        has = kept(spec)
        self.free = {topic: has.free(topic, spec.partitions[topic]) for topic in self.topics}
        self.owners = {topic: [-1] * spec.partitions[topic] for topic in self.topics}
        """The owner of each partition of a topic."""
        self.load = [0] * len(self.ids)
        """How many partitions each member has."""
        for member, keeps in enumerate(has.by_member):
            for topic, numbers in keeps.items():
                self.load[member] += len(numbers)
                owners = self.owners[topic]
                for number in numbers:
                    owners[number] = member

    def deal(self) -> None:
        for topic in self.topics:
            owners = self.owners[topic]
            takers = self._lowest_first(self._ranked(topic))
            for number in self.free[topic]:
                _, taker = next(takers)
                owners[number] = taker
                self.load[taker] += 1

    def balance(self) -> None:
        """Balance topics in turn until all in a row have been found balanced."""
        topics = [topic for topic in self.topics if len(self.subscribers[topic]) > 1]
        quiet = -1
        for topic in chain.from_iterable(repeat(topics, ROUNDS_MAX)):
            quiet = 0 if self._balance(topic) else quiet + 1
            if quiet == len(topics) - 1:
                break

    def shares(self) -> dict[str, Assignment]:
        found: list[dict[uuid.UUID, list[int]]] = [{} for _ in self.ids]
        for topic, owners in self.owners.items():
            for number, owner in enumerate(owners):
                found[owner].setdefault(topic, []).append(number)
        return {
            member_id: {topic: frozenset(numbers) for topic, numbers in share.items()}
            for member_id, share in zip(self.ids, found, strict=True)
        }

    def _balance(self, topic: uuid.UUID) -> bool:
        """Balance a topic. Returns whether anything moved. No member gives away what it was given here."""
        load, owners = self.load, self.owners[topic]
        loads = [load[member] for member in self.subscribers[topic]]
        if max(loads) - min(loads) <= 1:
            return False
        piles: dict[int, list[int]] = {member: [] for member in self.subscribers[topic]}
        for number, owner in enumerate(owners):
            piles[owner].append(number)
        ranked = self._ranked(topic)
        takers = self._lowest_first(ranked)
        moved = False
        for high, giver in self._highest_first(ranked, piles):
            low, taker = next(takers)
            if high - low <= 1:
                break
            owners[piles[giver].pop()] = taker
            load[giver] -= 1
            load[taker] += 1
            moved = True
        return moved

    def _ranked(self, topic: uuid.UUID) -> list[int]:
        """The topic's subscribers, lowest load first; equals in the group's order."""
        return sorted(self.subscribers[topic], key=self.load.__getitem__)

    def _lowest_first(self, ranked: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Who takes the next partition, with its load: like water rising over steps. Endless; asking for the
        next means that the last was given one partition."""
        load = self.load
        level = load[ranked[0]]
        reached = 0
        while True:
            while reached < len(ranked) and load[ranked[reached]] == level:
                reached += 1
            for member in ranked[:reached]:
                yield level, member
            level += 1

    def _highest_first(self, ranked: Sequence[int], piles: dict[int, list[int]]) -> Iterator[tuple[int, int]]:
        """Who gives the next partition, with its load, the other way round. A member with an empty pile drops
        out, and the first one left takes its place in the row."""
        load = self.load
        level = 0
        row: list[int] = []
        first = 0
        above = len(ranked)
        while first < len(row) or above:
            level = level - 1 if first < len(row) else load[ranked[above - 1]]
            while above and load[ranked[above - 1]] == level:
                above -= 1
                row.append(ranked[above])
            for at in range(first, len(row)):
                member = row[at]
                if piles[member]:
                    yield level, member
                else:
                    row[at] = row[first]
                    first += 1

"""Random groups to assign: a group lives through rounds in which members join, leave, are away for a while
and change their subscriptions, and topics gain partitions, disappear and appear."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random

from muster.client.assignors import MemberSubscription, TopicPartitions, assignor
from muster.client.partitions import TopicPartition

Assigned = Mapping[str, list[TopicPartition]]


@dataclass
class Shape:
    """What may happen in a group."""

    equal: bool = True
    racks: bool = False
    static: bool = False
    missing: bool = False
    """Subscribed topics that do not exist."""
    generations: bool = False
    """Members that were away, whose claims are old."""
    disputes: bool = False
    """Two members that claim the same partition."""
    members_max: int = 10
    topics_max: int = 5
    partitions_max: int = 12
    member_id: Callable[[int], str] = str
    topic: Callable[[int], str] = str
    """The names of the first, second and later topics."""


@dataclass
class Group:
    """A group with one assignor, round after round."""

    random: Random
    assignor: str
    shape: Shape
    members: dict[str, MemberSubscription] = field(default_factory=dict)
    topics: dict[str, TopicPartitions] = field(default_factory=dict)
    generation_id: int = 0
    _joined: int = 0
    _counts: dict[str, int] = field(default_factory=dict)
    """Partition counts: a deleted topic comes back with no fewer."""

    def __post_init__(self) -> None:
        random, shape = self.random, self.shape
        self.racks = [f"r{index}" for index in range(random.randint(1, 4))] if shape.racks else []
        self.names = [shape.topic(index) for index in range(random.randint(1, shape.topics_max))]
        self.wanted = self._some_topics()
        for name in self.names:
            if not (shape.missing and random.random() < 0.3):
                self._counts[name] = random.randint(1, shape.partitions_max)
                self.topics[name] = self._partitions(self._counts[name])
        for _ in range(random.randint(1, shape.members_max)):
            self._join()

    def settle(self, assigned: Assigned) -> None:
        """Members take over their assignments."""
        self.generation_id += 1
        for member_id, owned in assigned.items():
            self.members[member_id] = self._owning(self.members[member_id], owned, self.generation_id)

    def change(self) -> None:
        """Make the changes between two rounds."""
        random, shape = self.random, self.shape
        for _ in range(random.choice((0, 1, 1, 2, 4))):
            what = random.random()
            if what < 0.35:
                self._join()
            elif what < 0.6 and len(self.members) > 1:
                del self.members[random.choice(sorted(self.members))]
            elif what < 0.75:
                name = random.choice(self.names)
                if name in self.topics and shape.missing and random.random() < 0.4:
                    del self.topics[name]
                else:
                    more = self._counts.get(name, 0) + random.randint(1, 4)
                    self._counts[name] = min(more, max(shape.partitions_max, self._counts.get(name, 0)))
                    self.topics[name] = self._partitions(self._counts[name])
            elif what < 0.9:
                self._subscribe_anew()
            elif shape.generations:
                self._away()
        if shape.disputes and len(self.members) > 1 and random.random() < 0.5:
            self._dispute()

    def _join(self) -> None:
        topics = self.wanted if self.shape.equal else self._some_topics()
        random = self.random
        self._joined += 1
        self.members[self.shape.member_id(self._joined)] = MemberSubscription(
            topics=topics,
            rack=random.choice([*self.racks, None]) if self.racks else None,
            group_instance_id=f"i{random.randrange(1000)}-{self._joined}"
            if self.shape.static and random.random() < 0.5
            else None,
            user_data=assignor(self.assignor).user_data(topics, (), -1),
        )

    def _some_topics(self) -> frozenset[str]:
        return frozenset(self.random.sample(self.names, self.random.randint(1, len(self.names))))

    def _subscribe_anew(self) -> None:
        if self.shape.equal:
            self.wanted = self._some_topics()
            for member_id, each in self.members.items():
                self.members[member_id] = each._replace(topics=self.wanted)
        else:
            member_id = self.random.choice(sorted(self.members))
            self.members[member_id] = self.members[member_id]._replace(topics=self._some_topics())

    def _partitions(self, count: int) -> TopicPartitions:
        if not self.racks:
            return TopicPartitions(count)
        pick = self.random
        racks = (frozenset(pick.sample(self.racks, pick.randint(1, len(self.racks)))) for _ in range(count))
        return TopicPartitions(count, tuple(racks))

    def _owning(
        self, member: MemberSubscription, owned: list[TopicPartition], generation_id: int
    ) -> MemberSubscription:
        state = assignor(self.assignor)
        state.on_assignment(owned, generation_id)
        return member._replace(
            owned=tuple(owned),
            generation_id=generation_id,
            user_data=state.user_data(member.topics, owned, generation_id),
        )

    def _away(self) -> None:
        """A member still has an earlier assignment; others may own its partitions by now."""
        random = self.random
        member_id = random.choice(sorted(self.members))
        each = self.members[member_id]
        older = max(-1, each.generation_id - random.randint(1, 2))
        self.members[member_id] = self._owning(each, list(each.owned), older)

    def _dispute(self) -> None:
        random = self.random
        one, other = random.sample(sorted(self.members), 2)
        owned = self.members[one].owned
        if owned:
            taken = {*self.members[other].owned, random.choice(owned)}
            self.members[other] = self._owning(
                self.members[other], sorted(taken), self.members[other].generation_id
            )

"""The same groups given to muster's assignors and to Kafka's, and the differences between the results.

Where Kafka follows the order of a java.util.HashMap, muster follows the order of member ids. That decides
which of several members keeps a longer share, and nothing else of importance. Groups with `aligned` names
have ids that a HashMap keeps in their order, so that results can be equal to the last partition; with other
ids, results are measured.

The remaining differences are those where Kafka's result is one that no member should get:

- Kafka may assign a partition that does not exist, if a member had it before its topic was recreated with
  fewer; and may then fail because no members are left for the others.
- With differing subscriptions, Kafka may assign a partition to a member that had it some generations ago and
  no longer subscribes to its topic.
- With differing subscriptions, Kafka's cooperative assignor hands over at once what two members claim; with
  equal ones it does not.
- With differing subscriptions, Kafka's cooperative assignor takes away what a member has in a foreign rack,
  though it may give it back in the next generation: some groups never stop rebalancing.
- When two members claim a partition in one generation and a third in a later one, Kafka believes the third or
  nobody, depending on their order in the HashMap.
- Kafka treats a member without topics as subscribing to whatever the next member does, if the HashMap has it
  first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from enum import Enum
from random import Random
from typing import NamedTuple
from uuid import UUID

from muster.client.assignors import COOPERATIVE_STICKY, Assignor, assignor
from muster.client.assignors.claims import Claim
from muster.client.assignors.sticky import read_user_data
from muster.client.partitions import TopicPartition
from tests.interop.assignors.cases import Assigned, Group, Shape
from tests.interop.assignors.java import JavaAssignors

ROUNDS = 5


class Verdict(Enum):
    """The result of comparing two assignments."""

    SAME = "the same"
    INVALID = "Kafka's gives a partition to a member that does not subscribe to it"
    WITHHELD = "Kafka's cooperative one hands over at once what another member claims"
    APART = "Kafka's cooperative one takes away what a member has in a foreign rack"
    THREE_CLAIMS = "three members claim one partition"
    OTHER = "other"


class Compared(NamedTuple):
    """A group in one of its rounds, and both results."""

    group: Group
    mine: dict[str, list[TopicPartition]]
    theirs: dict[str, list[TopicPartition]]

    @property
    def verdict(self) -> Verdict:
        if self.mine == self.theirs:
            return Verdict.SAME
        members = self.group.members
        if any(each.topic not in members[member_id].topics for member_id, each in _pairs(self.theirs)):
            return Verdict.INVALID
        claimed = Counter(where for claim in claims(self.group).values() for where in set(claim.owned))
        if any(count > 2 for count in claimed.values()):
            return Verdict.THREE_CLAIMS
        more, fewer = set(_pairs(self.theirs)), set(_pairs(self.mine))
        if fewer < more and all(claimed[where] == 2 for _, where in more - fewer):
            return Verdict.WITHHELD
        return Verdict.APART if self._apart else Verdict.OTHER

    @property
    def _apart(self) -> bool:
        """Whether members of a cooperative group with differing subscriptions have something in a foreign
        rack."""
        members, topics = self.group.members, self.group.topics
        if self.group.assignor != COOPERATIVE_STICKY or len({each.topics for each in members.values()}) == 1:
            return False
        return any(
            each.rack is not None
            and where.topic in topics
            and where.partition < topics[where.topic].count
            and each.rack not in topics[where.topic].racks[where.partition]
            for each in members.values()
            for where in each.owned
        )


def play(
    java: JavaAssignors, name: str, shape: Shape, seed: int, mine: Assignor | None = None
) -> Iterator[Compared]:
    """A group's rounds; members take over what Kafka's assignor assigns."""
    group = Group(Random(seed), name, shape)
    for _ in range(ROUNDS):
        own = (mine or assignor(name)).assign(group.members, group.topics)
        theirs = java.assign(name, group.members, group.topics).assigned
        yield Compared(group, {member_id: sorted(each) for member_id, each in own.items()}, theirs)
        group.settle(theirs)
        group.change()


def claims(group: Group) -> dict[str, Claim]:
    """The claims of members, as the group's assignor reads them."""
    if group.assignor == "sticky":
        return {member_id: read_user_data(each.user_data) for member_id, each in group.members.items()}
    return {member_id: Claim(each.owned, each.generation_id) for member_id, each in group.members.items()}


def kept(group: Group, assigned: Assigned) -> int:
    """How many partitions stay with their owners."""
    said = claims(group)
    return sum(len(set(said[member_id].owned).intersection(each)) for member_id, each in assigned.items())


def unevenness(assigned: Assigned) -> int:
    """Kafka's balance score: the differences of all pairs of members."""
    sizes = [len(each) for each in assigned.values()]
    return sum(abs(one - other) for one in sizes for other in sizes) // 2


def aligned(shape: Shape) -> Shape:
    """The shape with names that a HashMap of up to 3,000 keeps in order: it places a character by its code.

    The hash of a partition decreases as its number grows, hence the 30 and the spacing of topics: a HashSet
    of up to 12 partitions begins with the highest number, as muster does.
    """
    return replace(
        shape,
        member_id=lambda index: chr(0x5000 + index),
        topic=lambda index: chr(0x6000 + 30 + 32 * index),
    )


def lifelike(shape: Shape, seed: int) -> Shape:
    """The shape with realistic names."""
    ids = Random(seed)
    return replace(
        shape,
        member_id=lambda index: f"consumer-{index}-{UUID(int=ids.getrandbits(128))}",
        topic=lambda index: f"topic-{index}",
    )


def _pairs(assigned: Assigned) -> list[tuple[str, TopicPartition]]:
    return [(member_id, where) for member_id, owned in assigned.items() for where in owned]


def report(compared: Compared) -> str:
    """A case as text, for a failure."""
    group = compared.group
    lines = [f"{group.assignor}: {compared.verdict.value}"]
    lines += [
        f"topic {topic!a} {each.count} {[sorted(racks) for racks in each.racks]}"
        for topic, each in sorted(group.topics.items())
    ]
    for member_id, each in sorted(group.members.items()):
        lines.append(
            f"member {member_id!a} {each.group_instance_id} {each.rack} generation {each.generation_id} "
            f"{sorted(each.topics)!a}"
        )
        for what, partitions in (
            ("owned", each.owned),
            ("muster", compared.mine[member_id]),
            ("Kafka", compared.theirs.get(member_id, [])),
        ):
            lines.append(f"    {what:6} {' '.join(ascii(str(where))[1:-1] for where in partitions)}")
    return "\n".join(lines)

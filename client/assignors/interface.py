"""The interface of assignors, which divide partitions among the members of a group. Pure: no I/O, no clock.

To write your own, derive from `Assignor`, give it a name of its own, and implement `assign`:

    from muster.client.assignors import Assignor, everything

    class FirstAssignor(Assignor):
        name = "first"

        def assign(self, members, topics):
            assigned = {member_id: [] for member_id in members}
            first = min(members)
            assigned[first] = everything(members[first].topics, topics)
            return assigned

and pass an instance to each consumer, `Consumer(..., assignors=[FirstAssignor()])`. Every member of the group
must offer an assignor of that name: the group uses one that all members offer, and only the leader's instance
is asked.

An assignor that offers RebalanceProtocol.COOPERATIVE must not give a partition to a member while another of
`members` has it in `owned`, since members keep what they own during the rebalance. Leave it out: its owner
gives it up, and the group rebalances again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from itertools import repeat
from typing import ClassVar, Final, NamedTuple

from muster.client.partitions import TopicPartition

NO_GENERATION: Final = -1
"""The generation of a member that has not been in one yet, or does not report it."""


class RebalanceProtocol(IntEnum):
    """What members do before they rejoin: give up everything, or keep what they own (KIP-429)."""

    EAGER = 0
    COOPERATIVE = 1


class MemberSubscription(NamedTuple):
    """What the leader knows about a member."""

    topics: frozenset[str] | tuple[str, ...]
    owned: tuple[TopicPartition, ...] = ()
    """What it owned before this rebalance and, in a cooperative one, still owns."""
    generation_id: int = NO_GENERATION
    """The generation in which it got them (KIP-792)."""
    rack: str | None = None
    """Its `client.rack` (KIP-881)."""
    group_instance_id: str | None = None
    """Set for a static member (KIP-345)."""
    user_data: bytes | None = None
    """What the member's own assignor returned from `user_data`."""


@dataclass(frozen=True, slots=True)
class TopicPartitions:
    """What the leader knows about a topic: partitions 0 to `count` - 1."""

    count: int
    racks: tuple[frozenset[str], ...] = ()
    """For each partition, the racks of its replicas; empty if no broker reports its rack."""


class Assignor(ABC):
    """Divides partitions among members. One instance belongs to one consumer: it may keep state between
    generations, which `on_assignment` reports to it."""

    name: ClassVar[str]
    """The name in JoinGroup: the group uses an assignor that all members offer."""
    protocols: ClassVar[frozenset[RebalanceProtocol]] = frozenset({RebalanceProtocol.EAGER})
    """The protocols it works with. A consumer uses the highest that all its assignors have in common."""
    version: ClassVar[int] = 0
    """The version of its user data, for its own use."""

    def user_data(
        self, topics: Iterable[str], owned: Iterable[TopicPartition], generation_id: int
    ) -> bytes | None:
        """Bytes in any format, sent with the subscription to the leader's instance.

        Equal state must give equal bytes: to the coordinator, different bytes are a different subscription.
        """
        return None

    @abstractmethod
    def assign(
        self, members: Mapping[str, MemberSubscription], topics: Mapping[str, TopicPartitions]
    ) -> dict[str, list[TopicPartition]]:
        """Each member's partitions; an empty list for members that get none. Called only on the leader.

        `members` is keyed by member id. `topics` holds the topics that members subscribe to and that exist; a
        member may subscribe to others. Equal arguments must give equal results, whatever the order of the
        mappings.
        """

    def on_assignment(self, assigned: Iterable[TopicPartition], generation_id: int) -> None:
        """This member got `assigned` in this generation. Assignors that report it in `user_data` keep it."""
        return None


def partitions_of(topic: str, numbers: Iterable[int]) -> list[TopicPartition]:
    """These partitions of a topic; fast, since groups may have a hundred thousand."""
    return list(map(_new_partition, zip(repeat(topic), numbers)))


def everything(subscribed: Iterable[str], topics: Mapping[str, TopicPartitions]) -> list[TopicPartition]:
    """All partitions of the subscribed topics that exist, sorted."""
    return [
        each
        for topic in sorted(set(subscribed) & topics.keys())
        for each in partitions_of(topic, range(topics[topic].count))
    ]


def common_protocol(assignors: Iterable[Assignor]) -> RebalanceProtocol:
    """The highest protocol that all of them work with. Raises ValueError when there is none."""
    offered = [each.protocols for each in assignors]
    if not offered:
        raise ValueError("assignors: a consumer needs at least one")
    common = frozenset.intersection(*offered)
    if not common:
        raise ValueError(
            "assignors: they have no rebalance protocol in common; a consumer runs them all with one"
        )
    return max(common)


# Skips the keyword handling of TopicPartition(...): takes a third of the time.
_new_partition: Final = partial(tuple.__new__, TopicPartition)

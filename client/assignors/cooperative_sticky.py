"""Kafka's CooperativeStickyAssignor: like the sticky one, but no member gets what another still owns."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import Final

from muster.client.assignors.claims import Claim
from muster.client.assignors.interface import (
    NO_GENERATION,
    Assignor,
    MemberSubscription,
    RebalanceProtocol,
    TopicPartitions,
)
from muster.client.assignors.sticky import share
from muster.client.partitions import TopicPartition

_GENERATION: Final = struct.Struct(">i")


class CooperativeStickyAssignor(Assignor):
    """A partition that is to move is at first assigned to nobody: its owner sees that it has lost it, gives
    it up and rejoins, and in that next generation it moves. All others are read without a break (KIP-429).

    With differing subscriptions, racks decide only who gets what nobody has. Kafka's takes partitions away
    from owners in foreign racks, too, though it may then give them back: some groups never stop rebalancing.
    So more partitions may stay in foreign racks than with Kafka's.
    """

    name = "cooperative-sticky"
    protocols = frozenset({RebalanceProtocol.COOPERATIVE, RebalanceProtocol.EAGER})

    def __init__(self) -> None:
        self._generation_id = NO_GENERATION

    def on_assignment(self, assigned: Iterable[TopicPartition], generation_id: int) -> None:
        self._generation_id = generation_id

    def user_data(
        self, topics: Iterable[str], owned: Iterable[TopicPartition], generation_id: int
    ) -> bytes | None:
        """The generation of the last assignment, for leaders that cannot read version 2 subscriptions."""
        return _GENERATION.pack(self._generation_id)

    def assign(
        self, members: Mapping[str, MemberSubscription], topics: Mapping[str, TopicPartitions]
    ) -> dict[str, list[TopicPartition]]:
        claims = {member_id: _claim(each) for member_id, each in members.items()}
        found = share(members, topics, claims, keeps_apart=True)
        owner = dict.fromkeys(found.settled.disputed, -1)
        for member, numbers in enumerate(found.settled.owned):
            owner.update(dict.fromkeys(numbers, member))
        for member, numbers in enumerate(found.shares):
            found.shares[member] = [each for each in numbers if owner.get(each, member) == member]
        return found.named()


def _claim(member: MemberSubscription) -> Claim:
    generation_id = member.generation_id
    if generation_id < 0 and member.user_data is not None and len(member.user_data) >= _GENERATION.size:
        (generation_id,) = _GENERATION.unpack_from(member.user_data)
    return Claim(member.owned, generation_id)

"""Kafka's StickyAssignor: even shares, and each member keeps what it had as far as that allows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from muster.client.assignors.claims import Claim, Settled, earlier_owners, settle
from muster.client.assignors.equal import share_equally
from muster.client.assignors.interface import (
    NO_GENERATION,
    Assignor,
    MemberSubscription,
    TopicPartitions,
)
from muster.client.assignors.layout import Layout
from muster.client.assignors.members import subscribers, text_order
from muster.client.assignors.racks import Racks
from muster.client.assignors.subscription_bytes import by_topic
from muster.client.assignors.unequal import share_unequally
from muster.client.partitions import TopicPartition
from muster.protocol import codec
from muster.protocol.errors import DecodeError
from muster.protocol.message import Message, Struct, field, record, struct
from muster.protocol.types import Array, Int32, String


@record(versions="0-1")
class StickyAssignorUserData(Message):
    """What a member had, as the sticky assignor's user data. The bytes do not state their version."""

    @struct
    class TopicAssignment(Struct):
        topic: str = field(String, "0+")
        partitions: list[int] = field(Array(Int32), "0+")

    previous_assignment: list[TopicAssignment] = field(Array(TopicAssignment), "0+")
    generation: int = field(Int32, "1+", default=NO_GENERATION, ignorable=True)


class StickyAssignor(Assignor):
    """Members give up everything before they join (the eager protocol), so what they had is sent as user
    data: the last assignment that `on_assignment` reported."""

    name = "sticky"
    version = 1

    def __init__(self) -> None:
        self._had: tuple[tuple[TopicPartition, ...], int] | None = None

    def on_assignment(self, assigned: Iterable[TopicPartition], generation_id: int) -> None:
        self._had = tuple(assigned), generation_id

    def user_data(
        self, topics: Iterable[str], owned: Iterable[TopicPartition], generation_id: int
    ) -> bytes | None:
        return None if self._had is None else user_data_bytes(*self._had)

    def assign(
        self, members: Mapping[str, MemberSubscription], topics: Mapping[str, TopicPartitions]
    ) -> dict[str, list[TopicPartition]]:
        claims = {member_id: read_user_data(each.user_data) for member_id, each in members.items()}
        return share(members, topics, claims).named()


def user_data_bytes(had: Iterable[TopicPartition], generation_id: int) -> bytes:
    """User data of the latest version; equal content gives equal bytes."""
    listed = [
        StickyAssignorUserData.TopicAssignment(topic=topic, partitions=numbers)
        for topic, numbers in by_topic(had).items()
    ]
    message = StickyAssignorUserData(previous_assignment=listed, generation=generation_id)
    return codec.encode(message, StickyAssignor.version)


def read_user_data(blob: bytes | None) -> Claim:
    """Read version 1, or else version 0, which has no generation. Members whose bytes are neither count as
    having had nothing."""
    for version in (1, 0) if blob else ():
        try:
            data, _ = codec.decode_prefix(StickyAssignorUserData, version, blob or b"", 0)
        except DecodeError:
            continue
        had = [(each.topic, partition) for each in data.previous_assignment for partition in each.partitions]
        return Claim(had, data.generation)
    return Claim((), NO_GENERATION)


class Shares(NamedTuple):
    """Who gets what, by number, and what they had."""

    member_ids: list[str]
    layout: Layout
    shares: list[list[int]]
    settled: Settled

    def named(self) -> dict[str, list[TopicPartition]]:
        names = self.layout.names()
        return {
            member_id: [names[number] for number in sorted(numbers)]
            for member_id, numbers in zip(self.member_ids, self.shares, strict=True)
        }


def share(
    members: Mapping[str, MemberSubscription],
    topics: Mapping[str, TopicPartitions],
    claims: Mapping[str, Claim],
    *,
    keeps_apart: bool = False,
) -> Shares:
    """Even shares among the members, each with as much of what it had as that allows. Members are in the
    order of their ids. `keeps_apart`: with differing subscriptions, they may keep what they had in a foreign
    rack."""
    member_ids = sorted(members, key=text_order)
    wanted = {frozenset(each.topics) for each in members.values()}
    subscribed = frozenset[str]().union(*wanted)
    layout = Layout({topic: topics[topic] for topic in subscribed & topics.keys()})
    settled = settle([claims[member_id] for member_id in member_ids], layout)
    racks = Racks.that_matter([members[each].rack or None for each in member_ids], layout)
    if not member_ids:
        shares = []
    elif len(wanted) == 1:
        shares = share_equally(settled.owned, layout, racks)
    else:
        place = {member_id: index for index, member_id in enumerate(member_ids)}
        who = subscribers(member_ids, members)
        shares = share_unequally(
            settled.owned,
            earlier_owners([claims[each] for each in member_ids], layout),
            [
                (numbers, tuple(place[each] for each in who[topic]))
                for topic, numbers in layout.ranges.items()
            ],
            racks,
            keeps_apart=keeps_apart,
        )
    return Shares(member_ids, layout, shares, settled)

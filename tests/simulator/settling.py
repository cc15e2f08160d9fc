"""Whether a group has reached the state it must reach without faults: every member owns its target, every
partition has one owner, and its coordinator agrees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from muster.protocol.api import ApiKey
from muster.protocol.errors import ErrorCode
from muster.protocol.messages.consumer_group import ConsumerGroupDescribeRequest
from muster.protocol.messages.group_admin import DescribeGroupsRequest
from muster.protocol.messages.offsets import OffsetFetchRequest
from tests.simulator.checkers import Disk
from tests.simulator.consumer import OwnConsumer
from tests.simulator.crowd import Crowd
from tests.simulator.member import Client, Member, Partition
from tests.simulator.network import Disconnected, Link
from tests.simulator.node import Node

_Members = list[Member | OwnConsumer]


class Settling:
    """Says why a group has not settled yet."""

    def __init__(self, crowd: Crowd, nodes: Sequence[Node], disk: Disk, *, downgrades: bool) -> None:
        """`downgrades`: whether a group without consumer protocol members becomes a classic one."""
        self._crowd = crowd
        self._nodes = nodes
        self._disk = disk
        self._downgrades = downgrades

    async def unsettled(self, admin: Client, group_id: str) -> str | None:
        """Why the group is not yet in its final state; None if it is."""
        members = self._crowd.living(group_id)
        if any(member.owned is None for member in members):
            return f"some have no assignment: {members}"
        if len({member.generation_id for member in members}) > 1:
            return f"members are in different generations: {members}"
        if any(not member.commits for member in members if member.owned):
            return f"some could not commit yet: {members}"
        for topic, partitions in self._crowd.partitions().items():
            owned = sorted(p for member in members for name, p in member.owned or () if name == topic)
            wanted = any(member.wants(topic) for member in members)
            divided = owned == (list(range(partitions)) if wanted else [])
            if not divided and any(member.watches for member in members):
                return f"{topic} is not divided up: {members}"
        try:
            return await self._unsettled_at_coordinator(admin, group_id, members)
        except Disconnected:
            return "its coordinator closed the connection"

    async def _unsettled_at_coordinator(self, admin: Client, group_id: str, members: _Members) -> str | None:
        address = await admin.find_coordinator(group_id, [node.address for node in self._nodes])
        if address is None:
            return "it has no coordinator"
        link = await admin.connect(address)
        is_consumer = self._disk.consumers.is_consumer(group_id)
        if is_consumer:
            why = await self._undescribed_consumer(admin, link, group_id, members)
        else:
            why = await self._undescribed_classic(admin, link, group_id, members)
        if why is not None:
            link.close()
            return why
        fetch = OffsetFetchRequest(groups=[OffsetFetchRequest.Group(group_id=group_id, topics=None)])
        (fetched,) = (await admin.ask(link, ApiKey.OFFSET_FETCH, 8, fetch)).groups
        link.close()
        if fetched.error_code:
            return f"its coordinator answers {ErrorCode(fetched.error_code).name}"
        told = {
            (topic.name, each.partition_index): (each.committed_offset, each.metadata)
            for topic in fetched.topics
            for each in topic.partitions
        }
        if told != self._disk.committed(group_id) and not any(
            node.store is not None and node.store.appending for node in self._nodes
        ):
            return f"its coordinator tells offsets {told}, on the disk are {self._disk.committed(group_id)}"
        return None

    async def _undescribed_classic(
        self, admin: Client, link: Link, group_id: str, members: _Members
    ) -> str | None:
        if any(member.speaks == "consumer" for member in members):
            return "it is no consumer group, though members speak that protocol"
        describe = DescribeGroupsRequest(groups=[group_id])
        (described,) = (await admin.ask(link, ApiKey.DESCRIBE_GROUPS, 5, describe)).groups
        # A group that nobody ever got as far as creating is described as Dead.
        on_disk = any(group is not None for group in self._disk.groups[group_id][-1:])
        return _undescribed(described, "Stable" if members else "Empty" if on_disk else "Dead", members)

    async def _undescribed_consumer(
        self, admin: Client, link: Link, group_id: str, members: _Members
    ) -> str | None:
        if members and self._downgrades and all(member.speaks == "classic" for member in members):
            return "it is a consumer group, though no member speaks that protocol"
        describe = ConsumerGroupDescribeRequest(group_ids=[group_id], include_authorized_operations=False)
        (described,) = (await admin.ask(link, ApiKey.CONSUMER_GROUP_DESCRIBE, 1, describe)).groups
        why = _undescribed(described, "Stable" if members else "Empty", members)
        if why is not None:
            return why
        owned = {member.member_id: member.owned for member in members}
        for each in described.members:
            if each.member_epoch != described.assignment_epoch:
                return f"{each.member_id} is in epoch {each.member_epoch}, not {described.assignment_epoch}"
            has, target = _partitions(each.assignment), _partitions(each.target_assignment)
            if not has == target == owned[each.member_id]:
                return f"{each.member_id} has {owned[each.member_id]}, by its coordinator {has}, of {target}"
        return None


def _undescribed(described: Any, state: str, members: _Members) -> str | None:
    if described.error_code:
        return f"its coordinator answers {ErrorCode(described.error_code).name}"
    if described.group_state != state:
        return f"its coordinator calls it {described.group_state}"
    if {member.member_id for member in described.members} != {member.member_id for member in members}:
        return f"its coordinator has other members: {[member.member_id for member in described.members]}"
    return None


def _partitions(assignment: Any) -> frozenset[Partition]:
    return frozenset(
        (topic.topic_name, number) for topic in assignment.topic_partitions for number in topic.partitions
    )

"""The checkers of consumer groups (KIP-848), and of groups that migrate between the protocols. Like those in
`checkers` they see the wire and the disk.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any, Final

from muster.protocol.api import ApiKey
from muster.protocol.embedded import decode_assignment, decode_subscription
from muster.protocol.errors import ErrorCode
from muster.protocol.messages.coordinator_records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    GroupMetadataKey,
)
from tests.simulator.checkers import (
    Disk,
    Exchange,
    Violation,
    acknowledged_partitions,
    committed_partitions,
)
from tests.simulator.consumer_disk import Place, TopicNames, assigned, held
from tests.simulator.member import Partition

_JOINING: Final = 0
_LEFT: Final = -1
_UNREVOKED: Final = 1
_TICK_S: Final = 0.001
"""Of the brokers' clocks, which round down."""
_GONE: Final = {
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.FENCED_MEMBER_EPOCH,
    ErrorCode.FENCED_INSTANCE_ID,
    ErrorCode.GROUP_ID_NOT_FOUND,
}


# --- who owns what, as members know it --------------------------------------------------------------------


class _Holder:
    """A member, by its member id."""

    __slots__ = ("epoch", "has")

    def __init__(self) -> None:
        self.epoch = 0
        """The generation or member epoch in which it was last told what it owns."""
        self.has: set[Place] = set()


class HeldOnce:
    """No member is given a partition that another still owns. A member owns a partition until it reports
    having given it up, in a heartbeat or by rejoining, or until it is told, or the disk shows, that it has
    left the group. When a classic group has a new generation, only members of that generation count; when it
    migrates in the middle of a rebalance, members own what is then written for them, as in Kafka.
    """

    def __init__(self, disk: Disk, names: TopicNames) -> None:
        self._disk = disk
        self._names = names
        self._holders: dict[str, dict[str, _Holder]] = defaultdict(lambda: defaultdict(_Holder))
        self._going_over: set[str] = set()
        """Groups whose classic records were deleted, until they answer again."""

    def asked(self, exchange: Exchange) -> None:
        request = exchange.request
        match exchange.api:
            case ApiKey.CONSUMER_GROUP_HEARTBEAT:
                if request.member_epoch < 0:
                    self._keep(request, ())
                elif request.topic_partitions is not None:
                    owned = [
                        (topic.topic_id, number)
                        for topic in request.topic_partitions
                        for number in topic.partitions
                    ]
                    self._keep(request, owned)
            case ApiKey.JOIN_GROUP:
                said = decode_subscription(request.protocols[0].metadata)
                self._keep(
                    request, self._places((each.topic, each.partitions) for each in said.owned_partitions)
                )
            case ApiKey.LEAVE_GROUP:
                for member_id in (request.member_id, *(each.member_id for each in request.members)):
                    self._holders[request.group_id].pop(member_id, None)

    def _keep(self, request: Any, owned: Iterable[Place]) -> None:
        holder = self._holders[request.group_id].get(request.member_id)
        if holder is not None:
            holder.has.intersection_update(owned)

    def _places(self, topics: Iterable[tuple[str, list[int]]]) -> list[Place]:
        """Partitions by topic id, for names that have only ever stood for one topic."""
        return [
            (topic_id, number)
            for name, numbers in topics
            for topic_id in (self._names.id_of(name),)
            if topic_id is not None
            for number in numbers
        ]

    def written(self, key: Any, value: Any) -> None:
        """Take in a record of a group."""
        match key:
            case GroupMetadataKey() if value is not None:
                present = {member.member_id for member in value.members}
                holders = self._holders[key.group]
                for member_id, holder in list(holders.items()):
                    if member_id not in present or holder.epoch != value.generation:
                        del holders[member_id]
            case GroupMetadataKey():
                self._going_over.add(key.group)
            case ConsumerGroupCurrentMemberAssignmentKey() if value is None:
                self._holders[key.group_id].pop(key.member_id, None)
            case ConsumerGroupCurrentMemberAssignmentKey() if key.group_id in self._going_over:
                holder = self._holders[key.group_id].get(key.member_id)
                if holder is not None and holder.epoch != value.member_epoch:
                    holder.has.intersection_update(held(value))
            case ConsumerGroupMetadataKey() if value is not None:
                # Members of a classic group that were dropped before it was stored again.
                present = self._disk.consumers.groups[key.group_id].subscriptions.keys()
                holders = self._holders[key.group_id]
                for member_id in holders.keys() - present:
                    del holders[member_id]

    def replied(self, exchange: Exchange, response: Any) -> None:
        self._going_over.discard(getattr(exchange.request, "group_id", ""))
        if exchange.api is ApiKey.CONSUMER_GROUP_HEARTBEAT:
            request, code = exchange.request, response.error_code
            if code in _GONE:
                self._holders[request.group_id].pop(request.member_id, None)
            elif response.member_id not in self._disk.consumers.groups[request.group_id].subscriptions:
                return  # no longer in the group by the time it is answered
            elif code == 0 and response.assignment is not None:
                places = {
                    (topic.topic_id, number)
                    for topic in response.assignment.topic_partitions
                    for number in topic.partitions
                }
                self._give(exchange, response.member_id, response.member_epoch, places)
        elif exchange.api is ApiKey.SYNC_GROUP and response.error_code == 0:
            if not self._is_member(exchange.request.group_id, exchange.request.member_id):
                return
            assignment = decode_assignment(response.assignment)
            places = set(
                self._places((each.topic, each.partitions) for each in assignment.assigned_partitions)
            )
            self._give(exchange, exchange.request.member_id, exchange.request.generation_id, places)

    def _is_member(self, group_id: str, member_id: str) -> bool:
        """Whether the disk has it in the group, or has no members there."""
        classic = self._disk.groups[group_id][-1:]
        if classic and classic[0] is not None:
            return any(each.member_id == member_id for each in classic[0].members)
        subscriptions = self._disk.consumers.groups[group_id].subscriptions
        return not subscriptions or member_id in subscriptions

    def _give(self, exchange: Exchange, member_id: str, epoch: int, places: set[Place]) -> None:
        if not exchange.link.open or exchange.link.loses_replies:
            return  # the reply does not reach it
        group_id = exchange.request.group_id
        holders = self._holders[group_id]
        for other_id, other in holders.items():
            both = other.has & places if other_id != member_id else None
            if both:
                shown = sorted((self._names.of.get(topic_id, "?"), number) for topic_id, number in both)
                raise Violation(
                    f"{shown} of {group_id!r} are given to {member_id} in epoch {epoch}, and {other_id}, "
                    f"of epoch {other.epoch}, has two owners' part in them: it has not given them up"
                )
        holder = holders[member_id]
        holder.epoch = epoch
        holder.has |= places


# --- commits ----------------------------------------------------------------------------------------------

_Members = dict[str, ConsumerGroupCurrentMemberAssignmentValue]


class CommitsInEpoch:
    """A consumer group accepts commits of its members' current epochs, and commits of an earlier epoch for
    partitions that the member has owned since that epoch or longer (KIP-1251); with no members, anybody's."""

    def __init__(self, disk: Disk, names: TopicNames) -> None:
        self._disk = disk
        self._names = names
        self._members: dict[tuple[str, Partition, int, str], list[_Members]] = defaultdict(list)
        """The members' state when an offset was written: by group, partition, offset, metadata."""

    def committed(self, committed: tuple[str, Partition]) -> None:
        """The disk's newest offset of a partition has just been written."""
        group_id, partition = committed
        value = self._disk.offsets[committed][-1]
        if value is not None and self._disk.consumers.is_consumer(group_id):
            members = dict(self._disk.consumers.groups[group_id].current)
            self._members[group_id, partition, value.offset, value.metadata].append(members)

    def replied(self, exchange: Exchange, response: Any) -> None:
        if exchange.api is not ApiKey.OFFSET_COMMIT:
            return
        request = exchange.request
        acknowledged = acknowledged_partitions(response)
        for partition, offset, metadata in committed_partitions(request):
            if partition not in acknowledged:
                continue
            moments = self._members.get((request.group_id, partition, offset, metadata))
            if moments is not None and not any(self._may(request, partition, each) for each in moments):
                raise Violation(
                    f"a commit of a stale epoch was acknowledged: {partition} of {request.group_id!r}, while "
                    f"its members were {moments}: {exchange!r}"
                )

    def _may(self, request: Any, partition: Partition, members: _Members) -> bool:
        epoch, has = request.generation_id_or_member_epoch, members.get(request.member_id)
        if has is None:
            return epoch < 0 and not members
        if epoch == has.member_epoch:
            return True
        name, number = partition
        since = held(has)
        return epoch < has.member_epoch and any(
            since.get((topic_id, number), epoch + 1) <= epoch for topic_id in self._names.ids[name]
        )


# --- the disk ---------------------------------------------------------------------------------------------


class WholeGroups:
    """After each append a group is of one kind and has all records that belong to it: a migration is a single
    write. The epochs of a group and of its target only grow while it exists, and so do its members'."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._epochs: dict[str, tuple[int, int]] = {}
        self._member_epochs: dict[tuple[str, str], int] = {}

    def written(self, key: Any, value: Any) -> None:
        match key:
            case ConsumerGroupCurrentMemberAssignmentKey() if value is None:
                self._member_epochs.pop((key.group_id, key.member_id), None)
            case ConsumerGroupMetadataKey() if value is None:
                self._epochs.pop(key.group_id, None)  # a group recreated in the same append begins again
            case ConsumerGroupCurrentMemberAssignmentKey():
                member = key.group_id, key.member_id
                before = self._member_epochs.get(member, 0)
                # A member that leaves temporarily has no epoch.
                if 0 <= value.member_epoch < before:
                    raise Violation(f"{member} goes back from epoch {before} to {value.member_epoch}")
                self._member_epochs[member] = value.member_epoch

    def appended(self) -> None:
        """Called after all records of an append."""
        consumers = self._disk.consumers
        touched, consumers.touched = consumers.touched, set()
        for group_id in touched:
            group = consumers.groups[group_id]
            classic = self._disk.groups[group_id][-1:]
            if group.exists and classic and classic[0] is not None:
                raise Violation(f"{group_id!r} is of both kinds in the store: {classic[0]!r}, {group!r}")
            for fault in group.faults():
                raise Violation(f"{group_id!r} is not whole in the store: {fault}")
            if not group.exists:
                self._epochs.pop(group_id, None)
                continue
            epochs = group.epochs
            before = self._epochs.get(group_id, (0, 0))
            if epochs[0] < before[0] or epochs[1] < before[1]:
                raise Violation(f"{group_id!r} goes back from epochs {before} to {epochs}")
            self._epochs[group_id] = epochs


class FencedLate:
    """A member of the consumer protocol stays in its group until it leaves, its instance returns under
    another id, it fails to give up partitions in time, or its session expires, counted from the last time it
    was heard from. So a failover costs no member anything."""

    def __init__(self, disk: Disk, session_s: float) -> None:
        self._disk = disk
        self._session_s = session_s
        self._heard_s: dict[tuple[str, str], float] = {}
        """Send time of the last answered heartbeat."""
        self._leaving: dict[tuple[str, str], float] = {}
        """Send time of the last leave, for members without an answered later join."""
        self._said: dict[tuple[str, str], ConsumerGroupMemberMetadataValue] = {}
        self._unrevoked: set[tuple[str, str]] = set()
        self._removed: list[tuple[tuple[str, str], ConsumerGroupMemberMetadataValue, bool]] = []

    def asked(self, exchange: Exchange) -> None:
        request = exchange.request
        if exchange.api is ApiKey.CONSUMER_GROUP_HEARTBEAT:
            member = request.group_id, request.member_id
            if request.member_epoch == _LEFT:
                self._leaving[member] = exchange.sent_s

    def replied(self, exchange: Exchange, response: Any) -> None:
        if (
            exchange.api is ApiKey.CONSUMER_GROUP_HEARTBEAT
            and response.error_code == 0
            and response.member_epoch >= 0
        ):
            member = exchange.request.group_id, response.member_id
            self._heard_s[member] = max(exchange.sent_s, self._heard_s.get(member, 0.0))
            left_s = self._leaving.get(member, -1.0)
            if exchange.request.member_epoch == _JOINING and exchange.sent_s > left_s:
                self._leaving.pop(member, None)  # not before: its leave may still be in flight to the store

    def written(self, key: Any, value: Any) -> None:
        match key:
            case ConsumerGroupCurrentMemberAssignmentKey() if value is not None:
                member = key.group_id, key.member_id
                (self._unrevoked.add if value.state == _UNREVOKED else self._unrevoked.discard)(member)
            case ConsumerGroupMemberMetadataKey() if value is not None:
                self._said[key.group_id, key.member_id] = value
            case ConsumerGroupMemberMetadataKey():
                member = key.group_id, key.member_id
                said = self._said.pop(member, None)
                if said is not None and said.classic_member_metadata is None:
                    self._removed.append((member, said, member in self._unrevoked))

    def appended(self, at_s: float) -> None:
        """Called after all records of an append."""
        removed, self._removed = self._removed, []
        for member, said, unrevoked in removed:
            heard_s = self._heard_s.get(member)
            if heard_s is None or unrevoked or member in self._leaving or self._is_back(member[0], said):
                continue
            if at_s - heard_s <= self._session_s - _TICK_S:
                raise Violation(
                    f"{member} was removed {at_s - heard_s:.1f} s after it was heard of, with a session of "
                    f"{self._session_s:g} s"
                )

    def _is_back(self, group_id: str, said: ConsumerGroupMemberMetadataValue) -> bool:
        """Whether another member now has its instance."""
        if said.instance_id is None:
            return False
        subscriptions = self._disk.consumers.groups[group_id].subscriptions.values()
        if any(each.instance_id == said.instance_id for each in subscriptions):
            return True
        (classic,) = self._disk.groups[group_id][-1:] or [None]
        return classic is not None and any(
            member.group_instance_id == said.instance_id for member in classic.members
        )


# --- the wire ---------------------------------------------------------------------------------------------


class ToldAsWritten:
    """A heartbeat is answered with an epoch and an assignment that have been written for the member; so is a
    SyncGroup of a member that speaks the classic protocol."""

    def __init__(self, disk: Disk, names: TopicNames) -> None:
        self._disk = disk
        self._names = names

    def replied(self, exchange: Exchange, response: Any) -> None:
        if exchange.api is not ApiKey.CONSUMER_GROUP_HEARTBEAT or response.error_code != 0:
            return
        if response.member_epoch < 0:
            return
        told: set[Place] | None = None
        if response.assignment is not None:
            told = {
                (topic.topic_id, number)
                for topic in response.assignment.topic_partitions
                for number in topic.partitions
            }
        if response.member_epoch == 0 and not told:
            return  # the group migrated before its first generation: nothing is written for that
        written = self._disk.consumers.history[exchange.request.group_id, response.member_id]
        if not any(
            has.member_epoch == response.member_epoch and (told is None or assigned(has) == told)
            for has in written
        ):
            raise Violation(
                f"an assignment was handed out before it was durable: epoch {response.member_epoch}, "
                f"{self._shown(told)}: {exchange!r}"
            )

    def _shown(self, places: set[Place] | None) -> list[tuple[str, int]] | None:
        if places is None:
            return None
        return sorted((self._names.of.get(topic_id, str(topic_id)), number) for topic_id, number in places)

"""A consumer group whose records and requests a test reports as the simulator does."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

from muster.protocol.api import ApiKey
from muster.protocol.errors import ErrorCode
from muster.protocol.message import Message
from muster.protocol.messages.classic_group import (
    SyncGroupRequest,
    SyncGroupResponse,
)
from muster.protocol.messages.consumer_group import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from muster.protocol.messages.coordinator_records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
)
from muster.protocol.messages.offsets import OffsetCommitRequest, OffsetCommitResponse
from tests.simulator.checkers import Disk, Exchange
from tests.simulator.consumer_checkers import CommitsInEpoch, FencedLate, HeldOnce, ToldAsWritten, WholeGroups
from tests.simulator.consumer_disk import TopicNames
from tests.simulator.member import Asked
from tests.support import embedded

ORDERS = uuid.UUID(int=1)
OLD_ORDERS = uuid.UUID(int=9)


class Row(NamedTuple):
    topic_id: uuid.UUID
    name: str


class FakeLink:
    """The parts of a link that the checkers look at."""

    def __init__(self) -> None:
        self.open = True
        self.loses_replies = False


class World:
    """A group "g", reported to the checkers as the simulator reports it."""

    def __init__(self) -> None:
        self.topics = [Row(ORDERS, "orders")]
        self.names = TopicNames(lambda: self.topics)
        self.names.look()
        self.disk = Disk(self.names)
        self.held_once = HeldOnce(self.disk, self.names)
        self.commits = CommitsInEpoch(self.disk, self.names)
        self.whole = WholeGroups(self.disk)
        self.told = ToldAsWritten(self.disk, self.names)
        self.fenced_late = FencedLate(self.disk, 8.0)

    # --- the disk -----------------------------------------------------------------------------------------

    def write(self, key: Message, value: Message | None) -> None:
        committed = self.disk.take(key, value)
        if committed is not None:
            self.commits.committed(committed)
        else:
            self.held_once.written(key, value)
            self.whole.written(key, value)
            self.fenced_late.written(key, value)

    def epoch(self, epoch: int | None) -> None:
        value = None if epoch is None else ConsumerGroupMetadataValue(epoch=epoch)
        self.write(ConsumerGroupMetadataKey(group_id="g"), value)

    def target_epoch(self, epoch: int) -> None:
        value = ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=epoch)
        self.write(ConsumerGroupTargetAssignmentMetadataKey(group_id="g"), value)

    def subscription(self, member_id: str, instance_id: str | None = None) -> None:
        value = ConsumerGroupMemberMetadataValue(
            instance_id=instance_id,
            rack_id=None,
            client_id="",
            client_host="",
            subscribed_topic_names=["orders"],
            subscribed_topic_regex="",
            rebalance_timeout_ms=1,
            server_assignor=None,
        )
        self.write(ConsumerGroupMemberMetadataKey(group_id="g", member_id=member_id), value)

    def target(self, member_id: str) -> None:
        value = ConsumerGroupTargetAssignmentMemberValue(topic_partitions=[])
        self.write(ConsumerGroupTargetAssignmentMemberKey(group_id="g", member_id=member_id), value)

    def current(
        self,
        member_id: str,
        epoch: int,
        has: Mapping[int, int],
        revoking: Mapping[int, int] | None = None,
    ) -> None:
        """Partitions, with the epochs of their assignments."""
        parts = ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions
        value = ConsumerGroupCurrentMemberAssignmentValue(
            member_epoch=epoch,
            previous_member_epoch=epoch - 1,
            state=0,
            assigned_partitions=[
                parts(topic_id=ORDERS, partitions=[*has], assignment_epochs=[*has.values()])
            ],
            partitions_pending_revocation=[
                parts(topic_id=ORDERS, partitions=[*revoking], assignment_epochs=[*revoking.values()])
            ]
            if revoking
            else [],
        )
        self.write(ConsumerGroupCurrentMemberAssignmentKey(group_id="g", member_id=member_id), value)

    def gone(self, member_id: str) -> None:
        self.write(ConsumerGroupCurrentMemberAssignmentKey(group_id="g", member_id=member_id), None)

    def member(self, member_id: str, epoch: int, has: Mapping[int, int]) -> None:
        self.subscription(member_id)
        self.current(member_id, epoch, has)

    def classic(self, generation: int | None, *member_ids: str) -> None:
        stored = GroupMetadataValue.MemberMetadata
        value = None
        if generation is not None:
            value = GroupMetadataValue(
                protocol_type="consumer",
                generation=generation,
                protocol="range",
                leader=None,
                members=[
                    stored(
                        member_id=member_id,
                        client_id="",
                        client_host="",
                        session_timeout=1,
                        subscription=b"",
                        assignment=b"",
                    )
                    for member_id in member_ids
                ],
            )
        self.write(GroupMetadataKey(group="g"), value)

    # --- the wire -----------------------------------------------------------------------------------------

    def exchange(self, api: ApiKey, request: Message) -> Exchange:
        return Exchange(Asked(api, 1, 1, request), cast(Any, FakeLink()), 0.0)

    def beat(self, member_id: str, epoch: int = 2, owned: Sequence[int] | None = None) -> Exchange:
        parts = ConsumerGroupHeartbeatRequest.TopicPartitions
        request = ConsumerGroupHeartbeatRequest(
            group_id="g",
            member_id=member_id,
            member_epoch=epoch,
            topic_partitions=None if owned is None else [parts(topic_id=ORDERS, partitions=[*owned])],
        )
        exchange = self.exchange(ApiKey.CONSUMER_GROUP_HEARTBEAT, request)
        self.held_once.asked(exchange)
        return exchange

    def told_to(
        self,
        exchange: Exchange,
        *assigned: int,
        epoch: int = 2,
        topic_id: uuid.UUID = ORDERS,
        code: ErrorCode = ErrorCode.NONE,
    ) -> ConsumerGroupHeartbeatResponse:
        parts = ConsumerGroupHeartbeatResponse.Assignment.TopicPartitions
        assignment = ConsumerGroupHeartbeatResponse.Assignment(
            topic_partitions=[parts(topic_id=topic_id, partitions=[*assigned])]
        )
        return ConsumerGroupHeartbeatResponse(
            error_code=code,
            member_id=exchange.request.member_id,
            member_epoch=epoch,
            heartbeat_interval_ms=1,
            assignment=None if code else assignment,
        )

    def give(self, member_id: str, *assigned: int, epoch: int = 2) -> None:
        self.subscription(member_id)
        exchange = self.beat(member_id)
        self.held_once.replied(exchange, self.told_to(exchange, *assigned, epoch=epoch))

    def sync(self, member_id: str, *assigned: int, generation: int = 1) -> None:
        request = SyncGroupRequest(
            group_id="g", generation_id=generation, member_id=member_id, assignments=[]
        )
        response = SyncGroupResponse(assignment=embedded.assignment({"orders": assigned}))
        self.held_once.replied(self.exchange(ApiKey.SYNC_GROUP, request), response)

    def commit(self, member_id: str, epoch: int, partition: int = 0, offset: int = 5) -> None:
        """The commit is stored and acknowledged."""
        self.write(
            OffsetCommitKey(group="g", topic="orders", partition=partition),
            OffsetCommitValue(offset=offset, metadata="m", commit_timestamp=0),
        )
        each = OffsetCommitRequest.Partition(
            partition_index=partition, committed_offset=offset, committed_metadata="m"
        )
        request = OffsetCommitRequest(
            group_id="g",
            generation_id_or_member_epoch=epoch,
            member_id=member_id,
            topics=[OffsetCommitRequest.Topic(name="orders", partitions=[each])],
        )
        done = OffsetCommitResponse.Partition(partition_index=partition, error_code=0)
        topic = OffsetCommitResponse.Topic(name="orders", partitions=[done])
        self.commits.replied(
            self.exchange(ApiKey.OFFSET_COMMIT, request), OffsetCommitResponse(topics=[topic])
        )

"""A member of a group that does what it is told, with subscriptions and assignments that can be read."""

from __future__ import annotations

from typing import Self

from muster.protocol.embedded import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    encode_assignment,
    encode_subscription,
)
from muster.protocol.errors import ErrorCode
from muster.protocol.messages.classic_group import (
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
)
from muster.protocol.messages.data import ProduceRequest
from muster.protocol.messages.offsets import OffsetCommitRequest
from muster.protocol.record_batch import Record, build
from tests.support.wire import Wire


class Member:
    """One connection and the member that speaks over it."""

    def __init__(self, wire: Wire, group: str, topic: str, session_timeout_ms: int) -> None:
        self.wire = wire
        self.group = group
        self.topic = topic
        self.session_timeout_ms = session_timeout_ms
        self.id = ""
        self.generation = -1

    @classmethod
    async def connect(
        cls,
        port: int,
        group: str = "billing",
        *,
        client_id: str = "web-1",
        topic: str = "orders",
        session_timeout_ms: int = 30_000,
    ) -> Self:
        return cls(await Wire.connect(port, client_id=client_id), group, topic, session_timeout_ms)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.wire.close()

    async def ask_to_join(self) -> None:
        """Send a JoinGroup that counts; the answer is for `joined`."""
        if not self.id:
            self.id = (await self.wire.call(self._join(), 9)).member_id
        await self.wire.send(self._join(), 9)

    async def joined(self) -> None:
        answer = await self.wire.receive()
        assert answer.error_code == ErrorCode.NONE
        self.generation = answer.generation_id

    async def sync(self, assigned: dict[str, list[int]] | None = None) -> None:
        """As the leader with what each member is assigned of the topic, as another without."""
        await self.wire.send(self._sync(assigned or {}), 5)

    async def synced(self) -> None:
        assert (await self.wire.receive()).error_code == ErrorCode.NONE

    async def alone(self, partitions: list[int]) -> Self:
        """Join, and be the only member of a Stable group."""
        await self.ask_to_join()
        await self.joined()
        await self.sync({self.id: partitions})
        await self.synced()
        return self

    async def heartbeat(self) -> ErrorCode:
        request = HeartbeatRequest(group_id=self.group, generation_id=self.generation, member_id=self.id)
        return ErrorCode((await self.wire.call(request, 4)).error_code)

    async def commit(self, offsets: dict[int, int], generation: int | None = None) -> ErrorCode:
        request = OffsetCommitRequest(
            group_id=self.group,
            generation_id_or_member_epoch=self.generation if generation is None else generation,
            member_id=self.id,
            topics=[
                OffsetCommitRequest.Topic(
                    name=self.topic,
                    partitions=[
                        OffsetCommitRequest.Partition(
                            partition_index=partition, committed_offset=offset, committed_metadata=""
                        )
                        for partition, offset in offsets.items()
                    ],
                )
            ],
        )
        answer = await self.wire.call(request, 8)
        return ErrorCode(answer.topics[0].partitions[0].error_code)

    async def leave(self) -> None:
        leaving = LeaveGroupRequest.MemberIdentity(member_id=self.id)
        await self.wire.call(LeaveGroupRequest(group_id=self.group, members=[leaving]), 5)

    async def produce(self, partition: int, count: int) -> None:
        """Append that many records."""
        records = [Record(each, 1_000 + each, None, b"v") for each in range(count)]
        request = ProduceRequest(
            acks=-1,
            timeout_ms=30_000,
            topic_data=[
                ProduceRequest.TopicProduceData(
                    name=self.topic,
                    partition_data=[
                        ProduceRequest.PartitionProduceData(index=partition, records=build(records))
                    ],
                )
            ],
        )
        answer = await self.wire.call(request, 9)
        assert answer.responses[0].partition_responses[0].error_code == ErrorCode.NONE

    def _join(self) -> JoinGroupRequest:
        subscription = encode_subscription(ConsumerProtocolSubscription(topics=[self.topic]))
        return JoinGroupRequest(
            group_id=self.group,
            session_timeout_ms=self.session_timeout_ms,
            rebalance_timeout_ms=60_000,
            member_id=self.id,
            protocol_type="consumer",
            protocols=[JoinGroupRequest.Protocol(name="range", metadata=subscription)],
        )

    def _sync(self, assigned: dict[str, list[int]]) -> SyncGroupRequest:
        return SyncGroupRequest(
            group_id=self.group,
            generation_id=self.generation,
            member_id=self.id,
            protocol_type="consumer",
            protocol_name="range",
            assignments=[
                SyncGroupRequest.Assignment(member_id=member_id, assignment=self._assignment(partitions))
                for member_id, partitions in assigned.items()
            ],
        )

    def _assignment(self, partitions: list[int]) -> bytes:
        of_topic = ConsumerProtocolAssignment.TopicPartition(topic=self.topic, partitions=partitions)
        return encode_assignment(ConsumerProtocolAssignment(assigned_partitions=[of_topic]))

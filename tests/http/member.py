"""A member of a group with a single topic, so that calls name only partitions."""

from __future__ import annotations

from typing import Self

from muster.protocol.errors import ErrorCode
from muster.protocol.messages.data import ProduceRequest
from muster.protocol.record_batch import Record, build
from tests.support import members
from tests.support.wire import Wire


class Member:
    """One connection and the member that uses it, controlled by the test."""

    def __init__(self, member: members.Member) -> None:
        self._member = member
        (self.topic,) = member.topics

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
        member = members.Member(group, client_id, [topic], session_ms=session_timeout_ms)
        await member.connect(port)
        return cls(member)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._member.close()

    @property
    def id(self) -> str:
        return self._member.id

    @property
    def wire(self) -> Wire:
        return self._member.wire

    async def ask_for_id(self) -> None:
        await self._member.ask_for_id()

    async def ask_to_join(self) -> None:
        """Send the JoinGroup that takes effect; `joined` reads the response."""
        await self._member.ask_to_join()

    async def joined(self) -> None:
        await self._member.joined()

    async def sync(self, assigned: dict[str, list[int]] | None = None) -> None:
        """As the leader, pass the partitions assigned to each member; as a follower, pass nothing."""
        await self._member.ask_to_sync(
            {
                member_id: [(self.topic, partition) for partition in partitions]
                for member_id, partitions in (assigned or {}).items()
            }
        )

    async def synced(self) -> None:
        await self._member.synced()

    async def alone(self, partitions: list[int]) -> Self:
        """Join, and be the only member of a Stable group."""
        await self.ask_to_join()
        await self.joined()
        await self.sync({self.id: partitions})
        await self.synced()
        return self

    async def heartbeat(self) -> ErrorCode:
        return await self._member.heartbeat()

    async def commit(self, offsets: dict[int, int], generation: int | None = None) -> ErrorCode:
        return await self._member.commit(
            {(self.topic, partition): offset for partition, offset in offsets.items()}, generation
        )

    async def leave(self) -> None:
        await self._member.leave()

    async def produce(self, partition: int, count: int) -> None:
        """Append `count` records."""
        records = [Record(each, 1_000 + each, None, b"v") for each in range(count)]
        part = ProduceRequest.PartitionProduceData(index=partition, records=build(records))
        parts = ProduceRequest.TopicProduceData(name=self.topic, partition_data=[part])
        answer = await self.wire.call(ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[parts]), 9)
        assert answer.responses[0].partition_responses[0].error_code == ErrorCode.NONE

"""A transactional producer on one connection, controlled by the test."""

from __future__ import annotations

from typing import Self

from muster.protocol.messages.data import ProduceRequest
from muster.protocol.messages.transactions import TxnOffsetCommitRequest
from muster.protocol.record_batch import Record, build
from tests.support.wire import Wire
from tests.support.wire_transactions import Producer, added, adding, adding_offsets, ending, starting

STRAY: Producer = (77, 0)
"""A producer that no coordinator knows."""
UNVERIFIED = {"transaction_partition_verification_enable": False}
"""Settings of a broker that lets it write."""


class Transactional:
    """Writes to one topic. A client of the first generation, which adds partitions itself."""

    def __init__(self, wire: Wire, id: str, producer: Producer, topic: str) -> None:
        self._wire = wire
        self.id = id
        self.producer = producer
        self.topic = topic
        self._sequences: dict[int, int] = {}

    @classmethod
    async def connect(
        cls, port: int, id: str = "etl-1", *, topic: str = "orders", timeout_ms: int = 60_000
    ) -> Self:
        """A producer known to its coordinator."""
        wire = await Wire.connect(port)
        answer = await wire.call(starting(id, timeout_ms=timeout_ms), 4)
        assert answer.error_code == 0
        return cls(wire, id, (answer.producer_id, answer.producer_epoch), topic)

    @classmethod
    async def stray(cls, port: int, *, topic: str = "orders") -> Self:
        """A producer that bypasses all coordinators, so that nobody ends its transaction."""
        return cls(await Wire.connect(port), "stray", STRAY, topic)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._wire.close()

    async def begin(self, *partitions: int) -> None:
        """Add partitions to the transaction."""
        answer = await self._wire.call(adding(self.id, self.producer, {self.topic: partitions}), 3)
        assert set(added(answer).values()) == {0}

    async def write(self, partition: int, count: int, *, at_ms: int) -> None:
        """Write records whose transaction is still undecided."""
        batch = build(
            [Record(number, at_ms, b"k", b"v") for number in range(count)],
            producer_id=self.producer[0],
            producer_epoch=self.producer[1],
            base_sequence=self._sequences.get(partition, 0),
            transactional=True,
        )
        self._sequences[partition] = self._sequences.get(partition, 0) + count
        part = ProduceRequest.PartitionProduceData(index=partition, records=batch)
        topic = ProduceRequest.TopicProduceData(name=self.topic, partition_data=[part])
        request = ProduceRequest(transactional_id=self.id, acks=-1, timeout_ms=10_000, topic_data=[topic])
        answer = await self._wire.call(request, 9)
        assert answer.responses[0].partition_responses[0].error_code == 0

    async def commit_offset(self, group: str, partition: int, offset: int) -> None:
        """Commit an offset as part of the transaction."""
        answer = await self._wire.call(adding_offsets(self.id, self.producer, group), 3)
        assert answer.error_code == 0
        await self.write_offset(group, partition, offset)

    async def write_offset(self, group: str, partition: int, offset: int) -> None:
        """Commit an offset of a group that the transaction has, or of any where nobody asks."""
        part = TxnOffsetCommitRequest.Partition(
            partition_index=partition, committed_offset=offset, committed_metadata=""
        )
        request = TxnOffsetCommitRequest(
            transactional_id=self.id,
            group_id=group,
            producer_id=self.producer[0],
            producer_epoch=self.producer[1],
            topics=[TxnOffsetCommitRequest.Topic(name=self.topic, partitions=[part])],
        )
        committed = await self._wire.call(request, 3)
        assert committed.topics[0].partitions[0].error_code == 0

    async def end(self, *, commits: bool) -> None:
        answer = await self._wire.call(ending(self.id, self.producer, commits=commits), 3)
        assert answer.error_code == 0

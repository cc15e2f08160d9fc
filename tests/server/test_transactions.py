"""Transactions over the wire, as far as partitions know them: transactional batches that nobody verifies,
markers, and what readers see."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from muster.client import Consumer, TopicPartition
from muster.protocol.errors import ErrorCode
from muster.protocol.messages.data import ListOffsetsRequest
from muster.protocol.messages.transactions import DescribeProducersRequest, WriteTxnMarkersRequest
from tests.server.conftest import StartBrokers
from tests.server.test_data import Topic, batch
from tests.support.coordinators import Coordinators
from tests.support.facts import until
from tests.support.wire import Wire
from tests.topics.support import read_records

P, Q = 41, 42
UNVERIFIED = {"transaction_partition_verification_enable": False}


class Transactional(Topic):
    """A topic of a broker that verifies no transactions."""

    sequences: dict[int, int]

    async def put(self, producer: int, *values: bytes, transactional: bool = True, partition: int = 0) -> int:
        """Append a batch and return its base offset."""
        sequence = self.sequences.get(producer, 0)
        self.sequences[producer] = sequence + len(values)
        data = batch(
            *values,
            timestamp=time.time_ns() // 1_000_000,  # old records would go into a segment of their own
            producer_id=producer,
            producer_epoch=0,
            base_sequence=sequence,
            transactional=transactional,
        )
        transactional_id = f"tx-{producer}" if transactional else None
        part = await self.produce(data, 11, partition=partition, transactional_id=transactional_id)
        assert part.error_code == 0
        return int(part.base_offset)

    async def end(self, producer: int, committed: bool, **more: Any) -> int:
        (result,) = await self.mark(marker(producer, committed, **more))
        (topic,) = result.topics
        (part,) = topic.partitions
        assert (result.producer_id, topic.name, part.partition_index) == (producer, "t", 0)
        return int(part.error_code)

    async def mark(self, *markers: Any, version: int = 2) -> list[Any]:
        answer = await self.wire.call(WriteTxnMarkersRequest(markers=list(markers)), version)
        return list(answer.markers)

    async def latest(self, isolation_level: int) -> int:
        part = ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=-1)
        topic = ListOffsetsRequest.ListOffsetsTopic(name="t", partitions=[part])
        asked = ListOffsetsRequest(replica_id=-1, topics=[topic], isolation_level=isolation_level)
        return int((await self.wire.call(asked, 7)).topics[0].partitions[0].offset)

    async def described(self) -> list[tuple[int, int, int, int]]:
        asked = DescribeProducersRequest.TopicRequest(name="t", partition_indexes=[0])
        answer = await self.wire.call(DescribeProducersRequest(topics=[asked]), 0)
        return [
            (each.producer_id, each.producer_epoch, each.coordinator_epoch, each.current_txn_start_offset)
            for each in answer.topics[0].partitions[0].active_producers
        ]


def marker(
    producer: int,
    committed: bool,
    *topics: tuple[str, list[int]],
    epoch: int = 0,
    coordinator_epoch: int = 0,
    version: int = 0,
) -> Any:
    return WriteTxnMarkersRequest.WritableTxnMarker(
        producer_id=producer,
        producer_epoch=epoch,
        transaction_result=committed,
        topics=[
            WriteTxnMarkersRequest.WritableTxnMarkerTopic(name=name, partition_indexes=indexes)
            for name, indexes in topics or [("t", [0])]
        ],
        coordinator_epoch=coordinator_epoch,
        transaction_version=version,
    )


@pytest.fixture
async def topic(start_brokers: StartBrokers) -> AsyncIterator[Transactional]:
    brokers = await start_brokers(**UNVERIFIED)
    brokers.brokers[0].transactions = Coordinators()
    created = await brokers.brokers[0].catalogue.create("t", partitions=2)
    async with await Wire.connect(brokers.brokers[0].port) as wire:
        topic = Transactional(wire, created.topic_id, brokers)
        topic.sequences = {}
        yield topic


async def test_an_open_transaction_ends_what_readers_of_committed_records_see(topic: Transactional) -> None:
    await topic.put(Q, b"plain", transactional=False)
    await topic.put(P, b"first")
    for isolation_level, size, aborted in ((0, 2, None), (1, 1, [])):
        part = await topic.fetch(isolation_level=isolation_level)
        assert (part.high_watermark, part.last_stable_offset) == (2, 1)
        assert part.aborted_transactions == aborted
        assert len(read_records(part.records)) == size
    assert (await topic.latest(0), await topic.latest(1)) == (2, 1)
    part = await topic.fetch(1, isolation_level=1)
    assert (part.error_code, bytes(part.records)) == (0, b"")
    assert await topic.described() == [(P, 0, -1, 1), (Q, 0, -1, -1)]
    assert await topic.end(P, False, coordinator_epoch=3) == 0
    part = await topic.fetch(isolation_level=1)
    assert (part.high_watermark, part.last_stable_offset) == (3, 3)
    assert [(each.producer_id, each.first_offset) for each in part.aborted_transactions] == [(P, 1)]
    assert (await topic.fetch(isolation_level=0)).aborted_transactions is None
    assert await topic.described() == [(P, 0, 3, -1), (Q, 0, -1, -1)]


async def test_a_marker_wakes_who_waits_for_what_it_commits(topic: Transactional) -> None:
    await topic.put(P, b"first")
    async with await Wire.connect(topic.brokers.brokers[0].port) as other:
        await other.send(topic.fetching(0, isolation_level=1, max_wait_ms=60_000, min_bytes=100), 12)
        reading = asyncio.create_task(other.receive())
        fetches = topic.brokers.brokers[0].partitions._fetches
        await until(lambda: len(fetches) == 1 and fetches.all_wait)
        await topic.put(Q, b"plain", transactional=False)
        assert not reading.done()
        assert await topic.end(P, True) == 0
        async with asyncio.timeout(10):
            answer = await reading
    assert len(read_records(answer.responses[0].partitions[0].records)) == 3


async def test_markers_are_answered_by_producer_topic_and_partition(topic: Transactional) -> None:
    await topic.put(P, b"a")
    await topic.put(Q, b"b", partition=1)
    results = await topic.mark(
        marker(P, True, ("t", [0, 1, 9]), ("none", [0])),
        marker(Q, False, ("t", [1])),
        marker(P, True, ("__consumer_offsets", [0, 50]), ("t", [0])),
    )
    told = {
        (each.producer_id, of_topic.name, part.partition_index): ErrorCode(part.error_code)
        for each in results
        for of_topic in each.topics
        for part in of_topic.partitions
    }
    assert told == {
        (P, "t", 0): ErrorCode.NONE,
        (P, "t", 1): ErrorCode.NONE,
        (P, "t", 9): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        (P, "none", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        (P, "__consumer_offsets", 0): ErrorCode.NONE,
        (P, "__consumer_offsets", 50): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        (Q, "t", 1): ErrorCode.NONE,
    }
    assert [each.producer_id for each in results] == [P, Q]
    assert await topic.latest(0) == 3, "the same marker twice is written twice"
    assert await topic.mark() == []


async def test_a_marker_of_no_producer_is_refused(topic: Transactional) -> None:
    for producer_id, epoch in ((-1, 0), (P, -1)):
        for where in ("t", "__consumer_offsets"):
            (result,) = await topic.mark(marker(producer_id, True, (where, [0]), epoch=epoch))
            assert result.topics[0].partitions[0].error_code == ErrorCode.INVALID_REQUEST
    assert await topic.latest(0) == 0
    assert await topic.described() == []


async def test_a_marker_of_a_lower_epoch_is_refused(topic: Transactional) -> None:
    await topic.put(P, b"a")
    assert await topic.end(P, False, epoch=2, coordinator_epoch=5, version=2) == 0
    assert await topic.end(P, False, epoch=1) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert await topic.end(P, False, epoch=2, coordinator_epoch=4) == (
        ErrorCode.TRANSACTION_COORDINATOR_FENCED
    )
    (result,) = await topic.mark(marker(P, False, epoch=2, coordinator_epoch=5), version=1)
    assert result.topics[0].partitions[0].error_code == 0


async def test_our_consumer_reads_what_is_committed(topic: Transactional) -> None:
    await topic.put(Q, b"plain", transactional=False)
    await topic.put(P, b"aborted")
    await topic.put(43, b"committed")
    await topic.end(P, False)
    await topic.put(P, b"open")
    await topic.end(43, True)
    await topic.put(Q, b"behind", transactional=False)
    bootstrap = f"127.0.0.1:{topic.brokers.brokers[0].port}"
    where = TopicPartition("t", 0)

    async def read(consumer: Consumer[Any, Any], count: int) -> list[bytes | None]:
        found = [await consumer.get(timeout=10) for _ in range(count)]
        return [each.value if each is not None else b"nothing came" for each in found]

    async with Consumer(
        bootstrap, isolation_level="read_committed", auto_offset_reset="earliest"
    ) as consumer:
        consumer.assign([where])
        assert await read(consumer, 2) == [b"plain", b"committed"]
        assert await consumer.end_offsets([where]) == {where: 4}
        assert await consumer.get(timeout=0.1) is None
        await topic.end(P, True)
        assert await read(consumer, 2) == [b"open", b"behind"]
    async with Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([where])
        everything = [b"plain", b"aborted", b"committed", b"open", b"behind"]
        assert await read(consumer, 5) == everything


async def test_an_open_transaction_outlives_its_broker(tmp_path: Path, start_brokers: StartBrokers) -> None:
    first = await start_brokers(ephemeral=False, data=str(tmp_path), **UNVERIFIED)
    first.brokers[0].transactions = Coordinators()
    created = await first.brokers[0].catalogue.create("t", partitions=1)
    async with await Wire.connect(first.brokers[0].port) as wire:
        topic = Transactional(wire, created.topic_id, first)
        topic.sequences = {}
        await topic.put(P, b"a")
        await topic.end(P, False, coordinator_epoch=2)
        await topic.put(P, b"b")
        before = await topic.described()
    assert before == [(P, 0, 2, 2)]
    await first.stop()
    again = await start_brokers(ephemeral=False, data=str(tmp_path))
    async with await Wire.connect(again.brokers[0].port) as wire:
        topic = Transactional(wire, created.topic_id, again)
        assert await topic.described() == before
        assert (await topic.latest(0), await topic.latest(1)) == (3, 2)
        assert await topic.end(P, True, coordinator_epoch=2) == 0
        part = await topic.fetch(isolation_level=1)
        assert (part.last_stable_offset, len(part.aborted_transactions)) == (4, 1)

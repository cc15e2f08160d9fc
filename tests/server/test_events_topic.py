"""`__group_events` as clients see it: led by the coordinators, read like any topic, and not theirs to change.

tests/topics/test_group_events.py covers fetching it in detail.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from muster.coordinator.base.log import Logger
from muster.coordinator.cluster.placement import EVENTS_TOPIC, OFFSETS_TOPIC, TRANSACTIONS_TOPIC, shard_of
from muster.coordinator.config import Settings
from muster.coordinator.server.broker import Broker
from muster.coordinator.server.brokers import Brokers
from muster.coordinator.storage.sqlite import SqliteStore
from muster.coordinator.storage.store import Append, JournalRow, Lease, LeaseKind, Outcome, TopicRow
from muster.protocol.errors import ErrorCode
from muster.protocol.message import Message
from muster.protocol.messages.classic_group import JoinGroupRequest
from muster.protocol.messages.cluster import DescribeLogDirsRequest
from muster.protocol.messages.configs import DescribeConfigsRequest
from muster.protocol.messages.data import FetchRequest, ListOffsetsRequest, OffsetForLeaderEpochRequest
from muster.protocol.messages.metadata import MetadataRequest
from muster.protocol.messages.topics import CreateTopicsRequest, DeleteTopicsRequest
from muster.protocol.record_batch import Record
from muster.protocol.types import ZERO_UUID
from tests.server.conftest import StartBrokers
from tests.server.test_offsets_topic import codes_in, refusals
from tests.support.each import each
from tests.support.failing_store import fail_from
from tests.support.leases import TERM_MS
from tests.support.wire import Wire
from tests.topics.support import read_records

DEADLINE_S = 30
SHARD = 3
GROUP = "billing"


class Events:
    """One partition of the topic at one broker, and a connection to it."""

    def __init__(self, broker: Broker, wire: Wire, partition: int = SHARD) -> None:
        self.broker = broker
        self.wire = wire
        self.partition = partition
        self.topic = broker.group_events.topic
        self.lease = Lease(LeaseKind.GROUP, partition)

    @property
    def leader_epoch(self) -> int:
        return self.broker.topology.leader(self.topic.topic_id, self.partition).epoch

    async def tell(self, *values: bytes, at_ms: int = 1_000) -> None:
        rows = [JournalRow(at_ms, b"group", value) for value in values]
        append = Append(self.lease, self.leader_epoch, [], rows)
        assert await self.broker.store.append([append]) == [Outcome.WRITTEN]
        self.broker.group_events.written(self.partition, sum(row.size_bytes for row in rows))

    def fetching(self, offset: int, version: int = 12, **request: Any) -> Message:
        part = FetchRequest.FetchPartition(
            partition=self.partition, fetch_offset=offset, partition_max_bytes=1 << 20
        )
        named = {"topic_id": self.topic.topic_id} if version >= 13 else {"topic": EVENTS_TOPIC}
        topic = FetchRequest.FetchTopic(partitions=[part], **named)
        return FetchRequest(**{"max_wait_ms": 0, "min_bytes": 1, "topics": [topic], **request})

    async def fetch(self, offset: int, version: int = 12, **request: Any) -> Any:
        return (
            (await self.wire.call(self.fetching(offset, version, **request), version))
            .responses[0]
            .partitions[0]
        )

    async def listed(self, timestamp: int, version: int = 11) -> Any:
        part = ListOffsetsRequest.ListOffsetsPartition(partition_index=self.partition, timestamp=timestamp)
        topic = ListOffsetsRequest.ListOffsetsTopic(name=EVENTS_TOPIC, partitions=[part])
        answer = await self.wire.call(ListOffsetsRequest(replica_id=-1, topics=[topic]), version)
        return answer.topics[0].partitions[0]

    async def end(self) -> int:
        """The offset of the next record. Nothing precedes the test's own records: the shard has no groups."""
        offset: int = (await self.listed(-1)).offset
        return offset


@pytest.fixture
async def events(start_brokers: StartBrokers) -> Any:
    broker = (await start_brokers()).brokers[0]
    async with await Wire.connect(broker.port) as wire:
        yield Events(broker, wire)


async def metadata(wire: Wire, *names: str, **request: Any) -> Any:
    topics = [MetadataRequest.Topic(name=name) for name in names] or None
    return (await wire.call(MetadataRequest(topics=topics, **request), 12)).topics


def told(answer: Any) -> tuple[int, list[bytes | None]]:
    return answer.error_code, [record.value for record in read_records(answer.records or b"")]


# --- leaders --------------------------------------------------------------------------------------


async def test_its_partitions_are_the_coordinators(start_brokers: StartBrokers) -> None:
    brokers = await start_brokers(brokers=3)
    ids = set()
    for broker in brokers.brokers:
        async with await Wire.connect(broker.port) as wire, asyncio.timeout(DEADLINE_S):
            offsets, topic = await metadata(wire, OFFSETS_TOPIC, EVENTS_TOPIC)
            while {each.leader_id for each in topic.partitions} != {1, 2, 3}:
                offsets, topic = await metadata(wire, OFFSETS_TOPIC, EVENTS_TOPIC)
            ids.add(topic.topic_id)
            assert (topic.error_code, topic.is_internal, len(topic.partitions)) == (0, True, 50)
            assert topic.partitions == offsets.partitions
            for each in topic.partitions:
                answer = await Events(broker, wire, each.partition_index).fetch(0)
                leads = each.leader_id == broker.node_id
                assert answer.error_code == (0 if leads else ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert len(ids) == 1
    assert not ids & {ZERO_UUID, offsets.topic_id}


async def test_who_waits_hears_when_the_coordinator_goes_and_the_next_has_all(
    start_brokers: StartBrokers,
) -> None:
    brokers = await start_brokers(brokers=2)
    first, second = brokers.brokers
    index = next(number for number in range(50) if first.membership.serving(Lease(LeaseKind.GROUP, number)))
    async with await Wire.connect(first.port) as wire, await Wire.connect(second.port) as other:
        here, there = Events(first, wire, index), Events(second, other, index)
        begin = await here.end()
        await here.tell(b"before")
        epoch = here.leader_epoch
        await wire.send(here.fetching(await here.end(), max_wait_ms=600_000), 12)
        assert (await there.fetch(begin)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        stopping = asyncio.create_task(brokers.stop_one(0))
        answer = (await wire.receive()).responses[0].partitions[0]
        while not answer.error_code:  # the broker reports that it gives the shard up
            await wire.send(here.fetching(answer.high_watermark, max_wait_ms=600_000), 12)
            answer = (await wire.receive()).responses[0].partitions[0]
        assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        await stopping
        async with asyncio.timeout(DEADLINE_S):
            while (answer := await there.fetch(begin)).error_code:
                pass
        assert told(answer)[1][0] == b"before"
        asked = OffsetForLeaderEpochRequest.OffsetForLeaderPartition(partition=index, leader_epoch=epoch)
        of_topic = OffsetForLeaderEpochRequest.OffsetForLeaderTopic(topic=EVENTS_TOPIC, partitions=[asked])
        for version in (2, 3, 4):
            ended = await other.call(OffsetForLeaderEpochRequest(topics=[of_topic]), version)
            (part,) = ended.topics[0].partitions
            assert (part.error_code, part.leader_epoch) == (0, epoch)
            assert part.end_offset > begin, "nothing of what was read is taken for lost"


# --- reading --------------------------------------------------------------------------------------


async def test_what_happens_to_a_group_wakes_who_waits_for_it(start_brokers: StartBrokers) -> None:
    broker = (await start_brokers()).brokers[0]
    async with await Wire.connect(broker.port) as wire, await Wire.connect(broker.port) as member:
        events = Events(broker, wire, shard_of(GROUP))
        offset = await events.end()
        await wire.send(events.fetching(offset, max_wait_ms=600_000), 12)
        protocol = JoinGroupRequest.Protocol(name="range", metadata=b"\x00\x00\x00\x00\x00\x00")
        join = JoinGroupRequest(
            group_id=GROUP,
            session_timeout_ms=30_000,
            rebalance_timeout_ms=30_000,
            member_id="",
            protocol_type="consumer",
            protocols=[protocol],
        )
        assert (await member.call(join, 3)).error_code == ErrorCode.NONE
        found: list[Record] = []
        types: set[str] = set()
        while "member_added" not in types:
            answer = (await wire.receive()).responses[0].partitions[0]
            assert answer.error_code == ErrorCode.NONE
            found += read_records(answer.records)
            types = {json.loads(record.value or b"")["type"] for record in found}
            offset = found[-1].offset + 1
            await wire.send(events.fetching(offset, max_wait_ms=600_000), 12)
        assert {record.key for record in found} == {GROUP.encode()}
        for record in found:
            assert record.timestamp == json.loads(record.value or b"")["at_ms"]
        wire.abort()


@each("version", range(4, 19))
async def test_every_version_fetches(events: Events, version: int) -> None:
    begin = await events.end()
    await events.tell(b"a", b"b")
    for isolation_level in (0, 1):
        answer = await events.fetch(begin + 1, version, isolation_level=isolation_level)
        assert told(answer) == (0, [b"b"])
        assert (answer.high_watermark, answer.last_stable_offset) == (begin + 2, begin + 2)
        assert answer.aborted_transactions == ([] if isolation_level else None)
        assert version < 5 or answer.log_start_offset == 0


@pytest.mark.parametrize("version", range(1, 12))
async def test_offsets_are_found_in_every_version(events: Events, version: int) -> None:
    begin, future_ms = await events.end(), 2**45
    await events.tell(b"a", b"b", at_ms=future_ms)
    expected = {-1: (begin + 2, -1), -2: (0, -1), future_ms: (begin, future_ms), future_ms + 1: (-1, -1)}
    if version >= 7:
        expected[-3] = begin, future_ms
    for timestamp, (offset, found_ms) in expected.items():
        answer = await events.listed(timestamp, version)
        assert (answer.error_code, answer.offset, answer.timestamp) == (0, offset, found_ms)


async def test_a_fetch_outside_is_refused(events: Events) -> None:
    for partition, offset, code in (
        (SHARD, 10**9, ErrorCode.OFFSET_OUT_OF_RANGE),
        (50, 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ):
        answer = await Events(events.broker, events.wire, partition).fetch(offset)
        assert answer.error_code == code


@each("version", range(4, 19))
async def test_a_failed_read_has_a_code_that_each_version_knows(
    events: Events, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_from(1, events.broker, "journal_bounds", monkeypatch)
    code = ErrorCode.NOT_LEADER_OR_FOLLOWER if version < 6 else ErrorCode.KAFKA_STORAGE_ERROR
    assert told(await events.fetch(0, version)) == (code, [])


async def test_its_sizes_are_told(events: Events) -> None:
    await events.tell(b"x" * 100_000)
    (folder,) = (await events.wire.call(DescribeLogDirsRequest(topics=None), 4)).results
    (topic,) = (each for each in folder.topics if each.name == EVENTS_TOPIC)
    sizes = {each.partition_index: each.partition_size for each in topic.partitions}
    assert len(sizes) == 50
    assert sizes[SHARD] > 100_000 > sizes[SHARD + 1]


async def test_events_outlive_a_restart(tmp_path: Path, start_brokers: StartBrokers) -> None:
    settings = {"ephemeral": False, "data": str(tmp_path)}
    brokers = await start_brokers(**settings)
    async with await Wire.connect(brokers.brokers[0].port) as wire:
        events = Events(brokers.brokers[0], wire)
        begin = await events.end()
        await events.tell(b"kept")
    await brokers.stop()
    brokers = await start_brokers(**settings)
    async with await Wire.connect(brokers.brokers[0].port) as wire:
        events = Events(brokers.brokers[0], wire)
        assert told(await events.fetch(begin))[1][0] == b"kept"
        assert await events.end() > begin


# --- settings -------------------------------------------------------------------------------------


async def test_its_configs_are_the_settings(start_brokers: StartBrokers) -> None:
    broker = (
        await start_brokers(group_events_retention_ms=86_400_000, group_events_retention_bytes=5_000)
    ).brokers[0]
    keys = ["retention.ms", "retention.bytes", "cleanup.policy"]
    asked = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=2, resource_name=EVENTS_TOPIC, configuration_keys=keys
    )
    async with await Wire.connect(broker.port) as wire:
        (answer,) = (await wire.call(DescribeConfigsRequest(resources=[asked]), 4)).results
        assert {each.name: each.value for each in answer.configs} == {
            "retention.ms": "86400000",
            "retention.bytes": "5000",
            "cleanup.policy": "delete",
        }
        events = Events(broker, wire)
        await events.tell(*[b"x" * 100] * 100)
        await broker.partitions.sweep()
        assert (await broker.store.journal_bounds(events.lease)).size_bytes <= 5_000


async def test_without_events_there_is_no_such_topic(start_brokers: StartBrokers) -> None:
    broker = (await start_brokers(group_events=False)).brokers[0]
    async with await Wire.connect(broker.port) as wire:
        assert [each.name for each in await metadata(wire)] == [OFFSETS_TOPIC, TRANSACTIONS_TOPIC]
        (answer,) = await metadata(wire, EVENTS_TOPIC, allow_auto_topic_creation=True)
        assert answer.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        (answer,) = await metadata(wire, EVENTS_TOPIC, allow_auto_topic_creation=False)
        assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await creating(wire) == ErrorCode.INVALID_TOPIC_EXCEPTION, "the name stays reserved"
        events = Events(broker, wire)
        assert (await events.fetch(0)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert (await broker.store.journal_bounds(events.lease)).end == 0
        # Rows left from a time when events were kept are removed all the same.
        await events.tell(b"old", at_ms=0)
        await broker.partitions.sweep()
        assert (await broker.store.journal_bounds(events.lease))[:2] == (1, 1)


async def creating(wire: Wire) -> int:
    topic = CreateTopicsRequest.CreatableTopic(
        name=EVENTS_TOPIC, num_partitions=1, replication_factor=1, assignments=[], configs=[]
    )
    (answer,) = (await wire.call(CreateTopicsRequest(topics=[topic]), 7)).topics
    code: int = answer.error_code
    return code


# --- what cannot be done --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "request_", "version"), refusals(EVENTS_TOPIC), ids=lambda each: str(each)[:14]
)
async def test_it_cannot_be_changed(events: Events, name: str, request_: Message, version: int) -> None:
    end = await events.end()
    assert codes_in(await events.wire.call(request_, version)) == {ErrorCode.INVALID_TOPIC_EXCEPTION}, name
    assert await events.end() == end
    (topic,) = await metadata(events.wire, EVENTS_TOPIC)
    assert len(topic.partitions) == 50


async def test_it_exists_so_it_cannot_be_created(port: int) -> None:
    async with await Wire.connect(port) as wire:
        assert await creating(wire) == ErrorCode.TOPIC_ALREADY_EXISTS


@pytest.mark.parametrize("name", [EVENTS_TOPIC, TRANSACTIONS_TOPIC])
async def test_a_topic_of_that_name_from_before_is_hidden_until_it_is_deleted_by_its_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    store = SqliteStore(tmp_path)
    await store.open()
    old = TopicRow(UUID(int=7), name, 2)
    await store.create_topic(old)
    await store.close()
    warned: list[dict[str, object]] = []
    monkeypatch.setattr(Logger, "warning", lambda self, event, **fields: warned.append(fields))
    brokers = Brokers(Settings(port=0, data=str(tmp_path), lease_term_ms=TERM_MS))
    await brokers.start()
    try:
        assert warned == [{"topic": name, "topic_id": str(old.topic_id)}]
        broker = brokers.brokers[0]
        async with await Wire.connect(broker.port) as wire:
            (topic,) = await metadata(wire, name)
            assert (topic.is_internal, len(topic.partitions)) == (True, 50)
            names = [each.name for each in await metadata(wire)]
            assert names == [OFFSETS_TOPIC, EVENTS_TOPIC, TRANSACTIONS_TOPIC]
            doomed = DeleteTopicsRequest.DeleteTopicState(name=None, topic_id=old.topic_id)
            answer = await wire.call(DeleteTopicsRequest(topics=[doomed], timeout_ms=1_000), 6)
            assert codes_in(answer) == set()
            assert await broker.store.topics() == []
            kept = DeleteTopicsRequest.DeleteTopicState(name=None, topic_id=topic.topic_id)
            answer = await wire.call(DeleteTopicsRequest(topics=[kept], timeout_ms=1_000), 6)
            assert codes_in(answer) == {ErrorCode.INVALID_TOPIC_EXCEPTION}
            assert (await metadata(wire, name))[0].topic_id == topic.topic_id
    finally:
        await brokers.stop()

"""`__consumer_offsets` as clients see it: led by the coordinators, read like any topic, not theirs to change.

tests/topics/test_consumer_offsets.py covers fetching it in detail.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Final

import pytest

from muster.coordinator.cluster.placement import EVENTS_TOPIC, OFFSETS_TOPIC, TRANSACTIONS_TOPIC, shard_of
from muster.coordinator.storage.store import Lease, LeaseKind
from muster.protocol.errors import ErrorCode
from muster.protocol.message import Message
from muster.protocol.messages.configs import (
    AlterConfigsRequest,
    DescribeConfigsRequest,
    IncrementalAlterConfigsRequest,
)
from muster.protocol.messages.coordinator_records import (
    GroupMetadataKey,
    OffsetCommitKey,
    OffsetCommitValue,
    decode_record,
)
from muster.protocol.messages.data import (
    DeleteRecordsRequest,
    ListOffsetsRequest,
    OffsetForLeaderEpochRequest,
    ProduceRequest,
)
from muster.protocol.messages.group_admin import DeleteGroupsRequest
from muster.protocol.messages.metadata import FindCoordinatorRequest, MetadataRequest
from muster.protocol.messages.offsets import OffsetCommitRequest
from muster.protocol.messages.topics import CreatePartitionsRequest, CreateTopicsRequest, DeleteTopicsRequest
from muster.protocol.types import ZERO_UUID
from tests.server.conftest import StartBrokers
from tests.server.internal_topics import InternalTopic
from tests.server.test_data import batch
from tests.support.wire import Wire
from tests.topics.support import read_records

DEADLINE_S = 30


_TOPIC: Final = InternalTopic(OFFSETS_TOPIC)
told, fetching, fetched = _TOPIC.told, _TOPIC.fetching, _TOPIC.fetched


async def listed(wire: Wire, timestamp: int) -> Any:
    part = ListOffsetsRequest.ListOffsetsPartition(partition_index=3, timestamp=timestamp)
    topic = ListOffsetsRequest.ListOffsetsTopic(name=OFFSETS_TOPIC, partitions=[part])
    answer = await wire.call(ListOffsetsRequest(replica_id=-1, topics=[topic]), 11)
    return answer.topics[0].partitions[0]


async def test_its_partitions_are_the_coordinators(start_brokers: StartBrokers) -> None:
    brokers = await start_brokers(brokers=3)
    ids = set()
    for broker in brokers.brokers:
        async with await Wire.connect(broker.port) as wire:
            topic = await told(wire)
            async with asyncio.timeout(DEADLINE_S):
                while {each.leader_id for each in topic.partitions} != {1, 2, 3}:
                    topic = await told(wire)
            ids.add(topic.topic_id)
            assert (topic.error_code, topic.is_internal, len(topic.partitions)) == (0, True, 50)
            leaders = {each.partition_index: each.leader_id for each in topic.partitions}
            for number in range(100):
                find = FindCoordinatorRequest(key_type=0, coordinator_keys=[f"g{number}"])
                (found,) = (await wire.call(find, 4)).coordinators
                assert found.node_id == leaders[shard_of(f"g{number}")]
            for index, leader in leaders.items():
                answer = await fetched(wire, index)
                assert answer.error_code == (
                    0 if leader == broker.node_id else ErrorCode.NOT_LEADER_OR_FOLLOWER
                )
            everything = await wire.call(MetadataRequest(topics=None), 12)
            names = [each.name for each in everything.topics]
            assert names == [OFFSETS_TOPIC, EVENTS_TOPIC, TRANSACTIONS_TOPIC]
            by_id = MetadataRequest(topics=[MetadataRequest.Topic(topic_id=topic.topic_id, name=None)])
            assert (await wire.call(by_id, 12)).topics[0].name == OFFSETS_TOPIC
    assert len(ids) == 1
    assert ZERO_UUID not in ids


async def test_without_groups_it_is_empty(start_brokers: StartBrokers) -> None:
    broker = (await start_brokers()).brokers[0]
    async with await Wire.connect(broker.port) as wire:
        epoch = (await told(wire)).partitions[3].leader_epoch
        for timestamp, offset in ((-1, 0), (-2, 0), (-3, -1), (0, -1)):
            answer = await listed(wire, timestamp)
            assert (answer.error_code, answer.offset) == (0, offset)
        answer = await fetched(wire, 3)
        assert (answer.error_code, answer.high_watermark, answer.records) == (0, 0, b"")
        assert (await fetched(wire, 3, 1)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert (await fetched(wire, 50)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        asked = OffsetForLeaderEpochRequest.OffsetForLeaderPartition(partition=3, leader_epoch=epoch)
        of_topic = OffsetForLeaderEpochRequest.OffsetForLeaderTopic(topic=OFFSETS_TOPIC, partitions=[asked])
        end = (await wire.call(OffsetForLeaderEpochRequest(topics=[of_topic]), 4)).topics[0].partitions[0]
        assert (end.error_code, end.leader_epoch, end.end_offset) == (0, epoch, 0)


async def test_who_waits_for_records_of_it_hears_when_the_coordinator_goes(
    start_brokers: StartBrokers,
) -> None:
    brokers = await start_brokers(brokers=2)
    first, second = brokers.brokers
    index = next(number for number in range(50) if first.membership.serving(Lease(LeaseKind.GROUP, number)))
    async with await Wire.connect(first.port) as wire:
        before = (await told(wire)).partitions[index].leader_epoch
        await wire.send(fetching(index, max_wait_ms=600_000), 12)
        async with await Wire.connect(second.port) as other:
            assert (await fetched(other, index)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            stopping = asyncio.create_task(brokers.stop_one(0))
            answer = (await wire.receive()).responses[0].partitions[0]
            assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            await stopping
            async with asyncio.timeout(DEADLINE_S):
                while (await fetched(other, index)).error_code:
                    pass
                while (after := (await told(other)).partitions[index]).leader_id != 2:
                    pass
            assert after.leader_epoch > before


# --- reading --------------------------------------------------------------------------------------

GROUP = "billing"
SHARD = shard_of(GROUP)


async def commit(wire: Wire, offset: int, *, partition: int = 0, metadata: str = "") -> None:
    """Commit like a program without group membership."""
    part = OffsetCommitRequest.Partition(
        partition_index=partition, committed_offset=offset, committed_metadata=metadata
    )
    request = OffsetCommitRequest(
        group_id=GROUP,
        generation_id_or_member_epoch=-1,
        member_id="",
        topics=[OffsetCommitRequest.Topic(name="orders", partitions=[part])],
    )
    (topic,) = (await wire.call(request, 8)).topics
    assert [each.error_code for each in topic.partitions] == [0]


async def create(wire: Wire, name: str = "orders") -> None:
    topic = CreateTopicsRequest.CreatableTopic(
        name=name, num_partitions=9, replication_factor=1, assignments=[], configs=[]
    )
    (answer,) = (await wire.call(CreateTopicsRequest(topics=[topic]), 7)).topics
    assert answer.error_code == 0


def decoded(answer: Any) -> list[tuple[Message, Message | None]]:
    assert answer.error_code == 0
    found = [decode_record(record.key or b"", record.value) for record in read_records(answer.records)]
    return [each for each in found if each is not None]


async def test_a_commit_wakes_who_waits_for_it(port: int) -> None:
    async with await Wire.connect(port) as wire, await Wire.connect(port) as member:
        await create(member)
        await wire.send(fetching(SHARD, max_wait_ms=600_000), 12)
        await commit(member, 5, metadata="noted")
        answer = (await wire.receive()).responses[0].partitions[0]
        ((key, value),) = decoded(answer)
        assert key == OffsetCommitKey(group=GROUP, topic="orders", partition=0)
        assert isinstance(value, OffsetCommitValue)
        assert (value.offset, value.metadata) == (5, "noted")
        (record,) = read_records(answer.records)
        assert (record.offset, record.timestamp) == (0, value.commit_timestamp)


async def test_the_last_of_each_commit_and_what_was_deleted(port: int) -> None:
    async with await Wire.connect(port) as wire:
        await create(wire)
        for offset in range(5):
            await commit(wire, offset, partition=offset % 2)
        end = (await fetched(wire, SHARD)).high_watermark
        last = {
            (key.partition, value.offset)
            for key, value in decoded(await fetched(wire, SHARD))
            if isinstance(key, OffsetCommitKey) and isinstance(value, OffsetCommitValue)
        }
        assert last == {(0, 4), (1, 3)}
        deleted = await wire.call(DeleteGroupsRequest(groups_names=[GROUP]), 2)
        assert [each.error_code for each in deleted.results] == [0]
        after = decoded(await fetched(wire, SHARD, end))
        assert sorted(after, key=repr) == [
            (GroupMetadataKey(group=GROUP), None),
            (OffsetCommitKey(group=GROUP, topic="orders", partition=0), None),
            (OffsetCommitKey(group=GROUP, topic="orders", partition=1), None),
        ]
        assert (await fetched(wire, SHARD)).high_watermark == end + 3


async def test_a_reader_goes_on_where_it_was_after_a_restart(
    tmp_path: Path, start_brokers: StartBrokers
) -> None:
    settings = {"ephemeral": False, "data": str(tmp_path)}
    brokers = await start_brokers(**settings)
    async with await Wire.connect(brokers.brokers[0].port) as wire:
        await create(wire)
        await commit(wire, 5)
        end = (await fetched(wire, SHARD)).high_watermark
        before = read_records((await fetched(wire, SHARD)).records)
    await brokers.stop()
    brokers = await start_brokers(**settings)
    async with await Wire.connect(brokers.brokers[0].port) as wire:
        answer = await fetched(wire, SHARD)
        assert (answer.high_watermark, read_records(answer.records)) == (end, before)
        await commit(wire, 6)
        ((_, value),) = decoded(await fetched(wire, SHARD, end))
        assert isinstance(value, OffsetCommitValue)
        assert value.offset == 6


async def test_a_reader_goes_on_where_it_was_at_the_next_coordinator(start_brokers: StartBrokers) -> None:
    brokers = await start_brokers(brokers=2)
    holder = next(
        broker for broker in brokers.brokers if broker.membership.serving(Lease(LeaseKind.GROUP, SHARD))
    )
    (other,) = [broker for broker in brokers.brokers if broker is not holder]
    async with await Wire.connect(holder.port) as wire, await Wire.connect(other.port) as there:
        await create(wire)
        await commit(wire, 5)
        end = (await fetched(wire, SHARD)).high_watermark
        assert (await fetched(there, SHARD)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        await brokers.stop_one(brokers.brokers.index(holder))
        async with asyncio.timeout(DEADLINE_S):
            while (answer := await fetched(there, SHARD, end)).error_code:
                assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert decoded(answer) == []
        await other.runtime.loaded()
        await commit(there, 6)
        ((_, value),) = decoded(await fetched(there, SHARD, end))
        assert isinstance(value, OffsetCommitValue)
        assert value.offset == 6


async def test_every_version_fetches(port: int) -> None:
    async with await Wire.connect(port) as wire:
        await create(wire)
        await commit(wire, 5)
        for version in range(4, 19):
            request = fetching(SHARD)
            if version >= 13:
                request.topics[0].topic, request.topics[0].topic_id = "", (await told(wire)).topic_id
            answer = (await wire.call(request, version)).responses[0].partitions[0]
            assert any(isinstance(key, OffsetCommitKey) for key, _ in decoded(answer)), version


# --- not theirs to change -------------------------------------------------------------------------


def refusals(of: str) -> list[tuple[str, Message, int]]:
    data = ProduceRequest.PartitionProduceData(index=0, records=batch(b"a"))
    produced = ProduceRequest.TopicProduceData(name=of, partition_data=[data])
    cut = DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=0)
    cuts = DeleteRecordsRequest.DeleteRecordsTopic(name=of, partitions=[cut])
    doomed = DeleteTopicsRequest.DeleteTopicState(name=of, topic_id=ZERO_UUID)
    grown = CreatePartitionsRequest.CreatePartitionsTopic(name=of, count=60, assignments=None)
    config = AlterConfigsRequest.AlterableConfig(name="retention.ms", value="1")
    configs = AlterConfigsRequest.AlterConfigsResource(resource_type=2, resource_name=of, configs=[config])
    edited = IncrementalAlterConfigsRequest.AlterableConfig(
        name="retention.ms", config_operation=0, value="1"
    )
    edits = IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=2, resource_name=of, configs=[edited]
    )
    return [
        ("produce", ProduceRequest(acks=-1, timeout_ms=1_000, topic_data=[produced]), 12),
        ("delete records", DeleteRecordsRequest(topics=[cuts], timeout_ms=1_000), 2),
        ("delete", DeleteTopicsRequest(topics=[doomed], timeout_ms=1_000), 6),
        ("grow", CreatePartitionsRequest(topics=[grown], timeout_ms=1_000, validate_only=False), 3),
        ("alter", AlterConfigsRequest(resources=[configs], validate_only=False), 2),
        ("edit", IncrementalAlterConfigsRequest(resources=[edits], validate_only=False), 1),
    ]


@pytest.mark.parametrize(
    ("name", "request_", "version"), refusals(OFFSETS_TOPIC), ids=lambda each: str(each)[:14]
)
async def test_it_cannot_be_changed(port: int, name: str, request_: Message, version: int) -> None:
    async with await Wire.connect(port) as wire:
        answer = await wire.call(request_, version)
        assert codes_in(answer) == {ErrorCode.INVALID_TOPIC_EXCEPTION}, name
        topic = await told(wire)
        assert (len(topic.partitions), (await fetched(wire, 0)).high_watermark) == (50, 0)


def codes_in(struct: Any) -> set[int]:
    """Every error code of a response except 0."""
    found = set()
    for declared in type(struct).__fields__:
        value = getattr(struct, declared.name)
        if declared.name == "error_code" and value:
            found.add(value)
        for each in value if isinstance(value, list) else ():
            found |= codes_in(each) if hasattr(type(each), "__fields__") else set()
    return found


async def test_it_exists_so_it_cannot_be_created(port: int) -> None:
    topic = CreateTopicsRequest.CreatableTopic(
        name=OFFSETS_TOPIC, num_partitions=1, replication_factor=1, assignments=[], configs=[]
    )
    async with await Wire.connect(port) as wire:
        (answer,) = (await wire.call(CreateTopicsRequest(topics=[topic]), 7)).topics
        assert answer.error_code == ErrorCode.TOPIC_ALREADY_EXISTS


async def test_its_configs_can_be_read(port: int) -> None:
    asked = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=2, resource_name=OFFSETS_TOPIC, configuration_keys=["cleanup.policy"]
    )
    async with await Wire.connect(port) as wire:
        (answer,) = (await wire.call(DescribeConfigsRequest(resources=[asked]), 4)).results
    assert [(each.name, each.value) for each in answer.configs] == [("cleanup.policy", "compact")]

"""DescribeTopicPartitions, DescribeLogDirs, ElectLeaders, DescribeProducers over the wire.

tests/kafka compares the answers with Apache Kafka's; these tests show what only shows from outside of one
broker, or of several, and what a disk can do.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from muster.coordinator.base import log
from muster.coordinator.group.effects import TopicsImage
from muster.coordinator.server import broker as broker_module
from muster.coordinator.server.apis import metadata
from muster.coordinator.server.apis.several import Turns
from muster.coordinator.server.broker import Broker
from muster.coordinator.topics.catalogue import Topic
from muster.coordinator.topics.config import ConfigChange
from muster.coordinator.topics.config import Operation as ConfigOperation
from muster.coordinator.topics.logs import Logs
from muster.protocol.errors import ErrorCode
from muster.protocol.messages.cluster import DescribeLogDirsRequest, ElectLeadersRequest
from muster.protocol.messages.data import ProduceRequest
from muster.protocol.messages.metadata import DescribeTopicPartitionsRequest
from muster.protocol.messages.reassignments import AlterPartitionReassignmentsRequest
from muster.protocol.messages.transactions import DescribeProducersRequest
from tests.server.conftest import StartBrokers
from tests.server.test_data import batch
from tests.support.facts import until
from tests.support.wire import Wire


def leads(broker: Broker, topic: Topic, partition: int) -> bool:
    """Whether it leads by its own leases, whatever it has read of the others'."""
    return broker.membership.serving(broker.topology.data_lease(topic.topic_id, partition))


async def produce(wire: Wire, topic: str, partition: int, data: bytes) -> None:
    part = ProduceRequest.PartitionProduceData(index=partition, records=data)
    named = ProduceRequest.TopicProduceData(name=topic, partition_data=[part])
    answer = await wire.call(ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[named]), 12)
    assert answer.responses[0].partition_responses[0].error_code == 0


# --- DescribeTopicPartitions --------------------------------------------------------------------------------


async def test_pages_put_together_are_all_partitions_once(start_brokers: StartBrokers) -> None:
    broker = (await start_brokers()).brokers[0]
    counts = {"a": 3, "b": 1, "c": 7}
    for name, partitions in counts.items():
        await broker.catalogue.create(name, partitions=partitions)
    found: list[tuple[str, int]] = []
    cursor: Any = None
    async with await Wire.connect(broker.port) as wire:
        for _ in range(100):
            request = DescribeTopicPartitionsRequest(topics=[], response_partition_limit=4, cursor=cursor)
            answer = await wire.call(request, 0)
            page = [
                (topic.name, each.partition_index) for topic in answer.topics for each in topic.partitions
            ]
            assert len(page) == 4 or answer.next_cursor is None
            found += page
            if answer.next_cursor is None:
                break
            cursor = DescribeTopicPartitionsRequest.Cursor(
                topic_name=answer.next_cursor.topic_name, partition_index=answer.next_cursor.partition_index
            )
    counts |= {"__consumer_offsets": 50, "__group_events": 50, "__transaction_state": 50}
    assert found == [(name, index) for name in sorted(counts) for index in range(counts[name])]


async def test_a_page_ends_at_two_thousand_partitions(start_brokers: StartBrokers) -> None:
    broker = (await start_brokers()).brokers[0]
    await broker.catalogue.create("wide", partitions=2_100)
    asked = [DescribeTopicPartitionsRequest.TopicRequest(name="wide")]
    async with await Wire.connect(broker.port) as wire:
        request = DescribeTopicPartitionsRequest(topics=asked, response_partition_limit=100_000)
        answer = await wire.call(request, 0)
    assert len(answer.topics[0].partitions) == 2_000
    assert (answer.next_cursor.topic_name, answer.next_cursor.partition_index) == ("wide", 2_000)


async def test_a_full_page_ends_before_a_topic_that_is_not_there(start_brokers: StartBrokers) -> None:
    broker = (await start_brokers()).brokers[0]
    await broker.catalogue.create("b", partitions=2)
    asked = [DescribeTopicPartitionsRequest.TopicRequest(name=name) for name in "abc"]
    async with await Wire.connect(broker.port) as wire:
        answer = await wire.call(DescribeTopicPartitionsRequest(topics=asked, response_partition_limit=2), 0)
    assert [topic.name for topic in answer.topics] == ["a", "b"]
    assert (answer.next_cursor.topic_name, answer.next_cursor.partition_index) == ("c", 0)


async def test_a_topic_deleted_while_all_are_described_is_left_out(
    start_brokers: StartBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = (await start_brokers()).brokers[0]
    for name in "abc":
        await broker.catalogue.create(name)

    class Busy(Turns):
        async def next(self, things: int = 1) -> None:
            if (gone := broker.catalogue.by_name("b")) is not None:
                await broker.catalogue.delete(gone)

    monkeypatch.setattr(metadata, "Turns", Busy)
    async with await Wire.connect(broker.port) as wire:
        answer = await wire.call(DescribeTopicPartitionsRequest(topics=[]), 0)
    codes = {topic.name: topic.error_code for topic in answer.topics if not topic.name.startswith("__")}
    assert codes == {"a": 0, "c": 0}


# --- DescribeLogDirs ----------------------------------------------------------------------------------------


def sizes(answer: Any) -> dict[tuple[str, int], int]:
    """Sizes of the partitions that are not internal."""
    (folder,) = answer.results
    assert (answer.error_code, folder.error_code) == (0, 0)
    return {
        (topic.name, each.partition_index): each.partition_size
        for topic in folder.topics
        for each in topic.partitions
        if not topic.name.startswith("__")
    }


async def test_sizes_are_those_of_the_files_whether_a_log_is_open_or_not(
    tmp_path: Path, start_brokers: StartBrokers
) -> None:
    first = await start_brokers(ephemeral=False, data=str(tmp_path))
    topic = await first.brokers[0].catalogue.create("t", partitions=3)
    data = [batch(b"a" * 300), batch(b"b" * 700)]
    everything = DescribeLogDirsRequest(topics=None)
    async with await Wire.connect(first.brokers[0].port) as wire:
        for index, each in enumerate(data):
            await produce(wire, "t", index, each)
        answer = await wire.call(everything, 5)
        expected = {("t", 0): len(data[0]), ("t", 1): len(data[1]), ("t", 2): 0}
        assert sizes(answer) == expected
        (folder,) = answer.results
        assert folder.log_dir == str(tmp_path / "topics")
        assert 0 < folder.usable_bytes <= folder.total_bytes
        assert (await wire.call(everything, 1)).results[0].total_bytes == -1  # not in v1's layout
    await first.stop()
    for index in range(2):
        files = (tmp_path / "topics" / str(topic.topic_id) / str(index)).glob("*.log")
        assert sum(each.stat().st_size for each in files) == len(data[index])
    again = await start_brokers(ephemeral=False, data=str(tmp_path))
    async with await Wire.connect(again.brokers[0].port) as wire:
        assert sizes(await wire.call(everything, 5)) == expected
    assert not any(each.topic_id == topic.topic_id for each in again.brokers[0].partitions.in_use())


async def test_in_memory_nobody_knows_how_much_room_there_is(start_brokers: StartBrokers) -> None:
    broker = (await start_brokers()).brokers[0]
    await broker.catalogue.create("t")
    async with await Wire.connect(broker.port) as wire:
        await produce(wire, "t", 0, batch(b"a"))
        answer = await wire.call(DescribeLogDirsRequest(topics=None), 5)
    assert sizes(answer) == {("t", 0): len(batch(b"a"))}
    assert (answer.results[0].total_bytes, answer.results[0].usable_bytes) == (-1, -1)


async def test_each_broker_tells_of_what_it_leads(start_brokers: StartBrokers) -> None:
    brokers = await start_brokers(brokers=3)
    topic = await brokers.brokers[0].catalogue.create("t", partitions=12)
    told: list[int] = []
    for broker in brokers.brokers:
        await broker.catalogue.refresh()
        async with await Wire.connect(broker.port) as wire:
            own = [index for _, index in sizes(await wire.call(DescribeLogDirsRequest(topics=None), 5))]
        assert own == [index for index in range(12) if leads(broker, topic, index)]
        told += own
    assert sorted(told) == list(range(12))


async def test_a_disk_that_does_not_say_is_a_storage_error_of_the_folder(
    start_brokers: StartBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = (await start_brokers()).brokers[0]
    await broker.catalogue.create("t")

    def broken(*_: object) -> int:
        raise OSError("a bad disk")

    monkeypatch.setattr(Logs, "size", broken)
    monkeypatch.setattr(log._Output, "level", 99)
    async with await Wire.connect(broker.port) as wire:
        for version in range(1, 6):
            (folder,) = (await wire.call(DescribeLogDirsRequest(topics=None), version)).results
            assert (folder.error_code, folder.topics) == (ErrorCode.KAFKA_STORAGE_ERROR, [])


# --- ElectLeaders -------------------------------------------------------------------------------------------


def electing(election_type: int, *partitions: int) -> ElectLeadersRequest:
    asked = ElectLeadersRequest.TopicPartitions(topic="t", partitions=list(partitions))
    return ElectLeadersRequest(
        election_type=election_type, topic_partitions=[asked] if partitions else None, timeout_ms=1_000
    )


async def test_a_partition_without_a_leader_has_nobody_to_elect(
    start_brokers: StartBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = (await start_brokers(brokers=2)).brokers[0]
    topic = await first.catalogue.create("t", partitions=8)
    await until(lambda: len(first.topology.holders) == len(first.topology.leases), "every lease has a holder")
    reading = first.topology
    orphan = next(index for index in range(8) if reading.leader(topic.topic_id, index).node_id == 2)
    led = next(index for index in range(8) if reading.leader(topic.topic_id, index).node_id == 1)
    leases = {lease: grant for lease, grant in reading.holders.items() if grant.node_id == 1}
    # As it looks when the other broker is dead and nobody has its leases yet.
    bereft = replace(reading, nodes={1: reading.nodes[1]}, holders=leases)
    monkeypatch.setattr(Broker, "topology", property(lambda _: bereft))
    async with await Wire.connect(first.port) as wire:
        for election_type, code in (
            (0, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE),
            (1, ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE),
        ):
            answer = await wire.call(electing(election_type, orphan, led), 2)
            outcomes = [each.error_code for each in answer.replica_election_results[0].partition_result]
            assert outcomes == [code, ErrorCode.ELECTION_NOT_NEEDED]
            everything = await wire.call(electing(election_type), 2)
            named = {
                (of.topic, each.partition_id, each.error_code)
                for of in everything.replica_election_results
                for each in of.partition_result
            }
            assert ("t", orphan, code) in named
            assert ("t", led, ErrorCode.ELECTION_NOT_NEEDED) not in named


@pytest.mark.parametrize("timeout_ms", [0, -1])
async def test_an_election_or_a_reassignment_without_time_is_refused_as_a_whole(
    start_brokers: StartBrokers, timeout_ms: int
) -> None:
    broker = (await start_brokers()).brokers[0]
    await broker.catalogue.create("t", partitions=1)
    of_topic = AlterPartitionReassignmentsRequest.ReassignableTopic(
        name="t",
        partitions=[
            AlterPartitionReassignmentsRequest.ReassignablePartition(partition_index=each, replicas=[1])
            for each in (0, 9)
        ],
    )
    late = ErrorCode.REQUEST_TIMED_OUT
    async with await Wire.connect(broker.port) as wire:
        for asked, answered in ((electing(0, 0, 9), [late, late]), (electing(7, 0), [late])):
            asked.timeout_ms = timeout_ms
            elected = await wire.call(asked, 2)
            assert elected.error_code == late
            (outcomes,) = elected.replica_election_results
            assert [each.error_code for each in outcomes.partition_result] == answered
        everything = electing(0)
        everything.timeout_ms = timeout_ms
        elected = await wire.call(everything, 2)
        assert (elected.error_code, elected.replica_election_results) == (late, [])
        moved = await wire.call(
            AlterPartitionReassignmentsRequest(topics=[of_topic], timeout_ms=timeout_ms), 1
        )
        assert moved.error_code == late
        assert [each.error_code for each in moved.responses[0].partitions] == [late, late]
        for nothing in (
            ElectLeadersRequest(election_type=0, topic_partitions=[], timeout_ms=timeout_ms),
            AlterPartitionReassignmentsRequest(topics=[], timeout_ms=timeout_ms),
        ):
            assert (await wire.call(nothing, 1)).error_code == ErrorCode.NONE


async def test_the_name_of_a_missing_topic_is_not_repeated_for_each_of_its_partitions(
    start_brokers: StartBrokers,
) -> None:
    everywhere = list(range(1_000))
    long = "\U000e0001" * 249
    electing = ElectLeadersRequest.TopicPartitions(topic=long, partitions=everywhere)
    describing = DescribeProducersRequest.TopicRequest(name=long, partition_indexes=everywhere)
    producing = ProduceRequest.TopicProduceData(
        name=long,
        partition_data=[ProduceRequest.PartitionProduceData(index=each, records=None) for each in everywhere],
    )
    async with await Wire.connect((await start_brokers()).brokers[0].port) as wire:
        request = ElectLeadersRequest(election_type=0, topic_partitions=[electing], timeout_ms=1_000)
        (elected,) = (await wire.call(request, 2)).replica_election_results
        (described,) = (await wire.call(DescribeProducersRequest(topics=[describing]), 0)).topics
        produced = await wire.call(ProduceRequest(acks=1, timeout_ms=10_000, topic_data=[producing]), 12)
    for outcomes in (
        elected.partition_result,
        described.partitions,
        produced.responses[0].partition_responses,
    ):
        assert len(outcomes) == 1_000
        assert all(each.error_code != 0 and 0 < len(each.error_message.encode()) <= 400 for each in outcomes)


# --- DescribeProducers --------------------------------------------------------------------------------------


async def described(broker: Broker, *partitions: int) -> list[Any]:
    asked = DescribeProducersRequest.TopicRequest(name="t", partition_indexes=list(partitions))
    async with await Wire.connect(broker.port) as wire:
        answer = await wire.call(DescribeProducersRequest(topics=[asked]), 0)
    return list(answer.topics[0].partitions)


async def test_producers_are_described_and_survive_a_restart(
    tmp_path: Path, start_brokers: StartBrokers
) -> None:
    first = await start_brokers(ephemeral=False, data=str(tmp_path))
    await first.brokers[0].catalogue.create("t", partitions=2)
    async with await Wire.connect(first.brokers[0].port) as wire:
        for producer_id, sequence, at_ms in ((7, 0, 5_000), (5, 10, 3_000), (7, 2, 4_000)):
            data = batch(
                b"a", b"b", timestamp=at_ms, producer_id=producer_id, producer_epoch=3, base_sequence=sequence
            )
            await produce(wire, "t", 0, data)
    expected = [(5, 3, 11, 3_000, -1, -1), (7, 3, 3, 4_000, -1, -1)]

    def told(partition: Any) -> list[tuple[int, ...]]:
        return [
            (
                each.producer_id,
                each.producer_epoch,
                each.last_sequence,
                each.last_timestamp,
                each.coordinator_epoch,
                each.current_txn_start_offset,
            )
            for each in partition.active_producers
        ]

    written, empty, missing = await described(first.brokers[0], 0, 1, 9, 0, 0)  # each once
    assert (written.error_code, told(written)) == (0, expected)
    assert (empty.error_code, told(empty)) == (0, [])
    assert (missing.error_code, told(missing)) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, [])
    await first.kill_one(0)
    await first.stop()
    again = await start_brokers(ephemeral=False, data=str(tmp_path))
    (written,) = await described(again.brokers[0], 0)
    assert told(written) == expected


async def test_only_the_leader_describes_producers(start_brokers: StartBrokers) -> None:
    brokers = await start_brokers(brokers=2)
    topic = await brokers.brokers[0].catalogue.create("t", partitions=8)
    await brokers.brokers[1].catalogue.refresh()
    for broker in brokers.brokers:
        codes = [each.error_code for each in await described(broker, *range(8))]
        assert codes == [
            0 if leads(broker, topic, index) else ErrorCode.NOT_LEADER_OR_FOLLOWER for index in range(8)
        ]


# --- what groups are told about topics ----------------------------------------------------------------------


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[TopicsImage]:
    """The images made for group shards. `GoneThrough.times`: how often their topics were gone through."""
    images: list[TopicsImage] = []

    def image(
        deleted: frozenset[tuple[str, UUID]], live: dict[str, UUID], partitions: dict[str, int]
    ) -> object:
        images.append(TopicsImage(deleted, GoneThrough(live), partitions))
        return images[-1]

    monkeypatch.setattr(broker_module, "TopicsImage", image)
    return images


class GoneThrough(dict[str, UUID]):
    times = 0

    def keys(self) -> Any:
        GoneThrough.times += 1
        return super().keys()


async def test_what_a_change_of_topics_is_to_groups_is_worked_out_once_for_all_shards(
    start_brokers: StartBrokers, told: list[TopicsImage]
) -> None:
    broker = (await start_brokers()).brokers[0]
    shards = [host.machine for host in broker.runtime.hosts()]
    await broker.catalogue.create("a")
    await until(lambda: all("a" in shard._topics.ids for shard in shards), "every shard knows the topic")
    GoneThrough.times = 0
    for name in "bcd":
        await broker.catalogue.create(name)
    await until(lambda: all("d" in shard._topics.ids for shard in shards), "every shard knows all topics")
    assert GoneThrough.times <= 3 * 2 < len(shards), "each was compared with the one before"
    assert all(shard._topics.version == shards[0]._topics.version for shard in shards)


async def test_groups_are_told_of_topics_and_partition_counts_alone(
    start_brokers: StartBrokers, told: list[TopicsImage]
) -> None:
    broker = (await start_brokers()).brokers[0]
    told.clear()
    topic = await broker.catalogue.create("a")
    await broker.catalogue.alter_configs("a", [ConfigChange("retention.ms", ConfigOperation.SET, "5000")])
    assert broker.catalogue.named("a").config.retention_ms == 5_000
    await broker.catalogue.add_partitions("a", 2)
    await broker.catalogue.delete(topic)
    assert [(image.deleted, (image.partitions or {}).get("a")) for image in told] == [
        (frozenset(), 1),
        (frozenset(), 2),
        (frozenset({("a", topic.topic_id)}), None),
    ]

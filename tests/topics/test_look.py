"""Looking at where logs begin and end, without using them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from muster.coordinator.topics.catalogue import Topic
from muster.coordinator.topics.led import Led
from muster.coordinator.topics.log import PartitionLog
from muster.coordinator.topics.logs import PartitionId
from muster.coordinator.topics.partitions import Partitions
from muster.coordinator.topics.sources import Looked
from muster.protocol.errors import ErrorCode, KafkaError
from tests.topics.support import SHARDS, Brokers, TestRows, batch


@pytest.fixture
async def brokers() -> AsyncIterator[Brokers]:
    brokers = Brokers()
    yield brokers
    await brokers.close()


async def topic_at(brokers: Brokers, partitions: int = 1) -> Topic:
    topic = await brokers.catalogues[0].create("orders", partitions=partitions)
    for catalogue in brokers.catalogues:
        await catalogue.refresh()
    return topic


async def look(node: Partitions, topic: Topic, partitions: int = 1) -> list[Looked]:
    return await node.look([PartitionId(topic.topic_id, each) for each in range(partitions)])


async def test_logs_in_use_and_logs_that_nobody_uses(brokers: Brokers) -> None:
    node = await brokers.add()
    topic = await topic_at(brokers, 3)
    await node.append(topic, 0, batch(b"a", b"b", b"c"))
    assert await look(node, topic, 3) == [(0, 3), (0, 0), (0, 0)]
    assert await node.delete_records(topic, 0, 2) == 2
    assert await look(node, topic, 3) == [(2, 3), (0, 0), (0, 0)]
    assert node.in_use() == [PartitionId(topic.topic_id, 0)]


async def test_what_a_look_remembers_ends_with_the_first_append(brokers: Brokers) -> None:
    node = await brokers.add()
    topic = await topic_at(brokers)
    assert await look(node, topic) == [(0, 0)]
    await node.append(topic, 0, batch(b"a"))
    assert await look(node, topic) == [(0, 1)]


async def test_a_new_leader_looks_anew(brokers: Brokers) -> None:
    first, second = await brokers.add(), await brokers.add(own=())
    topic = await topic_at(brokers)
    assert await look(second, topic) == ([(0, 0)] if TestRows.in_use is not None else [None])
    await first.append(topic, 0, batch(b"a", b"b"))
    assert await look(second, topic) == [(0, 2)]  # open in this process
    for shard in range(SHARDS):
        await first.disown(shard)
    for shard in range(SHARDS):
        second.own(shard, 2)
    assert await look(second, topic) == [(0, 2)]
    await second.append(topic, 0, batch(b"c"))
    assert await look(second, topic) == [(0, 3)]
    for shard in range(SHARDS):
        await second.disown(shard)
    for shard in range(SHARDS):
        first.own(shard, 3)
    assert await look(first, topic) == [(0, 3)]


async def test_upkeep_of_a_log_that_nobody_uses_leaves_known_where_it_ends(brokers: Brokers) -> None:
    first, second = await brokers.add(), await brokers.add(own=())
    topic = await topic_at(brokers)
    await first.append(topic, 0, batch(b"a", b"b"))
    for shard in range(SHARDS):
        await first.disown(shard)
        second.own(shard, 2)
    assert await look(second, topic) == [(0, 2)]
    await second.sweep()
    assert second.in_use() == []
    assert second.known(PartitionId(topic.topic_id, 0)) == (0, 2)


@pytest.mark.files
async def test_a_look_that_is_given_up_leaves_what_it_has_seen(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await brokers.add()
    topic = await topic_at(brokers, 3)
    look_into, stuck = Partitions._look_into, asyncio.Event()

    async def stuck_at_the_last(partitions: Partitions, partition: PartitionId) -> Looked:
        if partition.partition == 2:
            stuck.set()
            await asyncio.Event().wait()
        return await look_into(partitions, partition)

    with monkeypatch.context() as disk:
        disk.setattr(Partitions, "_look_into", stuck_at_the_last)
        looking = asyncio.create_task(look(node, topic, 3))
        await stuck.wait()
        looking.cancel()
        await asyncio.wait([looking])
    where = [PartitionId(topic.topic_id, each) for each in range(3)]
    assert [node.known(each) for each in where] == [(0, 0), (0, 0), None]
    assert node.in_use() == []
    assert await look(node, topic, 3) == [(0, 0)] * 3


@pytest.mark.files
async def test_partitions_that_do_not_exist_and_logs_that_cannot_be_read(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await brokers.add()
    topic = await topic_at(brokers, 2)
    opened = Partitions._opened

    def damaged(partitions: Partitions, led: Led) -> PartitionLog:
        if led.partition == 0:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "damaged")
        return opened(partitions, led)

    monkeypatch.setattr(Partitions, "_opened", damaged)
    first, second, third = await look(node, topic, 3)
    assert isinstance(first, KafkaError)
    assert second == (0, 0)
    assert isinstance(third, KafkaError)
    assert third.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert node.in_use() == []


async def test_a_partition_that_is_not_there(brokers: Brokers) -> None:
    node = await brokers.add()
    topic = await topic_at(brokers)
    await node.append(topic, 0, batch(b"a"))
    await brokers.catalogues[0].delete(topic)
    assert await look(node, topic) == ([(0, 0)] if TestRows.in_use is not None else [None])

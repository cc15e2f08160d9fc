"""Fetching from muster's own brokers."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from muster.client.fetch.fetcher import Fetcher, FetchSettings, Reset
from muster.client.fetch.positions import EARLIEST, Position
from muster.client.fetch.records import ConsumerRecord
from muster.client.network.cluster import Cluster, parse_bootstrap
from muster.client.network.connection import deadline
from muster.client.partitions import TopicPartition
from muster.coordinator import testing
from muster.coordinator.testing import Broker
from muster.protocol.compression import Codec
from muster.protocol.messages.data import DeleteRecordsRequest, ProduceRequest
from muster.protocol.record_batch import Record, build
from tests.support.facts import until
from tests.support.leases import TERM_MS

LONG_S = 60.0
T0 = TopicPartition("t", 0)


async def send(cluster: Cluster, where: TopicPartition, *values: bytes, codec: Codec = Codec.NONE) -> None:
    """Send one batch, whoever leads the partition."""
    data = build([Record(index, 1, None, value) for index, value in enumerate(values)], codec=codec)
    topic = ProduceRequest.TopicProduceData(
        name=where.topic,
        partition_data=[ProduceRequest.PartitionProduceData(index=where.partition, records=data)],
    )
    request = ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[topic])

    async def attempt() -> None:
        node, _ = await cluster.leadership(where, deadline(LONG_S))
        response = await cluster.call(request, deadline(LONG_S), node=node)
        assert response.responses[0].partition_responses[0].error_code == 0

    while True:
        try:
            return await cluster.retrying(attempt, deadline(LONG_S))
        except AssertionError:
            cluster.stale(where.topic)


async def read(fetcher: Fetcher, count: int) -> list[ConsumerRecord[bytes | None, bytes | None]]:
    records: list[ConsumerRecord[bytes | None, bytes | None]] = []
    async with asyncio.timeout(LONG_S):
        while len(records) < count:
            for each in await fetcher.poll(500, LONG_S):
                records += each.records
    return records


def fetcher_of(cluster: Cluster, resets: list[Reset] | None = None, **settings: Any) -> Fetcher:
    noted = [] if resets is None else resets
    return Fetcher(cluster, FetchSettings(**{"reset": EARLIEST, **settings}), on_reset=noted.append)


async def test_many_records_of_all_codecs_from_several_partitions(broker: Broker, cluster: Cluster) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    partitions = [TopicPartition("t", index) for index in range(3)]
    broker.create_topic("t", 3)
    sent: dict[TopicPartition, list[bytes]] = {where: [] for where in partitions}
    for where in partitions * 10:
        values = [rng.randbytes(rng.choice((0, 1, 100, 2000))) for _ in range(rng.choice((1, 20, 300)))]
        await send(cluster, where, *values, codec=rng.choice(list(Codec)))
        sent[where] += values
    # Less than the largest batches, which arrive whole all the same.
    fetcher = fetcher_of(cluster, partition_max_bytes=50_000, max_bytes=120_000)
    fetcher.set_assigned(partitions)
    for where in partitions:
        fetcher.reset(where)
    records = await read(fetcher, sum(map(len, sent.values())))
    for where in partitions:
        found = [each for each in records if each.topic_partition == where]
        assert [each.offset for each in found] == list(range(len(sent[where])))
        assert [each.value for each in found] == sent[where]
        assert fetcher.lag(where) == 0
    await fetcher.close()


async def test_a_log_that_does_not_reach_back_that_far(broker: Broker, cluster: Cluster) -> None:
    broker.create_topic("t")
    await send(cluster, T0, b"0", b"1", b"2")
    part = DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=2)
    topic = DeleteRecordsRequest.DeleteRecordsTopic(name="t", partitions=[part])
    await cluster.call(DeleteRecordsRequest(topics=[topic], timeout_ms=10_000), deadline(LONG_S))
    resets: list[Reset] = []
    fetcher = fetcher_of(cluster, resets)
    fetcher.set_assigned([T0])
    fetcher.seek(T0, Position(0))
    assert [each.value for each in await read(fetcher, 1)] == [b"2"]
    assert [(each.from_offset, each.to_offset) for each in resets] == [(0, 2)]
    await fetcher.close()


async def test_it_follows_a_partition_to_its_next_leader() -> None:
    with testing.Cluster(3, lease_term_ms=TERM_MS) as brokers:
        brokers.create_topic("t")
        async with Cluster(parse_bootstrap(brokers.bootstrap)) as cluster:
            await send(cluster, T0, b"0")
            fetcher = fetcher_of(cluster)
            fetcher.set_assigned([T0])
            fetcher.seek(T0, Position(0))
            assert len(await read(fetcher, 1)) == 1
            leader, _ = await cluster.leadership(T0, deadline(LONG_S))
            brokers.stop(leader - 1)
            await send(cluster, T0, b"1")
            (record,) = await read(fetcher, 1)
            assert (record.offset, record.value) == (1, b"1")
            assert fetcher.troubles == {}
            await fetcher.close()


async def test_a_broker_that_goes_away_and_comes_back() -> None:
    with Broker() as broker:
        broker.create_topic("t")
        async with Cluster(parse_bootstrap(broker.bootstrap)) as cluster:
            await send(cluster, T0, b"0")
            fetcher = fetcher_of(cluster)
            fetcher.set_assigned([T0])
            fetcher.seek(T0, Position(0))
            await read(fetcher, 1)
            broker.kill(0)
            await until(lambda: fetcher.troubles)
            assert await fetcher.poll(500, 0.01) == []
            broker.restart(0)
            await send(cluster, T0, b"1")
            assert [each.offset for each in await read(fetcher, 1)] == [1]
            assert fetcher.troubles == {}
            await fetcher.close()

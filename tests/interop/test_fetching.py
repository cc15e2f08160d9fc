"""Our fetcher with Apache Kafka: fetch sessions, transactions, and details that both must understand
alike."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import confluent_kafka
import pytest

from muster.client.errors import OffsetOutOfRange
from muster.client.fetch.fetcher import Fetcher, FetchSettings, Reset
from muster.client.fetch.positions import EARLIEST, LATEST, Position
from muster.client.fetch.records import ConsumerRecord
from muster.client.network.cluster import Cluster, parse_bootstrap
from muster.client.network.connection import Versioned, deadline
from muster.client.partitions import TopicPartition
from muster.protocol.messages.data import (
    DeleteRecordsRequest,
    FetchRequest,
    FetchResponse,
    ListOffsetsRequest,
)
from muster.protocol.messages.topics import CreateTopicsRequest, DeleteTopicsRequest
from tests.support.apache_kafka import ApacheKafka
from tests.support.facts import until

LONG_S = 60.0
FLUSH_S = 30
PAUSE_S = 0.02  # between two checks of a fact


@pytest.fixture(scope="module")
def kafka() -> Iterator[ApacheKafka]:
    with ApacheKafka() as running:
        yield running


class Watched(Cluster):
    """Records every Fetch with its version and its answer. `spoil` changes the next one that belongs to a
    session."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(parse_bootstrap(bootstrap))
        self.fetches: list[tuple[int, FetchRequest, FetchResponse]] = []
        self.spoil: Callable[[FetchRequest], None] | None = None

    async def call(self, request: Any, until: float, **how: Any) -> Any:
        seen: list[tuple[int, FetchRequest]] = []
        if isinstance(request, Versioned):
            build = request.build

            def watching(version: int) -> Any:
                seen.append((version, built := build(version)))
                if self.spoil is not None and built.session_epoch > 0:
                    self.spoil(built)
                    self.spoil = None
                return built

            request = request._replace(build=watching)
        response = await super().call(request, until, **how)
        self.fetches += [(version, built, response) for version, built in seen]
        return response


@pytest.fixture
async def cluster(kafka: ApacheKafka) -> AsyncIterator[Watched]:
    async with Watched(kafka.bootstrap) as connected:
        yield connected


async def create(cluster: Cluster, topic: str, count: int = 1) -> list[TopicPartition]:
    wanted = CreateTopicsRequest.CreatableTopic(
        name=topic, num_partitions=count, replication_factor=1, assignments=[], configs=[]
    )
    request = CreateTopicsRequest(topics=[wanted], timeout_ms=30_000)

    answer = await cluster.call(request, deadline(LONG_S))
    assert answer.topics[0].error_code == 0, answer
    partitions = [TopicPartition(topic, index) for index in range(count)]
    async with asyncio.timeout(LONG_S):
        # Brokers learn of it a moment later.
        while any(
            (known := cluster.image.partition(where)) is None or known.leader < 0 for where in partitions
        ):
            await cluster.refresh([topic], deadline(LONG_S))
        # And lead a moment after that.
        while not await are_led(cluster, partitions):  # noqa: ASYNC110
            await asyncio.sleep(PAUSE_S)
    return partitions


async def are_led(cluster: Cluster, partitions: list[TopicPartition]) -> bool:
    """Whether the leader of these partitions of one topic answers for all of them."""
    known = cluster.image.partition(partitions[0])
    assert known is not None
    wanted = ListOffsetsRequest.ListOffsetsTopic(
        name=partitions[0].topic,
        partitions=[
            ListOffsetsRequest.ListOffsetsPartition(partition_index=where.partition, timestamp=-1)
            for where in partitions
        ],
    )
    request = ListOffsetsRequest(replica_id=-1, topics=[wanted])
    answer = await cluster.call(request, deadline(LONG_S), node=known.leader)
    return not any(part.error_code for part in answer.topics[0].partitions)


def produce(kafka: ApacheKafka, where: TopicPartition, *values: bytes, **configs: Any) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": kafka.bootstrap, "linger.ms": 0, **configs})
    for value in values:
        producer.produce(where.topic, value, partition=where.partition)
    assert producer.flush(FLUSH_S) == 0


def fetcher_of(cluster: Cluster, resets: list[Reset] | None = None, **settings: Any) -> Fetcher:
    settings = {"reset": EARLIEST, "max_wait_ms": 100, **settings}
    noted = [] if resets is None else resets
    return Fetcher(cluster, FetchSettings(**settings), on_reset=noted.append)


async def read(fetcher: Fetcher, count: int) -> list[ConsumerRecord[bytes | None, bytes | None]]:
    records: list[ConsumerRecord[bytes | None, bytes | None]] = []
    async with asyncio.timeout(LONG_S):
        while len(records) < count:
            for each in await fetcher.poll(500, LONG_S):
                records += each.records
    return records


async def test_sessions_are_kept_and_name_only_what_changed(kafka: ApacheKafka, cluster: Watched) -> None:
    partitions = await create(cluster, "sessions", 3)
    fetcher = fetcher_of(cluster)
    fetcher.set_assigned(partitions)
    for where in partitions:
        fetcher.seek(where, Position(0))
    produce(kafka, partitions[0], b"0")
    assert [each.value for each in await read(fetcher, 1)] == [b"0"]
    await until(lambda: len(cluster.fetches) >= 4)
    version, first, opened = cluster.fetches[0]
    assert version >= 13
    assert (first.session_id, first.session_epoch, len(first.topics[0].partitions)) == (0, 0, 3)
    assert opened.session_id != 0
    later = [request for _, request, _ in cluster.fetches[1:]]
    assert {request.session_id for request in later} == {opened.session_id}
    assert [request.session_epoch for request in later] == list(range(1, len(later) + 1))
    named = [[part.partition for topic in request.topics for part in topic.partitions] for request in later]
    assert [each for each in named if each] == [[0]]  # it advanced, once
    # The others are in the session all the same.
    produce(kafka, partitions[2], b"2")
    assert [each.value for each in await read(fetcher, 1)] == [b"2"]
    # A paused partition is forgotten, a resumed one named again.
    fetcher.pause([partitions[1]])
    await until(lambda: cluster.fetches[-1][1].forgotten_topics_data)
    fetcher.resume([partitions[1]])
    produce(kafka, partitions[1], b"1")
    assert [each.value for each in await read(fetcher, 1)] == [b"1"]
    assert all(not response.error_code for _, _, response in cluster.fetches)
    await fetcher.close()


@pytest.mark.parametrize("what", ["session", "epoch"])
async def test_a_session_that_the_broker_does_not_know(
    kafka: ApacheKafka, cluster: Watched, what: str
) -> None:
    (where,) = await create(cluster, f"lost-{what}")
    fetcher = fetcher_of(cluster)
    fetcher.set_assigned([where])
    fetcher.seek(where, Position(0))
    produce(kafka, where, b"0")
    await read(fetcher, 1)

    def spoil(request: FetchRequest) -> None:
        if what == "session":
            request.session_id += 1
        else:
            request.session_epoch += 5

    cluster.spoil = spoil
    await until(lambda: cluster.spoil is None)
    produce(kafka, where, b"1")
    assert [each.value for each in await read(fetcher, 1)] == [b"1"]
    codes = [response.error_code for _, _, response in cluster.fetches]
    assert [code for code in codes if code] == [70 if what == "session" else 71]
    await fetcher.close()


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
async def test_every_codec(kafka: ApacheKafka, cluster: Watched, codec: str) -> None:
    (where,) = await create(cluster, f"packed-{codec}")
    values = [b"%d " % index * 50 for index in range(300)]
    produce(kafka, where, *values, **{"compression.type": codec, "linger.ms": 50})
    fetcher = fetcher_of(cluster)
    fetcher.set_assigned([where])
    fetcher.reset(where)
    records = await read(fetcher, 300)
    assert [(each.offset, each.value) for each in records] == list(enumerate(values))
    await fetcher.close()


async def test_transactions(kafka: ApacheKafka, cluster: Watched) -> None:
    """Two at once, one of which is aborted; markers take up offsets, and are shown to nobody."""
    (first,) = await create(cluster, "transactions")
    producers = []
    for name in ("a", "b"):
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": kafka.bootstrap, "transactional.id": name, "linger.ms": 0}
        )
        await asyncio.to_thread(producer.init_transactions, FLUSH_S)
        producer.begin_transaction()
        producers.append(producer)
    committing, aborting = producers

    async def send(producer: confluent_kafka.Producer, value: bytes) -> None:
        producer.produce(first.topic, value, partition=0)
        assert await asyncio.to_thread(producer.flush, FLUSH_S) == 0

    await send(aborting, b"aborted 1")
    await send(committing, b"committed 1")
    await send(aborting, b"aborted 2")
    await asyncio.to_thread(committing.commit_transaction, FLUSH_S)
    committed = fetcher_of(cluster, isolation_level="read_committed")
    committed.set_assigned([first])
    committed.seek(first, Position(0))
    # Beyond the oldest open transaction nothing is decided.
    await until(lambda: committed.high_watermark(first) == 4)
    assert await committed.poll(500, 0.01) == []
    assert (committed.last_stable_offset(first), committed.lag(first)) == (0, 0)
    await asyncio.to_thread(aborting.abort_transaction, FLUSH_S)
    aborting.begin_transaction()
    await send(aborting, b"the next one")
    await asyncio.to_thread(aborting.commit_transaction, FLUSH_S)
    assert [each.value for each in await read(committed, 2)] == [b"committed 1", b"the next one"]
    await until(lambda: committed.lag(first) == 0)
    assert committed.position(first) == Position(7, 0)
    await committed.close()
    uncommitted = fetcher_of(cluster)
    uncommitted.set_assigned([first])
    uncommitted.seek(first, Position(0))
    assert [each.value for each in await read(uncommitted, 4)] == [
        b"aborted 1",
        b"committed 1",
        b"aborted 2",
        b"the next one",
    ]
    assert uncommitted.position(first) == Position(7, 0)
    await uncommitted.close()


async def test_the_end_for_committed_reads_is_the_last_stable_offset(
    kafka: ApacheKafka, cluster: Watched
) -> None:
    (where,) = await create(cluster, "stable")
    produce(kafka, where, b"0")
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": kafka.bootstrap, "transactional.id": "stable", "linger.ms": 0}
    )
    await asyncio.to_thread(producer.init_transactions, FLUSH_S)
    producer.begin_transaction()
    producer.produce(where.topic, b"1", partition=0)
    assert await asyncio.to_thread(producer.flush, FLUSH_S) == 0
    for level, end in (("read_committed", 1), ("read_uncommitted", 2)):
        resets: list[Reset] = []
        fetcher = fetcher_of(cluster, resets, isolation_level=level)
        fetcher.set_assigned([where])
        fetcher.reset(where, LATEST)
        await until(lambda resets=resets: resets)
        assert resets[0].to_offset == end
        await fetcher.close()
    await asyncio.to_thread(producer.abort_transaction, FLUSH_S)


async def test_logs_that_are_not_as_they_were(kafka: ApacheKafka, cluster: Watched) -> None:
    (where,) = await create(cluster, "moved")
    produce(kafka, where, *(b"%d" % index for index in range(5)))
    part = DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=3)
    topic = DeleteRecordsRequest.DeleteRecordsTopic(name="moved", partitions=[part])
    answer = await cluster.call(DeleteRecordsRequest(topics=[topic], timeout_ms=30_000), deadline(LONG_S))
    assert answer.topics[0].partitions[0].error_code == 0
    strict = fetcher_of(cluster, reset=None)
    strict.set_assigned([where])
    strict.seek(where, Position(1, 0))
    with pytest.raises(OffsetOutOfRange) as raised:
        await read(strict, 1)
    assert raised.value.positions == {where: 1}
    await strict.close()
    resets: list[Reset] = []
    fetcher = fetcher_of(cluster, resets)
    fetcher.set_assigned([where])
    # An offset before the log, an epoch that no leader had, and an offset beyond the log.
    for position in (Position(1, 0), Position(4, 7), Position(1)):
        fetcher.seek(where, position)
        assert (await read(fetcher, 1))[0].offset == 3
    fetcher.seek(where, Position(99, 0))
    await until(lambda: len(resets) == 4)
    assert [(each.from_offset, each.to_offset) for each in resets] == [(1, 3), (4, 3), (1, 3), (99, 5)]
    assert resets[3].why == "the log of moved-0 was cut at offset 5, below 99"
    await fetcher.close()


async def test_a_topic_that_is_deleted_and_created_again(kafka: ApacheKafka, cluster: Watched) -> None:
    (where,) = await create(cluster, "again")
    produce(kafka, where, b"0", b"1")
    resets: list[Reset] = []
    fetcher = fetcher_of(cluster, resets, reset=LATEST)
    fetcher.set_assigned([where])
    fetcher.seek(where, Position(0))
    await read(fetcher, 2)
    await cluster.call(
        DeleteTopicsRequest(topic_names=["again"], timeout_ms=30_000), deadline(LONG_S), last_version=5
    )
    await until(lambda: fetcher.troubles)
    async with Cluster(parse_bootstrap(kafka.bootstrap)) as other:
        await create(other, "again")
    produce(kafka, where, b"new 0", b"new 1", b"new 2")
    assert [each.value for each in await read(fetcher, 3)] == [b"new 0", b"new 1", b"new 2"]
    assert [(each.from_offset, each.to_offset) for each in resets] == [(2, 0)]
    await fetcher.close()

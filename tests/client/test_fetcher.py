"""Reading: from where, over what gaps, and what happens when the log or its leader is elsewhere."""

from __future__ import annotations

import asyncio

import pytest

from muster.client import admin
from muster.client.cluster import Cluster, parse_bootstrap
from muster.client.connection import deadline
from muster.client.errors import ClientError
from muster.client.fetcher import Fetched, Fetcher, _Answer
from muster.client.partitions import TopicPartition
from muster.client.producer import Outgoing, Producer
from muster.coordinator import testing
from muster.coordinator.testing import Broker
from muster.protocol.compression import Codec
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.data import DeleteRecordsRequest, FetchResponse
from muster.protocol.record_batch import Record, build

LONG_S = 60.0
T0 = TopicPartition("t", 0)


async def send(cluster: Cluster, *values: bytes, topic: str = "t", partition: int = 0) -> None:
    records = [Outgoing(None, value, (), partition) for value in values]
    await Producer(cluster, codec=Codec.LZ4).send(topic, records, deadline(LONG_S))


async def read(fetcher: Fetcher, count: int) -> list[Fetched]:
    """At least so many records."""
    records: list[Fetched] = []
    async with asyncio.timeout(LONG_S):
        while len(records) < count:
            records += await fetcher.poll()
    return records


async def delete_records(cluster: Cluster, offset: int) -> None:
    part = DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=offset)
    topic = DeleteRecordsRequest.DeleteRecordsTopic(name="t", partitions=[part])
    await cluster.call(DeleteRecordsRequest(topics=[topic], timeout_ms=10_000), deadline(LONG_S))


async def test_from_the_middle_of_a_batch(broker: Broker, cluster: Cluster) -> None:
    broker.create_topic("t")
    await send(cluster, b"0", b"1", b"2", b"3")
    fetcher = Fetcher(cluster, patience_s=LONG_S)
    fetcher.assign({T0: 2})
    assert [(each.offset, each.value) for each in await read(fetcher, 2)] == [(2, b"2"), (3, b"3")]
    assert fetcher.positions == {T0: 4}
    await send(cluster, b"4")
    assert [each.value for each in await read(fetcher, 1)] == [b"4"]
    await fetcher.close()


async def test_nothing_comes_of_nothing(broker: Broker, cluster: Cluster) -> None:
    broker.create_topic("t")
    fetcher = Fetcher(cluster, patience_s=LONG_S)
    assert await fetcher.poll(0.01) == []
    fetcher.assign({T0: 0})
    assert await fetcher.poll(0.01) == []
    await fetcher.close()


async def test_what_was_asked_for_before_an_assignment_is_dropped(broker: Broker, cluster: Cluster) -> None:
    broker.create_topic("t", 2)
    await send(cluster, b"0")
    await send(cluster, b"1")
    await send(cluster, b"other", partition=1)
    fetcher = Fetcher(cluster, patience_s=LONG_S)
    fetcher.assign({T0: 1})
    await fetcher._fetch_from_idle_leaders()
    fetcher.assign({T0: 0, TopicPartition("t", 1): 0})
    assert sorted((each.value or b"") for each in await read(fetcher, 3)) == [b"0", b"1", b"other"]
    fetcher.stop([T0])
    assert fetcher.positions == {TopicPartition("t", 1): 1}
    await fetcher.close()


async def test_a_log_that_does_not_reach_back_that_far(broker: Broker, cluster: Cluster) -> None:
    broker.create_topic("t")
    await send(cluster, b"0", b"1", b"2")
    await delete_records(cluster, 2)
    strict = Fetcher(cluster, patience_s=LONG_S)
    strict.assign({T0: 0})
    with pytest.raises(KafkaError, match="t-0 has no offset 0; it has 2 to 3") as refused:
        await read(strict, 1)
    assert refused.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    await strict.close()
    lenient = Fetcher(cluster, patience_s=LONG_S, reset=admin.EARLIEST)
    lenient.assign({T0: 0})
    assert [each.value for each in await read(lenient, 1)] == [b"2"]
    await lenient.close()


async def test_a_topic_that_is_gone_is_not_waited_for(broker: Broker, cluster: Cluster) -> None:
    broker.create_topic("t")
    fetcher = Fetcher(cluster, patience_s=LONG_S)
    fetcher.assign({T0: 0})
    await fetcher.poll(0.01)
    await admin.delete_topics(cluster, ["t"], deadline(LONG_S))
    with pytest.raises(KafkaError) as refused:
        await read(fetcher, 1)
    assert refused.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    await fetcher.close()


async def test_it_follows_a_partition_to_its_next_leader() -> None:
    with testing.Cluster(3) as brokers:
        brokers.create_topic("t")
        async with Cluster(parse_bootstrap(brokers.bootstrap)) as cluster:
            await send(cluster, b"0")
            fetcher = Fetcher(cluster, patience_s=LONG_S)
            fetcher.assign({T0: 0})
            assert len(await read(fetcher, 1)) == 1
            leader = await cluster.leader(T0, deadline(LONG_S))
            brokers.stop(leader - 1)
            await send(cluster, b"1")
            assert [each.value for each in await read(fetcher, 1)] == [b"1"]
            await fetcher.close()


async def test_without_a_broker_the_patience_ends() -> None:
    with Broker() as broker:
        broker.create_topic("t")
        async with Cluster(parse_bootstrap(broker.bootstrap)) as cluster:
            fetcher = Fetcher(cluster, patience_s=1.0)
            fetcher.assign({T0: 0})
            await fetcher.poll(0.01)
            broker.kill(0)
            with pytest.raises(ClientError):
                await read(fetcher, 1)
            await fetcher.close()


async def test_records_are_not_lost_when_something_else_fails_with_them(
    broker: Broker, cluster: Cluster
) -> None:
    """Be it another partition, or the batch behind them: what was read is handed out, then the failure."""
    broker.create_topic("t", 2)
    await send(cluster, b"0")
    fetcher = Fetcher(cluster, patience_s=LONG_S)
    gone = TopicPartition("t", 1)
    fetcher.assign({gone: 99, T0: 0})
    assert [each.value for each in await read(fetcher, 1)] == [b"0"]
    with pytest.raises(KafkaError, match="t-1 has no offset 99"):
        await read(fetcher, 1)
    await fetcher.close()


async def test_an_answer_with_damage_or_with_what_was_not_asked() -> None:
    damaged = bytearray(batch(1, b"1"))
    damaged[-1] ^= 1
    part = FetchResponse.FetchableTopicResponse.PartitionData
    parts = [
        part(partition_index=7, high_watermark=2, aborted_transactions=None, records=batch(0, b"whose?")),
        part(
            partition_index=0,
            high_watermark=2,
            aborted_transactions=None,
            records=batch(0, b"0") + bytes(damaged),
        ),
    ]
    response = FetchResponse(responses=[FetchResponse.FetchableTopicResponse(topic="t", partitions=parts)])
    fetcher = Fetcher(Cluster([]), patience_s=LONG_S)
    fetcher.assign({T0: 0})
    fetched: list[Fetched] = []
    fetcher._take(_Answer({T0: 0}, deadline(0), response, None), fetched)
    assert [each.value for each in fetched] == [b"0"]
    with pytest.raises(KafkaError, match="t-0: the batch at 1 is damaged"):
        await fetcher.poll()


def unpacked(data: bytes, position: int = 0) -> list[bytes | None]:
    fetcher = Fetcher(Cluster([]), patience_s=LONG_S)
    fetcher.assign({T0: position})
    fetched: list[Fetched] = []
    fetcher._unpack(T0, data, fetched)
    return [each.value for each in fetched]


def batch(offset: int, *values: bytes, control: bool = False) -> bytes:
    return build(
        [Record(offset + index, 1, b"k", value) for index, value in enumerate(values)], control=control
    )


def test_a_batch_that_is_cut_short_is_left_for_the_next_fetch() -> None:
    whole = batch(0, b"0") + batch(1, b"1")
    for length in range(len(whole) + 1):
        expected = [b"0", b"1"][: (length >= len(batch(0, b"0"))) + (length == len(whole))]
        assert unpacked(whole[:length]) == expected


def test_control_records_are_passed_over() -> None:
    assert unpacked(batch(0, b"0") + batch(1, b"marker", control=True) + batch(2, b"2")) == [b"0", b"2"]


def test_damage_is_found() -> None:
    damaged = bytearray(batch(0, b"0"))
    damaged[-1] ^= 1
    with pytest.raises(KafkaError, match="t-0: the batch at 0 is damaged") as refused:
        unpacked(bytes(damaged))
    assert refused.value.code is ErrorCode.CORRUPT_MESSAGE
    old_format = bytearray(batch(0, b"0"))
    old_format[16] = 1
    with pytest.raises(KafkaError, match="message format 1"):
        unpacked(bytes(old_format))

"""Sending: where records go, in what order, and that none is lost or written twice."""

from __future__ import annotations

import pytest

from muster.client import admin, producer
from muster.client.cluster import Cluster
from muster.client.connection import deadline
from muster.client.fetcher import Fetched, Fetcher
from muster.client.partitioner import partition_of
from muster.client.partitions import TopicPartition
from muster.client.producer import Outgoing, Producer, Sent
from muster.coordinator.testing import Broker
from muster.protocol.api import ApiKey
from muster.protocol.compression import Codec
from muster.protocol.errors import ErrorCode, KafkaError
from tests.client.listeners import losing_answers
from tests.support.ports import free_ports

LONG_S = 60.0


async def everything(cluster: Cluster, topic: str) -> list[Fetched]:
    """All records of a topic, by partition and offset."""
    until = deadline(LONG_S)
    (facts,) = await admin.topics(cluster, until, [topic])
    wanted = [TopicPartition(topic, each.partition) for each in facts.partitions]
    ends = await admin.list_offsets(cluster, dict.fromkeys(wanted, admin.LATEST), until)
    fetcher = Fetcher(cluster, patience_s=LONG_S)
    fetcher.assign(await admin.list_offsets(cluster, dict.fromkeys(wanted, admin.EARLIEST), until))
    records: list[Fetched] = []
    try:
        while fetcher.positions != ends:
            assert deadline(0) < until
            records += await fetcher.poll()
    finally:
        await fetcher.close()
    return sorted(records, key=lambda each: (each.partition, each.offset))


@pytest.mark.parametrize("codec", Codec)
async def test_records_arrive_as_they_were_sent(broker: Broker, cluster: Cluster, codec: Codec) -> None:
    broker.create_topic("t")
    records = [
        Outgoing(b"k", b"v" * 1000, (("h", b"1"), ("h", None)), 0, 1_700_000_000_000),
        Outgoing(None, None, (), 0, 1_700_000_000_005),
        Outgoing(b"", b"", (), 0, 1_600_000_000_000),
    ]
    sent = await Producer(cluster, codec=codec).send("t", records, deadline(LONG_S))
    assert sent == [Sent(0, index, each.timestamp or 0) for index, each in enumerate(records)]
    assert await everything(cluster, "t") == [
        Fetched("t", 0, index, each.timestamp or 0, each.key, each.value, each.headers)
        for index, each in enumerate(records)
    ]


async def test_keys_decide_and_records_without_one_stay_together(broker: Broker, cluster: Cluster) -> None:
    broker.create_topic("t", 5)
    sending = Producer(cluster)
    keys = [b"%d" % index for index in range(50)]
    sent = await sending.send("t", [Outgoing(key, b"v") for key in keys], deadline(LONG_S))
    assert [each.partition for each in sent] == [partition_of(key, 5) for key in keys]
    assert len({each.partition for each in sent}) > 1
    used = set()
    for _ in range(5):
        sent = await sending.send("t", [Outgoing(None, b"v")] * 10, deadline(LONG_S))
        used |= (parts := {each.partition for each in sent})
        assert len(parts) == 1
    assert used == set(range(5))


async def test_order_is_kept_over_batches_and_calls(
    broker: Broker, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producer, "BATCH_BYTES", 500)
    broker.create_topic("t", 3)
    sending = Producer(cluster)
    for first in range(0, 300, 100):
        values = [b"%d" % index for index in range(first, first + 100)]
        await sending.send("t", [Outgoing(value[-1:], value) for value in values], deadline(LONG_S))
    records = await everything(cluster, "t")
    assert len(records) == 300
    for key in {each.key for each in records}:
        values = [int(each.value or b"") for each in records if each.key == key]
        assert values == sorted(values)


async def test_what_is_sent_again_is_written_once() -> None:
    port = free_ports(1)
    with Broker(advertised=f"127.0.0.1:{port}") as broker:
        broker.create_topic("t")
        async with (
            losing_answers(broker.port, ApiKey.PRODUCE, 3, port) as address,
            Cluster([address]) as cluster,
        ):
            records = [Outgoing(None, b"%d" % index) for index in range(10)]
            sent = await Producer(cluster).send("t", records, deadline(LONG_S))
            assert [each.offset for each in sent] == list(range(10))
            written = await everything(cluster, "t")
            assert [each.value for each in written] == [each.value for each in records]


async def test_a_batch_that_is_too_large_is_halved_until_it_fits(broker: Broker, cluster: Cluster) -> None:
    broker.create_topic("t", 1, {"max.message.bytes": "3000"})
    sending = Producer(cluster)
    for _ in range(2):
        records = [Outgoing(None, b"%03d" % index + b"x" * 400) for index in range(50)]
        sent = await sending.send("t", records, deadline(LONG_S))
        assert [each.offset - sent[0].offset for each in sent] == list(range(50))
    with pytest.raises(KafkaError) as refused:
        await sending.send("t", [Outgoing(None, b"x" * 4000)], deadline(LONG_S))
    assert refused.value.code is ErrorCode.MESSAGE_TOO_LARGE


async def test_it_goes_on_after_a_failure(broker: Broker, cluster: Cluster) -> None:
    """What was refused, or not sent for that, leaves no gap in the sequences of the next records."""
    broker.create_topic("t", 1, {"max.message.bytes": "3000"})
    sending = Producer(cluster)
    await sending.send("t", [Outgoing(None, b"0")], deadline(LONG_S))
    with pytest.raises(KafkaError) as refused:
        await sending.send("t", [Outgoing(None, b"x" * 4000), Outgoing(None, b"1")], deadline(LONG_S))
    assert refused.value.code is ErrorCode.MESSAGE_TOO_LARGE
    await sending.send("t", [Outgoing(None, b"2")], deadline(LONG_S))
    assert [each.value for each in await everything(cluster, "t")] == [b"0", b"2"]


async def test_a_record_that_is_refused_is_named(broker: Broker, cluster: Cluster) -> None:
    broker.create_topic("t", 1, {"cleanup.policy": "compact"})
    with pytest.raises(KafkaError, match="record 1") as refused:
        await Producer(cluster).send("t", [Outgoing(b"k", b"v"), Outgoing(None, b"v")], deadline(LONG_S))
    assert refused.value.code is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize(("acks", "offset"), [(0, -1), (1, 0)])
async def test_fewer_acknowledgements(broker: Broker, cluster: Cluster, acks: int, offset: int) -> None:
    broker.create_topic("t")
    (sent,) = await Producer(cluster, acks=acks).send("t", [Outgoing(b"k", b"v")], deadline(LONG_S))
    assert (sent.partition, sent.offset) == (0, offset)
    # Asked on the same connection, so the broker has seen the record.
    assert await admin.list_offsets(cluster, {TopicPartition("t", 0): admin.EARLIEST}, deadline(LONG_S))
    assert [each.value for each in await everything(cluster, "t")] == [b"v"]


async def test_a_topic_or_partition_that_is_not_there_is_named(broker: Broker, cluster: Cluster) -> None:
    broker.create_topic("t", 2)
    with pytest.raises(KafkaError, match="topic nope"):
        await Producer(cluster).send("nope", [Outgoing(b"k", b"v")], deadline(LONG_S))
    with pytest.raises(KafkaError, match="topic t has no partition 2; it has 2"):
        await Producer(cluster).send("t", [Outgoing(b"k", b"v", (), 2)], deadline(LONG_S))

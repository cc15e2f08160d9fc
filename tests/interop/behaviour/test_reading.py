"""Records and positions in logs: what a consumer returns, and from where."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest

from muster.client import NoOffset, OffsetOutOfRange, TopicPartition
from tests.interop.behaviour.place import DEADLINE_S, Place, take, values_of

pytestmark = pytest.mark.interop

BEGIN_MS = time.time_ns() // 1_000_000 - 3_600_000
"""Within the retention: both brokers check for older records while the tests run."""


async def test_records_of_a_partition_come_in_order_and_all_of_them(place: Place) -> None:
    topic = await place.topic(partitions=3)
    for partition in range(3):
        await place.send(topic, *(b"%d" % number for number in range(500)), partition=partition)
    async with place.consumer(group_id=place.group, topics=topic) as consumer:
        records = await take(consumer, 1_500)
    for partition in range(3):
        mine = [record for record in records if record.partition == partition]
        assert [record.value for record in mine] == [b"%d" % number for number in range(500)]
        assert [record.offset for record in mine] == list(range(500))


async def test_a_record_comes_as_it_was_sent(place: Place) -> None:
    topic = await place.topic()
    headers = [("trace", b"1"), ("trace", b"2"), ("empty", None)]
    await place.producer.send(topic, b"value", key=b"key", timestamp_ms=BEGIN_MS, headers=headers)
    await place.producer.send(topic, None, key=b"tombstone")
    await place.producer.send(topic, b"")
    async with place.consumer() as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        first, second, third = await take(consumer, 3)
    assert (first.topic, first.partition, first.offset) == (topic, 0, 0)
    assert (first.key, first.value, first.timestamp) == (b"key", b"value", BEGIN_MS)
    assert list(first.headers) == headers
    assert (second.key, second.value, list(second.headers)) == (b"tombstone", None, [])
    assert (third.key, third.value) == (None, b"")


async def test_one_many_and_batches(place: Place) -> None:
    topic = await place.topic(partitions=2)
    await place.spread(topic, 2, 50)
    async with place.consumer(topics=topic, group_id=place.group) as consumer:
        first = await consumer.get(timeout=DEADLINE_S)
        assert first is not None
        seen = [first]
        while len(seen) < 40:
            many = await consumer.get_many(7, timeout=DEADLINE_S)
            assert 1 <= len(many) <= 7
            seen += many
        async for batch in consumer.batches():
            assert {record.partition for record in batch.records} == {batch.partition}
            assert list(batch.values) == [record.value for record in batch.records]
            assert list(batch.offsets) == [record.offset for record in batch.records]
            seen += batch.records
            if len(seen) == 100:
                break
        assert len({(record.partition, record.offset) for record in seen}) == 100
        assert await consumer.get(timeout=0.05) is None
        assert await consumer.get_many(timeout=0.05) == []


async def test_deserializers(place: Place) -> None:
    topic = await place.topic()
    await place.producer.send(topic, b"41", key=b"number")
    async with place.consumer(key_deserializer=bytes.decode, value_deserializer=int) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        (record,) = await take(consumer, 1)
    assert (record.key, record.value + 1) == ("number", 42)


async def test_assigned_partitions_and_no_others(place: Place) -> None:
    topic = await place.topic(partitions=3)
    await place.spread(topic, 3, 10)
    async with place.consumer() as consumer:
        consumer.assign([TopicPartition(topic, 0), TopicPartition(topic, 2)])
        assert consumer.assignment == {TopicPartition(topic, 0), TopicPartition(topic, 2)}
        assert {record.partition for record in await take(consumer, 20)} == {0, 2}
        assert await consumer.get(timeout=0.2) is None
        consumer.assign([TopicPartition(topic, 1)])
        assert {record.partition for record in await take(consumer, 10)} == {1}


async def test_seek_and_position(place: Place) -> None:
    topic = await place.topic()
    where = TopicPartition(topic, 0)
    await place.send(topic, *(b"%d" % number for number in range(10)))
    async with place.consumer() as consumer:
        consumer.assign([where])
        assert await consumer.position(where) == 0
        assert await values_of(consumer, 3) == [b"0", b"1", b"2"]
        assert await consumer.position(where) == 3
        consumer.seek(where, 7)
        assert await consumer.position(where) == 7
        assert await values_of(consumer, 3) == [b"7", b"8", b"9"]
        consumer.seek_to_beginning(where)
        assert await values_of(consumer, 2) == [b"0", b"1"]
        consumer.seek_to_end(where)
        assert await consumer.position(where) == 10
        await place.send(topic, b"new")
        assert await values_of(consumer, 1) == [b"new"]


async def test_beginnings_ends_and_lag(place: Place) -> None:
    topic = await place.topic(partitions=2)
    one, two = TopicPartition(topic, 0), TopicPartition(topic, 1)
    await place.send(topic, *[b"x"] * 10, partition=0)
    (await place.admin.delete_records({one: 4})).raise_for_failures()
    async with place.consumer() as consumer:
        assert await consumer.beginning_offsets([one, two]) == {one: 4, two: 0}
        assert await consumer.end_offsets([one, two]) == {one: 10, two: 0}
        consumer.assign([one, two])
        assert [record.offset for record in await take(consumer, 2)] == [4, 5]
        assert consumer.lag(one) == {one: 4}
        await take(consumer, 4)
        assert consumer.lag(one) == {one: 0}


async def test_offsets_for_times(place: Place) -> None:
    topic = await place.topic(partitions=2)
    one, two = TopicPartition(topic, 0), TopicPartition(topic, 1)
    for second in range(5):
        await place.send(topic, b"v", timestamp_ms=BEGIN_MS + second * 1_000)
    async with place.consumer() as consumer:
        found = await consumer.offsets_for_times({one: BEGIN_MS + 2_500, two: BEGIN_MS + 2_500})
        assert found[one].offset == 3
        assert found[one].timestamp == BEGIN_MS + 3_000
        assert found[two] is None
        assert await consumer.offsets_for_times({one: BEGIN_MS + 9_000}) == {one: None}


async def test_a_paused_partition_waits_where_it_is(place: Place) -> None:
    topic = await place.topic(partitions=2)
    one, two = TopicPartition(topic, 0), TopicPartition(topic, 1)
    await place.spread(topic, 2, 10)
    async with place.consumer() as consumer:
        consumer.assign([one, two])
        consumer.pause(one)
        assert consumer.paused == {one}
        assert {record.partition for record in await take(consumer, 10)} == {1}
        assert await consumer.get(timeout=0.2) is None
        assert await consumer.position(one) == 0
        consumer.resume(one)
        assert [record.offset for record in await take(consumer, 10)] == list(range(10))


async def test_where_to_begin_without_a_commit(place: Place) -> None:
    topic = await place.topic()
    where = TopicPartition(topic, 0)
    now_ms = int(time.time() * 1_000)
    await place.send(topic, b"old", timestamp_ms=now_ms - 7_200_000)
    await place.send(topic, b"recent", timestamp_ms=now_ms - 60_000)
    for reset, first in (
        ("earliest", b"old"),
        (timedelta(hours=1), b"recent"),
        ("by_duration:PT1H", b"recent"),
    ):
        async with place.consumer(auto_offset_reset=reset) as consumer:
            consumer.assign([where])
            assert await values_of(consumer, 1) == [first]
    async with place.consumer(auto_offset_reset="latest") as consumer:
        consumer.assign([where])
        assert await consumer.position(where) == 2
        await place.send(topic, b"new")
        assert await values_of(consumer, 1) == [b"new"]
    async with place.consumer(auto_offset_reset="none") as consumer:
        consumer.assign([where])
        with pytest.raises(NoOffset) as raised:
            await consumer.get(timeout=DEADLINE_S)
        assert raised.value.partitions == {where}
        consumer.seek(where, 1)  # and it goes on
        assert await values_of(consumer, 2) == [b"recent", b"new"]


async def test_where_to_go_on_when_the_log_does_not_have_the_place(place: Place) -> None:
    topic = await place.topic()
    where = TopicPartition(topic, 0)
    await place.send(topic, *(b"%d" % number for number in range(10)))
    (await place.admin.delete_records({where: 4})).raise_for_failures()
    for position in (2, 99):
        async with place.consumer() as consumer:
            consumer.assign([where])
            consumer.seek(where, position)
            assert await values_of(consumer, 6) == [b"4", b"5", b"6", b"7", b"8", b"9"]
        async with place.consumer(auto_offset_reset="none") as consumer:
            consumer.assign([where])
            consumer.seek(where, position)
            with pytest.raises(OffsetOutOfRange) as raised:
                await consumer.get(timeout=DEADLINE_S)
            assert raised.value.positions == {where: position}


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
async def test_every_codec(place: Place, codec: str) -> None:
    from muster.client import Producer

    topic = await place.topic()
    values = [b"%d " % number * 50 for number in range(300)]
    async with Producer(place.bootstrap, compression_type=codec) as producer:
        for future in [await producer.post(topic, value) for value in values]:
            await future
    async with place.consumer() as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        assert await values_of(consumer, 300) == values


async def test_a_record_larger_than_a_fetch_comes_all_the_same(place: Place) -> None:
    topic = await place.topic()
    large = b"x" * 300_000
    await place.send(topic, b"before", large, b"after")
    async with place.consumer(max_partition_fetch_bytes=1_000, fetch_max_bytes=1_000) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        assert await values_of(consumer, 3) == [b"before", large, b"after"]

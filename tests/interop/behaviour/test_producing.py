"""Where records go, and that each is written once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from confluent_kafka import Producer as ConfluentProducer

from muster.client import KafkaError, Producer, TopicPartition
from tests.interop.behaviour.place import DEADLINE_S, Place, take, values_of

pytestmark = pytest.mark.interop


async def test_send_tells_where_a_record_went(place: Place) -> None:
    topic = await place.topic(partitions=3)
    for offset in range(3):
        sent = await place.producer.send(topic, b"v", key=b"k", partition=1)
        assert (sent.topic, sent.partition, sent.offset) == (topic, 1, offset)
    times = await topic_with_times_of_the_log(place)
    sent = await place.producer.send(times, b"v", timestamp_ms=1_700_000_000_000)
    assert sent.timestamp > 1_700_000_000_000  # the broker's clock


async def topic_with_times_of_the_log(place: Place) -> str:
    return await place.topic(message_timestamp_type="LogAppendTime")


async def test_records_of_a_key_keep_their_order(place: Place) -> None:
    topic = await place.topic(partitions=2)
    sent = await asyncio.gather(
        *(place.producer.send(topic, b"%d" % number, key=b"%d" % (number % 10)) for number in range(2_000))
    )
    assert {each.partition for each in sent} == {0, 1}
    async with place.consumer(group_id=place.group, topics=topic) as consumer:
        records = await take(consumer, 2_000)
    for key in range(10):
        mine = [int(record.value) for record in records if record.key == b"%d" % key]
        assert mine == list(range(key, 2_000, 10))
        assert len({record.partition for record in records if record.key == b"%d" % key}) == 1


async def test_keys_go_where_other_clients_put_them(place: Place) -> None:
    """murmur2, as in Java's producer."""
    topic = await place.topic(partitions=7)
    keys = [b"", *(b"key-%d" % number for number in range(200)), bytes(range(256)), "Schlüssel".encode()]
    theirs: dict[bytes, int] = {}

    def on_delivery(error: Any, message: Any) -> None:
        assert error is None, error
        theirs[message.key() or b""] = message.partition()

    producer = ConfluentProducer(
        {"bootstrap.servers": place.bootstrap, "partitioner": "murmur2", "log_level": 0}
    )
    for key in keys:
        producer.produce(topic, b"v", key, on_delivery=on_delivery)
    assert await asyncio.to_thread(producer.flush, DEADLINE_S) == 0
    ours = {key: (await place.producer.send(topic, b"v", key=key)).partition for key in keys}
    assert ours == theirs


async def test_records_without_keys_reach_every_partition(place: Place) -> None:
    topic = await place.topic(partitions=3)
    sent = await asyncio.gather(*(place.producer.send(topic, b"x" * 1_000) for _ in range(1_000)))
    assert {each.partition for each in sent} == {0, 1, 2}


@pytest.mark.parametrize("acks", [0, 1, "all"])
async def test_acknowledgements(place: Place, acks: Any) -> None:
    topic = await place.topic()
    # A leader that does not know a new topic yet loses records sent with acks=0; this one is retried.
    await place.send(topic, b"0")
    async with Producer(place.bootstrap, acks=acks, enable_idempotence=acks == "all") as producer:
        sent = [await producer.send(topic, b"%d" % number) for number in range(1, 4)]
        await producer.flush(DEADLINE_S)
    assert [each.offset for each in sent] == ([-1, -1, -1] if acks == 0 else [1, 2, 3])
    async with place.consumer() as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        assert await values_of(consumer, 4) == [b"0", b"1", b"2", b"3"]


async def test_closing_sends_what_is_there(place: Place) -> None:
    topic = await place.topic()
    async with Producer(place.bootstrap, linger_ms=60_000) as producer:
        sent = [await producer.post(topic, b"%d" % number) for number in range(10)]
        assert not any(each.done() for each in sent)
    assert [(await each).offset for each in sent] == list(range(10))


async def test_flushing_does_not_wait_for_linger(place: Place) -> None:
    topic = await place.topic()
    async with Producer(place.bootstrap, linger_ms=60_000) as producer:
        sent = await producer.post(topic, b"v")
        await producer.flush(DEADLINE_S)
        assert sent.done()
        assert (await sent).offset == 0


async def test_a_producer_leaves_its_id_with_its_batches(place: Place) -> None:
    topic = await place.topic()
    where = TopicPartition(topic, 0)
    for _ in range(5):
        await place.producer.send(topic, b"v")
    (state,) = (await place.admin.describe_producers([where])).raise_for_failures()[where]
    assert state.last_sequence == 4


async def test_a_record_that_is_too_large_fails_alone(place: Place) -> None:
    topic = await place.topic(max_message_bytes="2000")
    good = await place.producer.post(topic, b"good")
    with pytest.raises(KafkaError, match="MESSAGE_TOO_LARGE"):
        await place.producer.send(topic, b"x" * 10_000)
    assert (await good).offset == 0
    assert (await place.producer.send(topic, b"good")).offset == 1


async def test_a_topic_that_is_created_by_producing_to_it(place: Place) -> None:
    topic = f"{place.name}-made"
    assert (await place.producer.send(topic, b"v")).offset == 0

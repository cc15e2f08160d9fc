"""The producer against a broker: what is sent arrives, in order and once; failures are reported; nothing
hangs, and nothing is left behind."""

from __future__ import annotations

import asyncio
import json
import time
from array import array
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from muster.client.admin.client import Admin
from muster.client.errors import ClientError, DeliveryTimedOut
from muster.client.produce import leaders
from muster.client.produce.partitioner import partition_of
from muster.client.producer import Producer, RecordMetadata
from muster.coordinator.testing import Broker, Cluster
from muster.protocol.api import ApiKey
from muster.protocol.compression import Codec
from muster.protocol.errors import ErrorCode, KafkaError
from tests.client.listeners import losing_answers
from tests.client.logs import LONG_S, Logged, everything, values
from tests.client.posting import give, numbered, post_all
from tests.support.each import each
from tests.support.facts import until
from tests.support.leases import TERM_MS
from tests.support.ports import free_ports
from tests.support.proxy import Proxy

# --- records ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", [each.name.lower() for each in Codec])
async def test_records_arrive_as_they_were_sent(broker: Broker, codec: Any) -> None:
    broker.create_topic("t")
    async with Producer(broker.bootstrap, compression_type=codec) as producer:
        first = await producer.post(
            "t",
            b"v" * 1000,
            key=b"k",
            partition=0,
            timestamp_ms=1_700_000_000_000,
            headers=[("h", b"1"), ("h", None)],
        )
        second = await producer.post("t", timestamp_ms=1_700_000_000_005)
        third = await producer.post("t", b"", key=b"", timestamp_ms=1_600_000_000_000)
        told = await asyncio.gather(first, second, third)
    assert told == [
        RecordMetadata("t", 0, 0, 1_700_000_000_000),
        RecordMetadata("t", 0, 1, 1_700_000_000_005),
        RecordMetadata("t", 0, 2, 1_600_000_000_000),
    ]
    assert await everything(broker.bootstrap, "t") == [
        Logged(0, 0, 1_700_000_000_000, b"k", b"v" * 1000, (("h", b"1"), ("h", None))),
        Logged(0, 1, 1_700_000_000_005, None, None),
        Logged(0, 2, 1_600_000_000_000, b"", b""),
    ]


async def test_a_record_without_a_timestamp_has_that_of_its_sending(broker: Broker) -> None:
    broker.create_topic("t")
    before = int(time.time() * 1000)
    async with Producer(broker.bootstrap) as producer:
        sent = await producer.send("t", b"v")
    assert before <= sent.timestamp <= int(time.time() * 1000)
    (logged,) = await everything(broker.bootstrap, "t")
    assert logged.timestamp == sent.timestamp


async def test_the_timestamp_told_is_the_one_that_consumers_see(broker: Broker) -> None:
    broker.create_topic("t", 1, {"message.timestamp.type": "LogAppendTime"})
    async with Producer(broker.bootstrap) as producer:
        sent = await producer.send("t", b"v", timestamp_ms=5)
    (logged,) = await everything(broker.bootstrap, "t")
    assert logged.timestamp == sent.timestamp > 1_700_000_000_000


async def test_keys_decide_as_with_java_and_keyless_records_take_turns(broker: Broker) -> None:
    broker.create_topic("t", 4)
    async with Producer(broker.bootstrap, batch_size=1_000) as producer:
        keys = [b"key-%d" % number for number in range(100)]
        keyed = await asyncio.gather(*[await producer.post("t", b"v", key=key) for key in keys])
        assert [each.partition for each in keyed] == [partition_of(key, 4) for key in keys]
        keyless = await asyncio.gather(*await post_all(producer, "t", numbered(200, 100)))
        shares = [sum(each.partition == number for each in keyless) for number in range(4)]
        assert min(shares) > 30, shares
        there = await producer.send("t", b"v", key=b"key-0", partition=3)
        assert there.partition == 3


@pytest.mark.parametrize("settings", [{}, {"batch_size": 500}, {"buffer_memory": 500}])
async def test_tasks_side_by_side_keep_their_order(broker: Broker, settings: dict[str, Any]) -> None:
    """From the first record of a topic that is not known yet, with a pause at each batch, and with a full
    buffer."""
    broker.create_topic("t")
    async with Producer(broker.bootstrap, **settings) as producer:
        sent = await asyncio.gather(*(producer.send("t", value) for value in numbered(1_000, 20)))
    assert [each.offset for each in sent] == list(range(1_000))


async def test_a_partitioner_of_ones_own(broker: Broker) -> None:
    broker.create_topic("t", 3)
    seen = []

    def by_value(topic: str, key: bytes | None, value: bytes | None, count: int) -> int:
        seen.append((topic, key, value, count))
        return int(value or b"0")

    async with Producer(broker.bootstrap, partitioner=by_value) as producer:
        assert (await producer.send("t", b"2", key=b"k")).partition == 2
        assert (await producer.send("t", b"2", partition=1)).partition == 1
        with pytest.raises(ValueError, match="chose partition 3 for topic t, which has 3"):
            await producer.send("t", b"3")
    assert seen == [("t", b"k", b"2", 3), ("t", None, b"3", 3)]


async def test_serializers_make_the_bytes(broker: Broker) -> None:
    broker.create_topic("t", 3)
    producer: Producer[str, dict[str, int]] = Producer(
        broker.bootstrap,
        key_serializer=str.encode,
        value_serializer=lambda value: json.dumps(value).encode(),
    )
    async with producer:
        assert (await producer.send("t", {"a": 1}, key="key")).partition == partition_of(b"key", 3)
        await producer.send("t", None, key="key")
    logged = await everything(broker.bootstrap, "t")
    assert [(each.key, each.value) for each in logged] == [(b"key", b'{"a": 1}'), (b"key", None)]


NUMBERS = count()


@each(
    "given, says",
    [
        ({"value": "text"}, "value takes bytes or None, not str; value_serializer makes bytes"),
        ({"value": b"", "key": 5}, "key takes bytes or None, not int; key_serializer makes bytes"),
        ({"value": b"", "headers": [("h", "text")]}, r"headers take \(text, bytes or None\) pairs"),
        ({"value": b"", "headers": [(b"h", b"v")]}, r"headers take \(text, bytes or None\) pairs"),
        ({"value": b"", "headers": [("\udc80", b"v")]}, r"headers take \(text, bytes or None\) pairs"),
        ({"value": array("I", [1])}, "value takes bytes or None, not array"),
        ({"value": bytearray(), "headers": [("h", 5)]}, r"headers take \(text, bytes or None\) pairs"),
        ({"value": b"", "headers": {"a": b"v"}}, r"headers take \(text, bytes or None\) pairs"),
        ({"value": b"", "headers": {"ab": b"v"}}, r"headers take \(text, bytes or None\) pairs"),
        ({"value": b"", "headers": [("h", b"v", 1)]}, r"headers take \(text, bytes or None\) pairs"),
        ({"value": b"", "headers": 5}, r"headers take \(text, bytes or None\) pairs"),
        ({"value": b"", "timestamp_ms": "1"}, "timestamp_ms takes a whole number, not str"),
        ({"value": b"", "timestamp_ms": 1.5}, "timestamp_ms takes a whole number"),
        ({"value": b"", "partition": "0"}, "partition takes a whole number, not str"),
        ({"value": b"", "timestamp_ms": -1}, "timestamp_ms=-1: it takes epoch ms"),
        ({"value": b"", "timestamp_ms": 1 << 63}, "it takes epoch ms"),
        ({"value": b"", "partition": -1}, "partition=-1: partitions are numbered from 0"),
    ],
)
async def test_what_is_no_record_is_refused_at_once(broker: Broker, given: dict[str, Any], says: str) -> None:
    topic = f"t{next(NUMBERS)}"
    broker.create_topic(topic)
    async with Producer(broker.bootstrap) as producer:
        await producer.send(topic, b"first")
        with pytest.raises((TypeError, ValueError), match=says):
            await producer.send(topic, **given)
        await producer.send(topic, b"good")
    assert await values(broker.bootstrap, topic) == [b"first", b"good"]


@pytest.mark.parametrize("kind", [bytearray, memoryview])
async def test_a_key_may_be_any_kind_of_bytes(broker: Broker, kind: Any) -> None:
    broker.create_topic("t", 8)
    async with Producer(broker.bootstrap) as producer:
        for number in range(8):
            key = b"key %d" % number
            told = [await producer.send("t", b"v", key=given) for given in (kind(key), key)]
            assert told[0].partition == told[1].partition == partition_of(key, 8)
    assert {each.key for each in await everything(broker.bootstrap, "t")} == {b"key %d" % n for n in range(8)}


@pytest.mark.parametrize("keyed", [True, False])
async def test_a_topic_that_comes_back_with_fewer_partitions_takes_records_at_once(
    broker: Broker, keyed: bool
) -> None:
    """A record for a partition that is gone waits and fails alone."""
    broker.create_topic("t", 4)
    async with (
        Admin(broker.bootstrap) as admin,
        Producer(
            broker.bootstrap, linger_ms=0, retry_backoff_ms=10, allow_auto_create_topics=False
        ) as producer,
    ):
        for partition in range(4):
            await producer.send("t", b"old", partition=partition)
        await admin.delete_topic("t")
        await admin.create_topic("t", 1)
        lost = [await producer.post("t", b"lost", partition=number) for number in (1, 2, 3)]
        await until(lambda: producer._topics["t"].count == 1, "the number of partitions")
        assert await producer.partitions_for("t") == 1
        async with asyncio.timeout(LONG_S):
            told = [
                await producer.send("t", b"new", key=b"%d" % number if keyed else None)
                for number in range(20)
            ]
        assert {each.partition for each in told} == {0}
        assert not any(each.done() for each in lost)
        give(producer, 0.01)
        failed = await asyncio.gather(*lost, return_exceptions=True)
        assert [type(each) for each in failed] == [DeliveryTimedOut] * 3
    assert await values(broker.bootstrap, "t") == [b"new"] * 20


@each(
    "given, says",
    [
        ({"client_id": "a" * 32_768}, "client_id='a+': it takes Unicode text of at most 32767 bytes"),
        ({"client_id": "\udc80"}, r"client_id='\\udc80': it takes Unicode text"),
        ({"transactional_id": "é" * 16_384}, "transactional_id='é+': it takes Unicode text of at most 32767"),
        ({"transactional_id": "\ud800"}, r"transactional_id='\\ud800': it takes Unicode text"),
        ({"acks": 2}, "acks=2: it takes 'all', 1 or 0"),
        ({"acks": True}, "acks=True"),
        ({"acks": 1, "enable_idempotence": True}, "requires acks='all'"),
        ({"max_in_flight": 6}, "max_in_flight=6: it takes a whole number from 1 to 5"),
        ({"linger_ms": -1}, "linger_ms=-1"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"delivery_timeout_ms": True}, "delivery_timeout_ms=True"),
        (
            {"compression_type": "lzma"},
            "compression_type='lzma': it takes one of none, gzip, snappy, lz4, zstd",
        ),
        ({"acks": 1, "max_in_flight": 17}, "from 1 to 16"),
        ({"linger_ms": 500, "delivery_timeout_ms": 500}, "must be less than delivery_timeout_ms"),
        ({"partitioner": 3}, "partitioner=3: it takes a function"),
        ({"value_serializer": 3}, "value_serializer=3: it takes a function"),
        ({"bootstrap_servers": "nowhere"}, "'nowhere' is no address"),
    ],
)
def test_a_setting_that_makes_no_sense_is_named(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Producer(**given)


@pytest.mark.parametrize("acks", [0, 1])
async def test_fewer_acknowledgements(broker: Broker, acks: Any) -> None:
    broker.create_topic("t")
    async with Producer(broker.bootstrap, acks=acks) as producer:
        told = await asyncio.gather(*await post_all(producer, "t", numbered(500)))
    assert [each.offset for each in told] == (list(range(500)) if acks else [-1] * 500)
    if not acks:  # no answer says when they are written
        await _written(broker, 500)
    assert await values(broker.bootstrap, "t") == numbered(500)


async def _written(broker: Broker, count: int) -> None:
    async with asyncio.timeout(LONG_S):
        while len(await values(broker.bootstrap, "t")) < count:  # noqa: ASYNC110 - a fact in another process
            await asyncio.sleep(0)


# --- topics -------------------------------------------------------------------------------------------------


async def test_a_topic_that_is_missing_is_created_where_brokers_do_that(broker: Broker) -> None:
    async with Producer(broker.bootstrap) as producer:
        assert (await producer.send("new", b"v")).offset == 0
        assert await producer.partitions_for("new") == 1


async def test_a_topic_that_is_deleted_stays_away_until_it_is_written_to_again(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leaders, "_IDLE_S", 0.0)
    async with (
        Admin(broker.bootstrap) as admin,
        Producer(broker.bootstrap, metadata_max_age_ms=5) as producer,
    ):
        await producer.send("t", b"old")
        await until(lambda: "t" not in producer._topics, "the topic to be idle")
        await admin.delete_topic("t")
        found = producer._sender.leaders
        for _ in range(3):
            await producer.partitions_for("other")
            renewal = found._renew_at
            await until(lambda due=renewal: found._renew_at > due, "the next renewal")  # type: ignore[misc]
        assert [topic.name for topic in await admin.list_topics()] == ["other"]
        assert (await producer.send("t", b"new")).offset == 0


async def test_a_topic_may_appear_while_it_is_waited_for() -> None:
    with Broker(auto_create_topics_enable=False) as broker:
        async with Producer(broker.bootstrap) as producer:
            sending = asyncio.create_task(producer.send("late", b"v"))
            await until(lambda: producer._cluster.image.nodes, "a broker was asked")
            broker.create_topic("late")
            assert (await sending).offset == 0


async def test_a_topic_that_does_not_appear_is_named() -> None:
    with Broker(auto_create_topics_enable=False) as broker:
        broker.create_topic("there")
        async with Producer(broker.bootstrap) as producer:
            await producer.send("there", b"v")
            producer._settings = replace(producer._settings, max_block_ms=3_000)
            with pytest.raises(KafkaError, match="topic nope does not exist and did not appear") as refused:
                await producer.send("nope", b"v")
            assert refused.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_names_that_no_topic_can_have_are_refused_at_once(broker: Broker) -> None:
    async with Producer(broker.bootstrap) as producer:
        with pytest.raises(KafkaError) as refused:
            await producer.send("no/topic", b"v")
        assert refused.value.code is ErrorCode.INVALID_TOPIC_EXCEPTION


@pytest.mark.parametrize(
    ("name", "error"), [(b"bytes", TypeError), ("\ud800", KafkaError), ("x" * 40_000, KafkaError)]
)
async def test_names_that_no_request_can_carry_spoil_nobody_elses(
    broker: Broker, name: Any, error: type[Exception]
) -> None:
    """Topics requested at the same time share a request."""
    broker.create_topic("known")
    async with Producer(broker.bootstrap) as producer:
        await producer.send("known", b"v")
        producer._topics["known"].queues[0].leader = None
        told = await asyncio.gather(
            *(producer.send(topic, b"v") for topic in ("known", "new", name, "other")), return_exceptions=True
        )
        assert isinstance(told.pop(2), error)
        assert [getattr(each, "offset", each) for each in told] == [1, 0, 0]


async def test_a_partition_that_is_not_there_is_named_and_a_new_one_is_found(
    broker: Broker, cluster: Any
) -> None:
    broker.create_topic("t", 2)
    async with Producer(broker.bootstrap, max_block_ms=1_000) as producer:
        with pytest.raises(KafkaError, match="topic t has no partition 2; it has 2"):
            await producer.send("t", b"v", partition=2)
        await _grow(cluster, "t", 3)
        assert (await producer.send("t", b"v", partition=2)).partition == 2


async def test_a_partition_that_is_being_added_is_waited_for(broker: Broker, cluster: Any) -> None:
    """As when the broker asked does not know of it yet."""
    broker.create_topic("t", 2)
    async with Producer(broker.bootstrap) as producer:
        await producer.send("t", b"v")
        known = producer._cluster.image
        sending = asyncio.create_task(producer.send("t", b"v", partition=2))
        await until(lambda: producer._cluster.image is not known, "the producer asks again")
        await _grow(cluster, "t", 3)
        assert (await sending).partition == 2


async def _grow(cluster: Any, topic: str, count: int) -> None:
    from muster.client.network.connection import deadline
    from muster.protocol.messages.topics import CreatePartitionsRequest

    request = CreatePartitionsRequest(
        topics=[CreatePartitionsRequest.CreatePartitionsTopic(name=topic, count=count, assignments=None)],
        timeout_ms=30_000,
        validate_only=False,
    )
    (result,) = (await cluster.call_controller(request, deadline(LONG_S))).results
    assert not result.error_code, result.error_message


async def test_a_cluster_that_starts_later_is_waited_for() -> None:
    port = free_ports(1)
    async with Producer(f"127.0.0.1:{port}") as producer:
        sending = asyncio.create_task(producer.send("t", b"v"))
        await until(lambda: producer._cluster._refreshing is not None, "the producer tries")
        with Broker(port=port):
            assert (await sending).offset == 0


async def test_a_cluster_that_does_not_answer_is_named() -> None:
    port = free_ports(1)
    async with Producer(f"127.0.0.1:{port}", max_block_ms=3_000) as producer:
        with pytest.raises(ClientError, match=f"127.0.0.1:{port}"):
            await producer.send("t", b"v")


# --- what brokers refuse ------------------------------------------------------------------------------------


async def test_batches_that_are_too_large_are_halved_until_they_fit(broker: Broker) -> None:
    broker.create_topic("t", 1, {"max.message.bytes": "3000"})
    async with Producer(broker.bootstrap) as producer:
        for _ in range(2):
            futures = await post_all(producer, "t", numbered(50, 400))
            await producer.flush()
            told = [future.result() for future in futures]
            assert [each.offset - told[0].offset for each in told] == list(range(50))
    assert await values(broker.bootstrap, "t") == numbered(50, 400) * 2


async def test_a_record_that_is_too_large_fails_alone_and_the_others_keep_their_order(broker: Broker) -> None:
    broker.create_topic("t", 1, {"max.message.bytes": "3000"})
    async with Producer(broker.bootstrap, batch_size=1_000) as producer:
        await producer.send("t", b"first")
        records = numbered(40, 300)
        records[10] = records[25] = b"x" * 4000
        told = await asyncio.gather(*await post_all(producer, "t", records), return_exceptions=True)
        for number, each in enumerate(told):
            if number in (10, 25):
                assert isinstance(each, KafkaError)
                assert each.code is ErrorCode.MESSAGE_TOO_LARGE
            else:
                assert isinstance(each, RecordMetadata)
        await producer.send("t", b"last")
        with pytest.raises(KafkaError, match="max_request_size is 1048576") as refused:
            await producer.post("t", bytes(1_048_576))
        assert refused.value.code is ErrorCode.MESSAGE_TOO_LARGE
    expected = [each for each in numbered(40, 300) if each[:6] not in (b"000010", b"000025")]
    assert await values(broker.bootstrap, "t") == [b"first", *expected, b"last"]


async def test_records_that_are_refused_are_told_from_those_beside_them(broker: Broker) -> None:
    broker.create_topic("t", 1, {"cleanup.policy": "compact"})
    async with Producer(broker.bootstrap) as producer:
        futures = [await producer.post("t", b"v", key=key) for key in (b"k", None, b"k")]
        one, keyless, other = await asyncio.gather(*futures, return_exceptions=True)
        for each in (one, keyless, other):
            assert isinstance(each, KafkaError)
            assert each.code is ErrorCode.INVALID_RECORD
        assert "for another record of its batch" in str(one)
        assert "for another record of its batch" in str(other)
        assert "for another record of its batch" not in str(keyless)
        assert (await producer.send("t", b"v", key=b"k")).offset == 0


async def test_nobody_looks_at_a_failed_batch_and_asyncio_says_so_once(broker: Broker) -> None:
    broker.create_topic("t", 1, {"cleanup.policy": "compact"})
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    async with Producer(broker.bootstrap) as producer:
        for _ in range(100):
            await producer.post("t", b"v")
        await producer.flush()
    assert ["INVALID_RECORD" in str(each["exception"]) for each in complaints] == [True]


# --- once and in order --------------------------------------------------------------------------------------


@pytest.mark.parametrize("times", [1, 4])
async def test_what_is_sent_again_is_written_once(times: int) -> None:
    """The broker carries out Produce requests whose answers are lost, with others in flight behind them."""
    port = free_ports(1)
    with Broker(advertised=f"127.0.0.1:{port}") as broker:
        broker.create_topic("t", 2)
        async with (
            losing_answers(broker.port, ApiKey.PRODUCE, times, port) as address,
            Producer(str(address), batch_size=500, linger_ms=0) as producer,
        ):
            for partition in (0, 1):
                await producer.post("t", b"first", partition=partition)
            futures = [
                await producer.post("t", value, partition=n % 2) for n, value in enumerate(numbered(400))
            ]
            await producer.flush(LONG_S)
            told = [future.result() for future in futures]
            assert [each.offset for each in told[::2]] == [each.offset for each in told[1::2]]
            assert [each.offset for each in told[::2]] == list(range(1, 201))
            logged = await values(str(address), "t")
    assert logged == [b"first", *numbered(400)[::2], b"first", *numbered(400)[1::2]]


async def test_order_holds_through_cut_connections() -> None:
    with Proxy() as proxy, Broker(advertised=f"127.0.0.1:{proxy.port}") as broker:
        proxy.upstream_port = broker.port
        broker.create_topic("t", 3)
        async with Producer(f"127.0.0.1:{proxy.port}", batch_size=2_000, linger_ms=1) as producer:
            futures: list[Any] = []
            for number in range(12):
                futures += [
                    await producer.post("t", b"%06d" % (number * 300 + at), partition=at % 3)
                    for at in range(300)
                ]
                done = len(futures) - 150
                await until(lambda: sum(each.done() for each in futures) >= done)  # noqa: B023
                proxy.cut()
                proxy.mend()
            await producer.flush(LONG_S)
            told = [future.result() for future in futures]
        logged = await everything(f"127.0.0.1:{proxy.port}", "t")
    for partition in range(3):
        assert [each.value for each in logged if each.partition == partition] == [
            b"%06d" % number for number in range(3600) if number % 300 % 3 == partition
        ]
        offsets = [each.offset for each in told if each.partition == partition]
        assert offsets == list(range(1200))


@pytest.mark.parametrize("acks", ["all", 1])
async def test_partitions_are_followed_to_their_next_leader(acks: Any) -> None:
    """A broker dies, and another is stopped."""
    with Cluster(3, lease_term_ms=TERM_MS) as cluster:
        cluster.create_topic("t", 6)
        async with Producer(cluster.bootstrap, acks=acks, batch_size=500, linger_ms=1) as producer:
            futures: list[Any] = []

            async def more() -> None:
                futures.extend(
                    [
                        await producer.post("t", b"%06d" % (len(futures) + n), partition=n % 6)
                        for n in range(600)
                    ]
                )

            await more()
            await producer.flush(LONG_S)
            await more()
            cluster.kill(0)
            await more()
            cluster.clock.advance(TERM_MS / 1_000)
            await producer.flush(LONG_S)
            cluster.stop(1)
            await more()
            cluster.restart(0)
            await more()
            await producer.flush(LONG_S)
            told = [future.result() for future in futures]
        assert len(told) == 3000
        logged = await everything(cluster.bootstrap, "t")
    for partition in range(6):
        seen = [each.value for each in logged if each.partition == partition]
        expected = [b"%06d" % number for number in range(3000) if number % 6 == partition]
        if acks == "all":
            assert seen == expected
        else:  # what the dead broker wrote but did not acknowledge is there twice
            assert list(dict.fromkeys(seen)) == expected


async def test_many_tasks_share_a_producer(broker: Broker) -> None:
    broker.create_topic("t", 5)

    async def work(producer: Producer[bytes, bytes], number: int) -> None:
        for at in range(20):
            await producer.send("t", b"%03d %03d" % (number, at), key=b"%d" % number)

    async with Producer(broker.bootstrap) as producer:
        await asyncio.gather(*(work(producer, number) for number in range(100)))
    logged = await everything(broker.bootstrap, "t")
    for number in range(100):
        key = b"%d" % number
        assert [each.value for each in logged if each.key == key] == [
            b"%03d %03d" % (number, at) for at in range(20)
        ]


async def test_posting_without_pause_gives_the_loop_its_turns(broker: Broker) -> None:
    """A task that posts in a loop never has to wait; requests still go out, and other tasks run."""
    broker.create_topic("t")
    turns = 0

    async def beside() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with Producer(broker.bootstrap, batch_size=10_000) as producer:
        await producer.send("t", b"")
        before = producer._accumulator._begun
        task = asyncio.create_task(beside())
        try:
            await post_all(producer, "t", numbered(5_000, 100))
            begun = producer._accumulator._begun - before
            assert begun > 50
            assert turns > begun / 2
        finally:
            task.cancel()
            await asyncio.wait([task])


def test_a_setting_that_there_is_not_is_named() -> None:
    with pytest.raises(TypeError, match=r"Producer has no setting 'lingerms'; did you mean linger_ms\?$"):
        Producer(lingerms=5)  # type: ignore[call-overload]

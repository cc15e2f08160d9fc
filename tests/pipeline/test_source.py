"""The readers as Spark calls them, one method after the other, over TCP to a real broker; no Spark runs."""

from __future__ import annotations

import asyncio
import json
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows
from pyspark.sql.types import StringType, StructField, StructType

from muster.client import Producer, TopicPartition
from muster.coordinator.testing import Broker, Cluster
from muster.pipeline.errors import DataLost, OptionError, PipelineError
from muster.pipeline.offsets import Offsets
from muster.pipeline.source import BatchReader, DefaultSource, StreamReader
from tests.pipeline.logs import add, administered, committed, fill, given, options, produced, rows
from tests.support.ports import free_ports

ALL = ReadAllAvailable()
ZERO, ONE = TopicPartition("orders", 0), TopicPartition("orders", 1)
FUTURE_MS = str(2**42)
Streams = Callable[..., StreamReader]


@pytest.fixture
def stream(broker: Broker) -> Iterator[Streams]:
    """Makes stream readers of topic orders, and closes them."""
    made: list[StreamReader] = []

    def make(**more: str) -> StreamReader:
        named = more if {"assign", "subscribePattern"} & more.keys() else {"subscribe": "orders", **more}
        made.append(StreamReader(options(broker, streaming=True, **named)))
        return made[-1]

    yield make
    for each in made:
        each.stop()


def batch(broker: Broker, **more: str) -> list[tuple[int, int, int]]:
    """(partition, offset, value) of each record that a batch reads."""
    named = more if {"assign", "subscribePattern"} & more.keys() else {"subscribe": "orders", **more}
    reader = BatchReader(options(broker, **named))
    found = rows(reader, reader.partitions())
    return [(row["partition"], row["offset"], int(row["value"])) for row in found]


def offsets(told: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
    """The offsets alone, without the topic ids and epochs beside them."""
    return {topic: each for topic, each in told.items() if "#" not in topic}


def step(
    reader: StreamReader, start: dict[str, dict[str, int]], limit: ReadLimit = ALL
) -> tuple[dict[str, dict[str, int]], list[int]]:
    """Run a micro-batch: its end, and its values. Offsets pass through JSON, and readers reach tasks
    pickled."""
    start = json.loads(json.dumps(start))
    end = json.loads(json.dumps(reader.latestOffset(start, limit)))
    planned = pickle.loads(pickle.dumps(reader.partitions(start, end)))
    task = pickle.loads(pickle.dumps(StreamReader(reader._options)))
    return end, [int(row["value"]) for row in rows(task, planned)]


# --- batches ------------------------------------------------------------------------------------------------


def test_a_batch_reads_all_there_is(broker: Broker) -> None:
    fill(broker, "orders", 3, 2)
    assert batch(broker) == [(0, 0, 0), (0, 1, 1), (0, 2, 2), (1, 0, 0), (1, 1, 1)]


def test_a_batch_between_bounds(broker: Broker) -> None:
    fill(broker, "orders", 5, 5)
    both = {"startingOffsets": '{"orders":{"0":3,"1":-2}}', "endingOffsets": '{"orders":{"0":-1,"1":2}}'}
    assert batch(broker, **both) == [(0, 3, 3), (0, 4, 4), (1, 0, 0), (1, 1, 1)]
    assert batch(broker, assign='{"orders":[1]}', startingOffsets='{"orders":{"1":4}}') == [(1, 4, 4)]


def test_a_batch_that_ends_before_it_starts_is_refused(broker: Broker) -> None:
    fill(broker, "orders", 5)
    administered(broker, lambda admin: admin.delete_records({ZERO: 2}))
    for start, end in (("4", "3"), ("-2", "1")):
        bounds = {"startingOffsets": f'{{"orders":{{"0":{start}}}}}'}
        bounds |= {"endingOffsets": f'{{"orders":{{"0":{end}}}}}'}
        with pytest.raises(PipelineError, match=f"orders-0 would start at offset [24] but end at {end}:"):
            batch(broker, **bounds)
    same = '{"orders":{"0":3}}'
    assert batch(broker, startingOffsets=same, endingOffsets=same) == []
    assert batch(broker, startingOffsets=same, endingTimestamp=FUTURE_MS) == [(0, 3, 3), (0, 4, 4)]


def test_a_batch_by_time(broker: Broker) -> None:
    broker.create_topic("orders")
    cut_ms = 1_700_000_000_000

    async def send(producer: Producer) -> None:
        await producer.send("orders", b"0", timestamp_ms=cut_ms - 1)
        await producer.send("orders", b"1", timestamp_ms=cut_ms)

    produced(broker, send)
    assert batch(broker, startingTimestamp=str(cut_ms)) == [(0, 1, 1)]
    assert batch(broker, endingTimestamp=str(cut_ms)) == [(0, 0, 0)]
    by_partition = json.dumps({"orders": {"0": cut_ms}})
    assert batch(broker, startingOffsetsByTimestamp=by_partition) == [(0, 1, 1)]
    assert batch(broker, endingOffsetsByTimestamp=by_partition) == [(0, 0, 0)]
    future = str(cut_ms + 10**9)
    with pytest.raises(
        PipelineError, match=f"startingTimestamp: orders-0 has no record at or after {future}"
    ):
        batch(broker, startingTimestamp=future)
    latest = {"startingTimestamp": future, "startingOffsetsByTimestampStrategy": "latest"}
    assert batch(broker, **latest) == []
    assert len(batch(broker, endingTimestamp=future)) == 2


def test_a_batch_from_where_a_group_is(broker: Broker) -> None:
    fill(broker, "orders", 5, 3)
    administered(broker, lambda admin: admin.alter_group_offsets("billing", {ZERO: 4}))
    read = batch(broker, startingOffsets="group", kafka_group_id="billing")
    assert read == [(0, 4, 4), (1, 0, 0), (1, 1, 1), (1, 2, 2)]


def test_a_group_that_is_beyond_the_end_of_a_log(broker: Broker) -> None:
    fill(broker, "orders", 2)
    administered(broker, lambda admin: admin.alter_group_offsets("billing", {ZERO: 4}))
    told = "group billing has committed offset 4 of orders-0, whose log ends at 2"
    with pytest.raises(DataLost, match=told):
        batch(broker, startingOffsets="group", kafka_group_id="billing")
    read = batch(broker, startingOffsets="group", kafka_group_id="billing", failOnDataLoss="false")
    assert read == [(0, 0, 0), (0, 1, 1)]


def test_a_group_that_has_read_an_open_transaction(broker: Broker) -> None:
    fill(broker, "orders", 5)
    administered(broker, lambda admin: admin.alter_group_offsets("billing", {ZERO: 8}))
    group = {"startingOffsets": "group", "kafka_group_id": "billing"}
    committed = group | {"kafka_isolation_level": "read_committed"}

    async def send(producer: Producer) -> None:
        async with producer.transaction() as transaction:
            for number in (5, 6, 7):
                await transaction.send("orders", b"%d" % number)
            assert await asyncio.to_thread(batch, broker, **committed) == []
            assert await asyncio.to_thread(batch, broker, **group) == []
            stream = StreamReader(options(broker, streaming=True, subscribe="orders", **committed))
            try:
                start = await asyncio.to_thread(stream.initialOffset)
            finally:
                await asyncio.to_thread(stream.stop)
            assert offsets(start) == {"orders": {"0": 5}}

    produced(broker, send, transactional_id="orders")
    administered(broker, lambda admin: admin.alter_group_offsets("billing", {ZERO: 10}))
    with pytest.raises(DataLost, match="committed offset 10 of orders-0, whose log ends at 9"):
        batch(broker, **committed)


def test_an_offset_in_an_open_transaction(broker: Broker, stream: Streams) -> None:
    fill(broker, "orders", 5)
    how = {"startingOffsets": '{"orders":{"0":6}}', "kafka_isolation_level": "read_committed"}
    ending = {"endingOffsets": '{"orders":{"0":6}}', "kafka_isolation_level": "read_committed"}

    def meanwhile() -> dict[str, dict[str, int]]:
        assert batch(broker, **how) == []
        told = "option endingOffsets: orders-0 can be read up to offset 5, not 6: a transaction is open there"
        with pytest.raises(PipelineError, match=told):
            batch(broker, **ending)
        for which in (how, ending):
            far = {name: value.replace("6", "9") for name, value in which.items()}
            with pytest.raises(PipelineError, match=r"orders-0 has no offset 9, its log ends at 8$"):
                batch(broker, **far)
        reader = stream(**how)
        start = reader.initialOffset()
        assert offsets(start) == {"orders": {"0": 6}}
        end, values = step(reader, start)
        assert (offsets(end), values) == (offsets(start), [])
        return end

    async def send(producer: Producer) -> dict[str, dict[str, int]]:
        async with producer.transaction() as transaction:
            for number in (5, 6, 7):
                await transaction.send("orders", b"%d" % number)
            return await asyncio.to_thread(meanwhile)

    end = produced(broker, send, transactional_id="orders")
    assert batch(broker, **how) == [(0, 6, 6), (0, 7, 7)]
    assert batch(broker, **ending)[-1] == (0, 5, 5)
    assert step(stream(**how), end)[1] == [6, 7]


def test_a_batch_by_pattern(broker: Broker) -> None:
    fill(broker, "orders", 1)
    fill(broker, "orders-eu", 1)
    fill(broker, "more-orders", 1)
    for pattern, found in {
        "orders": ["more-orders", "orders", "orders-eu"],  # matches anywhere, as in Spark's source
        "^orders": ["orders", "orders-eu"],
        "^orders$": ["orders"],
    }.items():
        reader = BatchReader(options(broker, subscribePattern=pattern))
        assert [row["topic"] for row in rows(reader, reader.partitions())] == found
    assert BatchReader(options(broker, subscribePattern="nothing")).partitions() == []


def test_large_partitions_are_divided(broker: Broker) -> None:
    fill(broker, "orders", 10, 90)
    reader = BatchReader(options(broker, subscribe="orders", minPartitions="10"))
    parts = reader.partitions()
    assert len(parts) == 10
    assert [int(row["value"]) for row in rows(reader, parts)] == [*range(10), *range(90)]


def test_an_empty_batch_has_the_partition_that_spark_makes_up(broker: Broker) -> None:
    fill(broker, "orders", 0)
    reader = BatchReader(options(broker, subscribe="orders"))
    assert reader.partitions() == []
    assert list(reader.read(InputPartition(None))) == []


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"startingOffsets": '{"orders":{"0":1}}'}, "option startingOffsets: it says nothing of orders-1"),
        (
            {"startingOffsets": '{"orders":{"0":1,"1":1,"2":1}}'},
            "startingOffsets: orders-2: not what is read",
        ),
        ({"endingOffsets": '{"orders":{"0":1,"1":9}}'}, "orders-1 has no offset 9, its log ends at 5"),
        ({"subscribe": "orders,order"}, "has no topic or partition order$"),
        ({"assign": '{"orders":[1,7]}'}, "has no topic or partition orders-7"),
    ],
)
def test_what_a_cluster_does_not_have_is_named(broker: Broker, more: dict[str, str], words: str) -> None:
    fill(broker, "orders", 5, 5)
    with pytest.raises(PipelineError, match=words):
        batch(broker, **more)


def test_an_unreachable_broker_is_told_within_seconds() -> None:
    port = free_ports(1)
    source = DefaultSource({"kafka.bootstrap.servers": f"127.0.0.1:{port}", "subscribe": "orders"})
    with pytest.raises(PipelineError, match=f"127.0.0.1:{port}"):
        source.reader(source.schema()).partitions()
    stream = source.streamReader(source.schema())
    with pytest.raises(PipelineError, match=f"127.0.0.1:{port}"):
        stream.initialOffset()
    stream.stop()


def test_the_format_refuses_wrong_options_when_it_is_loaded(broker: Broker) -> None:
    with pytest.raises(OptionError, match="startingOffsets"):
        DefaultSource(given(broker, subscribe="orders", startingOffset="earliest")).schema()
    plain = DefaultSource(given(broker, subscribe="orders")).schema().fieldNames()
    headed = DefaultSource(given(broker, subscribe="orders", includeHeaders="true")).schema().fieldNames()
    assert headed == [*plain, "headers"]


def test_a_schema_of_the_users_own_is_refused(broker: Broker) -> None:
    """Spark passes it on unchecked, and would read an empty topic with it."""
    source = DefaultSource(given(broker, subscribe="orders"))
    headed = DefaultSource(given(broker, subscribe="orders", includeHeaders="true"))
    as_text = StructType([StructField("value", StringType())])
    for own in (as_text, StructType(source.schema().fields[::-1]), headed.schema()):
        for make in (source.reader, source.streamReader):
            with pytest.raises(OptionError, match=r"Leave out \.schema"):
                make(own)
    required = StructType([StructField(each.name, each.dataType, False) for each in source.schema().fields])
    source.reader(required)
    headed.streamReader(headed.schema()).stop()


# --- streams ------------------------------------------------------------------------------------------------


def test_a_stream_goes_from_place_to_place(broker: Broker, stream: Streams) -> None:
    fill(broker, "orders", 3, 1)
    reader = stream(startingOffsets="earliest")
    start = reader.initialOffset()
    assert offsets(start) == {"orders": {"0": 0, "1": 0}}
    end, values = step(reader, start)
    assert offsets(end) == {"orders": {"0": 3, "1": 1}}
    assert values == [0, 1, 2, 0]
    add(broker, "orders", [7], partition=1)
    assert step(reader, end) == (reader.latestOffset(end, ALL), [7])


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"startingOffsets": "earliest"}, (0, 0)),
        ({"startingOffsets": "latest"}, (5, 3)),
        ({"startingOffsets": "group"}, (4, 0)),
        ({"startingOffsets": '{"orders":{"0":2,"1":-1}}'}, (2, 3)),
        ({"startingOffsets": '{"orders":{"0":-2,"1":1}}'}, (0, 1)),
        ({"startingTimestamp": "0"}, (0, 0)),
        ({"startingTimestamp": FUTURE_MS, "startingOffsetsByTimestampStrategy": "latest"}, (5, 3)),
        (
            {
                "startingOffsetsByTimestamp": f'{{"orders":{{"0":{FUTURE_MS},"1":0}}}}',
                "startingOffsetsByTimestampStrategy": "latest",
            },
            (5, 0),
        ),
    ],
)
def test_a_stream_begins_where_it_is_told_to(
    broker: Broker, stream: Streams, more: dict[str, str], expected: tuple[int, int]
) -> None:
    fill(broker, "orders", 5, 3)
    administered(broker, lambda admin: admin.alter_group_offsets("billing", {ZERO: 4}))
    reader = stream(kafka_group_id="billing", **more)
    start = reader.initialOffset()
    assert offsets(start) == {"orders": {"0": expected[0], "1": expected[1]}}
    assert committed(broker, "billing") == {ZERO: expected[0], ONE: expected[1]}
    end, values = step(reader, start)
    values += step(reader, end)[1]  # the first batch is empty if a restart would begin elsewhere
    assert values == [*range(expected[0], 5), *range(expected[1], 3)]


def test_the_newest_is_where_the_first_call_saw_it(broker: Broker, stream: Streams) -> None:
    fill(broker, "orders", 3)
    reader = stream()
    first = reader.initialOffset()
    add(broker, "orders", [3])
    assert reader.initialOffset() == first
    assert step(reader, first) == (first, [])
    assert step(reader, first)[1] == [3]


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"startingOffsets": '{"orders":{"0":-1}}'},
        {"startingTimestamp": FUTURE_MS, "startingOffsetsByTimestampStrategy": "latest"},
        {"startingOffsets": "group", "kafka_group_id": "billing", "commitOffsets": "false"},
    ],
)
def test_a_start_that_moves_is_kept_when_the_first_batch_is_repeated(
    broker: Broker, stream: Streams, more: dict[str, str]
) -> None:
    fill(broker, "orders", 2)
    administered(broker, lambda admin: admin.alter_group_offsets("billing", {ZERO: 2}))
    before = stream(**more)
    start = before.initialOffset()
    add(broker, "orders", [2, 3, 4])
    end = before.latestOffset(start, ALL)
    add(broker, "orders", [5, 6])
    administered(broker, lambda admin: admin.alter_group_offsets("billing", {ZERO: 7}))
    after = stream(**more)  # a restart: Spark knows the end of the planned batch, and asks where it begins
    assert offsets(after.initialOffset()) == {"orders": {"0": 7}}
    assert rows(after, after.partitions(after.initialOffset(), end)) == []
    assert step(after, end)[1] == [2, 3, 4, 5, 6]


def test_a_first_batch_whose_records_were_deleted_before_it_is_repeated(
    broker: Broker, stream: Streams, caplog: pytest.LogCaptureFixture
) -> None:
    fill(broker, "orders", 5)
    before = stream(startingOffsets="earliest")
    end = before.latestOffset(before.initialOffset(), ReadMaxRows(3))
    administered(broker, lambda admin: admin.delete_records({ZERO: 4}))
    after = stream(startingOffsets="earliest")
    with pytest.raises(DataLost, match=r"orders-0: the first batch was to end at offset 3, .* start at 4"):
        after.partitions(after.initialOffset(), end)
    lenient = stream(startingOffsets="earliest", failOnDataLoss="false")
    assert lenient.partitions(lenient.initialOffset(), end) == []
    assert "orders-0: the first batch was to end at offset 3" in caplog.text


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"startingOffsets": '{"orders":{"0":2}}'}, "option startingOffsets: it says nothing of orders-1"),
        (
            {"startingOffsetsByTimestamp": '{"orders":{"0":0}}'},
            "option startingOffsetsByTimestamp: it says nothing of orders-1",
        ),
        ({"startingTimestamp": "0"}, "option startingTimestamp: orders-1 has no record at or after 0"),
    ],
    ids=str,
)
def test_a_first_batch_is_repeated_though_the_topic_has_grown(
    broker: Broker, stream: Streams, more: dict[str, str], told: str
) -> None:
    fill(broker, "orders", 5)
    options = {**more, "kafka_group_id": "billing"}
    before = stream(**options)
    start = before.initialOffset()
    end = before.latestOffset(start, ReadMaxRows(3))
    administered(broker, lambda admin: admin.create_partitions({"orders": 2}))
    after = stream(**options)
    assert after.initialOffset() == start
    first = rows(after, after.partitions(after.initialOffset(), end))
    begin = start["orders"]["0"]
    assert [int(row["value"]) for row in first] == list(range(begin, begin + 3))
    add(broker, "orders", [7], partition=1)
    assert step(after, end)[1] == [*range(begin + 3, 5), 7]
    administered(broker, lambda admin: admin.delete_group_offsets("billing", [ZERO, ONE]))
    administered(broker, lambda admin: admin.delete_records({ONE: 1}))
    new = stream(**options)  # with a checkpoint of its own
    with pytest.raises(PipelineError, match=told):
        new.latestOffset(new.initialOffset(), ALL)
    assert committed(broker, "billing") == {}


def test_a_first_batch_by_time_whose_records_were_deleted_before_it_is_repeated(
    broker: Broker, stream: Streams
) -> None:
    fill(broker, "orders", 5)
    before = stream(startingTimestamp="0")
    end = before.latestOffset(before.initialOffset(), ReadMaxRows(3))
    administered(broker, lambda admin: admin.delete_records({ZERO: 5}))
    after = stream(startingTimestamp="0")
    with pytest.raises(PipelineError, match="orders-0 has no record at or after 0"):
        after.partitions(after.initialOffset(), end)


def test_at_most_so_many_in_a_batch(broker: Broker, stream: Streams) -> None:
    fill(broker, "orders", 30, 10)
    reader = stream(startingOffsets="earliest", maxOffsetsPerTrigger="20")
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(20)
    assert stream().getDefaultReadLimit() == ReadAllAvailable()
    end, values = step(reader, reader.initialOffset(), limit)
    assert values == [*range(15), *range(5)]
    end, values = step(reader, end, limit)
    assert values == [*range(15, 30), *range(5, 10)]
    assert reader.latestOffset(end, limit) == end


def test_a_run_of_what_is_there_now_ends(broker: Broker, stream: Streams) -> None:
    fill(broker, "orders", 25)
    reader = stream(startingOffsets="earliest", maxOffsetsPerTrigger="10")
    reader.prepareForTriggerAvailableNow()
    place, sizes = reader.initialOffset(), []
    for _ in range(9):
        add(broker, "orders", range(100))  # more than a batch takes: the run must not chase them
        broker_end, values = step(reader, place, ReadMaxRows(10))
        if broker_end == place:
            break
        place = broker_end
        sizes.append(len(values))
    assert sizes == [10, 10, 5]


def test_a_run_of_what_is_there_now_and_topics_that_come_later(broker: Broker, stream: Streams) -> None:
    fill(broker, "orders", 2)
    reader = stream(subscribePattern="orders.*", startingOffsets="latest")
    reader.prepareForTriggerAvailableNow()
    add(broker, "orders", [2])  # now the run begins after its end
    place = reader.initialOffset()
    assert reader.latestOffset(place, ALL) == place
    fill(broker, "orders-eu", 2)
    assert reader.latestOffset(place, ALL) == place


def test_a_run_of_what_is_there_now_keeps_a_topic_that_came_before_its_start(
    broker: Broker, stream: Streams
) -> None:
    reader = stream(subscribePattern="orders.*", startingOffsets="latest")
    reader.prepareForTriggerAvailableNow()
    fill(broker, "orders", 5)
    place = reader.initialOffset()
    assert offsets(place) == {"orders": {"0": 5}}
    for _ in range(2):  # the first batch is empty anyway
        assert reader.latestOffset(place, ALL) == place
    add(broker, "orders", [5])
    assert step(stream(subscribePattern="orders.*"), place)[1] == [5]


def test_new_partitions_and_new_topics_are_read_from_their_start(broker: Broker, stream: Streams) -> None:
    fill(broker, "orders", 1)
    reader = stream(subscribePattern="orders.*")
    place, _ = step(reader, reader.initialOffset())
    administered(broker, lambda admin: admin.create_partitions({"orders": 2}))
    add(broker, "orders", [5], partition=1)
    fill(broker, "orders-eu", 2)
    end, values = step(reader, place)
    assert offsets(end) == {"orders": {"0": 1, "1": 1}, "orders-eu": {"0": 2}}
    assert values == [5, 0, 1]


def test_a_new_topic_that_its_leader_does_not_know_yet(broker: Broker, stream: Streams) -> None:
    fill(broker, "orders", 1)
    reader = stream(subscribePattern="orders.*")
    place, _ = step(reader, reader.initialOffset())
    fill(broker, "orders-eu", 2)
    unknown = {"api": "ListOffsets", "topic": "orders-eu", "error": "UNKNOWN_TOPIC_OR_PARTITION"}
    with broker.faults.add(**unknown) as fault:
        end, values = step(reader, place)
        assert fault.fired == 1
    assert offsets(end) == {"orders": {"0": 1}, "orders-eu": {"0": 2}}
    assert values == [0, 1]


@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_topic_that_is_deleted_while_it_is_looked_at(
    broker: Broker, stream: Streams, fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("muster.pipeline.asking.APPEARS_S", 0.1)
    fill(broker, "orders", 1)
    place = stream().initialOffset()
    with (
        broker.faults.add(api="ListOffsets", times=None, error="UNKNOWN_TOPIC_OR_PARTITION"),
        pytest.raises(PipelineError, match=r"has no topic or partition orders-0$"),
    ):
        stream().initialOffset()
    reader = stream(failOnDataLoss=fails)
    unknown = "UNKNOWN_TOPIC_OR_PARTITION"
    with (
        broker.faults.add(api="ListOffsets", times=None, error=unknown) as listing,
        broker.faults.add(api="Metadata", topic="orders", nth=3, times=None, error=unknown) as fault,
    ):
        if fails == "true":
            with pytest.raises(DataLost, match="orders-0: deleted"):
                reader.latestOffset(place, ALL)
        else:
            assert reader.latestOffset(place, ALL) == {}
        assert listing.fired
        assert fault.fired


@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_leader_that_does_not_know_a_partition_that_metadata_lists(
    broker: Broker, stream: Streams, fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("muster.pipeline.asking.APPEARS_S", 0.0)
    fill(broker, "orders", 5)
    place = stream().initialOffset()
    unknown = {"api": "ListOffsets", "topic": "orders", "error": "UNKNOWN_TOPIC_OR_PARTITION"}
    reader = stream(failOnDataLoss=fails)
    with broker.faults.add(times=3, **unknown) as fault:
        assert reader.latestOffset(place, ALL) == place
        assert fault.fired == 3
    monkeypatch.setattr("muster.pipeline.asking._FIRST_ANSWER_S", 0.5)
    with (
        broker.faults.add(times=None, **unknown),
        pytest.raises(PipelineError, match="the leader of orders-0 does not know it") as failed,
    ):
        stream(failOnDataLoss=fails).latestOffset(place, ALL)
    assert not isinstance(failed.value, DataLost)


def test_a_new_topic_that_is_deleted_after_it_was_looked_at(broker: Broker, stream: Streams) -> None:
    fill(broker, "orders", 1)
    reader = stream(subscribePattern="orders.*", startingOffsets="earliest")
    place = reader.initialOffset()
    fill(broker, "orders-eu", 2)
    unknown = {"api": "ListOffsets", "topic": "orders-eu", "error": "UNKNOWN_TOPIC_OR_PARTITION"}
    with broker.faults.add(nth=2, **unknown) as fault:  # when its start is asked for
        end = reader.latestOffset(place, ALL)
        assert fault.fired == 1
    assert offsets(end) == {"orders": {"0": 1}, "orders-eu": {"0": 2}}


def test_an_idle_reader_waits_before_it_looks_again(broker: Broker) -> None:
    fill(broker, "orders", 1)
    now_s = [100.0]
    slept_s: list[float] = []

    def sleep(s: float) -> None:
        slept_s.append(s)
        now_s[0] += s
        if len(slept_s) == 10:
            add(broker, "orders", [1])

    wanted = options(broker, streaming=True, subscribe="orders")
    reader = StreamReader(wanted, lambda: now_s[0], sleep)
    try:
        place = reader.initialOffset()
        for _ in range(2):  # the first batch is empty, and then there is nothing new
            assert reader.latestOffset(place, ALL) == place
        with broker.faults.add(api="ListOffsets", delay="0ms", times=None) as asked:
            for _ in range(9):
                now_s[0] += 0.05
                assert reader.latestOffset(place, ALL) == place
            assert slept_s == pytest.approx([0.15] * 9)
            assert asked.matched == 9
        # What is there by the time it looks is in the answer.
        end = reader.latestOffset(place, ALL)
        assert offsets(end) == {"orders": {"0": 2}}
        # A reader that is not idle does not wait, nor does one that was not asked for long.
        add(broker, "orders", [2])
        end = reader.latestOffset(end, ALL)
        assert offsets(end) == {"orders": {"0": 3}}
        assert reader.latestOffset(end, ALL) == end
        assert len(slept_s) == 10
        now_s[0] += 1.0
        assert reader.latestOffset(end, ALL) == end
        assert slept_s[10:] == [0.0]
        # Nor does it answer from an earlier look.
        add(broker, "orders", [3])
        assert offsets(reader.latestOffset(end, ALL)) == {"orders": {"0": 4}}
    finally:
        reader.stop()


def test_the_end_is_reported_for_the_progress(broker: Broker, stream: Streams) -> None:
    fill(broker, "orders", 9)
    reader = stream(startingOffsets="earliest")
    assert reader.reportLatestOffset() is None
    end = reader.latestOffset(reader.initialOffset(), ReadMaxRows(4))
    assert offsets(end) == {"orders": {"0": 4}}
    assert offsets(reader.reportLatestOffset() or {}) == {"orders": {"0": 9}}


# --- commits ------------------------------------------------------------------------------------------------


def test_what_is_finished_is_committed(broker: Broker, stream: Streams) -> None:
    fill(broker, "orders", 30)
    reader = stream(startingOffsets="earliest", kafka_group_id="billing")
    place = reader.initialOffset()
    assert committed(broker, "billing") == {ZERO: 0}
    first, _ = step(reader, place, ReadMaxRows(10))
    assert committed(broker, "billing") == {ZERO: 0}, "planned is not finished"
    second, _ = step(reader, first, ReadMaxRows(10))
    assert committed(broker, "billing") == {ZERO: 10}
    reader.commit(first)
    assert committed(broker, "billing") == {ZERO: 10}
    reader.latestOffset(second, ReadMaxRows(10))
    assert committed(broker, "billing") == {ZERO: 20}


def test_nothing_is_committed_unless_it_is_wanted(broker: Broker, stream: Streams) -> None:
    fill(broker, "orders", 3)
    reader = stream(startingOffsets="earliest", kafka_group_id="billing", commitOffsets="false")
    reader.latestOffset(reader.initialOffset(), ALL)
    assert broker.group_state("billing") == "Dead"


def test_the_end_of_a_run_is_committed_though_the_coordinator_was_away(
    broker: Broker, stream: Streams
) -> None:
    """It is left alone for a while after it has not answered, but no later batch makes up for this commit."""
    fill(broker, "orders", 3)
    reader = stream(subscribePattern="orders.*", startingOffsets="earliest", kafka_group_id="billing")
    with broker.faults.add(api="OffsetCommit", error="COORDINATOR_NOT_AVAILABLE", times=None):
        start = reader.initialOffset()
    assert committed(broker, "billing") == {}
    reader.prepareForTriggerAvailableNow()
    end, _ = step(reader, start)
    fill(broker, "orders-eu", 2)  # which the run leaves to the next one
    assert reader.latestOffset(end, ALL) == end
    assert committed(broker, "billing") == {ZERO: 3}


# --- what is gone -------------------------------------------------------------------------------------------


def test_a_topic_that_was_created_again_is_found_out_after_a_restart(broker: Broker, stream: Streams) -> None:
    fill(broker, "orders", 5)
    before = stream(startingOffsets="earliest")
    place = before.latestOffset(before.initialOffset(), ALL)
    administered(broker, lambda admin: admin.delete_topic("orders"))
    fill(broker, "orders", 9)  # by offsets alone, it would look like four new records
    with pytest.raises(DataLost, match="topic orders was deleted and created again"):
        stream().latestOffset(place, ALL)
    end, values = step(stream(failOnDataLoss="false"), place)
    assert values == list(range(9))
    assert offsets(end) == {"orders": {"0": 9}}
    # The same offset in another topic is another place.
    administered(broker, lambda admin: admin.delete_topic("orders"))
    fill(broker, "orders", 9)
    again, values = step(stream(failOnDataLoss="false"), end)
    assert values == list(range(9))
    assert again != end


def test_a_topic_that_is_gone_is_told(broker: Broker, stream: Streams) -> None:
    fill(broker, "orders", 5)
    reader = stream()
    place, _ = step(reader, reader.initialOffset())
    administered(broker, lambda admin: admin.delete_topic("orders"))
    with pytest.raises(DataLost, match="orders-0: deleted"):
        reader.latestOffset(place, ALL)
    assert stream(failOnDataLoss="false").latestOffset(place, ALL) == {}


@pytest.mark.parametrize("named", [{"subscribe": "orders"}, {"subscribePattern": "orders"}], ids=str)
@pytest.mark.parametrize("fails", ["true", "false"])
def test_one_broker_that_does_not_know_a_topic_is_not_believed_at_once(
    broker: Broker, stream: Streams, named: dict[str, str], fails: str
) -> None:
    fill(broker, "orders", 5)
    reader = stream(**named, failOnDataLoss=fails, startingOffsets="earliest")
    place, _ = step(reader, reader.initialOffset())
    with broker.faults.add(api="Metadata", topic="orders", error="UNKNOWN_TOPIC_OR_PARTITION") as fault:
        assert reader.latestOffset(place, ALL) == place
        assert fault.fired == 1
    again = stream(**named, failOnDataLoss=fails)  # which repeats a batch that was planned before
    with broker.faults.add(api="Metadata", topic="orders", error="UNKNOWN_TOPIC_OR_PARTITION") as fault:
        assert again.partitions(place, place) == []
        assert fault.fired == 1


def test_nor_is_the_only_one_that_is_named_if_it_never_knows_the_topic() -> None:
    with Cluster(2) as brokers:
        fill(brokers, "orders", 5)
        first = {"kafka.bootstrap.servers": brokers.bootstrap.split(",")[0]}
        unknown = {"api": "Metadata", "topic": "orders", "error": "UNKNOWN_TOPIC_OR_PARTITION"}
        with brokers.faults.add(broker=1, times=None, **unknown) as fault:
            reader = StreamReader(
                options(brokers, streaming=True, subscribe="orders", startingOffsets="earliest", **first)
            )
            assert step(reader, reader.initialOffset())[1] == [0, 1, 2, 3, 4]
            assert fault.fired >= 1
            reader.stop()


@pytest.mark.parametrize("named", [{"subscribe": "orders"}, {"subscribePattern": "orders"}], ids=str)
def test_one_broker_that_does_not_know_a_topic_does_not_empty_a_run_of_what_is_there_now(
    broker: Broker, stream: Streams, named: dict[str, str]
) -> None:
    fill(broker, "orders", 5)
    place = stream(**named).initialOffset()
    add(broker, "orders", [5, 6])
    reader = stream(**named)
    with broker.faults.add(api="Metadata", topic="orders", error="UNKNOWN_TOPIC_OR_PARTITION") as fault:
        reader.prepareForTriggerAvailableNow()
        assert fault.fired == 1
    end, values = step(reader, place)
    assert values == [5, 6]
    add(broker, "orders", [7])  # which the run leaves to the next one
    assert reader.latestOffset(end, ALL) == end


@pytest.mark.parametrize(
    "named",
    [{"subscribe": "orders,orders-eu"}, {"assign": '{"orders":[0],"orders-eu":[0]}'}],
    ids=str,
)
def test_a_run_of_what_is_there_now_waits_for_a_named_topic_that_one_broker_does_not_know(
    broker: Broker, stream: Streams, named: dict[str, str]
) -> None:
    fill(broker, "orders", 5)
    place = stream().initialOffset()
    fill(broker, "orders-eu", 2)
    reader = stream(**named)
    with broker.faults.add(api="Metadata", topic="orders-eu", error="UNKNOWN_TOPIC_OR_PARTITION") as fault:
        reader.prepareForTriggerAvailableNow()
        assert fault.fired == 1
    assert step(reader, place)[1] == [0, 1]


def test_only_the_beginning_of_a_run_waits_for_a_named_topic_that_is_not_there(
    broker: Broker, stream: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(broker, "orders", 5)
    place = stream().initialOffset()
    add(broker, "orders", [5])
    reader = stream(subscribe="orders,orders-eu")
    monkeypatch.setattr("muster.pipeline.asking.APPEARS_S", 0.1)
    reader.prepareForTriggerAvailableNow()
    monkeypatch.setattr("muster.pipeline.asking.APPEARS_S", 3600.0)  # a batch that waits fails
    end, values = step(reader, place)
    assert (offsets(end), values) == ({"orders": {"0": 6}}, [5])


@pytest.mark.parametrize("named", [{"subscribe": "orders"}, {"subscribePattern": "orders"}], ids=str)
def test_nor_is_one_that_takes_longer_to_answer_than_topics_take_to_appear(
    broker: Broker, stream: Streams, named: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("muster.pipeline.asking.APPEARS_S", 0.05)
    fill(broker, "orders", 5)
    place = stream(**named).initialOffset()

    @contextmanager
    def stalled() -> Iterator[None]:
        """Metadata answers once late, and without the topic."""
        unknown = {"api": "Metadata", "topic": "orders", "error": "UNKNOWN_TOPIC_OR_PARTITION"}
        with broker.faults.add(api="Metadata", delay="100ms"), broker.faults.add(**unknown) as fault:
            yield
            assert fault.fired == 1

    with stalled():
        assert stream(**named).latestOffset(place, ALL) == place
    add(broker, "orders", [5])
    reader = stream(**named)
    with stalled():
        reader.prepareForTriggerAvailableNow()
    assert step(reader, place)[1] == [5]
    if "subscribe" in named:
        with stalled():
            assert offsets(stream(**named).initialOffset()) == {"orders": {"0": 6}}


def test_a_topic_that_is_back_when_the_tasks_run_is_read_from_where_the_batch_begins(
    broker: Broker, stream: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(broker, "orders", 5)
    before = stream()
    begun = before.initialOffset()
    add(broker, "orders", [5, 6])
    assert step(before, begun)[1] == []
    end, values = step(before, begun)
    assert values == [5, 6]
    monkeypatch.setattr("muster.pipeline.asking.APPEARS_S", 0.0)
    again = stream(failOnDataLoss="false")  # which repeats the batch
    unknown = {"api": "Metadata", "topic": "orders", "error": "UNKNOWN_TOPIC_OR_PARTITION"}
    with broker.faults.add(times=None, **unknown) as fault:
        planned = again.partitions(begun, end)
        assert fault.fired
    assert [int(row["value"]) for row in rows(again, planned)] == [5, 6]
    administered(broker, lambda admin: admin.delete_topic("orders"))
    monkeypatch.setattr("muster.pipeline.fetching.APPEARS_S", 0.0)
    gone = stream(failOnDataLoss="false")
    assert rows(gone, gone.partitions(begun, end)) == []


def test_a_log_that_is_shorter_than_what_was_read_was_cut(broker: Broker, stream: Streams) -> None:
    fill(broker, "orders", 5)
    reader = stream()
    place = reader.initialOffset()
    place["orders"]["0"] = 8
    with pytest.raises(DataLost, match="orders-0 was cut at offset 5, and was read up to 8"):
        reader.latestOffset(place, ALL)
    lenient = stream(failOnDataLoss="false")
    end, values = step(lenient, place)
    assert (offsets(end), values) == ({"orders": {"0": 5}}, [])


@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_stream_that_has_read_an_open_transaction(broker: Broker, stream: Streams, fails: str) -> None:
    fill(broker, "orders", 5)
    how = {"kafka_isolation_level": "read_committed"}
    places = []

    def meanwhile() -> None:
        place = stream().initialOffset()
        assert offsets(place) == {"orders": {"0": 8}}
        assert step(stream(**how, failOnDataLoss=fails), place) == (place, [])
        beyond = place | {"orders": {"0": 12}}
        with pytest.raises(DataLost, match="orders-0 was cut at offset 8, and was read up to 12"):
            stream(**how).latestOffset(beyond, ALL)
        places.append(place)

    async def send(producer: Producer) -> None:
        async with producer.transaction() as transaction:
            for number in (5, 6, 7):
                await transaction.send("orders", b"%d" % number)
            await asyncio.to_thread(meanwhile)

    produced(broker, send, transactional_id="orders")
    add(broker, "orders", [9])
    assert step(stream(**how, failOnDataLoss=fails), places[0])[1] == [9]


def test_a_log_that_was_cut_and_grew_again_is_found_out_by_its_epochs(
    broker: Broker, stream: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(broker, "orders", 9)
    reader = stream(failOnDataLoss="false")
    place = reader.initialOffset()
    (beside,) = (name for name in place if "#" in name)
    epoch = place[beside]["0"]
    place["orders"]["0"] = 6
    place[beside]["0"] = epoch - 1 if epoch else 0
    asked: list[Any] = []

    async def ends(_: Any, epochs: dict[TopicPartition, int], __: float) -> dict[TopicPartition, int]:
        asked.append(epochs)
        return dict.fromkeys(epochs, 4)

    monkeypatch.setattr("muster.pipeline.losses.ends_of_epochs", ends)
    assert epoch > 0, "a broker whose epochs begin at 1"
    end, values = step(reader, place)
    assert asked == [{ZERO: epoch - 1}]
    assert values == [4, 5, 6, 7, 8]
    assert Offsets.from_json(end).places[ZERO] == (9, epoch)


def test_the_broker_says_where_an_epoch_ends(broker: Broker) -> None:
    from muster.pipeline.asking import BlockingCluster, ends_of_epochs

    fill(broker, "orders", 9)
    cluster = BlockingCluster(options(broker, subscribe="orders"))
    try:
        (end,) = cluster.ask(lambda asked, until: _epoch_of_the_end(asked, until))
        assert cluster.ask(lambda asked, until: ends_of_epochs(asked, {ZERO: end}, until)) == {ZERO: 9}
        with broker.faults.add(api="OffsetForLeaderEpoch", error="UNKNOWN_TOPIC_OR_PARTITION") as fault:
            assert cluster.ask(lambda asked, until: ends_of_epochs(asked, {ZERO: end}, until)) == {}
            assert fault.fired == 1
    finally:
        cluster.close()


async def _epoch_of_the_end(cluster: Any, until: float) -> list[int]:
    from muster.client.admin.offsets import LATEST, list_offsets

    listed = (await list_offsets(cluster, {ZERO: LATEST}, until)).raise_for_failures()
    return [each.leader_epoch for each in listed.values() if each is not None]


def test_new_partitions_whose_start_is_gone_are_told(broker: Broker, stream: Streams) -> None:
    fill(broker, "orders", 1)
    reader = stream(subscribePattern="orders.*")
    place, _ = step(reader, reader.initialOffset())
    fill(broker, "orders-eu", 9)
    eu = TopicPartition("orders-eu", 0)
    administered(broker, lambda admin: admin.delete_records({eu: 4}))
    with pytest.raises(
        DataLost, match="orders-eu-0 is new here, and its records before offset 4 were deleted"
    ):
        reader.latestOffset(place, ALL)
    assert step(stream(subscribePattern="orders.*", failOnDataLoss="false"), place)[1] == [4, 5, 6, 7, 8]


def test_a_batch_that_was_planned_before_a_restart_is_read_the_same(broker: Broker, stream: Streams) -> None:
    fill(broker, "orders", 5)
    before = stream(startingOffsets="earliest")
    start = before.initialOffset()
    end = before.latestOffset(start, ReadMaxRows(3))
    add(broker, "orders", range(5, 9))
    after = stream(startingOffsets="earliest")
    assert [int(row["value"]) for row in rows(after, after.partitions(start, end))] == [0, 1, 2]

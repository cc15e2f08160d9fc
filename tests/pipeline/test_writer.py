"""The writer as Spark's workers call it, over TCP to a real broker; no Spark runs."""

from __future__ import annotations

import gc
import logging
import pickle
import time
from collections.abc import Iterator
from typing import Any

import pyarrow
import pytest
from pyspark import TaskContext
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from muster.coordinator.testing import Broker
from muster.pipeline.errors import OptionError, PipelineError
from muster.pipeline.writer import Written, batch_writer, stream_writer
from tests.support.ports import free_ports

BYTES, TEXT, INT = BinaryType(), StringType(), IntegerType()
PAIRS = ArrayType(StructType([StructField("key", TEXT), StructField("value", BYTES)]))
HEADERS = pyarrow.list_(pyarrow.struct([("key", pyarrow.string()), ("value", pyarrow.binary())]))


def schema(**columns: DataType) -> StructType:
    return StructType([StructField(name, each) for name, each in columns.items()])


def options(broker: Broker, **more: str) -> dict[str, str]:
    named = {name.replace("_", "."): value for name, value in more.items()}
    return {"kafka.bootstrap.servers": broker.bootstrap, **named}


def rows(**columns: pyarrow.Array) -> pyarrow.RecordBatch:
    return pyarrow.RecordBatch.from_pydict(columns)


def binary(*values: bytes | None) -> pyarrow.Array:
    return pyarrow.array(values, pyarrow.binary())


def test_rows_become_records(broker: Broker) -> None:
    broker.create_topic("orders", 2)
    columns = schema(key=BYTES, value=BYTES, headers=PAIRS, partition=INT)
    writer = batch_writer(columns, options(broker, topic="orders"), False)
    header = [{"key": "kind", "value": b"new"}, {"key": "none", "value": None}]
    first = rows(
        key=binary(b"k", None),
        value=binary(b"one", None),
        headers=pyarrow.array([header, None], HEADERS),
        partition=pyarrow.array([1, 0], pyarrow.int32()),
    )
    second = rows(
        key=binary(b"k"),
        value=binary(b"two"),
        headers=pyarrow.array([[]], HEADERS),
        partition=pyarrow.array([1], pyarrow.int32()),
    )
    # Spark sends a writer from the driver to the workers.
    assert pickle.loads(pickle.dumps(writer)).write(iter([first, second])) == Written(3)
    found = [(each.partition, each.key, each.value, each.headers) for each in broker.records("orders")]
    assert found == [
        (0, None, None, ()),
        (1, b"k", b"one", (("kind", b"new"), ("none", None))),
        (1, b"k", b"two", ()),
    ]


@pytest.mark.parametrize("text", [pyarrow.string(), pyarrow.large_string()])
def test_text_and_topics_of_their_own(broker: Broker, text: pyarrow.DataType) -> None:
    broker.create_topic("orders")
    broker.create_topic("payments")
    writer = batch_writer(schema(topic=TEXT, value=TEXT, key=TEXT), options(broker), False)
    batch = rows(
        topic=pyarrow.array(["orders", "payments", "orders"], text),
        value=pyarrow.array(["é", None, "b"], text),
        key=pyarrow.array(["1", "2", None], text),
    )
    assert writer.write(iter([batch])) == Written(3)
    assert [(each.key, each.value) for each in broker.records("orders")] == [
        (b"1", "é".encode()),
        (None, b"b"),
    ]
    assert [(each.key, each.value) for each in broker.records("payments")] == [(b"2", None)]


def test_keys_go_where_java_sends_them(broker: Broker) -> None:
    """To the partitions that every other producer uses for these keys, as our own producer does."""
    broker.create_topic("orders", 8)
    keys = [f"key {number}".encode() for number in range(100)]
    writer = batch_writer(schema(key=BYTES, value=BYTES), options(broker, topic="orders"), False)
    writer.write(iter([rows(key=binary(*keys), value=binary(*keys))]))
    from muster.client.produce.partitioner import partition_of

    assert {each.key: each.partition for each in broker.records("orders")} == {
        key: partition_of(key, 8) for key in keys
    }


def test_many_rows_in_several_batches(broker: Broker) -> None:
    broker.create_topic("orders", 3)
    batches = [
        rows(value=binary(*(str(number).encode() for number in range(at, at + 10_000))))
        for at in range(0, 50_000, 10_000)
    ]
    writer = batch_writer(schema(value=BYTES), options(broker, topic="orders"), False)
    assert writer.write(iter(batches)) == Written(50_000)
    assert sorted(int(each.value or b"") for each in broker.records("orders")) == list(range(50_000))


def test_rows_are_sent_while_the_next_ones_are_awaited(broker: Broker) -> None:
    broker.create_topic("orders")

    def slow() -> Iterator[pyarrow.RecordBatch]:
        yield rows(value=binary(b"a"))
        until = time.monotonic() + 20
        while [each.value for each in broker.records("orders")] != [b"a"]:
            assert time.monotonic() < until, "the first row was not sent"
        yield rows(value=binary(b"b"))

    writer = batch_writer(schema(value=BYTES), options(broker, topic="orders"), False)
    assert writer.write(slow()) == Written(2)
    assert [each.value for each in broker.records("orders")] == [b"a", b"b"]


def test_rows_that_do_not_arrive_fail_the_task(broker: Broker) -> None:
    broker.create_topic("orders")

    def broken() -> Iterator[pyarrow.RecordBatch]:
        yield rows(value=binary(b"a"))
        raise EOFError("the executor is gone")

    writer = batch_writer(schema(value=BYTES), options(broker, topic="orders"), False)
    with pytest.raises(EOFError, match="the executor is gone"):
        writer.write(broken())


def test_a_task_without_rows_writes_nothing(broker: Broker) -> None:
    writer = batch_writer(schema(value=BYTES), options(broker, topic="orders"), False)
    assert writer.write(iter([])) == Written(0)


class _Context:
    def __init__(self, **properties: str) -> None:
        self._properties = properties

    def getLocalProperty(self, name: str) -> str | None:
        return self._properties.get(name.rsplit(".", 1)[-1])


def test_records_of_a_stream_carry_their_batch(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    broker.create_topic("orders")
    monkeypatch.setattr(TaskContext, "get", lambda: _Context(queryId="a-b-c", batchId="17"))
    columns = schema(value=BYTES, headers=PAIRS)
    writer = stream_writer(columns, options(broker, topic="orders"), False)
    own: list[Any] = [[{"key": "own", "value": b"1"}], None]
    writer.write(iter([rows(value=binary(b"a", b"b"), headers=pyarrow.array(own, HEADERS))]))
    batch = (("muster.query", b"a-b-c"), ("muster.batch", b"17"))
    assert [each.headers for each in broker.records("orders")] == [(("own", b"1"), *batch), batch]
    without = stream_writer(schema(value=BYTES), options(broker, topic="orders", batchHeaders="false"), False)
    without.write(iter([rows(value=binary(b"c"))]))
    assert broker.records("orders")[-1].headers == ()


def test_a_stream_whose_batch_is_not_told_is_not_written(broker: Broker) -> None:
    broker.create_topic("orders")
    writer = stream_writer(schema(value=BYTES), options(broker, topic="orders"), False)
    with pytest.raises(PipelineError, match="batchHeaders=false"):
        writer.write(iter([rows(value=binary(b"a"))]))
    assert broker.records("orders") == []


@pytest.mark.parametrize(
    ("columns", "given", "told"),
    [
        ({"value": BYTES, "price": INT}, {"topic": "orders"}, "column price: .* to_json"),
        ({"key": BYTES}, {"topic": "orders"}, "column value is missing"),
        (
            {"value": INT},
            {"topic": "orders"},
            "column value is int; the writer takes binary or string: cast it",
        ),
        ({"value": BYTES, "headers": MapType(TEXT, BYTES)}, {"topic": "orders"}, "column headers is map"),
        (
            {"value": BYTES, "headers": ArrayType(TEXT)},
            {"topic": "orders"},
            "column headers is array<string>",
        ),
        ({"value": BYTES}, {}, "Option topic names the topic, or a column topic does"),
        ({"value": BYTES}, {"topic": " "}, "option topic is empty"),
        ({"value": BYTES}, {"topc": "orders"}, "option topc is not one of the writer's; did you mean topic"),
        ({"value": BYTES}, {"topic": "t", "kafka.ack": "all"}, r"kafka\.ack .* did you mean kafka\.acks"),
        ({"value": BYTES}, {"topic": "t", "kafka.acks": "0"}, r"kafka\.acks='0': it takes all or 1"),
        ({"value": BYTES}, {"topic": "t", "kafka.linger.ms": "x"}, r"kafka\.linger\.ms='x': .* whole number"),
        ({"value": BYTES}, {"topic": "t", "kafka.batch.size": "0"}, r"option kafka\.batch\.size=0: it takes"),
        (
            {"value": BYTES},
            {"topic": "t", "kafka.compression.type": "zip"},
            r"option kafka\.compression\.type='zip'",
        ),
        (
            {"value": BYTES},
            {"topic": "t", "batchHeaders": "yes"},
            "batchHeaders='yes': it takes true or false",
        ),
        ({"value": BYTES}, {"path": "orders"}, "a topic is no path: option topic names it"),
        (
            {"value": BYTES},
            {"topic": "t", "kafka.bootstrap.servers": "here"},
            r"option kafka\.bootstrap\.servers",
        ),
    ],
)
def test_what_will_not_do_is_named(columns: dict[str, DataType], given: dict[str, str], told: str) -> None:
    with pytest.raises(OptionError, match=told):
        batch_writer(schema(**columns), {"kafka.bootstrap.servers": "127.0.0.1:1", **given}, False)


def test_brokers_are_needed_and_topics_not_overwritten() -> None:
    with pytest.raises(OptionError, match=r"kafka\.bootstrap\.servers is missing"):
        batch_writer(schema(value=BYTES), {"topic": "orders"}, False)
    with pytest.raises(OptionError, match=r"not overwritten.* foreachBatch"):
        stream_writer(
            schema(value=BYTES), {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "orders"}, True
        )


@pytest.mark.parametrize(
    ("batch", "told"),
    [
        ({"topic": pyarrow.array([None], pyarrow.string())}, "a row has no topic"),
        ({"partition": pyarrow.array([-1], pyarrow.int32())}, "partition -1"),
        ({"headers": pyarrow.array([[{"key": None, "value": b"1"}]], HEADERS)}, "header without a key"),
    ],
)
def test_a_row_that_is_no_record(broker: Broker, batch: dict[str, pyarrow.Array], told: str) -> None:
    broker.create_topic("orders")
    types: dict[str, DataType] = {"topic": TEXT, "partition": INT, "headers": PAIRS}
    (name,) = batch
    given = {} if name == "topic" else {"topic": "orders"}
    writer = batch_writer(schema(value=BYTES, **{name: types[name]}), options(broker, **given), False)
    with pytest.raises(PipelineError, match=told):
        writer.write(iter([rows(value=binary(b"a"), **batch)]))


def test_a_record_that_the_broker_refuses(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    """One error, in the broker's words; the other records in flight cause no noise."""
    broker.create_topic("orders", configs={"max.message.bytes": "1000"})
    writer = batch_writer(schema(value=BYTES), options(broker, topic="orders"), False)
    with caplog.at_level(logging.ERROR), pytest.raises(PipelineError, match="MESSAGE_TOO_LARGE"):
        writer.write(iter([rows(value=binary(*[b"x" * 5_000] * 100))] * 3))
    gc.collect()  # asyncio reports unretrieved exceptions at this point
    assert caplog.records == []


def test_a_setting_is_named_as_the_option_that_it_is(broker: Broker) -> None:
    broker.create_topic("orders")
    writer = batch_writer(schema(value=BYTES), options(broker, topic="orders"), False)
    with pytest.raises(PipelineError, match=r", kafka\.max\.request\.size is 1048576 \(MESSAGE_TOO_LARGE\)"):
        writer.write(iter([rows(value=binary(b"x" * 2_000_000))]))


def test_a_cluster_that_does_not_answer() -> None:
    nowhere = f"127.0.0.1:{free_ports(1)}"
    given = {"kafka.bootstrap.servers": nowhere, "topic": "orders", "kafka.max.block.ms": "300"}
    writer = batch_writer(schema(value=BYTES), given, False)
    with pytest.raises(PipelineError, match=nowhere):
        writer.write(iter([rows(value=binary(b"a"))]))

"""The source on a real Spark. Spark's surprising behaviour is in test_traps.py."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from pyspark.errors import PySparkException
from pyspark.testing import assertDataFrameEqual, assertSchemaEqual

from muster.client import Producer, TopicPartition
from muster.coordinator.testing import Broker
from muster.pipeline.progress import lag
from tests.pipeline.logs import add, administered, committed, fill, given, produced
from tests.pipeline.streams import LIMIT_S, in_parquet, read, run_to_parquet, stream, values, wait_for
from tests.support.ports import free_ports

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ZERO: Final = TopicPartition("orders", 0)
KAFKAS_COLUMNS: Final = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP,"
    " timestampType INT"
)


# --- batches ------------------------------------------------------------------------------------------------


def test_a_batch_has_the_columns_and_rows_of_sparks_own_source(spark: SparkSession, broker: Broker) -> None:
    broker.create_topic("orders", 2)

    async def send(producer: Producer) -> None:
        await producer.send("orders", b"v", key=b"k", partition=1, timestamp_ms=1_700_000_000_123)
        await producer.send("orders", None, partition=0, timestamp_ms=0, headers=[("a", b"1"), ("b", None)])

    produced(broker, send)
    rows = read(spark, broker)
    expected = spark.createDataFrame([], KAFKAS_COLUMNS)
    assertSchemaEqual(rows.schema, expected.schema)
    plain = rows.selectExpr("*").drop("timestamp")
    assertDataFrameEqual(
        plain.selectExpr("key", "value", "topic", "partition", "offset", "timestampType"),
        spark.createDataFrame(
            [(b"k", b"v", "orders", 1, 0, 0), (None, None, "orders", 0, 0, 0)],
            "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestampType INT",
        ),
    )
    # Whatever this Spark takes TIMESTAMP for.
    spark.conf.set("spark.sql.timestampType", "TIMESTAMP_NTZ")
    try:
        assertSchemaEqual(read(spark, broker).schema, expected.schema)
    finally:
        spark.conf.unset("spark.sql.timestampType")
    stamps = rows.selectExpr("unix_millis(timestamp) AS at").orderBy("at").collect()
    assert [row.at for row in stamps] == [0, 1_700_000_000_123]
    headed = read(spark, broker, includeHeaders="true")
    with_headers = spark.createDataFrame(
        [], KAFKAS_COLUMNS + ", headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
    )
    assertSchemaEqual(headed.schema, with_headers.schema)
    found = [row.headers for row in headed.orderBy("partition").collect()]
    assert found == [[("a", b"1"), ("b", None)], None]


def test_sql_reads_it_too(spark: SparkSession, broker: Broker) -> None:
    fill(broker, "orders", 30, 20)
    options = ", ".join(f"'{name}' '{value}'" for name, value in given(broker, subscribe="orders").items())
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW orders USING muster OPTIONS ({options})")
    counts = spark.sql("SELECT partition, count(*) AS n FROM orders GROUP BY partition ORDER BY partition")
    assert [tuple(row) for row in counts.collect()] == [(0, 30), (1, 20)]
    spark.catalog.dropTempView("orders")


def test_mistakes_are_told_in_words(spark: SparkSession, broker: Broker) -> None:
    with pytest.raises(PySparkException, match="there is none of that name; did you mean startingOffsets"):
        read(spark, broker, startingOffset="earliest")
    with pytest.raises(PySparkException, match="has no topic or partition orders"):
        read(spark, broker).count()
    port = free_ports(1)
    nowhere = {"kafka.bootstrap.servers": f"127.0.0.1:{port}", "subscribe": "orders"}
    with pytest.raises(PySparkException, match=rf"PipelineError: .*127\.0\.0\.1:{port}"):
        spark.read.format("muster").options(**nowhere).load().count()


# --- streams ------------------------------------------------------------------------------------------------


def test_the_progress_of_a_query_tells_how_far_it_is_from_the_end(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    fill(broker, "orders", 30, 20)
    rows = stream(spark, broker, startingOffsets="earliest", maxOffsetsPerTrigger="20")
    query = run_to_parquet(rows, tmp_path)
    batches = [each for each in query.recentProgress if each.numInputRows]
    assert [lag(each) for each in batches] == [30, 10, 0]
    (last,) = batches[-1].sources
    assert (
        json.loads(last.endOffset)["orders"] == json.loads(last.latestOffset)["orders"] == {"0": 30, "1": 20}
    )


def test_a_run_over_nothing_ends(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    fill(broker, "orders", 0)
    query = run_to_parquet(stream(spark, broker, kafka_group_id="billing"), tmp_path)
    assert sum(each.numInputRows for each in query.recentProgress) == 0
    assert committed(broker, "billing") == {ZERO: 0}


def test_a_stream_follows_topics_that_come_grow_and_go(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    """One query goes through all of it: every codec, another partition, another topic, and one that is
    created again, which a stream with failOnDataLoss=false takes as it comes."""
    broker.create_topic("orders")
    codecs = ("none", "gzip", "snappy", "lz4", "zstd")
    for codec in codecs:

        async def send(producer: Producer, codec: str = codec) -> None:
            for number in range(20):
                await producer.post("orders", b"%d" % number, headers=[("codec", codec.encode())])
            await producer.flush()

        produced(broker, send, compression_type=codec)
    options = {"startingOffsets": "earliest", "includeHeaders": "true", "failOnDataLoss": "false"}
    rows = stream(spark, broker, subscribePattern="orders.*", minPartitions="4", **options)
    query = (
        rows.writeStream.format("memory")
        .queryName("followed")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(processingTime="200 milliseconds")
        .start()
    )

    def found(topic: str, partition: int) -> list[int]:
        return values(spark.table("followed").where(f"topic = '{topic}' AND partition = {partition}"))

    try:
        wait_for(lambda: len(found("orders", 0)) == 100, query)
        assert found("orders", 0) == sorted(list(range(20)) * 5)
        headers = spark.sql("SELECT DISTINCT CAST(headers[0].value AS STRING) FROM followed").collect()
        assert {row[0] for row in headers} == set(codecs)
        administered(broker, lambda admin: admin.create_partitions({"orders": 2}))
        add(broker, "orders", range(3), partition=1)
        fill(broker, "orders-eu", 2)
        wait_for(lambda: found("orders", 1) == [0, 1, 2] and found("orders-eu", 0) == [0, 1], query)
        administered(broker, lambda admin: admin.delete_topic("orders-eu"))
        fill(broker, "orders-eu", 4)
        wait_for(lambda: found("orders-eu", 0) == [0, 0, 1, 1, 2, 3], query)
        assert len(found("orders", 0)) == 100
    finally:
        query.stop()


def test_a_topic_that_grows_before_the_first_batch_is_repeated(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    fill(broker, "orders", 5)
    rows = stream(spark, broker, startingOffsets='{"orders":{"0":2}}')

    def failing(batch: DataFrame, number: int) -> None:
        raise RuntimeError(f"batch {number} does not come through")

    writer = rows.writeStream.foreachBatch(failing).option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    with pytest.raises(PySparkException, match="batch 0 does not come through"):
        query.awaitTermination(int(LIMIT_S))
    administered(broker, lambda admin: admin.create_partitions({"orders": 2}))
    add(broker, "orders", [7], partition=1)
    run_to_parquet(rows, tmp_path)
    assert in_parquet(spark, tmp_path) == [2, 3, 4, 7]
    with pytest.raises(PySparkException, match="option startingOffsets: it says nothing of orders-1"):
        run_to_parquet(rows, tmp_path / "anew")


def test_records_that_are_gone_end_the_stream_unless_that_is_allowed(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    fill(broker, "orders", 5)
    strict = stream(spark, broker, startingOffsets="earliest")
    lenient = stream(spark, broker, startingOffsets="earliest", failOnDataLoss="false")
    run_to_parquet(strict, tmp_path)
    add(broker, "orders", range(5, 10))
    administered(broker, lambda admin: admin.delete_records({ZERO: 8}))
    with pytest.raises(PySparkException, match="orders-0: the records at offsets 5 to 7 were deleted"):
        run_to_parquet(strict, tmp_path)
    run_to_parquet(lenient, tmp_path)
    assert in_parquet(spark, tmp_path) == [*range(5), 8, 9]
    administered(broker, lambda admin: admin.delete_topic("orders"))
    fill(broker, "orders", 12)
    with pytest.raises(PySparkException, match="topic orders was deleted and created again") as failed:
        run_to_parquet(strict, tmp_path)
    assert re.search(r"muster\.pipeline\.errors\.DataLost: .*failOnDataLoss=false", str(failed.value))
    run_to_parquet(lenient, tmp_path)
    assert in_parquet(spark, tmp_path) == sorted([*range(5), 8, 9, *range(12)])

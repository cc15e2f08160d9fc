"""The source in a real Spark: what Spark does with it, and the traps there are on the way."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from pyspark.errors import PySparkException
from pyspark.testing import assertDataFrameEqual, assertSchemaEqual

from muster.client import Producer, TopicPartition
from muster.coordinator.testing import Broker
from tests.pipeline.logs import add, administered, committed, fill, given, produced
from tests.support.ports import free_ports

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

ZERO, ONE = TopicPartition("orders", 0), TopicPartition("orders", 1)
LIMIT_S: Final = 120.0
KAFKAS_COLUMNS: Final = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP,"
    " timestampType INT"
)


def read(spark: SparkSession, broker: Broker, **more: str) -> DataFrame:
    return spark.read.format("muster").options(**given(broker, subscribe="orders", **more)).load()


def follow(spark: SparkSession, broker: Broker, **more: str) -> DataFrame:
    options = given(broker, subscribe="orders", startingOffsets="earliest", **more)
    return spark.readStream.format("muster").options(**options).load()


def to_parquet(rows: DataFrame, lake: Path) -> StreamingQuery:
    """All there is now, to the end of it."""
    query = (
        rows.writeStream.format("parquet")
        .option("checkpointLocation", str(lake / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(lake / "rows"))
    )
    assert query.awaitTermination(int(LIMIT_S)), "the run did not end"
    return query


def values(rows: DataFrame) -> list[int]:
    return sorted(int(row[0]) for row in rows.select(rows.value.cast("string")).collect())


def wait_for(fact: Callable[[], Any], query: StreamingQuery | None = None) -> Any:
    """The first result that is true."""
    until = time.monotonic() + LIMIT_S
    while True:
        if query is not None and query.exception() is not None:
            raise AssertionError(str(query.exception()))
        result = fact()
        if result:
            return result
        assert time.monotonic() < until, "it did not come about"


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
    stamps = rows.selectExpr("unix_millis(timestamp) AS at").orderBy("at").collect()
    assert [row.at for row in stamps] == [0, 1_700_000_000_123]
    headed = read(spark, broker, includeHeaders="true")
    with_headers = spark.createDataFrame(
        [], KAFKAS_COLUMNS + ", headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
    )
    assertSchemaEqual(headed.schema, with_headers.schema)
    found = [row.headers for row in headed.orderBy("partition").collect()]
    assert found == [[("a", b"1"), ("b", None)], None]


def test_a_batch_of_a_topic_without_records(spark: SparkSession, broker: Broker) -> None:
    fill(broker, "orders", 0)
    assert read(spark, broker).count() == 0


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


def test_a_run_commits_its_last_batch_and_goes_on_where_it_was(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    fill(broker, "orders", 30, 20)
    rows = follow(spark, broker, kafka_group_id="billing", maxOffsetsPerTrigger="20")
    query = to_parquet(rows, tmp_path)
    assert [each.numInputRows for each in query.recentProgress if each.numInputRows] == [20, 20, 10]
    assert values(spark.read.parquet(str(tmp_path / "rows"))) == sorted([*range(30), *range(20)])
    assert committed(broker, "billing") == {ZERO: 30, ONE: 20}
    source = query.lastProgress.sources[0]
    assert json.loads(source.endOffset)["orders"] == {"0": 30, "1": 20}
    assert json.loads(source.latestOffset)["orders"] == {"0": 30, "1": 20}

    add(broker, "orders", range(30, 37))
    to_parquet(rows, tmp_path)
    assert values(spark.read.parquet(str(tmp_path / "rows"))) == sorted([*range(37), *range(20)])
    assert committed(broker, "billing") == {ZERO: 37, ONE: 20}
    again = to_parquet(rows, tmp_path)
    assert sum(each.numInputRows for each in again.recentProgress) == 0


def test_a_run_over_nothing_ends(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    fill(broker, "orders", 0)
    query = to_parquet(follow(spark, broker, kafka_group_id="billing"), tmp_path)
    assert sum(each.numInputRows for each in query.recentProgress) == 0
    assert committed(broker, "billing") == {ZERO: 0}


def test_a_batch_that_failed_is_not_committed(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    fill(broker, "orders", 30)
    rows = follow(spark, broker, kafka_group_id="billing", maxOffsetsPerTrigger="10")
    done: list[int] = []
    broken = True

    def write(batch: DataFrame, batch_id: int) -> None:
        if broken and batch_id == 1:
            raise RuntimeError("the database is away")
        done.extend(values(batch))

    def run() -> StreamingQuery:
        return (
            rows.writeStream.foreachBatch(write)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )

    with pytest.raises(PySparkException, match="the database is away"):
        run().awaitTermination(int(LIMIT_S))
    assert done == list(range(10))
    assert committed(broker, "billing") == {ZERO: 10}
    broken = False
    assert run().awaitTermination(int(LIMIT_S))
    assert done == list(range(30))
    assert committed(broker, "billing") == {ZERO: 30}


def test_a_stream_from_the_newest_on_follows_and_does_not_storm_the_broker(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    fill(broker, "orders", 5)
    options = given(broker, subscribe="orders", kafka_group_id="billing", includeHeaders="true")
    rows = spark.readStream.format("muster").options(**options).load()
    with broker.faults.add(api="ListOffsets", delay="0ms", times=None) as asked:
        query = (
            rows.writeStream.format("memory")
            .queryName("newest")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .start()
        )
        try:
            # The position of a stream that has read nothing is there at once.
            wait_for(lambda: committed(broker, "billing") == {ZERO: 5}, query)
            add(broker, "orders", [5, 6])
            wait_for(lambda: spark.table("newest").count() == 2, query)
            assert values(spark.table("newest")) == [5, 6]
            wait_for(lambda: committed(broker, "billing") == {ZERO: 7}, query)
            # Idle, it asks five times a second at most, though no trigger was set.
            before, began = asked.matched, time.monotonic()
            wait_for(lambda: asked.matched >= before + 10, query)
            assert time.monotonic() - began >= 8 * 0.2
        finally:
            query.stop()


def test_a_topic_that_was_created_again_ends_the_stream(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    fill(broker, "orders", 5)
    rows = follow(spark, broker)
    to_parquet(rows, tmp_path)
    administered(broker, lambda admin: admin.delete_topic("orders"))
    fill(broker, "orders", 9)
    with pytest.raises(PySparkException, match="topic orders was deleted and created again") as failed:
        to_parquet(rows, tmp_path)
    assert re.search(r"muster\.pipeline\.losses\.DataLost: .*failOnDataLoss=false", str(failed.value))

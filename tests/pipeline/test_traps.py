"""Spark's surprising behaviour with a data source in Python, found by running it: one test per trap. (For a
stream on a cluster that has the package only from --py-files, see test_standalone.py.)
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.streaming.datasource import ReadAllAvailable

from muster.client import TopicPartition
from muster.coordinator.testing import Broker
from muster.pipeline.source import StreamReader
from tests.pipeline.logs import add, administered, committed, fill, options
from tests.pipeline.streams import LIMIT_S, in_parquet, read, run_to_parquet, stream, values, wait_for

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

ZERO, ONE = TopicPartition("orders", 0), TopicPartition("orders", 1)


def test_the_last_batch_of_a_run_is_committed(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    """Spark commits a batch once it has planned the next one: never the last batch of an AvailableNow run."""
    fill(broker, "orders", 30, 20)
    rows = stream(
        spark, broker, startingOffsets="earliest", kafka_group_id="billing", maxOffsetsPerTrigger="20"
    )
    query = run_to_parquet(rows, tmp_path)
    assert [each.numInputRows for each in query.recentProgress if each.numInputRows] == [20, 20, 10]
    assert committed(broker, "billing") == {ZERO: 30, ONE: 20}
    add(broker, "orders", range(30, 37))
    run_to_parquet(rows, tmp_path)
    assert committed(broker, "billing") == {ZERO: 37, ONE: 20}
    assert in_parquet(spark, tmp_path) == sorted([*range(37), *range(20)])


def test_a_batch_that_failed_is_not_committed(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    """A planned batch is not a finished one: if foreachBatch fails, the group stays where that batch
    began."""
    fill(broker, "orders", 30)
    rows = stream(
        spark, broker, startingOffsets="earliest", kafka_group_id="billing", maxOffsetsPerTrigger="10"
    )
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


def test_the_first_batch_is_repeated_from_elsewhere(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    """Spark asks for the start again as long as batch 0 is not finished, and by then `latest` has moved."""
    fill(broker, "orders", 2)
    rows = stream(spark, broker)
    done: list[int] = []
    broken = True

    def write(batch: DataFrame, batch_id: int) -> None:
        if broken:
            raise RuntimeError("the database is away")
        done.extend(values(batch))

    def run() -> StreamingQuery:
        return (
            rows.writeStream.foreachBatch(write)
            .option("checkpointLocation", str(tmp_path))
            .trigger(availableNow=True)
            .start()
        )

    with pytest.raises(PySparkException, match="the database is away"):
        run().awaitTermination(int(LIMIT_S))
    add(broker, "orders", [2, 3])
    broken = False
    assert run().awaitTermination(int(LIMIT_S))
    add(broker, "orders", [4])
    assert run().awaitTermination(int(LIMIT_S))
    assert done == [2, 3, 4]


def test_a_query_that_is_stopped_is_not_told_to_its_reader(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    """Spark does not call the reader's stop(), so the reader can do nothing then: what was finished before
    the query stopped is committed when it continues, even if there is nothing new."""
    fill(broker, "orders", 30)
    rows = stream(spark, broker, startingOffsets="earliest", kafka_group_id="billing")
    query = (
        rows.writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(processingTime="1 hour")
        .start(str(tmp_path / "rows"))
    )
    wait_for(lambda: query.lastProgress is not None and query.lastProgress.numInputRows == 30, query)
    query.stop()
    again = run_to_parquet(rows, tmp_path)
    assert sum(each.numInputRows for each in again.recentProgress) == 0
    assert committed(broker, "billing") == {ZERO: 30}


def test_the_first_place_is_asked_for_twice_and_then_a_hundred_times_a_second(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    """Two calls of initialOffset return one place, which is committed to the group at once; and without a
    trigger, the latest offsets are requested without a pause, which brokers do not notice. Each answer of
    nothing new ends processAllAvailable()."""
    fill(broker, "orders", 5)
    rows = stream(spark, broker, kafka_group_id="billing", includeHeaders="true")
    with broker.faults.add(api="ListOffsets", delay="0ms", times=None) as asked:
        query = (
            rows.writeStream.format("memory")
            .queryName("newest")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .start()
        )
        try:
            wait_for(lambda: committed(broker, "billing") == {ZERO: 5}, query)
            add(broker, "orders", [5, 6])
            wait_for(lambda: spark.table("newest").count() == 2, query)
            assert values(spark.table("newest")) == [5, 6]
            wait_for(lambda: committed(broker, "billing") == {ZERO: 7}, query)
            before, began = asked.matched, time.monotonic()
            wait_for(lambda: asked.matched >= before + 20, query)
            assert time.monotonic() - began >= 18 * 0.2, "five times a second at most"
            for value in range(7, 10):
                add(broker, "orders", [value])
                query.processAllAvailable()
                assert spark.table("newest").count() == value - 4, "what was there when it was called"
        finally:
            query.stop()


def test_a_batch_without_partitions(spark: SparkSession, broker: Broker) -> None:
    """Spark calls read() all the same, with a made-up partition."""
    fill(broker, "orders", 0)
    assert read(spark, broker).count() == 0
    assert read(spark, broker, subscribePattern="nothing").count() == 0


@pytest.mark.parametrize("pushdown", ["false", "true"])
def test_filters_and_columns_are_left_to_spark(spark: SparkSession, broker: Broker, pushdown: str) -> None:
    """A reader that takes filters causes an error if their pushdown is off, as it is by default; and columns
    that nobody requested are read."""
    fill(broker, "orders", 5, 5)
    name = "spark.sql.python.filterPushdown.enabled"
    before = spark.conf.get(name)
    spark.conf.set(name, pushdown)
    try:
        rows = read(spark, broker).where("partition = 1 AND offset >= 3")
        assert values(rows.select("value")) == [3, 4]
    finally:
        spark.conf.set(name, before)


def test_commits_come_from_nobody(broker: Broker) -> None:
    """No event loop runs between the calls to a reader, so nobody could send heartbeats: commits come from no
    member, and the group has none. It loses its offsets one day, so an idle stream commits them again."""
    fill(broker, "orders", 5)
    now_s = [1_000.0]
    wanted = options(
        broker, streaming=True, subscribe="orders", startingOffsets="earliest", kafka_group_id="billing"
    )
    reader = StreamReader(wanted, lambda: now_s[0])
    try:
        start = reader.initialOffset()
        end = reader.latestOffset(start, ReadAllAvailable())
        assert reader.latestOffset(end, ReadAllAvailable()) == end
        assert broker.group_state("billing") == "Empty"
        administered(broker, lambda admin: admin.delete_groups(["billing"]))
        now_s[0] += 599
        reader.latestOffset(end, ReadAllAvailable())
        assert committed(broker, "billing") == {}
        now_s[0] += 1
        reader.latestOffset(end, ReadAllAvailable())
        assert committed(broker, "billing") == {ZERO: 5}
    finally:
        reader.stop()


def test_a_batch_is_planned_once(spark: SparkSession, broker: Broker) -> None:
    """A DataFrame keeps the ends that its first action saw, while Spark's own source looks again for each
    action: to see newer records, load it again."""
    fill(broker, "orders", 3)
    rows = read(spark, broker)
    assert rows.count() == 3
    add(broker, "orders", [3, 4])
    assert rows.count() == 3
    assert read(spark, broker).count() == 5

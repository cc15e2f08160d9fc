"""`df.write` and `df.writeStream` with the format "muster", on Spark. test_writer.py tests the writer
itself."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from muster.coordinator.testing import Broker
from muster.pipeline.errors import from_spark
from tests.support.ports import free_ports

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DEADLINE_S = 120


def numbers(spark: SparkSession, count: int) -> DataFrame:
    return spark.range(count).selectExpr("CAST(id AS STRING) AS key", "CAST(id AS STRING) AS value")


def save(rows: DataFrame, servers: str, **options: str) -> None:
    rows.write.format("muster").mode("append").option("kafka.bootstrap.servers", servers).options(
        **options
    ).save()


def test_a_batch(spark: SparkSession, broker: Broker) -> None:
    broker.create_topic("orders", 2)
    save(numbers(spark, 1_000), broker.bootstrap, topic="orders")
    records = broker.records("orders")
    assert sorted(int(each.value or b"") for each in records) == list(range(1_000))
    assert all(each.key == each.value and each.headers == () for each in records)


def test_what_is_wrong_comes_back_in_a_line(spark: SparkSession, broker: Broker) -> None:
    broker.create_topic("orders", 1)
    rows = numbers(spark, 10)
    nowhere = f"127.0.0.1:{free_ports(1)}"
    cases = [
        (
            rows,
            broker.bootstrap,
            {"topc": "orders"},
            "option topc is not one of the writer's; did you mean topic?",
        ),
        (rows.selectExpr("1 AS value"), broker.bootstrap, {"topic": "orders"}, "column value is int"),
        (rows, nowhere, {"topic": "orders", "kafka.max.block.ms": "500"}, nowhere),
        (
            rows.selectExpr("value", "7 AS partition"),
            broker.bootstrap,
            {"topic": "orders", "kafka.max.block.ms": "500"},
            "has no partition 7",
        ),
    ]
    for frame, servers, options, expected in cases:
        with pytest.raises(Exception, match=r"muster\.pipeline\.errors") as caught:
            save(frame, servers, **options)
        said = from_spark(caught.value)
        assert said is not None
        assert expected in said
        assert "\n" not in said


def test_a_stream_whose_batch_is_repeated(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    """At least once: the records of a batch that Spark did not note as done are written again, and their
    headers show it."""
    broker.create_topic("copies", 1)
    checkpoint = tmp_path / "checkpoint"

    def run() -> str:
        rows = spark.readStream.schema("value STRING").text(str(tmp_path / "in"))
        query = (
            rows.writeStream.format("muster")
            .option("kafka.bootstrap.servers", broker.bootstrap)
            .option("topic", "copies")
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(DEADLINE_S)
        return str(query.id)

    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "first.txt").write_text("a\nb\n")
    first = run()
    for path in (checkpoint / "commits").iterdir():
        path.unlink()
    (tmp_path / "in" / "second.txt").write_text("c\n")
    assert run() == first, "the checkpoint keeps the query's id"
    found = sorted((each.value, dict(each.headers)["muster.batch"]) for each in broker.records("copies"))
    assert found == [(b"a", b"0"), (b"a", b"0"), (b"b", b"0"), (b"b", b"0"), (b"c", b"1")]
    assert {dict(each.headers)["muster.query"] for each in broker.records("copies")} == {first.encode()}

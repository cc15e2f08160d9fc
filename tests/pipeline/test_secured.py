"""The format on a real Spark, against a broker with TLS and a login."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import pytest

from muster.coordinator.testing import Broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def secured() -> Iterator[Broker]:
    with Broker(security="SASL_SSL") as broker:
        yield broker


def options(broker: Broker) -> dict[str, str]:
    """As for Spark's own connector: the Java client's properties with the prefix `kafka.`."""
    return {f"kafka.{name}": str(value) for name, value in broker.client_settings("java").items()}


def written(spark: SparkSession, given: Mapping[str, str]) -> None:
    rows = spark.createDataFrame([(b"k", b"tea"), (b"l", b"milk")], "key BINARY, value BINARY")
    rows.write.format("muster").options(**given, topic="orders").mode("append").save()


def test_what_is_written_is_read_by_batch_and_stream(
    spark: SparkSession, secured: Broker, tmp_path: object
) -> None:
    given = options(secured)
    secured.create_topic("orders", 2)
    written(spark, given)
    batch = spark.read.format("muster").options(**given, subscribe="orders").load()
    shown = batch._jdf.queryExecution().toString()
    assert secured.client_settings("confluent-kafka")["sasl.password"] not in shown
    assert sorted(bytes(row.value) for row in batch.collect()) == [b"milk", b"tea"]
    query = (
        spark.readStream.format("muster")
        .options(**given, subscribe="orders", startingOffsets="earliest")
        .load()
        .writeStream.format("memory")
        .queryName("secured")
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(60)
    assert spark.table("secured").count() == 2


def test_a_wrong_password_is_told_at_once_and_not_shown(spark: SparkSession, secured: Broker) -> None:
    password = secured.client_settings("confluent-kafka")["sasl.password"]
    given = options(secured)
    given["kafka.sasl.jaas.config"] = given["kafka.sasl.jaas.config"].replace(password, "guessed-it")
    secured.create_topic("orders")
    with pytest.raises(Exception, match="invalid credentials with SASL mechanism SCRAM-SHA-256") as raised:
        spark.read.format("muster").options(**given, subscribe="orders").load().collect()
    assert "guessed-it" not in str(raised.value)

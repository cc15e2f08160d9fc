"""Queries over topics for tests, on a real Spark."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from muster.coordinator.testing import Broker
from tests.pipeline.logs import given

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

LIMIT_S: Final = 180.0
_LOOK_S: Final = 0.05


def read(spark: SparkSession, broker: Broker, **more: str) -> DataFrame:
    """A batch of topic orders, or of the topics that the options name; `_` in an option's name stands for a
    dot."""
    return spark.read.format("muster").options(**_options(broker, more)).load()


def stream(spark: SparkSession, broker: Broker, **more: str) -> DataFrame:
    """The same, as a stream."""
    return spark.readStream.format("muster").options(**_options(broker, more)).load()


def _options(broker: Broker, more: dict[str, str]) -> dict[str, str]:
    return given(broker, **({} if "subscribePattern" in more else {"subscribe": "orders"}), **more)


def run_to_parquet(rows: DataFrame, lake: Path) -> StreamingQuery:
    """Run a query over everything there is now, to its end."""
    query = (
        rows.writeStream.format("parquet")
        .option("checkpointLocation", str(lake / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(lake / "rows"))
    )
    assert query.awaitTermination(int(LIMIT_S)), "the run did not end"
    return query


def in_parquet(spark: SparkSession, lake: Path) -> list[int]:
    return values(spark.read.parquet(str(lake / "rows")))


def values(rows: DataFrame) -> list[int]:
    return sorted(int(row[0]) for row in rows.select(rows.value.cast("string")).collect())


def wait_for(fact: Callable[[], Any], query: StreamingQuery) -> Any:
    """Wait for the first true result while the query runs; return it."""
    until = time.monotonic() + LIMIT_S
    while not (result := fact()):
        assert query.exception() is None, str(query.exception())
        assert time.monotonic() < until, "it did not come about"
        time.sleep(_LOOK_S)
    return result

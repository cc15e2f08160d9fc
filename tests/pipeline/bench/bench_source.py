"""Records a second of the format "muster" compared with Spark's own `kafka` connector, which runs inside the
JVM.

`python -m tests.pipeline.bench source`

One session on two cores, one broker in its own process, topics of four partitions. The two formats take
turns, so that a busy moment affects both. A stream reads everything in four micro-batches; its rate is that
of the batches, and the notes give the time of the whole runs, since starting a query is expensive and happens
once.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final, NamedTuple

from tests.bench import processes
from tests.bench.figures import Figure
from tests.pipeline.bench import topics
from tests.pipeline.connector.session import open_session
from tests.support.apache_kafka import ApacheKafka

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OURS: Final = "muster"
CONNECTOR: Final = "kafka"
ROUNDS: Final = 3
_BATCHES: Final = 4
_STREAM_SECONDS_MAX: Final = 300


class Topic(NamedTuple):
    """A topic to read. `wanted` is the target ratio to the connector; None: only shown for comparison."""

    name: str
    value_bytes: int
    records_min: int
    batch_bytes: int
    mixed: bool
    wanted: float | None


TOPICS: Final = (
    Topic("100 B", 100, 2_000_000, topics.BATCH_BYTES, False, 0.6),
    Topic("1 KB", 1_000, 400_000, topics.BATCH_BYTES, False, 0.8),
    Topic("50 to 150 B, batches of 16 KB", 100, 1_000_000, 16_384, True, None),
)


class Took(NamedTuple):
    """Seconds of one run: the part that the rate is based on, and the whole."""

    reading_s: float
    whole_s: float


Run = Callable[["SparkSession", str, dict[str, str], int], Took]


def batch(spark: SparkSession, source: str, options: dict[str, str], records: int) -> Took:
    """Read a batch and discard it."""
    began = time.perf_counter()
    frame = spark.read.format(source).options(**options).load()
    frame.write.format("noop").mode("overwrite").save()
    took_s = time.perf_counter() - began
    return Took(took_s, took_s)


def to_nowhere(spark: SparkSession, source: str, options: dict[str, str], records: int) -> Took:
    return _stream(spark, source, options, records, "noop")


def to_parquet(spark: SparkSession, source: str, options: dict[str, str], records: int) -> Took:
    return _stream(spark, source, options, records, "parquet")


def _stream(spark: SparkSession, source: str, options: dict[str, str], records: int, sink: str) -> Took:
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as folder:
        began = time.perf_counter()
        frame = (
            spark.readStream.format(source)
            .options(**options)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", -(-records // _BATCHES))
            .load()
        )
        query = (
            frame.writeStream.format(sink)
            .option("checkpointLocation", f"{folder}/checkpoint")
            .option("path", f"{folder}/rows")
            .trigger(availableNow=True)
            .start()
        )
        if not query.awaitTermination(_STREAM_SECONDS_MAX):
            query.stop()
            raise TimeoutError(f"a stream of {source} took more than {_STREAM_SECONDS_MAX} s")
        whole_s = time.perf_counter() - began
        progress = [each for each in query.recentProgress if each.numInputRows]
        if (read := sum(each.numInputRows for each in progress)) != records:
            raise RuntimeError(f"a stream of {source} read {read} of {records} records")
        return Took(sum(each.durationMs["triggerExecution"] for each in progress) / 1_000, whole_s)


RUNS: Final[dict[str, Run]] = {
    "batch": batch,
    "stream": to_nowhere,
    "stream to Parquet": to_parquet,
}


def measure() -> list[Figure]:
    figures = []
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as scratch:
        spark = open_session(Path(scratch), **{"spark.driver.memory": "2g"})
        try:
            for broker in (_muster, _apache_kafka):
                with broker() as (where, port):
                    for topic in TOPICS if broker is _muster else TOPICS[:2]:
                        figures += _of_topic(spark, topic, where, port)
        finally:
            spark.stop()
    return figures


@contextmanager
def _muster() -> Iterator[tuple[str, int]]:
    with processes.muster() as server:
        yield "", server.port


@contextmanager
def _apache_kafka() -> Iterator[tuple[str, int]]:
    with ApacheKafka() as kafka:
        yield ", from Apache Kafka", kafka.port


def _of_topic(spark: SparkSession, topic: Topic, where: str, port: int) -> Iterator[Figure]:
    name = f"bytes-{topic.value_bytes}-{topic.batch_bytes}"
    records = processes.load(
        topics.fill,
        port=port,
        topic=name,
        value_bytes=topic.value_bytes,
        records_min=topic.records_min,
        batch_bytes=topic.batch_bytes,
        mixed=topic.mixed,
    )
    options = {"kafka.bootstrap.servers": f"127.0.0.1:{port}", "subscribe": name}
    for source in (CONNECTOR, OURS):
        read = spark.read.format(source).options(**options).load().count()
        if read != records:
            raise RuntimeError(f"{source} reads {read} of {records} records")
    for title in RUNS if not where else ("batch", "stream to Parquet"):
        run = RUNS[title]
        took: dict[str, list[Took]] = {CONNECTOR: [], OURS: []}
        for _ in range(ROUNDS):
            for source, runs in took.items():
                runs.append(run(spark, source, options, records))
            pair = ", ".join(f"{each} {records / runs[-1].reading_s:,.0f}" for each, runs in took.items())
            print(f"   {title}, {topic.name}{where}: {pair} rows/s", flush=True)
        rates = {source: [records / each.reading_s for each in runs] for source, runs in took.items()}
        ours, peer = median(rates[OURS]), median(rates[CONNECTOR])
        spread = "; ".join(
            f"{who} {min(rates[source]):,.0f} to {max(rates[source]):,.0f}"
            f", whole runs {median(each.whole_s for each in took[source]):.1f} s"
            for source, who in ((OURS, "ours"), (CONNECTOR, "the connector"))
        )
        # Targets apply to muster as the broker; Apache Kafka's figures are for comparison.
        wanted = None if where else topic.wanted
        yield Figure(
            f"{title}, {topic.name}{where}",
            "rows/s",
            ours,
            peer,
            "connector",
            target="" if wanted is None else f"at least {wanted:g} times",
            reached=None if wanted is None else ours >= wanted * peer,
            note=f"{records:,} records; {spread}",
        )

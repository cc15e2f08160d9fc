"""`rebalances` on journals of 1, 3 and 10 million events: a real journal of 100,000 events, generated on real
brokers in some minutes, is repeated with renamed groups and shifted times.

JOURNAL=FILE keeps the real journal and reuses it; JOURNAL_MILLIONS=1,3 selects other sizes.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

from muster.pipeline.journal import tables
from muster.pipeline.journal.build import Draft, build
from muster.pipeline.journal.streaming import publish, stream
from muster.pipeline.session import spark_session
from tests.bench.figures import Figure
from tests.pipeline.generator import generate_many

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

REAL: Final = 100_000
MILLIONS: Final = (1, 3, 10)
STREAMED: Final = 1
"""Size, in millions of events, at which the stream is compared with the batch."""
FLAT: Final = 1.25
"""Maximum cost of a million events in a larger journal, relative to a million alone."""
_APART_MS: Final = 3_600_000
_FILES_A_MILLION: Final = 4
_SETTINGS: Final = {"spark.driver.memory": "2g", "spark.log.level": "ERROR"}
_LAYERS: Final = {
    "transitions": "bronze to transitions",
    "rebalances": "to rebalances",
    "sessions": "to the rest of silver",
    "member_sessions": "to the rest of silver",
    "owned": "to the rest of silver",
    "ownership": "to the rest of silver",
    "lag_samples": "to the rest of silver",
}
"""Intermediate results and their layer; everything else is gold."""

_CHANGED: Final = re.compile(rb'"group":"[^"]*|"(?:at_ms|started_ms|until_ms|expires_ms)":\d+')
"""What differs in a copy: the group's name, and timestamps."""


def measure() -> list[Figure]:
    millions = [int(each) for each in os.environ.get("JOURNAL_MILLIONS", "").split(",") if each]
    with TemporaryDirectory() as folder:
        real = _real(Path(os.environ.get("JOURNAL", f"{folder}/real.parquet")))
        settings = _SETTINGS | {
            "spark.local.dir": f"{folder}/local",
            "spark.sql.warehouse.dir": f"{folder}/warehouse",
        }
        spark = spark_session("bench of rebalances", master="local[2]", settings=settings)
        try:
            return _measured(spark, real, Path(folder), millions or list(MILLIONS))
        finally:
            spark.stop()


def _real(path: Path) -> Path:
    if not path.exists():
        began = time.monotonic()
        made = generate_many(REAL, path)
        _say(f"{made:,} real events in {time.monotonic() - began:.0f} s")
    return path


def _measured(spark: SparkSession, real: Path, folder: Path, millions: list[int]) -> list[Figure]:
    template = Replay(spark, real)
    _built(template.journal(folder / "warm", 2), folder / "warm-lake")  # warms up the session
    seconds: dict[int, dict[str, float]] = {}
    figures: list[Figure] = []
    compared: dict[str, DataFrame] = {}
    for each in millions:
        copies = round(each * 1e6 / template.events)
        journal = template.journal(folder / f"journal-{each}", copies)
        lake = folder / f"lake-{each}"
        found, seconds[each] = _built(journal, lake)
        rebalances = found[tables.REBALANCES.name].count()
        _say(f"{each} M: {rebalances:,} rebalances of {copies} times {template.events:,} events")
        if each == STREAMED:
            compared = found
        else:
            for done in (lake, folder / f"journal-{each}"):
                rmtree(done, ignore_errors=True)  # ten million events and their tables take gigabytes
    first = seconds[millions[0]]
    for layer in first:
        for each in millions:
            alone = first[layer] / millions[0]
            figures.append(
                Figure(
                    f"rebalances, {layer}, {each} M events",
                    "s per million",
                    seconds[each][layer] / each,
                    alone if each != millions[0] else None,
                    f"{millions[0]} M",
                    f"at most {FLAT}" if each != millions[0] and layer == "all" else "",
                    seconds[each][layer] / each <= FLAT * alone
                    if each != millions[0] and layer == "all"
                    else None,
                )
            )
    if compared:
        journal = folder / f"journal-{STREAMED}"
        figures += _streamed(spark, journal, folder / "streamed", compared, STREAMED)
    return figures


def _built(journal: DataFrame, lake: Path) -> tuple[dict[str, DataFrame], dict[str, float]]:
    """The tables, and the seconds that each layer took."""
    layers: dict[str, float] = dict.fromkeys([*_LAYERS.values(), "to gold"], 0.0)
    with _timed(layers):
        began = time.monotonic()
        found = build(journal, str(lake))
        layers["all"] = time.monotonic() - began
    return found, layers


@contextmanager
def _timed(layers: dict[str, float]) -> Iterator[None]:
    """While this lasts, add the time of each `Draft.keep` to its layer."""
    keep = Draft.keep

    def timed(self: Draft, frame: DataFrame, name: str) -> DataFrame:
        began = time.monotonic()
        found = keep(self, frame, name)
        took_s = time.monotonic() - began
        layers[_LAYERS.get(name, "to gold")] += took_s
        _say(f"  {name}: {took_s:.1f} s")
        return found

    Draft.keep = timed  # type: ignore[method-assign]
    try:
        yield
    finally:
        Draft.keep = keep  # type: ignore[method-assign]


def _streamed(
    spark: SparkSession, journal: Path, lake: Path, batch: dict[str, DataFrame], millions: int
) -> list[Figure]:
    began = time.monotonic()
    events = spark.readStream.schema(tables.BRONZE.ddl).option("maxFilesPerTrigger", 1).parquet(str(journal))
    stream(events, str(lake)).trigger(availableNow=True).start().awaitTermination()
    took_s = time.monotonic() - began
    found = publish(spark, str(lake))
    name = tables.REBALANCES.name
    ours, theirs = found[name], batch[name]
    differ = ours.exceptAll(theirs).count() + theirs.exceptAll(ours).count()
    return [
        Figure(f"rebalances as a stream, {millions} M events", "s", took_s),
        Figure(
            "rows of rebalances that the stream has otherwise",
            "rows",
            differ,
            target="none",
            reached=differ == 0,
            note=f"of {ours.count():,}; the stream took {_FILES_A_MILLION * millions} batches",
        ),
    ]


class Replay:
    """Journals made from a real one: copies follow each other, each with other groups."""

    def __init__(self, spark: SparkSession, real: Path) -> None:
        from pyarrow import parquet

        self._spark = spark
        table = parquet.read_table(real)
        self.events = table.num_rows
        rows, moments = [], []
        for key, value, partition, offset in zip(*(column.to_pylist() for column in table), strict=True):
            texts, numbers = _cut(value)
            moments += numbers[:-1]
            rows.append((key and key.decode(), texts, numbers, partition, offset))
        self._span_ms = max(moments) - min(moments) + _APART_MS
        frame = spark.createDataFrame(
            rows, "key string, texts array<string>, moments array<bigint>, partition int, offset bigint"
        )
        counts = frame.groupBy("partition").count()
        self._real = frame.join(counts, "partition").repartition(4).persist()
        self._real.count()

    def journal(self, to: Path, copies: int) -> DataFrame:
        """Write `copies` of the journal to `to`, in ordered files."""
        files = max(round(copies * self.events / 1e6 * _FILES_A_MILLION), 1)
        for number in range(files):
            since, until = copies * number // files, copies * (number + 1) // files
            if since < until:
                self._copies(since, until).coalesce(1).write.mode("append").parquet(str(to))
        return self._spark.read.schema(tables.BRONZE.ddl).parquet(str(to))

    def _copies(self, since: int, until: int) -> DataFrame:
        session: Any = self._spark
        found: DataFrame = session.sql(
            """
            SELECT CAST(concat(key, '~', id) AS binary) AS key,
                CAST(replace(
                    array_join(zip_with(texts, moments,
                        (text, moment) -> concat(text, coalesce(string(moment + id * {span}), ''))), ''),
                    '\\u0001', concat('~', id)) AS binary) AS value,
                partition, offset + id * count AS offset
            FROM {real} CROSS JOIN {copies}
            """,
            real=self._real,
            copies=session.range(since, until, numPartitions=1),
            span=self._span_ms,
        )
        return found


def _cut(value: bytes) -> tuple[list[str], list[int | None]]:
    """The texts between the timestamps of an entry, with a mark after the group's name, and those timestamps,
    one after each text but the last."""
    texts, moments, at, text = [], [], 0, ""
    for found in _CHANGED.finditer(value):
        if found[0].startswith(b'"group"'):
            text += value[at : found.end()].decode() + "\x01"
        else:
            name, _, moment = found[0].rpartition(b":")
            texts.append(text + value[at : found.start() + len(name) + 1].decode())
            moments.append(int(moment))
            text = ""
        at = found.end()
    return [*texts, text + value[at:].decode()], [*moments, None]


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)

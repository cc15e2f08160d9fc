"""Topics to Parquet on Spark: every record once, however it is broken off."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import TYPE_CHECKING, Any, Self

import pyarrow.dataset
import pytest

from muster.coordinator.testing import Broker
from muster.pipeline.errors import PipelineError
from muster.pipeline.ingest import GROUP_DEFAULT, Ingest, ingest
from muster.pipeline.progress import Teller

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STARTS_S = 180.0
"""How long a job may take to come so far. Spark begins in seconds, on a machine with nothing else to do."""


def fill(broker: Broker, topic: str, first: int, count: int, partitions: int = 2) -> set[bytes]:
    """Write values that say where they are from, over all partitions."""
    values = [f"{topic} {number}".encode() for number in range(first, first + count)]
    for partition in range(partitions):
        broker.produce(topic, [(b"k", each) for each in values[partition::partitions]], partition=partition)
    return set(values)


def for_spark(spark: SparkSession, job: Ingest) -> list[bytes]:
    return sorted(bytes(row.value) for row in spark.read.parquet(job.table).collect())


def for_others(job: Ingest) -> list[bytes]:
    table = pyarrow.dataset.dataset(job.table, format="parquet", partitioning="hive").to_table()
    found: list[bytes] = sorted(table.column("value").to_pylist())
    return found


def run(spark: SparkSession, job: Ingest) -> Teller:
    teller = Teller()
    ingest(spark, job, teller)
    return teller


def test_topics_become_folders(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    broker.create_topic("orders", 2)
    broker.create_topic("payments", 2)
    job = Ingest(broker.bootstrap, str(tmp_path / "lake"), ("orders", "payments"), batch_records=30)
    written = fill(broker, "orders", 0, 50) | fill(broker, "payments", 0, 20)
    first = run(spark, job)
    assert first.totals.records == 70
    assert first.totals.batches >= 3, "batch_records bounds a batch"
    rows = spark.read.parquet(job.table)
    assert {"key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "date"} == set(
        rows.columns
    )
    by_topic = {row.topic: row["count"] for row in rows.groupBy("topic").count().collect()}
    assert by_topic == {"orders": 50, "payments": 20}
    days = {path.name for path in (tmp_path / "lake/topics/topic=orders").iterdir()}
    assert all(re.fullmatch(r"date=\d{4}-\d\d-\d\d", day) for day in days), days
    # Another run goes on where this one ended, and the group shows it.
    written |= fill(broker, "orders", 50, 10)
    assert run(spark, job).totals.records == 10
    assert for_spark(spark, job) == sorted(written)
    assert run(spark, job).totals.records == 0
    ends = {("orders", number): end for number, end in broker.topic("orders").end_offsets().items()}
    ends |= {("payments", number): end for number, end in broker.topic("payments").end_offsets().items()}
    assert broker.group(GROUP_DEFAULT).offsets() == ends


@pytest.mark.parametrize("by_batch", [False, True])
def test_a_batch_that_was_written_but_not_noted(
    spark: SparkSession, broker: Broker, tmp_path: Path, by_batch: bool
) -> None:
    """Killed between the write and Spark's note of it, a job does that batch again: readers see it once."""
    broker.create_topic("orders", 2)
    job = Ingest(broker.bootstrap, str(tmp_path / "lake"), ("orders",), batch_records=20, by_batch=by_batch)
    written = fill(broker, "orders", 0, 50)
    run(spark, job)
    notes = sorted(Path(job.checkpoint, "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    assert len(notes) >= 3
    for path in (notes[-1], notes[-1].with_name(f".{notes[-1].name}.crc")):
        path.unlink()
    written |= fill(broker, "orders", 50, 10)
    run(spark, job)
    assert (for_others(job) if by_batch else for_spark(spark, job)) == sorted(written)


def test_a_batch_that_was_half_written(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    """What a killed job left aside is not seen by other readers, and written anew."""
    broker.create_topic("orders", 2)
    job = Ingest(broker.bootstrap, str(tmp_path / "lake"), ("orders",), by_batch=True)
    left = Path(job.table, "_unfinished", "batch_id=0", "topic=orders", "date=2026-01-31", "part-0.parquet")
    Path(job.checkpoint).mkdir(parents=True)
    Path(job.checkpoint, "metadata").write_text('{"id":"7c3f5f0e-6c5e-4a37-a59d-8d2c9b9d7f11"}')
    left.parent.mkdir(parents=True)
    left.write_bytes(b"")
    written = fill(broker, "orders", 0, 50)
    run(spark, job)
    assert for_others(job) == sorted(written)
    assert not left.exists()
    table = pyarrow.dataset.dataset(job.table, format="parquet", partitioning="hive").to_table()
    assert set(table.column("batch_id").to_pylist()) == {0}
    assert set(table.column("topic").to_pylist()) == {"orders"}


@pytest.mark.parametrize("by_batch", [False, True])
def test_data_without_its_checkpoint(
    spark: SparkSession, broker: Broker, tmp_path: Path, by_batch: bool
) -> None:
    broker.create_topic("orders", 2)
    job = Ingest(broker.bootstrap, str(tmp_path / "lake"), ("orders",), by_batch=by_batch)
    fill(broker, "orders", 0, 10)
    run(spark, job)
    Path(job.checkpoint).rename(tmp_path / "lost")
    with pytest.raises(PipelineError, match=r"not its checkpoint .* nothing tells which records it holds"):
        run(spark, job)


def test_a_checkpoint_without_its_data(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    broker.create_topic("orders", 2)
    job = Ingest(broker.bootstrap, str(tmp_path / "lake"), ("orders",))
    fill(broker, "orders", 0, 10)
    run(spark, job)
    Path(job.table).rename(tmp_path / "lost")
    with pytest.raises(PipelineError, match="but not the data it is about"):
        run(spark, job)


def test_json_values_and_headers(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    broker.create_topic("orders", 1)
    broker.produce("orders", [b'{"id": 7, "name": "x", "more": 1}', b'{"id": "no number"}', b"no json"])
    job = Ingest(
        broker.bootstrap,
        str(tmp_path / "lake"),
        ("orders",),
        headers=True,
        json_schema="id LONG, name STRING",
    )
    run(spark, job)
    rows = spark.read.parquet(job.table).orderBy("offset").select("data.id", "data.name", "value", "headers")
    found: list[Any] = [(row.id, row.name, bytes(row.value)) for row in rows.collect()]
    assert found == [
        (7, "x", b'{"id": 7, "name": "x", "more": 1}'),
        (None, None, b'{"id": "no number"}'),
        (None, None, b"no json"),
    ]


# --- the command, as a process of its own -------------------------------------------------------------------


class Job:
    """The command, in a group of processes of its own; killed at the end of the block if it still runs."""

    def __init__(self, broker: Broker, lake: Path, *options: str) -> None:
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "muster.pipeline.cli",
                "ingest",
                "--topics=orders",
                f"--to={lake}",
                *options,
            ],
            env=os.environ | {"MUSTER_BOOTSTRAP_SERVERS": broker.bootstrap},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.err: list[str] = []
        self._lines: Queue[str | None] = Queue()
        self._reader = Thread(target=self._read, daemon=True)

    def __enter__(self) -> Self:
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._reader.join(STARTS_S)
        for stream in (self._process.stdout, self._process.stderr):
            assert stream is not None
            stream.close()

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def told(self, pattern: str | None) -> None:
        """Read standard error up to a line that matches; None: to its end."""
        until_s = time.monotonic() + STARTS_S
        while True:
            try:
                line = self._lines.get(timeout=until_s - time.monotonic())
            except (Empty, ValueError):
                raise AssertionError(f"{pattern!r} did not come: {self.err}") from None
            if line is None:
                assert pattern is None, f"nothing like {pattern!r} came: {self.err}"
                return
            self.err.append(line)
            if pattern is not None and re.search(pattern, line):
                return

    def ended(self) -> tuple[int, str]:
        """Wait until it ends: the exit code, and standard output."""
        self.told(None)
        assert self._process.stdout is not None
        return self._process.wait(STARTS_S), self._process.stdout.read()

    def signal(self, number: int) -> None:
        """SIGINT goes to all processes of the group, as from a terminal."""
        if number == signal.SIGINT:
            os.killpg(self._process.pid, number)
        else:
            self._process.send_signal(number)

    def kill(self) -> None:
        """As a machine that loses its power would: Python and the JVM at once."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(STARTS_S)


def test_killed_and_started_again(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    broker.create_topic("orders", 2)
    written = fill(broker, "orders", 0, 1_000)
    with Job(broker, tmp_path / "lake", "--every", "200ms", "--batch-records", "50") as first:
        first.told(r"^batch 2: 50 records in .* s \(.* records/s\), lag 850$")
        first.kill()
    written |= fill(broker, "orders", 1_000, 500)
    with Job(broker, tmp_path / "lake") as second:
        code, out = second.ended()
    assert code == 0, second.err
    assert re.fullmatch(rf"[\d,]+ records in \d+ batch(es)? to {tmp_path}/lake/topics\n", out)
    assert for_spark(spark, Ingest(broker.bootstrap, str(tmp_path / "lake"))) == sorted(written)
    noise = [line for line in second.err if not line.startswith(("batch ", "WARNING: Using incubator"))]
    assert noise == []


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_ended_by_a_signal(broker: Broker, tmp_path: Path, number: int, code: int) -> None:
    broker.create_topic("orders", 2)
    fill(broker, "orders", 0, 10)
    with Job(broker, tmp_path / "lake", "--every", "1s") as running:
        running.told("^batch 0: 10 records")
        running.signal(number)
        assert running.ended() == (code, f"10 records in 1 batch to {tmp_path}/lake/topics\n")
    assert not [line for line in running.err if "Traceback" in line], running.err

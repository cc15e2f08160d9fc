"""`muster-pipeline ingest` killed at random points, with its JVM and its workers: every record is stored
once, and the group shows what is finished.

One kill per layout, or as many as KILLS says; SEED repeats the choice of points (make spark-long).
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow.dataset
import pytest

from muster.coordinator.testing import Broker
from muster.pipeline.ingest import GROUP_DEFAULT, Ingest, ingest
from muster.pipeline.progress import Teller
from tests.pipeline.jobs import STARTS_S, Job
from tests.pipeline.logs import add, committed, fill

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KILLS: Final = int(os.environ.get("KILLS") or 1)
PARTITIONS: Final = 2
BATCH: Final = 200
CHANGES_MAX: Final = 300
"""File changes below the lake before the kill: a batch makes some thirty."""
RECORDS: Final = 2_000 * KILLS
"""Per partition; a batch takes a hundred from each, so that no job finishes before it is killed."""

Place = dict[int, int]
"""Offsets by partition."""
BEGIN: Final[Place] = dict.fromkeys(range(PARTITIONS), 0)


@pytest.mark.parametrize("layout", ["spark", "batches"])
def test_killed_at_random_points(spark: SparkSession, broker: Broker, tmp_path: Path, layout: str) -> None:
    seed = int(os.environ.get("SEED") or random.randrange(2**32))
    chance = random.Random(f"{seed} {layout}")
    fill(broker, "orders", *[RECORDS] * PARTITIONS)
    job = Ingest(broker.bootstrap, str(tmp_path), ("orders",), by_batch=layout == "batches")
    seen: list[int] = []
    for kill in range(KILLS):
        changes = chance.randint(1, CHANGES_MAX)
        print(f"seed {seed}, {layout}, kill {kill}: after {changes} changes", end="")
        with Job(
            broker, tmp_path, f"--layout={layout}", f"--batch-records={BATCH}", "--every=10ms"
        ) as running:
            wait_for_changes(running, tmp_path, changes)
            running.kill()
            running.told(None)
        finished = finished_batches(job)
        rows = checked_rows(spark, job)
        at = group_offsets(broker)
        print(f": {len(finished)} batches finished, {rows} rows, the group at {at}")
        # The last batch is committed when the next one is planned.
        places = [BEGIN, *finished]
        if not any("could not be committed" in line for line in running.err):
            places = places[-2:]
        assert at in (places if finished else ({}, BEGIN))
        assert rows >= sum(sum(end.values()) for end in finished[-1:]), "what is finished is there"
        seen.append(rows)
    assert seen == sorted(seen), "nothing that was there went away"
    add(broker, "orders", range(RECORDS, RECORDS + 10))
    ingest(spark, job, Teller())
    assert checked_rows(spark, job) == RECORDS * PARTITIONS + 10
    assert group_offsets(broker) == {0: RECORDS + 10, 1: RECORDS} == finished_batches(job)[-1]


def wait_for_changes(job: Job, lake: Path, count: int) -> None:
    """Wait until this many files and folders have come or gone: a point close to one of the steps of a
    batch."""
    until_s = time.monotonic() + STARTS_S
    before = below(lake)
    while count > 0:
        assert job.runs, f"it ended by itself: {job.err}"
        assert time.monotonic() < until_s, f"{count} changes have not come"
        now = below(lake)
        count -= len(now ^ before)
        before = now


def below(lake: Path) -> set[str]:
    return {f"{folder}/{name}" for folder, folders, files in os.walk(lake) for name in folders + files}


def finished_batches(job: Ingest) -> list[Place]:
    """Where each batch ended that Spark has noted as done, in order."""
    ends = []
    for batch in sorted(numbers(f"{job.checkpoint}/commits")):
        told = json.loads(Path(job.checkpoint, "offsets", str(batch)).read_text().splitlines()[-1])
        ends.append({int(partition): offset for partition, offset in told["orders"].items()})
    return ends


def numbers(folder: str) -> Iterator[int]:
    return (int(path.name) for path in Path(folder).glob("*") if path.name.isdigit())


def checked_rows(spark: SparkSession, job: Ingest) -> int:
    """Number of rows that a reader sees; none may be duplicated, and none may have a gap before it."""
    if job.by_batch:
        if not list(Path(job.table).glob("batch_id=*")):
            return 0
        table = pyarrow.dataset.dataset(job.table, format="parquet", partitioning="hive").to_table()
        found = list(zip(*(table.column(name).to_pylist() for name in ("partition", "offset")), strict=True))
    else:
        if not list(numbers(f"{job.table}/_spark_metadata")):
            return 0
        found = [tuple(row) for row in spark.read.parquet(job.table).select("partition", "offset").collect()]
    for partition in range(PARTITIONS):
        offsets = sorted(offset for where, offset in found if where == partition)
        assert offsets == list(range(len(offsets))), f"partition {partition}"
    return len(found)


def group_offsets(broker: Broker) -> Place:
    return {where.partition: offset for where, offset in committed(broker, GROUP_DEFAULT).items()}

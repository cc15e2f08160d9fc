"""A session with Spark's own connector on its class path, in its own process: it performs read and write
steps and returns the rows.

`python -m tests.pipeline.connector.session STEPS ANSWERS`: two files, JSON lists of `Step` and of `Answer`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.pipeline.connector.jars import connector_jars
from tests.support.java import SPARK

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Row = list[Any]
"""Key, value, topic, partition, offset, timestamp in epoch us, timestampType, headers; bytes in hex."""

BATCH: Final = "batch"
STREAM: Final = "stream"
"""Everything there is now, by AvailableNow, to Parquet."""
WRITE: Final = "write"

_SETTINGS: Final = {
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": SPARK,
    "spark.log.level": "ERROR",
}
_SECONDS_MAX: Final = 600
_STREAM_SECONDS_MAX: Final = 120
_OUT: Final = (
    "key BINARY, value BINARY, topic STRING, partition INT, headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)


@dataclass(frozen=True, slots=True)
class Step:
    """One action with a format. `rows` are to be written: key, value, topic, partition, headers; bytes in
    hex. A stream continues where the previous one with the same `checkpoint` ended, and adds to its rows."""

    name: str
    format: str
    kind: str
    options: Mapping[str, str]
    rows: Sequence[Row] = ()
    checkpoint: str = ""


@dataclass(slots=True)
class Answer:
    """The result of a step. `rows` are in the order of reading within a partition."""

    rows: list[Row] = field(default_factory=list)
    schema: str = ""
    tasks: int = 0
    """Number of tasks that had rows."""
    offsets: list[dict[str, dict[str, int]]] = field(default_factory=list)
    """Where each micro-batch of a stream ended, according to its checkpoint."""
    error: str = ""
    """The start of the error message; empty without an error."""


def run(steps: Sequence[Step], folder: Path) -> list[Answer]:
    """Run the steps in a new process, which leaves its output in `folder`. Raises AssertionError with the end
    of its log if it fails."""
    told, answered, log = folder / "steps.json", folder / "answers.json", folder / "session.log"
    told.write_text(json.dumps([asdict(each) for each in steps]))
    command = [sys.executable, "-m", "tests.pipeline.connector.session", str(told), str(answered)]
    with log.open("wb") as out:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, timeout=_SECONDS_MAX, cwd=_ROOT
        )
    assert done.returncode == 0, log.read_text(errors="replace")[-4_000:]
    return [Answer(**each) for each in json.loads(answered.read_text())]


_ROOT: Final = Path(__file__).parents[3]


def open_session(scratch: Path, **more: str) -> SparkSession:
    """Spark on two cores of this machine, with the connector."""
    from muster.pipeline.session import spark_session

    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings = _SETTINGS | {
        "spark.jars": ",".join(map(str, connector_jars())),
        "spark.local.dir": str(scratch / "local"),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
    }
    return spark_session("the connector beside ours", master="local[2]", settings=settings | more)


def _done(spark: SparkSession, step: Step, scratch: Path, number: int) -> Answer:
    if step.kind == WRITE:
        given = [
            (_bytes(key), _bytes(value), topic, partition, [(name, _bytes(each)) for name, each in headers])
            for key, value, topic, partition, headers in step.rows
        ]
        frame = spark.createDataFrame(given, _OUT).coalesce(1)
        frame.write.format(step.format).options(**step.options).mode("append").save()
        return Answer()
    if step.kind == BATCH:
        frame = spark.read.format(step.format).options(**step.options).load()
        rows, tasks = _rows(frame)
        return Answer(rows, frame.schema.json(), tasks)
    frame = spark.readStream.format(step.format).options(**step.options).load()
    schema = frame.schema.json()
    folder = scratch / (step.checkpoint or f"stream-{number}")
    checkpoint = folder / "checkpoint"
    query = (
        frame.writeStream.format("parquet")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start(str(folder / "rows"))
    )
    assert query.awaitTermination(_STREAM_SECONDS_MAX), "the run did not end"
    ends = sorted((checkpoint / "offsets").glob("[0-9]*"), key=lambda each: int(each.name))
    rows, tasks = _rows(spark.read.schema(frame.schema).parquet(str(folder / "rows")))
    return Answer(
        rows,
        schema,
        tasks,
        offsets=[json.loads(each.read_text().splitlines()[-1]) for each in ends],
    )


def _rows(frame: DataFrame) -> tuple[list[Row], int]:
    """The rows, and the number of tasks that read some."""
    columns = [
        "hex(key)",
        "hex(value)",
        "topic",
        "partition",
        "offset",
        "unix_micros(timestamp)",
        "timestampType",
    ]
    if "headers" in frame.columns:
        columns.append("transform(headers, each -> array(each.key, hex(each.value)))")
    found = [list(row) for row in frame.selectExpr(*columns, "spark_partition_id()").collect()]
    tasks = len({row.pop() for row in found})
    return sorted(found, key=lambda row: row[2:4]), tasks


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else bytes.fromhex(text)


def main(told: str, answered: str) -> None:
    steps = [Step(**each) for each in json.loads(Path(told).read_text())]
    with tempfile.TemporaryDirectory(prefix="muster-connector-") as folder:
        scratch = Path(folder)
        spark = open_session(scratch)
        answers = []
        for number, step in enumerate(steps):
            began = time.monotonic()
            try:
                answers.append(_done(spark, step, scratch, number))
            except Exception as error:
                answers.append(Answer(error=str(error)[:2_000] or repr(error)))
            print(f"{step.kind} {step.name} {step.format}: {time.monotonic() - began:.1f} s", flush=True)
        spark.stop()
    Path(answered).write_text(json.dumps([asdict(each) for each in answers]))


if __name__ == "__main__":
    main(*sys.argv[1:])

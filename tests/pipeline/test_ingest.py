"""Topics to Parquet on Spark: every record once, however the job is interrupted."""

from __future__ import annotations

import json
import re
import signal
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow.dataset
import pytest
from pyspark.errors import PySparkException
from pyspark.sql.types import StructType

from muster.client import TopicPartition
from muster.coordinator.testing import Broker
from muster.pipeline.avro import Avro
from muster.pipeline.errors import OptionError, PipelineError, from_spark
from muster.pipeline.ingest import GROUP_DEFAULT, Ingest, check_values, ingest
from muster.pipeline.progress import Teller
from tests.pipeline.jobs import Job
from tests.pipeline.logs import committed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LONG_MS: Final = {"type": "long", "logicalType": "timestamp-millis"}
QUIET: Final = frozenset({"WARNING: Using incubator modules: jdk.incubator.vector"})
"""Java's own messages."""


def fill(broker: Broker, topic: str, first: int, count: int, partitions: int = 2) -> set[bytes]:
    """Write values that name their origin, spread over all partitions."""
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
    # Another run continues where this one ended, and the group shows it.
    written |= fill(broker, "orders", 50, 10)
    assert run(spark, job).totals.records == 10
    assert for_spark(spark, job) == sorted(written)
    assert run(spark, job).totals.records == 0
    ends = {TopicPartition("orders", number): 30 for number in range(2)}
    ends |= {TopicPartition("payments", number): 10 for number in range(2)}
    assert committed(broker, GROUP_DEFAULT) == ends


@pytest.mark.parametrize("by_batch", [False, True])
def test_a_batch_that_was_written_but_not_noted(
    spark: SparkSession, broker: Broker, tmp_path: Path, by_batch: bool
) -> None:
    """A job that is killed between writing a batch and Spark's note of it repeats the batch: readers see it
    once."""
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
    """Other readers do not see what a killed job left aside, and it is written again."""
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


def test_a_first_batch_that_was_half_planned(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    """Spark first writes the plan of a batch to a temporary file; if it is killed then, nothing has been
    planned."""
    broker.create_topic("orders", 2)
    job = Ingest(broker.bootstrap, str(tmp_path / "lake"), ("orders",))
    offsets = Path(job.checkpoint, "offsets")
    offsets.mkdir(parents=True)
    Path(job.checkpoint, "metadata").write_text('{"id":"7c3f5f0e-6c5e-4a37-a59d-8d2c9b9d7f11"}')
    (offsets / ".0.20f7066c-2f92-4d08-895b-3380529b4dcf.tmp").write_bytes(b"v1\n{")
    written = fill(broker, "orders", 0, 50)
    run(spark, job)
    assert for_spark(spark, job) == sorted(written)


def test_a_job_that_was_killed_before_it_had_a_checkpoint(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    """By then Spark has created the table's folders, with nothing in them."""
    broker.create_topic("orders", 2)
    job = Ingest(broker.bootstrap, str(tmp_path / "lake"), ("orders",))
    Path(job.table, "_spark_metadata").mkdir(parents=True)
    written = fill(broker, "orders", 0, 50)
    run(spark, job)
    assert for_spark(spark, job) == sorted(written)


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
    first = b'{"id": 7, "name": "x", "more": 1, "until": "9999-12-31T00:00:00Z"}'
    broker.produce("orders", [first, b'{"id": "no number"}', b"no json"])
    job = Ingest(
        broker.bootstrap,
        str(tmp_path / "lake"),
        ("orders",),
        headers=True,
        json_schema="id LONG, name STRING, until TIMESTAMP",
    )
    run(spark, job)
    rows = spark.read.parquet(job.table).orderBy("offset").select("data.id", "data.name", "value", "headers")
    found: list[Any] = [(row.id, row.name, bytes(row.value)) for row in rows.collect()]
    assert found == [
        (7, "x", first),
        (None, None, b'{"id": "no number"}'),
        (None, None, b"no json"),
    ]
    # Other readers see the same times.
    table = pyarrow.dataset.dataset(job.table, format="parquet", partitioning="hive").to_table()
    until = table.column("data").combine_chunks().field("until").to_pylist()
    assert [each for each in until if each is not None] == [datetime(9999, 12, 31, tzinfo=UTC)]
    assert table.schema.field("timestamp").type == pyarrow.timestamp("us", tz="UTC")


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("id LNG", ": .*LNG"),
        ("id LONG,", ": .*Syntax error"),
        ("id: LONG, name: STRING", ": .*Syntax error at or near ':'"),
        ('{"type": "struct"}', ": .*Syntax error"),
        ("", ": .*empty statement"),
        ("INT", r': .*"INT" must be a struct, an array, a map or a variant[^\n]*[^\n;]$'),
        ("of MAP<INT, STRING>", ": .* can only contain STRING as a key type"),
        ("id CHAR(3)", ": .*The char/varchar type can't be used"),
        ("STRUCT<>", "$"),
    ],
)
def test_a_json_schema_that_spark_does_not_understand(spark: SparkSession, given: str, why: str) -> None:
    job = Ingest("127.0.0.1:9092", "lake", ("orders",), json_schema=given)
    told = re.escape(f"--json-schema {given!r}: it takes fields, as in 'id LONG, name STRING'")
    with pytest.raises(OptionError, match=f"^{told}{why}"):
        check_values(spark, job)


@pytest.mark.parametrize(
    "given",
    [
        "id LONG, name STRING",
        "STRUCT<id: LONG, of: ARRAY<STRUCT<name: STRING>>>",
        "MAP<STRING, INT>",
        "VARIANT",
        StructType().add("id", "long").json(),
    ],
)
def test_a_json_schema_that_spark_understands(spark: SparkSession, given: str) -> None:
    check_values(spark, Ingest("127.0.0.1:9092", "lake", ("orders",), json_schema=given))


def test_fields_whose_names_differ_in_case_only(spark: SparkSession, tmp_path: Path) -> None:
    """Spark would write them, and then not read the table."""
    path = tmp_path / "order.avsc"
    fields = [{"name": name, "type": "long"} for name in ("userId", "userid")]
    lines = {"type": "array", "items": {"type": "record", "name": "Line", "fields": fields}}
    schema = {"type": "record", "name": "Order", "fields": [{"name": "lines", "type": lines}]}
    path.write_text(json.dumps(schema))
    job = Ingest("127.0.0.1:9092", "lake", ("orders",))
    avro = job._replace(avro=Avro.of([(None, str(path))]))
    with pytest.raises(
        OptionError, match=r"^--avro-schema: to Spark, data\.lines\.userId and data\.lines\.userid are one"
    ):
        check_values(spark, avro)
    for ddl, name in (
        ("userId LONG, userid STRING", "data"),
        ("of MAP<STRING, STRUCT<userId: LONG, userid: LONG>>", "data.of"),
    ):
        with pytest.raises(
            OptionError, match=rf"^--json-schema: to Spark, {name}\.userId and {name}\.userid are one name"
        ):
            check_values(spark, job._replace(json_schema=ddl))
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        check_values(spark, avro)
    finally:
        spark.conf.unset("spark.sql.caseSensitive")
    check_values(spark, job._replace(json_schema="a STRUCT<id: LONG>, id LONG, b STRUCT<ID: LONG>"))


@pytest.mark.parametrize("case_sensitive", ["false", "true"])
def test_fields_of_one_name(spark: SparkSession, case_sensitive: str) -> None:
    job = Ingest("127.0.0.1:9092", "lake", ("orders",), json_schema="a STRUCT<id: LONG, id: STRING>")
    spark.conf.set("spark.sql.caseSensitive", case_sensitive)
    try:
        with pytest.raises(OptionError, match=r"^--json-schema: data\.a\.id is there twice, .*: rename one$"):
            check_values(spark, job)
    finally:
        spark.conf.unset("spark.sql.caseSensitive")


def test_avro_values_of_two_schemas_of_a_registry(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    broker.create_topic("orders", 1)
    fields = [{"name": "id", "type": "long"}]
    files = []
    for number, more in ((7, []), (8, [{"name": "at", "type": LONG_MS, "default": 0}])):
        path = tmp_path / f"{number}.avsc"
        path.write_text(json.dumps({"type": "record", "name": "Order", "fields": [*fields, *more]}))
        files.append((number, str(path)))
    # Avro encodes 5 as the byte 10, and 1 as the byte 2.
    broker.produce("orders", [b"\0\0\0\0\x07\x0a", b"\0\0\0\0\x08\x0a\x02", b"no avro", (b"gone", None)])
    job = Ingest(broker.bootstrap, str(tmp_path / "lake"), ("orders",), headers=True, avro=Avro.of(files))
    run(spark, job)
    rows = spark.read.parquet(job.table).orderBy("offset")
    assert rows.schema["data"].dataType.simpleString() == "struct<id:bigint,at:timestamp>"
    found = rows.selectExpr(
        "data.id", "unix_millis(data.at) AS at", "data IS NULL AS none", "topic"
    ).collect()
    assert [tuple(row)[:3] for row in found] == [
        (5, 0, False),
        (5, 1, False),
        (None, None, True),
        (None, None, True),
    ]
    without = job._replace(to=str(tmp_path / "other"), avro=Avro.of([(None, files[0][1])]))
    with pytest.raises(PySparkException) as refused:
        run(spark, without)
    assert "--avro-schema takes ID=FILE then, here 7=FILE" in (from_spark(refused.value) or "")


# --- the command, as a process of its own -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layout", "number", "to_all", "ignored", "code"),
    [
        pytest.param("batches", signal.SIGTERM, False, None, 143, id="kill"),
        pytest.param("spark", signal.SIGTERM, True, None, 143, id="service manager"),
        # A command that a script starts with & inherits this; it must not get in the way of kill -INT.
        pytest.param("spark", signal.SIGINT, True, signal.SIGINT, 130, id="interrupt"),
    ],
)
def test_ended_by_a_signal(
    broker: Broker, tmp_path: Path, layout: str, number: int, to_all: bool, ignored: int | None, code: int
) -> None:
    """It ends in order and leaves nothing behind: no JVM, no worker."""
    broker.create_topic("orders", 2)
    fill(broker, "orders", 0, 10)
    job = Ingest(broker.bootstrap, str(tmp_path), by_batch=layout == "batches")
    with Job(broker, tmp_path, f"--layout={layout}", "--every=1s", ignoring=ignored) as running:
        running.told("^batch 0: 10 records")
        running.signal(number, to_all=to_all)
        assert running.ended() == (code, f"10 records in 1 batch to {job.table}\n")
    told = [line for line in running.err if line not in QUIET and not line.startswith("batch ")]
    # A JVM that also got the signal may say which of its threads it tore down; our own code says nothing.
    assert [line for line in told if not to_all or line.startswith("muster-pipeline")] == []


def test_ended_before_spark_has_begun(broker: Broker, tmp_path: Path) -> None:
    """A JVM that is abandoned while it starts would stay forever."""
    broker.create_topic("orders", 2)
    with Job(broker, tmp_path, "--every=1s") as running:
        running.wait_for("org.apache.spark.deploy.SparkSubmit")
        running.signal(signal.SIGTERM)
        assert running.ended() == (143, "")

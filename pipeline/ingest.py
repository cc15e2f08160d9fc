"""`muster-pipeline ingest`: topics to Parquet, in folders by topic and date.

    TO/topics/topic=orders/date=2026-01-31/part-....parquet       --layout spark
    TO/topics-by-batch/batch_id=0/topic=orders/date=.../part-...  --layout batches
    TO/_checkpoints/topics, TO/_checkpoints/topics-by-batch       where each of them resumes

The checkpoint determines what is read next, and a batch is reread from exactly the same offsets until it is
written. Spark's own readers see each record once: they follow the list of files in `_spark_metadata`. Others
do not know that list and would see the files of an interrupted batch. For them, the second layout writes a
batch under `_unfinished` and renames its folder when it is complete; an existing folder is not written again.
"""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from muster.pipeline.access import Access, with_access
from muster.pipeline.arguments import add_pace, command, in_arguments, positive, setting
from muster.pipeline.avro import Avro, schema_file
from muster.pipeline.cluster import check_topics
from muster.pipeline.errors import OptionError, PipelineError, from_spark
from muster.pipeline.options import source_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import DataStreamWriter
    from pyspark.sql.types import DataType

    from muster.pipeline.files import Files

GROUP_DEFAULT: Final = "muster-pipeline-ingest"
BATCH_RECORDS_DEFAULT: Final = 1_000_000
_FOLDERS: Final = ("topic", "date")

_ARGUMENTS: Final = {
    "kafka.group.id": "--group",
    "startingOffsets": "--from",
    "subscribe": "--topics",
    "subscribePattern": "--pattern",
}
"""Source options that have their own argument, apart from the servers, which a variable may give, too."""

_DESCRIPTION: Final = """\
Reads topics and writes them as Parquet, in folders by topic and by the date (UTC) of the records' timestamps.
It may be ended and started again at any point: it goes on where the last complete batch ended, and readers
see each record once. Where it has come to is committed to a group, so that lag tools show it.

--layout spark     TO/topics: for readers on Spark, which go by the list in TO/topics/_spark_metadata
--layout batches   TO/topics-by-batch: for all others too (pyarrow, DuckDB), a folder for each batch which
                   appears when it is complete and stays as it is

Progress is told on standard error, a line for each batch."""


class Ingest(NamedTuple):
    """An ingest job."""

    bootstrap_servers: str
    to: str
    topics: tuple[str, ...] = ()
    """Their names; empty if there is a pattern."""
    pattern: str | None = None
    every_ms: int | None = None
    """The time between batches; None: read up to the current ends of the topics, then stop."""
    starting: str = "earliest"
    group: str = GROUP_DEFAULT
    batch_records: int = BATCH_RECORDS_DEFAULT
    headers: bool = False
    by_batch: bool = False
    """Whether to write the layout for readers other than Spark's."""
    json_schema: str | None = None
    avro: Avro | None = None
    """How to decode values, if they are Avro."""
    options: tuple[tuple[str, str], ...] = ()
    """More options of the source."""

    @property
    def table(self) -> str:
        """The folder of the data."""
        return f"{self.to}/{self._name}"

    @property
    def checkpoint(self) -> str:
        return f"{self.to}/_checkpoints/{self._name}"

    @property
    def _name(self) -> str:
        return "topics-by-batch" if self.by_batch else "topics"


def declare(commands: Any) -> None:
    """Add the command."""
    parser = command(commands, "ingest", "topics to Parquet", _DESCRIPTION)
    topics = parser.add_mutually_exclusive_group(required=True)
    topics.add_argument("--topics", metavar="TOPIC[,TOPIC]", help="what to read")
    topics.add_argument(
        "--pattern",
        metavar="REGEX",
        help="read all topics in whose name it is found, also those to come; ^orders$ is that one alone",
    )
    parser.add_argument("--to", required=True, metavar="FOLDER", help="where to write: a path, or a URI")
    add_pace(parser)
    parser.add_argument(
        "--from",
        dest="starting",
        default="earliest",
        metavar="WHERE",
        help="where to begin when there is no checkpoint yet: earliest (default), latest, group (what\n"
        '--group has committed), or JSON like {"orders": {"0": 120, "1": -2}} (-2 earliest, -1 latest)',
    )
    parser.add_argument(
        "--group",
        default=GROUP_DEFAULT,
        metavar="GROUP",
        help=f"the group that progress is committed to (default {GROUP_DEFAULT})",
    )
    parser.add_argument(
        "--batch-records",
        type=positive,
        default=BATCH_RECORDS_DEFAULT,
        metavar="N",
        help=f"how many records a batch may have (default {BATCH_RECORDS_DEFAULT})",
    )
    parser.add_argument("--headers", action="store_true", help="write the records' headers too (slower)")
    values = parser.add_mutually_exclusive_group()
    values.add_argument(
        "--json-schema",
        metavar="DDL",
        help="values are JSON objects: add a column `data` with these fields, say 'id LONG, name STRING'\n"
        "(the value itself stays; fields that are missing or of another type are null)",
    )
    values.add_argument(
        "--avro-schema",
        type=schema_file,
        action="append",
        default=[],
        metavar="[ID=]FILE",
        help="values are Avro: add a column `data` with the fields of the schema in FILE (the value itself\n"
        "stays; data is null where it is none of the schema, or has a date or time outside the years 1 to\n"
        "9999). Where a schema registry's id stands before values, ID=FILE for each schema there is; the\n"
        "last one says what the column looks like",
    )
    parser.add_argument(
        "--option",
        type=setting,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="another option of the source, say failOnDataLoss=false or\n"
        "kafka.isolation.level=read_committed; may be repeated",
    )
    parser.add_argument(
        "--layout", choices=("spark", "batches"), default="spark", help="for which readers (default spark)"
    )
    parser.set_defaults(work=_work)


def _work(given: Namespace) -> int:
    from muster.pipeline.progress import Teller
    from muster.pipeline.session import end_session, open_session

    job = _job(given)
    check_options(job, given.servers_from)
    brokers = check_topics(job.bootstrap_servers, job.topics, Access.of(dict(job.options)))
    spark = open_session(given, brokers)
    try:
        check_values(spark, job)
        teller = Teller()
        try:
            ingest(spark, job, teller)
        finally:
            print(f"{teller.totals} to {job.table}", flush=True)
    finally:
        end_session(spark)
    return 0


def _job(given: Namespace) -> Ingest:
    topics = tuple(each.strip() for each in (given.topics or "").split(",") if each.strip())
    if given.topics is not None and not topics:
        raise OptionError(f"--topics {given.topics!r}: it takes names, with commas between them")
    to = given.to.rstrip("/")
    if not to:
        raise OptionError(f"--to {given.to!r}: it takes a folder")
    return Ingest(
        bootstrap_servers=given.bootstrap_server,
        topics=topics,
        pattern=given.pattern,
        to=to,
        every_ms=given.every,
        starting=given.starting,
        group=given.group,
        batch_records=given.batch_records,
        headers=given.headers,
        by_batch=given.layout == "batches",
        json_schema=given.json_schema,
        avro=Avro.of(given.avro_schema),
        options=with_access(given.option, given.command_config, given.config_from),
    )


def check_options(job: Ingest, servers_from: str) -> None:
    """Raises OptionError for options that the source would refuse, in terms of the command line;
    `servers_from` is the argument or variable that has the address."""
    options = reader_options(job)
    try:
        source_options(options, streaming=True)
    except OptionError as error:
        arguments = {"kafka.bootstrap.servers": servers_from, **_ARGUMENTS}
        raise OptionError(in_arguments(str(error), arguments)) from None


def check_values(spark: SparkSession, job: Ingest) -> None:
    """Raises OptionError for a `--json-schema` that Spark's from_json refuses, and for fields of `data` that
    Spark would write, but not read."""
    if job.json_schema is not None:
        option, data = "--json-schema", _parsed(spark, job.json_schema)
    elif job.avro is not None:
        option, data = "--avro-schema", job.avro.spark_type()
    else:
        return
    _check_names(data, "data", option, spark.conf.get("spark.sql.caseSensitive") != "false")


def _parsed(spark: SparkSession, ddl: str) -> DataType:
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions as sql
    from pyspark.sql.types import StructType

    takes = f"--json-schema {ddl!r}: it takes fields, as in 'id LONG, name STRING'"
    try:
        # DataType.fromDDL takes other texts than from_json does.
        found = spark.range(0).select(sql.from_json(sql.lit(""), ddl).alias("data")).schema["data"].dataType
    except AnalysisException as error:
        why = (from_spark(error) or "").partition("\n")[0].rstrip(";")
        raise OptionError(f"{takes}: {why}") from None
    if found == StructType():
        raise OptionError(takes)
    return found


def _check_names(of: DataType, name: str, option: str, case_sensitive: bool) -> None:
    """Raises OptionError if names of fields are equal, or differ in case only where that is no difference."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(of, ArrayType):
        _check_names(of.elementType, name, option, case_sensitive)
    elif isinstance(of, MapType):
        _check_names(of.valueType, name, option, case_sensitive)
    elif isinstance(of, StructType):
        names: dict[str, str] = {}
        for each in of.fields:
            key = each.name if case_sensitive else each.name.lower()
            if names.get(key) == each.name:
                raise OptionError(
                    f"{option}: {name}.{each.name} is there twice, and Spark could not read the table:"
                    " rename one"
                )
            if key in names:
                raise OptionError(
                    f"{option}: to Spark, {name}.{names[key]} and {name}.{each.name} are one name, and it"
                    " could not read the table: rename one, or set spark.sql.caseSensitive=true, here with"
                    " --conf and wherever the table is read"
                )
            names[key] = each.name
            _check_names(each.dataType, f"{name}.{each.name}", option, case_sensitive)


def ingest(spark: SparkSession, job: Ingest, teller: Any) -> None:
    """Run the job until it is done, or for ever; `teller` is a `muster.pipeline.progress.Teller`. Raises
    PipelineError, and Spark's own errors."""
    from muster.pipeline.files import Files
    from muster.pipeline.progress import follow

    files = Files(spark, job.to)
    refuse_halves(files, job)
    rows = shaped(_read(spark, job), job)
    writer = rows.writeStream.option("checkpointLocation", job.checkpoint).queryName(f"ingest to {job.table}")
    writer = _by_batch(writer, files, job.table) if job.by_batch else _for_spark(writer, job.table)
    if job.every_ms is None:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=f"{job.every_ms} milliseconds")
    follow(writer.start(), teller)


def refuse_halves(files: Files, job: Ingest) -> None:
    """Raises PipelineError for data without its checkpoint, or a checkpoint without its data.

    Without the checkpoint, batches would count from 0 again, and those whose number already exists would be
    skipped: their records would be lost. Without the list of files, Spark fails when it compacts that list.
    """
    begun = any(name.isdigit() for name in files.names(f"{job.checkpoint}/commits"))
    listed = f"{job.table}/_spark_metadata"
    # Spark creates the folders first: a job that is killed then leaves them empty.
    holds_data = files.has_data(job.table) or any(name.isdigit() for name in files.names(listed))
    if holds_data and not files.exists(f"{job.checkpoint}/metadata"):
        raise PipelineError(
            f"{job.table} is there, but not its checkpoint {job.checkpoint}: nothing tells which records it"
            " holds. Write to another folder; or remove this one, and all is read again"
        )
    if begun and not job.by_batch and not files.exists(listed):
        raise PipelineError(
            f"the checkpoint {job.checkpoint} is there, but not the data it is about in {job.table}."
            " Put the data back; or remove the checkpoint, and all is read again"
        )


def _read(spark: SparkSession, job: Ingest) -> DataFrame:
    return spark.readStream.format("muster").options(**reader_options(job)).load()


def reader_options(job: Ingest) -> dict[str, str]:
    """The source's options. Raises OptionError for an option that has its own argument."""
    options = {
        "kafka.bootstrap.servers": job.bootstrap_servers,
        "kafka.group.id": job.group,
        "startingOffsets": job.starting,
        "maxOffsetsPerTrigger": str(job.batch_records),
        "includeHeaders": str(job.headers).lower(),
    }
    if job.pattern is not None:
        options["subscribePattern"] = job.pattern
    else:
        options["subscribe"] = ",".join(job.topics)
    ours = {name.lower() for name in options}
    for name, value in job.options:
        if name.lower() in ours:
            raise OptionError(
                f"--option {name}: ingest has an argument of its own for this; --help lists them"
            )
        options[name] = value
    return options


def shaped(records: DataFrame, job: Ingest) -> DataFrame:
    """Records with a column `date`, and `data` if the format of values is known; batch or stream."""
    from pyspark.sql import functions as sql

    if job.json_schema is not None:
        records = records.withColumn("data", sql.from_json(sql.col("value").cast("string"), job.json_schema))
    elif job.avro is not None:
        records = records.mapInArrow(job.avro.rows, job.avro.with_rows(records.schema))
    return records.withColumn("date", sql.to_date("timestamp"))


def _for_spark(writer: DataStreamWriter, table: str) -> DataStreamWriter:
    return writer.format("parquet").option("path", table).partitionBy(*_FOLDERS)


def _by_batch(writer: DataStreamWriter, files: Files, table: str) -> DataStreamWriter:
    def write(rows: DataFrame, batch_id: int) -> None:
        write_batch(rows, batch_id, files, table)

    return writer.foreachBatch(write)


def write_batch(rows: DataFrame, batch_id: int, files: Files, table: str) -> None:
    """Write a batch to its own folder, which appears when it is complete. An existing one was written from
    the same offsets, before Spark could record it."""
    folder = f"batch_id={batch_id}"
    # Readers skip folders whose names begin with an underscore.
    aside = f"{table}/_unfinished/{folder}"
    if files.exists(f"{table}/{folder}"):
        if not files.has_data(aside):
            return
        # An object store renames by copying, then deleting: this rename was interrupted.
        files.remove(f"{table}/{folder}")
    rows.write.mode("overwrite").partitionBy(*_FOLDERS).parquet(aside)
    files.move(aside, f"{table}/{folder}")

"""`muster-pipeline rebalances`: tables from the journal of what happened to groups."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING, Any, Final

from muster.pipeline.access import Access, with_access
from muster.pipeline.arguments import add_pace, command, positive, setting
from muster.pipeline.cluster import check_topics
from muster.pipeline.errors import OptionError, PipelineError
from muster.pipeline.journal.tables import BRONZE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPIC: Final = "__group_events"
BATCH_RECORDS_DEFAULT: Final = 200_000
_STATEFUL: Final = ("pandas", "google.protobuf")
"""Modules that transformWithState imports on executors."""
_LINES: Final = "key string, value string, partition int, offset bigint"
_SUFFIXES: Final = (".jsonl", ".json")


def declare(commands: Any) -> None:
    """Add the command to `commands`."""
    parser = command(
        commands,
        "rebalances",
        "tables of why groups rebalanced, how long that took and what it cost",
        """
Reads the coordinator's journal, the topic __group_events, and writes Parquet below --to: its records in
bronze/, what happened in silver/ (transitions, rebalances, member_sessions, ownership, lag_samples), what
that answers in gold/ (causes_per_hour, group_health, unavailability, cost_per_cause, flapping, deploys,
failover_impact). It may be ended and started again at any point: it goes on where the last complete batch
ended, and keeps what the topic has forgotten since. With --every the tables of silver and gold are made anew
after the first batch, and from then on once a minute at most and for a tenth of the time at most; when it is
ended, the batches since then come into the tables with the next run.
""",
    )
    parser.add_argument("--to", metavar="FOLDER", required=True, help="where the tables go")
    when = add_pace(parser)
    when.add_argument(
        "--events",
        metavar="PATH",
        help="read these records instead of the topic, all at once: Parquet that ingest wrote or, in\n"
        "bronze/events, this command; or a file .jsonl with key, value, partition and offset in each line",
    )
    parser.add_argument(
        "--batch-records",
        type=positive,
        default=BATCH_RECORDS_DEFAULT,
        metavar="N",
        help=f"how many records of the topic a batch may have (default {BATCH_RECORDS_DEFAULT})",
    )
    parser.add_argument(
        "--option",
        type=setting,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="another option of the source; failOnDataLoss=false goes on when the topic has forgotten what\n"
        "was not read yet; may be repeated",
    )
    parser.set_defaults(work=run)


def run(given: Namespace) -> int:
    """Run the command. Returns the exit code. Raises PipelineError."""
    to = given.to.rstrip("/")
    if not to:
        raise OptionError(f"--to {given.to!r}: it takes a folder")
    return _from_files(given, to) if given.events is not None else _from_topic(given, to)


def _from_topic(given: Namespace, to: str) -> int:
    from muster.pipeline.journal.job import Job, check, keep_up, told
    from muster.pipeline.session import end_session, open_session

    options = with_access(given.option, given.command_config, given.config_from)
    job = Job(given.bootstrap_server, to, given.every, given.batch_records, options)
    check(job, given.servers_from)
    brokers = check_topics(given.bootstrap_server, [TOPIC], Access.of(dict(options)))
    spark = open_session(given, brokers, _STATEFUL)
    try:
        found = keep_up(spark, job)
        if found is not None:
            print(told(found, to), flush=True)
        return 0
    finally:
        end_session(spark)


def _from_files(given: Namespace, to: str) -> int:
    from muster.pipeline.journal.build import build
    from muster.pipeline.journal.job import told
    from muster.pipeline.session import end_session, open_session

    spark = open_session(given)
    try:
        check_events(spark, given.events)
        print(told(build(events(spark, given.events), to), to), flush=True)
        return 0
    finally:
        end_session(spark)


def check_events(spark: SparkSession, path: str) -> None:
    """Raises PipelineError if `path` does not exist on the file system that Spark resolves it to."""
    from muster.pipeline.files import Files

    if not Files(spark, path).exists(path):
        raise PipelineError(f"--events: there is no {path}")


def events(spark: SparkSession, path: str) -> DataFrame:
    """The bronze table. A record that is there twice, in dumps that overlap for example, counts once."""
    from muster.pipeline.files import literal
    from muster.pipeline.journal.folders import Folders

    columns = BRONZE.names
    if path.endswith(_SUFFIXES):
        lines = spark.read.schema(_LINES).json(literal(path))
        told = lines.selectExpr("CAST(key AS binary)", "CAST(value AS binary)", "partition", "offset")
        return told.distinct()
    # A killed job may have left a merged folder beside those that it replaces: the same rows twice.
    bronze = Folders(spark, path, BRONZE.ddl)
    if bronze.spans():
        return bronze.read(bronze.last())
    found = spark.read.parquet(literal(path))
    missing = [each for each in columns if each not in found.columns]
    if missing:
        raise PipelineError(f"--events: {path} has no column {missing[0]}; it takes {', '.join(columns)}")
    if "topic" in found.columns:
        found = found.where(found.topic == TOPIC)
    return found.select(*columns).distinct()

"""`muster-pipeline rebalances`: tables from the journal of what happened to groups."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from muster.pipeline.arguments import command
from muster.pipeline.cluster import check_topics
from muster.pipeline.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPIC: Final = "__group_events"
_LINES: Final = "key string, value string, partition int, offset bigint"
_SUFFIXES: Final = (".jsonl", ".json")


def declare(commands: Any) -> None:
    """Add the command to `commands`."""
    parser = command(
        commands,
        "rebalances",
        "tables of why groups rebalanced, how long that took and what it cost",
        """
Reads the coordinator's journal, the topic __group_events, and writes Parquet below --to: what happened in
silver/ (transitions, rebalances, member_sessions, ownership, lag_samples), what that answers in gold/
(causes_per_hour, group_health, unavailability, cost_per_cause, flapping, deploys, failover_impact). All
tables are made anew from all that the journal has.
""",
    )
    parser.add_argument("--to", metavar="DIRECTORY", required=True, help="where the tables go")
    parser.add_argument(
        "--events",
        metavar="PATH",
        help="read these records instead of the topic: Parquet that ingest wrote, or a file .jsonl with key, "
        "value, partition and offset in each line",
    )
    parser.set_defaults(work=run)


def run(given: Namespace) -> int:
    """Carry it out; the exit code. Raises PipelineError."""
    from muster.pipeline.journal.build import build
    from muster.pipeline.session import open_session

    if given.events is None:
        check_topics(given.bootstrap_server, [TOPIC])
    elif "://" not in given.events and not Path(given.events).exists():
        raise PipelineError(f"--events: there is no {given.events}")
    spark = open_session(given)
    try:
        built = build(_events(spark, given), given.to.rstrip("/"))
        found = built["rebalances"].count()
        print(f"{found:,} rebalances of {built['group_health'].count():,} groups: tables in {given.to}")
        return 0
    finally:
        spark.stop()


def _events(spark: SparkSession, given: Namespace) -> DataFrame:
    """The bronze table."""
    columns = ("key", "value", "partition", "offset")
    if given.events is None:
        reader = spark.read.format("muster").option("kafka.bootstrap.servers", given.bootstrap_server)
        return reader.option("subscribe", TOPIC).load().select(*columns)
    if given.events.endswith(_SUFFIXES):
        lines = spark.read.schema(_LINES).json(given.events)
        return lines.selectExpr("CAST(key AS binary)", "CAST(value AS binary)", "partition", "offset")
    found = spark.read.parquet(given.events)
    missing = [each for each in columns if each not in found.columns]
    if missing:
        raise PipelineError(
            f"--events: {given.events} has no column {missing[0]}; it takes {', '.join(columns)}"
        )
    if "topic" in found.columns:
        found = found.where(found.topic == TOPIC)
    return found.select(*columns)

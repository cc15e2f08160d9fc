"""The job that keeps the tables of rebalances up to date with the topic: once to its end, or continuously.

Bronze and the rows of `rebalances` are written with every batch. All other tables are made from them when the
stream has ended and, while it runs, in the background: after the first batch, and then, if there was a new
batch, once ten times as long as making them took has passed, and at least a minute.
"""

from __future__ import annotations

import time
from threading import Thread
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TextIO

from muster.pipeline.arguments import in_arguments
from muster.pipeline.errors import OptionError, PipelineError
from muster.pipeline.files import Files
from muster.pipeline.journal.command import BATCH_RECORDS_DEFAULT, TOPIC
from muster.pipeline.journal.streaming import CHECKPOINT, EVENTS, publish, stream
from muster.pipeline.options import source_options
from muster.pipeline.progress import Teller, follow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

_APART_S: Final = 60.0
_SHARE: Final = 10
_ENDS_S: Final = 10.0
_JOB_GROUP: Final = "muster: tables of rebalances"


class Job(NamedTuple):
    """The settings of a job."""

    bootstrap_servers: str
    to: str
    every_ms: int | None = None
    """The time between batches; None: read up to the current ends of the topic, then stop."""
    batch_records: int = BATCH_RECORDS_DEFAULT
    options: tuple[tuple[str, str], ...] = ()
    """More options of the source."""

    @property
    def reader_options(self) -> dict[str, str]:
        """The source's options. Raises OptionError for an option that must not be given."""
        # Progress is not committed to a group: the journal would record that.
        ours = {
            "kafka.bootstrap.servers": self.bootstrap_servers,
            "subscribe": TOPIC,
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": str(self.batch_records),
        }
        taken = {name.lower() for name in ours} | {"assign", "subscribepattern", "includeheaders"}
        for name, _ in self.options:
            if name.lower() in taken:
                raise OptionError(f"--option {name}: rebalances says this itself")
        return ours | dict(self.options)


def check(job: Job, servers_from: str) -> None:
    """Raises OptionError for options that the source would refuse, in terms of the command line;
    `servers_from` is the argument or variable that has the address."""
    options = job.reader_options
    try:
        source_options(options, streaming=True)
    except OptionError as error:
        raise OptionError(in_arguments(str(error), {"kafka.bootstrap.servers": servers_from})) from None


class Maker(Teller):
    """Reports batches, and makes the tables in the background now and then."""

    def __init__(self, spark: SparkSession, to: str, out: TextIO | None = None) -> None:
        super().__init__(out)
        self._spark, self._to = spark, to
        self._made_batches = 0
        self._next_s = time.monotonic()
        self._thread: Thread | None = None
        self._failed: list[BaseException] = []

    def look(self, query: StreamingQuery) -> None:
        """Report what is new, and begin to make the tables if it is time. Raises the error if making them
        failed."""
        super().look(query)
        if self._failed:
            raise self._failed[0]
        is_making = self._thread is not None and self._thread.is_alive()
        if not is_making and self._made_batches < self.totals.batches and time.monotonic() >= self._next_s:
            self._made_batches = self.totals.batches
            self._thread = Thread(target=self._make, daemon=True)
            self._thread.start()

    def end(self) -> None:
        """Abandon tables being made; the previous ones stay."""
        if self._thread is not None and self._thread.is_alive():
            self._spark.sparkContext.cancelJobGroup(_JOB_GROUP)
            self._thread.join(_ENDS_S)

    def _make(self) -> None:
        began_s = time.monotonic()
        try:
            self._spark.sparkContext.setJobGroup(_JOB_GROUP, "", interruptOnCancel=True)
            publish(self._spark, self._to)
        except Exception as error:
            self._failed.append(error)
        now_s = time.monotonic()
        self._next_s = now_s + max(_APART_S, _SHARE * (now_s - began_s))


def keep_up(spark: SparkSession, job: Job, out: TextIO | None = None) -> dict[str, DataFrame] | None:
    """Run the job until it is done, and return the tables by name; or run it for ever. Raises PipelineError,
    Stopped if a signal ends it, and Spark's own errors."""
    refuse_halves(spark, job.to)
    events = spark.readStream.format("muster").options(**job.reader_options).load()
    writer = stream(events, job.to)
    if job.every_ms is None:
        follow(writer.trigger(availableNow=True).start(), Teller(out))
        return publish(spark, job.to)
    maker = Maker(spark, job.to, out)
    try:
        follow(writer.trigger(processingTime=f"{job.every_ms} milliseconds").start(), maker)
    finally:
        maker.end()
    return None


def refuse_halves(spark: SparkSession, to: str) -> None:
    """Raises PipelineError for records without their checkpoint, or a checkpoint without its records: nothing
    would show which records they include."""
    files = Files(spark, to)
    events, checkpoint = f"{to}/{EVENTS}", f"{to}/{CHECKPOINT}"
    has_begun = any(name.isdigit() for name in files.names(f"{checkpoint}/commits"))
    if files.names(events) and not files.exists(f"{checkpoint}/metadata"):
        raise PipelineError(
            f"{events} is there, but not its checkpoint {checkpoint}: nothing tells which records it holds."
            f" Keep it and give --to another folder; --events {events} makes tables of what it has"
        )
    if has_begun and not any(name.startswith("batches=") for name in files.names(events)):
        raise PipelineError(
            f"the checkpoint {checkpoint} is there, but not the records it is about in {events}."
            " Put them back; or remove the checkpoint, and what the topic still has is read again"
        )


def told(tables: dict[str, Any], to: str) -> str:
    """One line about the tables."""
    rebalances, groups = tables["rebalances"].count(), tables["group_health"].count()
    return f"{rebalances:,} rebalances of {groups:,} groups: tables in {to}"

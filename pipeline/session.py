"""A Spark session for the jobs and their tests."""

from __future__ import annotations

import os
import sys
import warnings
from argparse import Namespace
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Final

from muster.pipeline.cluster import Address
from muster.pipeline.environment import check_java, check_master, check_worker_python
from muster.pipeline.errors import PipelineError
from muster.pipeline.signals import held_signals, lost_jvm_is_no_news

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MASTER: Final = "local[*]"
_STOP_S: Final = 60.0
_STACKS: Final = "-Xss4m"
"""Spark searches its generated code with recursive regular expressions; that of `rebalances` is long."""
_LOG4J: Final = Path(__file__).parent / "log4j2.properties"

_ALWAYS: Final = {
    # Days begin at midnight UTC wherever the job runs, because folders are named after them.
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    # Spark's default is INT96, which pyarrow reads as nanoseconds in 64 bits.
    # Times before 1677 and after 2262 become others.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.ui.showConsoleProgress": "false",
    # A job killed while Spark planned its first batch leaves a half-written file, with which Spark would
    # refuse to start again. The jobs check themselves whether a checkpoint is theirs.
    "spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart": "false",
    # How long stop() waits for a stream whose reader is in a call, for example waiting for a broker. Spark's
    # default is for ever.
    "spark.sql.streaming.stopTimeout": "10s",
}
_LOCAL: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    # Spark's default of 200 would mean 200 tasks, and as many state files, for each micro-batch.
    "spark.sql.shuffle.partitions": "4",
    # For batch queries, where Spark merges small partitions: with millions of rows, four would not fit into
    # memory.
    "spark.sql.adaptive.coalescePartitions.initialPartitionNum": "64",
}


def open_session(
    given: Namespace, brokers: Sequence[Address] = (), also_needed: Sequence[str] = ()
) -> SparkSession:
    """The session of a `muster-pipeline` command. `given` has prog, master, conf and log_level; `brokers` are
    those that executors will read from or write to; `also_needed` are modules that they import besides those
    for reading. Raises PipelineError if there is no Java for Spark or no such master, or if workers lack what
    they need."""
    from muster.pipeline.executors import check_executors, check_format

    check_java(os.environ)
    check_worker_python(os.environ)
    if "SPARK_REMOTE" in os.environ:
        raise PipelineError("SPARK_REMOTE is set: a job has a driver of its own, not Spark Connect; unset it")
    master = given.master or _submitted_to() or _MASTER
    check_master(master)
    settings: dict[str, str] = {}
    if not _submitted():
        logs = f"-Dlog4j2.configurationFile={_LOG4J.as_uri()} -Dmuster.log.level={given.log_level}"
        # These precede the user's own, in spark.driver.extraJavaOptions.
        settings["spark.driver.defaultJavaOptions"] = f"{_STACKS} {logs}"
    settings |= given.conf
    try:
        # A JVM abandoned during its startup has nobody to report its address to, and stays for ever.
        with held_signals():
            spark = spark_session(given.prog, master=given.master, settings=settings)
    except Exception as error:
        # All that remains of the error after Spark has tried to register for a minute.
        if master.startswith("spark://") and "stopped SparkContext" in str(error):
            raise PipelineError(
                f"{master} answers, but not as a master of this Spark: the port is not that of its page"
                " (7077, not 8080, where nobody chose another), and both have the same version of Spark"
            ) from None
        raise
    try:
        check_format(spark)
        check_executors(spark, brokers, also_needed)
    except BaseException:
        end_session(spark)
        raise
    return spark


def end_session(spark: SparkSession) -> None:
    """Stop the session, even if the JVM is already gone: a signal may have reached every process of the job.

    In a separate thread: if a signal interrupted a call of this thread, the JVM still executes that call, and
    accepts no other from this thread until it is done.
    """

    def stop() -> None:
        with suppress(Exception):
            spark.stop()

    with warnings.catch_warnings(), lost_jvm_is_no_news():
        warnings.simplefilter("ignore")
        stopping = Thread(target=stop, name="stop", daemon=True)
        stopping.start()
        stopping.join(_STOP_S)


def _submitted() -> bool:
    """Whether spark-submit started this process."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def _submitted_to() -> str | None:
    """The master that spark-submit was given."""
    if not _submitted():
        return None
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()
    master: str | None = SparkConf().get("spark.master")
    return master


def spark_session(
    name: str, *, master: str | None = None, settings: Mapping[str, str] | None = None
) -> SparkSession:
    """A session with the settings that the jobs rely on; `settings` override them.

    Under spark-submit, master, memory and logs are as given there, unless the arguments say otherwise.
    Workers run this Python unless PYSPARK_PYTHON names another one.
    """
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name)
    chosen = dict(_ALWAYS)
    if not _submitted():
        master = master or _MASTER
        if master.startswith("local"):
            chosen |= _LOCAL
    chosen |= settings or {}
    if master is not None:
        builder = builder.master(master)
    for key, value in chosen.items():
        builder = builder.config(key, value)
    session: SparkSession = builder.getOrCreate()
    return session

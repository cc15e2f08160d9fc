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
"""Spark looks through code it made with regular expressions that recurse; that of `rebalances` is long."""
_LOG4J: Final = Path(__file__).parent / "log4j2.properties"

_ALWAYS: Final = {
    # Days begin at midnight UTC wherever the job runs: they are folders.
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.ui.showConsoleProgress": "false",
    # A job that was killed while Spark planned its first batch leaves a file half written, beside which Spark
    # would not begin again. The jobs look themselves whether a checkpoint is theirs.
    "spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart": "false",
    # How long stop() waits for a stream that is in a call of its reader, which waits for a broker say.
    # Spark's default is for ever.
    "spark.sql.streaming.stopTimeout": "10s",
}
_LOCAL: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    # The 200 of a cluster would be 200 tasks, and as many files of state, for each micro-batch.
    "spark.sql.shuffle.partitions": "4",
    # Of batches, where Spark puts small ones together: four would not fit into memory with millions of rows.
    "spark.sql.adaptive.coalescePartitions.initialPartitionNum": "64",
}


def open_session(
    given: Namespace, brokers: Sequence[Address] = (), also_needed: Sequence[str] = ()
) -> SparkSession:
    """The session of a command of `muster-pipeline`: `given` has prog, master, conf and log_level; `brokers`
    are those that executors will read from or write to, `also_needed` modules that they import beside what
    reading takes. Raises PipelineError where there is no Java for
    Spark, no such master, or where workers lack what they need."""
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
        # Those that come before the user's own, in spark.driver.extraJavaOptions.
        settings["spark.driver.defaultJavaOptions"] = f"{_STACKS} {logs}"
    settings |= given.conf
    try:
        # A JVM that is left alone while it begins finds nobody to tell where it is, and stays for ever.
        with held_signals():
            spark = spark_session(given.prog, master=given.master, settings=settings)
    except Exception as error:
        # What is left of it when it has tried to register for a minute.
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
    """Stop it, also where the JVM is gone already: a signal may have gone to every process of the job.

    In a thread of its own: where a signal broke off a call of this thread, the JVM goes on with it, and takes
    no other from this thread before.
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
    """A session with the settings that the jobs rely on; `settings` go before them.

    Under spark-submit master, memory and logs are as it was told, unless these say otherwise. Workers run
    this very Python unless PYSPARK_PYTHON names another one.
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

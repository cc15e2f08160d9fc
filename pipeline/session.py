"""A Spark session for the jobs and their tests."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from muster.pipeline.environment import check_executors, check_java, check_worker_python

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOG4J: Final = Path(__file__).parent / "log4j2.properties"

_ALWAYS: Final = {
    # Days begin at midnight UTC wherever the job runs: they are folders.
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.ui.showConsoleProgress": "false",
}
_LOCAL: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    # The 200 of a cluster would be 200 tasks, and as many files of state, for each micro-batch.
    "spark.sql.shuffle.partitions": "4",
}


def open_session(given: Namespace) -> SparkSession:
    """The session of a command of `muster-pipeline`: `given` has prog, master and log_level. Raises
    PipelineError where there is no Java for Spark, or workers lack what they need."""
    check_java(os.environ)
    check_worker_python(os.environ)
    options = f"-Dlog4j2.configurationFile={_LOG4J.as_uri()} -Dmuster.log.level={given.log_level}"
    spark = spark_session(
        given.prog, master=given.master, settings={"spark.driver.extraJavaOptions": options}
    )
    check_executors(spark)
    return spark


def spark_session(
    name: str, *, master: str | None = None, settings: Mapping[str, str] | None = None
) -> SparkSession:
    """A session with the settings that the jobs rely on; `settings` go before them.

    Under spark-submit only what the jobs rely on is set: master, memory and logs are as it was told. Workers
    run this very Python unless PYSPARK_PYTHON names another one.
    """
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name)
    chosen = dict(_ALWAYS)
    if "PYSPARK_GATEWAY_PORT" not in os.environ:  # which spark-submit sets
        master = master or "local[*]"
        if master.startswith("local"):
            chosen |= _LOCAL
        chosen |= settings or {}
    if master is not None:
        builder = builder.master(master)
    for key, value in chosen.items():
        builder = builder.config(key, value)
    session: SparkSession = builder.getOrCreate()
    return session

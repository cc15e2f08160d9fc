"""A query that copies a topic exactly once; some of its tasks fail at first.

`python -m tests.pipeline.submitted.copying SERVERS SOURCE TOPIC FOLDER`: until all that there is is copied.
"""

from __future__ import annotations

import sys
import zlib
from typing import Final

from pyspark import TaskContext
from pyspark.sql.functions import udf

from muster.pipeline.session import spark_session

_ONE_IN: Final = 97
_PER_BATCH: Final = "100"


def _fails_at_first(value: bytes) -> bytes:
    """The same; the first attempt at a task with a record of a certain kind fails."""
    context = TaskContext.get()
    if context is not None and context.attemptNumber() == 0 and zlib.crc32(value) % _ONE_IN == 0:
        raise RuntimeError("a task that fails at first")
    return value


def main(servers: str, source: str, topic: str, folder: str) -> None:
    settings = {
        "spark.driver.memory": "1g",
        "spark.local.dir": f"{folder}/local",
        "spark.log.level": "OFF",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "10",
    }
    spark = spark_session("copying", master="local[2,4]", settings=settings)
    rows = (
        spark.readStream.format("muster")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .option("kafka.isolation.level", "read_committed")
        .option("maxOffsetsPerTrigger", _PER_BATCH)
        .load()
    )
    query = (
        rows.select(udf(_fails_at_first, "BINARY")(rows.value).alias("value"))
        .writeStream.format("muster")
        .option("kafka.bootstrap.servers", servers)
        .option("topic", topic)
        .option("transactionalIdPrefix", topic)
        .option("kafka.linger.ms", "0")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])

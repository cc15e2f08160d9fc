"""A query that copies a topic exactly once and tries each task up to four times.

`python -m tests.pipeline.submitted.copying SERVERS SOURCE TOPIC FOLDER PER_BATCH` copies everything there is
now.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from muster.pipeline.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery


def copy(
    spark: SparkSession, servers: str, source: str, topic: str, folder: str, per_batch: str
) -> StreamingQuery:
    """Copy the committed records that there are now. The prefix is the topic's name."""
    brokers = {"kafka.bootstrap.servers": servers}
    rows = (
        spark.readStream.format("muster")
        .options(**brokers, subscribe=source, startingOffsets="earliest", maxOffsetsPerTrigger=per_batch)
        .option("kafka.isolation.level", "read_committed")
        .load()
    )
    written = rows.select("value").writeStream.format("muster").options(**brokers, topic=topic)
    written = written.option("transactionalIdPrefix", topic).option(
        "checkpointLocation", f"{folder}/checkpoint"
    )
    return written.trigger(availableNow=True).start()


def main(servers: str, source: str, topic: str, folder: str, per_batch: str) -> None:
    settings = {
        "spark.driver.memory": "1g",
        "spark.local.dir": f"{folder}/local",
        "spark.log.level": "OFF",
    }
    spark = spark_session("copying", master="local[2,4]", settings=settings)
    copy(spark, servers, source, topic, folder, per_batch).awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])

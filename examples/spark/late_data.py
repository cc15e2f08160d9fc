"""Late data: count clicks by the five minutes in which they happened, though some arrive much later.

    python examples/spark/late_data.py --sample --once
    muster consume clicks-late --from-beginning --until-end

A click says when it happened (`at` in its JSON, epoch ms); its record's timestamp says when it was sent. A
window cannot wait for ever. This program waits 10 minutes, or as long as --wait says:

* A click that was sent within the wait is counted. A window is shown once, when it is final: when a click
  has been read that happened that long after the window's end (the watermark has passed the end).
* A click that was sent later, or does not say when it happened, goes to the topic `clicks-late` and into no
  window. This depends only on the click, so it is the same whenever the topic is read.
* A click that was sent in time but read too late, from a partition that lags behind the others, is dropped
  by Spark. Spark only says how many there were, and this program shows that. The click is still in the
  topic.
"""

import json
import time
from argparse import Namespace

from common import Record, options, run, trigger, wait
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.streaming import StreamingQueryListener

MINUTE_MS = 60_000


def samples() -> list[Record]:
    """Clicks from an hour or two ago: the minute in which each happened, and how much later it was sent."""
    hour_ms = (time.time_ns() // 1_000_000 // (60 * MINUTE_MS) - 1) * 60 * MINUTE_MS
    clicks = [(1, 0), (2, 0), (7, 0), (4, 6), (12, 0), (3, 9), (2, 35), (40, 0)]
    return [
        Record(
            "clicks",
            json.dumps({"at": hour_ms + minute * MINUTE_MS, "page": "/tea"}),
            timestamp_ms=hour_ms + (minute + later) * MINUTE_MS,
        )
        for minute, later in clicks
    ]


def main(spark: SparkSession, given: Namespace) -> None:
    servers = {"kafka.bootstrap.servers": given.bootstrap_server}
    records = (
        spark.readStream.format("muster")
        .options(**servers, subscribe="clicks", startingOffsets="earliest")
        .load()
    )
    told = sql.from_json(sql.col("value").cast("string"), "at LONG, page STRING")
    clicks = records.withColumn("told", told).select(
        "key", "value", "timestamp", sql.timestamp_millis("told.at").alias("at"), "told.page"
    )
    in_time = sql.coalesce(sql.expr(f"timestamp <= at + INTERVAL {given.wait}"), sql.lit(False))

    counts = (
        clicks.where(in_time)
        .withWatermark("at", given.wait)
        .groupBy(sql.window("at", "5 minutes"), "page")
        .agg(sql.count("*").alias("clicks"))
    )
    spark.streams.addListener(Dropped())
    counting = counts.writeStream.foreachBatch(show).option(
        "checkpointLocation", f"{given.checkpoint}/counts"
    )
    keeping = (
        clicks.where(~in_time)
        .select("key", "value")
        .writeStream.format("muster")
        .options(**servers, topic="clicks-late", checkpointLocation=f"{given.checkpoint}/late")
    )
    wait(counting.trigger(**trigger(given)).start(), keeping.trigger(**trigger(given)).start())


def show(final: DataFrame, batch_id: int) -> None:
    # Not with orderBy: Spark samples the input of a sort, so it would count twice, and report drops twice.
    for row in sorted(final.collect(), key=lambda row: (row.window.start, row.page or "")):
        print(f"{row.window.start:%H:%M} to {row.window.end:%H:%M}  {row.page}: {row.clicks}", flush=True)


class Dropped(StreamingQueryListener):
    """Shows how many clicks Spark dropped; "at least", since it counts a sum of several clicks as one."""

    def onQueryProgress(self, event) -> None:
        if dropped := sum(each.numRowsDroppedByWatermark for each in event.progress.stateOperators):
            print(f"at least {dropped} clicks were read after their window was final", flush=True)

    def onQueryStarted(self, event) -> None: ...

    def onQueryTerminated(self, event) -> None: ...


if __name__ == "__main__":
    parser = options(__doc__)
    parser.add_argument("--wait", default="10 minutes", help="for late clicks (default %(default)s)")
    parser.add_argument(
        "--checkpoint",
        default="checkpoints/late-data",
        help="the folder in which Spark notes how far it is, and goes on from (default %(default)s)",
    )
    run(main, parser.parse_args(), samples())

"""Streaming word count of the topic `lines`.

    python examples/spark/word_count.py --sample

Feed it from another terminal: `echo to be or not to be | muster produce lines`. Every start counts from the
first line: counts that are only shown can be recomputed, so this query keeps no checkpoint.
"""

from argparse import Namespace

from common import Record, options, run, trigger, wait
from pyspark.sql import SparkSession
from pyspark.sql import functions as sql

SAMPLES = [
    Record("lines", text) for text in ("The cat saw the dog.", "The dog saw nobody;", "nobody saw the cat.")
]


def main(spark: SparkSession, given: Namespace) -> None:
    lines = (
        spark.readStream.format("muster")
        .option("kafka.bootstrap.servers", given.bootstrap_server)
        .option("subscribe", "lines")
        .option("startingOffsets", "earliest")
        .load()
    )
    # Values are bytes, as producers sent them; the reader decides what they mean.
    text = sql.lower(sql.col("value").cast("string"))
    words = lines.select(sql.explode(sql.split(text, r"\W+")).alias("word")).where("word != ''")
    counts = words.groupBy("word").count().orderBy(sql.desc("count"), "word")
    # `complete` shows the whole table after each batch. Spark keeps the counts between batches.
    query = counts.writeStream.format("console").outputMode("complete").trigger(**trigger(given)).start()
    wait(query)


if __name__ == "__main__":
    run(main, options(__doc__).parse_args(), SAMPLES)

"""A user's own script: topics to Parquet, as a batch and as a stream. It knows only the format's name."""

import sys

from pyspark.sql import SparkSession

servers, lake = sys.argv[1:]
options = {"kafka.bootstrap.servers": servers, "subscribe": "orders", "startingOffsets": "earliest"}
spark = SparkSession.builder.appName("own job").getOrCreate()

batch = spark.read.format("muster").options(**options).option("kafka.client.id", "own-batch").load()
batch.write.parquet(f"{lake}/batch")

stream = spark.readStream.format("muster").options(**options).option("kafka.client.id", "own-stream")
query = (
    stream.option("kafka.group.id", "own-job")
    .option("maxOffsetsPerTrigger", 4_000)
    .load()
    .writeStream.option("checkpointLocation", f"{lake}/checkpoint")
    .trigger(availableNow=True)
    .start(f"{lake}/stream")
)
query.awaitTermination()
spark.stop()

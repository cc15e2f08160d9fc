"""Enrichment: orders get the name and the city of their customer, and go to the topic `orders-enriched`.

    python examples/spark/enrichment_join.py --sample --once
    muster consume orders-enriched --from-beginning --until-end

Of the topic `customers` each key's newest record counts, as if it were compacted; one without a value deletes
the customer. They are loaded anew for each batch of orders, so an order gets what is known as it is handled,
and Spark keeps no state. That is for thousands of customers. For millions, or where both sides are events and
wait for each other (orders and their payments), join two streams, each with a watermark.

Orders of unknown customers go through, without a name. A batch that is broken off is done again, so an order
may be there twice: its key tells.
"""

from argparse import Namespace

from common import Record, options, run, trigger, wait
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

SAMPLES = [
    Record("customers", '{"name": "Alice", "city": "Lisbon"}', key="c1"),
    Record("customers", '{"name": "Bob", "city": "Oslo"}', key="c2"),
    Record("customers", '{"name": "Bob", "city": "Bergen"}', key="c2"),
    Record("orders", '{"customer": "c1", "item": "tea", "cents": 420}', key="o1"),
    Record("orders", '{"customer": "c2", "item": "milk", "cents": 180}', key="o2"),
    Record("orders", '{"customer": "c9", "item": "bread", "cents": 350}', key="o3"),
]


def main(spark: SparkSession, given: Namespace) -> None:
    servers = {"kafka.bootstrap.servers": given.bootstrap_server}
    orders = (
        spark.readStream.format("muster")
        .options(**servers, subscribe="orders", startingOffsets="earliest")
        .option("kafka.group.id", "enrichment-join")  # `muster groups describe enrichment-join` shows the lag
        .load()
    )

    def write(batch: DataFrame, batch_id: int) -> None:
        # A DataFrame that was loaded outside would stay at the customers of its first use.
        customers = spark.read.format("muster").options(**servers, subscribe="customers").load()
        rows = enriched(batch, newest(customers))
        rows.write.format("muster").mode("append").options(**servers, topic="orders-enriched").save()

    query = orders.writeStream.foreachBatch(write).option("checkpointLocation", given.checkpoint)
    wait(query.trigger(**trigger(given)).start())


def newest(customers: DataFrame) -> DataFrame:
    """The last record of each key. All of a key are in one partition, so the highest offset is the last."""
    last = customers.groupBy("key").agg(sql.max_by("value", "offset").alias("value"))
    about = sql.from_json(sql.col("value").cast("string"), "name STRING, city STRING")
    return last.where("value IS NOT NULL").select(
        sql.col("key").cast("string").alias("customer"), about.alias("about")
    )


def enriched(orders: DataFrame, customers: DataFrame) -> DataFrame:
    """The columns that the writer takes: `key` and `value`, which is JSON."""
    order = sql.from_json(sql.col("value").cast("string"), "customer STRING, item STRING, cents LONG")
    joined = (
        orders.select("key", order.alias("order"))
        .select("key", "order.*")
        .join(customers, "customer", "left")
    )
    value = sql.to_json(sql.struct("customer", "about.name", "about.city", "item", "cents"))
    return joined.select("key", value.alias("value"))


if __name__ == "__main__":
    parser = options(__doc__)
    parser.add_argument(
        "--checkpoint",
        default="checkpoints/enrichment-join",
        help="the folder in which Spark notes how far it is, and goes on from (default %(default)s)",
    )
    run(main, parser.parse_args(), SAMPLES)

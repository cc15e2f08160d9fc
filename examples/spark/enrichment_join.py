"""Enrichment: add the customer's name and city to orders, and write them to the topic `orders-enriched`.

    python examples/spark/enrichment_join.py --sample --once
    muster consume orders-enriched --from-beginning --until-end

In the topic `customers` the newest record of each key counts, as if it were compacted; one without a value
deletes the customer. Customers are reloaded for each batch of orders, so an order gets what is known when
it is processed, and Spark keeps no state. This suits thousands of customers. For millions, or if both sides
are events that wait for each other (orders and their payments), join two streams, each with a watermark.

Orders of unknown customers pass without a name. An interrupted batch is repeated, so an order may appear
twice, with the same key.
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
        # A DataFrame loaded outside would keep the customers of its first use.
        customers = spark.read.format("muster").options(**servers, subscribe="customers").load()
        rows = enriched(batch, newest(customers))
        rows.write.format("muster").mode("append").options(**servers, topic="orders-enriched").save()

    query = orders.writeStream.foreachBatch(write).option("checkpointLocation", given.checkpoint)
    wait(query.trigger(**trigger(given)).start())


def newest(customers: DataFrame) -> DataFrame:
    """The last record of each key. A key is always in the same partition, so that is its highest offset."""
    last = customers.groupBy("key").agg(sql.max_by("value", "offset").alias("value"))
    about = sql.from_json(sql.col("value").cast("string"), "name STRING, city STRING")
    return last.where("value IS NOT NULL").select(
        sql.col("key").cast("string").alias("customer"), about.alias("about")
    )


def enriched(orders: DataFrame, customers: DataFrame) -> DataFrame:
    """The columns for the writer: `key`, and `value` as JSON."""
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

"""What all examples need: options, a session, sample records, Ctrl-C."""

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Callable, Iterable
from typing import NamedTuple

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from muster.client import Admin, KafkaError, Producer
from muster.client.errors import ClientError
from muster.pipeline.errors import from_spark


class Record(NamedTuple):
    """A sample record; the default timestamp is when it is sent."""

    topic: str
    value: str
    key: str | None = None
    timestamp_ms: int | None = None


def options(about: str | None) -> argparse.ArgumentParser:
    """The options of all examples; `about` is the example's docstring."""
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument(
        "--bootstrap-server",
        metavar="HOST:PORT",
        default=os.environ.get("MUSTER_BOOTSTRAP_SERVERS", "127.0.0.1:9092"),
        help="where to connect (default %(default)s; MUSTER_BOOTSTRAP_SERVERS overrides it)",
    )
    parser.add_argument(
        "--sample", action="store_true", help="first create the topics and send sample records"
    )
    parser.add_argument(
        "--once", action="store_true", help="stop when everything now in the topics has been processed"
    )
    return parser


def trigger(given: argparse.Namespace) -> dict[str, object]:
    """How often to look for records. Without a trigger Spark starts each batch right after the last."""
    return {"availableNow": True} if given.once else {"processingTime": "1 second"}


def run(
    example: Callable[[SparkSession, argparse.Namespace], None],
    given: argparse.Namespace,
    samples: Iterable[Record] = (),
) -> None:
    """Run an example in a new session. An error ends the program with a one-line message."""
    # Otherwise Spark's workers use whatever `python3` is on the PATH.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    try:
        if given.sample:
            asyncio.run(send(given.bootstrap_server, samples))
        builder = SparkSession.builder.appName(os.path.basename(sys.argv[0]))
        # Four tasks per shuffle, not 200: this is one machine.
        builder = builder.config("spark.sql.shuffle.partitions", 4)
        # Errors are reported below.
        builder = builder.config("spark.log.level", "OFF").config("spark.ui.showConsoleProgress", "false")
        with builder.getOrCreate() as spark:
            example(spark, given)
    except (ClientError, KafkaError) as error:
        sys.exit(str(error))
    except PySparkException as error:
        sys.exit(from_spark(error))


def wait(*queries: StreamingQuery) -> None:
    """Wait until the queries end. Raises the error of one that failed. Ctrl-C and SIGTERM stop them in order;
    an interrupted batch is repeated at the next start.

    The signals only set a flag: an exception during a call into the JVM would break the connection.
    """
    came: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, lambda received, _: came.append(received)) for number in numbers]
    try:
        ended = [False]
        while not came and not all(ended):
            ended = [query.awaitTermination(0.5) for query in queries]
    except PySparkException:
        if not came:  # Ctrl-C also reaches Spark's workers, and their tasks fail.
            raise
    finally:
        for query in queries:
            query.stop()
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


async def send(bootstrap: str, records: Iterable[Record]) -> None:
    """Send the records, after creating missing topics with two partitions each."""
    records = list(records)
    async with Admin(bootstrap) as admin, Producer(bootstrap) as producer:
        there = {each.name for each in await admin.list_topics()}
        for topic in sorted({each.topic for each in records} - there):
            await admin.create_topic(topic, num_partitions=2)
        for topic, value, key, timestamp_ms in records:
            name = None if key is None else key.encode()
            await producer.send(topic, value.encode(), key=name, timestamp_ms=timestamp_ms)

"""Exactly once: sum up payments in a database, whatever gets killed and restarted.

    python examples/spark/exactly_once_database.py --sample --once
    sqlite3 totals.sqlite 'SELECT * FROM totals'

Spark repeats an interrupted batch with the same records and the same batch id. So the database keeps the id
of its last batch, and updates it in the transaction that adds a batch's sums. If a batch is repeated after
its transaction, its id is already there, and it changes nothing.

Batch ids count from 0 in each checkpoint, and the query's id identifies the checkpoint. A database that was
filled from another checkpoint is refused, because batches that it lacks would look done.

PostgreSQL: `pip install asyncpg`, and --database postgresql://user:password@host/name
"""

import asyncio
import sqlite3
import sys
from argparse import Namespace
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from typing import Any

from common import Record, options, run, trigger, wait
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

NAME = "totals"
SAMPLES = [
    Record("payments", "420", key="alice"),
    Record("payments", "180", key="bob"),
    Record("payments", "350", key="alice"),
    Record("payments", "999", key="carol"),
]

TABLES = """
    CREATE TABLE IF NOT EXISTS totals (account TEXT PRIMARY KEY, cents BIGINT NOT NULL);
    CREATE TABLE IF NOT EXISTS progress (job TEXT PRIMARY KEY, query TEXT NOT NULL, batch BIGINT NOT NULL);
"""
FIRST = "INSERT INTO progress VALUES ('totals', $1, -1) ON CONFLICT (job) DO NOTHING"
NEXT = "UPDATE progress SET batch = $2 WHERE query = $1 AND batch < $2"
OF_QUERY = "SELECT query FROM progress"
ADD = """
    INSERT INTO totals VALUES ($1, $2)
    ON CONFLICT (account) DO UPDATE SET cents = totals.cents + excluded.cents
"""

Sums = Sequence[tuple[str, int]]


class Sqlite:
    """`add` adds the sums, unless this batch or a later one is already in."""

    def __init__(self, path: str) -> None:
        self._path = path
        with closing(sqlite3.connect(path)) as database:
            database.executescript(TABLES)

    def add(self, query: str, batch: int, sums: Sums) -> None:
        # One connection per batch, because Spark calls from its own thread. `with database` is a transaction.
        with closing(sqlite3.connect(self._path, timeout=60)) as database, database:
            database.execute(_as_sqlite(FIRST), [query])
            if database.execute(_as_sqlite(NEXT), [query, batch]).rowcount:
                database.executemany(_as_sqlite(ADD), sums)
            else:
                check(query, *database.execute(OF_QUERY).fetchone())


def _as_sqlite(statement: str) -> str:
    return statement.replace("$", "?")


class Postgres:
    """The same in PostgreSQL."""

    def __init__(self, url: str) -> None:
        self._url = url
        asyncio.run(self._create())

    def add(self, query: str, batch: int, sums: Sums) -> None:
        asyncio.run(self._add(query, batch, sums))

    async def _create(self) -> None:
        async with self._transaction() as database:
            await database.execute(TABLES)

    async def _add(self, query: str, batch: int, sums: Sums) -> None:
        async with self._transaction() as database:
            await database.execute(FIRST, query)
            if await database.execute(NEXT, query, batch) == "UPDATE 1":
                await database.executemany(ADD, sums)
            else:
                check(query, await database.fetchval(OF_QUERY))

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[Any]:
        import asyncpg

        database = await asyncpg.connect(self._url, timeout=60)
        try:
            async with database.transaction():
                yield database
        finally:
            await database.close()


def opened(where: str) -> Sqlite | Postgres:
    try:
        return Postgres(where) if "://" in where else Sqlite(where)
    except Exception as error:  # each driver has its own errors
        sys.exit(f"--database: {error}")


def check(query: str, filled_by: str) -> None:
    if query != filled_by:
        raise ValueError(
            f"the database was filled from another checkpoint, by query {filled_by}: go on from that one,"
            " or begin with a new database"
        )


def main(spark: SparkSession, given: Namespace) -> None:
    payments = (
        spark.readStream.format("muster")
        .option("kafka.bootstrap.servers", given.bootstrap_server)
        .option("subscribe", "payments")
        .option("startingOffsets", "earliest")
        .option("kafka.group.id", "totals")  # `muster groups describe totals` shows the lag
        .load()
    )
    database = opened(given.database)

    def write(batch: DataFrame, batch_id: int) -> None:
        query = next(each.id for each in spark.streams.active if each.name == NAME)
        database.add(query, batch_id, sums(batch))

    query = payments.writeStream.foreachBatch(write).queryName(NAME)
    query = query.option("checkpointLocation", given.checkpoint or beside(given.database))
    wait(query.trigger(**trigger(given)).start())


def beside(database: str) -> str:
    """The default checkpoint folder. A URL is no folder, and may contain a password."""
    return f"checkpoints/{NAME}" if "://" in database else f"{database}.checkpoint"


def sums(payments: DataFrame) -> Sums:
    """Cents by account. A transaction needs one connection, so its data goes through the driver: sums fit,
    records might not. Values that are not numbers are skipped."""
    account = sql.col("key").cast("string").alias("account")
    cents = sql.expr("try_cast(CAST(value AS STRING) AS BIGINT)").alias("cents")
    told = payments.select(account, cents).where("account IS NOT NULL AND cents IS NOT NULL")
    return [
        (row.account, row.cents)
        for row in told.groupBy("account").agg(sql.sum("cents").alias("cents")).collect()
    ]


if __name__ == "__main__":
    parser = options(__doc__)
    parser.add_argument(
        "--database", default="totals.sqlite", help="a path, or postgresql://… (default %(default)s)"
    )
    parser.add_argument(
        "--checkpoint",
        help="the folder in which Spark notes how far it is (default: the database's path and .checkpoint, or"
        f" checkpoints/{NAME} for a postgresql://…)",
    )
    run(main, parser.parse_args(), SAMPLES)

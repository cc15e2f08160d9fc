"""What one PostgreSQL gives to a cluster, and what a cluster costs it: the numbers of docs/growth.md.

`python -m tests.bench postgres_limits`

- the store alone, with no broker round it: durable records a second, by the number of records that one call
  appends. The floor is what one gets without group commit: one transaction for each, over one connection;
- what the database writes and keeps for that: bytes of its log, and how large the table has become for each
  key in it after all these upserts;
- brokers that have nothing to do: the transactions, log and connections of renewals and polling.
"""

from __future__ import annotations

import time
from typing import Any, Final

import asyncpg

from muster.coordinator.storage.postgres import PostgresStore
from muster.coordinator.storage.store import LeaseKind
from tests.bench import bench_store, cluster, database, load
from tests.bench.figures import Figure
from tests.support.postgres import Postgres

RECORDS: Final = (1, 16, 128, 1_000)
"""Of one call."""
SECONDS: Final = 3.0
SETTLED_S: Final = 10.0
"""After that, new brokers have shared the leases."""
IDLE_S: Final = 10.0
"""How long brokers with nothing to do are watched."""


async def _plain(connection: asyncpg.Connection) -> float:
    """Upserts a second, a transaction each."""
    await connection.execute("CREATE TABLE plain (key bytea PRIMARY KEY, seq bigint, value bytea)")
    upsert = await connection.prepare(
        "INSERT INTO plain VALUES ($1, $2, $3) "
        "ON CONFLICT (key) DO UPDATE SET seq = excluded.seq, value = excluded.value"
    )
    done, end = 0, time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        await upsert.fetch(bench_store.key(done), done, bench_store.VALUE)
        done += 1
    return done / SECONDS


async def _append(url: str, count: int) -> tuple[float, int]:
    """Records a second, and all of them."""
    store = PostgresStore(url)
    await store.open()
    appended = await bench_store.append(store, count, SECONDS)
    await store.release(list((await store.holders(LeaseKind.GROUP)).values()))
    await store.close()
    return appended


async def _room(connection: asyncpg.Connection) -> dict[str, float]:
    """Of the table of keyed records: bytes with its indexes, live rows, the share of updates that touched no
    index (HOT)."""
    row = await connection.fetchrow(
        "SELECT pg_total_relation_size(relid) AS bytes, n_tup_upd AS updates, n_tup_hot_upd AS hot "
        "FROM pg_stat_user_tables WHERE schemaname = 'muster' AND relname = 'records'"
    )
    live = await connection.fetchval("SELECT count(*) FROM muster.records")
    updates = max(row["updates"], 1)
    return {"bytes": row["bytes"], "live": live, "updates": updates, "hot": row["hot"] / updates}


async def _connections(connection: asyncpg.Connection) -> int:
    """Of others than the one that asks."""
    count: int = await connection.fetchval(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    return count


async def _transactions(connection: asyncpg.Connection) -> int:
    count: int = await connection.fetchval(
        "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()"
    )
    return count


def _idle(postgres: Postgres) -> dict[str, float]:
    """What each of the brokers costs the database while nothing happens."""
    url = postgres.new_database()
    with cluster.brokers(url):
        time.sleep(SETTLED_S)
        transactions = database.run(url, _transactions)
        usage = database.Usage(postgres)
        time.sleep(IDLE_S)
        each = usage.each(cluster.BROKERS * IDLE_S)
        return each | {
            "transactions": (database.run(url, _transactions) - transactions) / cluster.BROKERS / IDLE_S,
            "connections": database.run(url, _connections) / cluster.BROKERS,
        }


def measure() -> list[Figure]:
    figures = []
    with database.server() as postgres:
        plain = database.run(postgres.new_database(), _plain)
        url = postgres.new_database()
        for count in RECORDS:
            usage = database.Usage(postgres)
            rate, done = load.run(_append(url, count))
            used: dict[str, Any] = usage.each(done)
            figures.append(
                Figure(
                    f"durable records, {count:,} a call",
                    "/s",
                    rate,
                    plain,
                    "a transaction each",
                    note=f"for each {used['wal_bytes']:.0f} bytes of the database's log and "
                    f"{used['cpu_us']:.1f} us of its CPU",
                )
            )
        room = database.run(url, _room)
        figures.append(
            Figure(
                "table of records, bytes for a key",
                "B",
                room["bytes"] / room["live"],
                len(bench_store.key(0)) + len(bench_store.VALUE),
                "of key and value",
                note=f"of {room['live']:,} keys, after {room['updates']:,} updates, {room['hot']:.0%} of "
                "which touched no index (HOT); index and dead rows included",
            )
        )
        idle = _idle(postgres)
        figures += [
            Figure("an idle broker: transactions a second", "/s", idle["transactions"]),
            Figure(
                "an idle broker: connections",
                "",
                idle["connections"],
                note=f"{idle['wal_bytes']:.0f} bytes of log and {idle['cpu_us'] / 1000:.1f} ms of the "
                "database's CPU a second for each",
            ),
        ]
    return figures

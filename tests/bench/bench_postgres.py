"""A broker over PostgreSQL against the same broker over its embedded store, in one run on one machine.

`python -m tests.bench postgres`

Commits are those of `bench_commits`, bytes those of `bench_records`; the database, with fsync and everything
else at its defaults, has the same cores and the same disk as the broker and the load. On PostgreSQL a record
is on the disk before it is acknowledged; the embedded store leaves that to the system unless
log.flush.interval.messages says otherwise, as Kafka does. Questions from one process to another go through
letters in the database; with the embedded store all brokers are in one process.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from muster.coordinator.storage.postgres import PostgresStore
from muster.coordinator.storage.sqlite import SqliteStore
from muster.coordinator.storage.store import Store
from tests.bench import bench_commits, bench_records, database, processes
from tests.bench.figures import Figure
from tests.peers.support import MARKERS, markers
from tests.postgres.answering import answering, peer
from tests.support.postgres import Postgres

TARGET_RATE: Final = 25_000
TARGET_ASK_MS: Final = 5.0
BATCH_BYTES: Final = (100_000, 1_000)
QUESTIONS: Final = 1_000


@contextmanager
def _broker(url: str | None, *options: str) -> Iterator[processes.Server]:
    store = () if url is None else ("--store", url)
    with processes.muster(*store, *options) as server:
        yield server


def _commits(url: str | None) -> dict[str, float]:
    with _broker(url, "--group-initial-rebalance-delay-ms", "500") as server:
        found: dict[str, float] = processes.load(bench_commits.commit, port=server.port, pid=server.pid)
    return found


def _records(postgres: Postgres | None, batch_bytes: int) -> tuple[dict[str, float], dict[str, float]]:
    """Produce and Fetch."""
    found = []
    for fetching in (False, True):
        with _broker(None if postgres is None else postgres.new_database()) as server:
            found.append(
                processes.load(
                    bench_records.move,
                    port=server.port,
                    pid=server.pid,
                    batch_bytes=batch_bytes,
                    fetching=fetching,
                    prepare=True,
                )
            )
    return found[0], found[1]


async def _questions(store: Store, node_id: int) -> float:
    """Milliseconds from question to answer, half of them: one at a time from node 1 to another."""
    post = await peer(store, 1)
    took_ms = []
    for number in range(QUESTIONS + QUESTIONS // 10):
        began_s = time.perf_counter()
        await post.ask(node_id, MARKERS, markers(number), timeout_ms=60_000)
        took_ms.append((time.perf_counter() - began_s) * 1_000)
    await post.close()
    return sorted(took_ms[QUESTIONS // 10 :])[QUESTIONS // 2]


async def _questions_embedded() -> float:
    with tempfile.TemporaryDirectory() as folder:
        store = SqliteStore(Path(folder))
        await store.open()
        other = await peer(store, 2)
        found = await _questions(store, 2)
        await other.close()
        await store.close()
    return found


async def _questions_of_processes(url: str) -> float:
    store = PostgresStore(url)
    await store.open()
    async with answering(url, 2):
        found = await _questions(store, 2)
    await store.close()
    return found


def measure() -> list[Figure]:
    floor = _commits(None)
    figures: list[Figure] = []
    embedded_ms = asyncio.run(_questions_embedded())
    with database.server() as postgres:
        url = postgres.new_database()
        usage = database.Usage(postgres)
        found = _commits(url)
        used = usage.each(found["commits"])
        figures += [
            Figure(
                "durable commits a second on PostgreSQL",
                "/s",
                found["rate"],
                floor["rate"],
                "embedded",
                target=f"at least {TARGET_RATE:,}",
                reached=found["rate"] >= TARGET_RATE,
                note=f"CPU of a commit: {found['cpu_us']:.1f} us in the broker, {used['cpu_us']:.1f} us in "
                f"the database, which writes {used['wal_bytes']:.0f} bytes of log for it",
            ),
            Figure("p99 of a commit on PostgreSQL", "ms", found["p99_ms"], floor["p99_ms"], "embedded"),
        ]
        asked_ms = asyncio.run(_questions_of_processes(postgres.new_database()))
        figures.append(
            Figure(
                "p50 of a question from broker to broker and its answer on PostgreSQL",
                "ms",
                asked_ms,
                embedded_ms,
                "embedded, in one process",
                target=f"below {TARGET_ASK_MS:g}",
                reached=asked_ms < TARGET_ASK_MS,
                note="four statements, each a round trip to the database whose commit is not synced",
            )
        )
        for batch_bytes in BATCH_BYTES:
            floors: Any = _records(None, batch_bytes)
            moved: Any = _records(postgres, batch_bytes)
            for name, one, other in zip(("Produce", "Fetch"), moved, floors, strict=True):
                figures.append(
                    Figure(
                        f"{name} on PostgreSQL, batches of {batch_bytes // 1_000} KB",
                        "MB/s",
                        one["rate"],
                        other["rate"],
                        "embedded",
                        note=f"CPU of a MB in the broker: {one['cpu_us'] / 1e3:.1f} ms, embedded "
                        f"{other['cpu_us'] / 1e3:.1f} ms",
                    )
                )
    return figures

"""A broker over PostgreSQL against the same broker over its embedded store, in one run on one machine.

`python -m tests.bench postgres`

Commits are those of `bench_commits`, bytes those of `bench_records`; the database, with fsync and everything
else at its defaults, has the same cores and the same disk as the broker and the load. On PostgreSQL a record
is on the disk before it is acknowledged; the embedded store leaves that to the system unless
log.flush.interval.messages says otherwise, as Kafka does.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from tests.bench import bench_commits, bench_records, database, processes
from tests.bench.figures import Figure
from tests.support.postgres import Postgres

TARGET_RATE: Final = 25_000
BATCH_BYTES: Final = (100_000, 1_000)


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


def measure() -> list[Figure]:
    floor = _commits(None)
    figures: list[Figure] = []
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

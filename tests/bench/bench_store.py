"""Durable appends a second: muster's sqlite store against plain sqlite, in one run on one disk.

`python -m tests.bench.bench_store [--seconds S] [--directory D]`

The peer is the standard library's sqlite3 with the same settings (WAL, synchronous=FULL) and the same upsert,
one transaction per commit, called straight from one thread: what one gets without group commit, and without
an event loop to keep free. An append is one record of an offset commit's size, fenced by its epoch (the peer
checks nothing).
"""

from __future__ import annotations

import argparse
import asyncio
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from muster.coordinator.storage.sqlite import SqliteStore
from muster.coordinator.storage.sqlite_schema import connect
from muster.coordinator.storage.store import Append, Lease, LeaseKind, Outcome

CALLERS = (1, 16, 128)
KEYS = 1000
VALUE = bytes(60)


def key(number: int) -> bytes:
    return b"\x00\x01\x00\x0agroup-%04d\x00\x06orders\x00\x00\x00\x00" % (number % KEYS)


def plain_sqlite(directory: Path, seconds: float) -> float:
    """Commits a second."""
    connection = connect(directory / "plain.sqlite")
    connection.execute(
        "CREATE TABLE records (lease_id INTEGER, key BLOB, seq INTEGER, value BLOB, UNIQUE (lease_id, key))"
    )
    done, end = 0, time.perf_counter() + seconds
    while time.perf_counter() < end:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(
            "INSERT INTO records VALUES (?, ?, ?, ?) "
            "ON CONFLICT (lease_id, key) DO UPDATE SET seq = excluded.seq, value = excluded.value",
            (1, key(done), done, VALUE),
        )
        connection.execute("COMMIT")
        done += 1
    connection.close()
    return done / seconds


async def muster_store(directory: Path, callers: int, seconds: float) -> tuple[float, float, float]:
    """Appends a second, and the median and 99th percentile of their time in milliseconds."""
    store = SqliteStore(directory / f"muster-{callers}")
    await store.open()
    leases = [Lease(LeaseKind.GROUP, number) for number in range(50)]
    epochs = {grant.lease: grant.epoch for grant in await store.claim(leases, 1, 600_000) if grant}
    times: list[float] = []
    end = time.perf_counter() + seconds

    async def caller(number: int) -> None:
        lease = leases[number % len(leases)]
        turn = number
        started = time.perf_counter()
        while started < end:
            outcomes = await store.append([Append(lease, epochs[lease], [(key(turn), VALUE)])])
            assert outcomes == [Outcome.WRITTEN]
            turn += callers
            finished = time.perf_counter()
            times.append(finished - started)
            started = finished

    await asyncio.gather(*map(caller, range(callers)))
    await store.close()
    p99_s = statistics.quantiles(times, n=100)[98]
    return len(times) / seconds, statistics.median(times) * 1000, p99_s * 1000


def main(arguments: Sequence[str] = ()) -> None:
    parser = argparse.ArgumentParser(description="durable appends a second, against plain sqlite")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of each measurement")
    parser.add_argument("--directory", type=Path, help="where to write (default: a temporary directory)")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(dir=options.directory) as temporary:
        directory = Path(temporary)
        plain = plain_sqlite(directory, options.seconds)
        print(f"sqlite {sqlite3.sqlite_version}, WAL, synchronous=FULL; {options.seconds:g} s each")
        print(f"{'':28}{'commits/s':>12}{'p50 ms':>10}{'p99 ms':>10}{'ratio':>8}")
        print(f"{'plain sqlite, one thread':28}{plain:12,.0f}{1000 / plain:10.2f}{'':10}{1:8.2f}")
        for callers in CALLERS:
            rate, p50_ms, p99_ms = asyncio.run(muster_store(directory, callers, options.seconds))
            name = f"muster, {callers} caller{'s' if callers > 1 else ''}"
            print(f"{name:28}{rate:12,.0f}{p50_ms:10.2f}{p99_ms:10.2f}{rate / plain:8.2f}")


if __name__ == "__main__":
    main(sys.argv[1:])

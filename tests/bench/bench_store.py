"""Durable appends a second: muster's sqlite store against plain sqlite, in one run on one disk.

`python -m tests.bench.bench_store [--seconds S] [--directory D]`

The peer is the standard library's sqlite3 with the same settings (WAL, synchronous=FULL) and the same upsert,
one transaction per commit, called straight from one thread: what one gets without group commit, and without
an event loop to keep free. A call appends records of an offset commit's size to up to 50 leases, as the
appender does, fenced by their epochs (the peer checks nothing).
"""

from __future__ import annotations

import argparse
import asyncio
import sqlite3
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from muster.coordinator.storage.sqlite import SqliteStore
from muster.coordinator.storage.sqlite.schema import connect
from muster.coordinator.storage.store import Append, Lease, LeaseKind, Outcome, Store

RECORDS = (1, 16, 128)
"""Of one call."""
LEASES = [Lease(LeaseKind.GROUP, number) for number in range(50)]
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


def batch(epochs: Mapping[Lease, int], first: int, count: int) -> list[Append]:
    """`count` records, numbered from `first` on."""
    records: dict[Lease, list[tuple[bytes, bytes | None]]] = {}
    for turn in range(first, first + count):
        records.setdefault(LEASES[turn % len(LEASES)], []).append((key(turn), VALUE))
    return [Append(lease, epochs[lease], each) for lease, each in records.items()]


async def append(store: Store, count: int, seconds: float) -> tuple[float, int]:
    """Records a second, `count` with each call, and all of them."""
    epochs = {grant.lease: grant.epoch for grant in await store.claim(LEASES, 1, 600_000) if grant}
    began, done = time.perf_counter(), 0
    while time.perf_counter() < began + seconds:
        outcomes = await store.append(batch(epochs, done, count))
        assert set(outcomes) == {Outcome.WRITTEN}
        done += count
    return done / (time.perf_counter() - began), done


async def muster_store(directory: Path, count: int, seconds: float) -> float:
    store = SqliteStore(directory / f"muster-{count}")
    await store.open()
    rate, _ = await append(store, count, seconds)
    await store.close()
    return rate


def main(arguments: Sequence[str] = ()) -> None:
    parser = argparse.ArgumentParser(description="durable appends a second, against plain sqlite")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of each measurement")
    parser.add_argument("--directory", type=Path, help="where to write (default: a temporary directory)")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(dir=options.directory) as temporary:
        directory = Path(temporary)
        plain = plain_sqlite(directory, options.seconds)
        print(f"sqlite {sqlite3.sqlite_version}, WAL, synchronous=FULL; {options.seconds:g} s each")
        print(f"{'':32}{'records/s':>12}{'ms a call':>12}{'ratio':>8}")
        print(f"{'plain sqlite, one thread':32}{plain:12,.0f}{1000 / plain:12.2f}{1:8.2f}")
        for count in RECORDS:
            rate = asyncio.run(muster_store(directory, count, options.seconds))
            name = f"muster, {count} record{'s' if count > 1 else ''} a call"
            print(f"{name:32}{rate:12,.0f}{count * 1000 / rate:12.2f}{rate / plain:8.2f}")


if __name__ == "__main__":
    main(sys.argv[1:])

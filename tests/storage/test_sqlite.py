"""Tests of sqlite alone: files that survive a kill or are refused as too new, and a disk that fills up."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from uuid import UUID

import pytest

from muster.coordinator.storage.sqlite import SqliteStore
from muster.coordinator.storage.sqlite.schema import SCHEMA_VERSION
from muster.coordinator.storage.store import (
    Append,
    JournalBounds,
    JournalRow,
    Lease,
    LeaseKind,
    NodeRow,
    Outcome,
    StoreDamaged,
    StoreError,
    StoreLocked,
    StoreRefused,
    TopicRow,
)
from tests.storage.storm import LEASE as STORM_LEASE

ROOT = Path(__file__).parents[2]
LEASE = Lease(LeaseKind.GROUP, 0)
ACKNOWLEDGED_BEFORE_KILL = 400


@pytest.mark.parametrize("delay", [0, 1, 7])
async def test_kill_9_in_a_storm_of_appends_loses_nothing_acknowledged(tmp_path: Path, delay: int) -> None:
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.storage.storm", str(tmp_path), cwd=ROOT, stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    try:
        async with asyncio.timeout(30):
            lines = [await child.stdout.readline() for _ in range(ACKNOWLEDGED_BEFORE_KILL + delay)]
            os.kill(child.pid, signal.SIGKILL)
            lines += (await child.stdout.read()).splitlines()  # acknowledged before the signal arrived
    finally:
        await child.wait()
    acknowledged: dict[bytes, int] = {}
    for line in lines:
        key, turn = line.split()
        acknowledged[key] = int(turn)
    store = SqliteStore(tmp_path)
    await store.open()
    stored = {key: int(value.split()[0]) for _, key, value in await store.load(STORM_LEASE)}
    await store.close()
    assert len(lines) >= ACKNOWLEDGED_BEFORE_KILL
    # An unacknowledged append may be there: a later turn of the same key.
    lost = {key: turn for key, turn in acknowledged.items() if stored.get(key, -1) < turn}
    assert not lost


async def test_a_restart_waits_for_no_lease_and_lists_no_dead_node(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    await store.open()
    await store.claim([LEASE], 1, 3_600_000)
    await store.register_node(NodeRow(1, "127.0.0.1", 9092, None, 3_600_000, UUID(int=11)))
    await store.close()
    # The lock was released and taken again, so the process that held the lease is gone.
    again = SqliteStore(tmp_path)
    await again.open()
    assert await again.holders(LeaseKind.GROUP) == {}
    assert await again.nodes() == []
    (grant,) = await again.claim([LEASE], 2, 10_000)
    assert grant is not None
    assert grant.epoch == 2
    await again.close()


async def test_two_store_objects_of_one_process_share_a_directory(tmp_path: Path) -> None:
    first, second, third = (SqliteStore(tmp_path) for _ in range(3))
    await asyncio.gather(first.open(), second.open())
    (grant,) = await first.claim([LEASE], 1, 60_000)
    assert grant is not None
    await third.open()
    assert await third.claim([LEASE], 2, 60_000) == [None], "opening did not release living leases"
    await third.close()
    assert await second.claim([LEASE], 2, 60_000) == [None]
    outcomes = await asyncio.gather(
        *(
            store.append([Append(LEASE, grant.epoch, [(b"%d" % n, b"v")])])
            for n in range(20)
            for store in (first, second)
        )
    )
    assert outcomes == [[Outcome.WRITTEN]] * 40
    assert len(await second.load(LEASE)) == 20
    await first.close()
    assert len(await second.load(LEASE)) == 20
    await second.close()


async def test_stores_of_one_process_open_a_new_directory_at_once(tmp_path: Path) -> None:
    # sqlite refuses, without waiting, one of two connections that switch a new file to WAL at the same time.
    for turn in range(25):
        directory = tmp_path / str(turn)
        stores = [SqliteStore(directory) for _ in range(3)]
        await asyncio.gather(*(store.open() for store in stores))
        another = SqliteStore(directory)
        await asyncio.gather(another.open(), *(store.close() for store in stores))
        assert await another.holders(LeaseKind.GROUP) == {}
        await another.close()


async def test_a_second_process_is_refused_by_name(tmp_path: Path) -> None:
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.storage.storm", str(tmp_path), cwd=ROOT, stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    try:
        async with asyncio.timeout(30):
            await child.stdout.readline()  # it is running
        with pytest.raises(StoreLocked) as refusal:
            await SqliteStore(tmp_path).open()
        assert str(tmp_path) in str(refusal.value)
        assert f"process {child.pid}" in str(refusal.value)
    finally:
        os.kill(child.pid, signal.SIGKILL)
        await child.stdout.read()
        await child.wait()
    store = SqliteStore(tmp_path)  # the lock went with the process
    await store.open()
    await store.close()


async def test_a_file_from_before_broker_configs_gets_their_table(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    await store.open()
    await store.create_topic(TopicRow(UUID(int=1), "orders", 3))
    await store.close()
    with closing(sqlite3.connect(tmp_path / "store.sqlite")) as connection:
        connection.execute("DROP TABLE broker_configs")
    store = SqliteStore(tmp_path)
    await store.open()
    assert await store.broker_configs() == []
    assert [topic.name for topic in await store.topics()] == ["orders"]
    await store.close()


async def test_a_file_from_before_journals_gets_their_tables(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    await store.open()
    (grant,) = await store.claim([LEASE], 1, 60_000)
    assert grant is not None
    await store.append([Append(LEASE, grant.epoch, [(b"key", b"value")])])
    await store.close()
    with closing(sqlite3.connect(tmp_path / "store.sqlite")) as connection:
        connection.execute("DROP TABLE journals")
        connection.execute("DROP TABLE journal_rows")
    await store.open()
    assert [row[1:] for row in await store.load(LEASE)] == [(b"key", b"value")]
    assert await store.journal_bounds(LEASE) == JournalBounds(0, 0, 0)
    await store.append([Append(LEASE, grant.epoch, [], [JournalRow(7, None, b"told")])])
    assert await store.read_journal(LEASE, 0, rows_max=9, bytes_max=9) == [(0, 7, None, b"told")]
    await store.close()


@pytest.mark.parametrize("change", ["value = x'beef'", "key = NULL", "key = x'00'"])
async def test_a_journal_row_that_has_changed_is_noticed(tmp_path: Path, change: str) -> None:
    store = SqliteStore(tmp_path)
    await store.open()
    (grant,) = await store.claim([LEASE], 1, 60_000)
    assert grant is not None
    rows = [JournalRow(7, b"key", b"%d" % number) for number in range(3)]
    await store.append([Append(LEASE, grant.epoch, [], rows)])
    with closing(sqlite3.connect(tmp_path / "store.sqlite", isolation_level=None)) as connection:
        connection.execute(f"UPDATE journal_rows SET {change} WHERE row_offset = 1")
    with pytest.raises(
        StoreDamaged, match=r"journal row 1 of group lease 0 has changed; the file is damaged"
    ):
        await store.read_journal(LEASE, 0, rows_max=9, bytes_max=99)
    assert [row.offset for row in await store.read_journal(LEASE, 2, rows_max=9, bytes_max=99)] == [2]
    assert await store.trim_journal(LEASE, grant.epoch, 2)
    assert (await store.journal_bounds(LEASE))[:2] == (2, 3)
    await store.close()


async def test_a_store_written_by_a_newer_version_is_refused(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    await store.open()
    await store.close()
    with sqlite3.connect(tmp_path / "store.sqlite") as connection:
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    connection.close()
    newer = rf"store\.sqlite was written by a newer muster \(schema {SCHEMA_VERSION + 1}; this one"
    with pytest.raises(StoreError, match=newer):
        await store.open()
    with sqlite3.connect(tmp_path / "store.sqlite") as connection:
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    connection.close()
    await store.open()  # the refusal released the lock
    await store.close()


@pytest.mark.parametrize(
    "content", [b"", b"SQLite format 3\x00" + b"\xff" * 5000, b"not a database\n" * 100, 0, 1]
)
async def test_a_file_that_is_not_ours(tmp_path: Path, content: bytes | int) -> None:
    path = tmp_path / "store.sqlite"
    why = ""
    if isinstance(content, int):  # somebody else's version
        why = ".* not muster's"
        with sqlite3.connect(path) as connection:
            connection.execute("CREATE TABLE recipes (name TEXT)")
            connection.execute(f"PRAGMA user_version = {content}")
        connection.close()
    else:
        path.write_bytes(content)
    store = SqliteStore(tmp_path)
    if content == b"":  # an empty file is an empty database, left by an interrupted first start
        await store.open()
        await store.close()
        return
    with pytest.raises(StoreError, match=rf"store\.sqlite{why}"):
        await store.open()


async def test_a_directory_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreError, match=r"cannot use data directory .*file"):
        await SqliteStore(tmp_path / "file").open()


async def test_what_sqlite_never_accepts_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    await store.open()
    await store.claim([LEASE], 1, 60_000)
    store._opened_files().writing.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 100_000)
    good = Append(LEASE, 1, [(b"good", b"v")])
    for bad in (
        Append(LEASE, 1, [(b"large", bytes(200_000))]),
        Append(LEASE, 1, [], [JournalRow(2**70, None, b"beyond 64 bits")]),
    ):
        with pytest.raises(StoreRefused, match=r"writing to .*store\.sqlite"):
            await store.append([good, bad])
    assert await store.load(LEASE) == []
    assert await store.append([good]) == [Outcome.WRITTEN]
    await store.close()


# The limit on file sizes stands in for a full disk: sqlite meets both in write(2).
DISK_FULL = """
import asyncio, resource, sys
from pathlib import Path
from muster.coordinator.storage.sqlite import SqliteStore
from muster.coordinator.storage.sqlite.schema import SCHEMA_VERSION
from muster.coordinator.storage.store import Append, Lease, LeaseKind, StoreError

async def main():
    store, lease = SqliteStore(Path(sys.argv[1])), Lease(LeaseKind.GROUP, 0)
    await store.open()
    (grant,) = await store.claim([lease], 1, 60_000)
    await store.append([Append(lease, 1, [(b"before", b"v")])])
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, resource.RLIM_INFINITY))
    try:
        await store.append([Append(lease, 1, [(b"large", bytes(3_000_000))])])
    except StoreError as error:
        print(error)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    await store.append([Append(lease, 1, [(b"after", b"v")])])
    print([key for _, key, _ in await store.load(lease)])
    await store.close()

asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="limits of a process are POSIX")
async def test_a_full_disk_says_what_and_where_and_the_store_recovers(tmp_path: Path) -> None:
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", DISK_FULL, str(tmp_path), cwd=ROOT, stdout=subprocess.PIPE
    )
    async with asyncio.timeout(30):
        output, _ = await child.communicate()
    error, keys = output.decode().splitlines()
    assert error.startswith(f"writing to {tmp_path / 'store.sqlite'}: ")
    assert "full" in error or "disk I/O error" in error
    assert keys == "[b'before', b'after']"

"""Store files damaged while nobody had them open: the next start reports it and begins nothing new over what
is left."""

from __future__ import annotations

import asyncio
import random
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from errno import ENOSPC
from pathlib import Path
from uuid import UUID

import pytest

from muster.coordinator.storage.directory import DataDirectory
from muster.coordinator.storage.left_behind import MARKER, first_damage, frame_sums, mark_of, sums
from muster.coordinator.storage.soundness import Checked, check_directory
from muster.coordinator.storage.sqlite import SqliteStore
from muster.coordinator.storage.sqlite.schema import connect
from muster.coordinator.storage.store import (
    LEASE_COUNTS_DEFAULT,
    Append,
    Assignment,
    Lease,
    LeaseKind,
    Outcome,
    StoreDamaged,
    StoreError,
    TopicRow,
)
from tests.support.each import each

PAGE_BYTES = 4_096
HEADER_BYTES = 32
FRAME_BYTES = PAGE_BYTES + 24
LEASE = Lease(LeaseKind.GROUP, 3)


def frames(log: bytes) -> list[tuple[int, bool]]:
    """Position of each frame, and whether it ends a transaction."""
    positions = range(HEADER_BYTES, len(log) - FRAME_BYTES + 1, FRAME_BYTES)
    return [(position, log[position + 4 : position + 8] != bytes(4)) for position in positions]


def owner_of(topics: Path) -> UUID | None:
    mark = mark_of(topics)
    return None if mark is None else mark.store_id


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """A directory as a killed process leaves it: a database and its log of twelve transactions, of one to
    four frames each."""
    alive = tmp_path / "alive"
    alive.mkdir()
    connection = connect(alive / "store.sqlite")
    connection.execute("CREATE TABLE t (n INTEGER PRIMARY KEY, v BLOB)")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    for number in range(12):
        connection.execute("INSERT INTO t VALUES (?, zeroblob(?))", (number, 3_000 * (number % 4)))
    left = tmp_path / "left"
    shutil.copytree(alive, left, ignore=shutil.ignore_patterns("*-shm"))
    connection.close()
    return left


def wal(directory: Path) -> Path:
    return directory / "store.sqlite-wal"


def recovered(directory: Path, log: bytes) -> int:
    """Number of transactions that sqlite finds."""
    copy = directory.with_name("copy")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(directory, copy)
    wal(copy).write_bytes(log)
    connection = sqlite3.connect(copy / "store.sqlite")
    (count,) = connection.execute("SELECT COUNT(*) FROM t").fetchone()
    connection.close()
    return int(count)


@each("page_bytes", [512, 4_096, 65_536])
@each("big_endian", [False, True])
def test_sums_of_all_frames_at_once_are_those_of_each(page_bytes: int, big_endian: bool) -> None:
    frame_bytes, count = 24 + page_bytes, 5
    for log in (random.Random(3).randbytes(32 + count * frame_bytes), b"\xff" * (32 + count * frame_bytes)):
        before = [(number * 0x3FFF_FFFF, 0xFFFF_FFFF - number) for number in range(count)]
        one_by_one = []
        for number, start in enumerate(before):
            frame = log[32 + number * frame_bytes :][:frame_bytes]
            one_by_one.append(sums(frame[24:], sums(frame[:8], start, big_endian), big_endian))
        assert frame_sums(log, page_bytes, before, big_endian) == one_by_one


_WRITER = """
import random, sqlite3, sys
path, seed, page_bytes = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
dice = random.Random(seed)
writing, reading = (sqlite3.connect(path, timeout=0, isolation_level=None) for _ in range(2))
writing.execute(f"PRAGMA page_size = {page_bytes}")
writing.execute("PRAGMA journal_mode = WAL")
writing.execute(f"PRAGMA cache_size = {dice.choice([2, 10, 2000])}")  # a small one spills
writing.execute("PRAGMA synchronous = OFF")  # a kill takes nothing from the system's cache
writing.execute(f"PRAGMA wal_autocheckpoint = {dice.choice([5, 50, 1000])}")
writing.execute("CREATE TABLE IF NOT EXISTS t (n INTEGER PRIMARY KEY, v BLOB)")
while True:
    writing.execute("BEGIN IMMEDIATE")
    for _ in range(dice.choice([1, 2, 5, 60])):
        row = dice.randrange(40), dice.randbytes(dice.randrange(5 * page_bytes))
        writing.execute("INSERT OR REPLACE INTO t VALUES (?, ?)", row)
    writing.execute(dice.choice(["COMMIT", "COMMIT", "COMMIT", "ROLLBACK"]))
    print("written", flush=True)
    chance = dice.random()
    if chance < 0.03:
        how = dice.choice(["PASSIVE", "FULL", "RESTART", "TRUNCATE"])
        writing.execute(f"PRAGMA wal_checkpoint({how})").fetchall()
    elif chance < 0.06 and reading.in_transaction:
        reading.execute("COMMIT")
    elif chance < 0.06:
        reading.execute("BEGIN")
        reading.execute("SELECT COUNT(*) FROM t").fetchall()
"""


@pytest.mark.parametrize("page_bytes", [512, 4_096])
def test_no_log_of_a_killed_process_is_refused(tmp_path: Path, page_bytes: int) -> None:
    """Killed anywhere, again and again over the same log: between frames, in a checkpoint, after a rollback
    whose frames are still there, while a reader holds back the log."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    for _ in range(8):
        command = [sys.executable, "-c", _WRITER, str(tmp_path / "store.sqlite"), str(dice.randrange(2**32))]
        with subprocess.Popen([*command, str(page_bytes)], stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            try:
                for _ in range(dice.randrange(1, 50)):
                    assert writer.stdout.readline() == b"written\n"
            finally:
                writer.kill()
        assert first_damage(wal(tmp_path).read_bytes()) is None


def test_a_sound_log_and_one_cut_anywhere_are_taken(killed: Path) -> None:
    log = wal(killed).read_bytes()
    assert first_damage(log) is None
    assert recovered(killed, log) == 12
    dice = random.Random(1)
    for size in [0, 31, 32, 33, *(dice.randrange(len(log)) for _ in range(40))]:
        assert first_damage(log[:size]) is None, f"cut at {size}"


def test_harm_to_any_frame_is_found_if_anything_was_committed_behind_it(killed: Path) -> None:
    log = wal(killed).read_bytes()
    all_frames = frames(log)
    assert sum(ends for _, ends in all_frames) == 12
    dice = random.Random(2)
    for number, (position, _) in enumerate(all_frames):
        for at in (0, 5, 9, 17, 23, 24, dice.randrange(24, FRAME_BYTES)):
            harmed = bytearray(log)
            harmed[position + at] ^= 0x10
            # A frame whose salts or checksums were damaged no longer says that it ends a transaction.
            known = number + 1 if 8 <= at < 24 else number
            behind = any(ends for _, ends in frames(bytes(harmed))[known:-1])
            assert first_damage(bytes(harmed)) == (position if behind else None), f"frame {number}, byte {at}"
            assert recovered(killed, bytes(harmed)) < 12, "and sqlite says nothing"


def test_lost_pages_are_found(killed: Path) -> None:
    log = wal(killed).read_bytes()
    position, _ = frames(log)[2]
    harmed = log[:position] + bytes(3 * FRAME_BYTES) + log[position + 3 * FRAME_BYTES :]
    assert first_damage(harmed) == position


def test_a_harmed_head_is_found(killed: Path) -> None:
    log = wal(killed).read_bytes()
    for at in range(HEADER_BYTES):
        harmed = bytearray(log)
        harmed[at] ^= 0x10
        assert first_damage(bytes(harmed)) == 0, f"byte {at}"
    assert recovered(killed, bytes(harmed)) == 0


def test_a_torn_last_transaction_is_no_damage(killed: Path) -> None:
    """The system may have written its pages in any order before the power went."""
    log = wal(killed).read_bytes()
    all_frames = frames(log)
    ends = [number for number, (_, last) in enumerate(all_frames) if last]
    first, last = ends[-2] + 1, ends[-1]
    assert last > first
    position, _ = all_frames[first]
    assert first_damage(log[:position] + bytes(FRAME_BYTES) + log[position + FRAME_BYTES :]) is None


def test_what_an_earlier_turn_of_the_log_left_behind_its_end_is_no_damage(tmp_path: Path) -> None:
    connection = connect(tmp_path / "store.sqlite")
    connection.execute("CREATE TABLE t (n INTEGER PRIMARY KEY, v BLOB)")
    for number in range(20):
        connection.execute("INSERT INTO t VALUES (?, zeroblob(5000))", (number,))
    connection.execute("PRAGMA wal_checkpoint(RESTART)")
    connection.execute("INSERT INTO t VALUES (100, NULL)")
    log = wal(tmp_path).read_bytes()
    connection.close()
    assert len(frames(log)) > 20
    assert first_damage(log) is None


async def filled(directory: Path) -> dict[bytes, bytes]:
    """Leave a killed store in `directory`; return what it holds for LEASE."""
    alive = directory.with_name("alive")
    store = SqliteStore(alive)
    await store.open()
    (grant,) = await store.claim([LEASE], 1, 60_000)
    assert grant is not None
    for number in range(20):
        record = (b"key %d" % number, b"value %d" % number)
        assert await store.append([Append(LEASE, grant.epoch, [record])]) == [Outcome.WRITTEN]
    shutil.copytree(alive, directory, ignore=shutil.ignore_patterns("*-shm"))
    await store.close()
    return {b"key %d" % number: b"value %d" % number for number in range(20)}


async def held(store: SqliteStore) -> dict[bytes, bytes]:
    return {key: value for _, key, value in await store.load(LEASE)}


async def test_a_store_with_a_damaged_log_is_not_opened_until_it_was_cut(tmp_path: Path) -> None:
    left = tmp_path / "left"
    everything = await filled(left)
    log = bytearray(wal(left).read_bytes())
    position, _ = frames(bytes(log))[-10]
    log[position + 100] ^= 1
    wal(left).write_bytes(log)
    store = SqliteStore(left)
    for _ in range(2):  # the file stays unchanged
        with pytest.raises(
            StoreDamaged, match=rf"store\.sqlite-wal is damaged at byte {position}.*truncate -s"
        ):
            await store.open()
    assert wal(left).read_bytes() == log
    wal(left).write_bytes(log[:position])
    await store.open()
    found = await held(store)
    await store.close()
    assert found.items() < everything.items()
    assert len(found) >= 5


async def test_a_record_that_changed_is_not_given_out(tmp_path: Path) -> None:
    left = tmp_path / "left"
    await filled(left)
    store = SqliteStore(left)
    await store.open()
    await store.close()  # everything is in a single file now
    path = left / "store.sqlite"
    contents = path.read_bytes()
    assert contents.count(b"value 7") == 1
    path.write_bytes(contents.replace(b"value 7", b"value 6"))
    await store.open()
    with pytest.raises(
        StoreDamaged, match=r"store\.sqlite: record b'key 7' of group lease 3 has changed.*backup"
    ):
        await store.load(LEASE)
    assert await store.load(Lease(LeaseKind.GROUP, 4)) == [], "others are not affected"
    await store.close()


@pytest.mark.parametrize("content", [b"SQLite format 3\x00" + b"\xff" * 5000, b"not a database\n" * 100])
async def test_a_file_that_is_no_database_any_more_says_what_to_do(tmp_path: Path, content: bytes) -> None:
    left = tmp_path / "left"
    await filled(left)
    wal(left).unlink()
    (left / "store.sqlite").write_bytes(content)
    with pytest.raises(
        StoreDamaged, match=r"opening .*store\.sqlite: .* the file is damaged: restore the data"
    ):
        await SqliteStore(left).open()


async def test_a_database_that_was_cut_short_is_found(tmp_path: Path) -> None:
    left = tmp_path / "left"
    await filled(left)
    store = SqliteStore(left)
    await store.open()
    await store.close()
    path = left / "store.sqlite"
    path.write_bytes(path.read_bytes()[: 2 * PAGE_BYTES])
    with pytest.raises(StoreDamaged, match=r"store\.sqlite: .*malformed"):
        await store.open()


@pytest.mark.parametrize("empty", [True, False])
@pytest.mark.parametrize("beside", ["topics", "store.sqlite-wal"])
def test_a_store_that_is_missing_is_not_begun_anew_over_what_it_knew(
    tmp_path: Path, beside: str, empty: bool
) -> None:
    if empty:
        (tmp_path / "store.sqlite").touch()
    if beside == "topics":
        (tmp_path / "topics" / str(UUID(int=1))).mkdir(parents=True)
    else:
        wal(tmp_path).write_bytes(b"log")
    with pytest.raises(
        StoreDamaged, match=rf"store\.sqlite is missing or empty, but .*{beside} holds .*restore the file"
    ):
        DataDirectory.acquire(tmp_path)
    shutil.rmtree(tmp_path / beside) if beside == "topics" else wal(tmp_path).unlink()
    DataDirectory.acquire(tmp_path).release()


async def test_a_copy_without_the_log_that_has_all_is_not_begun_anew(tmp_path: Path) -> None:
    """A store that has not been closed yet may have everything in its write-ahead log."""
    topics = tmp_path / "topics"
    connect(tmp_path / "store.sqlite").close()
    (topics / str(UUID(int=1))).mkdir(parents=True)
    with pytest.raises(StoreDamaged, match=r"store\.sqlite is missing or empty, .* -wal file"):
        await SqliteStore(tmp_path).open()
    topics.rename(tmp_path / "away")
    store = SqliteStore(tmp_path)
    await store.open()
    await store.close()


async def test_a_store_whose_records_are_missing_does_not_start_without_them(tmp_path: Path) -> None:
    """For example restored from a backup without its folder of topics."""
    store = SqliteStore(tmp_path)
    await store.open()
    topics = tmp_path / "topics"
    shutil.rmtree(topics)
    await store.close()
    await store.open()
    assert topics.is_dir(), "a store without topics misses nothing"
    await store.create_topic(TopicRow(UUID(int=1), "orders", 1))
    await store.close()
    shutil.rmtree(topics)
    for what in ("is missing", f"has no {MARKER}"):
        with pytest.raises(
            StoreDamaged, match=rf"store\.sqlite lists 1 topic, but .*topics, .* {what}: mount or restore"
        ) as refusal:
            await store.open()
        (fault,) = check_directory(tmp_path, Checked())
        assert fault.what == str(refusal.value)
        topics.mkdir(exist_ok=True)  # where nothing is mounted
    await asyncio.to_thread(
        subprocess.run, str(refusal.value).partition("without records: ")[2], shell=True, check=True
    )
    assert list(check_directory(tmp_path, Checked())) == []
    await store.open()
    assert [row.name for row in await store.topics()] == ["orders"]
    await store.close()


async def test_the_folder_of_topics_of_another_store_is_refused(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("one", "other", "none")]
    for path in paths:
        store = SqliteStore(path)
        await store.open()
        if path.name != "none":
            await store.create_topic(TopicRow(UUID(int=1), "orders", 1))
            (path / "topics" / str(UUID(int=1))).mkdir()
        await store.close()
    shutil.copytree(paths[0], tmp_path / "copy")
    again = SqliteStore(tmp_path / "copy")
    await again.open()
    await again.close()
    for path in paths[1:]:
        shutil.rmtree(path / "topics")
        shutil.copytree(paths[0] / "topics", path / "topics")
        with pytest.raises(StoreDamaged, match=r"is that of another store \(its store.id: [-0-9a-f]+ \d+\)"):
            await SqliteStore(path).open()


async def test_a_folder_with_nothing_but_the_mark_of_a_store_that_is_gone_is_taken(tmp_path: Path) -> None:
    """As after a crash before the store's first commit."""
    topics = tmp_path / "topics"
    topics.mkdir()
    for left in (f"{UUID(int=7)} 2\n", ""):
        (topics / MARKER).write_text(left)
        store = SqliteStore(tmp_path)
        await store.open()
        assert owner_of(topics) == (await store.counts()).cluster_id
        await store.close()
        (tmp_path / "store.sqlite").unlink()


async def test_a_folder_of_topics_from_before_another_took_its_place_is_refused(tmp_path: Path) -> None:
    """A volume that was not mounted while the first topic was made."""
    store, topics, volume = SqliteStore(tmp_path), tmp_path / "topics", tmp_path / "volume"
    await store.open()
    await store.close()
    topics.rename(volume)
    topics.mkdir()
    await store.open()
    await store.create_topic(TopicRow(UUID(int=1), "orders", 1))
    await store.close()
    topics.rename(tmp_path / "mount point")
    topics.symlink_to(volume)
    with pytest.raises(
        StoreDamaged, match=r"is one that it had before \(its store.id: [-0-9a-f]+ \d+\)"
    ) as refusal:
        await store.open()
    command = str(refusal.value).partition("without records: ")[2]
    for gone in (False, True):
        if gone:
            shutil.rmtree(volume)
            with pytest.raises(StoreDamaged, match="is missing"):
                await store.open()
        await asyncio.to_thread(subprocess.run, command, shell=True, check=True)
        await store.open()
        await store.close()


async def test_a_new_volume_for_topics_is_taken_with_what_its_file_system_has(tmp_path: Path) -> None:
    (tmp_path / "topics" / "lost+found").mkdir(parents=True)
    directory = DataDirectory.acquire(tmp_path)
    store = SqliteStore(tmp_path)
    await store.open()
    assert mark_of(tmp_path / "topics") is not None
    await store.close()
    directory.release()


@pytest.mark.parametrize("column", [True, False])
async def test_a_store_from_before_marks_gets_one_once_a_topic_of_its_is_there(
    tmp_path: Path, column: bool
) -> None:
    """An empty folder may be that of topics without records, or a mount point."""
    topics = tmp_path / "topics"
    store = SqliteStore(tmp_path)
    await store.open()
    await store.create_topic(TopicRow(UUID(int=1), "orders", 1))
    await store.close()
    (topics / MARKER).unlink()
    (topics / "lost+found").mkdir()
    with closing(connect(tmp_path / "store.sqlite")) as connection:
        if column:
            connection.execute("UPDATE store SET topics_folder = 1")
        else:
            connection.execute("ALTER TABLE store DROP COLUMN topics_folder")
    for marked in (False, False, True):
        if marked:
            (topics / str(UUID(int=1))).mkdir()
        assert list(check_directory(tmp_path, Checked())) == []
        await store.open()
        assert owner_of(topics) == ((await store.counts()).cluster_id if marked else None)
        await store.close()
    (topics / MARKER).unlink()
    with pytest.raises(StoreDamaged, match=f"has no {MARKER}"):
        await store.open()


async def test_a_mark_that_cannot_be_written_is_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(ENOSPC, "No space left on device")

    store = SqliteStore(tmp_path)
    with monkeypatch.context() as while_full:
        while_full.setattr("muster.coordinator.storage.sqlite.schema.os.fsync", full)
        (tmp_path / "topics").mkdir()
        await store.open()
    await store.create_topic(TopicRow(UUID(int=1), "orders", 1))
    await store.close()
    (tmp_path / "topics" / MARKER).write_text("")  # torn
    await store.open()
    assert mark_of(tmp_path / "topics") is None
    await store.close()
    (tmp_path / "topics" / str(UUID(int=1))).mkdir()
    await store.open()
    assert owner_of(tmp_path / "topics") == (await store.counts()).cluster_id
    await store.close()


async def test_a_store_from_before_it_made_the_folder_of_topics_misses_none(tmp_path: Path) -> None:
    """The folder used to come into being with the first record."""
    store = SqliteStore(tmp_path)
    await store.open()
    await store.create_topic(TopicRow(UUID(int=1), "orders", 1))
    await store.close()
    with closing(connect(tmp_path / "store.sqlite")) as connection:
        connection.execute("ALTER TABLE store DROP COLUMN topics_folder")
    shutil.rmtree(tmp_path / "topics")
    assert list(check_directory(tmp_path, Checked())) == []
    await store.open()
    await store.close()
    shutil.rmtree(tmp_path / "topics")
    with pytest.raises(StoreDamaged, match=r"topics, .* is missing"):
        await store.open()
    (fault,) = check_directory(tmp_path, Checked())
    assert "is missing" in fault.what


async def test_a_folder_of_topics_that_cannot_be_created(tmp_path: Path) -> None:
    (tmp_path / "topics").symlink_to(tmp_path / "nowhere" / "topics")
    with pytest.raises(StoreError, match=r"cannot create .*topics: "):
        await SqliteStore(tmp_path).open()


async def test_a_store_of_the_second_schema_learns_of_replica_lists(tmp_path: Path) -> None:
    left = tmp_path / "left"
    everything = await filled(left)
    connection = sqlite3.connect(left / "store.sqlite", isolation_level=None)
    connection.execute("ALTER TABLE topics DROP COLUMN assignments")
    connection.execute("DROP TABLE replica_lists")
    connection.execute("DELETE FROM leases WHERE kind IN ('replicas', 'transaction')")
    connection.execute("INSERT INTO topics VALUES (?, 'orders', 3, '{}', 5)", (bytes(16),))
    connection.execute("PRAGMA user_version = 2")
    connection.close()
    store = SqliteStore(left)
    await store.open()
    assert await held(store) == everything
    old = TopicRow(UUID(int=0), "orders", 3, {}, 5)
    assert await store.topics() == [old]
    await store.add_replica_lists([(2, 1)])
    (grant,) = await store.claim([Lease(LeaseKind.REPLICAS, 999)], 1, 60_000)
    assert grant is not None
    assigned = old._replace(assignments={0: Assignment((2, 1))})
    await store.update_topic(assigned, expected=old)
    await store.close()
    again = SqliteStore(left)
    await again.open()
    assert await again.topics() == [assigned]
    await again.close()


async def test_a_store_of_the_third_schema_learns_of_transactions(tmp_path: Path) -> None:
    left = tmp_path / "left"
    everything = await filled(left)
    connection = sqlite3.connect(left / "store.sqlite", isolation_level=None)
    connection.execute("DELETE FROM leases WHERE kind = 'transaction'")
    connection.execute("PRAGMA user_version = 3")
    connection.close()
    for rows in ([], [(b"key", b"value")]):
        store = SqliteStore(left)
        await store.open()
        assert (await store.counts()).leases == LEASE_COUNTS_DEFAULT
        assert await held(store) == everything
        lease = Lease(LeaseKind.TRANSACTION, 49)
        assert [row[1:] for row in await store.load(lease)] == rows
        (grant,) = await store.claim([lease], 1, 60_000)
        assert grant is not None
        assert await store.append([Append(lease, grant.epoch, [(b"key", b"value")])]) == [Outcome.WRITTEN]
        await store.close()


async def test_a_store_of_the_first_schema_gets_its_checksums(tmp_path: Path) -> None:
    left = tmp_path / "left"
    everything = await filled(left)
    connection = sqlite3.connect(left / "store.sqlite", isolation_level=None)
    connection.execute("ALTER TABLE records DROP COLUMN checksum")
    connection.execute("ALTER TABLE topics DROP COLUMN assignments")
    connection.execute("DROP TABLE replica_lists")
    connection.execute("DELETE FROM leases WHERE kind IN ('replicas', 'transaction')")
    connection.execute("PRAGMA user_version = 1")
    connection.close()
    store = SqliteStore(left)
    await store.open()
    assert await held(store) == everything
    (grant,) = await store.claim([LEASE], 1, 60_000)
    assert grant is not None
    assert await store.append([Append(LEASE, grant.epoch, [(b"more", b"v")])]) == [Outcome.WRITTEN]
    await store.close()
    again = SqliteStore(left)
    await again.open()
    assert await held(again) == everything | {b"more": b"v"}
    await again.close()

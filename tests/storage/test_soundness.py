"""`muster store check` of a data directory: all damage is found and located, and nothing else is reported."""

from __future__ import annotations

import asyncio
import re
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from muster.coordinator.storage.directory import DataDirectory
from muster.coordinator.storage.files import MemoryFile, MemoryFolder
from muster.coordinator.storage.soundness import (
    Checked,
    Fault,
    NoDataDirectory,
    check_directory,
    check_partition,
)
from muster.coordinator.storage.sqlite import SqliteStore
from muster.coordinator.storage.sqlite.schema import SCHEMA_VERSION
from muster.coordinator.storage.store import (
    Append,
    JournalRow,
    Lease,
    LeaseKind,
    StoreDamaged,
    StoreError,
    StoreLocked,
    TopicRow,
)
from muster.coordinator.topics.config import parse
from muster.coordinator.topics.logs import Logs
from tests.topics.support import NOW_MS, OneLog, batch

TOPIC_ID = UUID(int=7)
LEASE = Lease(LeaseKind.GROUP, 3)
BATCHES = 30
RECORDS = 3
"""Records per batch."""


def fill(data: Path, *, close: bool = True) -> None:
    """A topic "orders" with a partition of several segments, and a group's records."""

    async def store() -> None:
        store = SqliteStore(data)
        await store.open()
        await store.create_topic(TopicRow(TOPIC_ID, "orders", 1))
        (grant,) = await store.claim([LEASE], 1, 10_000)
        assert grant is not None
        records = [(b"key %d" % number, b"value %d" % number) for number in range(5)]
        journal = [JournalRow(NOW_MS, b"group", b"told %d" % number) for number in range(5)]
        await store.append([Append(LEASE, grant.epoch, records, journal)])
        await store.append([Append(LEASE, grant.epoch, [(b"key 0", None)], at_ms=NOW_MS)])
        await store.close()

    asyncio.run(store())
    logs = Logs.on_disk(data / "topics")
    config = replace(parse({}), segment_bytes=2_000, index_interval_bytes=200)
    log = logs.open(TOPIC_ID, 0, "orders-0", config, Lease(LeaseKind.DATA, 0), 1, lambda: NOW_MS)
    for number in range(BATCHES):
        log.append(batch(*(b"%03d" % number * 20 for _ in range(RECORDS))))
        log.commit()
    log.seal()
    if close:
        log.close()
    logs.close()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory as a stopped broker leaves it."""
    fill(tmp_path / "data")
    return tmp_path / "data"


def faults(data: Path) -> list[Fault]:
    return list(check_directory(data, Checked()))


def folder(data: Path) -> Path:
    return data / "topics" / str(TOPIC_ID) / "0"


def segments(data: Path) -> list[Path]:
    found = sorted(folder(data).glob("*.log"))
    assert len(found) >= 3
    return found


def places(path: Path) -> list[tuple[int, int]]:
    """Position and base offset of each batch."""
    found, at, contents = [], 0, path.read_bytes()
    while at < len(contents):
        found.append((at, int.from_bytes(contents[at : at + 8], "big")))
        at += 12 + int.from_bytes(contents[at + 8 : at + 12], "big")
    return found


def harm(path: Path, position: int, contents: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(contents)


def contents(data: Path) -> dict[str, bytes]:
    """Contents of all files except the lock, which names the process."""
    return {
        str(path): path.read_bytes()
        for path in data.rglob("*")
        if path.is_file() and path.name != "muster.lock"
    }


def lost(found: list[Fault]) -> list[tuple[str, int | None, int | None, int | None]]:
    assert {each.partition for each in found} <= {"orders-0"}
    return [(Path(each.place).name, each.position, each.first_offset, each.last_offset) for each in found]


# --- what is sound --------------------------------------------------------------------------------


@pytest.mark.parametrize("close", [True, False], ids=["stopped", "killed"])
def test_what_a_broker_leaves_is_sound_and_is_left_as_it_is(tmp_path: Path, close: bool) -> None:
    data = tmp_path / "data"
    fill(data, close=close)
    before = contents(data)
    checked = Checked()
    assert list(check_directory(data, checked)) == []
    assert (checked.partitions, checked.batches, checked.group_rows) == (1, BATCHES, 9)
    assert checked.segments == len(segments(data))
    assert checked.bytes == sum(path.stat().st_size for path in segments(data))
    assert contents(data) == before
    assert faults(data) == []


def test_what_waits_in_the_log_of_the_store_is_checked(data: Path) -> None:
    """As a killed broker leaves it."""
    path = data / "store.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        with connection:
            connection.execute("UPDATE records SET value = x'00' WHERE key = CAST('key 3' AS BLOB)")
        copy = data.with_name("copy")
        shutil.copytree(data, copy)
    assert (copy / "store.sqlite-wal").stat().st_size
    assert [each.what for each in faults(copy)] == ["its checksum does not match"]
    assert (copy / "store.sqlite-wal").stat().st_size, "and still waits"


@pytest.mark.parametrize(
    "tail", [bytes(9_000), b"garbage \x02" * 99, None], ids=["zeroed pages", "garbage", "half a batch"]
)
def test_a_torn_end_is_no_fault(tmp_path: Path, tail: bytes | None) -> None:
    data = tmp_path / "data"
    fill(data, close=False)
    last = segments(data)[-1]
    with last.open("ab") as file:
        file.write(last.read_bytes()[:80] if tail is None else tail)
    assert faults(data) == []


def test_indexes_that_are_missing_are_no_fault(data: Path) -> None:
    for path in folder(data).glob("*.index"):
        path.unlink()
    assert faults(data) == []


# --- segments -------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [0, 1], ids=["the first segment", "one in the middle"])
def test_bytes_overwritten_in_the_middle(data: Path, number: int) -> None:
    path = segments(data)[number]
    position, offset = places(path)[2]
    harm(path, position + 80, b"\xff" * 50)
    (found,) = faults(data)
    assert lost([found]) == [(path.name, position, offset, offset + RECORDS - 1)]
    assert found.place == str(path)
    assert found.what == "the batch's checksum does not match"
    assert "backup" in found.advice


def test_what_follows_damage_is_read_once() -> None:
    class ReadFile(MemoryFile):
        def read(self, position: int, size: int) -> bytes:
            found = super().read(position, size)
            folder.bytes_read += len(found)
            return found

    class ReadFolder(MemoryFolder):
        bytes_read = 0

        def new_file(self) -> MemoryFile:
            return ReadFile()

    folder = ReadFolder()
    one = OneLog(folder)
    for _ in range(16):
        one.append(bytes(1_000_000))
    one.log.close()
    folder.open("00000000000000000000.log").contents[100] ^= 1
    folder.bytes_read = 0
    (found,) = check_partition(folder, "orders-0", Checked())
    assert (found.position, found.first_offset, found.last_offset) == (0, 0, 0)
    assert folder.bytes_read < 1.5 * one.log.segments.size


def test_each_harm_is_a_fault_of_its_own(data: Path) -> None:
    first, second, *_ = segments(data)
    expected = []
    for path, number in ((first, 1), (first, 3), (second, 2)):
        position, offset = places(path)[number]
        expected.append((path.name, position, offset, offset + RECORDS - 1))
    for (_, position, _, _), path in zip(expected, (first, first, second), strict=True):
        harm(path, position + 100, b"\x00\x01")
    assert lost(faults(data)) == expected


@pytest.mark.parametrize("length", [-12, 1 << 30, 0])
def test_a_length_that_is_none(data: Path, length: int) -> None:
    path = segments(data)[0]
    position, offset = places(path)[1]
    harm(path, position + 8, length.to_bytes(4, "big", signed=True))
    assert lost(faults(data)) == [(path.name, position, offset, offset + RECORDS - 1)]


def test_two_batches_across_which_bytes_were_overwritten(data: Path) -> None:
    path = segments(data)[0]
    (position, offset), (behind, _) = places(path)[1:3]
    harm(path, behind - 20, b"\xff" * 50)
    assert lost(faults(data)) == [(path.name, position, offset, offset + 2 * RECORDS - 1)]


@pytest.mark.parametrize(("number", "ends"), [(0, True), (-1, False)], ids=["closed", "the last one"])
def test_the_last_batch_of_a_segment(data: Path, number: int, ends: bool) -> None:
    path = segments(data)[number]
    position, offset = places(path)[-1]
    harm(path, position + 100, b"\x00\x01")
    assert lost(faults(data)) == [(path.name, position, offset, offset + RECORDS - 1 if ends else None)]


def test_a_segment_that_is_cut_short(data: Path) -> None:
    path = segments(data)[0]
    position, offset = places(path)[-1]
    with path.open("r+b") as file:
        file.truncate(position + 30)
    found = faults(data)
    assert lost(found)[0] == (path.name, position, offset, offset + RECORDS - 1)
    assert {Path(each.place).suffix for each in found[1:]} <= {".index"}


def test_an_offset_that_is_not_due(data: Path) -> None:
    path = segments(data)[0]
    position, offset = places(path)[2]
    harm(path, position, (offset + 1).to_bytes(8, "big"))
    (found,) = faults(data)
    assert lost([found]) == [(path.name, position, offset, offset + RECORDS - 1)]
    assert found.what == f"the batch's offset {offset + 1} should be {offset}"


def test_a_segment_that_is_gone(data: Path) -> None:
    _, path, behind, *_ = segments(data)
    first, last = int(path.stem), int(behind.stem) - 1
    path.unlink()
    (found,) = faults(data)
    assert lost([found]) == [("0", None, first, last)]
    assert found.what == "records missing: a segment file is gone"


def test_a_partition_whose_topic_nobody_knows_is_named_by_its_id(data: Path) -> None:
    with closing(sqlite3.connect(data / "store.sqlite")) as connection, connection:
        connection.execute("DELETE FROM topics")
    path = segments(data)[0]
    harm(path, places(path)[2][0] + 80, b"\xff" * 50)
    assert [each.partition for each in faults(data)] == [f"{TOPIC_ID}-0"]


# --- what stands beside them ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "harmed",
    [lambda stored: stored[:-1] + b"\x99", lambda stored: stored[:20], lambda stored: b""],
    ids=["a byte", "cut short", "empty"],
)
@pytest.mark.parametrize("ending", [".index", ".snapshot"])
def test_an_index_or_a_snapshot_that_is_harmed(
    data: Path, ending: str, harmed: Callable[[bytes], bytes]
) -> None:
    path = sorted(folder(data).glob(f"*{ending}"))[0]
    path.write_bytes(harmed(path.read_bytes()))
    (found,) = faults(data)
    assert (found.place, found.partition) == (str(path), "orders-0")
    assert found.advice == "delete the file: the next start rebuilds it"


def test_an_index_of_another_segment(data: Path) -> None:
    first, second, *_ = sorted(folder(data).glob("*.index"))
    first.write_bytes(second.read_bytes())
    assert [each.place for each in faults(data)] == [str(first)]


# --- the store ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("UPDATE records SET value = x'00' WHERE key = CAST('key 3' AS BLOB)", "its checksum does not match"),
        ("UPDATE records SET seq = 99 WHERE seq = 3", "its number 99 was never assigned"),
        ("UPDATE journal_rows SET value = x'00' WHERE row_offset = 2", "its checksum does not match"),
        ("DELETE FROM journal_rows WHERE row_offset = 2", "offset 2 should be here"),
        ("DELETE FROM journal_rows WHERE row_offset = 4", "offsets 4 to 4 are missing"),
    ],
)
def test_rows_that_are_not_what_was_written(data: Path, change: str, said: str) -> None:
    with closing(sqlite3.connect(data / "store.sqlite")) as connection, connection:
        assert connection.execute(change).rowcount == 1
    (found,) = faults(data)
    assert found.what == said
    assert found.place.startswith(f"{data / 'store.sqlite'}, table ")
    assert ", group shard 3" in found.place


def test_pages_that_sqlite_cannot_read(data: Path) -> None:
    path = data / "store.sqlite"
    harm(path, 4_096 * 3, b"\xff" * 4_096)
    found = faults(data)
    assert found
    assert all(each.place.startswith(str(path)) for each in found)


def test_a_file_that_is_no_store(data: Path) -> None:
    (data / "store.sqlite").write_bytes(b"nothing of the kind " * 1_000)
    (found,) = faults(data)
    assert found.what == "it cannot be read: file is not a database"


@pytest.mark.parametrize(
    "change",
    [
        "DELETE FROM store",
        "UPDATE store SET cluster_id = x'0011'",
        "UPDATE store SET cluster_id = 'none'",
        "UPDATE store SET cluster_id = 'sixteen-letters!'",
    ],
)
def test_a_store_that_does_not_say_whose_it_is(data: Path, change: str) -> None:
    with closing(sqlite3.connect(data / "store.sqlite")) as connection, connection:
        connection.execute(change)
    harm(segments(data)[0], 100, b"\xff" * 50)
    of_store, of_segment = faults(data)
    assert of_store.place == str(data / "store.sqlite")
    assert of_store.what == "it cannot be read: table store has no row with a cluster id"
    assert (of_segment.place, of_segment.partition) == (str(segments(data)[0]), "orders-0")
    with pytest.raises(StoreDamaged, match=r"table store has no row .*restore the data directory from a"):
        asyncio.run(SqliteStore(data).open())


def test_a_folder_of_topics_that_is_missing(data: Path) -> None:
    shutil.rmtree(data / "topics")
    (fault,) = faults(data)
    assert fault.place == str(data / "topics")
    assert "lists 1 topic, " in fault.what
    assert not (data / "topics").exists()


def test_a_store_that_is_missing(data: Path) -> None:
    (data / "store.sqlite").unlink()
    (found,) = faults(data)
    assert "is missing or empty" in found.what


# --- what cannot be checked -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (f"PRAGMA user_version = {SCHEMA_VERSION + 1}", "by a newer muster .* use that version to check it$"),
        (f"PRAGMA user_version = {SCHEMA_VERSION - 1}", "by an older muster .* start a broker on it once"),
        ("PRAGMA application_id = 7", "is a sqlite database, but not muster's$"),
    ],
)
def test_a_store_that_is_not_of_this_version_is_no_damage(data: Path, change: str, said: str) -> None:
    path = data / "store.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(change)
    with pytest.raises(StoreError, match=f"^{re.escape(str(path))} .*{said}"):
        faults(data)


def test_a_directory_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(NoDataDirectory, match="there is no such directory"):
        faults(tmp_path / "nowhere")
    with pytest.raises(NoDataDirectory, match=r"neither store\.sqlite nor topics"):
        faults(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_in_use(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def taken(path: Path) -> DataDirectory:
        raise StoreLocked(f"data directory {path} is in use by process 1")

    monkeypatch.setattr(DataDirectory, "acquire", taken)
    with pytest.raises(StoreLocked):
        faults(data)

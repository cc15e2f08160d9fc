"""Segment files: what was appended is found again, whatever a crash leaves of the tail."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from errno import EIO, ENOSPC
from functools import partial
from pathlib import Path
from threading import Event

import pytest

from muster.coordinator.storage.files import DiskFolder, Folder, MemoryFile, MemoryFolder, WouldBlock
from muster.coordinator.storage.records import Limits, Recovery
from muster.coordinator.storage.segments import SegmentLog
from muster.protocol import record_batch
from muster.protocol.record_batch import Header, Record
from tests.support.facts import DEADLINE_S, until

SMALL = Limits(segment_bytes=1_000, segment_ms=10_000, index_interval_bytes=200)


class Observed:
    """A derived state that simply keeps everything it observed."""

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.scanned = 0

    def observe(self, header: Header, contents: bytes) -> None:
        self.offsets.append(header.base_offset)
        self.scanned += 1

    def snapshot(self) -> bytes:
        return ",".join(map(str, self.offsets)).encode()

    def restore(self, snapshot: bytes) -> None:
        self.offsets = [int(offset) for offset in snapshot.decode().split(",") if offset]

    def reset(self) -> None:
        self.offsets = []


class Place:
    """A folder that can be opened again, copied and inspected."""

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self.now_ms = 1_000

    def open(self, limits: Limits = SMALL) -> tuple[SegmentLog, Observed]:
        observed = Observed()
        return SegmentLog.open(self.folder, observed, limits, lambda: self.now_ms), observed


@pytest.fixture(params=["disk", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return Place(DiskFolder(tmp_path / "log") if request.param == "disk" else MemoryFolder())


def append(
    log: SegmentLog, *, records: int = 2, size: int = 20, timestamp: int = 1_000, epoch: int = 3
) -> bytes:
    """Append a batch and return the bytes stored for it."""
    batch = record_batch.build([Record(n, timestamp + n, b"k", b"v" * size) for n in range(records)])
    header = log.append(batch, record_batch.peek(batch), epoch)
    assert header.leader_epoch == epoch
    return record_batch.prefix(header, header.base_offset, epoch) + batch[record_batch.PREFIX_BYTES :]


def everything(log: SegmentLog) -> bytes:
    return b"".join(batch.contents for batch in log.batches(0))


def offsets(log: SegmentLog) -> list[int]:
    return [batch.header.base_offset for batch in log.batches(0)]


def test_batches_get_the_next_offsets_and_come_back(place: Place) -> None:
    log, observed = place.open()
    stored = [append(log, records=records) for records in (1, 3, 2)]
    assert offsets(log) == [0, 1, 4]
    assert log.next_offset == 6
    assert log.read(0, 10_000) == b"".join(stored)
    assert log.read(2, 10_000) == b"".join(stored[1:])  # the batch that holds offset 2
    assert observed.offsets == [0, 1, 4]


def test_reads_return_whole_batches(place: Place) -> None:
    log, _ = place.open(Limits(index_interval_bytes=200))
    stored = [append(log) for _ in range(40)]
    size = len(stored[0])
    for first in (0, 1, 7, 20, 39):
        for bytes_max in (size, size + 1, 2 * size - 1, 2 * size, 11 * size + 5, 100 * size):
            fitting = stored[first : first + bytes_max // size]
            assert log.read(2 * first, bytes_max) == b"".join(fitting)
            assert log.read(2 * first + 1, bytes_max) == b"".join(fitting)


def test_the_first_batch_may_exceed_the_limit_only_if_asked(place: Place) -> None:
    log, _ = place.open()
    stored = append(log, size=700)
    append(log)
    assert log.read(0, 10) == stored
    assert log.read(0, 10, first_may_exceed=False) == b""
    assert log.read(0, 0, first_may_exceed=False) == b""


def test_batches_larger_than_an_index_interval_are_found(place: Place) -> None:
    log, _ = place.open(Limits(index_interval_bytes=50))
    stored = [append(log, size=size) for size in (500, 3_000, 10, 90_000, 700)]
    for number, batch in enumerate(stored):
        assert log.read(2 * number, 1) == batch
        assert log.read(2 * number + 1, len(batch)) == batch


def test_a_read_takes_no_more_memory_the_larger_the_index_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    read, longest = MemoryFile.read, 0

    def noted(file: MemoryFile, position: int, size: int) -> bytes:
        nonlocal longest
        longest = max(longest, size)
        return read(file, position, size)

    monkeypatch.setattr(MemoryFile, "read", noted)
    log, _ = Place(MemoryFolder()).open(Limits(index_interval_bytes=2**31 - 1))
    stored = [append(log, size=size) for size in (30_000, 80_000, 200) * 20]
    for first in (0, 1, 29, 30, 31, 58, 59):
        for bytes_max in (1, 500, 70_000, 160_000, 1_000_000):
            fitting = [stored[first]]
            for batch in stored[first + 1 :]:
                if len(b"".join(fitting)) + len(batch) > bytes_max:
                    break
                fitting.append(batch)
            assert log.read(2 * first, bytes_max) == b"".join(fitting)
            assert longest <= max(len(stored[first]), bytes_max + (1 << 20) + 100)
            longest = 0
    with pytest.raises(WouldBlock):
        log.read(118, 1, at_once=True)  # it would go through all of them


def test_segments_are_closed_by_size_and_reading_goes_on_in_the_next(place: Place) -> None:
    log, _ = place.open()
    stored = [append(log, size=300) for _ in range(5)]
    assert [segment.base_offset for segment in log.segments] == [0, 2, 4, 6, 8]
    assert [log.read(2 * number, 10_000) for number in range(5)] == stored
    assert log.read(10, 10_000) == b""


def test_segments_are_closed_by_the_time_of_their_records(place: Place) -> None:
    log, _ = place.open()
    append(log, timestamp=50_000)
    append(log, timestamp=59_000)
    append(log, timestamp=60_500)
    assert [segment.base_offset for segment in log.segments] == [0, 4]


def test_segments_are_closed_by_age_when_records_have_no_time(place: Place) -> None:
    log, _ = place.open()
    append(log, timestamp=-1, records=1)
    place.now_ms += 10_000
    append(log, timestamp=-1, records=1)
    place.now_ms += 1
    append(log, timestamp=-1, records=1)
    assert [segment.base_offset for segment in log.segments] == [0, 2]


def test_closing_makes_the_next_opening_scan_nothing(place: Place) -> None:
    log, _ = place.open()
    stored = [append(log, size=300) for _ in range(5)]
    log.close()
    again, observed = place.open()
    assert observed.scanned == 0
    assert observed.offsets == [0, 2, 4, 6, 8]
    assert everything(again) == b"".join(stored)
    assert again.next_offset == 10
    assert append(again)
    assert again.next_offset == 12


def test_sealed_segments_are_not_scanned_after_a_crash(place: Place) -> None:
    log, _ = place.open()
    for _ in range(5):
        append(log, size=300)
    assert log.unsealed
    log.seal()
    assert not log.unsealed
    _, observed = place.open()
    assert observed.offsets == [0, 2, 4, 6, 8]
    assert observed.scanned == 1  # the active segment's only


def test_a_mark_bounds_the_scan_after_a_crash(place: Place) -> None:
    log, _ = place.open(Limits(index_interval_bytes=50))
    stored = [append(log) for _ in range(10)]
    assert log.unmarked_bytes == len(b"".join(stored))
    trust = log.mark()
    stored.append(append(log))
    trust()
    assert log.unmarked_bytes == len(stored[-1])
    again, observed = place.open(Limits(index_interval_bytes=50))
    assert observed.scanned == 1
    assert observed.offsets == list(range(0, 22, 2))
    assert everything(again) == b"".join(stored)


def test_a_late_mark_does_not_go_back_behind_a_seal(place: Place) -> None:
    log, _ = place.open(Limits())
    append(log)
    trust = log.mark()
    append(log)
    log.roll()
    log.seal()
    trust()
    _, observed = place.open(Limits())
    assert observed.scanned == 0
    assert observed.offsets == [0, 2]


def test_an_idle_log_holds_no_file_and_wakes(tmp_path: Path) -> None:
    log, _ = Place(DiskFolder(tmp_path)).open()
    stored = append(log)
    log.rest()
    log.rest()
    assert log.segments[-1]._file is None
    assert log.read(0, 1_000) == stored
    stored += append(log)
    assert log.read(0, 1_000) == stored


def test_without_any_index_everything_is_scanned(place: Place) -> None:
    log, _ = place.open()
    stored = [append(log, size=300) for _ in range(5)]
    log.close()
    for name in place.folder.names():
        if not name.endswith(".log"):
            place.folder.remove(name)
    again, observed = place.open()
    assert observed.scanned == 5
    assert everything(again) == b"".join(stored)


@pytest.mark.parametrize("ending", [".index", ".snapshot"])
def test_broken_indexes_and_snapshots_are_not_believed(place: Place, ending: str) -> None:
    log, _ = place.open()
    stored = [append(log, size=300) for _ in range(5)]
    log.close()
    for name in place.folder.names():
        if name.endswith(ending):
            contents = bytearray(place.folder.load(name) or b"")
            contents[-1] ^= 1
            place.folder.store(name, bytes(contents))
    again, observed = place.open()
    assert everything(again) == b"".join(stored)
    assert observed.offsets == [0, 2, 4, 6, 8]


def copied(folder: MemoryFolder, cut: dict[str, int]) -> MemoryFolder:
    """The folder as a crash may leave it, with some files cut short."""
    copy = MemoryFolder()
    for name in folder.names():
        copy.store(name, (folder.load(name) or b"")[: cut.get(name)])
    return copy


def test_a_crash_at_any_byte_of_the_tail_loses_only_what_was_not_whole() -> None:
    place = Place(MemoryFolder())
    log, _ = place.open()
    stored = [append(log, size=100 + 10 * n) for n in range(7)]
    log.seal()
    active = log.segments[-1]
    in_active = list(log.batches(active.base_offset))
    assert len(in_active) >= 2
    assert isinstance(place.folder, MemoryFolder)
    for size in range(active.size + 1):
        crashed = Place(copied(place.folder, {active.log_name: size}))
        again, observed = crashed.open()
        whole = [batch for batch in in_active if batch.position + len(batch.contents) <= size]
        expected = stored[: 7 - len(in_active) + len(whole)]
        assert everything(again) == b"".join(expected), f"cut at byte {size}"
        assert again.next_offset == 2 * len(expected)
        assert observed.offsets == list(range(0, 2 * len(expected), 2))
        torn = size - sum(len(batch.contents) for batch in whole)
        at = f"{active.log_name}, byte {size - torn}" if torn else ""
        assert again.recovery == Recovery(cut_bytes=torn, cut_at=at), "a torn tail is no damage"
        # and the log goes on from there, with nothing of the torn batch left
        after = append(again, size=5)
        assert everything(crashed.open()[0]) == b"".join([*expected, after])


def test_a_harmed_byte_cuts_the_log_before_its_batch() -> None:
    place = Place(MemoryFolder())
    log, _ = place.open(Limits())
    stored = [append(log) for _ in range(3)]
    assert isinstance(place.folder, MemoryFolder)
    for position in range(len(stored[0]), 2 * len(stored[0])):
        if position - len(stored[0]) in range(12, 16):
            continue  # the leader epoch is not covered by the checksum
        folder = copied(place.folder, {})
        folder.open("00000000000000000000.log").contents[position] ^= 0x40
        again, _ = Place(folder).open(Limits())
        assert everything(again) == stored[0], f"byte {position}"


def test_segments_behind_a_torn_one_are_put_aside(place: Place) -> None:
    log, _ = place.open()
    stored = [append(log, size=300) for _ in range(4)]
    first = log.segments[1]
    place.folder.open(first.log_name).truncate(first.size - 1)
    again, observed = place.open()
    assert everything(again) == stored[0]
    assert again.next_offset == 2
    assert again.recovery.cut_bytes == first.size - 1
    assert len(again.recovery.discarded) == 3, "the rest of the torn one too"
    assert observed.offsets == [0]
    assert sum(name.endswith(".discarded") for name in place.folder.names()) == 3


def test_segments_put_aside_stay_when_others_of_their_offsets_are(place: Place) -> None:
    lost: list[bytes] = []
    for day in range(3):
        log, _ = place.open()
        stored = [append(log, size=300, timestamp=1_000 + day) for _ in range(log.next_offset // 2, 4)][-3:]
        assert [segment.base_offset for segment in log.segments] == [0, 2, 4, 6]
        place.folder.open(log.segments[1].log_name).truncate(len(stored[0]) - 1)
        lost += stored[1:]
        again, _ = place.open()
        assert again.next_offset == 2
        assert set(again.recovery.discarded) <= set(place.folder.names())
    aside = {place.folder.load(name) for name in place.folder.names() if name.endswith(".discarded")}
    assert aside >= set(lost)


def test_a_snapshot_ahead_of_the_log_is_not_believed(place: Place) -> None:
    log, _ = place.open(Limits())
    stored = [append(log) for _ in range(3)]
    log.close()
    place.folder.open("00000000000000000000.log").truncate(len(stored[0]))
    again, observed = place.open(Limits())
    assert again.next_offset == 2
    assert observed.offsets == [0]


def test_an_index_of_what_was_lost_is_not_believed_once_other_records_take_its_place(place: Place) -> None:
    log, _ = place.open(Limits())
    stored = [append(log) for _ in range(3)]
    log.close()
    place.folder.open("00000000000000000000.log").truncate(len(stored[0]))
    log, _ = place.open(Limits())
    stored[1:] = [append(log, size=70) for _ in range(4)]
    again, observed = place.open(Limits())
    assert everything(again) == b"".join(stored)
    assert observed.offsets == [0, 2, 4, 6, 8]


def test_a_log_with_an_index_of_what_was_lost_opens_once_that_can_be_removed() -> None:
    folder = StuckFolder()
    place = Place(folder)
    log, _ = place.open(Limits())
    stored = append(log)
    append(log)
    log.close()
    folder.open("00000000000000000000.log").truncate(len(stored))
    with pytest.raises(PermissionError, match=r"\.index"):
        place.open(Limits())
    folder.sound = True
    assert everything(place.open(Limits())[0]) == stored


def test_what_was_closed_and_then_grew_is_scanned_from_there(place: Place) -> None:
    log, _ = place.open(Limits())
    append(log)
    log.close()
    log, _ = place.open(Limits())
    append(log)
    _, observed = place.open(Limits())
    assert observed.offsets == [0, 2]
    assert observed.scanned == 1


def test_the_log_start_stays_moved(place: Place) -> None:
    log, _ = place.open()
    for _ in range(5):
        append(log, size=300)
    log.set_start_offset(5)
    assert log.start_offset == 5
    assert [segment.base_offset for segment in log.segments] == [4, 6, 8]
    again, _ = place.open()
    assert again.start_offset == 5
    again.set_start_offset(3)
    assert again.start_offset == 5


def test_the_end_is_known_after_all_records_are_gone(place: Place) -> None:
    log, _ = place.open()
    for _ in range(3):
        append(log, size=300)
    log.roll()
    log.remove_first(3)
    log.remove_files()
    assert (log.start_offset, log.next_offset, log.size) == (6, 6, 0)
    again, _ = place.open()
    assert (again.start_offset, again.next_offset) == (6, 6)
    append(again)
    assert offsets(again) == [6]


def test_a_start_beyond_a_lost_tail_wins(place: Place) -> None:
    log, _ = place.open(Limits())
    for _ in range(3):
        append(log)
    log.set_start_offset(6)
    place.folder.open("00000000000000000000.log").truncate(10)
    again, _ = place.open(Limits())
    assert (again.start_offset, again.next_offset) == (6, 6)


def test_batches_are_found_by_time(place: Place) -> None:
    log, _ = place.open()
    for timestamp in (5_000, 4_000, 9_000, 8_000, 12_000):
        append(log, records=1, timestamp=timestamp, size=150)
    found: Callable[[int], int | None] = lambda t: (b := log.first_batch_at(t)) and b.header.base_offset  # noqa: E731
    assert [found(t) for t in (0, 4_500, 5_000, 5_001, 9_000, 9_001, 12_000, 12_001)] == [
        0,
        0,
        0,
        2,
        2,
        4,
        4,
        None,
    ]
    log.set_start_offset(1)
    assert found(4_500) == 2


def test_a_full_disk_leaves_the_log_as_it_was() -> None:
    class FullFile(MemoryFile):
        room = 250

        def append(self, buffers: Sequence[bytes | memoryview]) -> None:
            contents = b"".join(buffers)
            super().append([contents[: self.room - self.size()]])
            if self.size() == self.room:
                raise OSError(ENOSPC, "No space left on device")

    class FullFolder(MemoryFolder):
        def new_file(self) -> MemoryFile:
            return FullFile()

    place = Place(FullFolder())
    log, observed = place.open()
    stored = append(log)
    with pytest.raises(OSError, match="No space left"):
        append(log, size=200)
    assert not log.failed
    assert (everything(log), log.next_offset, observed.offsets) == (stored, 2, [0])
    FullFile.room = 10_000
    append(log)
    assert offsets(log) == [0, 2]


def test_a_file_that_cannot_be_put_back_fails_the_log() -> None:
    class StuckFile(MemoryFile):
        def append(self, buffers: Sequence[bytes | memoryview]) -> None:
            super().append([b"".join(buffers)[:30]])
            raise OSError("torn")

        def truncate(self, size: int) -> None:
            raise OSError("stuck")

    class StuckFolder(MemoryFolder):
        def new_file(self) -> MemoryFile:
            return StuckFile()

    log, _ = Place(StuckFolder()).open()
    with pytest.raises(OSError, match="stuck"):
        append(log)
    assert log.failed


class FullFolder(MemoryFolder):
    """Stores no notes while it is full."""

    def __init__(self) -> None:
        super().__init__()
        self.full = False

    def store(self, name: str, contents: bytes) -> None:
        if self.full:
            raise OSError(ENOSPC, "No space left on device")
        super().store(name, contents)


def test_a_full_disk_does_not_keep_what_a_snapshot_covers() -> None:
    folder = FullFolder()
    log, _ = Place(folder).open()
    for _ in range(3):
        append(log, size=300)
    log.seal()
    for _ in range(3):
        append(log, size=300)
    folder.full = True
    with pytest.raises(OSError, match="No space left"):
        log.remove_first(4)
    assert [segment.base_offset for segment in log.segments] == [4, 6, 8, 10]
    assert log.start_offset == 4
    folder.full = False
    log.remove_first(2)
    log.remove_files()
    again, observed = Place(folder).open()
    assert (again.start_offset, observed.offsets) == (8, [0, 2, 4, 6, 8, 10])


def test_on_a_full_disk_what_a_snapshot_covers_makes_room_for_the_next_one() -> None:
    class Folder(FullFolder):
        def remove(self, name: str) -> None:
            super().remove(name)
            self.full = False

    folder = Folder()
    log, _ = Place(folder).open()
    for _ in range(3):
        append(log, size=300)
    log.seal()
    for _ in range(3):
        append(log, size=300)
    folder.full = True
    log.remove_first(4)
    log.remove_files()
    again, observed = Place(folder).open()
    assert (again.start_offset, observed.offsets) == (8, [0, 2, 4, 6, 8, 10])


def test_a_log_whose_start_was_moved_on_a_full_disk_opens_there() -> None:
    class Folder(FullFolder):
        def store(self, name: str, contents: bytes) -> None:
            if name == "start":  # there is room for that
                MemoryFolder.store(self, name, contents)
            else:
                super().store(name, contents)

    folder = Folder()
    log, _ = Place(folder).open()
    stored = [append(log, size=300) for _ in range(4)]
    folder.full = True
    log.set_start_offset(6)
    for full in (True, False):
        folder.full = full
        again, _ = Place(folder).open()
        assert (again.start_offset, again.next_offset) == (6, 8)
        assert again.read(6, 10_000) == stored[3]
        assert len(again.segments) == (4 if full else 1)


@pytest.mark.parametrize("closed", [False, True])
def test_what_was_removed_is_gone_when_the_log_is_opened_next(place: Place, closed: bool) -> None:
    log, _ = place.open()
    for _ in range(3):
        append(log, size=300)
    log.seal()
    log.remove_first(2)
    if closed:
        log.close()
    else:
        log.abandon()
    again, _ = place.open()
    assert again.start_offset == 4


def test_compaction_ends_though_its_index_cannot_be_stored() -> None:
    folder = FullFolder()
    log, _ = Place(folder).open()
    stored = [append(log, size=300) for _ in range(4)]
    log.seal()
    draft = log.new_draft(0, 1)
    draft.append([stored[1]], record_batch.peek(stored[1]))
    folder.full = True
    log.replace(log.segments[:2], draft)
    assert everything(log) == b"".join(stored[1:])
    log.remove_first(1)
    log.remove_files()
    folder.full = False
    again, _ = Place(folder).open()
    assert (again.start_offset, everything(again)) == (4, b"".join(stored[2:]))


def test_a_full_disk_does_not_keep_the_files_of_a_closed_log_open() -> None:
    folder = FullFolder()
    log, _ = Place(folder).open()
    for _ in range(3):
        append(log, size=300)
    folder.full = True
    with pytest.raises(OSError, match="No space left"):
        log.close()
    folder.full = False
    names = sorted(folder.names())
    log.seal()
    assert sorted(folder.names()) == names, "it writes into the folder of whoever has the log now"


@pytest.mark.parametrize("syncing", ["sync", "begin_sync", "seal", "mark", "replace"])
def test_a_sync_that_failed_is_not_believed_the_next_time(syncing: str) -> None:
    class Failing(MemoryFolder):
        failing = False

        def sync(self) -> None:
            if self.failing:
                raise OSError("on purpose")

        def new_file(self) -> MemoryFile:
            return FailingFile()

    class FailingFile(MemoryFile):
        def sync(self) -> None:
            folder.sync()

    folder = Failing()
    log, _ = Place(folder).open()
    stored = [append(log, size=300) for _ in range(3)]
    draft = None
    if syncing == "replace":
        log.seal()
        draft = log.new_draft(0, 1)
        draft.append([stored[0]], record_batch.peek(stored[0]))
        draft.open_to_write().sync = lambda: None  # type: ignore[method-assign]
    trust, beside = log.mark(), log.begin_sync()
    replace = partial(log.replace, log.segments[:1], draft)  # type: ignore[arg-type]
    calls = {"sync": log.sync, "begin_sync": beside, "seal": log.seal, "mark": trust, "replace": replace}
    folder.failing = True
    with pytest.raises(OSError, match="on purpose"):
        calls[syncing]()
    assert log.failed
    folder.failing = False
    names = sorted(folder.names())
    log.seal()
    for again in (log.sync, beside, trust):
        with pytest.raises(OSError, match="an earlier sync or write failed"):
            again()
    assert sorted(folder.names()) == names, "an index would be trusted"


@pytest.mark.parametrize("syncing", ["sync", "begin_sync", "seal", "mark", "close"])
def test_what_the_system_dropped_at_a_failed_sync_is_written_again(syncing: str) -> None:
    """As Linux does, a sync that fails counts what it has not written as written."""

    class DroppingFile(MemoryFile):
        def __init__(self) -> None:
            super().__init__()
            self.waiting: set[int] = set()  # bytes that the next sync writes
            self.on_disk: set[int] = set()

        def append(self, buffers: Sequence[bytes | memoryview]) -> None:
            begin = self.size()
            super().append(buffers)
            self.waiting |= set(range(begin, self.size()))

        def sync(self) -> None:
            written, self.waiting = self.waiting, set()
            if folder.failing:
                raise OSError(EIO, "Input/output error")
            self.on_disk |= written

    class DroppingFolder(MemoryFolder):
        failing = False

        def new_file(self) -> MemoryFile:
            return DroppingFile()

        def rewrite(self, name: str, start: int, end: int) -> None:
            file = self.open(name)
            assert isinstance(file, DroppingFile)
            file.waiting |= set(range(start, end))
            rewritten.append((start, end))

    folder, rewritten = DroppingFolder(), list[tuple[int, int]]()
    log, _ = Place(folder).open(Limits())
    synced = len(append(log))
    log.sync()
    stored = len(append(log))
    if syncing == "seal":
        log.roll()
    begun = {"begin_sync": log.begin_sync(), "mark": log.mark()}
    call = {"sync": log.sync, "seal": log.seal, "close": log.close, **begun}[syncing]
    folder.failing = True
    with pytest.raises(OSError, match="Input/output error"):
        call()
    folder.failing = False
    assert rewritten == [(synced, synced + stored)]
    again, _ = Place(folder).open(Limits())
    again.sync()
    file = folder.open("00000000000000000000.log")
    assert isinstance(file, DroppingFile)
    assert file.on_disk == set(range(synced + stored))


def test_a_failed_sync_is_known_to_others_while_its_records_are_written_again() -> None:
    class OnceFailingFile(MemoryFile):
        def sync(self) -> None:
            if not folder.reported:
                folder.reported = True  # as Linux does, the next sync of the file succeeds
                raise OSError(EIO, "Input/output error")

    class HeldFolder(MemoryFolder):
        reported = False

        def new_file(self) -> MemoryFile:
            return OnceFailingFile()

        def rewrite(self, name: str, start: int, end: int) -> None:
            rewriting.set()
            assert go.wait(DEADLINE_S)
            ended.append("rewrite")

    folder, rewriting, go, ended = HeldFolder(), Event(), Event(), list[str]()
    log, _ = Place(folder).open(Limits())
    append(log)
    log.roll()

    def run(call: Callable[[], None], begun: Event, name: str) -> None:
        begun.set()
        try:
            call()
        finally:
            ended.append(name)

    with ThreadPoolExecutor() as pool:
        try:
            sealing = pool.submit(log.seal)
            assert rewriting.wait(DEADLINE_S)
            assert log.failed
            others = []
            for call, name in ((log.sync, "sync"), (log.abandon, "abandon")):
                others.append(pool.submit(run, call, begun := Event(), name))
                assert begun.wait(DEADLINE_S)
        finally:
            go.set()
        with pytest.raises(OSError, match="Input/output error"):
            sealing.result(DEADLINE_S)
        with pytest.raises(OSError, match="an earlier sync or write failed"):
            others[0].result(DEADLINE_S)
        others[1].result(DEADLINE_S)
    assert ended.index("rewrite") < ended.index("abandon")


def test_a_sync_of_a_file_waits_for_another_which_alone_is_told_of_its_failure() -> None:
    syncing, go, begun = Event(), Event(), Event()

    class OnceFailingFile(MemoryFile):
        def sync(self) -> None:
            if syncing.is_set():
                return  # as on Linux
            syncing.set()
            assert go.wait(DEADLINE_S)
            raise OSError(EIO, "Input/output error")

    class Folder(MemoryFolder):
        def new_file(self) -> MemoryFile:
            return OnceFailingFile()

    log, _ = Place(Folder()).open(Limits())
    append(log)

    def sync() -> None:
        begun.set()
        log.sync()

    with ThreadPoolExecutor() as pool:
        try:
            marking = pool.submit(log.mark())
            assert syncing.wait(DEADLINE_S)
            second = pool.submit(sync)
            assert begun.wait(DEADLINE_S)
        finally:
            go.set()
        with pytest.raises(OSError, match="Input/output error"):
            marking.result(DEADLINE_S)
        with pytest.raises(OSError, match="an earlier sync or write failed"):
            second.result(DEADLINE_S)


@pytest.mark.parametrize("syncing", ["seal", "begin_sync", "mark"])
async def test_a_log_is_not_given_up_before_what_a_sync_loses_is_written_again(syncing: str) -> None:
    reached, go, ended = Event(), Event(), list[str]()

    class FailingFile(MemoryFile):
        def sync(self) -> None:
            reached.set()
            assert go.wait(DEADLINE_S)
            raise OSError(EIO, "Input/output error")

    class Folder(MemoryFolder):
        def new_file(self) -> MemoryFile:
            return FailingFile()

        def rewrite(self, name: str, start: int, end: int) -> None:
            ended.append("rewrite")

    log, _ = Place(Folder()).open(Limits())
    for _ in range(2):
        append(log)
        log.roll()
    append(log)
    sync = {"seal": log.seal, "begin_sync": log.begin_sync(), "mark": log.mark()}[syncing]

    def abandon() -> None:
        log.abandon()
        ended.append("abandon")

    with ThreadPoolExecutor() as pool:
        try:
            failing = pool.submit(sync)
            assert reached.wait(DEADLINE_S)
            abandoning = pool.submit(abandon)
            await until(lambda: log._abandoned)
        finally:
            go.set()
        with pytest.raises(OSError, match="Input/output error"):
            failing.result(DEADLINE_S)
        abandoning.result(DEADLINE_S)
    assert ended == ["rewrite", "abandon"]


def test_nothing_is_synced_once_the_log_was_abandoned() -> None:
    class Syncless(MemoryFile):
        def sync(self) -> None:
            raise AssertionError("another leader may have the file, and must be told of its failure")

    class Folder(MemoryFolder):
        def new_file(self) -> MemoryFile:
            return Syncless()

    log, _ = Place(Folder()).open(Limits())
    append(log)
    log.roll()
    append(log)
    trust, sync = log.mark(), log.begin_sync()
    log.abandon()
    trust()
    sync()
    log.seal()


def test_a_failed_sync_stays_known_when_an_append_fails_later() -> None:
    class FailingFile(MemoryFile):
        def append(self, buffers: Sequence[bytes | memoryview]) -> None:
            if folder.failing:
                raise OSError(ENOSPC, "No space left on device")
            super().append(buffers)

        def sync(self) -> None:
            raise OSError(EIO, "Input/output error")

    class Folder(MemoryFolder):
        failing = False

        def new_file(self) -> MemoryFile:
            return FailingFile()

    folder = Folder()
    log, _ = Place(folder).open(Limits())
    append(log)
    with pytest.raises(OSError, match="Input/output error"):
        log.sync()
    folder.failing = True
    with pytest.raises(OSError, match="No space left"):
        append(log)
    assert log.failed


def test_compaction_can_be_cut_short_anywhere() -> None:
    """Until its file is in place, the old ones count; after that, any of them still there are dropped."""
    place = Place(MemoryFolder())
    log, _ = place.open()
    stored = [append(log, size=300) for _ in range(4)]
    log.seal()
    assert isinstance(place.folder, MemoryFolder)
    before = copied(place.folder, {})
    old = log.segments[:2]
    draft = log.new_draft(0, 1)
    draft.append([stored[1]], record_batch.peek(stored[1]))
    half = copied(place.folder, {})
    log.replace(old, draft)
    assert everything(log) == b"".join(stored[1:])

    assert everything(Place(half).open()[0]) == b"".join(stored)
    for left in ([], [0], [1], [0, 1]):
        crashed = copied(place.folder, {})
        for number in left:
            crashed.store(old[number].log_name, before.load(old[number].log_name) or b"")
        again, _ = Place(crashed).open()
        assert everything(again) == b"".join(stored[1:]), f"old segments {left} were not removed yet"
        assert again.start_offset == 0


class FolderAtRenames(MemoryFolder):
    """Keeps what was there after each rename of a file."""

    def __init__(self) -> None:
        super().__init__()
        self.copies: list[MemoryFolder] = []

    def rename(self, name: str, to: str) -> None:
        super().rename(name, to)
        self.copies.append(copied(self, {}))


@pytest.mark.parametrize("kept", [0, 1])
def test_records_that_compaction_removed_stay_out_if_the_process_dies_once_its_file_is_in_place(
    kept: int,
) -> None:
    """The new file's batches end before the last of the old files begins."""
    folder = FolderAtRenames()
    log, _ = Place(folder).open()
    stored = [append(log, size=300) for _ in range(4)]
    log.seal()
    draft = log.new_draft(0, 1)
    for batch in stored[:kept]:
        draft.append([batch], record_batch.peek(batch))
    log.replace(log.segments[:3], draft)
    (crashed,) = folder.copies
    again, _ = Place(crashed).open()
    assert everything(again) == b"".join([*stored[:kept], stored[3]])


def test_compaction_replaces_nothing_if_a_start_could_not_tell_which_files_it_replaced() -> None:
    folder = FullFolder()
    log, _ = Place(folder).open()
    stored = [append(log, size=300) for _ in range(4)]
    log.seal()
    draft = log.new_draft(0, 1)
    draft.append([stored[0]], record_batch.peek(stored[0]))
    folder.full = True
    with pytest.raises(OSError, match="No space left"):
        log.replace(log.segments[:2], draft)
    log.discard(draft)
    assert everything(log) == b"".join(stored)
    assert not [name for name in folder.names() if "-1" in name]
    again, _ = Place(folder).open()
    assert everything(again) == b"".join(stored)


def test_records_that_compaction_removed_stay_out_though_their_file_cannot_be_removed() -> None:
    """Only an index tells a start to drop a file that lies behind the last batch of what replaced it."""

    class Folder(FullFolder):
        def remove(self, name: str) -> None:
            if name == f"{2:020d}.log":
                raise PermissionError(name)
            super().remove(name)

    folder = Folder()
    log, _ = Place(folder).open()
    stored = [append(log, size=300) for _ in range(4)]
    log.seal()
    for generation, kept in ((1, stored[:2]), (2, stored[:1])):
        draft = log.new_draft(0, generation)
        for batch in kept:
            draft.append([batch], record_batch.peek(batch))
        if generation == 2:
            folder.full = True
            with pytest.raises(OSError, match="No space left"):
                log.replace(log.segments[:1], draft)
            folder.full = False
            assert everything(log) == b"".join(stored)
        log.replace(log.segments[: 3 - generation], draft)
        with pytest.raises(PermissionError):
            log.remove_files()
    again, _ = Place(copied(folder, {})).open()
    assert everything(again) == everything(log) == b"".join([stored[0], *stored[2:]])


def test_a_file_that_cannot_be_removed_keeps_no_others_that_compaction_has_replaced() -> None:
    class Folder(MemoryFolder):
        stuck = f"{0:020d}.log"

        def remove(self, name: str) -> None:
            if name == self.stuck:
                raise PermissionError(name)
            super().remove(name)

    def stems() -> list[str]:
        names = (name for name in folder.names() if name.endswith(".log"))
        return sorted(name.removesuffix(".log").lstrip("0") for name in names)

    folder = Folder()
    log, _ = Place(folder).open()
    stored = [append(log, size=300) for _ in range(4)]
    log.seal()
    draft = log.new_draft(0, 1)
    draft.append([stored[1]], record_batch.peek(stored[1]))
    log.replace(log.segments[:2], draft)
    with pytest.raises(PermissionError):
        log.remove_files()
    assert stems() == ["", "-1", "4", "6"]
    log.remove_first(2)
    with pytest.raises(PermissionError):
        log.remove_files()
    assert stems() == ["", "-1", "4", "6"], "the old file would be read in place of the one that replaced it"
    assert everything(Place(copied(folder, {})).open()[0]) == b"".join(stored[1:])
    folder.stuck = ""
    log.remove_files()
    assert stems() == ["6"]


class StuckFolder(MemoryFolder):
    """Removes nothing until it is `sound`."""

    sound = False

    def remove(self, name: str) -> None:
        if name in self.names() and not self.sound:
            raise PermissionError(name)
        super().remove(name)


def test_leftovers_of_compaction_keep_a_log_neither_from_opening_nor_are_they_read() -> None:
    folder = StuckFolder()
    log, _ = Place(folder).open()
    stored = append(log)
    index, draft = f"{log.next_offset:020d}.index", f"{0:020d}-1.log.new"
    folder.store(index, log.segments[0].encoded_index())
    folder.store(draft, b"half")
    again, _ = Place(folder).open()
    assert everything(again) == stored
    with pytest.raises(PermissionError):
        again.roll()  # a start would take the index for that of the new file
    assert (len(again.segments), everything(again)) == (1, stored)
    folder.sound = True
    again.roll()
    assert index not in folder.names()
    Place(folder).open()
    assert draft not in folder.names()


def test_records_lost_before_the_log_start_stay_out_though_their_file_cannot_be_removed() -> None:
    folder = StuckFolder()
    log, _ = Place(folder).open()
    append(log)
    folder.store("start", b"10")  # as when what came after was lost
    again, observed = Place(folder).open()
    assert (again.start_offset, again.next_offset, observed.offsets) == (10, 10, [])
    again, _ = Place(folder).open()
    assert (again.start_offset, again.next_offset) == (10, 10)
    stored = append(again)
    last, observed = Place(folder).open()
    assert (last.start_offset, everything(last), observed.offsets) == (10, stored, [10])
    folder.sound = True
    last.remove_files()
    assert [name for name in folder.names() if name.endswith(".log")] == [f"{10:020d}.log"]


def test_an_older_snapshot_that_cannot_be_removed_fails_nothing_and_is_not_read() -> None:
    folder = StuckFolder()
    log, _ = Place(folder).open()
    for _ in range(3):
        append(log, size=300)
        log.note_derived()
    assert len([name for name in folder.names() if name.endswith(".snapshot")]) == 3
    assert Place(folder).open()[1].offsets == [0, 2, 4]
    folder.sound = True
    append(log, size=300)
    log.note_derived()
    assert [name for name in folder.names() if name.endswith(".snapshot")] == [f"{8:020d}.snapshot"]


def test_readers_keep_a_file_that_is_removed_under_them(tmp_path: Path) -> None:
    log, _ = Place(DiskFolder(tmp_path)).open()
    stored = [append(log, size=300) for _ in range(3)]
    log.seal()
    segment = log.segments[0]
    file = segment.open_to_read()
    log.remove_first(2)
    log.remove_files()
    assert file.read(0, 10_000) == stored[0]
    with pytest.raises(FileNotFoundError):
        segment.open_to_read()
    assert everything(log) == stored[2]


def test_no_descriptors_are_left_open(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else None
    log, _ = Place(DiskFolder(tmp_path)).open()
    for _ in range(30):
        append(log, size=300)
    log.seal()
    everything(log)
    log.close()
    del log
    if before is not None:
        assert len(os.listdir("/proc/self/fd")) == before
    shutil.rmtree(tmp_path)


@pytest.mark.parametrize("emptied", [False, True])
def test_what_was_derived_from_removed_segments_outlives_a_crash(place: Place, emptied: bool) -> None:
    log, _ = place.open()
    for _ in range(2):
        append(log, size=300)
    log.seal()
    for _ in range(3):
        append(log, size=300)
    if emptied:
        log.roll()
        log.remove_first(5)
        log.remove_files()
    else:
        log.remove_first(3)
        log.remove_files()
    again, observed = place.open()
    assert observed.offsets == [0, 2, 4, 6, 8]
    assert again.start_offset == (10 if emptied else 6)
    append(again, size=300)
    assert place.open()[1].offsets == [0, 2, 4, 6, 8, 10]


def test_what_was_derived_from_compacted_segments_outlives_a_crash(place: Place) -> None:
    log, _ = place.open()
    stored = [append(log, size=300) for _ in range(5)]
    again, _ = place.open()
    again.seal()  # without what was derived when they were closed
    compact(again, stored[1], 2)
    compact(again, stored[3], 2)
    last, observed = place.open()
    assert everything(last) == stored[1] + stored[3] + stored[4]
    assert observed.offsets == [0, 2, 4, 6, 8]


def compact(log: SegmentLog, batch: bytes, count: int) -> None:
    """Replace the oldest segments that have not been compacted with one that holds only `batch`."""
    old = [segment for segment in log.segments if not segment.generation][:count]
    draft = log.new_draft(old[0].base_offset, 1)
    draft.append([batch], record_batch.peek(batch))
    log.replace(old, draft)
    log.remove_files()


def test_what_was_derived_from_compacted_segments_outlives_a_crash_while_they_were_sealed() -> None:
    folder = FolderAtStores()
    log, _ = Place(folder).open()
    stored = [append(log, size=300) for _ in range(3)]
    log.seal()
    assert len(folder.copies) == 4  # an index and a snapshot of each closed segment
    for crashed in folder.copies:
        again, _ = Place(crashed).open()
        again.seal()
        compact(again, stored[1], 2)
        assert Place(crashed).open()[1].offsets == [0, 2, 4]


class FolderAtStores(MemoryFolder):
    """Keeps what was there after each file was stored."""

    def __init__(self) -> None:
        super().__init__()
        self.copies: list[MemoryFolder] = []

    def store(self, name: str, contents: bytes) -> None:
        super().store(name, contents)
        self.copies.append(copied(self, {}))


def test_a_log_that_was_abandoned_writes_no_more_notes(place: Place) -> None:
    log, _ = place.open()
    for _ in range(3):
        append(log, size=300)
    trust = log.mark()
    log.abandon()
    names = sorted(place.folder.names())
    log.seal()
    trust()
    assert sorted(place.folder.names()) == names


def test_an_older_snapshot_takes_no_newer_ones_place(place: Place) -> None:
    log, _ = place.open(Limits())
    append(log)
    trust = log.mark()
    append(log)
    log.roll()
    log.remove_first(1)
    log.remove_files()
    trust()
    assert place.open(Limits())[1].offsets == [0, 2]


def test_how_far_it_was_cleaned_stays_known(place: Place) -> None:
    log, _ = place.open(Limits())
    append(log)
    append(log)
    log.note_cleaned(4)
    assert place.open(Limits())[0].cleaned_offset == 4
    place.folder.open("00000000000000000000.log").truncate(10)
    assert place.open(Limits())[0].cleaned_offset == 0  # what was there is lost; other records will follow


def test_what_follows_a_cut_counts_as_cleaned_in_no_later_opening(place: Place) -> None:
    log, _ = place.open()
    for _ in range(3):
        append(log, size=300)
    log.seal()
    log.note_cleaned(6)
    cut = log.segments[1]
    log.close()
    place.folder.open(cut.log_name).truncate(cut.size - 1)
    log, _ = place.open()
    assert (log.next_offset, log.cleaned_offset) == (2, 2)
    for _ in range(3):
        append(log, size=300)
    log.close()
    assert place.open()[0].cleaned_offset == 2


def test_a_compacted_log_that_lost_its_end_opens_on_a_full_disk() -> None:
    class Folder(MemoryFolder):
        full = False

        def store(self, name: str, contents: bytes) -> None:
            if self.full:
                raise OSError(ENOSPC, "No space left on device")
            super().store(name, contents)

    folder = Folder()
    place = Place(folder)
    log, _ = place.open(Limits())
    stored = append(log)
    append(log)
    log.note_cleaned(4)
    folder.open("00000000000000000000.log").truncate(len(stored) + 10)
    folder.full = True
    log, _ = place.open(Limits())
    assert (everything(log), log.cleaned_offset) == (stored, 0)
    append(log)
    append(log)
    assert place.open(Limits())[0].cleaned_offset == 0, "what follows was never compared"


def test_a_sync_covers_the_names_of_files_that_are_new() -> None:
    class Counting(MemoryFolder):
        syncs = 0

        def sync(self) -> None:
            self.syncs += 1

    folder = Counting()
    log, _ = Place(folder).open()
    for size, syncs in ((20, 1), (20, 1), (900, 2), (20, 3), (20, 3)):
        append(log, size=size)
        log.sync()
        assert folder.syncs == syncs


def test_a_synced_folder_is_found_after_a_power_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name is stored in its parent folder, so the folders above are synced too, once."""
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_ino))
    folder = DiskFolder(tmp_path / "topics").folder("topic").folder("0")
    folder.open("file", create=True).close()
    folder.sync()
    path = tmp_path / "topics" / "topic" / "0"
    assert synced == [each.stat().st_ino for each in (path, *path.parents[:3])]
    folder.sync()
    assert synced[4:] == [path.stat().st_ino]

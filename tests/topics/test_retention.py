"""Retention: whole segments are removed by time and by size."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from errno import ENOSPC
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from muster.coordinator.storage.files import DiskFolder, MemoryFolder
from muster.coordinator.storage.segments import SegmentLog
from muster.coordinator.topics.compaction import compact
from muster.coordinator.topics.config import parse
from muster.coordinator.topics.log import PartitionLog
from muster.coordinator.topics.retention import expire
from muster.protocol import record_batch
from muster.protocol.errors import ErrorCode, KafkaError
from tests.support.facts import DEADLINE_S
from tests.topics.support import NOW_MS, OneLog, batch


def filled(folder: MemoryFolder | None = None, **configs: str) -> OneLog:
    """Five segments of one batch each; their records are 5, 4, 3, 2 and 1 seconds old."""
    one = OneLog(folder, **{"internal_segment_bytes": "250", "retention_ms": "-1", **configs})
    for age_s in range(5, 0, -1):
        one.append(b"x" * 150, timestamps=[NOW_MS - 1_000 * age_s], keys=[b"k"])
    assert len(one.log.segments.segments) == 5
    return one


def test_segments_go_when_their_newest_record_is_too_old() -> None:
    one = filled(retention_ms="3000")
    assert expire(one.log, NOW_MS) == 2
    assert (one.log.start_offset, one.log.high_watermark) == (2, 5)
    assert expire(one.log, NOW_MS) == 0
    assert expire(one.log, NOW_MS + 1) == 1


def first_read(log: PartitionLog) -> int | ErrorCode:
    """The offset of the first record that a read of offset 0 returns, or the code it is refused with."""
    try:
        return record_batch.peek(log.read(0, 1 << 20, first_may_exceed=True)).base_offset
    except KafkaError as refusal:
        return refusal.code


def test_a_read_whose_records_go_before_they_are_read_is_out_of_range(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = filled(retention_ms="3000")
    kind = type(one.log.segments)
    read = kind.read

    def expire_and_read(*args: Any, **kwargs: Any) -> Any:
        expire(one.log, NOW_MS)
        return read(*args, **kwargs)

    assert first_read(one.log) == 0
    monkeypatch.setattr(kind, "read", expire_and_read)
    assert first_read(one.log) is ErrorCode.OFFSET_OUT_OF_RANGE


@pytest.mark.files
def test_no_read_skips_what_retention_is_removing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither just before nor just after the log start moves."""
    one = filled(retention_ms="3000")
    start, seen = one.log.start_offset, list[int | ErrorCode]()

    def move(_: SegmentLog, offset: int) -> None:
        nonlocal start
        seen.append(first_read(one.log))
        start = offset
        seen.append(first_read(one.log))

    monkeypatch.setattr(SegmentLog, "start_offset", property(lambda _: start, move), raising=False)
    assert expire(one.log, NOW_MS) == 2
    assert start == 2
    assert seen == [0, ErrorCode.OFFSET_OUT_OF_RANGE]


def test_an_active_segment_that_is_too_old_is_closed_and_goes() -> None:
    one = filled(retention_ms="500")
    assert expire(one.log, NOW_MS) == 5
    assert (one.log.start_offset, one.log.high_watermark) == (5, 5)
    assert expire(one.log, NOW_MS + 9_999_999) == 0
    assert one.reopen().high_watermark == 5
    assert one.append(b"y").base_offset == 5


def test_a_young_segment_protects_those_behind_it() -> None:
    one = OneLog(internal_segment_bytes="250", retention_ms="3000")
    one.append(b"x" * 150, timestamps=[NOW_MS])
    one.append(b"x" * 150, timestamps=[NOW_MS - 9_000])
    assert expire(one.log, NOW_MS) == 0


def test_the_oldest_go_when_the_log_is_too_large() -> None:
    one = filled()
    size = one.log.segments.size // 5
    one = filled(retention_bytes=str(3 * size))
    assert expire(one.log, NOW_MS) == 2
    assert one.log.start_offset == 2
    one = filled(retention_bytes=str(3 * size - 1))
    assert expire(one.log, NOW_MS) == 2  # what stays is never less than retention.bytes
    one = filled(retention_bytes="1")
    assert expire(one.log, NOW_MS) == 4  # the active one stays


def test_no_bytes_empty_the_log() -> None:
    """As in Kafka, where this is a way to empty a topic."""
    one = filled(retention_bytes="0")
    assert expire(one.log, NOW_MS) == 5
    assert (one.log.start_offset, one.log.high_watermark, one.log.segments.size) == (5, 5, 0)
    assert expire(one.log, NOW_MS) == 0
    assert one.reopen().high_watermark == 5
    assert one.append(b"y").base_offset == 5


@pytest.mark.parametrize("limit", [{"retention_bytes": "0"}, {"retention_ms": "0"}])
def test_records_stay_until_they_are_visible(limit: dict[str, str]) -> None:
    one = filled(**limit)
    one.log.append(batch(b"x" * 150, timestamps=[NOW_MS - 1_000]))
    assert expire(one.log, NOW_MS) == 5
    assert (one.log.start_offset, one.log.high_watermark) == (5, 5)
    one.log.commit()
    assert expire(one.log, NOW_MS) == 1
    assert (one.log.start_offset, one.log.high_watermark) == (6, 6)


@pytest.mark.parametrize(("policy", "gone"), [("delete", 2), ("compact,delete", 2), ("compact", 0)])
def test_only_with_policy_delete(policy: str, gone: int) -> None:
    assert expire(filled(retention_ms="3000", cleanup_policy=policy).log, NOW_MS) == gone


def test_without_limits_nothing_goes() -> None:
    assert expire(filled().log, NOW_MS + 10**12) == 0


def test_a_closed_log_is_left_alone() -> None:
    one = filled(retention_ms="1")
    one.log.fence()
    assert expire(one.log, NOW_MS) == 0


@pytest.mark.files
def test_files_of_removed_segments_are_gone() -> None:
    one = filled(retention_ms="3000")
    one.log.seal()
    expire(one.log, NOW_MS)
    assert sorted(name for name in one.folder.names() if name.endswith((".log", ".index"))) == [
        f"{offset:020d}{ending}"
        for offset, ending in [(2, ".index"), (2, ".log"), (3, ".index"), (3, ".log"), (4, ".log")]
    ]


@pytest.mark.parametrize("reopened", [False, True])
def test_segments_whose_records_have_no_time_go_by_their_last_append(reopened: bool) -> None:
    one = OneLog(internal_segment_bytes="250", retention_ms="3000")
    one.append(b"x" * 150, timestamps=[-1])
    one.append(b"x" * 150, timestamps=[NOW_MS])
    if reopened:  # a file is newer than this clock: it counts as written just now
        one.log.close()
        one.reopen()
    assert expire(one.log, NOW_MS + 3_000) == 0
    assert expire(one.log, NOW_MS + 3_001) == 2


def test_segments_from_before_1970_go_by_their_last_append() -> None:
    one = OneLog(internal_segment_bytes="250", retention_ms="3000")
    one.append(b"x" * 150, timestamps=[-86_400_000])
    one.append(b"x" * 150, timestamps=[NOW_MS])
    assert expire(one.log, NOW_MS + 3_000) == 0
    assert expire(one.log, NOW_MS + 3_001) == 2


@pytest.mark.files
def test_the_age_of_a_file_is_known_after_a_start(tmp_path: Path) -> None:
    one = OneLog(DiskFolder(tmp_path), internal_segment_bytes="250", retention_ms="3000")
    one.append(b"x" * 150, timestamps=[-1])
    one.append(b"x" * 150, timestamps=[NOW_MS])
    one.log.close()
    written_s = (NOW_MS - 3_001) / 1_000
    os.utime(tmp_path / "00000000000000000000.log", (written_s, written_s))
    one.reopen()
    assert expire(one.log, NOW_MS) == 1


class SlowFolder(MemoryFolder):
    """Removes files only once `go` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.reached, self.go = Event(), Event()

    def remove(self, name: str) -> None:
        if name.endswith(".log"):
            self.reached.set()
            assert self.go.wait(DEADLINE_S)
        super().remove(name)


@pytest.mark.files
@pytest.mark.parametrize(
    "remove", [lambda log: expire(log, NOW_MS), lambda log: log.delete_records(3)], ids=["expire", "delete"]
)
def test_appends_do_not_wait_for_files_to_be_removed(remove: Callable[[PartitionLog], int]) -> None:
    folder = SlowFolder()
    one = filled(folder, retention_ms="2000")
    first = one.log
    with ThreadPoolExecutor() as pool:
        try:
            removing = pool.submit(remove, first)
            assert folder.reached.wait(DEADLINE_S)
            assert pool.submit(one.append, b"y").result(DEADLINE_S).base_offset == 5
            assert first.start_offset == 3
            fencing = pool.submit(first.fence)
            assert not fencing.done(), "the next leader would find files that are being removed"
        finally:
            folder.go.set()
        fencing.result(DEADLINE_S)
        assert removing.result(DEADLINE_S) == 3
    one.reopen()
    assert (one.log.start_offset, one.log.high_watermark) == (3, 6)


class StuckFolder(MemoryFolder):
    """Removes no segment file until it is `sound`."""

    sound = False

    def remove(self, name: str) -> None:
        if name.endswith(".log") and not self.sound:
            raise PermissionError(name)
        super().remove(name)


@pytest.mark.files
def test_files_that_could_not_be_removed_are_removed_the_next_time() -> None:
    folder = StuckFolder()
    one = filled(folder, retention_ms="3000")
    with pytest.raises(PermissionError):
        expire(one.log, NOW_MS)
    folder.sound = True
    assert expire(one.log, NOW_MS) == 0
    assert len([name for name in folder.names() if name.endswith(".log")]) == 3


@pytest.mark.files
def test_records_are_deleted_even_if_their_files_cannot_be_removed() -> None:
    folder = StuckFolder()
    one = filled(folder)
    assert one.log.delete_records(3) == 3
    assert one.log.delete_records(4) == 4
    folder.sound = True
    assert expire(one.log, NOW_MS) == 0
    assert [name for name in folder.names() if name.endswith(".log")] == ["00000000000000000004.log"]


class FullFolder(MemoryFolder):
    """Has room for no snapshot while it is `full`."""

    full = False

    def store(self, name: str, contents: bytes) -> None:
        if self.full and name.endswith(".snapshot"):
            raise OSError(ENOSPC, "No space left on device")
        super().store(name, contents)


@pytest.mark.files
@pytest.mark.parametrize("policy", ["delete", "compact"])
def test_records_are_deleted_on_a_full_disk_and_their_files_once_there_is_room(policy: str) -> None:
    folder = FullFolder()
    one = filled(folder)
    folder.full = True
    assert one.log.delete_records(3) == 3
    assert [record.offset for record in one.records()] == [3, 4]
    with pytest.raises(OSError, match="No space left"):
        expire(one.log, NOW_MS)
    assert len([name for name in folder.names() if name.endswith(".log")]) == 5
    folder.full = False
    one.log.config = parse({**one.configs, "cleanup.policy": policy})
    assert expire(one.log, NOW_MS) == 3
    assert expire(one.log, NOW_MS) == 0
    assert len([name for name in folder.names() if name.endswith(".log")]) == 2
    assert [record.offset for record in one.records()] == [3, 4]


@pytest.mark.files
def test_records_whose_files_cannot_be_removed_stay_deleted_after_a_start() -> None:
    folder = StuckFolder()
    one = filled(folder)
    one.log.delete_records(3)
    one.log.close()
    one.reopen()
    assert (one.log.start_offset, one.log.high_watermark) == (3, 5)
    folder.sound = True
    expire(one.log, NOW_MS)
    assert len([name for name in folder.names() if name.endswith(".log")]) == 2


@pytest.mark.files
def test_a_compacted_log_can_be_opened_though_its_old_files_cannot_be_removed() -> None:
    folder = StuckFolder()
    one = OneLog(folder, cleanup_policy="compact", min_cleanable_dirty_ratio="0")
    for value in (b"1", b"2"):
        one.append(value, value, keys=[b"a", value])
        one.log.segments.roll()
    one.log.seal()
    assert compact(one.log, NOW_MS)
    kept = one.records()
    assert [record.offset for record in kept] == [1, 2, 3]
    for _ in range(2):
        one.log.close()
        one.reopen()
        assert one.records() == kept
    folder.sound = True
    assert expire(one.log, NOW_MS) == 0
    assert sorted(name for name in folder.names() if name.endswith(".log")) == [
        "00000000000000000000-1.log",
        "00000000000000000004.log",
    ]
    assert one.records() == kept

"""Compaction: the last value of each key stays, with its offset; the rest is removed when allowed."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from muster.coordinator.storage.files import DiskFolder, MemoryFile, MemoryFolder
from muster.coordinator.storage.records import Batch
from muster.coordinator.topics import compaction
from muster.coordinator.topics.compaction import compact, due
from muster.protocol import record_batch
from muster.protocol.compression import Codec
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.record_batch import Record
from tests.support.facts import DEADLINE_S
from tests.topics.support import NOW_MS, OneLog, batch

DAY_MS = 86_400_000


def compacted_log(**configs: str) -> OneLog:
    return OneLog(**{"cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0", **configs})


def put(one: OneLog, *pairs: tuple[bytes, bytes | None], **kinds: Any) -> None:
    one.append(*[value for _, value in pairs], keys=[key for key, _ in pairs], **kinds)


def close_segment(one: OneLog) -> None:
    one.log.segments.roll()
    one.log.commit()
    one.log.seal()


def compact_all(one: OneLog, **limits: int) -> int:
    """Make passes until nothing is dirty; return how many."""
    passes = 0
    while compact(one.log, NOW_MS, **limits):
        passes += 1
    return passes


def stored(one: OneLog) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(record.offset, record.key, record.value) for record in one.records()]


def test_of_each_key_the_last_value_stays_at_its_offset() -> None:
    one = compacted_log()
    put(one, (b"a", b"1"), (b"b", b"1"))
    put(one, (b"a", b"2"), (b"c", b"1"), codec=Codec.GZIP)
    put(one, (b"a", b"3"))
    close_segment(one)
    put(one, (b"c", b"2"))  # in the active segment: neither touched nor counted
    assert compact(one.log, NOW_MS)
    assert stored(one) == [(1, b"b", b"1"), (3, b"c", b"1"), (4, b"a", b"3"), (5, b"c", b"2")]
    assert (one.log.start_offset, one.log.high_watermark) == (0, 6)


@pytest.mark.files
def test_appends_do_not_wait_for_a_compacted_file_to_be_synced() -> None:
    reached, go = Event(), Event()

    class SlowFile(MemoryFile):
        def sync(self) -> None:
            reached.set()
            assert go.wait(DEADLINE_S)

    class SlowFolder(MemoryFolder):
        slow = False

        def new_file(self) -> MemoryFile:
            return SlowFile() if self.slow else MemoryFile()

    folder = SlowFolder()
    one = OneLog(folder, cleanup_policy="compact", min_cleanable_dirty_ratio="0")
    for value in (b"1", b"2"):
        put(one, (b"a", value))
    close_segment(one)
    put(one, (b"b", b"1"))
    folder.slow = True
    with ThreadPoolExecutor() as pool:
        try:
            compacting = pool.submit(compact, one.log, NOW_MS)
            assert reached.wait(DEADLINE_S)
            assert pool.submit(put, one, (b"c", b"1")).result(DEADLINE_S) is None
            assert len(stored(one)) == 4, "what is not synced yet is not in place"
        finally:
            go.set()
        assert compacting.result(DEADLINE_S)
    assert stored(one) == [(1, b"a", b"2"), (2, b"b", b"1"), (3, b"c", b"1")]


def test_a_read_from_a_removed_offset_goes_on_at_the_next() -> None:
    one = compacted_log()
    for value in range(4):
        put(one, (b"a", b"%d" % value))
    close_segment(one)
    put(one, (b"b", b""))
    compact(one.log, NOW_MS)
    for offset in range(4):
        header = record_batch.peek(one.log.read(offset, 1 << 20, first_may_exceed=True))
        assert header.base_offset == 3
    assert one.append(b"x", keys=[b"d"]).base_offset == 5


def test_tombstones_stay_for_their_time() -> None:
    one = compacted_log(delete_retention_ms="1000")
    put(one, (b"a", b"1"), (b"b", b"1"))
    put(one, (b"a", None))
    close_segment(one)
    assert compact(one.log, NOW_MS)
    assert stored(one) == [(1, b"b", b"1"), (2, b"a", None)]
    assert record_batch.peek(one.log.read(2, 1, first_may_exceed=True)).delete_horizon_ms == NOW_MS + 1_000
    assert one.records()[1].timestamp == NOW_MS

    put(one, (b"c", b"1"))
    close_segment(one)
    assert compact(one.log, NOW_MS + 999)
    assert (2, b"a", None) in stored(one)
    put(one, (b"d", b"1"))
    close_segment(one)
    assert compact(one.log, NOW_MS + 1_000)
    assert [key for _, key, _ in stored(one)] == [b"b", b"c", b"d"]


def test_an_open_segment_is_never_touched() -> None:
    one = compacted_log()
    put(one, (b"a", b"1"))
    put(one, (b"a", b"2"))
    assert not compact(one.log, NOW_MS)
    assert len(stored(one)) == 2


def test_it_waits_until_enough_is_dirty() -> None:
    one = compacted_log(min_cleanable_dirty_ratio="0.5", internal_segment_bytes="2000")
    put(one, *[(b"k%d" % n, b"x" * 100) for n in range(8)])
    close_segment(one)
    assert compact(one.log, NOW_MS)
    put(one, (b"k1", b"y"))
    close_segment(one)
    assert not compact(one.log, NOW_MS)
    put(one, *[(b"k%d" % n, b"z" * 110) for n in range(8)])
    close_segment(one)
    assert compact(one.log, NOW_MS)
    assert set(one.live().values()) == {b"z" * 110}


def test_dirty_records_do_not_wait_longer_than_their_lag() -> None:
    one = compacted_log(min_cleanable_dirty_ratio="1", max_compaction_lag_ms="5000")
    put(one, (b"a", b"1"), (b"a", b"2"))
    close_segment(one)
    assert not compact(one.log, NOW_MS + 5_000)
    assert compact(one.log, NOW_MS + 5_001)
    assert stored(one) == [(1, b"a", b"2")]


@pytest.mark.parametrize("timestamp", [-1, 0, -5])
def test_records_whose_time_is_unknown_wait_until_enough_is_dirty(timestamp: int) -> None:
    one = compacted_log(min_cleanable_dirty_ratio="1", max_compaction_lag_ms="5000")
    put(one, (b"a", b"1"), (b"a", b"2"), timestamps=[timestamp] * 2)
    close_segment(one)
    assert not compact(one.log, NOW_MS)
    put(one, (b"a", b"3"))
    close_segment(one)
    assert not compact(one.log, NOW_MS + 5_000)
    assert compact(one.log, NOW_MS + 5_001)
    assert stored(one) == [(2, b"a", b"3")]


def test_young_records_are_left_alone() -> None:
    one = compacted_log(min_compaction_lag_ms="1000")
    put(one, (b"a", b"1"), (b"a", b"2"), timestamps=[NOW_MS, NOW_MS])
    close_segment(one)
    put(one, (b"a", b"3"), timestamps=[NOW_MS + 500])
    close_segment(one)
    assert not compact(one.log, NOW_MS + 999)
    assert compact(one.log, NOW_MS + 1_000)
    assert stored(one) == [(1, b"a", b"2"), (2, b"a", b"3")]
    assert compact(one.log, NOW_MS + 1_500)
    assert stored(one) == [(2, b"a", b"3")]


def test_small_segments_become_one() -> None:
    one = compacted_log(internal_segment_bytes="1000")
    for number in range(12):
        put(one, (b"k%d" % (number % 3), b"x" * 80))
        close_segment(one)
    put(one, (b"k0", b"last"))
    assert compact(one.log, NOW_MS)
    assert len(one.log.segments.segments) == 3
    assert compact(one.log, NOW_MS) is False  # nothing is dirty now
    assert [offset for offset, _, _ in stored(one)] == [9, 10, 11, 12]
    assert one.reopen().start_offset == 0
    assert [offset for offset, _, _ in stored(one)] == [9, 10, 11, 12]


@pytest.mark.files
def test_the_last_sequence_of_a_producer_outlives_its_records() -> None:
    one = compacted_log()
    put(one, (b"a", b"1"), producer=(7, 0, 0))
    put(one, (b"a", b"2"), producer=(7, 0, 1))
    put(one, (b"a", b"3"), producer=(8, 0, 0))
    close_segment(one)
    compact(one.log, NOW_MS)
    assert stored(one) == [(2, b"a", b"3")]
    headers = [batch.header for batch in one.log.segments.batches(0)]
    assert [(header.base_offset, header.record_count) for header in headers] == [(1, 0), (2, 1)]
    for name in one.folder.names():
        if not name.endswith(".log"):
            one.folder.remove(name)  # only the batches are left to learn from
    one.reopen()
    put(one, (b"b", b"1"), producer=(7, 0, 2))
    with pytest.raises(KafkaError) as caught:
        put(one, (b"b", b"1"), producer=(7, 0, 9))
    assert caught.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_batches_keep_what_describes_them() -> None:
    one = compacted_log(message_timestamp_type="LogAppendTime")
    put(one, (b"a", b"1"), (b"b", b"1" * 200), codec=Codec.ZSTD, producer=(7, 2, 40))
    close_segment(one)
    one.now_ms += 500
    put(one, (b"a", b"2"))
    close_segment(one)
    before = [batch.header for batch in one.log.segments.batches(0)]
    compact(one.log, NOW_MS)
    after = [batch.header for batch in one.log.segments.batches(0)]
    assert after[0].record_count == 1
    unlike = {"length", "crc", "record_count", "base_timestamp"}
    for name in set(before[0]._fields) - unlike:
        assert getattr(after[0], name) == getattr(before[0], name), name
    assert {record.timestamp for record in one.records()} == {NOW_MS, NOW_MS + 500}


def test_header_names_that_are_not_utf8_keep_their_bytes() -> None:
    one = compacted_log()
    headers = (("\udcff\udce4", b"x"),)
    written = [Record(0, NOW_MS, b"a", b"1"), Record(1, NOW_MS, b"b", b"2", headers)]
    one.send(record_batch.build(written, codec=Codec.ZSTD))
    put(one, (b"a", b"2"))
    close_segment(one)
    assert compact(one.log, NOW_MS)
    assert stored(one) == [(1, b"b", b"2"), (2, b"a", b"2")]
    batch = next(one.log.segments.batches(0))
    assert b"\x04\xff\xe4\x02x" in record_batch.payload(batch.contents, 0, batch.header)


def test_records_from_before_1970_are_compacted() -> None:
    one = compacted_log()
    times = [0, -(2**63) + NOW_MS + 1, NOW_MS, -5]
    one.append(b"1", b"2", b"3", b"4", keys=[b"a", b"b", b"c", b"d"], timestamps=times)
    put(one, (b"a", b"5"))
    close_segment(one)
    assert compact(one.log, NOW_MS)
    assert [(record.key, record.timestamp) for record in one.records()] == [
        (b"b", times[1]),
        (b"c", NOW_MS),
        (b"d", -5),
        (b"a", NOW_MS),
    ]


def test_records_without_a_key_have_no_place() -> None:
    one = OneLog()
    one.append(b"x", b"y", keys=[None, b"k"])
    close_segment(one)
    one.configs = {"cleanup.policy": "compact"}
    one.reopen()
    assert compact(one.log, NOW_MS)
    assert stored(one) == [(1, b"k", b"y")]


def test_a_log_that_is_closed_meanwhile_is_left_as_it_is() -> None:
    one = compacted_log()
    put(one, (b"a", b"1"), (b"a", b"2"))
    close_segment(one)
    one.log.fence()
    assert not compact(one.log, NOW_MS)
    one.reopen()
    assert len(stored(one)) == 2


def test_a_log_that_is_closed_meanwhile_is_read_no_further() -> None:
    one = compacted_log()
    for value in range(5):
        put(one, (b"a", b"%d" % value))
    close_segment(one)
    walk, read = one.log.segments.batches, list[int]()

    def walk_and_close(offset: int) -> Iterator[Batch]:
        for found in walk(offset):
            one.log.fence()
            read.append(found.header.base_offset)
            yield found

    one.log.segments.batches = walk_and_close  # type: ignore[method-assign]
    assert not compact(one.log, NOW_MS)
    assert read == [0]


def test_segments_closed_meanwhile_do_not_pass_for_cleaned(monkeypatch: pytest.MonkeyPatch) -> None:
    one = compacted_log()
    put(one, (b"a", b"1"), (b"a", b"2"))
    close_segment(one)
    look = compaction._newest_offsets

    def look_and_close_another(*args: Any) -> Any:
        found = look(*args)
        if one.log.high_watermark == 2:
            put(one, (b"b", b"1"), (b"b", b"2"))
            close_segment(one)
        return found

    monkeypatch.setattr(compaction, "_newest_offsets", look_and_close_another)
    assert compact(one.log, NOW_MS)
    assert len(stored(one)) == 3
    assert compact(one.log, NOW_MS)
    assert stored(one) == [(1, b"a", b"2"), (3, b"b", b"2")]


def test_what_is_not_committed_yet_is_not_lost_by_compaction() -> None:
    one = compacted_log(internal_segment_bytes="200")
    for number in range(8):  # several segments
        one.log.append(batch(b"x" * 50, keys=[b"k%d" % number]))
    one.log.seal()
    compact(one.log, NOW_MS)
    one.log.commit()
    assert [key for _, key, _ in stored(one)] == [b"k%d" % number for number in range(8)]
    one.reopen()
    assert [key for _, key, _ in stored(one)] == [b"k%d" % number for number in range(8)]


@pytest.mark.parametrize("keys_max", [1, 3, 1_000])
def test_any_history_keeps_its_last_values(keys_max: int) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    one = compacted_log(internal_segment_bytes="800", delete_retention_ms=str(DAY_MS))
    expected: dict[bytes | None, bytes | None] = {}
    offsets: dict[bytes, int] = {}
    for _ in range(120):
        pairs = [
            (b"k%d" % dice.randrange(9), dice.choice([None, dice.randbytes(dice.randrange(40))]))
            for _ in range(dice.randint(1, 4))
        ]
        base = one.log.high_watermark
        put(one, *pairs, codec=dice.choice(list(Codec)))
        expected |= dict(pairs)
        offsets |= {key: base + index for index, (key, _) in enumerate(pairs)}
        if dice.random() < 0.1:
            one.log.seal()
            compact(one.log, NOW_MS, keys_max=keys_max)
        if dice.random() < 0.1:
            one.reopen()
    close_segment(one)
    compact_all(one, keys_max=keys_max)
    assert one.live() == expected
    assert {key: offset for offset, key, _ in stored(one)} == offsets
    assert len(stored(one)) == len(expected)
    assert one.log.segments.next_offset == one.reopen().segments.next_offset


@pytest.mark.parametrize("keys_max", [1, 2, 1_000])
def test_a_tombstone_stays_until_a_pass_has_reached_it(keys_max: int) -> None:
    """It is beside keys that an earlier pass ends with, and need not be kept for consumers any longer."""
    one = compacted_log(delete_retention_ms="0")
    put(one, (b"a", b"1"))
    close_segment(one)
    for key in (b"b", b"c", b"d"):
        put(one, (key, b"1"))
    put(one, (b"a", None))
    close_segment(one)
    assert compact_all(one, keys_max=keys_max)
    assert b"1" not in [value for _, key, value in stored(one) if key == b"a"]


@pytest.mark.parametrize("closed", [False, True])
def test_what_has_more_keys_than_a_pass_remembers_is_left_to_the_next(closed: bool) -> None:
    one = compacted_log()
    for key in (b"a", b"b"):
        put(one, (key, b"1"))
        put(one, (key, b"2"))
        close_segment(one)
    assert compact(one.log, NOW_MS, keys_max=1)
    assert len(stored(one)) == 4  # only the first record was compared
    assert due(one.log, NOW_MS)
    if closed:
        one.reopen()
    assert compact_all(one, keys_max=1) == 3
    assert stored(one) == [(1, b"a", b"2"), (3, b"b", b"2")]
    assert not due(one.log, NOW_MS)  # all of it is clean now
    one.reopen()
    assert not due(one.log, NOW_MS)


def test_a_pass_ends_where_its_keys_are_too_large_together() -> None:
    one = compacted_log()
    long, longer = b"a" * 600, b"b" * 700
    for key in (long, long, longer, b"c", long):
        put(one, (key, b"1"))
    close_segment(one)
    reached = []
    while compact(one.log, NOW_MS, key_bytes_max=1_300):
        reached.append(one.log.segments.cleaned_offset)
    assert reached == [3, 5]
    assert [offset for offset, _, _ in stored(one)] == [2, 3, 4]


def test_what_a_pass_leaves_waits_until_it_is_enough() -> None:
    one = compacted_log(min_cleanable_dirty_ratio="0.7")
    for key in (b"a", b"b"):
        put(one, (key, b"1"))
        put(one, (key, b"2"))
        close_segment(one)
    assert compact_all(one, keys_max=1) == 2
    assert [key for _, key, _ in stored(one)] == [b"a", b"b", b"b"]
    put(one, (b"b", b"3"))
    close_segment(one)
    assert compact_all(one) == 1
    assert [key for _, key, _ in stored(one)] == [b"a", b"b"]


def harm(one: OneLog, position: int) -> None:
    """Change a byte of the first segment's file."""
    file = one.log.segments.segments[0].open_to_read()
    assert isinstance(file, MemoryFile)
    file.contents[position] ^= 0xFF


@pytest.mark.files
def test_a_log_that_lost_its_first_records_to_a_pass_still_begins_there() -> None:
    one = compacted_log(internal_segment_bytes="100")  # for one batch
    for value in (b"1", b"2", b"3"):
        put(one, (b"a", value))
    one.log.seal()
    assert compact(one.log, NOW_MS)
    one.log.fence()
    for name in one.folder.names():
        if name.endswith(".index"):
            one.folder.remove(name)  # as when the process died before it was written
    one.reopen()
    assert one.log.start_offset == 0
    assert stored(one) == [(1, b"a", b"2"), (2, b"a", b"3")]


@pytest.mark.files
def test_a_batch_that_cannot_be_read_stays_as_it_is() -> None:
    one = compacted_log()
    put(one, (b"a", b"1" * 50), codec=Codec.GZIP)
    harmed = len(one.log.read(0, 1 << 20, first_may_exceed=True))
    put(one, (b"b", b"1"))
    put(one, (b"b", b"2"))
    close_segment(one)
    harm(one, harmed - 20)
    before = one.log.read(0, harmed, first_may_exceed=True)
    assert compact(one.log, NOW_MS)
    assert one.log.read(0, harmed, first_may_exceed=True) == before
    after = [batch.header.base_offset for batch in one.log.segments.batches(0)]
    assert after == [0, 2]


@pytest.mark.files
def test_what_is_behind_a_header_that_cannot_be_read_is_not_lost() -> None:
    one = compacted_log()
    put(one, (b"a", b"1"))
    second = len(one.log.read(0, 1 << 20, first_may_exceed=True))
    for value in (b"2", b"3"):
        put(one, (b"a", value))
    close_segment(one)
    size, names = one.log.segments.size, sorted(one.folder.names())
    harm(one, second + 16)  # the magic byte of the second batch
    with pytest.raises(KafkaError) as caught:
        compact(one.log, NOW_MS)
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE
    assert (one.log.segments.size, sorted(one.folder.names())) == (size, names)


@pytest.mark.files
def test_the_folder_of_a_topic_deleted_meanwhile_does_not_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = DiskFolder(tmp_path / "log")
    one = OneLog(folder, cleanup_policy="compact", min_cleanable_dirty_ratio="0")
    put(one, (b"a", b"1"), (b"a", b"2"))
    close_segment(one)
    look = compaction._newest_offsets

    def look_and_delete(*args: Any) -> Any:
        found = look(*args)
        one.log.fence()
        DiskFolder(tmp_path).remove_folder("log")
        return found

    monkeypatch.setattr(compaction, "_newest_offsets", look_and_delete)
    assert not compact(one.log, NOW_MS)
    assert not os.path.exists(folder.path)

"""One partition's log: offsets, what a produced batch must be, lookups by time and epoch, deletion of
records."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from errno import EIO, ENOSPC
from functools import partial
from pathlib import Path
from threading import Event

import cramjam
import pytest

from muster.coordinator.storage.files import DiskFolder, MemoryFile, MemoryFolder
from muster.coordinator.storage.segment import Segment
from muster.coordinator.topics.compaction import compact
from muster.coordinator.topics.epochs import Epochs
from muster.coordinator.topics.log import Listed, ListTimestamp
from muster.coordinator.topics.validation import InvalidRecords
from muster.protocol import record_batch
from muster.protocol.compression import Codec, compress
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.record_batch import HEADER_BYTES, ControlType, Record
from tests.support.control_batches import build_control
from tests.support.facts import DEADLINE_S
from tests.topics.support import NOW_MS, OneLog, batch, read_records, resealed


def refused(one: OneLog, data: bytes) -> KafkaError:
    """Return the log's refusal of a produced record set, which must leave it unchanged."""
    before = one.log.high_watermark, one.log.segments.size
    with pytest.raises(KafkaError) as caught:
        one.send(data)
    assert (one.log.high_watermark, one.log.segments.size) == before
    return caught.value


def test_offsets_count_up_and_bytes_stay_as_sent() -> None:
    one = OneLog()
    first, second = batch(b"a", b"b"), batch(b"c", codec=Codec.ZSTD)
    assert one.send(first).base_offset == 0
    assert one.send(second) == (2, -1, 0, 1)
    stored = one.log.read(0, 1 << 20, first_may_exceed=True)
    skip = record_batch.PREFIX_BYTES
    assert stored[skip : len(first)] == first[skip:]
    assert stored[len(first) + skip :] == second[skip:]
    assert [record.value for record in one.records()] == [b"a", b"b", b"c"]
    assert [record.offset for record in one.records()] == [0, 1, 2]


def test_what_is_not_committed_is_not_seen() -> None:
    one = OneLog()
    one.append(b"a")
    one.log.append(batch(b"b"))
    assert one.log.high_watermark == 1
    assert [record.value for record in one.records()] == [b"a"]
    assert one.log.list_offset(ListTimestamp.LATEST).offset == 1
    one.log.commit()
    assert [record.value for record in one.records()] == [b"a", b"b"]


def test_reads_outside_the_log_are_refused() -> None:
    one = OneLog()
    one.append(b"a", b"b")
    one.log.delete_records(1)
    assert one.log.read(2, 100, first_may_exceed=True) == b""
    for offset in (-1, 0, 3):
        with pytest.raises(KafkaError) as caught:
            one.log.read(offset, 100, first_may_exceed=True)
        assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE


# --- what a produced batch must be -----------------------------------------------------------------


def test_a_broken_checksum_is_refused_as_corrupt() -> None:
    data = bytearray(batch(b"abc"))
    data[-1] ^= 1
    assert refused(OneLog(), bytes(data)).code is ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("size", [1, 16, 17, 30, 60, 61, 70])
def test_a_cut_batch_is_none(size: int) -> None:
    """Kafka looks for whole batches in what it is sent, and finds nothing."""
    assert refused(OneLog(), batch(b"abc")[:size]).code is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("length", [0, 10, -5])
def test_a_batch_too_short_for_its_header_is_corrupt(length: int) -> None:
    data = bytearray(batch(b"abc"))
    data[8:12] = length.to_bytes(4, "big", signed=True)
    assert refused(OneLog(), bytes(data)).code is ErrorCode.CORRUPT_MESSAGE


def test_records_out_of_time_are_named() -> None:
    one = OneLog(message_timestamp_before_max_ms="1000", message_timestamp_after_max_ms="1000")
    for shifts, blamed in (((0, 1_001, 0, 5_000), [1, 3]), ((-1_001, 0), [0]), ((-2_000, 2_000, 0), [0, 1])):
        refusal = refused(one, batch(*[b"a"] * len(shifts), timestamps=[NOW_MS + shift for shift in shifts]))
        assert isinstance(refusal, InvalidRecords)
        assert refusal.code is ErrorCode.INVALID_TIMESTAMP
        assert [index for index, _ in refusal.record_errors] == blamed
    one.append(b"a", b"b", b"c", timestamps=[NOW_MS - 1_000, NOW_MS + 1_000, -1])


def test_a_record_set_holds_exactly_one_batch() -> None:
    assert refused(OneLog(), b"").code is ErrorCode.INVALID_RECORD
    assert refused(OneLog(), batch(b"a") + batch(b"b")).code is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("magic", [0, 1])
def test_old_formats_are_named(magic: int) -> None:
    old = bytearray(batch(b"a"))
    old[16] = magic
    refusal = refused(OneLog(), bytes(old))
    assert refusal.code is ErrorCode.INVALID_RECORD
    assert f"message format {magic}" in refusal.why


def test_batches_have_a_largest_size() -> None:
    one = OneLog(max_message_bytes="200")
    assert refused(one, batch(b"x" * 200)).code is ErrorCode.MESSAGE_TOO_LARGE
    one.append(b"x" * 100)
    assert (
        refused(OneLog(internal_segment_bytes="100"), batch(b"x" * 50)).code
        is ErrorCode.RECORD_LIST_TOO_LARGE
    )


def test_unknown_codecs_and_zstd_below_its_version_are_refused() -> None:
    one = OneLog()
    with pytest.raises(KafkaError) as caught:
        one.log.append(batch(b"a", codec=Codec.ZSTD), zstd_allowed=False)
    assert caught.value.code is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    odd = bytearray(batch(b"a"))
    odd[22] = 5  # the codec, in the lower byte of the attributes
    assert refused(one, resealed(odd)).code is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


def test_clients_write_neither_control_batches_nor_transactions() -> None:
    one = OneLog()
    marker = build_control(
        ControlType.ABORT, offset=0, timestamp=NOW_MS, producer_id=1, producer_epoch=0, coordinator_epoch=0
    )
    assert refused(one, marker).code is ErrorCode.INVALID_RECORD
    sent = batch(b"a", producer=(1, 0, 0), transactional=True)
    assert refused(one, sent).code is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


@pytest.mark.parametrize("producer", [(1, -1, 0), (1, 0, -1), (-2, 0, 0)])
def test_half_an_idempotent_producer_is_refused(producer: tuple[int, int, int]) -> None:
    assert refused(OneLog(), batch(b"a", producer=producer)).code is ErrorCode.INVALID_RECORD


def test_batches_that_do_not_hold_what_they_say_are_refused() -> None:
    one = OneLog()
    assert refused(one, record_batch.build([], base_offset=0, last_offset=0)).code is ErrorCode.INVALID_RECORD
    assert refused(one, record_batch.build([Record(5, NOW_MS, None, b"a")])).code is ErrorCode.INVALID_RECORD
    short = record_batch.build([Record(0, NOW_MS, None, b"a")], last_offset=3)
    assert refused(one, short).code is ErrorCode.INVALID_RECORD
    garbled = bytearray(batch(b"a" * 500, codec=Codec.GZIP))
    garbled[80:90] = bytes(10)
    assert refused(one, resealed(garbled)).code is ErrorCode.INVALID_RECORD


def test_lz4_blocks_that_depend_on_each_other_are_refused() -> None:
    """As Kafka does: its Java consumer could not read them."""
    plain = batch(b"a" * 500)
    linked = bytearray(plain[:HEADER_BYTES] + bytes(cramjam.lz4.compress(plain[HEADER_BYTES:])))
    linked[8:12] = (len(linked) - 12).to_bytes(4, "big")
    linked[22] |= Codec.LZ4
    refusal = refused(OneLog(), resealed(linked))
    assert refusal.code is ErrorCode.INVALID_RECORD
    assert "depend" in str(refusal)


def framed(plain: bytes, *frames: bytes) -> bytes:
    """An uncompressed batch with its records in LZ4 frames."""
    made = bytearray(plain[:HEADER_BYTES] + b"".join(frames))
    made[8:12] = (len(made) - 12).to_bytes(4, "big")
    made[22] |= Codec.LZ4
    return resealed(made)


@pytest.mark.parametrize("options", [0x00, 0x04, 0x10, 0x14])
def test_records_in_several_lz4_frames_are_refused(options: int) -> None:
    """As Kafka does: its Java consumer would find too few in the first."""
    plain = batch(b"a" * 500)
    first, second = plain[HEADER_BYTES:200], plain[200:]
    stored = len(first).to_bytes(3, "little") + b"\x80" + first + bytes(4 * bool(options & 0x10))
    frame = b"\x04\x22\x4d\x18" + bytes([0x60 | options, 0x40, 0]) + stored + bytes(4 + (options & 4))
    refusal = refused(OneLog(), framed(plain, frame, compress(Codec.LZ4, second)))
    assert refusal.code is ErrorCode.INVALID_RECORD
    assert "one lz4 frame" in str(refusal)


def test_lz4_frames_with_a_dictionary_are_refused() -> None:
    """As Kafka does: its Java consumer could not read them."""
    plain = batch(b"a" * 500)
    records = plain[HEADER_BYTES:]
    stored = len(records).to_bytes(3, "little") + b"\x80" + records
    frame = b"\x04\x22\x4d\x18" + bytes([0x61, 0x40, 1, 0, 0, 0, 0xD0]) + stored + bytes(4)
    assert bytes(cramjam.lz4.decompress(frame)) == records
    refusal = refused(OneLog(), framed(plain, frame))
    assert refusal.code is ErrorCode.INVALID_RECORD
    assert "a dictionary" in str(refusal)


def test_what_looks_like_an_lz4_frame_within_one_is_none() -> None:
    noise = random.Random(1).randbytes(100_000)
    looks = noise + compress(Codec.LZ4, b"a") + noise
    plain = batch(looks)
    whole = compress(Codec.LZ4, plain[HEADER_BYTES:])
    assert b"\x04\x22\x4d\x18" in whole[4:]
    OneLog().send(framed(plain, whole))


def test_compacted_topics_need_keys_and_say_which_records_have_none() -> None:
    one = OneLog(cleanup_policy="compact")
    refusal = refused(one, batch(b"a", b"b", b"c", keys=[b"k", None, None]))
    assert isinstance(refusal, InvalidRecords)
    assert refusal.code is ErrorCode.INVALID_RECORD
    assert [index for index, _ in refusal.record_errors] == [1, 2]
    assert "2 of 3" in refusal.why
    one.append(b"a", keys=[b""])


def test_of_many_records_without_a_key_the_first_are_named() -> None:
    one = OneLog(cleanup_policy="compact", max_message_bytes="10000000")
    refusal = refused(one, batch(*[b""] * 5_000, codec=Codec.ZSTD))
    assert isinstance(refusal, InvalidRecords)
    assert [index for index, _ in refusal.record_errors] == list(range(record_batch.RECORDS_BLAMED_MAX))
    assert "5000 of 5000" in refusal.why


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.ZSTD])
def test_what_a_batch_unpacks_to_is_bounded_with_its_size(codec: Codec) -> None:
    """Java's producer splits the batch on this code, and sends the parts."""
    data = batch(bytes(17 << 20), codec=codec)
    small = OneLog()
    assert refused(small, data).code is ErrorCode.MESSAGE_TOO_LARGE
    small.send(batch(bytes(15 << 20), codec=codec))
    OneLog(max_message_bytes=str(2 << 20)).send(data)


def test_timestamps_must_be_near_the_brokers_time() -> None:
    one = OneLog(message_timestamp_after_max_ms="1000", message_timestamp_before_max_ms="5000")
    one.append(b"a", b"b", timestamps=[NOW_MS - 5_000, NOW_MS + 1_000])
    one.append(b"a", timestamps=[-1])  # no timestamp
    late, early = (
        batch(b"a", timestamps=[NOW_MS + 1_001]),
        batch(b"a", b"b", timestamps=[NOW_MS - 5_001, NOW_MS]),
    )
    assert refused(one, late).code is ErrorCode.INVALID_TIMESTAMP
    assert refused(one, early).code is ErrorCode.INVALID_TIMESTAMP


@pytest.mark.parametrize("topics_own", ["CreateTime", "LogAppendTime"])
def test_only_the_broker_stamps_a_batch(topics_own: str) -> None:
    one = OneLog(message_timestamp_type=topics_own)
    refusal = refused(one, batch(b"a", b"b", log_append_time_ms=NOW_MS))
    assert isinstance(refusal, InvalidRecords)
    assert refusal.code is ErrorCode.INVALID_TIMESTAMP
    assert [index for index, _ in refusal.record_errors] == [0, 1]


@pytest.mark.parametrize(
    ("horizon_ms", "configs"),
    [
        (NOW_MS - 50, {}),
        (NOW_MS - 50, {"message_timestamp_type": "LogAppendTime"}),
        (None, {"compression_type": "gzip"}),
    ],
)
def test_a_delete_horizon_stays_unless_the_batch_is_packed_anew(
    horizon_ms: int | None, configs: dict[str, str]
) -> None:
    one = OneLog(**configs)
    one.send(batch(b"a", b"b", timestamps=[NOW_MS - 3, NOW_MS], delete_horizon_ms=NOW_MS - 50))
    header = record_batch.peek(one.log.read(0, 1 << 20, first_may_exceed=True))
    assert header.delete_horizon_ms == horizon_ms
    times = [NOW_MS] * 2 if header.is_log_append_time else [NOW_MS - 3, NOW_MS]
    assert [record.timestamp for record in one.records()] == times


def test_records_from_before_1970_are_stored_and_found() -> None:
    one = OneLog()
    one.append(b"a", b"b", timestamps=[-5, -(10**15)])
    one.append(b"c", timestamps=[-1])
    assert [record.timestamp for record in one.records()] == [-5, -(10**15), -1]
    assert one.log.list_offset(ListTimestamp.MAX_TIMESTAMP).offset == -1
    one.append(b"d", b"e", timestamps=[-2, 7])
    assert one.log.list_offset(0) == one.log.list_offset(ListTimestamp.MAX_TIMESTAMP) == Listed(4, 7, 1)


def test_records_from_before_1970_meet_the_topics_bound() -> None:
    one = OneLog(message_timestamp_before_max_ms=str(NOW_MS + 50))
    one.append(b"a", b"b", timestamps=[-50, -1])
    refusal = refused(one, batch(b"a", b"b", b"c", timestamps=[-1, -51, -50]))
    assert isinstance(refusal, InvalidRecords)
    assert refusal.code is ErrorCode.INVALID_TIMESTAMP
    assert [index for index, _ in refusal.record_errors] == [1]


def test_header_names_that_are_not_utf8_are_stored_as_they_are() -> None:
    one = OneLog(compression_type="gzip")
    one.send(record_batch.build([Record(0, NOW_MS, b"k", b"v", (("\udcff", b"x"),))]))
    stored = one.log.read(0, 1 << 20, first_may_exceed=True)
    header = record_batch.peek(stored)
    assert b"\x02\xff\x02x" in record_batch.payload(stored, 0, header)
    assert [record.headers for record in one.records()] == [(("\ufffd", b"x"),)]


def test_the_newest_timestamp_is_what_the_records_say() -> None:
    one = OneLog()
    one.send(batch(b"a", b"b", timestamps=[NOW_MS, NOW_MS - 50], max_timestamp=NOW_MS - 900))
    assert record_batch.peek(one.log.read(0, 100, first_may_exceed=True)).max_timestamp == NOW_MS


def test_log_append_time_stamps_the_batch() -> None:
    one = OneLog(message_timestamp_type="LogAppendTime")
    one.now_ms += 77
    appended = one.append(b"a", b"b", timestamps=[5, 6], codec=Codec.SNAPPY)
    assert appended.log_append_time_ms == NOW_MS + 77
    assert [record.timestamp for record in one.records()] == [NOW_MS + 77] * 2


@pytest.mark.parametrize(("compression_type", "codec"), [("lz4", 3), ("uncompressed", 0), ("producer", 1)])
def test_the_topic_may_demand_a_codec(compression_type: str, codec: int) -> None:
    one = OneLog(compression_type=compression_type)
    one.append(b"a", b"b" * 1_000, codec=Codec.GZIP, producer=(4, 0, 0))
    stored = one.log.read(0, 100, first_may_exceed=True)
    assert record_batch.peek(stored).codec == codec
    assert [record.value for record in read_records(stored)] == [b"a", b"b" * 1_000]
    one.append(b"c", producer=(4, 0, 2))


# --- lookups ---------------------------------------------------------------------------------------


def test_offsets_by_time() -> None:
    one = OneLog(internal_segment_bytes="200")
    one.append(b"a", b"b", timestamps=[1_000, 3_000])
    one.append(b"c", b"d", timestamps=[2_000, 5_000], codec=Codec.LZ4)
    one.append(b"e", timestamps=[4_000])
    asked = {0: 0, 1_000: 0, 1_001: 1, 3_001: 3, 5_000: 3}
    for timestamp, offset in asked.items():
        assert one.log.list_offset(timestamp).offset == offset, timestamp
    assert one.log.list_offset(3_001) == Listed(3, 5_000, 1)
    assert one.log.list_offset(5_001) == Listed(-1, -1, -1)


def test_the_named_offsets() -> None:
    one = OneLog()
    assert one.log.list_offset(ListTimestamp.MAX_TIMESTAMP) == Listed(-1, -1, -1)
    assert one.log.list_offset(ListTimestamp.EARLIEST) == Listed(0, -1, 1)
    one.append(b"a", b"b", b"c", b"d", timestamps=[1_000, 9_000, 9_000, 2_000])
    one.append(b"e", timestamps=[9_000])
    one.log.delete_records(1)
    assert one.log.list_offset(ListTimestamp.LATEST) == Listed(5, -1, 1)
    assert one.log.list_offset(ListTimestamp.EARLIEST) == Listed(1, -1, 1)
    assert one.log.list_offset(ListTimestamp.EARLIEST_LOCAL) == Listed(1, -1, 1)
    assert one.log.list_offset(ListTimestamp.MAX_TIMESTAMP) == Listed(1, 9_000, 1)
    assert one.log.list_offset(ListTimestamp.LATEST_TIERED) == Listed(-1, -1, -1)
    assert one.log.list_offset(ListTimestamp.EARLIEST_PENDING_UPLOAD) == Listed(-1, -1, -1)
    with pytest.raises(KafkaError):
        one.log.list_offset(-7)


def test_times_below_the_log_start_are_not_found() -> None:
    one = OneLog()
    one.append(b"a", b"b", timestamps=[9_000, 1_000])
    one.append(b"c", timestamps=[8_500])
    one.log.delete_records(1)
    assert one.log.list_offset(8_000) == Listed(2, 8_500, 1)
    assert one.log.list_offset(8_600) == Listed(-1, -1, -1)


def test_a_time_is_found_behind_any_number_of_emptied_batches() -> None:
    one = OneLog(cleanup_policy="compact", min_cleanable_dirty_ratio="0")
    for producer_id in range(1_100):  # each leaves its batch's header, which holds its last sequence
        one.append(b"v", keys=[b"same"], producer=(producer_id, 0, 0))
    one.log.segments.roll()
    one.log.seal()
    assert compact(one.log, NOW_MS)
    assert [record.offset for record in one.records()] == [1_099]
    assert one.log.list_offset(NOW_MS - 1) == Listed(1_099, NOW_MS, 1)


@pytest.mark.files
def test_a_segment_that_is_lost_is_a_storage_error() -> None:
    one = OneLog()
    one.append(b"a")
    one.log.segments.roll()
    one.log.seal()
    one.append(b"b")
    one.folder.remove(one.log.segments.segments[0].log_name)
    for asked in (NOW_MS, ListTimestamp.MAX_TIMESTAMP):
        with pytest.raises(KafkaError) as caught:
            one.log.list_offset(asked)
        assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    with pytest.raises(KafkaError) as caught:
        one.log.read(0, 100, first_may_exceed=True)
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR


@pytest.mark.parametrize("segment_bytes", ["150", "1000000"])
def test_the_newest_record_left_is_found_when_a_newer_one_is_gone(segment_bytes: str) -> None:
    one = OneLog(internal_segment_bytes=segment_bytes)
    one.append(b"gone", b"a", timestamps=[9_000, 1_000])
    one.append(b"b", b"newest", timestamps=[2_000, 3_000])
    one.append(b"c", timestamps=[3_000])
    one.append(b"d", timestamps=[2_500])
    assert one.log.list_offset(ListTimestamp.MAX_TIMESTAMP) == Listed(0, 9_000, 1)
    one.log.delete_records(1)
    assert one.log.list_offset(ListTimestamp.MAX_TIMESTAMP) == Listed(3, 3_000, 1)
    one.log.append(batch(b"not visible yet", timestamps=[4_000]))
    assert one.log.list_offset(ListTimestamp.MAX_TIMESTAMP) == Listed(3, 3_000, 1)
    one.log.delete_records(6)
    assert one.log.list_offset(ListTimestamp.MAX_TIMESTAMP) == Listed(-1, -1, -1)


@pytest.mark.files
def test_lookups_by_time_do_not_read_what_was_deleted() -> None:
    one = OneLog()
    one.append(b"deleted", timestamps=[9_000])
    one.append(b"deleted", bytes(10_000), timestamps=[9_000, 1_000])
    one.append(b"a", b"newest left", timestamps=[2_000, 3_000])
    one.append(b"b", timestamps=[2_500])
    one.log.delete_records(3)
    file = one.folder.open(one.log.segments.segments[0].log_name)
    assert isinstance(file, MemoryFile)
    file.contents[:HEADER_BYTES] = bytes(HEADER_BYTES)  # whoever reads them comes to a halt here
    assert one.log.list_offset(0) == Listed(3, 2_000, 1)
    assert one.log.list_offset(ListTimestamp.MAX_TIMESTAMP) == Listed(4, 3_000, 1)
    one.log.delete_records(-1)
    assert one.log.list_offset(0) == Listed(-1, -1, -1)
    assert one.log.list_offset(ListTimestamp.MAX_TIMESTAMP) == Listed(-1, -1, -1)


def test_every_leader_epoch_has_an_end() -> None:
    one = OneLog()
    for epoch, values in ((1, 2), (4, 3), (6, 1)):
        one.reopen(epoch=epoch)
        one.append(*[b"x"] * values)
    one.reopen(epoch=9)  # has written nothing yet
    ends = {-1: (-1, -1), 0: (0, 0), 1: (1, 2), 2: (1, 2), 3: (1, 2), 4: (4, 5), 5: (4, 5), 6: (6, 6)}
    ends |= {8: (6, 6), 9: (9, 6), 10: (-1, -1)}
    assert {epoch: one.log.end_of_epoch(epoch) for epoch in ends} == ends
    one.append(b"x")
    assert one.log.end_of_epoch(8) == (6, 6)
    assert one.log.end_of_epoch(9) == (9, 7)
    assert one.log.diverges(5, 4) is None
    assert one.log.diverges(6, 4) == (4, 5)
    assert one.log.diverges(2, 3) == (1, 2)


def test_leader_epochs_survive_restarts_and_retention() -> None:
    one = OneLog()
    one.append(b"a", b"b")
    one.reopen(epoch=5)
    one.append(b"c", b"d")
    one.log.delete_records(3)
    one.log.close()
    one.reopen(epoch=7)
    assert one.log.end_of_epoch(5) == (5, 4)
    assert one.log.end_of_epoch(1) == (1, 3)  # older than anything left: ends where that begins
    assert one.log.list_offset(ListTimestamp.EARLIEST) == Listed(3, -1, 5)


class _Met(int):
    """What is looked up: comparing it with an entry runs `meanwhile`."""

    meanwhile: Callable[[], object]

    def __lt__(self, other: int) -> bool:
        if other:
            self.meanwhile()
        return int(self) < other


@pytest.mark.parametrize("look_up", ["of", "end_of"])
def test_leader_epochs_are_looked_up_while_they_are_forgotten(look_up: str) -> None:
    epochs = Epochs()
    for epoch in range(8):
        header = record_batch.peek(batch(b"x"))
        epochs.observe(header._replace(leader_epoch=epoch, base_offset=10 * epoch))
    sought = _Met(75 if look_up == "of" else 6)
    sought.meanwhile = partial(epochs.forget_before, 65)
    if look_up == "of":
        assert epochs.of(sought) == 7
    else:
        assert epochs.end_of(sought, 9, 80) == (6, 70)
    assert (epochs.of(64), epochs.of(65), epochs.of(70)) == (-1, 6, 7)


# --- deletion of records, the end ------------------------------------------------------------------


def test_records_are_deleted_up_to_an_offset_or_the_high_watermark() -> None:
    one = OneLog()
    one.append(b"a", b"b", b"c")
    assert one.log.delete_records(2) == 2
    assert one.log.delete_records(1) == 2
    assert [record.value for record in one.records()] == [b"c"]
    for offset in (4, -2):
        with pytest.raises(KafkaError) as caught:
            one.log.delete_records(offset)
        assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    assert one.log.delete_records(-1) == 3
    assert one.reopen().start_offset == 3
    assert one.append(b"d").log_start_offset == 3


def test_records_of_compacted_topics_are_not_deleted() -> None:
    one = OneLog(cleanup_policy="compact")
    with pytest.raises(KafkaError) as caught:
        one.log.delete_records(-1)
    assert caught.value.code is ErrorCode.POLICY_VIOLATION
    for policy in ("compact,delete", ""):
        one = OneLog(cleanup_policy=policy)
        one.append(b"a", keys=[b"k"])
        assert one.log.delete_records(-1) == 1


class Counting(MemoryFolder):
    """Counts the syncs of its files, which fail while `failing`."""

    def __init__(self) -> None:
        super().__init__()
        self.syncs = 0
        self.failing = False

    def new_file(self) -> MemoryFile:
        folder = self

        class File(MemoryFile):
            def sync(self) -> None:
                if folder.failing:
                    raise OSError(EIO, "Input/output error")
                folder.syncs += 1

        return File()


@pytest.mark.files
def test_syncs_follow_the_flush_configs() -> None:
    folder = Counting()
    one = OneLog(folder, flush_messages="3", flush_ms="1000")
    one.append(b"a", b"b")
    assert folder.syncs == 0
    one.append(b"c")
    assert folder.syncs == 1
    one.append(b"d")
    one.now_ms += 999
    one.log.sync_if_due()
    assert folder.syncs == 1
    one.now_ms += 1
    one.log.sync_if_due()
    one.log.sync_if_due()
    assert folder.syncs == 2

    unsynced = OneLog(Counting())
    for _ in range(50):
        unsynced.append(b"a")
    assert isinstance(unsynced.folder, Counting)
    assert unsynced.folder.syncs == 0


@pytest.mark.files
def test_appends_do_not_wait_for_a_sync_by_time() -> None:
    reached, go, syncs = Event(), Event(), list[str]()

    class SlowFile(MemoryFile):
        def sync(self) -> None:
            reached.set()
            assert go.wait(DEADLINE_S)
            syncs.append("file")

    class SlowFolder(MemoryFolder):
        def new_file(self) -> MemoryFile:
            return SlowFile()

        def sync(self) -> None:
            syncs.append("names")

    one = OneLog(SlowFolder(), flush_ms="1000", internal_segment_bytes="250")
    one.append(b"a", bytes(150))
    one.now_ms += 1_000
    with ThreadPoolExecutor() as pool:
        try:
            syncing = pool.submit(one.log.sync_if_due)
            assert reached.wait(DEADLINE_S)
            assert pool.submit(one.append, b"b", bytes(150)).result(DEADLINE_S).base_offset == 2
        finally:
            go.set()
        syncing.result(DEADLINE_S)
    assert syncs == ["file", "names"]
    assert one.log.segments.unsynced_messages == 2
    one.log.sync_if_due()
    assert len(syncs) == 2, "nothing has waited long enough"
    one.now_ms += 1_000
    one.log.sync_if_due()
    assert syncs[2:] == ["file", "file", "names"], "the segment that was closed meanwhile, and the new one"
    assert one.log.segments.unsynced_messages == 0


@pytest.mark.files
def test_a_repeat_is_acknowledged_only_once_the_original_is_synced() -> None:
    folder = Counting()
    one = OneLog(folder, flush_messages="1")
    data = batch(b"a", producer=(7, 0, 0))
    folder.failing = True
    for _ in range(2):
        one.log.append(data)
        with pytest.raises(KafkaError, match="cannot sync"):
            one.log.commit()
        assert one.log.failed
        one.reopen()
    folder.failing = False
    assert one.send(data).base_offset == 0
    assert folder.syncs == 1
    assert one.send(data).base_offset == 0
    assert folder.syncs == 1


@pytest.mark.files
def test_what_a_kill_left_unsynced_is_synced_before_its_repeat_is_acknowledged() -> None:
    folder = Counting()
    one = OneLog(folder, flush_messages="1")
    data = batch(b"a", producer=(7, 0, 0))
    one.log.append(data)
    one.reopen()
    assert folder.syncs == 0
    assert one.send(data).base_offset == 0
    assert folder.syncs == 1


@pytest.mark.files
def test_what_a_kill_left_unsynced_is_synced_in_time() -> None:
    folder = Counting()
    one = OneLog(folder, flush_ms="1000")
    one.append(b"a")
    one.reopen()
    one.now_ms += 1000
    one.log.sync_if_due()
    one.log.sync_if_due()
    assert folder.syncs == 1


@pytest.mark.files
def test_a_log_that_was_closed_is_not_synced_again() -> None:
    folder = Counting()
    one = OneLog(folder, flush_messages="1")
    one.append(b"a")
    one.log.close()
    syncs = folder.syncs
    one.reopen()
    one.log.commit()
    assert folder.syncs == syncs


@pytest.mark.files
@pytest.mark.parametrize(
    ("configs", "kept"),
    [({}, False), ({"flush_messages": "2"}, True), ({"flush_ms": "1000"}, True)],
    ids=["never synced", "by number", "by time"],
)
def test_an_idle_log_keeps_its_file_only_for_a_sync_to_come(
    tmp_path: Path, configs: dict[str, str], kept: bool
) -> None:
    def is_open() -> bool:
        segment = one.log.segments.segments[-1]
        assert isinstance(segment, Segment)
        return segment._file is not None

    one = OneLog(DiskFolder(tmp_path), **configs)
    one.append(b"a")
    for _ in range(2):
        one.log.rest()
    assert is_open() is kept
    one.append(b"b")
    assert is_open()
    one.now_ms += 1000
    one.log.sync_if_due()
    for _ in range(2):
        one.log.rest()
    assert not is_open()


@pytest.mark.files
def test_a_full_disk_is_said_in_words() -> None:
    class Full(MemoryFolder):
        def new_file(self) -> MemoryFile:
            class File(MemoryFile):
                def append(self, buffers: Sequence[bytes | memoryview]) -> None:
                    raise OSError(ENOSPC, "No space left on device")

            return File()

    one = OneLog(Full())
    refusal = refused(one, batch(b"a"))
    assert refusal.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert "the disk is full" in refusal.why
    assert "orders-0" in refusal.why
    assert not one.log.failed


def test_a_fenced_or_closed_log_takes_nothing_more() -> None:
    for end in ("fence", "close"):
        one = OneLog()
        one.append(b"a")
        getattr(one.log, end)()
        assert refused(one, batch(b"b")).code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert len(one.records()) == 1

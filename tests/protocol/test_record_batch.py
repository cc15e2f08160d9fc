"""Record batches: built, parsed, checked, restamped; and read as other clients write them."""

from __future__ import annotations

import random
import tracemalloc
from contextlib import suppress
from itertools import pairwise
from struct import pack

import cramjam
import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.protocol import compression, record_batch
from muster.protocol.compression import Codec, UnpackedTooLarge, compress, decompress
from muster.protocol.errors import DecodeError
from muster.protocol.record_batch import ControlType, Header, Record
from tests.support.control_batches import build_control
from tests.support.each import each

RECORDS = [
    Record(100, 1_700_000_000_000, b"a", b"one"),
    Record(101, 1_699_999_999_990, None, b"two" * 50, (("trace", b"\x01"), ("empty", None))),
    Record(102, 1_700_000_000_500, b"", None),
]

texts = st.text(max_size=8)
values = st.none() | st.binary(max_size=40)
records_drawn = st.lists(
    st.builds(
        lambda timestamp, key, value, headers: (timestamp, key, value, tuple(headers)),
        st.integers(0, 2**48),
        values,
        values,
        st.lists(st.tuples(texts, values), max_size=3),
    ),
    min_size=1,
    max_size=20,
)


def parsed(batch: bytes) -> tuple[Header, list[Record]]:
    header = record_batch.peek(batch)
    assert record_batch.crc_matches(batch, 0, header)
    return header, list(record_batch.records(batch, 0, header))


@each("codec", Codec)
def test_a_batch_comes_back_as_it_was_built(codec: Codec) -> None:
    batch = record_batch.build(
        RECORDS, codec=codec, leader_epoch=4, producer_id=77, producer_epoch=2, base_sequence=9
    )
    header, found = parsed(batch)
    assert found == RECORDS
    assert (header.base_offset, header.last_offset, header.next_offset) == (100, 102, 103)
    assert (header.codec, header.leader_epoch, header.record_count) == (codec, 4, 3)
    assert (header.producer_id, header.producer_epoch, header.base_sequence, header.last_sequence) == (
        77,
        2,
        9,
        11,
    )
    assert (header.base_timestamp, header.max_timestamp) == (1_700_000_000_000, 1_700_000_000_500)
    assert [header.is_control, header.is_transactional, header.is_log_append_time] == [False] * 3
    assert header.delete_horizon_ms is None
    assert header.size == len(batch)


@given(records_drawn, st.sampled_from(Codec), st.integers(0, 2**40))
def test_any_records_come_back(drawn: list[tuple[int, bytes, bytes, tuple]], codec: Codec, base: int) -> None:
    contents = [Record(base + index, *rest) for index, rest in enumerate(drawn)]
    batch = record_batch.build(contents, codec=codec)
    header, found = parsed(batch)
    assert found == contents
    checked = record_batch.check_records(record_batch.payload(batch, 0, header), header)
    assert checked.max_timestamp == max(record.timestamp for record in contents)
    assert checked.min_timestamp == min(record.timestamp for record in contents)
    assert checked.keyless == [index for index, record in enumerate(contents) if record.key is None]
    assert checked.keyless_count == len(checked.keyless)


def test_sequences_wrap_to_zero() -> None:
    contents = [Record(index, 0, None, b"") for index in range(3)]
    batch = record_batch.build(contents, producer_id=1, producer_epoch=0, base_sequence=2**31 - 2)
    assert record_batch.peek(batch).last_sequence == 0


def test_base_offset_and_leader_epoch_are_outside_the_checksum() -> None:
    batch = bytearray(record_batch.build(RECORDS, codec=Codec.ZSTD))
    record_batch.assign(batch, 0, 5_000, 12)
    header, found = parsed(bytes(batch))
    assert (header.base_offset, header.leader_epoch) == (5_000, 12)
    assert [record.offset for record in found] == [5_000, 5_001, 5_002]
    lead = record_batch.prefix(header, 100, -1)
    assert lead + bytes(batch)[len(lead) :] == record_batch.build(RECORDS, codec=Codec.ZSTD)


def test_log_append_time_replaces_every_timestamp() -> None:
    batch = record_batch.build(RECORDS, codec=Codec.LZ4)
    stamped = record_batch.with_log_append_time(batch, record_batch.peek(batch), 1_800_000_000_000)
    header, found = parsed(stamped)
    assert header.is_log_append_time
    assert {record.timestamp for record in found} == {1_800_000_000_000}
    assert [record.value for record in found] == [record.value for record in RECORDS]
    back, found = parsed(record_batch.with_create_time(stamped, header, 1_700_000_000_500))
    assert not back.is_log_append_time
    assert found == RECORDS


@each("target", Codec)
def test_a_batch_can_be_packed_anew(target: Codec) -> None:
    batch = record_batch.build(RECORDS, codec=Codec.GZIP, producer_id=5, producer_epoch=0, base_sequence=3)
    before = record_batch.peek(batch)
    after, found = parsed(
        record_batch.with_codec(batch, before, record_batch.payload(batch, 0, before), target)
    )
    assert found == RECORDS
    assert after.codec == target
    assert (after.producer_id, after.base_sequence) == (5, 3)


def test_control_batches_take_one_offset() -> None:
    batch = build_control(
        ControlType.COMMIT, offset=7, timestamp=50, producer_id=3, producer_epoch=1, coordinator_epoch=2
    )
    header, (marker,) = parsed(batch)
    assert header.is_control
    assert header.is_transactional
    assert (header.base_offset, header.next_offset) == (7, 8)
    assert record_batch.control_type(marker) == ControlType.COMMIT
    with pytest.raises(DecodeError):
        record_batch.control_type(Record(0, 0, b"\x00", b""))


def test_a_batch_keeps_its_offsets_without_records() -> None:
    batch = record_batch.build(
        [], base_offset=40, last_offset=49, producer_id=8, producer_epoch=0, base_sequence=0, max_timestamp=5
    )
    header, found = parsed(batch)
    assert found == []
    assert (header.base_offset, header.next_offset, header.last_sequence, header.max_timestamp) == (
        40,
        50,
        9,
        5,
    )


def test_a_delete_horizon_stands_in_the_base_timestamp() -> None:
    header, found = parsed(record_batch.build(RECORDS, delete_horizon_ms=1_900_000_000_000))
    assert header.delete_horizon_ms == header.base_timestamp == 1_900_000_000_000
    assert found == RECORDS  # the records' times are not touched by it


def test_header_names_that_are_not_utf8_are_replaced_or_kept_byte_for_byte() -> None:
    written = record_batch.build([Record(0, 0, None, None, (("\udcff\udced\udca0\udc80ä", b"v"),))])
    header, ((*_, headers),) = parsed(written)
    assert b"\xff\xed\xa0\x80\xc3\xa4" in written
    assert headers == (("\ufffd\ufffd\ufffd\ufffdä", b"v"),)
    assert record_batch.check_records(written[record_batch.HEADER_BYTES :], header).max_timestamp == 0
    kept = list(record_batch.records(written, 0, header, names=record_batch.PRESERVED))
    assert record_batch.build(kept) == written


def test_times_that_are_too_far_apart_for_a_batch_move_closer() -> None:
    times = (-(2**63) + 10, 2**62, -(2**63) + 10)
    contents = [Record(offset, time, None, b"v") for offset, time in enumerate(times)]
    _, found = parsed(record_batch.build(contents))
    assert [record.timestamp for record in found] == [times[0], 9, times[2]]
    assert [record.value for record in found] == [b"v"] * 3


def test_batches_of_a_record_set_are_walked() -> None:
    sets = [record_batch.build([Record(n, n, None, b"x" * n)]) for n in range(1, 5)]
    found = list(record_batch.batches(b"".join(sets)))
    assert [header.base_offset for _, header in found] == [1, 2, 3, 4]
    assert [after - before for (before, _), (after, _) in pairwise(found)] == [
        len(batch) for batch in sets[:-1]
    ]
    with pytest.raises(DecodeError):
        list(record_batch.batches(b"".join(sets)[:-1]))


# --- broken bytes -------------------------------------------------------------------------------------------


def test_a_record_set_ends_behind_its_last_batch() -> None:
    first = record_batch.build([Record(3, 0, None, b"a"), Record(4, 0, None, b"b")])
    second = record_batch.build([Record(9, 0, None, b"c")], last_offset=11)
    for data in (first + second, memoryview(first + second)):
        assert record_batch.end_of(data) == 12
    assert record_batch.end_of(first) == 5
    for torn in (first[:11], first + second[:11], first + bytes(8) + pack(">i", -12) + bytes(60)):
        with pytest.raises(DecodeError):
            record_batch.end_of(torn)


def resealed(batch: bytearray) -> bytes:
    """The batch with its checksum recomputed."""
    batch[17:21] = pack(">I", google_crc32c.value(bytes(batch[21:])))
    return bytes(batch)


@each("codec", Codec)
def test_whatever_the_bytes_the_outcome_is_records_or_a_decode_error(codec: Codec) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    whole = record_batch.build([record._replace(value=b"abc" * 30) for record in RECORDS] * 3, codec=codec)
    outcomes = {"read": 0, "refused": 0}
    for _ in range(400):
        broken = bytearray(whole)
        for _ in range(dice.randint(1, 4)):
            broken[dice.randrange(21, len(broken))] = dice.randrange(256)
        if dice.random() < 0.3:
            del broken[dice.randrange(len(broken)) :]
        if len(broken) >= 61:
            broken[8:12] = pack(">i", len(broken) - 12)
            resealed(broken)
        try:
            header = record_batch.peek(bytes(broken))
            unpacked = record_batch.payload(bytes(broken), 0, header, bytes_max=1 << 20)
            try:
                record_batch.check_records(unpacked, header)
            except DecodeError:
                outcomes["refused"] += 1
            list(record_batch.records(bytes(broken), 0, header, bytes_max=1 << 20))
            outcomes["read"] += 1
        except DecodeError:
            outcomes["refused"] += 1
    assert outcomes["refused"] > 100


@each("number", [0, 1, 31, 32, 63, 64, 4_095, 4_096, 8_191, 8_192, 1_048_576])
def test_check_and_reader_agree_on_numbers_of_every_length(number: int) -> None:
    """Varints take one more byte from 64, 8,192 and 1,048,576 on; a record has them for lengths, times and
    offsets."""
    content = [
        Record(0, 1_000_000_000, b"k" * number, b""),
        Record(1, 1_000_000_000 + number, b"", b"v" * number),
        Record(2, 1_000_000_000 - number, None, None, (("h", b"x" * number),)),
    ]
    assert_agreement(record_batch.build(content), content)


def test_check_and_reader_agree_on_many_records() -> None:
    content = [Record(index, 5, None, b"") for index in range(9_000)]
    assert_agreement(record_batch.build(content), content)


def assert_agreement(batch: bytes, content: list[Record]) -> None:
    header = record_batch.peek(batch)
    assert list(record_batch.records(batch, 0, header)) == content
    checked = record_batch.check_records(record_batch.payload(batch, 0, header), header)
    assert checked.max_timestamp == max(record.timestamp for record in content)
    assert checked.min_timestamp == min(record.timestamp for record in content)
    assert checked.keyless_count == sum(record.key is None for record in content)


def test_check_and_reader_agree_on_damage() -> None:
    """What the check accepts can be read and is numbered from 0; what it refuses cannot be read, or is
    not."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    content = [Record(index, 70 * index, b"k" * 70, b"v" * (70 * (index % 3))) for index in range(100)]
    whole = record_batch.build(content)
    outcomes = {True: 0, False: 0}
    for _ in range(3_000):
        damaged = bytearray(whole)
        # The numbers of one record are in its first ten bytes, or around its value.
        for _ in range(dice.randint(1, 2)):
            damaged[dice.randrange(61, 61 + 400)] = dice.choice(
                (0, 1, 0x7F, 0x80, 0x81, 0xFF, dice.randrange(256))
            )
        batch = bytes(damaged)
        header = record_batch.peek(batch)
        try:
            record_batch.check_records(record_batch.payload(batch, 0, header), header)
            passed = True
        except DecodeError:
            passed = False
        try:
            sound = [each.offset for each in record_batch.records(batch, 0, header)] == list(range(100))
        except DecodeError:
            sound = False
        assert passed == sound, batch[61:461].hex()
        outcomes[passed] += 1
    assert min(outcomes.values()) > 100, outcomes


def test_every_truncation_of_a_header_is_a_decode_error() -> None:
    batch = record_batch.build(RECORDS)
    for size in range(record_batch.HEADER_BYTES):
        with pytest.raises(DecodeError):
            record_batch.peek(batch[:size])
    for size in range(record_batch.HEADER_BYTES, len(batch)):
        header = record_batch.peek(batch[:size])
        assert not record_batch.crc_matches(batch[:size], 0, header)


def test_every_flipped_bit_under_the_checksum_is_noticed() -> None:
    batch = record_batch.build(RECORDS[:1])
    header = record_batch.peek(batch)
    for position in range(21, len(batch)):
        for bit in range(8):
            flipped = bytearray(batch)
            flipped[position] ^= 1 << bit
            assert not record_batch.crc_matches(bytes(flipped), 0, header._replace())


@each("magic", [0, 1, 3])
def test_other_formats_are_named_in_the_refusal(magic: int) -> None:
    batch = bytearray(record_batch.build(RECORDS))
    batch[record_batch.MAGIC_POSITION] = magic
    with pytest.raises(DecodeError, match=f"message format {magic} "):
        record_batch.peek(batch)


def test_a_count_beyond_the_bytes_is_refused_before_any_work() -> None:
    batch = bytearray(record_batch.build(RECORDS))
    batch[57:61] = pack(">i", 2**31 - 1)
    broken = resealed(batch)
    header = record_batch.peek(broken)
    with pytest.raises(DecodeError, match="2147483647 records"):
        list(record_batch.records(broken, 0, header))
    with pytest.raises(DecodeError, match="2147483647 records"):
        record_batch.check_records(record_batch.payload(broken, 0, header), header)


def test_records_out_of_their_place_are_refused() -> None:
    gap = record_batch.build([Record(0, 0, None, b""), Record(2, 0, None, b"")], last_offset=1)
    header = record_batch.peek(gap)
    with pytest.raises(DecodeError, match="offset delta 2"):
        record_batch.check_records(record_batch.payload(gap, 0, header), header)
    wide = record_batch.build([Record(0, 0, None, b"")], last_offset=4)
    header = record_batch.peek(wide)
    with pytest.raises(DecodeError, match="last offset delta"):
        record_batch.check_records(record_batch.payload(wide, 0, header), header)


def test_a_record_must_be_as_long_as_it_says() -> None:
    batch = record_batch.build([Record(0, 0, b"k", b"v")])
    header = record_batch.peek(batch)
    unpacked = record_batch.payload(batch, 0, header)
    longer = bytes([unpacked[0] + 2]) + unpacked[1:] + b"\x00"  # the length is zigzag: one more byte is two
    with pytest.raises(DecodeError, match="not as long as it says"):
        record_batch.check_records(longer, header)
    with pytest.raises(DecodeError, match="after the last record"):
        record_batch.check_records(unpacked + b"\x00", header)


INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
ZERO, LONG_ZERO = b"\x00", b"\x80\x80\x80\x80\x00"


def varint(value: int) -> bytes:
    """Zigzag, of any size: not limited to Kafka's 64 bits."""
    zigzag = 2 * value if value >= 0 else -2 * value - 1
    packed = bytearray()
    while zigzag >= 0x80:
        packed.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    packed.append(zigzag)
    return bytes(packed)


def hand_made(
    *deltas: int,
    base_timestamp: int = 0,
    key: bytes = b"\x02k",
    length_pad: bytes = b"",
    headers: bytes = ZERO,
) -> bytes:
    """A batch of records with these timestamp deltas. `key` includes its size; `length_pad` makes the
    record's length longer than it need be."""
    records = b""
    for index, delta in enumerate(deltas):
        body = b"\x00" + varint(delta) + varint(index) + key + b"\x02v" + headers
        length = bytearray(varint(len(body)))
        if length_pad:
            length[-1] |= 0x80
        records += length + length_pad + body
    sizes = (len(deltas) - 1, base_timestamp, 0, -1, -1, -1, len(deltas))
    head = pack(">qiibIhiqqqhii", 0, 49 + len(records), -1, 2, 0, 0, *sizes)
    return resealed(bytearray(head + records))


def refusals(batch: bytes) -> list[str]:
    """The errors that the producer's check and the reader raise for a batch."""
    header = record_batch.peek(batch)
    found = []
    for read in (
        lambda: record_batch.check_records(record_batch.payload(batch, 0, header), header),
        lambda: list(record_batch.records(batch, 0, header)),
    ):
        try:
            read()
        except DecodeError as error:
            found.append(str(error))
    return found


@each(
    "batch",
    [
        pytest.param(hand_made(-(2**66), 0), id="delta of 70 bits"),
        pytest.param(hand_made(INT64_MIN - 1), id="delta below int64"),
        pytest.param(hand_made(INT64_MAX + 1), id="delta above int64"),
        pytest.param(hand_made(0, key=b"\x82\x80\x80\x80\x80\x00k"), id="key size of 6 bytes"),
        pytest.param(hand_made(0, length_pad=LONG_ZERO), id="length of 6 bytes"),
        pytest.param(hand_made(0, headers=b"\x80\x80\x80\x80\x80\x00"), id="header count of 6 bytes"),
    ],
)
def test_a_varint_that_no_kafka_reader_takes_is_refused(batch: bytes) -> None:
    assert len(refusals(batch)) == 2


def test_the_longest_varints_of_kafka_are_taken() -> None:
    assert refusals(hand_made(INT64_MIN)) == []
    assert refusals(hand_made(INT64_MAX)) == []
    assert refusals(hand_made(0, key=b"\x82\x80\x80\x80\x00k", length_pad=LONG_ZERO[1:])) == []


@each(
    "base, deltas, fits",
    [
        (INT64_MIN, (-5,), False),
        (INT64_MIN, (0, 5), True),
        (INT64_MAX, (0, -7), True),
        (INT64_MAX, (-7, 1), False),
        (-1, (INT64_MAX, INT64_MIN), False),
        (-1, (INT64_MAX, INT64_MIN + 1), True),
    ],
)
def test_every_timestamp_is_an_int64(base: int, deltas: tuple[int, ...], fits: bool) -> None:
    batch = hand_made(*deltas, base_timestamp=base)
    assert len(refusals(batch)) == (0 if fits else 2)
    if fits:
        header = record_batch.peek(batch)
        checked = record_batch.check_records(record_batch.payload(batch, 0, header), header)
        assert checked.max_timestamp == base + max(deltas)
        assert checked.min_timestamp == base + min(deltas)


def test_records_without_a_timestamp_are_not_the_oldest() -> None:
    for timestamps, oldest in (((-1, 500, 400, -1), 400), ((-1, -1), -1)):
        batch = record_batch.build([Record(n, time, None, b"") for n, time in enumerate(timestamps)])
        header = record_batch.peek(batch)
        checked = record_batch.check_records(record_batch.payload(batch, 0, header), header)
        assert checked.min_timestamp == oldest


def test_only_the_first_records_without_a_key_are_named() -> None:
    batch = record_batch.build([Record(n, 0, None if n else b"k", b"") for n in range(1_000)])
    header = record_batch.peek(batch)
    checked = record_batch.check_records(record_batch.payload(batch, 0, header), header)
    assert checked.keyless == list(range(1, 1 + record_batch.RECORDS_BLAMED_MAX))
    assert checked.keyless_count == 999


def test_checking_headers_keeps_none_of_them() -> None:
    count = 20_000
    batch = hand_made(0, headers=varint(count) + b"\x02h\x02v" * count)
    header = record_batch.peek(batch)
    unpacked = record_batch.payload(batch, 0, header)
    tracemalloc.start()
    try:
        record_batch.check_records(unpacked, header)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100_000
    broken = hand_made(0, headers=varint(2) + b"\x02h\x02v" + b"\x01\x02v")  # no name
    assert len(refusals(broken)) == 2


# --- codecs -------------------------------------------------------------------------------------------------


@each("codec", [codec for codec in Codec if codec is not Codec.NONE])
@each("size", [0, 1, 100, 65_536, 65_537, 300_000])
def test_codecs_round_trip(codec: Codec, size: int) -> None:
    dice = random.Random(size)
    noise = dice.randbytes(size // 2)  # incompressible, and then very compressible
    plain = noise + b"m" * (size - len(noise))
    assert decompress(codec, compress(codec, plain)) == plain


@each("codec", [codec for codec in Codec if codec is not Codec.NONE])
def test_what_unpacks_to_too_much_is_refused(codec: Codec) -> None:
    packed = compress(codec, b"\x00" * 1_000_000)
    assert len(decompress(codec, packed, 1_000_000)) == 1_000_000
    with pytest.raises(UnpackedTooLarge):
        decompress(codec, packed, 999_999)
    noise = compress(codec, random.Random(codec).randbytes(100_000))
    with pytest.raises(UnpackedTooLarge):
        decompress(codec, noise, 99_999)


@each("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_what_is_cut_short_is_broken_and_not_too_large(codec: Codec) -> None:
    packed = compress(codec, b"\x00" * 1_000_000)
    with pytest.raises(DecodeError) as caught:
        decompress(codec, packed[:-9], 1_000_000)
    assert not isinstance(caught.value, UnpackedTooLarge)


@each("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_broken_packed_bytes_are_refused_before_more_room_is_made(codec: Codec) -> None:
    broken = bytearray(compress(codec, b"x" * 1_000))
    broken[0] ^= 0xFF
    with pytest.raises(DecodeError):
        decompress(codec, bytes(broken), 1 << 28)  # once, so that nothing is made for the first time below
    tracemalloc.start()
    try:
        with pytest.raises(DecodeError):
            decompress(codec, bytes(broken), 1 << 28)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 1 << 20


@each("codec", [codec for codec in Codec if codec is not Codec.NONE])
def test_broken_packed_bytes_are_refused_or_unpacked(codec: Codec) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    packed = compress(codec, bytes(range(256)) * 20)
    for _ in range(300):
        broken = bytearray(packed)
        broken[dice.randrange(len(broken))] = dice.randrange(256)
        with suppress(DecodeError):
            assert len(decompress(codec, bytes(broken[: dice.randint(0, len(broken))]), 1 << 20)) <= 1 << 20


@each("claimed", [b"\xff\xff\xff\xff\x0f", b"\xff" * 20, b""])
def test_a_snappy_block_cannot_claim_more_than_allowed(claimed: bytes) -> None:
    with pytest.raises(DecodeError):
        decompress(Codec.SNAPPY, claimed, 1 << 20)


def test_snappy_is_read_raw_and_xerial_and_written_xerial() -> None:
    plain = b"orders" * 20_000
    assert decompress(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(plain))) == plain
    written = compress(Codec.SNAPPY, plain)
    assert written.startswith(b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01")
    assert decompress(Codec.SNAPPY, written) == plain


def test_lz4_frames_have_independent_blocks() -> None:
    frame = compress(Codec.LZ4, b"m" * 200_000)
    assert frame[4] & 0x20  # Java's reader keeps no window from block to block
    assert bytes(cramjam.lz4.decompress(frame)) == b"m" * 200_000


def test_an_unknown_codec_is_refused() -> None:
    with pytest.raises(DecodeError, match="codec 5"):
        decompress(5, b"")


def test_plain_records_have_the_same_bound() -> None:
    with pytest.raises(DecodeError):
        decompress(Codec.NONE, b"x" * 11, 10)
    assert compression.DECOMPRESSED_BYTES_MAX == 100 << 20

"""The record batch writer writes the same bytes as its slow twin, and knows how many they are."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.protocol.compression import Codec
from muster.protocol.record_batch import Record, batches, build, crc_matches, records
from muster.protocol.record_writer import RecordBatchWriter

DATA = st.none() | st.binary(max_size=20) | st.integers(0, 20_000).map(bytes)
HEADERS = st.lists(
    st.tuples(st.text(st.characters(exclude_categories=("Cs",)), max_size=10), DATA), max_size=4
).map(tuple)
NEAR = st.integers(1_700_000_000_000, 1_700_000_020_000)
TIMES = NEAR | st.integers(-(2**62), 2**62)


def contents(
    timestamps: st.SearchStrategy[int],
) -> st.SearchStrategy[list[tuple[int, object, object, object]]]:
    return st.lists(st.tuples(timestamps, DATA, DATA, HEADERS), min_size=1, max_size=20)


@given(
    given=contents(NEAR) | contents(TIMES),
    codec=st.sampled_from(Codec),
    producer_id=st.integers(-1, 2**63 - 1),
    epoch=st.integers(-1, 2**15 - 1),
    sequence=st.integers(-1, 2**31 - 1),
)
def test_the_bytes_are_those_of_the_slow_twin(given, codec, producer_id, epoch, sequence) -> None:  # type: ignore[no-untyped-def]
    writer = RecordBatchWriter()
    for each in given:
        before = writer.size_bytes
        assert writer.append(*each) == writer.size_bytes - before
    plain = writer.packed(Codec.NONE)
    assert plain.size_bytes == len(plain.batch()) == writer.size_bytes
    expected = build(
        [Record(index, *each) for index, each in enumerate(given)],
        codec=codec,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
    )
    packed = writer.packed(codec)
    assert packed.batch(producer_id, epoch, sequence) == expected
    assert packed.size_bytes == len(expected)


def test_many_records_agree_as_well() -> None:
    """Offset deltas of one, two and three bytes, timestamp deltas likewise and negative."""
    given = [Record(index, 1_000_000 + index * 7 % 20_011 - 5, b"k", b"v" * 3) for index in range(20_000)]
    writer = RecordBatchWriter()
    for each in given:
        writer.append(each.timestamp, each.key, each.value)
    assert writer.packed(Codec.NONE).batch() == build(given)


@given(given=contents(NEAR), room=st.integers(61, 30_000))
def test_it_grows_to_the_size_allowed_and_no_further(given, room) -> None:  # type: ignore[no-untyped-def]
    """Except for the first record, which must go somewhere."""
    writer, taken = RecordBatchWriter(), []
    for timestamp, key, value, headers in given:
        before = writer.size_bytes
        size = writer.append(timestamp, key, value, headers, room)
        alone = RecordBatchWriter()
        alone.append(timestamp, key, value, headers)
        if size:
            taken.append(Record(len(taken), timestamp, key, value, headers))
            assert writer.size_bytes <= room or len(taken) == 1
        else:
            # It takes a little more here than alone, where the deltas are 0.
            assert before + (alone.size_bytes - 61) + 20 > room
        assert writer.count == len(taken)
    assert writer.packed(Codec.NONE).batch() == build(taken)


@pytest.mark.parametrize(
    "wrong",
    [
        ("text", b"v", ()),
        (array("I", [1]), b"v", ()),
        (b"k", "text", ()),
        (b"k", 5, ()),
        (b"k", array("I", [1]), ()),
        (b"k", b"v", (("h", "text"),)),
        (b"k", b"v", (("h", array("I", [1])),)),
    ],
)
def test_what_is_not_bytes_is_refused_and_nothing_added(wrong: tuple[object, object, object]) -> None:
    writer = RecordBatchWriter()
    writer.append(1, b"k", b"v")
    before = writer.packed(Codec.NONE).batch()
    with pytest.raises(TypeError):
        writer.append(1, *wrong)  # type: ignore[arg-type]
    assert writer.packed(Codec.NONE).batch() == before


def test_what_is_as_good_as_bytes_is_taken() -> None:
    wide = memoryview(array("I", [1, 2]))
    writer, plain = RecordBatchWriter(), RecordBatchWriter()
    writer.append(1, bytearray(b"k"), wide, (("h", memoryview(b"h")),))
    plain.append(1, b"k", wide.tobytes(), (("h", b"h"),))
    assert writer.packed(Codec.NONE).batch() == plain.packed(Codec.NONE).batch()


def test_a_batch_can_be_numbered_anew() -> None:
    """A batch sent again under another epoch has the same records."""
    writer = RecordBatchWriter()
    writer.append(5, b"k", b"v", (("h", None),))
    packed = writer.packed(Codec.LZ4)
    for numbers in ((7, 0, 3), (7, 1, 0), (-1, -1, -1)):
        batch = packed.batch(*numbers)
        ((position, header),) = batches(batch)
        assert crc_matches(batch, position, header)
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == numbers
        assert list(records(batch, position, header)) == [Record(0, 5, b"k", b"v", (("h", None),))]

"""The batch that ends a transaction, byte for byte, and what is read from it."""

from __future__ import annotations

from muster.protocol import record_batch
from muster.protocol.control_batch import CONTROL_BATCH_BYTES_MAX, EndMarker, build_marker, read_marker
from muster.protocol.record_batch import ControlType, Record
from tests.support.each import each


@each("committed", [True, False])
def test_a_marker_is_a_control_batch_of_one_record(committed: bool) -> None:
    batch = build_marker(9, 3, EndMarker(committed, 258), 1_000)
    header = record_batch.peek(batch)
    assert record_batch.crc_matches(batch, 0, header)
    assert (header.is_control, header.is_transactional, header.codec) == (True, True, 0)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (9, 3, -1)
    assert (header.record_count, header.last_offset_delta, header.max_timestamp) == (1, 0, 1_000)
    assert (header.size, header.size <= CONTROL_BATCH_BYTES_MAX) == (78, True)
    kind = b"\x01" if committed else b"\x00"
    # length 16, attributes, timestamp and offset deltas, key of 4, value of 6, no headers; varints zigzag
    expected = b"\x20\x00\x00\x00\x08\x00\x00\x00" + kind + b"\x0c\x00\x00\x00\x00\x01\x02\x00"
    assert batch[record_batch.HEADER_BYTES :] == expected
    assert read_marker(header, batch) == EndMarker(committed, 258)


def control(*contents: Record) -> bytes:
    return record_batch.build(
        contents,
        base_offset=0,
        last_offset=0,
        producer_id=9,
        producer_epoch=3,
        transactional=True,
        control=True,
    )


def test_what_ends_no_transaction_is_passed_over() -> None:
    emptied = control()
    unknown = control(Record(0, 0, b"\x00\x00\x00\x05", b"\x00\x00"))
    cut_short = control(Record(0, 0, b"\x00\x00\x00\x01", b"\x00\x00\x00"))
    without_a_key = control(Record(0, 0, None, None))
    for batch in (emptied, unknown, cut_short, without_a_key):
        assert read_marker(record_batch.peek(batch), batch) is None
    (record,) = record_batch.records(unknown, 0, record_batch.peek(unknown))
    assert record_batch.control_type(record) not in list(ControlType)
    whole = build_marker(9, 3, EndMarker(True, 1), 0)
    assert read_marker(record_batch.peek(whole), whole[:70]) is None

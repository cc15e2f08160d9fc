"""Batches: columns, records, slices."""

from __future__ import annotations

import pytest

from muster.client.fetch.records import LOG_APPEND_TIME, Batch, ConsumerRecord
from muster.client.partitions import TopicPartition

HEADERS = [(), (("h", b"x"),), (), ()]


def four(headers: list[tuple[tuple[str, bytes | None], ...]] | None = None) -> Batch[None, bytes]:
    return Batch(
        "t",
        2,
        [10, 11, 15, 16],
        [1, 2, 3, 4],
        headers,
        keys=[None] * 4,
        values=[b"a", b"b", b"c", b"d"],
        next_offset=20,
        timestamp_type=LOG_APPEND_TIME,
        leader_epoch=7,
    )


def test_a_record_says_all_there_is_to_say() -> None:
    record = four(HEADERS)[1]
    assert record == ConsumerRecord("t", 2, 11, 2, LOG_APPEND_TIME, None, b"b", (("h", b"x"),), 7)
    assert type(record) is ConsumerRecord
    assert record.topic_partition == TopicPartition("t", 2)


def test_it_is_a_sequence_of_records() -> None:
    batch = four()
    assert [record.offset for record in batch] == [10, 11, 15, 16]
    assert (len(batch), batch[-1].value, batch[0].headers) == (4, b"d", ())
    assert batch.records is batch.records
    assert repr(batch) == "<Batch t-2 offsets 10 to 16>"
    with pytest.raises(IndexError):
        batch[4]


def test_a_slice_knows_where_reading_goes_on() -> None:
    batch = four(HEADERS)
    assert (batch[:2].values, batch[:2].next_offset) == ([b"a", b"b"], 12)
    assert (list(batch[1:3].offsets), batch[1:3].next_offset) == ([11, 15], 16)
    assert (batch[2:].next_offset, batch[2:].first_offset) == (20, 15)
    assert list(batch[1:2].headers) == [(("h", b"x"),)]
    assert len(batch[4:]) == len(batch[9:2]) == 0
    assert batch[1:1].next_offset == 11
    with pytest.raises(ValueError, match="without a step"):
        batch[::2]


def test_other_contents_in_the_same_places() -> None:
    text = four(HEADERS).with_contents(["k"] * 4, [1, 2, 3, 4])
    assert [(record.offset, record.key, record.value, record.headers) for record in text] == [
        (10, "k", 1, ()),
        (11, "k", 2, (("h", b"x"),)),
        (15, "k", 3, ()),
        (16, "k", 4, ()),
    ]
    assert (text.next_offset, text.leader_epoch) == (20, 7)

"""Records to Arrow columns: the fast way and the slow way agree, whatever the bytes."""

from __future__ import annotations

import random
from typing import Any

import pyarrow
import pytest

from muster.client import TopicPartition
from muster.client.fetch.fetched import Packed, Part
from muster.pipeline.decoding import RECORDS_MAX, one_by_one, rows, together
from muster.pipeline.errors import PipelineError
from muster.protocol.compression import Codec
from muster.protocol.errors import KafkaError
from muster.protocol.record_batch import Record, build, peek

ORDERS = TopicPartition("orders", 0)
AT_MS = 1_700_000_000_000
ALL = 1 << 62


def packed(data: bytes) -> Packed:
    return Packed(peek(data, 0), data)


def slowly(
    group: list[Packed], start: int = 0, until: int = ALL, *, headers: bool = True
) -> pyarrow.Table | None:
    """Decode one by one; None if the records cannot be read."""
    part = Part(ORDERS, b"", 0, 0)
    try:
        found = list(one_by_one(part, group, ORDERS, start, until, headers))
    except KafkaError:
        return None
    return pyarrow.Table.from_batches(found)


def fast(
    group: list[Packed], start: int = 0, until: int = ALL, *, headers: bool = True
) -> pyarrow.Table | None:
    found = together(group, ORDERS, start, until, headers=headers)
    if found is None:
        return None
    found.validate(full=True)
    return pyarrow.Table.from_batches([found])


def some_bytes(dice: random.Random, large: int) -> bytes | None:
    size = dice.choice([None, 0, 1, 8, 8, 63, 64, 100, 100, 8_192, large])
    return None if size is None else dice.randbytes(size)


def a_batch(dice: random.Random, offset: int, *, by_broker: bool) -> tuple[bytes, int]:
    """A batch, and the offset after it: runs of similar records, and others."""
    records: list[Record] = []
    at_ms = AT_MS
    while len(records) < 1 or dice.random() < 0.8:
        key, value = some_bytes(dice, 300), some_bytes(dice, 20_000)
        headers: tuple[tuple[str, bytes | None], ...] = ()
        if dice.random() < 0.2:
            headers = (("a", b"1"), ("a", None), ("\u00fc\udcff", b""))[: dice.randint(1, 3)]
        for _ in range(dice.choice([1, 1, 2, 70])):
            records.append(Record(offset, at_ms, key, value, headers))
            offset += 1 if dice.random() < 0.95 else dice.randint(2, 10_000)
            at_ms += dice.choice([0, 0, 1, 70, -70, 10_000, -(10**9)])
    data = build(
        records,
        codec=dice.choice(list(Codec)),
        log_append_time_ms=AT_MS + 5 if by_broker else None,
        base_offset=records[0].offset - dice.choice([0, 0, 5]),
    )
    return data, offset


@pytest.mark.parametrize("known", [1, 2, *[None] * 8])
def test_sound_records(known: int | None) -> None:
    # To repeat a failed run, put its seed in place of a None.
    seed = random.SystemRandom().randrange(2**32) if known is None else known
    print("seed", seed)
    dice = random.Random(seed)
    by_broker = dice.random() < 0.3
    group, offset = [], 1_000
    for _ in range(dice.randint(1, 12)):
        data, offset = a_batch(dice, offset, by_broker=by_broker)
        group.append(packed(data))
        offset += dice.choice([0, 0, 100])
    whole = slowly(group)
    assert fast(group) == whole
    assert fast(group, headers=False) == slowly(group, headers=False)
    for _ in range(10):
        start = dice.randint(900, offset)
        until = dice.randint(start, offset + 10)
        assert fast(group, start, until) == slowly(group, start, until)


@pytest.mark.parametrize("size", [2**21 + 5, 2**28 // 2**5])
def test_a_very_large_record(size: int) -> None:
    group = [packed(build([Record(7, AT_MS, bytes(size), b"x"), Record(8, AT_MS, None, bytes(size))]))]
    found = fast(group)
    assert found is not None
    assert found == slowly(group)


def test_records_that_are_not_sound_are_left_to_the_slow_way() -> None:
    """Every byte of a batch changed, in every way that matters: what the slow way cannot read, the fast way
    does not read either; where both read, they agree."""
    records = [
        Record(0, AT_MS, b"k", b"v"),
        Record(1, AT_MS + 700, None, None),
        Record(2, AT_MS, b"", b"x" * 70, (("a", b"1"), ("b", None))),
        *(Record(n, AT_MS, b"kk", b"vv") for n in range(3, 15)),
    ]
    data = build(records, base_offset=0)
    header = peek(data, 0)
    read = 0
    for place in range(61, len(data)):
        for byte in {0, 1, 2, 0x7F, 0x80, 0x81, 0xFF, data[place] ^ 1, data[place] ^ 2, data[place] ^ 0x80}:
            changed = data[:place] + bytes([byte]) + data[place + 1 :]
            group = [Packed(header, changed)]
            found = fast(group)
            if found is not None:
                assert found == slowly(group), (place, byte)
                read += 1
    assert read > 100
    for cut in range(61, len(data)):
        group = [Packed(header, data[:cut])]
        assert fast(group) is None
    for count in (0, 14, 16, 2**31 - 1):
        assert fast([Packed(header._replace(record_count=count), data)]) is None


def test_times_beyond_64_bits_are_left_to_the_slow_way() -> None:
    data = build([Record(0, AT_MS, b"k", b"v"), Record(1, AT_MS + 1, b"k", b"v")])
    group = [Packed(peek(data, 0)._replace(base_timestamp=2**63 - 1), data)]
    assert fast(group) is None
    assert slowly(group) is None


@pytest.mark.parametrize("at_ms", [2**63 // 1000 + 1, -(2**63 // 1000) - 1, AT_MS * 1_000_000, 2**62])
def test_a_time_that_spark_cannot_express_is_refused(at_ms: int) -> None:
    """Its microseconds do not fit in 64 bits."""
    group = [packed(build([Record(5, AT_MS, b"k", b"v"), Record(6, at_ms, b"k", b"v")]))]
    assert fast(group) is None
    with pytest.raises(PipelineError, match=f"orders-0: the record at offset 6 has the timestamp {at_ms} ms"):
        slowly(group)
    # A task that does not read the record is not concerned.
    assert slowly(group, until=6) is not None


def taken(part: Part, start: int = 0, until: int = ALL) -> list[Any]:
    return list(rows(part, ORDERS, start, until, headers=False))


def test_a_part_comes_in_batches_that_spark_likes() -> None:
    small = [build([Record(n + m, AT_MS, b"k", b"v") for m in range(100)]) for n in range(0, 25_000, 100)]
    large = build([Record(25_000 + n, AT_MS, b"k", b"v") for n in range(25_000)])
    by_broker = build([Record(50_000, AT_MS, b"k", b"v")], log_append_time_ms=AT_MS)
    batches = taken(Part(ORDERS, b"".join([*small, large, by_broker]), 0, 0), start=50, until=50_001)
    sizes = [batch.num_rows for batch in batches]
    assert sizes == [9_950, 10_000, 5_000, 10_000, 10_000, 5_000, 1]
    assert max(sizes) <= RECORDS_MAX
    assert [n for batch in batches for n in batch["offset"].to_pylist()] == list(range(50, 50_001))
    assert taken(Part(ORDERS, b"", 0, 0)) == []


def test_what_is_damaged_is_told_when_all_before_it_was_taken() -> None:
    good = [build([Record(n, AT_MS, b"k", b"v")]) for n in range(4)]
    broken = bytearray(good[2])
    broken[-1] ^= 1
    found = rows(Part(ORDERS, good[0] + good[1] + broken + good[3], 0, 0), ORDERS, 0, 9, headers=False)
    assert next(found).num_rows == 2
    with pytest.raises(KafkaError, match="the batch at offset 2 cannot be read: its checksum"):
        next(found)


def test_what_cannot_be_read_is_told_when_all_before_it_was_taken() -> None:
    good = [build([Record(n, AT_MS, b"k", b"v")]) for n in range(3)]
    header = peek(good[1], 0)
    unsound = good[1][:61] + bytes([good[1][61] + 2]) + good[1][62:]
    part = Part(ORDERS, good[0] + unsound + good[2], 0, 0, check_crcs=False)
    found = rows(part, ORDERS, 0, 9, headers=False)
    assert next(found).num_rows == 1
    with pytest.raises(KafkaError, match=f"the batch at offset {header.base_offset} cannot be read"):
        next(found)

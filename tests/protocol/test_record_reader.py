"""The fast reader of records and its slow twin agree: on what producers send, and on garbage."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from muster.protocol import record_batch, record_reader
from muster.protocol.compression import Codec, UnpackedTooLarge
from muster.protocol.errors import DecodeError
from muster.protocol.record_batch import HEADER_BYTES, Header, Record, build, peek
from muster.protocol.record_reader import read_records
from tests.support.each import each


def fast(data: bytes, header: Header) -> list[Record] | type[DecodeError]:
    keys: list[bytes | None] = [b"kept"]
    values: list[bytes | None] = [None]
    try:
        offsets, timestamps, headers = read_records(data, 0, header, keys, values)
    except DecodeError:
        assert (keys, values) == ([b"kept"], [None])
        return DecodeError
    del keys[0], values[0]
    assert headers is None or any(headers)
    several = headers or [()] * len(values)
    return [Record(*each) for each in zip(offsets, timestamps, keys, values, several, strict=True)]


def slow(data: bytes, header: Header) -> list[Record] | type[DecodeError]:
    try:
        return list(record_batch.records(data, 0, header))
    except DecodeError:
        return DecodeError


def of(records: list[Record], **how: object) -> tuple[bytes, Header]:
    data = build(records, **how)  # type: ignore[arg-type]
    return data, peek(data)


def alike(
    count: int, *, value: bytes | None = b"v" * 20, key: bytes | None = None, step: int = 1
) -> list[Record]:
    """Records as one program sends them: all of one shape, a few each millisecond."""
    return [Record(index, 1_700_000_000_000 + index // 10 * step, key, value) for index in range(count)]


contents = st.lists(
    st.tuples(
        st.integers(0, 2),  # how many offsets are skipped before it
        st.integers(-300, 300) | st.integers(-(2**62), 2**62),
        st.none() | st.binary(max_size=3) | st.binary(min_size=60, max_size=70),
        st.none() | st.binary(max_size=3) | st.binary(min_size=8180, max_size=8200),
        st.just(()) | st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=3)), max_size=2),
    ),
    min_size=1,
    max_size=30,
)


@given(contents, st.sampled_from(Codec), st.booleans())
@settings(max_examples=200)
def test_they_agree_on_any_records(
    drawn: list[tuple[int, int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]],
    codec: Codec,
    log_append_time: bool,
) -> None:
    records: list[Record] = []
    offset = 100
    for gap, timestamp, key, value, headers in drawn:
        offset += gap
        records.append(Record(offset, timestamp, key, value, tuple(headers)))
        offset += 1
    data, header = of(records, codec=codec, log_append_time_ms=5 if log_append_time else None)
    expected = [each._replace(timestamp=5) for each in records] if log_append_time else records
    assert fast(data, header) == slow(data, header) == expected


_KEYS = [None, b"", b"k", b"k" * 100]
_VALUES = [None, b"", b"v" * 100]


@each(
    "count, key, value",
    [
        *itertools.product([1, 8, 9, 63, 64, 65, 200], _KEYS, _VALUES),
        *itertools.product([8191, 8193, 9000], [None], _VALUES),
        *itertools.product([8191, 8193, 9000], _KEYS[1:], [b""]),
    ],
)
def test_runs_of_every_length(count: int, key: bytes | None, value: bytes | None) -> None:
    # Timestamp deltas of one, two and three bytes; the last step of a long run has them all.
    for step in (0, 1, 7, 90) if count < 1_000 else (0, 90):
        records = alike(count, key=key, value=value, step=step)
        data, header = of(records)
        assert fast(data, header) == records


@given(st.integers(10, 150), st.integers(0, 149), st.binary(max_size=40), st.integers(0, 3))
@settings(max_examples=200)
def test_one_that_is_different_ends_a_run(count: int, place: int, value: bytes, gap: int) -> None:
    records = alike(count)
    place %= count
    shifted = [each._replace(offset=each.offset + gap) for each in records[place + 1 :]]
    records = [*records[:place], records[place]._replace(value=value), *shifted]
    data, header = of(records)
    assert fast(data, header) == slow(data, header) == records


@pytest.mark.interpreted
def test_runs_are_taken_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not one by one: a fast path that is never taken would agree too."""
    taken: list[int] = []
    take = record_reader._take_run
    monkeypatch.setattr(record_reader, "_take_run", lambda *args: taken.append(take(*args)) or taken[-1])  # type: ignore[arg-type]
    data, header = of(alike(1000))
    assert fast(data, header) == alike(1000)
    assert sum(taken) > 950


def damage(data: bytearray, rng: random.Random) -> None:
    """Change something after the header, where its meaning is likely to change."""
    for _ in range(rng.randint(1, 3)):
        place = rng.randrange(HEADER_BYTES, len(data))
        match rng.randrange(4):
            case 0:
                data[place] = rng.randrange(256)
            case 1:
                data[place] ^= 1 << rng.randrange(8)
            case 2:
                del data[place]
            case 3:
                # A varint may be longer than it needs to be.
                data[place : place + 1] = bytes([data[place] | 0x80, rng.choice((0, 0x80, 1))])


@given(st.integers(0, 2**32))
@settings(max_examples=500)
@example(0)
def test_they_agree_on_garbage(seed: int) -> None:
    rng = random.Random(seed)
    records = alike(
        rng.choice((1, 12, 80)),
        value=rng.choice((None, b"", b"v" * 10, b"v" * 100)),
        key=rng.choice((None, b"", b"k")),
        step=rng.choice((0, 1, 80)),
    )
    if rng.random() < 0.3:
        records[rng.randrange(len(records))] = records[0]._replace(headers=(("h", b"v"), ("n", None)))
        records = sorted(records)
    data = bytearray(build(records))
    damage(data, rng)
    header = peek(bytes(data))._replace(
        length=len(data) - 12,
        record_count=max(0, len(records) + rng.choice((0, 0, 0, -1, 1))),
        base_timestamp=rng.choice((0, 2**63 - 3, -(2**63))),
    )
    assert fast(bytes(data), header) == slow(bytes(data), header)


@each("step", [1, 120])  # timestamp deltas of one byte and of two
@each("key", [None, b"k"])
def test_they_agree_on_every_bit_of_a_record_in_a_run(step: int, key: bytes | None) -> None:
    records = [Record(index, 7 * step + index % 2, key, b"v") for index in range(40)]
    records[0] = records[0]._replace(timestamp=0)
    data, header = of(records)
    size = len(build(records[:21])) - len(build(records[:20]))
    begin = len(build(records[:20]))
    for place in range(begin, begin + size):
        for bit in range(8):
            changed = bytearray(data)
            changed[place] ^= 1 << bit
            assert fast(bytes(changed), header) == slow(bytes(changed), header), (place - begin, bit)


@given(st.binary(max_size=200), st.integers(0, 40))
@settings(max_examples=500)
def test_they_agree_on_noise(noise: bytes, count: int) -> None:
    data = build([Record(0, 0, None, None)])[:HEADER_BYTES] + noise
    header = peek(data)._replace(length=len(data) - 12, record_count=count)
    assert fast(data, header) == slow(data, header)


@each("base, delta", [(2**62, 2**62 - 1), (2**62, 2**62), (-(2**62), -(2**62)), (-(2**62), -(2**62) - 1)])
def test_timestamps_are_of_64_bits_whatever_the_delta(base: int, delta: int) -> None:
    data, header = of([Record(0, 0, None, b"v"), Record(1, delta, None, b"v")])
    header = header._replace(base_timestamp=base)
    expected = (
        [Record(0, base, None, b"v"), Record(1, base + delta, None, b"v")]
        if -(2**63) <= base + delta < 2**63
        else DecodeError
    )
    assert fast(data, header) == slow(data, header) == expected


def test_a_varint_that_is_longer_than_it_needs_to_be() -> None:
    """A null key may be written in two bytes; a run must read it as null."""
    data = bytearray(build([Record(0, 0, None, b"v")])[:HEADER_BYTES])
    for index in range(20):
        body = bytes([0, 0, index * 2, 0x81, 0, 2, ord("v"), 0])
        data += bytes([len(body) * 2]) + body
    header = peek(bytes(data))._replace(length=len(data) - 12, record_count=20)
    assert (
        fast(bytes(data), header)
        == slow(bytes(data), header)
        == [Record(index, 0, None, b"v") for index in range(20)]
    )


def test_header_names_that_are_not_utf8_are_read_with_replacements() -> None:
    written = alike(12)
    written[5] = written[5]._replace(headers=(("\udcff-\udce4", b"v"),))
    read = [*written[:5], written[5]._replace(headers=(("\ufffd-\ufffd", b"v"),)), *written[6:]]
    data, header = of(written)
    assert fast(data, header) == slow(data, header) == read


def test_the_next_batch_is_not_touched() -> None:
    """A record that reaches beyond its batch is an error, though there is something behind it."""
    first, second = build(alike(20)), build(alike(20))
    data = bytearray(first + second)
    header = peek(first)._replace(record_count=21)
    assert fast(bytes(data), header) is DecodeError
    assert fast(bytes(data), peek(first)) == alike(20)


def test_a_batch_that_is_not_all_there() -> None:
    data, header = of(alike(20))
    for length in range(HEADER_BYTES, len(data)):
        assert fast(data[:length], header) is slow(data[:length], header) is DecodeError


def test_the_bound_holds_packed_and_unpacked() -> None:
    for codec in Codec:
        data, header = of(alike(2000), codec=codec)
        with pytest.raises(UnpackedTooLarge):
            read_records(data, 0, header, [], [], bytes_max=10_000)


@pytest.mark.interpreted
@each("error", [MemoryError, KeyboardInterrupt])
def test_the_columns_are_as_before_whatever_is_raised(
    error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> tuple[int, int]:
        raise error

    monkeypatch.setattr(record_reader, "read_unsigned", fails)  # what long sizes need
    data, header = of([*alike(3), Record(3, 1_700_000_000_000, b"key", b"v" * 20_000)])
    keys: list[bytes | None] = [b"kept"]
    values: list[bytes | None] = [None]
    with pytest.raises(error):
        read_records(data, 0, header, keys, values)
    assert (keys, values) == ([b"kept"], [None])

"""The partitioner: keys go where Java's producer sends them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from muster.client.produce import partitioner
from muster.client.produce.partitioner import murmur2, partition_of
from tests.support.each import each


@each(
    "key, signed",
    [  # of Kafka's Utils.murmur2
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_is_that_of_java(key: bytes, signed: int) -> None:
    assert murmur2(key) == signed & 0xFFFF_FFFF
    assert partition_of(key, 7) == (signed & 0x7FFF_FFFF) % 7


def test_the_empty_key_has_a_place_as_well() -> None:
    assert murmur2(b"") == 275646681
    assert partition_of(b"", 1) == 0


def test_only_short_keys_are_remembered() -> None:
    for key, kept in ((b"short" + bytes(123), 1), (b"long" + bytes(125), 0)):
        before = partitioner._remembered.cache_info()
        assert partition_of(key, 7) == partition_of(key, 7) == (murmur2(key) & 0x7FFF_FFFF) % 7
        after = partitioner._remembered.cache_info()
        assert (after.misses - before.misses, after.hits - before.hits) == (kept, kept)


def by_the_book(data: bytes) -> int:
    """MurmurHash2 as its author describes it, byte by byte."""
    mask, m = 0xFFFF_FFFF, 0x5BD1_E995
    value = 0x9747_B28C ^ len(data)
    whole = len(data) // 4 * 4
    for at in range(0, whole, 4):
        word = int.from_bytes(data[at : at + 4], "little") * m & mask
        word = (word ^ word >> 24) * m & mask
        value = (value * m & mask) ^ word
    for shift, byte in enumerate(data[whole:]):
        value ^= byte << 8 * shift
    if len(data) > whole:
        value = value * m & mask
    value = (value ^ value >> 13) * m & mask
    return value ^ value >> 15


@given(st.binary(max_size=300) | st.integers(0, 600).map(bytes))
def test_murmur2_agrees_with_the_one_by_the_book(data: bytes) -> None:
    assert murmur2(data) == by_the_book(data)

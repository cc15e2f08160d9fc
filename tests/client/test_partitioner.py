"""The partitioner: keys go where Java's producer sends them."""

from __future__ import annotations

import pytest

from muster.client.partitioner import murmur2, partition_of


@pytest.mark.parametrize(
    ("key", "signed"),
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

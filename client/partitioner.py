"""Which partition a record goes to when nobody says: by its key as Java's producer does it, so that equal
keys meet in one partition whoever sent them."""

from __future__ import annotations

from struct import unpack_from
from typing import Final

_SEED: Final = 0x9747_B28C
_M: Final = 0x5BD1_E995
_MASK: Final = 0xFFFF_FFFF


def partition_of(key: bytes, partitions: int) -> int:
    """The partition of a keyed record (Kafka's BuiltInPartitioner)."""
    return (murmur2(key) & 0x7FFF_FFFF) % partitions


def murmur2(data: bytes) -> int:
    """MurmurHash2 of 32 bits with Kafka's seed, unsigned."""
    length = len(data)
    value = _SEED ^ length
    whole = length & ~3
    for position in range(0, whole, 4):
        (word,) = unpack_from("<I", data, position)
        word = word * _M & _MASK
        word = (word ^ word >> 24) * _M & _MASK
        value = (value * _M & _MASK) ^ word
    if whole < length:
        value = (value ^ int.from_bytes(data[whole:], "little")) * _M & _MASK
    value = (value ^ value >> 13) * _M & _MASK
    return value ^ value >> 15

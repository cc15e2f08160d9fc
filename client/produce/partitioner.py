"""The default partitioner: by key, as in Java's producer, so that equal keys share a partition whoever sends
them. (Records without a key: `accumulator.TopicQueues`.)"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from struct import Struct
from typing import Final, TypeAlias

_SEED: Final = 0x9747_B28C
_M: Final = 0x5BD1_E995
_MASK: Final = 0xFFFF_FFFF
_REMEMBERED_BYTES_MAX: Final = 128
_WORDS: Final = tuple(Struct(f"<{count}I") for count in range(64))
"""Unpacks keys into up to 63 32-bit words."""

Partitioner: TypeAlias = Callable[[str, bytes | None, bytes | None, int], int]
"""A custom partitioner: (topic, key, value, number of partitions) -> partition, with the bytes as sent.
Called for every record without an explicit partition."""


def partition_of(key: bytes, partitions: int) -> int:
    """The partition of a keyed record (Kafka's BuiltInPartitioner). Those of short keys are remembered, since
    hashing one takes as long as all other work on its record."""
    if len(key) <= _REMEMBERED_BYTES_MAX:
        return _remembered(key, partitions)
    return _partition_of(key, partitions)


def _partition_of(key: bytes, partitions: int) -> int:
    return (murmur2(key) & 0x7FFF_FFFF) % partitions


_remembered = lru_cache(maxsize=16_384)(_partition_of)


def murmur2(data: bytes) -> int:
    """32-bit MurmurHash2 with Kafka's seed, unsigned."""
    length = len(data)
    value = _SEED ^ length
    rest = length & 3
    count = (length + 3) >> 2
    struct = _WORDS[count] if count < len(_WORDS) else Struct(f"<{count}I")
    words = struct.unpack(data + b"\0\0\0"[rest - 1 :] if rest else data)
    for word in words[:-1] if rest else words:
        word = word * _M & _MASK
        value = (value * _M ^ (word ^ word >> 24) * _M) & _MASK
    if rest:
        value = (value ^ words[-1]) * _M & _MASK
    value = (value ^ value >> 13) * _M & _MASK
    return value ^ value >> 15

"""Which partition a record goes to when nobody says: by its key as Java's producer does it, so that equal
keys meet in one partition whoever sent them. (Records without a key: `accumulator.TopicQueues`.)"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from struct import Struct
from typing import Final, TypeAlias

_SEED: Final = 0x9747_B28C
_M: Final = 0x5BD1_E995
_MASK: Final = 0xFFFF_FFFF
_WORDS: Final = tuple(Struct(f"<{count}I") for count in range(64))
"""Keys as 32-bit words, of up to 63."""

Partitioner: TypeAlias = Callable[[str, bytes | None, bytes | None, int], int]
"""A partitioner of one's own: (topic, key, value, number of partitions) -> partition, the bytes as they are
sent. It is called for every record that does not say itself where it goes."""


@lru_cache(maxsize=16_384)
def partition_of(key: bytes, partitions: int) -> int:
    """The partition of a keyed record (Kafka's BuiltInPartitioner). Remembered for keys that come again,
    since the hash of a short one takes as long as all else that is done to its record."""
    return (murmur2(key) & 0x7FFF_FFFF) % partitions


def murmur2(data: bytes) -> int:
    """MurmurHash2 of 32 bits with Kafka's seed, unsigned."""
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

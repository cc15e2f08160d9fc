"""Java behaviour that clients of a broker can see: hashes, and hash table order."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from functools import lru_cache
from struct import unpack
from typing import Final

_REMEMBERED_MAX: Final = 256
"""Longest text whose hash is remembered, in characters; a client may send far longer ones."""

_FIBONACCI: Final = 0x9E37_79B9_7F4A_7C15
"""2^64 divided by the golden ratio."""


def java_hash(text: str) -> int:
    """String.hashCode: over UTF-16 code units, as a signed 32-bit number. Those of short texts are
    remembered, since the same member ids are hashed again and again."""
    return _remembered(text) if len(text) <= _REMEMBERED_MAX else _hash(text)


def _hash(text: str) -> int:
    value = 0
    units = text.encode("utf-16-le", "surrogatepass")
    for unit in unpack(f"<{len(units) // 2}H", units):
        value = (31 * value + unit) & 0xFFFF_FFFF
    return value - 2**32 if value >= 2**31 else value


_remembered = lru_cache(maxsize=1 << 16)(_hash)


def uuid_hash(value: uuid.UUID) -> int:
    """Hash code of Kafka's Uuid, as an unsigned 32-bit number."""
    folded = value.int ^ value.int >> 64
    return (folded ^ folded >> 32) & 0xFFFF_FFFF


def uuid_order(value: uuid.UUID) -> int:
    """Sorts like Kafka's Uuid, which compares two signed 64-bit halves."""
    return value.int ^ (1 << 127 | 1 << 63)


def spread(hash_code: int) -> int:
    """A hash code as spread by java.util.HashMap; its lowest bits select the bucket."""
    bits = hash_code & 0xFFFF_FFFF
    return bits ^ bits >> 16


def buckets_when_grown(keys: int) -> int:
    """The buckets of a HashMap or HashSet to which this many keys were added one by one: it begins with 16
    and doubles when it is more than three quarters full."""
    buckets = 16
    while keys > buckets * 3 // 4:
        buckets *= 2
    return buckets


def buckets_when_copied(keys: int) -> int:
    """The buckets of `new HashSet<>(collection)`, which doubles as soon as it is three quarters full."""
    return buckets_when_grown(keys + (keys % 3 == 0))


def timeline_map_order(keys: Iterable[str], most: int = 0) -> list[str]:
    """The order in which Kafka's TimelineHashMap iterates keys put in the given order, each more than once.

    `most` is the most keys it ever held, if that is more: it never shrinks. A bucket lists its newest key
    first.
    """
    keys = list(keys)
    buckets = 2
    while (max(most, len(keys)) + 1) * 3 > buckets * 4:
        buckets *= 2
    shift = 65 - buckets.bit_length()
    keys.reverse()
    return sorted(keys, key=lambda key: (java_hash(key) * _FIBONACCI & 0xFFFF_FFFF_FFFF_FFFF) >> shift)


def hash_map_order(keys: Iterable[str], most: int = 0) -> list[str]:
    """Distinct keys in the order in which a java.util.HashMap iterates them if inserted in the given order.

    A bucket keeps insertion order. `most` is the most keys it ever held, if that is more: it never shrinks.
    """
    keys = list(keys)
    mask = buckets_when_grown(max(most, len(keys))) - 1
    return sorted(keys, key=lambda key: spread(java_hash(key)) & mask)

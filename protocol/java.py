"""Java behaviour that clients of a broker can see: hashes, and the order of a hash table."""

from __future__ import annotations

from collections.abc import Iterable
from struct import unpack


def java_hash(text: str) -> int:
    """String.hashCode: over UTF-16 code units, as a signed 32-bit number."""
    value = 0
    units = text.encode("utf-16-le", "surrogatepass")
    for unit in unpack(f"<{len(units) // 2}H", units):
        value = (31 * value + unit) & 0xFFFF_FFFF
    return value - 2**32 if value >= 2**31 else value


def hash_map_order(keys: Iterable[str]) -> list[str]:
    """Distinct keys in the order in which a java.util.HashMap iterates them when they were inserted as given.

    A table of 16 buckets doubles when it is more than three quarters full; a bucket keeps the order of
    insertion.
    """
    keys = list(keys)
    buckets = 16
    while len(keys) > buckets * 3 // 4:
        buckets *= 2

    def bucket(key: str) -> int:
        bits = java_hash(key) & 0xFFFF_FFFF
        return (bits ^ bits >> 16) & (buckets - 1)

    return sorted(keys, key=bucket)

"""Keys too long for a PostgreSQL index, which takes 2,704 bytes: a group's name may have 32,767.

Such a key is stored as a mark and a digest, and in full at the beginning of the row's value.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Final

PLAIN_BYTES_MAX: Final = 1_024
MARK: Final = b"\xff"
"""Prefix of row keys that only stand for a key. A key that itself begins with it is stored like a long one.
No record of `__consumer_offsets` has such a key: its keys begin with a version, counted from 0."""

_LENGTH_BYTES: Final = 4


def stored(key: bytes, value: bytes | None) -> tuple[bytes, bytes | None]:
    """The row's key and value for a key that is longer than PLAIN_BYTES_MAX or begins with MARK."""
    if value is not None:
        value = len(key).to_bytes(_LENGTH_BYTES) + key + value
    return MARK + sha256(key).digest(), value


def restored(key: bytes, value: bytes) -> tuple[bytes, bytes]:
    """The original key and value of a row."""
    if key[:1] != MARK:
        return key, value
    end = _LENGTH_BYTES + int.from_bytes(value[:_LENGTH_BYTES])
    return value[_LENGTH_BYTES:end], value[end:]

"""Keys too long for an index of PostgreSQL, which takes 2,704 bytes: a group's name may have 32,767.

Such a key stands in its row as a mark and a digest, and at the beginning of the row's value as it is.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Final

PLAIN_BYTES_MAX: Final = 1_024
MARK: Final = b"\xff"
"""How the keys of rows begin that only stand for a key; one that begins so itself is stored as a long one is.
No record of `__consumer_offsets` does: its keys begin with a version from 0."""

_LENGTH_BYTES: Final = 4


def stored(key: bytes, value: bytes | None) -> tuple[bytes, bytes | None]:
    """What stands in the row for a key that is longer than PLAIN_BYTES_MAX or begins with MARK."""
    if value is not None:
        value = len(key).to_bytes(_LENGTH_BYTES) + key + value
    return MARK + sha256(key).digest(), value


def restored(key: bytes, value: bytes) -> tuple[bytes, bytes]:
    """Key and value of a row."""
    if key[:1] != MARK:
        return key, value
    end = _LENGTH_BYTES + int.from_bytes(value[:_LENGTH_BYTES])
    return value[_LENGTH_BYTES:end], value[end:]

"""The compression codecs of record batches, with a bound on the decompressed size."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from muster.protocol.errors import DecodeError

DECOMPRESSED_BYTES_MAX: Final = 104_857_600
"""Default bound on one batch's unpacked records: Kafka's socket.request.max.bytes."""

_LZ4_MAGIC: Final = bytes.fromhex("04224d18")
_LZ4_FLAGS: Final = 4
"""Position of FLG in a frame."""
_LZ4_INDEPENDENT: Final = 0x20
_LZ4_BLOCK_CHECKSUM: Final = 0x10
_LZ4_SIZE: Final = 0x08
_LZ4_CHECKSUM: Final = 0x04
_LZ4_DICTIONARY: Final = 0x01
_LZ4_HEADER_BYTES: Final = 7
"""Magic, FLG, BD and the header's checksum."""
_LZ4_BLOCK_SIZE: Final = 0x7FFF_FFFF


class UnpackedTooLarge(DecodeError):
    """The data is valid as far as it was read, but decompresses to more bytes than allowed."""


class Codec(IntEnum):
    """Bits 0-2 of a batch's attributes; `name.lower()` is the value of Kafka's compression.type."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


def compress(codec: Codec, payload: bytes) -> bytes:
    """Compress `payload` as Kafka's own clients do: snappy in the xerial framing, LZ4 in frames of
    independent blocks."""
    if codec == Codec.NONE:
        return payload
    from muster.protocol import (
        packing,
    )  # imported on the first compressed batch: 1.5 MB that many never need

    return packing.pack(codec, payload)


def decompress(codec: int, packed: bytes, bytes_max: int = DECOMPRESSED_BYTES_MAX) -> bytes:
    """Decompress. Raises DecodeError for an unknown codec or corrupt data, UnpackedTooLarge beyond
    `bytes_max` bytes."""
    if codec == Codec.NONE:
        if len(packed) > bytes_max:
            raise UnpackedTooLarge(f"{len(packed)} bytes of records, more than the {bytes_max} allowed")
        return packed
    from muster.protocol import packing

    return packing.unpack(codec, packed, bytes_max)


def lz4_blocks_depend(data: bytes, position: int) -> bool:
    """Whether the LZ4 frame at `position` has dependent blocks, which Java's reader refuses."""
    flags = position + _LZ4_FLAGS
    return len(data) > flags and not data[flags] & _LZ4_INDEPENDENT


def lz4_has_dictionary(data: bytes, position: int) -> bool:
    """Whether the LZ4 frame at `position` names a dictionary, which Java's reader refuses."""
    flags = position + _LZ4_FLAGS
    return len(data) > flags and bool(data[flags] & _LZ4_DICTIONARY)


def lz4_frames_follow(data: bytes, position: int) -> bool:
    """Whether another LZ4 frame follows the one at `position`, which names no dictionary: Java's reader stops
    behind the first."""
    if data.find(_LZ4_MAGIC, position + len(_LZ4_MAGIC)) < 0:
        return False  # usually: the blocks need not be walked
    flags = data[position + _LZ4_FLAGS]
    at = position + _LZ4_HEADER_BYTES + 8 * bool(flags & _LZ4_SIZE)
    while size := int.from_bytes(data[at : at + 4], "little") & _LZ4_BLOCK_SIZE:
        at += 4 + size + 4 * bool(flags & _LZ4_BLOCK_CHECKSUM)
    return at + 4 + 4 * bool(flags & _LZ4_CHECKSUM) < len(data)

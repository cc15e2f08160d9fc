"""Compression with cramjam, for `muster.protocol.compression`. A few bytes can claim to decompress to
gigabytes, so every decompression writes into a buffer of a known size.
"""

from __future__ import annotations

from functools import cache
from struct import Struct
from typing import Any, Final

import cramjam

from muster.protocol.compression import Codec, UnpackedTooLarge
from muster.protocol.errors import DecodeError

_FIRST_GUESS_BYTES: Final = 65_536
_GROWTH: Final = 4

_INT32 = Struct(">i")
_LZ4_BLOCK_SIZE = Struct("<I")

# snappy-java's stream: magic, version and lowest compatible version, then blocks of (size, raw snappy).
_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = _XERIAL_MAGIC + _INT32.pack(1) + _INT32.pack(1)
_XERIAL_BLOCK_BYTES: Final = 32_768

# LZ4 frame: magic, FLG 0x60 (version 1, independent blocks), BD 0x40 (blocks of up to 64 KiB), header
# checksum. Blocks must be independent, since Java's reader does not keep the window; cramjam's own frames are
# dependent.
_LZ4_HEADER: Final = bytes.fromhex("04224d18604082")
_LZ4_BLOCK_BYTES: Final = 65_536
_LZ4_STORED: Final = 0x8000_0000

_ZSTD_LEVEL: Final = 3  # the default of Kafka's compression.zstd.level


def pack(codec: Codec, payload: bytes) -> bytes:
    """Like `compression.compress`, with a known codec."""
    match codec:
        case Codec.GZIP:
            return bytes(cramjam.gzip.compress(payload))
        case Codec.SNAPPY:
            return _xerial(payload)
        case Codec.LZ4:
            return _lz4_frame(payload)
        case Codec.ZSTD:
            return bytes(cramjam.zstd.compress(payload, _ZSTD_LEVEL))
    raise ValueError(f"{codec!r} does not pack")


def unpack(codec: int, packed: bytes, bytes_max: int) -> bytes:
    """Like `compression.decompress`."""
    match codec:
        case Codec.GZIP:
            return _unpack(cramjam.gzip.decompress_into, "gzip", packed, bytes_max)
        case Codec.SNAPPY:
            if packed.startswith(_XERIAL_MAGIC):
                return _from_xerial(packed, bytes_max)
            return _from_raw_snappy(packed, bytes_max)
        case Codec.LZ4:
            return _unpack(cramjam.lz4.decompress_into, "lz4", packed, bytes_max)
        case Codec.ZSTD:
            return _unpack(cramjam.zstd.decompress_into, "zstd", packed, bytes_max)
    raise DecodeError(f"unknown compression codec {codec}")


def _unpack(decompress_into: Any, name: str, packed: bytes, bytes_max: int) -> bytes:
    """Decompress into growing buffers up to `bytes_max`, as needed: corrupt data must not cost as much as the
    largest valid batch."""
    room = min(max(_FIRST_GUESS_BYTES, _GROWTH * len(packed)), bytes_max)
    while True:
        unpacked = bytearray(room)
        try:
            size = decompress_into(packed, unpacked)
        except cramjam.DecompressionError as error:
            if str(error) != _words_for_no_room(name):
                raise DecodeError(f"{name}: {error}") from None
            if room >= bytes_max:
                raise UnpackedTooLarge(f"{name} does not unpack within {bytes_max} bytes") from None
            room = min(room * _GROWTH, bytes_max)
        else:
            return bytes(memoryview(unpacked)[:size])


@cache
def _words_for_no_room(name: str) -> str:
    """cramjam's message when the buffer is too small. Its exceptions distinguish that from corrupt data only
    by text, so this provokes the error to learn its text."""
    codec = getattr(cramjam, name)
    try:
        codec.decompress_into(bytes(codec.compress(b"two")), bytearray(1))
    except cramjam.DecompressionError as error:
        return str(error)
    raise AssertionError(f"cramjam unpacks {name} into less room than it takes")


def _from_raw_snappy(packed: bytes, bytes_max: int) -> bytes:
    try:
        size = cramjam.snappy.decompress_raw_len(packed)
        if size > bytes_max:
            raise UnpackedTooLarge(f"snappy block of {size} bytes, more than the {bytes_max} allowed")
        unpacked = bytearray(size)
        return bytes(unpacked) if cramjam.snappy.decompress_raw_into(packed, unpacked) == size else b""
    except cramjam.DecompressionError as error:
        raise DecodeError(f"snappy: {error}") from None


def _from_xerial(packed: bytes, bytes_max: int) -> bytes:
    position, parts, left = len(_XERIAL_HEADER), [], bytes_max
    if len(packed) < position:
        raise DecodeError("snappy: the xerial header is cut short")
    while position < len(packed):
        if position + 4 > len(packed):
            raise DecodeError("snappy: a xerial block is cut short")
        (size,) = _INT32.unpack_from(packed, position)
        position += 4
        if not 0 < size <= len(packed) - position:
            raise DecodeError(
                f"snappy: a xerial block of {size} bytes where {len(packed) - position} are left"
            )
        part = _from_raw_snappy(packed[position : position + size], left)
        parts.append(part)
        left -= len(part)
        position += size
    return b"".join(parts)


def _xerial(payload: bytes) -> bytes:
    parts = [_XERIAL_HEADER]
    for start in range(0, len(payload), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(payload[start : start + _XERIAL_BLOCK_BYTES]))
        parts += (_INT32.pack(len(block)), block)
    return b"".join(parts)


def _lz4_frame(payload: bytes) -> bytes:
    parts = [_LZ4_HEADER]
    for start in range(0, len(payload), _LZ4_BLOCK_BYTES):
        plain = payload[start : start + _LZ4_BLOCK_BYTES]
        block = bytes(cramjam.lz4.compress_block(plain, store_size=False))
        if len(block) < len(plain):
            parts += (_LZ4_BLOCK_SIZE.pack(len(block)), block)
        else:
            parts += (_LZ4_BLOCK_SIZE.pack(len(plain) | _LZ4_STORED), plain)
    parts.append(_LZ4_BLOCK_SIZE.pack(0))
    return b"".join(parts)

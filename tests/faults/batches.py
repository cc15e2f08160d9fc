"""Decodes records from a broker using only the format's description: none of muster's code is used.

Kafka's documentation, "Record Batch" and "Control Batches". It understands what the load sends: magic 2,
plain or gzip.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

import google_crc32c

_HEADER: Final = Struct(">qiibIhiqqqhii")
_LENGTH_FROM: Final = 12  # the length counts from here
_CRC_FROM: Final = 21  # what the checksum covers
_GZIP: Final = 1
_TRANSACTIONAL: Final = 1 << 4
_CONTROL: Final = 1 << 5
_MARKER_KEY: Final = Struct(">hh")  # its version, and its type
_COMMITS: Final = 1


class Violation(Exception):
    """Something that a broker must never do; the text says what happened and where."""


class Batch(NamedTuple):
    """A stored batch, its checksum verified."""

    base_offset: int
    next_offset: int
    leader_epoch: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    values: tuple[bytes, ...]
    transactional: bool = False
    commits: bool | None = None
    """Whether a marker commits its transaction; None for records."""


def read(data: bytes, place: str) -> list[Batch]:
    """Every batch in `data`; raises Violation if anything in it is incomplete or fails its checksum."""
    found, at = [], 0
    while at < len(data):
        if len(data) - at < _HEADER.size:
            raise Violation(f"{place}: {len(data) - at} bytes behind the last batch")
        header = _HEADER.unpack_from(data, at)
        base_offset, length, leader_epoch, magic, crc, attributes, last_delta = header[:7]
        producer_id, producer_epoch, base_sequence, count = header[9:]
        end = at + _LENGTH_FROM + length
        if magic != 2 or end < at + _HEADER.size or end > len(data):
            raise Violation(f"{place}: no whole batch at offset {base_offset}")
        if google_crc32c.value(data[at + _CRC_FROM : end]) != crc:
            raise Violation(f"{place}: the batch at offset {base_offset} is not what its checksum says")
        body = data[at + _HEADER.size : end]
        records = tuple(_records(gzip.decompress(body) if attributes & 7 == _GZIP else body, count))
        if len(records) != last_delta + 1:
            raise Violation(f"{place}: {len(records)} records at offset {base_offset}, not {last_delta + 1}")
        commits = None
        if attributes & _CONTROL:
            ((key, _),) = records
            commits = _MARKER_KEY.unpack(key)[1] == _COMMITS
        found.append(
            Batch(
                base_offset,
                base_offset + last_delta + 1,
                leader_epoch,
                producer_id,
                producer_epoch,
                base_sequence,
                tuple(value for _, value in records),
                bool(attributes & _TRANSACTIONAL),
                commits,
            )
        )
        at = end
    return found


def _records(body: bytes, count: int) -> Iterator[tuple[bytes, bytes]]:
    """Keys (empty for none) and values."""
    at = 0
    for _ in range(count):
        length, at = _varint(body, at)
        end = at + length
        at += 1  # attributes
        _, at = _varint(body, at)  # timestamp
        _, at = _varint(body, at)  # offset
        size, at = _varint(body, at)
        key, at = body[at : at + max(size, 0)], at + max(size, 0)
        size, at = _varint(body, at)
        yield key, body[at : at + size]
        at = end


def _varint(body: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = body[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
        shift += 7

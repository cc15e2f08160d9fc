"""Writes a record batch record by record, as a producer fills it. The bytes equal those of
`record_batch.build`, its slow twin; here each record is encoded once, when added, and the batch's size is
always known.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from muster.protocol.compression import Codec, compress
from muster.protocol.record_batch import (
    HEADER_BYTES,
    MAGIC,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    TRANSACTIONAL,
    Header,
    sealed,
)

Octets = bytes | bytearray | memoryview
"""The types accepted for keys and values."""

_INT64_MAX: Final = (1 << 63) - 1


def _varint(value: int) -> bytes:
    """Kafka's signed varint: zigzag, then seven bits per byte."""
    value = (value << 1) ^ (value >> 63)
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


_SMALL: Final = tuple(_varint(value) for value in range(8192))
"""The one- and two-byte varints of non-negative numbers: nearly all that a batch needs."""

_SMALL_END: Final = len(_SMALL)


class RecordBatchWriter:
    """Collects records 0, 1, 2, ... of a batch. The first one's timestamp is its base timestamp."""

    __slots__ = ("_base_timestamp", "_max_timestamp", "_records", "count")

    def __init__(self) -> None:
        self.count = 0
        self._records = bytearray()
        self._base_timestamp = 0
        self._max_timestamp = 0

    @property
    def size_bytes(self) -> int:
        """The size of the batch, uncompressed."""
        return HEADER_BYTES + len(self._records)

    def append(
        self,
        timestamp_ms: int,
        key: Octets | None,
        value: Octets | None,
        headers: Iterable[tuple[str, Octets | None]] = (),
        size_bytes_max: int = _INT64_MAX,
    ) -> int:
        """Add a record and return its size in bytes. If the batch would grow beyond `size_bytes_max`, add
        nothing and return 0. The first record is always added.

        Optimised for the common record: short deltas, a key or none, no headers. Raises TypeError for values
        that are not bytes, ValueError for a header whose name is not Unicode text.
        """
        if value.__class__ is not bytes and value is not None:
            value = _octets(value)
        if key.__class__ is not bytes and key is not None:
            key = _octets(key)
        count = self.count
        if not count:
            self._base_timestamp = self._max_timestamp = timestamp_ms
        delta = timestamp_ms - self._base_timestamp
        when = _SMALL[delta] if 0 <= delta < _SMALL_END else _varint(delta)
        index = _SMALL[count] if count < _SMALL_END else _varint(count)
        if value is None:
            if key is None:
                body = b"\0%b%b\1\1" % (when, index)
            else:
                body = b"\0%b%b%b%b\1" % (when, index, _length(key), key)
        else:
            size = len(value)
            length = _SMALL[size] if size < _SMALL_END else _varint(size)
            if key is None:
                body = b"\0%b%b\1%b%b" % (when, index, length, value)
            else:
                body = b"\0%b%b%b%b%b%b" % (when, index, _length(key), key, length, value)
        body += _encoded(headers) if headers else b"\0"
        size = len(body)
        length = _SMALL[size] if size < _SMALL_END else _varint(size)
        size += len(length)
        records = self._records
        if count and HEADER_BYTES + len(records) + size > size_bytes_max:
            return 0
        records += length
        records += body
        self.count = count + 1
        if timestamp_ms > self._max_timestamp:
            self._max_timestamp = timestamp_ms
        return size

    def packed(self, codec: Codec) -> PackedRecords:
        """The records, compressed and ready to send; nothing can be added after this."""
        return PackedRecords(
            compress(codec, bytes(self._records)),
            codec,
            self.count,
            self._base_timestamp,
            self._max_timestamp,
        )


class PackedRecords:
    """The compressed records of a batch. Its producer and sequence are set when it is sent, and may differ on
    a retry."""

    __slots__ = ("_base_timestamp", "_codec", "_max_timestamp", "_records", "count")

    def __init__(
        self, records: bytes, codec: Codec, count: int, base_timestamp: int, max_timestamp: int
    ) -> None:
        self.count = count
        self._records = records
        self._codec = codec
        self._base_timestamp = base_timestamp
        self._max_timestamp = max_timestamp

    @property
    def size_bytes(self) -> int:
        """The size of the batch in bytes."""
        return HEADER_BYTES + len(self._records)

    def batch(
        self,
        producer_id: int = NO_PRODUCER_ID,
        producer_epoch: int = NO_PRODUCER_EPOCH,
        base_sequence: int = NO_SEQUENCE,
        *,
        transactional: bool = False,
    ) -> bytes:
        """The batch, with offsets starting at 0."""
        header = Header(
            base_offset=0,
            length=0,
            leader_epoch=-1,
            magic=MAGIC,
            crc=0,
            attributes=self._codec | (TRANSACTIONAL if transactional else 0),
            last_offset_delta=self.count - 1,
            base_timestamp=self._base_timestamp,
            max_timestamp=self._max_timestamp,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            record_count=self.count,
        )
        return sealed(header, self._records)


def _length(data: Octets) -> bytes:
    size = len(data)
    return _SMALL[size] if size < _SMALL_END else _varint(size)


def _octets(data: object) -> bytes:
    """Accepts bytes-like types, but not every buffer: its length may not be in bytes, and a record with a
    wrong length corrupts its batch."""
    if isinstance(data, (bytes, bytearray, memoryview)):
        return bytes(data)
    raise TypeError(f"{type(data).__name__} is not bytes")


def _encoded(headers: Iterable[tuple[str, Octets | None]]) -> bytes:
    parts = [b""]
    count = 0
    for name, value in headers:
        encoded = name.encode()
        parts += (_varint(len(encoded)), encoded)
        if value is None:
            parts.append(b"\1")
        else:
            value = _octets(value)
            parts += (_varint(len(value)), value)
        count += 1
    parts[0] = _varint(count)
    return b"".join(parts)

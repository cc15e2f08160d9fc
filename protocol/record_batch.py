"""Record batches, magic 2: the only format in which records are sent and stored.

Layout (Kafka's documentation, "Record Batch"): base offset int64, length int32 (of everything after it),
partition leader epoch int32, magic int8, CRC int32, attributes int16, last offset delta int32, base and max
timestamp int64, producer id int64, producer epoch int16, base sequence int32, record count int32, records.
The CRC-32C covers everything from the attributes on, so base offset and leader epoch can be rewritten without
touching it.

Whatever the bytes, parsing ends in a result or DecodeError, in time and memory linear in their size and
`bytes_max`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum
from struct import Struct
from struct import error as StructError
from typing import Final, NamedTuple

import google_crc32c

from muster.protocol.compression import DECOMPRESSED_BYTES_MAX, Codec, compress, decompress
from muster.protocol.errors import DecodeError

HEADER_BYTES: Final = 61
MAGIC: Final = 2
MAGIC_POSITION: Final = 16  # at the same place in older formats, so that they can be recognised
PREFIX_BYTES: Final = 16  # base offset, length, leader epoch: rewritten, not covered by the CRC

NO_TIMESTAMP: Final = -1
NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1
NO_SEQUENCE: Final = -1
SEQUENCE_MAX: Final = 2**31 - 1

_HEADER = Struct(">qiibIhiqqqhii")
_PREFIX = Struct(">qii")
_LENGTH = Struct(">8xi")
_LENGTH_START: Final = 12  # the length counts from here
_CRC = Struct(">I")
_CRC_POSITION: Final = 17
_CRC_START: Final = 21  # the CRC covers everything from here on
_ATTRIBUTES = Struct(">h")
_FLAGS_POSITION: Final = 22  # the attributes' second byte
_MAX_TIMESTAMP = Struct(">q")
_MAX_TIMESTAMP_POSITION: Final = 35
_CONTROL_KEY = Struct(">hh")

CODEC_MASK: Final = 0x07
_LOG_APPEND_TIME: Final = 0x08
TRANSACTIONAL: Final = 0x10
_CONTROL: Final = 0x20
_DELETE_HORIZON: Final = 0x40

_INT64_MIN: Final = -(1 << 63)
_INT64_MAX: Final = (1 << 63) - 1

RECORDS_BLAMED_MAX: Final = 100
"""Maximum number of invalid records named per batch: a batch can hold a million."""

REPLACED: Final = "replace"
"""A header name's bytes that are not UTF-8 come back as U+FFFD, as in Kafka's clients: for everyone who shows
names or passes them on."""
PRESERVED: Final = "surrogateescape"
"""They come back so that `build` writes the same bytes again: for records that are only rewritten."""

RECORD_BYTES_MIN: Final = 7  # length, attributes, two deltas, two lengths and a count of one byte each


class Record(NamedTuple):
    """One record with its absolute offset and timestamp (epoch ms)."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


class Header(NamedTuple):
    """The fixed 61 bytes before a batch's records."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """The size of the whole batch in bytes."""
        return _LENGTH_START + self.length

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> int:
        """A `Codec`, or an unknown number."""
        return self.attributes & CODEC_MASK

    @property
    def is_log_append_time(self) -> bool:
        return bool(self.attributes & _LOG_APPEND_TIME)

    @property
    def first_timestamp(self) -> int:
        """The first record's timestamp; meaningless in a batch with a delete horizon."""
        return self.max_timestamp if self.is_log_append_time else self.base_timestamp

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & _CONTROL)

    @property
    def delete_horizon_ms(self) -> int | None:
        """When the batch's tombstones may be removed (KIP-534); the base timestamp then holds this time, not
        a record's."""
        return self.base_timestamp if self.attributes & _DELETE_HORIZON else None

    @property
    def last_sequence(self) -> int:
        """The sequence of the last record; sequences wrap from 2^31-1 to 0. NO_SEQUENCE if the batch has
        none."""
        return advance_sequence(self.base_sequence, self.last_offset_delta)


class ControlType(IntEnum):
    """The type of the one record in a transaction's control batch."""

    ABORT = 0
    COMMIT = 1


class Checked(NamedTuple):
    """The result of checking all records of a batch."""

    max_timestamp: int
    min_timestamp: int
    """The smallest among records with a timestamp; NO_TIMESTAMP if none has one."""
    keyless: list[int]
    """Indexes of the first RECORDS_BLAMED_MAX records without a key."""
    keyless_count: int


def advance_sequence(sequence: int, by: int) -> int:
    if sequence == NO_SEQUENCE:
        return NO_SEQUENCE
    return (sequence + by) & SEQUENCE_MAX


def batch_size(data: bytes | memoryview) -> int:
    """The size of the batch at the start of `data` according to its length field, which must be present but
    may be wrong."""
    return _LENGTH_START + int.from_bytes(data[_LENGTH_START - 4 : _LENGTH_START], "big", signed=True)


def peek(data: bytes | bytearray | memoryview, position: int = 0) -> Header:
    """The header at `position`, checked enough to find the batch's end, which may lie beyond `data`."""
    try:
        header = Header._make(_HEADER.unpack_from(data, position))
    except StructError:
        raise DecodeError(f"{len(data) - position} bytes are no batch header") from None
    if header.magic != MAGIC:
        raise DecodeError(f"message format {header.magic} is not supported, only {MAGIC} is")
    if header.length < HEADER_BYTES - _LENGTH_START:
        raise DecodeError(f"a batch of {header.length} bytes cannot hold its header")
    if header.last_offset_delta < 0 or header.record_count < 0:
        raise DecodeError(
            f"a batch of {header.record_count} records with last offset delta {header.last_offset_delta}"
        )
    return header


def may_be_transactional(data: bytes) -> bool:
    """Whether `peek` may find a transactional batch: quicker than that, and right about any valid batch."""
    return len(data) > _FLAGS_POSITION and bool(data[_FLAGS_POSITION] & TRANSACTIONAL)


def batches(data: bytes | memoryview) -> Iterator[tuple[int, Header]]:
    """(position, header) of each batch in `data`, which must hold only complete batches."""
    position = 0
    while position < len(data):
        header = peek(data, position)
        if header.size > len(data) - position:
            raise DecodeError(f"a batch of {header.size} bytes where {len(data) - position} are left")
        yield position, header
        position += header.size


def crc_matches(data: bytes | memoryview, position: int, header: Header) -> bool:
    """Whether the batch at `position` is complete and its CRC matches."""
    end = position + header.size
    if end > len(data):
        return False
    # One copy of only the summed bytes: google_crc32c takes no memoryview.
    return bool(google_crc32c.value(bytes(data[position + _CRC_START : end])) == header.crc)


def end_of(data: bytes | memoryview) -> int:
    """The offset after the last batch in `data`, which must hold only complete batches, and at least one.
    Steps over each batch, but checks only the last header."""
    position = at = 0
    end = len(data)
    while position < end:
        at = position
        # Not with `batch_size`, since this runs for each batch that consumers of committed records receive.
        try:
            position += _LENGTH_START + _LENGTH.unpack_from(data, position)[0]
        except StructError:
            raise DecodeError(f"{end - position} bytes are no batch") from None
        if position <= at:
            raise DecodeError("a batch of no bytes")
    return peek(data, at).next_offset


def payload(
    data: bytes | memoryview, position: int, header: Header, *, bytes_max: int = DECOMPRESSED_BYTES_MAX
) -> bytes:
    """The records section of the batch at `position`, decompressed; at most `bytes_max` bytes."""
    end = position + header.size
    if end > len(data):
        raise DecodeError(f"a batch of {header.size} bytes where {len(data) - position} are left")
    return decompress(header.codec, bytes(data[position + HEADER_BYTES : end]), bytes_max)


def check_records(unpacked: bytes, header: Header) -> Checked:
    """Check that all records of a producer's decompressed batch are complete and numbered 0, 1, 2, ... Raises
    DecodeError if a record does not parse, is out of place, or has a timestamp beyond int64, or if the record
    count is wrong. A single loop with one- and two-byte varints inlined, because every produced record passes
    through it.
    """
    count, end = header.record_count, len(unpacked)
    if count * RECORD_BYTES_MIN > end:
        raise DecodeError(f"{count} records cannot be in {end} bytes")
    if header.last_offset_delta != count - 1:
        raise DecodeError(f"{count} records with last offset delta {header.last_offset_delta}")
    position, newest, oldest = 0, _INT64_MIN, _INT64_MAX + 1
    timeless = NO_TIMESTAMP - header.base_timestamp
    keyless: list[int] = []
    keyless_count = 0
    try:
        for index in range(count):
            byte = unpacked[position]
            if byte < 0x80:
                length, position = byte, position + 1
            elif (second := unpacked[position + 1]) < 0x80:
                length, position = byte & 0x7F | second << 7, position + 2
            else:
                length, position = read_unsigned(unpacked, position)
            stop = position + (length >> 1)
            if length & 1 or stop > end:
                raise DecodeError(f"record {index} does not fit its batch")
            position += 1  # attributes: none are defined

            byte = unpacked[position]
            if byte < 0x80:
                delta, position = byte, position + 1
            elif (second := unpacked[position + 1]) < 0x80:
                delta, position = byte & 0x7F | second << 7, position + 2
            else:
                delta, position = read_unsigned(unpacked, position, 64)
            delta = (delta >> 1) ^ -(delta & 1)
            if delta > newest:
                newest = delta
            if delta < oldest and delta != timeless:
                oldest = delta

            byte = unpacked[position]
            if byte < 0x80:
                delta, position = byte, position + 1
            elif (second := unpacked[position + 1]) < 0x80:
                delta, position = byte & 0x7F | second << 7, position + 2
            else:
                delta, position = read_unsigned(unpacked, position)
            if delta != index << 1:
                raise DecodeError(f"record {index} has offset delta {(delta >> 1) ^ -(delta & 1)}")

            byte = unpacked[position]
            if byte < 0x80:
                length, position = byte, position + 1
            else:
                length, position = read_unsigned(unpacked, position)
            if length == 1:
                keyless_count += 1
                if keyless_count <= RECORDS_BLAMED_MAX:
                    keyless.append(index)
            elif length & 1:
                raise DecodeError(f"record {index} has a key of negative length")
            else:
                position += length >> 1

            byte = unpacked[position]
            if byte < 0x80:
                length, position = byte, position + 1
            elif (second := unpacked[position + 1]) < 0x80:
                length, position = byte & 0x7F | second << 7, position + 2
            else:
                length, position = read_unsigned(unpacked, position)
            if not length & 1:
                position += length >> 1
            elif length != 1:
                raise DecodeError(f"record {index} has a value of negative length")

            if unpacked[position]:
                position = _past_headers(unpacked, position, stop)
            else:
                position += 1
            if position != stop:
                raise DecodeError(f"record {index} is not as long as it says")
    except IndexError:
        raise DecodeError("the batch ends within a record") from None
    if position != end:
        raise DecodeError(f"{end - position} bytes after the last record")
    if not count:
        return Checked(NO_TIMESTAMP, NO_TIMESTAMP, keyless, keyless_count)
    latest = header.base_timestamp + newest
    earliest = NO_TIMESTAMP if oldest > _INT64_MAX else header.base_timestamp + oldest
    if latest > _INT64_MAX or earliest < _INT64_MIN:
        raise DecodeError(f"timestamps from {earliest} to {latest} are beyond 64 bits")
    return Checked(latest, earliest, keyless, keyless_count)


def records(
    data: bytes | memoryview,
    position: int,
    header: Header,
    *,
    bytes_max: int = DECOMPRESSED_BYTES_MAX,
    names: str = REPLACED,
) -> Iterator[Record]:
    """The records of the batch at `position`, with absolute offsets and the timestamps that consumers see.
    `names`: how header names that are not UTF-8 come back."""
    unpacked = payload(data, position, header, bytes_max=bytes_max)
    if header.record_count * RECORD_BYTES_MIN > len(unpacked):
        raise DecodeError(f"{header.record_count} records cannot be in {len(unpacked)} bytes")
    base_offset, base_timestamp = header.base_offset, header.base_timestamp
    fixed = header.max_timestamp if header.is_log_append_time else None
    at = 0
    try:
        for _ in range(header.record_count):
            length, at = read_signed(unpacked, at)
            stop = at + length
            if length < 0 or stop > len(unpacked):
                raise DecodeError("a record does not fit its batch")
            timestamp_delta, at = read_signed(unpacked, at + 1, 64)
            offset_delta, at = read_signed(unpacked, at)
            key, at = _nullable_bytes(unpacked, at, stop)
            value, at = _nullable_bytes(unpacked, at, stop)
            headers, at = read_headers(unpacked, at, stop, names)
            if at != stop:
                raise DecodeError("a record is not as long as it says")
            timestamp = base_timestamp + timestamp_delta if fixed is None else fixed
            if not _INT64_MIN <= timestamp <= _INT64_MAX:
                raise DecodeError(f"timestamp {timestamp} is beyond 64 bits")
            yield Record(base_offset + offset_delta, timestamp, key, value, headers)
    except IndexError:
        raise DecodeError("the batch ends within a record") from None
    if at != len(unpacked):
        raise DecodeError(f"{len(unpacked) - at} bytes after the last record")


def prefix(header: Header, base_offset: int, leader_epoch: int) -> bytes:
    """The batch's first 16 bytes, which the CRC does not cover, with a new base offset and leader epoch."""
    return _PREFIX.pack(base_offset, header.length, leader_epoch)


def assign(buffer: bytearray | memoryview, position: int, base_offset: int, leader_epoch: int) -> None:
    """Rewrite the base offset and leader epoch of the batch at `position` in place; the CRC does not cover
    them."""
    _, length, _ = _PREFIX.unpack_from(buffer, position)
    _PREFIX.pack_into(buffer, position, base_offset, length, leader_epoch)


def with_log_append_time(batch: bytes, header: Header, now_ms: int) -> bytes:
    """The batch stamped by the broker (message.timestamp.type=LogAppendTime): consumers take every record's
    timestamp from the batch's max timestamp, so the records stay packed."""
    return _restamped(batch, header, header.attributes | _LOG_APPEND_TIME, now_ms)


def with_create_time(batch: bytes, header: Header, max_timestamp: int) -> bytes:
    """The batch with the producers' timestamps and `max_timestamp` as their maximum."""
    return _restamped(batch, header, header.attributes & ~_LOG_APPEND_TIME, max_timestamp)


def with_codec(batch: bytes, header: Header, unpacked: bytes, codec: Codec) -> bytes:
    """The batch with its `unpacked` records compressed by another codec (compression.type), and, as in Kafka,
    without a delete horizon."""
    packed = compress(codec, unpacked)
    attributes = header.attributes & ~(CODEC_MASK | _DELETE_HORIZON) | codec
    changed = header._replace(length=HEADER_BYTES - _LENGTH_START + len(packed), attributes=attributes)
    return _sealed(bytearray(_HEADER.pack(*changed) + packed))


def build(
    contents: Sequence[Record],
    *,
    base_offset: int | None = None,
    last_offset: int | None = None,
    leader_epoch: int = -1,
    codec: Codec = Codec.NONE,
    log_append_time_ms: int | None = None,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    transactional: bool = False,
    control: bool = False,
    delete_horizon_ms: int | None = None,
    max_timestamp: int | None = None,
) -> bytes:
    """A batch of `contents`, whose offsets ascend and may have gaps.

    `base_offset` and `last_offset` default to those of the first and last record. A batch without records
    needs both; compaction leaves such batches to preserve offsets and the producer's sequence.
    """
    first = contents[0].offset if base_offset is None else base_offset
    last = contents[-1].offset if last_offset is None else last_offset
    newest = max_timestamp
    if newest is None:
        newest = max((record.timestamp for record in contents), default=NO_TIMESTAMP)
    base_timestamp = contents[0].timestamp if contents else newest
    attributes = codec | (TRANSACTIONAL if transactional else 0) | (_CONTROL if control else 0)
    if log_append_time_ms is not None:
        attributes |= _LOG_APPEND_TIME
        newest = log_append_time_ms
    if delete_horizon_ms is not None:
        attributes |= _DELETE_HORIZON
        base_timestamp = delete_horizon_ms
    unpacked = bytearray()
    for record in contents:
        # Times that are further apart than an int64 says move closer; no clock has shown them.
        delta = min(max(record.timestamp - base_timestamp, _INT64_MIN), _INT64_MAX)
        _write_record(unpacked, record, delta, record.offset - first)
    packed = compress(codec, bytes(unpacked))
    header = Header(
        first,
        HEADER_BYTES - _LENGTH_START + len(packed),
        leader_epoch,
        MAGIC,
        0,
        attributes,
        last - first,
        base_timestamp,
        newest,
        producer_id,
        producer_epoch,
        base_sequence,
        len(contents),
    )
    return _sealed(bytearray(_HEADER.pack(*header) + packed))


def control_type(record: Record) -> int:
    """The type in a control record's key: a `ControlType`, or a number that clients must skip."""
    try:
        _, kind = _CONTROL_KEY.unpack_from(record.key or b"")
    except StructError:
        raise DecodeError("a control record's key is cut short") from None
    return int(kind)


def _restamped(batch: bytes, header: Header, attributes: int, max_timestamp: int) -> bytes:
    if (header.attributes, header.max_timestamp) == (attributes, max_timestamp):
        return batch
    changed = bytearray(batch)
    _ATTRIBUTES.pack_into(changed, _CRC_START, attributes)
    _MAX_TIMESTAMP.pack_into(changed, _MAX_TIMESTAMP_POSITION, max_timestamp)
    return _sealed(changed)


def _sealed(batch: bytearray) -> bytes:
    """The batch with its CRC computed."""
    _CRC.pack_into(batch, _CRC_POSITION, google_crc32c.value(bytes(memoryview(batch)[_CRC_START:])))
    return bytes(batch)


def sealed(header: Header, packed: bytes) -> bytes:
    """A batch of this header and these compressed records, with its length and CRC computed."""
    head = _HEADER.pack(*header._replace(length=HEADER_BYTES - _LENGTH_START + len(packed)))
    crc = google_crc32c.extend(google_crc32c.value(head[_CRC_START:]), packed)
    return b"".join((head[:_CRC_POSITION], _CRC.pack(crc), head[_CRC_START:], packed))


# --- varints --------------------------------------------------------------------------------------


def read_unsigned(data: bytes, position: int, bits: int = 32) -> tuple[int, int]:
    """Longer or larger varints are refused: Kafka's readers stop after 5 bytes of an int32 and 10 of an
    int64, so no consumer would get past such a record."""
    value = shift = 0
    while shift < bits:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >> bits:
                break
            return value, position
        shift += 7
    raise DecodeError(f"a varint of more than {bits} bits")


def read_signed(data: bytes, position: int, bits: int = 32) -> tuple[int, int]:
    value, position = read_unsigned(data, position, bits)
    return (value >> 1) ^ -(value & 1), position


def _nullable_bytes(data: bytes, position: int, stop: int) -> tuple[bytes | None, int]:
    size, position = read_signed(data, position)
    if size == -1:
        return None, position
    if not 0 <= size <= stop - position:
        raise DecodeError(f"{size} bytes where {stop - position} are left in the record")
    return data[position : position + size], position + size


def read_headers(
    data: bytes, position: int, stop: int, names: str = REPLACED
) -> tuple[tuple[tuple[str, bytes | None], ...], int]:
    count, position = _header_count(data, position, stop)
    headers = []
    for _ in range(count):
        key, value, position = _header(data, position, stop)
        headers.append((key.decode("utf-8", names), value))
    return tuple(headers), position


def _past_headers(data: bytes, position: int, stop: int) -> int:
    """Check the headers without keeping them: one record can have millions."""
    count, position = _header_count(data, position, stop)
    for _ in range(count):
        _, _, position = _header(data, position, stop)
    return position


def _header_count(data: bytes, position: int, stop: int) -> tuple[int, int]:
    count, position = read_signed(data, position)
    if not 0 <= count <= stop - position:
        raise DecodeError(f"{count} headers where {stop - position} bytes are left in the record")
    return count, position


def _header(data: bytes, position: int, stop: int) -> tuple[bytes, bytes | None, int]:
    key, position = _nullable_bytes(data, position, stop)
    if key is None:
        raise DecodeError("a record header without a key")
    value, position = _nullable_bytes(data, position, stop)
    return key, value, position


def _write_record(out: bytearray, record: Record, timestamp_delta: int, offset_delta: int) -> None:
    body = bytearray(1)  # attributes: none are defined
    _write_varint(body, timestamp_delta)
    _write_varint(body, offset_delta)
    _write_nullable_bytes(body, record.key)
    _write_nullable_bytes(body, record.value)
    _write_varint(body, len(record.headers))
    for key, value in record.headers:
        _write_nullable_bytes(body, key.encode("utf-8", PRESERVED))
        _write_nullable_bytes(body, value)
    _write_varint(out, len(body))
    out += body


def _write_nullable_bytes(out: bytearray, value: bytes | None) -> None:
    if value is None:
        out.append(1)  # -1, zigzag
    else:
        _write_varint(out, len(value))
        out += value


def _write_varint(out: bytearray, value: int) -> None:
    value = (value << 1) ^ (value >> 63)
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)

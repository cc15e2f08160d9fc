"""Record batches as Arrow columns, many records at a time: the fast twin of `Part.take` and `as_arrow`.

A Python loop finds only where each record begins. The rest is done at once for all records of a few batches:
numpy decodes varints, Arrow slices keys and values. Anything that does not look like complete, valid records
is left to the slow twin, which reports what is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from muster.client.fetch.fetched import Packed, Part
from muster.client.fetch.records import CREATE_TIME, LOG_APPEND_TIME, Batch
from muster.client.partitions import TopicPartition
from muster.pipeline.columns import RecordBatch, as_arrow, assembled, have_times, headers_column
from muster.protocol.errors import DecodeError, KafkaError
from muster.protocol.record_batch import CODEC_MASK, HEADER_BYTES, payload, read_headers, read_unsigned
from muster.protocol.record_reader import Headers, read_records

RECORDS_MAX: Final = 10_000
"""Per batch of rows: Spark's own default (spark.sql.execution.arrow.maxRecordsPerBatch)."""
_BYTES_MAX: Final = 1 << 26
"""Size of record batches taken together; a single batch may be larger."""
_OFFSET_MAX: Final = (1 << 31) - 1
"""In Arrow's binary columns, whose offsets have 32 bits."""

_VARINT_MAX: Final = 8
"""Bytes of a varint read here: 56 bits are enough for any valid one, and do not overflow."""
_RUN_MIN: Final = 8
"""Number of records of equal size that makes looking ahead worthwhile."""
_STRETCH_MAX: Final = 4096
_PADDING: Final = bytes(_VARINT_MAX * 6)
"""Appended to the records, so that reading past their end is no error."""
_BASE_MAX: Final = 1 << 62

Array = Any
"""A numpy array."""


def rows(
    part: Part, where: TopicPartition, start: int, until: int, *, headers: bool
) -> Iterator[RecordBatch]:
    """The records of a part with `start` <= offset < `until`, in nonempty batches of at most RECORDS_MAX
    rows. `headers`: include that column; otherwise headers are not parsed.

    Raises KafkaError(CORRUPT_MESSAGE) at an unreadable batch, after yielding everything before it.
    """
    while group := _group(part):
        found = together(group, where, start, until, headers=headers)
        batches = [found] if found is not None else one_by_one(part, group, where, start, until, headers)
        for batch in batches:
            for begin in range(0, batch.num_rows, RECORDS_MAX):
                yield batch.slice(begin, RECORDS_MAX)


def _group(part: Part) -> list[Packed]:
    """The next record batches that fit into one batch of rows; empty at the end."""
    group: list[Packed] = []
    records = size = 0
    while (header := part.upcoming) is not None:
        records += header.record_count
        size += header.size
        if group and (
            records > RECORDS_MAX
            or size > _BYTES_MAX
            or header.is_log_append_time != group[0].header.is_log_append_time
        ):
            break
        try:
            packed = part.take_packed()
        except KafkaError:
            if group:
                break  # The next call raises it again.
            raise
        assert packed is not None, "it was seen coming"
        group.append(packed)
    if not group:
        part.take_packed()  # raises the error, if there is one
    return group


def one_by_one(
    part: Part, group: Sequence[Packed], where: TopicPartition, start: int, until: int, headers: bool
) -> Iterator[RecordBatch]:
    """The slow twin of `together`, which reports what is wrong with a batch."""
    for header, data in group:
        keys: list[bytes | None] = []
        values: list[bytes | None] = []
        try:
            places = read_records(data, 0, header, keys, values)
        except DecodeError as error:
            raise part.corrupt(header.base_offset, error) from error
        batch = Batch(
            where.topic,
            where.partition,
            *places,
            keys=keys,
            values=values,
            next_offset=header.next_offset,
            timestamp_type=LOG_APPEND_TIME if header.is_log_append_time else CREATE_TIME,
        )
        first, last = np.searchsorted(np.array(places.offsets, np.int64), (start, until)).tolist()
        yield as_arrow(batch[first:last], headers=headers)


def together(
    group: Sequence[Packed], where: TopicPartition, start: int, until: int, *, headers: bool
) -> RecordBatch | None:
    """The records of these batches with `start` <= offset < `until`; None if they must be read one by one.
    All batches have the same timestamp type."""
    parts: list[memoryview | bytes] = []
    begins: list[int] = []
    size = 0
    for header, data in group:
        start_at = HEADER_BYTES
        if header.attributes & CODEC_MASK:
            try:
                data, start_at = payload(data, 0, header), 0
            except DecodeError:
                return None
        if not _find_records(data, start_at, len(data), header.record_count, size - start_at, begins):
            return None
        parts.append(memoryview(data)[start_at:])
        size += len(data) - start_at
    if size + len(_PADDING) > _OFFSET_MAX:
        return None
    joined = b"".join((*parts, _PADDING))
    counts = [header.record_count for header, _ in group]
    bases = [(header.base_offset, header.base_timestamp) for header, _ in group]
    if max(abs(number) for each in bases for number in each) > _BASE_MAX:
        return None
    found = _Fields.of(joined, np.array(begins, np.int64), size)
    if found is None:
        return None

    offsets = np.repeat([offset for offset, _ in bases], counts) + found.offset_deltas
    first, last = np.searchsorted(offsets, (start, until)).tolist()
    if first or last < len(offsets):
        found, offsets = found.part(first, last), offsets[first:last]
    by_broker = group[0].header.is_log_append_time
    if by_broker:
        timestamps = np.repeat([header.max_timestamp for header, _ in group], counts)[first:last]
    else:
        timestamps = np.repeat([timestamp for _, timestamp in bases], counts)[first:last] + found.time_deltas
    if not have_times(timestamps).all():
        return None
    of_records = None
    if headers:
        of_records = found.headers(joined)
        if of_records is None:
            return None
    return assembled(
        where,
        keys=_cut(joined, found.key_starts, found.key_sizes),
        values=_cut(joined, found.value_starts, found.value_sizes),
        offsets=offsets,
        timestamps=timestamps,
        timestamp_type=LOG_APPEND_TIME if by_broker else CREATE_TIME,
        headers=None if of_records is None else headers_column(of_records),
    )


def _find_records(data: bytes, position: int, end: int, count: int, shift: int, begins: list[int]) -> bool:
    """Append the position of each record, plus `shift`, to `begins`. Returns whether `count` records exactly
    fill the bytes up to `end`.

    After one or more records, it looks ahead for how many more have the size of the last one.
    """
    add = begins.append
    done, stretch = 0, 1
    try:
        while done < count:
            until = min(done + stretch, count)
            for _ in range(until - done):
                begin = position
                add(begin + shift)
                byte = data[position]
                if byte < 0x80:
                    position += 1 + (byte >> 1)
                elif (second := data[position + 1]) < 0x80:
                    position += 2 + ((byte & 0x7F | second << 7) >> 1)
                else:
                    size, position = read_unsigned(data, position)
                    position += size >> 1
            done = until
            size = position - begin
            alike = _alike(data, begin, size, min(count - done, (end - position) // size))
            begins += range(position + shift, position + shift + alike * size, size)
            done += alike
            position += alike * size
            stretch = 1 if alike else min(stretch * 2, _STRETCH_MAX)
    except (IndexError, DecodeError):
        return False
    return position == end


def _alike(data: bytes, begin: int, size: int, most: int) -> int:
    """How many of the next `most` records have the size of the one at `begin`; 0 if they are few."""
    place = begin
    while most >= _RUN_MIN:
        column = data[place + size : place + most * size + 1 : size]
        if column.count(data[place]) != most:
            most = len(column) - len(column.lstrip(data[place : place + 1]))
        elif data[place] < 0x80:
            return most
        else:
            place += 1
    return 0


class _Fields(NamedTuple):
    """Where the fields of records are; each column has one entry per record."""

    time_deltas: Array
    offset_deltas: Array
    key_starts: Array
    key_sizes: Array
    value_starts: Array
    value_sizes: Array
    header_starts: Array
    """Where the header count is, -1 if there are no headers."""
    stops: Array

    @classmethod
    def of(cls, joined: bytes, begins: Array, end: int) -> _Fields | None:
        """The fields of the records that begin at `begins` and fill the bytes up to `end`; None if one is
        invalid."""
        data = np.frombuffer(joined, np.uint8)
        stops = np.append(begins[1:], end)
        lengths = _varints(data, begins)
        times = _varints(data, None if lengths is None else lengths[1] + 1)  # past the attributes
        offsets = _varints(data, None if times is None else times[1])
        keys = _sized(data, offsets, end)
        values = _sized(data, keys, end)
        if lengths is None or times is None or offsets is None or keys is None or values is None:
            return None
        after = values[1]
        if (lengths[0] & 1).any() or (after >= stops).any():
            return None
        bare = data[after] == 0
        if (after[bare] + 1 != stops[bare]).any():
            return None
        return cls(
            _unzigzag(times[0]),
            _unzigzag(offsets[0]),
            *keys[2:],
            *values[2:],
            np.where(bare, -1, after),
            stops,
        )

    def part(self, first: int, last: int) -> _Fields:
        return _Fields._make(each[first:last] for each in self)

    def headers(self, joined: bytes) -> list[Headers] | None:
        """The headers of each record; None if any are invalid."""
        found: list[Headers] = [()] * len(self.stops)
        (having,) = np.nonzero(self.header_starts >= 0)
        starts, stops = self.header_starts[having].tolist(), self.stops[having].tolist()
        try:
            for index, start, stop in zip(having.tolist(), starts, stops, strict=True):
                found[index], position = read_headers(joined, start, stop)
                if position != stop:
                    return None
        except (DecodeError, IndexError):
            return None
        return found


def _varints(data: Array, at: Array | None) -> tuple[Array, Array] | None:
    """The unsigned varints at these positions, and where they end; None if one is longer than any valid one,
    or if `at` is None."""
    if at is None:
        return None
    byte = data[at].astype(np.int64)
    found, after = byte & 0x7F, at + 1
    more = byte >= 0x80
    shift = 7
    while more.any():
        if shift == 7 * _VARINT_MAX:
            return None
        byte = data[after].astype(np.int64)
        found |= np.where(more, (byte & 0x7F) << shift, 0)
        after = after + more
        more &= byte >= 0x80
        shift += 7
    return found, after


def _sized(
    data: Array, before: tuple[Array, ...] | None, end: int
) -> tuple[Array, Array, Array, Array] | None:
    """The byte fields that follow `before`: their encoded sizes, where they end, where they begin, and their
    sizes, -1 for null. None if one extends beyond `end` or has an invalid size."""
    read = None if before is None else _varints(data, before[1])
    if read is None:
        return None
    written, starts = read
    sizes = np.where(written == 1, -1, written >> 1)
    after = starts + np.maximum(sizes, 0)
    if (written & 1 > (written == 1)).any() or (len(after) and after.max() > end):
        return None
    return written, after, starts, sizes


def _unzigzag(written: Array) -> Array:
    return (written >> 1) ^ -(written & 1)


def _cut(joined: bytes, starts: Array, sizes: Array) -> Array:
    """The byte ranges as an Arrow array, null where the size is negative.

    To Arrow, pieces alternate with the gaps between them; it takes every other one.
    """
    count = len(starts)
    bounds = np.empty(2 * count, np.int32)
    bounds[0::2] = starts
    bounds[1::2] = starts + np.maximum(sizes, 0)
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(joined)]
    pieces = pa.Array.from_buffers(pa.binary(), max(2 * count - 1, 0), buffers)
    null = sizes < 0
    return pieces.take(pa.array(np.arange(0, 2 * count, 2), mask=null if null.any() else None))

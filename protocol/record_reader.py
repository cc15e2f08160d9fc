"""Reads the records of a batch as columns, for consumers: the fast twin of `record_batch.records`.

A record is a chain of varints, each of which determines where the next one begins, so a batch is read in one
loop with one- and two-byte varints inlined. If consecutive records agree in every length, as most records
from one program do, the positions of their parts are known in advance. Such a *run* is checked and taken
column by column, each a slice with a stride. That is faster than an interpreted loop, but slower than a
compiled one, which takes no runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import Final, NamedTuple, TypeAlias

from muster.build import build
from muster.protocol.compression import DECOMPRESSED_BYTES_MAX
from muster.protocol.errors import DecodeError
from muster.protocol.record_batch import (
    CODEC_MASK,
    HEADER_BYTES,
    RECORD_BYTES_MIN,
    Header,
    payload,
    read_headers,
    read_unsigned,
)

Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]

_INT64_MIN: Final = -(1 << 63)
_INT64_MAX: Final = (1 << 63) - 1
_NO_HEADERS: Final[Headers] = ()

_TAKES_RUNS: Final = build() == "pure"
_RUN_MIN: Final = 8
"""The fewest records that make a run worth its set-up."""
_STRETCH_MAX: Final = 4096

# The offset deltas 0, 1, 2, ... as varints: one byte below 64, two below 8192.
_ONE_BYTE: Final = 64
_TWO_BYTES: Final = 8192
_ONLY: Final = bytes(range(0, 128, 2))
_LOW: Final = bytes(range(0x80, 0x100, 2)) * (_TWO_BYTES // _ONE_BYTE)
_HIGH: Final = b"".join(bytes((high,)) * _ONE_BYTE for high in range(_TWO_BYTES // _ONE_BYTE))

_SHORT_MAX: Final = 8192
"""A delta of one or two bytes is no further from 0 than this."""

_LAST: Final = bytes(range(0x80))
_NOT_LAST: Final = bytes(range(0x80, 0x100))


class Places(NamedTuple):
    """The offsets and timestamps of a batch's records; every column has one entry per record."""

    offsets: Sequence[int]
    """Absolute; a range if the batch has no gaps."""
    timestamps: list[int]
    """Epoch ms, as consumers see them."""
    headers: list[Headers] | None
    """None: no record has any."""


def read_records(
    data: bytes,
    position: int,
    header: Header,
    keys: list[bytes | None],
    values: list[bytes | None],
    *,
    bytes_max: int = DECOMPRESSED_BYTES_MAX,
) -> Places:
    """Read the records of the batch at `position` of `data`, and append their keys and values to the given
    lists, which several batches can share. Raises DecodeError if the records do not parse, UnpackedTooLarge
    if they take more than `bytes_max`. Whatever is raised, the lists are as before."""
    known = len(values)
    try:
        if header.attributes & CODEC_MASK:
            unpacked = payload(data, position, header, bytes_max=bytes_max)
            return _read(unpacked, 0, len(unpacked), header, keys, values)
        end = position + header.size
        if end > len(data) or header.size > bytes_max:
            payload(data, position, header, bytes_max=bytes_max)  # raises
        return _read(data, position + HEADER_BYTES, end, header, keys, values)
    except BaseException:
        del keys[known:], values[known:]
        raise


def _read(
    unpacked: bytes,
    position: int,
    end: int,
    header: Header,
    keys: list[bytes | None],
    values: list[bytes | None],
) -> Places:
    """Read the decompressed records from `position` to `end`."""
    count = header.record_count
    if count * RECORD_BYTES_MIN > end - position:
        raise DecodeError(f"{count} records cannot be in {end - position} bytes")
    base_offset, base = header.base_offset, header.base_timestamp
    is_in_range = _INT64_MIN + _SHORT_MAX <= base <= _INT64_MAX - _SHORT_MAX  # whatever the short deltas are
    times: list[int] = []
    offsets: list[int] | None = None  # None: no gap so far
    headers: list[Headers] | None = None
    done = begin = 0
    stretch = 1 if _TAKES_RUNS else count
    try:
        while done < count:
            # One record at a time for a while; then check whether the next ones are like the last.
            until = min(done + stretch, count)
            for index in range(done, until):
                begin = position
                byte = unpacked[position]
                if byte < 0x80:
                    size, position = byte, position + 1
                elif (second := unpacked[position + 1]) < 0x80:
                    size, position = byte & 0x7F | second << 7, position + 2
                else:
                    size, position = read_unsigned(unpacked, position)
                if size & 1:
                    raise DecodeError(f"record {index} has a negative length")
                stop = position + (size >> 1)

                byte = unpacked[position + 1]  # past the attributes, of which none are defined
                if byte < 0x80:
                    size, position = byte, position + 2
                elif (second := unpacked[position + 2]) < 0x80:
                    size, position = byte & 0x7F | second << 7, position + 3
                else:
                    size, position = read_unsigned(unpacked, position + 1, 64)
                    is_in_range = False
                times.append(base + ((size >> 1) ^ -(size & 1)))

                byte = unpacked[position]
                if byte < 0x80:
                    size, position = byte, position + 1
                elif (second := unpacked[position + 1]) < 0x80:
                    size, position = byte & 0x7F | second << 7, position + 2
                else:
                    size, position = read_unsigned(unpacked, position)
                if offsets is not None:
                    offsets.append(base_offset + ((size >> 1) ^ -(size & 1)))
                elif size != index << 1:
                    offsets = list(range(base_offset, base_offset + index))
                    offsets.append(base_offset + ((size >> 1) ^ -(size & 1)))

                byte = unpacked[position]
                if byte < 0x80:
                    size, position = byte, position + 1
                elif (second := unpacked[position + 1]) < 0x80:
                    size, position = byte & 0x7F | second << 7, position + 2
                else:
                    size, position = read_unsigned(unpacked, position)
                if size == 1:
                    keys.append(None)
                elif size & 1:
                    raise DecodeError(f"record {index} has a key of negative length")
                else:
                    first, position = position, position + (size >> 1)
                    keys.append(unpacked[first:position])

                byte = unpacked[position]
                if byte < 0x80:
                    size, position = byte, position + 1
                elif (second := unpacked[position + 1]) < 0x80:
                    size, position = byte & 0x7F | second << 7, position + 2
                else:
                    size, position = read_unsigned(unpacked, position)
                if size == 1:
                    values.append(None)
                elif size & 1:
                    raise DecodeError(f"record {index} has a value of negative length")
                else:
                    first, position = position, position + (size >> 1)
                    values.append(unpacked[first:position])

                if unpacked[position]:
                    if headers is None:
                        headers = [_NO_HEADERS] * index
                    several, position = read_headers(unpacked, position, stop)
                    headers.append(several)
                else:
                    position += 1
                    if headers is not None:
                        headers.append(_NO_HEADERS)
                # Sizes only move forward, so any overrun of the record's end shows here.
                if position != stop:
                    raise DecodeError(f"record {index} is not as long as it says")
            done = until
            taken = 0
            if done < count and headers is None and offsets is None:
                taken = _take_run(unpacked, begin, position, end, done, count, base, times, keys, values)
            done += taken
            position += taken * (position - begin)
            stretch = 1 if taken else min(stretch * 2, _STRETCH_MAX)
    except IndexError:
        raise DecodeError("the batch ends within a record") from None
    if position != end:
        raise DecodeError(f"{end - position} bytes after the last record")
    if header.is_log_append_time:
        times = [header.max_timestamp] * count
    elif not is_in_range and times and (min(times) < _INT64_MIN or max(times) > _INT64_MAX):
        raise DecodeError(f"timestamps around {base} are beyond 64 bits")
    return Places(range(base_offset, base_offset + count) if offsets is None else offsets, times, headers)


def _take_run(
    unpacked: bytes,
    begin: int,
    position: int,
    end: int,
    done: int,
    count: int,
    base: int,
    times: list[int],
    keys: list[bytes | None],
    values: list[bytes | None],
) -> int:
    """Take the records from `position` on that agree in all lengths with the one from `begin` to `position`,
    which has no headers, and that continue its offset deltas without a gap. Returns how many it took: 0 if
    there are too few to be worth it.

    `done` of `count` records were taken before; the last record ends at `end` or earlier.
    """
    size = position - begin
    below = _ONE_BYTE if done < _ONE_BYTE else _TWO_BYTES
    most = min(below - done, count - done, (end - position) // size)
    if most < _RUN_MIN:
        return 0
    # The positions of the first record's parts. It was read before, so they are valid.
    time = _past_varint(unpacked, begin) + 1
    offset = _past_varint(unpacked, time)
    key_size = _past_varint(unpacked, offset)
    key = _past_varint(unpacked, key_size)
    key_bytes = len(keys[-1] or b"")
    value_size = key + key_bytes
    value = _past_varint(unpacked, value_size)
    value_bytes = len(values[-1] or b"")
    if offset - time > 2 or key_size - offset != (1 if below == _ONE_BYTE else 2):
        return 0

    # What all records share: the sizes, and the header count, which is 0.
    places = (*range(begin, time - 1), *range(key_size, key), *range(value_size, value), position - 1)
    for place in places:
        column = unpacked[place + size : position + most * size : size]
        if column.count(unpacked[place]) != most:
            most = _leading(column, unpacked[place : place + 1])
            if most < _RUN_MIN:
                return 0
    # What may differ, but must take as many bytes: only the last byte of a varint lacks the top bit.
    column = unpacked[offset - 1 + size : position + most * size : size]
    if not column.isascii():
        most = _leading(column, _LAST)
    if offset - time == 2:
        most = min(most, _leading(unpacked[time + size : position + most * size : size], _NOT_LAST))
    if most < _RUN_MIN:
        return 0
    stop, after = position + most * size, done + most
    if below == _ONE_BYTE:
        in_place = unpacked[offset + size : stop : size] == _ONLY[done:after]
    else:
        in_place = (
            unpacked[offset + size : stop : size] == _LOW[done:after]
            and unpacked[offset + 1 + size : stop : size] == _HIGH[done:after]
        )
    if not in_place:
        return 0
    first = unpacked[time + size : stop : size]
    if offset - time == 1:
        times += [base + ((each >> 1) ^ -(each & 1)) for each in first]
    else:
        second = unpacked[time + 1 + size : stop : size]
        deltas = [low & 0x7F | high << 7 for low, high in zip(first, second, strict=True)]
        times += [base + ((each >> 1) ^ -(each & 1)) for each in deltas]
    if keys[-1] is None:
        keys += repeat(None, most)
    else:
        keys += [unpacked[each : each + key_bytes] for each in range(key + size, stop, size)]
    if values[-1] is None:
        values += repeat(None, most)
    else:
        values += [unpacked[each : each + value_bytes] for each in range(value + size, stop, size)]
    return most


def _leading(column: bytes, of: bytes) -> int:
    """The number of leading bytes that are in `of`."""
    return len(column) - len(column.lstrip(of))


def _past_varint(data: bytes, position: int) -> int:
    while data[position] >= 0x80:
        position += 1
    return position + 1

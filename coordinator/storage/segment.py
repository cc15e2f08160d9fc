"""One segment: a file of consecutive record batches, and a sparse index over it in memory.

The file has exactly the format of Kafka's .log files. The index has an entry about every `interval_bytes`; it
is written beside the file (.index) when the segment is closed, and rebuilt by a scan if that file is missing
or does not fit.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from struct import Struct
from threading import Lock
from typing import Final

import google_crc32c

from muster.coordinator.storage.files import File, Folder, WouldBlock
from muster.coordinator.storage.records import Batch
from muster.protocol.errors import DecodeError
from muster.protocol.record_batch import (
    HEADER_BYTES,
    MAGIC,
    MAGIC_POSITION,
    NO_TIMESTAMP,
    Header,
    crc_matches,
    peek,
)

SCAN_BYTES: Final = 1 << 20
DRAFT: Final = ".new"

_PLACE = Struct(">qi11xi")  # base offset, length and last offset delta of a batch
_LENGTH = Struct(">8xi")
_LENGTH_START: Final = 12
_LENGTH_MIN: Final = HEADER_BYTES - _LENGTH_START
_INDEX_HEAD = Struct(">4sI")  # format, CRC-32C of what follows
_INDEX_BODY = Struct(">qqqqi")  # log size, next offset, newest and first timestamp, entries
_INDEX_FORM: Final = b"MSX1"


_Read = Callable[[int, int], bytes | memoryview]
"""Takes a position and a size, returns bytes of a file."""


class Index:
    """Positions of batches: (offset, position, newest timestamp before it), ascending in all three.

    One writer, any number of readers: `offsets` grows last, so any entry that a reader finds in it is
    complete.
    """

    __slots__ = ("newest", "offsets", "positions")

    def __init__(self) -> None:
        self.offsets = array("q")
        self.positions = array("q")
        self.newest = array("q")

    def add(self, offset: int, position: int, newest_before: int) -> None:
        self.positions.append(position)
        self.newest.append(newest_before)
        self.offsets.append(offset)

    def position_of(self, offset: int) -> int:
        """Where to start looking for the batch that holds `offset`."""
        entry = bisect_right(self.offsets, offset) - 1
        return self.positions[entry] if entry >= 0 else 0

    def position_of_time(self, timestamp: int) -> int:
        """Where to start looking for the first batch with a timestamp >= `timestamp`."""
        entry = bisect_left(self.newest, timestamp, 0, len(self.offsets)) - 1
        return self.positions[entry] if entry >= 0 else 0

    def boundary_until(self, position: int) -> int:
        """The last known start of a batch at or before `position`."""
        entry = bisect_right(self.positions, position, 0, len(self.offsets)) - 1
        return self.positions[entry] if entry >= 0 else 0


class Segment:
    """Grows while it is the log's last one. Readers rely on `size`, which moves only once the bytes are
    there."""

    __slots__ = (
        "_file",
        "_folder",
        "_since_entry",
        "base_offset",
        "draft",
        "first_timestamp",
        "generation",
        "index",
        "interval_bytes",
        "newest_timestamp",
        "next_offset",
        "size",
        "synced_size",
        "syncing",
        "written_ms",
    )

    def __init__(self, folder: Folder, base_offset: int, interval_bytes: int, generation: int = 0) -> None:
        self._folder = folder
        self._file: File | None = None
        self._since_entry = 0
        self.base_offset = base_offset
        self.generation = generation  # number of times it was compacted; each makes a new file
        self.draft = False  # being written by a compaction, and not yet part of the log
        self.interval_bytes = interval_bytes
        self.index = Index()
        self.size = 0
        self.synced_size = 0  # the bytes up to here are known to have been synced
        self.syncing = Lock()  # held during `sync` and `rewrite_unsynced`
        self.next_offset = base_offset
        self.newest_timestamp = NO_TIMESTAMP
        self.first_timestamp = NO_TIMESTAMP  # of the first batch: what segment.ms counts from
        self.written_ms = 0  # when a batch was last appended

    def __repr__(self) -> str:
        return f"<Segment {self.stem} offsets={self.base_offset}..{self.next_offset} bytes={self.size}>"

    @property
    def newest_ms(self) -> int:
        """What the segment's age counts from: its newest timestamp, or its last append if no record has
        one."""
        return self.newest_timestamp if self.newest_timestamp >= 0 else self.written_ms

    @property
    def stem(self) -> str:
        return stem_of(self.base_offset, self.generation)

    @property
    def log_name(self) -> str:
        return self.stem + ".log" + (DRAFT if self.draft else "")

    @property
    def index_name(self) -> str:
        return self.stem + ".index"

    # --- writing ----------------------------------------------------------------------------------

    def open_to_write(self) -> File:
        """The file, kept open until `release`."""
        if self._file is None:
            self._file = self._folder.open(self.log_name, create=True)
        return self._file

    def release(self) -> None:
        """Release the file; readers that hold it may finish."""
        self._file = None

    def append(self, buffers: Sequence[bytes | memoryview], header: Header) -> None:
        """Write one batch. On an OSError nothing of it remains, unless cutting it off fails too (then that
        error is raised)."""
        file = self.open_to_write()
        try:
            file.append(buffers)
        except OSError:
            file.truncate(self.size)
            raise
        self.note(header)

    def note(self, header: Header) -> None:
        """Account for a batch that is at the end of the file."""
        position = self.size
        if position == 0:
            self.first_timestamp = header.max_timestamp
        elif self._since_entry >= self.interval_bytes:
            self.index.add(header.base_offset, position, self.newest_timestamp)
            self._since_entry = 0
        self._since_entry += header.size
        if header.max_timestamp > self.newest_timestamp:
            self.newest_timestamp = header.max_timestamp
        self.next_offset = header.next_offset
        self.size = position + header.size

    def sync(self, file: File) -> None:
        """Sync `file`, which is the segment's. May run beside `append`."""
        size = self.size
        file.sync()
        self.synced_size = size

    def flush(self) -> None:
        """See `RecordDraft`."""
        if self.synced_size < self.size:
            self.sync(self.open_to_write())

    def rewrite_unsynced(self) -> None:
        """Write again what a sync that failed may have lost: the system may count what it could not write as
        written, and would then report the next sync of it as a success."""
        self._folder.rewrite(self.log_name, self.synced_size, self.size)

    # --- reading ----------------------------------------------------------------------------------

    def open_to_read(self) -> File:
        """Raises FileNotFoundError if the segment has been removed meanwhile."""
        return self._file or self._folder.open(self.log_name)

    def read(
        self, offset: int, bytes_max: int, *, first_may_exceed: bool, at_once: bool = False
    ) -> bytes | memoryview | None:
        """Whole batches, starting with the one that holds `offset` (or the next one there is), at most
        `bytes_max` bytes in all; if `first_may_exceed`, one batch even if it is larger. None if there is
        nothing at or after `offset`. As in Kafka, the CRC is not checked; raises DecodeError if not even the
        lengths make sense. `at_once` raises WouldBlock rather than wait for a disk."""
        size, read = self.size, self._reader(at_once=at_once)
        found = self._seek(read, size, offset, bytes_max)
        if found is None:
            return None
        start, chunk, skip, first = found
        if first > bytes_max:
            return read(start + skip, first) if first_may_exceed else b""
        limit = min(len(chunk), skip + bytes_max)
        end = max(skip + first, self.index.boundary_until(start + limit) - start)
        while end + _LENGTH_START <= limit:
            (length,) = _LENGTH.unpack_from(chunk, end)
            if length < _LENGTH_MIN or end + _LENGTH_START + length > limit:
                break
            end += _LENGTH_START + length
        # Not copied: what is around it is no longer than what `_seek` reads ahead.
        return chunk if skip == 0 and end == len(chunk) else memoryview(chunk)[skip:end]

    def position_of(self, offset: int, *, at_once: bool = False) -> int | None:
        """Where the first batch of a `read` begins; None and errors as there."""
        found = self._seek(self._reader(at_once=at_once), self.size, offset, 0)
        if found is None:
            return None
        start, _, skip, _ = found
        return start + skip

    def _reader(self, *, at_once: bool) -> _Read:
        file = self._file if at_once else self.open_to_read()
        if file is None or (at_once and min(self.size, self.interval_bytes) > SCAN_BYTES):
            raise WouldBlock  # also where a lookup may have to go through many chunks
        return file.read_cached if at_once else file.read

    def _seek(
        self, read: _Read, size: int, offset: int, bytes_max: int
    ) -> tuple[int, bytes | memoryview, int, int] | None:
        """Find the first batch that ends at or after `offset`, and read `bytes_max` bytes from there, or to
        the end. Returns where the chunk read begins, the chunk, where in it the batch begins, and the batch's
        size; None if there is no such batch."""
        start = self.index.position_of(offset)
        # So that one read is mostly enough.
        chunk_bytes = bytes_max + min(self.interval_bytes, SCAN_BYTES) + HEADER_BYTES
        chunk = read(start, min(size - start, chunk_bytes))
        skip = 0
        while True:
            if start + skip >= size:
                return None
            if skip + HEADER_BYTES > len(chunk):
                start, skip = start + skip, 0
                chunk = read(start, min(size - start, chunk_bytes))
                if len(chunk) < HEADER_BYTES:
                    raise OSError(f"{self.log_name} ends before its {size} bytes")
            base_offset, length, last_delta = _PLACE.unpack_from(chunk, skip)
            if length < _LENGTH_MIN or start + skip + _LENGTH_START + length > size:
                raise self.damaged_at(start + skip)
            if base_offset + last_delta >= offset:
                needed = min(size - start - skip, bytes_max)
                if needed > len(chunk) - skip:
                    start, skip = start + skip, 0
                    chunk = read(start, needed)
                return start, chunk, skip, _LENGTH_START + length
            skip += _LENGTH_START + length

    def batches(self, position: int = 0) -> Iterator[Batch]:
        """The batches from `position` on, where a batch must start; ends before the first incomplete or
        invalid one.

        Reads the file only as far as it reaches when the walk begins. The CRC is not checked.
        """
        file = self.open_to_read()
        end = file.size()
        chunk, at = b"", 0
        while position < end:
            if at + HEADER_BYTES > len(chunk):
                chunk, at = file.read(position, min(SCAN_BYTES, end - position)), 0
            try:
                header = peek(chunk, at)
            except DecodeError:
                return
            if header.size > end - position:
                return
            if at + header.size > len(chunk):
                chunk, at = file.read(position, max(header.size, min(SCAN_BYTES, end - position))), 0
            yield Batch(header, position, chunk[at : at + header.size])
            position += header.size
            at += header.size

    def whole_batches(self, position: int = 0) -> Iterator[Batch]:
        """As `batches`, up to `size`; raises DecodeError if it does not get that far."""
        size = self.size
        for batch in self.batches(position):
            if batch.position >= self.size:
                return
            position = batch.position + batch.header.size
            yield batch
        if position < size:
            raise self.damaged_at(position)

    def first_batch_at(self, timestamp: int, from_offset: int) -> Batch | None:
        """The first batch that reaches `from_offset` and has a timestamp >= `timestamp`. Raises DecodeError
        where the file cannot be read further."""
        if self.newest_timestamp < timestamp:
            return None
        start = max(self.index.position_of_time(timestamp), self.index.position_of(from_offset))
        for batch in self.whole_batches(start):
            if batch.header.max_timestamp >= timestamp and batch.header.last_offset >= from_offset:
                return batch
        return None

    def damaged_at(self, position: int) -> DecodeError:
        """The error to raise where a batch should begin but none does."""
        return DecodeError(f"{self.log_name} is damaged: no batch at byte {position}")

    # --- recovery ---------------------------------------------------------------------------------

    def sound_behind(self, position: int) -> int | None:
        """Where the first sound batch after `position` begins, None if there is none: distinguishes damaged
        records from the torn end of a log."""
        file = self.open_to_read()
        end = file.size()
        while end - position > HEADER_BYTES:
            chunk = file.read(position, min(SCAN_BYTES, end - position))
            last = len(chunk) - HEADER_BYTES
            at = chunk.find(MAGIC, MAGIC_POSITION + 1) - MAGIC_POSITION
            while 0 < at <= last:
                if self._sound_at(file, position + at, chunk[at : at + HEADER_BYTES], end):
                    return position + at
                at = chunk.find(MAGIC, at + MAGIC_POSITION + 1) - MAGIC_POSITION
            position += last
        return None

    def _sound_at(self, file: File, position: int, head: bytes, end: int) -> bool:
        try:
            header = peek(head)
        except DecodeError:
            return False
        if header.size > end - position or header.base_offset < self.next_offset:
            return False
        return crc_matches(file.read(position, header.size), 0, header)

    def scan(self) -> Iterator[Batch]:
        """Read on from `size`, checking every batch, and yield the sound ones after accounting for them.

        What follows the last sound batch is left out: `size` is where it begins.
        """
        for batch in self.batches(self.size):
            gap = batch.header.base_offset - self.next_offset
            # Only compaction leaves gaps. The checksum does not cover the offset, so this is its check.
            if gap < 0 or (gap and not self.generation):
                return
            if not crc_matches(batch.contents, 0, batch.header):
                return
            self.note(batch.header)
            yield batch

    def save_rest(self, ending: str) -> str:
        """Durably copy what follows `size` into a file of its own. Returns its name."""
        name = f"{self.log_name}.{self.size}{ending}"
        self._folder.remove(name)
        source, position = self.open_to_read(), self.size
        copy = self._folder.open(name, create=True)
        try:
            while piece := source.read(position, SCAN_BYTES):
                copy.append([piece])
                position += len(piece)
            copy.sync()
        finally:
            copy.close()
        self._folder.sync()
        return name

    def encoded_index(self) -> bytes:
        """The encoded current index. Store it only after syncing the file: a later start trusts it."""
        columns = (self.index.offsets, self.index.positions, self.index.newest)
        bounds = (self.size, self.next_offset, self.newest_timestamp, self.first_timestamp)
        body = _INDEX_BODY.pack(*bounds, len(self.index.offsets)) + b"".join(map(_big_endian, columns))
        return _INDEX_HEAD.pack(_INDEX_FORM, google_crc32c.value(body)) + body

    def save_index(self) -> None:
        """Write the index beside the file, which must have been synced."""
        self._folder.store(self.index_name, self.encoded_index())

    def load_index(self, log_size: int) -> bool:
        """Load the stored index. Returns False, without changing anything, if there is none that fits a file
        of `log_size`."""
        stored = self._folder.load(self.index_name)
        if stored is None or len(stored) < _INDEX_HEAD.size + _INDEX_BODY.size:
            return False
        form, crc = _INDEX_HEAD.unpack_from(stored)
        body = stored[_INDEX_HEAD.size :]
        if form != _INDEX_FORM or google_crc32c.value(body) != crc:
            return False
        size, next_offset, newest, first, entries = _INDEX_BODY.unpack_from(body)
        if size > log_size or len(body) != _INDEX_BODY.size + 3 * 8 * entries:
            return False
        self.synced_size = size
        self.size, self.next_offset, self.newest_timestamp, self.first_timestamp = (
            size,
            next_offset,
            newest,
            first,
        )
        columns = (self.index.offsets, self.index.positions, self.index.newest)
        for number, column in enumerate(columns):
            start = _INDEX_BODY.size + number * 8 * entries
            column.frombytes(body[start : start + 8 * entries])
            if sys.byteorder == "little":
                column.byteswap()
        self._since_entry = size - (self.index.positions[-1] if entries else 0)
        return True

    def remove_files(self) -> None:
        self.release()
        self._folder.remove(self.log_name)
        self._folder.remove(self.index_name)


def stem_of(base_offset: int, generation: int) -> str:
    """Kafka's twenty digits, followed by the generation if the file was compacted."""
    return f"{base_offset:020d}" + (f"-{generation}" if generation else "")


def parse_stem(stem: str) -> tuple[int, int] | None:
    """(base offset, generation) of a segment's file name without its ending; None if it is not a
    segment's."""
    digits, _, generation = stem.partition("-")
    if len(digits) != 20 or not digits.isdecimal() or (generation and not generation.isdecimal()):
        return None
    return int(digits), int(generation or 0)


def _big_endian(column: array[int]) -> bytes:
    if sys.byteorder == "little":
        column = column[:]
        column.byteswap()
    return column.tobytes()

"""Compares what is stored with what was written, for `muster store check`.

Nothing is changed. A data directory must not be in use: a broker's write in progress would look torn. What a
killed process leaves (a torn end, a missing index) is not a fault: the next start repairs it, and says so in
the log.
"""

from __future__ import annotations

import sqlite3
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import google_crc32c

from muster.coordinator.storage.directory import DataDirectory
from muster.coordinator.storage.files import DiskFolder, Folder
from muster.coordinator.storage.folders import Folders
from muster.coordinator.storage.left_behind import refuse_without_records
from muster.coordinator.storage.records import Batch
from muster.coordinator.storage.segment import Index, Segment, parse_stem
from muster.coordinator.storage.segments import LOG_ENDING, SNAPSHOT_CRC, SNAPSHOT_ENDING
from muster.coordinator.storage.sqlite.schema import expected_folder
from muster.coordinator.storage.sqlite.soundness import check_store, refuse_what_is_not_ours, topic_names
from muster.coordinator.storage.store import StoreDamaged, StoreError
from muster.protocol.record_batch import crc_matches

_FROM_BACKUP: Final = (
    "restore this file from a backup, or have consumers seek past these offsets: their records are lost"
)
_NO_INDEX: Final = 1 << 62
"""Bytes between index entries, so large that no index is made."""
_REBUILT: Final = "delete the file: the next start rebuilds it"


class NoDataDirectory(StoreError):
    """There is nothing to check."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Something stored that is not what was written."""

    place: str
    """A file, or a table's row."""
    what: str
    advice: str
    position: int | None = None
    """Bytes from the start of the file."""
    partition: str | None = None
    """Topic and number joined by a dash; the topic's id if its name is unknown."""
    first_offset: int | None = None
    last_offset: int | None = None
    """Of the records lost with it."""


@dataclass(slots=True)
class Checked:
    """What was checked."""

    partitions: int = 0
    segments: int = 0
    batches: int = 0
    bytes: int = 0
    group_rows: int = 0
    """Records and journal rows of groups."""


def expect_data_directory(path: Path) -> None:
    """Raise NoDataDirectory if no broker has ever stored anything there."""
    if not path.is_dir():
        raise NoDataDirectory(f"{path} is not a data directory: there is no such directory")
    if not any((path / name).exists() for name in DataDirectory.NAMES):
        raise NoDataDirectory(
            f"{path} is not a data directory: it has neither {' nor '.join(DataDirectory.NAMES)}"
        )


def check_directory(path: Path, checked: Checked) -> Iterator[Fault]:
    """Yield what is wrong in a data directory. Raises NoDataDirectory, StoreLocked if another process uses
    it, and StoreError if its store is not muster's, or another version's."""
    expect_data_directory(path)
    try:
        directory = DataDirectory.acquire(path)
    except StoreDamaged as damage:
        yield Fault(str(path), str(damage), "do as it says, then check again")
        return
    try:
        names: Mapping[str, str] = {}
        try:
            with closing(_connect(directory.store_path)) as store:
                refuse_what_is_not_ours(store, directory.store_path)
                for place, what in check_store(store, checked):
                    yield Fault(
                        f"{directory.store_path}{place}",
                        what,
                        "restore the data directory from a backup, or start with a new one",
                    )
                names = topic_names(store)
                refuse_without_records(directory.store_path, directory.topics_path, expected_folder(store))
        except StoreDamaged as damage:
            yield Fault(str(directory.topics_path), str(damage), "do as it says, then check again")
        except sqlite3.Error as error:
            yield Fault(
                str(directory.store_path),
                f"it cannot be read: {error}",
                "restore the data directory from a backup, or start with a new one",
            )
        folders = Folders(DiskFolder(directory.topics_path))
        for topic_id, number in sorted(folders.stored()):
            folder = DiskFolder(directory.topics_path).folder(str(topic_id)).folder(str(number))
            name = names.get(str(topic_id), str(topic_id))
            yield from check_partition(folder, f"{name}-{number}", checked)
    finally:
        directory.release()


def _connect(path: Path) -> sqlite3.Connection:
    """Connect read-only. Nobody else has the file open; if no changes wait in its log, sqlite needs no files
    beside it, and would leave them there."""
    wal = path.with_name(path.name + "-wal")
    waiting = wal.exists() and wal.stat().st_size
    return sqlite3.connect(f"{path.as_uri()}?mode=ro{'' if waiting else '&immutable=1'}", uri=True)


def check_partition(folder: Folder, partition: str, checked: Checked) -> Iterator[Fault]:
    """Yield what is wrong with a partition's files."""
    checked.partitions += 1
    names = folder.names()
    stems = (parse_stem(name.removesuffix(LOG_ENDING)) for name in names if name.endswith(LOG_ENDING))
    found = sorted(stem for stem in stems if stem is not None)
    newest = dict(found)  # an interrupted compaction leaves an older generation beside a newer one
    before: Segment | None = None
    segments = [
        Segment(folder, base_offset, _NO_INDEX, generation)
        for base_offset, generation in found
        if newest[base_offset] == generation
    ]
    for number, segment in enumerate(segments):
        if before is not None:
            if segment.base_offset < before.next_offset:
                if before.generation:
                    continue  # compacted into the one before; the next start removes it
                yield _of_segment(segment, folder, partition, 0, "it overlaps the segment before it", None)
            elif segment.base_offset > before.next_offset and not before.generation:
                yield Fault(
                    folder.path,
                    "records missing: a segment file is gone",
                    "restore the missing file from a backup",
                    None,
                    partition,
                    before.next_offset,
                    segment.base_offset - 1,
                )
        behind = segments[number + 1].base_offset if number + 1 < len(segments) else None
        checked.segments += 1
        try:
            yield from _SegmentCheck(folder, segment, partition, behind, checked).run()
        except OSError as error:
            yield _of_segment(segment, folder, partition, 0, f"it cannot be read: {error}", behind)
        before = segment
    for name in names:
        if name.endswith(SNAPSHOT_ENDING):
            stored = folder.load(name) or b""
            body = stored[SNAPSHOT_CRC.size :]
            if stored[: SNAPSHOT_CRC.size] != SNAPSHOT_CRC.pack(google_crc32c.value(body)):
                yield Fault(f"{folder.path}/{name}", "its checksum does not match", _REBUILT, None, partition)


def _of_segment(
    segment: Segment, folder: Folder, partition: str, position: int, what: str, behind: int | None
) -> Fault:
    last = None if behind is None else behind - 1
    place = f"{folder.path}/{segment.log_name}"
    return Fault(place, what, _FROM_BACKUP, position, partition, segment.next_offset, last)


class _SegmentCheck:
    """One walk through a segment's file. Afterwards `segment.next_offset` is where its sound records end."""

    def __init__(
        self, folder: Folder, segment: Segment, partition: str, behind: int | None, checked: Checked
    ) -> None:
        """`behind` is where the next segment begins; None: this is the last one."""
        self._folder = folder
        self._segment = segment
        self._partition = partition
        self._behind = behind
        self._checked = checked
        self._file_bytes = segment.open_to_read().size()
        self._index = Segment(folder, segment.base_offset, segment.interval_bytes, segment.generation)
        self._indexed = self._index.load_index(self._file_bytes)
        self._entry = 0  # the index entry to compare next
        self._index_fault: str | None = None

    def run(self) -> Iterator[Fault]:
        segment, position = self._segment, 0
        while position < self._file_bytes:
            for batch in segment.batches(position):
                gap = batch.header.base_offset - segment.next_offset
                if gap < 0 or (gap and not segment.generation):
                    break
                if not crc_matches(batch.contents, 0, batch.header):
                    break
                self._compare_index(batch)
                segment.next_offset = batch.header.next_offset
                position += batch.header.size
                self._checked.batches += 1
                self._checked.bytes += batch.header.size
            if position == self._file_bytes:
                break
            sound = segment.sound_behind(position)
            if sound is None and self._behind is None and position >= self._known_bytes:
                return  # the torn end that a crash leaves
            yield from self._unsound(position, sound)
            if sound is None:
                segment.next_offset = max(segment.next_offset, self._behind or 0)
                break
            first = next(segment.batches(sound))
            segment.next_offset, position = first.header.base_offset, sound
            self._entry = bisect_left(self._index.index.positions, sound)
        yield from self._of_index()

    @property
    def _known_bytes(self) -> int:
        """Up to where the file is known to have been sound."""
        return self._index.size if self._indexed else 0

    def _unsound(self, position: int, sound: int | None) -> Iterator[Fault]:
        segment = self._segment
        what = "no batch begins here"
        for batch in segment.batches(position):
            if not crc_matches(batch.contents, 0, batch.header):
                what = "the batch's checksum does not match"
            elif batch.header.base_offset < segment.next_offset:
                what = (
                    f"the batch's offset {batch.header.base_offset} should be {segment.next_offset} or more"
                )
            else:
                what = f"the batch's offset {batch.header.base_offset} should be {segment.next_offset}"
            break
        if sound is None:
            fault = _of_segment(segment, self._folder, self._partition, position, what, self._behind)
        else:
            first = next(segment.batches(sound))
            fault = _of_segment(
                segment, self._folder, self._partition, position, what, first.header.base_offset
            )
        yield fault

    def _compare_index(self, batch: Batch) -> None:
        index = self._index.index
        if not self._indexed or self._index_fault is not None:
            return
        while self._entry < len(index.positions) and index.positions[self._entry] <= batch.position:
            if not _fits(index, self._entry, batch):
                at = index.positions[self._entry]
                self._index_fault = f"its entry for byte {at} points to no batch"
                return
            self._entry += 1

    def _of_index(self) -> Iterator[Fault]:
        name = self._index.index_name
        if self._folder.load(name) is None:
            return
        what = self._index_fault if self._indexed else "it does not match the segment or its own checksum"
        if what is not None:
            yield Fault(f"{self._folder.path}/{name}", what, _REBUILT, None, self._partition)


def _fits(index: Index, entry: int, batch: Batch) -> bool:
    return index.positions[entry] == batch.position and index.offsets[entry] == batch.header.base_offset

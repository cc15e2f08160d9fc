"""One partition's segments in a folder: append, read, roll, remove, and recovery by scanning the tail.

    00000000000000000000.log       record batches, as Kafka's
    00000000000000000000.index     sparse index of a closed segment
    00000000000000000120.snapshot  what the layer above derives from the batches below offset 120
    start                          the log start offset, once it was moved
    cleaned                        the offset that compaction has reached, once it has run
    *.discarded                    what followed damage, for people: nothing reads or removes it

When `append` returns, the bytes have been given to the operating system and survive a crash of the process.
After `sync` they survive a crash of the machine. After a crash the tail is scanned, and what is torn is cut
off.

All calls block. One writer at a time (under the caller's lock); readers need no lock. `seal`,
`remove_files`, and the functions that `begin_sync` and `mark` return, run beside the writer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from errno import EIO
from functools import partial
from itertools import count, takewhile
from struct import Struct
from threading import Lock
from typing import Final

import google_crc32c

from muster.coordinator.storage.files import File, Folder
from muster.coordinator.storage.records import (
    Batch,
    Derived,
    Limits,
    LogOffsetMetadata,
    RecordDraft,
    RecordSegment,
    Recovery,
    from_offset,
    place_of,
    roll_due,
)
from muster.coordinator.storage.segment import DRAFT, Segment, parse_stem
from muster.protocol.record_batch import Header, prefix

_START_NAME: Final = "start"
_CLEANED_NAME: Final = "cleaned"
SNAPSHOT_ENDING: Final = ".snapshot"
LOG_ENDING: Final = ".log"
_INDEX: Final = ".index"
SNAPSHOT_CRC = Struct(">I")
DISCARDED: Final = ".discarded"


class SegmentLog:
    """Its offsets and size are in `start_offset`, `next_offset` and `size`; errors are OSErrors."""

    def __init__(self, folder: Folder, derived: Derived, limits: Limits, now_ms: Callable[[], int]) -> None:
        """Use `SegmentLog.open`."""
        self._folder = folder
        self._derived = derived
        self._now_ms = now_ms
        self._segments: tuple[Segment, ...] = ()
        self._unsealed: dict[Segment, bytes | None] = {}  # closed, oldest first, with what was derived then
        self._gone: dict[Segment, bool] = {}  # removed, with files left, oldest first; True: by `replace`
        self._removing = Lock()  # held while the files of one of them are removed
        self._sealing = Lock()  # held while anything is synced beside the writer
        self._noting = Lock()  # held while an index or a snapshot is stored
        self._abandoned = False
        self._snapshot_offset = 0  # how far the stored snapshot reaches
        self._segment_since_ms = now_ms()
        self._dirty = False  # anything appended since the last close
        self._marked_size = 0  # of the active segment
        self._rested_offset = -1
        self._appended_messages = 0  # by this one, or found without proof that they were synced
        self._synced_messages = 0  # of these
        self._named: Segment | None = None  # the names of the files up to this segment's are synced
        self.limits = limits
        self.start_offset = 0
        self.cleaned_offset = 0  # see `note_cleaned`
        self.failed = False  # what is in the files is no longer known: reopen the log
        self.recovery = Recovery()

    @classmethod
    def open(cls, folder: Folder, derived: Derived, limits: Limits, now_ms: Callable[[], int]) -> SegmentLog:
        """Open or create the log in `folder`, and bring `derived` up to its end."""
        log = cls(folder, derived, limits, now_ms)
        log._recover()
        return log

    def __repr__(self) -> str:
        offsets = f"{self.start_offset}..{self.next_offset}"
        return f"<SegmentLog {self._folder.path} offsets={offsets} segments={len(self._segments)}>"

    # --- what is there ----------------------------------------------------------------------------

    @property
    def segments(self) -> tuple[Segment, ...]:
        """In offset order; the last one is the active one."""
        return self._segments

    @property
    def next_offset(self) -> int:
        """The log end offset."""
        return self._segments[-1].next_offset if self._segments else self.start_offset

    @property
    def end(self) -> LogOffsetMetadata:
        """See `RecordLog`."""
        if not self._segments:
            return LogOffsetMetadata(self.start_offset, self.start_offset, 0)
        active = self._segments[-1]
        return LogOffsetMetadata(active.next_offset, active.base_offset, active.size)

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return sum(segment.size for segment in self._segments)

    @property
    def unsynced_messages(self) -> int:
        """Offsets appended since the last `sync`, or found at opening without proof that they were synced."""
        return self._appended_messages - self._synced_messages

    @property
    def unsealed(self) -> bool:
        """Whether closed segments wait for `seal`."""
        return bool(self._unsealed)

    @property
    def sealed_segments(self) -> tuple[Segment, ...]:
        """The closed segments up to the first that still waits for `seal`."""
        return tuple(takewhile(lambda segment: segment not in self._unsealed, self._segments[:-1]))

    @property
    def _given_up(self) -> bool:
        """Whether no index or snapshot may be stored any more."""
        return self._abandoned or self.failed

    # --- writing ----------------------------------------------------------------------------------

    def append(self, batch: bytes, header: Header, leader_epoch: int) -> Header:
        """Write a batch at the log end, in a new segment if one is due. Returns its header as written.

        `batch` is written unchanged except for base offset and leader epoch. On an OSError the log is
        unchanged, unless `failed` is set: then the file could not be restored, and the log must be reopened.
        """
        assigned = header._replace(base_offset=self.next_offset, leader_epoch=leader_epoch)
        open_ms = self._now_ms() - self._segment_since_ms
        if not self._segments or roll_due(self._segments[-1], assigned, self.limits, open_ms):
            self.roll()
        lead = prefix(header, assigned.base_offset, leader_epoch)
        active = self._segments[-1]
        try:
            active.append((lead, memoryview(batch)[len(lead) :]), assigned)
        except OSError:
            if active.open_to_write().size() != active.size:
                self.failed = True
            raise
        active.written_ms = self._now_ms()
        self._dirty = True
        self._appended_messages += assigned.last_offset_delta + 1
        self._derived.observe(assigned, batch)
        return assigned

    def commit(self) -> None:
        """Do nothing: what was appended has been given to the operating system."""

    def sync(self) -> None:
        """Make everything appended survive a crash of the machine."""
        if self.unsynced_messages:
            self._sync(_opened([*self._unsealed, self._segments[-1]]))
            self._synced_messages = self._appended_messages

    def begin_sync(self) -> Callable[[], None]:
        """See `RecordLog`."""
        files, messages = _opened([*self._unsealed, self._segments[-1]]), self._appended_messages

        def sync() -> None:
            with self._sealing:
                if not self._abandoned:
                    self._sync(files)
                    self._synced_messages = max(self._synced_messages, messages)

        return sync

    def _sync(self, files: Sequence[tuple[Segment, File]]) -> None:
        """Sync segments, the last of which is the active one, or was."""
        for segment, file in files:
            self._segment_synced(segment, file)
        newest, _ = files[-1]
        if self._named is not newest:
            self._synced(self._folder.sync)
            self._named = newest

    def _segment_synced(self, segment: Segment, file: File) -> None:
        # Of two syncs of a file at once, the system tells only one of what it could not write.
        with segment.syncing:
            self._synced(partial(segment.sync, file), segment.rewrite_unsynced)

    def _synced(self, sync: Callable[[], None], rewrite: Callable[[], None] = lambda: None) -> None:
        if self.failed:
            raise OSError(EIO, "an earlier sync or write failed")
        try:
            sync()
        except OSError:
            # What could not be written may be lost, and the next sync would still succeed.
            self.failed = True  # before the rewrite, which may take long: others sync meanwhile
            with suppress(OSError):
                rewrite()
            raise

    def roll(self) -> None:
        """Begin a new segment at the log end. The old one is closed for writing, and sealed later
        (`seal`)."""
        segment = Segment(self._folder, self.next_offset, self.limits.index_interval_bytes)
        self._folder.remove(segment.index_name)  # one left behind, of another file, would be trusted
        segment.open_to_write()
        if self._segments:
            self._unsealed[self._segments[-1]] = self._derived.snapshot()
        self._segments += (segment,)
        self._marked_size = 0
        self._segment_since_ms = self._now_ms()

    def seal(self) -> None:
        """Sync closed segments and write their indexes and the snapshot, so that a start need not scan them.

        May run beside everything else, and ends early if the log is abandoned or has failed.
        """
        with self._sealing:
            while not self._given_up and (waiting := list(self._unsealed.items())):
                segment, snapshot = waiting[0]
                with suppress(FileNotFoundError):  # removed meanwhile
                    self._segment_synced(segment, segment.open_to_read())
                    with self._noting:
                        if not self._given_up and segment in self._unsealed:
                            segment.save_index()
                            self._save_snapshot(segment.next_offset, snapshot)
                segment.release()
                self._unsealed.pop(segment, None)

    def mark(self) -> Callable[[], None]:
        """Note how far the log has come (under the caller's lock), and return a function that makes a later
        start trust that (called without the lock): a crash then costs a scan of what came after, not of the
        whole active segment."""
        active = self._segments[-1]
        index, snapshot = active.encoded_index(), self._derived.snapshot()
        offset, file = active.next_offset, active.open_to_write()
        self._marked_size = active.size

        def trust() -> None:
            with self._sealing:
                if self._abandoned:
                    return
                self._segment_synced(active, file)
                with self._noting:
                    if not self._given_up and active is self._segments[-1]:  # else it is sealed, or gone
                        self._folder.store(active.index_name, index)
                        self._save_snapshot(offset, snapshot)

        return trust

    @property
    def unmarked_bytes(self) -> int:
        """Bytes of the active segment that a start after a crash would scan."""
        return self._segments[-1].size - self._marked_size if self._segments else 0

    def rest(self) -> None:
        """Release the active segment's file if nothing was appended since the last call; the next append
        reopens it."""
        if self._segments and self.next_offset == self._rested_offset:
            self._segments[-1].release()
        self._rested_offset = self.next_offset

    def close(self) -> None:
        """Sync and note the end, so that the next `open` scans nothing. Not needed to keep what was
        acknowledged."""
        try:
            self.seal()
            if self._dirty and self._segments:
                active = self._segments[-1]
                self._segment_synced(active, active.open_to_write())
                with self._noting:
                    active.save_index()
                    self._save_snapshot(active.next_offset, self._derived.snapshot())
                self._dirty = False
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Release the files, and write and remove nothing more once this returns: someone else has the log
        now, or its folder is being removed."""
        self._abandoned = True  # first: no further segment is sealed
        with self._sealing:  # if the sync under way fails, what it lost is written again
            pass
        with suppress(OSError):
            self.remove_files()  # the next opening would take them for a part of the log
        with self._removing:
            self._gone.clear()
        for segment in self._segments:
            segment.release()

    # --- reading ----------------------------------------------------------------------------------

    def read(
        self, offset: int, bytes_max: int, *, first_may_exceed: bool = True, at_once: bool = False
    ) -> bytes | memoryview:
        """See `RecordLog`."""
        for segment in self.segments_from(offset):
            found = segment.read(offset, bytes_max, first_may_exceed=first_may_exceed, at_once=at_once)
            if found is not None:
                return found
        return b""

    def locate(
        self, offset: int, end: LogOffsetMetadata, bytes_max: int, *, at_once: bool = False
    ) -> LogOffsetMetadata:
        """See `RecordLog`."""
        for segment in self.segments_from(offset):
            position = segment.position_of(offset, at_once=at_once)
            if position is not None:
                return LogOffsetMetadata(offset, segment.base_offset, position)
        return end

    def segments_from(self, offset: int) -> Sequence[Segment]:
        """The segments that may hold `offset` or later ones."""
        return from_offset(self._segments, offset)

    def batches(self, offset: int) -> Iterator[Batch]:
        """The batches from the one that holds `offset` on, as far as they are written when their segment is
        reached. Raises DecodeError where a segment cannot be read further."""
        for segment in self.segments_from(offset):
            for batch in segment.whole_batches(segment.index.position_of(offset)):
                if batch.header.last_offset >= offset:
                    yield batch

    def first_batch_at(self, timestamp: int) -> Batch | None:
        """The first batch at or after the log start with a timestamp >= `timestamp`."""
        for segment in self.segments_from(self.start_offset):
            batch = segment.first_batch_at(timestamp, self.start_offset)
            if batch is not None:
                return batch
        return None

    def place_of(self, offset: int) -> str:
        """See `RecordLog`."""
        for segment in self.segments_from(offset):
            for batch in segment.batches(segment.index.position_of(offset)):
                if batch.header.last_offset >= offset:
                    return f"{segment.log_name}, byte {batch.position}"
        return f"offset {offset}"

    # --- removing ---------------------------------------------------------------------------------

    def set_start_offset(self, offset: int) -> None:
        """Durably move the log start (DeleteRecords), and remove the segments entirely below it."""
        if offset <= self.start_offset:
            return
        self._folder.store(_START_NAME, b"%d" % offset)
        self.start_offset = offset
        with suppress(OSError):  # on a full disk; retention removes what is left, or reports it
            self._remove_below(offset)

    def _remove_below(self, offset: int) -> None:
        """A segment extends to where the next one begins, whatever compaction has left of its end."""
        self.remove_first(sum(segment.base_offset <= offset for segment in self._segments[1:]))

    def remove_first(self, count: int) -> None:
        """Remove the oldest `count` segments (retention); the active one only after `roll`."""
        # What the stored snapshot covers goes first: it needs no further one, for which there may be no room.
        covered = sum(
            segment.base_offset <= self._snapshot_offset for segment in self._segments[1 : count + 1]
        )
        self._remove_oldest(covered)
        self._remove_oldest(count - covered)

    def _remove_oldest(self, count: int) -> None:
        if not count:
            return
        base_offset = self._segments[count].base_offset
        try:
            self._keep_derived(base_offset)
        except OSError:
            if not self._gone:
                raise
            self.remove_files()  # on a full disk it makes room
            self._keep_derived(base_offset)
        gone = self._segments[:count]
        # First, so that readers, which take no lock, cannot find later records at an offset of removed ones.
        self.start_offset = max(self.start_offset, base_offset)
        self._segments = self._segments[count:]
        for segment in gone:
            self._unsealed.pop(segment, None)
            self._gone[segment] = False

    def remove_files(self) -> None:
        """See `RecordLog`."""
        # Oldest first: a crash in between leaves a log without holes, and no file without the one that
        # replaced it. So a replaced file need not wait for one that cannot be removed, but all others must.
        first_error: OSError | None = None
        for segment, replaced in list(self._gone.items()):
            if first_error and not replaced:
                continue
            with self._removing:
                if segment in self._gone:  # else removed, or given up, meanwhile
                    try:
                        segment.remove_files()
                        del self._gone[segment]
                    except OSError as error:
                        first_error = first_error or error
        if first_error:
            raise first_error

    def _keep_derived(self, base_offset: int) -> None:
        """Before anything below `base_offset` is removed, make sure that a snapshot covers it. An older one
        suffices only while the batches after it are there; without them a start would derive an outdated
        state."""
        if self._snapshot_offset < base_offset:
            self._note_derived([each for each in self._unsealed if each.base_offset >= base_offset])

    def note_derived(self) -> None:
        """See `RecordLog`."""
        self._note_derived(list(self._unsealed))

    def _note_derived(self, unsealed: Sequence[Segment]) -> None:
        # No snapshot may cover what a crash of the machine could lose.
        self._sync(_opened([*unsealed, self._segments[-1]]))
        with self._noting:
            self._store_snapshot(self.next_offset, self._derived.snapshot())

    def note_cleaned(self, offset: int) -> None:
        """Set `cleaned_offset`, also for later openings: compaction has compared the records below it with
        each other, and the log holds the ones that were kept."""
        self._folder.store(_CLEANED_NAME, b"%d" % offset)
        self.cleaned_offset = offset

    def _lower_cleaned(self, offset: int) -> None:
        try:
            self.note_cleaned(offset)
        except OSError:  # on a full disk; what needs no room only makes compaction compare everything again
            self._folder.remove(_CLEANED_NAME)
            self._folder.sync()
            self.cleaned_offset = 0

    def new_draft(self, base_offset: int, generation: int) -> Segment:
        """A segment to fill with `append` and then pass to `replace`."""
        draft = Segment(self._folder, base_offset, self.limits.index_interval_bytes, generation)
        draft.draft = True
        draft.remove_files()
        draft.open_to_write()
        return draft

    def replace(self, old: Sequence[RecordSegment], draft: RecordDraft) -> None:
        """Replace `old` with `draft` (compaction). Raises ValueError unless they are adjacent sealed
        segments."""
        assert isinstance(draft, Segment)
        place = place_of(old, self._segments)
        gone = self._segments[place]
        self._keep_derived(gone[-1].next_offset)
        draft.flush()
        draft.release()
        reached, end = draft.next_offset, gone[-1].next_offset
        # Even if its last records were removed: the next segment begins there.
        draft.next_offset = end
        draft.written_ms = gone[-1].written_ms
        try:
            draft.save_index()
        except OSError:
            # Only the index tells an opening to drop the old files behind its last batch, among them those of
            # earlier replacements that could not be removed.
            old_offsets = [segment.base_offset for segment in (*gone, *self._gone)]
            if any(draft.base_offset < offset < end and offset >= reached for offset in old_offsets):
                raise
        draft_name = draft.log_name
        draft.draft = False
        self._folder.rename(draft_name, draft.log_name)  # from here on recovery takes the new file
        self._synced(self._folder.sync)
        self._segments = (*self._segments[: place.start], draft, *self._segments[place.stop :])
        self._gone |= dict.fromkeys(gone, True)

    def discard(self, draft: RecordDraft) -> None:
        """Discard a draft that is no longer needed. Harmless after `replace`."""
        assert isinstance(draft, Segment)
        if self._abandoned:
            draft.release()  # another leader may have the folder by now, with its own draft of this name
        elif draft.draft:
            draft.remove_files()

    # --- opening ----------------------------------------------------------------------------------

    def _recover(self) -> None:
        names = self._folder.names()
        for name in names:
            widowed = name.endswith(_INDEX) and name.removesuffix(_INDEX) + LOG_ENDING not in names
            if name.endswith(DRAFT) or widowed:
                with suppress(OSError):  # no draft is read; `roll` trusts no such index
                    self._folder.remove(name)
        self._snapshot_offset = snapshot_offset = self._restore_snapshot(names)
        self._load_segments(names, snapshot_offset)
        start = self._stored_offset(_START_NAME)
        if snapshot_offset > max(self.next_offset, start):
            # What it covers is lost: derive everything from what is left.
            self._forget_derived()
            recovery = self.recovery
            self._load_segments(self._folder.names(), 0)
            self.recovery = recovery._replace(known_end=snapshot_offset)
        if self._segments:
            start = max(start, self._segments[0].base_offset)
        if start > self.next_offset:
            gone, self._segments, self._unsealed, self._appended_messages = self._segments, (), {}, 0
            if self._snapshot_offset != start:
                # What was derived from the records up to the start is lost, too.
                self._forget_derived()
                with suppress(OSError):  # else a later opening derives a part of it, from files still there
                    self._store_snapshot(start, self._derived.snapshot())
            self.recovery = self.recovery._replace(known_end=max(self.recovery.known_end, start))
            self._gone |= dict.fromkeys(gone, False)
        self.start_offset = start
        self.cleaned_offset = self._stored_offset(_CLEANED_NAME)
        if self.cleaned_offset > self.next_offset:
            self._lower_cleaned(self.next_offset)  # other records will follow, which nothing has compared
        with suppress(OSError):  # retention removes what is left, or reports it
            self._remove_below(start)
            self.remove_files()

    def _load_segments(self, names: Sequence[str], snapshot_offset: int) -> None:
        """Load the segment files, observing the batches from `snapshot_offset` on; cut the log at the first
        torn one."""
        stems = (parse_stem(name.removesuffix(LOG_ENDING)) for name in names if name.endswith(LOG_ENDING))
        found = sorted(stem for stem in stems if stem is not None)
        newest = dict(
            found
        )  # several generations: a compaction was interrupted after it had put its file in place
        self._segments, self._unsealed, self._appended_messages = (), {}, 0
        self._gone.clear()
        self.recovery = Recovery()
        for number, (base_offset, generation) in enumerate(found):
            segment = Segment(self._folder, base_offset, self.limits.index_interval_bytes, generation)
            if generation != newest[base_offset] or (self._segments and base_offset < self.next_offset):
                self._gone[segment] = True  # compacted into a segment before it
                continue
            if self._segments:  # the one before is closed
                self._note_gap(base_offset)
                if self._dirty:
                    self._unsealed[self._segments[-1]] = None
                else:
                    self._segments[-1].release()
            cut_bytes = self._load_segment(segment, snapshot_offset)
            self._segments += (segment,)
            if cut_bytes:
                # Offsets must not have an unintended hole: what follows a torn segment is put aside.
                self.recovery = self._cut(segment, cut_bytes, found[number + 1 :])
                break

    def _note_gap(self, base_offset: int) -> None:
        """Note it if offsets are missing before the segment at `base_offset`. Only compaction leaves gaps, in
        and after what it wrote."""
        before = self._segments[-1]
        if base_offset > before.next_offset and not before.generation:
            gap = (before.next_offset, base_offset)
            self.recovery = self.recovery._replace(missing=(*self.recovery.missing, gap))

    def _load_segment(self, segment: Segment, snapshot_offset: int) -> int:
        """Bring a segment and what is derived from it up to its sound end. Returns the number of bytes after
        that, to be cut off."""
        file = segment.open_to_write()
        file_size = file.size()
        segment.written_ms = min(file.modified_ms(), self._now_ms())
        if not segment.load_index(file_size):
            # One left behind would be trusted once the file has grown again, with other batches.
            self._folder.remove(segment.index_name)
        elif segment.next_offset > snapshot_offset:
            for batch in segment.batches():
                if batch.position >= segment.size:
                    break
                if batch.header.next_offset > snapshot_offset:
                    self._derived.observe(batch.header, batch.contents)
        indexed = self._marked_size = segment.size
        synced_offset = segment.next_offset  # indexes are stored after a sync
        for batch in segment.scan():
            if batch.header.next_offset > snapshot_offset:
                self._derived.observe(batch.header, batch.contents)
        self._appended_messages += segment.next_offset - synced_offset
        self._dirty = segment.size > indexed or file_size > segment.size
        return file_size - segment.size

    def _cut(self, segment: Segment, cut_bytes: int, behind: Sequence[tuple[int, int]]) -> Recovery:
        """Cut the unsound end off a segment, which becomes the last one, and put aside what came after."""
        damaged = bool(behind) or segment.sound_behind(segment.size) is not None
        aside = [segment.save_rest(DISCARDED)] if damaged else []
        aside += self._put_aside(behind)
        # Last: until it is done, the next opening gets here again.
        segment.open_to_write().truncate(segment.size)
        cut_at = f"{segment.log_name}, byte {segment.size}"
        return self.recovery._replace(
            cut_bytes=cut_bytes, cut_at=cut_at, damaged=damaged, discarded=tuple(aside)
        )

    def _put_aside(self, found: Sequence[tuple[int, int]]) -> list[str]:
        aside = []
        taken = set(self._folder.names())  # by others of these offsets, after earlier damage
        for base_offset, generation in found:
            segment = Segment(self._folder, base_offset, self.limits.index_interval_bytes, generation)
            stems = (f"{segment.stem}{f'.{number}' if number else ''}" for number in count())
            name = next(name for stem in stems if (name := stem + LOG_ENDING + DISCARDED) not in taken)
            self._folder.rename(segment.log_name, name)
            self._folder.remove(segment.index_name)
            aside.append(name)
        return aside

    def _stored_offset(self, name: str) -> int:
        stored = self._folder.load(name)
        return int(stored) if stored is not None and stored.isdigit() else 0

    def _restore_snapshot(self, names: Sequence[str]) -> int:
        """Restore the newest readable snapshot. Returns the offset up to which it reaches (0: none)."""
        offsets = [
            int(name[:20]) for name in names if name.endswith(SNAPSHOT_ENDING) and name[:20].isdecimal()
        ]
        for offset in sorted(offsets, reverse=True):
            stored = self._folder.load(_snapshot_name(offset)) or b""
            body = stored[SNAPSHOT_CRC.size :]
            if stored[: SNAPSHOT_CRC.size] != SNAPSHOT_CRC.pack(google_crc32c.value(body)):
                continue
            try:
                self._derived.restore(body)
            except ValueError:
                self._derived.reset()
                continue
            return offset
        return 0

    def _save_snapshot(self, offset: int, body: bytes | None) -> None:
        """Store a snapshot, unless the stored one reaches `offset` or further."""
        if body is not None and offset > self._snapshot_offset:
            self._store_snapshot(offset, body)

    def _store_snapshot(self, offset: int, body: bytes) -> None:
        self._folder.store(_snapshot_name(offset), SNAPSHOT_CRC.pack(google_crc32c.value(body)) + body)
        self._snapshot_offset = offset
        with suppress(OSError):  # the newest counts; the next time removes what is left
            self._drop_snapshots(keep=offset)

    def _forget_derived(self) -> None:
        self._drop_snapshots(keep=-1)
        self._snapshot_offset = 0
        self._derived.reset()

    def _drop_snapshots(self, keep: int) -> None:
        for name in self._folder.names():
            if name.endswith(SNAPSHOT_ENDING) and name != _snapshot_name(keep):
                self._folder.remove(name)


def _opened(segments: Sequence[Segment]) -> list[tuple[Segment, File]]:
    return [(segment, segment.open_to_read()) for segment in segments]


def _snapshot_name(offset: int) -> str:
    return f"{offset:020d}{SNAPSHOT_ENDING}"

"""One partition's log in PostgreSQL rows; see `storage.records.RecordLog`.

What is appended waits in memory until `commit` (or whatever else is written first) brings it to the database
in one statement. That is refused if the lease has another epoch, or if anyone else has changed the log since:
an earlier object of this leader, whose last statement was thought to be lost. So whenever the outcome of a
statement is unknown, the log has `failed`, and must be reopened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import takewhile
from threading import Lock
from typing import Final, Self
from uuid import UUID, uuid4

from muster.coordinator.storage.files import WouldBlock
from muster.coordinator.storage.postgres import record_statements as statements
from muster.coordinator.storage.postgres.record_database import RecordDatabase
from muster.coordinator.storage.postgres.record_statements import BatchRow, Change, SegmentRow
from muster.coordinator.storage.records import (
    Batch,
    Derived,
    Fenced,
    Limits,
    LogOffsetMetadata,
    RecordDraft,
    RecordSegment,
    Recovery,
    from_offset,
    place_of,
    roll_due,
)
from muster.coordinator.storage.store import Lease
from muster.protocol.errors import DecodeError
from muster.protocol.record_batch import NO_TIMESTAMP, Header, peek, prefix

_PAGE_BYTES: Final = 1 << 20
_PAGE_ROWS_MAX: Final = 4_096
_HEADERS_MAX: Final = 5_000
"""How much is read at a time when walking through a log, and when opening it."""
_NOTED_BATCHES: Final = 1_000
"""Roughly how many batches an opening has to look at."""
_OPENINGS_MAX: Final = 5


class RowPlace:
    """One partition's rows, for the holder of `lease` in `epoch`."""

    def __init__(
        self, database: RecordDatabase, topic_id: UUID, partition: int, lease: Lease, epoch: int
    ) -> None:
        self.database = database
        self.topic_id = topic_id
        self.partition = partition
        self.lease = lease
        self.epoch = epoch
        self.era = database.eras.current  # before anything is read

    @property
    def path(self) -> str:
        return self.database.path

    def open(self, derived: Derived, limits: Limits, now_ms: Callable[[], int]) -> RowLog:
        return RowLog.open(self, derived, limits, now_ms)


class RowSegment:
    """See `records.RecordSegment`. Of the active one, `durable_offset` says how far its rows are in the
    database."""

    __slots__ = (
        "_database",
        "base_offset",
        "batch_count",
        "durable_offset",
        "first_timestamp",
        "generation",
        "newest_timestamp",
        "next_offset",
        "segment_id",
        "size",
        "written_ms",
    )

    def __init__(self, database: RecordDatabase, row: SegmentRow) -> None:
        self._database = database
        self.segment_id = row.segment_id
        self.generation = row.generation
        self.base_offset = row.base_offset
        self.next_offset = self.durable_offset = row.next_offset
        self.size = row.size_bytes
        self.batch_count = row.batch_count
        self.first_timestamp = row.first_timestamp
        self.newest_timestamp = row.newest_timestamp
        self.written_ms = row.written_ms

    @classmethod
    def new(cls, database: RecordDatabase, base_offset: int, generation: int = 0) -> Self:
        row = SegmentRow(
            uuid4(), generation, base_offset, base_offset, 0, 0, NO_TIMESTAMP, NO_TIMESTAMP, 0, None
        )
        return cls(database, row)

    def __repr__(self) -> str:
        offsets = f"{self.base_offset}..{self.next_offset}"
        return f"<RowSegment {self.segment_id} offsets={offsets} bytes={self.size}>"

    @property
    def newest_ms(self) -> int:
        return self.newest_timestamp if self.newest_timestamp >= 0 else self.written_ms

    def note(self, header: Header) -> None:
        """Account for a batch that is at the end."""
        if not self.size:
            self.first_timestamp = header.max_timestamp
        if header.max_timestamp > self.newest_timestamp:
            self.newest_timestamp = header.max_timestamp
        self.next_offset = header.next_offset
        self.size += header.size
        self.batch_count += 1

    def row(self, derived: bytes | None) -> SegmentRow:
        return SegmentRow(
            self.segment_id,
            self.generation,
            self.base_offset,
            self.next_offset,
            self.size,
            self.batch_count,
            self.first_timestamp,
            self.newest_timestamp,
            self.written_ms,
            derived,
        )

    def read(self, offset: int, bytes_max: int, *, first_may_exceed: bool) -> list[bytes] | None:
        """Batches from the one that holds `offset` on, at most `bytes_max` bytes in all; None if there is
        nothing. Raises FileNotFoundError if the segment was removed."""
        end = self.durable_offset
        if offset >= end or not self.size:
            return None
        # As many as fit into bytes_max if they are half the average size.
        rows_max = min(2 * bytes_max * self.batch_count // self.size + 2, _PAGE_ROWS_MAX)
        found = self._database.run(
            lambda connection: statements.read(
                connection, self.segment_id, offset, end, rows_max, bytes_max, first_may_exceed
            ),
            repeatable=True,
        )
        return found if found or self.holds(offset) else None

    def holds(self, offset: int) -> bool:
        """Whether it has anything at or after `offset`. Raises FileNotFoundError if it was removed."""
        live, more = self._database.run(
            lambda connection: statements.at_all(connection, self.segment_id, offset, self.durable_offset),
            repeatable=True,
        )
        if not live:
            raise FileNotFoundError(f"segment {self.segment_id} was removed")
        return more

    def bytes_between(self, offset: int, end: int, bytes_max: int) -> int:
        """Bytes of the batches from the one that holds `offset` on that begin before `end`; if they exceed
        `bytes_max`, at least `bytes_max`. Raises FileNotFoundError if the segment was removed."""
        found = 0
        while found < bytes_max and offset < end:
            size, next_offset = self._database.run(
                lambda connection, at=offset: statements.size_from(  # type: ignore[misc]
                    connection, self.segment_id, at, end, _PAGE_ROWS_MAX
                ),
                repeatable=True,
            )
            if next_offset is None:
                break
            found += size
            offset = next_offset
        if not found:
            self.holds(offset)
        return found

    def whole_batches(self, offset: int = 0) -> Iterator[Batch]:
        """The batches that are durable, from the one that holds `offset` on."""
        position = 0
        offset = max(offset, self.base_offset)
        while page := self.read(offset, _PAGE_BYTES, first_may_exceed=True):
            for contents in page:
                header = peek(contents)
                if header.size != len(contents) or header.last_offset < offset:
                    raise DecodeError(f"segment {self.segment_id} is damaged at offset {offset}")
                yield Batch(header, position, contents)
                position += header.size
                offset = header.next_offset

    def first_batch_at(self, timestamp: int, from_offset: int) -> Batch | None:
        """The first batch that reaches `from_offset` and has a timestamp >= `timestamp`."""
        if self.newest_timestamp < timestamp:
            return None
        start = max(self._reaching(timestamp), from_offset)
        for batch in self.whole_batches(start):
            if batch.header.max_timestamp >= timestamp:
                return batch
        return None

    def _reaching(self, timestamp: int) -> int:
        """Where the first batch with a timestamp >= `timestamp` begins. A binary search finds it, since the
        newest timestamp up to a batch never decreases."""
        first, behind = self.base_offset, self.durable_offset
        while first < behind:
            middle = (first + behind) // 2
            found = self._database.run(
                lambda connection, at=middle: statements.newest_up_to(connection, self.segment_id, at),  # type: ignore[misc]
                repeatable=True,
            )
            if found is None or found[0] < first or found[1] < timestamp:
                first = middle + 1
            else:
                behind = found[0]
        return first


class RowDraft(RowSegment):
    """See `records.RecordDraft`."""

    __slots__ = ("_pending", "_pending_bytes", "placed")

    def __init__(self, database: RecordDatabase, row: SegmentRow) -> None:
        super().__init__(database, row)
        self._pending: list[BatchRow] = []
        self._pending_bytes = 0
        self.placed = False

    def append(self, buffers: Sequence[bytes | memoryview], header: Header) -> None:
        self.note(header)
        contents = b"".join(buffers)
        self._pending.append(
            BatchRow(self.segment_id, header.base_offset, header.next_offset, self.newest_timestamp, contents)
        )
        self._pending_bytes += len(contents)
        if self._pending_bytes >= _PAGE_BYTES or len(self._pending) >= _PAGE_ROWS_MAX:
            self.flush()

    def flush(self) -> None:
        """See `records.RecordDraft`."""
        pending, self._pending, self._pending_bytes = self._pending, [], 0
        if pending and not self._database.run(
            lambda connection: statements.fill_draft(connection, self.segment_id, pending), repeatable=False
        ):
            raise FileNotFoundError(f"draft {self.segment_id} was removed")


class RowLog:
    """See `records.RecordLog`."""

    def __init__(self, place: RowPlace, derived: Derived, limits: Limits, now_ms: Callable[[], int]) -> None:
        """Use `RowLog.open`."""
        self.place = place
        self._derived = derived
        self._now_ms = now_ms
        self._segments: tuple[RowSegment, ...] = ()
        self._version = 0
        self._pending: list[BatchRow] = []  # appended, but not in the database yet
        self._to_note: dict[RowSegment, None] = {}  # segments whose rows the next change writes
        self._unnoted = 0  # batches that the active segment's row does not cover
        self._drafts: list[UUID] = []  # of earlier leaders: killed with the next change
        self._dead: list[UUID] = []  # what `seal` deletes
        self._segment_since_ms = now_ms()
        self._sealing = Lock()
        self._swapping = Lock()  # held while segments are removed from the database, then from `_segments`
        self._abandoned = False
        self.limits = limits
        self.start_offset = 0
        self.cleaned_offset = 0
        self.failed = False
        self.recovery = Recovery()
        self.unsynced_messages = 0  # what is committed survives a crash of the machine
        self.unmarked_bytes = 0  # and is noted along with it

    @classmethod
    def open(cls, place: RowPlace, derived: Derived, limits: Limits, now_ms: Callable[[], int]) -> RowLog:
        for _ in range(_OPENINGS_MAX):
            log = cls(place, derived, limits, now_ms)
            if log._recover():
                return log
            derived.reset()  # an earlier statement of this leader completed in between
        raise OSError(f"{place.path}: batches of partition {place.partition} of {place.topic_id} are missing")

    def __repr__(self) -> str:
        offsets = f"{self.start_offset}..{self.next_offset}"
        return f"<RowLog {self.place.topic_id}/{self.place.partition} offsets={offsets}>"

    # --- what is there ----------------------------------------------------------------------------

    @property
    def segments(self) -> tuple[RowSegment, ...]:
        return self._segments

    @property
    def sealed_segments(self) -> tuple[RowSegment, ...]:
        """The closed segments that are completely in the database."""
        return tuple(takewhile(lambda each: each.durable_offset == each.next_offset, self._segments[:-1]))

    @property
    def next_offset(self) -> int:
        return self._segments[-1].next_offset if self._segments else self.start_offset

    @property
    def end(self) -> LogOffsetMetadata:
        if not self._segments:
            return LogOffsetMetadata(self.start_offset, self.start_offset, 0)
        active = self._segments[-1]
        return LogOffsetMetadata(active.next_offset, active.base_offset, active.size)

    @property
    def size(self) -> int:
        return sum(segment.size for segment in self._segments)

    @property
    def unsealed(self) -> bool:
        return bool(self._dead)

    @property
    def pending(self) -> bool:
        """Whether there is something to commit."""
        return bool(self._pending or self._to_note)

    # --- opening ----------------------------------------------------------------------------------

    def _recover(self) -> bool:
        """Returns False if what was read does not fit together."""
        database, place = self.place.database, self.place
        found = database.run(
            lambda connection: statements.stored(connection, place.topic_id, place.partition), repeatable=True
        )
        self._version = found.log.version
        self.start_offset, self.cleaned_offset = found.log.start_offset, found.log.cleaned_offset
        self._drafts, self._dead = found.drafts, found.dead
        self._segments = tuple(RowSegment(database, row) for row in found.live)
        if not self._segments:
            return found.log.next_offset == 0
        active = self._segments[-1]
        self._restore(found.live[-1].derived)
        while active.next_offset < found.log.next_offset:
            starts = self._starts(active, active.next_offset, found.log.next_offset)
            if not starts:
                return False
            for header, start in starts:
                if header.base_offset != active.next_offset:
                    return False
                active.note(header)
                self._derived.observe(header, start)
            self._unnoted += len(starts)
            active.written_ms = self._now_ms()  # the exact time is not noted with each batch
        active.durable_offset = active.next_offset
        return active.next_offset == found.log.next_offset

    def _restore(self, derived: bytes | None) -> None:
        """Bring `derived` up to what the active segment's row covers."""
        try:
            self._derived.restore(derived or b"")
        except ValueError:
            self._derived.reset()
            for segment in self._segments:
                offset = segment.base_offset
                while starts := self._starts(segment, offset, segment.next_offset):
                    for header, start in starts:
                        self._derived.observe(header, start)
                    offset = starts[-1][0].next_offset

    def _starts(self, segment: RowSegment, start: int, end: int) -> list[tuple[Header, bytes]]:
        """Header and first bytes of the batches that begin in [start, end), at most as many as are read at a
        time."""
        found = self.place.database.run(
            lambda connection: statements.first_bytes(
                connection, segment.segment_id, start, end, _HEADERS_MAX
            ),
            repeatable=True,
        )
        return [(peek(each), each) for each in found]

    # --- writing ----------------------------------------------------------------------------------

    def append(self, batch: bytes, header: Header, leader_epoch: int) -> Header:
        """See `records.RecordLog.append`."""
        self._check()
        assigned = header._replace(base_offset=self.next_offset, leader_epoch=leader_epoch)
        open_ms = self._now_ms() - self._segment_since_ms
        if not self._segments or roll_due(self._segments[-1], assigned, self.limits, open_ms):
            self.roll()
        active = self._segments[-1]
        active.note(assigned)
        active.written_ms = self._now_ms()
        lead = prefix(header, assigned.base_offset, leader_epoch)
        self._pending.append(
            BatchRow(
                active.segment_id,
                assigned.base_offset,
                assigned.next_offset,
                active.newest_timestamp,
                b"".join((lead, memoryview(batch)[len(lead) :])),
            )
        )
        self._unnoted += 1
        self._derived.observe(assigned, batch)
        return assigned

    def roll(self) -> None:
        """See `records.RecordLog.roll`."""
        segment = RowSegment.new(self.place.database, self.next_offset)
        if self._segments:
            self._to_note[self._segments[-1]] = None
        self._to_note[segment] = None
        self._segments += (segment,)
        self._segment_since_ms = self._now_ms()

    def commit(self) -> None:
        """See `records.RecordLog.commit`."""
        if self.pending:
            self._write(self.change())

    def change(
        self,
        *,
        start_offset: int | None = None,
        cleaned_offset: int | None = None,
        gone: Sequence[RowSegment] = (),
        placed: RowSegment | None = None,
    ) -> Change:
        """What is pending plus what is given: a new log start, how far the log is cleaned, segments to
        remove, and one to put in their place."""
        self._check()
        place, active = self.place, self._segments[-1] if self._segments else None
        if active is not None and self._unnoted >= _NOTED_BATCHES:
            self._to_note[active] = None
        away = {segment.segment_id for segment in gone}
        noted = [segment for segment in self._to_note if segment.segment_id not in away]
        rows = [segment.row(self._derived.snapshot() if segment is active else None) for segment in noted]
        size = self.size - sum(segment.size for segment in gone)
        if placed is not None:
            rows.append(placed.row(None))
            size += placed.size
        return Change(
            place.lease,
            place.epoch,
            place.topic_id,
            place.partition,
            self._version,
            self.start_offset if start_offset is None else start_offset,
            self.next_offset,
            self.cleaned_offset if cleaned_offset is None else cleaned_offset,
            size,
            rows,
            [*away, *self._drafts],
            [row for row in self._pending if row.segment_id not in away] if away else self._pending,
        )

    def changed(self, change: Change) -> None:
        """Note that the change was written."""
        self._version = change.version + 1
        self.start_offset, self.cleaned_offset = change.start_offset, change.cleaned_offset
        self._pending = []
        if self._segments:
            active = self._segments[-1]
            if active in self._to_note:
                self._unnoted = 0
            for segment in self._to_note:
                segment.durable_offset = segment.next_offset
            active.durable_offset = active.next_offset
        self._to_note = {}
        self._drafts = []
        self._dead += change.dead

    def _write(self, change: Change) -> None:
        (error,) = write(self.place.database, [(self, change)])
        if error is not None:
            raise error

    def _check(self) -> None:
        if self.failed:
            raise OSError(f"{self.place.path}: an earlier write failed")
        if self._abandoned:
            raise OSError(f"{self.place.path}: the log was abandoned")

    def sync(self) -> None:
        """Do nothing: what is committed is synced."""

    def begin_sync(self) -> Callable[[], None]:
        """See `sync`."""
        return self.sync

    def seal(self) -> None:
        """Delete what dead segments contain, in slices."""
        with self._sealing:
            while self._dead and not self._abandoned:
                delete_segment(self.place.database, self._dead[0], lambda: self._abandoned)
                del self._dead[0]

    def mark(self) -> Callable[[], None]:
        """Do nothing: commits note how far the log has come."""
        return lambda: None

    def rest(self) -> None:
        """Nothing is held open."""

    def close(self) -> None:
        """Drop what was not committed."""
        self.abandon()

    def abandon(self) -> None:
        self._abandoned = True
        self._pending = []

    # --- reading ----------------------------------------------------------------------------------

    def read(
        self, offset: int, bytes_max: int, *, first_may_exceed: bool = True, at_once: bool = False
    ) -> bytes:
        """See `records.RecordLog.read`."""
        if at_once:
            raise WouldBlock
        with self._looking():
            for segment in self.segments_from(offset):
                found = segment.read(offset, bytes_max, first_may_exceed=first_may_exceed)
                if found is not None:
                    return found[0] if len(found) == 1 else b"".join(found)
            return b""

    def locate(
        self, offset: int, end: LogOffsetMetadata, bytes_max: int, *, at_once: bool = False
    ) -> LogOffsetMetadata:
        """See `records.RecordLog.locate`."""
        if at_once:
            raise WouldBlock
        with self._looking():
            for segment in self.segments_from(offset):
                if segment.base_offset == end.segment:
                    behind = segment.bytes_between(offset, end.offset, bytes_max)
                    return LogOffsetMetadata(offset, end.segment, end.position - behind)
                if segment.holds(offset):
                    return LogOffsetMetadata(offset, segment.base_offset, 0)
            return end

    @contextmanager
    def _looking(self) -> Iterator[None]:
        """Wraps a read. A missing segment must be gone from `segments` too; otherwise someone else changed
        the log, and it has failed."""
        segments = self._segments
        try:
            yield
        except FileNotFoundError:
            with self._swapping:
                if self._segments is segments:
                    self.failed = True
            raise

    def segments_from(self, offset: int) -> Sequence[RowSegment]:
        return from_offset(self._segments, offset)

    def batches(self, offset: int) -> Iterator[Batch]:
        with self._looking():
            for segment in self.segments_from(offset):
                yield from segment.whole_batches(offset)

    def first_batch_at(self, timestamp: int) -> Batch | None:
        with self._looking():
            for segment in self.segments_from(self.start_offset):
                batch = segment.first_batch_at(timestamp, self.start_offset)
                if batch is not None:
                    return batch
            return None

    def place_of(self, offset: int) -> str:
        (segment, *_) = self.segments_from(offset)
        return f"the row of muster.batches with segment_id {segment.segment_id}, base_offset {offset}"

    # --- removing ---------------------------------------------------------------------------------

    def set_start_offset(self, offset: int) -> None:
        if offset > self.start_offset:
            below = takewhile(lambda segment: segment.next_offset <= offset, self._segments[:-1])
            self._remove(tuple(below), offset)

    def remove_first(self, count: int) -> None:
        if count:
            self._remove(self._segments[:count], max(self.start_offset, self._segments[count].base_offset))

    def remove_files(self) -> None:
        """There are none; upkeep deletes the rows."""

    def _remove(self, gone: Sequence[RowSegment], start_offset: int) -> None:
        with self._swapping:
            self._write(self.change(start_offset=start_offset, gone=gone))
            if gone:
                self._segments = self._segments[len(gone) :]

    def note_cleaned(self, offset: int) -> None:
        self._write(self.change(cleaned_offset=offset))

    def note_derived(self) -> None:
        """See `records.RecordLog.note_derived`."""
        self._to_note[self._segments[-1]] = None
        self.commit()

    def new_draft(self, base_offset: int, generation: int) -> RowDraft:
        self._check()
        place = self.place
        draft = RowDraft.new(place.database, base_offset, generation)
        place.database.run(
            lambda connection: statements.begin_draft(
                connection, place.topic_id, place.partition, draft.row(None)
            ),
            repeatable=False,
        )
        return draft

    def replace(self, old: Sequence[RecordSegment], draft: RecordDraft) -> None:
        assert isinstance(draft, RowDraft)
        segments = self._segments
        place = place_of(old, segments)
        gone = segments[place]
        draft.flush()
        # Even if its last records went: the next segment begins there.
        draft.next_offset = draft.durable_offset = gone[-1].next_offset
        draft.written_ms = gone[-1].written_ms
        with self._swapping:
            self._write(self.change(gone=gone, placed=draft))
            self._segments = (*segments[: place.start], draft, *segments[place.stop :])
        draft.placed = True

    def discard(self, draft: RecordDraft) -> None:
        """If the log is abandoned or has failed, this is left to whoever opens it next: what is a draft here
        may be in its place by now."""
        assert isinstance(draft, RowDraft)
        if not draft.placed and not self._abandoned and not self.failed:
            self._dead.append(draft.segment_id)


def write(database: RecordDatabase, asked: Sequence[tuple[RowLog, Change]]) -> list[OSError | None]:
    """Write a change of each log, whose lock the caller holds, in one statement. Any failure but `Fenced`
    fails the log: its state in memory includes what was not written, or is not known to have been."""
    if not asked:
        return []
    era = database.eras.current
    if any(log.place.era != era for log, _ in asked):
        # Each log's by itself, since those of other eras are fenced.
        return [outcome for each in asked for outcome in _write(database, [each], each[0].place.era)]
    return _write(database, asked, era)


def _write(
    database: RecordDatabase, asked: Sequence[tuple[RowLog, Change]], era: int
) -> list[OSError | None]:
    changes = [change for _, change in asked]
    outcomes: list[OSError | None]
    try:
        written = database.run(
            lambda connection: statements.write(connection, changes), repeatable=False, era=era
        )
        outcomes = [
            _refusal(change, each, database.path) for change, each in zip(changes, written, strict=True)
        ]
    except OSError as error:
        outcomes = [error] * len(changes)
    for (log, change), outcome in zip(asked, outcomes, strict=True):
        if outcome is None:
            log.changed(change)
        else:
            log.failed = not isinstance(outcome, Fenced)
    return outcomes


def delete_segment(database: RecordDatabase, segment_id: UUID, given_up: Callable[[], bool]) -> bool:
    """Delete a dead segment's batches, a slice at a time, until done or given up. Returns whether it is
    done."""
    while not given_up():
        if not delete_slice(database, segment_id):
            return True
    return False


def delete_slice(database: RecordDatabase, segment_id: UUID) -> bool:
    """Delete the first of a dead segment's batches. Returns False if nothing is left of it."""
    return database.run(lambda connection: statements.delete_slice(connection, segment_id), repeatable=True)


def _refusal(change: Change, written: statements.Changed, path: str) -> OSError | None:
    """Why a change was not written."""
    if written.written:
        return None
    if written.epoch != change.epoch:
        kind, number = change.lease
        return Fenced(f"lease {kind} {number} is in epoch {written.epoch}, not {change.epoch}")
    return OSError(f"{path}: an earlier write that seemed lost has changed the log")

"""What a partition log needs from the storage of its records: segment files (`segments`) or database rows
(`postgres.record_log`).

All calls block. One writer at a time (under the caller's lock); readers need no lock. Errors are OSErrors.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar
from uuid import UUID

from muster.coordinator.storage.store import Lease
from muster.protocol.record_batch import Header


class Batch(NamedTuple):
    """A stored batch: its header, its position in the segment (bytes), and all of its bytes."""

    header: Header
    position: int
    contents: bytes


class LogOffsetMetadata(NamedTuple):
    """An offset and its location, as in Kafka's class of that name: the positions of two in one segment give
    the number of bytes between them."""

    offset: int
    segment: int
    """Base offset of its segment."""
    position: int
    """Bytes from the segment's start."""


class Fenced(OSError):
    """The epoch under which the log was opened is not the lease's current one: nothing was written."""


class Derived(Protocol):
    """What the layer above derives from the batches: producer state, leader epochs."""

    def observe(self, header: Header, contents: bytes) -> None:
        """Called for each batch in the log, just appended or found on opening, in offset order.

        `contents` is all of a control batch, and at least the header of any other; its base offset and leader
        epoch may be those it was appended with.
        """

    def snapshot(self) -> bytes: ...

    def restore(self, snapshot: bytes) -> None:
        """Called only before the first `observe`. Raises ValueError if the snapshot cannot be read; the log
        is then scanned from its start."""

    def reset(self) -> None:
        """Forget everything observed."""


@dataclass(slots=True)
class Limits:
    """When to close a segment. May be changed at any time."""

    segment_bytes: int = 1 << 30
    segment_ms: int = 604_800_000
    index_interval_bytes: int = 4_096


class Recovery(NamedTuple):
    """What was found broken on opening. A crash leaves a torn tail, which is cut off. Anything else is damage
    from outside, and what has to be taken out of the log because of it is kept in files beside it."""

    cut_bytes: int = 0
    """Bytes cut off the segment that is now the last one."""
    cut_at: str = ""
    """File and byte of the cut."""
    damaged: bool = False
    """Sound records followed the cut: it was not the end of what was written."""
    discarded: tuple[str, ...] = ()
    """Files with what followed the cut."""
    missing: tuple[tuple[int, int], ...] = ()
    """Ranges of offsets, [from, to), whose segment is gone."""
    known_end: int = 0
    """The log once reached at least this offset and now ends before it; 0 if it does not."""


class RecordSegment(Protocol):
    """A run of batches that retention and compaction treat as a unit. The last one of a log grows."""

    @property
    def base_offset(self) -> int: ...

    @property
    def next_offset(self) -> int: ...

    @property
    def size(self) -> int:
        """Bytes."""

    @property
    def generation(self) -> int:
        """Number of times it was compacted."""

    @property
    def first_timestamp(self) -> int:
        """Of the first batch, -1 if none: segment.ms counts from it."""

    @property
    def newest_timestamp(self) -> int:
        """-1 if no record has one."""

    @property
    def newest_ms(self) -> int:
        """What the segment's age counts from: its newest timestamp, or its last append if no record has
        one."""

    def whole_batches(self) -> Iterator[Batch]:
        """All batches up to `size`. Raises DecodeError if they cannot be read that far."""


S = TypeVar("S", bound=RecordSegment)


def roll_due(active: RecordSegment, header: Header, limits: Limits, open_ms: int) -> bool:
    """Whether a batch goes into a new segment; `open_ms` is how long the active one has been open."""
    if active.size == 0:
        return False
    if active.size + header.size > limits.segment_bytes:
        return True
    # Kafka counts from the records' own timestamps if they have any, so that old data imported all at once
    # still gets segments that retention can tell apart.
    if active.first_timestamp >= 0 and header.max_timestamp >= 0:
        return header.max_timestamp - active.first_timestamp > limits.segment_ms
    return open_ms > limits.segment_ms


def from_offset(segments: Sequence[S], offset: int) -> Sequence[S]:
    """The segments that may hold `offset` or later ones."""
    first = bisect_right(segments, offset, key=lambda segment: segment.base_offset) - 1
    return segments[max(first, 0) :]


def place_of(old: Sequence[RecordSegment], segments: Sequence[RecordSegment]) -> slice:
    """Where the `old` segments are in a log's. Raises ValueError unless they are adjacent closed segments."""
    first = next((n for n, segment in enumerate(segments) if segment is old[0]), len(segments))
    behind = first + len(old)
    if tuple(segments[first:behind]) != tuple(old) or behind >= len(segments):
        raise ValueError("the segments are not neighbours, or not closed")
    return slice(first, behind)


class RecordDraft(RecordSegment, Protocol):
    """A segment that compaction is writing, not yet part of the log."""

    def append(self, buffers: Sequence[bytes | memoryview], header: Header) -> None:
        """Append one batch, in offset order."""

    def flush(self) -> None:
        """Store what was appended durably. It may take long, and runs beside everything else; what is not
        flushed yet `replace` flushes."""


class RecordLog(Protocol):
    """One partition's segments. Appended batches count in `next_offset` at once. After `commit` they survive
    a crash of the process; until then they may be lost, all or none."""

    limits: Limits

    @property
    def recovery(self) -> Recovery: ...

    @property
    def failed(self) -> bool:
        """What is stored is no longer known: reopen the log."""

    @property
    def segments(self) -> Sequence[RecordSegment]:
        """In offset order; the last one is the active one. A new object after every change."""

    @property
    def sealed_segments(self) -> Sequence[RecordSegment]:
        """The closed segments that `seal` is done with."""

    @property
    def start_offset(self) -> int: ...

    @property
    def next_offset(self) -> int:
        """The log end offset."""

    @property
    def end(self) -> LogOffsetMetadata:
        """The location of the log end offset."""

    @property
    def size(self) -> int:
        """Bytes of all segments."""

    @property
    def cleaned_offset(self) -> int:
        """See `note_cleaned`."""

    @property
    def unsynced_messages(self) -> int:
        """Number of offsets that a crash of the machine may lose."""

    @property
    def unmarked_bytes(self) -> int:
        """Bytes that a start after a crash would scan."""

    @property
    def unsealed(self) -> bool:
        """Whether there is work for `seal`."""

    # --- writing

    def append(self, batch: bytes, header: Header, leader_epoch: int) -> Header:
        """Write a batch at the log end, in a new segment if one is due. Returns its header as written.

        `batch` is written unchanged except for base offset and leader epoch. On an OSError the log is
        unchanged, unless `failed` is set.
        """

    def commit(self) -> None:
        """See the class, and `RecordStorage.commit`."""

    def sync(self) -> None:
        """Make everything committed survive a crash of the machine."""

    def begin_sync(self) -> Callable[[], None]:
        """Note what `sync` would sync (under the caller's lock), and return a function that syncs it (called
        without the lock). Not for a log without unsynced messages."""

    def roll(self) -> None:
        """Begin a new segment at the log end."""

    def seal(self) -> None:
        """Finish what closing and removing segments left undone. Runs beside everything else, and ends early
        if the log is abandoned."""

    def mark(self) -> Callable[[], None]:
        """Note how far the log has come (under the caller's lock), and return a function that makes a later
        start trust that (called without the lock)."""

    def rest(self) -> None:
        """Release what an idle log holds open."""

    def close(self) -> None:
        """Close the log so that the next opening is quick. Not needed to keep what was acknowledged."""

    def abandon(self) -> None:
        """Write nothing more once this returns: someone else has the log now, or its topic is being
        deleted."""

    # --- reading

    def read(
        self, offset: int, bytes_max: int, *, first_may_exceed: bool = True, at_once: bool = False
    ) -> bytes | memoryview:
        """Whole batches of one segment, starting with the one that holds `offset`, at most `bytes_max` bytes
        in all (the first may be larger if `first_may_exceed`). Raises FileNotFoundError if the segment is
        removed during the read. `at_once`, which is allowed on the loop, raises WouldBlock rather than wait
        for storage."""

    def locate(
        self, offset: int, end: LogOffsetMetadata, bytes_max: int, *, at_once: bool = False
    ) -> LogOffsetMetadata:
        """Where a `read` of `offset` finds its first batch, which begins before `end`. If that is more than
        `bytes_max` before `end` in the same segment, the position may be any that far away; if it is in an
        earlier segment, any at all. Errors and `at_once` as for `read`."""

    def segments_from(self, offset: int) -> Sequence[RecordSegment]:
        """The segments that may hold `offset` or later ones."""

    def batches(self, offset: int) -> Iterator[Batch]:
        """The batches from the one that holds `offset` on, as far as they are written when their segment is
        reached. Raises DecodeError where a segment cannot be read further."""

    def first_batch_at(self, timestamp: int) -> Batch | None:
        """The first batch at or after the log start with a timestamp >= `timestamp`."""

    def place_of(self, offset: int) -> str:
        """Where the batch with `offset` is stored, for messages."""

    # --- removing

    def set_start_offset(self, offset: int) -> None:
        """Durably move the log start (DeleteRecords), and remove the segments entirely below it, or leave
        them to retention if there is no room for that. Then call `remove_files`."""

    def remove_first(self, count: int) -> None:
        """Remove the oldest `count` segments (retention); the active one only after `roll`. Then call
        `remove_files`."""

    def remove_files(self) -> None:
        """Remove what is left of removed segments. It may take long, and runs beside everything else."""

    def note_cleaned(self, offset: int) -> None:
        """Set `cleaned_offset`, also for later openings: compaction has compared the records below it with
        each other, and the log holds the ones that were kept."""

    def note_derived(self) -> None:
        """Durably note the current derived state: no opening begins with an earlier one, even if the batches
        from which that was derived are still there."""

    def new_draft(self, base_offset: int, generation: int) -> RecordDraft:
        """A segment to fill with `append` and then pass to `replace`."""

    def replace(self, old: Sequence[RecordSegment], draft: RecordDraft) -> None:
        """Replace `old` with `draft` (compaction). Raises ValueError unless they are adjacent closed
        segments. Then call `remove_files`."""

    def discard(self, draft: RecordDraft) -> None:
        """Discard a draft that is no longer needed. Harmless after `replace`."""


class Place(Protocol):
    """The place of one partition's records, for one leader."""

    @property
    def path(self) -> str:
        """For messages."""

    def open(self, derived: Derived, limits: Limits, now_ms: Callable[[], int]) -> RecordLog:
        """Open or create the log, and bring `derived` up to its end."""


class RecordStorage(Protocol):
    """The storage of all partitions' records. Do not mix the `Place`s and logs of different storages."""

    @property
    def path(self) -> str:
        """For people."""

    def place(self, topic_id: UUID, partition: int, lease: Lease, epoch: int) -> Place:
        """The place for the leader that holds `lease` in `epoch`. If other processes may have the log, writes
        through it are refused (`Fenced`) once the lease has another epoch."""

    def commit(self, logs: Sequence[RecordLog]) -> list[OSError | None]:
        """Make what was appended to each log survive a crash of the process, together where that saves time.
        Returns an error or None for each log. A log whose outcome is unknown has `failed`."""

    def stored(self) -> list[tuple[UUID, int]]:
        """Topic id and partition of everything stored, in no particular order."""

    def size(self, topic_id: UUID, partition: int) -> int:
        """Bytes of a partition's segments, whose log need not be open."""

    def bounds(self, partitions: Sequence[tuple[UUID, int]]) -> Mapping[tuple[UUID, int], tuple[int, int]]:
        """Start and end offset of those partitions for which the storage knows them without opening the
        log."""

    def room(self) -> tuple[int, int]:
        """The volume's size in bytes, and how much of it is free for us; -1 and -1 if unknown."""

    def make_room(self) -> bool:
        """On a full disk: free some of the room that is kept for retention; False if none is left."""

    def delete(self, topic_id: UUID) -> None:
        """Take a topic's records out of what is stored; harmless if there are none. Requests wait for the
        thread that calls this: what takes long is left to `remove_deleted` or `remove_left_over`."""

    def remove_deleted(self, topic_id: UUID) -> None:
        """Call it after `delete`, where nobody waits: remove what that has left of the topic."""

    def settle(self, topic_ids: set[UUID]) -> Mapping[UUID, str | None]:
        """Remove the records of all topics but these, which are all that the store has, or put them aside if
        their topics may not have been deleted. Returns the topics, each with the place where its records are
        kept; None: removed. The start of a broker waits for it: a storage that itself knows which topics
        exist leaves it to `remove_left_over`."""

    def remove_left_over(self, given_up: Callable[[], bool]) -> list[UUID]:
        """Remove what deleted topics left behind, if the storage itself knows which topics exist, until done
        or given up, which it asks before each step. Returns the topics of which nothing is left."""

    def close(self) -> None:
        """Close connections. Harmless when repeated."""

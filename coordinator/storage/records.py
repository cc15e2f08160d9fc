"""What a partition log needs of the place that keeps its records, whether those are segment files
(`segments`) or rows of a database (`postgres.record_log`).

Everything blocks. One writer at a time (the caller's lock); readers need none. Errors are OSErrors.
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
    """An offset and where it lies, as in Kafka's class of that name: the positions of two in one segment tell
    how many bytes are between them."""

    offset: int
    segment: int
    """Base offset of its segment."""
    position: int
    """Bytes from the segment's start."""


class Fenced(OSError):
    """The lease epoch under which the log was opened is not the lease's present one: nothing was written."""


class Derived(Protocol):
    """What the layer above derives from the batches: producer state, leader epochs."""

    def observe(self, header: Header, contents: bytes) -> None:
        """A batch is in the log: appended just now, or found there on opening. In order of offsets.

        `contents`: of a control batch all of it, of another at least its header; base offset and leader epoch
        may be those it was appended with.
        """

    def snapshot(self) -> bytes: ...

    def restore(self, snapshot: bytes) -> None:
        """Only before the first `observe`. ValueError: it cannot be read; the log is scanned from its start
        then."""

    def reset(self) -> None:
        """Forget everything observed."""


@dataclass(slots=True)
class Limits:
    """When a segment is closed; may be changed at any time."""

    segment_bytes: int = 1 << 30
    segment_ms: int = 604_800_000
    index_interval_bytes: int = 4_096


class Recovery(NamedTuple):
    """What opening found broken. A crash leaves a torn tail, which is cut. Anything else is damage from
    outside, and what is taken out of the log because of it is kept in files beside it."""

    cut_bytes: int = 0
    """Cut off the last segment, which is not followed by others any more."""
    cut_at: str = ""
    """File and byte."""
    damaged: bool = False
    """Sound records were behind the cut: it was not the end of what was written."""
    discarded: tuple[str, ...] = ()
    """Files with what was behind the cut."""
    missing: tuple[tuple[int, int], ...] = ()
    """Offsets from, to (excluded) whose segment is gone."""
    known_end: int = 0
    """The log had come to here at least, and now ends before; 0 when it does not."""


class RecordSegment(Protocol):
    """A run of batches that retention and compaction treat as one. The last one of a log grows."""

    @property
    def base_offset(self) -> int: ...

    @property
    def next_offset(self) -> int: ...

    @property
    def size(self) -> int:
        """Bytes."""

    @property
    def generation(self) -> int:
        """How often it was compacted."""

    @property
    def first_timestamp(self) -> int:
        """Of the first batch, -1 for none: what segment.ms counts from."""

    @property
    def newest_timestamp(self) -> int:
        """-1 when no record has one."""

    @property
    def newest_ms(self) -> int:
        """How old the segment is: its newest timestamp; its last append when no record has one."""

    def whole_batches(self) -> Iterator[Batch]:
        """All batches up to `size`. DecodeError when they cannot be read so far."""


S = TypeVar("S", bound=RecordSegment)


def roll_due(active: RecordSegment, header: Header, limits: Limits, open_ms: int) -> bool:
    """Whether a batch goes into a new segment; `open_ms`: for how long the active one has been open."""
    if active.size == 0:
        return False
    if active.size + header.size > limits.segment_bytes:
        return True
    # Kafka counts from the records' own time where they have one, so that old data imported in one go still
    # gets segments which retention can tell apart.
    if active.first_timestamp >= 0 and header.max_timestamp >= 0:
        return header.max_timestamp - active.first_timestamp > limits.segment_ms
    return open_ms > limits.segment_ms


def from_offset(segments: Sequence[S], offset: int) -> Sequence[S]:
    """The segments that may hold `offset` or what comes after it."""
    first = bisect_right(segments, offset, key=lambda segment: segment.base_offset) - 1
    return segments[max(first, 0) :]


def place_of(old: Sequence[RecordSegment], segments: Sequence[RecordSegment]) -> slice:
    """Where neighbouring closed segments are in a log's. ValueError when they are no such."""
    first = next((n for n, segment in enumerate(segments) if segment is old[0]), len(segments))
    behind = first + len(old)
    if tuple(segments[first:behind]) != tuple(old) or behind >= len(segments):
        raise ValueError("the segments are not neighbours, or not closed")
    return slice(first, behind)


class RecordDraft(RecordSegment, Protocol):
    """A segment that compaction writes, no part of the log yet."""

    def append(self, buffers: Sequence[bytes | memoryview], header: Header) -> None:
        """One batch, in order of offsets."""


class RecordLog(Protocol):
    """One partition's segments. Appended batches count in `next_offset` at once; they survive the death of
    the process after `commit`, and may be lost until then, all of them or none."""

    limits: Limits

    @property
    def recovery(self) -> Recovery: ...

    @property
    def failed(self) -> bool:
        """What is stored is not known any more: open the log anew."""

    @property
    def segments(self) -> Sequence[RecordSegment]:
        """In order of offsets; the last one is the active one. A new object whenever it changes."""

    @property
    def sealed_segments(self) -> Sequence[RecordSegment]:
        """The closed segments that `seal` need not look at any more."""

    @property
    def start_offset(self) -> int: ...

    @property
    def next_offset(self) -> int:
        """The log end offset."""

    @property
    def end(self) -> LogOffsetMetadata:
        """Where the log end offset lies."""

    @property
    def size(self) -> int:
        """Bytes of all segments."""

    @property
    def cleaned_offset(self) -> int:
        """See `note_cleaned`."""

    @property
    def unsynced_messages(self) -> int:
        """Offsets that the death of the machine may take."""

    @property
    def unmarked_bytes(self) -> int:
        """Bytes that a start after a crash would scan."""

    @property
    def unsealed(self) -> bool:
        """There is work for `seal`."""

    # --- writing

    def append(self, batch: bytes, header: Header, leader_epoch: int) -> Header:
        """Write a batch at the log end, in a new segment when it is time for one; the header it has now.

        `batch` is written as it is but for base offset and leader epoch. On an OSError the log is as before,
        unless `failed` is set.
        """

    def commit(self) -> None:
        """See the class, and `RecordStorage.commit`."""

    def sync(self) -> None:
        """Make everything committed survive the death of the machine."""

    def roll(self) -> None:
        """Begin a new segment at the log end."""

    def seal(self) -> None:
        """Do what closing and removing segments left to do. Runs beside everything else, and ends early when
        the log is abandoned."""

    def mark(self) -> Callable[[], None]:
        """Note how far the log is (under the caller's lock), and return what makes a later start trust that
        (without it)."""

    def rest(self) -> None:
        """Give back what an idle log holds open."""

    def close(self) -> None:
        """Leave the log so that the next opening is quick. Not needed for what was acknowledged."""

    def abandon(self) -> None:
        """Write nothing more, once this returns: someone else has the log now, or its topic goes."""

    # --- reading

    def read(
        self, offset: int, bytes_max: int, *, first_may_exceed: bool = True, at_once: bool = False
    ) -> bytes | memoryview:
        """Whole batches of one segment from the one that holds `offset` on, together at most `bytes_max`
        bytes (the first may be larger if `first_may_exceed`). FileNotFoundError when the segment was removed
        under the read. `at_once`, which is allowed on the loop: WouldBlock where that has to wait for
        storage."""

    def locate(
        self, offset: int, end: LogOffsetMetadata, bytes_max: int, *, at_once: bool = False
    ) -> LogOffsetMetadata:
        """Where a `read` of `offset` finds its first batch, which begins before `end`. If that is more than
        `bytes_max` before `end` in the same segment, the position may be any so far away; if it is in an
        earlier segment, any at all. Errors and `at_once` as for `read`."""

    def segments_from(self, offset: int) -> Sequence[RecordSegment]:
        """The segments that may hold `offset` or what comes after it."""

    def batches(self, offset: int) -> Iterator[Batch]:
        """The batches from the one that holds `offset` on, as far as they were written when their segment is
        reached. DecodeError where a segment cannot be read on."""

    def first_batch_at(self, timestamp: int) -> Batch | None:
        """The first batch at or after the log start with a timestamp >= `timestamp`."""

    def place_of(self, offset: int) -> str:
        """Where the batch with `offset` is stored, for messages."""

    # --- removing

    def set_start_offset(self, offset: int) -> None:
        """Move the log start (DeleteRecords), durably, and remove the segments wholly below it."""

    def remove_first(self, count: int) -> None:
        """Remove the oldest `count` segments (retention); the active one only after `roll`."""

    def note_cleaned(self, offset: int) -> None:
        """Compaction has compared the records below `offset` with each other, and the log holds what stayed:
        `cleaned_offset`, also after the next opening."""

    def note_derived(self) -> None:
        """Note what is derived as it is now, durably: no opening begins with an earlier state, though the
        batches are still there from which that was derived."""

    def new_draft(self, base_offset: int, generation: int) -> RecordDraft:
        """A segment to be filled with `append` and then given to `replace`."""

    def replace(self, old: Sequence[RecordSegment], draft: RecordDraft) -> None:
        """Put `draft` in the place of neighbouring closed segments (compaction). ValueError when they are no
        such."""

    def discard(self, draft: RecordDraft) -> None:
        """The draft is not needed any more; harmless after `replace`."""


class Place(Protocol):
    """Where one partition's records are, for one leader."""

    @property
    def path(self) -> str:
        """For messages."""

    def open(self, derived: Derived, limits: Limits, now_ms: Callable[[], int]) -> RecordLog:
        """Open or begin the log; `derived` is brought up to its end."""


class RecordStorage(Protocol):
    """Where all partitions' records are. `Place`s and logs of one storage are not mixed with another's."""

    @property
    def path(self) -> str:
        """For people."""

    def place(self, topic_id: UUID, partition: int, lease: Lease, epoch: int) -> Place:
        """For the leader that holds `lease` in `epoch`. Where other processes may have the log, what is
        written through it is refused (`Fenced`) once the lease has another epoch."""

    def commit(self, logs: Sequence[RecordLog]) -> list[OSError | None]:
        """Make what was appended to each log survive the death of the process, together as far as that saves
        time; why not, of each. A log whose outcome is unknown has `failed`."""

    def stored(self) -> list[tuple[UUID, int]]:
        """Topic id and partition of what has anything stored, in no order."""

    def size(self, topic_id: UUID, partition: int) -> int:
        """Bytes of a partition's segments, whose log need not be open."""

    def bounds(self, partitions: Sequence[tuple[UUID, int]]) -> Mapping[tuple[UUID, int], tuple[int, int]]:
        """Start and end offset of those partitions of which the storage can tell without opening their
        logs."""

    def room(self) -> tuple[int, int]:
        """Bytes of the volume, and how many of them are free for us; -1 and -1 where nobody can tell."""

    def delete(self, topic_id: UUID) -> None:
        """Remove a topic's records; harmless when there are none."""

    def delete_except(self, topic_ids: set[UUID]) -> list[UUID]:
        """Remove the records of other topics than those, which are all that the store has; which."""

    def remove_left_over(self) -> list[UUID]:
        """Remove what deleted topics left behind, if the storage itself can tell which topics there are; of
        which."""

    def close(self) -> None:
        """Let go of connections. Harmless when repeated."""

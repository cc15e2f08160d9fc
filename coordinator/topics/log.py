"""One partition's log as its leader sees it: validation, offsets, the high watermark, lookups by time and
epoch.

Blocks on files or on a database: every method but the plain attributes is called from an executor. `lock`
serialises what changes the log; reads need no lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import ExitStack, suppress
from enum import IntEnum
from errno import EDQUOT, ENOSPC
from itertools import chain, takewhile
from threading import RLock
from typing import Final, NamedTuple, TypeVar

from muster.coordinator.storage.records import (
    Batch,
    Fenced,
    Limits,
    LogOffsetMetadata,
    Place,
    RecordLog,
    RecordStorage,
)
from muster.coordinator.topics.aborted import Aborted, AbortedTransaction
from muster.coordinator.topics.config import TopicConfig
from muster.coordinator.topics.epochs import Epochs
from muster.coordinator.topics.guards import Guard
from muster.coordinator.topics.producers import NO_TRANSACTION, ActiveProducer, Producers
from muster.coordinator.topics.refused import Refused
from muster.coordinator.topics.undecided import HeldBack, OpenTransaction
from muster.coordinator.topics.validation import Validated, validate
from muster.coordinator.transactions.marker import Marker
from muster.protocol.control_batch import EndMarker, build_marker, read_marker
from muster.protocol.errors import DecodeError, ErrorCode, KafkaError
from muster.protocol.record_batch import NO_PRODUCER_ID, Header, Record, batches, end_of, peek, records

_T = TypeVar("_T")


class ListTimestamp(IntEnum):
    """What ListOffsets may ask for instead of a time."""

    LATEST = -1
    EARLIEST = -2
    MAX_TIMESTAMP = -3  # KIP-734
    EARLIEST_LOCAL = -4  # KIP-405
    LATEST_TIERED = -5  # KIP-1005
    EARLIEST_PENDING_UPLOAD = -6  # KIP-1023


class Appended(NamedTuple):
    """A stored batch. `log_append_time_ms` is -1 unless the topic's timestamps are LogAppendTime."""

    base_offset: int
    log_append_time_ms: int
    log_start_offset: int
    leader_epoch: int


class Listed(NamedTuple):
    """The answer to ListOffsets: -1, -1, -1 when nothing is at or after the requested time."""

    offset: int
    timestamp: int
    leader_epoch: int


NOTHING_LISTED: Final = Listed(-1, -1, -1)

_SOMEWHERE: Final = -1
"""The segment of an offset whose location is not known yet."""

_WITH_TRANSACTIONS: Final = b"\xff\xff\xff\xff\x01"
"""How snapshots begin since transactions were introduced; older ones begin with a count."""


class _State:
    """The state derived from the batches; see `records.Derived`."""

    def __init__(self) -> None:
        self.producers = Producers()
        self.epochs = Epochs()
        self.aborted = Aborted()

    def observe(self, header: Header, contents: bytes) -> None:
        if header.is_control:
            self._observe_control(header, contents)
        else:
            self.producers.observe(header)
        self.epochs.observe(header)

    def _observe_control(self, header: Header, contents: bytes) -> None:
        if not header.record_count:
            self.producers.observe_empty_marker(header)
            return
        end = read_marker(header, contents)
        if end is None:
            return
        first = self.producers.observe_marker(header, end.coordinator_epoch)
        if first != NO_TRANSACTION and not end.committed:
            undecided = self.producers.first_undecided
            stable = header.next_offset if undecided is None else undecided
            self.aborted.add(AbortedTransaction(header.producer_id, first, header.last_offset), stable)

    def forget_before(self, start_offset: int) -> None:
        """The log begins at `start_offset` now. Transactions that began before it stay open."""
        self.epochs.forget_before(start_offset)
        self.aborted = self.aborted.without_before(start_offset)

    def snapshot(self) -> bytes:
        parts = self.producers.snapshot(), self.epochs.snapshot(), self.aborted.snapshot()
        return _WITH_TRANSACTIONS + b"".join(parts)

    def restore(self, snapshot: bytes) -> None:
        if snapshot.startswith(_WITH_TRANSACTIONS):
            end = len(_WITH_TRANSACTIONS)
            end += self.producers.restore(snapshot[end:])
            end += self.epochs.restore(snapshot[end:])
            end += self.aborted.restore(snapshot[end:])
        else:
            end = self.producers.restore(snapshot, with_transactions=False)
            end += self.epochs.restore(snapshot[end:])
        if end != len(snapshot):
            raise ValueError("the snapshot has trailing bytes")

    def reset(self) -> None:
        self.producers.reset()
        self.epochs.reset()
        self.aborted = Aborted()


class StorageFault(KafkaError):
    """What keeps the log refused or failed. `reason` names no partition."""

    def __init__(self, why: str, reason: str) -> None:
        super().__init__(ErrorCode.KAFKA_STORAGE_ERROR, why)
        self.reason = reason


class PartitionLog:
    """The log of one partition, open for one leader epoch. Refusals are KafkaErrors; so are failures of the
    disk (56)."""

    def __init__(
        self,
        place: Place,
        name: str,
        config: TopicConfig,
        leader_epoch: int,
        now_ms: Callable[[], int],
        refused: Refused | None = None,
        *,
        date_ms: Callable[[], int] | None = None,
    ) -> None:
        """Open or begin the log at `place`: recovers what a crash left. `name` is for messages ("orders-3");
        `refused` outlives the log, and whoever appends notes refused batches in it; `now_ms` and `date_ms`,
        by default the same, are a clock's."""
        self.name = name
        self.leader_epoch = leader_epoch
        self.known_end = 0
        """Where it ended when it was open here before, if it ends before that now."""
        self.lock = RLock()
        self._place = place
        self._now_ms = now_ms
        self._date_ms = date_ms or now_ms
        self._state = _State()
        self._refused = Refused() if refused is None else refused
        self._config = config
        self._closed = False
        self._begun: dict[int, LogOffsetMetadata] = {}  # where open transactions begin, if looked up yet
        self._uncommitted_ms: dict[int, int] = {}  # append times of producers' batches, by base offset
        # When those begun since it was opened did: their first record's time, and ours.
        self._began_ms: dict[int, tuple[int, int]] = {}
        self._opened_ms = now_ms()
        self._synced_ms = now_ms()
        try:
            self._segments = place.open(self._state, _limits(config), self._date_ms)
        except OSError as error:
            raise self._storage_error("open", error) from error
        except DecodeError as damage:
            raise self._damaged(damage) from damage
        self._state.forget_before(self._segments.start_offset)
        self.end = self._segments.end
        """The location of the high watermark."""
        self._stable_end = self._undecided()

    def __repr__(self) -> str:
        offsets = f"{self.start_offset}..{self.high_watermark}"
        return f"<PartitionLog {self.name} epoch={self.leader_epoch} offsets={offsets}>"

    @property
    def start_offset(self) -> int:
        return self._segments.start_offset

    @property
    def high_watermark(self) -> int:
        """The end of what is durable at the topic's flush level: consumers see what is below it."""
        return self.end.offset

    @property
    def last_stable_offset(self) -> int:
        """Up to here no transaction is open, and none was ended by a marker that is not visible yet."""
        return self.stable_end.offset

    @property
    def stable_end(self) -> LogOffsetMetadata:
        """The location of the last stable offset; its segment is `_SOMEWHERE` if not known."""
        end, start = self._stable_end, self.start_offset
        return end if end.offset >= start else LogOffsetMetadata(start, _SOMEWHERE, 0)

    @property
    def path(self) -> str:
        """Where its records are, for messages."""
        return self._place.path

    @property
    def segments(self) -> RecordLog:
        """For retention and compaction, which hold `lock` while they change it."""
        return self._segments

    @property
    def producers(self) -> Producers:
        return self._state.producers

    @property
    def aborted(self) -> Aborted:
        """The aborted transactions whose markers are in the log, visible or not."""
        return self._state.aborted

    @property
    def config(self) -> TopicConfig:
        return self._config

    @config.setter
    def config(self, config: TopicConfig) -> None:
        self._config = config
        self._segments.limits = _limits(config)

    @property
    def failed(self) -> bool:
        """Whether writing failed and left unknown what is stored: close this and open the log again."""
        return self._segments.failed

    @property
    def closed(self) -> bool:
        """Whether it is closed or fenced, so that appends are refused."""
        return self._closed

    # --- appending --------------------------------------------------------------------------------

    def begin_verification(self, header: Header, *, epoch_raised: bool) -> Guard | None:
        """See `Partitions.begin_verification`. From any thread, without waiting. Code 47."""
        producers, now_ms = self._state.producers, self._now_ms()
        return producers.begin_verification(header, epoch_raised=epoch_raised, now_ms=now_ms)

    def append(
        self,
        data: bytes,
        *,
        zstd_allowed: bool = True,
        transactional: bool = False,
        guard: Guard | None = None,
    ) -> Appended:
        """Validate one produced batch and write it; see `write`, and `Partitions.append` for the codes."""
        allowed = {"zstd_allowed": zstd_allowed, "transactional": transactional}
        return self.write(validate(data, self._config, self._date_ms(), **allowed), guard)

    def write(self, validated: Validated, guard: Guard | None = None) -> Appended:
        """Write a batch at the log end; visible and acknowledged after `commit`. Codes 6, 45, 47, 48, 56.

        A repeat is answered like the original, which may not be durable before `commit` either.
        """
        batch, header, log_append_time_ms = validated
        with self.lock:
            self.check_open()
            if self._refused and self._refused.misses(
                header, self._state.producers.due(header), self._now_ms()
            ):
                raise KafkaError(
                    ErrorCode.KAFKA_STORAGE_ERROR,
                    f"producer {header.producer_id} must first resend what {self.name} could not store",
                )
            repeated = self._state.producers.check(header, guard)
            if repeated is not None:
                appended_ms = -1 if log_append_time_ms < 0 else self._appended_ms(repeated)
                return Appended(repeated, appended_ms, self.start_offset, self.leader_epoch)
            assigned = self._append(batch, header)
            if log_append_time_ms >= 0 and header.producer_id != NO_PRODUCER_ID:
                self._uncommitted_ms[assigned.base_offset] = log_append_time_ms
            if header.is_transactional:
                self._state.producers.guards.begun(header.producer_id)
                self._note_begun(assigned)
            return Appended(assigned.base_offset, log_append_time_ms, self.start_offset, self.leader_epoch)

    def _appended_ms(self, offset: int) -> int:
        """The append time of the batch at `offset`; -1 if it has none, is gone, or cannot be read."""
        if offset in self._uncommitted_ms:  # and perhaps not readable yet
            return self._uncommitted_ms[offset]
        if offset >= self.start_offset:
            with suppress(KafkaError):
                batch = self._looked_up(lambda: next(self._segments.batches(offset), None), None)
                header = None if batch is None else batch.header
                if header is not None and header.base_offset == offset and header.is_log_append_time:
                    return header.max_timestamp
        return -1

    def write_marker(self, marker: Marker) -> Appended:
        """End a producer's transaction; as `write`. Codes 6, 47, 52, 56. A marker that ends nothing is
        written too."""
        end = EndMarker(marker.committed, marker.coordinator_epoch)
        batch = build_marker(marker.producer_id, marker.producer_epoch, end, self._date_ms())
        with self.lock:
            self.check_open()
            self._state.producers.check_marker(marker)
            first = self._state.producers.transaction_start(marker.producer_id)
            assigned = self._append(batch, peek(batch))
            self._state.producers.guards.ended(
                marker.producer_id, marker.producer_epoch, epoch_raised=marker.epoch_raised
            )
            self._begun.pop(first, None)
            self._began_ms.pop(first, None)
            return Appended(assigned.base_offset, -1, self.start_offset, self.leader_epoch)

    def _append(self, batch: bytes, header: Header) -> Header:
        try:
            return self._segments.append(batch, header, self.leader_epoch)
        except OSError as error:
            raise self._storage_error("write", error) from error

    def _note_begun(self, assigned: Header) -> None:
        """A transactional batch was appended: remember where, if its transaction begins with it."""
        first = assigned.base_offset
        if self._state.producers.transaction_start(assigned.producer_id) == first:
            end = self._segments.end
            self._begun[first] = LogOffsetMetadata(first, end.segment, end.position - assigned.size)
            self._began_ms[first] = assigned.first_timestamp, self._now_ms()

    def _undecided(self) -> LogOffsetMetadata:
        """Where the oldest open transaction begins, or the end."""
        first = self._state.producers.first_undecided
        if first is None:
            return self.end
        begun = self._begun.get(first)
        if begun is None:
            begun = self._begun[first] = self._found(first)
        return begun

    def _found(self, offset: int) -> LogOffsetMetadata:
        """Where a transaction begins that was already open when the log was opened; looked up once."""
        try:
            if offset >= self.start_offset:
                return self._to_the_byte(offset)
        except (OSError, DecodeError):
            pass  # fetches will report it
        return LogOffsetMetadata(offset, _SOMEWHERE, 0)

    def _to_the_byte(self, offset: int, *, at_once: bool = False) -> LogOffsetMetadata:
        """As `RecordLog.locate`, in whichever segment `offset` lies."""
        segment, end = self._segments.segments_from(offset)[0], self.end
        if segment.base_offset != end.segment:
            end = LogOffsetMetadata(segment.next_offset, segment.base_offset, segment.size)
        if offset >= end.offset:
            return end
        return self._segments.locate(offset, end, end.position, at_once=at_once)

    def commit(self) -> int:
        """Make what was appended durable at the topic's flush level, then visible; return the high watermark.

        flush.messages: sync whenever this many messages are unsynced; by default never, so that records
        survive the death of the process but perhaps not that of the machine.
        """
        with self.lock:
            self.check_open()
            try:
                self._segments.commit()
            except OSError as error:
                raise self._storage_error("write", error) from error
            return self._committed()

    def _committed(self) -> int:
        """The records now survive the death of the process."""
        if self._segments.unsynced_messages >= self._config.flush_messages:
            self._sync()
        self._uncommitted_ms.clear()
        self.end = self._segments.end
        self._stable_end = self._undecided()  # last: a marker is visible before what it decides about
        return self.high_watermark

    def _settle(self, error: OSError | None) -> KafkaError | None:
        """Process the outcome of a commit together with other logs; return the refusal, if any."""
        try:
            self.check_open()
            if error is not None:
                raise self._storage_error("write", error)
            self._committed()
        except KafkaError as refusal:
            return refusal
        return None

    def sync_if_due(self) -> None:
        """flush.ms: sync records that have waited this long. Runs beside appends."""
        try:
            with self.lock:
                now_ms = self._now_ms()
                due = now_ms - self._synced_ms >= self._config.flush_ms
                if self._closed or not due or not self._segments.unsynced_messages:
                    return
                sync = self._segments.begin_sync()
            sync()
        except OSError as error:
            raise self._storage_error("sync", error) from error
        self._synced_ms = now_ms

    def _sync(self) -> None:
        try:
            self._segments.sync()
        except OSError as error:
            raise self._storage_error("sync", error) from error
        self._synced_ms = self._now_ms()

    # --- reading ----------------------------------------------------------------------------------

    def read(
        self, offset: int, bytes_max: int, *, first_may_exceed: bool, at_once: bool = False
    ) -> bytes | memoryview:
        """Whole batches below the high watermark, from the one that holds `offset` on. OFFSET_OUT_OF_RANGE
        (1), CORRUPT_MESSAGE (2). `at_once`: see `RecordLog.read`."""
        end = self.high_watermark
        return self._read(offset, end, bytes_max, first_may_exceed=first_may_exceed, at_once=at_once)

    def read_committed(
        self, offset: int, bytes_max: int, *, first_may_exceed: bool, at_once: bool = False
    ) -> tuple[bytes | memoryview, list[AbortedTransaction]]:
        """As `read`, but below the last stable offset; also returns the aborted transactions in what was
        read."""
        end = self.last_stable_offset
        while True:
            aborted = self.aborted
            found = self._read(offset, end, bytes_max, first_may_exceed=first_may_exceed, at_once=at_once)
            if self.aborted is aborted:  # else markers of some that were forgotten may be missing
                break
        if not found or not aborted.reaches(offset):
            return found, []
        return found, aborted.between(offset, end_of(found))

    def _read(
        self, offset: int, end: int, bytes_max: int, *, first_may_exceed: bool, at_once: bool = False
    ) -> bytes | memoryview:
        """Batches below `end`."""
        if not self.start_offset <= offset <= self.high_watermark:
            raise self._out_of_range(offset)
        if offset >= end:
            return b""
        segments = self._segments.segments
        try:
            found = self._segments.read(offset, bytes_max, first_may_exceed=first_may_exceed, at_once=at_once)
            if offset < self.start_offset:  # removed meanwhile, so what was found may be later records
                raise self._out_of_range(offset)
            return _below(found, end) if self._segments.next_offset > end else found
        except FileNotFoundError as missing:
            if self._closed:
                return b""
            # Retention, DeleteRecords or compaction removed the segment during the read, or it is lost.
            if self._segments.segments is segments:
                raise self._storage_error("read", missing) from missing
            return self._read(offset, end, bytes_max, first_may_exceed=first_may_exceed)
        except OSError as error:
            raise self._storage_error("read", error) from error
        except DecodeError as damage:
            raise self._damaged(damage) from damage

    def locate(
        self, offset: int, bytes_max: int, *, read_committed: bool = False, at_once: bool = False
    ) -> LogOffsetMetadata:
        """Where a `read` or `read_committed` of `offset` begins; see `RecordLog.locate`. An offset beyond the
        end of such a read is not looked up. CORRUPT_MESSAGE (2)."""
        end = self.stable_end if read_committed else self.end
        if offset > end.offset:
            return LogOffsetMetadata(offset, _SOMEWHERE, 0)
        if offset < end.offset:
            return self._looked_up(
                lambda: self._segments.locate(offset, end, bytes_max, at_once=at_once), end
            )
        if end.segment == _SOMEWHERE:
            return self._looked_up(lambda: self._to_the_byte(offset, at_once=at_once), end)
        return end

    def list_offset(self, timestamp: int, *, read_committed: bool = False) -> Listed:
        """ListOffsets: by time (epoch ms), or a `ListTimestamp`; for `read_committed` the log ends at its
        last stable offset, and anything found beyond it is not returned."""
        end = self.last_stable_offset if read_committed else self.high_watermark
        match timestamp:
            case _ if timestamp >= 0:
                return _told(self._at_time(timestamp), end)
            case ListTimestamp.LATEST:
                return Listed(end, -1, self.leader_epoch)
            case ListTimestamp.EARLIEST | ListTimestamp.EARLIEST_LOCAL:
                start = self.start_offset
                empty = start == self.high_watermark
                return Listed(start, -1, self.leader_epoch if empty else self._state.epochs.of(start))
            case ListTimestamp.MAX_TIMESTAMP:
                return _told(self._newest(), end)
            case ListTimestamp.LATEST_TIERED | ListTimestamp.EARLIEST_PENDING_UPLOAD:
                return NOTHING_LISTED  # nothing is tiered
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"timestamp {timestamp} is not supported")

    def _at_time(self, timestamp: int) -> Listed:
        """The first record with a timestamp >= `timestamp`."""
        return self._looked_up(lambda: self._first_since(timestamp), NOTHING_LISTED)

    def _newest(self) -> Listed:
        """The first of the records with the highest timestamp (KIP-734)."""
        newest = max((segment.newest_timestamp for segment in self._segments.segments), default=-1)
        if newest < 0:
            return NOTHING_LISTED
        found = self._at_time(newest)
        # The bounds of segments and batches also count records that DeleteRecords or compaction removed.
        return self._looked_up(self._newest_left, NOTHING_LISTED) if found is NOTHING_LISTED else found

    def _looked_up(self, look_up: Callable[[], _T], if_closed: _T) -> _T:
        """The result of `look_up`, which is called again if a segment was removed under it."""
        while True:
            segments = self._segments.segments
            try:
                return look_up()
            except FileNotFoundError as missing:
                if self._closed:
                    return if_closed
                if self._segments.segments is segments:
                    raise self._storage_error("read", missing) from missing
            except OSError as error:
                raise self._storage_error("read", error) from error
            except DecodeError as damage:
                raise self._damaged(damage) from damage

    def _first_since(self, timestamp: int) -> Listed:
        first = self._segments.first_batch_at(timestamp)
        if first is None:
            return NOTHING_LISTED
        # The records that reach this time may be gone from their batch: the search then continues after it.
        for batch in self._visible(chain((first,), self._segments.batches(first.header.next_offset))):
            if batch.header.max_timestamp >= timestamp:
                for record in self._left(batch):
                    if record.timestamp >= timestamp:
                        return Listed(record.offset, record.timestamp, batch.header.leader_epoch)
        return NOTHING_LISTED

    def _newest_left(self) -> Listed:
        """As `_newest`, but from the records themselves, in every segment that may hold it."""
        newest = NOTHING_LISTED
        segments = self._segments.segments_from(self.start_offset)
        for segment in sorted(segments, key=lambda segment: -segment.newest_timestamp):
            if (segment.newest_timestamp, -segment.base_offset) <= (newest.timestamp, -newest.offset):
                continue
            start = max(segment.base_offset, self.start_offset)
            for batch in self._visible(self._segments.batches(start)):
                if batch.header.base_offset >= segment.next_offset:
                    break
                if batch.header.max_timestamp >= newest.timestamp:
                    for record in self._left(batch):
                        if (record.timestamp, -record.offset) > (newest.timestamp, -newest.offset):
                            newest = Listed(record.offset, record.timestamp, batch.header.leader_epoch)
        return newest

    def _visible(self, found: Iterable[Batch]) -> Iterator[Batch]:
        """The batches below the high watermark."""
        end = self.high_watermark
        return takewhile(lambda batch: batch.header.base_offset < end, found)

    def _left(self, batch: Batch) -> Iterator[Record]:
        """The batch's records at or above the log start."""
        found = records(batch.contents, 0, batch.header)
        return (record for record in found if record.offset >= self.start_offset)

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """OffsetForLeaderEpoch: see `Epochs.end_of`."""
        return self._state.epochs.end_of(epoch, self.leader_epoch, self.high_watermark)

    def active_producers(self) -> list[ActiveProducer]:
        """The producers that are known, by id."""
        with self.lock:
            return self._state.producers.active()

    def held_back(self) -> HeldBack | None:
        """What open transactions hold back here, if anything."""
        with self.lock:
            found = self._state.producers.open()
            stable, end = self.last_stable_offset, self.high_watermark
        if not found or stable == end:
            return None
        producer_id, epoch, first = found[0]
        began_ms, open_since_ms = self._begun_at(first)
        oldest = OpenTransaction(producer_id, epoch, first, began_ms, open_since_ms)
        return HeldBack(stable, end, oldest, len(found) - 1)

    def _begun_at(self, offset: int) -> tuple[int | None, int]:
        """The time of the record that a transaction begins with, None if it is gone or cannot be read; and
        since when it has been open here."""
        noted = self._began_ms.get(offset)
        if noted is not None:
            return noted
        with suppress(KafkaError):  # fetches will report it
            batch = self._looked_up(lambda: next(self._segments.batches(offset), None), None)
            if batch is not None and batch.header.base_offset == offset:
                return batch.header.first_timestamp, self._opened_ms
        return None, self._opened_ms

    def diverges(self, fetch_offset: int, last_fetched_epoch: int) -> tuple[int, int] | None:
        """(epoch, end offset) to cut back to if a fetcher's log is not a prefix of this one (KIP-595), else
        None. OFFSET_OUT_OF_RANGE (1) for an unknown epoch."""
        epoch, end = self.end_of_epoch(last_fetched_epoch)
        if epoch < 0:
            raise self._out_of_range(fetch_offset)
        return (epoch, end) if epoch < last_fetched_epoch or end < fetch_offset else None

    # --- removing ---------------------------------------------------------------------------------

    def delete_records(self, before_offset: int) -> int:
        """DeleteRecords; -1 stands for the high watermark. Returns the new log start offset. Codes 1, 44."""
        with self.lock:
            self.check_open()
            if self._config.compacts and not self._config.deletes:
                raise KafkaError(
                    ErrorCode.POLICY_VIOLATION,
                    f"records of {self.name} cannot be deleted: its cleanup.policy is compact",
                )
            offset = self.high_watermark if before_offset == -1 else before_offset
            if not 0 <= offset <= self.high_watermark:
                raise self._out_of_range(offset)
            if offset > self.start_offset:
                try:
                    self._segments.set_start_offset(offset)
                except OSError as error:
                    raise self._storage_error("write", error) from error
                # Only now: until the log start is stored, a start reads what retention could not remove.
                self._state.forget_before(self.start_offset)
            start_offset = self.start_offset
        with suppress(OSError):  # the log start is stored; retention removes what is left, or reports it
            self._segments.remove_files()
        return start_offset

    def forget_removed(self) -> None:
        """After retention has removed segments, drop what belonged only to them. The caller holds `lock`."""
        self._state.forget_before(self.start_offset)

    def forget_aborted(self, markers: Set[int]) -> None:
        """Compaction found nothing of the aborted transactions whose markers are at these offsets, and may
        remove the markers: stop reporting them, durably. If reported without its marker, a transaction would
        take its producer's next records with it. The caller holds `lock`."""
        before = self._state.aborted
        self._state.aborted = before.without(markers)
        if self._state.aborted is before:
            return
        try:
            self._segments.note_derived()
        except OSError as error:
            self._state.aborted = before
            raise self._storage_error("write", error) from error

    # --- the end ----------------------------------------------------------------------------------

    def seal(self) -> None:
        """Sync and index newly closed segments; runs beside appends, but one at a time."""
        try:
            self._segments.seal()
        except OSError as error:
            raise self._storage_error("seal a segment of", error) from error

    def mark(self, bytes_min: int) -> None:
        """Bound what a start after a crash must scan: note how far the log is, once it has grown by
        `bytes_min` bytes."""
        with self.lock:
            if self._closed or self._segments.unmarked_bytes < bytes_min:
                return
            trust = self._segments.mark()
        try:
            trust()
        except OSError as error:
            raise self._storage_error("sync", error) from error

    def rest(self) -> None:
        """Release what an idle log holds open, but not before a sync that its topic requires: a file that is
        opened later may not report what could not be written before."""
        with self.lock:
            if not self._closed and not (self._segments.unsynced_messages and self._config.syncs):
                self._segments.rest()

    def close(self) -> None:
        """Refuse appends from now on, sync, and note the end so that the next opening is quick."""
        with self.lock:
            if self._closed:
                return
            self._closed = True
            try:
                if self._segments.failed:
                    self._segments.abandon()
                else:
                    self._segments.close()
            except OSError as error:
                raise self._storage_error("close", error) from error

    def fence(self) -> None:
        """Refuse appends from now on and write nothing more: another leader opens the log."""
        with self.lock:
            self._closed = True
            self._segments.abandon()

    def check_open(self) -> None:
        """NOT_LEADER_OR_FOLLOWER (6) when another leader has the log, or this one gave it up."""
        if self._closed:
            raise KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER, f"leader epoch {self.leader_epoch} of {self.name} has ended"
            )

    def _out_of_range(self, offset: int) -> KafkaError:
        bounds = f"{self.start_offset} to {self.high_watermark}"
        return KafkaError(
            ErrorCode.OFFSET_OUT_OF_RANGE, f"offset {offset} of {self.name} is outside its log, {bounds}"
        )

    def _damaged(self, error: DecodeError) -> KafkaError:
        return KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{self.name} in {self.path}: {error}")

    def _storage_error(self, doing: str, error: OSError) -> KafkaError:
        if isinstance(error, Fenced):
            self._closed = True
            return KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self.name}: {error}")
        full = error.errno in (ENOSPC, EDQUOT)
        what = "the disk is full" if full else str(error)
        reason = what if full else error.strerror or what
        return StorageFault(f"cannot {doing} the log of {self.name} in {self.path}: {what}", reason)


def commit_together(storage: RecordStorage, logs: Sequence[PartitionLog]) -> list[KafkaError | None]:
    """`PartitionLog.commit` of all `logs`, at once as far as their `storage` can; return the refusal of each,
    or None."""
    with ExitStack() as locks:
        for log in logs:  # nobody else holds the locks of two
            locks.enter_context(log.lock)
        ready = [log for log in logs if not log.closed]
        outcomes = dict(zip(ready, storage.commit([log.segments for log in ready]), strict=True))
        return [log._settle(outcomes.get(log)) for log in logs]


def _limits(config: TopicConfig) -> Limits:
    # Only closed segments are compacted, so a segment must be closed before its records have waited too long.
    segment_ms = (
        min(config.segment_ms, config.max_compaction_lag_ms) if config.compacts else config.segment_ms
    )
    return Limits(config.segment_bytes_max, segment_ms, config.index_interval_bytes)


def _told(found: Listed, end_offset: int) -> Listed:
    return found if found.offset < end_offset else NOTHING_LISTED


def _below(data: bytes | memoryview, end_offset: int) -> bytes | memoryview:
    """The batches below `end_offset`."""
    for position, header in batches(data):
        if header.base_offset >= end_offset:
            return data[:position]
    return data

"""One partition's log as its leader sees it: validation, offsets, the high watermark, lookups by time and
epoch.

Blocks on files or on a database: every method but the plain attributes is called from an executor. `lock`
serialises what changes the log; reads need no lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
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
from muster.coordinator.topics.config import TopicConfig
from muster.coordinator.topics.epochs import Epochs
from muster.coordinator.topics.producers import ActiveProducer, Producers
from muster.coordinator.topics.refused import Refused
from muster.coordinator.topics.validation import Validated, validate
from muster.protocol.errors import DecodeError, ErrorCode, KafkaError
from muster.protocol.record_batch import Header, Record, batches, records

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
    """Answer of ListOffsets: -1, -1, -1 when nothing is at or after the asked time."""

    offset: int
    timestamp: int
    leader_epoch: int


NOTHING_LISTED: Final = Listed(-1, -1, -1)


class _State:
    """What is derived from the batches; see `records.Derived`."""

    def __init__(self) -> None:
        self.producers = Producers()
        self.epochs = Epochs()

    def observe(self, header: Header) -> None:
        self.producers.observe(header)
        self.epochs.observe(header)

    def snapshot(self) -> bytes:
        return self.producers.snapshot() + self.epochs.snapshot()

    def restore(self, snapshot: bytes) -> None:
        end = self.producers.restore(snapshot)
        end += self.epochs.restore(snapshot[end:])
        if end != len(snapshot):
            raise ValueError("the snapshot has trailing bytes")

    def reset(self) -> None:
        self.producers.reset()
        self.epochs.reset()


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
    ) -> None:
        """Open or begin the log at `place`: recovers what a crash left. `name` is for messages ("orders-3");
        `refused` outlives the log, and is noted in by whoever appends."""
        self.name = name
        self.leader_epoch = leader_epoch
        self.lock = RLock()
        self._place = place
        self._now_ms = now_ms
        self._state = _State()
        self._refused = Refused() if refused is None else refused
        self._config = config
        self._closed = False
        self._synced_ms = now_ms()
        try:
            self._segments = place.open(self._state, _limits(config), now_ms)
        except OSError as error:
            raise self._storage_error("open", error) from error
        self._state.epochs.forget_before(self._segments.start_offset)
        self.end = self._segments.end
        """Where the high watermark lies."""

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
    def config(self) -> TopicConfig:
        return self._config

    @config.setter
    def config(self, config: TopicConfig) -> None:
        self._config = config
        self._segments.limits = _limits(config)

    @property
    def failed(self) -> bool:
        """Writing failed in a way that leaves unknown what is stored: close this and open the log anew."""
        return self._segments.failed

    @property
    def closed(self) -> bool:
        """Closed or fenced: appends are refused."""
        return self._closed

    # --- appending --------------------------------------------------------------------------------

    def append(self, data: bytes, *, zstd_allowed: bool = True) -> Appended:
        """Validate one produced batch and write it; see `write`, and `Partitions.append` for the codes."""
        return self.write(validate(data, self._config, self._now_ms(), zstd_allowed=zstd_allowed))

    def write(self, validated: Validated) -> Appended:
        """Write a batch at the log end; visible and acknowledged after `commit`. Codes 6, 45, 47, 56.

        A repeat is answered as the first time was, which may not be durable either before `commit`.
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
            repeated = self._state.producers.check(header)
            if repeated is not None:
                return Appended(repeated, -1, self.start_offset, self.leader_epoch)
            try:
                assigned = self._segments.append(batch, header, self.leader_epoch)
            except OSError as error:
                raise self._storage_error("write", error) from error
            return Appended(assigned.base_offset, log_append_time_ms, self.start_offset, self.leader_epoch)

    def commit(self) -> int:
        """Make what was appended durable at the topic's flush level, then visible; the high watermark.

        flush.messages: synced whenever so many messages are not; by default never, so that records survive
        the death of the process but perhaps not that of the machine.
        """
        with self.lock:
            self.check_open()
            try:
                self._segments.commit()
            except OSError as error:
                raise self._storage_error("write", error) from error
            return self._committed()

    def _committed(self) -> int:
        """The records survive the death of the process."""
        if self._segments.unsynced_messages >= self._config.flush_messages:
            self._sync()
        self.end = self._segments.end
        return self.high_watermark

    def _settle(self, error: OSError | None) -> KafkaError | None:
        """What came of a commit together with other logs."""
        try:
            self.check_open()
            if error is not None:
                raise self._storage_error("write", error)
            self._committed()
        except KafkaError as refusal:
            return refusal
        return None

    def sync_if_due(self) -> None:
        """flush.ms: sync what has waited for so long."""
        with self.lock:
            waited_ms = self._now_ms() - self._synced_ms
            if not self._closed and self._segments.unsynced_messages and waited_ms >= self._config.flush_ms:
                self._sync()

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
        if not self.start_offset <= offset <= end:
            raise self._out_of_range(offset)
        if offset == end:
            return b""
        segments = self._segments.segments
        try:
            found = self._segments.read(offset, bytes_max, first_may_exceed=first_may_exceed, at_once=at_once)
            return _below(found, end) if self._segments.next_offset > end else found
        except FileNotFoundError as error:
            if self._closed:
                return b""
            # Retention, DeleteRecords or compaction took the segment from under the read, or it is lost.
            if self._segments.segments is segments:
                raise self._storage_error("read", error) from error
            return self.read(offset, bytes_max, first_may_exceed=first_may_exceed)
        except OSError as error:
            raise self._storage_error("read", error) from error
        except DecodeError as error:
            raise self._damaged(error) from error

    def locate(self, offset: int, bytes_max: int, *, at_once: bool = False) -> LogOffsetMetadata:
        """Where a `read` of `offset` begins; see `RecordLog.locate`. CORRUPT_MESSAGE (2)."""
        end = self.end
        if offset >= end.offset:
            return end
        return self._looked_up(lambda: self._segments.locate(offset, end, bytes_max, at_once=at_once), end)

    def list_offset(self, timestamp: int) -> Listed:
        """ListOffsets: by time (epoch ms), or a `ListTimestamp`."""
        match timestamp:
            case _ if timestamp >= 0:
                return self._at_time(timestamp)
            case ListTimestamp.LATEST:
                return Listed(self.high_watermark, -1, self.leader_epoch)
            case ListTimestamp.EARLIEST | ListTimestamp.EARLIEST_LOCAL:
                start = self.start_offset
                empty = start == self.high_watermark
                return Listed(start, -1, self.leader_epoch if empty else self._state.epochs.of(start))
            case ListTimestamp.MAX_TIMESTAMP:
                return self._newest()
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
        # The bounds of segments and batches also count records that DeleteRecords or compaction took away.
        return self._looked_up(self._newest_left, NOTHING_LISTED) if found is NOTHING_LISTED else found

    def _looked_up(self, look_up: Callable[[], _T], if_closed: _T) -> _T:
        """What `look_up` finds; it is called again when a segment was removed under it."""
        while True:
            segments = self._segments.segments
            try:
                return look_up()
            except FileNotFoundError as error:
                if self._closed:
                    return if_closed
                if self._segments.segments is segments:
                    raise self._storage_error("read", error) from error
            except OSError as error:
                raise self._storage_error("read", error) from error
            except DecodeError as error:
                raise self._damaged(error) from error

    def _first_since(self, timestamp: int) -> Listed:
        first = self._segments.first_batch_at(timestamp)
        if first is None:
            return NOTHING_LISTED
        # The records that reach this time may be gone from their batch: then the search goes on behind it.
        for batch in self._visible(chain((first,), self._segments.batches(first.header.next_offset))):
            if batch.header.max_timestamp >= timestamp:
                for record in self._left(batch):
                    if record.timestamp >= timestamp:
                        return Listed(record.offset, record.timestamp, batch.header.leader_epoch)
        return NOTHING_LISTED

    def _newest_left(self) -> Listed:
        """As `_newest`, from the records themselves: those of every segment that may hold it."""
        newest = NOTHING_LISTED
        segments = self._segments.segments_from(self.start_offset)
        for segment in sorted(segments, key=lambda segment: -segment.newest_timestamp):
            if (segment.newest_timestamp, -segment.base_offset) <= (newest.timestamp, -newest.offset):
                continue
            for batch in self._visible(self._segments.batches(segment.base_offset)):
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
        """The idempotent producers whose batches are known, by id."""
        with self.lock:
            return self._state.producers.active()

    def diverges(self, fetch_offset: int, last_fetched_epoch: int) -> tuple[int, int] | None:
        """(epoch, end offset) to cut back to if a fetcher's log is not a prefix of this one (KIP-595), else
        None. OFFSET_OUT_OF_RANGE (1) for an epoch of which nothing is known."""
        epoch, end = self.end_of_epoch(last_fetched_epoch)
        if epoch < 0:
            raise self._out_of_range(fetch_offset)
        return (epoch, end) if epoch < last_fetched_epoch or end < fetch_offset else None

    # --- removing ---------------------------------------------------------------------------------

    def delete_records(self, before_offset: int) -> int:
        """DeleteRecords: the new log start offset; -1 stands for the high watermark. Codes 1, 44."""
        with self.lock:
            self.check_open()
            if not self._config.deletes:
                raise KafkaError(
                    ErrorCode.POLICY_VIOLATION,
                    f"records of {self.name} cannot be deleted: its cleanup.policy is compact",
                )
            offset = self.high_watermark if before_offset == -1 else before_offset
            if not 0 <= offset <= self.high_watermark:
                raise self._out_of_range(offset)
            try:
                self._segments.set_start_offset(offset)
            except OSError as error:
                raise self._storage_error("write", error) from error
            self._state.epochs.forget_before(self.start_offset)
            return self.start_offset

    def forget_removed(self) -> None:
        """After retention removed segments: drop what was known of them only. Holds `lock`."""
        self._state.epochs.forget_before(self.start_offset)

    # --- the end ----------------------------------------------------------------------------------

    def seal(self) -> None:
        """Sync and index the segments that were closed since; beside appends, but one at a time."""
        try:
            self._segments.seal()
        except OSError as error:
            raise self._storage_error("seal a segment of", error) from error

    def mark(self, bytes_min: int) -> None:
        """Bound what a start after a crash must scan: note how far the log is, once it grew by `bytes_min`
        bytes."""
        with self.lock:
            if self._closed or self._segments.unmarked_bytes < bytes_min:
                return
            trust = self._segments.mark()
        try:
            trust()
        except OSError as error:
            raise self._storage_error("sync", error) from error

    def rest(self) -> None:
        """Give back what an idle log holds open."""
        with self.lock:
            if not self._closed:
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
        what = "the disk is full" if error.errno in (ENOSPC, EDQUOT) else str(error)
        return KafkaError(
            ErrorCode.KAFKA_STORAGE_ERROR, f"cannot {doing} the log of {self.name} in {self.path}: {what}"
        )


def commit_together(storage: RecordStorage, logs: Sequence[PartitionLog]) -> list[KafkaError | None]:
    """`PartitionLog.commit` of all of them, in one go as far as `storage`, on which they stand, can; why not,
    of each."""
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


def _below(data: bytes | memoryview, end_offset: int) -> bytes | memoryview:
    """The batches below `end_offset`."""
    for position, header in batches(data):
        if header.base_offset >= end_offset:
            return data[:position]
    return data

"""Log compaction of one partition (cleanup.policy=compact): the newest record of each key stays.

Works on closed segments; the active one is never touched. Kept records keep their offsets, and batches their
first and last ones, so consumer positions stay valid. Tombstones stay for delete.retention.ms after the first
cleaning that met them (KIP-534), so that a consumer that follows the log sees them. How far the log has been
cleaned is stored in its folder, so that an unfinished pass is repeated.

Nothing is touched from the last stable offset on, where it is not decided yet which records count. Below it,
records of aborted transactions do not count: they are removed, and no older record of their keys is removed
because of them. A marker outlives the batches of its transaction: the first cleaning that meets none of them
gives it as much time as tombstones, and one after that removes it. An aborted transaction is no longer
reported from the first on, so it is forgotten before its marker is removed.

A batch that has lost its records stays without them while it holds its producer's last sequence or epoch, and
at the end of the log and of what readers of committed records may see, so that consumers get there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final

from muster.coordinator.storage.records import Batch, RecordDraft, RecordSegment
from muster.coordinator.topics.aborted import AbortedRanges
from muster.coordinator.topics.cleaned_transactions import CleanedTransactions
from muster.coordinator.topics.log import PartitionLog
from muster.protocol.compression import Codec
from muster.protocol.errors import DecodeError, ErrorCode, KafkaError
from muster.protocol.record_batch import PRESERVED, Header, Record, build, peek, records
from muster.settings import INT64_MAX

KEYS_MAX: Final = 1_000_000
KEY_BYTES_MAX: Final = 64 << 20
"""Keys remembered in one pass, and bytes of all of them, as log.cleaner.dedupe.buffer.size bounds Kafka's;
more take more passes."""


def compact(
    log: PartitionLog, now_ms: int, *, keys_max: int = KEYS_MAX, key_bytes_max: int = KEY_BYTES_MAX
) -> bool:
    """Clean the closed segments if the log is `due`; return whether anything was rewritten.

    As in Kafka, one pass is made. Where it has reached `keys_max` keys, or `key_bytes_max` bytes of them, the
    log stays dirty. Called from the executor, one at a time per log. CORRUPT_MESSAGE (2) when a segment
    cannot be read to its end.
    """
    dirty_end = _dirty_end(log, now_ms)
    if dirty_end is None:
        return False
    start, aborted = log.segments.cleaned_offset, AbortedRanges(log.aborted)
    try:
        newest, end = _newest_offsets(log, aborted, start, dirty_end, keys_max, key_bytes_max)
    except DecodeError as error:
        raise _not_compacted(log, str(error)) from error
    # No newest record of this pass comes after it: records there are left to later passes.
    segments = [segment for segment in _cleanable(log, now_ms) if segment.base_offset < end]
    cleaning = _Cleaning(log, now_ms, newest, aborted, end)
    for group in _groups(segments, log.config.segment_bytes_max):
        if not _rewrite(cleaning, group):
            return False
    with log.lock:
        if log.closed:
            return False
        log.segments.note_cleaned(end)
    return True


def due(log: PartitionLog, now_ms: int) -> bool:
    """Whether enough of the closed segments is dirty.

    Enough is more than min.cleanable.dirty.ratio, or dirty records older than max.compaction.lag.ms. Segments
    with records younger than min.compaction.lag.ms are left alone.
    """
    return _dirty_end(log, now_ms) is not None


def _dirty_end(log: PartitionLog, now_ms: int) -> int | None:
    """Where the dirty records that can be cleaned end; None if the log is not `due`."""
    cleanable = _cleanable(log, now_ms)
    dirty = [segment for segment in cleanable if segment.next_offset > log.segments.cleaned_offset]
    if not dirty or not _due(log, cleanable, dirty, now_ms):
        return None
    return cleanable[-1].next_offset


def _cleanable(log: PartitionLog, now_ms: int) -> list[RecordSegment]:
    lag_ms = log.config.min_compaction_lag_ms
    cleanable = []
    stable_offset = log.last_stable_offset
    for segment in log.segments.sealed_segments:
        if segment.next_offset > stable_offset:
            break
        if lag_ms and now_ms - segment.newest_ms < lag_ms:
            break
        cleanable.append(segment)
    return cleanable


def _due(
    log: PartitionLog, cleanable: Sequence[RecordSegment], dirty: Sequence[RecordSegment], now_ms: int
) -> bool:
    dirty_bytes = sum(segment.size for segment in dirty)
    total_bytes = sum(segment.size for segment in cleanable)
    if not dirty_bytes:
        return False
    if dirty_bytes / total_bytes > log.config.min_cleanable_dirty_ratio:
        return True
    # As in Kafka, records without a time, or from before 1970, do not count here.
    first_ms = [segment.first_timestamp for segment in dirty if segment.first_timestamp > 0]
    return bool(first_ms) and now_ms - min(first_ms) > log.config.max_compaction_lag_ms


def _newest_offsets(
    log: PartitionLog, aborted: AbortedRanges, start: int, end: int, keys_max: int, key_bytes_max: int
) -> tuple[dict[bytes, int], int]:
    """The last offset of each key in the batches from `start` on, and where the pass ended: at `end`, or
    after `keys_max` keys or `key_bytes_max` bytes of them. Incomplete if the log is closed meanwhile."""
    newest: dict[bytes, int] = {}
    key_bytes = 0
    for batch in log.segments.batches(start):
        if log.closed or batch.header.base_offset >= end:
            break
        if len(newest) >= keys_max or key_bytes >= key_bytes_max:
            return newest, batch.header.base_offset
        if batch.header.is_control or aborted.cover(batch.header):
            continue
        for record in _readable(batch) or ():
            if record.key is not None:
                if record.key not in newest:
                    key_bytes += len(record.key)
                newest[record.key] = record.offset
    return newest, end


def _readable(batch: Batch) -> list[Record] | None:
    """The records of a batch; None when it cannot be read, and must then be kept unchanged."""
    try:
        return list(records(batch.contents, 0, batch.header, names=PRESERVED))
    except DecodeError:
        return None


def _groups(segments: Sequence[RecordSegment], bytes_max: int) -> Iterator[list[RecordSegment]]:
    """Group neighbours that fit into one segment, so that a cleaned log is not a heap of small files."""
    group: list[RecordSegment] = []
    size = 0
    for segment in segments:
        if group and size + segment.size > bytes_max:
            yield group
            group, size = [], 0
        group.append(segment)
        size += segment.size
    if group:
        yield group


def _rewrite(cleaning: _Cleaning, group: Sequence[RecordSegment]) -> bool:
    """Clean a group of segments into one. False when the log was closed or the segments removed meanwhile."""
    log = cleaning.log
    generation = max(segment.generation for segment in group) + 1
    with log.lock:
        if log.closed:
            return False  # the folder is another leader's by now, or was removed with its topic
        draft = log.segments.new_draft(group[0].base_offset, generation)
    try:
        for segment in group:
            _clean(cleaning, segment, draft)
        if log.closed:
            return False
        draft.flush()  # which may take long, and appends wait for the lock
        with log.lock:
            if log.closed:
                return False
            log.forget_aborted(cleaning.transactions.emptied)
            log.segments.replace(group, draft)
    except ValueError:
        return False  # removed meanwhile
    finally:
        with log.lock:
            log.segments.discard(draft)
    with suppress(OSError):  # retention removes what is left, or reports it
        log.segments.remove_files()
    return True


def _clean(cleaning: _Cleaning, segment: RecordSegment, draft: RecordDraft) -> None:
    """Append what stays of a segment to `draft`."""
    log = cleaning.log
    try:
        for batch in segment.whole_batches():
            if log.closed:
                return
            cleaned = cleaning.cleaned(batch)
            if cleaned is not None:
                draft.append([cleaned], peek(cleaned))
    except DecodeError as error:
        # Everything after an unreadable header would be lost with the file.
        raise _not_compacted(log, str(error)) from error


def _not_compacted(log: PartitionLog, why: str) -> KafkaError:
    return KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{log.name} in {log.path} is not compacted: {why}")


class _Cleaning:
    """One pass through the log from its start, batch by batch. Records from `end` on are left to a later
    pass, also where they are in a segment that this one rewrites: until it knows their keys, a tombstone is
    needed."""

    def __init__(
        self, log: PartitionLog, now_ms: int, newest: dict[bytes, int], aborted: AbortedRanges, end: int
    ) -> None:
        self.log = log
        self.transactions = CleanedTransactions()
        self._now_ms = now_ms
        self._newest = newest
        self._aborted = aborted
        self._end = end

    def cleaned(self, batch: Batch) -> bytes | None:
        """The batch without its removed records; None if nothing of it is left."""
        header = batch.header
        if header.is_control:
            return self._cleaned_marker(batch)
        self.transactions.meet_batch(header)
        found = _readable(batch)
        if found is None:
            return batch.contents
        kept = [] if self._aborted.cover(header) else [each for each in found if self._stays(each, header)]
        return self._rebuilt(batch, found, kept, expires=any(record.value is None for record in kept))

    def _cleaned_marker(self, batch: Batch) -> bytes | None:
        useless = self.transactions.meet_marker(batch.header, batch.contents)
        found = _readable(batch)
        if found is None:
            return batch.contents
        kept = [] if useless and self._expired(batch.header) else found
        return self._rebuilt(batch, found, kept, expires=useless)

    def _stays(self, record: Record, header: Header) -> bool:
        if record.offset >= self._end:
            return True
        if record.key is None:
            return False  # from before the topic was compacted: it has no place in a log by key
        if self._newest.get(record.key, -1) > record.offset:
            return False
        return record.value is not None or not self._expired(header)

    def _expired(self, header: Header) -> bool:
        """Whether the time that the batch's tombstones, or its marker, are kept is over."""
        return header.delete_horizon_ms is not None and header.delete_horizon_ms <= self._now_ms

    def _rebuilt(
        self, batch: Batch, found: Sequence[Record], kept: Sequence[Record], *, expires: bool
    ) -> bytes | None:
        """The batch with only its `kept` records; it gets a delete horizon if it `expires` and has none."""
        header = batch.header
        if not kept and not self._outlives_records(header):
            return None
        horizon_ms = header.delete_horizon_ms
        if kept and expires and horizon_ms is None:
            horizon_ms = min(self._now_ms + self.log.config.delete_retention_ms, INT64_MAX)
        elif len(kept) == len(found):
            return batch.contents
        return _with_records(header, kept, horizon_ms)

    def _outlives_records(self, header: Header) -> bool:
        ends = (self.log.last_stable_offset, self.log.high_watermark)
        return self.log.producers.is_newest(header) or header.next_offset in ends


def _with_records(header: Header, kept: Sequence[Record], horizon_ms: int | None) -> bytes:
    """A batch with the same offsets, producer and sequences around fewer records."""
    return build(
        kept,
        base_offset=header.base_offset,
        last_offset=header.last_offset,
        leader_epoch=header.leader_epoch,
        codec=Codec(header.codec) if kept else Codec.NONE,
        log_append_time_ms=header.max_timestamp if header.is_log_append_time else None,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        transactional=header.is_transactional,
        control=header.is_control,
        delete_horizon_ms=horizon_ms if kept else None,
        max_timestamp=None if kept else header.max_timestamp,
    )

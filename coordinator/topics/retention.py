"""Retention of one partition's log: whole segments are removed when they are too old, or the log is too large
(KIP-405 aside)."""

from __future__ import annotations

from collections.abc import Iterator

from muster.coordinator.storage.records import RecordSegment
from muster.coordinator.topics.log import PartitionLog


def expire(log: PartitionLog, now_ms: int) -> int:
    """Remove the oldest segments as retention.ms and retention.bytes demand; return how many.

    By time, a segment is removed when its newest record is too old, or its last append if its records have no
    time. By size, the oldest are removed while at least retention.bytes remain. If even the active one is to
    go, a new one is begun; that is so by size only if retention.bytes is 0. Only with cleanup.policy delete.
    What is entirely below the log start, as DeleteRecords may leave it on a full disk, always goes.
    """
    try:
        count = _remove(log, now_ms)
    finally:
        log.segments.remove_files()  # which may take long, and appends wait for the lock
    if count:
        with log.lock:  # not before: a start after a crash reads the files that are left
            log.forget_removed()
    return count


def _remove(log: PartitionLog, now_ms: int) -> int:
    with log.lock:
        if log.closed:
            return 0
        deleted = _below_start(log)
        _remove_first(log, deleted)
        if not log.config.deletes:
            return deleted
        expired = _too_old(log, now_ms)
        _remove_first(log, expired)
        too_many = _too_large(log)
        _remove_first(log, too_many)
        return deleted + expired + too_many


def _remove_first(log: PartitionLog, count: int) -> None:
    if count and count == len(log.segments.segments):
        log.segments.roll()
    log.segments.remove_first(count)


def _below_start(log: PartitionLog) -> int:
    # A segment extends to where the next one begins.
    return sum(segment.base_offset <= log.start_offset for segment in log.segments.segments[1:])


def _removable(log: PartitionLog) -> Iterator[RecordSegment]:
    """The segments whose records are all visible; not the active one while it is empty."""
    end = log.high_watermark
    for segment in log.segments.segments:
        if segment.next_offset > end or (segment.size == 0 and segment is log.segments.segments[-1]):
            return
        yield segment


def _too_old(log: PartitionLog, now_ms: int) -> int:
    retention_ms = log.config.retention_ms
    count = 0
    if retention_ms < 0:
        return 0
    for segment in _removable(log):
        if now_ms - segment.newest_ms <= retention_ms:
            break
        count += 1
    return count


def _too_large(log: PartitionLog) -> int:
    retention_bytes = log.config.retention_bytes
    if retention_bytes < 0:
        return 0
    count = 0
    excess = log.segments.size - retention_bytes
    for segment in _removable(log):
        excess -= segment.size
        if excess < 0:
            break
        count += 1
    return count

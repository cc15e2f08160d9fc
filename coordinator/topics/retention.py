"""Retention of one partition's log: whole segments are removed when they are too old, or the log is too large
(KIP-405 aside)."""

from __future__ import annotations

from muster.coordinator.topics.log import PartitionLog


def expire(log: PartitionLog, now_ms: int) -> int:
    """Remove the oldest segments as retention.ms and retention.bytes demand; return how many.

    By time, a segment is removed when its newest record is too old, or its last append if its records have no
    time; if even the active one is, a new one is begun and all are removed. By size, the oldest are removed
    while at least retention.bytes remain; the active one stays. Only with cleanup.policy delete.
    """
    with log.lock:
        if log.closed or not log.config.deletes:
            return 0
        segments = log.segments
        before = len(segments.segments)
        expired = _too_old(log, now_ms)
        if expired and expired == before:
            segments.roll()
        segments.remove_first(expired)
        too_many = _too_large(log)
        segments.remove_first(too_many)
        if expired + too_many:
            log.forget_removed()
        return expired + too_many


def _too_old(log: PartitionLog, now_ms: int) -> int:
    retention_ms = log.config.retention_ms
    count = 0
    if retention_ms < 0:
        return 0
    for segment in log.segments.segments:
        if segment.size == 0 or now_ms - segment.newest_ms <= retention_ms:
            break
        count += 1
    return count


def _too_large(log: PartitionLog) -> int:
    retention_bytes = log.config.retention_bytes
    if retention_bytes < 0:
        return 0
    count = 0
    excess = log.segments.size - retention_bytes
    for segment in log.segments.segments[:-1]:
        excess -= segment.size
        if excess < 0:
            break
        count += 1
    return count

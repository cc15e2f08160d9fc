"""One partition that this broker leads, and the fetches that wait for it to grow."""

from __future__ import annotations

from threading import Lock
from typing import Final

from muster.coordinator.base.log import Logger
from muster.coordinator.storage.files import WouldBlock
from muster.coordinator.storage.records import LogOffsetMetadata
from muster.coordinator.storage.store import Lease
from muster.coordinator.topics.catalogue import Topic
from muster.coordinator.topics.damage import Damage
from muster.coordinator.topics.log import PartitionLog
from muster.coordinator.topics.logs import Logs
from muster.coordinator.topics.sources import (
    NOTHING_AVAILABLE,
    Available,
    FetchedPartition,
    FetchPartition,
    Parked,
    Watched,
)

_log = Logger(part="topics")

_NAMED_MAX: Final = 20  # transactions named in a log line


class Led:
    """One led partition: from the first request for it until the leadership or the topic ends, or for as long
    as its upkeep takes."""

    __slots__ = (
        "_committed_watchers",
        "_nothing_to_read",
        "_watchers",
        "asked_for",
        "damage",
        "ended",
        "leader_epoch",
        "lease",
        "lease_epoch",
        "lock",
        "log",
        "partition",
        "topic",
    )

    def __init__(self, topic: Topic, partition: int, lease: Lease, lease_epoch: int) -> None:
        self.topic = topic
        self.partition = partition
        self.lease = lease
        self.lease_epoch = lease_epoch
        self.leader_epoch = topic.epoch_base(partition) + lease_epoch
        self.lock = Lock()  # held while the log is opened or given up, both in the executor
        self.log: PartitionLog | None = None
        self.ended = False
        self.asked_for = False  # by a request; if not, it is dropped when its upkeep is done
        self.damage = Damage(self.name)
        self._nothing_to_read = FetchedPartition(None, b"", -1, -1, -1, -1)
        self._watchers: dict[Watched, LogOffsetMetadata] = {}  # with where their fetches read from
        self._committed_watchers: dict[Watched, LogOffsetMetadata] = {}  # of read_committed

    @property
    def name(self) -> str:
        return f"{self.topic.name}-{self.partition}"

    @property
    def ready_log(self) -> PartitionLog | None:
        """The log if it is open and sound: then its attributes may be read on the loop."""
        log = self.log
        return None if log is None or log.failed or log.closed else log

    def nothing_to_read(self, log: PartitionLog) -> FetchedPartition:
        """The answer to a fetch from the end of `ready_log`: mostly the previous one again."""
        known = self._nothing_to_read
        stable, end, start = log.last_stable_offset, log.high_watermark, log.start_offset
        if (known.high_watermark, known.last_stable_offset, known.log_start_offset) == (end, stable, start):
            return known
        self._nothing_to_read = FetchedPartition(None, b"", end, stable, start, self.leader_epoch)
        return self._nothing_to_read

    def close(self, logs: Logs) -> None:
        """In the executor: nothing opens the log for this leadership again."""
        with self.lock:
            self.ended = True
            if self.log is not None:
                logs.close_log(self.topic.topic_id, self.partition, self.log)

    # --- fetches that wait ------------------------------------------------------------------------

    def start_of(self, part: FetchPartition) -> LogOffsetMetadata | None:
        """Where `part` is read from; None if finding out would wait for storage. KafkaError as for
        `PartitionLog.read`."""
        log = self.ready_log
        try:
            return None if log is None else locate(log, part, at_once=True)
        except WouldBlock:
            return None

    def watch(self, part: FetchPartition, start: LogOffsetMetadata, parked: Parked) -> Available:
        """Have `parked` watch the partition, which it reads from `start` on; return what is available."""
        watchers = self._committed_watchers if part.read_committed else self._watchers
        watched = parked.watch(watchers, start, part.max_bytes)
        log = self.ready_log
        if log is None:
            parked.wake()
            return NOTHING_AVAILABLE
        _tell(watched, start, log.stable_end if part.read_committed else log.end)
        return Available(watched.available_bytes, log.high_watermark)

    def tell_watchers(self) -> None:
        """Something was appended."""
        if self.log is not None:
            for watched, start in self._watchers.items():
                _tell(watched, start, self.log.end)
            for watched, start in self._committed_watchers.items():
                _tell(watched, start, self.log.stable_end)

    def wake_watchers(self) -> None:
        """The leadership or the topic ends."""
        for watched in (*self._watchers, *self._committed_watchers):
            watched.wake()


def locate(log: PartitionLog, part: FetchPartition, *, at_once: bool = False) -> LogOffsetMetadata:
    """Where `part` is read from; as `PartitionLog.locate`."""
    return log.locate(part.fetch_offset, part.max_bytes, read_committed=part.read_committed, at_once=at_once)


def _tell(watched: Watched, start: LogOffsetMetadata, end: LogOffsetMetadata) -> None:
    """Report to a reader from `start` how far the log reaches, to `end`. A log that only began a new, empty
    segment has not grown. Nobody waits beyond `end`, as in Kafka."""
    if end.offset == start.offset:
        return
    if end.segment == start.segment and end.offset > start.offset:
        watched.see(end.position - start.position)
    else:
        watched.wake()


def report_recovery(log: PartitionLog) -> None:
    """Log what was found broken on opening: a crash leaves a torn tail, anything else is damage."""
    found = log.segments.recovery
    place: dict[str, object] = {"partition": log.name, "folder": log.path, "end_offset": log.high_watermark}
    if found.cut_bytes:
        cut = {"at": found.cut_at, "bytes": found.cut_bytes}
        if found.damaged:
            _log.error(
                "log damaged: records from end_offset on were set aside",
                **place,
                **cut,
                kept_in=found.discarded,
            )
        else:
            _log.warning("log truncated after its last complete batch", **place, **cut)
    for first, behind in found.missing:
        _log.error("records missing: a segment file is gone", **place, first=first, last=behind - 1)
    if known_end := max(found.known_end, log.known_end):
        found_open = log.producers.open()
        if found_open:  # their markers may be lost, and their coordinators do not know
            named = [f"producer id {each[0]} from offset {each[2]}" for each in found_open[:_NAMED_MAX]]
            place |= {"open_transactions": len(found_open), "oldest": named}
        _log.error("records missing: the log ended at known_end before", **place, known_end=known_end)

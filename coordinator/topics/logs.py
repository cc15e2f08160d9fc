"""Where the partition logs of a process are, and who may write to each: shared by all brokers of the
process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import NamedTuple
from uuid import UUID

from muster.coordinator.storage.files import DiskFolder, Folder, MemoryFolder
from muster.coordinator.storage.segments import segments_size
from muster.coordinator.topics.config import TopicConfig
from muster.coordinator.topics.log import PartitionLog
from muster.protocol.errors import ErrorCode, KafkaError


class PartitionId(NamedTuple):
    topic_id: UUID
    partition: int


class Volume(NamedTuple):
    """What the logs are written to. Bytes; -1 where nobody can tell, as in memory."""

    path: str
    total_bytes: int
    usable_bytes: int


class _Holder:
    """Who has one partition's log. `lock` is held while it changes hands."""

    __slots__ = ("epoch", "lock", "log")

    def __init__(self) -> None:
        self.lock = Lock()
        self.epoch = -1
        self.log: PartitionLog | None = None


class Logs:
    """The logs below one folder, or in memory (`--ephemeral`). One object per process, shared by its brokers.

    A log is open for one leader epoch at a time: opening it with a higher epoch fences the one before, whose
    appends then raise NOT_LEADER_OR_FOLLOWER even if its broker has not yet noticed that its lease is gone.
    All methods block and are called from executors.
    """

    def __init__(self, root: Folder) -> None:
        self._root = root
        self._lock = Lock()
        self._holders: dict[tuple[UUID, int], _Holder] = {}

    @classmethod
    def on_disk(cls, directory: Path) -> Logs:
        """`directory/<topic id>/<partition>/`; made at the first append."""
        return cls(DiskFolder(directory.absolute()))

    @classmethod
    def in_memory(cls) -> Logs:
        return cls(MemoryFolder())

    def open(
        self,
        topic_id: UUID,
        partition: int,
        name: str,
        config: TopicConfig,
        leader_epoch: int,
        now_ms: Callable[[], int],
    ) -> PartitionLog:
        """Open the log for the leader of `leader_epoch`; NOT_LEADER_OR_FOLLOWER (6) if a later one has had
        it."""
        with self._lock:
            holder = self._holders.setdefault((topic_id, partition), _Holder())
        with holder.lock:
            if leader_epoch < holder.epoch:
                raise KafkaError(
                    ErrorCode.NOT_LEADER_OR_FOLLOWER,
                    f"{name} is led in epoch {holder.epoch}, not {leader_epoch}",
                )
            if holder.log is not None:
                holder.log.fence()
            holder.epoch, holder.log = leader_epoch, None
            folder = self._root.folder(str(topic_id)).folder(str(partition))
            holder.log = PartitionLog(folder, name, config, leader_epoch, now_ms)
            return holder.log

    def stored(self) -> list[PartitionId]:
        """The partitions that have files, in no order."""
        return [
            PartitionId(topic_id, int(name))
            for topic_id in self._topic_ids()
            for name in self._root.folder(str(topic_id)).names()
            if name.isdecimal()
        ]

    def size(self, topic_id: UUID, partition: int) -> int:
        """Bytes of the partition's segments, whether its log is open or not; 0 when nothing was written.
        OSError."""
        with self._lock:
            holder = self._holders.get((topic_id, partition))
        log = None if holder is None else holder.log
        if log is not None and not log.closed:
            return log.segments.size
        return segments_size(self._root.folder(str(topic_id)).folder(str(partition)))

    def volume(self) -> Volume:
        try:
            return Volume(self._root.path, *self._root.room())
        except OSError:
            return Volume(self._root.path, -1, -1)

    def _topic_ids(self) -> Iterator[UUID]:
        for name in self._root.names():
            with suppress(ValueError):  # not ours
                yield UUID(name)

    def delete(self, topic_id: UUID) -> None:
        """The topic is gone: fence its logs and remove their files. Harmless when there are none."""
        with self._lock:
            keys = [key for key in self._holders if key[0] == topic_id]
            holders = [self._holders.pop(key) for key in keys]
        for holder in holders:
            with holder.lock:
                if holder.log is not None:
                    holder.log.fence()
        self._root.folder(str(topic_id)).remove_tree()

    def delete_except(self, topic_ids: Iterable[UUID]) -> list[UUID]:
        """Remove what topics left behind that were deleted when nobody could remove their logs (the process
        died in between); which. Only before the first broker of the process serves, with all topics of the
        store."""
        kept = set(topic_ids)
        gone = [topic_id for topic_id in self._topic_ids() if topic_id not in kept]
        for topic_id in gone:
            self.delete(topic_id)
        return gone

"""Where the partition logs of a process are, and who may write to each: shared by all brokers of the
process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from muster.coordinator.storage.files import DiskFolder, MemoryFolder
from muster.coordinator.storage.folders import Folders
from muster.coordinator.storage.records import RecordStorage
from muster.coordinator.storage.store import Lease
from muster.coordinator.topics.config import TopicConfig
from muster.coordinator.topics.log import PartitionLog, commit_together
from muster.coordinator.topics.refused import Refused
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.record_batch import Header

if TYPE_CHECKING:
    from muster.coordinator.storage.postgres.eras import Eras


class PartitionId(NamedTuple):
    topic_id: UUID
    partition: int


class Volume(NamedTuple):
    """What the logs are written to. Sizes in bytes; -1 if unknown, as in memory."""

    path: str
    total_bytes: int
    usable_bytes: int


class _Holder:
    """The holder of one partition's log. `lock` is held while it changes hands."""

    __slots__ = ("epoch", "known_end", "lock", "log", "refused")

    def __init__(self) -> None:
        self.lock = Lock()
        self.epoch = -1
        self.log: PartitionLog | None = None
        self.known_end = 0
        """Where the log ended that was open here before."""
        self.refused = Refused()


class Logs:
    """The logs of one storage. One object per process, shared by its brokers.

    A log is open for one leader epoch at a time: opening it with a higher epoch fences the one before, whose
    appends then raise NOT_LEADER_OR_FOLLOWER even if its broker has not yet noticed that its lease is gone.
    If other processes have logs in the same storage, their leases fence them there. Methods block and are
    called from executors, unless they say otherwise.
    """

    def __init__(self, storage: RecordStorage) -> None:
        self._storage = storage
        self._lock = Lock()
        self._holders: dict[tuple[UUID, int], _Holder] = {}
        self.memory: MemoryFolder | None = None
        """The folder, if everything is kept in memory."""

    @classmethod
    def on_disk(cls, directory: Path, make_room: Callable[[], bool] | None = None) -> Logs:
        """Logs in `directory/<topic id>/<partition>/`, created at the first append. `make_room` is what the
        method calls; by default no room is kept."""
        return cls(Folders(DiskFolder(directory.absolute()), make_room))

    @classmethod
    def in_memory(cls) -> Logs:
        folder = MemoryFolder()
        logs = cls(Folders(folder))
        logs.memory = folder
        return logs

    @classmethod
    def in_postgres(cls, url: str, name: str = "muster", eras: Eras | None = None) -> Logs:
        """Logs in the store's database, which must have its tables before the first call; `name` is the name
        of the connections there, `eras` is the store's. StoreError for an invalid url."""
        from muster.coordinator.storage.postgres.record_storage import Rows

        return cls(Rows.at(url, name, eras))

    def become(self, folder: MemoryFolder) -> None:
        """Replace all that is kept in memory, while no log is in use."""
        assert self.memory is not None, "these logs are not in memory"
        self.memory.become(folder)
        with self._lock:
            holders = list(self._holders.values())
        for holder in holders:
            with holder.lock:
                if holder.log is not None:
                    holder.log.fence()
                holder.log, holder.known_end = None, 0

    def open(
        self,
        topic_id: UUID,
        partition: int,
        name: str,
        config: TopicConfig,
        lease: Lease,
        leader_epoch: int,
        now_ms: Callable[[], int],
        *,
        lease_epoch: int | None = None,
        date_ms: Callable[[], int] | None = None,
    ) -> PartitionLog:
        """Open the log for the leader, who holds `lease` in `lease_epoch` (by default the leader epoch), with
        a clock's `now_ms` and `date_ms` (by default the same); NOT_LEADER_OR_FOLLOWER (6) if a later one has
        had it."""
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
                holder.known_end = holder.log.high_watermark
            holder.epoch, holder.log = leader_epoch, None
            held_in = leader_epoch if lease_epoch is None else lease_epoch
            place = self._storage.place(topic_id, partition, lease, held_in)
            log = holder.log = PartitionLog(
                place, name, config, leader_epoch, now_ms, holder.refused, date_ms=date_ms
            )
            if log.high_watermark < holder.known_end:
                log.known_end = holder.known_end
            return log

    def close_log(self, topic_id: UUID, partition: int, log: PartitionLog) -> None:
        """Close a log from `open`, and keep of it only where it ended. KafkaError as `PartitionLog.close`."""
        log.close()
        with self._lock:
            holder = self._holders.get((topic_id, partition))
        if holder is not None:
            with holder.lock:
                if holder.log is log:  # if not, a later leader has opened it
                    holder.known_end, holder.log = log.high_watermark, None

    def note_refused(self, topic_id: UUID, partition: int, header: Header, now_ms: int) -> None:
        """Note a refused batch that will come again; see `refused`. Does not block."""
        with self._lock:
            holder = self._holders.setdefault((topic_id, partition), _Holder())
        holder.refused.note(header, now_ms)

    def commit(self, logs: Sequence[PartitionLog]) -> list[KafkaError | None]:
        """`PartitionLog.commit` of all `logs` together; return the refusal of each, or None."""
        return commit_together(self._storage, logs)

    def stored(self) -> list[PartitionId]:
        """The partitions that have records stored, in no order."""
        return [PartitionId(*each) for each in self._storage.stored()]

    def size(self, topic_id: UUID, partition: int) -> int:
        """Bytes of the partition's segments, whether its log is open or not; 0 when nothing was written.
        OSError."""
        with self._lock:
            holder = self._holders.get((topic_id, partition))
        log = None if holder is None else holder.log
        if log is not None and not log.closed:
            return log.segments.size
        return self._storage.size(topic_id, partition)

    def bounds(self, partitions: Sequence[PartitionId]) -> list[tuple[int, int] | None]:
        """Start and end offset of each; None if only a closed log knows them. OSError."""
        known = {each: self.known(each) for each in partitions}
        left = [each for each in partitions if known[each] is None]
        stored = self._storage.bounds(left) if left else {}
        return [known[each] or stored.get(each) for each in partitions]

    def known(self, partition: PartitionId) -> tuple[int, int] | None:
        """Start and end offset of a log that is open in this process. Does not block."""
        with self._lock:
            holder = self._holders.get(partition)
        log = None if holder is None else holder.log
        if log is None or log.closed or log.failed:
            return None
        return log.start_offset, log.high_watermark

    def volume(self) -> Volume:
        try:
            return Volume(self._storage.path, *self._storage.room())
        except OSError:
            return Volume(self._storage.path, -1, -1)

    def make_room(self) -> bool:
        """On a full disk: free some of the room that is kept for retention; False if none is left."""
        return self._storage.make_room()

    def delete(self, topic_id: UUID) -> None:
        """The topic is gone: fence its logs and take their records out of what is stored; then call
        `remove_deleted`. Harmless when there are none. OSError."""
        with self._lock:
            keys = [key for key in self._holders if key[0] == topic_id]
            holders = [self._holders.pop(key) for key in keys]
        for holder in holders:
            with holder.lock:
                if holder.log is not None:
                    holder.log.fence()
        self._storage.delete(topic_id)

    def remove_deleted(self, topic_id: UUID) -> None:
        """Remove what is left of a topic after `delete`. It may take long. OSError."""
        self._storage.remove_deleted(topic_id)

    def settle(self, topic_ids: Iterable[UUID]) -> Mapping[UUID, str | None]:
        """Remove or put aside what there is of other topics: deleted ones whose logs nobody could remove (the
        process died in between), or ones that a store restored from a backup does not know. Returns which,
        each with the place where its records are kept; None: removed. Only before the first broker of the
        process serves, with all topics of the store."""
        return self._storage.settle(set(topic_ids))

    def remove_left_over(self, given_up: Callable[[], bool]) -> list[UUID]:
        """Remove what deleted topics have left behind since, until done or given up, which is asked before
        each step of at most 16 MiB. Returns the topics of which nothing is left. OSError."""
        return self._storage.remove_left_over(given_up)

    def close(self) -> None:
        """Release the storage, once no log is open any more. Harmless when repeated."""
        self._storage.close()

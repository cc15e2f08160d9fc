"""Partition logs as folders of segment files: `<topic id>/<partition>/` below one folder, created at the
first append."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from uuid import UUID

from muster.coordinator.storage.files import Folder
from muster.coordinator.storage.records import Derived, Limits, RecordLog
from muster.coordinator.storage.segments import LOG_ENDING, SegmentLog
from muster.coordinator.storage.store import Lease


class FolderPlace:
    """One partition's folder. It belongs to one process, which fences its brokers' logs against each
    other."""

    def __init__(self, folder: Folder) -> None:
        self.folder = folder

    @property
    def path(self) -> str:
        return self.folder.path

    def open(self, derived: Derived, limits: Limits, now_ms: Callable[[], int]) -> SegmentLog:
        return SegmentLog.open(self.folder, derived, limits, now_ms)


class Folders:
    """See `records.RecordStorage`."""

    def __init__(self, root: Folder) -> None:
        self._root = root

    @property
    def path(self) -> str:
        return self._root.path

    def place(self, topic_id: UUID, partition: int, lease: Lease, epoch: int) -> FolderPlace:
        return FolderPlace(self._folder(topic_id, partition))

    def commit(self, logs: Sequence[RecordLog]) -> list[OSError | None]:
        return [None] * len(logs)  # the operating system has it all

    def stored(self) -> list[tuple[UUID, int]]:
        return [
            (topic_id, int(name))
            for topic_id in self._topic_ids()
            for name in self._root.folder(str(topic_id)).names()
            if name.isdecimal()
        ]

    def size(self, topic_id: UUID, partition: int) -> int:
        folder = self._folder(topic_id, partition)
        size = 0
        for name in folder.names():
            if name.endswith(LOG_ENDING):
                with suppress(FileNotFoundError):  # removed since it was listed
                    file = folder.open(name)
                    size += file.size()
                    file.close()
        return size

    def bounds(self, partitions: Sequence[tuple[UUID, int]]) -> dict[tuple[UUID, int], tuple[int, int]]:
        return {}

    def room(self) -> tuple[int, int]:
        return self._root.room()

    def delete(self, topic_id: UUID) -> None:
        self._root.remove_folder(str(topic_id))

    def delete_except(self, topic_ids: set[UUID]) -> list[UUID]:
        gone = [topic_id for topic_id in self._topic_ids() if topic_id not in topic_ids]
        for topic_id in gone:
            self.delete(topic_id)
        return gone

    def remove_left_over(self) -> list[UUID]:
        return []  # one process has them all, and checks when it starts: see `delete_except`

    def close(self) -> None:
        """Nothing is held open."""

    def _folder(self, topic_id: UUID, partition: int) -> Folder:
        return self._root.folder(str(topic_id)).folder(str(partition))

    def _topic_ids(self) -> Iterator[UUID]:
        for name in self._root.names():
            with suppress(ValueError):  # not ours
                yield UUID(name)

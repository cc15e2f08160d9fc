"""Partition logs as folders of segment files, below one folder:

<topic id>/<partition>/    created at the first append
<topic id>.deleted/        being removed
<topic id>*.discarded/     of a topic that the store did not list at a start, kept for people to look at:
                           nothing reads or removes it

Anything else there is left alone: the store's mark (`left_behind.MARKER`), a volume's lost+found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import count
from typing import Final
from uuid import UUID

from muster.coordinator.storage.files import Folder
from muster.coordinator.storage.records import Derived, Limits, RecordLog
from muster.coordinator.storage.segments import DISCARDED, LOG_ENDING, SegmentLog
from muster.coordinator.storage.store import Lease

_DELETED: Final = ".deleted"


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

    def __init__(self, root: Folder, make_room: Callable[[], bool] | None = None) -> None:
        """`make_room`: see `records.RecordStorage`; by default nothing is kept."""
        self._root = root
        self._make_room = make_room

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

    def make_room(self) -> bool:
        return self._make_room is not None and self._make_room()

    def delete(self, topic_id: UUID) -> None:
        name = str(topic_id)
        with suppress(OSError):  # there is none
            # If the process dies before a large topic is removed, the next knows that the rest was deleted.
            self._root.rename(name, name + _DELETED)

    def remove_deleted(self, topic_id: UUID) -> None:
        for name in (f"{topic_id}{_DELETED}", str(topic_id)):  # the latter if it could not be renamed
            self._root.remove_folder(name)

    def settle(self, topic_ids: set[UUID]) -> dict[UUID, str | None]:
        """Apart from what `delete` has begun to remove, folders cannot tell a topic that was deleted just
        before the process died from one that is newer than the store, which was restored from a backup: so
        records are kept."""
        left: dict[UUID, str | None] = {}
        for topic_id in list(self._topic_ids(_DELETED)):
            self._root.remove_folder(f"{topic_id}{_DELETED}")
            left[topic_id] = None
        for topic_id in set(self._topic_ids()) - topic_ids:
            left[topic_id] = self._put_aside(topic_id)
        return left

    def _put_aside(self, topic_id: UUID) -> str | None:
        partitions = [partition for each, partition in self.stored() if each == topic_id]
        if not any(self.size(topic_id, partition) for partition in partitions):
            self.delete(topic_id)
            self.remove_deleted(topic_id)
            return None
        taken = set(self._root.names())
        names = (f"{topic_id}{f'.{number}' if number else ''}{DISCARDED}" for number in count())
        name = next(name for name in names if name not in taken)
        self._root.rename(str(topic_id), name)
        return self._root.folder(name).path

    def remove_left_over(self, given_up: Callable[[], bool]) -> list[UUID]:
        return []  # one process has them all, and checks when it starts: see `settle`

    def close(self) -> None:
        """Nothing is held open."""

    def _folder(self, topic_id: UUID, partition: int) -> Folder:
        return self._root.folder(str(topic_id)).folder(str(partition))

    def _topic_ids(self, ending: str = "") -> Iterator[UUID]:
        for name in self._root.names():
            with suppress(ValueError):  # not ours
                if name.endswith(ending):
                    yield UUID(name.removesuffix(ending))

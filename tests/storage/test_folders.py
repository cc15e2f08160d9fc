"""The folders of topics, on a disk and in memory."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID, uuid4

import pytest

from muster.coordinator.storage.files import DiskFolder, Folder, MemoryFolder
from muster.coordinator.storage.folders import Folders


def _folder(root: Folder, topic_id: UUID, partition: int) -> Folder:
    return root.folder(str(topic_id)).folder(str(partition))


@pytest.fixture(params=["disk", "memory"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Folder:
    return DiskFolder(tmp_path) if request.param == "disk" else MemoryFolder()


def test_of_a_deleted_topic_nothing_is_left(root: Folder) -> None:
    kept, deleted = uuid4(), uuid4()
    for topic_id in (kept, deleted):
        for partition in range(2):
            _folder(root, topic_id, partition).store("snapshot", b"1")
    held = _folder(root, deleted, 1)
    folders = Folders(root)
    folders.delete(deleted)
    folders.delete(uuid4())  # it never had a folder
    assert sorted(folders.stored()) == [(kept, 0), (kept, 1)]
    assert held.names() == []
    if isinstance(root, MemoryFolder):
        assert root._entries.keys() == {str(kept)}, "an empty folder for every topic there ever was"

"""The folders of topics, on a disk and in memory."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID, uuid4

import pytest

from muster.coordinator.storage.files import DiskFolder, Folder, MemoryFolder
from muster.coordinator.storage.folders import Folders

LOG = "00000000000000000000.log"


def _folder(root: Folder, topic_id: UUID, partition: int) -> Folder:
    return root.folder(str(topic_id)).folder(str(partition))


@pytest.fixture(params=["disk", "memory"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Folder:
    return DiskFolder(tmp_path) if request.param == "disk" else MemoryFolder()


@pytest.mark.parametrize("before", [0, 1, 2])
def test_records_of_a_topic_that_the_store_does_not_list_are_put_aside(root: Folder, before: int) -> None:
    kept, unlisted, empty = uuid4(), uuid4(), uuid4()
    folders = Folders(root)
    for _ in range(before + 1):
        for topic_id in (kept, unlisted):
            _folder(root, topic_id, 1).open(LOG, create=True).append([b"records"])
        _folder(root, empty, 0).open(LOG, create=True)
        settled = folders.settle({kept})
    name = f"{unlisted}{f'.{before}' if before else ''}.discarded"
    assert settled == {unlisted: root.folder(name).path, empty: None}
    assert root.folder(name).folder("1").load(LOG) == b"records"
    assert folders.stored() == [(kept, 1)]
    assert folders.settle({kept}) == {}
    assert len(root.names()) == 2 + before


class Dying(DiskFolder):
    """Does not live to see its folders removed."""

    def remove_folder(self, name: str) -> None:
        raise KeyboardInterrupt


def test_what_is_left_of_a_removal_that_the_process_did_not_survive(tmp_path: Path) -> None:
    deleted, root = uuid4(), DiskFolder(tmp_path)
    folders = Folders(root)
    _folder(root, deleted, 0).open(LOG, create=True).append([b"records"])
    dying = Folders(Dying(tmp_path))
    dying.delete(deleted)
    with pytest.raises(KeyboardInterrupt):
        dying.remove_deleted(deleted)
    assert folders.stored() == []
    assert root.names()
    assert folders.settle(set()) == {deleted: None}
    assert not root.names()
    folders.delete(deleted)  # harmless
    folders.remove_deleted(deleted)


def test_of_a_deleted_topic_nothing_is_left(root: Folder) -> None:
    kept, deleted = uuid4(), uuid4()
    for topic_id in (kept, deleted):
        for partition in range(2):
            _folder(root, topic_id, partition).store("snapshot", b"1")
    held = _folder(root, deleted, 1)
    folders = Folders(root)
    for topic_id in (deleted, uuid4()):  # the latter never had a folder
        folders.delete(topic_id)
        folders.remove_deleted(topic_id)
    assert sorted(folders.stored()) == [(kept, 0), (kept, 1)]
    assert held.names() == []
    if isinstance(root, MemoryFolder):
        assert root._entries.keys() == {str(kept)}, "an empty folder for every topic there ever was"

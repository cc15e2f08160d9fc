"""Reading without waiting for a disk, and writing what is there once more."""

from __future__ import annotations

import os
from errno import EOPNOTSUPP
from pathlib import Path

import pytest

from muster.coordinator.storage.files import DiskFile, DiskFolder, File, Folder, MemoryFolder, WouldBlock

CONTENTS = bytes(range(256)) * 64


@pytest.fixture(params=["disk", "memory"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Folder:
    return DiskFolder(tmp_path) if request.param == "disk" else MemoryFolder()


def cached(file: File, position: int, size: int) -> bytes | memoryview | None:
    """What can be read at once; None if the file system (such as tmpfs) does not report what it has in
    memory."""
    if isinstance(file, DiskFile):
        try:
            os.preadv(file._fd, [bytearray(1)], 0, os.RWF_NOWAIT)
        except OSError as error:
            if error.errno != EOPNOTSUPP:
                raise
            with pytest.raises(WouldBlock):
                file.read_cached(position, size)
            return None
    return file.read_cached(position, size)


def written(folder: Folder) -> File:
    file = folder.open("file", create=True)
    file.append([CONTENTS])
    return file


def test_what_was_just_written_is_read_at_once(folder: Folder) -> None:
    file = written(folder)
    for position, size in ((0, len(CONTENTS)), (1, 4_096), (5_000, 1), (7, 0)):
        assert cached(file, position, size) in (None, CONTENTS[position : position + size])
    file.append([b"more"])
    assert cached(file, len(CONTENTS), 4) in (None, b"more")


def test_more_than_can_be_copied_at_once_is_left(folder: Folder) -> None:
    file = folder.open("file", create=True)
    file.append([bytes(3 << 20)])
    with pytest.raises(WouldBlock):
        file.read_cached(0, 3 << 20)
    assert cached(file, 0, 1 << 20) in (None, bytes(1 << 20))


def test_what_is_not_there_is_left_to_those_who_may_wait(tmp_path: Path) -> None:
    file = written(DiskFolder(tmp_path))
    with pytest.raises(WouldBlock):
        file.read_cached(0, len(CONTENTS) + 1)
    file.close()
    with pytest.raises(WouldBlock):
        file.read_cached(0, 1)


@pytest.mark.parametrize("found", [None, 4_096])
def test_what_is_not_cached_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: int | None
) -> None:
    """The kernel reports that nothing, or only the beginning, is cached."""
    file = written(DiskFolder(tmp_path))

    def preadv(fd: int, buffers: list[memoryview], position: int, flags: int) -> int:
        assert flags == os.RWF_NOWAIT
        if found is None:
            raise BlockingIOError
        return found

    monkeypatch.setattr(os, "preadv", preadv)
    with pytest.raises(WouldBlock):
        file.read_cached(0, 8_192)
    assert file.read(0, 8_192) == CONTENTS[:8_192]


def test_a_file_system_that_does_not_tell_is_asked_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = written(DiskFolder(tmp_path))
    asked = 0

    def preadv(*_: object) -> int:
        nonlocal asked
        asked += 1
        raise OSError(EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(os, "preadv", preadv)
    for _ in range(2):
        with pytest.raises(WouldBlock):
            file.read_cached(0, 10)
    assert asked == 1


def test_what_is_written_again_stays_as_it_is(folder: Folder, tmp_path: Path) -> None:
    contents = CONTENTS * 160  # more than two pieces
    file = folder.open("file", create=True)
    file.append([contents])
    if isinstance(folder, DiskFolder):
        os.utime(tmp_path / "file", (0, 0))
    folder.rewrite("file", 1_000, len(contents) - 1)
    assert file.read(0, len(contents) + 1) == contents
    assert file.modified_ms() > 0, "it was written"
    file.append([b"more"])
    assert file.read(len(contents), 10) == b"more"

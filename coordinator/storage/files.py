"""The file operations that partition logs are built on: a folder on disk, or one in memory.

Everything here blocks and is called from an executor, except `read_cached`. Readers and one writer may use a
file at once: reading never looks at the writer's position. Errors are OSErrors, worded by the operating
system.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from errno import EEXIST, ENOENT, EOPNOTSUPP
from pathlib import Path
from typing import Final, Protocol

from muster.coordinator.base import system
from muster.realtime import RealTime

_CACHED_BYTES_MAX: Final = 2 << 20
"""Maximum for one `read_cached`: copied within some hundred microseconds."""

_REWRITE_BYTES: Final = 1 << 20


class WouldBlock(Exception):
    """The data is not in memory, or is too much to copy at once: retry where blocking holds up nobody."""


class File(Protocol):
    """An open file. `append` and `truncate` are for its one writer."""

    def size(self) -> int: ...

    def modified_ms(self) -> int:
        """When it was last written to: epoch ms, by the wall clock."""

    def read(self, position: int, size: int) -> bytes:
        """Up to `size` bytes; fewer only at the end of the file."""

    def read_cached(self, position: int, size: int) -> bytes | memoryview:
        """`size` bytes, without waiting for a disk: for the loop, where a round trip to an executor would
        cost more than the read. Raises WouldBlock, also for anything that `read` would find wrong."""

    def append(self, buffers: Sequence[bytes | memoryview]) -> None:
        """Write `buffers` one after the other at the end. On an OSError part of them may have been
        written."""

    def truncate(self, size: int) -> None: ...

    def sync(self) -> None:
        """Return once what was written would survive a crash of the machine."""

    def close(self) -> None:
        """Closing twice is harmless."""


class Folder(Protocol):
    """A folder. Names are plain file names."""

    @property
    def path(self) -> str:
        """For messages."""

    def names(self) -> list[str]:
        """Files and folders in it, in no particular order; none if the folder does not exist."""

    def folder(self, name: str) -> Folder:
        """The subfolder `name`, created when something is written to it."""

    def open(self, name: str, *, create: bool = False) -> File:
        """Raises FileNotFoundError if the file does not exist, unless `create`."""

    def load(self, name: str) -> bytes | None:
        """A small file's whole contents; None if it does not exist."""

    def store(self, name: str, contents: bytes) -> None:
        """Replace a small file: after a crash it has either all of the old or all of the new contents."""

    def rewrite(self, name: str, start: int, end: int) -> None:
        """Write what is in a file between two positions again, so that the next sync includes it. Nobody may
        truncate the file to less than `end` meanwhile."""

    def rename(self, name: str, to: str) -> None:
        """Rename a file, replacing any file named `to`; or a folder, if nothing is named `to`."""

    def remove(self, name: str) -> None:
        """Remove a file; harmless if it does not exist."""

    def room(self) -> tuple[int, int]:
        """The volume's size in bytes, and how much of it is free for us; -1 and -1 in memory. Raises
        OSError."""

    def remove_folder(self, name: str) -> None:
        """Remove the subfolder `name` and all in it; harmless if it does not exist."""

    def sync(self) -> None:
        """Return once the names created, renamed and removed in it, and its own, would survive a crash of the
        machine."""


class DiskFile:
    __slots__ = ("_fd", "_tells")

    def __init__(self, path: str, *, create: bool) -> None:
        self._fd = -1  # for `close`, when opening fails
        self._tells = system.TELLS_CACHED  # until the file system says that it cannot
        self._fd = system.open_appending(path, create=create)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def modified_ms(self) -> int:
        return os.fstat(self._fd).st_mtime_ns // 1_000_000

    def read(self, position: int, size: int) -> bytes:
        found = system.pread(self._fd, size, position)
        if not found or len(found) == size:
            return found
        # A read may stop early (a signal, a file system's whim); only an empty one means the end of the file.
        parts, got = [found], len(found)
        while got < size and (found := system.pread(self._fd, size - got, position + got)):
            parts.append(found)
            got += len(found)
        return b"".join(parts)

    def read_cached(self, position: int, size: int) -> bytes | memoryview:
        if not self._tells or size > _CACHED_BYTES_MAX:
            raise WouldBlock
        buffer = memoryview(bytearray(size))
        try:
            if system.read_cached(self._fd, buffer, position) == size:
                return buffer
        except OSError as error:  # for example EAGAIN: nothing of it is cached
            self._tells = error.errno != EOPNOTSUPP  # raised by tmpfs and overlayfs
        raise WouldBlock

    def append(self, buffers: Sequence[bytes | memoryview]) -> None:
        pending = [memoryview(buffer) for buffer in buffers]
        while pending:
            written = system.write_some(self._fd, pending)
            while pending and written >= len(pending[0]):
                written -= len(pending.pop(0))
            if written:
                pending[0] = pending[0][written:]

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def sync(self) -> None:
        system.sync_data(self._fd)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        # A reader may still hold the file of a segment that was rolled or removed: the last one closes it.
        self.close()


class DiskFolder:
    """A folder in the file system."""

    __slots__ = ("_above", "_name_synced", "_path")

    def __init__(self, path: str | Path, above: DiskFolder | None = None) -> None:
        self._path = os.fspath(path)
        self._above = above
        self._name_synced = False

    @property
    def path(self) -> str:
        return self._path

    def names(self) -> list[str]:
        try:
            return os.listdir(self._path)
        except FileNotFoundError:
            return []

    def folder(self, name: str) -> DiskFolder:
        return DiskFolder(os.path.join(self._path, name), self)

    def open(self, name: str, *, create: bool = False) -> DiskFile:
        path = os.path.join(self._path, name)
        try:
            return DiskFile(path, create=create)
        except FileNotFoundError:
            if not create:
                raise
        os.makedirs(self._path, exist_ok=True)
        return DiskFile(path, create=True)

    def load(self, name: str) -> bytes | None:
        try:
            with open(os.path.join(self._path, name), "rb") as file:
                return file.read()
        except FileNotFoundError:
            return None

    def store(self, name: str, contents: bytes) -> None:
        draft = name + ".new"
        self.remove(draft)
        file = self.open(draft, create=True)
        try:
            file.append([contents])
            file.sync()
        finally:
            file.close()
        self.rename(draft, name)
        self.sync()

    def rewrite(self, name: str, start: int, end: int) -> None:
        with open(os.path.join(self._path, name), "r+b") as file:
            while start < end:
                file.seek(start)
                piece = file.read(min(_REWRITE_BYTES, end - start))
                if not piece:
                    return
                file.seek(start)
                file.write(piece)
                start += len(piece)

    def rename(self, name: str, to: str) -> None:
        os.replace(os.path.join(self._path, name), os.path.join(self._path, to))

    def remove(self, name: str) -> None:
        try:
            os.unlink(os.path.join(self._path, name))
        except FileNotFoundError:
            return

    def room(self) -> tuple[int, int]:
        path = os.path.abspath(self._path)
        while not os.path.exists(path):  # it is created when something is written to it
            path = os.path.dirname(path)
        usage = shutil.disk_usage(path)
        return usage.total, usage.free

    def remove_folder(self, name: str) -> None:
        shutil.rmtree(os.path.join(self._path, name), ignore_errors=True)

    def sync(self) -> None:
        system.sync_folder(self._path)
        if not self._name_synced:
            # Folders are created on demand, perhaps by a process that died before it got here.
            if self._above is not None:
                self._above.sync()
            else:
                system.sync_folder(os.path.dirname(os.path.abspath(self._path)))
            self._name_synced = True


class MemoryFile:
    """A file in memory; after its removal it stays readable for whoever has it open, as on disk."""

    __slots__ = ("_modified_ns", "contents")

    def __init__(self) -> None:
        self.contents = bytearray()
        self._modified_ns = RealTime.time_ns()

    def size(self) -> int:
        return len(self.contents)

    def modified_ms(self) -> int:
        return self._modified_ns // 1_000_000

    def read(self, position: int, size: int) -> bytes:
        # Not through a memoryview: the writer could not grow the bytes while one is exported.
        return bytes(self.contents[position : position + size])

    def read_cached(self, position: int, size: int) -> bytes | memoryview:
        if size > _CACHED_BYTES_MAX:
            raise WouldBlock
        return self.read(position, size)

    def append(self, buffers: Sequence[bytes | memoryview]) -> None:
        self.contents += b"".join(buffers)
        self._modified_ns = RealTime.time_ns()

    def truncate(self, size: int) -> None:
        del self.contents[size:]

    def sync(self) -> None:
        return

    def close(self) -> None:
        return

    def copy(self) -> MemoryFile:
        copy = MemoryFile()
        copy.contents[:] = self.contents
        copy._modified_ns = self._modified_ns
        return copy


class MemoryFolder:
    """A folder that lives as long as its object."""

    __slots__ = ("_entries", "_path")

    def __init__(self, path: str = "memory") -> None:
        self._path = path
        self._entries: dict[str, MemoryFile | MemoryFolder] = {}

    @property
    def path(self) -> str:
        return self._path

    def names(self) -> list[str]:
        return [
            name
            for name, entry in self._entries.copy().items()
            if isinstance(entry, MemoryFile) or entry.names()
        ]

    def folder(self, name: str) -> MemoryFolder:
        entry = self._entries.get(name)
        if entry is None:
            entry = self._entries.setdefault(name, MemoryFolder(f"{self._path}/{name}"))
        if isinstance(entry, MemoryFile):
            raise NotADirectoryError(EEXIST, "a file of that name exists", name)
        return entry

    def open(self, name: str, *, create: bool = False) -> MemoryFile:
        entry = self._entries.get(name)
        if entry is None:
            if not create:
                raise FileNotFoundError(f"{self._path}/{name}")
            entry = self._entries.setdefault(name, self.new_file())
        if isinstance(entry, MemoryFolder):
            raise IsADirectoryError(f"{self._path}/{name}")
        return entry

    def copy(self) -> MemoryFolder:
        """A copy of everything in it."""
        copy = MemoryFolder(self._path)
        for name, entry in self._entries.items():
            copy._entries[name] = entry.copy()
        return copy

    def become(self, other: MemoryFolder) -> None:
        """Replace all contents with those of `other`. Whoever has a file open keeps the old one."""
        self._entries = other.copy()._entries

    def new_file(self) -> MemoryFile:
        """Overridden in tests to return files that fail."""
        return MemoryFile()

    def load(self, name: str) -> bytes | None:
        entry = self._entries.get(name)
        return bytes(entry.contents) if isinstance(entry, MemoryFile) else None

    def store(self, name: str, contents: bytes) -> None:
        file = self.new_file()
        file.append([contents])
        self._entries[name] = file

    def rewrite(self, name: str, start: int, end: int) -> None:
        return

    def rename(self, name: str, to: str) -> None:
        if name not in self._entries:
            raise FileNotFoundError(ENOENT, os.strerror(ENOENT), name)
        self._entries[to] = self._entries.pop(name)

    def remove(self, name: str) -> None:
        self._entries.pop(name, None)

    def room(self) -> tuple[int, int]:
        return -1, -1

    def remove_folder(self, name: str) -> None:
        entry = self._entries.pop(name, None)
        if isinstance(entry, MemoryFolder):
            entry._clear()

    def _clear(self) -> None:
        """Empty it: whoever still has it finds nothing, as on disk."""
        for entry in list(self._entries.values()):
            if isinstance(entry, MemoryFolder):
                entry._clear()
        self._entries.clear()

    def sync(self) -> None:
        return

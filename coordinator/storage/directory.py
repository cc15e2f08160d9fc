"""The data directory of one process: its layout, and the lock that keeps a second process out.

    muster.lock     locked while a process uses the directory; holds its process id, for the message to others
    store.sqlite    coordinator records, leases, topics, nodes (with its -wal and -shm files)
    store.reserve   room for what makes room on a full disk (`sqlite.reserve`)
    topics/         segments of topic data, a directory per partition, and a mark (`left_behind.MARKER`)

The lock is the operating system's, so it is released however the process ends; the file stays and means
nothing.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from muster.coordinator.base.system import LOCK_HELD, try_lock
from muster.coordinator.storage.lease_table import LeaseTable
from muster.coordinator.storage.left_behind import inspect
from muster.coordinator.storage.mailboxes import Mailboxes
from muster.coordinator.storage.store import StoreError, StoreLocked

_STORE = "store.sqlite"
_RESERVE = "store.reserve"
_TOPICS = "topics"


@dataclass(slots=True)
class _Lock:
    descriptor: int
    pid: int  # a forked child inherits this module's state, but not the lock
    lease_table: LeaseTable = field(default_factory=LeaseTable)
    mailboxes: Mailboxes = field(default_factory=Mailboxes)
    turn: threading.Lock = field(default_factory=threading.Lock)
    users: int = 1


_held: dict[Path, _Lock] = {}
_held_guard = threading.Lock()


class DataDirectory:
    """A locked data directory.

    Several owners in one process (brokers, a store, partition logs) share the lock: each acquires its own
    object, and the last release lets other processes in.
    """

    NAMES: ClassVar = (_STORE, _TOPICS)
    """The names in it, at least one of which exists once it has been used."""

    def __init__(
        self, path: Path, lease_table: LeaseTable, mailboxes: Mailboxes, turn: threading.Lock
    ) -> None:
        self.path = path
        self.lease_table = lease_table
        """Leases and registrations of those who use the directory. All are in this process while it holds the
        lock, and none is left once it releases it.
        """
        self.mailboxes = mailboxes
        """Mailboxes of the nodes among them."""
        self.turn = turn
        """Held by an owner while it opens or closes the store's file. sqlite's busy timeout does not cover
        these: it fails at once if two connections switch a new file to WAL, or one removes the WAL.
        """
        self._released = False

    def __repr__(self) -> str:
        return f"<DataDirectory {self.path}{' released' if self._released else ''}>"

    @property
    def store_path(self) -> Path:
        return self.path / _STORE

    @property
    def reserve_path(self) -> Path:
        return self.path / _RESERVE

    @property
    def topics_path(self) -> Path:
        return self.path / _TOPICS

    @classmethod
    def acquire(cls, path: Path) -> DataDirectory:
        """Create the directory if needed, and lock it. Touches the disk, so not for the event loop.

        Raises StoreLocked if another process holds it, StoreError if it cannot be created, locked or written,
        StoreDamaged if what an earlier process left there is not whole.
        """
        try:
            path.mkdir(parents=True, exist_ok=True)
            path = path.resolve()
            with _held_guard:
                lock = _held.get(path)
                if lock is not None and lock.pid == os.getpid():
                    lock.users += 1
                else:
                    lock = _held[path] = _take(path)
        except OSError as error:
            raise StoreError(f"cannot use data directory {path}: {_why(path, error)}") from error
        return cls(path, lock.lease_table, lock.mailboxes, lock.turn)

    def release(self) -> None:
        """Give up this owner's share. Harmless when repeated."""
        if self._released:
            return
        self._released = True
        with _held_guard:
            lock = _held[self.path]
            lock.users -= 1
            if lock.users == 0:
                del _held[self.path]
                os.close(lock.descriptor)


def _why(path: Path, error: OSError) -> str:
    if isinstance(error, FileExistsError):
        return "it is not a directory"
    inside = error.filename if str(error.filename) != str(path) else None
    return f"{f'{inside}: ' if inside else ''}{error.strerror or error}"


def _take(path: Path) -> _Lock:
    descriptor = os.open(path / "muster.lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            try_lock(descriptor)
        except OSError as error:
            if error.errno not in LOCK_HELD:  # as on a network's file system
                raise StoreError(
                    f"cannot lock data directory {path}: {error.strerror or error}; choose one on a file "
                    "system that has locks"
                ) from error
            holder = os.read(descriptor, 20).decode("ascii", "replace").strip()
            by = f"process {holder}" if holder.isdigit() else "another process"
            raise StoreLocked(
                f"data directory {path} is in use by {by}",
                "stop that process or choose another directory (several processes can share a PostgreSQL: "
                "--store)",
            ) from error
        inspect(path / _STORE, path / _TOPICS)
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode("ascii"))
    except BaseException:
        os.close(descriptor)
        raise
    return _Lock(descriptor, os.getpid())

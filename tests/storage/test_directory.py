"""The data directory's lock: shared within a process, closed to others."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from muster.coordinator.storage.directory import DataDirectory
from muster.coordinator.storage.store import StoreError, StoreLocked

ROOT = Path(__file__).parents[2]
ACQUIRE = """
import sys
from pathlib import Path
from muster.coordinator.storage.directory import DataDirectory
from muster.coordinator.storage.store import StoreLocked
try:
    DataDirectory.acquire(Path(sys.argv[1]))
    print("acquired")
except StoreLocked as error:
    print(error)
"""


def acquire_elsewhere(path: Path) -> str:
    """What another process gets when it tries to acquire the directory."""
    return subprocess.run(
        [sys.executable, "-c", ACQUIRE, str(path)], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    ).stdout.strip()


def test_owners_of_one_process_share_the_lock_until_the_last_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "made" / "on demand"
    first = DataDirectory.acquire(path)
    second = DataDirectory.acquire(path / ".." / "on demand")
    assert first.lease_table is second.lease_table
    assert first.store_path == second.store_path
    first.release()
    first.release()  # this does not release the second owner's share
    refusal = acquire_elsewhere(path)
    assert f"{path} is in use by process {os.getpid()}" in refusal
    second.release()
    assert acquire_elsewhere(path) == "acquired"


def test_a_new_hold_on_the_lock_knows_of_nobody(tmp_path: Path) -> None:
    first = DataDirectory.acquire(tmp_path)
    first.release()
    second = DataDirectory.acquire(tmp_path)
    assert first.lease_table is not second.lease_table
    second.release()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_does_not_inherit_the_lock(tmp_path: Path) -> None:
    directory = DataDirectory.acquire(tmp_path)
    child = os.fork()
    if child == 0:
        try:
            DataDirectory.acquire(tmp_path)
        except StoreLocked:
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    directory.release()
    assert os.waitstatus_to_exitcode(status) == 0


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_locks_is_no_other_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refuse(descriptor: int) -> None:
        raise OSError(code, os.strerror(code))

    (tmp_path / "muster.lock").write_text("4711\n")  # of the last run
    monkeypatch.setattr("muster.coordinator.storage.directory.try_lock", refuse)
    with pytest.raises(StoreError, match=rf"^cannot lock data directory .*: {os.strerror(code)};") as refusal:
        DataDirectory.acquire(tmp_path)
    assert not isinstance(refusal.value, StoreLocked)
    assert "4711" not in str(refusal.value)


def test_what_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=r"cannot use data directory .*/file: it is not a directory$"):
        DataDirectory.acquire(tmp_path / "file")
    lock = tmp_path / "muster.lock"
    lock.mkdir()  # root may write to any file
    with pytest.raises(StoreError, match=rf"cannot use data directory .*: {lock}: Is a directory$"):
        DataDirectory.acquire(tmp_path)


def test_the_lock_file_that_a_dead_process_left_means_nothing(tmp_path: Path) -> None:
    (tmp_path / "muster.lock").write_text("4194304\n")
    DataDirectory.acquire(tmp_path).release()

"""What another operating system needs, as far as this one can show it."""

from __future__ import annotations

import errno
import importlib.util
import os
import sys
from pathlib import Path

import pytest

from muster.coordinator.base import system

if sys.platform == "win32":
    pytest.skip("needs fcntl", allow_module_level=True)

import fcntl

FULL_SYNC = 51


@pytest.mark.parametrize(
    ("failure", "done"),
    [
        (None, ["full sync"]),
        (errno.ENOTSUP, ["full sync", "fsync"]),  # a network's file system
    ],
)
def test_on_macos_files_and_folders_reach_the_drive(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, failure: int | None, done: list[str]
) -> None:
    """There fsync leaves the data in the drive's cache."""
    calls: list[str] = []

    def control(descriptor: int, command: int) -> int:
        assert command == FULL_SYNC
        calls.append("full sync")
        if failure is not None:
            raise OSError(failure, os.strerror(failure))
        return 0

    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(fcntl, "F_FULLFSYNC", FULL_SYNC, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", control)
    monkeypatch.setattr(os, "fsync", lambda descriptor: calls.append("fsync"))
    spec = importlib.util.spec_from_file_location("system_on_macos", system.__file__)
    assert spec is not None
    assert spec.loader is not None
    on_macos = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(on_macos)

    file = tmp_path / "log"
    file.touch()
    with file.open("rb") as opened:
        on_macos.sync_data(opened.fileno())
    assert calls == done
    on_macos.sync_folder(str(tmp_path))
    assert calls == done * 2

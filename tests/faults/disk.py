"""A disk of a few megabytes, to be filled up and made read-only: a tmpfs, which needs root or a user
namespace (`make faults` creates one when not run by root)."""

from __future__ import annotations

import subprocess
from errno import ENOSPC
from pathlib import Path
from types import TracebackType
from typing import Final, Self

_PIECE: Final = bytes(4096)


class SmallDisk:
    """Mounted at `path` inside the `with` block."""

    def __init__(self, path: Path, *, megabytes: int) -> None:
        self.path = path
        self._size = f"{megabytes}m"

    def __enter__(self) -> Self:
        self.path.mkdir()
        try:
            _run("mount", "-t", "tmpfs", "-o", f"size={self._size}", "tmpfs", str(self.path))
        except RuntimeError as error:
            raise RuntimeError(
                f"a small disk cannot be mounted ({error}): run this as root, or under `unshare "
                "--map-root-user --mount`"
            ) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _run("umount", "--lazy", str(self.path))

    def fill(self) -> None:
        """Leave not a byte free, until `make_room`."""
        with (self.path / "filler").open("ab", buffering=0) as filler:
            try:
                while filler.write(_PIECE):
                    pass
            except OSError as error:
                if error.errno != ENOSPC:
                    raise

    def make_room(self) -> None:
        (self.path / "filler").unlink()

    def read_only(self) -> None:
        """Make it read-only; the system refuses while a file is open for writing."""
        _run("mount", "-o", "remount,bind,ro", str(self.path))

    def writable(self) -> None:
        _run("mount", "-o", "remount,bind,rw", str(self.path))


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")

"""Room kept for what makes room: on a full disk sqlite cannot even write that a topic is deleted."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from shutil import disk_usage
from typing import Final

_BYTES: Final = 1024 * 1024
_GIVEN_BYTES: Final = 65_536
"""What a change of a topic or its configs takes, and more."""
_PLENTY_BYTES: Final = 16 * _BYTES


class Reserve:
    """A file that is there for its size, and shrinks a little each time its room is needed. Blocks; for the
    store's writing thread."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def fill(self) -> None:
        """Make it as large as it should be, where there is plenty of room for that."""
        missing = _BYTES - self._size()
        if missing <= 0:
            return
        with suppress(OSError):
            if disk_usage(self.path.parent).free >= _PLENTY_BYTES:
                with self.path.open("ab", buffering=0) as file:
                    file.write(os.urandom(missing))  # some file systems store no zeros

    def give(self) -> bool:
        """Give some of it back to the file system; False if nothing is left."""
        size = self._size()
        if not size:
            return False
        try:
            with self.path.open("r+b") as file:
                file.truncate(max(size - _GIVEN_BYTES, 0))
                os.fsync(file.fileno())  # until then it may not be free
        except OSError:
            return False
        return True

    def _size(self) -> int:
        try:
            return self.path.stat().st_size
        except OSError:
            return 0

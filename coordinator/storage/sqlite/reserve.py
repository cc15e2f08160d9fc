"""Room kept for what makes room: on a full disk sqlite can neither be opened nor write that a topic is
deleted, and retention cannot note what it removes."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from shutil import disk_usage
from typing import Final

_BYTES: Final = 1024 * 1024
_GIVEN_BYTES: Final = 65_536
"""What a change of a topic or its configs takes, and more."""
_PLENTY_BYTES: Final = 16 * _BYTES
_AGAIN_MS: Final = 60_000


class Reserve:
    """A file that is there for its size, and shrinks a little each time its room is needed. Blocks; two calls
    at once are harmless."""

    def __init__(self, path: Path, now_ms: Callable[[], int]) -> None:
        self.path = path
        self._now_ms = now_ms
        self._again_ms: int | None = None
        """When `refill` tries; None: nothing is missing."""

    def fill(self) -> None:
        """Make it as large as it should be, where there is plenty of room for that."""
        missing = _BYTES - self._size()
        with suppress(OSError):
            if missing > 0 and disk_usage(self.path.parent).free >= _PLENTY_BYTES:
                with self.path.open("ab", buffering=0) as file:
                    file.write(os.urandom(missing))  # some file systems store no zeros
        self._again_ms = None if self._size() >= _BYTES else self._now_ms() + _AGAIN_MS

    def refill(self) -> None:
        """To be called often: fill it a minute after it was last needed, or could not be filled."""
        if self._again_ms is not None and self._now_ms() >= self._again_ms:
            self.fill()

    def give_to_retention(self) -> bool:
        """As `give`, but half of it is left: retention asks again and again, without anybody's doing."""
        return self._size() > _BYTES // 2 and self.give()

    def give(self) -> bool:
        """Give some of it back to the file system; False if nothing is left."""
        self._again_ms = self._now_ms() + _AGAIN_MS
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

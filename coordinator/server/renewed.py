"""Files with keys and secrets, which may be replaced while the broker runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Final, Generic, TypeVar

from muster.coordinator.base.clock import Clock
from muster.coordinator.base.log import Logger
from muster.coordinator.security.exchange import SecurityError

_LOOK_MS: Final = 1_000
"""Minimum time between checks whether the files have changed, which are made only when they are needed."""

_Stamp = tuple[tuple[int, int, int, int], ...]
Content = TypeVar("Content")


class Renewed(Generic[Content]):
    """The content of some files. It is read again when they change; if it cannot be used, that is logged, and
    the old content stays."""

    def __init__(
        self, files: Mapping[str, str], read: Callable[[], Content], clock: Clock, log: Logger, what: str
    ) -> None:
        """`files` are paths by the options that set them, `what` names their content in the log. Raises
        SecurityError, as `read` may."""
        self._files = files
        self._read = read
        self._clock = clock
        self._log = log
        self._what = what
        self._stamp = self._look()
        self._looked_ms = clock.now_ms()
        self._content = read()

    def __repr__(self) -> str:
        return f"<Renewed {self._what} of {', '.join(self._files.values())}>"

    @property
    def content(self) -> Content:
        """The content of the files now, or a moment ago."""
        now_ms = self._clock.now_ms()
        if now_ms - self._looked_ms >= _LOOK_MS:
            self._looked_ms = now_ms
            self._read_again_if_changed()
        return self._content

    def read_again(self) -> None:
        """Read the files now."""
        try:
            self._stamp = self._look()
            self._content = self._read()
        except SecurityError as error:
            self._log.error(f"new {self._what} cannot be used; what was there stays in force", why=str(error))
        else:
            self._log.info(f"{self._what} read again", file=", ".join(self._files.values()))

    def _read_again_if_changed(self) -> None:
        try:
            stamp = self._look()
        except SecurityError:
            return  # being replaced right now
        if stamp != self._stamp:
            self._stamp = stamp
            self.read_again()

    def _look(self) -> _Stamp:
        return tuple(_stamp_of(option, path) for option, path in self._files.items())


def _stamp_of(option: str, path: str) -> tuple[int, int, int, int]:
    try:
        found = os.stat(path)
    except OSError as error:
        raise SecurityError(f"{option} {path}: {(error.strerror or str(error)).lower()}") from None
    # With the time of the last change of owner or mode: a file that could not be read may be readable now.
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino

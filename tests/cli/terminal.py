"""A terminal for commands to run in, and what they leave on its screen."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from types import TracebackType
from typing import Any, Self

from tests.cli.running import DEADLINE_S, environment

_ESCAPES = re.compile(rb"\x1b\[[0-9;?]*[a-zA-Z]|\x1b[=>()][0-9AB]?")

_SIZE = ("COLUMNS", "LINES")
"""Environment variables that would override the terminal's size."""


class Terminal:
    """Runs one command in a terminal: standard error, and every stream that is not given as an option of
    Popen. `pieces` holds all bytes written to it."""

    def __init__(
        self,
        bootstrap: str,
        *arguments: str,
        columns: int = 110,
        lines: int = 30,
        term: str = "xterm",
        **options: Any,
    ) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        try:
            self.process: subprocess.Popen[bytes] = subprocess.Popen(
                [sys.executable, "-m", "muster", *arguments],
                **{"stdin": theirs, "stdout": theirs, "stderr": theirs} | options,
                env={name: value for name, value in environment(bootstrap).items() if name not in _SIZE}
                | {"TERM": term},
                start_new_session=True,
                preexec_fn=_takes_the_terminal,
            )
        finally:
            os.close(theirs)
        self.pieces = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.communicate()
        if self._ours >= 0:
            self.hang_up()

    @property
    def text(self) -> str:
        """All output, without colours and cursor movements."""
        return _ESCAPES.sub(b"", self.pieces).decode(errors="replace").replace("\r\n", "\n")

    def type(self, text: bytes) -> None:
        """Type on the keyboard."""
        os.write(self._ours, text)

    def until(self, pattern: str, *, after: int = 0) -> re.Match[str]:
        """Wait for `pattern` in the text from character `after` on; return the match."""
        until = time.monotonic() + DEADLINE_S
        while (found := re.compile(pattern).search(self.text, after)) is None:
            more = self._read(max(until - time.monotonic(), 0))
            assert more, f"{pattern!r} did not come: {self.text[-2_000:]!r}"
        return found

    def ended(self) -> int:
        """Read to the end; return the exit code."""
        until = time.monotonic() + DEADLINE_S
        while self._read(max(until - time.monotonic(), 0)):
            pass
        return self.process.wait(max(until - time.monotonic(), 1))

    def hang_up(self) -> None:
        """Close the window."""
        os.close(self._ours)
        self._ours = -1

    def settings(self) -> list[Any]:
        """The terminal's settings (termios)."""
        return termios.tcgetattr(self._ours)

    def _read(self, timeout_s: float) -> bool:
        """Read more output; return whether there was any."""
        if not select.select([self._ours], [], [], timeout_s)[0]:
            return False
        with contextlib.suppress(OSError):  # Linux: the other end is closed
            piece = os.read(self._ours, 65_536)
            self.pieces += piece
            return bool(piece)
        return False


def _takes_the_terminal() -> None:
    fcntl.ioctl(2, termios.TIOCSCTTY, 0)

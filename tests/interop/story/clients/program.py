"""Clients whose three programs are one; its first argument selects which to be."""

from __future__ import annotations

import shutil
import subprocess
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.interop.story.clients.base import StockClient

ALL_CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
_BUILD_SECONDS_MAX: Final = 300


class ProgramClient(StockClient):
    @abstractmethod
    def command(self) -> list[str]:
        """The program's command line; its arguments follow."""

    def produce(self, bootstrap: str, topic: str, codec: str, first: int, count: int) -> list[str]:
        return [*self.command(), "produce", bootstrap, topic, codec, str(first), str(count)]

    def member(
        self, bootstrap: str, group: str, topic: str, session_timeout_ms: int, *configs: str
    ) -> list[str]:
        return [*self.command(), "member", bootstrap, group, topic, str(session_timeout_ms), *configs]

    def admin(self, bootstrap: str, prefix: str) -> list[str] | None:
        return [*self.command(), "admin", bootstrap, prefix]


def need(*tools: str, hint: str) -> None:
    """Raises RuntimeError with the hint if one of the tools is not on the PATH."""
    for tool in tools:
        if shutil.which(tool) is None:
            raise RuntimeError(f"no {tool} on the PATH: {hint}")


def run(command: Sequence[str], folder: Path | None = None) -> str:
    """A tool's output. Raises RuntimeError with everything it printed if it fails."""
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_BUILD_SECONDS_MAX)
    except subprocess.TimeoutExpired as expired:
        raise RuntimeError(f"{' '.join(command)} took more than {_BUILD_SECONDS_MAX} s") from expired
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout

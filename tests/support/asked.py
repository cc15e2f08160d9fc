"""A server in a process of its own that reports its state: a line when it is ready, then a line of JSON for
each line it is sent."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Self

_PATIENCE_S: Final = 600.0
"""Limit for one answer, generous enough for a busy process on a busy machine."""
_LOOK_AGAIN_S: Final = 0.2
_LOG_SHOWN: Final = 4_000


class Gone(RuntimeError):
    """The process ended or never began to serve; the message holds the end of its log."""


class Asked:
    """`async with Asked(command, log) as server`: the process is killed at the end if it still runs."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        """`log` is the file for its standard error: lines of JSON."""
        self.ready_line = ""
        self._command = command
        self._log = log

    async def __aenter__(self) -> Self:
        with self._log.open("wb") as errors:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                start_new_session=True,  # signals to our group are for us: the run decides when it ends
            )
        self.ready_line = (await self._line()).decode().strip()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.communicate()  # to the end of its output, so that no pipe stays open

    @property
    def pid(self) -> int:
        return self._process.pid

    async def facts(self, line: str = "facts") -> dict[str, Any]:
        """Send a line and return the answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())
        told: dict[str, Any] = json.loads(await self._line())
        return told

    async def until(
        self, fact: Callable[[dict[str, Any]], bool], within_s: float, line: str = "facts"
    ) -> tuple[bool, dict[str, Any]]:
        """Whether `fact` became true of its answers within `within_s`, and the last answer."""
        deadline = time.monotonic() + within_s
        while not fact(now := await self.facts(line)):
            if time.monotonic() > deadline:
                return False, now
            await asyncio.sleep(_LOOK_AGAIN_S)
        return True, now

    async def stop(self) -> int:
        """Close its input, which asks it to end; returns its exit code."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        return await asyncio.wait_for(self._process.wait(), _PATIENCE_S)

    def complaints(self) -> list[str]:
        """Log lines at error level, and lines that are not log lines."""
        return [line for line in self._log.read_text(errors="replace").splitlines() if not _warning(line)]

    def log_end(self) -> str:
        return self._log.read_text(errors="replace")[-_LOG_SHOWN:]

    async def _line(self) -> bytes:
        assert self._process.stdout is not None
        line = await asyncio.wait_for(self._process.stdout.readline(), _PATIENCE_S)
        if not line:
            raise Gone(f"{' '.join(self._command)} is gone; the end of its log:\n{self.log_end()}")
        return line


def _warning(line: str) -> bool:
    try:
        return bool(json.loads(line)["level"] == "warning")
    except (ValueError, KeyError, TypeError):
        return False

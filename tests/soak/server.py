"""The process that is soaked, seen from outside."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Self

_DEADLINE_S: Final = 300.0
_OPTIONS: Final = {
    # What is kept for a while is to go many times within the run.
    "log-retention-ms": 60_000,
    "log-retention-check-interval-ms": 5_000,
    "log-cleaner-backoff-ms": 3_000,
    "log-cleaner-delete-retention-ms": 10_000,
    "producer-id-expiration-ms": 60_000,
    "offsets-retention-minutes": 1,
    "offsets-retention-check-interval-ms": 10_000,
    "group-events-retention-ms": 300_000,
    "group-events-retention-bytes": 1 << 20,
    "group-initial-rebalance-delay-ms": 500,
    "group-min-session-timeout-ms": 1_000,
    "connections-max-idle-ms": 60_000,
    "request-receive-timeout-ms": 20_000,
    "log-level": "warning",
    "log-format": "json",
}


class Server:
    """`async with Server(directory) as server`: `muster serve` with the probe of tests.soak.served."""

    def __init__(self, directory: Path, brokers: int) -> None:
        self._log = directory / "log"
        self.bootstrap = ""
        self.page = ("", 0)
        """Host and port of its metrics."""
        options = [part for name, value in _OPTIONS.items() for part in (f"--{name}", str(value))]
        self._command = (
            *(sys.executable, "-m", "tests.soak.served", "serve", "--port", "0", "--http", "127.0.0.1:0"),
            *("--data", str(directory / "data"), "--brokers", str(brokers), *options),
        )

    async def __aenter__(self) -> Self:
        with self._log.open("wb") as errors:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                start_new_session=True,  # signals to our group are for us: when it ends is part of the run
            )
        said = (await self._line()).decode()
        if not said.startswith("muster ready on "):
            raise RuntimeError(f"the server did not start: {said}\n{self._log.read_text()}")
        self.bootstrap = said.removeprefix("muster ready on ").split(" ", 1)[0]
        host, _, port = said.strip().rpartition("http://")[2].rpartition(":")
        self.page = host, int(port)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    async def facts(self, *, collected: bool = False) -> dict[str, Any]:
        """What it holds."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"collected\n" if collected else b"facts\n")
        told: dict[str, Any] = json.loads(await self._line())
        return told

    async def until(self, fact: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """What it holds once `fact` is true of it, or when the deadline has passed."""
        deadline = time.monotonic() + _DEADLINE_S
        while (  # noqa: ASYNC110 - another process's facts
            not fact(now := await self.facts(collected=True)) and time.monotonic() < deadline
        ):
            await asyncio.sleep(1)
        return now

    async def stop(self) -> int:
        """Ask it to end; its exit code."""
        self._process.terminate()
        return await asyncio.wait_for(self._process.wait(), _DEADLINE_S)

    def complaints(self) -> list[str]:
        """What it logged as an error, and whatever is no line of the log."""
        return [line for line in self._log.read_text(errors="replace").splitlines() if not _warning(line)]

    async def _line(self) -> bytes:
        assert self._process.stdout is not None
        line = await asyncio.wait_for(self._process.stdout.readline(), _DEADLINE_S)
        if not line:
            raise RuntimeError(f"the server is gone:\n{self._log.read_text(errors='replace')[-4000:]}")
        return line


def _warning(line: str) -> bool:
    try:
        return bool(json.loads(line)["level"] == "warning")
    except (ValueError, KeyError, TypeError):
        return False

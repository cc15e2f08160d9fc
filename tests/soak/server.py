"""The process under soak, seen from outside."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final, Self

from tests.support.asked import Asked, Gone

_OPTIONS: Final = {
    # Whatever is retained for a while must expire many times within the run.
    "log-retention-ms": 60_000,
    "log-retention-check-interval-ms": 5_000,
    "log-cleaner-backoff-ms": 3_000,
    "log-cleaner-delete-retention-ms": 10_000,
    "producer-id-expiration-ms": 60_000,
    "offsets-retention-minutes": 1,
    "offsets-retention-check-interval-ms": 10_000,
    "group-events-retention-ms": 300_000,
    "group-events-retention-bytes": 1 << 20,
    # A broker on a busy machine must not lose its groups.
    "lease-term-ms": 60_000,
    "offsets-commit-timeout-ms": 60_000,
    "group-initial-rebalance-delay-ms": 500,
    "group-min-session-timeout-ms": 1_000,
    "connections-max-idle-ms": 60_000,
    "request-receive-timeout-ms": 20_000,
    "log-level": "warning",
    "log-format": "json",
}


class Server(Asked):
    """`async with Server(directory, brokers) as server`: `muster serve` with the probe of
    tests.soak.served."""

    def __init__(self, directory: Path, brokers: int) -> None:
        options = [part for name, value in _OPTIONS.items() for part in (f"--{name}", str(value))]
        command = (
            *(sys.executable, "-m", "tests.soak.served", "serve", "--port", "0", "--http", "127.0.0.1:0"),
            *("--data", str(directory / "data"), "--brokers", str(brokers), *options),
        )
        super().__init__(command, directory / "log")
        self.bootstrap = ""
        self.page = ("", 0)
        """Host and port of its metrics page."""

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        if not self.ready_line.startswith("muster ready on "):
            raise Gone(f"the server did not start: {self.ready_line}\n{self.log_end()}")
        self.bootstrap = self.ready_line.removeprefix("muster ready on ").split(" ", 1)[0]
        host, _, port = self.ready_line.rpartition("http://")[2].rpartition(":")
        self.page = host, int(port)
        return self

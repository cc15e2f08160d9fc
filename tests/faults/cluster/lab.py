"""The cluster of a drill: PostgreSQL on host 4, a broker on each of hosts 1 to 3, and how to harm them."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import urlsplit

import asyncpg

from tests.faults.cluster.cuts import Cuts
from tests.faults.cluster.netns import Network, address
from tests.support.postgres import Postgres

NODES: Final = (1, 2, 3)
DATABASE: Final = 4
PORT: Final = 9092
TERM_S: Final = 3.0
_READY_S: Final = 90.0
_END_S: Final = 60.0


class BrokerProcess:
    """`muster serve` on its host; `start` it again after it has ended. With `own_clock` its wall clock can be
    set separately, which makes every clock read slow and makes threads wait for each other."""

    def __init__(self, node: int, network: Network, store: str, directory: Path, *, own_clock: bool) -> None:
        self.node = node
        self.log = directory / f"broker-{node}.log"
        self._clock = directory / f"broker-{node}.clock" if own_clock else None
        self._network = network
        self._store = store
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def begin(self) -> None:
        """Start it; `ready` waits until it serves."""
        if self._clock is not None:
            self.set_clock(0)
        command = [sys.executable, "-m", "muster", "serve", "--node-id", str(self.node)]
        options = [
            "--host",
            address(self.node),
            "--port",
            str(PORT),
            "--lease-term-ms",
            str(int(TERM_S * 1000)),
        ]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("MUSTER_")}
        with self.log.open("ab") as log:
            self._said_from = log.tell()
            self._process = subprocess.Popen(
                [
                    *self._network.inside(self.node),
                    *command,
                    *options,
                    "--group-initial-rebalance-delay-ms",
                    "0",
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment | {"MUSTER_STORE": self._store} | self._faked_clock(),
            )

    async def ready(self) -> None:
        """Raises AssertionError with its last output if it ends before that."""
        await until(lambda: b"muster ready on" in self._said() or self._ended(), "a ready broker", _READY_S)
        if self._ended():
            raise AssertionError(f"broker {self.node} ended: {self._said().decode()[-2000:]}")

    def look(self) -> None:
        """Raises AssertionError if it has ended by itself."""
        if self._process is not None and self._ended():
            raise AssertionError(f"broker {self.node} ended: {self._said().decode()[-2000:]}")

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self._wait()

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    async def stop(self) -> None:
        """Ask it to end, and wait until it has; raises AssertionError unless it shuts down cleanly."""
        process = self._process
        assert process is not None
        self.signal(signal.SIGTERM)
        await until(self._ended, f"the end of broker {self.node}", _END_S)
        self._wait()
        assert process.returncode == 0, (
            f"broker {self.node} ended with {process.returncode} when it was stopped"
        )

    def set_clock(self, seconds: float) -> None:
        """Moves its wall clock ahead or back by `seconds`, within a second. Monotonic clocks are left alone,
        as when a machine's date is set."""
        assert self._clock is not None, "the lab has no clocks to set"
        written = self._clock.with_suffix(".new")
        written.write_text(f"{seconds:+.3f}\n")
        written.replace(self._clock)

    def end(self) -> None:
        if self._process is not None:
            self.signal(signal.SIGCONT)
            self.kill()

    def _ended(self) -> bool:
        return self._process is not None and self._process.poll() is not None

    def _wait(self) -> None:
        assert self._process is not None
        self._process.wait(_END_S)
        self._process = None

    def _said(self) -> bytes:
        with self.log.open("rb") as log:
            log.seek(self._said_from)
            return log.read()

    def _faked_clock(self) -> dict[str, str]:
        """libfaketime, controlled by a file."""
        if self._clock is None:
            return {}
        return {
            "LD_PRELOAD": str(faketime_library()),
            "FAKETIME_TIMESTAMP_FILE": str(self._clock),
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",
        }


def faketime_library() -> Path:
    """Raises a RuntimeError that says how to get it."""
    for found in Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"):
        return found
    raise RuntimeError("libfaketime is not installed, and these tests need it: make faults-tools")


class Lab:
    """The cluster, from `start` on, while it is entered. Logs go to `directory`."""

    def __init__(self, directory: Path, *, own_clocks: bool = False) -> None:
        self.directory = directory
        self._own_clocks = own_clocks
        self.network = Network(DATABASE)
        self.cuts = Cuts(self.network)
        self.brokers: dict[int, BrokerProcess] = {}
        self._postgres: Postgres | None = None
        self._url = ""

    def __enter__(self) -> Self:
        if self._own_clocks:
            faketime_library()
        self.directory.mkdir(parents=True, exist_ok=True)
        self.network.__enter__()
        try:
            self._postgres = Postgres(
                host=address(DATABASE),
                port=5432,
                under=self.network.inside(DATABASE),
                settings={"track_commit_timestamp": "on"},
            )
            self.postgres.start()
            with self.network.entered(DATABASE):
                self._url = self.postgres.new_database()
            self.brokers = {
                node: BrokerProcess(node, self.network, self._url, self.directory, own_clock=self._own_clocks)
                for node in NODES
            }
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            for broker in self.brokers.values():
                broker.end()
        finally:
            try:
                if self._postgres is not None:
                    self._postgres.__exit__(kind, error, trace)
            finally:
                self.network.__exit__(kind, error, trace)

    @property
    def postgres(self) -> Postgres:
        assert self._postgres is not None
        return self._postgres

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{address(node)}:{PORT}" for node in NODES)

    async def start(self) -> None:
        for broker in self.brokers.values():
            broker.begin()
        for broker in self.brokers.values():
            await broker.ready()

    def look(self) -> None:
        """Raises AssertionError if a broker has ended by itself."""
        for broker in self.brokers.values():
            broker.look()

    def mend(self) -> None:
        """Undo whatever can be undone of a fault."""
        self.cuts.mend()
        for node in NODES:
            self.network.plug(node)
        self.postgres.resume()

    async def superuser(self) -> asyncpg.Connection:
        """A connection to the brokers' database that no cut affects."""
        return await asyncpg.connect(
            host=str(self.postgres.socket_folder),
            port=self.postgres.port,
            user="postgres",
            database=urlsplit(self._url).path.lstrip("/"),
        )


async def until(fact: Callable[[], Any], what: str, seconds: float) -> float:
    """Wait for the fact; returns how many seconds that took. Raises AssertionError on timeout."""
    began = time.monotonic()
    while not fact():
        if time.monotonic() - began > seconds:
            raise AssertionError(f"timed out after {seconds:.0f} s waiting for {what}")
        await asyncio.sleep(0.02)
    return time.monotonic() - began

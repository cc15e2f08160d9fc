"""`muster-pipeline` as its own process, with the JVM and the workers below it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import Final, Self

from muster.coordinator.testing import AsyncCluster, Broker
from tests.pipeline.processes import ENDING_WITH_THE_TESTS, gone, kill, of_session
from tests.support.java import SPARK

STARTS_S: Final = 180.0
"""How long a job may take to get somewhere. Spark starts in seconds on an idle machine."""


class Job:
    """A command in its own session of processes; killed at the end of the block if it is still running.

    `ignoring`: a signal that is ignored from the start, as SIGINT is for a command that a script starts with
    `&`."""

    def __init__(
        self,
        broker: Broker | AsyncCluster,
        lake: Path,
        *options: str,
        command: Sequence[str] = ("ingest", "--topics=orders"),
        ignoring: int | None = None,
    ) -> None:
        ignored = () if ignoring is None else ("env", f"--ignore-signal={ignoring}")
        cli = (sys.executable, "-m", "muster.pipeline.cli")
        self._process = subprocess.Popen(
            [*ENDING_WITH_THE_TESTS, *ignored, *cli, *command, f"--to={lake}", *options],
            env=os.environ | {"MUSTER_BOOTSTRAP_SERVERS": broker.bootstrap, "SPARK_SUBMIT_OPTS": SPARK},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.err: list[str] = []
        self._lines: Queue[str | None] = Queue()
        self._reader = Thread(target=self._read, daemon=True)

    def __enter__(self) -> Self:
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._reader.join(STARTS_S)
        for stream in (self._process.stdout, self._process.stderr):
            assert stream is not None
            stream.close()

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def told(self, pattern: str | None) -> None:
        """Read standard error up to a matching line, or with None to its end."""
        until_s = time.monotonic() + STARTS_S
        while True:
            try:
                line = self._lines.get(timeout=until_s - time.monotonic())
            except (Empty, ValueError):
                raise AssertionError(f"{pattern!r} did not come: {self.err}") from None
            if line is None:
                assert pattern is None, f"nothing like {pattern!r} came: {self.err}"
                return
            self.err.append(line)
            if pattern is not None and re.search(pattern, line):
                return

    def wait_for(self, program: str) -> None:
        """Wait until a process with this in its command line runs."""
        until_s = time.monotonic() + STARTS_S
        while not any(program in each for each in of_session(self._process.pid).values()):
            assert self.runs, "it has ended"
            assert time.monotonic() < until_s, f"no {program} among {of_session(self._process.pid)}"

    @property
    def runs(self) -> bool:
        return self._process.poll() is None

    def ended(self) -> tuple[int, str]:
        """Wait until it and all processes below it end; return the exit code and standard output."""
        self.told(None)
        assert self._process.stdout is not None
        code, out = self._process.wait(STARTS_S), self._process.stdout.read()
        assert not (left := gone(self._process.pid)), f"it ended with {code} and left {left}"
        return code, out

    def signal(self, number: int, *, to_all: bool = False) -> None:
        """`to_all`: signal every process of the session, as a service manager does, and a terminal with
        SIGINT."""
        for pid in of_session(self._process.pid) if to_all else [self._process.pid]:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def kill(self) -> None:
        """Kill it and everything it started, at once."""
        kill(self._process.pid)
        self._process.wait(STARTS_S)

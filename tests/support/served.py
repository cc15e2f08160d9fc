"""`muster serve` in a process of its own, to be killed and restarted on the same data and port."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.leases import TERM_MS
from tests.support.ports import free_ports

READY_S = 60.0


class Served:
    """Start it, talk to `bootstrap`, `kill` it as a power cut would, `start` it again: same directory, same
    port.

    `log` is a file for its standard error; a server that logs much or lives long needs one. `ports` ports are
    kept free from `port` on, for several brokers. `python` has muster installed; by default it is this one.
    """

    def __init__(
        self,
        data: Path | None,
        *options: str,
        log: Path | None = None,
        ports: int = 1,
        python: Path | None = None,
    ) -> None:
        self.data = data
        self.port = free_ports(ports)
        self._log = log
        self.ready_line = ""
        self._options = options
        # Without -P it would import muster from the checkout it is started in.
        self._python = [sys.executable] if python is None else [str(python), "-P"]
        self._process: subprocess.Popen[str] | None = None

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def process(self) -> subprocess.Popen[str]:
        assert self._process is not None
        return self._process

    def start(self, *, under: Sequence[str] = (), module: str = "muster") -> Self:
        """Return once it reports ready; raises RuntimeError with its last output if it ends before that.

        `under` is a command that runs it as a process of the same id (`strace -D`); `module` is run instead
        of muster.
        """
        command = [
            *under,
            *self._python,
            "-m",
            module,
            "serve",
            *(() if "--listeners" in self._options else ("--port", str(self.port))),
            *(() if self.data is None else ("--data", str(self.data))),
        ]
        with self._log.open("ab") if self._log else nullcontext(subprocess.PIPE) as stderr:
            self._process = subprocess.Popen(
                [*command, "--group-initial-rebalance-delay-ms", "0", *self._leases(), *self._options],
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                env={name: value for name, value in os.environ.items() if not name.startswith("MUSTER_")},
            )
        self.ready_line = self._first_line()
        return self

    def _leases(self) -> Sequence[str]:
        """A lone broker has nobody to lose leases to. In a database, a killed one's leases have to expire."""
        return () if "--store" in self._options else ("--lease-term-ms", str(TERM_MS))

    def _first_line(self) -> str:
        process, deadline = self.process, time.monotonic() + READY_S
        assert process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            if not selector.select(deadline - time.monotonic()):
                process.kill()
                raise TimeoutError(f"not ready after {READY_S} s: {process.communicate()}")
        line = process.stdout.readline()
        if not line:
            complaint = self._log.read_text() if self._log else process.communicate()[1]
            raise RuntimeError(f"muster serve ended with {self._end()}: {complaint}")
        return line.strip()

    def kill(self) -> None:
        """End it without a chance to do anything more (SIGKILL)."""
        self.process.send_signal(signal.SIGKILL)
        self._end()

    def stop(self) -> int:
        """Ask it to end; returns its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self._end()

    def _end(self) -> int:
        code = self.process.wait(READY_S)
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()
        self._process = None
        return code

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self.kill()

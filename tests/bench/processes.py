"""The processes of a benchmark: a server to be measured, and what puts load on it from a process of its own.

CPU time and memory are read from /proc, so these benchmarks need Linux.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

_START_SECONDS_MAX: Final = 60
_LOAD_SECONDS_MAX: Final = 600
_STOP_SECONDS_MAX: Final = 30
_TICKS_A_SECOND: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Server:
    """A server process that accepts connections on 127.0.0.1."""

    pid: int
    port: int


@contextmanager
def muster(*options: str, data: Path | None = None) -> Iterator[Server]:
    """`muster serve` with a data directory of its own, removed afterwards, unless the options name a store;
    `data` chooses where."""
    with tempfile.TemporaryDirectory(prefix="muster-bench-", dir=data) as directory:
        command = [sys.executable, "-m", "muster.coordinator", "serve", "--port", "0"]
        command += [] if "--store" in options else ["--data", directory]
        with printing_its_port([*command, *options], Path(directory) / "server.log") as server:
            yield server


@contextmanager
def echo() -> Iterator[Server]:
    """The floor: a bare uvloop server (tests.bench.echo)."""
    with (
        tempfile.TemporaryDirectory(prefix="muster-bench-") as directory,
        printing_its_port([sys.executable, "-m", "tests.bench.echo"], Path(directory, "log")) as server,
    ):
        yield server


@contextmanager
def sink(path: Path) -> Iterator[Server]:
    """The floor of records: what they come as goes to the file `path`, and from there (tests.bench.sink)."""
    command = [sys.executable, "-m", "tests.bench.sink", str(path)]
    with printing_its_port(command, path.with_suffix(".log")) as server:
        yield server


@contextmanager
def printing_its_port(command: list[str], log: Path) -> Iterator[Server]:
    """A process whose first line names the port: `... 127.0.0.1:9092 ...`. `log` is for its complaints."""
    with log.open("wb") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, stdin=subprocess.DEVNULL)
    try:
        assert process.stdout is not None
        line = process.stdout.readline().decode()
        if "127.0.0.1:" not in line:
            raise RuntimeError(f"{' '.join(command)} did not start:\n{log.read_text()}")
        yield Server(process.pid, int(line.partition("127.0.0.1:")[2].split()[0]))
    finally:
        process.terminate()
        try:
            process.wait(_STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


def load(function: Callable[..., Any], **arguments: Any) -> Any:
    """Run `function(**arguments)` in a process of its own; what it returns. Both go through JSON.

    The function is found by its module and name. What it prints comes out here, so that notes are seen.
    """
    process = start_load(function, **arguments)
    return finish_load(process)


def start_load(function: Callable[..., Any], **arguments: Any) -> subprocess.Popen[bytes]:
    """The same without waiting; `finish_load` waits."""
    where = f"{function.__module__}:{function.__qualname__}"
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.bench.processes", where],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps(arguments).encode())
    process.stdin.close()
    process.stdin = None
    return process


def finish_load(process: subprocess.Popen[bytes]) -> Any:
    try:
        out, _ = process.communicate(timeout=_LOAD_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    if process.returncode:
        raise RuntimeError(f"the load ended with {process.returncode}")
    return json.loads(out)


def cpu_seconds(pid: int) -> float:
    """User and system time of all threads of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_A_SECOND


def resident_bytes(pid: int) -> int:
    """Memory of a process that is in RAM, what it shares with others included."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def signal() -> Iterator[Path]:
    """A file that is not there yet: one process makes it with `tell`, another waits for it."""
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as directory:
        yield Path(directory) / "ready"


def tell(ready: str) -> None:
    Path(ready).touch()


def wait_for(ready: Path, load: subprocess.Popen[bytes] | None = None) -> None:
    """Wait until it is made, by `load` if that is given: then not longer than that runs."""
    end = time.monotonic() + _START_SECONDS_MAX
    while not ready.exists():
        if load is not None and load.poll() is not None:
            raise RuntimeError(f"the load ended with {load.returncode} before it was ready")
        if time.monotonic() > end:
            raise TimeoutError(f"the load was not ready within {_START_SECONDS_MAX} s")
        time.sleep(0.02)


def main(arguments: list[str]) -> None:
    module, _, name = arguments[0].partition(":")
    given: Mapping[str, Any] = json.load(sys.stdin)
    print(json.dumps(getattr(importlib.import_module(module), name)(**given)))


if __name__ == "__main__":
    main(sys.argv[1:])

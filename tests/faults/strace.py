"""strace as an instrument: it watches a process's system calls, makes chosen ones fail, or kills the process
in them."""

from __future__ import annotations

import selectors
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_ATTACH_S: Final = 60.0
_END_S: Final = 60.0


def program() -> str:
    """strace's path; RuntimeError that says how to get it if it is missing."""
    found = shutil.which("strace")
    if found is None:
        raise RuntimeError("strace is not installed, and these tests need it: apt-get install strace")
    return found


def under(*options: str, output: Path = Path("/dev/null")) -> list[str]:
    """A command prefix: strace runs as a separate process, so the process id is the command's own."""
    return [program(), "-D", "-f", "-qq", "-o", str(output), *options]


def kill_at(syscall: str, call: int) -> list[str]:
    """Options: SIGKILL on entry to that call of a thread."""
    return ["-e", f"trace={syscall}", "-e", f"inject={syscall}:signal=KILL:when={call}"]


def fail_with(error: str, *syscalls: str) -> list[str]:
    """Options: these calls are not made, and return `error`."""
    names = ",".join(syscalls)
    return ["-e", f"trace={names}", "-e", f"inject={names}:error={error}"]


@contextmanager
def attached(
    pid: int, options: Sequence[str], output: Path = Path("/dev/null"), *, to_death: bool = False
) -> Iterator[None]:
    """Inside the block, strace is attached to every thread of the process. With `to_death` the process must
    be dying by the end of it: strace must not be told to detach then, as both would hang."""
    command = [program(), "-f", "-p", str(pid), "-o", str(output), *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as tracer:
        try:
            _await_attached(tracer)
            yield
        finally:
            if not to_death:
                tracer.send_signal(signal.SIGTERM)
            try:
                tracer.communicate(timeout=_END_S)
            except subprocess.TimeoutExpired:
                tracer.kill()


def _await_attached(tracer: subprocess.Popen[str]) -> None:
    assert tracer.stderr is not None
    deadline = time.monotonic() + _ATTACH_S
    with selectors.DefaultSelector() as selector:
        selector.register(tracer.stderr, selectors.EVENT_READ)
        if not selector.select(deadline - time.monotonic()):
            raise TimeoutError(f"strace is not attached after {_ATTACH_S:g} s")
    said = tracer.stderr.readline()
    if "attached" not in said:
        raise RuntimeError(f"strace cannot attach: {said}{tracer.stderr.read()}")

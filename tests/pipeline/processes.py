"""Jobs as separate processes, each the leader of a session (setsid): the session finds everything it started,
even in another process group, as Spark's Python daemons are, or after the parent has ended.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

_ENDS_S: Final = 60.0
_LOOK_S: Final = 0.02

ENDING_WITH_THE_TESTS: Final = (
    sys.executable,
    "-c",
    # PR_SET_PDEATHSIG, which survives exec: otherwise a job would run on after the tests are killed.
    "import ctypes, os, signal, sys; ctypes.CDLL(None).prctl(1, signal.SIGKILL);"
    "os.execvp(sys.argv[1], sys.argv[1:])",
)
"""Prefix for a command."""


def of_session(leader: int) -> dict[int, str]:
    """The processes of this leader's session: command lines by process id. Zombies do not count."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            # pid (name) state parent group session ...; a name may contain spaces and brackets
            state, _, _, session = (path / "stat").read_text().rpartition(")")[2].split()[:4]
            if int(session) == leader and state not in "ZX":
                found[int(path.name)] = (path / "cmdline").read_text().replace("\0", " ")
    return found


def gone(leader: int) -> dict[int, str]:
    """Wait until no process of the session is left; return those that remain at the timeout."""
    until_s = time.monotonic() + _ENDS_S
    while (left := of_session(leader)) and time.monotonic() < until_s:
        time.sleep(_LOOK_S)
    return left


def kill(leader: int) -> None:
    """Kill all processes of a session at once, as a power failure does."""
    until_s = time.monotonic() + _ENDS_S
    while left := of_session(leader):
        assert time.monotonic() < until_s, f"{left} cannot be killed"
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

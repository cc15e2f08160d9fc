"""Jobs as processes of their own, each the first of a session (setsid): what it starts is found by that, also
when it is in a group of its own, as Spark's Python daemons are, or when who started it has ended.
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
    # PR_SET_PDEATHSIG, which outlives exec: a job goes on for ever, and would when the tests are killed.
    "import ctypes, os, signal, sys; ctypes.CDLL(None).prctl(1, signal.SIGKILL);"
    "os.execvp(sys.argv[1], sys.argv[1:])",
)
"""Before a command."""


def of_session(leader: int) -> dict[int, str]:
    """The processes of the session that this one began: command lines by id. Those that have ended
    and wait for a parent to notice do not count."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            # pid (name) state parent group session ...; a name may have blanks and brackets
            state, _, _, session = (path / "stat").read_text().rpartition(")")[2].split()[:4]
            if int(session) == leader and state not in "ZX":
                found[int(path.name)] = (path / "cmdline").read_text().replace("\0", " ")
    return found


def gone(leader: int) -> dict[int, str]:
    """Wait until no process of the session is left: those that would not go."""
    until_s = time.monotonic() + _ENDS_S
    while (left := of_session(leader)) and time.monotonic() < until_s:
        time.sleep(_LOOK_S)
    return left


def kill(leader: int) -> None:
    """End all of a session at once, as a machine does that loses its power."""
    until_s = time.monotonic() + _ENDS_S
    while left := of_session(leader):
        assert time.monotonic() < until_s, f"{left} cannot be killed"
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

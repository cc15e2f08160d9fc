"""CPU time and memory of servers that may be several processes, read from /proc."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.bench import processes
from tests.bench.database import family_cpu_seconds

_TICKS_A_SECOND: Final = os.sysconf("SC_CLK_TCK")
_CORES: Final = os.cpu_count() or 1


def cpu_seconds(pids: Sequence[int], families: Sequence[int]) -> float:
    """User and system time so far. A family is a process with its children, those that have ended too."""
    return sum(map(processes.cpu_seconds, pids)) + sum(map(family_cpu_seconds, families))


def resident_bytes(pids: Sequence[int], families: Sequence[int]) -> int:
    """Memory in RAM. What the processes of a family share is counted once."""
    members = (member for parent in families for member in _family(parent))
    return sum(map(processes.resident_bytes, pids)) + sum(map(_proportional_bytes, members))


def _family(parent: int) -> Iterator[int]:
    yield parent
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            fields = (directory / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        if fields[1] == str(parent):
            yield int(directory.name)


def _proportional_bytes(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:  # it has just ended
        return 0
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))


@dataclass(slots=True)
class Meter:
    """What server and driver used, and how long it took, since this object was made or `restart`ed."""

    pids: Sequence[int]
    families: Sequence[int]
    _server_s: float = 0.0
    _driver_s: float = 0.0
    _began_s: float = 0.0

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self._server_s = cpu_seconds(self.pids, self.families)
        self._driver_s = time.process_time()
        self._began_s = time.perf_counter()

    def read(self) -> dict[str, Any]:
        """`took_s`, `server_s` (CPU), and `driver`: the share of one core that this process had."""
        took_s = time.perf_counter() - self._began_s
        return {
            "took_s": took_s,
            "server_s": cpu_seconds(self.pids, self.families) - self._server_s,
            "driver": (time.process_time() - self._driver_s) / took_s,
        }


class Machine:
    """How busy the whole machine is, by whomever, since this object was made."""

    def __init__(self) -> None:
        self._began = self._read()
        self._ours = self._own()

    def others(self) -> float:
        """The share of all cores that went to processes other than this one and what it has started."""
        (busy, total), (busy_before, total_before) = self._read(), self._began
        ours = (self._own() - self._ours) * _TICKS_A_SECOND
        return max(busy - busy_before - ours, 0.0) / max(total - total_before, 1)

    @staticmethod
    def _own() -> float:
        times = os.times()
        return times.user + times.system + times.children_user + times.children_system

    @staticmethod
    def _read() -> tuple[int, int]:
        ticks = [int(each) for each in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
        idle = ticks[3] + ticks[4]
        return sum(ticks) - idle, sum(ticks)

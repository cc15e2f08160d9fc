"""Private hosts on one machine: network namespaces, joined by a switch that leads nowhere else. Needs root,
`ip` (iproute2) and `nsenter` (util-linux).

Host i has the address 10.77.0.i; the switch is a bridge in a namespace of its own, 10.77.0.254, from which
clients run. Namespaces are named after the process that made them, so that the next run finds those of a
killed one, and removes them with everything that still runs there.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

NETWORK: Final = "10.77.0"
SWITCH: Final = 254
_NAME: Final = re.compile(r"muster-(?P<pid>\d+)-(?P<started>\d+)-(?P<place>\w+)")
_MADE: Final = Path("/run/netns")
_CLONE_NEWNET: Final = 0x40000000
_END_S: Final = 30.0


def address(host: int) -> str:
    """The address of a host, or of the switch."""
    return f"{NETWORK}.{host}"


class Network:
    """`hosts` hosts on a switch, as a context manager.

    Raises RuntimeError, saying what is missing, if namespaces cannot be created.
    """

    def __init__(self, hosts: int) -> None:
        self.hosts = range(1, hosts + 1)
        self._prefix = f"muster-{os.getpid()}-{_started(os.getpid())}"

    def __enter__(self) -> Self:
        for tool in ("ip", "nsenter", "iptables"):
            if shutil.which(tool) is None:
                raise RuntimeError(f"{tool} is not installed, and these tests need it: make faults-tools")
        if os.geteuid() != 0:
            raise RuntimeError("network namespaces with a database in them take root: sudo make faults")
        remove_stale()
        try:
            self._make()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    def name(self, host: int) -> str:
        """The name of its namespace, for `ip netns exec`."""
        return f"{self._prefix}-{'switch' if host == SWITCH else host}"

    def inside(self, host: int) -> list[str]:
        """The prefix that makes a command run there; the process id stays the command's own."""
        return ["nsenter", f"--net={_MADE / self.name(host)}"]

    @contextmanager
    def entered(self, host: int) -> Iterator[None]:
        """Inside the block, the calling thread and the threads and processes it starts are on that host's
        network."""
        before = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            there = os.open(_MADE / self.name(host), os.O_RDONLY | os.O_CLOEXEC)
            try:
                _set_namespace(there)
            finally:
                os.close(there)
            try:
                yield
            finally:
                _set_namespace(before)
        finally:
            os.close(before)

    def unplug(self, host: int) -> None:
        """Pull the host's cable."""
        run("ip", "-n", self.name(SWITCH), "link", "set", f"port{host}", "down")

    def plug(self, host: int) -> None:
        run("ip", "-n", self.name(SWITCH), "link", "set", f"port{host}", "up")

    def _make(self) -> None:
        switch = self.name(SWITCH)
        run("ip", "netns", "add", switch)
        run("ip", "-n", switch, "link", "add", "bridge", "type", "bridge")
        run("ip", "-n", switch, "address", "add", f"{address(SWITCH)}/24", "dev", "bridge")
        for link in ("lo", "bridge"):
            run("ip", "-n", switch, "link", "set", link, "up")
        for host in self.hosts:
            name, port = self.name(host), f"port{host}"
            run("ip", "netns", "add", name)
            # Created inside, so that nothing ever appears on the machine's own network.
            run(
                "ip", "-n", switch, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", name
            )
            run("ip", "-n", switch, "link", "set", port, "master", "bridge", "up")
            run("ip", "-n", name, "address", "add", f"{address(host)}/24", "dev", "eth0")
            for link in ("lo", "eth0"):
                run("ip", "-n", name, "link", "set", link, "up")

    def _remove(self) -> None:
        _remove([name for name in _names() if name.startswith(f"{self._prefix}-")])


def remove_stale() -> list[str]:
    """Remove what a killed run has left: its namespaces, with the processes in them. Returns their names."""
    stale = []
    for name in _names():
        found = _NAME.fullmatch(name)
        if found and _started(int(found["pid"])) != int(found["started"]):
            stale.append(name)
    _remove(stale)
    return stale


def run(*command: str) -> str:
    """The output of a command; RuntimeError with its error output if it fails."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")
    return done.stdout


def _names() -> list[str]:
    return sorted(each.name for each in _MADE.iterdir()) if _MADE.is_dir() else []


def _remove(names: Sequence[str]) -> None:
    for name in names:
        _kill_inside(name)
        run("ip", "netns", "delete", name)


def _kill_inside(name: str) -> None:
    """A namespace lives as long as anything runs in it, whether its name still exists or not."""
    ends = time.monotonic() + _END_S
    while pids := [int(pid) for pid in run("ip", "netns", "pids", name).split() if int(pid) != os.getpid()]:
        if time.monotonic() > ends:
            raise RuntimeError(f"processes {pids} in the namespace {name} do not end")
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def _started(pid: int) -> int | None:
    """When the process began, in ticks since boot; None if there is none. Process ids are reused, with
    another start time."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(stat.rpartition(")")[2].split()[19])


def _set_namespace(descriptor: int) -> None:
    """os.setns exists only from Python 3.12 on."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), "setns")

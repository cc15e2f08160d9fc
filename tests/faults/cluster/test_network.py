"""The hosts of the drills: what is connected, what is cut, and that nothing is left behind."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.faults.cluster import netns
from tests.faults.cluster.cuts import CLIENTS, Cuts
from tests.faults.cluster.netns import Network, address
from tests.support.facts import DEADLINE_S

PORT = 9092
ECHO = f"""
import socket
bound = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
bound.bind(("0.0.0.0", {PORT}))
print("bound", flush=True)
while True:
    said, whose = bound.recvfrom(100)
    bound.sendto(said, whose)
"""
"""A program that answers each datagram."""


@pytest.fixture
def network() -> Iterator[Network]:
    with Network(2) as made:
        yield made


@pytest.fixture
def echo(network: Network) -> Iterator[None]:
    """Host 1 answers."""
    with subprocess.Popen(
        [*network.inside(1), sys.executable, "-c", ECHO], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"bound\n"
        yield
        process.kill()


def answered(network: Network, host: int, within_s: float = DEADLINE_S) -> bool:
    """Whether one of several tries from `host` gets an answer from host 1."""
    deadline = time.monotonic() + within_s
    with network.entered(host), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        asking.settimeout(0.2)
        while time.monotonic() < deadline:
            asking.sendto(b"there?", (address(1), PORT))
            try:
                return asking.recv(100) == b"there?"
            except TimeoutError:
                pass
    return False


def is_cut_off(network: Network, host: int) -> bool:
    return not answered(network, host, within_s=0.6)


@pytest.mark.usefixtures("echo")
def test_hosts_reach_each_other_until_they_are_cut_off(network: Network) -> None:
    cuts = Cuts(network)
    assert answered(network, CLIENTS)
    assert answered(network, 2)
    for cut in (
        lambda: cuts.both_ways(1, 2),
        lambda: cuts.one_way(1, 2),
        lambda: cuts.one_way(2, 1),
    ):
        cut()
        assert is_cut_off(network, 2)
        assert answered(network, CLIENTS)
        cuts.mend()
        assert answered(network, 2)
    cuts.one_way(1, CLIENTS)
    assert is_cut_off(network, CLIENTS)
    assert answered(network, 2)
    cuts.mend()
    network.unplug(1)
    assert is_cut_off(network, CLIENTS)
    assert is_cut_off(network, 2)
    network.plug(1)
    assert answered(network, CLIENTS)


@pytest.mark.usefixtures("echo")
def test_the_machines_own_network_is_out_of_reach(network: Network) -> None:
    with socket.create_server(("127.0.0.1", 0)) as outside:
        port = outside.getsockname()[1]
        with network.entered(CLIENTS), pytest.raises(OSError, match="refused"):
            socket.create_connection(("127.0.0.1", port), 5)
        socket.create_connection(("127.0.0.1", port), 5).close()


def test_what_runs_there_ends_with_the_network() -> None:
    class Failed(Exception):
        pass

    with suppress(Failed), Network(1) as network:
        names = [network.name(1), network.name(CLIENTS)]
        process = subprocess.Popen([*network.inside(1), sys.executable, "-c", ECHO], stdout=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.readline() == b"bound\n"
        assert {Path("/run/netns", name).exists() for name in names} == {True}
        raise Failed
    assert process.wait(30) == -signal.SIGKILL
    process.stdout.close()
    assert {Path("/run/netns", name).exists() for name in names} == {False}


KILLED = """
import os, signal, subprocess
from tests.faults.cluster.netns import Network
with Network(1) as network:
    left = subprocess.Popen([*network.inside(1), "sh", "-c", "echo; exec sleep 600"], stdout=subprocess.PIPE)
    left.stdout.readline()  # before, it may not be in the namespace yet
    print(network.name(1), left.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_run_has_left_is_found(network: Network) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED], stdout=subprocess.PIPE, text=True)
    assert done.returncode == -signal.SIGKILL
    name, pid = done.stdout.split()
    left = os.pidfd_open(int(pid))  # readable once the process has ended, which takes a killed one a moment
    assert not ended(left, 0)
    stale = netns.remove_stale()
    assert name in stale
    assert network.name(1) not in stale, "that one is in use"
    assert not Path("/run/netns", name).exists()
    assert ended(left, DEADLINE_S)
    os.close(left)


def ended(process: int, within_s: float) -> bool:
    return bool(select.select([process], [], [], within_s)[0])

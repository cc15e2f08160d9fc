"""Ports for servers that come and go: nobody else gets them, even while a server is down."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

from tests.support import ports

_TAKE = """
import sys
from tests.support.ports import free_ports
print(*(free_ports(3) for _ in range(350)), flush=True)
sys.stdin.read()
"""


def test_processes_side_by_side_never_share_a_port() -> None:
    taking = [
        subprocess.Popen(
            [sys.executable, "-c", _TAKE],
            cwd=Path(__file__).parents[2],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    mine = ports._Ports()
    given = [mine.take(3) for _ in range(350)]
    for each in taking:
        assert each.stdout is not None
        given += map(int, each.stdout.readline().split())
    for each in taking:
        each.communicate()
        assert each.returncode == 0
    mine.release()
    assert len({first + more for first in given for more in range(3)}) == 3 * len(given) == 4_200


def test_a_port_that_somebody_has_is_passed_over() -> None:
    mine = ports._Ports()
    first = mine.take(1)
    with socket.create_server(("127.0.0.1", first + 2)):
        assert mine.take(3) == first + 3
    mine.release()

"""Resident memory: of an idle broker, and for each connected member that is idle.

`python -m tests.bench memory`

The peers are a Python process with uvloop and nothing else, and what the same connections take in it.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from tests.bench import load, processes
from tests.bench.figures import Figure

CONNECTIONS: Final = 2_000
MEMBERS: Final = 100
TARGET_IDLE_MB: Final = 60
TARGET_MEMBER_KB: Final = 30


async def _connect(port: int, joined: bool) -> list[load.Link]:
    """Connections, and a member that has heartbeat once on each if so wanted."""
    links = await load.connect(port, CONNECTIONS)
    if joined:
        for member in await load.join_groups(links, MEMBERS):
            heard = asyncio.get_running_loop().create_future()
            member.heartbeat(lambda heard=heard: heard.set_result(None))
            await heard
    return links


def hold(port: int, pid: int, joined: bool) -> dict[str, int]:
    async def held() -> dict[str, int]:
        before = processes.resident_bytes(pid)
        links = await _connect(port, joined)
        after = processes.resident_bytes(pid)
        for link in links:
            link.close()
        return {"before": before, "after": after}

    return load.run(held())


def measure() -> list[Figure]:
    with processes.echo() as server:
        bare = processes.resident_bytes(server.pid)
        held: dict[str, Any] = processes.load(hold, port=server.port, pid=server.pid, joined=False)
        bare_connection = (held["after"] - held["before"]) / CONNECTIONS
    with processes.muster("--group-initial-rebalance-delay-ms", "500") as server:
        idle = processes.resident_bytes(server.pid)
        held = processes.load(hold, port=server.port, pid=server.pid, joined=True)
        member = (held["after"] - held["before"]) / CONNECTIONS
    return [
        Figure(
            "memory, idle",
            "MB",
            idle / 1e6,
            bare / 1e6,
            "bare uvloop",
            target=f"at most {TARGET_IDLE_MB} MB",
            reached=idle / 1e6 <= TARGET_IDLE_MB,
        ),
        Figure(
            "memory of a connected member",
            "KB",
            member / 1e3,
            bare_connection / 1e3,
            "bare connection",
            target=f"at most {TARGET_MEMBER_KB} KB",
            reached=member / 1e3 <= TARGET_MEMBER_KB,
        ),
    ]

"""CPU time of the server for one Heartbeat, against a bare uvloop echo of the same frames.

`python -m tests.bench heartbeats`

1,000 connections, each with one request in flight, from a process of their own. The peer reads and writes the
same frames and looks at nothing, so the ratio is what a broker costs on top of a socket.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from muster.protocol.messages.classic_group import HeartbeatRequest
from tests.bench import load, processes
from tests.bench.figures import Figure

CONNECTIONS: Final = 1_000
MEMBERS: Final = 100
"""Of a group: ten groups, so several shards."""
WARM_UP_S: Final = 1.0
MEASURED_S: Final = 3.0
ROUNDS: Final = 3
TARGET: Final = 2.0


async def _beat(port: int, pid: int, joined: bool) -> dict[str, float]:
    links = await load.connect(port, CONNECTIONS)
    if joined:
        members = await load.join_groups(links, MEMBERS)
        requests = [member.heartbeat_request() for member in members]
    else:
        # As long as those of members, whose ids are of this length.
        member_id = f"bench-{'0' * 36}"
        requests = [
            HeartbeatRequest(group_id=f"bench-{index // MEMBERS}", generation_id=1, member_id=member_id)
            for index in range(CONNECTIONS)
        ]
    frames = [load.Prebuilt(request, load.HEARTBEAT_VERSION).next for request in requests]
    driving = load.ClosedLoop(links, frames)

    def check(frame: bytes) -> None:
        if frame[9:11] != b"\x00\x00":  # behind correlation id, tags and throttle time
            raise RuntimeError(f"a heartbeat was refused: {frame.hex()}")

    driving.start(check if joined else None)
    await asyncio.sleep(WARM_UP_S)
    rounds = []
    for _ in range(ROUNDS):
        driving.reset()
        before, loop = processes.cpu_seconds(pid), asyncio.get_running_loop()
        began = loop.time()
        await asyncio.sleep(MEASURED_S / ROUNDS)
        cpu_s, took_s = processes.cpu_seconds(pid) - before, loop.time() - began
        rounds.append((cpu_s / driving.answered * 1e6, driving.answered / took_s, driving.latencies.ms(99)))
    await driving.stop()
    best = min(rounds)
    return {"cpu_us": best[0], "rate": best[1], "p99_ms": best[2]}


def beat(port: int, pid: int, joined: bool) -> dict[str, float]:
    """In the load's process."""
    return load.run(_beat(port, pid, joined))


def measure() -> list[Figure]:
    with processes.echo() as server:
        floor: dict[str, Any] = processes.load(beat, port=server.port, pid=server.pid, joined=False)
    with processes.muster("--group-initial-rebalance-delay-ms", "500") as server:
        found: dict[str, Any] = processes.load(beat, port=server.port, pid=server.pid, joined=True)
    ratio = found["cpu_us"] / floor["cpu_us"]
    return [
        Figure(
            "CPU of a Heartbeat",
            "us",
            found["cpu_us"],
            floor["cpu_us"],
            "uvloop echo",
            target=f"at most {TARGET:g} times",
            reached=ratio <= TARGET,
        ),
        Figure("Heartbeats a second", "/s", found["rate"], floor["rate"], "uvloop echo"),
    ]

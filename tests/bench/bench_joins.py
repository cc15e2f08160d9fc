"""How long a large group takes to form, and what a member costs.

`python -m tests.bench joins`

A wire driver plays every member: JoinGroup, JoinGroup again with the id it was told, SyncGroup; the leader
assigns. The group is Stable when every member has its assignment of one generation. Two ways to measure:

- with group.initial.rebalance.delay.ms at 0 nothing hides the work, and members that come while the first
  ones have synced already make the group rebalance again, which is part of the time;
- with a delay, as everybody runs it. Kafka waits once more when members came during the first delay, so what
  has passed beyond whole delays is what the broker took.

The peer is a bare echo server that is sent as many frames as these joins need (four for each member), one in
flight for each member: what the sockets alone take.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

from muster.protocol.messages.classic_group import HeartbeatRequest
from tests.bench import load, processes
from tests.bench.figures import Figure

MEMBERS: Final = 1_000
SMALL, LARGE = 500, 5_000
DELAY_MS: Final = 1_000
INTERVAL_S: Final = 1.0
"""Of heartbeats, when a member is added."""
TARGET_S: Final = 0.5
TARGET_ADDED_S: Final = 0.2
_FORMING_INTERVAL_S: Final = 0.1
"""Of the heartbeats of members that are Stable already while others still join."""
_SECONDS_MAX: Final = 120.0
_FRAMES_A_MEMBER: Final = 4


async def _sockets(port: int, members: int) -> dict[str, float]:
    links = await load.connect(port, members)
    frame = load.Prebuilt(
        HeartbeatRequest(group_id="bench", generation_id=1, member_id=f"bench-{'0' * 36}"),
        load.HEARTBEAT_VERSION,
    ).next()
    done = asyncio.Event()
    missing = members * _FRAMES_A_MEMBER

    def drive(link: load.Link) -> None:
        left = _FRAMES_A_MEMBER

        def on_frame(_: bytes) -> None:
            nonlocal left, missing
            left -= 1
            missing -= 1
            if left:
                link.write(frame)
            elif not missing:
                done.set()

        link.on_frame = on_frame
        link.write(frame)

    began = time.perf_counter()
    for link in links:
        drive(link)
    async with asyncio.timeout(_SECONDS_MAX):
        await done.wait()
    return {"seconds": time.perf_counter() - began}


def sockets(port: int, members: int) -> dict[str, float]:
    return load.run(_sockets(port, members))


async def _form(port: int, pid: int, members: int, heartbeating: bool) -> dict[str, float]:
    links = await load.connect(port, members)
    group = load.Group(f"bench-{members}", links)
    await load.coordinated(links[0], f"bench-{members}")
    heartbeats = load.Heartbeats(_FORMING_INTERVAL_S)
    if heartbeating:
        heartbeats.start(group.members)
    before, began = processes.cpu_seconds(pid), time.perf_counter()
    group.join()
    await group.stable(_SECONDS_MAX)
    seconds = time.perf_counter() - began
    heartbeats.end()
    return {
        "seconds": seconds,
        "cpu_s": processes.cpu_seconds(pid) - before,
        "generations": group.generation_id,
    }


def form(port: int, pid: int, members: int, heartbeating: bool) -> dict[str, float]:
    return load.run(_form(port, pid, members, heartbeating))


async def _add(port: int, pid: int, members: int) -> dict[str, float]:
    """One member more, in a group whose members heartbeat at intervals, evenly spread."""
    links = await load.connect(port, members + 1)
    group = load.Group("bench-added", links[:members])
    group.join()
    await group.stable(_SECONDS_MAX)
    heartbeats = load.Heartbeats(INTERVAL_S)
    heartbeats.start(group.members)
    await asyncio.sleep(1.5 * INTERVAL_S)
    newcomer = load.Member(links[members], "bench-added", on_stable=lambda _: None)
    group.expect(newcomer)
    before, began = processes.cpu_seconds(pid), time.perf_counter()
    newcomer.join()
    await group.stable(_SECONDS_MAX)
    seconds = time.perf_counter() - began
    heartbeats.end()
    return {"seconds": seconds, "cpu_s": processes.cpu_seconds(pid) - before}


def add(port: int, pid: int, members: int) -> dict[str, float]:
    return load.run(_add(port, pid, members))


def _formed(members: int, delay_ms: int) -> dict[str, Any]:
    with processes.muster("--group-initial-rebalance-delay-ms", str(delay_ms)) as server:
        # Whoever is Stable before the others have come has to hear of them; with a delay nobody is.
        found: dict[str, Any] = processes.load(
            form, port=server.port, pid=server.pid, members=members, heartbeating=delay_ms == 0
        )
    return found


def measure() -> list[Figure]:
    with processes.echo() as server:
        floor: float = processes.load(sockets, port=server.port, members=MEMBERS)["seconds"]
    at_once = _formed(MEMBERS, 0)
    delayed = _formed(MEMBERS, DELAY_MS)
    beyond_s = delayed["seconds"] % (DELAY_MS / 1000)
    delays = int(delayed["seconds"] // (DELAY_MS / 1000))
    small, large = _formed(SMALL, DELAY_MS), _formed(LARGE, 5 * DELAY_MS)
    small_us, large_us = small["cpu_s"] / SMALL * 1e6, large["cpu_s"] / LARGE * 1e6
    with processes.muster("--group-initial-rebalance-delay-ms", str(DELAY_MS)) as server:
        added: dict[str, Any] = processes.load(add, port=server.port, pid=server.pid, members=MEMBERS)
    late_s = added["seconds"] - INTERVAL_S
    return [
        Figure(
            f"{MEMBERS:,} members Stable, no delay",
            "s",
            at_once["seconds"],
            floor,
            "sockets alone",
            target=f"at most {TARGET_S:g} s",
            reached=at_once["seconds"] <= TARGET_S,
            note=f"{at_once['generations']:g} generations, {at_once['cpu_s']:.2f} s of CPU",
        ),
        Figure(
            f"{MEMBERS:,} members Stable, beyond the delay",
            "s",
            beyond_s,
            floor,
            "sockets alone",
            target=f"at most {TARGET_S:g} s",
            reached=beyond_s <= TARGET_S,
            note=f"{delays} initial delays of {DELAY_MS} ms, {delayed['cpu_s']:.2f} s of CPU altogether",
        ),
        Figure(
            f"CPU of a member in a group of {LARGE:,}",
            "us",
            large_us,
            small_us,
            f"of {SMALL}",
            target="at most once",
            reached=large_us <= small_us,
        ),
        Figure(
            f"one more in {MEMBERS:,}, beyond an interval",
            "s",
            late_s,
            floor,
            "sockets alone",
            target=f"at most {TARGET_ADDED_S:g} s",
            reached=late_s <= TARGET_ADDED_S,
            note=f"{added['cpu_s']:.2f} s of CPU, heartbeats every {INTERVAL_S:g} s included",
        ),
    ]

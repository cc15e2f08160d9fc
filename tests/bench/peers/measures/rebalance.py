"""How long one group takes to rebalance, by its size, and for each of the usual reasons.

There is no initial rebalance delay, and members hear of a rebalance at once: one of them heartbeats every few
milliseconds, and when it is told, all do. So what is measured is work, not somebody's heartbeat interval.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any, Final

from tests.bench import load
from tests.bench.peers.driver import Target, forming_interval_s, heartbeat_once, quiet
from tests.bench.peers.measure import (
    NO_GROUPS,
    NOTHING_SYNCED,
    Goal,
    Measure,
    Point,
    Quantity,
    Scale,
    drive,
    over_sizes,
)
from tests.bench.peers.servers import Kind, Options, Running

_SECONDS_MAX: Final = 180.0
_WATCH_S: Final = 0.001
_RESTARTED: Final = 3
"""Members of a rolling restart."""
_WARM_UP: Final = 500
"""Members of the group that is not counted: a virtual machine that was just started has compiled nothing."""
_SESSION_MIN_MS: Final = 1_000
_SESSION_MS: Final = {True: 3_000, False: 10_000}
"""Of the member that crashes, in groups of up to _LARGE members, and in larger ones."""
_LARGE: Final = 1_000
_SMALL: Final = 100
_TURNS: Final = {True: 9, False: 1}
"""How many groups form, and how often one member leaves and another joins, with up to _SMALL members, whose
rebalances take no longer than a pause of the system, and with more. Their median counts."""


class _Watched:
    """A group in which nothing is in flight between two calls, and the time of its last rebalance."""

    def __init__(self, target: Target, group: load.Group) -> None:
        self._target = target
        self._group = group

    async def form(self) -> float:
        """All join at once, in seconds; those that are Stable early hear of the others by heartbeats."""
        members = self._group.members
        heartbeats = load.Heartbeats(forming_interval_s(len(members)))
        began_s = time.perf_counter()
        self._group.join()
        heartbeats.start(members)
        await self._group.stable(_SECONDS_MAX)
        took_s = time.perf_counter() - began_s
        heartbeats.end()
        await quiet(members)
        return took_s

    @property
    def generation_id(self) -> int:
        return self._group.generation_id

    async def leave(self) -> float:
        """The newest member leaves, in seconds until the others are Stable without it."""
        member = self._group.members[-1]
        began_s = time.perf_counter()
        self._group.remove(member)
        await member.leave()
        member.link.close()
        return await self._rebalanced(began_s)

    async def join(self, link: load.Link, session_timeout_ms: int = 300_000) -> float:
        """One more joins, in seconds until all are Stable."""
        newcomer = load.Member(
            link,
            self._group.members[0].group_id,
            on_stable=lambda _: None,
            session_timeout_ms=session_timeout_ms,
            versions=self._target.of_members,
        )
        old = list(self._group.members)
        began_s = time.perf_counter()
        self._group.expect(newcomer)
        newcomer.join()
        return await self._rebalanced(began_s, old)

    async def crash(self) -> float:
        """The newest member is not heard of again: in seconds from the end of its session until the others
        are Stable without it."""
        member = self._group.members[-1]
        heard = asyncio.Event()
        member.heartbeat(heard.set)
        async with asyncio.timeout(_SECONDS_MAX):
            await heard.wait()
        ends_s = time.perf_counter() + member.session_timeout_ms / 1000
        self._group.remove(member)
        member.link.close()
        return await self._rebalanced(ends_s)

    async def _rebalanced(self, began_s: float, told: list[load.Member] | None = None) -> float:
        members = self._group.members if told is None else told
        watching = members[0]
        async with asyncio.timeout(_SECONDS_MAX):
            while watching.stable:
                await heartbeat_once([watching])
                if watching.stable:
                    await asyncio.sleep(_WATCH_S)
        for member in members[1:]:
            member.heartbeat()
        await self._group.stable(_SECONDS_MAX)
        took_s = time.perf_counter() - began_s
        await quiet(self._group.members)
        return took_s


async def _rebalance(server: dict[str, Any], members: int) -> list[dict[str, Any]]:
    target = await Target.ask(**server)
    meter = target.meter()
    turns = _TURNS[members <= _SMALL]
    storms: list[Point] = []
    storm_cpus: list[Point] = []
    storm_generations: list[Point] = []
    for turn in range(turns):
        name = f"peers-{members}-{turn}"
        (links,) = await target.connect([name], members + turns + _RESTARTED)
        watched = _Watched(target, target.group(name, links[:members]))
        newcomers = iter(links[members:])
        meter.restart()
        storm_s = await watched.form()
        used = meter.read()
        storms.append(Point("storm_s", storm_s, members, used["driver"]))
        storm_cpus.append(Point("storm_cpu_s", used["server_s"], members))
        storm_generations.append(Point("storm_generations", watched.generation_id, members))
    left: list[Point] = []
    joined: list[Point] = []
    for _ in range(turns):
        meter.restart()
        leave_s = await watched.leave()
        left.append(Point("leave_s", leave_s, members, meter.read()["driver"]))
        meter.restart()
        join_s = await watched.join(next(newcomers), _SESSION_MS[members <= _LARGE])
        joined.append(Point("join_s", join_s, members, meter.read()["driver"]))
    crashed = Point("crash_s", await watched.crash(), members)
    meter.restart()
    began_s = time.perf_counter()
    for link in newcomers:
        await watched.join(link)
        await watched.leave()
    each_s = (time.perf_counter() - began_s) / _RESTARTED
    rolled = Point("rolling_s", each_s, members, meter.read()["driver"])
    middles = [_middle(each) for each in (storms, storm_cpus, storm_generations, left, joined)]
    return [point.as_json() for point in (*middles, crashed, rolled)]


def _middle(points: list[Point]) -> Point:
    return sorted(points, key=lambda point: point.value)[len(points) // 2]


def rebalance(server: dict[str, Any], members: int) -> list[dict[str, Any]]:
    """In the driver's process."""
    return load.run(_rebalance(server, members))


def _run(kind: Kind, scale: Scale) -> list[Point]:
    def measured(running: Running, members: int, times: Mapping[str, float]) -> list[Point]:
        return drive(rebalance, running, members=members)

    def warm_up(running: Running) -> None:
        if not scale.quick:
            drive(rebalance, running, members=_WARM_UP)

    sizes = scale.sizes((10, 100), (10, 100, 1_000, 5_000), cold=(10, 100))
    return over_sizes(kind, Options(session_min_ms=_SESSION_MIN_MS), scale, sizes, measured, warm_up)


_STORM_GOALS: Final = (Goal(1.5, at=(10,)), Goal(1.2, at=(100,)), Goal(1.0, at=(1_000, 5_000)))
_GOALS: Final = (Goal(1.0),)

MEASURE: Final = Measure(
    "rebalance",
    "Rebalance of one group",
    "Until every member has its assignment of one generation, without an initial rebalance delay. A join "
    "storm: all members join at once, and learn of each other through heartbeats, 10,000 a second in total, "
    "at intervals of 50 ms at least. Otherwise members hear of the rebalance at once. A crash counts from "
    f"the end of the member's session. A rolling restart: {_RESTARTED} times, one after the other, a new "
    f"member joins and one leaves; the time of one. With up to {_SMALL} members, storms, leaves and joins "
    f"are medians of {_TURNS[True]}.",
    (
        Quantity("storm_s", "join storm", "s", "less", axis="members", goals=_STORM_GOALS),
        Quantity("leave_s", "one leaves", "s", "less", axis="members", goals=_GOALS),
        Quantity("join_s", "one more joins", "s", "less", axis="members", chart=False),
        Quantity("crash_s", "one crashes", "s", "less", axis="members", goals=_GOALS),
        Quantity("rolling_s", "rolling restart, a member", "s", "less", axis="members", goals=_GOALS),
        Quantity("storm_cpu_s", "CPU of a join storm", "s", "less", axis="members", chart=False),
        Quantity("storm_generations", "generations of a storm", "", "less", axis="members", chart=False),
    ),
    _run,
    cannot={"kafka-flush": NOTHING_SYNCED, "mock": NO_GROUPS},
    cold=True,
)

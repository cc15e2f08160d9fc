"""Heartbeats of consumer groups (KIP-848) as fast as they are answered, and what one costs the server."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from tests.bench import load
from tests.bench.consumer_members import VERSION, ConsumerMember, settled
from tests.bench.peers.closed_loop import driven
from tests.bench.peers.driver import Target
from tests.bench.peers.measure import (
    NO_CONSUMER_GROUPS,
    NOTHING_SYNCED,
    Goal,
    Measure,
    Point,
    Quantity,
    Scale,
    drive,
    over_sizes,
)
from tests.bench.peers.measures.heartbeats import check
from tests.bench.peers.servers import Kind, Options, Running

_GROUP: Final = 100
_TOPIC: Final = "assigned"
_FLEXIBLE_HEARTBEAT: Final = 4
"""A Heartbeat whose response has its error code where this one has it."""


async def _beat(server: dict[str, Any], members: int, warm_up_s: float, seconds: float) -> list[Any]:
    target = await Target.ask(**server)
    size = min(_GROUP, members)
    names = [f"peers-{members}-{number}" for number in range(members // size)]
    groups = [
        [ConsumerMember(link, name, [_TOPIC]) for link in links]
        for name, links in zip(names, await target.connect(names, size), strict=True)
    ]
    # All at once: one after the other, the first would have lost their sessions before the last have joined.
    await asyncio.gather(*(settled(group, _GROUP, later_than=0) for group in groups))
    beating = [member for group in groups for member in group]
    frames = [load.Prebuilt(member.request(), VERSION).next for member in beating]
    times = {"warm_up_s": warm_up_s, "seconds": seconds}
    links_of = [member.link for member in beating]
    found = await driven(target, links_of, frames, check(_FLEXIBLE_HEARTBEAT), **times)
    return [point.as_json() for point in found.points(members, ("p99_ms",))]


def beat(server: dict[str, Any], members: int, warm_up_s: float, seconds: float) -> list[Any]:
    """In the driver's process."""
    return load.run(_beat(server, members, warm_up_s, seconds))


def _run(kind: Kind, scale: Scale) -> list[Point]:
    def measured(running: Running, members: int, times: Mapping[str, float]) -> list[Point]:
        return drive(beat, running, members=members, **times)

    sizes = scale.sizes((100,), (100, 1_000, 5_000), cold=(100, 1_000))
    return over_sizes(kind, Options(topics={_TOPIC: _GROUP}), scale, sizes, measured)


MEASURE: Final = Measure(
    "consumer_heartbeats",
    "Heartbeats of consumer groups (KIP-848)",
    f"Members in groups of at most {_GROUP}, each with one partition, on a connection of its own, and with "
    "one ConsumerGroupHeartbeat in flight at all times that reports no change. CPU is that of all "
    "processes of the server, user and system.",
    (
        Quantity("rate", "consumer heartbeats a second", "/s", "more", axis="members"),
        Quantity(
            "a_cpu_second",
            "consumer heartbeats a CPU second",
            "/s",
            "more",
            axis="members",
            goals=(Goal(2.0),),
        ),
        Quantity("cpu_us", "CPU of a consumer heartbeat", "us", "less", axis="members", chart=False),
        Quantity(
            "p99_ms", "99th percentile of a consumer heartbeat", "ms", "less", axis="members", chart=False
        ),
    ),
    _run,
    cannot={"kafka-flush": NOTHING_SYNCED, "mock": NO_CONSUMER_GROUPS},
    cold=True,
)

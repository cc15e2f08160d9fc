"""How long a consumer group (KIP-848) takes from a change until every member has its target, by its size.

Every member has a heartbeat in flight at all times, and a change begins when the interval between assignments
(group.consumer.assignment.interval.ms) is over, so what is measured is work, not somebody's interval. Only a
join storm meets that interval.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

from tests.bench import load
from tests.bench.consumer_members import ConsumerMember, settled
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
)
from tests.bench.peers.servers import Kind, Options

_INTERVAL_S: Final = 1.2
"""Longer than group.consumer.assignment.interval.ms by default."""
_TURNS: Final = {True: 9, False: 3}
"""How often one member leaves and another joins, with up to _SMALL members and with more; medians count."""
_SMALL: Final = 100
_WARM_UP: Final = 500
"""Members of the group that is not counted: a virtual machine that was just started has compiled nothing."""


def _topic(members: int) -> str:
    return f"assigned-{members}"


async def _change(server: dict[str, Any], members: int) -> list[dict[str, Any]]:
    target = await Target.ask(**server)
    turns = _TURNS[members <= _SMALL]
    name, topics = f"peers-{members}", [_topic(members)]
    (links,) = await target.connect([name], members + turns)
    group = [ConsumerMember(link, name, topics) for link in links[:members]]
    meter = target.meter()
    began_s = time.perf_counter()
    formed_s = await settled(group, members, later_than=0) - began_s
    used = meter.read()
    storm = [
        Point("storm_s", formed_s, members, used["driver"]),
        Point("storm_cpu_s", used["server_s"], members),
    ]
    left: list[Point] = []
    joined: list[Point] = []
    for link in links[members:]:
        await asyncio.sleep(_INTERVAL_S)
        leaving = group.pop()
        epoch = max(member.epoch for member in group)
        meter.restart()
        began_s = time.perf_counter()
        await leaving.leave()
        took_s = await settled(group, members, later_than=epoch) - began_s
        left.append(Point("leave_s", took_s, members, meter.read()["driver"]))
        leaving.link.close()
        await asyncio.sleep(_INTERVAL_S)
        epoch = max(member.epoch for member in group)
        group.append(ConsumerMember(link, name, topics))
        meter.restart()
        began_s = time.perf_counter()
        took_s = await settled(group, members, later_than=epoch) - began_s
        joined.append(Point("join_s", took_s, members, meter.read()["driver"]))
    for member in group:
        member.link.close()
    return [point.as_json() for point in (*storm, _middle(left), _middle(joined))]


def _middle(points: list[Point]) -> Point:
    return sorted(points, key=lambda point: point.value)[len(points) // 2]


def change(server: dict[str, Any], members: int) -> list[dict[str, Any]]:
    """In the driver's process."""
    return load.run(_change(server, members))


def _run(kind: Kind, scale: Scale) -> list[Point]:
    found: list[Point] = []
    sizes = scale.sizes((10, 100), (10, 100, 1_000, 5_000))
    warm_up = [] if scale.quick else [_WARM_UP]
    topics = {_topic(members): members for members in (*warm_up, *sizes)}
    with kind.start(Options(topics=topics)) as running:
        for members in warm_up:
            drive(change, running, members=members)
        for members in sizes:
            found += drive(change, running, members=members)
    return found


_GOALS: Final = (Goal(1.0, at=(1_000,)),)

MEASURE: Final = Measure(
    "consumer_groups",
    "Change of one consumer group (KIP-848)",
    "From a change until every member is at the newest epoch and all partitions, as many as members, are "
    "assigned. Every member has a heartbeat in flight at all times. A change begins once the interval "
    "between assignments (1 s) is over. A join storm, in which all members join at once, meets it. Leaves "
    f"and joins are medians of {_TURNS[True]} with up to {_SMALL} members, of {_TURNS[False]} with more.",
    (
        Quantity("storm_s", "join storm", "s", "less", axis="members"),
        Quantity("leave_s", "one leaves", "s", "less", axis="members", goals=_GOALS),
        Quantity("join_s", "one more joins", "s", "less", axis="members", goals=_GOALS),
        Quantity("storm_cpu_s", "CPU of a join storm", "s", "less", axis="members", chart=False),
    ),
    _run,
    cannot={"kafka-flush": NOTHING_SYNCED, "mock": NO_CONSUMER_GROUPS},
)

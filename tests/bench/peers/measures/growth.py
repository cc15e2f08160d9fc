"""How the cost of a request grows with members, groups, partitions and connections."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from tests.bench import load
from tests.bench.peers.driver import Target
from tests.bench.peers.measure import Measure, Point, Quantity, Scale, drive
from tests.bench.peers.measures import commits, heartbeats, offset_fetch
from tests.bench.peers.servers import KINDS, Kind, Options

_QUICK: Final = (10, 100)
_SIZES: Final = (10, 100, 1_000, 10_000)
_PARTITIONS: Final = (10, 100, 1_000, 9_000)
"""Kafka makes no more in one request."""
_BUSY: Final = 10
"""Members that heartbeat among connections on which nothing happens."""
_DELAY_MS: Final = 500
_CPU: Final = "cpu_us"


async def _beat_among(
    server: dict[str, Any], connections: int, warm_up_s: float, seconds: float
) -> list[dict[str, Any]]:
    target = await Target.ask(**server)
    (idle,) = await target.connect([f"idle-{connections}"], connections - _BUSY)
    found = await heartbeats.beat_members(target, _BUSY, warm_up_s, seconds, f"busy-{connections}")
    for link in idle:
        link.close()
    return [replace(point, at=connections).as_json() for point in found]


def beat_among(
    server: dict[str, Any], connections: int, warm_up_s: float, seconds: float
) -> list[dict[str, Any]]:
    """In the driver's process: heartbeats of a few members, as points of so many connections."""
    return load.run(_beat_among(server, connections, warm_up_s, seconds))


def _run(kind: Kind, scale: Scale) -> list[Point]:
    """A new server for each of the four, so that none carries what another left."""
    found: list[Point] = []
    sizes = scale.sizes(_QUICK, _SIZES)

    def keep(what: str, points: list[Point]) -> None:
        found.extend(replace(point, key=what) for point in points if point.key == _CPU)

    options = Options(initial_delay_ms=_DELAY_MS)
    with kind.start(options) as running:
        for members in sizes:
            times = scale.times(cold=members == sizes[0])
            keep("members", drive(heartbeats.beat, running, members=members, **times))
    with kind.start(commits.OPTIONS) as running:
        for groups in sizes:
            times = scale.times(cold=groups == sizes[0])
            keep("groups", drive(commits.commit, running, groups=groups, size=1, at=groups, **times))
    partitions = scale.sizes(_QUICK, _PARTITIONS)
    topics = {offset_fetch.TOPIC: max(partitions)}
    with kind.start(replace(options, topics=topics)) as running:
        for asked in partitions:
            times = scale.times(cold=asked == partitions[0])
            keep("partitions", drive(offset_fetch.fetch, running, partitions=asked, **times))
    with kind.start(options) as running:
        for connections in sizes:
            times = scale.times(cold=connections == sizes[0])
            keep("connections", drive(beat_among, running, connections=connections, **times))
    return found


MEASURE: Final = Measure(
    "growth",
    "How cost grows",
    "CPU of one request, of all processes of the server: a Heartbeat by members, all of which heartbeat; an "
    "OffsetCommit by groups, all of which commit; an OffsetFetch by the partitions it asks for; a Heartbeat "
    f"of {_BUSY} members by connections, the others of which are idle. The slope is that of the line through "
    "the points on logarithmic axes: 0 is a constant cost, 1 a cost proportional to the size.",
    (
        Quantity("members", "CPU of a Heartbeat", "us", "less", axis="members", slope=True),
        Quantity("groups", "CPU of an OffsetCommit", "us", "less", axis="groups", slope=True),
        Quantity("partitions", "CPU of an OffsetFetch", "us", "less", axis="partitions", slope=True),
        Quantity("connections", "CPU of a Heartbeat", "us", "less", axis="connections", slope=True),
    ),
    _run,
    cannot={
        name: "not measured: for muster and Kafka alone."
        for name in KINDS
        if name not in ("muster", "muster-pure", "muster-postgres", "kafka", "kafka-flush", "kfake")
    },
)

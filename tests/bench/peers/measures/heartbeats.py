"""Heartbeats as fast as they are answered, and what one costs the server."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from muster.protocol.messages.classic_group import HeartbeatRequest
from tests.bench import load
from tests.bench.peers.closed_loop import driven
from tests.bench.peers.driver import Target
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
from tests.bench.peers.servers import ECHO, Kind, Options, Running

_GROUP: Final = 100
_DELAY_MS: Final = 500
_FLEXIBLE: Final = 4
"""The first version with tags."""
_MEMBER_ID: Final = 43
"""Characters of a member id: `peers-` or the like, and a UUID."""


def check(version: int) -> Callable[[bytes], None]:
    """Raises for a response that is not one without an error."""
    at = 9 if version >= _FLEXIBLE else 8  # behind correlation id, tags and throttle time

    def checked(frame: bytes) -> None:
        if frame[at : at + 2] != b"\x00\x00":
            raise RuntimeError(f"a heartbeat was refused: {frame.hex()}")

    return checked


async def _echo(server: dict[str, Any], members: int, warm_up_s: float, seconds: float) -> list[Any]:
    """The same frames, to a server that looks at nothing."""
    (port,) = server["ports"]
    target = Target([port], server["pids"], [], {}, None, None)
    request = HeartbeatRequest(group_id=f"peers-{members}-0", generation_id=1, member_id="0" * _MEMBER_ID)
    links = await load.connect(port, members)
    frames = [load.Prebuilt(request, _FLEXIBLE).next for _ in links]
    found = await driven(target, links, frames, lambda _: None, warm_up_s=warm_up_s, seconds=seconds)
    return [point.as_json() for point in found.points(members, ("p99_ms",))]


def echo(server: dict[str, Any], members: int, warm_up_s: float, seconds: float) -> list[Any]:
    """In the driver's process."""
    return load.run(_echo(server, members, warm_up_s, seconds))


async def beat_members(
    target: Target, members: int, warm_up_s: float, seconds: float, prefix: str
) -> list[Point]:
    """Of as many members as that, each on its own connection, in groups that are named `prefix`-0 and so
    on."""
    size = min(_GROUP, members)
    groups = await target.formed(members // size, size, prefix)
    beating = [member for group in groups for member in group.members]
    version = target.version(HeartbeatRequest)
    frames = [load.Prebuilt(member.heartbeat_request(), version).next for member in beating]
    times = {"warm_up_s": warm_up_s, "seconds": seconds}
    found = await driven(target, [member.link for member in beating], frames, check(version), **times)
    return found.points(members, ("p99_ms",))


async def _beat(server: dict[str, Any], members: int, warm_up_s: float, seconds: float) -> list[Any]:
    target = await Target.ask(**server)
    return [
        point.as_json()
        for point in await beat_members(target, members, warm_up_s, seconds, f"peers-{members}")
    ]


def beat(server: dict[str, Any], members: int, warm_up_s: float, seconds: float) -> list[Any]:
    """In the driver's process."""
    return load.run(_beat(server, members, warm_up_s, seconds))


def _run(kind: Kind, scale: Scale) -> list[Point]:
    def measured(running: Running, members: int, times: Mapping[str, float]) -> list[Point]:
        return drive(echo if kind is ECHO else beat, running, members=members, **times)

    sizes = scale.sizes((100,), (100, 1_000, 10_000), cold=(100, 1_000))
    return over_sizes(kind, Options(initial_delay_ms=_DELAY_MS), scale, sizes, measured)


_GOALS: Final = (Goal(2.5, at=(100,)), Goal(2.0, at=(1_000, 10_000)), Goal(0.8, ECHO.name, at=(100,)))


MEASURE: Final = Measure(
    "heartbeats",
    "Heartbeats",
    f"Members in groups of at most {_GROUP}, each on a connection of its own with one Heartbeat in flight at "
    "all times. CPU is that of all processes of the server, user and system. The echo gets the same frames "
    "and sends them back unread: no request can cost less.",
    (
        Quantity("rate", "heartbeats a second", "/s", "more", axis="members"),
        Quantity("a_cpu_second", "heartbeats a CPU second", "/s", "more", axis="members", goals=_GOALS),
        Quantity("cpu_us", "CPU of a heartbeat", "us", "less", axis="members", chart=False),
        Quantity("p99_ms", "99th percentile of a heartbeat", "ms", "less", axis="members", chart=False),
    ),
    _run,
    cannot={"kafka-flush": NOTHING_SYNCED, "mock": NO_GROUPS},
    cold=True,
)

"""Memory in RAM of a server: idle, and with members that are connected and have heartbeat."""

from __future__ import annotations

from typing import Any, Final

from tests.bench import load
from tests.bench.peers.driver import Target, heartbeat_once
from tests.bench.peers.measure import NO_GROUPS, NOTHING_SYNCED, Goal, Measure, Point, Quantity, Scale, drive
from tests.bench.peers.servers import Kind, Options

_GROUP: Final = 100
_DELAY_MS: Final = 1_000


async def _hold(server: dict[str, Any], sizes: list[int]) -> list[dict[str, Any]]:
    target = await Target.ask(**server)
    # The first group makes a server get ready what all groups need.
    members = [member for group in await target.formed(1, 1, "idle") for member in group.members]
    await heartbeat_once(members)
    points = [Point("resident", target.resident_bytes() / 1e6, 0)]
    held = 0
    for size in sizes:
        new = await target.formed((size - held) // _GROUP, _GROUP, f"peers-{size}")
        members += [member for group in new for member in group.members]
        await heartbeat_once(members)
        points.append(Point("resident", target.resident_bytes() / 1e6, size))
        held = size
    for member in members:
        member.link.close()
    return [point.as_json() for point in points]


def hold(server: dict[str, Any], sizes: list[int]) -> list[dict[str, Any]]:
    """In the driver's process."""
    return load.run(_hold(server, sizes))


def _run(kind: Kind, scale: Scale) -> list[Point]:
    sizes = scale.sizes((200,), (1_000, 3_000, 10_000))
    with kind.start(Options(initial_delay_ms=_DELAY_MS)) as running:
        return drive(hold, running, sizes=sizes)


_GOALS: Final = (Goal(10.0, at=(0, 1_000, 3_000)), Goal(5.0, at=(10_000,)))

MEASURE: Final = Measure(
    "memory",
    "Memory",
    "Resident memory of all processes of the server, its database included: after its first group, and with "
    f"the given number of members in groups of {_GROUP}, each on its own connection and heartbeating.",
    (Quantity("resident", "memory in RAM", "MB", "less", axis="members connected", goals=_GOALS),),
    _run,
    cannot={"kafka-flush": NOTHING_SYNCED, "mock": NO_GROUPS},
)

"""Thousands of small groups that form at once."""

from __future__ import annotations

import resource
import time
from typing import Any, Final

from tests.bench import load
from tests.bench.peers.driver import Target, forming_interval_s
from tests.bench.peers.measure import IN_PROCESS, NO_GROUPS, Goal, Measure, Point, Quantity, Scale, drive
from tests.bench.peers.servers import Kind, Options

_SIZE: Final = 4
_DELAY_MS: Final = 1_000
_SESSION_MS: Final = 45_000
"""What clients ask for by default: so long a group waits for a member whose answer was lost."""
_SECONDS_MAX: Final = 240.0
_OTHER_FILES: Final = 1_500
"""What a server has open beside its connections."""


async def _form(server: dict[str, Any], groups: int) -> list[dict[str, Any]]:
    target = await Target.ask(**server)
    names = [f"peers-{number}" for number in range(groups)]
    links = await target.connect(names, _SIZE)
    forming = [
        target.group(name, each, session_timeout_ms=_SESSION_MS)
        for name, each in zip(names, links, strict=True)
    ]
    members = [member for group in forming for member in group.members]
    heartbeats = load.Heartbeats(forming_interval_s(len(members)))
    meter = target.meter()
    began_s = time.perf_counter()
    for group in forming:
        group.join()
    heartbeats.start(members)
    for group in forming:
        await group.stable(_SECONDS_MAX)
    took_s = time.perf_counter() - began_s
    used = meter.read()
    heartbeats.end()
    return [
        Point("seconds", took_s, groups, used["driver"]).as_json(),
        Point("cpu_s", used["server_s"], groups).as_json(),
    ]


def form(server: dict[str, Any], groups: int) -> list[dict[str, Any]]:
    """In the driver's process."""
    return load.run(_form(server, groups))


def _run(kind: Kind, scale: Scale) -> list[Point]:
    _, files_max = resource.getrlimit(resource.RLIMIT_NOFILE)
    groups_max = (files_max - _OTHER_FILES) // _SIZE // 100 * 100
    found: list[Point] = []
    for groups in scale.sizes((100,), (min(5_000, groups_max),), cold=(100, 1_000)):
        # A new one for each size: the connections of the one before may still be closing.
        with kind.start(Options(initial_delay_ms=_DELAY_MS)) as running:
            found += drive(form, running, groups=groups)
    return found


MEASURE: Final = Measure(
    "many_groups",
    f"Groups of {_SIZE} forming at once",
    f"All members join at once, each on its own connection, with session.timeout.ms={_SESSION_MS}; the "
    f"initial rebalance delay of {_DELAY_MS} ms is in the time. Up to 5,000 groups, or as many as the limit "
    "of open files lets connect.",
    (
        Quantity(
            "seconds",
            "until all groups are Stable",
            "s",
            "less",
            axis="groups",
            goals=(Goal(1.0),),
            chart=False,
        ),
        Quantity("cpu_s", "CPU until all groups are Stable", "s", "less", axis="groups", chart=False),
    ),
    _run,
    cannot={"muster-3": IN_PROCESS, "mock": NO_GROUPS},
    cold=True,
)

"""Offset commits: how many a second, how long each takes, and how that grows with who commits at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from muster.protocol.messages.offsets import OffsetCommitRequest
from tests.bench import load
from tests.bench.bench_commits import Commits
from tests.bench.peers.closed_loop import driven
from tests.bench.peers.driver import Target
from tests.bench.peers.measure import (
    IN_PROCESS,
    NO_GROUPS,
    Goal,
    Measure,
    Point,
    Quantity,
    Scale,
    drive,
    over_sizes,
)
from tests.bench.peers.servers import Kind, Options, Running

_GROUP: Final = 10
_TOPIC: Final = "orders"
_PARTITIONS: Final = 100
OPTIONS: Final = Options(initial_delay_ms=500, topics={_TOPIC: _PARTITIONS})
_FLEXIBLE: Final = 8
"""The first version with tags."""


def _check(version: int) -> Any:
    """Raises for a response that is not one without an error."""
    # The partition's error code stands at the end, before three empty blocks of tags.
    at = slice(-5, -3) if version >= _FLEXIBLE else slice(-2, None)

    def checked(frame: bytes) -> None:
        if frame[at] != b"\x00\x00":
            raise RuntimeError(f"a commit was refused: {frame.hex()}")

    return checked


async def _commit(
    server: dict[str, Any], groups: int, size: int, at: int, warm_up_s: float, seconds: float
) -> list[Any]:
    target = await Target.ask(**server)
    formed = await target.formed(groups, size, f"peers-{at}")
    committing = [member for group in formed for member in group.members]
    version = target.version(OffsetCommitRequest)
    frames = [
        Commits(member, index % _PARTITIONS, topic=_TOPIC, version=version).next
        for index, member in enumerate(committing)
    ]
    times = {"warm_up_s": warm_up_s, "seconds": seconds}
    found = await driven(target, [member.link for member in committing], frames, _check(version), **times)
    return [point.as_json() for point in found.points(at, ("p50_ms", "p99_ms", "p999_ms"))]


def commit(
    server: dict[str, Any], groups: int, size: int, at: int, warm_up_s: float, seconds: float
) -> list[Any]:
    """In the driver's process: commits of so many groups of `size` members, as points of size `at`."""
    return load.run(_commit(server, groups, size, at, warm_up_s, seconds))


def _run(kind: Kind, scale: Scale) -> list[Point]:
    def measured(running: Running, members: int, times: Mapping[str, float]) -> list[Point]:
        size = min(_GROUP, members)
        return drive(commit, running, groups=members // size, size=size, at=members, **times)

    sizes = scale.sizes((100,), (1, 10, 100, 1_000), cold=(100, 1_000))
    return over_sizes(kind, OPTIONS, scale, sizes, measured)


# Durability equal or stronger: muster's commits are always synced to disk, Kafka's with flush.messages=1.
_GOALS: Final = (Goal(1.0, at=(100, 1_000)), Goal(2.0, beside="kafka-flush", at=(100, 1_000)))

MEASURE: Final = Measure(
    "commits",
    "Offset commits",
    f"Members in groups of at most {_GROUP}, each on a connection of its own with one OffsetCommit of one "
    "partition in flight at all times. The table of servers says what an acknowledged commit survives.",
    (
        Quantity("rate", "commits a second", "/s", "more", axis="members", goals=_GOALS),
        Quantity("p50_ms", "median of a commit", "ms", "less", axis="members", chart=False),
        Quantity("p99_ms", "99th percentile of a commit", "ms", "less", axis="members"),
        Quantity("p999_ms", "99.9th percentile of a commit", "ms", "less", axis="members", chart=False),
        Quantity("cpu_us", "CPU of a commit", "us", "less", axis="members", chart=False),
    ),
    _run,
    cannot={"muster-3": IN_PROCESS, "mock": NO_GROUPS},
    cold=True,
)

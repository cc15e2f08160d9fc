"""OffsetFetch of many partitions, all of which have a committed offset."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from muster.protocol.errors import ErrorCode
from muster.protocol.messages.offsets import OffsetCommitRequest, OffsetFetchRequest
from tests.bench import load
from tests.bench.peers.closed_loop import driven_alike
from tests.bench.peers.driver import Target
from tests.bench.peers.measure import (
    IN_PROCESS,
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

TOPIC: Final = "orders"
_CONNECTIONS: Final = 4
_OFFSET: Final = 4_711
_DELAY_MS: Final = 500


async def _fetch(
    server: dict[str, Any], partitions: int, warm_up_s: float, seconds: float
) -> list[dict[str, Any]]:
    target = await Target.ask(**server)
    (group,) = await target.formed(1, 1, f"peers-{partitions}")
    (member,) = group.members
    await _prepare(target, member, partitions)
    request = OffsetFetchRequest(
        group_id=member.group_id,
        topics=[OffsetFetchRequest.Topic(name=TOPIC, partition_indexes=list(range(partitions)))],
    )
    version = target.version(OffsetFetchRequest)
    expected = await member.link.call(request, version)
    parts = expected.topics[0].partitions
    if len(parts) != partitions or any(each.committed_offset != _OFFSET for each in parts):
        raise RuntimeError(f"OffsetFetch: {str(expected)[:500]}")
    links = await load.connect((await target.coordinators([member.group_id]))[0], _CONNECTIONS)
    frames = [load.Prebuilt(request, version).next for _ in links]
    found = await driven_alike(target, links, frames, warm_up_s=warm_up_s, seconds=seconds)
    return [point.as_json() for point in found.points(partitions, ("p50_ms", "p99_ms"))]


async def _prepare(target: Target, member: load.Member, partitions: int) -> None:
    """Commit an offset of each partition."""
    request = load.commit_of_all(member, TOPIC, partitions, _OFFSET)
    answer = await member.link.call(request, target.version(OffsetCommitRequest))
    codes = {each.error_code for each in answer.topics[0].partitions}
    if codes != {ErrorCode.NONE}:
        raise RuntimeError(f"OffsetCommit: {codes}")


def fetch(server: dict[str, Any], partitions: int, warm_up_s: float, seconds: float) -> list[dict[str, Any]]:
    """In the driver's process."""
    return load.run(_fetch(server, partitions, warm_up_s, seconds))


def _run(kind: Kind, scale: Scale) -> list[Point]:
    def measured(running: Running, partitions: int, times: Mapping[str, float]) -> list[Point]:
        return drive(fetch, running, partitions=partitions, **times)

    sizes = scale.sizes((1, 1_000), (1, 30, 1_000), cold=(30,))
    options = Options(initial_delay_ms=_DELAY_MS, topics={TOPIC: max(sizes)})
    return over_sizes(kind, options, scale, sizes, measured)


_GOALS: Final = (Goal(2.0, at=(1,)), Goal(1.0, at=(30, 1_000)))

MEASURE: Final = Measure(
    "offset_fetch",
    "OffsetFetch",
    f"A group's offsets, asked for over {_CONNECTIONS} connections, one request in flight on each.",
    (
        Quantity("rate", "OffsetFetches a second", "/s", "more", axis="partitions", goals=_GOALS),
        Quantity("p50_ms", "median of an OffsetFetch", "ms", "less", axis="partitions"),
        Quantity("p99_ms", "99th percentile of an OffsetFetch", "ms", "less", axis="partitions", chart=False),
        Quantity("cpu_us", "CPU of an OffsetFetch", "us", "less", axis="partitions", chart=False),
    ),
    _run,
    cannot={"kafka-flush": NOTHING_SYNCED, "muster-3": IN_PROCESS},
    cold=True,
)

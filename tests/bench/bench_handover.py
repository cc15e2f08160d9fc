"""How long a group shard is served by nobody while a broker stops in good order.

`python -m tests.bench handover`

One broker of three is stopped, on each store. One group in each of its shards is asked for its offsets every
few milliseconds: at that broker until it refuses, from then on at the two others, until one of them answers.
What passes from the last answer to the first is the handover: nobody looks anybody up, so it is what the
brokers need, and the resolution of asking. On PostgreSQL the brokers are processes of their own, on the other
stores they live in one.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from muster.coordinator.testing import Cluster
from muster.protocol.errors import ErrorCode
from muster.protocol.messages.offsets import OffsetFetchRequest
from tests.bench import cluster, database, load
from tests.bench.figures import Figure
from tests.support.wire import Wire

TARGET_MS: Final = 200.0
ROUNDS: Final = 3
ASK_S: Final = 0.002
_VERSION: Final = 7
_SECONDS_MAX: Final = 60.0


def measure() -> list[Figure]:
    """One figure for each store: the worst of all shards of all rounds."""
    found = [_figure("memory", _in_process(None)), _figure("sqlite", _on_sqlite())]
    return [*found, _figure("PostgreSQL", _on_postgres())]


def _figure(store: str, handovers_ms: list[float]) -> Figure:
    worst = max(handovers_ms)
    middle = statistics.median(handovers_ms)
    return Figure(
        f"handover of a shard on {store}",
        "ms",
        worst,
        target=f"under {TARGET_MS:.0f} ms",
        reached=worst < TARGET_MS,
        note=f"the longest of {len(handovers_ms)} shards in {ROUNDS} rounds; median {middle:.0f} ms",
    )


def _on_sqlite() -> list[float]:
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as directory:
        return _in_process(Path(directory))


def _in_process(data: Path | None) -> list[float]:
    with Cluster(3, data=data, lease_term_ms=3_000) as brokers:
        ports = dict(enumerate(brokers.ports, 1))
        found = []
        for number in range(ROUNDS):
            index = number % len(ports)
            cluster.settle(ports)
            found += load.run(_handovers(ports, index + 1, partial(brokers.stop, index)))
            brokers.restart(index)
        return found


def _on_postgres() -> list[float]:
    with database.server() as postgres, cluster.brokers(postgres.new_database()) as served:
        found = []
        for number in range(ROUNDS):
            node_id = 1 + number % len(served)
            cluster.settle(cluster.ports(served))
            found += load.run(_handovers(cluster.ports(served), node_id, served[node_id].stop))
            served[node_id].start()
        return found


async def _handovers(ports: Mapping[int, int], leaving: int, stop: Callable[[], object]) -> list[float]:
    """Of each shard of the broker that is stopped, in milliseconds."""
    groups = await _served_by(ports[leaving])
    others = [port for node_id, port in ports.items() if node_id != leaving]
    async with asyncio.timeout(_SECONDS_MAX), asyncio.TaskGroup() as asking:
        probes = [asking.create_task(_handover(group_id, ports[leaving], others)) for group_id in groups]
        await asyncio.to_thread(stop)
    return [probe.result() for probe in probes]


async def _served_by(port: int) -> list[str]:
    names = list(cluster.group_in_shard().values())
    async with await Wire.connect(port) as wire:
        return [name for name in names if await _served(wire, name)]


async def _served(wire: Wire, group_id: str) -> bool:
    try:
        answer = await wire.call(OffsetFetchRequest(group_id=group_id, topics=[]), _VERSION)
    except (OSError, EOFError):
        return False
    return bool(answer.error_code == ErrorCode.NONE)


async def _handover(group_id: str, before: int, after: list[int]) -> float:
    wires = [await Wire.connect(port) for port in (before, *after)]
    try:
        last_s = 0.0
        while await _served(wires[0], group_id):
            last_s = time.monotonic()
            await asyncio.sleep(ASK_S)
        while True:
            if any(await asyncio.gather(*(_served(wire, group_id) for wire in wires[1:]))):
                return (time.monotonic() - last_s) * 1000
            await asyncio.sleep(ASK_S)
    finally:
        for wire in wires:
            await wire.close()

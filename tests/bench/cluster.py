"""Broker processes over one PostgreSQL, and where their shards are."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from muster.coordinator.cluster.placement import GROUP_SHARDS, shard_of
from tests.bench import load
from tests.bench.followers import Brokers
from tests.support.served import Served

BROKERS: Final = 3
SETTLED_SECONDS_MAX: Final = 60.0


@contextmanager
def brokers(
    url: str, *options: str, count: int = BROKERS, settled: bool = True, python: Path | None = None
) -> Iterator[dict[int, Served]]:
    """So many processes over the database at `url`, by node id, ready and with the shards shared out, unless
    that is not to be waited for; those that still run at the end are killed. `python`: see `Served`."""
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as directory, ExitStack() as stack:
        served = {}
        for node_id in range(1, count + 1):
            named = ("--store", url, "--node-id", str(node_id), *options)
            log = Path(directory) / f"broker-{node_id}.log"
            broker = served[node_id] = Served(None, *named, log=log, python=python)
            stack.push(broker)  # kills it
        with ThreadPoolExecutor(count) as starting:
            list(starting.map(Served.start, served.values()))
        if settled:
            settle(ports(served))
        yield served


def ports(served: Mapping[int, Served]) -> dict[int, int]:
    return {node_id: broker.port for node_id, broker in served.items()}


def settle(ports: Mapping[int, int]) -> float:
    """Wait until every broker has its part of the group shards and nothing moves any more; how long it took,
    in seconds, without the wait for nothing to move."""
    return load.run(_settle(ports))


async def _settle(ports: Mapping[int, int]) -> float:
    began, quiet_s = time.monotonic(), 1.0
    asking = Brokers(ports)
    try:
        before: dict[int, int | None] = {}
        since = began
        while True:
            found = await shards(asking)
            now = time.monotonic()
            if found != before:
                before, since = found, now
            elif now - since > quiet_s and shared_out(found, asking.node_ids):
                return since - began
            if now - began > SETTLED_SECONDS_MAX:
                raise TimeoutError(f"the shards were not shared out: {Counter(found.values())}")
            await asyncio.sleep(0.05)
    finally:
        asking.close()


def shared_out(found: Mapping[int, int | None], node_ids: list[int]) -> bool:
    return set(found.values()) == set(node_ids)


async def shards(asking: Brokers) -> dict[int, int | None]:
    """The coordinator of each group shard."""
    names = group_in_shard()
    found = await asking.holders(list(names.values()))
    return {number: found[name] for number, name in names.items()}


def group_in_shard(prefix: str = "probe") -> dict[int, str]:
    """A group's name for each shard."""
    names: dict[int, str] = {}
    count = 0
    while len(names) < GROUP_SHARDS:
        name = f"{prefix}-{count}"
        names.setdefault(shard_of(name), name)
        count += 1
    return names

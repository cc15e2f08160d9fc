"""Snapshots of everything clients can see of in-memory brokers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from uuid import UUID

from muster.coordinator.server.broker import Broker as Node
from muster.coordinator.server.brokers import Brokers
from muster.coordinator.storage.files import MemoryFolder
from muster.coordinator.storage.memory import MemoryImage, MemoryStore
from muster.coordinator.testing.core import all_loaded
from muster.coordinator.topics.logs import Logs

_LOOK_AGAIN_S = 0.001


@dataclass(frozen=True, slots=True, repr=False)
class Snapshot:
    """The state of a `Broker` or `Cluster`; may be restored any number of times."""

    cluster_id: UUID
    store: MemoryImage
    logs: MemoryFolder


async def taken(brokers: Brokers) -> Snapshot:
    """Take a snapshot. Raises ValueError unless the brokers are in memory."""
    store, logs = _in_memory(brokers)
    assert logs.memory is not None
    nodes = await _all_running(brokers)
    async with _frozen(nodes):
        await _at_rest(nodes)
        return Snapshot((await store.counts()).cluster_id, store.image(), logs.memory.copy())


async def put_back(brokers: Brokers, snapshot: Snapshot) -> None:
    """Restore a snapshot. Raises ValueError for one of other brokers, TypeError for anything else."""
    if not isinstance(snapshot, Snapshot):
        raise TypeError(f"snapshot: it takes what `snapshot` returned, not {snapshot!r}")
    store, logs = _in_memory(brokers)
    counts = await store.counts()
    if counts.cluster_id != snapshot.cluster_id:
        raise ValueError("snapshot: it was taken of other brokers")
    nodes = await _all_running(brokers)
    for shard in brokers.shard_faults.held():
        raise ValueError(f"the load of shard {shard} is held: release it before restoring a snapshot")
    leases = nodes[0].topology.leases
    async with _frozen(nodes):
        for node in nodes:
            await node.connections.cut()
            await node.catalogue.refresh()
        for node in nodes:
            held = [lease for lease in leases if node.membership.serving(lease)]
            why = "a snapshot is restored"
            await asyncio.gather(*(node.holders[lease.kind].disown(lease.number, why) for lease in held))
        await _at_rest(nodes)
        # No await until every lease must be reclaimed, so that nothing runs under an old one.
        store.restore(snapshot.store)
        logs.become(snapshot.logs)
        for node in nodes:
            for lease in leases:
                epoch = node.membership.epoch(lease)
                if epoch is not None:
                    node.membership.reclaim(lease, epoch)
        while not all(any(node.membership.serving(lease) for node in nodes) for lease in leases):  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_AGAIN_S)  # the caller limits the time
        await all_loaded(nodes)
        for node in nodes:
            await node.configs.refresh()
            await node.catalogue.refresh()


def _in_memory(brokers: Brokers) -> tuple[MemoryStore, Logs]:
    store, logs = brokers.shared.store, brokers.shared.logs
    if not isinstance(store, MemoryStore) or logs.memory is None:
        where = "the database" if brokers.settings.store is not None else brokers.settings.data
        raise ValueError(
            f"snapshots need brokers in memory, but these keep their state in {where}: leave out `data` "
            "and `store`"
        )
    return store, logs


async def _all_running(brokers: Brokers) -> Sequence[Node]:
    """The brokers, once none of them is being stopped or started. Raises ValueError unless all of them are
    running."""
    await brokers.settled()
    for index, node in enumerate(brokers.brokers):
        if node not in brokers.running:
            raise ValueError(f"broker {index} is stopped: restart it before taking or restoring a snapshot")
        if node.paused:
            raise ValueError(f"broker {index} is paused: resume it before taking or restoring a snapshot")
    return brokers.brokers


@asynccontextmanager
async def _frozen(nodes: Sequence[Node]) -> AsyncIterator[None]:
    """In the block, neither read from clients nor respond to them."""
    for node in nodes:
        node.connections.freeze()
    try:
        yield
    finally:
        for node in nodes:
            node.connections.thaw()


async def _at_rest(nodes: Sequence[Node]) -> None:
    """Wait until no thread is working on a log; returns in the same turn of the loop."""
    while any(node.partitions.busy for node in nodes):
        for node in nodes:
            await node.partitions.at_rest()

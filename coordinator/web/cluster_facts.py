"""The cluster's brokers and lease holders: what a broker last read, and what its store says about leases."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from muster.coordinator.runtime.machine import M
from muster.coordinator.runtime.runtime import Runtime
from muster.coordinator.server.broker import Broker
from muster.coordinator.server.brokers import Brokers
from muster.coordinator.storage.store import Grant, Lease, LeaseKind, StoreError
from muster.coordinator.web import facts

_ASK_S: Final = 2.0
PARTITIONS_COUNTED_MAX: Final = 20_000
"""With more partitions, leaders are not counted."""


class ShardHere(NamedTuple):
    """A coordinator's shard of this process."""

    state: str
    failure: str | None
    keys: int | None
    """Number of groups or transactional ids in it; None while it is loading."""


def nodes(brokers: Brokers) -> list[dict[str, Any]]:
    """The live brokers of the cluster, by id."""
    topology = facts.any_broker(brokers).topology
    here = {each.node_id: each for each in brokers.running}
    held: Counter[tuple[int, LeaseKind]] = Counter()
    loading: Counter[int] = Counter()
    for lease, grant in topology.holders.items():
        held[grant.node_id, lease.kind] += 1
        loading[grant.node_id] += not grant.announced
    found = []
    for node_id, node in topology.nodes.items():
        broker = here.get(node_id)
        found.append(
            {
                **facts.node_json(node),
                "here": broker is not None,
                "rack": node.rack,
                "drained": node.drained,
                "controller": node_id == topology.controller_id,
                "group_shards": held[node_id, LeaseKind.GROUP],
                "transaction_shards": held[node_id, LeaseKind.TRANSACTION],
                "data_shards": held[node_id, LeaseKind.DATA],
                "loading": loading[node_id],
                "connections": None if broker is None else len(broker.connections.open),
            }
        )
    return found


async def grants(broker: Broker) -> tuple[Mapping[Lease, Grant], bool]:
    """The leases held, and whether the store just confirmed them. If it does not respond, these are the ones
    that the broker last read, and their remaining time is unknown."""
    try:
        async with asyncio.timeout(_ASK_S):
            found = [each for kind in LeaseKind for each in (await broker.store.holders(kind)).values()]
    except (TimeoutError, StoreError):
        return broker.topology.holders, False
    return {each.lease: each for each in found}, True


async def partitions_led(broker: Broker) -> Counter[Lease] | None:
    """How many topic partitions each lease covers; None if there are too many to count."""
    topology, turns = broker.topology, facts.Turns()
    topics = broker.catalogue.topics()
    if sum(each.partitions for each in topics) > PARTITIONS_COUNTED_MAX:
        return None
    found: Counter[Lease] = Counter()
    for topic in topics:
        await turns.next()
        leases = (
            topology.data_lease(topic.topic_id, number, topic.assignments.get(number))
            for number in range(topic.partitions)
        )
        found.update(lease for lease in leases if lease is not None)
    return found


def shards_here(brokers: Brokers) -> dict[Lease, ShardHere]:
    """The coordinators' shards of this process."""
    found: dict[Lease, ShardHere] = {}
    for broker in brokers.running:
        found |= _shards(broker.runtime, lambda shard: len(shard.groups))
        found |= _shards(broker.transaction_runtime, lambda shard: len(shard.transactions))
    return found


def _shards(runtime: Runtime[M], keys: Callable[[M], int]) -> dict[Lease, ShardHere]:
    states = {each.number: each for each in runtime.shards()}
    found = {}
    for host in runtime.hosts():
        status = states[host.lease.number]
        known = None if host.machine is None else keys(host.machine)
        found[host.lease] = ShardHere(status.state, status.failure, known)
    return found

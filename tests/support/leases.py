"""Leases in tests outlast any stall of the machine, and expire when a test says so."""

from __future__ import annotations

from typing import Final

from muster.coordinator.server.broker import Broker
from muster.coordinator.server.brokers import Brokers
from muster.coordinator.storage.store import Ageing, LeaseKind, Store
from muster.coordinator.testing import Cluster

TERM_MS: Final = 30_000


def die(cluster: Cluster, index: int) -> None:
    """Kill a broker of a cluster with leases of `TERM_MS` and let them expire: others have taken over."""
    cluster.kill(index)
    cluster.clock.advance(TERM_MS / 1_000)


def let_pass(brokers: Brokers, ms: int, *of: Broker) -> None:
    """Let `ms` pass for what these brokers hold, in the store and on their own clocks. Running brokers renew
    as far as they can. Needs test mode."""
    store = brokers.shared.store
    assert isinstance(store, Ageing)
    store.let_pass(ms, {each.node_id for each in brokers.brokers if each not in of})
    for each in of:
        each.missed(ms)


async def run_out(store: Store, of: Broker) -> None:
    """Expire at once, in any store, the leases of a broker that does not renew them."""
    await store.remove_node(of.node_id, of.incarnation)
    for kind in LeaseKind:
        held = (await store.holders(kind)).values()
        await store.release([grant for grant in held if grant.node_id == of.node_id])

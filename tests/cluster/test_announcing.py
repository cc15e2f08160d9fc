"""From claiming a lease to sending clients to its holder: only once what it serves is loaded, and then soon
on every node."""

from __future__ import annotations

import asyncio

from muster.coordinator.cluster.membership import START_WAIT_MS
from muster.coordinator.storage.store import Lease, LeaseKind
from tests.cluster.support import ALL, TERM_MS, Cluster, Node, share
from tests.support.facts import turns, until

GROUPS = {lease for lease in ALL if lease.kind is LeaseKind.GROUP}


def loading(cluster: Cluster, node_id: int) -> Node:
    """A node whose group shards are loaded when the test says so."""
    node = cluster.nodes[node_id] = Node(node_id, cluster.store, cluster.clock)
    node.holders[LeaseKind.GROUP].loads_at_once = False
    return node


async def test_nobody_is_sent_to_a_shard_before_it_is_loaded(cluster: Cluster) -> None:
    (first,) = await cluster.start(1)
    second = loading(cluster, 2)
    await second.start()
    groups = second.holders[LeaseKind.GROUP]
    await until(lambda: groups.loading, "a load")
    await turns()
    number = next(iter(groups.loading))
    lease = Lease(LeaseKind.GROUP, number)
    for node in (first, second):
        assert node.membership.topology.holders[lease].node_id == 2
        assert lease not in node.names()
    group_id = next(
        f"g{n}" for n in range(10_000) if second.membership.topology.group_lease(f"g{n}") == lease
    )
    assert first.membership.topology.coordinator(group_id) is None
    groups.load(number)
    await until(lambda: first.names().get(lease) == second.names().get(lease) == 2, "the announcement")
    coordinator = first.membership.topology.coordinator(group_id)
    assert coordinator is not None
    assert coordinator.node_id == 2


async def test_what_needs_no_loading_is_announced_with_the_claim(cluster: Cluster) -> None:
    node = loading(cluster, 1)
    await node.start()
    await until(lambda: set(node.names()) == ALL - GROUPS, "the announcement")


async def test_a_start_can_be_waited_for_but_not_for_ever(cluster: Cluster) -> None:
    node = loading(cluster, 1)
    await node.start()
    announced = asyncio.ensure_future(node.membership.announced())
    await turns(200)
    assert not announced.done()
    cluster.clock.advance(START_WAIT_MS)
    await announced
    assert set(node.names()) == ALL - GROUPS
    announced = asyncio.ensure_future(node.membership.announced())
    node.holders[LeaseKind.GROUP].load_all()
    await announced
    assert set(node.names()) == ALL


async def test_what_is_loaded_in_one_turn_is_announced_in_one_call(cluster: Cluster) -> None:
    node = loading(cluster, 1)
    await node.start()
    await until(lambda: len(node.holders[LeaseKind.GROUP].loading) == 50, "the loads")
    await turns()
    cluster.store.announcements.clear()
    node.holders[LeaseKind.GROUP].load_all()
    await until(lambda: set(node.names()) == ALL, "the announcement")
    assert cluster.store.announcements == [50]


async def test_what_could_not_be_announced_is_announced_when_the_store_is_back(cluster: Cluster) -> None:
    first, second = await cluster.start(1, 2)
    cluster.store.silent = True
    stopping = asyncio.ensure_future(second.membership.stop())
    await cluster.passes(2 * TERM_MS)
    await stopping
    assert set(first.names()) == share(1, 1, 2)
    assert first.serves() == ALL
    cluster.store.silent = False
    await cluster.passes(TERM_MS // 3)
    assert cluster.agree(1)


async def test_a_load_under_an_older_epoch_announces_nothing(cluster: Cluster) -> None:
    node = loading(cluster, 1)
    await node.start()
    groups = node.holders[LeaseKind.GROUP]
    await until(lambda: len(groups.loading) == 50, "the loads")
    older = groups.loading[7]
    lease = Lease(LeaseKind.GROUP, 7)
    node.membership.reclaim(lease, 1)
    groups.load_all()
    await until(lambda: node.epoch(lease) == 2, "the new epoch")
    assert older.done()
    await until(lambda: len(node.names()) == 99, "the others")
    assert lease not in node.names()
    groups.load(7)
    await until(lambda: lease in node.names(), "the announcement")


async def test_a_load_that_was_given_up_or_failed_announces_nothing(cluster: Cluster) -> None:
    node = loading(cluster, 1)
    await node.start()
    groups = node.holders[LeaseKind.GROUP]
    await until(lambda: len(groups.loading) == 50, "the loads")
    groups.loading.pop(3).cancel()
    groups.loading.pop(4).set_exception(ValueError("damaged"))
    groups.load_all()
    await until(lambda: len(node.names()) == 98, "the others")
    await turns()
    assert ALL - set(node.names()) == {Lease(LeaseKind.GROUP, 3), Lease(LeaseKind.GROUP, 4)}


async def test_what_is_not_served_any_more_is_nobodys_at_once(cluster: Cluster) -> None:
    """The store still names this node; its clients must not be sent back here."""
    (node,) = await cluster.start(1)
    lease = Lease(LeaseKind.GROUP, 7)
    node.membership.reclaim(lease, 1)
    assert lease not in node.membership.topology.holders
    await until(lambda: lease in node.names(), "the new epoch")


async def test_all_nodes_agree_when_a_node_has_come_left_or_died(cluster: Cluster) -> None:
    await cluster.start(1, 2, 3)
    await until(lambda: cluster.agree(1, 2, 3), "agreement on who came")
    await cluster.nodes[2].membership.stop()
    await until(lambda: cluster.agree(1, 3), "agreement without who left")
    cluster.nodes[3].membership.kill()
    await cluster.passes(TERM_MS)  # not a renewal interval longer
    await until(lambda: cluster.agree(1), "agreement without who died")

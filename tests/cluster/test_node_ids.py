"""One id, two brokers: after a death, the next one waits; while the first lives, it is refused; and a broker
that slept past its term and was replaced serves nothing more."""

from __future__ import annotations

import asyncio

import pytest

from muster.coordinator.storage.store import NodeIdTaken, StoreClosed
from tests.cluster.support import ALL, KINDS, TERM_MS, Cluster, Node, share
from tests.support.facts import turns, until


async def test_a_node_killed_and_started_again_waits_until_its_registration_has_run_out(
    cluster: Cluster,
) -> None:
    (node,) = await cluster.start(1)
    await cluster.passes(TERM_MS // 3 - 100)
    node.membership.kill()
    again = cluster.nodes[1] = Node(1, cluster.store, cluster.clock)
    starting = asyncio.ensure_future(again.start())
    await cluster.passes(2 * TERM_MS // 3)
    assert not starting.done()
    assert again.serves() == set()
    await cluster.passes(500)
    await starting
    assert again.serves() == again.owns() == ALL
    assert {again.epoch(lease) for lease in ALL} == {2}


async def test_a_renewal_that_reaches_the_store_after_its_sender_died_only_makes_the_next_one_wait_longer(
    cluster: Cluster,
) -> None:
    (node,) = await cluster.start(1)
    node.membership.kill()
    again = cluster.nodes[1] = Node(1, cluster.store, cluster.clock)
    starting = asyncio.ensure_future(again.start())
    await cluster.passes(TERM_MS // 2)
    await cluster.store.register_node(node.row)  # delayed on its way
    await cluster.passes(TERM_MS - 100)
    assert not starting.done()
    await cluster.passes(500)
    await starting
    assert again.serves() == again.owns() == ALL


async def test_a_node_whose_id_is_in_use_is_refused_with_who_uses_it(cluster: Cluster) -> None:
    (node,) = await cluster.start(1)
    epochs = {lease: node.epoch(lease) for lease in ALL}
    other = Node(1, cluster.store, cluster.clock)
    starting = asyncio.ensure_future(other.start())
    await cluster.passes(2 * TERM_MS + 500)
    with pytest.raises(NodeIdTaken, match=r"node id 1 is in use by the broker at 127\.0\.0\.1:9093"):
        await starting
    other.membership.kill()
    assert {lease: node.epoch(lease) for lease in ALL} == epochs
    assert node.serves() == ALL


async def test_whoever_waits_for_a_registration_to_run_out_can_be_killed(cluster: Cluster) -> None:
    (node,) = await cluster.start(1)
    node.membership.kill()
    again = Node(1, cluster.store, cluster.clock)
    starting = asyncio.ensure_future(again.membership.register(again.row))
    await turns()
    again.membership.kill()
    with pytest.raises(StoreClosed):
        await starting
    await turns()
    assert cluster.clock.next_ms() is None


async def test_a_node_that_slept_and_was_replaced_serves_and_releases_nothing(cluster: Cluster) -> None:
    _, old = await cluster.start(1, 2)
    old.pause()
    await cluster.passes(TERM_MS + 100)
    new = cluster.nodes[2] = Node(2, cluster.store, cluster.clock)
    await new.start()
    await until(lambda: cluster.agree(1, 2), "the new one in its place")
    epochs = {lease: new.epoch(lease) for lease in new.owns()}
    cluster.store.releases.clear()
    cluster.store.claims.clear()
    old.resume()
    assert old.serves() == old.owns() == set()
    await old.membership.superseded.wait()
    assert old.membership.superseded_by is not None
    assert old.membership.superseded_by.holder.incarnation == new.row.incarnation
    await cluster.passes(3 * TERM_MS)
    assert old.serves() == old.owns() == set()
    assert cluster.store.releases == cluster.store.claims == []
    assert {lease: new.epoch(lease) for lease in new.owns()} == epochs
    assert cluster.agree(1, 2)
    old.membership.kill()


async def test_a_node_replaced_while_it_claims_begins_nothing(cluster: Cluster) -> None:
    """As when clocks run differently: whatever is granted then belongs to the other node."""
    first, old = await cluster.start(1, 2)
    cluster.store.answers_claims.clear()
    first.membership.kill()
    await cluster.passes(TERM_MS + 100)
    assert old.owns() == share(2, 1, 2)
    await cluster.store.remove_node(2, old.row.incarnation)
    new = Node(2, cluster.store, cluster.clock)
    await cluster.store.register_node(new.row)
    await cluster.passes(TERM_MS)
    assert old.membership.superseded.is_set()
    cluster.store.answers_claims.set()
    await cluster.passes(TERM_MS)
    assert old.owns() == old.serves() == set()


async def test_a_claim_on_its_way_when_its_sender_is_replaced_takes_nothing_from_the_new_one(
    cluster: Cluster,
) -> None:
    first, old = await cluster.start(1, 2)
    cluster.store.takes_claims.clear()
    first.membership.kill()
    cluster.store.claims.clear()
    await cluster.passes(TERM_MS + 100)
    await until(lambda: cluster.store.claims, "the claim")
    old.pause()
    await cluster.passes(TERM_MS + 100)
    late, cluster.store.takes_claims = cluster.store.takes_claims, asyncio.Event()
    cluster.store.takes_claims.set()
    new = cluster.nodes[2] = Node(2, cluster.store, cluster.clock)
    await new.start()
    await until(lambda: new.owns() == ALL, "the new one in its place")
    epochs = {lease: new.epoch(lease) for lease in ALL}
    late.set()
    await cluster.passes(TERM_MS)
    assert new.serves() == ALL
    assert {lease: new.epoch(lease) for lease in ALL} == epochs
    old.membership.kill()


async def test_a_node_that_was_replaced_learns_of_it_at_its_next_look_and_claims_nothing_more(
    cluster: Cluster,
) -> None:
    """Whatever it claimed would belong to the other, since leases are held by node id."""
    first, old = await cluster.start(1, 2)
    await cluster.store.remove_node(2, old.row.incarnation)
    await cluster.store.register_node(Node(2, cluster.store, cluster.clock).row)
    cluster.store.claims.clear()
    first.membership.kill()
    cluster.store.let_pass(TERM_MS, {2})  # all of the first node's leases are free
    await until(old.membership.superseded.is_set, "the news")
    assert cluster.store.claims == []
    assert old.owns() == old.serves() == set()


async def test_nodes_may_be_registered_long_before_they_start(cluster: Cluster) -> None:
    nodes = [Node(node_id, cluster.store, cluster.clock) for node_id in (1, 2)]
    cluster.nodes = {node.node_id: node for node in nodes}
    for node in nodes:
        await node.membership.register(node.row)
    for node in nodes:
        await node.start()
    await until(lambda: cluster.agree(1, 2), "agreement")
    assert {node.epoch(lease) for node in nodes for lease in node.owns()} == {1}
    assert {lease.kind for lease in nodes[0].owns()} == set(KINDS)

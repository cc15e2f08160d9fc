"""Nodes that share a store: when each claims, renews, hands over and stops serving."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from muster.coordinator.cluster.membership import MOVES_AT_ONCE
from muster.coordinator.storage.memory import MemoryStore
from muster.coordinator.storage.store import (
    Grant,
    Lease,
    LeaseKind,
    NodeIdTaken,
    StoreBusy,
    StoreClosed,
    StoreError,
)
from tests.cluster.support import ALL, MARGIN_MS, TERM_MS, Cluster, Holder, Node, share
from tests.support.facts import turns, until


async def test_a_single_node_owns_everything_when_start_returns(cluster: Cluster) -> None:
    node = Node(1, cluster.store, cluster.clock)
    cluster.nodes[1] = node
    await node.start()
    assert node.serves() == node.owns() == ALL
    assert node.membership.topology.holders.keys() == ALL


async def test_leases_are_kept_as_long_as_they_can_be_renewed(cluster: Cluster) -> None:
    (node,) = await cluster.start(1)
    await cluster.passes(10 * TERM_MS)
    assert node.serves() == ALL
    assert set(node.holders[LeaseKind.GROUP].epochs.values()) == {1}


async def test_three_nodes_share_by_placement(cluster: Cluster) -> None:
    await cluster.start(1, 2, 3)
    await cluster.passes(2 * TERM_MS)
    assert cluster.is_placed(1, 2, 3)


async def test_nodes_registered_before_they_start_claim_nothing_they_would_hand_over(
    cluster: Cluster,
) -> None:
    nodes = [Node(node_id, cluster.store, cluster.clock) for node_id in (1, 2, 3)]
    cluster.nodes = {node.node_id: node for node in nodes}
    for node in nodes:
        await cluster.store.register_node(node.row)
    for node in nodes:
        await node.start()
    assert cluster.is_placed(1, 2, 3)
    assert {
        epoch for node in nodes for holder in node.holders.values() for epoch in holder.epochs.values()
    } == {1}


async def test_beside_a_node_that_does_not_know_transactions_the_others_hold_all_of_their_shards(
    cluster: Cluster,
) -> None:
    older, *newer = (Node(node_id, cluster.store, cluster.clock) for node_id in (1, 2, 3))
    older.row = replace(older.row, keeps_transactions=False)
    cluster.nodes = {node.node_id: node for node in (older, *newer)}
    for node in cluster.nodes.values():
        await cluster.store.register_node(node.row)
    for node in newer:
        node.holders[LeaseKind.TRANSACTION] = Holder(LeaseKind.TRANSACTION)
    for node in cluster.nodes.values():
        await node.start()
    assert cluster.is_placed(1, 2, 3)

    def shares() -> list[int]:
        return [len(node.holders[LeaseKind.TRANSACTION].epochs) for node in newer]

    assert sum(shares()) == 50
    assert min(shares()) > 10
    # The last but one leaves: nothing is kept for the node that cannot hold it.
    await newer[0].membership.stop()
    await until(lambda: shares() == [0, 50])


async def test_a_start_that_fails_can_be_ended(cluster: Cluster) -> None:
    cluster.store.broken = True
    node = cluster.nodes[1] = Node(1, cluster.store, cluster.clock)
    with pytest.raises(StoreError):
        await node.start()
    await turns()
    assert cluster.clock.next_ms() is None, "it is not renewed"
    node.membership.kill()
    assert cluster.clock.next_ms() is None


async def test_a_start_with_slow_claims_keeps_what_it_has_claimed(cluster: Cluster) -> None:
    node = cluster.nodes[1] = Node(1, cluster.store, cluster.clock)
    claim = cluster.store.claim

    async def slow(
        leases: Sequence[Lease], node_id: int, term_ms: int, *, incarnation: UUID | None = None
    ) -> list[Grant | None]:
        granted = await claim(leases, node_id, term_ms, incarnation=incarnation)
        await cluster.passes(TERM_MS * 2 // 5)
        return granted

    cluster.store.claim = slow  # type: ignore[method-assign]
    await node.start()
    assert len(cluster.store.claims) > 3, "more than a term's worth"
    assert node.serves() == node.owns() == ALL
    assert {node.epoch(lease) for lease in ALL} == {1}, "claimed once"


async def test_who_is_killed_as_it_starts_is_not_renewed(cluster: Cluster) -> None:
    node = Node(1, cluster.store, cluster.clock)
    node.store.pause()
    starting = asyncio.ensure_future(node.start())
    await turns()
    node.membership.kill()
    node.store.resume()
    with pytest.raises(StoreClosed):
        await starting
    await cluster.passes(TERM_MS)
    assert await cluster.store.nodes() == []


async def test_a_node_that_comes_takes_only_what_it_gets(cluster: Cluster) -> None:
    first, second = await cluster.start(1, 2)
    epochs = {lease: first.epoch(lease) for lease in first.owns()}
    await cluster.start(3)
    assert {lease: first.epoch(lease) for lease in first.owns()} == {
        lease: epoch for lease, epoch in epochs.items() if lease not in share(3, 1, 2, 3)
    }
    assert second.owns() == share(2, 1, 2, 3)


async def test_a_dead_nodes_leases_and_no_others_move_when_they_run_out(cluster: Cluster) -> None:
    first, second, third = await cluster.start(1, 2, 3)
    before = first.owns() | third.owns()
    epochs = {lease: first.epoch(lease) or third.epoch(lease) for lease in before}
    orphans = second.owns()
    second.membership.kill()
    await cluster.passes(TERM_MS - 200)
    assert first.owns() | third.owns() == before
    await cluster.passes(400)
    assert cluster.is_placed(1, 3)
    assert {lease: first.epoch(lease) or third.epoch(lease) for lease in before} == epochs
    assert all((first.epoch(lease) or third.epoch(lease) or 0) > 1 for lease in orphans)


async def test_a_lease_that_was_lost_before_it_lapsed_here_is_given_up_all_the_same(cluster: Cluster) -> None:
    """A request or a deadline of its shard comes before the timer."""
    first, _ = await cluster.start(1, 2)
    lease = min(first.owns())
    epoch = first.epoch(lease)
    assert epoch is not None
    first.pause()
    await cluster.passes(2 * TERM_MS)
    assert not first.membership.serving(lease)
    first.membership.reclaim(lease, epoch)
    assert first.holders[lease.kind].gone[lease.number] == "its state was lost"
    first.resume()
    await cluster.passes(2 * TERM_MS)
    assert cluster.is_placed(1, 2)


async def test_a_shard_that_fails_while_its_node_leaves_is_free_at_once(cluster: Cluster) -> None:
    (node,) = await cluster.start(1)
    node.membership._leaving = True
    await node.membership._placing.end()  # nothing is claimed any more
    node.membership.reclaim(Lease(LeaseKind.GROUP, 7), 1)
    await cluster.passes(300)
    assert 7 not in await cluster.store.holders(LeaseKind.GROUP)


async def test_how_long_a_dead_node_has_been_silent_is_known(cluster: Cluster) -> None:
    first, second = await cluster.start(1, 2)
    await cluster.passes(20 * TERM_MS)
    second.membership.kill()
    await cluster.passes(TERM_MS + 400)
    assert cluster.is_placed(1)
    silent_ms = first.membership.silent_ms(2)
    assert silent_ms is not None
    assert TERM_MS + 400 <= silent_ms <= 2 * TERM_MS + 400, "it registered within a third of its term"
    assert first.membership.silent_ms(7) is None


async def test_a_dead_nodes_leases_are_claimed_when_they_run_out_and_not_at_the_next_renewal(
    cluster: Cluster,
) -> None:
    await cluster.start(1)
    await cluster.passes(500)  # Renewals of the two fall half a second apart.
    (second,) = await cluster.start(2)
    await cluster.passes(TERM_MS // 3)
    second.membership.kill()
    await cluster.passes(TERM_MS - 100)
    assert not cluster.is_placed(1)
    await cluster.passes(200)
    assert cluster.is_placed(1)


async def test_a_node_that_leaves_hands_over_without_any_time_passing(cluster: Cluster) -> None:
    first, second, _ = await cluster.start(1, 2, 3)
    await second.membership.stop()
    assert second.serves() == second.owns() == set()
    await until(lambda: cluster.is_placed(1, 3), "the handover")
    assert first.membership.topology.nodes.keys() == {1, 3}


async def test_a_lease_is_released_only_when_its_holder_is_at_rest(cluster: Cluster) -> None:
    first, second = await cluster.start(1, 2)
    for holder in second.holders.values():
        holder.may_rest.clear()
    stopping = asyncio.ensure_future(second.membership.stop())
    await cluster.passes(TERM_MS // 2)
    resting = share(2, 1, 2) - second.owns()
    assert len(resting) == MOVES_AT_ONCE
    assert not resting & first.owns()
    for holder in second.holders.values():
        holder.may_rest.set()
    await stopping
    await until(lambda: cluster.is_placed(1), "the handover")


async def test_a_lease_given_to_a_newcomer_is_kept_until_its_holder_is_at_rest(cluster: Cluster) -> None:
    (first,) = await cluster.start(1)
    first.holders[LeaseKind.DATA].may_rest.clear()
    newcomer = cluster.nodes[2] = Node(2, cluster.store, cluster.clock)
    await newcomer.start()
    await cluster.passes(10 * TERM_MS)
    waiting = {lease for lease in share(2, 1, 2) if lease.kind is LeaseKind.DATA}
    assert not waiting & (first.owns() | newcomer.owns())
    first.holders[LeaseKind.DATA].may_rest.set()
    await until(lambda: cluster.is_placed(1, 2), "the handover")


async def test_a_lease_that_lapsed_is_not_claimed_again_before_its_holder_is_at_rest(
    cluster: Cluster,
) -> None:
    (node,) = await cluster.start(1)
    node.holders[LeaseKind.DATA].may_rest.clear()
    cluster.store.broken = True
    await cluster.passes(TERM_MS)
    cluster.store.broken = False
    await cluster.passes(TERM_MS)
    assert {lease.kind for lease in node.owns()} == {LeaseKind.GROUP}
    node.holders[LeaseKind.DATA].may_rest.set()
    await until(lambda: node.owns() == node.serves() == ALL, "the return")


async def test_a_node_killed_while_it_hands_over_releases_nothing(cluster: Cluster) -> None:
    (first,) = await cluster.start(1)
    first.holders[LeaseKind.DATA].may_rest.clear()
    newcomer = cluster.nodes[2] = Node(2, cluster.store, cluster.clock)
    await newcomer.start()
    await turns()
    first.membership.kill()
    first.holders[LeaseKind.DATA].may_rest.set()
    await turns()
    assert {grant.node_id for grant in (await cluster.store.holders(LeaseKind.DATA)).values()} == {1}


async def test_a_node_that_stops_in_the_middle_of_a_claim_releases_what_it_got(cluster: Cluster) -> None:
    first, second = await cluster.start(1, 2)
    second.membership.kill()
    cluster.store.answers_claims.clear()
    await cluster.passes(TERM_MS + 100)
    stopping = asyncio.ensure_future(first.membership.stop())
    await turns()
    cluster.store.answers_claims.set()
    await stopping
    assert await cluster.store.holders(LeaseKind.GROUP) == {}
    assert first.owns() == set()


async def test_a_lease_another_has_taken_is_disowned_at_the_next_renewal(cluster: Cluster) -> None:
    (node,) = await cluster.start(1)
    lease = Lease(LeaseKind.GROUP, 7)
    await cluster.store.release([Grant(lease, 1, 1, 0)])
    await cluster.store.claim([lease], 2, TERM_MS)
    await cluster.passes(TERM_MS // 3)
    assert node.owns() == node.serves() == ALL - {lease}
    await cluster.passes(TERM_MS)
    assert node.epoch(lease) == 3


async def test_a_paused_node_serves_nothing_when_it_wakes_up_after_its_term(cluster: Cluster) -> None:
    _, second = await cluster.start(1, 2)
    lost = second.owns()
    second.pause()
    await cluster.passes(TERM_MS - MARGIN_MS - 100)
    assert second.serves() == lost  # Still safe: nobody can have claimed yet.
    await cluster.passes(MARGIN_MS)
    assert second.serves() == set()
    await cluster.passes(500)
    assert cluster.is_placed(1)
    second.resume()
    assert second.owns() == set()
    await until(lambda: cluster.is_placed(1, 2), "the return")
    assert all((second.epoch(lease) or 0) > 2 for lease in lost)


async def test_a_pause_shorter_than_the_term_costs_nothing(cluster: Cluster) -> None:
    _, second = await cluster.start(1, 2)
    before = {lease: second.epoch(lease) for lease in second.owns()}
    second.pause()
    await cluster.passes(TERM_MS // 2)
    second.resume()
    await cluster.passes(TERM_MS)
    assert {lease: second.epoch(lease) for lease in second.owns()} == before


async def test_a_node_whose_registration_ran_out_registers_again_before_it_looks_at_placement(
    cluster: Cluster,
) -> None:
    """Otherwise it would find no node at all and give up all its leases."""
    (node,) = await cluster.start(1)
    await cluster.store.remove_node(1, cluster.nodes[1].row.incarnation)
    await turns()
    assert node.serves() == ALL
    assert set(node.holders[LeaseKind.GROUP].epochs.values()) == {1}
    assert node.membership.topology.nodes.keys() == {1}


async def test_after_all_nodes_have_stood_still_none_says_that_there_are_no_nodes(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that sleeps, or a store that hangs: all registrations run out at the same time."""
    may_register = asyncio.Event()
    may_register.set()
    register = cluster.store.register_node

    async def registered(*arguments: Any) -> None:
        await may_register.wait()
        await register(*arguments)

    monkeypatch.setattr(cluster.store, "register_node", registered)
    nodes = await cluster.start(1, 2)
    for node in nodes:
        node.pause()
    may_register.clear()
    cluster.clock.advance(2 * TERM_MS)
    for node in nodes:
        node.resume()
        node.membership._wake()  # it reads before it has registered again
    await turns()
    for node in nodes:
        reading = node.membership._reading
        assert reading is not None
        assert not reading.nodes
        assert node.membership.topology.nodes.keys() == {1, 2}
    may_register.set()
    await until(lambda: cluster.is_placed(1, 2), "the return")


async def test_without_a_store_leases_lapse_by_the_nodes_own_clock(cluster: Cluster) -> None:
    (node,) = await cluster.start(1)
    cluster.store.broken = True
    await cluster.passes(TERM_MS - MARGIN_MS - 100)
    assert node.serves() == ALL
    await cluster.passes(100)
    assert node.owns() == set()
    reasons = set(node.holders[LeaseKind.GROUP].gone.values())
    assert reasons == {"its lease was not renewed in time: the broker or its store stood still"}
    cluster.store.broken = False
    await cluster.passes(TERM_MS)
    assert node.serves() == node.owns() == ALL


async def all_lapse(cluster: Cluster) -> None:
    """The store is away for all nodes, and back."""
    cluster.store.broken = True
    for node in cluster.nodes.values():
        node.store.register_node = cannot  # type: ignore[attr-defined]
    await cluster.passes(2 * TERM_MS)
    assert not any(node.owns() for node in cluster.nodes.values())
    cluster.store.broken = False
    for node in cluster.nodes.values():
        del node.store.register_node  # type: ignore[attr-defined]


@pytest.mark.parametrize("failing", ["claim", "holders"])
async def test_a_node_that_cannot_claim_leaves_its_share_to_the_others_until_it_can(
    cluster: Cluster, failing: str
) -> None:
    first, second = await cluster.start(1, 2)
    setattr(second.store, failing, busy)
    await all_lapse(cluster)
    await cluster.passes(TERM_MS - 200)
    lacking = len(ALL - first.owns())
    assert lacking > 0, "a failure may be over soon"
    said = f"it cannot claim {lacking} shards that no broker has"
    assert second.membership.why_short(first.owns()) == said
    assert not first.membership.topology.nodes[2].drained
    await cluster.passes(2 * TERM_MS // 3 + 400)
    assert first.owns() == first.serves() == ALL
    assert first.membership.topology.nodes.keys() == {1, 2}
    aside = "it could not claim shards, and leaves them to the other brokers until it can"
    assert second.membership.why_short(ALL) == aside
    assert first.membership.why_short(ALL) is None
    delattr(second.store, failing)
    await cluster.passes(TERM_MS - 200)
    assert first.owns() == ALL, "a success may be over soon"
    assert second.membership.why_short(ALL) == aside
    await cluster.passes(2 * TERM_MS // 3 + 400)
    assert cluster.agree(1, 2)
    assert cluster.is_placed(1, 2)
    assert second.membership.why_short(ALL) is None
    assert not any(node.drained for node in first.membership.topology.nodes.values())


async def test_a_node_that_cannot_claim_more_keeps_what_it_has(cluster: Cluster) -> None:
    first, second, third = await cluster.start(1, 2, 3)
    before = {lease: second.epoch(lease) for lease in second.owns()}
    second.store.claim = busy  # type: ignore[attr-defined]
    third.membership.kill()
    await cluster.passes(3 * TERM_MS)
    assert second.owns() == second.serves() == before.keys()
    assert first.owns() == first.serves() == ALL - before.keys()
    del second.store.claim  # type: ignore[attr-defined]
    await cluster.passes(2 * TERM_MS)
    assert cluster.is_placed(1, 2)
    assert {lease: second.epoch(lease) for lease in before} == before


async def test_claims_that_now_fail_and_now_succeed_move_nothing_to_and_fro(cluster: Cluster) -> None:
    first, second = await cluster.start(1, 2)
    attempts = itertools.count()

    async def unsteady(*_: object, **__: object) -> list[Grant | None]:
        if next(attempts) % 2:
            raise StoreBusy("too many connections")
        return []

    told: list[bool] = []
    first.membership.changed.append(lambda: told.append(first.membership.topology.nodes[2].drained))
    second.store.claim = unsteady  # type: ignore[attr-defined]
    await all_lapse(cluster)
    await cluster.passes(10 * TERM_MS)
    assert not any(told), "it is still in line"
    second.store.claim = busy  # type: ignore[attr-defined]
    await cluster.passes(2 * TERM_MS)
    assert first.owns() == ALL
    told.clear()
    second.store.claim = unsteady  # type: ignore[attr-defined]
    before = next(attempts)
    await cluster.passes(10 * TERM_MS)
    assert all(told)
    assert told
    assert next(attempts) - before > 20
    assert first.owns() == ALL


async def test_a_store_that_is_away_for_all_makes_no_node_look_drained(cluster: Cluster) -> None:
    await cluster.start(1, 2)
    await all_lapse(cluster)
    await cluster.passes(500)
    assert cluster.agree(1, 2)
    assert not any(node.drained for node in await cluster.store.nodes())


async def test_where_no_node_can_claim_each_has_its_share_when_it_can(cluster: Cluster) -> None:
    await cluster.start(1, 2, 3)
    for node in cluster.nodes.values():
        node.store.claim = busy  # type: ignore[attr-defined]
    await all_lapse(cluster)
    await cluster.passes(3 * TERM_MS)
    for node in cluster.nodes.values():
        del node.store.claim  # type: ignore[attr-defined]
    await cluster.passes(500)
    assert cluster.is_placed(1, 2, 3)
    epochs = {lease: node.epoch(lease) for node in cluster.nodes.values() for lease in node.owns()}
    await cluster.passes(3 * TERM_MS)
    assert cluster.is_placed(1, 2, 3)
    assert {lease: n.epoch(lease) for n in cluster.nodes.values() for lease in n.owns()} == epochs
    assert not any(node.drained for node in await cluster.store.nodes())


@pytest.mark.parametrize("short", [(2,), (2, 3)], ids=["one is left", "two are left"])
async def test_drained_nodes_get_nothing_from_those_that_cannot_claim(
    cluster: Cluster, short: tuple[int, ...]
) -> None:
    drained, *others = await cluster.start(1, *short)
    drained.membership.set_drained(True)
    await cluster.passes(20 * TERM_MS)
    assert not drained.owns()
    assert frozenset().union(*(node.owns() for node in others)) == ALL
    had = {}
    for node in others:
        lost = min(node.owns())
        node.membership.begin_anew(lost, node.epoch(lost))
        had[node] = node.owns() - {lost}
        node.store.claim = busy  # type: ignore[attr-defined]
    await cluster.passes(3 * TERM_MS)
    for node in others:
        assert node.owns() >= had[node], "what it serves it keeps"
    assert not drained.owns() & frozenset().union(*had.values())
    for node in others:
        del node.store.claim  # type: ignore[attr-defined]
    await cluster.passes(20 * TERM_MS)
    assert not drained.owns()
    assert frozenset().union(*(node.owns() for node in others)) == ALL


async def test_a_node_that_is_alone_leaves_nothing_to_others(cluster: Cluster) -> None:
    (node,) = await cluster.start(1)
    node.store.claim = busy  # type: ignore[attr-defined]
    await all_lapse(cluster)
    await cluster.passes(3 * TERM_MS)
    assert not node.membership.topology.nodes[1].drained
    assert node.membership.why_short(()) == "it cannot claim 100 shards that no broker has"
    del node.store.claim  # type: ignore[attr-defined]
    await cluster.passes(300)
    assert node.serves() == ALL


async def busy(*_: object, **__: object) -> None:
    raise StoreBusy("too many connections")


async def cannot(*_: object) -> None:
    raise StoreError("the store cannot be reached")


async def test_a_lease_whose_state_was_lost_is_claimed_under_a_new_epoch(cluster: Cluster) -> None:
    (node,) = await cluster.start(1)
    lease = Lease(LeaseKind.GROUP, 7)
    node.membership.reclaim(lease, 1)
    assert not node.membership.serving(lease)
    assert node.membership.reclaiming == {lease}
    await until(lambda: node.epoch(lease) == 2, "the new epoch")
    assert not node.membership.reclaiming
    node.membership.reclaim(lease, 1)  # Refers to the old epoch; the current one stays.
    await turns()
    assert node.epoch(lease) == 2
    assert node.membership.epoch(lease) == 2


async def test_a_lost_lease_is_not_waited_for_once_another_node_has_it(cluster: Cluster) -> None:
    (node,) = await cluster.start(1)
    lease = Lease(LeaseKind.GROUP, 7)
    cluster.store.takes_claims.clear()
    node.membership.reclaim(lease, 1)
    await cluster.store.release([Grant(lease, 1, 1, 0)])
    await MemoryStore.claim(cluster.store, [lease], 2, TERM_MS)
    assert node.membership.reclaiming == {lease}
    cluster.store.takes_claims.set()
    await until(lambda: not node.membership.reclaiming, "the other node's claim to be seen")
    assert not node.membership.serving(lease)


@pytest.mark.parametrize("end", ["stop", "supersede"])
async def test_a_node_that_serves_nothing_any_more_claims_nothing_again(cluster: Cluster, end: str) -> None:
    (node,) = await cluster.start(1)
    lease = Lease(LeaseKind.GROUP, 7)
    node.membership.reclaim(lease, 1)
    if end == "stop":
        await node.membership.stop()
    else:
        node.membership._supersede(NodeIdTaken(node.row, TERM_MS))
    assert not node.membership.reclaiming


async def test_every_node_knows_who_leads_what(cluster: Cluster) -> None:
    first, second, third = await cluster.start(1, 2, 3)
    await turns()
    topology = third.membership.topology
    assert topology.controller_id == 1
    assert {node.port for node in topology.nodes.values()} == {9093, 9094, 9095}
    for group_id in ("orders", "payments", "a", "b", "c"):
        lease = topology.group_lease(group_id)
        (coordinator,) = (node for node in (first, second, third) if lease in node.owns())
        assert topology.coordinator(group_id) == topology.nodes[coordinator.node_id]
    topic_id = topology.cluster_id
    for partition in range(10):
        lease = topology.data_lease(topic_id, partition)
        (leader,) = (node for node in (first, second, third) if lease in node.owns())
        assert topology.leader(topic_id, partition) == (leader.node_id, leader.epoch(lease))


async def test_a_dead_nodes_shards_have_no_leader_until_they_are_claimed(cluster: Cluster) -> None:
    (node,) = await cluster.start(1)
    told: list[int] = []
    node.membership.changed.append(lambda: told.append(len(node.membership.topology.nodes)))
    other = cluster.nodes[2] = Node(2, cluster.store, cluster.clock)
    await other.start()
    other.membership.kill()
    await turns()
    assert told[-1] == 2
    lease = sorted(share(2, 1, 2) - other.owns())[0]
    await until(lambda: lease not in node.owns(), "the handover to the dead node")
    await turns()
    assert lease not in node.membership.topology.holders
    topic_id = node.membership.topology.cluster_id
    partition = next(p for p in range(50) if node.membership.topology.data_lease(topic_id, p) == lease)
    assert node.membership.topology.leader(topic_id, partition) == (-1, -1)
    await cluster.passes(TERM_MS + 100)
    assert node.membership.topology.leader(topic_id, partition).node_id == 1


async def test_leases_of_a_node_that_is_gone_have_no_leader(cluster: Cluster) -> None:
    first, second = await cluster.start(1, 2)
    topology = first.membership.topology
    theirs = [f"g-{n}" for n in range(100) if topology.group_lease(f"g-{n}") in second.owns()]
    second.membership.kill()
    await cluster.store.remove_node(2, cluster.nodes[2].row.incarnation)
    await turns()
    assert first.membership.topology.coordinator(theirs[0]) is None
    assert first.membership.topology.controller_id == 1


async def test_kinds_without_a_holder_are_left_alone(cluster: Cluster) -> None:
    node = cluster.nodes[1] = Node(1, cluster.store, cluster.clock)
    del node.holders[LeaseKind.DATA]
    await node.start()
    assert {lease.kind for lease in node.serves()} == {LeaseKind.GROUP}


async def test_stopping_twice_or_without_a_start_is_harmless(cluster: Cluster) -> None:
    (node,) = await cluster.start(1)
    await node.membership.stop()
    await node.membership.stop()
    node.membership.kill()
    unstarted = Node(2, cluster.store, cluster.clock)
    await unstarted.membership.stop()
    unstarted.membership.kill()
    with pytest.raises(RuntimeError, match="not been started"):
        _ = unstarted.membership.topology

"""Leases on the move: a few at a time when there is no hurry, all at once when a node has died, and never for
longer than necessary."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from muster.coordinator.cluster.membership import CLAIMS_MAX, MOVES_AT_ONCE
from muster.coordinator.storage.store import (
    Grant,
    Lease,
    LeaseKind,
    StoreBusy,
    StoreDamaged,
    StoreError,
    StoreRefused,
)
from tests.cluster.support import ALL, KINDS, MARGIN_MS, TERM_MS, Cluster, Node, share
from tests.support.facts import turns, until


def slow_to_load(cluster: Cluster, node_id: int) -> Node:
    """A node that loads leases of any kind only when the test says so."""
    node = cluster.nodes[node_id] = Node(node_id, cluster.store, cluster.clock)
    for holder in node.holders.values():
        holder.loads_at_once = False
    return node


async def test_a_node_that_comes_gets_more_when_it_is_ready_with_the_first(
    cluster: Cluster,
) -> None:
    (first,) = await cluster.start(1)
    newcomer = slow_to_load(cluster, 2)
    await newcomer.start()
    moved = share(2, 1, 2)
    rounds = 0
    while first.owns() & moved:
        await until(lambda: any(holder.loading for holder in newcomer.holders.values()), "loads")
        await turns()
        assert len(ALL - first.owns() - newcomer.names().keys()) <= MOVES_AT_ONCE
        for holder in newcomer.holders.values():
            holder.load_all()
        rounds += 1
    assert rounds >= len(moved) // MOVES_AT_ONCE
    for holder in newcomer.holders.values():
        holder.load_all()
    await until(lambda: cluster.agree(1, 2), "the placement")


async def test_a_node_that_cannot_load_does_not_stop_the_movement_for_ever(
    cluster: Cluster,
) -> None:
    (first,) = await cluster.start(1)
    newcomer = slow_to_load(cluster, 2)
    await newcomer.start()
    await turns(200)
    assert len(ALL - first.owns()) == MOVES_AT_ONCE
    await cluster.passes(TERM_MS + 100)
    assert len(ALL - first.owns()) == 2 * MOVES_AT_ONCE


async def test_a_node_that_comes_and_dies_at_once_costs_a_few_leases_for_a_term(cluster: Cluster) -> None:
    (first,) = await cluster.start(1)
    newcomer = slow_to_load(cluster, 2)
    await newcomer.start()
    await until(lambda: any(holder.loading for holder in newcomer.holders.values()), "loads")
    newcomer.membership.kill()
    await cluster.passes(TERM_MS // 2)
    assert len(ALL - first.owns()) == MOVES_AT_ONCE
    await cluster.passes(TERM_MS)
    assert cluster.agree(1)


async def test_all_leases_of_the_dead_are_taken_at_once_in_calls_of_a_bounded_size(cluster: Cluster) -> None:
    first, second = await cluster.start(1, 2)
    assert len(second.owns()) > CLAIMS_MAX
    second.membership.kill()
    await cluster.passes(TERM_MS - 100)
    assert first.owns() == share(1, 1, 2)
    cluster.store.claims.clear()
    cluster.clock.advance(100)
    await until(lambda: cluster.agree(1), "the takeover, without any more time passing")
    assert sum(cluster.store.claims) == len(share(2, 1, 2))
    assert max(cluster.store.claims) == CLAIMS_MAX


async def test_what_was_refused_is_asked_for_again_soon(cluster: Cluster) -> None:
    """The store may refuse a free lease while a dead node still holds a lock on it."""
    (node,) = await cluster.start(1)
    lease = Lease(LeaseKind.GROUP, 7)
    claim, refused = cluster.store.claim, list[Lease]()

    async def refuse(
        leases: list[Lease], node_id: int, term_ms: int, *, incarnation: UUID | None = None
    ) -> list[Grant | None]:
        others = [each for each in leases if each != lease]
        granted = await claim(others, node_id, term_ms, incarnation=incarnation)
        refused.append(lease)
        return [*granted, None]

    cluster.store.claim = refuse  # type: ignore[method-assign,assignment]
    node.store.__dict__.pop("claim", None)  # it caches the method
    node.membership.reclaim(lease, 1)
    await turns()
    assert (node.epoch(lease), refused) == (1, [lease])
    cluster.store.claim = claim  # type: ignore[method-assign]
    node.store.__dict__.pop("claim", None)
    await cluster.passes(TERM_MS // 15 + 100)
    assert node.epoch(lease) == 2
    assert node.serves() == ALL


async def test_a_lease_whose_state_was_lost_on_its_way_elsewhere_is_released(cluster: Cluster) -> None:
    """Nobody serves it, so its new holder must not wait until it runs out."""
    first, _ = await cluster.start(1, 2)
    lease = sorted(first.owns())[0]
    await cluster.nodes[2].membership.stop()
    await until(lambda: cluster.agree(1), "everything at the first")
    taken = sorted(share(2, 1, 2))[0]
    again = cluster.nodes[2] = Node(2, cluster.store, cluster.clock)
    first.holders[taken.kind].may_rest.set()
    await again.membership.register(again.row)
    first.membership.reclaim(taken, first.epoch(taken) or 0)
    await again.start()
    await until(lambda: cluster.agree(1, 2), "the placement, without any time passing")
    assert lease in first.owns()


# --- leaving ----------------------------------------------------------------------------------------


async def test_who_leaves_serves_what_it_has_not_handed_over_yet(cluster: Cluster) -> None:
    first, second = await cluster.start(1, 2)
    for holder in first.holders.values():
        holder.loads_at_once = False
    stopping = asyncio.ensure_future(second.membership.stop())
    had = len(second.owns())
    while second.owns():
        await until(lambda: any(holder.loading for holder in first.holders.values()), "loads")
        await turns()
        assert second.serves() == second.owns()
        assert len(ALL - first.names().keys() - second.serves()) <= MOVES_AT_ONCE
        for holder in first.holders.values():
            holder.load_all()
        await turns()
    for holder in first.holders.values():
        holder.load_all()
    await stopping
    await until(lambda: cluster.agree(1), "the handover")
    assert len(cluster.store.releases) <= had // 2  # many in one call


async def test_who_leaves_renews_what_it_still_has(cluster: Cluster) -> None:
    first, second = await cluster.start(1, 2)
    for holder in first.holders.values():
        holder.loads_at_once = False
    stopping = asyncio.ensure_future(second.membership.stop())
    await cluster.passes(TERM_MS - MARGIN_MS)
    assert second.serves() == second.owns() != set()
    await cluster.passes(2 * TERM_MS)  # nobody takes anything: the rest is released at once
    assert second.owns() == set()
    await stopping


async def test_who_leaves_hands_over_nothing_to_one_that_seems_dead(cluster: Cluster) -> None:
    """Whatever it got would be unavailable until its term ends, and the leaving node would have to wait that
    long."""
    await cluster.start(1, 2, 3)
    await cluster.passes(TERM_MS // 3)
    cluster.nodes[3].membership.kill()
    await cluster.passes(2 * TERM_MS // 3)
    await cluster.nodes[2].membership.stop()  # without any time passing
    assert set(cluster.nodes[1].names()) >= share(2, 1, 2, 3) & share(1, 1, 3)
    await cluster.passes(TERM_MS)
    assert cluster.agree(1)


async def test_all_may_leave_at_the_same_time(cluster: Cluster) -> None:
    nodes = await cluster.start(1, 2, 3)
    await asyncio.gather(*(node.membership.stop() for node in nodes))
    assert all(node.owns() == set() for node in nodes)
    for kind in KINDS:
        assert await cluster.store.holders(kind) == {}
    assert await cluster.store.nodes() == []


@pytest.mark.parametrize("failing", ["holders", "nodes", "register_node", "remove_node"])
async def test_one_failure_of_the_store_does_not_end_a_handover(cluster: Cluster, failing: str) -> None:
    _, second = await cluster.start(1, 2)
    failed = fails_once(second, failing)
    stopping = asyncio.ensure_future(second.membership.stop())
    await until(failed.is_set, "the failure")
    await turns()
    cluster.clock.advance(TERM_MS // 15)
    await until(stopping.done, "the end")
    await stopping
    await until(lambda: cluster.agree(1), "the handover, without any more time passing")
    assert [node.node_id for node in await cluster.store.nodes()] == [1]


async def test_who_leaves_while_the_store_is_away_waits_no_longer_than_its_term(cluster: Cluster) -> None:
    _, second = await cluster.start(1, 2)
    for name in ("holders", "register_node"):
        setattr(second.store, name, cannot)
    stopping = asyncio.ensure_future(second.membership.stop())
    await cluster.passes(TERM_MS - MARGIN_MS - 100)
    assert not stopping.done()
    await cluster.passes(TERM_MS // 15 + 200)
    assert stopping.done()
    with pytest.raises(StoreError, match="cannot be reached"):
        await stopping


async def test_who_cannot_read_who_is_there_leaves_within_a_term(cluster: Cluster) -> None:
    _, second = await cluster.start(1, 2)
    second.store.holders = cannot  # but registrations and leases are renewed
    stopping = asyncio.ensure_future(second.membership.stop())
    await cluster.passes(TERM_MS - 100)
    assert not stopping.done()
    await cluster.passes(TERM_MS // 15 + 200)
    assert stopping.done()
    with pytest.raises(StoreError, match="cannot be reached"):
        await stopping


@pytest.mark.parametrize("error", [StoreDamaged("a row cannot be read"), StoreRefused("it is too large")])
async def test_who_leaves_repeats_nothing_that_will_fail_again(cluster: Cluster, error: StoreError) -> None:
    _, second = await cluster.start(1, 2)

    async def fail(*_: object) -> None:
        raise error

    second.store.holders = fail
    stopping = asyncio.ensure_future(second.membership.stop())
    await until(stopping.done, "the end, without any time passing")
    with pytest.raises(type(error), match=str(error)):
        await stopping


@pytest.mark.parametrize("failing", [None, "remove_node"])
async def test_who_leaves_before_it_has_started_is_no_longer_known(
    cluster: Cluster, failing: str | None
) -> None:
    node = Node(1, cluster.store, cluster.clock)
    await node.membership.register(node.row)
    failed = fails_once(node, failing) if failing else None
    stopping = asyncio.ensure_future(node.membership.stop())
    if failed is not None:
        await until(failed.is_set, "the failure")
        await turns()
        cluster.clock.advance(TERM_MS // 15)
    await until(stopping.done, "the end")
    await stopping
    assert await cluster.store.nodes() == []
    await node.membership.stop()


# --- drained ----------------------------------------------------------------------------------------


async def test_a_drained_node_hands_over_and_stays_known(cluster: Cluster) -> None:
    first, second = await cluster.start(1, 2)
    first.membership.set_drained(True)
    await until(lambda: second.serves() == set(second.names()) == ALL, "the handover")
    assert first.owns() == set()
    topology = second.membership.topology
    assert topology.nodes.keys() == {1, 2}
    assert topology.nodes[1].drained
    assert topology.controller_id == 2
    await cluster.passes(2 * TERM_MS)
    assert first.owns() == set()
    first.membership.set_drained(False)
    await until(lambda: cluster.agree(1, 2), "the return")


async def test_a_node_may_be_drained_before_it_starts(cluster: Cluster) -> None:
    (first,) = await cluster.start(1)
    second = cluster.nodes[2] = Node(2, cluster.store, cluster.clock)
    second.membership.set_drained(True)
    await second.start()
    await turns()
    assert second.owns() == set()
    assert first.serves() == ALL
    assert set(first.holders[LeaseKind.GROUP].epochs.values()) == {1}


async def test_where_all_are_drained_they_serve(cluster: Cluster) -> None:
    first, second = await cluster.start(1, 2)
    first.membership.set_drained(True)
    await until(lambda: second.serves() == ALL, "the handover")
    second.membership.set_drained(True)
    await until(lambda: cluster.agree(1, 2), "the placement as if nobody was drained")
    await second.membership.stop()
    await until(lambda: cluster.agree(1), "the handover to a drained one")


# --- the store is away ------------------------------------------------------------------------------


async def test_a_store_that_is_away_for_less_than_the_term_costs_nothing(cluster: Cluster) -> None:
    """Whenever that begins: a failed renewal is retried soon, not a third of the term later."""
    (node,) = await cluster.start(1)
    for begins_ms in range(0, 1_000, 200):
        await cluster.passes(begins_ms)
        cluster.store.broken = True
        await cluster.passes(TERM_MS - MARGIN_MS - TERM_MS // 3 - 2 * (TERM_MS // 15))
        cluster.store.broken = False
        await cluster.passes(TERM_MS)
        assert node.serves() == ALL
    assert {node.epoch(lease) for lease in ALL} == {1}


async def test_a_store_that_is_away_for_longer_ends_all_service_until_it_is_back(
    cluster: Cluster,
) -> None:
    nodes = await cluster.start(1, 2, 3)
    cluster.store.broken = True
    await cluster.passes(TERM_MS)
    assert not any(node.serves() or node.owns() for node in nodes)
    await cluster.passes(10 * TERM_MS)
    cluster.store.broken = False
    await cluster.passes(2 * (TERM_MS // 15) + 100)
    assert cluster.agree(1, 2, 3)
    assert cluster.is_placed(1, 2, 3)


async def test_a_claim_that_takes_long_costs_no_lease(cluster: Cluster) -> None:
    first, second = await cluster.start(1, 2)
    before = first.owns()
    cluster.store.answers_claims.clear()
    second.membership.kill()
    await cluster.passes(5 * TERM_MS)
    assert first.serves() == before
    assert {first.epoch(lease) for lease in before} == {1}
    cluster.store.answers_claims.set()
    await cluster.passes(2 * TERM_MS)
    assert first.serves() == ALL


async def test_a_node_is_cut_off_when_it_cannot_register_and_others_are_known(cluster: Cluster) -> None:
    first, second = await cluster.start(1, 2)
    second.store.register_node = cannot  # type: ignore[attr-defined]
    await cluster.passes(TERM_MS - MARGIN_MS - 100)
    assert not second.membership.cut_off
    await cluster.passes(500)
    assert second.membership.cut_off
    assert not first.membership.cut_off
    del second.store.register_node  # type: ignore[attr-defined]
    await cluster.passes(TERM_MS)
    assert not second.membership.cut_off
    assert cluster.agree(1, 2)


async def test_a_node_that_stood_still_is_not_cut_off(cluster: Cluster) -> None:
    _, second = await cluster.start(1, 2)
    cut_off: list[bool] = []
    second.membership.changed.append(lambda: cut_off.append(second.membership.cut_off))
    second.pause()
    await cluster.passes(2 * TERM_MS)
    second.resume()
    await until(lambda: cluster.agree(1, 2), "the return")
    assert not any(cut_off)


async def cannot(*_: object) -> None:
    raise StoreError("the store cannot be reached")


def fails_once(node: Node, name: str) -> asyncio.Event:
    """Let the node's next call of this name fail; the event is set when it has."""
    call, failed = getattr(node.store, name), asyncio.Event()

    async def fail(*_: object) -> None:
        setattr(node.store, name, call)
        failed.set()
        raise StoreBusy("the connection was reset")

    setattr(node.store, name, fail)
    return failed

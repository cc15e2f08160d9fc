"""The contract of claim, renew, release and holders: who holds a lease, by the store's own clock."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from uuid import uuid4

import pytest

from muster.coordinator.storage.store import (
    Append,
    Grant,
    Lease,
    LeaseKind,
    NodeRow,
    Outcome,
    Store,
    StoreConflict,
)
from muster.realtime import RealTime
from tests.storage.conftest import LEASE_COUNTS, Backend, StoreClock

A, B, C = (Lease(LeaseKind.GROUP, number) for number in range(3))
TERM_MS = 10_000


async def test_a_free_lease_is_granted_with_its_whole_term(store: Store) -> None:
    assert await store.claim([A], 1, TERM_MS) == [Grant(A, 1, 1, TERM_MS)]


async def test_anothers_lease_is_not_granted_and_keeps_its_epoch(store: Store) -> None:
    (first,) = await store.claim([A], 1, TERM_MS)
    assert await store.claim([A], 2, TERM_MS) == [None]
    assert await store.holders(LeaseKind.GROUP) == {0: first}
    assert await store.append([Append(A, 1, [])]) == [Outcome.WRITTEN]


async def test_a_claim_is_granted_lease_by_lease(store: Store) -> None:
    await store.claim([B], 2, TERM_MS)
    grants = await store.claim([A, B, C], 1, TERM_MS)
    assert grants == [Grant(A, 1, 1, TERM_MS), None, Grant(C, 1, 1, TERM_MS)]


async def test_claiming_ones_own_lease_raises_the_epoch(store: Store) -> None:
    await store.claim([A], 1, TERM_MS)
    assert await store.claim([A], 1, TERM_MS) == [Grant(A, 1, 2, TERM_MS)]
    assert await store.append([Append(A, 1, [])]) == [Outcome.FENCED]


async def test_only_the_registered_incarnation_is_granted_anything(store: Store, clock: StoreClock) -> None:
    old = NodeRow(1, "127.0.0.1", 9092, None, TERM_MS, uuid4())
    new = replace(old, incarnation=uuid4())
    assert await store.claim([A], 1, TERM_MS, incarnation=old.incarnation) == [None]
    await store.register_node(old)
    assert await store.claim([A], 1, TERM_MS, incarnation=old.incarnation) == [Grant(A, 1, 1, TERM_MS)]
    clock.advance(TERM_MS)
    assert await store.claim([A], 1, TERM_MS, incarnation=old.incarnation) == [Grant(A, 1, 2, TERM_MS)]
    await store.register_node(new)
    assert await store.claim([A], 1, TERM_MS, incarnation=new.incarnation) == [Grant(A, 1, 3, TERM_MS)]
    assert await store.claim([A, B], 1, TERM_MS, incarnation=old.incarnation) == [None, None]
    assert await store.append([Append(A, 3, [])]) == [Outcome.WRITTEN]
    await store.remove_node(1, new.incarnation)
    assert await store.claim([A], 1, TERM_MS, incarnation=new.incarnation) == [None]


async def test_a_lease_runs_out_at_its_term_and_not_before(store: Store, clock: StoreClock) -> None:
    await store.claim([A], 1, TERM_MS)
    clock.advance(TERM_MS - 1)
    assert await store.claim([A], 2, TERM_MS) == [None]
    clock.advance(1)
    assert await store.holders(LeaseKind.GROUP) == {}
    assert await store.claim([A], 2, TERM_MS) == [Grant(A, 2, 2, TERM_MS)]


async def test_renewing_counts_the_term_anew(store: Store, clock: StoreClock) -> None:
    grants = [grant for grant in await store.claim([A, B], 1, TERM_MS) if grant]
    clock.advance(TERM_MS - 1)
    assert await store.renew(grants, TERM_MS * 2) == [TERM_MS * 2, TERM_MS * 2]
    clock.advance(TERM_MS)
    assert await store.holders(LeaseKind.GROUP) == {0: Grant(A, 1, 1, TERM_MS), 1: Grant(B, 1, 1, TERM_MS)}
    assert await store.claim([A], 2, TERM_MS) == [None]


async def test_a_lease_that_was_claimed_by_another_cannot_be_renewed(store: Store, clock: StoreClock) -> None:
    (lost,) = await store.claim([A], 1, TERM_MS)
    (kept,) = await store.claim([B], 1, TERM_MS * 3)
    assert lost
    assert kept
    clock.advance(TERM_MS)
    (taken,) = await store.claim([A], 2, TERM_MS)
    assert await store.renew([lost, kept], TERM_MS) == [None, TERM_MS]
    assert await store.holders(LeaseKind.GROUP) == {0: taken, 1: Grant(B, 1, 1, TERM_MS)}


async def test_an_earlier_grant_of_the_same_node_cannot_be_renewed(store: Store) -> None:
    (first,) = await store.claim([A], 1, TERM_MS)
    (second,) = await store.claim([A], 1, TERM_MS)
    assert first
    assert second
    assert await store.renew([first, second], TERM_MS) == [None, TERM_MS]


async def test_a_lease_that_ran_out_unclaimed_can_still_be_renewed(store: Store, clock: StoreClock) -> None:
    (grant,) = await store.claim([A], 1, TERM_MS)
    assert grant
    clock.advance(TERM_MS * 5)
    assert await store.renew([grant], TERM_MS) == [TERM_MS]
    assert await store.claim([A], 2, TERM_MS) == [None]


async def test_a_released_lease_is_free_and_keeps_its_epoch(store: Store) -> None:
    (grant,) = await store.claim([A], 1, TERM_MS)
    assert grant
    await store.release([grant])
    assert await store.holders(LeaseKind.GROUP) == {}
    assert await store.renew([grant], TERM_MS) == [None]
    assert await store.append([Append(A, grant.epoch, [(b"a", b"1")])]) == [Outcome.WRITTEN]
    assert await store.claim([A], 2, TERM_MS) == [Grant(A, 2, 2, TERM_MS)]
    assert await store.append([Append(A, grant.epoch, [(b"a", b"2")])]) == [Outcome.FENCED]


async def test_releasing_what_was_lost_does_nothing(store: Store) -> None:
    (old,) = await store.claim([A], 1, TERM_MS)
    assert old
    await store.release([old])
    (new,) = await store.claim([A], 2, TERM_MS)
    await store.release([old])
    await store.release([])
    assert await store.holders(LeaseKind.GROUP) == {0: new}


async def test_a_grant_is_announced_until_it_is_claimed_anew(store: Store, clock: StoreClock) -> None:
    first, second = await store.claim([A, B], 1, TERM_MS)
    assert first
    assert second
    told: list[None] = []
    store.changed.append(lambda: told.append(None))
    before = await store.revision()
    await store.announce([first])
    announced = first._replace(announced=True)
    assert await store.holders(LeaseKind.GROUP) == {0: announced, 1: second}
    assert await store.revision() > before
    assert told
    clock.advance(1_000)
    assert await store.renew([announced, second], TERM_MS) == [TERM_MS, TERM_MS]
    assert await store.holders(LeaseKind.GROUP) == {0: announced, 1: second}
    before = await store.revision()
    told.clear()
    await store.announce([first])
    await store.announce([])
    assert await store.revision() == before, "it was announced already"
    assert told == []
    (anew,) = await store.claim([A], 1, TERM_MS)
    assert anew == Grant(A, 1, 2, TERM_MS)
    await store.announce([first, second])
    assert await store.holders(LeaseKind.GROUP) == {0: anew, 1: second._replace(announced=True)}


async def test_announcing_what_was_lost_does_nothing(store: Store) -> None:
    (old,) = await store.claim([A], 1, TERM_MS)
    assert old
    await store.release([old])
    await store.announce([old])
    assert await store.holders(LeaseKind.GROUP) == {}
    (new,) = await store.claim([A], 2, TERM_MS)
    await store.announce([old])
    assert await store.holders(LeaseKind.GROUP) == {0: new}


async def test_holders_are_told_by_kind(store: Store, clock: StoreClock) -> None:
    data = Lease(LeaseKind.DATA, 2)
    await store.claim([A, data], 1, TERM_MS)
    await store.claim([C], 2, TERM_MS)
    clock.advance(4_000)
    left_ms = TERM_MS - 4_000
    assert await store.holders(LeaseKind.GROUP) == {0: Grant(A, 1, 1, left_ms), 2: Grant(C, 2, 1, left_ms)}
    assert await store.holders(LeaseKind.DATA) == {2: Grant(data, 1, 1, left_ms)}


async def test_of_concurrent_claimers_each_lease_has_one(store: Store) -> None:
    leases = [Lease(LeaseKind.GROUP, number) for number in range(LEASE_COUNTS[LeaseKind.GROUP])]
    claims = await asyncio.gather(
        *(
            store.claim(leases if node_id % 2 else leases[::-1], node_id, TERM_MS)
            for node_id in range(1, 9)
            for _ in (1, 2)
        )
    )
    holders = await store.holders(LeaseKind.GROUP)
    assert sorted(holders) == [lease.number for lease in leases]
    granted = [grant for grants in claims for grant in grants if grant is not None]
    for lease in leases:
        of_lease = [grant for grant in granted if grant.lease == lease]
        assert {grant.node_id for grant in of_lease} == {holders[lease.number].node_id}
        assert [grant.epoch for grant in of_lease] == [1, 2], "no epoch is granted twice"


async def test_epochs_survive_a_reopen(backend: Backend, store: Store, clock: StoreClock) -> None:
    await store.claim([A], 1, TERM_MS)
    await store.claim([A], 1, TERM_MS)
    await store.close()
    again = backend.store()
    await again.open()
    clock.advance(TERM_MS)
    assert await again.append([Append(A, 1, [])]) == [Outcome.FENCED]
    assert await again.append([Append(A, 2, [])]) == [Outcome.WRITTEN]
    assert await again.claim([A], 2, TERM_MS) == [Grant(A, 2, 3, TERM_MS)]
    await again.close()


async def test_a_claim_that_names_an_unknown_lease_takes_none(store: Store) -> None:
    with pytest.raises(StoreConflict, match="no lease group 77"):
        await store.claim([A, Lease(LeaseKind.GROUP, 77)], 1, TERM_MS)
    assert await store.holders(LeaseKind.GROUP) == {}
    assert await store.claim([A], 1, TERM_MS) == [Grant(A, 1, 1, TERM_MS)]


@pytest.mark.parametrize("step_s", [3_600, -3_600])
async def test_terms_do_not_follow_the_wall_clock(
    store_with_its_own_clock: Store, step_s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It jumps forward after a suspend, and back with ntp: the first must not end every term, nor the second
    withhold a dead node's leases for an hour."""
    store, term_ms = store_with_its_own_clock, 600_000
    grants = await store.claim([A], 1, term_ms)
    await store.register_node(NodeRow(1, "127.0.0.1", 9092, None, term_ms, uuid4()))
    wall, wall_ns = time.time, time.time_ns
    for clocks in (time, RealTime):
        monkeypatch.setattr(clocks, "time", lambda: wall() + step_s)
        monkeypatch.setattr(clocks, "time_ns", lambda: wall_ns() + step_s * 10**9)
    (held,) = (await store.holders(LeaseKind.GROUP)).values()
    assert 0 < held.remaining_ms <= term_ms
    assert [(held.node_id, held.epoch)] == [(grant.node_id, grant.epoch) for grant in grants if grant]
    assert [node.node_id for node in await store.nodes()] == [1]
    assert await store.claim([A], 2, term_ms) == [None]

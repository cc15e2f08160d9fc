"""Time that passes for some holders only, in stores that live in one process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from muster.coordinator.storage.memory import MemoryStore
from muster.coordinator.storage.postgres import PostgresStore
from muster.coordinator.storage.sqlite import SqliteStore
from muster.coordinator.storage.store import Ageing, Lease, LeaseKind, NodeIdTaken, NodeRow
from tests.storage.conftest import LEASE_COUNTS, StoreClock

A, B = (Lease(LeaseKind.GROUP, number) for number in range(2))
TERM_MS = 10_000
DEAD, LIVE = NodeRow(1, "h", 1, None, TERM_MS, UUID(int=1)), NodeRow(2, "h", 2, None, TERM_MS, UUID(int=2))
SPARED = {LIVE.node_id}

AgeingStore = MemoryStore | SqliteStore


@pytest.fixture(params=["memory", "sqlite"])
async def store(
    request: pytest.FixtureRequest, tmp_path: Path, clock: StoreClock
) -> AsyncIterator[AgeingStore]:
    store: AgeingStore
    if request.param == "memory":
        store = MemoryStore(now_ms=clock, lease_counts=LEASE_COUNTS)
    else:
        store = SqliteStore(tmp_path, now_ms=clock, lease_counts=LEASE_COUNTS)
    await store.open()
    await store.register_node(DEAD)
    await store.register_node(LIVE)
    await store.claim([A], DEAD.node_id, TERM_MS)
    await store.claim([B], LIVE.node_id, TERM_MS)
    yield store
    await store.close()


async def test_it_passes_for_all_but_the_spared(store: AgeingStore, clock: StoreClock) -> None:
    clock.advance(1_000)
    assert store.runs_out_in(SPARED) == 9_000
    store.let_pass(8_999, SPARED)
    assert store.runs_out_in(SPARED) == 1
    assert {number: grant.remaining_ms for number, grant in (await store.holders(A.kind)).items()} == {
        A.number: 1,
        B.number: 9_000,
    }
    assert [(node.node_id, node.age_ms) for node in await store.nodes()] == [(1, 9_999), (2, 1_000)]
    assert await store.claim([A], LIVE.node_id, TERM_MS) == [None]

    store.let_pass(1, SPARED)
    assert store.runs_out_in(SPARED) is None
    assert list(await store.holders(A.kind)) == [B.number]
    assert [node.node_id for node in await store.nodes()] == [LIVE.node_id]
    (grant,) = await store.claim([A], LIVE.node_id, TERM_MS)
    assert grant is not None
    assert grant.epoch == 2
    assert store.runs_out_in(()) == 9_000  # of those that were spared


async def test_the_store_tells_when_something_has_run_out(store: AgeingStore) -> None:
    told: list[str] = []
    store.changed.append(lambda: told.append("changed"))
    store.let_pass(TERM_MS - 1, SPARED)
    assert told == []
    store.let_pass(1, SPARED)
    assert told == ["changed"]
    store.let_pass(TERM_MS, SPARED)  # there is nothing left to expire
    assert told == ["changed"]


async def test_what_real_time_has_ended_in_between_is_told_of_as_well(
    store: AgeingStore, clock: StoreClock
) -> None:
    told: list[str] = []
    store.changed.append(lambda: told.append("changed"))
    store.let_pass(TERM_MS - 1, SPARED)
    clock.advance(1)
    assert store.runs_out_in(SPARED) == 0  # time must not move on before it is told
    store.let_pass(0, SPARED)
    assert told == ["changed"]
    assert store.runs_out_in(SPARED) is None
    store.let_pass(0, SPARED)
    assert told == ["changed"]


async def test_who_renews_after_all_begins_a_new_term(store: AgeingStore) -> None:
    store.let_pass(TERM_MS // 2, SPARED)
    await store.register_node(DEAD)
    grants = [grant for grant in (await store.holders(A.kind)).values() if grant.lease == A]
    assert await store.renew(grants, TERM_MS) == [TERM_MS]
    assert store.runs_out_in(SPARED) == TERM_MS


async def test_another_may_take_the_id_of_a_node_whose_time_has_passed(store: AgeingStore) -> None:
    another = replace(DEAD, incarnation=UUID(int=3))
    with pytest.raises(NodeIdTaken):
        await store.register_node(another)
    store.let_pass(TERM_MS, SPARED)
    await store.register_node(another)


def test_a_database_has_nothing_of_the_kind(store: AgeingStore) -> None:
    assert isinstance(store, Ageing)
    assert not isinstance(PostgresStore("postgresql://nobody@localhost/none"), Ageing)

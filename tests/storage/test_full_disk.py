"""A full disk: what was not written is known not to be, and leases are still kept."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID

import pytest

from muster.coordinator.storage.sqlite import SqliteStore
from muster.coordinator.storage.sqlite.reserve import Reserve
from muster.coordinator.storage.store import (
    Append,
    Grant,
    Lease,
    LeaseKind,
    NodeRow,
    Outcome,
    StoreFull,
    TopicRow,
)
from tests.storage.conftest import StoreClock
from tests.support.sqlite_room import limit_room, make_room, take_all_room

LEASE, FREE = Lease(LeaseKind.GROUP, 0), Lease(LeaseKind.GROUP, 1)
TERM_MS = 10_000
NODE = NodeRow(1, "127.0.0.1", 9092, None, TERM_MS, UUID(int=11))
LARGE = bytes(100_000)


@pytest.fixture
async def store(tmp_path: Path, clock: StoreClock) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(tmp_path, now_ms=clock)
    await store.open()
    yield store
    await store.close()


@pytest.fixture
async def grant(store: SqliteStore) -> Grant:
    """A grant of `LEASE` to node 1, with one record written and no room for more."""
    (grant,) = await store.claim([LEASE], 1, TERM_MS)
    assert grant is not None
    await store.register_node(NODE)
    assert await append(store, grant, b"before", b"v") is Outcome.WRITTEN
    await take_all_room(store)
    return grant


async def append(store: SqliteStore, grant: Grant, key: bytes, value: bytes) -> Outcome:
    return (await store.append([Append(grant.lease, grant.epoch, [(key, value)])]))[0]


async def keys(store: SqliteStore) -> list[bytes]:
    return [key for _, key, _ in await store.load(LEASE)]


async def test_what_does_not_fit_changes_nothing_and_says_so(store: SqliteStore, grant: Grant) -> None:
    with pytest.raises(StoreFull, match=r"writing to .*store\.sqlite: .*full"):
        await append(store, grant, b"more", b"v")
    with pytest.raises(StoreFull):
        await store.create_topic(TopicRow(UUID(int=1), "t", 1))
    with pytest.raises(StoreFull):
        await store.allocate_producer_ids(10)
    assert await keys(store) == [b"before"]
    assert await store.topics() == []
    await make_room(store)
    assert await append(store, grant, b"more", b"v") is Outcome.WRITTEN
    assert await keys(store) == [b"before", b"more"]
    assert await store.allocate_producer_ids(10) == 0


async def test_what_does_not_fit_takes_nothing_along(store: SqliteStore, grant: Grant) -> None:
    await make_room(store)
    await limit_room(store)
    results = await asyncio.gather(
        append(store, grant, b"before", b"w"), append(store, grant, b"large", LARGE), return_exceptions=True
    )
    assert results[0] is Outcome.WRITTEN
    assert isinstance(results[1], StoreFull)


async def test_terms_are_renewed_and_ended_without_a_write(
    store: SqliteStore, grant: Grant, clock: StoreClock
) -> None:
    for _ in range(3):
        clock.advance(TERM_MS - 1)
        assert await store.renew([grant], TERM_MS) == [TERM_MS]
        await store.register_node(NODE)
    assert await store.holders(LeaseKind.GROUP) == {LEASE.number: grant}
    assert await store.nodes() == [NODE]
    before = await store.revision()
    await store.release([grant])
    await store.remove_node(NODE.node_id, NODE.incarnation)
    assert await store.holders(LeaseKind.GROUP) == {}
    assert await store.nodes() == []
    assert await store.revision() > before


async def test_a_claim_without_room_leaves_every_lease_as_it_was(
    store: SqliteStore, grant: Grant, clock: StoreClock
) -> None:
    told: list[None] = []
    store.changed.append(lambda: told.append(None))
    with pytest.raises(StoreFull):
        await store.claim([LEASE, FREE], 1, TERM_MS)
    assert await store.holders(LeaseKind.GROUP) == {LEASE.number: grant}
    assert await store.renew([grant], TERM_MS) == [TERM_MS]
    clock.advance(TERM_MS)
    with pytest.raises(StoreFull):
        await store.claim([LEASE], 2, TERM_MS)
    assert await store.renew([grant], TERM_MS) == [TERM_MS], "it ran out, and nobody has got it since"
    assert told == []
    await make_room(store)
    assert await store.claim([LEASE, FREE], 2, TERM_MS) == [None, Grant(FREE, 2, 1, TERM_MS)]


# --- the reserve ----------------------------------------------------------------------------------


async def test_a_reserve_is_given_up_to_its_end(tmp_path: Path, clock: StoreClock) -> None:
    reserve = Reserve(tmp_path / "store.reserve", clock)
    assert not reserve.give()
    reserve.fill()
    times = 0
    while reserve.give():
        times += 1
    assert times == 16
    assert reserve.path.stat().st_size == 0


async def test_a_used_reserve_is_filled_by_whatever_is_written_later(
    store: SqliteStore, grant: Grant, clock: StoreClock, tmp_path: Path
) -> None:
    reserve = tmp_path / "store.reserve"
    before = reserve.stat().st_size
    await make_room(store)
    await store.create_topic(TopicRow(UUID(int=1), "t", 1))
    await take_all_room(store)
    with pytest.raises(StoreFull):
        await store.delete_topic(UUID(int=1))
    assert reserve.stat().st_size == 0
    await make_room(store)
    assert await append(store, grant, b"soon", b"v") is Outcome.WRITTEN
    assert reserve.stat().st_size == 0, "what has just been given is not taken back at once"
    clock.advance(60_000)
    assert await append(store, grant, b"later", b"v") is Outcome.WRITTEN
    assert reserve.stat().st_size == before


async def test_retention_gets_half_of_the_reserve(
    store: SqliteStore, clock: StoreClock, tmp_path: Path
) -> None:
    """It asks for more at every sweep. The rest is for changes that somebody has asked for."""
    times = 0
    while store.give_to_retention():
        times += 1
    assert times == 8
    reserve = Reserve(tmp_path / "store.reserve", clock)
    assert reserve.path.stat().st_size == 512 * 1024
    assert reserve.give()
    await store.close()
    assert not store.give_to_retention()

"""What the writing connection remembers of leases: an append that relies on it finds their current state,
whoever else wrote and whatever failed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from muster.coordinator.storage.sqlite import SqliteStore
from muster.coordinator.storage.sqlite import store as sqlite
from muster.coordinator.storage.store import Append, Grant, Lease, LeaseKind, Outcome, StoreError

LEASE = Lease(LeaseKind.GROUP, 0)
OTHER = Lease(LeaseKind.GROUP, 1)
LEASES_OF_NONE = Lease(LeaseKind.GROUP, 999)


@pytest.fixture
async def stores(tmp_path: Path) -> AsyncIterator[tuple[SqliteStore, SqliteStore]]:
    """Two stores of one process on one directory."""
    stores = SqliteStore(tmp_path), SqliteStore(tmp_path)
    for store in stores:
        await store.open()
    yield stores
    for store in stores:
        await store.close()


async def claim(store: SqliteStore, lease: Lease = LEASE) -> Grant:
    (grant,) = await store.claim([lease], 1, 60_000)
    assert grant is not None
    return grant


async def append(store: SqliteStore, epoch: int, *keys: bytes, lease: Lease = LEASE) -> Outcome:
    (outcome,) = await store.append([Append(lease, epoch, [(key, b"value") for key in keys])])
    return outcome


async def seqs(store: SqliteStore, lease: Lease = LEASE) -> dict[bytes, int]:
    return {key: seq for seq, key, _ in await store.load(lease)}


async def test_an_epoch_that_another_store_has_raised_fences(stores: tuple[SqliteStore, SqliteStore]) -> None:
    first, second = stores
    grant = await claim(first)
    assert await append(first, grant.epoch, b"a") is Outcome.WRITTEN
    assert (await claim(second)).epoch == grant.epoch + 1
    assert await append(first, grant.epoch, b"b") is Outcome.FENCED
    assert await append(first, grant.epoch + 1, b"c") is Outcome.WRITTEN
    assert await seqs(first) == {b"a": 1, b"c": 2}


async def test_numbers_go_on_behind_what_another_store_has_written(
    stores: tuple[SqliteStore, SqliteStore],
) -> None:
    first, second = stores
    epoch = (await claim(first)).epoch
    for number in range(6):
        store = stores[number % 2]
        assert await append(store, epoch, b"%d" % number, b"again") is Outcome.WRITTEN
    assert await seqs(first) == {b"0": 1, b"1": 3, b"2": 5, b"3": 7, b"4": 9, b"5": 11, b"again": 12}
    assert await second.next_seq(LEASE) == 13


async def test_a_transaction_that_failed_gives_its_numbers_back(
    stores: tuple[SqliteStore, SqliteStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, _ = stores
    epoch = (await claim(store)).epoch
    assert await append(store, epoch, b"a") is Outcome.WRITTEN
    known = sqlite.statements.leases.KnownLeases
    move = known.move

    def moved_in_vain(*arguments: object) -> None:
        move(*arguments)  # type: ignore[arg-type]
        raise OSError("the disk has gone")

    with monkeypatch.context() as patched:
        patched.setattr(known, "move", moved_in_vain)
        with pytest.raises(StoreError, match="the disk has gone"):
            await append(store, epoch, b"b", b"c")
    assert await append(store, epoch, b"d") is Outcome.WRITTEN
    assert await seqs(store) == {b"a": 1, b"d": 2}


async def test_several_leases_and_several_appends_of_one_in_a_transaction(
    stores: tuple[SqliteStore, SqliteStore],
) -> None:
    store, _ = stores
    epoch, other = (await claim(store)).epoch, (await claim(store, OTHER)).epoch
    for turn in range(2):
        outcomes = await store.append(
            [
                Append(LEASE, epoch, [(b"a", b"1"), (b"b", b"1")]),
                Append(OTHER, other + 1, [(b"x", b"1")]),
                Append(LEASES_OF_NONE, 1, [(b"x", b"1")]),
                Append(OTHER, other, [(b"y", b"1")]),
                Append(LEASE, epoch, [(b"a", b"2")]),
                Append(LEASE, epoch, []),
            ]
        )
        assert outcomes == [
            Outcome.WRITTEN,
            Outcome.FENCED,
            Outcome.FENCED,
            Outcome.WRITTEN,
            Outcome.WRITTEN,
            Outcome.WRITTEN,
        ]
        assert await seqs(store) == {b"b": 3 * turn + 2, b"a": 3 * turn + 3}
        assert await seqs(store, OTHER) == {b"y": turn + 1}
    assert await store.next_seq(LEASE) == 7
    assert await store.next_seq(OTHER) == 3

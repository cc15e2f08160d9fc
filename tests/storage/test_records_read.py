"""The contract of records as a log: last values and tombstones in the order of their `seq`."""

from __future__ import annotations

import random

import pytest

from muster.coordinator.storage.store import (
    FIRST_SEQ,
    Append,
    Grant,
    Lease,
    LeaseKind,
    RecordBounds,
    Store,
    StoreClosed,
    StoreConflict,
    StoredRecord,
)
from tests.storage.conftest import Backend
from tests.storage.test_records import A, B, claim, rows, write

MUCH = 1 << 30
NOW_MS = 1_700_000_000_000


async def delete(store: Store, grant: Grant, *keys: bytes, at_ms: int = NOW_MS) -> None:
    await store.append([Append(grant.lease, grant.epoch, [(key, None) for key in keys], at_ms=at_ms)])


async def read(store: Store, lease: Lease = A, seq: int = FIRST_SEQ) -> list[StoredRecord]:
    return await store.read_records(lease, seq, rows_max=1_000_000, bytes_max=MUCH)


async def told(store: Store, lease: Lease = A, seq: int = FIRST_SEQ) -> list[tuple[bytes, bytes | None]]:
    return [(record.key, record.value) for record in await read(store, lease, seq)]


async def test_an_untouched_lease_has_none(store: Store) -> None:
    assert await read(store) == []
    assert await store.record_bounds(A) == RecordBounds(FIRST_SEQ, 0)
    assert await store.next_seq(A) == FIRST_SEQ
    grant = await claim(store, A)
    assert await store.next_seq(A) == FIRST_SEQ
    assert await store.record_bounds(A) == RecordBounds(FIRST_SEQ, 0)
    assert await store.remove_tombstones(A, grant.epoch, before_ms=NOW_MS, count_max=0) == 0


async def test_the_last_value_of_each_key_in_the_order_of_the_writes(store: Store) -> None:
    grant = await claim(store, A)
    await write(store, grant, (b"a", b"1"), (b"b", b"2"), (b"c", b"3"))
    await write(store, grant, (b"a", b"4"))
    found = await read(store)
    assert [(each.key, each.value, each.deleted_ms) for each in found] == [
        (b"b", b"2", -1),
        (b"c", b"3", -1),
        (b"a", b"4", -1),
    ]
    assert [(each.seq, each.key, each.value) for each in found] == await store.load(A)
    assert await store.record_bounds(A) == RecordBounds(found[-1].seq + 1, 6)
    assert await read(store, B) == []


async def test_a_delete_leaves_a_tombstone_with_its_time(store: Store) -> None:
    grant = await claim(store, A)
    await write(store, grant, (b"a", b"1"), (b"b", b"2"))
    end = (await store.record_bounds(A)).next_seq
    await delete(store, grant, b"a", at_ms=NOW_MS + 7)
    (tombstone,) = await read(store, A, end)
    assert (tombstone.key, tombstone.value, tombstone.deleted_ms) == (b"a", None, NOW_MS + 7)
    assert await store.record_bounds(A) == RecordBounds(tombstone.seq + 1, 3)
    assert await told(store) == [(b"b", b"2"), (b"a", None)]
    assert await rows(store, A) == [(b"b", b"2")], "who loads sees none of it"


async def test_a_reader_that_goes_on_from_where_it_was_misses_nothing(store: Store) -> None:
    """Any writes and any points to resume from, even after another holder claims the lease: the last value
    read of each key is its current one."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    grant = await claim(store, A)
    now: dict[bytes, bytes | None] = {}
    readers: list[tuple[int, dict[bytes, bytes | None]]] = [(FIRST_SEQ, {})]
    end = FIRST_SEQ
    for _ in range(120):
        if rng.random() < 0.1:
            grant = await claim(store, A)
        records = [
            (b"%d" % rng.randrange(8), None if rng.random() < 0.4 else b"%d" % rng.randrange(1_000))
            for _ in range(rng.randrange(1, 6))
        ]
        await write(store, grant, *records)
        now.update(records)
        before, end = end, await store.next_seq(A)
        assert end > before
        assert (await read(store))[-1].seq == end - 1
        assert (await store.record_bounds(A)).next_seq == end
        number = rng.randrange(len(readers))
        at, known = readers[number]
        for record in await store.read_records(A, at, rows_max=rng.randrange(1, 20), bytes_max=MUCH):
            assert record.seq >= at
            at, known[record.key] = record.seq + 1, record.value
        readers[number] = at, known
        if len(readers) < 5:
            readers.append((at, dict(known)))
    live = {key: value for key, value in now.items() if value is not None}
    for at, known in readers:
        known |= {record.key: record.value for record in await read(store, A, at)}
        assert {key: value for key, value in known.items() if value is not None} == live
    assert dict(await rows(store, A)) == live


async def test_at_most_so_many_rows_and_bytes_but_one(store: Store) -> None:
    grant = await claim(store, A)
    await write(store, grant, *((b"%d" % number, b"12345678") for number in range(6)))
    await delete(store, grant, b"0")

    async def count(rows_max: int, bytes_max: int) -> int:
        return len(await store.read_records(A, FIRST_SEQ, rows_max=rows_max, bytes_max=bytes_max))

    assert [await count(*most) for most in ((3, MUCH), (9, 18), (9, 17), (9, 0), (1, 0))] == [3, 2, 1, 1, 1]
    assert (await count(9, 46), await count(9, 45)) == (6, 5)


@pytest.mark.parametrize("length", [1_024, 1_025, 30_000])
async def test_long_keys_are_told_whole(store: Store, length: int) -> None:
    grant = await claim(store, A)
    key, other = b"k" * length, b"\xff" + b"o" * length
    await write(store, grant, (key, b"1"), (other, b"2"))
    assert await told(store) == [(key, b"1"), (other, b"2")]
    await delete(store, grant, key, other)
    assert await told(store) == [(key, None), (other, None)]


async def test_tombstones_go_by_age_and_by_number_but_not_the_newest_record(store: Store) -> None:
    grant = await claim(store, A)
    await write(store, grant, (b"live", b"1"))
    for number in range(6):
        await delete(store, grant, b"%d" % number, at_ms=NOW_MS + number)
    end = (await store.record_bounds(A)).next_seq

    async def remove(before_ms: int, count_max: int, epoch: int = grant.epoch) -> int:
        return await store.remove_tombstones(A, epoch, before_ms=before_ms, count_max=count_max)

    assert await remove(NOW_MS + 9, 0, grant.epoch - 1) == 0, "not the present epoch"
    assert await remove(NOW_MS, 6) == 0
    assert await remove(NOW_MS + 2, 9) == 2
    assert await told(store) == [(b"live", b"1"), *((b"%d" % number, None) for number in range(2, 6))]
    assert await remove(0, 3) == 1
    assert await told(store) == [(b"live", b"1"), (b"3", None), (b"4", None), (b"5", None)]
    assert await remove(NOW_MS + 100, 0) == 2
    assert await told(store) == [(b"live", b"1"), (b"5", None)], "the end does not go back"
    assert await store.next_seq(A) == end
    assert (await store.record_bounds(A)).next_seq == end
    await write(store, grant, (b"live", b"2"))
    assert await remove(NOW_MS + 100, 0) == 1
    assert await told(store) == [(b"live", b"2")]


async def test_tombstones_outlive_a_restart(backend: Backend) -> None:
    store = backend.store()
    await store.open()
    grant = await claim(store, A)
    await write(store, grant, (b"a", b"1"))
    await delete(store, grant, b"a")
    before, bounds = await read(store), await store.record_bounds(A)
    await store.close()
    store = backend.store()
    await store.open()
    assert (await read(store), await store.record_bounds(A)) == (before, bounds)
    grant = await claim(store, A)
    await write(store, grant, (b"b", b"2"))
    assert await told(store, A, bounds.next_seq) == [(b"b", b"2")]
    await store.close()


async def test_a_lease_that_is_not_there_and_a_store_that_is_closed(store: Store) -> None:
    nowhere = Lease(LeaseKind.GROUP, 1_000)
    with pytest.raises(StoreConflict):
        await read(store, nowhere)
    with pytest.raises(StoreConflict):
        await store.record_bounds(nowhere)
    with pytest.raises(StoreConflict):
        await store.next_seq(nowhere)
    with pytest.raises(StoreConflict):
        await store.remove_tombstones(nowhere, 1, before_ms=0, count_max=0)
    await store.close()
    with pytest.raises(StoreClosed):
        await read(store)
    with pytest.raises(StoreClosed):
        await store.record_bounds(A)
    with pytest.raises(StoreClosed):
        await store.next_seq(A)
    with pytest.raises(StoreClosed):
        await store.remove_tombstones(A, 1, before_ms=0, count_max=0)


async def test_ends_of_leases_that_are_written_together(store: Store) -> None:
    """Each has its own, whatever the others write in the same transaction."""
    grants = [await claim(store, lease) for lease in (A, B)]
    await store.append([Append(each.lease, each.epoch, [(b"a", b"1"), (b"b", b"1")]) for each in grants])
    await store.append(
        [
            Append(A, grants[0].epoch, [(b"a", None), (b"c", b"2"), (b"a", b"3")]),
            Append(B, grants[1].epoch - 1, [(b"late", b"2")]),
            Append(B, grants[1].epoch, [(b"a", b"2"), (b"b", None), (b"c", b"2")]),
            Append(A, grants[0].epoch, [(b"d", None)]),
        ]
    )
    for lease in (A, B):
        found = await read(store, lease)
        assert len({record.seq for record in found}) == len(found)
        assert await store.next_seq(lease) == found[-1].seq + 1

"""The contract of the journal: rows numbered without gaps, written with records, removed from the front."""

from __future__ import annotations

import asyncio
import random

import pytest

from muster.coordinator.storage.store import (
    Append,
    Grant,
    JournalBounds,
    JournalRow,
    Lease,
    LeaseKind,
    Outcome,
    Store,
    StoreClosed,
    StoreConflict,
    StoredJournalRow,
)
from tests.storage.conftest import Backend
from tests.storage.test_records import A, B, claim, rows

MUCH = 1 << 30
EMPTY = JournalBounds(0, 0, 0)


def told(number: int, *, at_ms: int | None = None) -> JournalRow:
    """A row of nine bytes."""
    return JournalRow(1_000 + number if at_ms is None else at_ms, b"%03d" % (number % 7), b"%06d" % number)


def several(first: int, behind: int) -> list[JournalRow]:
    return [told(number) for number in range(first, behind)]


async def note(store: Store, grant: Grant, *journal: JournalRow) -> Outcome:
    (outcome,) = await store.append([Append(grant.lease, grant.epoch, [], journal)])
    return outcome


async def journal(store: Store, lease: Lease, offset: int = 0) -> list[StoredJournalRow]:
    return await store.read_journal(lease, offset, rows_max=1_000_000, bytes_max=MUCH)


def stored(first_offset: int, journal: list[JournalRow]) -> list[StoredJournalRow]:
    return [StoredJournalRow(offset, *row) for offset, row in enumerate(journal, first_offset)]


async def test_an_untouched_journal_is_empty(store: Store) -> None:
    assert await store.journal_bounds(A) == EMPTY
    assert await journal(store, A) == []
    assert await store.journal_offset_at(A, 0) is None
    assert await store.journal_newest(A) is None


async def test_rows_are_numbered_from_0_without_gaps(store: Store) -> None:
    grant = await claim(store, A)
    assert await note(store, grant, *several(0, 3)) is Outcome.WRITTEN
    assert await note(store, grant) is Outcome.WRITTEN
    assert await note(store, grant, *several(3, 4)) is Outcome.WRITTEN
    assert await journal(store, A) == stored(0, several(0, 4))
    assert await store.journal_bounds(A) == JournalBounds(0, 4, 36)


@pytest.mark.parametrize("count", [2, 63, 64, 127, 128, 129, 301])
async def test_many_rows_of_one_append_are_kept_in_their_order(store: Store, count: int) -> None:
    grant = await claim(store, A)
    await note(store, grant, *several(0, count))
    await note(store, grant, *several(count, count + 2))
    assert await journal(store, A) == stored(0, several(0, count + 2))


async def test_rows_and_records_are_written_together(store: Store) -> None:
    grant = await claim(store, A)
    upserts, deletes = [(b"a", b"1"), (b"b", b"2")], [(b"a", None)]
    for records in (upserts, deletes, [(b"c", b"3"), (b"b", None)]):
        assert await store.append([Append(A, grant.epoch, records, several(0, 2))]) == [Outcome.WRITTEN]
    assert await rows(store, A) == [(b"c", b"3")]
    assert await journal(store, A) == stored(0, several(0, 2) * 3)


async def test_bytes_and_absent_keys_come_back_as_they_were(store: Store) -> None:
    grant = await claim(store, A)
    large = random.Random(7).randbytes(300_000)
    written = [
        JournalRow(0, None, b""),
        JournalRow(2**62, b"", bytes(range(256))),
        JournalRow(5, bytes(range(256)) * 200, large),
        JournalRow(-1, b"\xff", b"\x00"),
    ]
    await note(store, grant, *written)
    assert await journal(store, A) == stored(0, written)
    size_bytes = sum(len(row.key or b"") + len(row.value) for row in written)
    assert await store.journal_bounds(A) == JournalBounds(0, 4, size_bytes)


async def test_journals_of_leases_do_not_see_each_other(store: Store) -> None:
    data = Lease(LeaseKind.DATA, A.number)
    grants = [await claim(store, lease) for lease in (A, B, data)]
    await store.append(
        [Append(grant.lease, grant.epoch, [], several(n, 2 * n)) for n, grant in enumerate(grants, 1)]
    )
    await store.trim_journal(B, grants[1].epoch, 1)
    for n, (start, grant) in enumerate(zip((0, 1, 0), grants, strict=True), 1):
        assert await journal(store, grant.lease) == stored(0, several(n, 2 * n))[start:]
        assert await store.journal_bounds(grant.lease) == JournalBounds(start, n, 9 * (n - start))


async def test_one_call_may_name_a_lease_twice(store: Store) -> None:
    grant = await claim(store, A)
    appends = [Append(A, grant.epoch, [], several(0, 2)), Append(A, grant.epoch, [], several(2, 5))]
    assert await store.append(appends) == [Outcome.WRITTEN] * 2
    assert await journal(store, A) == stored(0, several(0, 5))


# --- fencing --------------------------------------------------------------------------------------


async def test_a_fenced_append_writes_no_row(store: Store) -> None:
    assert await store.append([Append(A, 1, [], several(0, 1))]) == [Outcome.FENCED]
    old, other = await claim(store, A), await claim(store, B)
    await note(store, old, *several(0, 1))
    new = await claim(store, A)
    outcomes = await store.append(
        [
            Append(A, old.epoch, [(b"a", b"old")], several(50, 60)),
            Append(B, other.epoch, [], several(0, 1)),
            Append(A, new.epoch, [], several(1, 2)),
            Append(A, new.epoch + 1, [], several(60, 70)),
            Append(Lease(LeaseKind.GROUP, 6), 1, [], several(0, 1)),
        ]
    )
    assert outcomes == [
        Outcome.FENCED,
        Outcome.WRITTEN,
        Outcome.WRITTEN,
        Outcome.FENCED,
        Outcome.FENCED,
    ]
    assert await rows(store, A) == []
    assert await journal(store, A) == stored(0, several(0, 2))
    assert await store.journal_bounds(A) == JournalBounds(0, 2, 18)
    assert await journal(store, B) == stored(0, several(0, 1))


async def test_the_next_holder_goes_on_where_the_last_one_ended(store: Store) -> None:
    for turn in range(3):
        grant = await claim(store, A, node_id=1)
        await note(store, grant, *several(10 * turn, 10 * turn + 10))
    assert await journal(store, A) == stored(0, several(0, 30))


async def test_an_old_epoch_removes_nothing(store: Store) -> None:
    old = await claim(store, A)
    await note(store, old, *several(0, 5))
    new = await claim(store, A)
    assert not await store.trim_journal(A, old.epoch, 3)
    assert not await store.trim_journal(A, new.epoch + 1, 3)
    assert await store.journal_bounds(A) == JournalBounds(0, 5, 45)
    assert await store.trim_journal(A, new.epoch, 3)
    assert await store.journal_bounds(A) == JournalBounds(3, 5, 18)
    assert not await store.trim_journal(B, 0, 3), "it was never claimed"


# --- reading --------------------------------------------------------------------------------------


async def test_reading_is_bounded_by_rows_and_by_bytes(store: Store) -> None:
    grant = await claim(store, A)
    await note(store, grant, *several(0, 20))
    await store.trim_journal(A, grant.epoch, 5)
    whole = stored(0, several(0, 20))

    async def read(offset: int, rows_max: int, bytes_max: int) -> list[StoredJournalRow]:
        return await store.read_journal(A, offset, rows_max=rows_max, bytes_max=bytes_max)

    assert await read(7, 3, MUCH) == whole[7:10]
    assert await read(0, 3, MUCH) == whole[5:8], "from the first there is"
    assert await read(7, 100, 27) == whole[7:10]
    assert await read(7, 100, 35) == whole[7:10]
    assert await read(7, 100, 36) == whole[7:11]
    for bytes_max in (8, 1, 0):
        assert await read(7, 100, bytes_max) == whole[7:8], "one at least"
    assert await read(19, 100, MUCH) == whole[19:]
    assert await read(20, 100, MUCH) == []
    assert await read(99, 100, MUCH) == []


async def test_rows_are_found_by_their_time(store: Store) -> None:
    grant = await claim(store, A)
    # The second holder's clock was behind.
    times = [100, 100, 200, 300, 250, 260, 300, 290]
    await note(store, grant, *(told(number, at_ms=at_ms) for number, at_ms in enumerate(times)))
    expected = {0: 0, 100: 0, 101: 2, 200: 2, 201: 3, 300: 3, 301: None}
    assert {at_ms: await store.journal_offset_at(A, at_ms) for at_ms in expected} == expected
    assert await store.journal_newest(A) == 3
    await store.trim_journal(A, grant.epoch, 4)
    expected = {0: 4, 250: 4, 251: 5, 260: 5, 261: 6, 300: 6, 301: None}
    assert {at_ms: await store.journal_offset_at(A, at_ms) for at_ms in expected} == expected
    assert await store.journal_newest(A) == 6
    assert await store.journal_newest(B) is None


# --- trimming -------------------------------------------------------------------------------------


async def test_rows_are_removed_from_the_front_only(store: Store) -> None:
    grant = await claim(store, A)
    await note(store, grant, *several(0, 10))
    for before, start in ((0, 0), (4, 4), (2, 4), (-7, 4), (9, 9)):
        assert await store.trim_journal(A, grant.epoch, before)
        assert await store.journal_bounds(A) == JournalBounds(start, 10, 9 * (10 - start))
        assert await journal(store, A) == stored(0, several(0, 10))[start:]


async def test_the_end_stays_when_everything_is_removed(backend: Backend, store: Store) -> None:
    grant = await claim(store, A)
    await note(store, grant, *several(0, 10))
    assert await store.trim_journal(A, grant.epoch, 1_000)
    assert await store.journal_bounds(A) == JournalBounds(10, 10, 0)
    assert await store.trim_journal(A, grant.epoch, 1_000)
    assert await journal(store, A) == []
    assert await store.journal_newest(A) is None
    await store.close()
    again = backend.store()
    await again.open()
    try:
        assert await again.journal_bounds(A) == JournalBounds(10, 10, 0)
        grant = await claim(again, A)
        await note(again, grant, *several(10, 12))
        assert await journal(again, A) == stored(10, several(10, 12))
        assert await again.journal_bounds(A) == JournalBounds(10, 12, 18)
    finally:
        await again.close()


# --- many callers, life ---------------------------------------------------------------------------


async def test_a_storm_of_callers_leaves_no_gap(store: Store) -> None:
    """Against a model: a list per lease, in the order of the calls."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    grants = [await claim(store, Lease(LeaseKind.GROUP, number)) for number in range(4)]
    model: dict[Lease, list[JournalRow]] = {grant.lease: [] for grant in grants}
    trimmed = dict.fromkeys(model, 0)
    calls: list[asyncio.Future[object]] = []
    for turn in range(400):
        if rng.random() < 0.1:
            grant = rng.choice(grants)
            before = rng.randint(0, len(model[grant.lease]))
            trimmed[grant.lease] = max(trimmed[grant.lease], before)
            calls.append(asyncio.ensure_future(store.trim_journal(grant.lease, grant.epoch, before)))
            continue
        appends = []
        for grant in rng.sample(grants, rng.randint(1, 3)):
            records = [(b"%d" % rng.randrange(20), rng.choice([None, b"v"])) for _ in range(rng.randrange(3))]
            added = several(turn, turn + rng.randrange(4))
            fenced = rng.random() < 0.1
            appends.append(Append(grant.lease, grant.epoch - fenced, records, added))
            if not fenced:
                model[grant.lease] += added
        calls.append(asyncio.ensure_future(store.append(appends)))
        if rng.random() < 0.2:
            await rng.choice(calls)
    await asyncio.gather(*calls)
    for lease, expected in model.items():
        start = trimmed[lease]
        assert await journal(store, lease) == stored(0, expected)[start:]
        size_bytes = 9 * (len(expected) - start)
        assert await store.journal_bounds(lease) == JournalBounds(start, len(expected), size_bytes)


async def test_rows_survive_a_reopen(backend: Backend, store: Store) -> None:
    grant = await claim(store, A)
    await note(store, grant, *several(0, 5))
    await store.trim_journal(A, grant.epoch, 2)
    await store.close()
    for read in (
        store.read_journal(A, 0, rows_max=1, bytes_max=1),
        store.journal_bounds(A),
        store.journal_offset_at(A, 0),
        store.journal_newest(A),
        store.trim_journal(A, grant.epoch, 5),
    ):
        with pytest.raises(StoreClosed):
            await read
    again = backend.store()
    await again.open()
    try:
        assert await journal(again, A) == stored(2, several(2, 5))
        assert await again.journal_bounds(A) == JournalBounds(2, 5, 27)
    finally:
        await again.close()


async def test_an_unknown_lease_has_no_journal(store: Store) -> None:
    unknown = Lease(LeaseKind.GROUP, 6)
    for call in (
        store.read_journal(unknown, 0, rows_max=1, bytes_max=1),
        store.journal_bounds(unknown),
        store.journal_offset_at(unknown, 0),
        store.journal_newest(unknown),
        store.trim_journal(unknown, 1, 1),
    ):
        with pytest.raises(StoreConflict, match="no lease group 6"):
            await call

"""The contract of append and load: upserts, deletes, order, fencing."""

from __future__ import annotations

import asyncio
import random
from hashlib import sha256

import pytest

from muster.coordinator.storage.store import (
    Append,
    Grant,
    Lease,
    LeaseKind,
    Outcome,
    Store,
    StoreClosed,
    StoreConflict,
)
from tests.storage.conftest import Backend

A, B = Lease(LeaseKind.GROUP, 0), Lease(LeaseKind.GROUP, 1)
TERM_MS = 10_000


async def claim(store: Store, lease: Lease, node_id: int = 1) -> Grant:
    (grant,) = await store.claim([lease], node_id, TERM_MS)
    assert grant is not None
    return grant


async def write(store: Store, grant: Grant, *records: tuple[bytes, bytes | None]) -> Outcome:
    (outcome,) = await store.append([Append(grant.lease, grant.epoch, records)])
    return outcome


async def rows(store: Store, lease: Lease) -> list[tuple[bytes, bytes]]:
    return [(key, value) for _, key, value in await store.load(lease)]


async def test_an_untouched_lease_is_empty(store: Store) -> None:
    assert await store.load(A) == []


async def test_what_was_appended_is_loaded_in_order(store: Store) -> None:
    grant = await claim(store, A)
    assert await write(store, grant, (b"b", b"1"), (b"a", b"2")) is Outcome.WRITTEN
    assert await write(store, grant, (b"c", b"")) is Outcome.WRITTEN
    assert await rows(store, A) == [(b"b", b"1"), (b"a", b"2"), (b"c", b"")]


@pytest.mark.parametrize("count", [2, 63, 64, 127, 128, 129, 301])
async def test_many_records_of_one_append_are_kept_in_their_order(store: Store, count: int) -> None:
    grant = await claim(store, A)
    await write(store, grant, (b"17", b"before"))
    records = [(b"%d" % number, b"value %d" % number) for number in range(count)]
    assert await write(store, grant, *records, (b"0", b"last")) is Outcome.WRITTEN
    expected = [*records[1:], (b"0", b"last")]
    if count <= 17:
        expected.insert(0, (b"17", b"before"))
    assert await rows(store, A) == expected


async def test_the_last_value_of_a_key_stays_and_takes_the_last_place(store: Store) -> None:
    grant = await claim(store, A)
    await write(store, grant, (b"a", b"1"), (b"b", b"2"))
    await write(store, grant, (b"a", b"3"))
    assert await rows(store, A) == [(b"b", b"2"), (b"a", b"3")]


async def test_none_deletes(store: Store) -> None:
    grant = await claim(store, A)
    await write(store, grant, (b"a", b"1"), (b"b", b"2"))
    await write(store, grant, (b"a", None), (b"absent", None))
    assert await rows(store, A) == [(b"b", b"2")]


async def test_within_one_append_the_last_one_per_key_wins(store: Store) -> None:
    grant = await claim(store, A)
    await write(store, grant, (b"a", b"1"), (b"b", b"2"), (b"a", None), (b"b", None), (b"a", b"3"))
    assert await rows(store, A) == [(b"a", b"3")]


async def test_one_call_may_name_a_lease_twice(store: Store) -> None:
    grant = await claim(store, A)
    outcomes = await store.append(
        [Append(A, grant.epoch, [(b"a", b"1"), (b"b", b"1")]), Append(A, grant.epoch, [(b"a", None)])]
    )
    assert outcomes == [Outcome.WRITTEN, Outcome.WRITTEN]
    assert await rows(store, A) == [(b"b", b"1")]


async def test_nothing_to_append(store: Store) -> None:
    assert await store.append([]) == []


async def test_leases_do_not_see_each_other(store: Store) -> None:
    data = Lease(LeaseKind.DATA, A.number)
    for lease in (A, B, data):
        await write(store, await claim(store, lease), (b"key", str(lease).encode()))
    for lease in (A, B, data):
        assert await rows(store, lease) == [(b"key", str(lease).encode())]


async def test_seq_grows_per_lease_and_is_never_reused(store: Store) -> None:
    grant = await claim(store, A)
    seen: list[int] = []
    for turn in range(5):
        await write(store, grant, (b"a", b"%d" % turn), (b"b", b"%d" % turn))
        seqs = [seq for seq, _, _ in await store.load(A)]
        assert seqs == sorted(seqs)
        assert not seen or seqs[0] > seen[-1]
        seen = seqs
        await write(store, grant, (b"a", None), (b"b", None))
    assert await store.load(A) == []


async def test_bytes_come_back_as_they_were(store: Store) -> None:
    grant = await claim(store, A)
    large = random.Random(7).randbytes(300_000)
    await write(store, grant, (bytes(range(256)), large), (b"", b"\x00"))
    assert await rows(store, A) == [(bytes(range(256)), large), (b"", b"\x00")]


async def test_a_key_may_be_long(store: Store) -> None:
    """A group's name may have 32,767 bytes, and database indexes accept less."""
    random_bytes = random.Random(11).randbytes
    long = [random_bytes(size) for size in (1_024, 1_025, 2_705, 33_000)]
    digests = [b"\xff" + sha256(key).digest() for key in long]  # who knows a key could use its digest as one
    keys = [*long, *digests, b"\xff", b"\xff\xff"]
    grant = await claim(store, A)
    for value in (b"1", b"", b"3" * 3_000):
        assert await write(store, grant, *((key, value) for key in keys)) is Outcome.WRITTEN
        assert await rows(store, A) == [(key, value) for key in keys]
    await write(store, grant, (long[2], None), (digests[3], None))
    assert [key for key, _ in await rows(store, A)] == [
        key for key in keys if key not in (long[2], digests[3])
    ]


# --- fencing --------------------------------------------------------------------------------------


async def test_a_lease_never_claimed_takes_no_record(store: Store) -> None:
    for epoch in (0, 1):
        assert await store.append([Append(A, epoch, [(b"a", b"1")])]) == [Outcome.FENCED]
    assert await store.load(A) == []


async def test_an_old_epoch_is_refused_and_a_future_one_too(store: Store) -> None:
    old = await claim(store, A)
    await write(store, old, (b"a", b"1"))
    new = await claim(store, A)
    assert await write(store, old, (b"a", b"2"), (b"b", b"2")) is Outcome.FENCED
    (outcome,) = await store.append([Append(A, new.epoch + 1, [(b"a", b"3")])])
    assert outcome is Outcome.FENCED
    assert await rows(store, A) == [(b"a", b"1")]
    assert await write(store, new, (b"a", b"4")) is Outcome.WRITTEN
    assert await rows(store, A) == [(b"a", b"4")]


async def test_a_fenced_append_does_not_fail_the_others_of_its_call(store: Store) -> None:
    old, other = await claim(store, A), await claim(store, B)
    new = await claim(store, A)
    outcomes = await store.append(
        [
            Append(A, old.epoch, [(b"a", b"old")]),
            Append(B, other.epoch, [(b"b", b"other")]),
            Append(A, new.epoch, [(b"a", b"new")]),
        ]
    )
    assert outcomes == [Outcome.FENCED, Outcome.WRITTEN, Outcome.WRITTEN]
    assert await rows(store, A) == [(b"a", b"new")]
    assert await rows(store, B) == [(b"b", b"other")]


async def test_a_fenced_append_does_not_fail_calls_made_at_the_same_time(store: Store) -> None:
    old, other = await claim(store, A), await claim(store, B)
    await claim(store, A)
    outcomes = await asyncio.gather(
        write(store, old, (b"a", b"old")),
        write(store, other, (b"b", b"1")),
        write(store, old, (b"a", b"older")),
        write(store, other, (b"c", b"2")),
    )
    assert list(outcomes) == [Outcome.FENCED, Outcome.WRITTEN, Outcome.FENCED, Outcome.WRITTEN]
    assert await rows(store, A) == []
    assert await rows(store, B) == [(b"b", b"1"), (b"c", b"2")]


async def test_a_claim_fences_what_is_appended_after_it_and_not_what_was_before(store: Store) -> None:
    old = await claim(store, A)
    before, taken, after = await asyncio.gather(
        write(store, old, (b"a", b"before")), claim(store, A), write(store, old, (b"a", b"after"))
    )
    assert (before, after) == (Outcome.WRITTEN, Outcome.FENCED)
    assert taken.epoch == old.epoch + 1
    assert await rows(store, A) == [(b"a", b"before")]


async def test_an_append_without_records_asks_for_the_epoch(store: Store) -> None:
    old = await claim(store, A)
    assert await write(store, old) is Outcome.WRITTEN
    new = await claim(store, A)
    assert await write(store, old) is Outcome.FENCED
    assert await write(store, new) is Outcome.WRITTEN


# --- many callers ---------------------------------------------------------------------------------


async def test_a_storm_of_callers_leaves_the_last_value_of_each_key(store: Store) -> None:
    """Against a model: a dict per lease that pops and inserts, as the contract says."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    grants = [await claim(store, Lease(LeaseKind.GROUP, number)) for number in range(4)]
    model: dict[Lease, dict[bytes, bytes]] = {grant.lease: {} for grant in grants}
    calls = []
    for turn in range(400):
        appends = []
        for grant in rng.sample(grants, rng.randint(1, 3)):
            records = [
                (b"%d" % rng.randrange(20), None if rng.random() < 0.3 else b"%d" % turn)
                for _ in range(rng.randint(1, 4))
            ]
            fenced = rng.random() < 0.1
            appends.append(Append(grant.lease, grant.epoch - fenced, records))
            if fenced:
                continue
            for key, value in records:
                model[grant.lease].pop(key, None)
                if value is not None:
                    model[grant.lease][key] = value
        calls.append(asyncio.ensure_future(store.append(appends)))
        if rng.random() < 0.2:
            await rng.choice(calls)
    await asyncio.gather(*calls)
    for lease, expected in model.items():
        assert await rows(store, lease) == list(expected.items())


async def test_a_cancelled_caller_harms_no_other(store: Store) -> None:
    grant = await claim(store, A)
    cancelled = asyncio.ensure_future(write(store, grant, (b"a", b"1")))
    other = asyncio.ensure_future(write(store, grant, (b"b", b"2")))
    await asyncio.sleep(0)
    cancelled.cancel()
    assert await other is Outcome.WRITTEN
    await asyncio.wait([cancelled])
    assert (b"b", b"2") in await rows(store, A)


# --- life -----------------------------------------------------------------------------------------


async def test_records_survive_a_reopen_and_seq_goes_on(backend: Backend, store: Store) -> None:
    grant = await claim(store, A)
    await write(store, grant, (b"a", b"1"), (b"b", b"2"), (b"gone", b"3"))
    await write(store, grant, (b"gone", None))
    before = await store.load(A)
    await store.close()
    again = backend.store()
    await again.open()
    try:
        assert await again.load(A) == before
        grant = await claim(again, A)
        await write(again, grant, (b"c", b"4"))
        assert (await again.load(A))[-1][0] > 3, "the deleted record's number is not given out again"
    finally:
        await again.close()


async def test_closing_finishes_what_was_called_and_refuses_what_comes_after(
    backend: Backend, store: Store
) -> None:
    grant = await claim(store, A)
    writes = [asyncio.ensure_future(write(store, grant, (b"%d" % n, b"v"))) for n in range(50)]
    await asyncio.sleep(0)  # every call has been made
    await store.close()
    assert await asyncio.gather(*writes) == [Outcome.WRITTEN] * 50
    with pytest.raises(StoreClosed):
        await write(store, grant, (b"late", b"v"))
    with pytest.raises(StoreClosed):
        await store.load(A)
    await store.close()
    again = backend.store()
    await again.open()
    assert len(await again.load(A)) == 50
    await again.close()


async def test_an_unknown_lease(store: Store) -> None:
    unknown = Lease(LeaseKind.GROUP, 6)
    assert await store.append([Append(unknown, 1, [(b"a", b"1")])]) == [Outcome.FENCED]
    with pytest.raises(StoreConflict, match="no lease group 6"):
        await store.load(unknown)

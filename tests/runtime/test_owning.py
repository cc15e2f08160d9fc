"""From a lease to a shard that serves, and back: how many are loaded at a time, who is notified when one is
ready, and what happens to requests at the store when the lease is lost."""

from __future__ import annotations

import asyncio

import pytest

from muster.coordinator.runtime.runtime import LOADS_AT_ONCE
from muster.coordinator.storage.store import Lease, LeaseKind, StoreBusy, StoreError
from muster.protocol.errors import ErrorCode
from tests.runtime.support import LEASE, SHARD, Bench, CounterShard, code
from tests.support.facts import turns, until


async def test_whoever_owns_is_told_when_the_shard_is_loaded(bench: Bench) -> None:
    bench.store.loading.clear()
    ready = bench.runtime.own(SHARD, 1)
    await turns()
    assert not ready.done()
    bench.store.loading.set()
    await ready
    assert await bench.ask(CounterShard.beat) == "alive"


@pytest.mark.parametrize("end", ["own", "disown", "kill", "close"])
async def test_whoever_waits_for_a_shard_is_told_when_it_is_not_to_be(bench: Bench, end: str) -> None:
    bench.store.loading.clear()
    ready = bench.runtime.own(SHARD, 1)
    await turns()
    if end == "own":
        bench.runtime.own(SHARD, 2)
    elif end == "disown":
        await bench.runtime.disown(SHARD)
    elif end == "kill":
        bench.runtime.kill()
    else:
        await bench.runtime.close()
    assert ready.cancelled()


async def test_a_shard_loaded_again_under_its_epoch_is_ready_then(bench: Bench) -> None:
    """The store was busy: nothing was lost, and nobody has to claim anything."""
    bench.store.load_error = StoreBusy("cannot connect")
    ready = bench.runtime.own(SHARD, 1)
    await turns()
    assert not ready.done()
    bench.store.load_error = None
    bench.clock.advance(1_000)
    await until(ready.done, "the load")
    assert not ready.cancelled()


async def test_a_store_that_is_away_is_not_waited_for_longer_and_longer(bench: Bench) -> None:
    """Unlike a shard that breaks each time it is loaded."""
    bench.store.load_error = StoreBusy("cannot connect")
    ready = bench.runtime.own(SHARD, 1)
    for _ in range(60):
        await turns()
        bench.clock.advance(1_000)
    bench.store.load_error = None
    await turns()
    bench.clock.advance(1_000)
    await until(ready.done, "the load")


async def test_a_bounded_number_of_shards_is_loaded_at_a_time(bench: Bench) -> None:
    under_way: list[Lease] = []
    most = 0
    load = bench.store.load

    async def count(lease: Lease) -> list[tuple[int, bytes, bytes]]:
        nonlocal most
        under_way.append(lease)
        most = max(most, len(under_way))
        rows = await load(lease)
        under_way.remove(lease)
        return rows

    bench.store.load = count  # type: ignore[method-assign]
    bench.store.loading.clear()
    leases = [Lease(LeaseKind.GROUP, number) for number in range(50)]
    await bench.claim(*leases)
    await turns()
    assert len(under_way) == LOADS_AT_ONCE
    bench.runtime.disown(under_way[0].number)  # one that is loading makes room for the next
    bench.store.loading.set()
    await bench.runtime.loaded()
    await turns()
    assert most == LOADS_AT_ONCE
    assert {status.state for status in bench.runtime.shards()} == {"active"}
    assert len(bench.runtime.shards()) == 49


async def test_a_request_at_the_store_is_answered_though_the_lease_goes_and_the_store_stays_silent(
    bench: Bench,
) -> None:
    """The term runs out while the store does not answer: the shard is disowned, and nobody knows yet whether
    the write was made."""
    bench.store.hold()
    write = bench.call(CounterShard.write, 1)
    await until(lambda: bench.store.transactions, "the append")
    behind = bench.call(CounterShard.read)
    await turns()
    bench.leases.lapsed = True
    rest = asyncio.ensure_future(bench.runtime.disown(SHARD))
    await turns()
    assert not write.done()
    assert not behind.done()
    bench.clock.advance(5_000)
    await until(lambda: write.done() and behind.done(), "answers")
    assert code(write) == code(behind) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    bench.store.let_go()
    await rest


async def test_a_request_at_the_store_is_answered_as_it_went_there_after_the_lease_has_gone(
    bench: Bench,
) -> None:
    bench.store.hold()
    written = bench.call(CounterShard.write, 1)
    await until(lambda: bench.store.transactions, "the append")
    bench.leases.lapsed = True
    rest = asyncio.ensure_future(bench.runtime.disown(SHARD))
    bench.store.let_go()
    await rest
    await until(written.done, "the answer")
    assert written.result() == 1  # it is in the store, and whoever loads next finds it
    assert len(await bench.store.load(LEASE)) == 1


@pytest.mark.parametrize("error", [StoreError("the connection was lost"), None], ids=["unknown", "fenced"])
async def test_a_request_that_did_not_get_through_is_sent_elsewhere(
    bench: Bench, error: StoreError | None
) -> None:
    bench.store.hold()
    write = bench.call(CounterShard.write, 1)
    await until(lambda: bench.store.transactions, "the append")
    bench.leases.lapsed = True
    rest = asyncio.ensure_future(bench.runtime.disown(SHARD))
    if error is None:
        bench.clock.advance(3_000)
        await bench.store.claim([LEASE], 2, 3_000)
    bench.store.error = error
    bench.store.let_go()
    await rest
    await until(write.done, "the answer")
    assert code(write) == ErrorCode.NOT_COORDINATOR

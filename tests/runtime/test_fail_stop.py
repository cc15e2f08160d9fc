"""Promises 6 and 7: a shard that cannot go on stops, says so, and comes back from the store under a new
epoch."""

from __future__ import annotations

import asyncio

import pytest

from muster.coordinator.storage.store import Lease, LeaseKind, StoreError
from muster.protocol.errors import ErrorCode
from tests.runtime.support import LEASE, SHARD, Bench, CounterShard, code
from tests.support.facts import turns, until


async def reloaded(bench: Bench) -> None:
    """Do what the membership does when it is asked to claim again."""
    await until(lambda: bench.leases.reclaimed, "the wish to claim again")
    assert bench.leases.reclaimed.pop(0)[0] == LEASE
    await bench.claim(LEASE)
    await bench.runtime.loaded()


async def test_a_bug_in_the_core_refuses_everything_unanswered(bench: Bench) -> None:
    parked = bench.call(CounterShard.park)
    await turns()
    bench.store.hold()
    written = bench.call(CounterShard.write, 1)
    broke = bench.call(CounterShard.explode)
    behind = bench.call(CounterShard.beat)
    tasks = [parked, written, broke, behind]
    await until(lambda: all(task.done() for task in tasks))
    assert {code(task) for task in tasks} == {ErrorCode.NOT_COORDINATOR}
    late = bench.call(CounterShard.beat)
    await until(late.done)
    assert code(late) == ErrorCode.NOT_COORDINATOR


async def test_what_was_half_applied_is_gone_after_the_reload(bench: Bench) -> None:
    await bench.ask(CounterShard.write, 1)
    broke = bench.call(CounterShard.explode)
    await until(broke.done)
    assert bench.shard.numbers == [1, -1]
    assert bench.leases.reclaimed == []
    bench.clock.advance(100)
    await reloaded(bench)
    assert await bench.ask(CounterShard.read) == [1]
    assert len(bench.shards) == 2
    assert bench.runtime.shards()[0].epoch == 2


async def test_a_shard_whose_first_step_fails_is_not_ready(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = True

    def loaded(self: CounterShard, step: object) -> None:
        if broken:
            raise RuntimeError("on purpose")

    monkeypatch.setattr(CounterShard, "loaded", loaded)
    ready = bench.runtime.own(SHARD, 2)
    await bench.runtime.loaded()
    await turns()
    assert bench.runtime.shards()[0].state == "failed"
    assert not ready.done(), "clients would be sent here"
    broken = False
    bench.clock.advance(100)
    await reloaded(bench)
    assert bench.runtime.shards()[0].state == "active"


async def test_the_request_that_broke_the_shard_is_not_tried_again(bench: Bench) -> None:
    broke = bench.call(CounterShard.explode)
    await until(broke.done)
    bench.clock.advance(100)
    await reloaded(bench)
    await turns()
    assert bench.runtime.shards()[0].state == "active"
    assert bench.shard.numbers == []


async def test_a_refusal_after_changes_is_a_bug_too(bench: Bench) -> None:
    broke = bench.call(CounterShard.refuse_late)
    await until(broke.done)
    assert code(broke) == ErrorCode.NOT_COORDINATOR
    assert bench.store.transactions == []


async def test_a_deadline_that_never_passes_is_a_bug_too(bench: Bench) -> None:
    bench.shard.advance = lambda step: None  # type: ignore[method-assign]
    await bench.ask(CounterShard.due_in, 10)
    bench.clock.advance(10)
    assert bench.runtime.shards()[0].state == "failed"


async def test_reloads_back_off_and_the_reason_can_be_read(bench: Bench) -> None:
    waits_ms = []
    for _ in range(9):
        broke = bench.call(CounterShard.explode)
        await until(broke.done)
        (status,) = bench.runtime.shards()
        assert (status.state, status.failure) == ("failed", "ZeroDivisionError: a bug")
        waits_ms.append((bench.clock.next_ms() or 0) - bench.clock.now_ms())
        bench.clock.advance(waits_ms[-1])
        await reloaded(bench)
        assert bench.runtime.shards()[0].failure is None
    assert waits_ms == [100, 200, 400, 800, 1_600, 3_200, 6_400, 10_000, 10_000]


async def test_a_shard_that_ran_well_for_a_minute_starts_from_the_shortest_wait(bench: Bench) -> None:
    for _ in range(3):
        broke = bench.call(CounterShard.explode)
        await until(broke.done)
        bench.clock.advance(10_000)
        await reloaded(bench)
    bench.clock.advance(60_000)
    broke = bench.call(CounterShard.explode)
    await until(broke.done)
    assert (bench.clock.next_ms() or 0) - bench.clock.now_ms() == 100


async def test_a_store_that_fails_stops_every_shard_of_the_transaction(bench: Bench) -> None:
    await bench.claim(Lease(LeaseKind.GROUP, 12))
    await bench.runtime.loaded()
    bench.store.error = StoreError("append: no space left on device")
    tasks = [bench.call(CounterShard.write, 1), bench.call(CounterShard.write, 1, "my-group")]
    await until(lambda: all(task.done() for task in tasks))
    assert [code(task) for task in tasks] == [ErrorCode.NOT_COORDINATOR] * 2
    failures = {status.number: status.failure for status in bench.runtime.shards()}
    assert failures == dict.fromkeys((12, SHARD), "StoreError: append: no space left on device")


async def test_a_failed_load_is_tried_again(bench: Bench) -> None:
    bench.store.load_error = StoreError("load: cannot read")
    await bench.claim(LEASE)
    await bench.runtime.loaded()
    assert bench.runtime.shards()[0].failure == "StoreError: load: cannot read"
    bench.store.load_error = None
    bench.clock.advance(100)
    await reloaded(bench)
    assert await bench.ask(CounterShard.beat) == "alive"


async def test_a_load_that_trips_over_a_bug_at_its_end_is_tried_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def contents(shard: CounterShard) -> dict[str, int]:
        raise ZeroDivisionError("a bug")

    await bench.runtime.disown(SHARD)
    with monkeypatch.context() as patched:
        patched.setattr(CounterShard, "contents", contents)
        await bench.claim(LEASE)
        await bench.runtime.loaded()
        (status,) = bench.runtime.shards()
        assert (status.state, status.failure) == ("failed", "ZeroDivisionError: a bug")
    bench.clock.advance(100)
    await reloaded(bench)
    assert await bench.ask(CounterShard.beat) == "alive"


async def test_a_fenced_write_is_refused_and_nothing_more_is_written(bench: Bench) -> None:
    bench.store.hold()
    first = bench.call(CounterShard.write, 1)
    await until(lambda: bench.store.transactions)
    second = bench.call(CounterShard.write, 2)
    read = bench.call(CounterShard.read)
    await turns()
    bench.clock.advance(3_000)
    await bench.store.claim([LEASE], 2, 3_000)
    bench.store.let_go()
    tasks = [first, second, read]
    await until(lambda: all(task.done() for task in tasks))
    assert {code(task) for task in tasks} == {ErrorCode.NOT_COORDINATOR}
    await turns()
    assert len(bench.store.transactions) == 1
    assert await bench.store.load(LEASE) == []
    assert bench.runtime.shards() == []
    assert bench.leases.reclaimed == [(LEASE, 1)]


async def test_a_lease_past_its_term_answers_and_writes_nothing(bench: Bench) -> None:
    parked = bench.call(CounterShard.park)
    await turns()
    bench.leases.lapsed = True
    tasks = [parked, bench.call(CounterShard.write, 1), bench.call(CounterShard.beat)]
    await until(lambda: all(task.done() for task in tasks))
    assert {code(task) for task in tasks} == {ErrorCode.NOT_COORDINATOR}
    assert bench.store.transactions == []
    assert bench.shard.numbers == []
    assert bench.leases.reclaimed == [(LEASE, 1)]


async def test_a_timer_after_the_term_does_nothing(bench: Bench) -> None:
    await bench.ask(CounterShard.due_in, 10)
    bench.leases.lapsed = True
    bench.clock.advance(10)
    assert bench.shard.advanced_ms == []


async def test_disowning_answers_what_is_parked_and_finishes_what_is_written(bench: Bench) -> None:
    parked = bench.call(CounterShard.park)
    await turns()
    bench.store.hold()
    written = bench.call(CounterShard.write, 1)
    await turns()
    unstepped = bench.call(CounterShard.beat)
    await asyncio.sleep(0)
    rest = asyncio.ensure_future(bench.runtime.disown(SHARD))
    await until(parked.done)
    await until(unstepped.done)
    await turns()
    assert not rest.done()
    assert not written.done()
    bench.store.let_go()
    await rest
    await until(written.done)
    assert written.result() == 1
    assert code(parked) == ErrorCode.NOT_COORDINATOR
    if bench.at_once:  # it was stepped on arrival
        assert unstepped.result() == "alive"
    else:
        assert code(unstepped) == ErrorCode.NOT_COORDINATOR
    assert "unloaded" in str(parked.exception())  # the core's own text
    assert bench.shard.told[-1] == "unload"
    late = bench.call(CounterShard.beat)
    await until(late.done)
    assert code(late) == ErrorCode.NOT_COORDINATOR


async def test_disowning_a_failed_shard_ends_the_wish_to_reload_it(bench: Bench) -> None:
    broke = bench.call(CounterShard.explode)
    await until(broke.done)
    await bench.runtime.disown(SHARD)
    assert bench.clock.next_ms() is None
    bench.clock.advance(60_000)
    assert bench.leases.reclaimed == []
    assert bench.runtime.shards() == []


async def test_a_disowned_shard_leaves_no_timer_behind(bench: Bench) -> None:
    await bench.ask(CounterShard.due_in, 600_000)
    bench.call(CounterShard.park)
    await turns()
    await bench.runtime.disown(SHARD)
    assert bench.clock.next_ms() is None


async def test_disowning_during_the_load_ends_it(bench: Bench) -> None:
    bench.store.loading.clear()
    await bench.claim(LEASE)
    await turns()
    await bench.runtime.disown(SHARD)
    await bench.runtime.loaded()
    assert bench.runtime.shards() == []


async def test_owning_again_replaces_what_ran_under_the_older_epoch(bench: Bench) -> None:
    parked = bench.call(CounterShard.park)
    await bench.ask(CounterShard.write, 1)
    await bench.claim(LEASE)
    await bench.runtime.loaded()
    assert code(parked) == ErrorCode.NOT_COORDINATOR
    assert await bench.ask(CounterShard.read) == [1]


async def test_closing_waits_for_writes_under_way(bench: Bench) -> None:
    bench.store.hold()
    written = bench.call(CounterShard.write, 1)
    await turns()
    closing = asyncio.ensure_future(bench.runtime.close())
    await turns()
    assert not closing.done()
    bench.store.let_go()
    await closing
    assert written.done()
    assert bench.runtime.shards() == []


async def test_a_killed_runtime_writes_nothing_more(bench: Bench) -> None:
    bench.store.hold()
    under_way = bench.call(CounterShard.write, 1)
    await until(lambda: bench.store.transactions)
    waiting = bench.call(CounterShard.write, 2)
    await turns()
    bench.runtime.kill()
    bench.store.let_go()
    await until(lambda: under_way.done() and waiting.done())
    await turns()
    assert len(bench.store.transactions) == 1
    assert await bench.store.load(LEASE) == []
    assert {code(under_way), code(waiting)} == {ErrorCode.NOT_COORDINATOR}

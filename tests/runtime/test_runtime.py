"""Routing requests to shards, loading, and what every shard is notified of."""

from __future__ import annotations

import asyncio

import pytest

from muster.coordinator.group.effects import TopicsImage
from muster.coordinator.group.shard import Shard
from muster.coordinator.runtime.machine import Traits
from muster.coordinator.storage.store import Append, Lease, LeaseKind
from muster.protocol.errors import DecodeError, ErrorCode, KafkaError
from muster.protocol.messages.classic_group import HeartbeatRequest, HeartbeatResponse, SyncGroupRequest
from muster.protocol.types import ZERO_UUID
from tests.runtime.support import CONTEXT, GROUP, LEASE, Bench, CounterShard, code
from tests.support.facts import turns, until

HEARTBEAT = HeartbeatRequest(group_id=GROUP, generation_id=1, member_id="m")
IMAGE = TopicsImage(live={"t": ZERO_UUID})
SYNC = SyncGroupRequest(group_id=GROUP, generation_id=1, member_id="m", assignments=[])


async def test_a_group_whose_shard_is_elsewhere_is_refused(bench: Bench) -> None:
    call = bench.call(CounterShard.beat, group_id="my-group")
    await until(call.done)
    assert code(call) == ErrorCode.NOT_COORDINATOR


async def test_while_loading_requests_are_told_so_as_clients_understand_it(bench: Bench) -> None:
    bench.store.loading.clear()
    await bench.claim(LEASE)
    await turns()
    assert await bench.ask(Shard.heartbeat, HEARTBEAT) == HeartbeatResponse()
    sync, other = bench.call(Shard.sync, SYNC), bench.call(CounterShard.beat)
    await until(lambda: sync.done() and other.done())
    assert code(sync) == ErrorCode.REBALANCE_IN_PROGRESS
    assert code(other) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert bench.runtime.shards()[0].state == "loading"
    bench.store.loading.set()
    await bench.runtime.loaded()
    assert await bench.ask(CounterShard.beat) == "alive"
    assert bench.shard.told == ["loaded"]


async def test_rows_of_unknown_types_are_passed_over_and_damaged_ones_stop_the_load(bench: Bench) -> None:
    await bench.ask(CounterShard.write, 1)
    await bench.store.append([Append(LEASE, 1, [(b"\x7f\xff future", b"\x00\x00")])])
    await bench.claim(LEASE)
    await bench.runtime.loaded()
    assert await bench.ask(CounterShard.read) == [1]
    await bench.store.append([Append(LEASE, 2, [(b"\x00\x01\x00", b"\x00\x00")])])
    await bench.claim(LEASE)
    await bench.runtime.loaded()
    (status,) = bench.runtime.shards()
    assert status.failure is not None
    assert status.failure.startswith("DecodeError: ")


async def test_a_large_shard_does_not_keep_the_loop_while_it_loads(bench: Bench) -> None:
    for start in range(0, 5_000, 500):
        for number in range(start, start + 500):
            bench.call(CounterShard.write, number)
        await until(lambda: bench.tasks[-1].done())
    await bench.claim(LEASE)
    seen = 0
    while bench.runtime.shards()[0].state == "loading":
        await turns(1)
        seen += 1
    assert seen > 5
    assert sorted(bench.shard.numbers) == list(range(5_000))


async def test_all_shards_answer_and_those_that_are_given_up_are_skipped(bench: Bench) -> None:
    await bench.claim(Lease(LeaseKind.GROUP, 12))
    await bench.runtime.loaded()
    await bench.ask(CounterShard.write, 5)
    assert await bench.ask_all(CounterShard.read) == [[], [5]]
    asked = asyncio.ensure_future(bench.ask_all(CounterShard.read))
    await turns(1)
    await bench.runtime.disown(12)
    assert await asked == [[5]]
    assert await bench.ask_all(CounterShard.read) == [[5]]


@pytest.mark.parametrize("serving", [True, False])
async def test_an_answer_of_all_shards_is_not_given_while_one_waits_to_be_loaded_again(
    bench: Bench, serving: bool
) -> None:
    await bench.claim(Lease(LeaseKind.GROUP, 12))
    await bench.runtime.loaded()
    broke = bench.call(CounterShard.explode)
    await until(broke.done)
    bench.leases.lapsed = not serving
    if serving:
        with pytest.raises(KafkaError) as refusal:
            await bench.ask_all(CounterShard.read)
        assert refusal.value.code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    else:
        assert await bench.ask_all(CounterShard.read) == []


async def test_an_answer_of_all_shards_goes_without_one_whose_rows_cannot_be_read(bench: Bench) -> None:
    bench.store.load_error = DecodeError("no such record")
    await bench.claim(Lease(LeaseKind.GROUP, 12))
    await bench.runtime.loaded()
    assert [status.state for status in bench.runtime.shards()] == ["failed", "active"]
    assert await bench.ask_all(CounterShard.read) == [[]]


async def test_an_answer_of_all_shards_goes_without_one_that_fails_whenever_it_is_loaded(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def loaded(self: CounterShard, step: object) -> None:
        raise RuntimeError("on purpose")

    monkeypatch.setattr(CounterShard, "loaded", loaded)
    await bench.claim(Lease(LeaseKind.GROUP, 12))
    await bench.runtime.loaded()
    assert [status.state for status in bench.runtime.shards()] == ["failed", "active"]
    assert await bench.ask_all(CounterShard.read) == [[]]


async def test_an_answer_of_all_shards_is_not_given_while_one_is_loading(bench: Bench) -> None:
    bench.store.loading.clear()
    await bench.claim(Lease(LeaseKind.GROUP, 12))
    with pytest.raises(KafkaError) as refusal:
        await bench.ask_all(CounterShard.read)
    assert refusal.value.code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


@pytest.mark.interpreted
async def test_every_shard_is_told_of_connections_and_topics(bench: Bench) -> None:
    await bench.claim(Lease(LeaseKind.GROUP, 12))
    await bench.runtime.loaded()
    bench.runtime.connection_closed(7)
    bench.runtime.topics_changed(IMAGE)
    await turns()
    assert [shard.told for shard in bench.shards] == [["loaded", ("closed", 7), ("topics", IMAGE)]] * 2


@pytest.mark.interpreted
async def test_a_shard_that_is_loaded_later_is_told_of_the_topics_first_thing(bench: Bench) -> None:
    bench.runtime.topics_changed(IMAGE)
    await bench.claim(LEASE)
    await bench.runtime.loaded()
    await turns()
    assert bench.shard.told == ["loaded", ("topics", IMAGE)]


async def test_the_jobs_of_a_step_are_done_once(bench: Bench) -> None:
    """Even those of a step that only returns its answer."""
    bench.operations[CounterShard.dig] = Traits(returns=True)
    assert bench.runtime.call_at_once(GROUP, CounterShard.dig, 1, CONTEXT, lambda _: None) == "begun"
    await until(lambda: len(bench.shard.told) == 2, "the first job")
    assert await bench.ask(CounterShard.dig, 2) == "begun"  # from the inbox, or with a step of its own
    await until(lambda: len(bench.shard.told) == 3, "the second job")
    assert await bench.ask(CounterShard.write, 3) == 3
    await turns()
    assert bench.shard.told == ["loaded", ("done", 1), ("done", 2)]


async def test_a_shard_is_described(bench: Bench) -> None:
    bench.call(CounterShard.park)
    await bench.ask(CounterShard.write, 1)
    assert repr(bench.runtime.hosts()[0]) == (
        "<ShardHost 31 active epoch=1 step=3 durable=3 inbox=0 held=0 parked=1>"
    )
    assert repr(bench.runtime) == "<Runtime shards=[31] loading=[] failed=[]>"

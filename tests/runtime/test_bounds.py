"""Promise 9: what happens at the bounds of a shard, and that no caller waits forever."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from muster.coordinator.base.step import RequestContext
from muster.coordinator.group.config import GroupConfig
from muster.coordinator.group.shard import Shard
from muster.coordinator.runtime.shard_host import Limits
from muster.protocol.errors import ErrorCode
from muster.protocol.messages.classic_group import JoinGroupRequest, SyncGroupRequest
from tests.runtime.support import GROUP, SHARD, Bench, CounterShard, code
from tests.support.facts import turns, until

LIMITS = Limits(backlog_max=3, write_timeout_ms=5_000, parked_max_ms=60_000)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    bench = await Bench(LIMITS).start()
    yield bench
    await bench.close()


async def test_an_inbox_that_is_full_refuses(bench: Bench) -> None:
    calls = [bench.call(CounterShard.beat) for _ in range(4)]
    await until(lambda: all(call.done() for call in calls))
    assert [call.result() for call in calls[:3]] == ["alive"] * 3
    assert code(calls[3]) == ErrorCode.COORDINATOR_NOT_AVAILABLE


async def test_steps_waiting_for_the_store_count_towards_the_bound(bench: Bench) -> None:
    bench.store.hold()
    writes = [bench.call(CounterShard.write, number) for number in range(3)]
    await turns()
    refused = bench.call(CounterShard.beat)
    await until(refused.done)
    assert code(refused) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    bench.store.let_go()
    await until(lambda: all(write.done() for write in writes))
    assert await bench.ask(CounterShard.beat) == "alive"


async def test_parked_requests_do_not_count_towards_the_bound(bench: Bench) -> None:
    for _ in range(10):
        bench.call(CounterShard.park)
        await turns(3)
    assert await bench.ask(CounterShard.beat) == "alive"


async def test_a_write_the_store_does_not_confirm_in_time_is_answered_and_still_made(bench: Bench) -> None:
    bench.store.hold()
    first = bench.call(CounterShard.write, 1)
    await turns()
    bench.clock.advance(2_000)
    second = bench.call(CounterShard.write, 2)
    await turns()
    bench.clock.advance(3_000)
    await until(first.done)
    assert code(first) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    await turns()
    assert not second.done()
    bench.clock.advance(2_000)
    await until(second.done)
    assert code(second) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    bench.store.let_go()
    assert await bench.ask(CounterShard.read) == [1, 2]
    assert bench.events == ["wrote 1", "wrote 2"]
    bench.store.hold()
    third = bench.call(CounterShard.write, 3)
    await turns()
    bench.clock.advance(5_000)
    await until(third.done)
    assert code(third) == ErrorCode.COORDINATOR_NOT_AVAILABLE


class GroupBench(Bench):
    """A bench whose shard holds groups."""

    def make_shard(self, number: int) -> Shard:
        return Shard(number, GroupConfig(group_initial_rebalance_delay_ms=0))

    def join(self, member_id: str = "") -> asyncio.Task[Any]:
        """A JoinGroup of a version in which a client must come back with its id."""
        request = JoinGroupRequest(
            group_id=GROUP,
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            member_id=member_id,
            protocol_type="consumer",
            protocols=[JoinGroupRequest.Protocol(name="range", metadata=b"")],
        )
        context = RequestContext(api_version=9, client_id="test", client_host="/127.0.0.1", connection_id=1)
        return asyncio.ensure_future(self.runtime.call(GROUP, Shard.join, request, context))


async def test_a_client_that_was_not_told_its_member_id_in_time_is_not_waited_for() -> None:
    bench = await GroupBench(LIMITS).start()
    bench.store.hold()
    untold = bench.join()
    await turns()
    bench.clock.advance(5_000)
    await until(untold.done)
    assert code(untold) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    bench.store.let_go()
    told = await bench.join()
    assert told.error_code == ErrorCode.MEMBER_ID_REQUIRED
    for generation_id in (1, 2):  # the first does not wait for anybody, all others do
        joined = bench.join(told.member_id)
        await turns()
        bench.clock.advance(1)
        await until(joined.done, f"generation {generation_id}")
        assert joined.result().generation_id == generation_id
        await bench.ask(
            Shard.sync,
            SyncGroupRequest(
                group_id=GROUP, generation_id=generation_id, member_id=told.member_id, assignments=[]
            ),
        )
    await bench.close()


async def test_a_reply_of_a_disowned_shard_does_not_wait_for_ever_either(bench: Bench) -> None:
    bench.store.hold()
    write = bench.call(CounterShard.write, 1)
    await turns()
    rest = asyncio.ensure_future(bench.runtime.disown(SHARD))
    await turns()
    bench.clock.advance(5_000)
    await until(write.done)
    assert code(write) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert not rest.done()
    bench.store.let_go()
    await rest


async def test_no_request_is_parked_without_a_deadline(bench: Bench) -> None:
    first = bench.call(CounterShard.park)
    await turns()
    bench.clock.advance(1_000)
    second = bench.call(CounterShard.park)
    await turns()
    bench.clock.advance(59_000)
    await until(first.done)
    assert code(first) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    await turns()
    assert not second.done()
    await bench.ask(CounterShard.wake)  # The core still answers the first: that reply has nowhere to go.
    await until(second.done)
    assert second.result() == "awake"


async def test_a_caller_that_goes_leaves_nothing_behind(bench: Bench) -> None:
    gone = bench.call(CounterShard.park)
    stays = bench.call(CounterShard.park)
    await turns()
    gone.cancel()
    await turns()
    assert await bench.ask(CounterShard.wake) == "woke"
    assert stays.result() == "awake"
    assert gone.cancelled()


async def test_a_request_whose_caller_has_gone_is_carried_out(bench: Bench) -> None:
    # A client that closes sends LeaveGroup and hangs up.
    task = bench.call(CounterShard.write, 1)
    await asyncio.sleep(0)
    task.cancel()
    await turns()
    assert await bench.ask(CounterShard.read) == [1]


async def test_a_deadline_is_kept_and_moved(bench: Bench) -> None:
    start_ms = bench.clock.now_ms()
    await bench.ask(CounterShard.due_in, 1_000)
    bench.clock.advance(500)
    await bench.ask(CounterShard.due_in, 1_000)  # later: the timer stays where it was
    bench.clock.advance(999)
    assert bench.shard.advanced_ms == []
    bench.clock.advance(1)
    assert bench.shard.advanced_ms == [start_ms + 1_500]
    await bench.ask(CounterShard.due_in, 1_000)
    await bench.ask(CounterShard.due_in, 10)  # sooner
    bench.clock.advance(10)
    assert bench.shard.advanced_ms == [start_ms + 1_500, start_ms + 1_510]


async def test_requests_that_have_arrived_come_before_the_timer(bench: Bench) -> None:
    await bench.ask(CounterShard.due_in, 10)
    bench.call(CounterShard.due_in, 1_000)
    await asyncio.sleep(0)  # In the inbox, not stepped yet.
    bench.clock.advance(10)
    assert bench.shard.advanced_ms == []


async def test_writes_that_wait_too_long_count_once(bench: Bench) -> None:
    """Telling the shard about abandoned answers takes no room from callers."""
    wide = await Bench(Limits(backlog_max=2_000)).start()
    wide.store.hold()
    writes = [wide.call(CounterShard.write, number) for number in range(1_500)]
    await until(lambda: len(wide.shard.numbers) == 1_500)
    wide.clock.advance(5_000)
    beat = wide.call(CounterShard.beat)
    await until(beat.done)
    assert beat.result() == "alive"
    await until(lambda: all(write.done() for write in writes))
    assert {code(write) for write in writes} == {ErrorCode.COORDINATOR_NOT_AVAILABLE}
    wide.store.let_go()
    await wide.close()


async def test_a_long_inbox_is_taken_in_several_turns_and_in_order(bench: Bench) -> None:
    wide = await Bench(Limits(backlog_max=5_000)).start()
    writes = [wide.call(CounterShard.write, number) for number in range(1_200)]
    await until(lambda: all(write.done() for write in writes))
    assert wide.shard.numbers == list(range(1_200))
    assert len(wide.store.transactions) > 1
    await wide.close()


async def test_what_is_due_waits_for_all_that_came_before(bench: Bench) -> None:
    wide = await Bench(Limits(backlog_max=5_000)).start()
    await wide.call(CounterShard.due_in, 1_000)
    wide.clock.advance(999)
    writes = [wide.call(CounterShard.write, number) for number in range(1_200)]
    last_seen: list[int] = []
    wide.shard.on_advance = lambda: last_seen.append(len(wide.shard.numbers))
    await asyncio.sleep(0)  # all are in the inbox now, and none has been stepped
    assert wide.shard.numbers == []
    wide.clock.advance(1)
    await until(lambda: all(write.done() for write in writes) and bool(last_seen))
    assert last_seen == [1_200]
    await wide.close()

"""A step that answers thousands, as the end of a large group's rebalance does, holds up nobody else; and most
shards never hear of most connections."""

from __future__ import annotations

import asyncio

import pytest

from muster.coordinator.base.answers import LATER
from muster.protocol.errors import ErrorCode
from tests.runtime.support import CONTEXT, GROUP, SHARD, Bench, CounterShard, code
from tests.support.facts import turns, until

PARKED = 350


async def test_many_are_answered_over_several_turns_and_others_in_between(bench: Bench) -> None:
    parked = [bench.call(CounterShard.park) for _ in range(PARKED)]
    await until(lambda: len(bench.shard.parked) == PARKED)
    woke = bench.call(CounterShard.wake)
    beats: list[int] = []  # how many were answered at each heartbeat

    def beat() -> None:
        beats.append(sum(task.done() for task in parked))
        if not all(task.done() for task in parked):
            asyncio.get_running_loop().call_soon(beat)

    await until(lambda: any(task.done() for task in parked))
    beat()
    await until(lambda: woke.done() and all(task.done() for task in parked))
    assert {task.result() for task in parked} == {"awake"}
    assert woke.result() == "woke"
    assert any(0 < count < PARKED for count in beats)


async def test_what_was_to_be_answered_is_when_the_shard_goes(bench: Bench) -> None:
    parked = [bench.call(CounterShard.park) for _ in range(PARKED)]
    await until(lambda: len(bench.shard.parked) == PARKED)
    woke = bench.call(CounterShard.wake)
    await until(lambda: any(task.done() for task in parked))
    assert not all(task.done() for task in parked)
    bench.shard.parked.clear()
    await bench.runtime.disown(SHARD)
    await until(lambda: woke.done() and all(task.done() for task in parked))
    assert {task.result() for task in parked} == {"awake"}


async def test_a_shard_that_fails_meanwhile_refuses_the_rest(bench: Bench) -> None:
    parked = [bench.call(CounterShard.park) for _ in range(PARKED)]
    await until(lambda: len(bench.shard.parked) == PARKED)
    bench.call(CounterShard.wake)
    await until(lambda: any(task.done() for task in parked))
    (host,) = bench.runtime.hosts()
    host.fail(ZeroDivisionError("a bug"))
    await until(lambda: all(task.done() for task in parked))
    refused = [task for task in parked if task.exception() is not None]
    assert 0 < len(refused) < PARKED
    assert {code(task) for task in refused} == {ErrorCode.NOT_COORDINATOR}


@pytest.mark.interpreted
async def test_a_shard_hears_of_the_end_of_connections_it_knows(bench: Bench) -> None:
    known = {1}
    bench.shard.knows_connection = known.__contains__  # type: ignore[method-assign]
    bench.shard.told.clear()
    bench.runtime.connection_closed(2)
    bench.runtime.connection_closed(1)
    await turns()
    assert bench.shard.told == [("closed", 1)]


@pytest.mark.interpreted
async def test_the_end_of_a_connection_comes_after_its_requests(bench: Bench) -> None:
    bench.shard.knows_connection = lambda connection_id: False  # type: ignore[method-assign]
    bench.shard.told.clear()
    waiting = asyncio.ensure_future(bench.runtime.call(GROUP, CounterShard.beat, None, CONTEXT))
    await asyncio.sleep(0)  # it is in the inbox now, and the shard may know the connection when it is stepped
    bench.runtime.connection_closed(1)
    await waiting
    await turns()
    assert bench.shard.told == [("closed", 1)]


async def test_a_request_at_once_does_not_overtake_the_inbox(bench: Bench) -> None:
    waiting = asyncio.ensure_future(bench.runtime.call(GROUP, CounterShard.write, 1, CONTEXT))
    await asyncio.sleep(0)
    answers: list[object] = []
    assert bench.runtime.call_at_once(GROUP, CounterShard.read, None, CONTEXT, answers.append) is LATER
    assert answers == []
    await until(lambda: bool(answers))
    assert answers == [[1]]
    assert await waiting == 1

"""Answers that an operation returns: sent at once, but not before what they report is durable."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from muster.coordinator.base.answers import LATER
from muster.coordinator.base.step import Step
from muster.coordinator.group.shard import Shard
from muster.coordinator.runtime.machine import Traits
from tests.runtime.support import CONTEXT, GROUP, Bench, CounterShard
from tests.support.facts import turns, until


class TellingShard(CounterShard):
    def tell(self, request: object, step: Step) -> list[int]:
        """Returns what it knows, as a heartbeat of a consumer group does."""
        step.reads_hard_state = True
        return list(self.numbers)


class TellingBench(Bench):
    def __init__(self) -> None:
        super().__init__()
        self.operations[TellingShard.tell] = Traits(returns=True, also_writes=True)
        self.answers: list[object] = []

    def make_shard(self, number: int) -> Shard:
        self.shards.append(TellingShard(number))
        return self.shards[-1]

    def told_at_once(self) -> object:
        return self.runtime.call_at_once(GROUP, TellingShard.tell, None, CONTEXT, self.answers.append)


@pytest.fixture
async def telling() -> AsyncIterator[TellingBench]:
    bench = TellingBench()
    await bench.start()
    yield bench
    bench.store.let_go()
    await bench.runtime.close()


async def test_what_is_durable_is_told_at_once(telling: TellingBench) -> None:
    assert telling.told_at_once() == []
    await telling.ask(CounterShard.write, 1)
    assert telling.told_at_once() == [1]


async def test_what_is_not_durable_yet_is_told_when_it_is(telling: TellingBench) -> None:
    telling.store.hold()
    telling.call(CounterShard.write, 1)
    await until(lambda: telling.store.transactions)
    assert telling.told_at_once() is LATER
    await turns()
    assert telling.answers == []
    telling.store.let_go()
    await until(lambda: telling.answers)
    assert telling.answers == [[1]]
    assert telling.told_at_once() == [1]

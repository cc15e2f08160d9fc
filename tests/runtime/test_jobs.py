"""Work that a step leaves to threads is done, and the shard is notified, whatever else the step did."""

from __future__ import annotations

from typing import Any

import pytest

from muster.coordinator.base.step import Step
from muster.coordinator.group.shard import Shard
from muster.coordinator.runtime.machine import Traits
from tests.runtime.support import CONTEXT, GROUP, Bench, CounterShard
from tests.support.facts import until


class LookingShard(CounterShard):
    def glance(self, request: object, step: Step) -> str:
        """Returns its answer and starts a lookup."""
        step.jobs.append(lambda: "found")
        return "answer"

    def job_done(self, job: object, found: Any, step: Step) -> None:
        self.told.append(found)


class LookingBench(Bench):
    def __init__(self) -> None:
        super().__init__()
        self.operations[LookingShard.glance] = Traits(returns=True, also_writes=True)

    def make_shard(self, number: int) -> Shard:
        self.shards.append(LookingShard(number))
        return self.shards[-1]


@pytest.mark.parametrize("at_once", [False, True])
async def test_a_job_of_a_step_that_only_returns_its_answer_is_done(at_once: bool) -> None:
    bench = await LookingBench().start()
    try:
        if at_once:
            answer = bench.runtime.call_at_once(
                GROUP, LookingShard.glance, None, CONTEXT, lambda answer: None
            )
        else:
            answer = await bench.runtime.call(GROUP, LookingShard.glance, None, CONTEXT)
        assert answer == "answer"
        await until(lambda: "found" in bench.shard.told)
    finally:
        await bench.runtime.close()

"""The cost of a rebalance is told apart from the cost of a slow member."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from muster.client import Producer
from muster.coordinator.testing import Cluster
from tests.causes.acting import Stage, wait_until
from tests.causes.cases import GROUP, PARTITIONS, TOPIC, Scene

pytestmark = pytest.mark.interop


def produce(bootstrap: str, each: int) -> None:
    """Produce `each` records to every partition."""

    async def send() -> None:
        async with Producer(bootstrap) as producer:
            for partition in range(PARTITIONS):
                for _ in range(each):
                    await producer.send(TOPIC, b"order", partition=partition)

    asyncio.run(send())


def test_a_slow_handler_after_a_short_rebalance(tmp_path: Path) -> None:
    settings = {"group_initial_rebalance_delay_ms": 0}
    with Cluster(1, **settings) as cluster, Stage(cluster.bootstrap, GROUP, tmp_path) as stage:
        cluster.create_topic(TOPIC, PARTITIONS)
        scene, group = Scene(cluster, stage, "muster"), cluster.group(GROUP)

        def committed(named: list[tuple[str, int]], offset: int) -> None:
            wait_until(lambda: all(group.offsets().get(each) == offset for each in named), "the commits")

        first = scene.start("web-1")
        scene.shared(first)
        produce(cluster.bootstrap, 10)
        committed(first.owned, 10)
        second = scene.start("web-2")
        scene.shared(first, second)
        generation = scene.generation
        second.tell("nap 3000")  # the handler of its first record
        produce(cluster.bootstrap, 100)
        committed(first.owned, 110)
        cluster.clock.advance("10s")  # triggers a lag sample
        scene.wait_for_entries("lag_at_commit")
        produce(cluster.bootstrap, 20)
        committed(first.owned, 130)
        cluster.clock.advance("20s")
        scene.wait_for_entries("lag_at_commit", 2)

        said = group.why(generation=generation)
        assert said.cost is not None, str(said)
        assert said.cost.falling_behind is not None, str(group.timeline())
        (slow,) = said.cost.falling_behind.members
        assert said.names.short(slow.member) == "web-2"
        assert slow.reads < slow.arrive / 10
        assert said.cost.falling_behind.growth >= 3 * 100
        # Records that arrived while web-2's partitions briefly had no owner.
        assert said.cost.waited is not None
        assert said.cost.waited < said.cost.falling_behind.growth / 2
        assert "also grew after it: web-2 " in said.lines()[-1]

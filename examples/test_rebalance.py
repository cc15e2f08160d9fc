"""Test a worker that dies, with a real broker and without waiting: asyncio, and the client of muster.

    pip install . pytest pytest-asyncio  # in a checkout; muster-kafka instead of ., once it is on PyPI
    pytest examples/test_rebalance.py

`Worker` stands for the code that you would test. The fixture `muster` comes with muster's pytest plugin.
"""

import asyncio

import pytest

from muster.client import Consumer
from muster.coordinator.testing import AsyncBroker

pytestmark = pytest.mark.asyncio


class Worker:
    """Handles the records of `orders` as a member of `billing`."""

    def __init__(self, muster: AsyncBroker, name: str) -> None:
        self.name = name
        self.handled: list[bytes] = []
        self._member = muster.group("billing").member(name)
        self._consumer = Consumer(
            muster.bootstrap,
            group_id="billing",
            topics=["orders"],
            client_id=name,
            auto_offset_reset="earliest",
            heartbeat_interval_ms=200,
            auto_commit_interval_ms=100,
        )
        self._alive = True

    async def __aenter__(self) -> "Worker":
        await self._consumer.start()
        self._running = asyncio.create_task(self._run())
        return self

    async def _run(self) -> None:
        async for record in self._consumer:
            self.handled.append(record.value)

    async def crash(self) -> None:
        """Die without leaving the group. The client lives in the test's own process, so the broker cuts it
        off for good. Returns when the group has seen that."""
        self._alive = False
        await self._member.crash()

    async def __aexit__(self, *_: object) -> None:
        self._running.cancel()
        await asyncio.wait([self._running])
        await self._consumer.close(timeout=30 if self._alive else 0)


def worker(muster: AsyncBroker, name: str) -> Worker:
    return Worker(muster, name)


async def test_crash_of_a_worker(muster):
    await muster.create_topic("orders", partitions=6)
    async with worker(muster, "web-1") as a, worker(muster, "web-2") as b:
        await muster.group("billing").stable(members=2)  # a fact, not a sleep
        await b.crash()  # returns once the broker has seen the connection close
        await muster.clock.advance("45s")  # takes no time; a's heartbeats were on time, so a stays
        await muster.group("billing").stable(members=1)
        assert muster.group("billing").why().cause == "session expired"
        assert [member.client_id for member in muster.group("billing").members] == [a.name]


async def test_nothing_is_handled_twice_when_a_worker_leaves(muster):
    await muster.create_topic("orders", partitions=6)
    group = muster.group("billing")
    async with worker(muster, "web-1") as a:
        async with worker(muster, "web-2") as b:
            await group.stable(members=2)
            for partition in range(6):
                await muster.produce("orders", [b"tea", b"milk"], partition=partition)
            await group.caught_up()
        await group.stable(members=1)
        assert len(a.handled) + len(b.handled) == 12

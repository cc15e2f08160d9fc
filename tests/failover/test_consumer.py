"""Our own members while their coordinator goes away and comes back: they keep reading in the same generation,
whichever way they read, and get no needless callbacks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, suppress
from typing import Any, Final, Self

import pytest

from muster.client import Consumer, ConsumerRecord, Producer, RebalanceListener, TopicPartition
from tests.failover.brokers import Fault
from tests.failover.conftest import Start
from tests.support.wire import DEADLINE_S

PARTITIONS: Final = 10
GROUP: Final = "orders"
TOPIC: Final = "t"
REQUEST_TIMEOUT_MS: Final = 3_000
"""After this time, a request to a paused broker times out. Kafka's default is 30 s."""
_LOOK_AGAIN_S: Final = 0.01


Read = Callable[["Consumer[Any, Any]"], AsyncIterator[ConsumerRecord[Any, Any]]]


async def by_iterating(consumer: Consumer[Any, Any]) -> AsyncIterator[ConsumerRecord[Any, Any]]:
    async for record in consumer:
        yield record


async def one_by_one(consumer: Consumer[Any, Any]) -> AsyncIterator[ConsumerRecord[Any, Any]]:
    while True:
        record = await consumer.get(timeout=0.2)
        if record is not None:
            yield record


async def many(consumer: Consumer[Any, Any]) -> AsyncIterator[ConsumerRecord[Any, Any]]:
    while True:
        for record in await consumer.get_many(timeout=0.2):
            yield record


async def batch_after_batch(consumer: Consumer[Any, Any]) -> AsyncIterator[ConsumerRecord[Any, Any]]:
    async for batch in consumer.batches():
        for record in batch:
            yield record


async def several_batches(consumer: Consumer[Any, Any]) -> AsyncIterator[ConsumerRecord[Any, Any]]:
    while True:
        for batch in await consumer.get_batches(timeout=0.2):
            for record in batch:
                yield record


WAYS: Final[tuple[Read, ...]] = (by_iterating, one_by_one, many, batch_after_batch, several_batches)


class Member(RebalanceListener):
    """Reads in one way, in a task, and records its listener's callbacks."""

    def __init__(self, bootstrap: str, way: Read, **settings: Any) -> None:
        self.values: list[bytes] = []
        self.told: list[str] = []
        self._way = way
        self.consumer: Consumer[Any, Any] = Consumer(
            bootstrap,
            group_id=GROUP,
            topics=TOPIC,
            listener=self,
            session_timeout_ms=120_000,
            heartbeat_interval_ms=200,
            auto_offset_reset="earliest",
            auto_commit_interval_ms=200,
            request_timeout_ms=REQUEST_TIMEOUT_MS,
            **settings,
        )

    async def read(self) -> None:
        async for record in self._way(self.consumer):
            self.values.append(record.value)

    def on_partitions_assigned(self, consumer: object, partitions: Iterable[TopicPartition]) -> None:
        self.told.append("assigned")

    def on_partitions_revoked(self, consumer: object, partitions: Iterable[TopicPartition]) -> None:
        self.told.append("revoked")

    def on_partitions_lost(self, consumer: object, partitions: Iterable[TopicPartition]) -> None:
        self.told.append("lost")

    @property
    def state(self) -> object:
        """Everything that a rebalance would change."""
        metadata = self.consumer.group_metadata()
        return (
            metadata.generation_id,
            metadata.member_id,
            self.consumer.assignment,
            self.consumer.health().rebalances,
            tuple(self.told),
        )


class Members:
    """A group in which each member reads in a different way."""

    def __init__(self) -> None:
        self.all: list[Member] = []
        self._open = AsyncExitStack()
        self._reading: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._reading:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        await self._open.aclose()

    async def start(self, bootstrap: str, **settings: Any) -> None:
        for number, way in enumerate(WAYS):
            # Two of them are static.
            instance_id = f"instance-{number}" if number < 2 else None
            member = Member(bootstrap, way, group_instance_id=instance_id, **settings)
            await self._open.enter_async_context(member.consumer)
            self._reading.append(asyncio.create_task(member.read()))
            self.all.append(member)
        await self.until(
            lambda: all(self.owned) and sum(map(len, self.owned)) == PARTITIONS, "partitions shared"
        )

    @property
    def owned(self) -> list[frozenset[TopicPartition]]:
        return [member.consumer.assignment for member in self.all]

    async def until(self, fact: Callable[[], bool], what: str) -> None:
        try:
            async with asyncio.timeout(DEADLINE_S):
                while not fact():
                    for task in self._reading:
                        if task.done():
                            await task
                    await asyncio.sleep(_LOOK_AGAIN_S)
        except TimeoutError:
            raise AssertionError(f"{what}: not within {DEADLINE_S:g} s; {self.all}") from None


@pytest.mark.stores_in_turn
@pytest.mark.parametrize(
    ("assignors", "fault"),
    [
        *((("range",), fault) for fault in Fault),
        (("cooperative-sticky",), Fault.KILL),
        (("cooperative-sticky",), Fault.STOP),
        (("sticky", "roundrobin"), Fault.KILL),
    ],
)
async def test_members_read_on_in_the_same_generation(
    assignors: tuple[str, ...], fault: Fault, start: Start
) -> None:
    cluster = start()
    await asyncio.to_thread(cluster.create_topic, TOPIC, PARTITIONS)
    async with (
        Producer(cluster.bootstrap, request_timeout_ms=REQUEST_TIMEOUT_MS) as producer,
        Members() as members,
    ):
        await members.start(cluster.bootstrap, assignors=assignors)
        sent: set[bytes] = set()

        async def all_is_read(label: str) -> None:
            values = [f"{label} {number}".encode() for number in range(20 * PARTITIONS)]
            sent.update(values)
            posted = [
                await producer.post(TOPIC, value, partition=number % PARTITIONS)
                for number, value in enumerate(values)
            ]
            await asyncio.gather(*posted)
            await members.until(lambda: {v for m in members.all for v in m.values} == sent, f"all {label}")

        async def state() -> object:
            at_the_broker = await asyncio.to_thread(cluster.asked, lambda: cluster.generation_id(GROUP))
            return at_the_broker, [member.state for member in members.all]

        await all_is_read("before")
        before = await state()
        index = await asyncio.to_thread(cluster.goes, fault, GROUP)
        await all_is_read("while it is gone")
        assert await state() == before
        await asyncio.to_thread(cluster.again, fault, index, GROUP)
        await all_is_read("when it is back")
        await asyncio.to_thread(
            cluster.wait_until, lambda: cluster.all_heard(GROUP), "every member to be heard of"
        )
        assert await state() == before
        assert sum(len(member.values) for member in members.all) == len(sent), "each record once"

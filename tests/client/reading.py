"""Shared by the tests of the consumer: records to read, readers in tasks, listeners that remember."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any, Final

from muster.client import Consumer, ConsumerRecord, Producer, RebalanceListener, TopicPartition

LONG_S: Final = 90.0
"""Nothing here takes this long, on any machine; waits for a fact time out after it."""
_BETWEEN_LOOKS_S: Final = 0.01


async def send(bootstrap: str, topic: str, count: int, *, partitions: int = 1, first: int = 0) -> None:
    """Send records with their number as value, round robin over the partitions."""
    async with Producer(bootstrap) as producer:
        futures = [
            await producer.post(topic, b"%d" % number, partition=number % partitions)
            for number in range(first, first + count)
        ]
        await asyncio.gather(*futures)


async def until(fact: Callable[[], object], *tasks: asyncio.Task[Any]) -> None:
    """Wait for a fact, or raise the error of a task that was to bring it about."""
    async with asyncio.timeout(LONG_S):
        while not fact():
            for task in tasks:
                if task.done():
                    task.result()
            await asyncio.sleep(_BETWEEN_LOOKS_S)


class Told(RebalanceListener):
    """Remembers its callbacks, in order, as (what, partitions)."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, set[TopicPartition]]] = []

    def on_partitions_revoked(
        self, consumer: Consumer[Any, Any], partitions: Iterable[TopicPartition]
    ) -> None:
        self.calls.append(("revoked", set(partitions)))

    def on_partitions_assigned(
        self, consumer: Consumer[Any, Any], partitions: Iterable[TopicPartition]
    ) -> None:
        self.calls.append(("assigned", set(partitions)))

    def on_partitions_lost(self, consumer: Consumer[Any, Any], partitions: Iterable[TopicPartition]) -> None:
        self.calls.append(("lost", set(partitions)))


def on(topic: str, *partitions: int) -> set[TopicPartition]:
    return {TopicPartition(topic, each) for each in partitions}


def numbers(records: Iterable[ConsumerRecord[Any, Any]]) -> list[int]:
    return [int(each.value) for each in records]


class Reading:
    """A consumer that is read in its own task, and what that task has seen."""

    def __init__(self, consumer: Consumer[Any, Any]) -> None:
        self.consumer = consumer
        self.seen: list[ConsumerRecord[Any, Any]] = []
        self.task = asyncio.create_task(self._read(), name=f"reader of {consumer!r}")

    async def _read(self) -> None:
        async for record in self.consumer:
            self.seen.append(record)

    async def until(self, fact: Callable[[], object]) -> None:
        await until(fact, self.task)

    async def until_assigned(self, *partitions: TopicPartition) -> None:
        await self.until(lambda: self.consumer.assignment == set(partitions))


@asynccontextmanager
async def reading(bootstrap: str, **settings: Any) -> AsyncIterator[Reading]:
    """A consumer that reads from the beginning, in its own task, until the block ends."""
    if settings.get("group_protocol") != "consumer":  # else the broker says how often
        settings = {"heartbeat_interval_ms": 200} | settings
    settings = {"auto_offset_reset": "earliest"} | settings
    async with Consumer(bootstrap, **settings) as consumer:
        reader = Reading(consumer)
        try:
            yield reader
        finally:
            consumer.stop()
            await asyncio.wait([reader.task], timeout=LONG_S)
            reader.task.cancel()
            await asyncio.wait([reader.task])
        reader.task.result()

"""Topics for tests to read, and readers without Spark."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

from muster.client import Admin, Producer, TopicPartition
from muster.coordinator.testing import Broker
from muster.pipeline.options import SourceOptions, source_options
from muster.pipeline.source import BatchReader, StreamReader

T = TypeVar("T")


def given(broker: Broker, **more: str) -> dict[str, str]:
    """Options as Spark passes them; `_` in a name stands for a dot."""
    return {"kafka.bootstrap.servers": broker.bootstrap} | {
        name.replace("_", "."): value for name, value in more.items()
    }


def options(broker: Broker, *, streaming: bool = False, **more: str) -> SourceOptions:
    return source_options(given(broker, **more), streaming=streaming)


def fill(broker: Broker, topic: str, *counts: int) -> None:
    """Create a topic with one partition per count, and that many records in it: values 0, 1, ..."""
    broker.create_topic(topic, len(counts))
    for partition, count in enumerate(counts):
        add(broker, topic, range(count), partition=partition)


def add(broker: Broker, topic: str, numbers: Iterable[int], *, partition: int = 0) -> None:
    values: list[bytes | tuple[bytes | None, bytes | None]] = [b"%d" % each for each in numbers]
    if values:
        broker.produce(topic, values, partition=partition)


def administered(broker: Broker, call: Callable[[Admin], Coroutine[Any, Any, T]]) -> T:
    async def run() -> T:
        async with Admin(broker.bootstrap) as admin:
            return await call(admin)

    return asyncio.run(run())


def produced(broker: Broker, call: Callable[[Producer], Coroutine[Any, Any, T]], **settings: Any) -> T:
    async def run() -> T:
        async with Producer(broker.bootstrap, **settings) as producer:
            return await call(producer)

    return asyncio.run(run())


def committed(broker: Broker, group_id: str) -> dict[TopicPartition, int]:
    offsets = administered(broker, lambda admin: admin.list_group_offsets(group_id))
    return {where: each.offset for where, each in offsets.items()}


def rows(reader: BatchReader | StreamReader, partitions: Iterable[Any]) -> list[dict[str, Any]]:
    """The rows that tasks read, in partition order."""
    return [row for each in partitions for batch in reader.read(each) for row in batch.to_pylist()]

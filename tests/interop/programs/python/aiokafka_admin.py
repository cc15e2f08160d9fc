"""Every admin call of aiokafka's AIOKafkaAdminClient."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import for_code

from tests.interop.programs.python import lines

T = TypeVar("T")


def admin(bootstrap: str, prefix: str) -> None:
    with asyncio.Runner() as runner:
        calls = _Calls(runner.run, bootstrap, prefix)
        runner.run(calls.start())
        try:
            lines.try_calls(calls.all(), lambda error: type(error).__name__)
        finally:
            runner.run(calls.close())


class _Calls:
    def __init__(self, run: Callable[[Any], Any], bootstrap: str, prefix: str) -> None:
        self._run = run
        self._bootstrap = bootstrap
        self._topic = f"{prefix}-topic"
        self._group = f"{prefix}-group"
        self._first = TopicPartition(self._topic, 0)

    async def start(self) -> None:
        self._client = AIOKafkaAdminClient(bootstrap_servers=self._bootstrap)
        await self._client.start()

    async def close(self) -> None:
        await self._client.close()

    def all(self) -> Iterator[tuple[str, Callable[[], object]]]:
        for call in (
            self.create_topics,
            self.create_partitions,
            self.list_topics,
            self.describe_topics,
            self.describe_cluster,
            self.describe_configs,
            self.alter_configs,
            self.delete_records,
            self.find_coordinator,
            self.list_consumer_group_offsets,
            self.list_consumer_groups,
            self.describe_consumer_groups,
            self.delete_topics,
        ):
            yield call.__name__, lambda call=call: self._run(call())

    async def create_topics(self) -> None:
        answer = await self._client.create_topics([NewTopic(self._topic, 1, 1)])
        _no_error(code for _, code, _ in answer.topic_errors)

    async def create_partitions(self) -> None:
        answer = await self._client.create_partitions({self._topic: NewPartitions(3)})
        _no_error(code for _, code, _ in answer.topic_errors)

    async def list_topics(self) -> None:
        async def there() -> bool:
            return self._topic in await self._client.list_topics()

        await _in_time(there, True)

    async def describe_topics(self) -> None:
        async def partitions() -> int:
            return len((await self._client.describe_topics([self._topic]))[0]["partitions"])

        await _in_time(partitions, 3)

    async def describe_cluster(self) -> None:
        lines.expect(bool((await self._client.describe_cluster())["brokers"]), True)

    async def describe_configs(self) -> None:
        lines.expect(await self._retention(), "604800000")

    async def alter_configs(self) -> None:
        resource = ConfigResource(ConfigResourceType.TOPIC, self._topic, {"retention.ms": "70000000"})
        (answer,) = await self._client.alter_configs([resource])
        _no_error(code for code, *_ in answer.resources)
        await _in_time(self._retention, "70000000")

    async def _retention(self) -> str:
        resource = ConfigResource(ConfigResourceType.TOPIC, self._topic)
        (answer,) = await self._client.describe_configs([resource])
        ((code, _, _, _, configs),) = answer.resources
        _no_error([code])
        return next(str(value) for name, value, *_ in configs if name == "retention.ms")

    async def delete_records(self) -> None:
        async with AIOKafkaProducer(bootstrap_servers=self._bootstrap) as producer:
            for number in range(10):
                await producer.send_and_wait(self._topic, b"%d" % number, partition=0)
        cut = await self._client.delete_records({self._first: RecordsToDelete(3)})
        lines.expect(cut[self._first], 3)

    async def find_coordinator(self) -> None:
        lines.expect(await self._client.find_coordinator(self._group) > 0, True)

    async def list_consumer_group_offsets(self) -> None:
        # With automatic commits, it would commit its position on close: the end of the log by then.
        async with AIOKafkaConsumer(
            bootstrap_servers=self._bootstrap, group_id=self._group, enable_auto_commit=False
        ) as consumer:
            consumer.assign([self._first])
            await consumer.commit({self._first: 5})
        found = await self._client.list_consumer_group_offsets(self._group)
        lines.expect({partition: each.offset for partition, each in found.items()}, {self._first: 5})

    async def list_consumer_groups(self) -> None:
        lines.expect(self._group in {name for name, *_ in await self._client.list_consumer_groups()}, True)

    async def describe_consumer_groups(self) -> None:
        (answer,) = await self._client.describe_consumer_groups([self._group])
        ((code, name, state, *_),) = answer.groups
        _no_error([code])
        lines.expect((name, state), (self._group, "Empty"))

    async def delete_topics(self) -> None:
        answer = await self._client.delete_topics([self._topic])
        _no_error(code for _, code in answer.topic_error_codes)


def _no_error(codes: Any) -> None:
    for code in codes:
        if code:
            raise for_code(code)


async def _in_time(ask: Callable[[], Awaitable[T]], wanted: T) -> None:
    """Wait: Apache Kafka's controller has acknowledged it, but its brokers may not know of it yet."""
    async with asyncio.timeout(lines.EXPECT_S):
        while await ask() != wanted:  # noqa: ASYNC110 - the fact is another process's
            await asyncio.sleep(0.05)

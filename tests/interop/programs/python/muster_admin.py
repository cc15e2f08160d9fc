"""Every admin call of muster's Admin."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar

from muster.client import (
    Admin,
    ConfigResource,
    Consumer,
    Earliest,
    KafkaError,
    NewTopic,
    Producer,
    Shift,
    TopicPartition,
)
from muster.client.admin.offsets import LATEST
from muster.protocol.errors import ErrorCode
from tests.interop.programs.python import lines

T = TypeVar("T")


def admin(bootstrap: str, prefix: str) -> None:
    with asyncio.Runner() as runner:
        calls = _Calls(runner.run, bootstrap, prefix)
        try:
            lines.try_calls(calls.all(), _error_of)
        finally:
            runner.run(calls.close())


def _error_of(error: Exception) -> str:
    return error.code.name if isinstance(error, KafkaError) else repr(error)


class _Calls:
    def __init__(self, run: Callable[[Any], Any], bootstrap: str, prefix: str) -> None:
        self._run = run
        self._bootstrap = bootstrap
        self._topic, self._other, self._group = f"{prefix}-topic", f"{prefix}-other", f"{prefix}-group"
        self._first = TopicPartition(self._topic, 0)
        self._resource = ConfigResource.of_topic(self._topic)

    async def close(self) -> None:
        await self._client.close()

    def all(self) -> Iterator[tuple[str, Callable[[], object]]]:
        async def start() -> None:
            self._client = Admin(self._bootstrap)

        self._run(start())
        for call in (
            self.create_topics,
            self.create_topic,
            self.create_partitions,
            self.list_topics,
            self.describe_topics,
            self.describe_topic,
            self.describe_cluster,
            self.describe_configs,
            self.alter_configs,
            self.list_offsets,
            self.delete_records,
            self.describe_producers,
            self.describe_log_dirs,
            self.elect_leaders,
            self.alter_group_offsets,
            self.list_group_offsets,
            self.list_groups_offsets,
            self.reset_group_offsets,
            self.delete_group_offsets,
            self.list_groups,
            self.describe_groups,
            self.describe_group,
            self.remove_members,
            self.delete_groups,
            self.delete_group,
            self.delete_topics,
            self.delete_topic,
        ):
            yield call.__name__, lambda call=call: self._run(call())

    async def create_topics(self) -> None:
        created = await self._client.create_topics(
            [NewTopic(name=self._topic, num_partitions=1, replication_factor=1)]
        )
        lines.expect([each.num_partitions for each in created.raise_for_failures().values()], [1])

    async def create_topic(self) -> None:
        await self._client.create_topic(self._other, configs={"retention.ms": "60000"})

    async def create_partitions(self) -> None:
        (await self._client.create_partitions({self._topic: 3})).raise_for_failures()

    async def list_topics(self) -> None:
        async def ours() -> set[str]:
            names = {each.name for each in await self._client.list_topics()}
            return names & {self._topic, self._other}

        await _in_time(ours, {self._topic, self._other})

    async def describe_topics(self) -> None:
        async def partitions() -> int:
            described = await self._client.describe_topics([self._topic])
            return len(described.raise_for_failures()[self._topic].partitions)

        await _in_time(partitions, 3)

    async def describe_topic(self) -> None:
        lines.expect((await self._client.describe_topic(self._topic)).replication_factor, 1)

    async def describe_cluster(self) -> None:
        lines.expect(bool((await self._client.describe_cluster()).brokers), True)

    async def describe_configs(self) -> None:
        lines.expect(await self._retention(), "604800000")

    async def alter_configs(self) -> None:
        await self._alter("80000000", "80000000")
        await self._alter(None, "604800000")

    async def _alter(self, value: str | None, then: str) -> None:
        altered = await self._client.alter_configs({self._resource: {"retention.ms": value}})
        altered.raise_for_failures()
        await _in_time(self._retention, then)

    async def _retention(self) -> str | None:
        described = await self._client.describe_configs([self._resource])
        return described.raise_for_failures()[self._resource]["retention.ms"].value

    async def list_offsets(self) -> None:
        async with Producer(self._bootstrap) as producer:
            for number in range(10):
                await producer.send(self._topic, b"%d" % number, partition=0)
        found = (await self._client.list_offsets({self._first: LATEST})).raise_for_failures()[self._first]
        lines.expect(found and found.offset, 10)

    async def delete_records(self) -> None:
        cut = await self._client.delete_records({self._first: 3})
        lines.expect(cut.raise_for_failures(), {self._first: 3})

    async def describe_producers(self) -> None:
        described = await self._client.describe_producers([self._first])
        (producer,) = described.raise_for_failures()[self._first]
        lines.expect(producer.last_sequence, 9)

    async def describe_log_dirs(self) -> None:
        described = (await self._client.describe_log_dirs()).raise_for_failures()
        lines.expect(bool(described) and all(described.values()), True)

    async def elect_leaders(self) -> None:
        failed = (await self._client.elect_leaders([self._first])).failed
        lines.expect([each.code for each in failed.values()], [ErrorCode.ELECTION_NOT_NEEDED])

    async def alter_group_offsets(self) -> None:
        (await self._client.alter_group_offsets(self._group, {self._first: 5})).raise_for_failures()

    async def list_group_offsets(self) -> None:
        lines.expect(await self._committed(), 5)

    async def list_groups_offsets(self) -> None:
        found = (await self._client.list_groups_offsets([self._group])).raise_for_failures()
        lines.expect([each.offset for each in found[self._group].values()], [5])

    async def _committed(self) -> int | None:
        found = (await self._client.list_group_offsets(self._group)).get(self._first)
        return None if found is None else found.offset

    async def reset_group_offsets(self) -> None:
        for to, then in ((Shift(-1), 4), (Earliest(), 3)):
            (await self._client.reset_group_offsets(self._group, to)).raise_for_failures()
            lines.expect(await self._committed(), then)

    async def delete_group_offsets(self) -> None:
        (await self._client.delete_group_offsets(self._group, [self._first])).raise_for_failures()
        lines.expect(await self._committed(), None)

    async def list_groups(self) -> None:
        await self.alter_group_offsets()  # without offsets, a group may be gone
        lines.expect(self._group in {each.group_id for each in await self._client.list_groups()}, True)

    async def describe_groups(self) -> None:
        described = (await self._client.describe_groups([self._group])).raise_for_failures()
        lines.expect(described[self._group].state, "Empty")

    async def describe_group(self) -> None:
        lines.expect((await self._client.describe_group(self._group)).members, [])

    async def remove_members(self) -> None:
        async with Consumer(self._bootstrap, group_id=self._group, topics=[self._topic]) as consumer:
            reading = asyncio.create_task(anext(aiter(consumer)))  # it has no records to wait for
            try:
                await _in_time(self._members, 1)
                removed = await self._client.remove_members(self._group)
                lines.expect(len(removed.raise_for_failures()), 1)
            finally:
                reading.cancel()
                await asyncio.wait([reading])

    async def _members(self) -> int:
        described = await self._client.describe_group(self._group)
        return len(described.members) if described.state == "Stable" else 0

    async def delete_groups(self) -> None:
        (await self._client.delete_groups([self._group])).raise_for_failures()

    async def delete_group(self) -> None:
        await self.alter_group_offsets()
        await self._client.delete_group(self._group)

    async def delete_topics(self) -> None:
        (await self._client.delete_topics([self._topic])).raise_for_failures()

    async def delete_topic(self) -> None:
        await self._client.delete_topic(self._other)


async def _in_time(ask: Callable[[], Awaitable[T]], wanted: T) -> None:
    """Wait: Apache Kafka's controller has acknowledged it, but its brokers may not know of it yet."""
    async with asyncio.timeout(lines.EXPECT_S):
        while await ask() != wanted:  # noqa: ASYNC110 - the fact is another process's
            await asyncio.sleep(0.05)

"""What a test has at hand: its own topics and groups, records in them, and consumers."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import pytest

from muster.client import (
    Admin,
    Consumer,
    ConsumerRecord,
    NewTopic,
    Producer,
    RebalanceListener,
    TopicPartition,
)

DEADLINE_S: Final = 60.0
LOOK_AGAIN_S: Final = 0.01

BOTH: Final = pytest.mark.parametrize("protocol", ["classic", "consumer"], indirect=True)
"""Run the test with members of each protocol."""
CONSUMER: Final = pytest.mark.parametrize("protocol", ["consumer"], indirect=True)
"""Run the test with members of the consumer protocol (KIP-848)."""
_CLASSIC_ALONE: Final = ("heartbeat_interval_ms", "session_timeout_ms")

Told = list[tuple[str, frozenset[int]]]
"""A listener's calls: "assigned", "revoked" or "lost", each with the partitions."""


async def until(fact: Callable[[], object], what: str) -> None:
    """Wait for a fact about what members do in their tasks."""
    try:
        async with asyncio.timeout(DEADLINE_S):
            while not fact():  # noqa: ASYNC110 - no event tells of all of them
                await asyncio.sleep(LOOK_AGAIN_S)
    except TimeoutError:
        raise AssertionError(f"timed out after {DEADLINE_S:g} s waiting for {what}") from None


class Listening(RebalanceListener):
    """Remembers its calls."""

    def __init__(self) -> None:
        self.told: Told = []

    @property
    def changes(self) -> Told:
        """The calls with partitions: assignments of nothing new are reported as well."""
        return [(what, partitions) for what, partitions in self.told if partitions]

    def on_partitions_assigned(
        self, consumer: Consumer[Any, Any], partitions: Iterable[TopicPartition]
    ) -> None:
        self.told.append(("assigned", _numbers(partitions)))

    def on_partitions_revoked(
        self, consumer: Consumer[Any, Any], partitions: Iterable[TopicPartition]
    ) -> None:
        self.told.append(("revoked", _numbers(partitions)))

    def on_partitions_lost(self, consumer: Consumer[Any, Any], partitions: Iterable[TopicPartition]) -> None:
        self.told.append(("lost", _numbers(partitions)))


class Member:
    """A consumer that is read by its own task."""

    def __init__(self, consumer: Consumer[Any, Any]) -> None:
        self.consumer = consumer
        self.records: list[ConsumerRecord[Any, Any]] = []
        self.failure: Exception | None = None

    async def read(self) -> None:
        try:
            async for record in self.consumer:
                self.records.append(record)
        except Exception as failure:
            self.failure = failure

    @property
    def values(self) -> list[Any]:
        return [record.value for record in self.records]

    @property
    def owned(self) -> frozenset[int]:
        if self.failure is not None:
            raise self.failure
        return _numbers(self.consumer.assignment)


class Place:
    """A test's own part of a cluster: no other test uses its topics and groups."""

    def __init__(self, bootstrap: str, admin: Admin, producer: Producer, protocol: str = "classic") -> None:
        self.bootstrap = bootstrap
        self.protocol = protocol
        self.admin = admin
        self.producer = producer
        self.name = f"t{uuid.uuid4().hex[:12]}"
        self._topics = 0

    async def topic(self, partitions: int = 1, **configs: str) -> str:
        """Create a topic that is ready for use; config names have underscores for dots."""
        self._topics += 1
        name = f"{self.name}-{self._topics}"
        await self.create(name, partitions, **configs)
        return name

    async def create(self, name: str, partitions: int = 1, **configs: str) -> None:
        dotted = {config.replace("_", "."): value for config, value in configs.items()}
        topic = NewTopic(name=name, num_partitions=partitions, replication_factor=1, configs=dotted)
        (await self.admin.create_topics([topic])).raise_for_failures()
        async with asyncio.timeout(DEADLINE_S):
            # Brokers learn of it a moment later.
            while not await self._is_ready(name, partitions):  # noqa: ASYNC110
                await asyncio.sleep(LOOK_AGAIN_S)

    async def _is_ready(self, name: str, partitions: int) -> bool:
        described = (await self.admin.describe_topics([name])).succeeded.get(name)
        return (
            described is not None
            and len(described.partitions) == partitions
            and all(each.leader >= 0 for each in described.partitions)
        )

    @property
    def group(self) -> str:
        """The test's group."""
        return f"{self.name}-group"

    async def send(
        self, topic: str, *values: bytes, partition: int = 0, timestamp_ms: int | None = None
    ) -> None:
        """Send records in this order; returns once they are acknowledged."""
        sent = [
            await self.producer.post(topic, value, partition=partition, timestamp_ms=timestamp_ms)
            for value in values
        ]
        await asyncio.gather(*sent)

    async def spread(self, topic: str, partitions: int, count: int, prefix: str = "") -> set[bytes]:
        """Send `count` records to each of the partitions; returns their values."""
        values = set()
        for partition in range(partitions):
            mine = [b"%s%d-%d" % (prefix.encode(), partition, number) for number in range(count)]
            await self.send(topic, *mine, partition=partition)
            values.update(mine)
        return values

    def consumer(self, **settings: Any) -> Consumer[Any, Any]:
        """A consumer that starts at the earliest record, learns quickly of rebalances, and speaks the test's
        protocol; `settings` override that."""
        given = {"auto_offset_reset": "earliest", "heartbeat_interval_ms": 200, **settings}
        given.setdefault("group_protocol", self.protocol)
        if given["group_protocol"] == "consumer":
            given = {name: value for name, value in given.items() if name not in _CLASSIC_ALONE}
        return Consumer(self.bootstrap, **given)

    @asynccontextmanager
    async def member(self, topics: Any, **settings: Any) -> AsyncIterator[Member]:
        """A member of the test's group that reads continuously; it leaves when the block ends."""
        async with self.consumer(**{"group_id": self.group, "topics": topics, **settings}) as consumer:
            member = Member(consumer)
            reading = asyncio.create_task(member.read())
            try:
                yield member
            finally:
                reading.cancel()
                with suppress(asyncio.CancelledError):
                    await reading
            if member.failure is not None:
                raise member.failure

    async def committed(self, group_id: str | None = None) -> dict[TopicPartition, int]:
        """The committed offsets that the coordinator reports."""
        offsets = await self.admin.list_group_offsets(group_id or self.group)
        return {where: each.offset for where, each in offsets.items()}

    async def until_committed(self, wanted: dict[TopicPartition, int]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while await self.committed() != wanted:  # noqa: ASYNC110 - the fact is another process's
                await asyncio.sleep(LOOK_AGAIN_S)

    async def until_members(self, count: int) -> None:
        """Wait until the group has this many members and is not rebalancing."""
        async with asyncio.timeout(DEADLINE_S):
            while True:
                described = await self.admin.describe_groups([self.group])
                for group in described.succeeded.values():  # it may not exist yet
                    if len(group.members) == count and group.state in ("Stable", "Empty"):
                        return
                await asyncio.sleep(LOOK_AGAIN_S)


def _numbers(partitions: Iterable[TopicPartition]) -> frozenset[int]:
    return frozenset(each.partition for each in partitions)


async def take(consumer: Consumer[Any, Any], count: int) -> list[ConsumerRecord[Any, Any]]:
    """The next `count` records."""
    records = []
    async with asyncio.timeout(DEADLINE_S):
        while len(records) < count:
            records.append(await anext(aiter(consumer)))
    return records


async def values_of(consumer: Consumer[Any, Any], count: int) -> list[Any]:
    return [record.value for record in await take(consumer, count)]

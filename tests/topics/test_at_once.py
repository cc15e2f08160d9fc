"""Fetches of records in memory are answered on the loop, just like those that go to the executor."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from muster.coordinator.storage.files import MemoryFile, MemoryFolder, WouldBlock
from muster.coordinator.storage.folders import Folders
from muster.coordinator.topics.catalogue import Topic
from muster.coordinator.topics.logs import Logs
from muster.coordinator.topics.partitions import FetchedPartition, FetchPartition, Partitions
from tests.topics.support import Brokers, InlineExecutor, batch

pytestmark = pytest.mark.files

PARTITIONS = 6


class Cache:
    """Limits the reads that succeed at once: only `left` more."""

    def __init__(self) -> None:
        self.left = 0

    def look(self) -> None:
        if not self.left:
            raise WouldBlock
        self.left -= 1


class CachedFolder(MemoryFolder):
    def __init__(self, cache: Cache, path: str = "memory") -> None:
        super().__init__(path)
        self._cache = cache

    def folder(self, name: str) -> MemoryFolder:
        if name not in self._entries:
            self._entries[name] = CachedFolder(self._cache, name)
        return super().folder(name)

    def new_file(self) -> MemoryFile:
        cache = self._cache

        class File(MemoryFile):
            def read_cached(self, position: int, size: int) -> bytes | memoryview:
                cache.look()
                return super().read_cached(position, size)

        return File()


class CountingExecutor(InlineExecutor):
    def __init__(self) -> None:
        self.trips = 0

    def submit(self, *call: object, **named: object) -> object:  # type: ignore[override]
        self.trips += 1
        return super().submit(*call, **named)


@contextmanager
def counted(node: Partitions) -> Iterator[CountingExecutor]:
    before, counting = node._executor, CountingExecutor()
    node._executor = counting
    yield counting
    node._executor = before


async def fetch(node: Partitions, asked: Sequence[FetchPartition], max_bytes: int) -> list[FetchedPartition]:
    return await node.fetch(asked, min_bytes=1, max_bytes=max_bytes, max_wait_ms=0)


async def filled(brokers: Brokers, dice: random.Random) -> tuple[Partitions, Topic]:
    node = await brokers.add()
    topic = await brokers.catalogues[0].create("orders", partitions=PARTITIONS)
    for partition in range(PARTITIONS - 1):  # the last is never opened
        for _ in range(dice.randrange(1, 30)):
            values = [b"x" * dice.choice((0, 10, 300, 5_000)) for _ in range(dice.randrange(1, 5))]
            await node.append(topic, partition, batch(*values))
    return node, topic


async def test_what_is_in_memory_costs_no_trip_to_the_executor() -> None:
    cache = Cache()
    brokers = Brokers(logs=Logs(Folders(CachedFolder(cache))))
    node, topic = await filled(brokers, random.Random(1))
    asked = [FetchPartition(topic, each, 0, 1 << 20) for each in range(PARTITIONS - 1)]
    for cached, trips in ((100, 0), (2, 1), (0, 1)):
        cache.left = cached
        with counted(node) as executor:
            answers = await fetch(node, asked, 50 << 20)
        assert all(answer.records for answer in answers)
        assert executor.trips == trips
    for trips in (1, 0):  # the first opens the log
        with counted(node) as executor:
            await fetch(node, [FetchPartition(topic, PARTITIONS - 1, 0, 1 << 20)], 50 << 20)
        assert executor.trips == trips
    await brokers.close()


async def test_a_fetch_reads_no_more_than_a_megabyte_on_the_loop() -> None:
    brokers = Brokers(logs=Logs.in_memory())
    node = await brokers.add()
    topic = await brokers.catalogues[0].create("orders", partitions=3)
    for partition in range(3):
        await node.append(topic, partition, batch(b"x" * 900_000))
    for count, trips in ((1, 0), (2, 0), (3, 1)):
        asked = [FetchPartition(topic, each, 0, 1 << 20) for each in range(count)]
        with counted(node) as executor:
            answers = await fetch(node, asked, 50 << 20)
        assert all(len(answer.records) > 900_000 for answer in answers)
        assert executor.trips == trips
    await brokers.close()


async def test_answers_do_not_tell_where_they_were_read() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    cache = Cache()
    brokers = Brokers(logs=Logs(Folders(CachedFolder(cache))))
    node, topic = await filled(brokers, dice)
    for _ in range(300):
        asked = [
            FetchPartition(
                topic,
                partition,
                dice.randrange(-1, 70),
                dice.choice((0, 100, 3_000, 1 << 20)),
                last_fetched_epoch=dice.choice((-1, -1, 0, 1, 7)),
            )
            for partition in dice.sample(range(PARTITIONS), dice.randrange(1, PARTITIONS + 1))
        ]
        max_bytes = dice.choice((0, 100, 6_000, 50 << 20))
        told = []
        for cached in (0, dice.randrange(1, 8), 1_000):
            cache.left = cached
            answers = await fetch(node, asked, max_bytes)
            told.append([(str(each.error), bytes(each.records), *each[2:]) for each in answers])
        assert told[0] == told[1] == told[2]
    await brokers.close()

"""A broker's partitions, including those of a topic whose records are rows of the store (`rows`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

from muster.coordinator.base.clock import ManualClock
from muster.coordinator.storage.memory import MemoryStore
from muster.coordinator.storage.store import Lease, LeaseKind, StoreError
from muster.coordinator.topics.catalogue import Catalogue, Topic
from muster.coordinator.topics.logs import Logs
from muster.coordinator.topics.partitions import Partitions
from muster.coordinator.topics.rows import RowPartitions
from muster.coordinator.topics.sources import FetchPartition
from tests.topics.support import NOW_MS, InlineExecutor
from tests.topics.test_partitions import ask

SHARDS: Final = 3
CHECK_INTERVAL_MS: Final = 300_000


class GatedStore(MemoryStore):
    """Counts row lookups, lets a test delay them, and fails on demand."""

    def __init__(self) -> None:
        super().__init__(lease_counts=dict.fromkeys(LeaseKind, SHARDS))
        self.looks = 0
        self.open_gate = asyncio.Event()
        self.open_gate.set()
        self.failing: StoreError | None = None

    async def look(self) -> None:
        """Awaited by every row lookup that a test may delay, once it has found the rows."""
        self.looks += 1
        await self.open_gate.wait()
        self.fail()

    def fail(self) -> None:
        """Called first by every write that may fail."""
        if self.failing is not None:
            raise self.failing


S = TypeVar("S", bound=GatedStore)
R = TypeVar("R", bound=RowPartitions)


class RowsNode(Generic[S, R]):
    """A node that owns all of its partitions, with everything they need."""

    def __init__(self, topic: Topic, store: S, kind: Callable[..., R]) -> None:
        self.clock = ManualClock(NOW_MS)
        self.store = store
        self.serving = True
        self.epochs: dict[int, int] = {}
        self.topic = topic
        self.rows = kind(topic, store, self.clock, node_id=1, serving=lambda lease: self.serving)
        self.catalogue = Catalogue(store, self.clock, kept=[topic])
        self.partitions = Partitions(
            node_id=1,
            catalogue=self.catalogue,
            logs=Logs.in_memory(),
            clock=self.clock,
            executor=InlineExecutor(),
            shards=SHARDS,
            elsewhere={topic.topic_id: self.rows},
            retention_check_interval_ms=CHECK_INTERVAL_MS,
        )

    async def start(self) -> None:
        await self.store.open()
        await self.catalogue.refresh()
        self.partitions.start()
        for number in range(SHARDS):
            self.partitions.own(Lease(LeaseKind.DATA, number), 1)
            await self.own(number)

    async def own(self, number: int) -> None:
        (grant,) = await self.store.claim([Lease(self.rows.kind, number)], 1, 10_000)
        assert grant is not None
        self.epochs[number] = grant.epoch
        self.rows.own(number, grant.epoch)

    async def close(self) -> None:
        await self.partitions.close()
        await self.rows.close()
        await self.store.close()

    def ask(self, offset: int = 0, partition: int = 0, **options: Any) -> FetchPartition:
        return ask(self.topic, offset, partition, **options)

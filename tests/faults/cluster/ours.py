"""Members and a producer of muster's own client, as tasks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from typing import Any, Final

from muster.client.consumer import Consumer, RebalanceListener
from muster.client.partitions import TopicPartition
from muster.client.producer import Producer
from tests.faults.cluster.history import Commit, GroupHistory, Produced, Stint
from tests.faults.cluster.setting import (
    COMMIT_EVERY_S,
    HEARTBEAT_INTERVAL_MS,
    PRODUCE_EVERY_S,
    REQUEST_TIMEOUT_MS,
    SESSION_TIMEOUT_MS,
    TOPIC,
    Kind,
)
from tests.faults.cluster.working import Working

_CLOSE_S: Final = 10.0


class OurMember(Working, RebalanceListener):
    """A member that reads and commits by hand until it is stopped."""

    def __init__(self, name: str, kind: Kind, history: GroupHistory, bootstrap: str) -> None:
        super().__init__(name)
        self.committed_at = 0.0
        """Send time of the last acknowledged commit."""
        self._history = history
        self._stints: dict[int, Stint] = {}
        self._consumer = Consumer(
            bootstrap,
            topics=[TOPIC],
            listener=self,
            group_id=history.group,
            group_instance_id=name if kind.static else None,
            assignors=["cooperative-sticky" if kind.cooperative else "range"],
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=SESSION_TIMEOUT_MS,
            heartbeat_interval_ms=HEARTBEAT_INTERVAL_MS,
            request_timeout_ms=REQUEST_TIMEOUT_MS,
            metadata_max_age_ms=5_000,
            fetch_min_bytes=10_000,
            client_id=name,
        )

    @property
    def partitions(self) -> frozenset[int]:
        """The partitions it owns."""
        return frozenset(self._stints)

    def says(self) -> str:
        return str(self._consumer.health())

    async def on_partitions_revoked(self, consumer: Any, partitions: Iterable[TopicPartition]) -> None:
        await self._commit()
        for where in partitions:
            self._stints.pop(where.partition, None)

    def on_partitions_lost(self, consumer: Any, partitions: Iterable[TopicPartition]) -> None:
        for where in partitions:
            self._stints.pop(where.partition, None)

    def on_partitions_assigned(self, consumer: Any, partitions: Iterable[TopicPartition]) -> None:
        self._history.rebalances += 1
        now = time.monotonic()
        for where in partitions:
            self._stints[where.partition] = self._history.begin(self.name, where.partition, now)

    async def _work(self) -> None:
        await self._consumer.start()
        commit_at = 0.0
        try:
            while not self._stopped:
                for record in await self._consumer.get_many(timeout=0.1):
                    stint = self._stints[record.partition]
                    self._history.read(stint, record.offset, record.value or b"", time.monotonic())
                if time.monotonic() >= commit_at:
                    await self._commit()
                    commit_at = time.monotonic() + COMMIT_EVERY_S
        finally:
            await self._consumer.close(timeout=_CLOSE_S)

    async def _commit(self) -> None:
        sent_at = time.monotonic()
        sent: dict[TopicPartition, Commit] = {
            TopicPartition(TOPIC, each.partition): self._history.sent(
                each.partition, each.next_offset, sent_at
            )
            for each in self._stints.values()
            if each.first_offset is not None
        }
        if not sent:
            return
        told = await self._consumer.commit(
            {where: each.offset for where, each in sent.items()}, timeout=REQUEST_TIMEOUT_MS / 1000
        )
        now = time.monotonic()
        for where in told.committed:
            sent[where].acknowledged_at = now
        if told.ok:
            self.committed_at = sent_at


class OurProducer(Working):
    """Sends numbered records to all partitions until it is stopped."""

    def __init__(self, name: str, partitions: int, bootstrap: str) -> None:
        super().__init__(name)
        self.produced: Sequence[Produced] = [Produced(name, each) for each in range(partitions)]
        self.served_at = [0.0] * partitions
        """Send time of the last acknowledged record, by partition."""
        self._on_their_way: set[asyncio.Future[Any]] = set()
        self._failed: list[str] = []
        self._producer = Producer(
            bootstrap, linger_ms=20, request_timeout_ms=REQUEST_TIMEOUT_MS, metadata_max_age_ms=5_000
        )

    def look(self) -> None:
        if self._failed:
            raise AssertionError(f"records were given up: {self._failed[:3]}")
        super().look()

    async def stop(self) -> None:
        """Return when everything it has sent is acknowledged."""
        await super().stop()
        self.look()

    async def _work(self) -> None:
        async with self._producer:
            while not self._stopped:
                for each in self.produced:
                    await self._post(each)
                await asyncio.sleep(PRODUCE_EVERY_S)
            while self._on_their_way:
                await asyncio.wait(self._on_their_way)

    async def _post(self, produced: Produced) -> None:
        number, value = produced.next()
        sent_at = time.monotonic()
        future = await self._producer.post(TOPIC, value, partition=produced.partition)
        self._on_their_way.add(future)

        def settled(of: asyncio.Future[Any]) -> None:
            self._on_their_way.discard(of)
            error = of.exception()
            if error is not None:
                self._failed.append(f"{value!r}: {error!r}")
                return
            produced.acknowledged[number] = of.result().offset
            self.served_at[produced.partition] = max(self.served_at[produced.partition], sent_at)

        future.add_done_callback(settled)

"""Many workers, one consumer: each key in order, and no commit passes unfinished work.

    python examples/many_workers.py 127.0.0.1:9092 orders 8

A record's key selects its worker, so keys keep their order; reading waits while too many records are in
progress. Records finish in any order; for each partition, the committed offset is the one before which
everything is finished. When a partition is revoked, its unfinished records get ten seconds to finish
(`revocation_grace_ms`). When it is lost they are cancelled at once, because another member already has
them.
"""

import asyncio
import sys
from collections import deque
from collections.abc import Iterable
from contextlib import suppress

from muster.client import Consumer, ConsumerRecord, OffsetAndMetadata, RebalanceListener, TopicPartition

COMMIT_EVERY_S = 1.0


class Progress:
    """The records of one partition that are in progress, and the offset that is safe to commit."""

    def __init__(self) -> None:
        self._begun: deque[int] = deque()
        self._finished: set[int] = set()
        self.safe: int | None = None

    def begin(self, offset: int) -> None:
        self._begun.append(offset)

    def finish(self, offset: int) -> None:
        self._finished.add(offset)
        while self._begun and self._begun[0] in self._finished:
            offset = self._begun.popleft()
            self._finished.discard(offset)
            self.safe = offset + 1


class Workers(RebalanceListener):
    def __init__(self, count: int) -> None:
        self._turns = [asyncio.Lock() for _ in range(count)]
        self._room = asyncio.Semaphore(count * 4)
        self._progress: dict[TopicPartition, Progress] = {}

    async def give(self, consumer: Consumer, record: ConsumerRecord) -> None:
        """Pass the record to the worker for its key. Waits while too many records are in progress."""
        await self._room.acquire()
        where = record.topic_partition
        progress = self._progress.setdefault(where, Progress())
        progress.begin(record.offset)
        worker = hash(record.key) % len(self._turns)
        task = consumer.scope(where).create_task(self._work(worker, record, progress))
        task.add_done_callback(lambda _: self._room.release())

    async def _work(self, worker: int, record: ConsumerRecord, progress: Progress) -> None:
        async with self._turns[worker]:  # locks are granted in order, so records are handled in order
            await handle(worker, record)
        progress.finish(record.offset)

    async def commit(self, consumer: Consumer) -> None:
        offsets = {
            where: OffsetAndMetadata(progress.safe)
            for where, progress in self._progress.items()
            if progress.safe is not None and where in consumer.assignment
        }
        for where, outcome in (await consumer.commit(offsets)).items():
            print(f"{where}: {outcome}", flush=True)

    async def on_partitions_revoked(self, consumer: Consumer, partitions: Iterable[TopicPartition]) -> None:
        # By now all work has finished, or was cancelled when the grace period ended.
        await self.commit(consumer)
        for where in partitions:
            self._progress.pop(where, None)

    def on_partitions_lost(self, consumer: Consumer, partitions: Iterable[TopicPartition]) -> None:
        for where in partitions:
            self._progress.pop(where, None)


async def handle(worker: int, record: ConsumerRecord) -> None:
    await asyncio.sleep(0.01)  # stands for the real work, such as a request
    print(f"worker {worker}: {record.key} {record.value}", flush=True)


async def main(bootstrap: str, topic: str, count: str) -> None:
    workers = Workers(int(count))
    async with Consumer(
        bootstrap,
        group_id="workers",
        topics=topic,
        listener=workers,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        key_deserializer=bytes.decode,
        value_deserializer=bytes.decode,
        revocation_grace_ms=10_000,
    ) as consumer:
        loop = asyncio.get_running_loop()
        commit_at = loop.time() + COMMIT_EVERY_S
        while True:
            record = await consumer.get(timeout=COMMIT_EVERY_S)
            if record is not None:
                await workers.give(consumer, record)
            if loop.time() >= commit_at:
                await workers.commit(consumer)
                commit_at = loop.time() + COMMIT_EVERY_S


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    with suppress(KeyboardInterrupt):
        asyncio.run(main(*sys.argv[1:]))

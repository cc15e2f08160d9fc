"""muster's own client, exactly once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from muster.client import (
    Consumer,
    ConsumerRecord,
    NoTransaction,
    Producer,
    RebalanceListener,
    TopicPartition,
    TransactionAborted,
)
from tests.interop.programs.python import lines, transforming
from tests.interop.programs.python.transforming import Job


class Listener(RebalanceListener):
    def __init__(self) -> None:
        self._owned: set[int] = set()

    def on_partitions_assigned(
        self, consumer: Consumer[Any, Any], partitions: Iterable[TopicPartition]
    ) -> None:
        self._owned |= {each.partition for each in partitions}
        lines.say_assigned(consumer.group_metadata().generation_id, self._owned)

    def on_partitions_revoked(
        self, consumer: Consumer[Any, Any], partitions: Iterable[TopicPartition]
    ) -> None:
        self._owned -= {each.partition for each in partitions}
        lines.say_revoked(self._owned)

    def on_partitions_lost(self, consumer: Consumer[Any, Any], partitions: Iterable[TopicPartition]) -> None:
        self.on_partitions_revoked(consumer, partitions)


class Transformer:
    def __init__(self, job: Job, producer: Producer[bytes, bytes], consumer: Consumer[bytes, bytes]) -> None:
        self._job = job
        self._producer = producer
        self._consumer = consumer
        self._turns = transforming.Turns(job)

    async def run(self) -> None:
        to_leave = lines.standard_input_ends()
        while not to_leave.is_set():
            records = await self._consumer.get_many(self._job.records_max, timeout=0.1)
            if records:
                await self._transaction(records, kept=not self._turns.aborts())

    async def _transaction(self, records: Sequence[ConsumerRecord[bytes, bytes]], *, kept: bool) -> None:
        transaction = self._producer.transaction()
        try:
            transforming.say("began", len(records))
            await transaction.begin()
            results = [transforming.result_of(record.value) for record in records]
            sent = [
                await transaction.post(self._job.target, value, key=key, partition=partition)
                for partition, key, value in results
            ]
            await asyncio.gather(*sent)
            transforming.say("sent", len(records))
            await transaction.commit_offsets(self._consumer)
            transforming.say("offsets", len(records))
            if kept:
                await transaction.commit()
                transforming.say("committed", len(records))
            else:
                await transaction.abort()
                transforming.say("aborted", len(records))
                await self._go_back()
        except TransactionAborted as error:
            transforming.failed(error)
            with suppress(NoTransaction):  # it may not have begun
                await transaction.abort()
            await self._go_back()

    async def _go_back(self) -> None:
        """Go back to the committed offsets."""
        for partition, committed in (await self._consumer.committed()).items():
            if committed is None:
                self._consumer.seek_to_beginning(partition)
            else:
                self._consumer.seek(partition, committed)


async def _transform(job: Job) -> None:
    async with (
        Producer(job.bootstrap, transactional_id=job.transactional_id) as producer,
        Consumer(
            job.bootstrap,
            group_id=job.group,
            topics=job.source,
            listener=Listener(),
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            fetch_max_wait_ms=transforming.FETCH_MAX_WAIT_MS,
            session_timeout_ms=job.session_timeout_ms,
            heartbeat_interval_ms=job.heartbeat_interval_ms,
        ) as consumer,
    ):
        await Transformer(job, producer, consumer).run()
    lines.say("left")


def transform(job: Job) -> None:
    asyncio.run(_transform(job))


if __name__ == "__main__":
    transforming.run(transform)

"""aiokafka, exactly once.

It commits offsets for a group without its generation (TxnOffsetCommit 0) and does not wait for pending ones,
so that one transactional id per instance would not do (KIP-447). It is used as was usual before: each
partition has a producer, whose id fences that of the partition's previous owner, and only then is its offset
fetched.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, TopicPartition
from aiokafka.errors import KafkaError, ProducerFenced

from tests.interop.programs.python import lines, transforming
from tests.interop.programs.python.transforming import Job

_POLL_MS: Final = 100


class Transformer(ConsumerRebalanceListener):
    def __init__(self, job: Job) -> None:
        self._job = job
        self._turns = transforming.Turns(job)
        self._working = asyncio.Lock()
        """Held during a transaction: rebalances run in another task."""
        self._new: set[TopicPartition] = set()
        """Assigned partitions that have no producer yet."""
        self._producers: dict[TopicPartition, AIOKafkaProducer] = {}
        self._consumer = AIOKafkaConsumer(
            bootstrap_servers=job.bootstrap,
            group_id=job.group,
            session_timeout_ms=job.session_timeout_ms,
            heartbeat_interval_ms=job.heartbeat_interval_ms,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            fetch_max_wait_ms=transforming.FETCH_MAX_WAIT_MS,
            isolation_level="read_committed",
        )

    async def run(self) -> None:
        to_leave = lines.standard_input_ends()
        self._consumer.subscribe([self._job.source], listener=self)
        async with self._consumer:
            while not to_leave.is_set():
                await self._take_over()
                batches = await self._consumer.getmany(timeout_ms=_POLL_MS, max_records=self._job.records_max)
                for partition, records in batches.items():
                    async with self._working:
                        await self._handle(partition, records)
            await self._stop_producers()
        lines.say("left")

    async def _take_over(self) -> None:
        async with self._working:
            for partition in sorted(self._new):
                producer = AIOKafkaProducer(
                    bootstrap_servers=self._job.bootstrap,
                    transactional_id=f"{self._job.group}-{partition.partition}",
                )
                await producer.start()
                self._producers[partition] = producer
                self._new.discard(partition)
                await self._go_back(partition)

    async def _handle(self, partition: TopicPartition, records: list[Any]) -> None:
        if (producer := self._producers.get(partition)) is None:
            return  # it was fetched before a rebalance, and will be fetched again
        try:
            await self._transaction(producer, partition, records, kept=not self._turns.aborts())
        except ProducerFenced as error:  # another member owns it: the next rebalance says so
            transforming.failed(error)
            del self._producers[partition]
            await producer.stop()
        except KafkaError as error:
            transforming.failed(error)
            await producer.abort_transaction()
            await self._go_back(partition)

    async def _transaction(
        self, producer: AIOKafkaProducer, partition: TopicPartition, records: list[Any], *, kept: bool
    ) -> None:
        transforming.say("began", len(records))
        await producer.begin_transaction()
        results = [transforming.result_of(record.value) for record in records]
        sent = [
            await producer.send(self._job.target, value, key, partition=number)
            for number, key, value in results
        ]
        await asyncio.gather(*sent)
        transforming.say("sent", len(records))
        await producer.send_offsets_to_transaction({partition: records[-1].offset + 1}, self._job.group)
        transforming.say("offsets", len(records))
        if kept:
            await producer.commit_transaction()
            transforming.say("committed", len(records))
        else:
            await producer.abort_transaction()
            transforming.say("aborted", len(records))
            await self._go_back(partition)

    async def _go_back(self, partition: TopicPartition) -> None:
        """Go back to the committed offset."""
        committed = await self._consumer.committed(partition)
        if committed is None:
            await self._consumer.seek_to_beginning(partition)
        else:
            self._consumer.seek(partition, committed)

    async def _stop_producers(self) -> None:
        producers, self._producers = self._producers, {}
        for producer in producers.values():
            await producer.stop()

    async def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        self._new = set(assigned)
        lines.say_assigned(None, [each.partition for each in assigned])

    async def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        async with self._working:
            self._new = set()
            await self._stop_producers()
        lines.say_revoked()


async def _transform(job: Job) -> None:
    await Transformer(job).run()


def transform(job: Job) -> None:
    asyncio.run(_transform(job))


if __name__ == "__main__":
    transforming.run(transform)

"""aiokafka."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, TopicPartition
from aiokafka.errors import KafkaError

from tests.interop.programs.python import lines
from tests.interop.programs.python.aiokafka_admin import admin


def produce(bootstrap: str, topic: str, codec: str, first: int, count: int) -> None:
    asyncio.run(_produce(bootstrap, topic, codec, first, count))


async def _produce(bootstrap: str, topic: str, codec: str, first: int, count: int) -> None:
    compression = None if codec == "none" else codec
    async with AIOKafkaProducer(
        bootstrap_servers=bootstrap, compression_type=compression, acks="all", linger_ms=5
    ) as producer:
        sent = [await producer.send(topic, value, key) for key, value in lines.records(codec, first, count)]
        await asyncio.gather(*sent)


class Listener(ConsumerRebalanceListener):
    def __init__(self, consumer: AIOKafkaConsumer) -> None:
        self.handled: dict[TopicPartition, int] = {}
        """The offsets to commit."""
        self.handling = asyncio.Lock()
        """Held until records are committed: callbacks run in another task."""
        self._consumer = consumer

    async def commit(self) -> None:
        handled, self.handled = self.handled, {}
        if not handled:
            return
        by_number = {partition.partition: offset for partition, offset in handled.items()}
        try:
            await self._consumer.commit(handled)
        except KafkaError as error:
            lines.complain(error)
            lines.say_committed(by_number, certain=False)
        else:
            lines.say_committed(by_number)

    async def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        # There is no public way to get the generation.
        lines.say_assigned(self._consumer._coordinator.generation, [each.partition for each in assigned])

    async def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        async with self.handling:
            lines.say_revoked()


def member(bootstrap: str, group: str, topic: str, session_timeout_ms: int) -> None:
    asyncio.run(_member(bootstrap, group, topic, session_timeout_ms))


async def _member(bootstrap: str, group: str, topic: str, session_timeout_ms: int) -> None:
    to_leave = lines.standard_input_ends()
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=group,
        session_timeout_ms=session_timeout_ms,
        heartbeat_interval_ms=session_timeout_ms // 6,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    listener = Listener(consumer)
    consumer.subscribe([topic], listener=listener)
    async with consumer:
        while not to_leave.is_set():
            batches = await consumer.getmany(timeout_ms=100)  # waits for the end of a rebalance
            async with listener.handling:
                for partition, records in batches.items():
                    for record in records:
                        lines.say_record(record.partition, record.offset, record.key, record.value)
                        listener.handled[partition] = record.offset + 1
                await listener.commit()
    lines.say("left")


if __name__ == "__main__":
    lines.run(produce, member, admin)

"""muster's own client."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from muster.client import (
    Committed,
    Consumer,
    OffsetAndMetadata,
    Producer,
    RebalanceListener,
    Retry,
    SubscriptionPattern,
    TopicPartition,
)
from muster.client.security.properties import client_properties
from tests.interop.programs.python import lines
from tests.interop.programs.python.muster_admin import admin


def produce(bootstrap: str, topic: str, codec: str, first: int, count: int) -> None:
    asyncio.run(_produce(bootstrap, topic, codec, first, count))


async def _produce(bootstrap: str, topic: str, codec: str, first: int, count: int) -> None:
    async with Producer(bootstrap, compression_type=codec) as producer:
        sent = [
            await producer.post(topic, value, key=key) for key, value in lines.records(codec, first, count)
        ]
        await asyncio.gather(*sent)


class Listener(RebalanceListener):
    def __init__(self) -> None:
        self.handled: dict[TopicPartition, OffsetAndMetadata] = {}
        """By partition: the offset to commit."""
        self._owned: set[int] = set()

    async def commit(self, consumer: Consumer[Any, Any]) -> None:
        handled, self.handled = self.handled, {}
        if not handled:
            return
        for where, outcome in (await consumer.commit(handled)).items():
            if isinstance(outcome, Committed):
                lines.say_committed({_number(where): outcome.offset})
            elif isinstance(outcome, Retry):
                lines.complain(outcome)
                lines.say_committed({_number(where): outcome.offset}, certain=False)
                self.handled[where] = handled[where]
            else:  # another member owns it by now, and reads it again
                lines.complain(outcome)

    def on_partitions_assigned(
        self, consumer: Consumer[Any, Any], partitions: Iterable[TopicPartition]
    ) -> None:
        self._owned |= {_number(each) for each in partitions}
        lines.say_assigned(consumer.group_metadata().generation_id, self._owned)

    async def on_partitions_revoked(
        self, consumer: Consumer[Any, Any], partitions: Iterable[TopicPartition]
    ) -> None:
        await self.commit(consumer)
        self.on_partitions_lost(consumer, partitions)

    def on_partitions_lost(self, consumer: Consumer[Any, Any], partitions: Iterable[TopicPartition]) -> None:
        for each in partitions:
            self.handled.pop(each, None)
            self._owned.discard(_number(each))
        lines.say_revoked(self._owned, consumer.group_metadata().generation_id)


def _number(where: TopicPartition) -> int:
    return lines.place(where.topic, where.partition)


def member(bootstrap: str, group: str, topic: str, session_timeout_ms: int, *configs: str) -> None:
    asyncio.run(_member(bootstrap, group, topic, session_timeout_ms, lines.configs(configs)))


def _settings(session_timeout_ms: int, configs: dict[str, str]) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    if (assignor := configs.get("partition.assignment.strategy")) is not None:
        settings["assignors"] = (assignor,)
    told = client_properties(configs)
    settings |= told.security
    if told.client_id is not None:
        settings["client_id"] = told.client_id
    for name in ("group.protocol", "group.instance.id"):
        if name in configs:
            settings[name.replace(".", "_")] = configs[name]
    if configs.get("group.protocol") != "consumer":
        settings |= {
            "session_timeout_ms": session_timeout_ms,
            "heartbeat_interval_ms": session_timeout_ms // 6,
        }
    return settings


async def _member(
    bootstrap: str, group: str, topic: str, session_timeout_ms: int, configs: dict[str, str]
) -> None:
    to_leave = lines.standard_input_ends()
    listener = Listener()
    async with Consumer(
        bootstrap,
        group_id=group,
        topics=SubscriptionPattern(topic) if topic.startswith("^") else topic,
        listener=listener,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        **_settings(session_timeout_ms, configs),
    ) as consumer:
        while not to_leave.is_set():
            for record in await consumer.get_many(timeout=0.1):
                number = _number(record.topic_partition)
                lines.say_record(number, record.offset, record.key, record.value)
                listener.handled[record.topic_partition] = OffsetAndMetadata(
                    record.offset + 1, "", record.leader_epoch
                )
            await listener.commit(consumer)
    lines.say("left")


if __name__ == "__main__":
    lines.run(produce, member, admin)

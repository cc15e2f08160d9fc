"""aiokafka: heartbeats are sent from the user's event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition

from tests.causes.programs.commands import Commands, Options, say, say_assigned
from tests.causes.programs.on_a_loop import obey


class Listener(ConsumerRebalanceListener):
    async def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        say_assigned([(each.topic, each.partition) for each in assigned])

    async def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        pass


async def main(options: Options) -> None:
    consumer = AIOKafkaConsumer(
        bootstrap_servers=options.bootstrap,
        group_id=options.group,
        client_id=options.client_id,
        session_timeout_ms=options.session_timeout_ms,
        heartbeat_interval_ms=options.heartbeat_interval_ms,
        max_poll_interval_ms=options.max_poll_interval_ms,
        metadata_max_age_ms=options.metadata_max_age_ms,
        group_instance_id=options.instance,
        auto_offset_reset="earliest",
    )
    consumer.subscribe(options.topics, listener=Listener())
    commands = Commands()
    async with consumer:
        await obey(
            commands,
            lambda topics: consumer.subscribe(topics, listener=Listener()),
            lambda: consumer.getmany(timeout_ms=50),
        )
    say("closed")


if __name__ == "__main__":
    asyncio.run(main(Options.given()))

"""muster.client: heartbeats are sent from the user's event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from muster.client import Consumer, RebalanceListener, TopicPartition
from tests.causes.programs.commands import Commands, Options, say, say_assigned, say_gained, say_lost
from tests.causes.programs.on_a_loop import obey


class Listener(RebalanceListener):
    def on_partitions_assigned(
        self, consumer: Consumer[Any, Any], partitions: Iterable[TopicPartition]
    ) -> None:
        say_assigned([tuple(each) for each in partitions])


class Gaining(RebalanceListener):
    """Reports incremental changes, for the consumer protocol."""

    def on_partitions_assigned(
        self, consumer: Consumer[Any, Any], partitions: Iterable[TopicPartition]
    ) -> None:
        say_gained([tuple(each) for each in partitions])

    def on_partitions_revoked(
        self, consumer: Consumer[Any, Any], partitions: Iterable[TopicPartition]
    ) -> None:
        say_lost([tuple(each) for each in partitions])


async def main(options: Options) -> None:
    commands = Commands()
    protocol: dict[str, Any] = {
        "session_timeout_ms": options.session_timeout_ms,
        "heartbeat_interval_ms": options.heartbeat_interval_ms,
    }
    listener: RebalanceListener = Listener()
    if options.protocol == "consumer":
        listener = Gaining()
        protocol = {"group_protocol": "consumer", "group_remote_assignor": options.remote_assignor}
    async with Consumer(
        options.bootstrap,
        group_id=options.group,
        topics=options.topics,
        listener=listener,
        client_id=options.client_id,
        **protocol,
        max_poll_interval_ms=options.max_poll_interval_ms,
        metadata_max_age_ms=options.metadata_max_age_ms,
        group_instance_id=options.instance,
        auto_offset_reset="earliest",
    ) as consumer:
        await obey(
            commands,
            lambda topics: consumer.subscribe(topics, listener=listener),
            lambda: consumer.get_many(timeout=0.05),
        )
    say("closed")


if __name__ == "__main__":
    asyncio.run(main(Options.given()))

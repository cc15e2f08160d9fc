"""muster.client: heartbeats come from the user's event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import Any

from muster.client import Consumer, RebalanceListener, TopicPartition
from tests.causes.programs.commands import Block, Close, Commands, Nap, Options, Subscribe, say, say_assigned


class Listener(RebalanceListener):
    def on_partitions_assigned(
        self, consumer: Consumer[Any, Any], partitions: Iterable[TopicPartition]
    ) -> None:
        say_assigned([tuple(each) for each in partitions])


async def main(options: Options) -> None:
    commands = Commands()
    async with Consumer(
        options.bootstrap,
        group_id=options.group,
        topics=options.topics,
        listener=Listener(),
        client_id=options.client_id,
        session_timeout_ms=options.session_timeout_ms,
        heartbeat_interval_ms=options.heartbeat_interval_ms,
        max_poll_interval_ms=options.max_poll_interval_ms,
        metadata_max_age_ms=options.metadata_max_age_ms,
        group_instance_id=options.instance,
        auto_offset_reset="earliest",
    ) as consumer:
        while True:
            match commands.next():
                case Nap(seconds):
                    await asyncio.sleep(seconds)
                    say("awake")
                case Block(seconds):
                    time.sleep(seconds)  # noqa: ASYNC251 (that is the point)
                    say("awake")
                case Subscribe(topics):
                    consumer.subscribe(topics, listener=Listener())
                case Close():
                    break
            await consumer.get_many(timeout=0.05)
    say("closed")


if __name__ == "__main__":
    asyncio.run(main(Options.given()))

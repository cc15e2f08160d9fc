"""confluent-kafka (librdkafka): heartbeats come from threads of its own."""

from __future__ import annotations

import time
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from tests.causes.programs.commands import (
    Block,
    Close,
    Commands,
    Nap,
    Options,
    Subscribe,
    complain,
    say,
    say_assigned,
)


def main(options: Options) -> None:
    config: dict[str, Any] = {
        "bootstrap.servers": options.bootstrap,
        "group.id": options.group,
        "client.id": options.client_id,
        "session.timeout.ms": options.session_timeout_ms,
        "heartbeat.interval.ms": options.heartbeat_interval_ms,
        "max.poll.interval.ms": options.max_poll_interval_ms,
        "topic.metadata.refresh.interval.ms": options.metadata_max_age_ms,
        "auto.offset.reset": "earliest",
    }
    if options.instance is not None:
        config["group.instance.id"] = options.instance
    if options.assignors:
        config["partition.assignment.strategy"] = ",".join(options.assignors)
    consumer = Consumer(config)

    def on_assign(_: Consumer, partitions: list[TopicPartition]) -> None:
        say_assigned([(each.topic, each.partition) for each in partitions])

    consumer.subscribe(options.topics, on_assign=on_assign)
    commands = Commands()
    while True:
        match commands.next():
            case Nap(seconds) | Block(seconds):
                time.sleep(seconds)
                say("awake")
            case Subscribe(topics):
                consumer.subscribe(topics, on_assign=on_assign)
            case Close():
                break
        message = consumer.poll(0.05)
        if message is not None and message.error():
            complain(message.error())
            if message.error().fatal():
                say("fatal", error=message.error().str())
                break
    consumer.close()
    say("closed")


if __name__ == "__main__":
    main(Options.given())

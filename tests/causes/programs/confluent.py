"""confluent-kafka (librdkafka): heartbeats are sent from its own threads."""

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
    say_gained,
    say_lost,
)


def main(options: Options) -> None:
    config: dict[str, Any] = {
        "bootstrap.servers": options.bootstrap,
        "group.id": options.group,
        "client.id": options.client_id,
        "max.poll.interval.ms": options.max_poll_interval_ms,
        "topic.metadata.refresh.interval.ms": options.metadata_max_age_ms,
        "auto.offset.reset": "earliest",
    }
    is_consumer = options.protocol == "consumer"
    if is_consumer:
        config["group.protocol"] = "consumer"
        if options.remote_assignor is not None:
            config["group.remote.assignor"] = options.remote_assignor
    else:
        config["session.timeout.ms"] = options.session_timeout_ms
        config["heartbeat.interval.ms"] = options.heartbeat_interval_ms
    if options.instance is not None:
        config["group.instance.id"] = options.instance
    if options.assignors:
        config["partition.assignment.strategy"] = ",".join(options.assignors)
    consumer = Consumer(config)

    def on_assign(_: Consumer, partitions: list[TopicPartition]) -> None:
        (say_gained if is_consumer else say_assigned)([(each.topic, each.partition) for each in partitions])

    def on_revoke(_: Consumer, partitions: list[TopicPartition]) -> None:
        if is_consumer:
            say_lost([(each.topic, each.partition) for each in partitions])

    listeners = {"on_assign": on_assign, "on_revoke": on_revoke, "on_lost": on_revoke}
    consumer.subscribe(options.topics, **listeners)
    commands = Commands()
    while True:
        match commands.next():
            case Nap(seconds) | Block(seconds):
                time.sleep(seconds)
                say("awake")
            case Subscribe(topics):
                consumer.subscribe(topics, **listeners)
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

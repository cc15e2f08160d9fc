"""kafka-python: heartbeats are sent from its own thread."""

from __future__ import annotations

import time
from collections.abc import Collection

from kafka import ConsumerRebalanceListener, KafkaConsumer, TopicPartition

from tests.causes.programs.commands import Block, Close, Commands, Nap, Options, Subscribe, say, say_assigned


class Listener(ConsumerRebalanceListener):
    def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        say_assigned([(each.topic, each.partition) for each in assigned])

    def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        pass


def main(options: Options) -> None:
    consumer = KafkaConsumer(
        bootstrap_servers=options.bootstrap.split(","),
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
    while True:
        match commands.next():
            case Nap(seconds) | Block(seconds):
                time.sleep(seconds)
                say("awake")
            case Subscribe(topics):
                consumer.subscribe(topics, listener=Listener())
            case Close():
                break
        consumer.poll(50)
    consumer.close()
    say("closed")


if __name__ == "__main__":
    main(Options.given())

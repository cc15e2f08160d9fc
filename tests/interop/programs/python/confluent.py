"""confluent-kafka (librdkafka)."""

from __future__ import annotations

import struct
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from tests.interop.programs.python import lines
from tests.interop.programs.python.confluent_admin import admin

_FLUSH_S: Final = 60.0
_COMMIT_EVERY: Final = 500
_GENERATION_AT: Final = len(b"CGMDv2:")


def produce(bootstrap: str, topic: str, codec: str, first: int, count: int) -> None:
    acknowledged = 0

    def on_delivery(error: KafkaError | None, message: Message) -> None:
        nonlocal acknowledged
        if error is not None:
            raise SystemExit(f"{message.value()!r} was not delivered: {error}")
        acknowledged += 1

    producer = Producer({"bootstrap.servers": bootstrap, "compression.type": codec})
    for key, value in lines.records(codec, first, count):
        producer.produce(topic, value, key, on_delivery=on_delivery)
        producer.poll(0)
    producer.flush(_FLUSH_S)
    if acknowledged != count:
        raise SystemExit(f"{acknowledged} of {count} records were acknowledged")


class Member:
    def __init__(self, bootstrap: str, group: str, session_timeout_ms: int, configs: dict[str, str]) -> None:
        self.handled: dict[tuple[str, int], int] = {}
        """By topic and partition: the offset to commit."""
        self._owned: set[int] = set()
        classic: dict[str, Any] = {
            "session.timeout.ms": session_timeout_ms,
            "heartbeat.interval.ms": session_timeout_ms // 6,
        }
        self.consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                **({} if configs.get("group.protocol") == "consumer" else classic),
                **configs,
            }
        )

    def subscribe(self, topic: str) -> None:
        self.consumer.subscribe(
            [topic], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
        )

    def commit(self) -> None:
        handled, self.handled = self.handled, {}
        if not handled:
            return
        wanted = [TopicPartition(*where, offset) for where, offset in handled.items()]
        try:
            done = self.consumer.commit(offsets=wanted, asynchronous=False)
        except KafkaException as error:
            lines.complain(error)
            lines.say_committed({lines.place(*each): handled[each] for each in handled}, certain=False)
            self.handled = handled  # what we keep through a rebalance is committed after it
            return
        for each in done:
            if each.error:
                lines.complain(each.error)
                self.handled[each.topic, each.partition] = each.offset
            number = lines.place(each.topic, each.partition)
            lines.say_committed({number: each.offset}, certain=each.error is None)

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._owned |= {lines.place(each.topic, each.partition) for each in partitions}
        lines.say_assigned(self._generation(), self._owned)

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.commit()
        self._on_lost(consumer, partitions)

    def _on_lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        for each in partitions:
            self.handled.pop((each.topic, each.partition), None)
            self._owned.discard(lines.place(each.topic, each.partition))
        lines.say_revoked(self._owned, self._generation())

    def _generation(self) -> int:
        # Written for librdkafka's own tests: the generation follows the magic.
        (generation,) = struct.unpack_from("=i", self.consumer.consumer_group_metadata(), _GENERATION_AT)
        return int(generation)


def member(bootstrap: str, group: str, topic: str, session_timeout_ms: int, *configs: str) -> None:
    to_leave = lines.standard_input_ends()
    member = Member(bootstrap, group, session_timeout_ms, lines.configs(configs))
    member.subscribe(topic)
    uncommitted = 0
    while not to_leave.is_set():
        message = member.consumer.poll(0.1)
        if message is not None and message.error():
            lines.complain(message.error())
        elif message is not None:
            partition = lines.place(message.topic(), message.partition())
            lines.say_record(partition, message.offset(), message.key(), message.value())
            member.handled[message.topic(), message.partition()] = message.offset() + 1
            uncommitted += 1
        if message is None or uncommitted >= _COMMIT_EVERY:
            member.commit()
            uncommitted = 0
    member.commit()
    member.consumer.close()
    lines.say("left")


if __name__ == "__main__":
    lines.run(produce, member, admin)

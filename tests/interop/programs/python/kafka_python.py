"""kafka-python."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from kafka import ConsumerRebalanceListener, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from kafka.errors import KafkaError, RetriableError
from kafka.structs import OffsetAndMetadata

from tests.interop.programs.python import lines
from tests.interop.programs.python.kafka_python_admin import admin

_FLUSH_S: Final = 60.0


def produce(bootstrap: str, topic: str, codec: str, first: int, count: int) -> None:
    compression = None if codec == "none" else codec
    producer = KafkaProducer(
        bootstrap_servers=bootstrap.split(","), compression_type=compression, linger_ms=5
    )
    sent = [producer.send(topic, value, key) for key, value in lines.records(codec, first, count)]
    producer.flush(_FLUSH_S)
    for future in sent:
        future.get(_FLUSH_S)
    producer.close()


class Member(ConsumerRebalanceListener):
    def __init__(
        self, bootstrap: str, group: str, topic: str, session_timeout_ms: int, **config: Any
    ) -> None:
        self.handled: dict[int, int] = {}
        """By partition: the offset to commit."""
        self._topic = topic
        self._owned: set[int] = set()
        self.consumer = KafkaConsumer(
            bootstrap_servers=bootstrap.split(","),
            group_id=group,
            session_timeout_ms=session_timeout_ms,
            heartbeat_interval_ms=session_timeout_ms // 6,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            **config,
        )
        self.consumer.subscribe([topic], listener=self)

    def commit(self) -> None:
        handled, self.handled = self.handled, {}
        if not handled:
            return
        try:
            self.consumer.commit(
                {
                    TopicPartition(self._topic, partition): OffsetAndMetadata(offset, "", -1)
                    for partition, offset in handled.items()
                }
            )
        except KafkaError as error:
            lines.complain(error)
            lines.say_committed(handled, certain=False)
            self.handled = handled  # what we keep through a rebalance is committed after it
        else:
            lines.say_committed(handled)

    def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        self._owned |= {each.partition for each in assigned}
        lines.say_assigned(self.consumer.group_metadata().generation_id, self._owned)

    def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        self.commit()
        self.on_partitions_lost(revoked)

    def on_partitions_lost(self, lost: Collection[TopicPartition]) -> None:
        for each in lost:
            self.handled.pop(each.partition, None)
            self._owned.discard(each.partition)
        lines.say_revoked(self._owned, self.consumer.group_metadata().generation_id)


ASSIGNORS: Final = {
    "range": RangePartitionAssignor,
    "roundrobin": RoundRobinPartitionAssignor,
    "sticky": StickyPartitionAssignor,
    "cooperative-sticky": CooperativeStickyAssignor,
}


def member(
    bootstrap: str, group: str, topic: str, session_timeout_ms: int, assignor: str | None = None
) -> None:
    to_leave = lines.standard_input_ends()
    config = {"partition_assignment_strategy": (ASSIGNORS[assignor],)} if assignor else {}
    member = Member(bootstrap, group, topic, session_timeout_ms, **config)
    while not to_leave.is_set():
        try:
            polled = member.consumer.poll(100)
        except RetriableError as error:  # its connection broke while it looked for its coordinator
            lines.complain(error)
            continue
        for records in polled.values():
            for record in records:
                lines.say_record(record.partition, record.offset, record.key, record.value)
                member.handled[record.partition] = record.offset + 1
        member.commit()
    member.consumer.close(autocommit=False)
    lines.say("left")


if __name__ == "__main__":
    lines.run(produce, member, admin)

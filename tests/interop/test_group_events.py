"""Stock clients read a group's history from `__group_events`, and are not disturbed by the topic."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from kafka import KafkaConsumer
from kafka import TopicPartition as KafkaPythonPartition

from muster.coordinator.cluster.placement import EVENTS_TOPIC, OFFSETS_TOPIC, TRANSACTIONS_TOPIC, shard_of
from muster.coordinator.testing import Broker
from tests.interop import test_confluent as confluent
from tests.interop.polling import DEADLINE_S, poll_until

pytestmark = pytest.mark.interop

GROUP = "billing"
PARTITIONS = 50


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(group_min_session_timeout_ms=500, group_initial_rebalance_delay_ms=200) as broker:
        yield broker


class Reader:
    """What a client found in the topic: records as (partition, offset, timestamp, key, value)."""

    def __init__(self) -> None:
        self.found: list[tuple[int, int, int, bytes | None, bytes]] = []

    @property
    def values(self) -> list[bytes]:
        return [record[4] for record in self.found]

    @property
    def partitions(self) -> set[int]:
        return {record[0] for record in self.found}

    def entries(self, kind: str, group: str = GROUP) -> list[dict[str, Any]]:
        entries = (json.loads(value) for value in self.values)
        return [entry for entry in entries if (entry["type"], entry["group"]) == (kind, group)]


class ConfluentReader(Reader):
    def __init__(self, bootstrap: str, isolation_level: str) -> None:
        super().__init__()
        settings = {"bootstrap.servers": bootstrap, "group.id": "reader", "enable.auto.commit": False}
        self.consumer = Consumer(settings | {"isolation.level": isolation_level, "log_level": 0})
        self.consumer.assign([TopicPartition(EVENTS_TOPIC, number, 0) for number in range(PARTITIONS)])

    def poll(self) -> None:
        message = self.consumer.poll(0.05)
        if message is not None:
            assert message.error() is None, message.error()
            place = message.partition() or 0, message.offset() or 0, message.timestamp()[1]
            self.found.append((*place, message.key(), message.value() or b""))

    def close(self) -> None:
        self.consumer.close()

    def since(self, timestamp: int, partition: int) -> int:
        asked = [TopicPartition(EVENTS_TOPIC, partition, timestamp)]
        (found,) = self.consumer.offsets_for_times(asked, timeout=DEADLINE_S)
        return found.offset


class KafkaPythonReader(Reader):
    def __init__(self, bootstrap: str, isolation_level: str) -> None:
        super().__init__()
        self.consumer = KafkaConsumer(bootstrap_servers=bootstrap, isolation_level=isolation_level)
        partitions = [KafkaPythonPartition(EVENTS_TOPIC, number) for number in range(PARTITIONS)]
        self.consumer.assign(partitions)
        self.consumer.seek_to_beginning()

    def poll(self) -> None:
        for records in self.consumer.poll(50).values():
            self.found += [
                (each.partition, each.offset, each.timestamp, each.key, each.value) for each in records
            ]

    def close(self) -> None:
        self.consumer.close()

    def since(self, timestamp: int, partition: int) -> int:
        asked = KafkaPythonPartition(EVENTS_TOPIC, partition)
        offset: int = self.consumer.offsets_for_times({asked: timestamp})[asked].offset
        return offset


@pytest.mark.parametrize("isolation_level", ["read_uncommitted", "read_committed"])
@pytest.mark.parametrize("reading", [ConfluentReader, KafkaPythonReader])
def test_what_happened_is_read(broker: Broker, reading: Any, isolation_level: str) -> None:
    confluent.create_topic(broker.bootstrap, "orders", 3)
    with closing(reading(broker.bootstrap, isolation_level)) as reader:
        with closing(confluent.Member(broker.bootstrap, "orders", GROUP)) as member:
            poll_until(lambda: bool(reader.entries("rebalance_completed")), member, reader)
        poll_until(lambda: bool(reader.entries("member_removed")), reader)
        (added, *_), (completed, *_) = reader.entries("member_added"), reader.entries("rebalance_completed")
        assert (added["v"], added["member"]["client_id"]) == (1, "rdkafka")
        assert completed["generation"] == 1
        of_group = [record for record in reader.found if record[3] == GROUP.encode()]
        assert {record[0] for record in of_group} == {shard_of(GROUP)}
        offsets = [record[1] for record in reader.found if record[0] == shard_of(GROUP)]
        assert offsets == list(range(len(offsets)))
        for partition, offset, timestamp, _, value in of_group:
            assert json.loads(value)["at_ms"] == timestamp
            assert reader.since(timestamp, partition) <= offset


def assigned(consumer: Any, patience: float) -> set[str]:
    """The topics assigned to the only member of a group; `patience` is in the client's unit."""
    deadline = time.monotonic() + DEADLINE_S
    with closing(consumer):
        while not consumer.assignment():
            assert time.monotonic() < deadline
            consumer.poll(patience)
        return {each.topic for each in consumer.assignment()}


def test_kafka_python_s_pattern_leaves_it_out(broker: Broker) -> None:
    confluent.create_topic(broker.bootstrap, "orders", 3)
    consumer = KafkaConsumer(bootstrap_servers=broker.bootstrap, group_id=GROUP)
    consumer.subscribe(pattern=".*")
    assert assigned(consumer, 50) == {"orders"}


@pytest.mark.parametrize(
    ("settings", "topics"),
    [
        ({}, {"orders", OFFSETS_TOPIC, EVENTS_TOPIC, TRANSACTIONS_TOPIC}),
        ({"topic.blacklist": "^__.*"}, {"orders"}),
    ],
)
def test_librdkafka_s_pattern_leaves_out_what_it_is_told_to(
    broker: Broker, settings: dict[str, str], topics: set[str]
) -> None:
    """It treats internal topics like others, whatever the broker."""
    confluent.create_topic(broker.bootstrap, "orders", 3)
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": GROUP, **settings}
    consumer = Consumer({**settings, "log_level": 0})
    consumer.subscribe(["^.*"])
    assert assigned(consumer, 0.05) == topics

"""The stock confluent-kafka client (librdkafka), unchanged, against muster."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic, OffsetSpec

from muster.coordinator.testing import Broker, Cluster
from tests.interop.polling import DEADLINE_S, poll_until, values
from tests.support.served import Served

pytestmark = pytest.mark.interop

MEMBER = Path(__file__).with_name("confluent_member.py")


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(group_min_session_timeout_ms=500) as broker:
        yield broker


def admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})


def create_topic(bootstrap: str, name: str, partitions: int, **config: str) -> None:
    client = admin(bootstrap)  # it must outlive its futures
    (made,) = client.create_topics([NewTopic(name, partitions, 1, config=config)]).values()
    made.result(DEADLINE_S)


def produce(bootstrap: str, topic: str, values: list[bytes], **config: Any) -> list[Message]:
    """Produce values to the topic's partitions by key; returns the delivered messages."""
    delivered: list[Message] = []

    def on_delivery(error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        delivered.append(message)

    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0, "linger.ms": 1, **config})
    for value in values:
        producer.produce(topic, value, key=value, on_delivery=on_delivery)
    assert producer.flush(DEADLINE_S) == 0
    return delivered


class Member:
    """A group member that remembers the values it has received."""

    def __init__(self, bootstrap: str, topic: str, group_id: str = "orders", **config: Any) -> None:
        self.values: list[bytes] = []
        self.assignments = 0
        self.consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group_id,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": 1_000,
                "heartbeat.interval.ms": 100,
                "log_level": 0,
                **config,
            }
        )
        self.consumer.subscribe([topic], on_assign=self._on_assign)

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.assignments += 1

    def poll(self) -> None:
        message = self.consumer.poll(0.05)
        if message is not None and message.error() is None:
            self.values.append(message.value() or b"")

    @property
    def partitions(self) -> set[int]:
        return {each.partition for each in self.consumer.assignment()}

    def close(self) -> None:
        self.consumer.close()


def test_create_produce_consume_commit(broker: Broker) -> None:
    create_topic(broker.bootstrap, "t", 3)
    sent = values(300)
    delivered = produce(broker.bootstrap, "t", sent)
    assert {each.partition() for each in delivered} == {0, 1, 2}
    member = Member(broker.bootstrap, "t")
    poll_until(lambda: len(member.values) == 300, member)
    assert sorted(member.values) == sorted(sent)
    committed = member.consumer.commit(asynchronous=False)
    assert sum(each.offset for each in committed) == 300
    member.close()
    assert broker.group_state("orders") == "Empty"
    # The next one begins where the last one ended.
    produce(broker.bootstrap, "t", [b"more"])
    again = Member(broker.bootstrap, "t")
    poll_until(lambda: bool(again.values), again)
    assert again.values == [b"more"]
    again.close()


def test_a_topic_is_created_by_producing_to_it(broker: Broker) -> None:
    produce(broker.bootstrap, "new", [b"1"])
    assert admin(broker.bootstrap).list_topics(timeout=DEADLINE_S).topics["new"].partitions.keys() == {0}


def test_members_share_the_partitions_as_they_come_and_leave(broker: Broker) -> None:
    create_topic(broker.bootstrap, "t", 4)
    first = Member(broker.bootstrap, "t")
    poll_until(lambda: first.partitions == {0, 1, 2, 3}, first)
    second = Member(broker.bootstrap, "t")
    poll_until(lambda: len(first.partitions) == len(second.partitions) == 2, first, second)
    assert first.partitions | second.partitions == {0, 1, 2, 3}
    assert broker.wait_for_group("orders", "Stable", members=2).members == 2
    second.close()
    poll_until(lambda: first.partitions == {0, 1, 2, 3}, first)
    first.close()


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
def test_every_assignor(broker: Broker, strategy: str) -> None:
    create_topic(broker.bootstrap, "t", 4)
    config = {"partition.assignment.strategy": strategy}
    members = [Member(broker.bootstrap, "t", **config) for _ in range(2)]
    poll_until(lambda: all(len(member.partitions) == 2 for member in members), *members)
    assert members[0].partitions | members[1].partitions == {0, 1, 2, 3}
    for member in members:
        member.close()


def test_a_killed_member_is_evicted_when_its_session_is_over(broker: Broker) -> None:
    create_topic(broker.bootstrap, "t", 4)
    survivor = Member(broker.bootstrap, "t")
    with subprocess.Popen(
        [sys.executable, str(MEMBER), broker.bootstrap, "orders", "t"], stdout=subprocess.PIPE, text=True
    ) as victim:
        try:
            poll_until(lambda: len(survivor.partitions) == 2, survivor)
            broker.wait_for_group("orders", "Stable", members=2)
        finally:
            victim.kill()
    poll_until(lambda: survivor.partitions == {0, 1, 2, 3}, survivor)
    assert broker.wait_for_group("orders", "Stable", members=1).members == 1
    survivor.close()


def test_a_static_member_that_returns_causes_no_rebalance(broker: Broker) -> None:
    create_topic(broker.bootstrap, "t", 4)
    stays = Member(broker.bootstrap, "t", **{"group.instance.id": "one", "session.timeout.ms": 20_000})
    leaves = Member(broker.bootstrap, "t", **{"group.instance.id": "two", "session.timeout.ms": 20_000})
    poll_until(lambda: len(stays.partitions) == len(leaves.partitions) == 2, stays, leaves)
    had, assignments = leaves.partitions, stays.assignments
    leaves.close()  # librdkafka sends no LeaveGroup for a static member
    returned = Member(broker.bootstrap, "t", **{"group.instance.id": "two", "session.timeout.ms": 20_000})
    poll_until(lambda: returned.partitions == had, stays, returned)
    assert stays.assignments == assignments
    stays.close()
    returned.close()


def test_everything_acknowledged_survives_kill_9(tmp_path: Path) -> None:
    with Served(tmp_path / "data", "--group-min-session-timeout-ms", "500") as server:
        create_topic(server.bootstrap, "t", 2)
        produce(server.bootstrap, "t", values(100, "a"))
        member = Member(server.bootstrap, "t", **{"session.timeout.ms": 10_000})
        poll_until(lambda: len(member.values) == 100, member)
        member.consumer.commit(asynchronous=False)
        server.kill()
        server.start()
        # The same consumer goes on by itself, and a producer finds the log unchanged.
        delivered = produce(server.bootstrap, "t", values(50, "b"))
        assert all(message.offset() > 0 for message in delivered)
        poll_until(lambda: len(member.values) == 150, member)
        assert sorted(member.values) == sorted(values(100, "a") + values(50, "b"))
        member.close()
        # Nothing was committed until the end: a new consumer gets exactly what came after the commit.
        late = Member(server.bootstrap, "t")
        poll_until(lambda: len(late.values) == 50, late)
        assert sorted(late.values) == sorted(values(50, "b"))
        late.close()
        assert server.stop() == 0


def test_admin_of_groups(broker: Broker) -> None:
    create_topic(broker.bootstrap, "t", 2)
    produce(broker.bootstrap, "t", values(10))
    member = Member(broker.bootstrap, "t")
    poll_until(lambda: len(member.values) == 10, member)
    member.consumer.commit(asynchronous=False)
    client = admin(broker.bootstrap)

    listed = client.list_consumer_groups(request_timeout=DEADLINE_S).result().valid
    assert [(each.group_id, each.state) for each in listed] == [("orders", ConsumerGroupState.STABLE)]
    described = client.describe_consumer_groups(["orders", "none"], request_timeout=DEADLINE_S)
    group = described["orders"].result()
    assert group.state == ConsumerGroupState.STABLE
    assert {each.partition for each in group.members[0].assignment.topic_partitions} == {0, 1}
    assert described["none"].result().state == ConsumerGroupState.DEAD

    (offsets,) = client.list_consumer_group_offsets(
        [ConsumerGroupTopicPartitions("orders")], request_timeout=DEADLINE_S
    ).values()
    assert sum(each.offset for each in offsets.result().topic_partitions) == 10
    (refused,) = client.delete_consumer_groups(["orders"], request_timeout=DEADLINE_S).values()
    with pytest.raises(KafkaException) as raised:
        refused.result()
    assert raised.value.args[0].code() == KafkaError.NON_EMPTY_GROUP
    member.close()

    moved = ConsumerGroupTopicPartitions("orders", [TopicPartition("t", 0, 3)])
    (altered,) = client.alter_consumer_group_offsets([moved], request_timeout=DEADLINE_S).values()
    assert altered.result().topic_partitions[0].error is None
    (deleted,) = client.delete_consumer_groups(["orders"], request_timeout=DEADLINE_S).values()
    deleted.result()
    assert broker.group_state("orders") == "Dead"


def test_admin_of_topics(broker: Broker) -> None:
    client = admin(broker.bootstrap)
    create_topic(broker.bootstrap, "t", 1, **{"retention.ms": "60000"})
    (again,) = client.create_topics([NewTopic("t", 1, 1)]).values()
    with pytest.raises(KafkaException) as raised:
        again.result(DEADLINE_S)
    assert raised.value.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS
    (grown,) = client.create_partitions([NewPartitions("t", 3)]).values()
    grown.result(DEADLINE_S)
    assert len(client.list_topics("t", timeout=DEADLINE_S).topics["t"].partitions) == 3

    produce(broker.bootstrap, "t", values(30))
    partitions = [TopicPartition("t", number) for number in range(3)]
    ends = client.list_offsets({each: OffsetSpec.latest() for each in partitions})
    assert sum(end.result(DEADLINE_S).offset for end in ends.values()) == 30
    (cut,) = client.delete_records([TopicPartition("t", 0, -1)]).values()
    low = cut.result(DEADLINE_S).low_watermark
    starts = client.list_offsets({TopicPartition("t", 0): OffsetSpec.earliest()})
    assert [start.result(DEADLINE_S).offset for start in starts.values()] == [low]

    (gone,) = client.delete_topics(["t"]).values()
    gone.result(DEADLINE_S)
    assert "t" not in client.list_topics(timeout=DEADLINE_S).topics


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("idempotent", [False, True])
def test_every_compression_and_the_idempotent_producer(broker: Broker, codec: str, idempotent: bool) -> None:
    create_topic(broker.bootstrap, "t", 1)
    sent = [b"x" * 100 + value for value in values(200)]
    produce(broker.bootstrap, "t", sent, **{"compression.type": codec, "enable.idempotence": idempotent})
    member = Member(broker.bootstrap, "t")
    poll_until(lambda: len(member.values) == 200, member)
    assert member.values == sent
    member.close()


def test_headers_timestamps_and_offsets_for_times(broker: Broker) -> None:
    create_topic(broker.bootstrap, "t", 1)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    for second in range(5):
        producer.produce(
            "t", b"v", headers=[("n", b"%d" % second)], timestamp=1_700_000_000_000 + second * 1_000
        )
    assert producer.flush(DEADLINE_S) == 0
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g", "log_level": 0})
    (found,) = consumer.offsets_for_times([TopicPartition("t", 0, 1_700_000_002_500)], timeout=DEADLINE_S)
    assert found.offset == 3
    consumer.assign([found])
    deadline, message = time.monotonic() + DEADLINE_S, None
    while message is None and time.monotonic() < deadline:
        message = consumer.poll(0.1)
    assert message is not None
    assert message.headers() == [("n", b"3")]
    assert message.timestamp()[1] == 1_700_000_003_000
    assert consumer.get_watermark_offsets(TopicPartition("t", 0), timeout=DEADLINE_S) == (0, 5)
    consumer.close()


def test_losing_the_coordinator_costs_no_rebalance() -> None:
    with Cluster(3, group_min_session_timeout_ms=500) as cluster:
        cluster.create_topic("t", 6)
        produce(cluster.bootstrap, "t", values(60, "a"))
        member = Member(cluster.bootstrap, "t", **{"session.timeout.ms": 20_000})
        poll_until(lambda: len(member.values) == 60, member)
        member.consumer.commit(asynchronous=False)
        coordinator = cluster.coordinator_of("orders")
        assert coordinator is not None
        cluster.kill(coordinator)
        produce(cluster.bootstrap, "t", values(60, "b"))
        poll_until(lambda: len(member.values) >= 120, member)
        assert sorted(member.values) == sorted(values(60, "a") + values(60, "b"))
        committed = member.consumer.commit(asynchronous=False)
        assert sum(each.offset for each in committed) == 120
        assert cluster.coordinator_of("orders") != coordinator
        assert member.assignments == 1
        member.close()

"""The stock kafka-python client, unchanged, against muster."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from kafka import (
    ConsumerRebalanceListener,
    KafkaAdminClient,
    KafkaConsumer,
    KafkaProducer,
    OffsetAndMetadata,
    TopicPartition,
)
from kafka.errors import RetriableError, TopicAlreadyExistsError

from muster.coordinator.testing import Broker, Cluster
from tests.interop.polling import DEADLINE_S, poll_until, values
from tests.support.served import Served

pytestmark = pytest.mark.interop

DELAY_MS = 200
"""The initial rebalance delay. kafka-python 3.0 forgets to request its topic's metadata if it becomes leader
within retry_backoff_ms (100) of subscribing while a refresh is in flight; it then assigns nothing for
minutes."""
MEMBER = Path(__file__).with_name("kafka_python_member.py")


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(group_min_session_timeout_ms=500, group_initial_rebalance_delay_ms=DELAY_MS) as broker:
        yield broker


@pytest.fixture
def admin(broker: Broker) -> Iterator[Any]:
    with closing(KafkaAdminClient(bootstrap_servers=broker.bootstrap)) as admin:
        yield admin


def produce(bootstrap: str, topic: str, values: list[bytes], **config: Any) -> list[Any]:
    """Produce values to the topic's partitions by key; returns the broker's answer for each."""
    with closing(KafkaProducer(bootstrap_servers=bootstrap, **config)) as producer:
        futures = [producer.send(topic, value, key=value) for value in values]
        return [future.get(DEADLINE_S) for future in futures]


class Member(ConsumerRebalanceListener):  # type: ignore[misc]
    """A group member that remembers the values it has received."""

    def __init__(self, bootstrap: str, topic: str, group_id: str = "orders", **config: Any) -> None:
        self.values: list[bytes] = []
        self.assignments = 0
        self.consumer = KafkaConsumer(
            **{
                "bootstrap_servers": bootstrap,
                "group_id": group_id,
                "auto_offset_reset": "earliest",
                "enable_auto_commit": False,
                "session_timeout_ms": 1_000,
                "heartbeat_interval_ms": 100,
                **config,
            }
        )
        self.consumer.subscribe([topic], listener=self)

    def on_partitions_revoked(self, revoked: Sequence[Any]) -> None:
        pass

    def on_partitions_assigned(self, assigned: Sequence[Any]) -> None:
        self.assignments += 1

    # While kafka-python 3.0 looks for a coordinator that is gone, poll() and commit() raise whatever the next
    # request for metadata raises, and the dead broker is among the nodes it asks. An application calls again.

    def poll(self) -> None:
        with suppress(RetriableError):
            for records in self.consumer.poll(50).values():
                self.values += [record.value for record in records]

    def commit(self) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while True:
            try:
                self.consumer.commit()
            except RetriableError:
                if time.monotonic() > deadline:
                    raise
            else:
                return

    @property
    def partitions(self) -> set[int]:
        return {each.partition for each in self.consumer.assignment()}

    def close(self) -> None:
        self.consumer.close()


def test_create_produce_consume_commit(broker: Broker, admin: Any) -> None:
    admin.create_topics({"t": {"num_partitions": 3, "replication_factor": 1}})
    sent = values(300)
    stored = produce(broker.bootstrap, "t", sent)
    assert {each.partition for each in stored} == {0, 1, 2}
    member = Member(broker.bootstrap, "t")
    poll_until(lambda: len(member.values) == 300, member)
    assert sorted(member.values) == sorted(sent)
    member.commit()
    assert sum(member.consumer.committed(TopicPartition("t", number)) for number in range(3)) == 300
    member.close()
    assert broker.group_state("orders") == "Empty"
    # The next one begins where the last one ended.
    produce(broker.bootstrap, "t", [b"more"])
    again = Member(broker.bootstrap, "t")
    poll_until(lambda: bool(again.values), again)
    assert again.values == [b"more"]
    again.close()


def test_a_topic_is_created_by_producing_to_it(broker: Broker, admin: Any) -> None:
    produce(broker.bootstrap, "new", [b"1"])
    assert admin.list_topics() == ["__consumer_offsets", "__group_events", "__transaction_state", "new"]


def test_members_share_the_partitions_as_they_come_and_leave(broker: Broker) -> None:
    broker.create_topic("t", 4)
    first = Member(broker.bootstrap, "t")
    poll_until(lambda: first.partitions == {0, 1, 2, 3}, first)
    second = Member(broker.bootstrap, "t")
    poll_until(lambda: len(first.partitions) == len(second.partitions) == 2, first, second)
    assert first.partitions | second.partitions == {0, 1, 2, 3}
    assert broker.wait_for_group("orders", "Stable", members=2).members == 2
    second.close()
    poll_until(lambda: first.partitions == {0, 1, 2, 3}, first)
    first.close()


def test_a_killed_member_is_evicted_when_its_session_is_over(broker: Broker) -> None:
    broker.create_topic("t", 4)
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
    broker.create_topic("t", 4)
    config = {"session_timeout_ms": 20_000}
    stays = Member(broker.bootstrap, "t", group_instance_id="one", **config)
    leaves = Member(broker.bootstrap, "t", group_instance_id="two", **config)
    poll_until(lambda: len(stays.partitions) == len(leaves.partitions) == 2, stays, leaves)
    had, assignments = leaves.partitions, stays.assignments
    leaves.close()
    returned = Member(broker.bootstrap, "t", group_instance_id="two", **config)
    poll_until(lambda: returned.partitions == had, stays, returned)
    assert stays.assignments == assignments
    stays.close()
    returned.close()


def test_everything_acknowledged_survives_kill_9(tmp_path: Path) -> None:
    options = ("--group-min-session-timeout-ms", "500", "--group-initial-rebalance-delay-ms", str(DELAY_MS))
    with Served(tmp_path / "data", *options) as server:
        with closing(KafkaAdminClient(bootstrap_servers=server.bootstrap)) as admin:
            admin.create_topics({"t": {"num_partitions": 2, "replication_factor": 1}})
        produce(server.bootstrap, "t", values(100, "a"))
        member = Member(server.bootstrap, "t", session_timeout_ms=10_000)
        poll_until(lambda: len(member.values) == 100, member)
        member.commit()
        server.kill()
        server.start()
        # The same consumer goes on by itself, and a producer finds the log unchanged.
        stored = produce(server.bootstrap, "t", values(50, "b"))
        assert all(each.offset > 0 for each in stored)
        poll_until(lambda: len(member.values) == 150, member)
        assert sorted(member.values) == sorted(values(100, "a") + values(50, "b"))
        member.close()
        # Nothing was committed until the end: a new consumer gets exactly what came after the commit.
        late = Member(server.bootstrap, "t")
        poll_until(lambda: len(late.values) == 50, late)
        assert sorted(late.values) == sorted(values(50, "b"))
        late.close()
        assert server.stop() == 0


def test_admin_of_groups(broker: Broker, admin: Any) -> None:
    broker.create_topic("t", 2)
    produce(broker.bootstrap, "t", values(10))
    member = Member(broker.bootstrap, "t")
    poll_until(lambda: len(member.values) == 10, member)
    member.commit()
    assert [(each["group_id"], each["group_state"]) for each in admin.list_groups()] == [("orders", "Stable")]
    (described,) = admin.describe_groups(["orders"]).values()
    assert described["group_state"] == "Stable"
    (assigned,) = described["members"][0]["member_assignment"]["assigned_partitions"]
    assert sorted(assigned["partitions"]) == [0, 1]
    committed = admin.list_group_offsets({"orders": None})["orders"]
    assert sum(each.offset for each in committed.values()) == 10
    assert "NonEmpty" in repr(admin.delete_groups(["orders"])["orders"])
    member.close()
    admin.alter_group_offsets("orders", {TopicPartition("t", 0): OffsetAndMetadata(3, "moved", -1)})
    assert admin.list_group_offsets({"orders": None})["orders"][TopicPartition("t", 0)].offset == 3
    admin.delete_groups(["orders"])
    assert broker.group_state("orders") == "Dead"


def test_admin_of_topics(broker: Broker, admin: Any) -> None:
    admin.create_topics(
        {"t": {"num_partitions": 1, "replication_factor": 1, "configs": {"retention.ms": "60000"}}}
    )
    with pytest.raises(TopicAlreadyExistsError):
        admin.create_topics({"t": {"num_partitions": 1, "replication_factor": 1}})
    admin.create_partitions({"t": 3})
    (described,) = admin.describe_topics(["t"])
    assert len(described["partitions"]) == 3
    produce(broker.bootstrap, "t", values(30))
    admin.delete_records({TopicPartition("t", 0): -1})
    with closing(KafkaConsumer(bootstrap_servers=broker.bootstrap)) as consumer:
        partitions = [TopicPartition("t", number) for number in range(3)]
        ends, starts = consumer.end_offsets(partitions), consumer.beginning_offsets(partitions)
    assert sum(ends.values()) == 30
    assert starts[partitions[0]] == ends[partitions[0]] > 0
    assert starts[partitions[1]] == 0
    assert [each["broker_id"] for each in admin.describe_cluster()["brokers"]] == [1]
    admin.delete_topics(["t"])
    assert admin.list_topics() == ["__consumer_offsets", "__group_events", "__transaction_state"]


@pytest.mark.parametrize("idempotent", [False, True])
def test_values_arrive_as_they_were_sent(broker: Broker, idempotent: bool) -> None:
    broker.create_topic("t", 1)
    sent = [b"x" * 100 + value for value in values(200)]
    produce(broker.bootstrap, "t", sent, enable_idempotence=idempotent, compression_type="gzip")
    member = Member(broker.bootstrap, "t")
    poll_until(lambda: len(member.values) == 200, member)
    assert member.values == sent
    member.close()


def test_headers_timestamps_and_offsets_for_times(broker: Broker) -> None:
    broker.create_topic("t", 1)
    with closing(KafkaProducer(bootstrap_servers=broker.bootstrap)) as producer:
        for second in range(5):
            producer.send(
                "t", b"v", headers=[("n", b"%d" % second)], timestamp_ms=1_700_000_000_000 + second * 1_000
            ).get(DEADLINE_S)
    partition = TopicPartition("t", 0)
    with closing(KafkaConsumer(bootstrap_servers=broker.bootstrap)) as consumer:
        found = consumer.offsets_for_times({partition: 1_700_000_002_500})[partition]
        assert (found.offset, found.timestamp) == (3, 1_700_000_003_000)
        consumer.assign([partition])
        consumer.seek(partition, found.offset)
        deadline, records = time.monotonic() + DEADLINE_S, []
        while not records and time.monotonic() < deadline:
            records = consumer.poll(100).get(partition, [])
        assert (records[0].headers, records[0].timestamp) == ([("n", b"3")], 1_700_000_003_000)


def test_a_transactional_producer_commits_and_aborts(broker: Broker) -> None:
    partition = TopicPartition("paid", 0)
    with closing(KafkaProducer(bootstrap_servers=broker.bootstrap, transactional_id="t")) as producer:
        producer.init_transactions()
        for value, end in (
            (b"1", producer.commit_transaction),
            (b"never", producer.abort_transaction),
            (b"2", producer.commit_transaction),
        ):
            producer.begin_transaction()
            producer.send("paid", value, partition=0)
            end()
    values: list[bytes] = []
    with closing(
        KafkaConsumer(
            bootstrap_servers=broker.bootstrap,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
        )
    ) as consumer:
        consumer.assign([partition])
        deadline = time.monotonic() + DEADLINE_S
        while len(values) < 2 and time.monotonic() < deadline:
            values += [record.value for record in consumer.poll(100).get(partition, [])]
    assert values == [b"1", b"2"]


def test_losing_the_coordinator_costs_no_rebalance() -> None:
    with Cluster(3, group_min_session_timeout_ms=500, group_initial_rebalance_delay_ms=DELAY_MS) as cluster:
        cluster.create_topic("t", 6)
        produce(cluster.bootstrap.split(","), "t", values(60, "a"))
        member = Member(cluster.bootstrap.split(","), "t", session_timeout_ms=20_000)
        poll_until(lambda: len(member.values) == 60, member)
        member.commit()
        coordinator = cluster.coordinator_of("orders")
        assert coordinator is not None
        cluster.kill(coordinator)
        produce(cluster.bootstrap.split(","), "t", values(60, "b"))
        poll_until(lambda: len(member.values) >= 120, member)
        assert sorted(member.values) == sorted(values(60, "a") + values(60, "b"))
        member.commit()
        assert cluster.coordinator_of("orders") != coordinator
        assert member.assignments == 1
        member.close()

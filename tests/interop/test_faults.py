"""Faults as stock clients meet them: each behaves as it is known to."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import confluent_kafka
import kafka
import pytest

from muster.coordinator.journal.explain import explain_all
from muster.coordinator.testing import Cluster

pytestmark = pytest.mark.interop

GROUP = "billing"
TOPIC = "orders"
DEADLINE_S = 60.0
IMPATIENT_MS = 6_000
"""After this a client gives up on an answer."""


class Confluent:
    """A group member: confluent-kafka."""

    def __init__(self, bootstrap: str) -> None:
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": GROUP,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "socket.timeout.ms": IMPATIENT_MS,
                "log_level": 0,
            }
        )
        self._consumer.subscribe([TOPIC])

    def poll(self) -> object:
        return self._consumer.poll(0.1)

    def commit(self, offset: int) -> None:
        place = confluent_kafka.TopicPartition(TOPIC, 0, offset)
        (done,) = self._consumer.commit(offsets=[place], asynchronous=False)
        if done.error is not None:
            raise confluent_kafka.KafkaException(done.error)

    def close(self) -> None:
        self._consumer.close()


class KafkaPython:
    """The same with kafka-python."""

    def __init__(self, bootstrap: str) -> None:
        self._consumer: Any = kafka.KafkaConsumer(
            TOPIC,
            bootstrap_servers=bootstrap,
            group_id=GROUP,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            session_timeout_ms=30_000,
            request_timeout_ms=IMPATIENT_MS,
        )

    def poll(self) -> object:
        return self._consumer.poll(100)

    def commit(self, offset: int) -> None:
        place = kafka.TopicPartition(TOPIC, 0)
        self._consumer.commit({place: kafka.OffsetAndMetadata(offset, "", -1)})

    def close(self) -> None:
        self._consumer.close()


Member = Confluent | KafkaPython


def until(fact: Callable[[], object], member: Member) -> None:
    """Poll until the fact holds."""
    deadline = time.monotonic() + DEADLINE_S
    while not fact():
        member.poll()
        assert time.monotonic() < deadline


@pytest.fixture(params=[Confluent, KafkaPython], ids=["confluent-kafka", "kafka-python"])
def client(request: pytest.FixtureRequest) -> type[Member]:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    # kafka-python sometimes loses its metadata when its group is complete at once.
    with Cluster(2, group_initial_rebalance_delay_ms=200, lease_term_ms=30_000) as running:
        running.create_topic(TOPIC)
        yield running


def joined(cluster: Cluster, client: type[Member]) -> Member:
    member = client(cluster.bootstrap)
    until(lambda: cluster.group(GROUP).facts == ("Stable", 1), member)
    return member


@pytest.mark.parametrize(
    "fault",
    [
        {"error": "NOT_COORDINATOR"},
        {"error": "COORDINATOR_LOAD_IN_PROGRESS"},
        {"drop_response": True},
        {"close_before": True},
        {"close_after": True},
        {"truncate": 6},
    ],
    ids=lambda fault: next(iter(fault.values())) if "error" in fault else next(iter(fault)),
)
def test_a_commit_is_made_again(cluster: Cluster, client: type[Member], fault: dict[str, Any]) -> None:
    member = joined(cluster, client)
    try:
        with cluster.faults.add(api="OffsetCommit", group=GROUP, **fault) as rule:
            member_commits(member, 7)
            rule.hit()
        assert cluster.group(GROUP).offsets() == {(TOPIC, 0): 7}
        assert_not_disturbed(cluster, client)
    finally:
        member.close()


def assert_not_disturbed(cluster: Cluster, client: type[Member]) -> None:
    """The group did not rebalance, except that kafka-python's leader rejoins when its metadata comes late."""
    timeline = cluster.group(GROUP).timeline()
    later = [each for each in explain_all(timeline) if each.generation > 1]
    if client is KafkaPython:
        later = [each for each in later if each.diagnosis != "leader-rejoined"]
    assert not later, f"{later}\n{timeline}"


def member_commits(member: Member, offset: int) -> None:
    """Either the client retries by itself, or its application gets the error and does."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        try:
            return member.commit(offset)
        except (confluent_kafka.KafkaException, kafka.errors.KafkaError):
            assert time.monotonic() < deadline
            member.poll()


def test_a_member_stays_while_its_coordinator_moves_and_loads(cluster: Cluster, client: type[Member]) -> None:
    member = joined(cluster, client)
    try:
        for offset, index in enumerate((0, 1, 0), 1):
            cluster.move(GROUP, index)
            member_commits(member, offset)
            assert cluster.group(GROUP).offsets() == {(TOPIC, 0): offset}
        with cluster.faults.add(api="OffsetCommit", delay=0, times=None) as asked:
            cluster.hold(GROUP)
            released: list[bool] = []

            def release_once_asked() -> None:
                asked.hit(1)
                released.append(cluster.release(GROUP))

            releasing = threading.Thread(target=release_once_asked)
            releasing.start()
            member_commits(member, 9)
            releasing.join()
        assert released == [True]
        assert cluster.group(GROUP).offsets() == {(TOPIC, 0): 9}
        assert_not_disturbed(cluster, client)
    finally:
        member.close()

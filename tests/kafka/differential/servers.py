"""Apache Kafka and muster with the same configs and topics, for sequences."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final
from uuid import UUID

from muster.coordinator.cluster.placement import GROUP_SHARDS, shard_of
from muster.coordinator.testing import Broker
from tests.kafka.differential.connections import Connections
from tests.kafka.differential.generator import SHORT_MS, TOPICS
from tests.kafka.differential.same_ids import SameIds, share_a_bucket
from tests.kafka.our_server import BESIDE_THE_STORY, FOREVER_MS
from tests.support.apache_kafka import ApacheKafka
from tests.support.wire_blocking import WireConnection
from tests.support.wire_topics import await_in_coordinator, delete_topic, ensure_topics

CONFIGS: Final[Mapping[str, int]] = {
    "group.consumer.assignment.interval.ms": 0,
    "group.consumer.max.session.timeout.ms": 1_800_000,
    "group.consumer.session.timeout.ms": 1_800_000,
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": SHORT_MS // 2,
    "offsets.retention.check.interval.ms": FOREVER_MS,
}
_ONLY_KAFKAS: Final = {
    "connections.max.idle.ms": str(FOREVER_MS),
    "group.coordinator.threads": "1",
    # One that gets no time for a while is not to lose its coordinators.
    "broker.session.timeout.ms": "600000",
}


def kafka_configs() -> dict[str, str]:
    """What sequences want Apache Kafka to be started with."""
    return {name: str(value) for name, value in CONFIGS.items()} | _ONLY_KAFKAS


@contextmanager
def servers(kafka_port: int | None = None) -> Iterator[tuple[Connections, Connections]]:
    """Connections to Apache Kafka, and to muster. Without the port of one that runs with `kafka_configs()`,
    an Apache Kafka is started."""
    if kafka_port is None:
        with ApacheKafka(kafka_configs()) as kafka, servers(kafka.port) as both:
            yield both
        return
    theirs = with_topics(kafka_port)
    with ours_like(theirs) as ours:
        yield theirs, ours


@contextmanager
def ours_like(theirs: Connections) -> Iterator[Connections]:
    """Connections to a muster whose topics and members get the ids that they have there."""
    ids = SameIds()
    ids.topics(theirs.topic_id(name) for name in TOPICS)
    with ids.of_brokers():
        broker = muster().__enter__()
    try:
        ours = with_topics(broker.port, ids)
        with ours.watched.brokers():
            yield ours
    finally:
        broker.close()


def muster(**settings: Any) -> Broker:
    """A broker of ours for sequences, not started yet. `settings` go over what they want."""
    wanted: dict[str, Any] = {name.replace(".", "_"): value for name, value in CONFIGS.items()}
    wanted.update(dict.fromkeys(BESIDE_THE_STORY, FOREVER_MS))
    return Broker(**{**wanted, **settings})


def with_topics(port: int, ids: SameIds | None = None) -> Connections:
    """Connections to a broker on loopback that has the topics of sequences from now on. `ids`: where a muster
    has its ids from."""
    with WireConnection("127.0.0.1", port, "sequences") as connection:
        topic_ids = _with_buckets_of_their_own(connection)
        for group in _a_group_of_each_shard():
            await_in_coordinator(connection, group, TOPICS)
        return Connections("127.0.0.1", port, topic_ids, ids)


def _with_buckets_of_their_own(connection: WireConnection) -> dict[str, UUID]:
    while True:
        topic_ids = ensure_topics(connection, TOPICS)
        shared = [
            name
            for name, topic_id in topic_ids.items()
            if share_a_bucket(topic_id, [each for each in topic_ids.values() if each != topic_id])
        ]
        if not shared:
            return topic_ids
        delete_topic(connection, shared[0])


def _a_group_of_each_shard() -> Iterable[str]:
    names = (f"shard-{number}" for number in itertools.count())
    found: dict[int, str] = {}
    while len(found) < GROUP_SHARDS:
        name = next(names)
        found.setdefault(shard_of(name), name)
    return found.values()

"""Apache Kafka and muster, or two builds of muster, with the same configs and topics, for sequences."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from muster.coordinator.cluster.placement import GROUP_SHARDS, shard_of
from muster.coordinator.testing import Broker
from tests.kafka.differential.connections import Connections
from tests.kafka.differential.generator import SHORT_MS, TOPICS
from tests.kafka.differential.same_ids import SameIds, share_a_bucket
from tests.kafka.our_server import BESIDE_THE_STORY, FOREVER_MS
from tests.support.apache_kafka import ApacheKafka
from tests.support.served import Served
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
    # A broker that gets no CPU for a while must not lose its coordinators.
    "broker.session.timeout.ms": "600000",
}


def kafka_configs() -> dict[str, str]:
    """The configs that sequences need Apache Kafka to start with."""
    return {name: str(value) for name, value in CONFIGS.items()} | _ONLY_KAFKAS


@contextmanager
def servers(kafka_port: int | None = None) -> Iterator[tuple[Connections, Connections]]:
    """Connections to Apache Kafka and to muster. Starts an Apache Kafka unless given the port of one that
    runs with `kafka_configs()`."""
    if kafka_port is None:
        with ApacheKafka(kafka_configs()) as kafka, servers(kafka.port) as both:
            yield both
        return
    theirs = with_topics(kafka_port)
    with ours_like(theirs) as ours:
        yield theirs, ours


@contextmanager
def builds(python: Path | None = None) -> Iterator[tuple[Connections, Connections]]:
    """Connections to a `muster serve` of another Python (by default this one), in place of Apache Kafka, and
    to a muster in this process."""
    options = (f"--{name.replace('_', '-')}={value}" for name, value in _settings().items())
    with (
        tempfile.TemporaryDirectory(prefix="muster-differential-") as folder,
        Served(None, "--ephemeral", *options, log=Path(folder) / "server.log", python=python) as served,
    ):
        other = with_topics(served.port)
        with ours_like(other) as ours:
            yield other, ours


@contextmanager
def ours_like(theirs: Connections) -> Iterator[Connections]:
    """Connections to a muster whose topics and members get the same ids as there."""
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
    """A broker of ours for sequences, not yet started. `settings` override its defaults."""
    return Broker(**{**_settings(), **settings})


def _settings() -> dict[str, Any]:
    wanted = {name.replace(".", "_"): value for name, value in CONFIGS.items()}
    return wanted | dict.fromkeys(BESIDE_THE_STORY, FOREVER_MS)


def with_topics(port: int, ids: SameIds | None = None) -> Connections:
    """Connections to a broker on loopback, which has the topics of sequences from now on. `ids` is where a
    muster gets its ids."""
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

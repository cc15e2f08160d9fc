"""How long one test takes, from nothing to passed: three members share a topic, one is killed, two share it.

`python -m tests.bench testing`

The members are processes of confluent-kafka, the same for everybody. What differs is the broker of the test:
the one of `muster.coordinator.testing`, whose clock is moved; Apache Kafka in a process of its own; and the
mock cluster inside librdkafka. With the last two a killed member is missed when its session has really
passed, so it has a short one: six seconds, the shortest that Apache Kafka allows as it comes, and one second
where the test also configures its broker (nobody is assigned anything by the mock then).
"""

from __future__ import annotations

import asyncio
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from multiprocessing.connection import Connection
from typing import Final, NamedTuple

from confluent_kafka import Producer

from muster.client import Admin, NewTopic
from muster.coordinator.testing import Broker
from tests.bench.figures import Figure
from tests.support.apache_kafka import ApacheKafka

ROUNDS: Final = 3
SECONDS_MAX: Final = 60.0
GROUP: Final = "billing"
TOPIC: Final = "orders"
PARTITIONS: Final = 4
"""As many as topics of the mock have."""
NAMES: Final = ("web-1", "web-2", "web-3")
TARGET: Final = 20.0
HEARTBEAT_INTERVAL_MS: Final = 100
_FORKED: Final = multiprocessing.get_context("fork")


class Place(NamedTuple):
    """A broker for the test."""

    bootstrap: str
    session_timeout_ms: int
    create_topic: Callable[[], object]
    crash: Callable[[], None]
    """Called when a member is killed: what makes its session pass, if that need not be waited for."""


@contextmanager
def on_muster() -> Iterator[Place]:
    with Broker() as broker:

        def crash() -> None:
            broker.group(GROUP).member(NAMES[-1]).disconnected()
            broker.clock.advance("46s")

        yield Place(broker.bootstrap, 45_000, lambda: broker.create_topic(TOPIC, PARTITIONS), crash)


@contextmanager
def on_apache_kafka(session_timeout_ms: int) -> Iterator[Place]:
    configs = {
        "group.initial.rebalance.delay.ms": "0",
        "group.min.session.timeout.ms": str(session_timeout_ms),
    }
    with ApacheKafka(configs) as kafka:
        create = partial(asyncio.run, _create_topic(kafka.bootstrap))
        yield Place(kafka.bootstrap, session_timeout_ms, create, lambda: None)


@contextmanager
def on_librdkafka_mock(session_timeout_ms: int) -> Iterator[Place]:
    host = Producer({"test.mock.num.brokers": 1})
    (broker,) = host.list_topics(timeout=10).brokers.values()
    # It has no CreateTopics: a topic comes to be when it is asked for.
    create = partial(host.list_topics, TOPIC, timeout=10)
    yield Place(f"{broker.host}:{broker.port}", session_timeout_ms, create, lambda: None)
    del host


class Member:
    """A member in a process of its own, forked so that starting it costs next to nothing."""

    def __init__(self, name: str) -> None:
        self.owned: set[int] = set()
        self._pipe, theirs = multiprocessing.Pipe()
        self._process = _FORKED.Process(target=_live, args=(theirs, name), daemon=True)
        self._process.start()
        theirs.close()

    def join(self, place: Place) -> None:
        self._pipe.send((place.bootstrap, place.session_timeout_ms))

    def listen(self) -> None:
        """Take what it has said."""
        while self._pipe.poll():
            self.owned = self._pipe.recv()

    def kill(self) -> None:
        self._process.kill()
        self._process.join()


def _live(pipe: Connection, name: str) -> None:
    from confluent_kafka import Consumer

    bootstrap, session_timeout_ms = pipe.recv()
    config = {
        "bootstrap.servers": bootstrap,
        "group.id": GROUP,
        "client.id": name,
        "session.timeout.ms": session_timeout_ms,
        "heartbeat.interval.ms": HEARTBEAT_INTERVAL_MS,
        "log_level": 0,
    }
    consumer = Consumer(config)
    consumer.subscribe([TOPIC], on_assign=lambda _, found: pipe.send({each.partition for each in found}))
    while True:
        consumer.poll(0.1)


def play(contestant: Callable[[], AbstractContextManager[Place]]) -> float:
    """The test, from nothing to passed: seconds. Raises when it does not pass."""
    began = time.perf_counter()
    members = [Member(name) for name in NAMES]
    try:
        with contestant() as place:
            place.create_topic()
            for member in members:
                member.join(place)
            _wait_until_shared(members)
            members[-1].kill()
            place.crash()
            _wait_until_shared(members[:-1])
            return time.perf_counter() - began
    finally:
        for member in members:
            member.kill()


async def _create_topic(bootstrap: str) -> None:
    async with Admin(bootstrap) as admin:
        await admin.create_topics([NewTopic(name=TOPIC, num_partitions=PARTITIONS)])


def _wait_until_shared(members: Sequence[Member]) -> None:
    """Return when the members share all partitions, each with some of them."""
    deadline = time.monotonic() + SECONDS_MAX
    while True:
        for member in members:
            member.listen()
        owned = [member.owned for member in members]
        if all(owned) and sum(map(len, owned)) == len(set().union(*owned)) == PARTITIONS:
            return
        if time.monotonic() > deadline:
            raise RuntimeError(f"after {SECONDS_MAX:g} s the members have {owned}")
        time.sleep(0.002)


def measure() -> list[Figure]:
    """The figures."""
    peers: dict[str, Callable[[], AbstractContextManager[Place]]] = {
        "Apache Kafka, sessions of 6 s": lambda: on_apache_kafka(6_000),
        "Apache Kafka, sessions of 1 s": lambda: on_apache_kafka(1_000),
        "librdkafka's mock, sessions of 6 s": lambda: on_librdkafka_mock(6_000),
    }
    ours = statistics.median(play(on_muster) for _ in range(ROUNDS))
    figures = []
    for name, contestant in peers.items():
        as_it_comes = name == "Apache Kafka, sessions of 6 s"
        try:
            theirs, note = statistics.median(play(contestant) for _ in range(ROUNDS)), ""
        except RuntimeError as error:
            theirs, note = None, f"{name} cannot play: {error}"
        figures.append(
            Figure(
                "a test with a crash",
                "s",
                ours,
                theirs,
                name,
                target=f"{TARGET:g} times faster" if as_it_comes else "",
                reached=theirs is not None and theirs >= TARGET * ours if as_it_comes else None,
                note=note,
            )
        )
    return figures

"""How long the leader of a group takes to assign, against kafka-python and Java.

`python -m tests.bench assignors`

All members subscribe to ten topics, so that each gets ten partitions: at first, when nothing changed, when
one left, and when one came. What is measured is the call of the assignor with subscriptions that are read,
their user data aside, which every peer reads inside; figures are such calls a second. The best of a few
counts; Java has warmed up by then, and is left out where there is no Java. kafka-python is called once, and
given up after a while: it is slower than that.

Last, subscriptions that differ: every member wants three of the ten topics.
"""

from __future__ import annotations

import random
import resource
import shutil
import signal
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, Final, NamedTuple
from uuid import UUID

from muster.client.assignors import (
    COOPERATIVE_STICKY,
    STICKY,
    MemberSubscription,
    TopicPartitions,
    assignor,
)
from muster.client.assignors.subscription_bytes import by_topic
from tests.bench import processes
from tests.bench.figures import Figure
from tests.interop.assignors.java import JavaAssignors

SIZES: Final = (100, 1_000, 5_000)
TOPICS: Final = 10
UNEQUAL_MEMBERS: Final = 300
UNEQUAL_TOPICS: Final = 3
FASTER: Final = 5
_ROUNDS: Final = 7
_JAVA_ROUNDS: Final = 20
_PATIENCE_S: Final = 4.0
_MEMORY_BYTES_MAX: Final = 3 << 30
"""kafka-python lists all subscribers for each partition."""

Members = Mapping[str, MemberSubscription]
Topics = Mapping[str, TopicPartitions]
SITUATIONS: Final = ("at first", "no change", "one left", "one came")


class Situations(NamedTuple):
    """A group's members in each of the `SITUATIONS`."""

    topics: Topics
    members: Mapping[str, Members]


def situations(name: str, members: int, topics_each: int = TOPICS) -> Situations:
    """The same with every call."""
    chance = random.Random(members)
    topics = {f"topic-{index}": TopicPartitions(members) for index in range(TOPICS)}

    def newcomer() -> tuple[str, MemberSubscription]:
        wanted = frozenset(chance.sample(sorted(topics), topics_each))
        return f"consumer-{UUID(int=chance.getrandbits(128))}", MemberSubscription(wanted)

    first = dict(newcomer() for _ in range(members))
    settled: dict[str, MemberSubscription] = {}
    for member_id, owned in assignor(name).assign(first, topics).items():
        own = assignor(name)
        own.on_assignment(owned, 1)
        user_data = own.user_data(first[member_id].topics, owned, 1)
        settled[member_id] = first[member_id]._replace(
            owned=tuple(owned), generation_id=1, user_data=user_data
        )
    _, *stayed = settled
    states = (first, settled, {each: settled[each] for each in stayed}, settled | dict([newcomer()]))
    return Situations(topics, dict(zip(SITUATIONS, states, strict=True)))


def ours(name: str, members: Members, topics: Topics) -> float:
    """Calls a second."""
    return 1 / min(_seconds(lambda: assignor(name).assign(members, topics)) for _ in range(_ROUNDS))


def java(
    running: JavaAssignors | None, title: str, mine: float, name: str, members: Members, topics: Topics
) -> list[Figure]:
    """The figure with Java beside ours, if it is there. After a slow call it is not called again."""
    if running is None:
        return []
    seconds: list[float] = []
    while len(seconds) < _JAVA_ROUNDS and sum(seconds) < _PATIENCE_S:
        seconds.append(running.assign(name, members, topics).seconds)
    return [Figure(title, "/s", mine, 1 / min(seconds), "Java")]


def kafka_python(name: str, members: int) -> list[dict[str, float]]:
    """For each situation its calls a second, and whether it came to its end."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
        from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
        from kafka.protocol.consumer.metadata import ConsumerProtocolSubscription

    def subscription(each: MemberSubscription) -> Any:
        owned = [
            ConsumerProtocolSubscription.TopicPartition(topic=topic, partitions=numbers)
            for topic, numbers in by_topic(each.owned).items()
        ]
        return ConsumerProtocolSubscription(
            version=2,
            topics=sorted(each.topics),
            user_data=each.user_data or b"",
            owned_partitions=owned,
            generation_id=each.generation_id,
        )

    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES_MAX, _MEMORY_BYTES_MAX))
    signal.signal(signal.SIGALRM, _give_up)
    theirs = {STICKY: StickyPartitionAssignor, COOPERATIVE_STICKY: CooperativeStickyAssignor}[name]
    group = situations(name, members)
    cluster = SimpleNamespace(
        topics=lambda: set(group.topics),
        partitions_for_topic=lambda topic: set(range(group.topics[topic].count)),
    )
    found = []
    for state in group.members.values():
        listed = [
            SimpleNamespace(member_id=member_id, metadata=subscription(each), group_instance_id=None)
            for member_id, each in state.items()
        ]
        began = time.perf_counter()
        signal.setitimer(signal.ITIMER_REAL, _PATIENCE_S)
        try:
            theirs().assign(cluster, listed)
            ended = True
        except (_GivenUp, MemoryError):
            ended = False
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        found.append({"a_second": 1 / (time.perf_counter() - began), "ended": ended})
    return found


class _GivenUp(Exception):
    pass


def _give_up(*_: object) -> None:
    raise _GivenUp


def _seconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def measure() -> list[Figure]:
    figures = []
    there = all(map(shutil.which, ("java", "mvn")))
    with JavaAssignors() if there else nullcontext() as running:
        for name in (STICKY, COOPERATIVE_STICKY):
            for size in SIZES:
                figures += _equal(running, name, size)
        figures += _unequal(running)
    return figures


def _equal(running: JavaAssignors | None, name: str, size: int) -> list[Figure]:
    group = situations(name, size)
    theirs = processes.load(kafka_python, name=name, members=size)
    figures = []
    for (what, members), their in zip(group.members.items(), theirs, strict=True):
        title = f"{name}, {size:,} members, {what}"
        mine = ours(name, members, group.topics)
        figures.append(
            Figure(
                title,
                "/s",
                mine,
                their["a_second"],
                "kafka-python" if their["ended"] else "kafka-python, given up",
                target=f"{FASTER} times as fast",
                reached=mine >= FASTER * their["a_second"],
            )
        )
        figures += java(running, title, mine, name, members, group.topics)
    return figures


def _unequal(running: JavaAssignors | None) -> list[Figure]:
    name = COOPERATIVE_STICKY
    group = situations(name, UNEQUAL_MEMBERS, UNEQUAL_TOPICS)
    figures = []
    for what, members in group.members.items():
        title = f"{name}, {UNEQUAL_MEMBERS:,} members, {UNEQUAL_TOPICS} topics each, {what}"
        mine = ours(name, members, group.topics)
        figures += java(running, title, mine, name, members, group.topics) or [Figure(title, "/s", mine)]
    return figures

"""How long the target of a consumer group takes (KIP-848), against Java's assignors.

`python -m tests.bench server_assignors`

Ten topics of as many partitions as there are members, so that each gets ten on average. All members subscribe
to all topics, or each to three of them. Targets are computed at first, when nothing changed, when one member
left, and when one came. Figures are calls of the assignor a second of CPU, the best of a few; Java has
warmed up by then, and is left out where there is no Java.
"""

from __future__ import annotations

import random
import shutil
import time
from contextlib import nullcontext
from typing import Final
from uuid import UUID

from muster.coordinator.group.consumer.assignors import ASSIGNORS, Spec, Subscriber
from muster.protocol.java import hash_map_order
from tests.bench.figures import Figure
from tests.kafka.server_assignors.java import JavaServerAssignors

SIZES: Final = (100, 1_000, 5_000)
TOPICS: Final = 10
SOME_TOPICS: Final = 3
SLOWER_MAX: Final = 20
_ROUNDS: Final = 7
_JAVA_ROUNDS: Final = 20
_PATIENCE_S: Final = 6.0


def situations(assignor: str, members: int, topics_each: int) -> dict[str, Spec]:
    """A group in each of its situations; the same with every call."""
    chance = random.Random(members)
    topics = [UUID(int=chance.getrandbits(128)) for _ in range(TOPICS)]

    def newcomer() -> tuple[str, Subscriber]:
        wanted = frozenset(chance.sample(topics, topics_each))
        return str(UUID(int=chance.getrandbits(128))), Subscriber(None, None, wanted, {})

    def group(members: dict[str, Subscriber]) -> Spec:
        ordered = {member_id: members[member_id] for member_id in hash_map_order(members)}
        return Spec(ordered, dict.fromkeys(topics, size), topics_each == TOPICS)

    size = members
    first = dict(newcomer() for _ in range(members))
    targets = ASSIGNORS[assignor](group(first))
    settled = {each: subscriber._replace(assigned=targets[each]) for each, subscriber in first.items()}
    _, *stayed = settled
    return {
        "at first": group(first),
        "no change": group(settled),
        "one left": group({each: settled[each] for each in stayed}),
        "one came": group(settled | dict([newcomer()])),
    }


def ours(assignor: str, spec: Spec) -> float:
    """Calls a second of CPU."""
    fastest = float("inf")
    for _ in range(_ROUNDS):
        began = time.thread_time()
        ASSIGNORS[assignor](spec)
        fastest = min(fastest, time.thread_time() - began)
    return 1 / fastest


def theirs(java: JavaServerAssignors, assignor: str, spec: Spec) -> float:
    """Calls a second of CPU."""
    seconds: list[float] = []
    until = time.monotonic() + _PATIENCE_S
    while len(seconds) < _JAVA_ROUNDS and (not seconds or time.monotonic() < until):
        seconds.append(java.assign(assignor, spec).cpu_seconds)
    return 1 / min(seconds)


def measure() -> list[Figure]:
    figures = []
    there = all(map(shutil.which, ("java", "mvn")))
    with JavaServerAssignors() if there else nullcontext() as java:
        for size in SIZES:
            for assignor, topics_each in (("uniform", TOPICS), ("uniform", SOME_TOPICS), ("range", TOPICS)):
                subscribed = "all topics" if topics_each == TOPICS else f"{topics_each} topics each"
                for what, spec in situations(assignor, size, topics_each).items():
                    title = (
                        f"{assignor}, {size:,} members, {TOPICS * size:,} partitions, {subscribed}, {what}"
                    )
                    figures.append(_figure(java, title, assignor, spec))
    return figures


def _figure(java: JavaServerAssignors | None, title: str, assignor: str, spec: Spec) -> Figure:
    peer = None if java is None else theirs(java, assignor, spec)
    mine = ours(assignor, spec)
    if peer is None:
        return Figure(title, "/s", mine)
    return Figure(
        title,
        "/s",
        mine,
        peer,
        "Java",
        target=f"at most {SLOWER_MAX} times slower",
        reached=mine * SLOWER_MAX >= peer,
    )

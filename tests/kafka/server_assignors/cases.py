"""Random groups for server-side assignors, decided by a seed."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from random import Random
from typing import Final

from muster.coordinator.group.consumer.assignors import Assignment, Spec, Subscriber
from muster.protocol.java import hash_map_order

MEMBERS_MAX: Final = 60
TOPICS_MAX: Final = 20
PARTITIONS_MAX: Final = 50

Targets = dict[str, dict[uuid.UUID, frozenset[int]]]


def group(seed: int, before: Callable[[Spec], dict[str, Assignment]]) -> Spec:
    """A group with its members in Java's order. `before` is the assignor that computed the current targets,
    if an assignor did."""
    random = Random(seed)
    ids = [_id(random) for _ in range(_few(random, MEMBERS_MAX))]
    partitions = {
        uuid.UUID(int=random.getrandbits(128)): _few(random, PARTITIONS_MAX)
        for _ in range(_few(random, TOPICS_MAX))
    }
    homogeneous = random.random() < 0.5
    members = dict(zip(ids, _subscriptions(random, len(ids), list(partitions), homogeneous), strict=True))
    static = random.choice((0.0, 0.3, 1.0))
    targets = random.choice((_none, _anywhere, _subscribed, _skewed, _settled))(
        random, members, partitions, before
    )
    return Spec(
        {
            member_id: Subscriber(
                f"instance-{random.randrange(1000)}-{index}" if random.random() < static else None,
                random.choice((None, "a", "b")),
                members[member_id],
                targets[member_id],
            )
            for index, member_id in enumerate(hash_map_order(ids))
        },
        {topic: partitions[topic] for topic in partitions if any(topic in each for each in members.values())},
        homogeneous,
    )


def _few(random: Random, most: int) -> int:
    """Small numbers are as likely as large ones."""
    return random.randint(random.choice((0, 1, 1, 1, 1)), random.choice((4, most // 4, most)))


def _id(random: Random) -> str:
    text = str(uuid.UUID(int=random.getrandbits(128)))
    return random.choice((text, text[:8], f"consumer-{text}", f"\N{GRINNING FACE}{text}", f"\uff5e{text}"))


def _subscriptions(
    random: Random, members: int, topics: Sequence[uuid.UUID], homogeneous: bool
) -> list[frozenset[uuid.UUID]]:
    def some() -> frozenset[uuid.UUID]:
        return frozenset(random.sample(topics, random.randint(0, len(topics))))

    if homogeneous:
        return [some()] * members
    if topics and random.random() < 0.2:  # A chain, along which a load moves one link per round.
        return [
            frozenset(topics[index % len(topics)] for index in (member, member + 1))
            for member in range(members)
        ]
    kinds = [some() for _ in range(random.choice((1, 2, 3, 60)))]
    return [random.choice(kinds) for _ in range(members)]


def chain(links: int, count: int, backwards: bool) -> Spec:
    """Each member shares one topic with the previous member and one with the next; at first, all but the last
    own one of them alone. Loads even out slowly here, link by link in each round."""
    topics = [uuid.UUID(int=number) for number in range(1, links + 1)]
    if backwards:
        topics.reverse()
    members = {
        f"{index:03}": Subscriber(
            None,
            None,
            frozenset(topics[max(0, index - 1) : index + 1]),
            {topic: frozenset(range(count)) for topic in topics[index : index + 1]},
        )
        for index in range(links + 1)
    }
    return Spec(
        {each: members[each] for each in hash_map_order(members)}, dict.fromkeys(topics, count), False
    )


# --- current targets ----------------------------------------------------------------------------------------

Members = dict[str, frozenset[uuid.UUID]]
Counts = dict[uuid.UUID, int]
Before = Callable[[Spec], dict[str, Assignment]]


def _none(random: Random, members: Members, partitions: Counts, before: Before) -> Targets:
    return {member_id: {} for member_id in members}


def _anywhere(random: Random, members: Members, partitions: Counts, before: Before) -> Targets:
    """Also for deleted topics, and for members that do not subscribe."""
    gone = {uuid.UUID(int=random.getrandbits(128)): 5 for _ in range(random.randint(0, 3))}
    return _spread_out(random, partitions | gone, lambda topic: list(members), members)


def _subscribed(random: Random, members: Members, partitions: Counts, before: Before) -> Targets:
    def takers(topic: uuid.UUID) -> list[str]:
        return [member_id for member_id, topics in members.items() if topic in topics]

    return _spread_out(random, partitions, takers, members)


def _skewed(random: Random, members: Members, partitions: Counts, before: Before) -> Targets:
    """A few members have everything."""
    few = random.sample(list(members), min(len(members), random.randint(1, 4)))
    return _spread_out(random, partitions, lambda topic: few, members)


def _settled(random: Random, members: Members, partitions: Counts, before: Before) -> Targets:
    """An assignor's, from before members joined and left, topics came and grew, and subscriptions changed."""
    past = {member_id: topics for member_id, topics in members.items() if random.random() < 0.9}
    past |= {f"left-{index}": random.choice(list(members.values())) for index in range(len(members) // 9)}
    counts = {topic: max(0, count - random.choice((0, 0, 0, 3))) for topic, count in partitions.items()}
    if past and random.random() < 0.3:
        member_id = random.choice(list(past))
        past[member_id] = frozenset(random.sample(list(counts), random.randint(0, len(counts))))
    spec = Spec(
        {member_id: Subscriber(None, None, topics, {}) for member_id, topics in past.items()},
        counts,
        len(set(past.values())) == 1,
    )
    targets = before(spec)
    return {member_id: dict(targets.get(member_id, {})) for member_id in members}


def _spread_out(
    random: Random, counts: Counts, takers: Callable[[uuid.UUID], list[str]], members: Members
) -> Targets:
    found: dict[str, dict[uuid.UUID, set[int]]] = {member_id: {} for member_id in members}
    assigned = random.choice((0.5, 0.9, 1.0))
    for topic in random.sample(list(counts), len(counts)):
        can = takers(topic)
        for number in range(counts[topic]):
            if can and random.random() < assigned:
                found[random.choice(can)].setdefault(topic, set()).add(number)
    return {
        member_id: {topic: frozenset(numbers) for topic, numbers in target.items()}
        for member_id, target in found.items()
    }

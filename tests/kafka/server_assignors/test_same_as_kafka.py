"""muster's server-side assignors compared with Kafka's own on the same groups: equal to the last partition.

SEED=7 and CASES=500 in the environment choose other groups and their number."""

from __future__ import annotations

import os
from collections.abc import Iterator
from random import Random
from typing import Final
from uuid import UUID

import pytest

from muster.coordinator.group.consumer.assignors import ASSIGNORS, Assignment, Spec
from muster.coordinator.group.consumer.assignors.order import member_order
from tests.kafka.server_assignors.cases import chain, group
from tests.kafka.server_assignors.java import JavaServerAssignors

pytestmark = pytest.mark.kafka

SEED: Final = int(os.environ.get("SEED", "1"))
CASES: Final = int(os.environ.get("CASES", "3000"))


@pytest.fixture(scope="module")
def java() -> Iterator[JavaServerAssignors]:
    with JavaServerAssignors() as running:
        yield running


@pytest.mark.parametrize("name", ASSIGNORS)
def test_the_same_targets(java: JavaServerAssignors, name: str) -> None:
    kinds = set()
    moved = 0
    for seed in range(SEED, SEED + CASES):
        spec = group(seed, ASSIGNORS[name])
        mine, theirs = ASSIGNORS[name](spec), java.assign(name, spec).targets
        assert mine == theirs, f"SEED={seed} CASES=1\n{report(spec, mine, theirs)}"
        kinds.add(spec.homogeneous)
        moved += any(
            each.assigned and each.assigned != mine[member_id] for member_id, each in spec.members.items()
        )
    assert CASES < 100 or (len(kinds) == 2 and moved > CASES / 5)


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize(("links", "count"), [(5, 200), (10, 50), (10, 200), (20, 200), (40, 50)])
def test_chains_of_subscriptions(java: JavaServerAssignors, links: int, count: int, backwards: bool) -> None:
    """Some of them take more rounds than the limit."""
    spec = chain(links, count, backwards)
    assert ASSIGNORS["uniform"](spec) == java.assign("uniform", spec).targets


def test_the_order_of_members(java: JavaServerAssignors) -> None:
    for seed in range(SEED, SEED + CASES):
        random = Random(seed)
        changes: list[str] = []
        present: list[str] = []
        most = 0
        for _ in range(random.randint(1, random.choice((5, 20, 150)))):
            if present and random.random() < 0.3:
                changes.append(f"-{present.pop(random.randrange(len(present)))}")
            else:
                present.append(f"{UUID(int=random.getrandbits(128))}")
                changes.append(f"+{present[-1]}")
            most = max(most, len(present))
        newcomer = random.choice((None, "newcomer"))
        if newcomer is not None:
            changes.append(f"={newcomer}")
        if present or newcomer:
            assert member_order(present, newcomer, most) == java.members(changes), f"SEED={seed} CASES=1"


@pytest.mark.parametrize(("name", "other"), [("uniform", "range"), ("range", "uniform")])
def test_another_assignor_is_noticed(java: JavaServerAssignors, name: str, other: str) -> None:
    specs = [group(seed, ASSIGNORS[name]) for seed in range(SEED, SEED + 100)]
    assert sum(ASSIGNORS[other](spec) != java.assign(name, spec).targets for spec in specs) > 20


def report(spec: Spec, mine: dict[str, Assignment], theirs: dict[str, Assignment]) -> str:
    """A case as text, for a failure."""
    names = {topic: f"t{index}" for index, topic in enumerate(spec.partitions)}
    lines = [f"homogeneous {spec.homogeneous}"]
    lines += [f"{names[topic]} {topic} {count}" for topic, count in spec.partitions.items()]

    def text(target: Assignment) -> str:
        return " ".join(
            f"{names.get(topic, 'gone')}:{','.join(map(str, sorted(numbers)))}"
            for topic, numbers in target.items()
        )

    for member_id, each in spec.members.items():
        topics = ",".join(sorted(names[topic] for topic in each.topics))
        lines += [f"{member_id!a} {each.instance_id} {topics}", f"    had    {text(each.assigned)}"]
        if mine[member_id] != theirs[member_id]:
            lines += [f"    muster {text(mine[member_id])}", f"    Kafka  {text(theirs[member_id])}"]
    return "\n".join(lines)

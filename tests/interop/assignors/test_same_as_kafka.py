"""muster's assignors compared with Kafka's own on the same groups: `comparison` says what may differ and why.

SEED=7 and GROUPS=500 in the environment choose other groups and the number of each kind."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Final

import pytest

from muster.client.assignors import (
    COOPERATIVE_STICKY,
    NO_GENERATION,
    RANGE,
    ROUNDROBIN,
    STICKY,
    MemberSubscription,
    assignment_bytes,
    assignor,
    subscription_bytes,
)
from muster.client.assignors.sticky import read_user_data, user_data_bytes
from muster.client.partitions import TopicPartition
from tests.interop.assignors.cases import Shape
from tests.interop.assignors.comparison import (
    ROUNDS,
    Verdict,
    aligned,
    kept,
    lifelike,
    play,
    report,
    unevenness,
)
from tests.interop.assignors.java import JavaAssignors

pytestmark = pytest.mark.interop

SEED: Final = int(os.environ.get("SEED", "1"))
GROUPS: Final = int(os.environ.get("GROUPS", "60"))
KNOWN_SHARE_MAX: Final = 0.03
"""Maximum share of cases in which Kafka's result is not worth matching."""
COMPARABLE_SHARE_MIN: Final = 0.4
"""Minimum share of cases without a partition that Kafka takes away because of racks, and muster does not."""

ALL: Final = (RANGE, ROUNDROBIN, STICKY, COOPERATIVE_STICKY)
STICKY_ONES: Final = (STICKY, COOPERATIVE_STICKY)
SHAPES: Final = {
    "equal": Shape(),
    "equal, racks": Shape(racks=True, missing=True),
    "equal, large": Shape(racks=True, members_max=30, topics_max=10, partitions_max=12),
    "equal, old claims": Shape(generations=True, disputes=True, static=True),
    "equal, racks, old claims": Shape(racks=True, generations=True, disputes=True),
    "unequal": Shape(equal=False, static=True, missing=True),
    "unequal, racks": Shape(equal=False, racks=True, missing=True),
    "unequal, large": Shape(equal=False, members_max=30, topics_max=10, partitions_max=12),
    "unequal, old claims": Shape(equal=False, generations=True, static=True),
    "unequal, racks, old claims": Shape(equal=False, racks=True, generations=True),
}


@pytest.fixture(scope="module")
def java() -> Iterator[JavaAssignors]:
    with JavaAssignors() as running:
        yield running


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_same_results(java: JavaAssignors, name: str, shape: str) -> None:
    found: Counter[Verdict] = Counter()
    for seed in range(SEED, SEED + GROUPS):
        for compared in play(java, name, aligned(SHAPES[shape]), seed):
            found[compared.verdict] += 1
            assert compared.verdict is not Verdict.OTHER, f"seed {seed}\n{report(compared)}"
    assert found.total() == GROUPS * ROUNDS
    comparable = found.total() - found[Verdict.APART]
    assert comparable >= COMPARABLE_SHARE_MIN * found.total(), found
    assert found[Verdict.SAME] >= (1 - KNOWN_SHARE_MAX) * comparable, found


@pytest.mark.parametrize("name", STICKY_ONES)
def test_disputes_with_differing_subscriptions(java: JavaAssignors, name: str) -> None:
    """Here the cooperative assignors differ often, but only in what muster withholds."""
    shape = aligned(Shape(equal=False, disputes=True, generations=True))
    for seed in range(SEED, SEED + GROUPS):
        for compared in play(java, name, shape, seed):
            assert compared.verdict is not Verdict.OTHER, f"seed {seed}\n{report(compared)}"
            assert name == COOPERATIVE_STICKY or compared.verdict is not Verdict.WITHHELD, report(compared)


@pytest.mark.parametrize("name", [RANGE, ROUNDROBIN])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_same_results_whatever_the_names(java: JavaAssignors, name: str, shape: str) -> None:
    for seed in range(SEED, SEED + GROUPS):
        for compared in play(java, name, lifelike(SHAPES[shape], seed), seed):
            assert compared.verdict is Verdict.SAME, f"seed {seed}\n{report(compared)}"


@pytest.mark.parametrize("name", STICKY_ONES)
@pytest.mark.parametrize("shape", ["equal", "equal, racks", "unequal", "unequal, racks"])
def test_as_good_whatever_the_names(java: JavaAssignors, name: str, shape: str) -> None:
    """As even, and with as few partitions moved; mostly even the same results."""
    same = cases = 0
    measured: Counter[str] = Counter()
    for seed in range(SEED, SEED + GROUPS):
        for compared in play(java, name, lifelike(SHAPES[shape], seed), seed):
            cases += compared.verdict is not Verdict.APART
            same += compared.mine == compared.theirs
            for whose, assigned in (("muster", compared.mine), ("Kafka", compared.theirs)):
                measured[f"{whose} kept"] += kept(compared.group, assigned)
                measured[f"{whose} unevenness"] += unevenness(assigned)
            if name == STICKY:  # Withheld partitions are no measure of evenness.
                assert unevenness(compared.mine) == unevenness(compared.theirs), report(compared)
    assert measured["muster kept"] >= 0.999 * measured["Kafka kept"], measured
    assert measured["muster unevenness"] <= 1.005 * measured["Kafka unevenness"], measured
    assert same >= 0.9 * cases


def test_a_wrong_assignor_is_noticed(java: JavaAssignors) -> None:
    """Round robin in place of range, and a sticky assignor that does not know what members had."""
    for name, wrong in ((RANGE, ROUNDROBIN), (STICKY, COOPERATIVE_STICKY)):
        verdicts = Counter(
            compared.verdict
            for seed in range(SEED, SEED + 10)
            for compared in play(java, name, aligned(SHAPES["equal"]), seed, assignor(wrong))
        )
        assert verdicts[Verdict.OTHER] > 5


def test_the_bytes_are_kafkas(java: JavaAssignors) -> None:
    """Subscriptions and assignments byte for byte; user data as far as Kafka orders it."""
    random = Random(SEED)
    for _ in range(200):
        topics = frozenset(random.sample("opqrstuv", random.randint(0, 5)))
        owned = tuple(
            TopicPartition(topic, number)
            for topic in topics
            for number in random.sample(range(20), random.randint(0, 6))
        )
        generation_id = random.randint(NO_GENERATION, 9)
        rack = random.choice((None, "rack"))
        user_data = random.choice((None, b"", b"\0\1"))
        said = MemberSubscription(topics, owned, generation_id, rack, None, user_data)
        assert subscription_bytes(topics, owned, generation_id, rack, user_data) == java.subscription_bytes(
            said
        )
        assert assignment_bytes(owned) == java.assignment_bytes(owned)

        one_topic = [where for where in owned if where.topic == min(topics, default="")]
        for name in ALL:
            ours = assignor(name)
            ours.on_assignment(one_topic, generation_id)
            assert ours.user_data(topics, one_topic, generation_id) == java.user_data(
                name, generation_id, topics, one_topic
            )
        theirs = read_user_data(java.user_data(STICKY, generation_id, topics, owned))
        assert (sorted(theirs.owned), theirs.generation_id) == (sorted(owned), generation_id)
        assert read_user_data(user_data_bytes(owned, generation_id)) == (sorted(owned), generation_id)

"""What each server-side assignor guarantees for every group."""

from __future__ import annotations

from collections import Counter
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from muster.coordinator.group.consumer.assignors import ASSIGNORS, Assignment, Spec, Subscriber

properties = settings(
    max_examples=100,
    # A slow machine is not an assignor's fault.
    suppress_health_check=[HealthCheck.too_slow],
)

TOPICS = [UUID(int=number) for number in (1, 2, 17, 1 << 127 | 5)]
TOPIC_SETS = st.frozensets(st.sampled_from(TOPICS))
COUNTS = st.fixed_dictionaries({topic: st.integers(0, 9) for topic in TOPICS})
MEMBERS = st.dictionaries(
    st.text(min_size=1, max_size=3), st.tuples(TOPIC_SETS, st.none() | st.text(max_size=2)), max_size=7
)
# The holder of each partition: the member with that number, modulo the members plus some that are gone.
HOLDERS = st.lists(st.integers(0, 1000), min_size=9 * len(TOPICS), max_size=9 * len(TOPICS))
GONE = 3


@st.composite
def specs(draw: st.DrawFn, *, homogeneous: bool | None = None, targets: bool = True) -> Spec:
    """Members with disjoint targets, from topics they need not subscribe to. `homogeneous=None`: either."""
    members = draw(MEMBERS)
    counts = draw(COUNTS)
    same = draw(TOPIC_SETS) if (draw(st.booleans()) if homogeneous is None else homogeneous) else None
    has: list[dict[UUID, set[int]]] = [{} for _ in range(len(members) + GONE)]
    if targets:
        holders = iter(draw(HOLDERS))
        for topic, count in counts.items():
            for number in range(count):
                has[next(holders) % len(has)].setdefault(topic, set()).add(number)
    return Spec(
        {
            member_id: Subscriber(
                instance_id,
                None,
                subscribed if same is None else same,
                {topic: frozenset(numbers) for topic, numbers in target.items()},
            )
            for (member_id, (subscribed, instance_id)), target in zip(members.items(), has, strict=False)
        },
        counts,
        same is not None,
    )


def after(spec: Spec, targets: dict[str, Assignment]) -> Spec:
    """The same group with these targets as its current ones."""
    members = {each: subscriber._replace(assigned=targets[each]) for each, subscriber in spec.members.items()}
    return spec._replace(members=members)


def load(target: Assignment) -> int:
    return sum(map(len, target.values()))


def kept(before: Assignment, target: Assignment) -> int:
    return sum(len(numbers & target.get(topic, frozenset())) for topic, numbers in before.items())


@pytest.mark.parametrize("name", ASSIGNORS)
@properties
@given(spec=specs())
def test_every_partition_goes_to_one_of_its_subscribers(name: str, spec: Spec) -> None:
    targets = ASSIGNORS[name](spec)
    assert targets.keys() == spec.members.keys()
    given_out = Counter(
        (topic, number) for each in targets.values() for topic, numbers in each.items() for number in numbers
    )
    wanted = {topic for each in spec.members.values() for topic in each.topics}
    everything = {(topic, number) for topic in wanted for number in range(spec.partitions[topic])}
    assert given_out == Counter(everything)
    for member_id, target in targets.items():
        assert target.keys() <= spec.members[member_id].topics
        assert all(target.values())


@properties
@given(spec=specs(homogeneous=True))
def test_equal_subscriptions_get_equal_shares_and_keep_as_much_as_that_allows(spec: Spec) -> None:
    targets = ASSIGNORS["uniform"](spec)
    if not spec.members:
        return
    loads = [load(each) for each in targets.values()]
    assert max(loads) - min(loads) <= 1
    size, extras = divmod(sum(loads), len(loads))
    had = [
        sum(len(numbers) for topic, numbers in each.assigned.items() if topic in each.topics)
        for each in spec.members.values()
    ]
    stayed = sum(kept(each.assigned, targets[member_id]) for member_id, each in spec.members.items())
    assert stayed == sum(min(each, size) for each in had) + min(extras, sum(each > size for each in had))


@properties
@given(spec=specs(homogeneous=False))
def test_no_single_move_would_make_loads_more_even(spec: Spec) -> None:
    """Small groups finish long before the limit on rounds."""
    targets = ASSIGNORS["uniform"](spec)
    for owner, target in targets.items():
        for topic in target:
            for other, subscriber in spec.members.items():
                if topic in subscriber.topics:
                    assert load(target) <= load(targets[other]) + 1, (owner, topic, other)


@properties
@given(spec=specs())
def test_nothing_moves_when_nothing_changed(spec: Spec) -> None:
    targets = ASSIGNORS["uniform"](spec)
    assert ASSIGNORS["uniform"](after(spec, targets)) == targets


@properties
@given(spec=specs(homogeneous=True), data=st.data())
def test_when_members_leave_the_others_keep_everything(spec: Spec, data: st.DataObject) -> None:
    before = after(spec, ASSIGNORS["uniform"](spec))
    stay = data.draw(st.sets(st.sampled_from(sorted(spec.members)))) if spec.members else set()
    left = before._replace(members={each: has for each, has in before.members.items() if each in stay})
    for member_id, target in ASSIGNORS["uniform"](left).items():
        had = before.members[member_id].assigned
        assert kept(had, target) == load(had)


@properties
@given(spec=specs())
def test_a_range_gives_each_subscriber_of_a_topic_an_equal_contiguous_share(spec: Spec) -> None:
    targets = ASSIGNORS["range"](spec)
    for topic in spec.partitions:
        shares = [
            targets[member_id].get(topic, frozenset())
            for member_id, each in spec.members.items()
            if topic in each.topics
        ]
        assert not shares or max(map(len, shares)) - min(map(len, shares)) <= 1
        assert all(max(each) - min(each) == len(each) - 1 for each in shares if each)


@properties
@given(spec=specs(), data=st.data())
def test_a_range_takes_members_and_topics_in_any_order(spec: Spec, data: st.DataObject) -> None:
    instances = [each.instance_id for each in spec.members.values() if each.instance_id is not None]
    if len(set(instances)) < len(instances):
        return
    shuffled = spec._replace(
        members=dict(data.draw(st.permutations(list(spec.members.items())))),
        partitions=dict(data.draw(st.permutations(list(spec.partitions.items())))),
    )
    assert ASSIGNORS["range"](shuffled) == ASSIGNORS["range"](spec)

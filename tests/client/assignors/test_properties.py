"""Properties that hold for each assignor and every group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from muster.client.assignors import (
    COOPERATIVE_STICKY,
    RANGE,
    ROUNDROBIN,
    STICKY,
    MemberSubscription,
    TopicPartitions,
    assign_checked,
    assignor,
)
from muster.client.assignors.interface import everything
from muster.client.partitions import TopicPartition
from tests.client.assignors.groups import with_user_data

properties = settings(
    max_examples=80,
    # A slow machine is not the assignor's fault.
    suppress_health_check=[HealthCheck.too_slow],
)

Assigned = dict[str, list[TopicPartition]]

TOPICS = "tuvw"
RACKS = "xyz"
REPLICAS = [frozenset(racks) for racks in ("", "x", "y", "z", "xy", "yz", "xyz")]
PARTITIONS = [TopicPartition(topic, number) for topic in TOPICS for number in range(12)]
ALL = [RANGE, ROUNDROBIN, STICKY, COOPERATIVE_STICKY]
STICKY_ONES = [STICKY, COOPERATIVE_STICKY]


class Group(NamedTuple):
    members: dict[str, MemberSubscription]
    topics: dict[str, TopicPartitions]

    def assign(self, name: str) -> Assigned:
        members = {
            member_id: with_user_data(name, each) if name == STICKY else each
            for member_id, each in self.members.items()
        }
        return assign_checked(assignor(name), members, self.topics)

    def owning(self, assigned: Mapping[str, list[TopicPartition]], generation_id: int = 9) -> Group:
        """The same group, after its members have taken up this assignment."""
        return self._replace(
            members={
                member_id: each._replace(owned=tuple(assigned[member_id]), generation_id=generation_id)
                for member_id, each in self.members.items()
            }
        )

    def wanted(self) -> set[TopicPartition]:
        return {where for each in self.members.values() for where in everything(each.topics, self.topics)}


# Strategies are created once: Hypothesis takes longer to inspect a new one than to draw from it.
TOPIC_SETS = st.frozensets(st.sampled_from(TOPICS))
MEMBERS = st.dictionaries(
    st.text(max_size=3),
    st.builds(
        MemberSubscription,
        TOPIC_SETS,
        st.lists(st.sampled_from(PARTITIONS), max_size=8, unique=True).map(tuple),
        st.integers(-1, 3),
        st.sampled_from([None, *RACKS]),
        st.none() | st.text(max_size=2),
    ),
    max_size=7,
)
COUNTS = st.dictionaries(st.sampled_from(TOPICS), st.lists(st.sampled_from(REPLICAS), max_size=9))


@st.composite
def groups(
    draw: st.DrawFn, *, equal: bool | None = None, racks: bool | None = None, claims: bool = True
) -> Group:
    """Members with ids of any kind that claim any partitions of any generation, and topics that need not
    exist. None: either."""
    members = draw(MEMBERS)
    topics = {topic: TopicPartitions(len(each), tuple(each)) for topic, each in draw(COUNTS).items()}
    if draw(st.booleans()) if equal is None else equal:
        same = draw(TOPIC_SETS)
        members = {member_id: each._replace(topics=same) for member_id, each in members.items()}
    if not (draw(st.booleans()) if racks is None else racks):
        topics = {topic: TopicPartitions(each.count) for topic, each in topics.items()}
    if not claims:
        members = {member_id: each._replace(owned=()) for member_id, each in members.items()}
    return Group(members, topics)


def loads(assigned: Assigned) -> list[int]:
    return [len(each) for each in assigned.values()]


@pytest.mark.parametrize("name", ALL)
@properties
@given(group=groups())
def test_every_partition_goes_to_one_of_its_subscribers(name: str, group: Group) -> None:
    assigned = group.assign(name)
    assert assigned.keys() == group.members.keys()
    for member_id, each in assigned.items():
        assert set(each) <= set(everything(group.members[member_id].topics, group.topics))
        assert each == sorted(each)
    given_out = Counter(where for each in assigned.values() for where in each)
    assert not given_out or max(given_out.values()) == 1
    withheld = group.wanted() - given_out.keys()
    if name == COOPERATIVE_STICKY:
        claimed = {where for each in group.members.values() for where in each.owned}
        assert withheld <= claimed
    else:
        assert not withheld


@pytest.mark.parametrize("name", ALL)
@properties
@given(group=groups(), data=st.data())
def test_the_order_of_members_and_topics_is_no_matter(name: str, group: Group, data: st.DataObject) -> None:
    again = Group(
        dict(data.draw(st.permutations(list(group.members.items())))),
        dict(data.draw(st.permutations(list(group.topics.items())))),
    )
    assert again.assign(name) == group.assign(name)


@pytest.mark.parametrize("name", [ROUNDROBIN, STICKY])
@properties
@given(group=groups(equal=True))
def test_equal_subscriptions_get_equal_shares(name: str, group: Group) -> None:
    shares = loads(group.assign(name))
    assert not shares or max(shares) - min(shares) <= 1


@properties
@given(group=groups())
def test_a_range_gives_each_subscriber_of_a_topic_an_equal_share(group: Group) -> None:
    assigned = group.assign(RANGE)
    for topic in group.topics:
        shares = [
            sum(where.topic == topic for where in assigned[member_id])
            for member_id, each in group.members.items()
            if topic in each.topics
        ]
        assert not shares or max(shares) - min(shares) <= 1


@properties
@given(group=groups(equal=False, racks=False, claims=False))
def test_no_single_move_would_make_loads_more_even(group: Group) -> None:
    assigned = group.assign(STICKY)
    for owner, each in assigned.items():
        for topic in {where.topic for where in each}:
            for other, subscription in group.members.items():
                if topic in subscription.topics:
                    assert len(assigned[owner]) <= len(assigned[other]) + 1, (owner, topic, other)


@pytest.mark.parametrize("name", STICKY_ONES)
@properties
@given(group=groups(racks=False, claims=False))
def test_nothing_moves_when_nothing_changed(name: str, group: Group) -> None:
    assigned = group.assign(name)
    assert group.owning(assigned).assign(name) == assigned


@pytest.mark.parametrize("name", STICKY_ONES)
@properties
@given(group=groups(equal=True, racks=False, claims=False), data=st.data())
def test_when_members_leave_the_others_keep_everything(name: str, group: Group, data: st.DataObject) -> None:
    before = group.owning(group.assign(name))
    stay = data.draw(st.sets(st.sampled_from(sorted(group.members)))) if group.members else set()
    after = before._replace(members={member_id: before.members[member_id] for member_id in stay})
    for member_id, each in after.assign(name).items():
        assert set(each) >= set(before.members[member_id].owned)


@pytest.mark.parametrize("name", STICKY_ONES)
@properties
@given(group=groups(equal=True, racks=False, claims=False), newcomers=st.integers(1, 3))
def test_when_members_come_the_others_only_give_up_what_is_above_their_share(
    name: str, group: Group, newcomers: int
) -> None:
    before = group.owning(group.assign(name))
    more = {f"newcomer {each}": MemberSubscription(frozenset(TOPICS)) for each in range(newcomers)}
    if group.members:
        topics = next(iter(group.members.values())).topics
        more = {member_id: each._replace(topics=topics) for member_id, each in more.items()}
    after = before._replace(members=before.members | more)
    share = len(after.wanted()) // len(after.members)
    for member_id, each in after.assign(name).items():
        owned = set(after.members[member_id].owned)
        assert len(owned & set(each)) >= min(share, len(owned))
        assert owned <= set(each) or set(each) <= owned


@properties
@given(group=groups(), generation_id=st.integers(0, 3))
def test_the_cooperative_one_never_moves_a_partition_in_one_step(group: Group, generation_id: int) -> None:
    """Members of one generation own different partitions, as they do in a group."""
    taken: set[TopicPartition] = set()
    owned: Assigned = {}
    for member_id, each in group.members.items():
        owned[member_id] = [where for where in each.owned if where not in taken]
        taken.update(each.owned)
    assigned = group.owning(owned, generation_id).assign(COOPERATIVE_STICKY)
    for member_id, mine in owned.items():
        assert not set(assigned[member_id]) & (taken - set(mine))


@properties
@given(group=groups(racks=False))
def test_the_cooperative_one_hands_out_everything_in_a_few_rounds(group: Group) -> None:
    for generation_id in range(10, 15):
        assigned = group.assign(COOPERATIVE_STICKY)
        if all(set(assigned[member_id]) == set(each.owned) for member_id, each in group.members.items()):
            break
        group = group.owning(assigned, generation_id)
    else:
        raise AssertionError("partitions still move after five rounds")
    assert {where for each in assigned.values() for where in each} == group.wanted()

"""The range assignor: every partition once, in runs, in a fixed order of members."""

from __future__ import annotations

from itertools import chain

from hypothesis import given
from hypothesis import strategies as st

from muster.client.assignors import Subscription, assign_ranges


def subscriptions(**topics: str) -> dict[str, Subscription]:
    return {member_id: Subscription(frozenset(names.split())) for member_id, names in topics.items()}


def test_each_topic_is_cut_into_runs_and_the_first_are_longer() -> None:
    assigned = assign_ranges(subscriptions(a="t u", b="t u", c="u"), {"t": 3, "u": 4})
    assert assigned == {
        "a": {"t": [0, 1], "u": [0, 1]},
        "b": {"t": [2], "u": [2]},
        "c": {"u": [3]},
    }


def test_more_members_than_partitions_leave_some_with_nothing() -> None:
    assert assign_ranges(subscriptions(a="t", b="t"), {"t": 1}) == {"a": {"t": [0]}, "b": {}}


def test_a_topic_nobody_wants_or_that_is_not_there_is_left_out() -> None:
    assert assign_ranges(subscriptions(a="t"), {"u": 3}) == {"a": {}}


def test_static_members_come_first_and_by_their_instance() -> None:
    members = {
        "x": Subscription(frozenset({"t"}), None),
        "y": Subscription(frozenset({"t"}), "2"),
        "z": Subscription(frozenset({"t"}), "1"),
    }
    assert assign_ranges(members, {"t": 3}) == {"z": {"t": [0]}, "y": {"t": [1]}, "x": {"t": [2]}}


@given(
    st.dictionaries(st.text(min_size=1, max_size=3), st.sets(st.sampled_from("tuv")), max_size=6),
    st.dictionaries(st.sampled_from("tuv"), st.integers(0, 20)),
)
def test_every_partition_goes_to_one_subscriber_and_shares_are_even(
    topics: dict[str, set[str]], partitions: dict[str, int]
) -> None:
    members = {member_id: Subscription(frozenset(names)) for member_id, names in topics.items()}
    assigned = assign_ranges(members, partitions)
    assert assigned.keys() == members.keys()
    for topic, count in partitions.items():
        subscribers = [member_id for member_id in members if topic in members[member_id].topics]
        shares = [assigned[member_id].get(topic, []) for member_id in subscribers]
        assert sorted(chain(*shares)) == (list(range(count)) if subscribers else [])
        assert not shares or max(map(len, shares)) - min(map(len, shares)) <= 1
        assert all(share == list(range(share[0], share[0] + len(share))) for share in shares if share)

"""The cooperative sticky assignor: nobody gets a partition that another member still has."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

import pytest

from muster.client.assignors import COOPERATIVE_STICKY, MemberSubscription, TopicPartitions, assignor
from tests.client.assignors.groups import assign, member, partitions, racks, text, topics
from tests.interop.assignors.cases import Group, Shape


def settled(members: dict[str, MemberSubscription], topics: Mapping[str, TopicPartitions]) -> int:
    """Rebalance until nobody gives up or gets anything. Returns how many assignments changed something; 20
    for all of them."""
    for count in range(20):
        assigned = assignor(COOPERATIVE_STICKY).assign(members, topics)
        if all(set(assigned[member_id]) == set(each.owned) for member_id, each in members.items()):
            return count
        generation_id = 1 + max(each.generation_id for each in members.values())
        for member_id, each in members.items():
            members[member_id] = each._replace(owned=tuple(assigned[member_id]), generation_id=generation_id)
    return 20


def test_what_moves_goes_to_nobody_first_and_then_to_its_new_owner() -> None:
    first = {"a": member("t", "t0 t1", 1), "b": member("t")}
    assert assign(COOPERATIVE_STICKY, first, topics(t=2)) == {"a": "t0", "b": ""}
    then = {"a": member("t", "t0", 2), "b": member("t", "", 2)}
    assert assign(COOPERATIVE_STICKY, then, topics(t=2)) == {"a": "t0", "b": "t1"}


def test_what_nobody_has_is_handed_out_at_once() -> None:
    members = {"a": member("t", "t0", 1), "b": member("t")}
    assert assign(COOPERATIVE_STICKY, members, topics(t=2)) == {"a": "t0", "b": "t1"}


def test_what_two_claim_goes_to_nobody_first() -> None:
    for wanted in ("t", "tu"):  # equal subscriptions, and different ones
        members = {"a": member(wanted, "t0 t1", 5), "b": member("t", "t1 t2", 5)}
        assert assign(COOPERATIVE_STICKY, members, topics(t=3)) == {"a": "t0", "b": "t2"}


def test_what_one_still_has_is_not_handed_to_one_that_had_it_once() -> None:
    """With differing subscriptions, where Kafka's assignor hands it over."""
    members = {"a": member("u", "t0", 2), "b": member("t", "t0", 1)}
    assert assign(COOPERATIVE_STICKY, members, topics(t=1)) == {"a": "", "b": ""}


def test_user_data_is_the_generation() -> None:
    own = assignor(COOPERATIVE_STICKY)
    assert own.user_data("t", (), 7) == b"\xff\xff\xff\xff"
    own.on_assignment(partitions("t0"), 7)
    assert own.user_data("t", partitions("t0"), 7) == b"\0\0\0\x07"


def test_the_generation_is_read_from_user_data_where_the_subscription_has_none() -> None:
    """As members that speak version 1 of the subscription send it."""
    earlier = member("t", "t0 t1")._replace(user_data=b"\0\0\0\x04")
    later = member("t", "t0 t1")._replace(user_data=b"\0\0\0\x05")
    assert assign(COOPERATIVE_STICKY, {"a": earlier, "b": later}, topics(t=2)) == {"a": "", "b": "t0"}
    # The field takes precedence if it is there, and user data that is too short counts as none.
    assert assign(
        COOPERATIVE_STICKY,
        {"a": earlier._replace(generation_id=6), "b": later, "c": member("t")._replace(user_data=b"\0")},
        topics(t=2),
    ) == {"a": "t0", "b": "", "c": ""}


def test_racks_do_not_keep_members_of_differing_subscriptions_rebalancing() -> None:
    """With Kafka's assignor, these never stop."""
    layout = {"a": racks("x", "x", "z", "z"), "b": racks("x"), "c": racks("z", "y")}
    members = {
        "m0": member("ab", rack="y"),
        "m1": member("abc"),
        "m2": member("a", rack="y"),
    }
    assert settled(members, layout) == 1
    members["m3"] = member("abc", rack="x")
    assert settled(members, layout) <= 3
    assert text({member_id: each.owned for member_id, each in members.items()}) == {
        "m0": "a1 b0",
        "m1": "a3 c1",
        "m2": "a0 a2",
        "m3": "c0",
    }


@pytest.mark.parametrize("members_max", [7, 30])
def test_groups_with_racks_come_to_rest_after_any_change(members_max: int) -> None:
    first = Random().randrange(1_000_000)
    print(f"seeds from {first}")
    shape = Shape(equal=False, racks=True, missing=True, members_max=members_max, topics_max=members_max // 3)
    for seed in range(first, first + 40):
        group = Group(Random(seed), COOPERATIVE_STICKY, shape)
        for _ in range(5):
            assert settled(group.members, group.topics) <= 8, f"seed {seed}"
            group.change()

"""Targets computed from a group's records: which members the assignor serves first, and with what."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Mapping, Sequence

import pytest

from muster.coordinator.group.consumer import targets
from muster.coordinator.group.consumer.state import ConsumerState, Subscription
from muster.coordinator.group.effects import TopicsImage
from muster.coordinator.group.topics import Topics
from tests.group.consumer.test_assignor_order import ONE_BUCKET

IDS = [uuid.UUID(int=number << 4) for number in (1, 2, 3)]
"""All in one bucket of a HashSet of topic ids."""


def topics_of(partitions: Mapping[str, int], ids: Sequence[uuid.UUID]) -> Topics:
    topics = Topics()
    live = dict(zip(partitions, ids, strict=True))
    topics.take(TopicsImage(frozenset(), partitions=partitions, live=live))
    return topics


def group_of(members: Sequence[str], *topics: str) -> ConsumerState:
    state = ConsumerState()
    for member_id in members:
        state.put_subscription(member_id, Subscription(topics=topics))
    return state


@pytest.mark.parametrize("ids", list(itertools.permutations(IDS)))
def test_topics_of_one_bucket_are_dealt_out_by_name(ids: Sequence[uuid.UUID]) -> None:
    topics = topics_of({"a": 1, "b": 1, "c": 1}, ids)
    made = targets.make(group_of(["one", "two", "three"], "a", "b", "c"), "uniform", topics)
    assert [list(target) for target in made.values()] == [[topics.ids[name]] for name in "abc"]


def served(state: ConsumerState, newcomer: str | None = None, *, replaces: bool = False) -> list[str]:
    """Members in the order in which they are served."""
    size = len(state.subscriptions)
    topics = topics_of({"a": size}, IDS[:1])
    made = targets.make(state, "uniform", topics, newcomer, replaces=replaces)
    number = {member_id: min(target[IDS[0]]) for member_id, target in made.items()}
    return sorted(number, key=number.__getitem__)


def test_members_of_one_bucket_are_served_in_kafkas_order() -> None:
    assert served(group_of(ONE_BUCKET, "a")) == ["member-38", "member-0", "member-27", "member-16"]


def test_who_joins_with_this_heartbeat_is_served_last_of_its_bucket() -> None:
    state = group_of(ONE_BUCKET, "a")
    assert served(state, "member-0") == ["member-38", "member-27", "member-16", "member-0"]


def test_a_group_that_was_larger_serves_in_another_order() -> None:
    state = group_of([*ONE_BUCKET, *(f"other-{number}" for number in range(9))], "a")
    for number in range(9):
        state.delete_subscription(f"other-{number}")
    assert state.most == 13
    assert served(state) == ["member-0", "member-38", "member-27", "member-16"]


def test_who_takes_the_place_of_another_comes_before_that_one_goes() -> None:
    """So there are thirteen members for a moment, and Kafka's table grows."""
    state = group_of([*ONE_BUCKET, *(f"other-{number}" for number in range(8))], "a")
    found = [served(state, "other-7", replaces=replaces) for replaces in (False, True)]
    assert [[each for each in order if each in ONE_BUCKET] for order in found] == [
        ["member-0", "member-38", "member-27", "member-16"],
        ["member-38", "member-27", "member-16", "member-0"],
    ]


def test_the_present_target_is_where_a_new_one_begins() -> None:
    state = group_of(["one", "two"], "a")
    topics = topics_of({"a": 2}, IDS[:1])
    gone = uuid.UUID(int=99)
    state.targets["one"] = {IDS[0]: frozenset({1}), gone: frozenset({0})}
    made = targets.make(state, "uniform", topics)
    assert made == {"one": {IDS[0]: frozenset({1})}, "two": {IDS[0]: frozenset({0})}}

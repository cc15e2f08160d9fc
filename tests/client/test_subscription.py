"""What a consumer wants to read."""

from __future__ import annotations

import re
from typing import Any

import pytest

from muster.client import ClientError, SubscriptionPattern, TopicPartition
from muster.client.consume.subscription import Subscription
from tests.support.each import each

T0 = TopicPartition("t", 0)


def subscribed(wanted: Any) -> Subscription:
    subscription = Subscription()
    subscription.subscribe(wanted)
    return subscription


@each("wanted", ["t", ["t"], ("t", "t"), {"t"}, iter(["t"])])
def test_topics_by_name(wanted: Any) -> None:
    subscription = subscribed(wanted)
    assert subscription.topics == {"t"}
    assert subscription.by_group
    assert subscription.covers(T0)
    assert not subscription.covers(TopicPartition("tt", 0))
    assert str(subscription) == "topics t"


def test_a_pattern_matches_whole_names_and_leaves_internal_topics_out() -> None:
    subscription = subscribed(re.compile("a|__.*"))
    there = [("a", False), ("ab", False), ("__a", True)]
    assert subscription.follow(there, exclude_internal=True)
    assert subscription.topics == {"a"}
    assert not subscription.follow(there, exclude_internal=True)
    assert subscription.follow(there, exclude_internal=False)
    assert subscription.topics == {"a", "__a"}
    assert str(subscription) == "topics like 'a|__.*': __a, a"
    assert subscription.covers(TopicPartition("__new", 3))
    assert not subscription.covers(TopicPartition("ab", 0))
    subscription.adopt([TopicPartition("__new", 3)])
    assert "__new" in subscription.topics


def test_partitions() -> None:
    subscription = Subscription()
    assert str(subscription) == "nothing"
    subscription.assign([T0, ("t", 1)])  # type: ignore[list-item]
    assert subscription.assigned == {T0, TopicPartition("t", 1)}
    assert not subscription.by_group
    assert subscription.covers(T0)
    assert str(subscription) == "partitions t-0, t-1"
    assert not subscription.follow([("t", False)], exclude_internal=True)
    subscription.assign([])
    assert subscription.assigned == set()


def test_a_subscription_changes_only_within_its_kind() -> None:
    subscription = subscribed("a")
    subscription.subscribe(["b"])
    assert subscription.topics == {"b"}
    with pytest.raises(ClientError, match="by name: unsubscribe before subscribing by pattern"):
        subscription.subscribe(re.compile("b"))
    with pytest.raises(ClientError, match="unsubscribe before assigning"):
        subscription.assign([T0])
    subscription.clear()
    subscription.subscribe(re.compile("b|c"))
    subscription.follow([("b", False), ("c", False)], exclude_internal=True)
    subscription.subscribe(re.compile("c"))
    assert subscription.topics == {"c"}
    with pytest.raises(ClientError, match="by pattern: unsubscribe before subscribing to topics by name"):
        subscription.subscribe("b")
    subscription.clear()
    assert not subscription.by_group
    subscription.assign([T0])
    with pytest.raises(ClientError, match="unsubscribe before subscribing"):
        subscription.subscribe("b")
    subscription.clear()
    assert (subscription.topics, subscription.assigned, subscription.pattern) == (set(), set(), None)


def test_what_a_pattern_of_the_brokers_means_its_assignments_tell() -> None:
    subscription = subscribed(SubscriptionPattern("t|u"))
    assert (subscription.topics, subscription.by_group) == (set(), True)
    assert subscription.covers(T0)
    assert not subscription.follow([("t", False)], exclude_internal=True)
    subscription.adopt([T0])
    assert str(subscription) == "topics like 't|u': t"
    subscription.subscribe(SubscriptionPattern("t|u"))
    assert subscription.topics == {"t"}
    subscription.subscribe(SubscriptionPattern("v"))
    assert subscription.topics == set()
    for other in ("t", re.compile("t")):
        with pytest.raises(ClientError, match="by pattern: unsubscribe before"):
            subscription.subscribe(other)
    subscription.clear()
    assert subscription.remote is None
    for first in ("t", re.compile("t")):
        with pytest.raises(ClientError, match="unsubscribe before subscribing by pattern"):
            subscribed(first).subscribe(SubscriptionPattern("t"))


@each("pattern", ["", None, re.compile("t")])
def test_what_is_no_pattern_for_brokers(pattern: Any) -> None:
    with pytest.raises(ValueError, match="SubscriptionPattern"):
        SubscriptionPattern(pattern)


@each("wanted", [[], "", "a b", ["ok", 3], "..", "x" * 250, ["^a"], re.compile(b"a")])
def test_what_is_no_topic(wanted: Any) -> None:
    with pytest.raises(ValueError, match="topics: "):
        subscribed(wanted)


@each("partition", ["t", ("t",), ("t", -1), ("t", "0"), ("a b", 0), 3])
def test_what_is_no_partition(partition: Any) -> None:
    with pytest.raises(ValueError, match=r"partitions: |topics: "):
        Subscription().assign([partition])

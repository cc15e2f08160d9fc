"""The order in which Kafka hands members to its assignors, taken from Kafka's own tables
(tests/kafka/server_assignors compares more of it)."""

from __future__ import annotations

import pytest

from muster.coordinator.group.consumer.assignors.order import member_order

ONE_BUCKET = ["member-0", "member-16", "member-27", "member-38"]
"""In one bucket of the HashMap; in the group's own table, the fewer share one the more members it has had."""


def test_members_of_one_bucket_come_as_the_group_has_them() -> None:
    assert member_order(ONE_BUCKET) == ["member-38", "member-0", "member-27", "member-16"]


def test_a_group_that_was_larger_has_them_in_another_order() -> None:
    assert member_order(ONE_BUCKET, most=13) == ["member-0", "member-38", "member-27", "member-16"]


@pytest.mark.parametrize("present", [ONE_BUCKET[1:], ONE_BUCKET])
def test_who_joins_now_is_the_last_of_its_bucket(present: list[str]) -> None:
    order = member_order(present, newcomer="member-0")
    assert order == ["member-38", "member-27", "member-16", "member-0"]

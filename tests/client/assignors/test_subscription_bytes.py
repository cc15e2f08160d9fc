"""Subscriptions and assignments as bytes."""

from __future__ import annotations

import pytest

from muster.client.assignors import (
    assignment_bytes,
    read_assignment,
    read_subscription,
    subscription_bytes,
)
from muster.protocol.embedded import decode_subscription
from muster.protocol.errors import DecodeError
from tests.client.assignors.groups import member, partitions


def test_equal_subscriptions_are_equal_bytes_whatever_the_order() -> None:
    one = subscription_bytes(["u", "t"], partitions("u1 t10 t2"), 3, "r")
    other = subscription_bytes({"t", "u"}, partitions("t2 t10 u1 t2"), 3, "r")
    assert one == other
    assert [(each.topic, each.partitions) for each in decode_subscription(one).owned_partitions] == [
        ("t", [2, 10]),
        ("u", [1]),
    ]


def test_a_subscription_is_read_as_it_was_written() -> None:
    blob = subscription_bytes("tu", partitions("t2 u1"), 3, "r", b"own")
    assert read_subscription(blob, "i") == member("tu", "t2 u1", 3, rack="r", group_instance_id="i")._replace(
        user_data=b"own"
    )


def test_earlier_versions_leave_out_what_they_do_not_have() -> None:
    def of(version: int) -> bytes:
        return subscription_bytes("t", partitions("t0"), 3, "r", version=version)

    assert [int.from_bytes(of(version)[:2], "big") for version in range(4)] == [0, 1, 2, 3]
    assert read_subscription(of(0)) == member("t")
    assert read_subscription(of(1)) == member("t", "t0")
    assert read_subscription(of(2)) == member("t", "t0", 3)


def test_an_empty_rack_is_none() -> None:
    assert subscription_bytes("t", rack="") == subscription_bytes("t")
    assert read_subscription(subscription_bytes("t")).rack is None


def test_an_assignment_is_read_as_it_was_written_and_sorted() -> None:
    blob = assignment_bytes(partitions("u1 t10 t2"))
    assert blob == assignment_bytes(partitions("t2 u1 t10"))
    assert read_assignment(blob) == list(partitions("t2 t10 u1"))
    assert assignment_bytes(()) != b""
    assert read_assignment(assignment_bytes(())) == []


def test_a_forgotten_member_has_nothing_and_broken_bytes_are_an_error() -> None:
    assert read_assignment(b"") == []
    with pytest.raises(DecodeError):
        read_assignment(b"\0")
    with pytest.raises(DecodeError):
        read_subscription(b"\0\3\0\0")

"""Assignors by name, and custom ones."""

from __future__ import annotations

from collections.abc import Mapping
from textwrap import dedent
from typing import Any

import pytest

from muster.client import assignors
from muster.client.assignors import (
    COOPERATIVE_STICKY,
    RANGE,
    ROUNDROBIN,
    STICKY,
    Assignor,
    MemberSubscription,
    RebalanceProtocol,
    TopicPartitions,
    assign_checked,
    assignor,
    common_protocol,
    interface,
)
from muster.client.partitions import TopicPartition
from tests.client.assignors.groups import member, partitions, text, topics
from tests.support.each import each


def documented() -> Assignor:
    """The assignor in the documentation, exactly as shown."""
    assert interface.__doc__ is not None
    lines = [line for line in interface.__doc__.splitlines() if line.startswith("    ") or not line]
    names: dict[str, Any] = {}
    exec(dedent("\n".join(lines)), names)
    own = names["FirstAssignor"]()
    assert isinstance(own, Assignor)
    return own


class EagerNever(Assignor):
    name = "eager-never"
    protocols = frozenset({RebalanceProtocol.COOPERATIVE})

    def assign(
        self, members: Mapping[str, MemberSubscription], topics: Mapping[str, TopicPartitions]
    ) -> dict[str, list[TopicPartition]]:
        return {member_id: [] for member_id in members}


def test_each_name_makes_a_new_assignor_of_that_name() -> None:
    for name in (RANGE, ROUNDROBIN, STICKY, COOPERATIVE_STICKY):
        assert assignor(name).name == name
        assert assignor(name) is not assignor(name)


def test_an_unknown_name_is_refused_with_those_there_are() -> None:
    with pytest.raises(ValueError, match="'rang' is none of range, roundrobin, sticky, cooperative-sticky"):
        assignor("rang")


def test_ones_own_assignor_as_documented() -> None:
    own = documented()
    assert assignor(own) is own
    assert text(own.assign({"a": member("tu"), "b": member("t")}, topics(t=1, u=2))) == {
        "a": "t0 u0 u1",
        "b": "",
    }
    assert own.user_data("t", (), 1) is None
    own.on_assignment((), 1)


def test_a_consumer_uses_the_highest_protocol_that_its_assignors_have_in_common() -> None:
    def common(*which: str | Assignor) -> RebalanceProtocol:
        return common_protocol([assignor(each) for each in which])

    assert common(COOPERATIVE_STICKY) is RebalanceProtocol.COOPERATIVE
    assert common(RANGE, COOPERATIVE_STICKY) is RebalanceProtocol.EAGER
    assert common(EagerNever(), COOPERATIVE_STICKY) is RebalanceProtocol.COOPERATIVE
    with pytest.raises(ValueError, match="in common"):
        common(EagerNever(), RANGE)
    with pytest.raises(ValueError, match="at least one"):
        common()


class Fixed(Assignor):
    """Returns the assignment it was given."""

    name = "fixed"

    def __init__(self, assigned: dict[str, str]) -> None:
        self._assigned = assigned

    def assign(
        self, members: Mapping[str, MemberSubscription], topics: Mapping[str, TopicPartitions]
    ) -> dict[str, list[TopicPartition]]:
        return {member_id: list(partitions(each)) for member_id, each in self._assigned.items()}


class FixedCooperative(Fixed):
    protocols = frozenset({RebalanceProtocol.COOPERATIVE})


MEMBERS = {"a": member("t", "t0", 1), "b": member("tu", "t1", 1)}


def test_what_an_assignor_of_ones_own_returns_is_completed() -> None:
    assigned = assign_checked(Fixed({"b": "t0 u1"}), MEMBERS, topics(t=2, u=2))
    assert text(assigned) == {"a": "", "b": "t0 u1"}


@each(
    "assigned, wrong",
    [
        ({"c": ""}, "names 'c', which is not a member"),
        ({"a": "t2"}, "t-2 to a: there is no such partition"),
        ({"b": "v0"}, "v-0 to b: there is no such partition"),
        ({"a": "u0"}, "u-0 to a, which does not subscribe to u"),
        ({"a": "t0", "b": "t0"}, "t-0 to a and to b"),
        ({"a": "t0 t0"}, "t-0 to a and to a"),
    ],
)
def test_what_is_wrong_with_an_assignment_is_said(assigned: dict[str, str], wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        assign_checked(Fixed(assigned), MEMBERS, topics(t=2, u=2))


def test_a_cooperative_assignor_must_not_hand_over_what_another_member_has() -> None:
    swapped = {"a": "t1", "b": "t0"}
    assert text(assign_checked(Fixed(swapped), MEMBERS, topics(t=2))) == swapped
    with pytest.raises(ValueError, match="t-0 to b while a still has it"):
        assign_checked(FixedCooperative(swapped), MEMBERS, topics(t=2))
    assign_checked(FixedCooperative({"a": "t0", "b": "t1"}), MEMBERS, topics(t=2))


def test_everything_public_is_there() -> None:
    assert all(hasattr(assignors, name) for name in assignors.__all__)

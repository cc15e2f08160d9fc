"""The range assignor: runs, the order of members, racks."""

from __future__ import annotations

from muster.client.assignors import RANGE
from tests.client.assignors.groups import assign, member, racks, topics


def test_each_topic_is_cut_into_runs_and_the_first_are_longer() -> None:
    members = {"a": member("tu"), "b": member("tu"), "c": member("u")}
    assert assign(RANGE, members, topics(t=3, u=4)) == {"a": "t0 t1 u0 u1", "b": "t2 u2", "c": "u3"}


def test_more_members_than_partitions_leave_some_with_nothing() -> None:
    assert assign(RANGE, {"a": member("t"), "b": member("t")}, topics(t=1)) == {"a": "t0", "b": ""}


def test_a_topic_nobody_wants_or_that_is_not_there_is_left_out() -> None:
    assert assign(RANGE, {"a": member("t")}, topics(u=3)) == {"a": ""}
    assert assign(RANGE, {}, topics(u=3)) == {}


def test_static_members_come_first_and_by_their_instance() -> None:
    members = {
        "x": member("t"),
        "y": member("t", group_instance_id="2"),
        "z": member("t", group_instance_id="1"),
    }
    assert assign(RANGE, members, topics(t=3)) == {"z": "t0", "y": "t1", "x": "t2"}


def test_members_stand_in_the_order_of_javas_texts() -> None:
    """This is the order of UTF-16: characters beyond 16 bits come before the last of those within."""
    members = {"\uff00": member("t"), "\U0001f600": member("t")}
    assert assign(RANGE, members, topics(t=2)) == {"\U0001f600": "t0", "\uff00": "t1"}


def test_members_get_what_is_near_up_to_their_share() -> None:
    members = {"a": member("t", rack="x"), "b": member("t", rack="y")}
    assert assign(RANGE, members, {"t": racks("y", "y", "y", "x")}) == {"a": "t2 t3", "b": "t0 t1"}


def test_a_member_without_a_rack_is_near_to_everything() -> None:
    members = {"a": member("t"), "b": member("t", rack="x")}
    assert assign(RANGE, members, {"t": racks("x", "x", "y", "y")}) == {"a": "t0 t1", "b": "t2 t3"}


def test_racks_are_no_matter_when_every_partition_is_in_all_or_no_member_in_any() -> None:
    near = {"a": member("t", rack="y"), "b": member("t", rack="x")}
    assert assign(RANGE, near, {"t": racks("xy", "xy")}) == {"a": "t0", "b": "t1"}
    far = {"a": member("t", rack="z"), "b": member("t", rack="z")}
    assert assign(RANGE, far, {"t": racks("y", "x")}) == {"a": "t0", "b": "t1"}


def test_topics_cut_alike_stay_together_across_racks() -> None:
    """Partition 0 of both topics is in y, partition 1 in x: a member reads the same number of both."""
    members = {"a": member("tu", rack="x"), "b": member("tu", rack="y")}
    assert assign(RANGE, members, {"t": racks("y", "x"), "u": racks("y", "x")}) == {
        "a": "t1 u1",
        "b": "t0 u0",
    }
    # u0 is not near to b: for the topics to stay together, no member counts as near to number 0.
    assert assign(RANGE, members, {"t": racks("y", "x"), "u": racks("x", "x")}) == {
        "a": "t1 u1",
        "b": "t0 u0",
    }


def test_topics_that_stay_together_go_to_a_member_without_a_rack_as_well() -> None:
    members = {"a": member("tu"), "b": member("tu", rack="x")}
    near = racks("x", "y")
    assert assign(RANGE, members, {"t": near, "u": near}) == {"a": "t0 u0", "b": "t1 u1"}
    far = racks("y", "x")
    members = {"a": member("tu", rack="x"), "b": member("tu")}
    assert assign(RANGE, members, {"t": far, "u": far}) == {"a": "t1 u1", "b": "t0 u0"}

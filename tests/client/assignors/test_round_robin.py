"""The round robin assignor: all partitions dealt like cards."""

from __future__ import annotations

from muster.client.assignors import ROUNDROBIN
from tests.client.assignors.groups import assign, member, topics


def test_partitions_go_round_across_topics() -> None:
    members = {"a": member("tu"), "b": member("tu")}
    assert assign(ROUNDROBIN, members, topics(t=3, u=3)) == {"a": "t0 t2 u1", "b": "t1 u0 u2"}


def test_who_does_not_subscribe_is_passed_over() -> None:
    members = {"a": member("t"), "b": member("tu"), "c": member("uv")}
    assert assign(ROUNDROBIN, members, topics(t=1, u=2, v=2)) == {"a": "t0", "b": "u0", "c": "u1 v0 v1"}


def test_static_members_come_first() -> None:
    members = {"a": member("t"), "b": member("t", group_instance_id="i")}
    assert assign(ROUNDROBIN, members, topics(t=1)) == {"a": "", "b": "t0"}


def test_nothing_to_deal() -> None:
    assert assign(ROUNDROBIN, {"a": member("t")}, topics(u=1)) == {"a": ""}
    assert assign(ROUNDROBIN, {}, {}) == {}

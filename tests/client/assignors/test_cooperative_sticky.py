"""The cooperative sticky assignor: nobody gets a partition that another member still has."""

from __future__ import annotations

from muster.client.assignors import COOPERATIVE_STICKY, assignor
from tests.client.assignors.groups import assign, member, partitions, topics


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

"""The sticky assignor: which partitions members keep, and which claims it believes."""

from __future__ import annotations

from muster.client.assignors import COOPERATIVE_STICKY, NO_GENERATION, STICKY, MemberSubscription, assignor
from muster.client.assignors.sticky import read_user_data, user_data_bytes
from tests.client.assignors.groups import assign, member, partitions, racks, topics, with_user_data
from tests.support.each import each


def had(topics: str, owned: str, generation_id: int = 1, rack: str | None = None) -> MemberSubscription:
    """A member of the sticky assignor: only its user data tells what it had."""
    whole = with_user_data(STICKY, member(topics, owned, generation_id, rack=rack))
    return whole._replace(owned=(), generation_id=NO_GENERATION)


# --- equal subscriptions --------------------------------------------------------------------------------


def test_at_first_partitions_go_round() -> None:
    members = {"a": member("tu"), "b": member("tu")}
    assert assign(STICKY, members, topics(t=3, u=2)) == {"a": "t0 t2 u1", "b": "t1 u0"}


def test_everybody_keeps_everything_when_nothing_changed() -> None:
    members = {"a": had("t", "t3 t1"), "b": had("t", "t0 t2")}
    assert assign(STICKY, members, topics(t=4)) == {"a": "t1 t3", "b": "t0 t2"}


def test_what_a_member_left_goes_to_those_with_less() -> None:
    members = {"b": had("t", "t1 t4"), "c": had("t", "t2 t5")}
    assert assign(STICKY, members, topics(t=6)) == {"b": "t0 t1 t4", "c": "t2 t3 t5"}


def test_a_newcomer_gets_its_share_and_no_more_moves() -> None:
    members = {"a": had("t", "t0 t1 t2"), "b": had("t", "t3 t4 t5"), "c": member("t")}
    assert assign(STICKY, members, topics(t=6)) == {"a": "t0 t1", "b": "t3 t4", "c": "t2 t5"}


def test_the_low_partitions_of_every_topic_are_kept() -> None:
    members = {"a": had("tu", "t0 t1 u0 u1"), "b": member("tu")}
    assert assign(STICKY, members, topics(t=2, u=2)) == {"a": "t0 u0", "b": "t1 u1"}


def test_the_first_members_keep_longer_shares() -> None:
    members = {"a": had("t", "t0 t1"), "b": had("t", "t2 t3"), "c": member("t")}
    assert assign(STICKY, members, topics(t=4)) == {"a": "t0 t1", "b": "t2", "c": "t3"}


def test_topics_come_and_go() -> None:
    members = {"a": had("u", "t0 t1"), "b": had("u", "t2")}
    assert assign(STICKY, members, topics(u=2)) == {"a": "u0", "b": "u1"}
    assert assign(STICKY, members, topics(t=3)) == {"a": "", "b": ""}


def test_partitions_that_are_gone_are_not_kept() -> None:
    members = {"a": had("t", "t0 t5"), "b": had("t", "t1")}
    assert assign(STICKY, members, topics(t=4)) == {"a": "t0 t2", "b": "t1 t3"}


# --- which claims are believed --------------------------------------------------------------------------


def test_the_later_generation_is_believed() -> None:
    for earlier, later in (("a", "b"), ("b", "a")):
        members = {earlier: had("t", "t0 t1", 4), later: had("t", "t0 t1", 5)}
        assert assign(STICKY, members, topics(t=4))[later] == "t0 t1"


def test_two_that_claim_the_same_in_one_generation_both_lose_it() -> None:
    members = {"a": had("t", "t0 t1", 5), "b": had("t", "t0 t2", 5)}
    assert assign(STICKY, members, topics(t=4)) == {"a": "t0 t1", "b": "t2 t3"}
    members = {"a": had("t", "t3 t1", 5), "b": had("t", "t0 t3", 5)}
    # t3 is dealt again: a, the first member, gets the first free partition.
    assert assign(STICKY, members, topics(t=4)) == {"a": "t1 t2", "b": "t0 t3"}


def test_a_later_generation_settles_a_dispute_of_earlier_ones() -> None:
    members = {"a": had("t", "t0", 4), "b": had("t", "t0", 4), "c": had("t", "t0", 5)}
    assert assign(STICKY, members, topics(t=3)) == {"a": "t1", "b": "t2", "c": "t0"}


def test_what_a_member_lists_twice_it_has_once() -> None:
    members = {"a": member("t", "t0 t0", 1), "b": member("t", "t1", 1)}
    assert assign(COOPERATIVE_STICKY, members, topics(t=2)) == {"a": "t0", "b": "t1"}


# --- racks ----------------------------------------------------------------------------------------------


def test_what_is_far_is_given_up_for_what_is_near() -> None:
    members = {"a": had("t", "t0 t1", rack="x"), "b": had("t", "t2 t3", rack="y")}
    assert assign(STICKY, members, {"t": racks("y", "x", "x", "y")}) == {"a": "t1 t2", "b": "t0 t3"}


def test_shares_stay_even_across_racks() -> None:
    members = {"a": member("t", rack="x"), "b": member("t", rack="x"), "c": member("t", rack="y")}
    assert assign(STICKY, members, {"t": racks("x", "x", "x", "x", "x", "y")}) == {
        "a": "t0 t2",
        "b": "t1 t3",
        "c": "t4 t5",
    }


# --- differing subscriptions ----------------------------------------------------------------------------


def test_loads_are_even_as_far_as_subscriptions_go() -> None:
    members = {"a": member("t"), "b": member("tu"), "c": member("uv")}
    assert assign(STICKY, members, topics(t=2, u=2, v=2)) == {"a": "t0 t1", "b": "u0 u1", "c": "v0 v1"}


def test_a_member_without_topics_gets_nothing() -> None:
    """Kafka's assignor gives it a share if it comes first in a HashMap."""
    members = {"a": member(""), "b": member("t"), "c": member("t")}
    assert assign(STICKY, members, topics(t=3)) == {"a": "", "b": "t0 t2", "c": "t1"}


def test_what_is_no_longer_subscribed_to_is_given_up() -> None:
    members = {"a": had("u", "t0 u0"), "b": had("t", "t1")}
    assert assign(STICKY, members, topics(t=2, u=1)) == {"a": "u0", "b": "t0 t1"}


def test_few_partitions_move_when_somebody_comes() -> None:
    members = {"a": had("tu", "t0 t1 u0 u1"), "b": had("t", "t2 t3"), "c": member("u")}
    assert assign(STICKY, members, topics(t=4, u=2)) == {"a": "t1 u1", "b": "t0 t2 t3", "c": "u0"}


def test_what_was_moved_from_a_member_goes_back_to_it() -> None:
    """a was away for a generation, in which b got t0."""
    members = {"a": had("t", "t1 t0", 1), "b": had("tu", "t0 t1 t2 t3", 2), "c": had("u", "u0", 2)}
    assert assign(STICKY, members, topics(t=4, u=1)) == {"a": "t0 t1", "b": "t2 t3", "c": "u0"}


def test_it_goes_back_although_another_has_less() -> None:
    members = {
        "a": had("t", "t0 t4 t5", 1),
        "b": had("t", "t0 t1 t2 t3", 2),
        "c": had("t", "t6", 2),
        "d": had("u", "u0", 2),
    }
    assert assign(STICKY, members, topics(t=7, u=1)) == {
        "a": "t0 t4 t5",
        "b": "t2 t3",
        "c": "t1 t6",
        "d": "u0",
    }


def test_nobody_gets_back_what_it_no_longer_subscribes_to() -> None:
    """Kafka's assignor gives it back anyway."""
    members = {"a": had("u", "t0 t1", 1), "b": had("t", "t0 t1 t2 t3", 2), "c": had("t", "", 2)}
    assert assign(STICKY, members, topics(t=4, u=1)) == {"a": "u0", "b": "t2 t3", "c": "t0 t1"}


def test_racks_with_differing_subscriptions() -> None:
    members = {"a": member("t", rack="x"), "b": member("tu", rack="y"), "c": member("t")}
    near = {"t": racks("y", "x", "x", "y", "z"), "u": racks("y")}
    assert assign(STICKY, members, near) == {"a": "t1 t2", "b": "t3 u0", "c": "t0 t4"}
    # Where everything is equally near, only the loads count.
    assert assign(STICKY, members, topics(t=5, u=1)) == {"a": "t0 t2", "b": "t3 u0", "c": "t1 t4"}


# --- user data ------------------------------------------------------------------------------------------


def test_user_data_is_what_it_was_told_last() -> None:
    own = assignor(STICKY)
    assert own.user_data("t", (), 7) is None
    own.on_assignment(partitions("u1 t10 t2"), 7)
    told = own.user_data("t", (), 9)
    assert told is not None
    assert told == user_data_bytes(partitions("t2 u1 t10"), 7)
    assert read_user_data(told) == (list(partitions("t2 t10 u1")), 7)


def test_user_data_of_version_0_has_no_generation() -> None:
    v1 = user_data_bytes(partitions("t2 u1"), 7)
    assert read_user_data(v1[:-4]) == (list(partitions("t2 u1")), NO_GENERATION)


@each("blob", [None, b"", b"\0", b"\xff\xff\xff\xff", b"\0\0\0\x01\0\x01"])
def test_a_member_whose_user_data_nobody_understands_had_nothing(blob: bytes | None) -> None:
    read = read_user_data(blob)
    assert (list(read.owned), read.generation_id) == ([], NO_GENERATION)

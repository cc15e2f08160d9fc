"""A member that leads its group: it assigns partitions to everybody, and watches the topics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from muster.client.assignors import (
    Assignor,
    MemberSubscription,
    TopicPartitions,
    assignment_bytes,
    read_assignment,
    subscription_bytes,
)
from muster.client.errors import ClientError, ConnectionLost
from muster.client.group.membership_types import Kind, State
from muster.client.partitions import TopicPartition
from muster.protocol.errors import ErrorCode
from muster.protocol.messages.classic_group import JoinGroupResponse
from muster.protocol.messages.group_admin import DescribeGroupsRequest, DescribeGroupsResponse
from tests.client.memberships import NODE, TOPICS, Hand, join_request, joined, partitions, sync_request
from tests.support.each import each

NOTHING: frozenset[TopicPartition] = frozenset()


def lead(hand: Hand, response: JoinGroupResponse) -> dict[str, list[TopicPartition]]:
    """The leader's assignment for each member."""
    hand.preparing().completing(response)
    return {each.member_id: read_assignment(each.assignment) for each in sync_request(hand).assignments}


def test_the_leader_asks_for_everybodys_topics_and_assigns_them() -> None:
    hand = Hand().preparing()
    members = [
        JoinGroupResponse.Member(member_id="m", metadata=subscription_bytes(["t"])),
        JoinGroupResponse.Member(member_id="n", metadata=subscription_bytes(["t", "u"])),
    ]
    hand.answer(Kind.JOIN, joined(members=members))
    assert hand.membership.is_leader
    assert hand.due() == [Kind.TOPICS]
    assert hand.answer(Kind.TOPICS, TOPICS | {"u": TopicPartitions(1)}).topics == {"t", "u"}
    assert hand.due() == [Kind.ASSIGN]
    hand.answer(Kind.ASSIGN, hand.asks(Kind.ASSIGN).work())
    assigned = {each.member_id: read_assignment(each.assignment) for each in sync_request(hand).assignments}
    assert assigned == {
        "m": sorted(partitions(0, 1)),
        "n": [*sorted(partitions(2, 3)), TopicPartition("u", 0)],
    }


def test_every_member_gets_a_real_blob_of_nothing_too() -> None:
    hand = Hand()
    assigned = lead(hand, joined(others=[f"n{each}" for each in range(5)]))
    assert sorted(map(len, assigned.values())) == [0, 0, 1, 1, 1, 1]
    assert all(each.assignment for each in sync_request(hand).assignments)


def test_whom_an_assignor_forgets_gets_nothing() -> None:
    class Careless(Assignor):
        name = "careless"

        def assign(
            self, members: Mapping[str, MemberSubscription], topics: Mapping[str, TopicPartitions]
        ) -> dict[str, list[TopicPartition]]:
            return {"m": [TopicPartition("t", 0)]}

    assigned = lead(Hand(Careless()), joined(protocol="careless", others=["n"]))
    assert assigned == {"m": [TopicPartition("t", 0)], "n": []}


def test_a_member_whose_metadata_nobody_understands_gets_nothing() -> None:
    members = [
        JoinGroupResponse.Member(member_id="m", metadata=subscription_bytes(["t"])),
        JoinGroupResponse.Member(member_id="strange", metadata=b"\xff\xff\x00"),
    ]
    assert lead(Hand(), joined(members=members)) == {"m": sorted(partitions(0, 1, 2, 3)), "strange": []}


def test_topics_are_asked_for_again_when_nobody_told_them() -> None:
    hand = Hand().preparing()
    hand.answer(Kind.JOIN, joined())
    hand.fail(Kind.TOPICS, ConnectionLost("gone"))
    assert hand.due() == []
    assert hand.wait_until_due() == [Kind.TOPICS]


def test_an_assignor_that_fails_is_fatal_for_this_join() -> None:
    hand = Hand().preparing()
    hand.answer(Kind.JOIN, joined())
    hand.answer(Kind.TOPICS, TOPICS)
    hand.fail(Kind.ASSIGN, ClientError("no"), final=True)
    assert str(hand.membership.take_error()) == "no"
    assert hand.membership.rejoin_needed
    assert not hand.membership.is_joining


def watching(hand: Hand, **fields: Any) -> Hand:
    hand.preparing().completing(joined(**fields))
    hand.stable()
    hand.membership.polled(hand.now_ms)
    return hand


def test_the_leader_watches_the_topics_and_has_the_group_rebalance_when_they_change() -> None:
    hand = watching(Hand(metadata_max_age_ms=2_000, heartbeat_interval_ms=10_000))
    assert hand.wait(1_999) == []
    assert hand.wait(1) == [Kind.WATCH]
    hand.answer(Kind.WATCH, TOPICS)
    assert not hand.membership.rejoin_needed
    hand.wait(2_000)
    hand.answer(Kind.WATCH, {"t": TopicPartitions(5)})
    assert hand.membership.rejoin_needed
    assert "t" in (join_request(hand.preparing()).reason or "")


def test_a_follower_watches_nothing() -> None:
    hand = Hand.at(State.STABLE, metadata_max_age_ms=2_000, heartbeat_interval_ms=10_000)
    assert hand.wait(9_000) == []


@each("rack", ["", "r"])
def test_racks_matter_to_a_leader_that_has_one(rack: str) -> None:
    hand = watching(Hand(metadata_max_age_ms=2_000, rack=rack))
    hand.wait(2_000)
    hand.answer(Kind.WATCH, {"t": TopicPartitions(4, (frozenset({"r"}),) * 4)})
    assert hand.membership.rejoin_needed == bool(rack)


def test_a_topic_that_does_not_exist_yet_is_looked_for_often() -> None:
    hand = Hand().preparing()
    hand.answer(Kind.JOIN, joined())
    hand.answer(Kind.TOPICS, {})
    hand.answer(Kind.ASSIGN, hand.asks(Kind.ASSIGN).work())
    hand.stable(NOTHING)
    assert hand.wait(1_000) == [Kind.WATCH]  # retry.backoff.max.ms, not metadata.max.age.ms
    hand.answer(Kind.WATCH, TOPICS)
    assert hand.membership.rejoin_needed


def test_watching_goes_on_after_a_failure() -> None:
    hand = watching(Hand(metadata_max_age_ms=2_000, heartbeat_interval_ms=10_000))
    hand.wait(2_000)
    hand.fail(Kind.WATCH, ConnectionLost("gone"))
    assert hand.wait(100) == [Kind.WATCH]


def test_a_static_leader_that_is_back_skips_the_assignment_and_watches_all_the_same() -> None:
    hand = back(described({"m": partitions(0, 1), "n": partitions(2, 3)}))
    hand.answer(Kind.WATCH, TOPICS)
    assert not hand.membership.rejoin_needed
    hand.wait(2_000)
    hand.answer(Kind.WATCH, {"t": TopicPartitions(5)})
    assert hand.membership.rejoin_needed


@each("now", [{"t": TopicPartitions(5)}, {"t": TopicPartitions(3)}, {}])
def test_a_static_leader_that_is_back_sees_what_changed_while_it_was_away(
    now: Mapping[str, TopicPartitions],
) -> None:
    hand = back(described({"m": partitions(0, 1), "n": partitions(2, 3)}))
    hand.answer(Kind.WATCH, now)
    assert hand.membership.rejoin_needed
    assert "t" in (join_request(hand.preparing()).reason or "")


def test_who_has_what_is_asked_again_while_nobody_can_say() -> None:
    hand = back(described({}, code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
    assert hand.due() == []
    assert hand.wait_until_due() == [Kind.ASSIGNED]
    hand.answer(Kind.ASSIGNED, described({}, state="PreparingRebalance"))
    assert hand.wait_until_due() == [Kind.ASSIGNED]
    hand.fail(Kind.ASSIGNED, ConnectionLost("gone"))
    assert hand.due() == [Kind.FIND_COORDINATOR]
    hand.answer(Kind.FIND_COORDINATOR, NODE)
    assert hand.wait_until_due() == [Kind.ASSIGNED]


@each(
    "answer",
    [
        lambda: described({}, code=ErrorCode.GROUP_AUTHORIZATION_FAILED),
        lambda: described({"m": partitions(0)}, unreadable=["n"]),
        lambda: DescribeGroupsResponse(groups=[]),
    ],
)
def test_without_who_has_what_the_topics_are_watched_from_now_on(
    answer: Callable[[], DescribeGroupsResponse],
) -> None:
    hand = back(answer())
    hand.answer(Kind.WATCH, TOPICS)
    assert not hand.membership.rejoin_needed
    hand.wait(2_000)
    hand.answer(Kind.WATCH, {"t": TopicPartitions(5)})
    assert hand.membership.rejoin_needed


def back(answer: DescribeGroupsResponse) -> Hand:
    """A static leader that was away, and that got this answer about its group (KIP-814)."""
    hand = Hand(group_instance_id="i", metadata_max_age_ms=2_000, heartbeat_interval_ms=10_000)
    hand.preparing().completing(joined(skip_assignment=True))
    assert sync_request(hand).assignments == []
    hand.stable()
    assert hand.membership.is_leader
    assert hand.due() == [Kind.ASSIGNED]
    assert hand.asks(Kind.ASSIGNED).request == DescribeGroupsRequest(groups=["g"])
    hand.answer(Kind.ASSIGNED, answer)
    return hand


def described(
    assigned: Mapping[str, frozenset[TopicPartition]],
    *,
    state: str = "Stable",
    code: int = 0,
    unreadable: Iterable[str] = (),
) -> DescribeGroupsResponse:
    blobs = {each: assignment_bytes(some) for each, some in assigned.items()}
    blobs |= dict.fromkeys(unreadable, b"\xff")
    members = [
        DescribeGroupsResponse.DescribedGroupMember(
            member_id=each, client_id="", client_host="", member_metadata=b"", member_assignment=blob
        )
        for each, blob in blobs.items()
    ]
    group = DescribeGroupsResponse.DescribedGroup(
        error_code=code,
        group_id="g",
        group_state=state,
        protocol_type="consumer",
        protocol_data="range",
        members=members,
    )
    return DescribeGroupsResponse(groups=[group])

"""A member of a classic group as a state machine: joining, staying, leaving. What error codes lead to is
tested in test_membership_errors, leading in test_membership_leading, and that it never gets stuck in
test_membership_walks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from muster.client.assignors import (
    Assignor,
    MemberSubscription,
    RebalanceProtocol,
    TopicPartitions,
    assignor,
    read_subscription,
)
from muster.client.errors import ClientError, ConnectionLost
from muster.client.group.membership import Membership
from muster.client.group.membership_types import Kind, Preparation, State
from muster.client.partitions import TopicPartition
from muster.protocol.errors import ErrorCode
from muster.protocol.messages.classic_group import (
    HeartbeatRequest,
    LeaveGroupRequest,
    SyncGroupResponse,
)
from tests.client.memberships import (
    LEFT,
    NODE,
    Hand,
    beaten,
    join_request,
    joined,
    partitions,
    refused_join,
    settings,
    sync_request,
    synced,
)
from tests.support.each import each

NOTHING: frozenset[TopicPartition] = frozenset()
COOPERATIVE = "cooperative-sticky"


# --- settings -----------------------------------------------------------------------------------------------


@each(
    "options, named",
    [
        ({"group_id": ""}, "group_id"),
        ({"group_instance_id": " "}, "group_instance_id"),
        ({"heartbeat_interval_ms": 45_000}, "heartbeat_interval_ms"),
        ({"session_timeout_ms": 0}, "session_timeout_ms"),
        ({"max_poll_interval_ms": -1}, "max_poll_interval_ms"),
        ({"assignors": ()}, "assignors"),
    ],
)
def test_settings_that_cannot_work_are_refused_by_name(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        Membership(settings(**options))


def test_two_assignors_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="same name"):
        Membership(settings("range", "range"))


@each(
    "assignors, protocol",
    [
        (["range"], RebalanceProtocol.EAGER),
        ([COOPERATIVE], RebalanceProtocol.COOPERATIVE),
        (["range", COOPERATIVE], RebalanceProtocol.EAGER),
    ],
)
def test_the_protocol_in_force_is_the_highest_that_all_assignors_support(
    assignors: list[str], protocol: RebalanceProtocol
) -> None:
    assert Membership(settings(*assignors)).protocol is protocol


# --- joining ------------------------------------------------------------------------------------------------


def test_joining_from_the_first_question_to_the_assignment() -> None:
    hand = Hand(session_timeout_ms=6_000, max_poll_interval_ms=60_000, heartbeat_interval_ms=1_000)
    member = hand.membership
    assert hand.due() == []  # nothing before the consumer is ready
    assert member.rejoin_needed
    member.join(NOTHING, hand.now_ms)
    assert hand.due() == [Kind.FIND_COORDINATOR]
    hand.answer(Kind.FIND_COORDINATOR, NODE)
    assert hand.due() == [Kind.JOIN]
    ask, request = hand.asks(Kind.JOIN), join_request(hand)
    assert (ask.node, ask.timeout_ms) == (NODE, 65_000)
    assert (request.group_id, request.member_id, request.group_instance_id) == ("g", "", None)
    assert (request.session_timeout_ms, request.rebalance_timeout_ms) == (6_000, 60_000)
    assert [each.name for each in request.protocols] == ["range"]
    assert read_subscription(request.protocols[0].metadata).topics == {"t"}
    hand.answer(Kind.JOIN, refused_join(ErrorCode.MEMBER_ID_REQUIRED, "m"))
    assert join_request(hand).member_id == "m"  # at once (KIP-394)
    hand.answer(Kind.JOIN, joined(3, "m", leader="other"))
    assert (member.state, member.generation_id, member.is_leader) == (State.COMPLETING_REBALANCE, 3, False)
    sync = sync_request(hand)
    assert (sync.generation_id, sync.member_id, sync.protocol_name, sync.assignments) == (3, "m", "range", [])
    result = hand.stable(partitions(0, 1))
    assert (result.assigned, result.added, result.revoked) == (partitions(0, 1), partitions(0, 1), None)
    assert (result.generation_id, result.member_id, result.assignor) == (3, "m", "range")
    assert member.assignment == member.owned == partitions(0, 1)
    assert not member.rejoin_needed


def test_every_assignor_goes_with_its_own_metadata_best_first() -> None:
    request = join_request(Hand("range", COOPERATIVE, "roundrobin", rack="r").preparing())
    assert [each.name for each in request.protocols] == ["range", COOPERATIVE, "roundrobin"]
    read = [read_subscription(each.metadata) for each in request.protocols]
    assert {each.rack for each in read} == {"r"}
    assert [each.user_data is not None for each in read] == [False, True, False]


def test_equal_subscriptions_are_equal_bytes() -> None:
    blobs = set()
    for topics in (["a", "b", "c"], ["c", "b", "a"]):
        hand = Hand("range", COOPERATIVE)
        hand.membership.subscribe(frozenset(topics))
        blobs.add(tuple(each.metadata for each in join_request(hand.preparing()).protocols))
    assert len(blobs) == 1


def test_joining_waits_for_the_request_timeout_at_least() -> None:
    hand = Hand(max_poll_interval_ms=1_000, request_timeout_ms=30_000).preparing()
    assert hand.asks(Kind.JOIN).timeout_ms == 30_000


def test_a_reason_is_cut_to_255_characters() -> None:
    hand = Hand.at(State.STABLE)
    hand.membership.request_rejoin("because " + "x" * 300)
    request = join_request(hand.preparing())
    assert request.reason is not None
    assert (len(request.reason), request.reason[:9]) == (255, "because x")


def test_without_a_subscription_there_is_nothing_to_join() -> None:
    member = Membership(settings())
    assert not member.rejoin_needed
    with pytest.raises(ClientError, match="no subscription"):
        member.join(NOTHING, 0)


def test_an_assignor_that_this_member_did_not_offer_is_fatal() -> None:
    hand = Hand().preparing()
    hand.answer(Kind.JOIN, joined(protocol="mystery"))
    error = hand.membership.take_error()
    assert error is not None
    assert "mystery" in str(error)
    assert hand.membership.take_error() is None  # reported once


def test_another_protocol_type_is_fatal() -> None:
    hand = Hand().preparing()
    hand.answer(Kind.JOIN, joined(protocol_type="connect"))
    assert "connect" in str(hand.membership.take_error())


def test_an_answer_for_another_assignor_is_fatal() -> None:
    hand = Hand().preparing().completing()
    hand.answer(Kind.SYNC, SyncGroupResponse(protocol_name="sticky", assignment=b""))
    assert "sticky" in str(hand.membership.take_error())


def test_after_a_fatal_error_joining_again_begins_anew() -> None:
    hand = Hand().preparing()
    hand.answer(Kind.JOIN, refused_join(ErrorCode.INVALID_SESSION_TIMEOUT))
    assert hand.membership.take_error() is not None
    assert (hand.due(), hand.membership.is_joining) == ([], False)
    assert hand.membership.rejoin_needed
    hand.preparing()


# --- assignments --------------------------------------------------------------------------------------------


def test_zero_bytes_are_an_assignment_of_nothing() -> None:
    hand = Hand().preparing().completing()
    hand.answer(Kind.SYNC, SyncGroupResponse(assignment=b""))
    assert (hand.membership.state, hand.membership.assignment) == (State.STABLE, NOTHING)


def test_bytes_that_are_no_assignment_are_an_error_that_names_the_group() -> None:
    hand = Hand().preparing().completing()
    hand.answer(Kind.SYNC, SyncGroupResponse(assignment=b"\x00"))
    error = hand.membership.take_error()
    assert isinstance(error, ClientError)
    assert "group g" in str(error)
    assert hand.membership.rejoin_needed


def test_partitions_of_a_topic_that_is_not_subscribed_are_not_adopted() -> None:
    hand = Hand().preparing().completing()
    hand.answer(Kind.SYNC, synced(partitions(0, topic="u")))
    assert (hand.membership.result, hand.membership.assignment) == (None, NOTHING)
    assert "does not fit" in (join_request(hand).reason or "")  # it rejoins, without the consumer
    hand.completing()
    hand.stable(partitions(1))


def test_a_pattern_accepts_topics_that_only_the_leader_knew_of() -> None:
    hand = Hand()
    hand.membership.subscribe(frozenset({"t"}), lambda topic: topic.startswith("t"))
    hand.preparing().completing()
    assert hand.stable(partitions(0, topic="t2")).assigned == partitions(0, topic="t2")
    # Whether the consumer already sees the topic or not, the subscription is the same.
    for topics in ({"t"}, {"t", "t2"}):
        hand.membership.subscribe(frozenset(topics), lambda topic: topic.startswith("t"))
        assert not hand.membership.rejoin_needed
    hand.membership.subscribe(frozenset({"t", "t3"}), lambda topic: topic.startswith("t"))
    assert hand.membership.rejoin_needed


def test_a_new_subscription_has_the_group_rebalance() -> None:
    hand = Hand.at(State.STABLE)
    hand.membership.subscribe(frozenset({"t"}))
    assert not hand.membership.rejoin_needed
    hand.membership.subscribe(frozenset({"t", "u"}))
    assert hand.membership.rejoin_needed
    assert read_subscription(join_request(hand.preparing()).protocols[0].metadata).topics == {"t", "u"}


def test_a_subscription_that_changed_while_joining_leads_to_another_join() -> None:
    hand = Hand().preparing()
    hand.membership.subscribe(frozenset({"t", "u"}))
    hand.completing()
    hand.stable()
    assert hand.membership.rejoin_needed


def test_the_assignor_is_told_what_its_member_got() -> None:
    told = []

    class Telling(Assignor):
        name = "telling"

        def assign(
            self, members: Mapping[str, MemberSubscription], topics: Mapping[str, TopicPartitions]
        ) -> dict[str, list[TopicPartition]]:
            return {}

        def on_assignment(self, assigned: Iterable[TopicPartition], generation_id: int) -> None:
            told.append((frozenset(assigned), generation_id))

    Hand.at(State.STABLE, Telling())
    assert told == [(partitions(0, 1), 1)]


# --- giving up partitions -----------------------------------------------------------------------------------


def test_the_very_first_join_gives_up_nothing_and_tells_nobody() -> None:
    for assignors in (["range"], [COOPERATIVE]):
        assert Hand(*assignors).membership.prepare(NOTHING) == Preparation(None, None, NOTHING)


def test_eager_gives_up_everything_before_it_joins_nothing_too() -> None:
    hand = Hand.at(State.STABLE)
    hand.membership.request_rejoin("why not")
    assert hand.membership.prepare(partitions(0, 1)) == Preparation(partitions(0, 1), None, NOTHING)
    assert hand.membership.prepare(NOTHING) == Preparation(NOTHING, None, NOTHING)


def test_cooperative_gives_up_what_is_not_subscribed_any_more_and_keeps_the_rest() -> None:
    hand = Hand.at(State.STABLE, COOPERATIVE)
    member = hand.membership
    member.request_rejoin("why not")
    assert member.prepare(partitions(0, 1)) == Preparation(None, None, partitions(0, 1))
    member.subscribe(frozenset({"u"}))
    owned = partitions(0, 1) | partitions(2, topic="u")
    assert member.prepare(owned) == Preparation(partitions(0, 1), None, partitions(2, topic="u"))


def test_it_is_said_once_per_rebalance() -> None:
    hand = Hand.at(State.STABLE)
    member = hand.membership
    member.request_rejoin("why not")
    member.join(member.prepare(partitions(0, 1)).kept, hand.now_ms)
    assert member.prepare(NOTHING) == Preparation(None, None, NOTHING)
    hand.due()
    hand.fail(Kind.JOIN, ConnectionLost("gone"))
    assert member.prepare(NOTHING) == Preparation(None, None, NOTHING)


def test_cooperative_keeps_what_it_has_and_says_so_with_its_generation() -> None:
    hand = Hand.at(State.STABLE, COOPERATIVE)
    hand.membership.request_rejoin("why not")
    hand.preparing(partitions(0, 1))
    read = read_subscription(join_request(hand).protocols[0].metadata)
    assert (frozenset(read.owned), read.generation_id) == (partitions(0, 1), 1)


def test_cooperative_revokes_after_the_sync_and_joins_once_more() -> None:
    hand = Hand.at(State.STABLE, COOPERATIVE)
    hand.membership.request_rejoin("why not")
    hand.preparing(partitions(0, 1)).completing(joined(2, leader="other", protocol=COOPERATIVE))
    result = hand.stable(partitions(1, 2))
    assert (result.assigned, result.revoked, result.added) == (
        partitions(1, 2),
        partitions(0),
        partitions(2),
    )
    assert hand.membership.owned == partitions(0, 1, 2)  # to be committed before it gives up partition 0
    assert hand.membership.rejoin_needed
    assert hand.membership.prepare(partitions(1, 2)) == Preparation(None, None, partitions(1, 2))
    hand.preparing(partitions(1, 2)).completing(joined(3, leader="other", protocol=COOPERATIVE))
    result = hand.stable(partitions(1, 2))
    assert (result.revoked, result.added) == (None, NOTHING)
    assert not hand.membership.rejoin_needed


def test_who_was_removed_has_lost_everything_and_does_not_join_before_that_is_known() -> None:
    for assignors in (["range"], [COOPERATIVE]):
        hand = Hand.at(State.STABLE, *assignors)
        member = hand.membership
        hand.wait_until_due()
        hand.answer(Kind.HEARTBEAT, beaten(ErrorCode.UNKNOWN_MEMBER_ID))
        assert member.lost
        assert (member.rejoin_needed, member.owned) == (True, NOTHING)
        member.join(partitions(0, 1), hand.now_ms)  # a consumer that has not noticed
        assert (hand.due(), member.is_joining) == ([], False)
        assert member.prepare(partitions(0, 1)) == Preparation(None, partitions(0, 1), NOTHING)
        hand.preparing()
        assert not member.lost
        assert join_request(hand).member_id == ""


def test_partitions_lost_while_joining_stop_the_exchange() -> None:
    hand = Hand.at(State.STABLE, COOPERATIVE)
    hand.membership.request_rejoin("why not")
    hand.preparing(partitions(0, 1))
    hand.answer(Kind.JOIN, refused_join(ErrorCode.UNKNOWN_MEMBER_ID))
    assert hand.membership.lost
    assert hand.due() == []
    assert hand.membership.prepare(partitions(0, 1)).lost == partitions(0, 1)
    hand.preparing()


def test_who_has_nothing_to_lose_goes_on_by_itself() -> None:
    hand = Hand().preparing()
    hand.answer(Kind.JOIN, refused_join(ErrorCode.UNKNOWN_MEMBER_ID))
    assert hand.due() == [Kind.JOIN]


def test_a_result_that_was_not_taken_is_void_when_the_membership_is_lost() -> None:
    hand = Hand().preparing().completing()
    hand.answer(Kind.SYNC, synced())
    result = hand.membership.result
    assert result is not None
    hand.wait_until_due()
    hand.answer(Kind.HEARTBEAT, beaten(ErrorCode.UNKNOWN_MEMBER_ID))
    assert not hand.membership.take(result)
    assert hand.membership.rejoin_needed


def test_a_result_waits_to_be_taken() -> None:
    hand = Hand().preparing().completing()
    hand.answer(Kind.SYNC, synced(partitions(3)))
    member = hand.membership
    assert member.rejoin_needed
    member.join(NOTHING, hand.now_ms)
    assert hand.due() == []
    assert member.prepare(NOTHING) == Preparation(None, None, NOTHING)
    assert member.result is not None
    assert member.take(member.result)
    assert not member.rejoin_needed


# --- staying ------------------------------------------------------------------------------------------------


def test_heartbeats_begin_with_the_generation_and_pause_while_joining() -> None:
    hand = Hand(heartbeat_interval_ms=1_000).preparing()
    assert hand.wait(10_000) == []
    hand.answer(Kind.JOIN, joined(leader="other"))
    hand.due()
    assert hand.wait(1_000) == [Kind.HEARTBEAT]  # while the SyncGroup waits
    request = hand.answer(Kind.HEARTBEAT, beaten()).request
    assert isinstance(request, HeartbeatRequest)
    assert (request.generation_id, request.member_id) == (1, "m")
    hand.stable()
    assert hand.wait(1_000) == [Kind.HEARTBEAT]
    hand.answer(Kind.HEARTBEAT, beaten())
    hand.membership.request_rejoin("why not")
    assert hand.wait(1_000) == [Kind.HEARTBEAT]  # until the consumer joins
    hand.preparing()
    assert hand.wait(10_000) == []


def test_a_rebalance_is_learned_from_a_heartbeat_which_counts_as_answered() -> None:
    hand = Hand.at(State.STABLE)
    hand.wait_until_due()
    hand.answer(Kind.HEARTBEAT, beaten(ErrorCode.REBALANCE_IN_PROGRESS))
    member = hand.membership
    assert (member.rejoin_needed, member.state, member.generation_id) == (True, State.STABLE, 1)
    assert member.heartbeat.last_answered_ms == hand.now_ms
    assert "rebalancing" in (join_request(hand.preparing()).reason or "")


def test_in_a_rebalance_that_it_takes_part_in_a_heartbeat_says_nothing_new() -> None:
    hand = Hand().preparing().completing()
    hand.wait_until_due()
    hand.answer(Kind.HEARTBEAT, beaten(ErrorCode.REBALANCE_IN_PROGRESS))
    hand.stable()
    assert not hand.membership.rejoin_needed


@each("code", [ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID])
def test_answers_to_heartbeats_of_an_earlier_generation_are_ignored(code: ErrorCode) -> None:
    hand = Hand.at(State.STABLE)
    hand.wait_until_due()
    late = hand.asks(Kind.HEARTBEAT)
    hand.asked.remove(late)
    hand.membership.request_rejoin("why not")
    hand.preparing()
    hand.membership.answered(late, beaten(code), hand.now_ms)  # while a JoinGroup is in flight
    assert (hand.membership.state, hand.membership.generation_id) == (State.PREPARING_REBALANCE, 1)
    hand.completing(joined(2, leader="other"))
    hand.membership.answered(late, beaten(code), hand.now_ms)
    hand.stable()
    assert hand.membership.take_error() is None


def test_a_silent_session_makes_the_coordinator_unknown_and_keeps_the_generation() -> None:
    hand = Hand.at(State.STABLE, session_timeout_ms=6_000, heartbeat_interval_ms=2_000)
    member = hand.membership
    assert hand.wait(2_000) == [Kind.HEARTBEAT]
    assert hand.wait(4_000) == [Kind.FIND_COORDINATOR]
    assert (member.state, member.generation_id, member.member_id) == (State.STABLE, 1, "m")
    hand.fail(Kind.HEARTBEAT, ConnectionLost("closed by us"))
    hand.answer(Kind.FIND_COORDINATOR, NODE)
    assert hand.wait(100) == [Kind.HEARTBEAT]
    hand.answer(Kind.HEARTBEAT, beaten())
    assert not member.rejoin_needed


def test_a_heartbeat_without_an_answer_is_repeated_elsewhere_before_the_session_is_over() -> None:
    hand = Hand.at(State.STABLE, session_timeout_ms=6_000, heartbeat_interval_ms=2_000)
    hand.wait(2_000)
    ask = hand.asks(Kind.HEARTBEAT)
    hand.now_ms += ask.timeout_ms
    hand.fail(Kind.HEARTBEAT, ConnectionLost("no answer"))
    assert hand.due() == [Kind.FIND_COORDINATOR]
    hand.answer(Kind.FIND_COORDINATOR, NODE)
    hand.wait(100)
    hand.answer(Kind.HEARTBEAT, beaten())
    assert ask.timeout_ms + 100 + 2_000 < 6_000


def leave_request(hand: Hand) -> LeaveGroupRequest:
    request = hand.asks(Kind.LEAVE).request
    assert isinstance(request, LeaveGroupRequest)
    return request


def test_who_asks_for_no_records_leaves_and_comes_back_with_the_next_poll() -> None:
    hand = Hand.at(State.STABLE, max_poll_interval_ms=2_000, heartbeat_interval_ms=10_000)
    hand.membership.polled(hand.now_ms)
    assert hand.wait(1_999) == []
    assert hand.wait(1) == [Kind.LEAVE]
    (left,) = leave_request(hand).members
    assert left.member_id == "m"
    assert "max.poll.interval.ms" in (left.reason or "")
    member = hand.membership
    assert (member.state, member.member_id, member.generation_id) == (State.UNJOINED, "", -1)
    assert (member.lost, member.rejoin_needed, member.poll_expirations) == (True, True, 1)
    hand.answer(Kind.LEAVE, LEFT)
    assert hand.wait(60_000) == []
    assert member.prepare(partitions(0, 1)).lost == partitions(0, 1)
    hand.preparing()


def test_who_is_let_in_and_asks_for_no_records_does_not_join_again_by_itself() -> None:
    hand = Hand(max_poll_interval_ms=2_000, heartbeat_interval_ms=10_000).preparing().completing()
    assert hand.wait(2_000) == [Kind.LEAVE]
    assert hand.wait(60_000) == []
    assert hand.membership.rejoin_needed
    hand.preparing()


def test_a_static_member_that_asks_for_no_records_goes_quiet() -> None:
    hand = Hand.at(State.STABLE, max_poll_interval_ms=2_000, group_instance_id="i")
    assert hand.wait(2_000) == []
    assert (hand.membership.state, hand.membership.lost) == (State.UNJOINED, True)


def test_who_waits_to_be_let_in_is_not_idle() -> None:
    hand = Hand(max_poll_interval_ms=2_000, heartbeat_interval_ms=500).preparing().completing()
    hand.membership.readers += 1
    for _ in range(10):
        assert hand.wait(500) == [Kind.HEARTBEAT]
        hand.answer(Kind.HEARTBEAT, beaten())
    hand.membership.readers -= 1
    assert Kind.LEAVE in hand.wait(2_000)


def test_while_a_join_is_parked_the_coordinator_is_asked_for_a_sign_of_life() -> None:
    hand = Hand(request_timeout_ms=5_000).preparing()
    assert hand.wait(5_000) == [Kind.PROBE]
    assert hand.wait(5_000) == []
    hand.answer(Kind.PROBE)
    assert hand.wait(5_000) == [Kind.PROBE]
    hand.fail(Kind.PROBE, ConnectionLost("silence"))
    assert hand.membership.coordinator is None
    assert hand.due() == [Kind.FIND_COORDINATOR]
    hand.fail(Kind.JOIN, ConnectionLost("closed by us"))
    hand.answer(Kind.FIND_COORDINATOR, NODE + 1)
    hand.wait(100)
    assert hand.asks(Kind.JOIN).node == NODE + 1


# --- the coordinator ----------------------------------------------------------------------------------------


def test_the_coordinator_is_looked_for_at_once_and_then_with_a_pause_that_grows() -> None:
    hand = Hand()
    hand.membership.join(NOTHING, hand.now_ms)
    pauses = []
    for _ in range(6):
        hand.fail(Kind.FIND_COORDINATOR, ConnectionLost("nobody there"))
        began_ms = hand.now_ms
        assert hand.wait_until_due() == [Kind.FIND_COORDINATOR]
        pauses.append(hand.now_ms - began_ms)
    assert pauses == [100, 200, 400, 800, 1_000, 1_000]


def test_a_coordinator_that_only_says_it_is_none_is_not_asked_in_a_tight_loop() -> None:
    hand = Hand().preparing()
    asked = 0
    end_ms = hand.now_ms + 10_000
    while hand.now_ms < end_ms:
        hand.answer(Kind.JOIN, refused_join(ErrorCode.NOT_COORDINATOR))
        kinds = hand.due()
        while Kind.JOIN not in kinds:
            if Kind.FIND_COORDINATOR in kinds:
                hand.answer(Kind.FIND_COORDINATOR, NODE)
            kinds = hand.due() or hand.wait_until_due()
        asked += 1
        assert asked < 20


def test_a_coordinator_that_confuses_everybody_is_not_asked_in_a_tight_loop() -> None:
    hand = Hand().preparing()
    asked = 0
    end_ms = hand.now_ms + 10_000
    while hand.now_ms < end_ms:
        hand.answer(Kind.JOIN, refused_join(ErrorCode.MEMBER_ID_REQUIRED, "m"))
        if Kind.JOIN not in hand.due():
            hand.wait_until_due()
        asked += 1
        assert asked < 30


def test_a_failed_join_is_repeated_at_the_next_coordinator_as_the_same_member() -> None:
    hand = Hand.at(State.STABLE)
    hand.membership.request_rejoin("why not")
    hand.preparing()
    hand.fail(Kind.JOIN, ConnectionLost("gone"))
    member = hand.membership
    assert (member.coordinator, member.state, member.member_id) == (None, State.UNJOINED, "m")
    hand.answer(Kind.FIND_COORDINATOR, NODE + 1)
    hand.wait(100)
    assert join_request(hand).member_id == "m"


def test_what_is_said_of_an_earlier_coordinator_does_not_count() -> None:
    hand = Hand.at(State.STABLE)
    hand.membership.coordinator_lost(NODE + 1, hand.now_ms)
    assert hand.membership.coordinator == NODE


def test_a_coordinator_that_has_lost_generations_gets_a_new_member() -> None:
    hand = Hand(COOPERATIVE).preparing().completing(joined(5, leader="other", protocol=COOPERATIVE))
    hand.stable(partitions(0, 1))
    hand.membership.request_rejoin("why not")
    hand.preparing(partitions(0, 1))
    hand.answer(Kind.JOIN, joined(4, leader="other", protocol=COOPERATIVE))
    assert hand.membership.lost
    hand.preparing()
    assert join_request(hand).member_id == ""


def test_a_generation_that_was_never_synced_may_come_again() -> None:
    hand = Hand().preparing().completing(joined(6, leader="other"))
    hand.fail(Kind.SYNC, ConnectionLost("the coordinator died before it wrote anything down"))
    hand.answer(Kind.FIND_COORDINATOR, NODE)
    hand.wait(100)
    hand.answer(Kind.JOIN, joined(6, leader="other"))
    hand.stable()
    assert hand.membership.generation_id == 6


def test_others_that_wait_for_the_coordinator_have_it_looked_for() -> None:
    hand = Hand()
    assert hand.due() == []
    hand.membership.coordinator_users += 1
    assert hand.due() == [Kind.FIND_COORDINATOR]


# --- leaving ------------------------------------------------------------------------------------------------


def test_leaving_names_the_member_and_ends_everything() -> None:
    hand = Hand.at(State.STABLE)
    request = hand.membership.leave("enough")
    assert request is not None
    assert [(each.member_id, each.reason) for each in request.members] == [("m", "enough")]
    member = hand.membership
    assert (member.state, member.member_id, member.rejoin_needed, member.lost) == (
        State.UNJOINED,
        "",
        False,
        False,
    )
    assert hand.wait(10**6) == []
    assert member.leave("again") is None


def test_leaving_while_a_join_is_parked_forgets_its_answer() -> None:
    hand = Hand().preparing()
    hand.answer(Kind.JOIN, refused_join(ErrorCode.MEMBER_ID_REQUIRED, "m"))
    hand.asks(Kind.JOIN)
    assert hand.membership.leave("enough") is not None
    hand.answer(Kind.JOIN, joined(2))
    assert (hand.membership.state, hand.membership.generation_id) == (State.UNJOINED, -1)
    assert hand.due() == []


def test_a_static_member_leaves_without_a_word_unless_it_is_told_to_say_one() -> None:
    assert Hand.at(State.STABLE, group_instance_id="i").membership.leave("enough") is None
    request = Hand.at(State.STABLE, group_instance_id="i").membership.leave("enough", static_too=True)
    assert request is not None
    assert request.members[0].group_instance_id == "i"


def test_who_left_may_subscribe_again() -> None:
    hand = Hand.at(State.STABLE)
    hand.membership.leave("enough")
    hand.membership.subscribe(frozenset({"t"}))
    assert hand.membership.prepare(NOTHING) == Preparation(None, None, NOTHING)
    assert join_request(hand.preparing()).member_id == ""


# --- static members -----------------------------------------------------------------------------------------


def test_a_static_member_says_who_it_is_in_every_request() -> None:
    hand = Hand(group_instance_id="i").preparing()
    assert join_request(hand).group_instance_id == "i"
    hand.completing()
    assert sync_request(hand).group_instance_id == "i"
    hand.stable()
    hand.wait_until_due()
    request = hand.asks(Kind.HEARTBEAT).request
    assert isinstance(request, HeartbeatRequest)
    assert request.group_instance_id == "i"


def test_a_member_whose_instance_id_was_taken_over_stops_for_good() -> None:
    hand = Hand.at(State.STABLE, group_instance_id="i")
    hand.wait_until_due()
    hand.answer(Kind.HEARTBEAT, beaten(ErrorCode.FENCED_INSTANCE_ID))
    assert "instance id i" in str(hand.membership.take_error())
    assert hand.wait(10**6) == []
    # Rejoining would take the id from the other member, which would take it back.
    with pytest.raises(Exception, match="taken over"):
        hand.membership.join(NOTHING, hand.now_ms)


def test_the_assignors_of_the_registry_can_all_be_offered_together() -> None:
    names = ["range", "roundrobin", "sticky", COOPERATIVE]
    assert [each.name for each in settings(*map(assignor, names)).assignors] == names

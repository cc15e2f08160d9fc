"""A member of a classic group as a state machine: what it asks, and what it makes of each answer."""

from __future__ import annotations

import pytest

from muster.client.errors import ClientError
from muster.client.membership import ACTIONS, Action, Membership, State
from muster.client.partitions import TopicPartition
from muster.protocol.api import ApiKey
from muster.protocol.embedded import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.classic_group import JoinGroupResponse, SyncGroupResponse


def refused_join(code: ErrorCode, member_id: str = "") -> JoinGroupResponse:
    return JoinGroupResponse(error_code=code, protocol_name=None, leader="", member_id=member_id, members=[])


def joined(member_id: str = "m", leader: str = "m", *others: str) -> JoinGroupResponse:
    metadata = encode_subscription(ConsumerProtocolSubscription(topics=["t"]))
    members = [
        JoinGroupResponse.Member(member_id=each, metadata=metadata)
        for each in ([member_id, *others] if leader == member_id else [])
    ]
    return JoinGroupResponse(
        generation_id=3, protocol_name="range", leader=leader, member_id=member_id, members=members
    )


def synced(*partitions: int, code: ErrorCode = ErrorCode.NONE) -> SyncGroupResponse:
    blob = ConsumerProtocolAssignment.TopicPartition(topic="t", partitions=list(partitions))
    assignment = encode_assignment(ConsumerProtocolAssignment(assigned_partitions=[blob]))
    return SyncGroupResponse(error_code=code, assignment=b"" if code else assignment)


def member(state: State = State.UNJOINED) -> Membership:
    made = Membership("g", ["u", "t"], session_timeout_ms=6_000, heartbeat_interval_ms=1_000)
    if state is not State.UNJOINED:
        made.join()
    if state in (State.SYNCING, State.STABLE):
        assert made.joined(joined()) is Action.GO_ON
    if state is State.STABLE:
        assert made.synced(synced(0), now_ms=100) is Action.GO_ON
    assert made.state is state
    return made


def test_it_asks_for_its_topics_in_order_whatever_order_they_were_given_in() -> None:
    request = member().join("because " + "x" * 300)
    assert (request.group_id, request.member_id, request.session_timeout_ms) == ("g", "", 6_000)
    assert [each.name for each in request.protocols] == ["range"]
    assert decode_subscription(request.protocols[0].metadata).topics == ["t", "u"]
    assert request.reason is not None
    assert len(request.reason) == 255


def test_the_first_join_is_told_a_member_id_and_repeated_with_it() -> None:
    made = member(State.JOINING)
    assert made.joined(refused_join(ErrorCode.MEMBER_ID_REQUIRED, "m-1")) is Action.REJOIN
    assert made.join().member_id == "m-1"


def test_a_follower_brings_no_assignments_and_takes_its_own() -> None:
    made = member(State.JOINING)
    made.joined(joined("m", "other"))
    assert not made.is_leader
    request = made.sync({})
    assert (request.generation_id, request.member_id, request.assignments) == (3, "m", [])
    assert made.synced(synced(1, 2), now_ms=0) is Action.GO_ON
    assert made.assignment == {TopicPartition("t", 1), TopicPartition("t", 2)}


def test_the_leader_assigns_everybody_something_that_can_be_read() -> None:
    made = member(State.JOINING)
    made.joined(joined("m", "m", "other"))
    assert made.is_leader
    assert made.topics_to_assign == {"t"}
    assigned = {
        each.member_id: decode_assignment(each.assignment).assigned_partitions
        for each in made.sync({"t": 1}).assignments
    }
    assert assigned.keys() == {"m", "other"}
    assert [(each.topic, each.partitions) for each in assigned["m"]] == [("t", [0])]
    assert assigned["other"] == []


def test_a_member_whose_leader_forgot_it_has_nothing() -> None:
    made = member(State.SYNCING)
    assert made.synced(SyncGroupResponse(assignment=b""), now_ms=0) is Action.GO_ON
    assert made.assignment == frozenset()


def test_an_assignment_that_is_none_is_an_error_that_names_the_group() -> None:
    with pytest.raises(ClientError, match="group g"):
        member(State.SYNCING).synced(SyncGroupResponse(assignment=b"\x00"), now_ms=0)


@pytest.mark.parametrize("api_key", ACTIONS)
def test_what_each_error_code_leads_to(api_key: ApiKey) -> None:
    """Every code but those listed is fatal; after REJOIN and what interrupts a join, it has to join again."""
    for code in ErrorCode:
        if code is ErrorCode.NONE:
            continue
        made = member(
            {ApiKey.JOIN_GROUP: State.JOINING, ApiKey.SYNC_GROUP: State.SYNCING}.get(api_key, State.STABLE)
        )

        def answer(made: Membership = made, code: ErrorCode = code) -> Action:
            if api_key is ApiKey.JOIN_GROUP:
                return made.joined(refused_join(code, "m"))
            if api_key is ApiKey.SYNC_GROUP:
                return made.synced(synced(code=code), now_ms=0)
            return made.answered(api_key, code)

        expected = ACTIONS[api_key].get(code)
        if expected is None:
            with pytest.raises(KafkaError, match=code.name):
                answer()
            continue
        assert answer() is expected
        stays = api_key in (ApiKey.HEARTBEAT, ApiKey.OFFSET_COMMIT) and expected in (
            Action.AGAIN,
            Action.FIND_COORDINATOR,
        )
        assert made.state is (State.STABLE if stays else State.UNJOINED), code
        if expected is Action.REJOIN_ANEW:
            assert (made.member_id, made.generation_id) == ("", -1)


@pytest.mark.parametrize(
    ("api_key", "code", "action"),
    [
        (ApiKey.HEARTBEAT, ErrorCode.REBALANCE_IN_PROGRESS, Action.REJOIN),
        (ApiKey.HEARTBEAT, ErrorCode.ILLEGAL_GENERATION, Action.REJOIN),
        (ApiKey.HEARTBEAT, ErrorCode.UNKNOWN_MEMBER_ID, Action.REJOIN_ANEW),
        (ApiKey.HEARTBEAT, ErrorCode.NOT_COORDINATOR, Action.FIND_COORDINATOR),
        (ApiKey.SYNC_GROUP, ErrorCode.REBALANCE_IN_PROGRESS, Action.REJOIN),
        (ApiKey.JOIN_GROUP, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, Action.AGAIN),
        (ApiKey.OFFSET_COMMIT, ErrorCode.UNKNOWN_MEMBER_ID, Action.REJOIN_ANEW),
    ],
)
def test_the_codes_that_groups_live_by(api_key: ApiKey, code: ErrorCode, action: Action) -> None:
    assert ACTIONS[api_key][code] is action


def test_who_was_left_behind_keeps_its_id_and_who_was_removed_does_not() -> None:
    made = member(State.STABLE)
    made.answered(ApiKey.HEARTBEAT, ErrorCode.REBALANCE_IN_PROGRESS)
    assert made.join().member_id == "m"
    made = member(State.STABLE)
    made.answered(ApiKey.HEARTBEAT, ErrorCode.UNKNOWN_MEMBER_ID)
    assert (made.join().member_id, made.generation_id, made.assignment) == ("", -1, frozenset())


def test_heartbeats_are_due_an_interval_after_the_last_was_sent() -> None:
    made = member(State.STABLE)
    assert made.next_deadline() == 1_100
    request = made.beat(1_150)
    assert (request.generation_id, request.member_id) == (3, "m")
    assert made.next_deadline() == 2_150


def test_who_does_not_ask_for_records_has_to_leave() -> None:
    made = Membership("g", ["t"], heartbeat_interval_ms=1_000, max_poll_interval_ms=1_500)
    made.join()
    made.joined(joined())
    made.synced(synced(0), now_ms=0)
    made.beat(1_000)
    assert made.next_deadline() == 1_500
    assert not made.overdue(1_499)
    assert made.overdue(1_500)
    made.polled(1_400)
    assert not made.overdue(1_500)


def test_leaving_names_the_member_and_forgets_it() -> None:
    made = member(State.STABLE)
    request = made.leave("enough")
    assert request is not None
    assert [(each.member_id, each.reason) for each in request.members] == [("m", "enough")]
    assert made.state is State.UNJOINED
    assert made.leave("again") is None

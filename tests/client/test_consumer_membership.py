"""A member of the consumer protocol (KIP-848), walked through by hand."""

from __future__ import annotations

import uuid
from typing import Literal

import pytest

from muster.client.errors import ClientError, ConnectionLost
from muster.client.group.answers import Action
from muster.client.group.choosing import classic_instead, membership_of
from muster.client.group.consumer_answers import not_offered
from muster.client.group.consumer_membership import ConsumerMembership
from muster.client.group.membership import Membership
from muster.client.group.membership_types import Kind, Preparation, State
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.consumer_group import ConsumerGroupHeartbeatRequest
from tests.client.consumer_memberships import (
    INTERVAL_MS,
    NAMES,
    NODE,
    Hand,
    T,
    U,
    beaten,
    partitions,
    settings,
)

NOTHING: frozenset[object] = frozenset()
GONE = ConnectionLost("gone")


def owned_in(request: ConsumerGroupHeartbeatRequest) -> set[tuple[uuid.UUID, int]] | None:
    if request.topic_partitions is None:
        return None
    return {(topic.topic_id, each) for topic in request.topic_partitions for each in topic.partitions}


def said(request: ConsumerGroupHeartbeatRequest) -> list[str]:
    """Names of the fields that are set."""
    fields = {
        "rack": request.rack_id,
        "timeout": None if request.rebalance_timeout_ms < 0 else request.rebalance_timeout_ms,
        "names": request.subscribed_topic_names,
        "regex": request.subscribed_topic_regex,
        "assignor": request.server_assignor,
        "owned": request.topic_partitions,
    }
    return [name for name, value in fields.items() if value is not None]


# --- joining and staying ------------------------------------------------------------------------------------


def test_it_joins_with_all_it_has_to_say() -> None:
    hand = Hand(
        group_instance_id="i", rack="r", group_remote_assignor="range", max_poll_interval_ms=60_000
    ).joining()
    request = hand.beat()
    assert (request.group_id, request.member_id, request.member_epoch) == ("g", "m", 0)
    assert (request.instance_id, request.rack_id, request.server_assignor) == ("i", "r", "range")
    assert request.rebalance_timeout_ms == 60_000
    assert request.subscribed_topic_names == ["t"]
    assert request.topic_partitions == []
    assert hand.asks(Kind.HEARTBEAT).node == NODE


def test_member_ids_are_the_members_own_and_differ() -> None:
    first, second = ConsumerMembership(settings()), ConsumerMembership(settings())
    assert first.member_id
    assert first.member_id != second.member_id


def test_what_is_assigned_is_looked_up_taken_and_acknowledged_at_once() -> None:
    hand = Hand().joining()
    hand.told(3, [(T, 0), (T, 1)])
    assert hand.state is State.RECONCILING
    assert hand.membership.generation_id == 3
    assert hand.membership.result is None  # the topic has no name yet
    assert hand.asks(Kind.NAMES).topic_ids == {T}
    hand.named()
    result = hand.taken()
    assert (result.assigned, result.revoked, result.added) == (partitions(0, 1), None, partitions(0, 1))
    assert (result.generation_id, result.member_id) == (3, "m")
    assert hand.due() == []
    hand.membership.reconciled(result, hand.now_ms)
    assert hand.state is State.ACKNOWLEDGING
    request = hand.beat()
    assert hand.state is State.STABLE
    assert request.member_epoch == 3
    assert said(request) == ["owned"]
    assert owned_in(request) == {(T, 0), (T, 1)}


def test_a_first_assignment_of_nothing_is_told_as_well() -> None:
    hand = Hand().joining()
    hand.told(1, [])
    result = hand.done()
    assert (result.assigned, result.revoked, result.added) == (NOTHING, None, NOTHING)
    assert said(hand.told(1)) == []
    assert hand.state is State.STABLE


def test_heartbeats_go_at_the_coordinators_interval_and_say_what_is_new() -> None:
    hand = Hand().stable()
    assert hand.wait(INTERVAL_MS - 1) == []
    assert hand.wait(1) == [Kind.HEARTBEAT]
    assert said(hand.told(1, interval_ms=1_000)) == []
    assert hand.wait(999) == []
    assert hand.wait(1) == [Kind.HEARTBEAT]


def test_a_heartbeat_that_failed_is_followed_by_one_that_says_everything() -> None:
    hand = Hand(rack="r").stable(0, 1)
    hand.wait(INTERVAL_MS)
    hand.fail(Kind.HEARTBEAT, GONE)
    assert hand.due() == [Kind.FIND_COORDINATOR]
    hand.answer(Kind.FIND_COORDINATOR, NODE)
    hand.wait(100)
    request = hand.beat()
    assert request.member_epoch == 1
    assert said(request) == ["rack", "timeout", "names", "owned"]
    assert owned_in(request) == {(T, 0), (T, 1)}


def test_the_coordinator_has_no_epoch_for_it_yet() -> None:
    hand = Hand().joining()
    hand.told(0, [])
    assert hand.state is State.JOINING
    assert hand.membership.generation_id == -1
    hand.wait(INTERVAL_MS)
    request = hand.told(1, [])
    assert (request.member_epoch, owned_in(request)) == (0, set())
    assert hand.done().assigned == NOTHING


# --- assignments --------------------------------------------------------------------------------------------


def test_what_moves_away_is_revoked_and_what_comes_is_added() -> None:
    hand = Hand().stable(0, 1)
    hand.wait(INTERVAL_MS)
    hand.told(1, [(T, 0)])
    result = hand.taken()
    assert (result.revoked, result.added) == (partitions(1), NOTHING)
    # It may commit for the partitions it gives up until that is acknowledged.
    assert hand.membership.owned == partitions(0, 1)
    hand.membership.reconciled(result, hand.now_ms)
    assert hand.membership.owned == partitions(0)
    assert owned_in(hand.told(2, [(T, 0), (T, 2)])) == {(T, 0)}
    result = hand.done()
    assert (result.revoked, result.added) == (None, partitions(2))


def test_an_assignment_that_comes_meanwhile_waits_for_the_one_before() -> None:
    hand = Hand().stable(0, 1)
    hand.wait(INTERVAL_MS)
    hand.told(1, [(T, 0)])
    first = hand.taken()
    hand.wait(INTERVAL_MS)
    assert said(hand.told(2, [(T, 0), (T, 3)])) == []
    assert hand.membership.result is None
    hand.membership.reconciled(first, hand.now_ms)
    assert owned_in(hand.beat()) == {(T, 0)}
    result = hand.done()
    assert (result.revoked, result.added) == (None, partitions(3))


def test_one_that_nobody_has_taken_yet_gives_way_to_the_next() -> None:
    hand = Hand().stable(0, 1)
    hand.wait(INTERVAL_MS)
    hand.told(1, [(T, 0)])
    old = hand.membership.result
    assert old is not None
    hand.wait(INTERVAL_MS)
    hand.told(1, [(T, 1)])
    assert not hand.membership.take(old)
    assert hand.taken().revoked == partitions(0)


def test_the_same_assignment_again_changes_nothing() -> None:
    hand = Hand().stable(0, 1)
    hand.wait(INTERVAL_MS)
    hand.told(2, [(T, 0), (T, 1)])
    assert hand.membership.result is None
    assert hand.state is State.STABLE
    assert hand.membership.generation_id == 2


def test_topics_without_names_are_looked_for_while_the_others_are_taken() -> None:
    hand = Hand().joining()
    unknown = uuid.UUID(int=9)
    hand.told(1, [(T, 0), (unknown, 0)])
    hand.named()
    assert hand.done().assigned == partitions(0)
    assert owned_in(hand.told(1)) == {(T, 0)}
    assert hand.state is State.RECONCILING
    assert hand.wait(99) == []
    hand.wait(1)
    assert hand.asks(Kind.NAMES).topic_ids == {unknown}
    hand.fail(Kind.NAMES, GONE)
    hand.wait(1_000)
    hand.answer(Kind.NAMES, {unknown: "late"})
    assert hand.done().added == partitions(0, topic="late")
    assert owned_in(hand.told(1)) == {(T, 0), (unknown, 0)}
    assert hand.state is State.STABLE


def test_a_topic_that_nobody_knows_any_more_is_given_up_with_its_assignment() -> None:
    hand = Hand().stable(0)
    hand.wait(INTERVAL_MS)
    hand.told(2, [(T, 0), (uuid.UUID(int=9), 0)])
    hand.answer(Kind.NAMES, {})
    assert hand.state is State.RECONCILING
    hand.wait(INTERVAL_MS)
    hand.asked = [each for each in hand.asked if each.kind is not Kind.NAMES]
    hand.told(3, [(T, 0)])
    assert hand.state is State.STABLE
    assert Kind.NAMES not in hand.due()


# --- subscriptions ------------------------------------------------------------------------------------------


def test_another_subscription_is_told_at_once() -> None:
    hand = Hand().stable()
    hand.membership.subscribe(frozenset({"t", "u"}))
    request = hand.told(2)
    assert (said(request), request.subscribed_topic_names) == (["names"], ["t", "u"])
    hand.membership.subscribe(frozenset({"t", "u"}))
    assert hand.due() == []


def test_a_regular_expression_is_the_brokers_to_resolve() -> None:
    hand = Hand(subscribed=False)
    hand.membership.subscribe(frozenset(), regex="t.*")
    request = hand.joining().beat()
    assert (request.subscribed_topic_regex, request.subscribed_topic_names) == ("t.*", [])
    hand.told(1, [])
    hand.done()
    hand.told(1)
    hand.membership.subscribe(frozenset(), regex="u.*")
    assert said(hand.told(1)) == ["regex"]
    hand.membership.subscribe(frozenset({"t"}))
    request = hand.told(1)
    assert (request.subscribed_topic_regex, request.subscribed_topic_names) == ("", ["t"])


@pytest.mark.parametrize(("options", "regex"), [({}, None), ({"group_instance_id": "i"}, "")])
def test_a_static_member_joins_without_the_regular_expression_of_the_one_before(
    options: dict[str, str], regex: str | None
) -> None:
    hand = Hand(**options).joining()
    request = hand.beat()
    assert (request.subscribed_topic_regex, request.subscribed_topic_names) == (regex, ["t"])
    hand.told(1, [])
    hand.done()
    assert said(hand.told(1)) == []


def test_topics_that_brokers_may_create_are_asked_for_once() -> None:
    hand = Hand(allow_auto_create_topics=True).joining()
    assert hand.asks(Kind.TOPICS).topics == {"t"}
    hand.fail(Kind.TOPICS, GONE)
    assert Kind.TOPICS in hand.wait(100)
    hand.answer(Kind.TOPICS, {})
    hand.membership.subscribe(frozenset({"t"}))
    assert Kind.TOPICS not in hand.wait(100_000)


@pytest.mark.parametrize("by", ["pattern", "regex"])
def test_none_is_created_for_a_pattern(by: str) -> None:
    hand = Hand(allow_auto_create_topics=True, subscribed=False)
    if by == "regex":
        hand.membership.subscribe(frozenset(), regex="t.*")
    else:
        hand.membership.subscribe(frozenset({"t"}), lambda name: True)
    hand.joining()
    assert Kind.TOPICS not in [each.kind for each in hand.asked]
    assert hand.membership.is_by_pattern


# --- losing the membership ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "code",
    [ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND],
)
def test_a_fenced_member_loses_what_it_has_and_joins_as_the_same(code: ErrorCode) -> None:
    hand = Hand().stable(0, 1)
    member = hand.membership
    hand.wait(INTERVAL_MS)
    hand.told(code=code)
    assert member.lost
    assert member.rejoin_needed
    assert (member.generation_id, member.member_id, member.owned) == (-1, "m", NOTHING)
    assert hand.wait(100_000) == []  # no heartbeat until the consumer has given up its partitions
    member.join(partitions(0, 1), hand.now_ms)
    assert hand.due() == []
    assert member.prepare(partitions(0, 1)) == Preparation(None, partitions(0, 1), NOTHING)
    member.join(frozenset(), hand.now_ms)
    assert not member.lost
    request = hand.told(5, [(T, 0)])
    assert (request.member_id, request.member_epoch, owned_in(request)) == ("m", 0, set())
    hand.named()
    assert hand.done().added == partitions(0)


def test_one_that_has_nothing_rejoins_at_once_but_not_again_and_again() -> None:
    hand = Hand().joining()
    hand.told(code=ErrorCode.UNKNOWN_MEMBER_ID)
    assert hand.told(code=ErrorCode.UNKNOWN_MEMBER_ID).member_epoch == 0
    assert hand.due() == []
    assert hand.wait(199) == []
    assert hand.wait(1) == [Kind.HEARTBEAT]


def test_one_that_was_in_for_a_while_rejoins_at_once_again() -> None:
    hand = Hand().joining()
    for _ in range(3):
        hand.told(1, [])
        hand.taken()
        hand.wait(INTERVAL_MS)
        hand.told(1)
        hand.wait(INTERVAL_MS)
        hand.told(code=ErrorCode.UNKNOWN_MEMBER_ID)
        assert hand.beat().member_epoch == 0


def test_what_was_looked_up_for_an_earlier_assignment() -> None:
    hand = Hand().joining()
    hand.told(1, [(T, 0)])
    early = hand.asks(Kind.NAMES)
    hand.wait(INTERVAL_MS)
    hand.told(1, [(U, 0)])
    hand.membership.answered(early, {T: "t"}, hand.now_ms)
    hand.asked.remove(early)
    assert hand.membership.result is None
    hand.named()
    assert hand.done().assigned == partitions(0, topic="u")


def test_being_fenced_while_an_assignment_is_taken() -> None:
    hand = Hand().stable(0, 1)
    hand.wait(INTERVAL_MS)
    hand.told(1, [(T, 0)])
    result = hand.taken()
    hand.wait(INTERVAL_MS)
    hand.told(code=ErrorCode.FENCED_MEMBER_EPOCH)
    assert hand.membership.lost
    hand.membership.reconciled(result, hand.now_ms)
    assert hand.state is State.UNJOINED
    assert hand.due() == []


def test_another_member_took_over_the_instance_id() -> None:
    hand = Hand(group_instance_id="i").stable()
    hand.wait(INTERVAL_MS)
    hand.told(code=ErrorCode.FENCED_INSTANCE_ID)
    assert hand.membership.lost
    error = hand.membership.take_error()
    assert "group instance id i" in str(error)
    with pytest.raises(KafkaError, match="FENCED_INSTANCE_ID"):
        hand.membership.join(frozenset(), hand.now_ms)
    assert hand.membership.leave("bye") is None


@pytest.mark.parametrize(("options", "epoch"), [({}, -1), ({"group_instance_id": "i"}, -2)])
def test_nobody_asks_for_records(options: dict[str, str], epoch: int) -> None:
    hand = Hand(max_poll_interval_ms=4_000, **options).stable(0)
    assert hand.wait(3_999) == []
    assert hand.wait(1) == [Kind.LEAVE]
    request = hand.answer(Kind.LEAVE, beaten(epoch)).request
    assert isinstance(request, ConsumerGroupHeartbeatRequest)
    assert (request.member_epoch, request.member_id) == (epoch, "m")
    assert hand.membership.lost
    assert hand.membership.poll_expirations == 1
    assert hand.wait(100_000) == []
    hand.membership.join(frozenset(), hand.now_ms)  # a sign of life
    assert hand.told(2, []).member_epoch == 0


@pytest.mark.parametrize(
    ("options", "static_too", "epoch"),
    [({}, False, -1), ({"group_instance_id": "i"}, False, -2), ({"group_instance_id": "i"}, True, -1)],
)
def test_leaving(options: dict[str, str], static_too: bool, epoch: int) -> None:
    hand = Hand(**options).stable(0)
    hand.wait(INTERVAL_MS)
    request = hand.membership.leave("bye", static_too=static_too)
    assert request is not None
    assert (request.member_epoch, request.member_id) == (epoch, "m")
    assert not hand.membership.lost
    assert not hand.membership.rejoin_needed
    hand.told(2, [(T, 1)])  # answers the earlier heartbeat: it has no effect any more
    assert hand.membership.result is None
    assert hand.wait(100_000) == []
    assert hand.membership.leave("bye") is None


@pytest.mark.parametrize(
    ("code", "tells"), [(ErrorCode.FENCED_MEMBER_EPOCH, True), (ErrorCode.UNKNOWN_MEMBER_ID, False)]
)
def test_a_fenced_member_leaves_where_the_group_still_knows_it(code: ErrorCode, tells: bool) -> None:
    hand = Hand().stable(0)
    hand.wait(INTERVAL_MS)
    hand.told(code=code)
    assert (hand.membership.leave("bye") is not None) == tells


def test_who_never_joined_has_nothing_to_tell() -> None:
    assert Hand().membership.leave("bye") is None


def test_a_member_whose_first_heartbeat_was_not_answered_leaves_all_the_same() -> None:
    assert Hand().joining().membership.leave("bye") is not None


# --- refusals -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "names"),
    [
        (ErrorCode.UNRELEASED_INSTANCE_ID, "group_instance_id='i'"),
        (ErrorCode.UNSUPPORTED_ASSIGNOR, "group_remote_assignor='best'"),
        (ErrorCode.GROUP_MAX_SIZE_REACHED, "group.consumer.max.size"),
        (ErrorCode.GROUP_ID_NOT_FOUND, "group_protocol='classic'"),
        (ErrorCode.GROUP_AUTHORIZATION_FAILED, "group g"),
        (ErrorCode.INVALID_REQUEST, "group g"),
        (ErrorCode.UNKNOWN_SERVER_ERROR, "group g"),
    ],
)
def test_what_cannot_pass_is_raised_and_names_the_option(code: ErrorCode, names: str) -> None:
    hand = Hand(group_instance_id="i", group_remote_assignor="best").joining()
    hand.told(code=code, why="so it is")
    error = hand.membership.take_error()
    assert isinstance(error, KafkaError)
    assert error.code is code
    assert names in str(error)
    assert "so it is" in str(error)
    assert hand.wait(100_000) == []
    assert hand.membership.rejoin_needed  # a further reading call tries again
    hand.membership.join(frozenset(), hand.now_ms)
    assert hand.told(1, []).member_epoch == 0


def test_a_regular_expression_that_the_broker_cannot_compile() -> None:
    hand = Hand(subscribed=False)
    hand.membership.subscribe(frozenset(), regex="(")
    hand.joining().told(code=ErrorCode.INVALID_REGULAR_EXPRESSION)
    assert "SubscriptionPattern('(')" in str(hand.membership.take_error())


def test_what_it_had_before_it_left_is_lost_when_it_joins_again() -> None:
    hand = Hand().stable(0)
    owned = partitions(0)
    hand.membership.leave("for a moment")
    hand.membership.subscribe(frozenset({"t"}))
    assert hand.membership.prepare(owned) == Preparation(None, owned, NOTHING)


def test_a_goodbye_that_is_late_would_meet_the_member_that_is_back() -> None:
    hand = Hand().stable(0)
    goodbye = hand.membership.leave("for a moment")
    assert goodbye is not None
    assert not hand.membership.has_rejoined(goodbye)
    hand.membership.subscribe(frozenset({"t"}))
    assert not hand.membership.has_rejoined(goodbye)
    hand.joining()
    assert hand.beat().member_epoch == 0
    assert hand.membership.has_rejoined(goodbye)


def test_a_member_that_is_refused_for_good_loses_what_it_has() -> None:
    hand = Hand().stable(0)
    hand.wait(INTERVAL_MS)
    hand.told(code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    assert hand.membership.lost
    assert hand.membership.error
    assert hand.wait(100_000) == []


def test_topics_that_it_may_not_read_are_raised_and_it_stays() -> None:
    hand = Hand().stable(0)
    hand.wait(INTERVAL_MS)
    hand.told(code=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    assert hand.membership.error
    assert hand.state is State.STABLE
    assert hand.wait(INTERVAL_MS - 1) == []
    assert hand.wait(1) == [Kind.HEARTBEAT]


@pytest.mark.parametrize("code", [ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE])
def test_another_coordinator_is_looked_for_and_told_everything(code: ErrorCode) -> None:
    hand = Hand().stable(0)
    hand.wait(INTERVAL_MS)
    hand.told(code=code)
    hand.answer(Kind.FIND_COORDINATOR, NODE + 1)
    hand.wait(100)
    assert hand.asks(Kind.HEARTBEAT).node == NODE + 1
    request = hand.beat()
    assert (request.member_epoch, said(request)) == (1, ["timeout", "names", "owned"])


def test_a_coordinator_that_loads_is_asked_again_after_a_pause() -> None:
    hand = Hand().joining()
    hand.told(code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    assert hand.state is State.JOINING
    assert hand.wait(99) == []
    assert hand.wait(1) == [Kind.HEARTBEAT]


def test_a_code_of_a_newer_broker_is_final() -> None:
    hand = Hand().joining()
    hand.told(code=4_711)
    assert "4711" in str(hand.membership.take_error())


def test_one_failure_that_is_final_ends_it() -> None:
    hand = Hand().stable(0)
    hand.wait(INTERVAL_MS)
    error = ClientError("for good")
    hand.fail(Kind.HEARTBEAT, error, final=True)
    assert hand.membership.take_error() is error
    assert hand.membership.lost


# --- the other protocol -------------------------------------------------------------------------------------

REFUSED = not_offered("broker 7 at h:9092", None)


def test_a_broker_without_the_protocol_is_an_error_that_says_what_to_do() -> None:
    hand = Hand().joining()
    hand.fail(Kind.HEARTBEAT, REFUSED, final=True)
    error = hand.membership.take_error()
    assert isinstance(error, KafkaError)
    assert error.code is ErrorCode.UNSUPPORTED_VERSION
    assert "broker 7 at h:9092" in str(error)
    assert "group_protocol='classic'" in str(error)
    assert classic_instead(hand.membership) is None


@pytest.mark.parametrize("protocol", ["consumer", "auto"])
@pytest.mark.parametrize("why", ["not offered", "not converted"])
def test_a_pattern_for_the_broker_needs_the_protocol(why: str, protocol: Literal["consumer", "auto"]) -> None:
    hand = Hand(subscribed=False, group_protocol=protocol)
    hand.membership.subscribe(frozenset(), regex="t.*")
    hand.joining()
    if why == "not offered":
        hand.fail(Kind.HEARTBEAT, REFUSED, final=True)
    else:
        hand.told(code=ErrorCode.GROUP_ID_NOT_FOUND)
    assert (
        "topics=SubscriptionPattern('t.*') requires the consumer protocol: give re.compile(...), "
        "and group_protocol='classic' or group_protocol='auto'"
    ) in str(hand.membership.take_error())
    assert classic_instead(hand.membership) is None


@pytest.mark.parametrize("why", ["not offered", "not converted"])
def test_with_auto_a_classic_member_takes_its_place(why: str) -> None:
    hand = Hand(group_protocol="auto")
    assert classic_instead(hand.membership) is None
    hand.joining()
    hand.membership.coordinator_users = 2
    if why == "not offered":
        hand.fail(Kind.HEARTBEAT, REFUSED, final=True)
    else:
        hand.told(code=ErrorCode.GROUP_ID_NOT_FOUND)
    assert hand.membership.take_error() is None
    assert hand.wait(100_000) == []
    classic = classic_instead(hand.membership)
    assert isinstance(classic, Membership)
    assert (classic.topics, classic.is_subscribed, classic.lost) == ({"t"}, True, False)
    assert (classic.coordinator, classic.coordinator_users) == (NODE, 2)
    assert classic.rejoin_needed
    classic.join(frozenset(), hand.now_ms)
    assert [each.kind for each in classic.due(hand.now_ms)] == [Kind.JOIN]


def test_a_member_that_was_in_has_lost_its_partitions_then() -> None:
    hand = Hand(group_protocol="auto").stable(0, 1)
    hand.wait(INTERVAL_MS)
    hand.fail(Kind.HEARTBEAT, REFUSED, final=True)
    classic = classic_instead(hand.membership)
    assert classic is not None
    assert classic.lost
    assert classic.prepare(partitions(0, 1)).lost == partitions(0, 1)
    classic.join(frozenset(), hand.now_ms)
    assert [each.kind for each in classic.due(hand.now_ms)] == [Kind.JOIN]


def test_what_only_this_protocol_can_do_is_an_error_with_auto_too() -> None:
    hand = Hand(group_protocol="auto", subscribed=False)
    hand.membership.subscribe(frozenset(), regex="t.*")
    hand.joining().fail(Kind.HEARTBEAT, REFUSED, final=True)
    assert hand.membership.error
    assert classic_instead(hand.membership) is None


@pytest.mark.parametrize(
    ("protocol", "kind"),
    [("classic", Membership), ("consumer", ConsumerMembership), ("auto", ConsumerMembership)],
)
def test_which_membership_a_setting_means(protocol: str, kind: type) -> None:
    assert type(membership_of(settings(group_protocol=protocol))) is kind


# --- commits ------------------------------------------------------------------------------------------------


def test_what_a_commit_was_refused_for_the_next_heartbeat_tells() -> None:
    hand = Hand().stable(0)
    member = hand.membership
    member.commit_refused(ErrorCode.OFFSET_METADATA_TOO_LARGE, member.generation)
    member.commit_refused(ErrorCode.STALE_MEMBER_EPOCH, member.generation._replace(generation_id=0))
    assert hand.due() == []
    for code in (ErrorCode.STALE_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID):
        member.commit_refused(code, member.generation)
        assert hand.due() == [Kind.HEARTBEAT]
        hand.told(1)
    assert hand.state is State.STABLE
    assert member.commit_action(ErrorCode.STALE_MEMBER_EPOCH) is Action.NEXT_EPOCH


def test_offsets_are_fetched_as_the_member_once_it_is_in() -> None:
    hand = Hand().joining()
    assert hand.membership.fetches_as is None
    hand.told(4, [])
    member = hand.membership.fetches_as
    assert member is not None
    assert (member.generation_id, member.member_id) == (4, "m")


def test_names_are_kept_for_what_is_assigned_alone() -> None:
    hand = Hand().stable(0)
    hand.wait(INTERVAL_MS)
    hand.told(2, [(U, 0)])
    hand.named()
    assert hand.done().added == partitions(0, topic=NAMES[U])
    hand.told(2, [])
    hand.done()
    hand.told(2, [(T, 0)])
    assert hand.asks(Kind.NAMES).topic_ids == {T}

"""What every error code leads to, for each request, in the terms of the table that Kafka's clients follow."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from muster.client.assignors.range import RangeAssignor
from muster.client.group.assignor_calls import AssignorFailed
from muster.client.group.membership import Membership
from muster.client.group.membership_types import Kind, State
from muster.client.partitions import TopicPartition
from muster.protocol.errors import ErrorCode
from tests.client.memberships import ALL_CODES, NODE, Hand, beaten, joined, partitions, refused_join, synced
from tests.support.each import each


class Then(NamedTuple):
    """The state of a member after an error."""

    member: bool = True
    """It still has its member id."""
    generation: bool = True
    """It still has its generation."""
    coordinator: bool = True
    """It still knows the coordinator."""
    raised: bool = False
    """An error is raised."""
    for_good: bool = False
    """It must not join again."""


GOES_ON: Final = Then()
ELSEWHERE: Final = Then(coordinator=False)
GENERATION_OVER: Final = Then(generation=False)
REMOVED: Final = Then(member=False, generation=False)
FATAL: Final = Then(raised=True)
FENCED: Final = Then(member=False, generation=False, raised=True, for_good=True)


def stand(member: Membership) -> Then:
    error = member.take_error()
    for_good = False
    try:
        member.join(frozenset(), 0)
    except Exception:
        for_good = True
    return Then(
        member.member_id == "m",
        member.generation.is_valid,
        member.coordinator is not None,
        error is not None,
        for_good,
    )


def by_default(code: ErrorCode) -> Then:
    return GOES_ON if code.retriable else FATAL


JOIN: Final = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: GOES_ON,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: ELSEWHERE,
    ErrorCode.NOT_COORDINATOR: ELSEWHERE,
    ErrorCode.ILLEGAL_GENERATION: FATAL,
    ErrorCode.UNKNOWN_MEMBER_ID: REMOVED,
    ErrorCode.REBALANCE_IN_PROGRESS: GOES_ON,
    ErrorCode.FENCED_INSTANCE_ID: FENCED,
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL: FATAL,
    ErrorCode.INVALID_GROUP_ID: FATAL,
    ErrorCode.INVALID_SESSION_TIMEOUT: FATAL,
    ErrorCode.GROUP_MAX_SIZE_REACHED: FATAL,
    ErrorCode.GROUP_AUTHORIZATION_FAILED: FATAL,
}
SYNC: Final = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: GOES_ON,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: ELSEWHERE,
    ErrorCode.NOT_COORDINATOR: ELSEWHERE,
    ErrorCode.ILLEGAL_GENERATION: GENERATION_OVER,
    ErrorCode.UNKNOWN_MEMBER_ID: REMOVED,
    ErrorCode.REBALANCE_IN_PROGRESS: GOES_ON,
    ErrorCode.FENCED_INSTANCE_ID: FENCED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED: FATAL,
}
HEARTBEAT: Final = {
    ErrorCode.COORDINATOR_NOT_AVAILABLE: ELSEWHERE,
    ErrorCode.NOT_COORDINATOR: ELSEWHERE,
    ErrorCode.ILLEGAL_GENERATION: GENERATION_OVER,
    ErrorCode.UNKNOWN_MEMBER_ID: REMOVED,
    ErrorCode.FENCED_INSTANCE_ID: FENCED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED: FATAL,
}
COMMIT: Final = {
    ErrorCode.ILLEGAL_GENERATION: GENERATION_OVER,
    ErrorCode.STALE_MEMBER_EPOCH: GENERATION_OVER,
    ErrorCode.UNKNOWN_MEMBER_ID: REMOVED,
    ErrorCode.GROUP_ID_NOT_FOUND: REMOVED,
    ErrorCode.FENCED_MEMBER_EPOCH: REMOVED,
    ErrorCode.FENCED_INSTANCE_ID: FENCED,
}


def named(code: ErrorCode) -> str:
    return code.name


@each("code", [code for code in ALL_CODES if code is not ErrorCode.MEMBER_ID_REQUIRED], ids=named)
def test_join(code: ErrorCode) -> None:
    hand = Hand.at(State.STABLE, "cooperative-sticky")
    hand.membership.request_rejoin("why not")
    hand.preparing()
    hand.answer(Kind.JOIN, refused_join(code))
    assert hand.membership.state is State.UNJOINED
    assert stand(hand.membership) == JOIN.get(code, by_default(code))


def test_join_with_a_member_id_to_join_with() -> None:
    hand = Hand().preparing()
    hand.answer(Kind.JOIN, refused_join(ErrorCode.MEMBER_ID_REQUIRED, "m"))
    assert stand(hand.membership) == GENERATION_OVER
    assert hand.due() == [Kind.JOIN]


def test_a_member_of_a_generation_that_is_told_to_take_another_id_has_lost_its_partitions() -> None:
    hand = Hand.at(State.STABLE, "cooperative-sticky")
    hand.membership.request_rejoin("why not")
    hand.preparing(partitions(0, 1))
    hand.answer(Kind.JOIN, refused_join(ErrorCode.MEMBER_ID_REQUIRED, "n"))
    assert (hand.membership.lost, hand.membership.member_id) == (True, "n")


@each("code", ALL_CODES, ids=named)
def test_sync(code: ErrorCode) -> None:
    hand = Hand.at(State.COMPLETING_REBALANCE)
    hand.answer(Kind.SYNC, synced(code=code))
    assert hand.membership.state is State.UNJOINED
    assert stand(hand.membership) == SYNC.get(code, by_default(code))


@each("code", ALL_CODES, ids=named)
def test_heartbeat(code: ErrorCode) -> None:
    hand = Hand.at(State.STABLE)
    hand.wait_until_due()
    hand.answer(Kind.HEARTBEAT, beaten(code))
    expected = HEARTBEAT.get(code, GOES_ON)
    assert hand.membership.lost == (not expected.generation)
    assert hand.membership.rejoin_needed == (
        not expected.generation or code is ErrorCode.REBALANCE_IN_PROGRESS
    )
    assert stand(hand.membership) == expected


@each("code", ALL_CODES, ids=named)
def test_commit(code: ErrorCode) -> None:
    hand = Hand.at(State.STABLE)
    member = hand.membership
    member.commit_refused(code, member.generation)
    expected = COMMIT.get(code, GOES_ON)
    assert member.lost == (not expected.generation)
    assert member.rejoin_needed == (not expected.generation or code is ErrorCode.REBALANCE_IN_PROGRESS)
    assert stand(member) == expected


@each("code", ALL_CODES, ids=named)
def test_a_commit_of_an_earlier_generation_says_nothing_of_this_one(code: ErrorCode) -> None:
    hand = Hand.at(State.STABLE)
    member = hand.membership
    earlier = member.generation
    member.request_rejoin("why not")
    hand.preparing().completing(joined(2, leader="other"))
    hand.stable()
    member.commit_refused(code, earlier)
    assert stand(member) == GOES_ON


@each("code", ALL_CODES, ids=named)
def test_while_a_join_is_on_its_way_its_answer_says_more_than_a_commit(code: ErrorCode) -> None:
    hand = Hand.at(State.STABLE)
    member = hand.membership
    member.request_rejoin("why not")
    hand.preparing()
    member.commit_refused(code, member.generation)
    assert member.state is State.PREPARING_REBALANCE
    assert stand(member) == GOES_ON


@each("code", [*ALL_CODES, ErrorCode.NONE], ids=named)
def test_what_a_leave_is_answered_changes_nothing(code: ErrorCode) -> None:
    hand = Hand.at(State.STABLE, max_poll_interval_ms=2_000, heartbeat_interval_ms=10_000)
    assert hand.wait(2_000) == [Kind.LEAVE]
    hand.answer(Kind.LEAVE, beaten(code))
    assert stand(hand.membership) == REMOVED
    assert hand.membership.coordinator == NODE


# --- assignors ----------------------------------------------------------------------------------------------


class Broken(RangeAssignor):
    """Raises in the given place."""

    name = "broken"
    where = ""

    def user_data(
        self, topics: Iterable[str], owned: Iterable[TopicPartition], generation_id: int
    ) -> bytes | None:
        if self.where == "user_data":
            raise KeyError("the bug")
        return None

    def on_assignment(self, assigned: Iterable[TopicPartition], generation_id: int) -> None:
        if self.where == "on_assignment":
            raise KeyError("the bug")


def failure(hand: Hand) -> str:
    error = hand.membership.take_error()
    assert isinstance(error, AssignorFailed)
    assert isinstance(error.__cause__, KeyError)
    return str(error)


FAILURE: Final = "group g: the assignor 'broken' failed: KeyError: 'the bug'"


def test_a_member_whose_assignor_fails_when_told_its_assignment_has_it_all_the_same() -> None:
    assignor = Broken()
    hand = Hand.at(State.COMPLETING_REBALANCE, assignor)
    assignor.where = "on_assignment"
    hand.stable()
    assert failure(hand) == FAILURE
    assert stand(hand.membership) == GOES_ON
    assert hand.membership.assignment == partitions(0, 1)
    assert not hand.membership.rejoin_needed


@each("state", [State.UNJOINED, State.STABLE], ids=lambda state: state.name)
def test_an_assignor_that_has_no_user_data_fails_this_join_alone(state: State) -> None:
    assignor = Broken()
    hand = Hand.at(state, assignor)
    assignor.where = "user_data"
    member = hand.membership
    member.request_rejoin("why not")
    generation = member.generation
    for _ in range(2):
        assert member.rejoin_needed
        member.join(frozenset(), hand.now_ms)
        if Kind.FIND_COORDINATOR in hand.due():
            hand.answer(Kind.FIND_COORDINATOR, NODE)
        assert Kind.JOIN not in hand.due()
        assert failure(hand) == FAILURE
        assert not member.is_joining
        assert (member.state, member.generation) == (state, generation)
    assignor.where = ""
    assert hand.preparing().asks(Kind.JOIN)

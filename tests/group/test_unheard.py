"""Clients that never received their member id, because the store did not confirm it in time."""

from __future__ import annotations

import pytest

from muster.coordinator.group.classic.group import refused_join
from muster.coordinator.group.classic.states import GroupState
from muster.coordinator.group.events import PendingMemberRemoved, Trigger
from muster.coordinator.group.shard import Shard
from muster.protocol.api import ApiKey
from muster.protocol.errors import ErrorCode
from muster.protocol.messages.classic_group import HeartbeatResponse, JoinGroupResponse
from tests.group.harness import Harness, told, who
from tests.group.requests import context, join, join_request, stable


@pytest.fixture
def harness() -> Harness:
    return Harness()


def issued(harness: Harness, client_id: str = "bob", group_id: str = "orders") -> JoinGroupResponse:
    """The response that gives a client its id."""
    request, v4 = join_request(group_id=group_id), context(ApiKey.JOIN_GROUP, client_id, 4)
    response: JoinGroupResponse = harness.ask(Shard.join, request, v4)
    return response


def test_nobody_waits_for_a_client_that_was_not_told_its_id(harness: Harness) -> None:
    lost, heard = issued(harness, "bob"), issued(harness, "carol")
    harness.advance(50)
    harness.take_events()
    harness.unheard(lost)
    assert list(harness.group().pending_members) == [heard.member_id]
    [removed] = told(harness, PendingMemberRemoved)
    assert (who(removed), removed.trigger, removed.waited_ms) == (
        lost.member_id,
        Trigger.PENDING_MEMBER_EXPIRED,
        50,
    )
    assert (
        removed.reason
        == "the store did not confirm the group in time, so the client was not told its member id"
    )


def test_a_rebalance_goes_on_without_it(harness: Harness) -> None:
    [alice] = stable(harness, "alice")
    lost = issued(harness)
    ticket = join(harness, join_request(alice))
    assert harness.group().state is GroupState.PREPARING_REBALANCE
    harness.unheard(lost)
    assert harness.answers[ticket].generation_id == 2


def test_several_of_several_groups(harness: Harness) -> None:
    lost = [
        issued(harness, client, group_id) for group_id in ("orders", "clicks") for client in ("bob", "alice")
    ]
    harness.take_events()
    harness.unheard(*lost)
    assert not harness.group().pending_members
    assert not harness.group("clicks").pending_members
    assert [
        (event.group_id, event.member and event.member.client_id)
        for event in told(harness, PendingMemberRemoved)
    ] == [("orders", "alice"), ("orders", "bob"), ("clicks", "alice"), ("clicks", "bob")]


def test_other_answers_change_nothing(harness: Harness) -> None:
    [alice] = stable(harness, "alice")
    waited_for = issued(harness)
    harness.take_events()
    refused = refused_join(ErrorCode.UNKNOWN_MEMBER_ID, waited_for.member_id)
    came_back = refused_join(ErrorCode.MEMBER_ID_REQUIRED, alice)
    harness.unheard(HeartbeatResponse(), refused, came_back)
    assert harness.take_events() == []
    assert list(harness.group().pending_members) == [waited_for.member_id]
    assert list(harness.group().members) == [alice]

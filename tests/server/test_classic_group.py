"""Classic groups over the wire: what the server adds to the group core, which has its own tests."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from muster.protocol.errors import ErrorCode
from muster.protocol.messages.classic_group import (
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
)
from muster.protocol.messages.group_admin import DeleteGroupsRequest, DescribeGroupsRequest, ListGroupsRequest
from muster.protocol.messages.metadata import FindCoordinatorRequest
from tests.server.conftest import StartBrokers
from tests.support.each import each
from tests.support.wire import Wire


def join(
    group_id: str = "orders", member_id: str = "", *, metadata: bytes = b"m", session_timeout_ms: int = 10_000
) -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=group_id,
        session_timeout_ms=session_timeout_ms,
        rebalance_timeout_ms=10_000,
        member_id=member_id,
        protocol_type="consumer",
        protocols=[JoinGroupRequest.Protocol(name="range", metadata=metadata)],
    )


def sync(generation_id: int, member_id: str, *assigned: tuple[str, bytes]) -> SyncGroupRequest:
    return SyncGroupRequest(
        group_id="orders",
        generation_id=generation_id,
        member_id=member_id,
        protocol_type="consumer",
        protocol_name="range",
        assignments=[SyncGroupRequest.Assignment(member_id=each, assignment=data) for each, data in assigned],
    )


async def stable_member(wire: Wire) -> tuple[str, int]:
    """Join as the only member of a Stable group; return the member's id and the generation."""
    member_id = (await wire.call(join(), 9)).member_id
    joined = await wire.call(join(member_id=member_id), 9)
    assert joined.error_code == ErrorCode.NONE
    synced = await wire.call(sync(joined.generation_id, member_id, (member_id, b"everything")), 5)
    assert (synced.error_code, synced.assignment) == (ErrorCode.NONE, b"everything")
    return member_id, joined.generation_id


async def test_two_members_share_a_group_and_one_leaves(port: int) -> None:
    async with await Wire.connect(port, client_id="first") as first, await Wire.connect(port) as second:
        first_id, generation = await stable_member(first)
        assert first_id.startswith("first-")
        heartbeat = HeartbeatRequest(group_id="orders", generation_id=generation, member_id=first_id)
        assert (await first.call(heartbeat, 4)).error_code == ErrorCode.NONE

        second_id = (await second.call(join(), 9)).member_id
        await second.send(join(member_id=second_id), 9)  # parked until the first joins again
        while (await first.call(heartbeat, 4)).error_code == ErrorCode.NONE:
            pass
        assert (await first.call(heartbeat, 4)).error_code == ErrorCode.REBALANCE_IN_PROGRESS
        leader = await first.call(join(member_id=first_id), 9)
        follower = await second.receive()
        assert leader.leader == follower.leader == first_id
        assert {each.member_id for each in leader.members} == {first_id, second_id}
        assert follower.members == []

        await second.send(sync(follower.generation_id, second_id), 5)
        await first.call(sync(leader.generation_id, first_id, (first_id, b"1"), (second_id, b"2")), 5)
        assert (await second.receive()).assignment == b"2"

        leaving = LeaveGroupRequest.MemberIdentity(member_id=second_id)
        left = await second.call(LeaveGroupRequest(group_id="orders", members=[leaving]), 5)
        assert [each.error_code for each in left.members] == [ErrorCode.NONE]
        heartbeat.generation_id = leader.generation_id
        assert (await first.call(heartbeat, 4)).error_code == ErrorCode.REBALANCE_IN_PROGRESS


@each(
    "request_, version, code",
    [
        (join(group_id=""), 9, ErrorCode.INVALID_GROUP_ID),
        (join(session_timeout_ms=5_999), 9, ErrorCode.INVALID_SESSION_TIMEOUT),
        (join(session_timeout_ms=1_800_001), 0, ErrorCode.INVALID_SESSION_TIMEOUT),
        (join(member_id="nobody"), 5, ErrorCode.UNKNOWN_MEMBER_ID),
        (join(), 4, ErrorCode.MEMBER_ID_REQUIRED),
        (HeartbeatRequest(group_id="", generation_id=1, member_id="m"), 4, ErrorCode.INVALID_GROUP_ID),
        (HeartbeatRequest(group_id="none", generation_id=1, member_id="m"), 0, ErrorCode.UNKNOWN_MEMBER_ID),
        (LeaveGroupRequest(group_id="none", member_id="m"), 0, ErrorCode.UNKNOWN_MEMBER_ID),
        (LeaveGroupRequest(group_id=""), 3, ErrorCode.INVALID_GROUP_ID),
    ],
)
async def test_refusals_have_their_code(port: int, request_: Any, version: int, code: ErrorCode) -> None:
    async with await Wire.connect(port) as wire:
        assert (await wire.call(request_, version)).error_code == code


async def test_session_timeout_bounds_are_settings(start_brokers: StartBrokers) -> None:
    brokers = await start_brokers(group_min_session_timeout_ms=10, group_max_session_timeout_ms=20)
    async with await Wire.connect(brokers.brokers[0].port) as wire:
        for timeout_ms, code in [
            (9, ErrorCode.INVALID_SESSION_TIMEOUT),
            (10, ErrorCode.MEMBER_ID_REQUIRED),
            (20, ErrorCode.MEMBER_ID_REQUIRED),
            (21, ErrorCode.INVALID_SESSION_TIMEOUT),
        ]:
            assert (await wire.call(join(session_timeout_ms=timeout_ms), 9)).error_code == code


async def test_a_silent_member_is_evicted_after_its_session(start_brokers: StartBrokers) -> None:
    brokers = await start_brokers(test_mode=True)
    port = brokers.brokers[0].port
    async with await Wire.connect(port) as silent, await Wire.connect(port) as other:
        member_id = (await silent.call(join(session_timeout_ms=6_000), 9)).member_id
        await silent.call(join(member_id=member_id, session_timeout_ms=6_000), 9)
        other_id = (await other.call(join(), 9)).member_id
        await other.send(join(member_id=other_id), 9)
        await second_is_waited_for(silent)
        brokers.stall("orders", member_id)
        await brokers.advance(6_000)
        joined = await other.receive()
        assert joined.error_code == ErrorCode.NONE
        assert [each.member_id for each in joined.members] == [other_id]


async def test_stopping_answers_parked_joins_with_not_coordinator(start_brokers: StartBrokers) -> None:
    brokers = await start_brokers()
    async with await Wire.connect(brokers.brokers[0].port) as first:
        await stable_member(first)
        async with await Wire.connect(brokers.brokers[0].port) as second:
            member_id = (await second.call(join(), 9)).member_id
            await second.send(join(member_id=member_id), 9)
            await second_is_waited_for(first)
            await brokers.stop()
            assert (await second.receive()).error_code == ErrorCode.NOT_COORDINATOR
            assert await second.closed()
        assert await first.closed()


async def second_is_waited_for(wire: Wire) -> None:
    async with asyncio.timeout(30):
        while True:
            groups = (await wire.call(DescribeGroupsRequest(groups=["orders"]), 5)).groups
            if groups[0].group_state == "PreparingRebalance" and len(groups[0].members) == 2:
                return


async def test_describe_answers_every_group_that_was_asked_for(port: int) -> None:
    async with await Wire.connect(port) as wire:
        member_id, _ = await stable_member(wire)
        asked = ["none", "orders", "", "none"]
        for version, code in [(0, ErrorCode.NONE), (5, ErrorCode.NONE), (6, ErrorCode.GROUP_ID_NOT_FOUND)]:
            groups = (await wire.call(DescribeGroupsRequest(groups=asked), version)).groups
            assert [each.group_id for each in groups] == ["none", "orders", ""]
            assert (groups[0].error_code, groups[0].group_state) == (code, "Dead")
            assert groups[1].group_state == "Stable"
            (member,) = groups[1].members
            assert (member.member_id, member.member_metadata, member.client_host) == (
                member_id,
                b"m",
                "/127.0.0.1",
            )


async def test_more_groups_are_described_than_are_asked_about_at_once(port: int) -> None:
    async with await Wire.connect(port) as wire:
        asked = [f"g{number}" for number in range(250)]
        groups = (await wire.call(DescribeGroupsRequest(groups=asked), 5)).groups
        assert [each.group_id for each in groups] == asked


async def test_authorized_operations_come_only_when_asked_for(port: int) -> None:
    async with await Wire.connect(port) as wire:
        await stable_member(wire)
        (group,) = (await wire.call(DescribeGroupsRequest(groups=["orders"]), 5)).groups
        assert group.authorized_operations == -(2**31)
        request = DescribeGroupsRequest(groups=["orders"], include_authorized_operations=True)
        (group,) = (await wire.call(request, 5)).groups
        assert group.authorized_operations & (1 << 8)  # DESCRIBE


async def test_list_groups_filters_by_state_and_type_whatever_the_case(port: int) -> None:
    async with await Wire.connect(port) as wire:
        await stable_member(wire)
        await wire.call(join(group_id="empty"), 9)
        for states, types, expected in [
            ([], [], {"orders", "empty"}),
            (["stable"], [], {"orders"}),
            (["STABLE", "Empty"], ["CLASSIC"], {"orders", "empty"}),
            (["NoSuchState"], [], set()),
            ([], ["consumer"], set()),
        ]:
            response = await wire.call(ListGroupsRequest(states_filter=states, types_filter=types), 5)
            assert {each.group_id for each in response.groups} == expected
        (listed,) = (await wire.call(ListGroupsRequest(states_filter=["Stable"]), 5)).groups
        assert (listed.protocol_type, listed.group_state, listed.group_type) == (
            "consumer",
            "Stable",
            "classic",
        )


async def test_delete_groups_refuses_one_by_one(port: int) -> None:
    async with await Wire.connect(port) as wire:
        await stable_member(wire)
        await wire.call(join(group_id="empty"), 9)
        response = await wire.call(DeleteGroupsRequest(groups_names=["orders", "none", "empty", "empty"]), 2)
        assert {each.group_id: each.error_code for each in response.results} == {
            "orders": ErrorCode.NON_EMPTY_GROUP,
            "none": ErrorCode.GROUP_ID_NOT_FOUND,
            "empty": ErrorCode.NONE,
        }


@pytest.mark.parametrize("version", range(7))
async def test_find_coordinator_names_this_broker(port: int, version: int) -> None:
    async with await Wire.connect(port) as wire:
        if version < 4:
            found = await wire.call(FindCoordinatorRequest(key="orders"), version)
            assert (found.error_code, found.node_id, found.host, found.port) == (0, 1, "127.0.0.1", port)
        else:
            response = await wire.call(FindCoordinatorRequest(coordinator_keys=["orders", "b"]), version)
            assert [(each.key, each.node_id, each.port) for each in response.coordinators] == [
                ("orders", 1, port),
                ("b", 1, port),
            ]


async def test_sessions_and_the_initial_delay_may_be_as_short_as_nothing(start_brokers: StartBrokers) -> None:
    brokers = await start_brokers(group_min_session_timeout_ms=0, group_initial_rebalance_delay_ms=0)
    async with await Wire.connect(brokers.brokers[0].port) as wire:
        refused = await wire.call(join(session_timeout_ms=-1), 3)
        assert refused.error_code == ErrorCode.INVALID_SESSION_TIMEOUT
        joined = await wire.call(join(session_timeout_ms=0), 3)
        assert (joined.error_code, joined.generation_id) == (ErrorCode.NONE, 1)
        beat = HeartbeatRequest(group_id="orders", generation_id=1, member_id=joined.member_id)
        assert (await wire.call(beat, 4)).error_code == ErrorCode.UNKNOWN_MEMBER_ID  # over before it began


@pytest.mark.parametrize(
    ("key_type", "version", "code"),
    [
        (2, 3, ErrorCode.INVALID_REQUEST),
        (2, 5, ErrorCode.INVALID_REQUEST),
        (2, 6, ErrorCode.INVALID_REQUEST),
        (9, 4, ErrorCode.INVALID_REQUEST),
    ],
)
async def test_find_coordinator_refuses_for_good_what_has_none(
    port: int, key_type: int, version: int, code: ErrorCode
) -> None:
    async with await Wire.connect(port) as wire:
        if version < 4:
            answer = await wire.call(FindCoordinatorRequest(key="t", key_type=key_type), version)
        else:
            request = FindCoordinatorRequest(coordinator_keys=["t"], key_type=key_type)
            (answer,) = (await wire.call(request, version)).coordinators
        assert (answer.error_code, answer.node_id) == (code, -1)
        assert "muster" in answer.error_message or "key type" in answer.error_message

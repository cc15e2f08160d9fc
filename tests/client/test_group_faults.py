"""Members whose coordinator answers late, wrongly, or not at all: nothing hangs, and nothing is lost that the
protocol could have kept."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from muster.client.assignors import Assignor, MemberSubscription, TopicPartitions
from muster.client.errors import ClientError, RequestTimedOut
from muster.client.group.driver import LEAVE_TRIES
from muster.client.group.group import State
from muster.client.group.membership import Membership
from muster.client.group.outcomes import Committed, Retry
from muster.client.network.connection import Address, deadline
from muster.client.partitions import TopicPartition
from muster.protocol.api import ApiKey
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.classic_group import HeartbeatResponse, LeaveGroupRequest, LeaveGroupResponse
from muster.protocol.messages.metadata import FindCoordinatorResponse
from tests.client.coordinators import (
    CUTS,
    HANGS,
    REBALANCING,
    SILENT,
    Coordinator,
    lets_in,
    one_after_the_other,
)
from tests.client.listeners import listener
from tests.client.members import LONG_S, Member, member, reading, settled
from tests.client.memberships import joined, partitions, refused_join, synced
from tests.support.facts import until
from tests.support.ports import free_ports

BOTH = pytest.mark.parametrize("apart", [False, True], ids=["loop", "thread"])
SHORT = {"retry_backoff_ms": 20}
IMPATIENT = {"request_timeout_ms": 300, "retry_backoff_ms": 20}


def finds(*nodes: Coordinator) -> Any:
    """FindCoordinator answers that name these nodes, one after the other."""
    return one_after_the_other(
        *(
            FindCoordinatorResponse(node_id=100 + index, host=each.address.host, port=each.address.port)
            for index, each in enumerate(nodes)
        )
    )


# --- nobody answers -----------------------------------------------------------------------------------------


@BOTH
async def test_every_wait_has_a_bound_when_there_is_no_cluster(apart: bool) -> None:
    nobody = [Address("127.0.0.1", free_ports(1))]
    async with member(nobody, apart=apart) as alone:
        async with asyncio.timeout(LONG_S):
            assert await alone.group.join(frozenset(), deadline(0.2)) is None
            assert alone.group.rejoin_needed
            with pytest.raises(RequestTimedOut, match="coordinator of group g"):
                await alone.group.committed([TopicPartition("t", 0)], deadline(0.2))
            await alone.group.leave("there is no group", deadline(0.2))
            (outcome,) = (await alone.commit(1, TopicPartition("t", 0), seconds=0.2)).values()
            assert isinstance(outcome, Retry)
        assert alone.group.health().last_error is not None


async def test_a_commit_that_waits_leaves_the_readers_error_to_the_reader() -> None:
    nobody = [Address("127.0.0.1", free_ports(1))]
    async with member(nobody, topics=(), **SHORT) as alone:
        membership = alone.group._membership
        assert isinstance(membership, Membership)
        committing = asyncio.create_task(alone.commit(1, TopicPartition("t", 0), seconds=0.5))
        await until(lambda: membership.coordinator_users)
        membership._give_up(ClientError("the assignor failed"))
        (outcome,) = (await committing).values()
        assert isinstance(outcome, Retry)
        with pytest.raises(ClientError, match="the assignor failed"):
            alone.group.polled()


async def test_what_accepts_connections_and_says_nothing_is_no_cluster_either() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(-1)

    async with listener(silent) as address, member([address], **IMPATIENT) as alone:
        async with asyncio.timeout(LONG_S):
            assert await alone.group.join(frozenset(), deadline(0.5)) is None
            with pytest.raises(ClientError):
                await alone.group.committed([TopicPartition("t", 0)], deadline(0.5))


@BOTH
async def test_a_coordinator_that_turns_into_a_black_hole_is_left_although_a_join_may_wait_for_minutes(
    apart: bool,
) -> None:
    hole, good = Coordinator(), Coordinator()
    hole.answers |= {ApiKey.JOIN_GROUP: SILENT, ApiKey.API_VERSIONS: SILENT}
    async with hole.serve(), good.serve():
        good.answers[ApiKey.FIND_COORDINATOR] = finds(hole, good)
        async with member(good.bootstrap, apart=apart, **IMPATIENT) as alone:
            await settled(alone)
            assert hole.requests(ApiKey.JOIN_GROUP)
            assert alone.owned == partitions(0, 1)


async def test_a_coordinator_that_only_takes_its_time_is_waited_for() -> None:
    slow = Coordinator()
    release = asyncio.Event()

    async def later() -> Any:
        await release.wait()
        return joined(1, "m", leader="other")

    slow.answers[ApiKey.JOIN_GROUP] = lambda request: later()
    async with slow.serve(), member(slow.bootstrap, request_timeout_ms=3_000) as alone:
        probes = len(slow.requests(ApiKey.API_VERSIONS))
        await reading(alone, until=lambda: len(slow.requests(ApiKey.API_VERSIONS)) > probes + 1)
        release.set()
        await settled(alone)
        assert len(slow.requests(ApiKey.JOIN_GROUP)) == 1


@BOTH
async def test_a_connection_that_swallows_heartbeats_is_replaced_and_the_membership_kept(
    apart: bool,
) -> None:
    broker = Coordinator()
    async with broker.serve():
        options = {"session_timeout_ms": 6_000, "heartbeat_interval_ms": 50, "request_timeout_ms": 300}
        async with member(broker.bootstrap, apart=apart, **options) as alone:
            await settled(alone)
            joins = len(broker.requests(ApiKey.JOIN_GROUP))
            broker.answers[ApiKey.HEARTBEAT] = one_after_the_other(SILENT, HeartbeatResponse())
            seen = broker.connections(ApiKey.HEARTBEAT)
            await until(lambda: broker.connections(ApiKey.HEARTBEAT) - seen)
            before = len(broker.requests(ApiKey.HEARTBEAT))
            await until(lambda: len(broker.requests(ApiKey.HEARTBEAT)) > before + 2)
            assert (alone.group.state, alone.group.generation_id) == (State.STABLE, 1)
            assert not alone.group.rejoin_needed
            assert len(broker.requests(ApiKey.JOIN_GROUP)) == joins


@BOTH
@pytest.mark.parametrize("api_key", [ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP, ApiKey.FIND_COORDINATOR])
async def test_a_connection_that_is_cut_in_a_join_costs_a_pause(api_key: ApiKey, apart: bool) -> None:
    broker = Coordinator()
    usual = broker.answers[api_key]
    broker.answers[api_key] = one_after_the_other(CUTS, CUTS, usual)
    async with broker.serve(), member(broker.bootstrap, apart=apart, **SHORT) as alone:
        await settled(alone)
        assert len(broker.requests(api_key)) == 3


async def test_a_parked_join_holds_up_neither_heartbeats_nor_commits_nor_the_end() -> None:
    broker = Coordinator()
    broker.answers[ApiKey.JOIN_GROUP] = one_after_the_other(lets_in, SILENT)
    async with broker.serve():
        alone = Member(broker.bootstrap)
        await alone.start()
        await settled(alone)
        alone.group.request_rejoin("why not")
        await reading(alone, until=lambda: len(broker.requests(ApiKey.JOIN_GROUP)) == 2)
        assert set((await alone.commit(3, *partitions(0, 1))).values()) == {Committed(3)}
        async with asyncio.timeout(LONG_S):
            await alone.group.close(3_600)
        (left,) = broker.requests(ApiKey.LEAVE_GROUP)
        assert [each.member_id for each in left.members] == ["m"]
        assert broker.connections(ApiKey.LEAVE_GROUP).isdisjoint(broker.connections(ApiKey.JOIN_GROUP))


async def test_a_coordinator_that_swallows_the_goodbye_costs_no_more_than_the_timeout() -> None:
    broker = Coordinator()
    broker.answers[ApiKey.LEAVE_GROUP] = HANGS
    async with broker.serve():
        alone = Member(broker.bootstrap)
        await alone.start()
        await settled(alone)
        async with asyncio.timeout(LONG_S):
            await alone.group.close(0.3)


# --- other answers than hoped for ---------------------------------------------------------------------------


async def test_the_coordinator_moves_and_loads() -> None:
    broker = Coordinator()
    codes = [
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ]
    broker.answers[ApiKey.JOIN_GROUP] = one_after_the_other(*map(refused_join, codes), lets_in)
    refusals = [synced(code=each) for each in (ErrorCode.NOT_COORDINATOR, ErrorCode.REBALANCE_IN_PROGRESS)]
    broker.answers[ApiKey.SYNC_GROUP] = one_after_the_other(*refusals, synced(partitions(0)))
    async with broker.serve(), member(broker.bootstrap, **SHORT) as alone:
        await settled(alone)
        assert alone.owned == partitions(0)
        assert [each.what for each in alone.events] == ["assigned"]


async def test_a_heartbeat_that_tells_of_a_rebalance_wakes_the_reader() -> None:
    broker = Coordinator()
    async with broker.serve(), member(broker.bootstrap) as alone:
        await settled(alone)
        wakes = alone.wakes
        broker.answers[ApiKey.HEARTBEAT] = REBALANCING
        await until(lambda: alone.wakes > wakes)
        assert alone.group.rejoin_needed
        beats = len(broker.requests(ApiKey.HEARTBEAT))
        await until(lambda: len(broker.requests(ApiKey.HEARTBEAT)) > beats + 2)  # heartbeats go on
        assert alone.wakes == wakes + 1  # woken once


@BOTH
async def test_a_group_that_may_not_be_read_is_told_to_the_reader(apart: bool) -> None:
    broker = Coordinator()
    async with broker.serve(), member(broker.bootstrap, apart=apart) as alone:
        await settled(alone)
        wakes = alone.wakes
        refused = HeartbeatResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
        broker.answers[ApiKey.HEARTBEAT] = one_after_the_other(refused, HeartbeatResponse())
        await until(lambda: alone.wakes > wakes)
        with pytest.raises(KafkaError) as raised:
            alone.group.polled()
        assert raised.value.code is ErrorCode.GROUP_AUTHORIZATION_FAILED
        alone.group.polled()


async def test_a_coordinator_that_may_not_be_looked_for_is_told_to_everybody_who_waits() -> None:
    broker = Coordinator()
    code = ErrorCode.GROUP_AUTHORIZATION_FAILED
    broker.answers[ApiKey.FIND_COORDINATOR] = FindCoordinatorResponse(error_code=code)
    async with broker.serve(), member(broker.bootstrap) as alone:
        for call in (
            lambda: alone.group.join(frozenset(), deadline(LONG_S)),
            lambda: alone.group.committed([TopicPartition("t", 0)], deadline(LONG_S)),
        ):
            with pytest.raises(KafkaError) as raised:
                await call()
            assert raised.value.code is code


class Broken(Assignor):
    """Raises in the given place."""

    name = "broken"

    def __init__(self, where: str) -> None:
        self.where = where

    def user_data(
        self, topics: Iterable[str], owned: Iterable[TopicPartition], generation_id: int
    ) -> bytes | None:
        if self.where == "user_data":
            raise RuntimeError("user_data is broken")
        return None

    def assign(
        self, members: Mapping[str, MemberSubscription], topics: Mapping[str, TopicPartitions]
    ) -> dict[str, list[TopicPartition]]:
        if self.where == "members":
            return {"nobody": []}
        raise RuntimeError("assign is broken")

    def on_assignment(self, assigned: Iterable[TopicPartition], generation_id: int) -> None:
        if self.where == "on_assignment":
            raise RuntimeError("on_assignment is broken")


@BOTH
@pytest.mark.parametrize("where", ["due", "answered"])
async def test_what_breaks_inside_is_told_by_every_call_and_hangs_nowhere(
    where: str, apart: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(*_: Any) -> None:
        raise RuntimeError(f"{where} is broken")

    monkeypatch.setattr(Membership, where, breaks)
    broker = Coordinator()
    async with broker.serve(), member(broker.bootstrap, apart=apart) as alone:
        with pytest.raises(ClientError, match=f"RuntimeError: {where} is broken") as raised:
            await alone.read(LONG_S)
        assert isinstance(raised.value.__cause__, RuntimeError)
        await until(lambda: alone.wakes, "the reader to be woken")  # perhaps by another thread
        with pytest.raises(ClientError, match="broken"):
            await alone.commit(1, TopicPartition("t", 0))
        with pytest.raises(ClientError, match="broken"):
            await alone.group.committed([TopicPartition("t", 0)], deadline(LONG_S))
        with pytest.raises(ClientError, match="broken"):
            alone.group.polled()


@pytest.mark.parametrize(
    ("where", "why"),
    [
        ("user_data", "RuntimeError: user_data is broken"),
        ("assign", "RuntimeError: assign is broken"),
        ("members", "ValueError: .*not a member of the group"),
    ],
)
async def test_an_assignor_that_fails_is_told_by_the_join_and_may_be_tried_again(
    where: str, why: str
) -> None:
    broker = Coordinator()
    broker.answers[ApiKey.JOIN_GROUP] = lambda request: joined(1, "m", protocol="broken")
    async with broker.serve(), member(broker.bootstrap, assignors=(Broken(where),)) as alone:
        for _ in range(2):
            with pytest.raises(ClientError, match=f"the assignor 'broken' failed: {why}"):
                await alone.read(LONG_S)
        assert alone.group.rejoin_needed


# --- brokers of long ago ------------------------------------------------------------------------------------


async def test_a_broker_that_knows_one_member_in_a_leave_is_told_of_one() -> None:
    broker = Coordinator()
    broker.versions |= {int(ApiKey.LEAVE_GROUP): (0, 2), int(ApiKey.JOIN_GROUP): (0, 3)}
    async with broker.serve():
        async with member(broker.bootstrap) as alone:
            await settled(alone)
        (left,) = broker.requests(ApiKey.LEAVE_GROUP)
        assert isinstance(left, LeaveGroupRequest)
        assert (left.member_id, left.members) == ("m", [])


async def test_a_broker_that_knows_no_static_members_is_named_as_too_old() -> None:
    broker = Coordinator()
    broker.versions |= {int(ApiKey.JOIN_GROUP): (0, 4)}
    async with broker.serve(), member(broker.bootstrap, group_instance_id="a") as alone:
        with pytest.raises(KafkaError, match="too old") as raised:
            await alone.read(LONG_S)
        assert raised.value.code is ErrorCode.UNSUPPORTED_VERSION
        assert "group_instance_id" in str(raised.value)


# --- leaving ------------------------------------------------------------------------------------------------


async def test_the_goodbye_follows_a_coordinator_that_moved() -> None:
    broker = Coordinator()
    moved = LeaveGroupResponse(error_code=ErrorCode.NOT_COORDINATOR)
    broker.answers[ApiKey.LEAVE_GROUP] = one_after_the_other(moved, CUTS, LeaveGroupResponse())
    async with broker.serve(), member(broker.bootstrap, **SHORT) as alone:
        await settled(alone)
        finds = len(broker.requests(ApiKey.FIND_COORDINATOR))
        await alone.group.leave("enough", deadline(LONG_S))
        assert len(broker.requests(ApiKey.LEAVE_GROUP)) == 3
        assert len(broker.requests(ApiKey.FIND_COORDINATOR)) == finds + 2


async def test_a_goodbye_that_takes_long_does_not_end_the_next_join() -> None:
    broker = Coordinator()
    parked, next_one, goodbye = (asyncio.get_running_loop().create_future() for _ in range(3))
    broker.answers[ApiKey.JOIN_GROUP] = one_after_the_other(
        lets_in, lambda request: parked, lambda request: next_one
    )
    broker.answers[ApiKey.LEAVE_GROUP] = lambda request: goodbye
    async with broker.serve(), member(broker.bootstrap) as alone:
        await settled(alone)
        alone.group.request_rejoin("why not")
        await reading(alone, until=lambda: len(broker.requests(ApiKey.JOIN_GROUP)) == 2)
        leaving = asyncio.create_task(alone.group.leave("for a moment", deadline(LONG_S)))
        await until(lambda: broker.requests(ApiKey.LEAVE_GROUP))
        alone.owned = frozenset()
        alone.group.subscribe(frozenset({"t"}))
        await reading(alone, until=lambda: len(broker.requests(ApiKey.JOIN_GROUP)) == 3)
        goodbye.set_result(LeaveGroupResponse())
        await leaving
        next_one.set_result(joined(5, "n", leader="other"))
        await settled(alone)
        assert (alone.group.member_id, alone.group.generation_id) == ("n", 5)


async def test_a_goodbye_is_not_repeated_once_the_member_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Coordinator()
    broker.answers[ApiKey.LEAVE_GROUP] = LeaveGroupResponse(error_code=ErrorCode.NOT_COORDINATOR)
    back = False
    monkeypatch.setattr(Membership, "has_rejoined", lambda self, leaving: back)
    async with broker.serve(), member(broker.bootstrap, retry_backoff_ms=1) as alone:
        await settled(alone)
        leaving = asyncio.create_task(alone.group.leave("for a moment", deadline(LONG_S)))
        await until(lambda: len(broker.requests(ApiKey.LEAVE_GROUP)) == 1)
        back = True
        await leaving
        assert len(broker.requests(ApiKey.LEAVE_GROUP)) < LEAVE_TRIES


@pytest.mark.parametrize("code", [ErrorCode.NOT_COORDINATOR, ErrorCode.GROUP_AUTHORIZATION_FAILED])
async def test_a_goodbye_that_is_refused_is_no_error(code: ErrorCode) -> None:
    broker = Coordinator()
    broker.answers[ApiKey.LEAVE_GROUP] = LeaveGroupResponse(error_code=code)
    async with broker.serve(), member(broker.bootstrap, **SHORT) as alone:
        await settled(alone)
        await alone.group.leave("enough", deadline(LONG_S))
        assert alone.group.member_id == ""
        assert len(broker.requests(ApiKey.LEAVE_GROUP)) <= LEAVE_TRIES

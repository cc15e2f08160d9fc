"""The outcomes of commits, for every code that a coordinator may answer, and of offset fetches."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest

from muster.client.errors import ClientError, Closed, NotKafka
from muster.client.group.group import State
from muster.client.group.outcomes import CommitFailed, CommitResult, Committed, Retry, StaleOwner
from muster.client.network.connection import deadline
from muster.client.partitions import OffsetAndMetadata, TopicPartition
from muster.protocol.api import ApiKey
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.classic_group import HeartbeatResponse
from muster.protocol.messages.offsets import OffsetCommitRequest, OffsetCommitResponse, OffsetFetchRequest
from muster.protocol.types import ZERO_UUID
from tests.client.coordinators import (
    CUTS,
    HANGS,
    SILENT,
    Coordinator,
    committed,
    fetched,
    lets_in,
    one_after_the_other,
)
from tests.client.members import LONG_S, Member, member, reading, settled
from tests.client.memberships import ALL_CODES, joined
from tests.support.each import each
from tests.support.facts import until

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
SHORT: Final = {"retry_backoff_ms": 5, "retry_backoff_max_ms": 20}
IMPATIENT: Final = {"request_timeout_ms": 3_000}
A_WHILE_S: Final = 3.0
"""Time enough for at least one request, even on a machine that stalls for a moment."""

STALE: Final = {
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.GROUP_ID_NOT_FOUND,
    ErrorCode.FENCED_MEMBER_EPOCH,
    ErrorCode.STALE_MEMBER_EPOCH,
}
ELSEWHERE: Final = {
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.REQUEST_TIMED_OUT,
}


def answers(*codes: int) -> Any:
    """Answer one commit after the other; each code applies to all partitions of a commit."""
    return one_after_the_other(*[lambda request, code=code: committed(request, code) for code in codes])


@asynccontextmanager
async def stable(broker: Coordinator, **options: Any) -> AsyncIterator[Member]:
    async with broker.serve(), member(broker.bootstrap, **SHORT | options) as alone:
        await settled(alone)
        yield alone


def commits(broker: Coordinator) -> list[dict[int, int]]:
    """Offsets by partition, for each commit request."""
    return [
        {each.partition_index: each.committed_offset for topic in request.topics for each in topic.partitions}
        for request in broker.requests(ApiKey.OFFSET_COMMIT)
    ]


def code_of(outcome: Any) -> ErrorCode:
    assert isinstance(outcome, (StaleOwner, Retry))
    assert isinstance(outcome.why, KafkaError)
    return outcome.why.code


# --- requests -----------------------------------------------------------------------------------------------


async def test_a_commit_carries_everything_of_the_member_and_of_the_offset() -> None:
    broker = Coordinator()
    async with stable(broker, group_instance_id="i") as alone:
        result = await alone.group.commit({P0: OffsetAndMetadata(5, "note", 3)}, deadline(LONG_S))
        assert dict(result) == {P0: Committed(5)}
        (request,) = broker.requests(ApiKey.OFFSET_COMMIT)
        assert isinstance(request, OffsetCommitRequest)
        assert (request.group_id, request.generation_id_or_member_epoch, request.member_id) == ("g", 1, "m")
        assert request.group_instance_id == "i"
        (partition,) = request.topics[0].partitions
        assert (partition.committed_offset, partition.committed_metadata) == (5, "note")
        assert partition.committed_leader_epoch == 3


@each("last_version", [10, 9])
@each("known", [{P0, P1}, {P0}, set()], ids=len)
async def test_topics_are_named_by_id_if_the_broker_can_and_all_are_known(
    known: set[TopicPartition], last_version: int
) -> None:
    broker = Coordinator()
    broker.versions[ApiKey.OFFSET_COMMIT] = (2, last_version)
    topic_id = uuid.uuid4()
    async with stable(broker) as alone:
        offsets = {P0: OffsetAndMetadata(5), P1: OffsetAndMetadata(6)}
        result = await alone.group.commit(offsets, deadline(LONG_S), dict.fromkeys(known, topic_id))
        assert dict(result) == {P0: Committed(5), P1: Committed(6)}
    by_id = known == {P0, P1} and last_version == 10
    (asked,) = [each for each in broker.asked if each.api_key is ApiKey.OFFSET_COMMIT]
    assert asked.version == (10 if by_id else 9)
    named = {(topic.name, topic.topic_id) for topic in asked.request.topics}
    assert named == {("", topic_id) if by_id else ("t", ZERO_UUID)}


async def test_without_a_subscription_it_is_nobodys() -> None:
    broker = Coordinator()
    async with broker.serve(), member(broker.bootstrap, topics=(), group_instance_id="i") as alone:
        assert (await alone.commit(5, P0)).ok
        (request,) = broker.requests(ApiKey.OFFSET_COMMIT)
        assert (request.generation_id_or_member_epoch, request.member_id) == (-1, "")
        assert request.group_instance_id is None


async def test_nothing_is_committed_without_a_word_to_the_coordinator() -> None:
    broker = Coordinator()
    async with stable(broker) as alone:
        assert dict(await alone.group.commit({}, deadline(LONG_S))) == {}
        assert commits(broker) == []


# --- outcomes -----------------------------------------------------------------------------------------------


@each("code", ALL_CODES, ids=lambda code: code.name)
async def test_what_each_code_leads_to(code: ErrorCode) -> None:
    """A member of a stable group; the coordinator would accept the second try."""
    broker = Coordinator()
    broker.answers[ApiKey.OFFSET_COMMIT] = answers(code, 0)
    async with stable(broker) as alone:
        if not code.retriable and code not in STALE | {ErrorCode.REBALANCE_IN_PROGRESS}:
            with pytest.raises(KafkaError) as raised:
                await alone.commit(5, P0)
            assert raised.value.code is code
            assert len(commits(broker)) == 1
            return
        outcome = (await alone.commit(5, P0))[P0]
        if code in STALE:
            assert code_of(outcome) is code
            assert isinstance(outcome, StaleOwner)
            assert alone.group.lost
        elif code is ErrorCode.REBALANCE_IN_PROGRESS:
            # Only the reader can move the member on.
            assert code_of(outcome) is code
            assert isinstance(outcome, Retry)
            assert alone.group.rejoin_needed
            assert not alone.group.lost
        else:
            assert code.retriable
            assert outcome == Committed(5)
            assert len(commits(broker)) == 2
            assert not alone.group.rejoin_needed
            assert len(broker.requests(ApiKey.FIND_COORDINATOR)) == (2 if code in ELSEWHERE else 1)


async def test_partitions_have_outcomes_of_their_own() -> None:
    broker = Coordinator()
    broker.answers[ApiKey.OFFSET_COMMIT] = lambda request: committed(
        request, 0, ErrorCode.REBALANCE_IN_PROGRESS
    )
    async with stable(broker) as alone:
        result = await alone.commit(5)
        assert result[P0] == Committed(5)
        assert isinstance(result[P1], Retry)
        assert (set(result.committed), set(result.retry), set(result.stale)) == ({P0}, {P1}, set())
        assert not result.ok
        with pytest.raises(CommitFailed, match="t-1: offset 5 not committed: REBALANCE") as failed:
            result.raise_for_failures()
        assert failed.value.result is result


async def test_only_what_is_left_is_tried_again() -> None:
    broker = Coordinator()
    load = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    broker.answers[ApiKey.OFFSET_COMMIT] = one_after_the_other(
        lambda request: committed(request, 0, load), lambda request: committed(request, 0)
    )
    async with stable(broker) as alone:
        assert (await alone.commit(5)).ok
        assert commits(broker) == [{0: 5, 1: 5}, {1: 5}]


async def test_what_does_not_pass_in_time_is_said_to_be_tried_again() -> None:
    broker = Coordinator()
    broker.answers[ApiKey.OFFSET_COMMIT] = answers(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    async with stable(broker) as alone:
        async with asyncio.timeout(LONG_S):
            result = await alone.commit(5, P0, seconds=A_WHILE_S)
        assert isinstance(result[P0], Retry)
        assert code_of(result[P0]) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


async def test_who_waits_for_no_topics_hears_at_once_which_there_are_not() -> None:
    broker = Coordinator()
    broker.answers[ApiKey.OFFSET_COMMIT] = answers(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    async with stable(broker) as alone, asyncio.timeout(LONG_S):
        waits = asyncio.create_task(alone.commit(4, P1, seconds=3_600))
        await until(lambda: commits(broker))
        offsets = {P0: OffsetAndMetadata(5)}
        result = await alone.group.commit(offsets, deadline(3_600), waits_for_topics=False)
        assert isinstance(result[P0], Retry)
        assert code_of(result[P0]) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert not waits.done()
        broker.answers[ApiKey.OFFSET_COMMIT] = answers(0)
        assert (await waits).ok


@pytest.mark.parametrize("fault", [SILENT, HANGS, CUTS], ids=["silent", "hangs", "cuts"])
async def test_an_answer_that_does_not_come_is_asked_for_again(fault: Any) -> None:
    broker = Coordinator()
    broker.answers[ApiKey.OFFSET_COMMIT] = one_after_the_other(fault, lambda request: committed(request, 0))
    async with stable(broker, **IMPATIENT) as alone:
        assert (await alone.commit(5, P0)).ok
        assert len(commits(broker)) == 2


async def test_callers_in_a_hurry_leave_the_connection_to_the_coordinator_alone() -> None:
    broker = Coordinator()
    slow: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    broker.answers[ApiKey.OFFSET_COMMIT] = lambda request: slow
    async with stable(broker, request_timeout_ms=60_000) as alone:
        (outcome,) = (await alone.commit(5, P0, seconds=A_WHILE_S)).values()
        assert isinstance(outcome, Retry)
        with pytest.raises(ClientError, match="in time"):
            await alone.group.committed([P0], deadline(0.05))  # behind the commit on the connection
        slow.set_result(committed(broker.requests(ApiKey.OFFSET_COMMIT)[0], 0))
        assert await alone.group.committed([P0], deadline(LONG_S)) == {P0: OffsetAndMetadata(5, "note", 2)}
        assert len(broker.connections(ApiKey.OFFSET_COMMIT) | broker.connections(ApiKey.OFFSET_FETCH)) == 1
        assert len(broker.requests(ApiKey.FIND_COORDINATOR)) == 1


async def test_what_is_not_this_members_is_not_sent() -> None:
    broker = Coordinator()
    async with stable(broker) as alone:
        result = await alone.commit(5, P0, TopicPartition("t", 7))
        assert result[P0] == Committed(5)
        assert isinstance(result[TopicPartition("t", 7)], StaleOwner)
        assert commits(broker) == [{0: 5}]


async def test_an_answer_that_leaves_a_partition_out_is_no_kafkas() -> None:
    broker = Coordinator()
    broker.answers[ApiKey.OFFSET_COMMIT] = OffsetCommitResponse(topics=[])
    async with stable(broker) as alone:
        result = await alone.commit(5, P0, seconds=A_WHILE_S)
        assert isinstance(result[P0], Retry)
        assert isinstance(result[P0].why, NotKafka)


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION])
async def test_a_group_with_members_is_not_nobodys(code: ErrorCode) -> None:
    broker = Coordinator()
    broker.answers[ApiKey.OFFSET_COMMIT] = answers(code)
    async with broker.serve(), member(broker.bootstrap, topics=(), **SHORT) as alone:
        assert code_of((await alone.commit(5, P0))[P0]) is code


async def test_nobody_waits_while_a_group_rebalances() -> None:
    broker = Coordinator()
    broker.answers[ApiKey.OFFSET_COMMIT] = answers(ErrorCode.REBALANCE_IN_PROGRESS, 0)
    async with broker.serve(), member(broker.bootstrap, topics=(), **SHORT) as alone:
        assert (await alone.commit(5, P0)).ok


# --- in a rebalance -----------------------------------------------------------------------------------------


async def park(broker: Coordinator, alone: Member) -> asyncio.Future[Any]:
    """Let the member wait in a JoinGroup, which is answered with the future's result."""
    parked: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    broker.answers[ApiKey.JOIN_GROUP] = lambda request: parked
    alone.group.request_rejoin("why not")
    await reading(alone, until=lambda: len(broker.requests(ApiKey.JOIN_GROUP)) == 2)
    assert alone.group.state is State.PREPARING_REBALANCE
    return parked


async def test_in_the_next_generation_already_it_is_committed_with_that_one() -> None:
    """The coordinator has moved on, and its answer to JoinGroup is still in flight."""
    broker = Coordinator()

    def by_generation(request: Any) -> Any:
        current = request.generation_id_or_member_epoch == 2
        return committed(request, 0 if current else ErrorCode.ILLEGAL_GENERATION)

    broker.answers[ApiKey.OFFSET_COMMIT] = by_generation
    async with stable(broker, assignors=("cooperative-sticky",)) as alone:
        parked = await park(broker, alone)
        call = asyncio.create_task(alone.commit(5, P0))
        await until(lambda: commits(broker))
        parked.set_result(joined(2, "m", leader="other", protocol="cooperative-sticky"))
        assert (await call)[P0] == Committed(5)
        assert not alone.group.lost


@pytest.mark.parametrize(
    "code", [ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID]
)
async def test_an_answer_to_an_earlier_generation_is_asked_for_in_this_one(code: ErrorCode) -> None:
    broker = Coordinator()
    late: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    broker.answers[ApiKey.OFFSET_COMMIT] = one_after_the_other(
        lambda request: late, lambda request: committed(request, 0)
    )
    options = {"heartbeat_interval_ms": 40_000, "request_timeout_ms": 60_000}
    async with stable(broker, assignors=("cooperative-sticky",), **options) as alone:
        call = asyncio.create_task(alone.commit(5, P0))
        await until(lambda: commits(broker))
        broker.answers[ApiKey.JOIN_GROUP] = joined(2, "m", leader="other", protocol="cooperative-sticky")
        alone.group.request_rejoin("why not")
        await reading(alone, until=lambda: alone.group.generation_id == 2 and alone.is_settled)
        late.set_result(committed(broker.requests(ApiKey.OFFSET_COMMIT)[0], code))
        assert (await call)[P0] == Committed(5)
        asked = broker.requests(ApiKey.OFFSET_COMMIT)
        assert [each.generation_id_or_member_epoch for each in asked] == [1, 2]
        assert not alone.group.lost


async def test_what_went_to_another_member_meanwhile_is_stale() -> None:
    broker = Coordinator()
    broker.answers[ApiKey.OFFSET_COMMIT] = answers(ErrorCode.ILLEGAL_GENERATION)
    async with stable(broker) as alone:  # eager: it has given up everything
        parked = await park(broker, alone)
        call = asyncio.create_task(alone.commit(5, P0))
        await until(lambda: commits(broker))
        parked.set_result(joined(2, "m", leader="other"))
        outcome = (await call)[P0]
        assert isinstance(outcome, StaleOwner)
        assert "generation 2" in str(outcome.why)
        assert len(commits(broker)) == 1


async def test_between_join_and_sync_commits_wait() -> None:
    broker = Coordinator()
    syncing: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    async with stable(broker, assignors=("cooperative-sticky",)) as alone:
        usual = broker.answers[ApiKey.SYNC_GROUP]
        broker.answers[ApiKey.SYNC_GROUP] = lambda request: syncing
        alone.group.request_rejoin("why not")
        await reading(alone, until=lambda: alone.group.state is State.COMPLETING_REBALANCE)
        call = asyncio.create_task(alone.commit(5, P0))
        result = await alone.commit(4, P1, seconds=A_WHILE_S)
        assert code_of(result[P1]) is ErrorCode.REBALANCE_IN_PROGRESS
        assert commits(broker) == []
        syncing.set_result(usual)
        assert (await call).ok


async def test_a_fenced_commit_is_raised() -> None:
    broker = Coordinator()
    broker.answers[ApiKey.OFFSET_COMMIT] = answers(ErrorCode.FENCED_INSTANCE_ID)
    async with stable(broker, group_instance_id="i") as alone:
        with pytest.raises(KafkaError) as raised:
            await alone.commit(5, P0)
        assert raised.value.code is ErrorCode.FENCED_INSTANCE_ID
        with pytest.raises(KafkaError, match="instance id i"):
            await alone.group.join(frozenset(), deadline(LONG_S))


# --- several calls ------------------------------------------------------------------------------------------


async def test_calls_that_come_while_one_is_under_way_go_out_together() -> None:
    broker = Coordinator()
    first: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    broker.answers[ApiKey.OFFSET_COMMIT] = one_after_the_other(
        lambda request: first, lambda request: committed(request, 0)
    )
    async with stable(broker) as alone:
        calls = [asyncio.create_task(alone.commit(1, P0))]
        await until(lambda: commits(broker))
        calls += [asyncio.create_task(alone.commit(offset, P0)) for offset in range(2, 50)]
        calls += [asyncio.create_task(alone.commit(7, P1))]
        await asyncio.sleep(0)
        first.set_result(committed(broker.requests(ApiKey.OFFSET_COMMIT)[0], 0))
        results = await asyncio.gather(*calls)
        assert all(result.ok for result in results)
        assert [result[P0].offset for result in results[:-1]] == list(range(1, 50))
        assert commits(broker) == [{0: 1}, {0: 49, 1: 7}]


async def test_an_old_commit_that_is_tried_again_does_not_undo_a_newer_one() -> None:
    broker = Coordinator()
    broker.answers[ApiKey.OFFSET_COMMIT] = answers(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, 0)
    async with stable(broker, retry_backoff_ms=200, retry_backoff_max_ms=200) as alone:
        old = asyncio.create_task(alone.commit(5, P0))
        await until(lambda: commits(broker))
        new = asyncio.create_task(alone.commit(9, P0))
        assert (await old)[P0] == Committed(5)
        assert (await new)[P0] == Committed(9)
        assert commits(broker)[1:] == [{0: 9}]


@each("gives_up", ["times out", "is cancelled"])
async def test_nor_does_it_once_the_newer_ones_caller_has_given_up(gives_up: str) -> None:
    """The coordinator may have written the newer one: its answer was lost."""
    broker = Coordinator()
    lost: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    broker.answers[ApiKey.OFFSET_COMMIT] = one_after_the_other(
        lambda request: committed(request, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        lambda request: lost,
        lambda request: committed(request, 0),
    )
    async with stable(broker, retry_backoff_ms=200, retry_backoff_max_ms=200) as alone:
        old = asyncio.create_task(alone.commit(5, P0))
        await until(lambda: commits(broker))
        seconds = A_WHILE_S if gives_up == "times out" else LONG_S
        new = asyncio.create_task(alone.commit(9, P0, P1, seconds=seconds))
        await until(lambda: len(commits(broker)) == 2)
        if gives_up == "is cancelled":
            new.cancel()
        await asyncio.wait([new])
        lost.set_result(CUTS)
        assert (await old)[P0] == Committed(5)
        assert commits(broker)[1:] == [{0: 9, 1: 9}, {0: 9}]


async def test_a_newer_place_that_cannot_be_committed_fails_no_older_commit() -> None:
    broker = Coordinator()
    broker.answers[ApiKey.OFFSET_COMMIT] = answers(
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.OFFSET_METADATA_TOO_LARGE, 0
    )
    async with stable(broker, retry_backoff_ms=200, retry_backoff_max_ms=200) as alone:
        old = asyncio.create_task(alone.commit(5, P0))
        await until(lambda: commits(broker))
        with pytest.raises(KafkaError) as raised:
            await alone.commit(9, P0)
        assert raised.value.code is ErrorCode.OFFSET_METADATA_TOO_LARGE
        assert (await old)[P0] == Committed(5)
        assert commits(broker) == [{0: 5}, {0: 9}, {0: 5}]


async def test_an_instance_id_that_is_taken_over_fails_older_and_newer_commits() -> None:
    broker = Coordinator()
    broker.answers[ApiKey.OFFSET_COMMIT] = answers(
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.FENCED_INSTANCE_ID
    )
    async with stable(broker, retry_backoff_ms=200, retry_backoff_max_ms=200, group_instance_id="i") as alone:
        old = asyncio.create_task(alone.commit(5, P0))
        await until(lambda: commits(broker))
        for call in (alone.commit(9, P0), old):
            with pytest.raises(KafkaError) as raised:
                await call
            assert raised.value.code is ErrorCode.FENCED_INSTANCE_ID


async def test_a_newer_commit_that_was_given_up_before_it_was_sent_changes_nothing() -> None:
    broker = Coordinator()
    refused: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    broker.answers[ApiKey.OFFSET_COMMIT] = one_after_the_other(
        lambda request: refused, lambda request: committed(request, 0)
    )
    async with stable(broker) as alone:
        old = asyncio.create_task(alone.commit(5, P0))
        await until(lambda: commits(broker))
        new = asyncio.create_task(alone.commit(9, P0))
        await asyncio.sleep(0)
        new.cancel()
        await asyncio.wait([new])
        code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        refused.set_result(committed(broker.requests(ApiKey.OFFSET_COMMIT)[0], code))
        assert (await old)[P0] == Committed(5)
        assert commits(broker) == [{0: 5}, {0: 5}]


async def test_what_cannot_pass_fails_only_who_asked_for_it() -> None:
    broker = Coordinator()
    gate: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    broker.answers[ApiKey.OFFSET_COMMIT] = one_after_the_other(
        lambda request: gate,
        lambda request: committed(request, ErrorCode.OFFSET_METADATA_TOO_LARGE, 0),
    )
    async with stable(broker) as alone:
        before = asyncio.create_task(alone.commit(1, P0))
        await until(lambda: commits(broker))
        bad, good = asyncio.create_task(alone.commit(5, P0)), asyncio.create_task(alone.commit(6, P1))
        await asyncio.sleep(0)
        gate.set_result(committed(broker.requests(ApiKey.OFFSET_COMMIT)[0], 0))
        assert (await before).ok
        assert (await good).ok
        with pytest.raises(KafkaError) as raised:
            await bad
        assert raised.value.code is ErrorCode.OFFSET_METADATA_TOO_LARGE


async def test_a_call_that_is_cancelled_is_forgotten_and_holds_up_nobody() -> None:
    broker = Coordinator()
    broker.answers[ApiKey.OFFSET_COMMIT] = one_after_the_other(HANGS, lambda request: committed(request, 0))
    async with stable(broker, **IMPATIENT) as alone:
        call = asyncio.create_task(alone.commit(5, P0))
        await until(lambda: commits(broker))
        call.cancel()
        assert (await alone.commit(6, P1)).ok
        assert call.cancelled()
        assert commits(broker) == [{0: 5}, {1: 6}]


async def test_who_leaves_meanwhile_commits_nothing_as_nobody() -> None:
    broker = Coordinator()
    broker.answers[ApiKey.OFFSET_COMMIT] = answers(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    async with stable(broker) as alone:
        call = asyncio.create_task(alone.commit(5, P0))
        await until(lambda: commits(broker))
        await alone.group.leave("enough", deadline(LONG_S))
        assert isinstance((await call)[P0], StaleOwner)
        asked = broker.requests(ApiKey.OFFSET_COMMIT)
        assert {each.generation_id_or_member_epoch for each in asked} == {1}


async def test_closing_ends_commits_that_are_under_way() -> None:
    broker = Coordinator()
    broker.answers[ApiKey.OFFSET_COMMIT] = HANGS
    async with stable(broker, request_timeout_ms=60_000) as alone:
        call = asyncio.create_task(alone.commit(5, P0))
        await until(lambda: commits(broker))
        await alone.group.close(LONG_S)
        with pytest.raises(ClientError, match="closed"):
            await call


# --- fetching -----------------------------------------------------------------------------------------------


async def test_offsets_come_with_all_that_was_committed_with_them() -> None:
    broker = Coordinator()
    broker.answers[ApiKey.OFFSET_FETCH] = one_after_the_other(fetched, lambda request: fetched(request, -1))
    async with stable(broker) as alone:
        told = await alone.group.committed([P1, P0], deadline(LONG_S))
        assert told == {P1: OffsetAndMetadata(5, "note", 2), P0: OffsetAndMetadata(5, "note", 2)}
        assert await alone.group.committed([P0], deadline(LONG_S)) == {P0: None}
        assert await alone.group.committed([], deadline(LONG_S)) == {}


async def test_stable_offsets_are_asked_for() -> None:
    broker = Coordinator()
    async with stable(broker) as alone:
        await alone.group.committed([P0], deadline(LONG_S))
        (request,) = broker.requests(ApiKey.OFFSET_FETCH)
        assert isinstance(request, OffsetFetchRequest)
        assert request.require_stable


async def test_a_broker_that_knows_no_stable_offsets_is_asked_for_what_it_has() -> None:
    broker = Coordinator()
    broker.versions |= {int(ApiKey.OFFSET_FETCH): (1, 5)}
    async with stable(broker) as alone:
        assert await alone.group.committed([P0], deadline(LONG_S)) == {P0: OffsetAndMetadata(5, "note", 2)}


@pytest.mark.parametrize(
    "refused",
    [
        {"code": ErrorCode.COORDINATOR_LOAD_IN_PROGRESS},
        {"code": ErrorCode.NOT_COORDINATOR},
        {"code": ErrorCode.COORDINATOR_NOT_AVAILABLE},
        {"of_partition": ErrorCode.UNSTABLE_OFFSET_COMMIT},
    ],
    ids=str,
)
async def test_what_may_pass_is_asked_again(refused: dict[str, Any]) -> None:
    broker = Coordinator()
    broker.answers[ApiKey.OFFSET_FETCH] = one_after_the_other(
        lambda request: fetched(request, **refused), CUTS, fetched
    )
    async with stable(broker) as alone:
        assert await alone.group.committed([P0], deadline(LONG_S)) == {P0: OffsetAndMetadata(5, "note", 2)}
        assert len(broker.requests(ApiKey.OFFSET_FETCH)) == 3
        assert not alone.group.rejoin_needed


async def test_what_does_not_pass_in_time_is_raised() -> None:
    broker = Coordinator()
    broker.answers[ApiKey.OFFSET_FETCH] = lambda request: fetched(
        request, of_partition=ErrorCode.UNSTABLE_OFFSET_COMMIT
    )
    async with stable(broker) as alone:
        with pytest.raises(KafkaError) as raised:
            await alone.group.committed([P0], deadline(A_WHILE_S))
        assert raised.value.code is ErrorCode.UNSTABLE_OFFSET_COMMIT


async def test_what_cannot_pass_is_raised_at_once() -> None:
    broker = Coordinator()
    broker.answers[ApiKey.OFFSET_FETCH] = lambda request: fetched(
        request, code=ErrorCode.GROUP_AUTHORIZATION_FAILED
    )
    async with stable(broker) as alone:
        with pytest.raises(KafkaError) as raised:
            await alone.group.committed([P0], deadline(LONG_S))
        assert raised.value.code is ErrorCode.GROUP_AUTHORIZATION_FAILED
        assert len(broker.requests(ApiKey.OFFSET_FETCH)) == 1


@pytest.mark.parametrize("apart", [False, True], ids=["loop", "thread"])
async def test_closing_ends_questions_that_are_under_way(apart: bool) -> None:
    broker = Coordinator()
    broker.answers[ApiKey.OFFSET_FETCH] = HANGS
    async with stable(broker, apart=apart) as alone:
        call = asyncio.create_task(alone.group.committed([P0], deadline(2 * LONG_S)))
        await until(lambda: broker.requests(ApiKey.OFFSET_FETCH))
        await alone.group.close(LONG_S)
        async with asyncio.timeout(LONG_S):
            with pytest.raises(Closed):
                await call


async def test_what_kept_it_from_being_told_is_raised_even_if_the_last_answer_does_not_come() -> None:
    broker = Coordinator()
    unstable = ErrorCode.UNSTABLE_OFFSET_COMMIT
    broker.answers[ApiKey.OFFSET_FETCH] = one_after_the_other(
        lambda request: fetched(request, of_partition=unstable), HANGS
    )
    async with stable(broker) as alone:
        with pytest.raises(KafkaError) as raised:
            await alone.group.committed([P0], deadline(A_WHILE_S))
        assert raised.value.code is unstable


# --- results ------------------------------------------------------------------------------------------------


def test_a_result_is_a_mapping_and_tells_what_it_has() -> None:
    stale = StaleOwner(3, KafkaError(ErrorCode.UNKNOWN_MEMBER_ID))
    result = CommitResult({P0: Committed(5), P1: stale})
    assert (len(result), list(result), result[P1]) == (2, [P0, P1], stale)
    assert "t-0" in repr(result)
    CommitResult({P0: Committed(5)}).raise_for_failures()
    assert CommitResult({}).ok


async def test_a_heartbeat_and_a_commit_share_a_connection_that_no_join_can_park() -> None:
    broker = Coordinator()
    broker.answers[ApiKey.HEARTBEAT] = HeartbeatResponse()
    broker.answers[ApiKey.JOIN_GROUP] = lets_in
    async with stable(broker, heartbeat_interval_ms=20) as alone:
        await alone.commit(5, P0)
        await until(lambda: broker.requests(ApiKey.HEARTBEAT))
        shared = broker.connections(ApiKey.HEARTBEAT) | broker.connections(ApiKey.OFFSET_COMMIT)
        assert len(shared) == 1
        assert shared.isdisjoint(broker.connections(ApiKey.JOIN_GROUP))

"""A member of the consumer protocol (KIP-848) and its connections; the broker answers as the tests
specify."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from muster.client.errors import RequestTimedOut
from muster.client.group.group import GroupHealth, State
from muster.client.group.outcomes import StaleOwner
from muster.client.network.connection import deadline
from muster.client.partitions import OffsetAndMetadata, TopicPartition
from muster.protocol.api import ApiKey
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.consumer_group import ConsumerGroupHeartbeatRequest
from muster.protocol.messages.metadata import MetadataRequest, MetadataResponse
from muster.protocol.messages.offsets import OffsetFetchRequest, OffsetFetchResponse
from tests.client.consumer_memberships import T, beaten, partitions
from tests.client.coordinators import (
    CUTS,
    SILENT,
    Coordinator,
    committed,
    one_after_the_other,
)
from tests.client.members import LONG_S, Event, Member, member, reading, settled
from tests.support.facts import until

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
BOTH = pytest.mark.parametrize("apart", [False, True], ids=["loop", "thread"])
INTERVAL_MS = 50
HEARTBEAT = ApiKey.CONSUMER_GROUP_HEARTBEAT


class ConsumerCoordinator(Coordinator):
    """Gives both partitions of t to whoever joins, and asks for a heartbeat every 50 ms. `epoch` is the
    member epoch in its answers."""

    def __init__(self) -> None:
        super().__init__()
        self.epoch = 1
        self.versions |= {int(HEARTBEAT): (0, 1), int(ApiKey.OFFSET_FETCH): (1, 9)}
        self.answers |= {HEARTBEAT: self.beats, ApiKey.OFFSET_FETCH: fetched}

    def beats(self, request: ConsumerGroupHeartbeatRequest) -> Any:
        if request.member_epoch < 0:
            return beaten(request.member_epoch)
        assigned = None if request.subscribed_topic_names is None else [(T, 0), (T, 1)]
        response = beaten(self.epoch, assigned, interval_ms=INTERVAL_MS)
        response.member_id = request.member_id
        return response

    def metadata(self, request: Any) -> MetadataResponse:
        assert isinstance(request, MetadataRequest)
        response = super().metadata(request)
        for topic in response.topics:
            topic.topic_id = T
        return response


def fetched(request: OffsetFetchRequest) -> OffsetFetchResponse:
    """Offset 5 for every requested partition."""
    return OffsetFetchResponse(
        groups=[
            OffsetFetchResponse.Group(
                group_id=group.group_id,
                topics=[
                    OffsetFetchResponse.Topics(
                        name=topic.name,
                        partitions=[
                            OffsetFetchResponse.Partitions(
                                partition_index=each, committed_offset=5, metadata=""
                            )
                            for each in topic.partition_indexes
                        ],
                    )
                    for topic in group.topics or []
                ],
            )
            for group in request.groups
        ]
    )


@asynccontextmanager
async def stable(broker: ConsumerCoordinator, **options: Any) -> AsyncIterator[Member]:
    async with broker.serve(), joining(broker, **options) as alone:
        await settled(alone, owning=2)
        yield alone


def joining(broker: ConsumerCoordinator, **options: Any) -> Any:
    return member(broker.bootstrap, **{"group_protocol": "consumer", "retry_backoff_ms": 5} | options)


def beats(broker: Coordinator) -> list[ConsumerGroupHeartbeatRequest]:
    return broker.requests(HEARTBEAT)


def owning(broker: Coordinator) -> list[Any]:
    """The owned partitions in the heartbeats of joined members, for those heartbeats that list them."""
    later = [each for each in beats(broker) if each.member_epoch > 0]
    return [each.topic_partitions for each in later if each.topic_partitions is not None]


@BOTH
async def test_it_joins_acknowledges_stays_and_leaves(apart: bool) -> None:
    broker = ConsumerCoordinator()
    async with stable(broker, apart=apart) as alone:
        assert alone.events == [Event("assigned", partitions(0, 1))]
        await until(lambda: alone.group.state is State.STABLE)
        await until(lambda: owning(broker) != [])  # it is stable once it has sent them
        first, *later = beats(broker)
        assert first.member_epoch == 0
        assert {each.member_epoch for each in later} == {1}
        (owned,) = owning(broker)
        assert [(each.topic_id, each.partitions) for each in owned] == [(T, [0, 1])]
        assert uuid.UUID(first.member_id)
        count = len(beats(broker))
        await until(lambda: len(beats(broker)) >= count + 2)
        assert beats(broker)[-1].topic_partitions is None
        health = alone.group.health()
        assert (health.state, health.generation_id) == (State.STABLE, 1)
        assert health.heartbeat_answered_s is not None
    assert beats(broker)[-1].member_epoch == -1
    assert {each.member_id for each in beats(broker)} == {first.member_id}
    assert not broker.requests(ApiKey.JOIN_GROUP)


@pytest.mark.parametrize(("leave", "epochs"), [(None, [-2]), (True, [-1]), (False, [])])
async def test_how_a_static_member_leaves(leave: bool | None, epochs: list[int]) -> None:
    broker = ConsumerCoordinator()
    async with stable(broker, group_instance_id="i") as alone:
        await alone.group.close(LONG_S, leave=leave)
    assert [each.member_epoch for each in beats(broker) if each.member_epoch < 0] == epochs
    assert {each.instance_id for each in beats(broker)} == {"i"}


async def test_commits_and_look_ups_carry_the_member_epoch() -> None:
    broker = ConsumerCoordinator()
    broker.epoch = 7
    async with stable(broker) as alone:
        assert (await alone.commit(3)).ok
        told = await alone.group.committed([P0], deadline(LONG_S))
        assert told == {P0: OffsetAndMetadata(5)}
    (commit,) = broker.requests(ApiKey.OFFSET_COMMIT)
    assert (commit.generation_id_or_member_epoch, commit.member_id) == (7, alone.group.member_id)
    (fetch,) = broker.requests(ApiKey.OFFSET_FETCH)
    (group,) = fetch.groups
    assert (group.member_epoch, group.member_id) == (7, alone.group.member_id)


@BOTH
async def test_a_commit_with_an_epoch_that_has_passed_is_repeated_with_the_next(apart: bool) -> None:
    broker = ConsumerCoordinator()

    def commits(request: Any) -> Any:
        if request.generation_id_or_member_epoch < broker.epoch:
            return committed(request, ErrorCode.STALE_MEMBER_EPOCH)
        return committed(request, 0)

    async with stable(broker, apart=apart) as alone:
        await until(lambda: alone.group.state is State.STABLE)
        broker.answers[HEARTBEAT] = lambda request: beaten(broker.epoch, interval_ms=60_000)
        count = len(beats(broker))
        await until(lambda: len(beats(broker)) > count)
        await until(lambda: answered(alone.group.health()))
        broker.answers[ApiKey.OFFSET_COMMIT] = commits
        broker.epoch = 2  # the member would learn of this in a minute
        result = await alone.commit(3)
        assert result.ok
        assert alone.group.generation_id == 2
    epochs = [each.generation_id_or_member_epoch for each in broker.requests(ApiKey.OFFSET_COMMIT)]
    assert epochs == [1, 2]


def answered(health: GroupHealth) -> bool:
    """Whether the last heartbeat was answered."""
    sent_s, answered_s = health.heartbeat_sent_s, health.heartbeat_answered_s
    return sent_s is not None and answered_s is not None and answered_s <= sent_s


async def test_a_commit_of_a_member_that_the_group_does_not_know() -> None:
    broker = ConsumerCoordinator()
    async with stable(broker) as alone:
        broker.answers[ApiKey.OFFSET_COMMIT] = lambda request: committed(request, ErrorCode.UNKNOWN_MEMBER_ID)
        broker.answers[HEARTBEAT] = one_after_the_other(
            beaten(code=ErrorCode.UNKNOWN_MEMBER_ID), broker.beats
        )
        result = await alone.commit(3)
        assert {type(each) for each in result.values()} == {StaleOwner}
        await until(lambda: alone.group.lost)
        await settled(alone, owning=2)
        assert [each.what for each in alone.events] == ["assigned", "lost", "assigned"]


@pytest.mark.parametrize("code", [ErrorCode.STALE_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID])
async def test_a_look_up_with_an_epoch_that_has_passed_is_repeated(code: ErrorCode) -> None:
    broker = ConsumerCoordinator()

    def refused(request: OffsetFetchRequest) -> OffsetFetchResponse:
        response = fetched(request)
        response.groups[0].error_code = code
        return response

    async with stable(broker) as alone:
        broker.answers[ApiKey.OFFSET_FETCH] = one_after_the_other(refused, fetched)
        told = await alone.group.committed([P1], deadline(LONG_S))
        assert told == {P1: OffsetAndMetadata(5)}


async def test_a_look_up_whose_epoch_has_always_passed_times_out() -> None:
    broker = ConsumerCoordinator()

    def refused(request: OffsetFetchRequest) -> OffsetFetchResponse:
        response = fetched(request)
        response.groups[0].error_code = ErrorCode.STALE_MEMBER_EPOCH
        return response

    async with stable(broker) as alone:
        broker.answers[ApiKey.OFFSET_FETCH] = refused
        # As a final error, it would end the consumer.
        with pytest.raises(RequestTimedOut, match="STALE_MEMBER_EPOCH"):
            await alone.group.committed([P1], deadline(0.3))


@pytest.mark.parametrize("fault", [CUTS, SILENT], ids=["cuts", "silent"])
async def test_a_heartbeat_without_an_answer_costs_nothing(fault: Any) -> None:
    broker = ConsumerCoordinator()
    async with stable(broker, session_timeout_ms=6_000, request_timeout_ms=300) as alone:
        await until(lambda: alone.group.state is State.STABLE)
        broker.answers[HEARTBEAT] = one_after_the_other(fault, broker.beats)
        count = len(beats(broker))
        await until(lambda: len(beats(broker)) >= count + 3)
        again = beats(broker)[count + 1]
        assert again.member_epoch == 1
        assert again.subscribed_topic_names == ["t"]
        assert again.topic_partitions
        assert not alone.group.lost
        await settled(alone)
    assert alone.events == [Event("assigned", partitions(0, 1))]


# --- brokers without the protocol ---------------------------------------------------------------------------


def not_advertised(broker: ConsumerCoordinator) -> None:
    del broker.versions[int(HEARTBEAT)]


def refused(broker: ConsumerCoordinator) -> None:
    broker.answers[HEARTBEAT] = beaten(code=ErrorCode.UNSUPPORTED_VERSION)


WITHOUT = pytest.mark.parametrize("without", [not_advertised, refused])


@WITHOUT
@BOTH
async def test_a_broker_that_does_not_offer_it_is_an_error(
    without: Callable[[ConsumerCoordinator], None], apart: bool
) -> None:
    broker = ConsumerCoordinator()
    without(broker)
    async with broker.serve(), joining(broker, apart=apart) as alone:
        for _ in range(2):
            with pytest.raises(KafkaError) as error:
                await reading(alone, until=lambda: False)
            assert error.value.code is ErrorCode.UNSUPPORTED_VERSION
            assert str(broker.address) in str(error.value)
            assert "group_protocol" in str(error.value)
    assert not broker.requests(ApiKey.JOIN_GROUP)


@WITHOUT
@BOTH
async def test_with_auto_the_group_is_joined_as_a_classic_member(
    without: Callable[[ConsumerCoordinator], None], apart: bool
) -> None:
    broker = ConsumerCoordinator()
    without(broker)
    broker.versions[int(ApiKey.OFFSET_FETCH)] = (1, 7)
    async with broker.serve(), joining(broker, apart=apart, group_protocol="auto") as alone:
        await settled(alone, owning=2)
        assert alone.events == [Event("assigned", partitions(0, 1))]
        assert (await alone.commit(3)).ok
        (commit,) = broker.requests(ApiKey.OFFSET_COMMIT)
        assert commit.member_id == "m"
    assert len(broker.requests(ApiKey.JOIN_GROUP)) == 1
    assert len(broker.requests(ApiKey.LEAVE_GROUP)) == 1


async def test_a_coordinator_that_offers_it_no_more_takes_the_partitions_with_it() -> None:
    broker = ConsumerCoordinator()
    async with stable(broker, group_protocol="auto") as alone:
        refused(broker)
        await until(lambda: alone.group.lost)
        await settled(alone, owning=2)
        assert [each.what for each in alone.events] == ["assigned", "lost", "assigned"]
        assert len(broker.requests(ApiKey.JOIN_GROUP)) == 1


async def test_an_older_broker_cannot_take_a_regular_expression() -> None:
    broker = ConsumerCoordinator()
    broker.versions[int(HEARTBEAT)] = (0, 0)
    async with broker.serve(), joining(broker) as alone:
        alone.group.subscribe(frozenset(), regex="t.*")
        with pytest.raises(KafkaError, match="UNSUPPORTED_VERSION"):
            await reading(alone, until=lambda: False)
        alone.group.subscribe(frozenset({"t"}))
        await settled(alone, owning=2)


async def test_a_static_member_has_no_regular_expression_for_an_older_broker_to_forget() -> None:
    broker = ConsumerCoordinator()
    broker.versions[int(HEARTBEAT)] = (0, 0)
    async with stable(broker, group_instance_id="i") as alone:
        assert alone.owned == partitions(0, 1)
        assert beats(broker)[0].instance_id == "i"


# --- cancelled ----------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("protocol", ["consumer", "auto"])
async def test_cancelled_at_every_step_it_gets_there(apart: bool, protocol: str) -> None:
    broker = ConsumerCoordinator()
    if protocol == "auto":
        not_advertised(broker)
    async with broker.serve(), joining(broker, apart=apart, group_protocol=protocol) as alone:
        cancelled = 0
        async with asyncio.timeout(LONG_S):
            while not (alone.is_settled and alone.owned):
                call = asyncio.create_task(alone.read(seconds=LONG_S))
                for _ in range(cancelled % 40):  # one more turn of the loop each time
                    await asyncio.sleep(0)
                call.cancel()
                await asyncio.wait([call])
                cancelled += 1
        await settled(alone, owning=2)
        assert alone.events == [Event("assigned", partitions(0, 1))]


@BOTH
async def test_closing_may_be_cancelled_and_leaves_nothing(apart: bool) -> None:
    broker = ConsumerCoordinator()
    async with broker.serve():
        alone = Member(broker.bootstrap, group_protocol="consumer", apart=apart)
        await alone.start()
        await settled(alone, owning=2)
        broker.answers[HEARTBEAT] = SILENT
        closing = asyncio.create_task(alone.group.close(3_600))
        await until(lambda: alone.group.generation_id < 0)
        closing.cancel()
        await asyncio.wait([closing], timeout=LONG_S)
        assert closing.cancelled()

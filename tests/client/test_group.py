"""Members of groups on muster, on their consumer's loop and on a loop of their own."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from muster.client.admin.topics import create_partitions
from muster.client.errors import ClientError, Closed
from muster.client.group.group import State
from muster.client.group.loop_thread import LoopThread
from muster.client.group.outcomes import Committed, StaleOwner
from muster.client.network.cluster import Cluster
from muster.client.network.connection import deadline
from muster.client.partitions import OffsetAndMetadata, TopicPartition
from muster.coordinator import testing
from muster.coordinator.testing import Broker
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.classic_group import LeaveGroupRequest
from tests.client.members import LONG_S, Event, Member, member, partitions, reading, settled
from tests.support.facts import turns, until
from tests.support.leases import TERM_MS, die

COOPERATIVE = ("cooperative-sticky",)
BOTH = pytest.mark.parametrize("apart", [False, True], ids=["loop", "thread"])


def threads() -> int:
    return sum(each.name.startswith("muster group") for each in threading.enumerate())


async def remove(cluster: Cluster, member_id: str) -> None:
    """Remove the member as an administrator does."""
    members = [LeaveGroupRequest.MemberIdentity(member_id=member_id)]
    node = await cluster.coordinator("g", deadline(LONG_S))
    await cluster.call(LeaveGroupRequest(group_id="g", members=members), deadline(LONG_S), node=node)


@BOTH
async def test_a_member_joins_commits_and_leaves(broker: Broker, apart: bool) -> None:
    broker.create_topic("t", 3)
    async with member(broker.bootstrap, apart=apart) as alone:
        await settled(alone)
        assert alone.events == [Event("assigned", partitions("t", 3))]
        assert alone.owned == partitions("t", 3)
        assert (alone.group.state, alone.group.is_leader) == (State.STABLE, True)
        assert broker.group("g").facts == ("Stable", 1)
        result = await alone.commit(7)
        assert result.ok
        assert set(result.values()) == {Committed(7)}
        first, second = TopicPartition("t", 0), TopicPartition("other", 0)
        assert await alone.group.committed([first, second], deadline(LONG_S)) == {
            first: OffsetAndMetadata(7),
            second: None,
        }
        health = alone.group.health()
        assert (health.state, health.generation_id) == (State.STABLE, alone.group.generation_id)
    assert broker.group("g").facts == ("Empty", 0)
    assert threads() == 0


@BOTH
async def test_eager_members_share_and_one_that_leaves_hands_over(broker: Broker, apart: bool) -> None:
    broker.create_topic("t", 4)
    async with member(broker.bootstrap, apart=apart) as first:
        await settled(first)
        async with member(broker.bootstrap, apart=apart) as second:
            await settled(first, second, owning=4)
            assert [len(each.owned) for each in (first, second)] == [2, 2]
            assert first.events[1] == Event("revoked", partitions("t", 4))
            assert second.events == [Event("assigned", second.owned)]
        await reading(first, until=lambda: len(first.owned) == 4)


@BOTH
async def test_cooperative_members_give_up_what_moves_and_nothing_else(broker: Broker, apart: bool) -> None:
    broker.create_topic("t", 4)
    async with (
        member(broker.bootstrap, assignors=COOPERATIVE, apart=apart) as first,
        member(broker.bootstrap, assignors=COOPERATIVE, apart=apart) as second,
    ):
        await settled(first)
        await settled(first, second, owning=4)
        moved = second.owned
        assert len(moved) == 2
        assert [each for each in first.events if each.what == "revoked"] == [Event("revoked", moved)]
        assert first.owned == partitions("t", 4) - moved


@asynccontextmanager
async def woken_for_a_rebalance(broker: Broker, apart: bool) -> AsyncIterator[tuple[Member, Member]]:
    """A member that a heartbeat has told of a rebalance, and the one that joins."""
    broker.create_topic("t", 2)
    async with (
        member(broker.bootstrap, apart=apart) as first,
        member(broker.bootstrap, apart=apart) as second,
    ):
        await settled(first)
        wakes = first.wakes
        await reading(second, until=lambda: first.wakes > wakes)
        yield first, second


@BOTH
async def test_a_rebalance_learned_from_a_heartbeat_wakes_the_consumer(broker: Broker, apart: bool) -> None:
    async with woken_for_a_rebalance(broker, apart) as (first, second):
        assert first.group.rejoin_needed
        assert first.group.generation_id == 1  # it is still in that generation
        await settled(first, second, owning=2)


@BOTH
async def test_the_consumer_is_woken_for_a_loss_after_a_rebalance_it_was_woken_for(
    broker: Broker, cluster: Cluster, apart: bool
) -> None:
    async with woken_for_a_rebalance(broker, apart) as (first, _):
        assert not first.group.lost
        wakes = first.wakes
        await remove(cluster, first.group.member_id)
        await until(lambda: first.wakes > wakes)
        assert first.group.lost


async def test_a_blocked_loop_loses_no_membership_kept_in_a_thread(broker: Broker) -> None:
    broker.create_topic("t")
    async with member(broker.bootstrap, apart=True, heartbeat_interval_ms=50) as alone:
        await settled(alone)
        heard, before_s = 0, 0.0
        end = time.monotonic() + LONG_S
        while heard < 5:  # without a turn of this loop
            assert time.monotonic() < end
            answered_s = alone.group.health().heartbeat_answered_s or 0.0
            heard += answered_s < before_s  # only another answer makes this smaller
            before_s = answered_s
        assert alone.group.state is State.STABLE


@BOTH
async def test_who_asks_for_no_records_leaves_and_has_lost_its_partitions(
    broker: Broker, apart: bool
) -> None:
    broker.create_topic("t", 2)
    async with member(broker.bootstrap, apart=apart, max_poll_interval_ms=4_000) as alone:
        await settled(alone)
        await asyncio.to_thread(broker.wait_for_group, "g", "Empty", timeout_s=LONG_S)
        assert alone.group.lost
        late = await alone.commit(3)
        assert {type(each) for each in late.values()} == {StaleOwner}
        await settled(alone)
        assert alone.events[1:] == [Event("lost", partitions("t", 2)), Event("assigned", partitions("t", 2))]


@BOTH
async def test_who_was_removed_joins_anew(broker: Broker, cluster: Cluster, apart: bool) -> None:
    broker.create_topic("t", 2)
    async with member(broker.bootstrap, apart=apart, assignors=COOPERATIVE) as alone:
        await settled(alone)
        removed = alone.group.member_id
        await remove(cluster, removed)
        await reading(alone, until=lambda: len(alone.events) == 3)
        assert [each.what for each in alone.events] == ["assigned", "lost", "assigned"]
        assert alone.group.member_id not in ("", removed)


async def test_a_commit_learns_of_the_removal_before_a_heartbeat_does(
    broker: Broker, cluster: Cluster
) -> None:
    broker.create_topic("t")
    async with member(broker.bootstrap, heartbeat_interval_ms=40_000) as alone:
        await settled(alone)
        await remove(cluster, alone.group.member_id)
        result = await alone.commit(1)
        (outcome,) = result.values()
        assert isinstance(outcome, StaleOwner)
        assert outcome.why.code is ErrorCode.UNKNOWN_MEMBER_ID
        assert alone.group.lost
        await settled(alone)


# --- joining, interrupted -----------------------------------------------------------------------------------


@BOTH
async def test_joining_goes_on_when_nobody_waits_and_is_taken_up_later(broker: Broker, apart: bool) -> None:
    broker.create_topic("t", 2)
    async with member(broker.bootstrap, apart=apart) as alone:
        waiting = asyncio.create_task(alone.group.join(frozenset(), deadline(LONG_S)))
        while alone.group.state is State.UNJOINED:  # noqa: ASYNC110  # a slower look may come when it has joined
            await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        await until(lambda: alone.group.state is State.STABLE)
        assert alone.group.rejoin_needed
        joined = await alone.group.join(frozenset(), deadline(LONG_S))
        assert joined is not None
        assert joined.assigned == partitions("t", 2)
        assert not alone.group.rejoin_needed
        assert joined.generation_id == 1


@BOTH
async def test_reading_calls_without_time_to_wait_join_all_the_same(broker: Broker, apart: bool) -> None:
    broker.create_topic("t", 2)
    async with member(broker.bootstrap, apart=apart) as alone:
        async with asyncio.timeout(LONG_S):
            while not alone.owned:
                await alone.read(seconds=0.0)
        assert alone.events == [Event("assigned", partitions("t", 2))]


@BOTH
async def test_cancelled_at_every_step_it_gets_there(broker: Broker, apart: bool) -> None:
    broker.create_topic("t", 2)
    async with (
        member(broker.bootstrap, apart=apart) as first,
        member(broker.bootstrap, apart=apart) as second,
    ):
        for each in (first, second):
            cancelled = 0
            async with asyncio.timeout(LONG_S):
                while not (each.is_settled and each.owned):
                    call = asyncio.create_task(each.read(seconds=LONG_S))
                    for _ in range(cancelled % 40):  # a turn of the loop more each time
                        await asyncio.sleep(0)
                    call.cancel()
                    await asyncio.wait([call])
                    cancelled += 1
                    if each is second:
                        await first.read()
        await settled(first, second, owning=2)


async def test_commits_get_through_while_a_join_is_parked(broker: Broker) -> None:
    broker.create_topic("t", 2)
    async with member(broker.bootstrap) as first, member(broker.bootstrap) as second:
        await settled(first)
        await reading(second, until=lambda: first.group.rejoin_needed)
        before = first.owned
        await second.group.leave("to be replaced", deadline(LONG_S))
        second.group.subscribe(frozenset({"t"}))
        await reading(second, until=lambda: broker.group("g").state == "PreparingRebalance")
        # `second` has joined and waits for `first`, which commits before and after what it gives up.
        third = Member(broker.bootstrap)
        await third.start()
        try:
            await reading(third, second, until=lambda: third.group.state is State.PREPARING_REBALANCE)
            assert (await first.commit(1, *before)).ok
        finally:
            await third.group.close(LONG_S)


async def test_closing_while_a_join_is_parked_leaves_at_once() -> None:
    with Broker(group_initial_rebalance_delay_ms=60_000) as slow:
        slow.create_topic("t")
        waiting = Member(slow.bootstrap)
        await waiting.start()
        call = asyncio.create_task(waiting.read(LONG_S))
        await asyncio.to_thread(slow.wait_for_group, "g", "PreparingRebalance", members=1)
        await waiting.group.close(LONG_S)
        # It did not take the minute, and the group does not wait for a member that is gone.
        assert slow.group("g").facts.members == 0
        with pytest.raises(Closed):
            await call


@BOTH
async def test_leaving_is_no_end(broker: Broker, apart: bool) -> None:
    broker.create_topic("t", 2)
    async with member(broker.bootstrap, apart=apart) as alone:
        await settled(alone)
        await alone.group.leave("for a while", deadline(LONG_S))
        assert broker.group("g").facts == ("Empty", 0)
        assert not alone.group.rejoin_needed
        assert (await alone.commit(5)).ok  # as no member, which an empty group accepts
        alone.owned = frozenset()
        alone.group.subscribe(frozenset({"t"}))
        await settled(alone)
        assert broker.group("g").facts == ("Stable", 1)


@BOTH
async def test_who_subscribes_while_it_is_leaving_joins_again(broker: Broker, apart: bool) -> None:
    broker.create_topic("t", 2)
    async with member(broker.bootstrap, apart=apart) as alone:
        await settled(alone)
        with alone.group._lock:  # a thread of the group's own gets no turn before the subscription
            leaving = asyncio.create_task(alone.group.leave("for a moment", deadline(LONG_S)))
            await asyncio.sleep(0)
            alone.owned = frozenset()
            alone.group.subscribe(frozenset({"t"}))
        await leaving
        assert alone.group.rejoin_needed
        await settled(alone, owning=2)
        assert broker.group("g").facts == ("Stable", 1)


@BOTH
async def test_a_subscription_may_change_at_any_time(broker: Broker, apart: bool) -> None:
    broker.create_topic("t", 2)
    broker.create_topic("u", 2)
    async with member(broker.bootstrap, apart=apart, assignors=COOPERATIVE) as alone:
        await settled(alone)
        alone.group.subscribe(frozenset({"u"}))
        await settled(alone)
        assert alone.owned == partitions("u", 2)
        assert alone.events[1:] == [
            Event("revoked", partitions("t", 2)),
            Event("assigned", partitions("u", 2)),
        ]


@BOTH
async def test_the_leader_notices_topics_and_partitions_that_are_new(
    broker: Broker, cluster: Cluster, apart: bool
) -> None:
    options = {"metadata_max_age_ms": 200, "allow_auto_create_topics": False}
    async with member(broker.bootstrap, apart=apart, **options) as alone:
        await settled(alone)
        assert alone.owned == frozenset()
        broker.create_topic("t", 1)
        await reading(alone, until=lambda: len(alone.owned) == 1)
        (await create_partitions(cluster, {"t": 3}, deadline(LONG_S))).raise_for_failures()
        await reading(alone, until=lambda: len(alone.owned) == 3)


# --- without a membership -----------------------------------------------------------------------------------


@BOTH
async def test_committing_for_a_group_without_being_a_member(broker: Broker, apart: bool) -> None:
    broker.create_topic("t", 2)
    async with member(broker.bootstrap, topics=(), apart=apart) as alone:
        assert not alone.group.rejoin_needed
        result = await alone.commit(4, *partitions("t", 2))
        assert result.ok
        told = await alone.group.committed(partitions("t", 2), deadline(LONG_S))
        assert {each and each.offset for each in told.values()} == {4}


async def test_a_group_with_members_takes_no_commits_of_others(broker: Broker) -> None:
    broker.create_topic("t")
    async with member(broker.bootstrap) as inside, member(broker.bootstrap, topics=()) as outside:
        await settled(inside)
        (outcome,) = (await outside.commit(4, *partitions("t", 1))).values()
        assert isinstance(outcome, StaleOwner)
        assert outcome.why.code is ErrorCode.UNKNOWN_MEMBER_ID


# --- static members -----------------------------------------------------------------------------------------


@BOTH
async def test_a_static_member_comes_back_to_what_it_had_without_a_rebalance(
    broker: Broker, apart: bool
) -> None:
    broker.create_topic("t", 4)
    async with member(broker.bootstrap, group_instance_id="b", apart=apart) as other:
        async with member(broker.bootstrap, group_instance_id="a", apart=apart) as first:
            await settled(first, other, owning=4)
            had, generation_id = first.owned, first.group.generation_id
        assert broker.group("g").facts == ("Stable", 2)  # closing told the group nothing
        async with member(broker.bootstrap, group_instance_id="a", apart=apart) as second:
            await reading(second, until=lambda: second.owned)
            assert (second.owned, second.group.generation_id) == (had, generation_id)
        assert not other.group.rejoin_needed


async def test_a_static_member_leaves_when_it_is_told_to(broker: Broker) -> None:
    broker.create_topic("t")
    alone = Member(broker.bootstrap, group_instance_id="a")
    await alone.start()
    await settled(alone)
    await alone.group.close(LONG_S, leave=True)
    assert broker.group("g").facts.members == 0


async def test_a_dynamic_member_stays_when_it_is_told_to(broker: Broker) -> None:
    broker.create_topic("t")
    alone = Member(broker.bootstrap)
    await alone.start()
    await settled(alone)
    await alone.group.close(LONG_S, leave=False)
    assert broker.group("g").facts.members == 1


@BOTH
async def test_whose_instance_id_was_taken_over_is_told_and_stops(broker: Broker, apart: bool) -> None:
    broker.create_topic("t")
    async with member(broker.bootstrap, group_instance_id="a", apart=apart) as first:
        await settled(first)
        async with member(broker.bootstrap, group_instance_id="a", apart=apart) as second:
            await settled(second)
            with pytest.raises(KafkaError, match="instance id a"):
                await reading(first, until=lambda: False)
            for _ in range(3):
                with pytest.raises(KafkaError) as refused:
                    await first.group.join(frozenset(), deadline(LONG_S))
                assert refused.value.code is ErrorCode.FENCED_INSTANCE_ID
            assert (await second.commit(1)).ok


# --- what cannot pass ---------------------------------------------------------------------------------------


@BOTH
async def test_what_the_coordinator_refuses_for_good_is_raised_by_each_join(
    broker: Broker, apart: bool
) -> None:
    broker.create_topic("t")
    options = {"session_timeout_ms": 2, "heartbeat_interval_ms": 1}
    async with member(broker.bootstrap, apart=apart, **options) as alone:
        for _ in range(2):
            with pytest.raises(KafkaError) as refused:
                await alone.read(LONG_S)
            assert refused.value.code is ErrorCode.INVALID_SESSION_TIMEOUT


async def test_members_without_an_assignor_in_common_do_not_meet(broker: Broker) -> None:
    broker.create_topic("t")
    async with (
        member(broker.bootstrap, assignors=("range",)) as first,
        member(broker.bootstrap, assignors=("roundrobin",)) as second,
    ):
        await settled(first)
        with pytest.raises(KafkaError) as refused:
            await second.read(LONG_S)
        assert refused.value.code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


# --- death --------------------------------------------------------------------------------------------------


@BOTH
async def test_a_membership_survives_the_death_of_its_coordinator(apart: bool) -> None:
    with testing.Cluster(3, lease_term_ms=TERM_MS) as brokers:
        brokers.create_topic("t", 6)
        async with member(brokers.bootstrap, apart=apart) as alone:
            await settled(alone)
            # A broker that dies at the very moment it accepts a connection leaves it open (asyncio's
            # Server.close does): by its first heartbeat the member has all it needs.
            await reading(alone, until=lambda: alone.group.health().heartbeat_answered_s is not None)
            before = alone.group.member_id, alone.group.generation_id
            index = brokers.coordinator_of("g")
            assert index is not None
            die(brokers, index)
            assert (await alone.commit(9)).ok
            assert (alone.group.member_id, alone.group.generation_id) == before
            assert not alone.group.rejoin_needed


async def test_a_join_that_was_parked_at_a_coordinator_that_dies_goes_to_the_next() -> None:
    with testing.Cluster(3, lease_term_ms=TERM_MS, group_initial_rebalance_delay_ms=60_000) as brokers:
        brokers.create_topic("t", 6)

        def has_joined() -> bool:
            with suppress(KafkaError):  # no broker coordinates it yet
                return brokers.group("g").facts.members == 1
            return False

        async with member(brokers.bootstrap) as alone:
            await reading(alone, until=has_joined)
            assert alone.group.state is State.PREPARING_REBALANCE
            index = brokers.coordinator_of("g")
            assert index is not None
            die(brokers, index)
            await reading(alone, until=has_joined)
            brokers.clock.advance(60)
            await reading(alone, until=lambda: len(alone.owned) == 6)


# --- beginning and end --------------------------------------------------------------------------------------


@BOTH
async def test_closing_is_harmless_at_any_time_and_leaves_nothing(broker: Broker, apart: bool) -> None:
    never_started = Member(broker.bootstrap, apart=apart)
    await never_started.group.close()
    for count in range(0, 60, 7):
        each = Member(broker.bootstrap, apart=apart)
        await each.start()
        call = asyncio.create_task(each.read(LONG_S))
        for _ in range(count):
            await asyncio.sleep(0)
        await asyncio.gather(each.group.close(LONG_S), each.group.close(LONG_S))
        await asyncio.wait([call], timeout=LONG_S)
        assert call.done()
        call.exception()
        with pytest.raises(Closed):
            await each.commit(1, *partitions("t", 1))
    assert threads() == 0
    # A broker that stops at the very moment it accepts a connection would leave it open (asyncio's
    # Server.close does): so let it first answer one that comes after all these.
    async with member(broker.bootstrap) as last:
        await settled(last)


@BOTH
async def test_closing_may_be_cancelled_and_leaves_nothing(apart: bool) -> None:
    with Broker() as broker:
        broker.create_topic("t")
        alone = Member(broker.bootstrap, apart=apart)
        await alone.start()
        await settled(alone)
        broker.kill(0)  # nobody to say goodbye to
        closing = asyncio.create_task(alone.group.close(3_600))
        await until(lambda: alone.group.member_id == "")
        closing.cancel()
        await asyncio.wait([closing], timeout=LONG_S)
        assert closing.cancelled()
    assert threads() == 0


@BOTH
async def test_closing_takes_no_longer_than_it_may(apart: bool) -> None:
    with Broker() as broker:
        broker.create_topic("t")
        alone = Member(broker.bootstrap, apart=apart)
        await alone.start()
        await settled(alone)
        broker.kill(0)
        async with asyncio.timeout(LONG_S):
            await alone.group.close(0.5)
    assert threads() == 0


async def test_a_start_that_is_cancelled_leaves_no_thread(broker: Broker) -> None:
    for count in range(4):
        each = Member(broker.bootstrap, apart=True)
        starting = asyncio.create_task(each.start())
        for _ in range(count):
            await asyncio.sleep(0)
        starting.cancel()
        await asyncio.wait([starting])
        await each.group.close(LONG_S)
    await until(lambda: threads() == 0)


async def test_a_thread_that_is_stopped_before_it_has_come_up_ends() -> None:
    come_up = threading.Event()

    class Late(LoopThread):
        def _work(self) -> None:
            come_up.wait(LONG_S)
            super()._work()

    late = Late("muster group late")
    starting = asyncio.create_task(late.start())
    await until(threads)
    stopping = asyncio.create_task(late.stop())
    await turns()
    come_up.set()
    await asyncio.wait([starting, stopping])
    assert threads() == 0


async def test_a_group_is_started_once(broker: Broker) -> None:
    async with member(broker.bootstrap) as alone:
        with pytest.raises(ClientError, match="once"):
            await alone.group.start()

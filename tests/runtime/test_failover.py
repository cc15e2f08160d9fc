"""Brokers that share a store: a shard moves with its groups, and no group notices more than a reconnect."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import pytest

from muster.coordinator.base.clock import ManualClock, PausableClock
from muster.coordinator.base.step import RequestContext
from muster.coordinator.cluster.membership import Membership
from muster.coordinator.cluster.placement import place, shard_of
from muster.coordinator.group.config import GroupConfig
from muster.coordinator.group.offsets import FetchOffsets
from muster.coordinator.group.shard import Shard
from muster.coordinator.runtime.groups import GroupRuntime
from muster.coordinator.server.pausing import PausableStore
from muster.coordinator.storage.store import LeaseKind, NodeRow
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.classic_group import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from muster.protocol.messages.offsets import OffsetCommitRequest
from tests.runtime.support import HeldStore
from tests.support.facts import turns, until

TERM_MS = 3_000
GROUPS = [f"group-{number}" for number in range(60)]
CONFIG = GroupConfig(group_initial_rebalance_delay_ms=0)
OK = ErrorCode.NONE


def context(api_version: int) -> RequestContext:
    return RequestContext(api_version, "client", "/127.0.0.1", 1)


class Broker:
    """Membership and runtime of one node, without a network."""

    def __init__(self, node_id: int, store: HeldStore, clock: ManualClock) -> None:
        self.node_id = node_id
        self.clock = PausableClock(clock)
        self.store = PausableStore(store)
        self.membership = Membership(self.store.as_store(), self.clock, term_ms=TERM_MS)
        self.runtime = GroupRuntime(self.store.as_store(), self.clock, self.membership, CONFIG)

    async def start(self) -> None:
        await self.membership.start(
            NodeRow(self.node_id, "127.0.0.1", 9091 + self.node_id, None, 0, uuid4()),
            {LeaseKind.GROUP: self.runtime},
        )
        await self.runtime.loaded()

    def kill(self) -> None:
        self.membership.kill()
        self.runtime.kill()

    async def stop(self) -> None:
        await self.membership.stop()
        await self.runtime.close()

    def pause(self) -> None:
        self.clock.pause()
        self.store.pause()

    def resume(self) -> None:
        self.clock.resume()
        self.store.resume()

    def shards(self) -> set[int]:
        return {status.number for status in self.runtime.shards() if status.state == "active"}


class Cluster:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = HeldStore(now_ms=self.clock.now_ms)
        self.brokers: dict[int, Broker] = {}
        self.live: list[int] = []

    async def start(self, *node_ids: int) -> None:
        for node_id in node_ids:
            self.brokers[node_id] = Broker(node_id, self.store, self.clock)
            await self.brokers[node_id].start()
        await self.placed(*self.brokers)

    def is_placed(self, *live: int) -> bool:
        """Whether every broker serves its shards and knows the coordinator of every group."""
        brokers = [self.brokers[node_id] for node_id in live]
        return all(broker.shards() == share(broker.node_id, *live) for broker in brokers) and all(
            broker.membership.topology.coordinator(group_id) is not None
            for broker in brokers
            for group_id in GROUPS
        )

    async def placed(self, *live: int) -> None:
        self.live = list(live)
        await until(lambda: self.is_placed(*live), "the placement")

    async def passes(self, ms: int) -> None:
        for _ in range(ms // 100):
            self.clock.advance(100)
            await turns(20)

    def coordinator(self, group_id: str) -> Broker:
        """The broker that FindCoordinator names, on any live broker."""
        node = self.brokers[self.live[0]].membership.topology.coordinator(group_id)
        assert node is not None
        return self.brokers[node.node_id]

    async def call(self, group_id: str, operation: Any, request: Any, api_version: int = 3) -> Any:
        return await self.coordinator(group_id).runtime.call(
            group_id, operation, request, context(api_version)
        )


class Consumer:
    """The only member of its group, and what it remembers."""

    def __init__(self, cluster: Cluster, group_id: str) -> None:
        self.cluster = cluster
        self.group_id = group_id
        self.member_id = ""
        self.generation_id = -1
        self.assignment = f"assignment of {group_id}".encode()

    async def join(self) -> None:
        joined = await self.cluster.call(
            self.group_id,
            Shard.join,
            JoinGroupRequest(
                group_id=self.group_id,
                session_timeout_ms=10_000,
                rebalance_timeout_ms=10_000,
                member_id="",
                protocol_type="consumer",
                protocols=[JoinGroupRequest.Protocol(name="range", metadata=b"")],
            ),
        )
        assert isinstance(joined, JoinGroupResponse)
        self.member_id, self.generation_id = joined.member_id, joined.generation_id
        assert await self.sync() == self.assignment

    async def sync(self) -> bytes:
        synced = await self.cluster.call(
            self.group_id,
            Shard.sync,
            SyncGroupRequest(
                group_id=self.group_id,
                generation_id=self.generation_id,
                member_id=self.member_id,
                assignments=[
                    SyncGroupRequest.Assignment(member_id=self.member_id, assignment=self.assignment)
                ],
            ),
        )
        assert isinstance(synced, SyncGroupResponse)
        assert synced.error_code == OK
        return synced.assignment

    async def commit(self, offset: int) -> None:
        await self.cluster.call(
            self.group_id,
            Shard.commit_offsets,
            OffsetCommitRequest(
                group_id=self.group_id,
                generation_id_or_member_epoch=self.generation_id,
                member_id=self.member_id,
                topics=[
                    OffsetCommitRequest.Topic(
                        name="t",
                        partitions=[
                            OffsetCommitRequest.Partition(
                                partition_index=0, committed_offset=offset, committed_metadata=""
                            )
                        ],
                    )
                ],
            ),
        )

    async def committed(self) -> int:
        fetched = await self.cluster.call(
            self.group_id, Shard.fetch_offsets, FetchOffsets(self.group_id, None, False, None, -1)
        )
        offset: int = fetched.topics[0].partitions[0].committed_offset
        return offset

    async def heartbeat(self, broker: Broker | None = None) -> int:
        """Send a heartbeat and return the error code."""
        request = HeartbeatRequest(
            group_id=self.group_id, generation_id=self.generation_id, member_id=self.member_id
        )
        broker = broker or self.cluster.coordinator(self.group_id)
        try:
            answer = await broker.runtime.call(self.group_id, Shard.heartbeat, request, context(3))
        except KafkaError as refusal:
            return refusal.code
        assert isinstance(answer, HeartbeatResponse)
        return answer.error_code


def share(node_id: int, *live: int) -> set[int]:
    return {number for number in range(50) if place(LeaseKind.GROUP.value, number, live) == node_id}


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    cluster = Cluster()
    await cluster.store.open()
    yield cluster
    for broker in cluster.brokers.values():
        broker.kill()
    await turns()


@pytest.fixture
async def consumers(cluster: Cluster) -> list[Consumer]:
    """One consumer in each group, all Stable with a committed offset, on three brokers."""
    await cluster.start(1, 2, 3)
    consumers = [Consumer(cluster, group_id) for group_id in GROUPS]
    for number, consumer in enumerate(consumers):
        await consumer.join()
        await consumer.commit(number)
    return consumers


async def goes_on(consumers: list[Consumer]) -> None:
    """Every member is where it was: same generation, same assignment, same offsets, no rebalance."""
    for number, consumer in enumerate(consumers):
        assert await consumer.heartbeat() == OK
        assert await consumer.sync() == consumer.assignment
        assert await consumer.committed() == number


async def test_after_a_death_members_find_their_generation_and_assignment(
    cluster: Cluster, consumers: list[Consumer]
) -> None:
    cluster.brokers[2].kill()
    await cluster.passes(TERM_MS + 200)
    await cluster.placed(1, 3)
    await goes_on(consumers)


async def test_a_death_moves_no_shard_but_the_dead_brokers(
    cluster: Cluster, consumers: list[Consumer]
) -> None:
    def epochs() -> dict[int, int]:
        return {
            status.number: status.epoch
            for broker in (cluster.brokers[1], cluster.brokers[3])
            for status in broker.runtime.shards()
        }

    before = epochs()
    cluster.brokers[2].kill()
    await cluster.passes(TERM_MS + 200)
    await cluster.placed(1, 3)
    assert {number: epochs()[number] for number in before} == before
    assert epochs().keys() - before.keys() == share(2, 1, 2, 3)


async def test_members_that_stay_silent_get_a_full_session_at_the_new_coordinator(
    cluster: Cluster, consumers: list[Consumer]
) -> None:
    moved = next(consumer for consumer in consumers if shard_of(consumer.group_id) in share(2, 1, 2, 3))
    await cluster.passes(9_000)
    assert await moved.heartbeat() == OK
    await cluster.passes(8_000)
    cluster.brokers[2].kill()
    await cluster.passes(TERM_MS + 200)
    await cluster.placed(1, 3)
    assert (
        await moved.heartbeat() == OK
    )  # 11.2 s after the last one: the old coordinator would have dropped it.
    await cluster.passes(11_000)
    assert await moved.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID


async def test_a_broker_that_stops_hands_over_at_once(cluster: Cluster, consumers: list[Consumer]) -> None:
    stopping = asyncio.ensure_future(cluster.brokers[3].stop())
    await cluster.placed(1, 2)
    await stopping
    await goes_on(consumers)
    assert {await consumer.heartbeat(cluster.brokers[3]) for consumer in consumers} == {
        ErrorCode.NOT_COORDINATOR
    }


async def test_a_broker_that_comes_takes_over_its_share_at_once(
    cluster: Cluster, consumers: list[Consumer]
) -> None:
    await cluster.start(4)
    await goes_on(consumers)
    assert cluster.brokers[4].shards()


async def test_a_paused_broker_that_wakes_up_answers_and_writes_nothing(
    cluster: Cluster, consumers: list[Consumer]
) -> None:
    paused = cluster.brokers[2]
    theirs = [consumer for consumer in consumers if shard_of(consumer.group_id) in share(2, 1, 2, 3)]
    held = {(status.number, status.epoch) for status in paused.runtime.shards()}
    paused.pause()
    await cluster.passes(TERM_MS + 200)
    await cluster.placed(1, 3)
    await goes_on(consumers)
    cluster.store.transactions.clear()
    # Requests it had read before it was paused, processed before anything else can run.
    answers = [asyncio.ensure_future(consumer.heartbeat(paused)) for consumer in theirs]
    assert {await answer for answer in answers} == {ErrorCode.NOT_COORDINATOR}
    await cluster.passes(20_000 - TERM_MS)  # As far as it knows, its members' sessions have expired.
    paused.resume()
    assert {await consumer.heartbeat(paused) for consumer in theirs[:1]} == {ErrorCode.NOT_COORDINATOR}
    written = {
        (append.lease.number, append.epoch) for appends in cluster.store.transactions for append in appends
    }
    assert written  # by the current holders of the shards
    assert not written & held


async def test_a_broker_that_was_paused_comes_back_into_its_share(
    cluster: Cluster, consumers: list[Consumer]
) -> None:
    paused = cluster.brokers[2]
    paused.pause()
    await cluster.passes(TERM_MS + 200)
    await cluster.placed(1, 3)
    paused.resume()
    await cluster.placed(1, 2, 3)
    await goes_on(consumers)


async def test_a_write_that_a_takeover_overtakes_is_refused_and_leaves_no_trace(
    cluster: Cluster, consumers: list[Consumer]
) -> None:
    consumer = next(each for each in consumers if shard_of(each.group_id) in share(2, 1, 2, 3))
    before = await consumer.committed()
    cluster.store.hold()
    commit = asyncio.ensure_future(consumer.commit(1_000))
    await turns()
    cluster.brokers[2].pause()
    await cluster.passes(TERM_MS + 200)
    await cluster.placed(1, 3)
    cluster.store.let_go()
    await turns()
    cluster.brokers[2].resume()
    await until(commit.done)
    assert isinstance(commit.exception(), KafkaError)
    await cluster.placed(1, 2, 3)
    assert await consumer.committed() == before


async def test_a_shard_that_broke_comes_back_with_its_groups(
    cluster: Cluster, consumers: list[Consumer]
) -> None:
    def explode(shard: Shard, *_: object) -> None:
        shard.groups.clear()
        raise ZeroDivisionError("a bug")

    with pytest.raises(KafkaError) as refusal:
        await cluster.call("group-7", explode, None)
    assert refusal.value.code == ErrorCode.NOT_COORDINATOR
    await cluster.passes(200)
    await cluster.placed(1, 2, 3)
    await goes_on(consumers)

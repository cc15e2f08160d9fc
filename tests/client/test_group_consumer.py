"""Members of a group: they share topics, hand over where they were, and come back after what breaks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from muster.client import admin
from muster.client.cluster import Cluster, parse_bootstrap
from muster.client.connection import deadline
from muster.client.fetcher import Fetched
from muster.client.group_consumer import GroupConsumer
from muster.client.membership import Membership
from muster.client.partitions import TopicPartition
from muster.client.producer import Outgoing, Producer
from muster.coordinator import testing
from muster.coordinator.testing import Broker
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.classic_group import LeaveGroupRequest

LONG_S = 90.0
_BETWEEN_QUESTIONS_S = 0.02


class Reader:
    """A consumer that reads on in a task of its own, and what it has seen."""

    def __init__(self, cluster: Cluster, group_id: str, topics: list[str], **options: Any) -> None:
        timings = {name: options.pop(name) for name in ("max_poll_interval_ms",) if name in options}
        self.assignments: list[frozenset[TopicPartition]] = []
        self.seen: list[Fetched] = []
        self.membership = Membership(group_id, topics, heartbeat_interval_ms=200, **timings)
        self.consumer = GroupConsumer(
            cluster,
            self.membership,
            reset=admin.EARLIEST,
            patience_s=LONG_S,
            on_assigned=self.assignments.append,
            **options,
        )
        self.reading = True
        self._task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        while True:
            if self.reading:
                self.seen += await self.consumer.poll(0.02)
            else:
                await asyncio.sleep(_BETWEEN_QUESTIONS_S)

    async def until(self, fact: Callable[[], object]) -> None:
        """Wait for a fact, or for what ended the reading."""
        async with asyncio.timeout(LONG_S):
            while not fact():
                if self._task.done():
                    self._task.result()
                await asyncio.sleep(_BETWEEN_QUESTIONS_S)

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])
        await self.consumer.close()


@asynccontextmanager
async def reader(bootstrap: str, group_id: str, *topics: str, **options: Any) -> AsyncIterator[Reader]:
    async with Cluster(parse_bootstrap(bootstrap)) as cluster:
        made = Reader(cluster, group_id, list(topics), **options)
        try:
            yield made
        finally:
            await made.stop()


async def send(cluster: Cluster, topic: str, first: int, last: int, partitions: int) -> None:
    records = [Outgoing(None, b"%d" % each, (), each % partitions) for each in range(first, last)]
    await Producer(cluster).send(topic, records, deadline(LONG_S))


async def committed(cluster: Cluster, group_id: str) -> int:
    """Of all partitions together."""
    offsets = await admin.committed_offsets(cluster, group_id, deadline(LONG_S))
    return sum(each.offset for each in offsets.values())


async def until_committed(cluster: Cluster, group_id: str, offsets: int) -> None:
    async with asyncio.timeout(LONG_S):
        while True:
            if await committed(cluster, group_id) == offsets:
                return
            await asyncio.sleep(_BETWEEN_QUESTIONS_S)


def partitions(topic: str, count: int) -> set[TopicPartition]:
    return {TopicPartition(topic, each) for each in range(count)}


async def test_a_member_reads_everything_commits_it_and_leaves(broker: Broker, cluster: Cluster) -> None:
    broker.create_topic("t", 3)
    await send(cluster, "t", 0, 30, 3)
    async with reader(broker.bootstrap, "g", "t") as alone:
        await alone.until(lambda: len(alone.seen) == 30)
        assert alone.assignments == [partitions("t", 3)]
        assert broker.group("g") == ("Stable", 1)
        alone.reading = False
        alone.consumer.handled(alone.seen)
    assert broker.group("g") == ("Empty", 0)
    assert await committed(cluster, "g") == 30
    await send(cluster, "t", 30, 33, 3)
    async with reader(broker.bootstrap, "g", "t") as next_one:
        await next_one.until(lambda: len(next_one.seen) == 3)
        assert sorted(int(each.value or b"") for each in next_one.seen) == [30, 31, 32]


async def test_only_what_was_handled_is_committed(broker: Broker, cluster: Cluster) -> None:
    broker.create_topic("t")
    await send(cluster, "t", 0, 10, 1)
    consumer = GroupConsumer(cluster, Membership("g", ["t"]), reset=admin.EARLIEST, patience_s=LONG_S)
    seen: list[Fetched] = []
    while not seen:
        seen = await consumer.poll()
    assert len(seen) == 10
    consumer.handled(seen[:4])
    assert await consumer.close()
    assert await committed(cluster, "g") == 4


async def test_closing_says_when_it_could_not_commit() -> None:
    with Broker() as broker:
        broker.create_topic("t")
        async with Cluster(parse_bootstrap(broker.bootstrap)) as cluster:
            await send(cluster, "t", 0, 1, 1)
            consumer = GroupConsumer(cluster, Membership("g", ["t"]), reset=admin.EARLIEST, patience_s=LONG_S)
            seen: list[Fetched] = []
            while not seen:
                seen = await consumer.poll()
            consumer.handled(seen)
            broker.kill(0)
            assert not await consumer.close()


async def test_closing_in_a_rebalance_commits_what_was_handled(broker: Broker, cluster: Cluster) -> None:
    broker.create_topic("t")
    await send(cluster, "t", 0, 10, 1)
    async with reader(broker.bootstrap, "g", "t") as first:
        await first.until(lambda: len(first.seen) == 10)
        first.reading = False
        first.consumer.handled(first.seen)
        async with reader(broker.bootstrap, "g", "t"):  # it joins, and waits for the first one
            await first.until(lambda: first.membership.state.name == "UNJOINED")
            await first.stop()
            assert await committed(cluster, "g") == 10


async def test_offsets_are_committed_now_and_then(broker: Broker, cluster: Cluster) -> None:
    broker.create_topic("t")
    await send(cluster, "t", 0, 10, 1)
    async with reader(broker.bootstrap, "g", "t", commit_interval_s=0.0) as alone:
        await alone.until(lambda: len(alone.seen) == 10)
        await until_committed(cluster, "g", 10)


async def test_members_share_and_one_that_leaves_hands_over(broker: Broker, cluster: Cluster) -> None:
    broker.create_topic("t", 4)
    await send(cluster, "t", 0, 100, 4)
    async with reader(broker.bootstrap, "g", "t") as first:
        await first.until(lambda: len(first.seen) == 100)
        async with reader(broker.bootstrap, "g", "t") as second:
            await second.until(lambda: second.assignments and len(first.assignments) > 1)
            shares = [first.assignments[-1], second.assignments[-1]]
            assert [len(share) for share in shares] == [2, 2]
            assert shares[0] | shares[1] == partitions("t", 4)
            await send(cluster, "t", 100, 200, 4)
            await second.until(lambda: len(first.seen) + len(second.seen) >= 200)
        await first.until(lambda: first.assignments[-1] == partitions("t", 4))
        await send(cluster, "t", 200, 240, 4)
        await first.until(lambda: len(first.seen) + len(second.seen) >= 240)
    # What was handled before a rebalance was committed before it, so nothing came twice.
    values = sorted(int(each.value or b"") for each in first.seen + second.seen)
    assert values == list(range(240))


async def test_members_of_different_topics_get_their_own(broker: Broker) -> None:
    broker.create_topic("t", 2)
    broker.create_topic("u", 2)
    async with (
        reader(broker.bootstrap, "g", "t") as first,
        reader(broker.bootstrap, "g", "t", "u") as second,
    ):
        await first.until(lambda: first.assignments and len(first.assignments[-1]) == 1)
        await second.until(lambda: second.assignments and len(second.assignments[-1]) == 3)
        assert first.assignments[-1] | second.assignments[-1] == partitions("t", 2) | partitions("u", 2)


async def test_who_is_removed_by_an_administrator_joins_anew(broker: Broker, cluster: Cluster) -> None:
    broker.create_topic("t")
    async with reader(broker.bootstrap, "g", "t") as alone:
        await alone.until(lambda: alone.assignments)
        removed = alone.membership.member_id
        member = LeaveGroupRequest.MemberIdentity(member_id=removed)
        await cluster.call(LeaveGroupRequest(group_id="g", members=[member]), deadline(LONG_S))
        await alone.until(lambda: len(alone.assignments) == 2)
        assert alone.membership.member_id != removed


async def test_who_does_not_poll_leaves_and_comes_back_with_the_next_poll(broker: Broker) -> None:
    broker.create_topic("t")
    async with reader(broker.bootstrap, "g", "t", max_poll_interval_ms=1_500) as alone:
        await alone.until(lambda: alone.assignments)
        alone.reading = False
        await asyncio.to_thread(broker.wait_for_group, "g", "Empty", timeout_s=LONG_S)
        alone.reading = True
        await alone.until(lambda: len(alone.assignments) == 2)


async def test_heartbeats_go_on_while_records_are_being_handled(broker: Broker) -> None:
    broker.create_topic("t")
    async with reader(broker.bootstrap, "g", "t") as alone:
        await alone.until(lambda: alone.assignments)
        alone.reading = False
        # A member that joins makes a rebalance, which a heartbeat hears of without any poll.
        generation = alone.membership.generation_id
        async with reader(broker.bootstrap, "g", "t") as other:
            await alone.until(lambda: alone.membership.state.name == "UNJOINED")
            alone.reading = True
            await other.until(lambda: other.assignments)
            assert other.membership.generation_id > generation


async def test_the_leader_notices_new_partitions(broker: Broker, cluster: Cluster) -> None:
    broker.create_topic("t")
    async with reader(broker.bootstrap, "g", "t", metadata_max_age_s=0.0) as alone:
        await alone.until(lambda: alone.assignments)
        await admin.create_partitions(cluster, "t", 3, deadline(LONG_S))
        await alone.until(lambda: alone.assignments[-1] == partitions("t", 3))


async def test_a_group_survives_the_death_of_its_coordinator() -> None:
    with testing.Cluster(3) as brokers:
        brokers.create_topic("t", 6)
        async with Cluster(parse_bootstrap(brokers.bootstrap)) as cluster:
            await send(cluster, "t", 0, 60, 6)
            async with reader(brokers.bootstrap, "g", "t", commit_interval_s=0.0) as alone:
                await alone.until(lambda: len(alone.seen) >= 60)
                index = brokers.coordinator_of("g")
                assert index is not None
                brokers.kill(index)
                await send(cluster, "t", 60, 120, 6)
                await alone.until(lambda: len({each.value for each in alone.seen}) == 120)
                await until_committed(cluster, "g", 120)


async def test_what_cannot_be_helped_is_raised(broker: Broker, cluster: Cluster) -> None:
    broker.create_topic("t")
    for topic, group_id, session_ms, code in (
        ("nope", "g", 45_000, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("t", "", 45_000, ErrorCode.INVALID_GROUP_ID),
        ("t", "g", 1, ErrorCode.INVALID_SESSION_TIMEOUT),
    ):
        membership = Membership(group_id, [topic], session_timeout_ms=session_ms)
        consumer = GroupConsumer(cluster, membership, reset=admin.LATEST, patience_s=LONG_S)
        with pytest.raises(KafkaError) as refused:
            await consumer.poll()
        assert refused.value.code is code
        await consumer.close()


async def test_leaving_while_still_joining(cluster: Cluster) -> None:
    with Broker(group_initial_rebalance_delay_ms=60_000) as slow:
        slow.create_topic("t")
        async with reader(slow.bootstrap, "g", "t") as waiting:
            await waiting.until(lambda: waiting.membership.member_id)
            await asyncio.to_thread(slow.wait_for_group, "g", "PreparingRebalance", members=1)
        # It did not take the minute, and the group does not wait for who is gone.
        assert slow.group("g").members == 0

"""What a stream commits to a group, and what happens if it cannot."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from muster.client import Consumer, TopicPartition
from muster.coordinator.testing import Broker
from muster.pipeline.asking import BlockingCluster
from muster.pipeline.commits import Commits
from muster.pipeline.errors import PipelineError
from tests.pipeline.logs import administered, committed, fill, options

ZERO, ONE = TopicPartition("orders", 0), TopicPartition("orders", 1)


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def cluster(broker: Broker) -> Iterator[BlockingCluster]:
    fill(broker, "orders", 5, 5)
    connected = BlockingCluster(options(broker, subscribe="orders"))
    yield connected
    connected.close()


def test_a_group_without_members_is_committed_to(broker: Broker, cluster: BlockingCluster) -> None:
    commits = Commits("billing")
    commits.commit(cluster, {ZERO: 0, ONE: 0})
    assert committed(broker, "billing") == {ZERO: 0, ONE: 0}
    commits.commit(cluster, {ZERO: 3, ONE: 5})
    assert committed(broker, "billing") == {ZERO: 3, ONE: 5}
    assert broker.group_state("billing") == "Empty"


def test_what_stands_is_committed_again_now_and_then(broker: Broker, cluster: BlockingCluster) -> None:
    clock = Clock()
    commits = Commits("billing", clock)
    commits.commit(cluster, {ZERO: 3})
    administered(broker, lambda admin: admin.delete_groups(["billing"]))
    clock.now_s += 599
    commits.commit(cluster, {ZERO: 3})
    assert committed(broker, "billing") == {}
    clock.now_s += 1
    commits.commit(cluster, {ZERO: 3})
    assert committed(broker, "billing") == {ZERO: 3}


def test_commits_of_someone_else_are_told_and_committed_over(
    broker: Broker, cluster: BlockingCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """A stream that starts on a group with offsets reports nothing: they may be its starting point."""

    def others() -> int:
        return caplog.text.count("someone else commits to it too")

    administered(broker, lambda admin: admin.alter_group_offsets("billing", {ZERO: 1, ONE: 1}))
    clock = Clock()
    commits = Commits("billing", clock)
    commits.commit(cluster, {ZERO: 2, ONE: 1})
    commits.commit(cluster, {ZERO: 3, ONE: 1})
    assert others() == 0
    administered(broker, lambda admin: admin.alter_group_offsets("billing", {ZERO: 1, ONE: 4}))
    commits.commit(cluster, {ZERO: 4, ONE: 1})
    assert "(orders-0 at 1 instead of 3, orders-1 at 4 instead of 1)" in caplog.text
    assert committed(broker, "billing") == {ZERO: 4, ONE: 1}
    # If the other keeps committing, it is reported again, but not with every batch.
    for later_s, told in ((1, 1), (600, 2)):
        clock.now_s += later_s
        administered(broker, lambda admin: admin.alter_group_offsets("billing", {ZERO: 1}))
        commits.commit(cluster, {ZERO: 4 + told, ONE: 1})
        assert others() == told


def test_nothing_is_no_commit(broker: Broker, cluster: BlockingCluster) -> None:
    Commits("billing").commit(cluster, {})
    assert broker.group_state("billing") == "Dead"


async def test_a_group_with_members_is_refused_at_once_and_told_of_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Broker(lease_term_ms=60_000) as broker:
        await broker.create_topic("orders", 2)

        def commit(commits: Commits, offset: int) -> None:
            cluster = BlockingCluster(options(broker, subscribe="orders"))
            try:
                commits.commit(cluster, {ZERO: offset})
            finally:
                cluster.close()

        clock = Clock()
        early, late = Commits("billing", clock), Commits("billing", clock)
        await asyncio.to_thread(commit, early, 1)
        async with Consumer(broker.bootstrap, group_id="billing", topics=["orders"]) as consumer:
            reading = asyncio.create_task(anext(aiter(consumer)))
            await broker.wait_for_group("billing", members=1)
            with pytest.raises(
                PipelineError, match=r"group billing: .* has active members.*commitOffsets=false"
            ):
                await asyncio.to_thread(commit, late, 2)
            await asyncio.to_thread(commit, early, 2)
            assert "has active members" in caplog.text
            reading.cancel()
            await asyncio.wait([reading])
        await broker.wait_for_group("billing", "Empty")
        clock.now_s += 30
        await asyncio.to_thread(commit, early, 2)
        offsets = await asyncio.to_thread(committed, broker.blocking, "billing")
        assert offsets[ZERO] == 2


def test_a_coordinator_that_does_not_answer_is_left_alone_for_a_while(
    broker: Broker, cluster: BlockingCluster, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    commits = Commits("billing", clock)
    with broker.faults.add(api="OffsetCommit", error="COORDINATOR_NOT_AVAILABLE", times=None) as fault:
        commits.commit(cluster, {ZERO: 3})
        assert "group billing: what was read could not be committed" in caplog.text
        fired = fault.fired
        assert fired
        commits.commit(cluster, {ZERO: 4})
        assert fault.fired == fired
    commits.commit(cluster, {ZERO: 4})
    assert committed(broker, "billing") == {}
    commits.commit(cluster, {ZERO: 4}, is_last=True)
    assert committed(broker, "billing") == {ZERO: 4}
    commits.commit(cluster, {ZERO: 5})
    assert committed(broker, "billing") == {ZERO: 4}
    clock.now_s += 30
    commits.commit(cluster, {ZERO: 5})
    assert committed(broker, "billing") == {ZERO: 5}

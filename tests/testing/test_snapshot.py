"""`snapshot` and `restore`: state that tests share is reset."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from threading import Event

import pytest

from muster.client import Admin, Consumer, Producer, TopicPartition
from muster.coordinator.base.log import Logger
from muster.coordinator.cluster import membership
from muster.coordinator.server.broker import Broker as Node
from muster.coordinator.server.shards import DataShards
from muster.coordinator.storage.store import LeaseKind, NodeRow
from muster.coordinator.testing import AsyncBroker, AsyncCluster, Broker, Cluster, snapshot
from muster.coordinator.testing.core import all_loaded
from muster.protocol.errors import KafkaError
from tests.support.facts import DEADLINE_S, turns, until
from tests.support.leases import TERM_MS
from tests.testing.test_groups import reading

GROUP = "billing"
FIRST = TopicPartition("orders", 0)


@pytest.fixture(params=[1, 3])
async def cluster(request: pytest.FixtureRequest) -> AsyncIterator[AsyncCluster]:
    async with Broker() if request.param == 1 else Cluster(request.param, lease_term_ms=TERM_MS) as running:
        yield running


@pytest.fixture
async def broker() -> AsyncIterator[AsyncBroker]:
    async with Broker() as running:
        await running.create_topic("orders", 6)
        yield running


async def test_everything_goes_back(cluster: AsyncCluster) -> None:
    await cluster.create_topic("orders", 3, {"retention.ms": "5000"})
    await cluster.create_topic("kept")
    for partition in range(3):
        await cluster.produce("orders", [b"1", b"2"], partition=partition)
    async with Admin(cluster.bootstrap) as admin:
        await admin.alter_group_offsets(GROUP, {FIRST: 1})
    before = await cluster.snapshot()
    records, bootstrap = await cluster.records("orders"), cluster.bootstrap

    for _ in range(3):  # works any number of times
        await cluster.create_topic("new")
        await cluster.produce("new", [b"v"])
        await cluster.produce("orders", [b"3"], partition=1)
        async with Admin(cluster.bootstrap) as admin:
            await admin.alter_group_offsets(GROUP, {FIRST: 2})
            await admin.alter_group_offsets("other", {FIRST: 2})
            await admin.delete_topics(["kept"])
        await cluster.topic("kept").deleted()
        await cluster.restore(before)

        assert cluster.bootstrap == bootstrap
        assert await cluster.records("orders") == records
        assert cluster.group(GROUP).offsets() == {("orders", 0): 1}
        assert cluster.groups() == [GROUP]
        assert await cluster.topic("kept").exists(timeout=0) == 1
        with pytest.raises(KafkaError, match="no topic new"):
            await cluster.records("new")
        assert cluster.group("other").timeline() == []
        assert cluster.topic("orders").end_offsets() == {0: 2, 1: 2, 2: 2}


async def test_partitions_that_load_slowly_have_leaders_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "START_WAIT_MS", 0)  # as if loading took longer
    async with Broker() as broker:
        await broker.create_topic("orders")
        await broker.produce("orders", [b"v"])
        (node,) = broker._core.brokers.brokers
        data = node.holders[LeaseKind.DATA]
        assert isinstance(data, DataShards)
        read = data._read_topics

        async def slowly() -> None:
            await turns(500)
            await read()

        monkeypatch.setattr(data, "_read_topics", slowly)
        await broker.restore(await broker.snapshot())
        assert broker.leader_of("orders") == 0


async def test_records_that_a_restore_removes_are_not_called_lost(
    broker: AsyncBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    for level in ("warning", "error"):
        monkeypatch.setattr(Logger, level, lambda _, event, **fields: said.append(event))
    await broker.produce("orders", [b"1"], partition=1)
    before = await broker.snapshot()
    await broker.produce("orders", [b"2"], partition=1)
    await broker.restore(before)
    assert [each.value for each in await broker.records("orders")] == [b"1"]
    await broker.produce("orders", [b"3"], partition=1)
    assert said == []


async def test_clients_go_on_afterwards(cluster: AsyncCluster) -> None:
    await cluster.create_topic("orders", 6)
    before = await cluster.snapshot()
    async with (
        Producer(cluster.bootstrap) as producer,
        Consumer(
            cluster.bootstrap, group_id=GROUP, topics=["orders"], auto_offset_reset="earliest"
        ) as consumer,
    ):
        await producer.send("orders", b"1", partition=1)
        record = await consumer.get(timeout=30)
        assert record is not None
        await cluster.restore(before)
        assert await cluster.records("orders") == []
        await producer.send("orders", b"2", partition=1)
        assert [each.value for each in await cluster.records("orders")] == [b"2"]
        while (record := await consumer.get(timeout=30)) is not None:
            if record.value == b"2":
                break
        assert record is not None


async def test_a_group_is_again_what_it_was(broker: AsyncBroker) -> None:
    empty = await broker.snapshot()
    group = broker.group(GROUP)
    async with reading(broker, "web-1"):
        await group.stable(members=1)
        (member,), generation = group.members, group.generation
        with_a_member = await broker.snapshot()
        async with reading(broker, "web-2"):
            await group.stable(members=2)
            await broker.restore(with_a_member)
            assert member.id in {each.id for each in group.members}
            assert group.generation == generation
            await group.stable(members=2)  # web-2 has rejoined, web-1 has stayed
            assert member.id in {each.id for each in group.members}
            seen = [entry.type for entry in group.timeline()]
            assert seen.count("member_added") == 2  # web-1, and web-2 the second time
    await group.empty()
    assert group.timeline() != []
    await broker.restore(empty)
    assert group.facts == ("Dead", 0)
    assert group.timeline() == []


async def test_producer_ids_are_never_given_out_twice(broker: AsyncBroker) -> None:
    before = await broker.snapshot()
    ids = set()
    for _ in range(3):
        async with Producer(broker.bootstrap, enable_idempotence=True) as producer:
            await producer.send("orders", b"v", partition=0)
        node = broker._core.brokers.running[0]
        topic = broker._core.topic("orders")
        (active,) = broker._look(lambda: node.partitions.active_producers(topic, 0))  # noqa: B023
        ids.add(active.producer_id)
        await broker.restore(before)
    assert len(ids) == 3


async def test_what_cannot_be_is_refused(tmp_path: Path, broker: AsyncBroker) -> None:
    of_others = await broker.snapshot()
    with pytest.raises(TypeError, match=r"^snapshot: it takes what `snapshot` returned, not 5$"):
        await broker.restore(5)  # type: ignore[arg-type]
    async with Cluster(2, lease_term_ms=TERM_MS) as others:
        with pytest.raises(ValueError, match="taken of other brokers"):
            await others.restore(of_others)
        await others.stop(1)
        with pytest.raises(ValueError, match="broker 1 is stopped: restart it"):
            await others.snapshot()
        await others.restart(1)
        await others.pause(0)
        with pytest.raises(ValueError, match="broker 0 is paused: resume it"):
            await others.snapshot()
        await others.resume(0)
        begun_with = await others.snapshot()
        await others.hold(GROUP)
        with pytest.raises(ValueError, match=r"^the load of shard \d+ is held: release it before restoring"):
            await others.restore(begun_with)
        await others.release(GROUP)
        await others.restore(begun_with)
    async with Broker(data=tmp_path) as on_disk:
        with pytest.raises(ValueError, match=f"brokers in memory, but these keep their state in {tmp_path}"):
            await on_disk.snapshot()


@pytest.fixture
def loading(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Event, Event]]:
    """Restores set the first event, and end once the second is set."""
    begun, may_end = Event(), Event()

    async def held(nodes: Sequence[Node]) -> None:
        begun.set()
        await until(may_end.is_set, "the end of the restore")
        await all_loaded(nodes)

    monkeypatch.setattr(snapshot, "all_loaded", held)
    yield begun, may_end
    may_end.set()


async def test_whatever_needs_or_harms_the_brokers_waits_for_a_restore(
    loading: tuple[Event, Event], broker: AsyncBroker
) -> None:
    begun, may_end = loading
    (node,) = broker._core.brokers.brokers
    before = await broker.snapshot()
    first = asyncio.create_task(broker.restore(before))
    await until(begun.is_set)
    first.cancel()  # it runs on
    with pytest.raises(asyncio.CancelledError):
        await first
    calls = (broker.resume(0), broker.restore(before), broker.snapshot(), broker.pause(0))
    waiting = [asyncio.create_task(call) for call in calls]
    await turns()
    broker.groups()  # is answered after the calls above have begun
    assert [task.done() for task in waiting] == [False] * len(waiting)
    assert node.connections.frozen
    assert not node.paused
    may_end.set()
    async with asyncio.timeout(DEADLINE_S):
        await asyncio.gather(*waiting)
    assert node.paused
    assert node.connections.frozen
    await broker.resume(0)
    assert await broker.records("orders") == []


@pytest.mark.parametrize("reload", [True, False])
async def test_no_load_is_held_in_the_middle_of_a_restore(
    loading: tuple[Event, Event], broker: AsyncBroker, reload: bool
) -> None:
    begun, may_end = loading

    async def held() -> list[int]:
        return broker._core.brokers.shard_faults.held()

    restoring = asyncio.create_task(broker.restore(await broker.snapshot()))
    await until(begun.is_set)
    holding = asyncio.create_task(broker.hold(GROUP, reload=reload))
    await turns()
    assert broker._look(held) == []  # is answered after the hold has begun
    may_end.set()
    async with asyncio.timeout(DEADLINE_S):
        await asyncio.gather(restoring, holding)
    assert len(broker._look(held)) == 1
    await broker.release(GROUP)


@pytest.mark.parametrize("cancelled", [False, True])
async def test_a_restore_waits_for_a_broker_that_restarts(
    monkeypatch: pytest.MonkeyPatch, cancelled: bool
) -> None:
    begun, may_end = Event(), Event()
    register = Node.register

    async def slowly(self: Node, node: NodeRow) -> None:
        begun.set()
        await until(may_end.is_set, "the end of the restart")
        await register(self, node)

    async with Cluster(2, lease_term_ms=TERM_MS) as brokers:
        before = await brokers.snapshot()
        await brokers.stop(0)
        monkeypatch.setattr(Node, "register", slowly)
        restarting = asyncio.create_task(brokers.restart(0))
        await until(begun.is_set)
        if cancelled:
            restarting.cancel()  # it runs on
            with pytest.raises(asyncio.CancelledError):
                await restarting
        restoring = asyncio.create_task(brokers.restore(before))
        await turns()
        brokers.groups()  # is answered after the restore has begun
        may_end.set()
        async with asyncio.timeout(DEADLINE_S):
            await restoring
            assert restarting.done()


async def test_a_restore_that_is_cancelled_before_its_turn_changes_nothing(
    loading: tuple[Event, Event], broker: AsyncBroker
) -> None:
    begun, may_end = loading
    empty = await broker.snapshot()
    await broker.produce("orders", [b"v"])
    filled = await broker.snapshot()
    first = asyncio.create_task(broker.restore(filled))
    await until(begun.is_set)
    second = asyncio.create_task(broker.restore(empty))
    await turns()
    broker.groups()  # is answered after the second has begun to wait
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    may_end.set()
    async with asyncio.timeout(DEADLINE_S):
        await first
        await broker.snapshot()  # whatever waits has its turn before
    assert [each.value for each in await broker.records("orders")] == [b"v"]


def test_with_calls_that_block() -> None:
    with Broker() as broker:
        broker.create_topic("orders")
        before = broker.snapshot()
        broker.produce("orders", [b"v"])
        broker.restore(before)
        assert broker.records("orders") == []

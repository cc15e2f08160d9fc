"""Several brokers over one store: what only shows when shards and partitions move between them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest

from muster.coordinator.cluster import membership
from muster.coordinator.config import Settings
from muster.coordinator.server.broker import Broker
from muster.coordinator.server.brokers import Brokers
from muster.coordinator.server.pausing import PausableStore
from muster.coordinator.storage.store import Lease, NodeIdTaken, StoreBusy
from muster.protocol.errors import ErrorCode
from muster.protocol.messages.connection import ApiVersionsRequest
from muster.protocol.messages.data import FetchRequest, ProduceRequest
from muster.protocol.messages.metadata import FindCoordinatorRequest, MetadataRequest
from muster.protocol.messages.offsets import OffsetFetchRequest
from tests.server.conftest import StartBrokers
from tests.server.test_data import batch
from tests.server.test_offsets import codes, commit
from tests.support.facts import until
from tests.support.leases import TERM_MS, let_pass
from tests.support.wire import Wire

DEADLINE_S = 20


def group_of(broker: Broker) -> str:
    """A group id whose shard this broker holds."""
    names = (f"g{number}" for number in range(10_000))
    return next(name for name in names if broker.membership.serving(broker.topology.group_lease(name)))


async def committed(port: int, group_id: str) -> list[tuple[str, int]]:
    """(topic, offset) as soon as the group's coordinator has loaded it."""
    async with asyncio.timeout(DEADLINE_S), await Wire.connect(port) as wire:
        while True:
            response = await wire.call(OffsetFetchRequest(group_id=group_id, topics=None), 5)
            if response.error_code == ErrorCode.NONE:
                return [(each.name, each.partitions[0].committed_offset) for each in response.topics]


async def test_a_broker_that_has_not_heard_of_a_new_topic_keeps_its_offsets(
    start_brokers: StartBrokers,
) -> None:
    """A topic deleted and created again has another id. Whoever takes a shard over must not judge the offsets
    of the new topic by the id of the old one."""
    brokers = await start_brokers(brokers=2)
    first, second = brokers.brokers
    group_id = group_of(first)
    old = await first.catalogue.create("t")
    await second.catalogue.refresh()
    assert second._catalogue_task is not None
    second._catalogue_task.cancel()  # deaf from here on
    await first.catalogue.delete(old)
    await first.catalogue.create("t")
    async with await Wire.connect(first.port) as wire:
        assert codes(await wire.call(commit(("t", 0, 7), group_id=group_id), 9)) == [ErrorCode.NONE]
    await brokers.stop_one(0)
    assert await committed(second.port, group_id) == [("t", 7)]


async def test_partitions_move_with_their_records_and_clients_are_led_there(
    start_brokers: StartBrokers,
) -> None:
    brokers = await start_brokers(brokers=2)
    first, second = brokers.brokers
    topic = await first.catalogue.create("t", partitions=8)
    await second.catalogue.refresh()
    index = next(index for index in range(8) if first.topology.leader(topic.topic_id, index).node_id == 1)
    part = ProduceRequest.PartitionProduceData(index=index, records=batch(b"a"))
    produce = ProduceRequest(
        acks=-1,
        timeout_ms=1_000,
        topic_data=[
            ProduceRequest.TopicProduceData(name="t", topic_id=topic.topic_id, partition_data=[part])
        ],
    )
    wanted = FetchRequest.FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=1 << 20)
    fetch = FetchRequest(
        max_wait_ms=0,
        min_bytes=1,
        topics=[FetchRequest.FetchTopic(topic="t", topic_id=topic.topic_id, partitions=[wanted])],
    )
    async with await Wire.connect(first.port) as wire, await Wire.connect(second.port) as other:
        assert (await wire.call(produce, 12)).responses[0].partition_responses[0].error_code == 0
        # The wrong broker names the right one (KIP-951), in the versions that can.
        refused = await other.call(produce, 10)
        answer = refused.responses[0].partition_responses[0]
        assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert answer.current_leader.leader_id == 1
        assert [(each.node_id, each.port) for each in refused.node_endpoints] == [(1, first.port)]
        assert (await other.call(produce, 9)).node_endpoints == []
        misled = await other.call(fetch, 16)
        assert misled.responses[0].partitions[0].current_leader.leader_id == 1
        assert [each.port for each in misled.node_endpoints] == [first.port]

        epoch = first.topology.leader(topic.topic_id, index).epoch
        await brokers.stop_one(0)
        async with asyncio.timeout(DEADLINE_S):
            while (await other.call(fetch, 12)).responses[0].partitions[0].error_code:
                pass
        fetched = (await other.call(fetch, 12)).responses[0].partitions[0]
        assert fetched.high_watermark == 1
        (told,) = (await other.call(MetadataRequest(topics=[MetadataRequest.Topic(name="t")]), 12)).topics
        assert {each.leader_id for each in told.partitions} == {2}
        assert told.partitions[index].leader_epoch > epoch


async def test_all_brokers_come_back_at_once_after_a_kill(
    tmp_path: Path, start_brokers: StartBrokers
) -> None:
    """The directory is locked, so neither the leases of a killed process nor the nodes that are gone need to
    expire first."""
    before = await start_brokers(brokers=3, ephemeral=False, data=str(tmp_path), lease_term_ms=600_000)
    group_id = group_of(before.brokers[2])
    await before.brokers[0].catalogue.create("t")
    await before.brokers[2].catalogue.refresh()
    async with await Wire.connect(before.brokers[2].port) as wire:
        assert codes(await wire.call(commit(("t", 0, 7), group_id=group_id), 9)) == [ErrorCode.NONE]
    for index in range(3):
        await before.kill_one(index)
    await before.stop()
    after = await start_brokers(ephemeral=False, data=str(tmp_path), lease_term_ms=600_000)
    assert await committed(after.brokers[0].port, group_id) == [("t", 7)]
    async with await Wire.connect(after.brokers[0].port) as wire:
        response = await wire.call(MetadataRequest(topics=None), 12)
        assert [each.node_id for each in response.brokers] == [1]
        assert response.cluster_id == before.brokers[0].cluster_id


async def test_a_store_that_hangs_does_not_keep_a_broker_from_stopping(
    start_brokers: StartBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    brokers = await start_brokers(shutdown_grace_ms=1_500)
    asked = asyncio.Event()

    async def hang(*_: object) -> None:
        asked.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(brokers.brokers[0]._store, "release", hang)
    async with await Wire.connect(brokers.brokers[0].port) as wire:
        async with asyncio.timeout(DEADLINE_S):
            await brokers.stop_one(0)
        assert asked.is_set()
        assert await wire.closed()


async def test_a_failed_start_leaves_no_lock_behind(tmp_path: Path, start_brokers: StartBrokers) -> None:
    with pytest.raises(Exception, match="not an address"):
        await start_brokers(ephemeral=False, data=str(tmp_path), host="192.0.2.1")
    assert isinstance(await start_brokers(ephemeral=False, data=str(tmp_path)), Brokers)


async def test_a_broker_accepts_clients_before_it_has_loaded_everything(
    start_brokers: StartBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others send clients to it as soon as the first of its shards is loaded."""
    monkeypatch.setattr(membership, "START_WAIT_MS", 600_000)
    brokers = await start_brokers()
    await brokers.stop_one(0)
    go_on, method_of = asyncio.Event(), PausableStore.__getattr__

    def slowly(store: PausableStore, name: str) -> object:
        method = method_of(store, name)

        async def load(lease: Lease) -> object:
            await go_on.wait()
            return await method(lease)

        return load if name == "load" else method

    monkeypatch.setattr(PausableStore, "__getattr__", slowly)
    starting = asyncio.create_task(brokers.start_one(0))
    try:
        async with asyncio.timeout(DEADLINE_S):
            while True:
                try:
                    wire = await Wire.connect(brokers.brokers[0].port)
                    break
                except ConnectionError:  # not yet
                    assert not starting.done()
            async with wire:
                assert [
                    each.node_id for each in (await wire.call(MetadataRequest(topics=[]), 12)).brokers
                ] == [1]
            assert not starting.done()
    finally:
        go_on.set()
        await starting


async def replaced(broker: Broker) -> None:
    """Give its node id to another broker, as if its registration had expired."""
    mine = next(node for node in await broker.store.nodes() if node.node_id == broker.node_id)
    await broker.store.remove_node(mine.node_id, mine.incarnation)
    other = replace(mine, incarnation=uuid4(), host="other.example", port=9, term_ms=600_000)
    await broker.store.register_node(other)


async def test_a_broker_whose_node_id_another_has_taken_dies_and_says_who(
    start_brokers: StartBrokers,
) -> None:
    """It was paused for longer than its term, and another was started in its place meanwhile."""
    brokers = await start_brokers(brokers=2, node_id=7, shutdown_grace_ms=0)
    first, second = brokers.brokers
    waiting = asyncio.create_task(brokers.superseded())
    async with await Wire.connect(first.port) as wire, await Wire.connect(second.port) as other:
        await replaced(first)
        async with asyncio.timeout(DEADLINE_S):
            why = await waiting
            assert await wire.closed()
        assert isinstance(why, NodeIdTaken)
        assert "node id 7 is in use by the broker at other.example:9" in str(why)
        assert brokers.running == [second]
        assert not any(map(first.membership.serving, first.topology.holders))
        # It has taken nothing down with it: neither the other's registration nor the other broker of its
        # process.
        assert [(node.node_id, node.host) for node in await second.store.nodes()] == [
            (7, "other.example"),
            (8, "127.0.0.1"),
        ]
        assert (await other.call(MetadataRequest(topics=[]), 12)).brokers


async def test_a_process_ends_all_of_whose_brokers_were_replaced(start_brokers: StartBrokers) -> None:
    brokers = await start_brokers(brokers=2, shutdown_grace_ms=600_000)
    for broker in brokers.brokers:
        await replaced(broker)
    store = brokers.brokers[0].store
    async with asyncio.timeout(DEADLINE_S):
        assert isinstance(await brokers.superseded(), NodeIdTaken)
        await until(lambda: all(broker.membership.superseded_by for broker in brokers.brokers))
        assert {node.host for node in await store.nodes()} == {"other.example"}
        await brokers.stop()


async def test_a_node_id_that_is_in_use_is_refused(start_brokers: StartBrokers) -> None:
    """As another process would: with the running brokers' store and an incarnation of its own."""
    brokers = await start_brokers(test_mode=True)
    (running,) = brokers.brokers
    late = brokers._make(0, Settings(port=0).listening(0))
    registering = asyncio.create_task(late.register(await late.bind()))
    async with asyncio.timeout(DEADLINE_S):
        while not registering.done():
            late.missed(TERM_MS)  # and the running one has renewed meanwhile
            await asyncio.sleep(0)
    with pytest.raises(NodeIdTaken, match=f"in use by the broker at 127.0.0.1:{running.port}"):
        await registering
    await late.kill()
    assert running.membership.superseded_by is None


async def test_a_broker_that_is_cut_off_from_the_store_sends_its_clients_away(
    start_brokers: StartBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client keeps asking its broker as long as that answers, but this one does not know who coordinates
    its groups now."""
    brokers = await start_brokers(brokers=2, test_mode=True)
    cut, other = brokers.brokers
    find = FindCoordinatorRequest(key=group_of(cut))
    async with asyncio.timeout(DEADLINE_S), await Wire.connect(cut.port) as wire:
        assert (await wire.call(find, 3)).node_id == cut.node_id
        with monkeypatch.context() as patched:
            patched.setattr(cut._store, "register_node", unreachable)
            let_pass(brokers, TERM_MS, cut)
            await until(lambda: cut.membership.cut_off)
            for ask in (find, MetadataRequest(topics=[])):
                async with await Wire.connect(cut.port) as late:
                    assert (await late.call(ApiVersionsRequest(), 0)).api_keys
                    with pytest.raises(asyncio.IncompleteReadError):
                        await late.call(ask, 3)
            async with await Wire.connect(other.port) as asking:
                while (await asking.call(find, 3)).node_id != other.node_id:
                    pass
        cut.missed(TERM_MS)  # and the next attempt comes
        await until(lambda: not cut.membership.cut_off)
        async with await Wire.connect(cut.port) as asking:
            assert (await asking.call(MetadataRequest(topics=[]), 12)).brokers


async def test_a_lone_broker_without_its_store_keeps_its_clients(
    start_brokers: StartBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is nobody to send them to."""
    brokers = await start_brokers(test_mode=True)
    (broker,) = brokers.brokers
    find = FindCoordinatorRequest(key="g")
    async with asyncio.timeout(DEADLINE_S), await Wire.connect(broker.port) as wire:
        assert (await wire.call(find, 3)).error_code == ErrorCode.NONE
        monkeypatch.setattr(broker._store, "register_node", unreachable)
        let_pass(brokers, TERM_MS, broker)
        assert (await wire.call(find, 3)).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert not broker.membership.cut_off


async def unreachable(*_: object) -> None:
    raise StoreBusy("cannot connect")

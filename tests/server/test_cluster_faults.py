"""Group shards that are moved on purpose, or held open while they load, as clients see it."""

from __future__ import annotations

import asyncio

import pytest

from muster.coordinator.server.brokers import Brokers
from muster.coordinator.server.test_mode import cluster_faults
from muster.coordinator.server.test_mode.faults import FaultError
from muster.protocol.errors import ErrorCode
from muster.protocol.messages.classic_group import HeartbeatRequest
from muster.protocol.messages.metadata import FindCoordinatorRequest
from tests.server.conftest import StartBrokers
from tests.server.test_classic_group import join, stable_member
from tests.server.test_offsets import codes, commit
from tests.support.facts import turns, until
from tests.support.wire import Wire

GROUP = "orders"


async def coordinators(brokers: Brokers) -> set[tuple[int, int]]:
    """Where the running brokers send clients of the group: error code and port."""
    found = set()
    for broker in brokers.running:
        async with await Wire.connect(broker.port) as wire:
            answer = (await wire.call(FindCoordinatorRequest(coordinator_keys=[GROUP]), 4)).coordinators[0]
            found.add((answer.error_code, answer.port))
    return found


def index_of_coordinator(brokers: Brokers) -> int:
    broker = brokers.brokers[0]
    grant = broker.topology.holders[broker.topology.group_lease(GROUP)]
    return [each.node_id for each in brokers.brokers].index(grant.node_id)


async def beats(port: int, member_id: str, generation: int) -> int:
    async with await Wire.connect(port) as wire:
        request = HeartbeatRequest(group_id=GROUP, generation_id=generation, member_id=member_id)
        return int((await wire.call(request, 4)).error_code)


async def test_a_group_moves_to_a_broker_without_a_rebalance_and_stays(start_brokers: StartBrokers) -> None:
    brokers = await start_brokers(brokers=3)
    first = index_of_coordinator(brokers)
    target = (first + 1) % 3
    async with await Wire.connect(brokers.brokers[first].port) as wire:
        member_id, generation = await stable_member(wire)
        await brokers.move_coordinator(GROUP, target)
        port = brokers.brokers[target].port
        assert await coordinators(brokers) == {(0, port)}
        assert (
            await wire.call(
                HeartbeatRequest(group_id=GROUP, generation_id=generation, member_id=member_id), 4
            )
        ).error_code == ErrorCode.NOT_COORDINATOR
    assert await beats(port, member_id, generation) == ErrorCode.NONE
    await brokers.move_coordinator(GROUP, target)  # there already
    # A broker that joins would take its share if this shard were not pinned.
    third = next(index for index in range(3) if index not in (first, target))
    await brokers.stop_one(first)
    await brokers.start_one(first)
    await brokers.stop_one(third)
    assert await coordinators(brokers) == {(0, port)}
    # When the pinned broker leaves, the group is coordinated elsewhere, and returns with it.
    await brokers.stop_one(target)
    await until(lambda: index_of_coordinator_or_none(brokers, first) == first, "the other to take over")
    await brokers.start_one(target)
    await until(lambda: index_of_coordinator_or_none(brokers, first) == target, "its return")
    assert await beats(brokers.brokers[target].port, member_id, generation) == ErrorCode.NONE


def index_of_coordinator_or_none(brokers: Brokers, asked: int) -> int | None:
    """As the broker `asked` reports it."""
    topology = brokers.brokers[asked].topology
    node = topology.coordinator(GROUP)
    return None if node is None else [each.node_id for each in brokers.brokers].index(node.node_id)


async def test_a_group_that_is_unpinned_goes_back_to_its_place(start_brokers: StartBrokers) -> None:
    brokers = await start_brokers(brokers=2)
    home = index_of_coordinator(brokers)
    await brokers.move_coordinator(GROUP, 1 - home)
    assert brokers.shard_faults.pinned() == {
        brokers.shard_faults.lease_of(group=GROUP).number: brokers.brokers[1 - home].node_id
    }
    assert brokers.unpin(GROUP)
    await until(
        lambda: all(index_of_coordinator_or_none(brokers, each) == home for each in range(2)), "its return"
    )
    assert not brokers.unpin(GROUP)


async def test_who_cannot_take_a_group_is_told_so(
    start_brokers: StartBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    brokers = await start_brokers(brokers=3)
    target = (index_of_coordinator(brokers) + 1) % 3
    node_id = brokers.brokers[target].node_id
    brokers.brokers[target].pause()
    with pytest.raises(FaultError, match=f"broker {node_id} is paused .*; resume it first"):
        await brokers.move_coordinator(GROUP, target)
    brokers.brokers[target].resume()
    await brokers.stop_one(target)
    with pytest.raises(FaultError, match=f"broker {node_id} is not running; restart it first"):
        await brokers.move_coordinator(GROUP, target)
    for wrong in ({"shard": 50}, {"shard": -1}, {}, {"shard": 1, "group": GROUP}):
        with pytest.raises(FaultError, match="shard: "):
            await brokers.hold_load(**wrong)
    # A move that takes too long is given up, with an explanation.
    await brokers.start_one(target)
    await until(lambda: len(brokers.brokers[target].topology.nodes) == 3, "its registration")
    monkeypatch.setattr(cluster_faults, "MOVE_TIMEOUT_S", 0.1)
    brokers.brokers[index_of_coordinator(brokers)].pause()  # which hands nothing over
    with pytest.raises(
        TimeoutError, match=f"timed out after 0.1 s waiting for broker {node_id} to take over shard"
    ):
        await brokers.move_coordinator(GROUP, target)
    assert brokers.shard_faults.pinned() == {}
    brokers.brokers[index_of_coordinator(brokers)].resume()


async def test_a_move_or_a_hold_that_is_cancelled_leaves_nothing_in_force(
    start_brokers: StartBrokers,
) -> None:
    brokers = await start_brokers(brokers=2)
    holder = index_of_coordinator(brokers)
    faults = brokers.shard_faults
    brokers.brokers[holder].pause()  # which neither hands over nor loads
    moving = asyncio.create_task(brokers.move_coordinator(GROUP, 1 - holder))
    await until(lambda: faults.pinned() != {}, "the move")
    holding = asyncio.create_task(brokers.hold_load(group=GROUP, reload=True))
    await until(lambda: faults.held() != [], "the hold")
    for task in (moving, holding):
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert (faults.pinned(), faults.held()) == ({}, [])
    brokers.brokers[holder].resume()


async def test_a_move_that_is_cancelled_undoes_no_later_one(start_brokers: StartBrokers) -> None:
    brokers = await start_brokers(brokers=3)
    faults = brokers.shard_faults
    number = faults.lease_of(group=GROUP).number
    home = index_of_coordinator(brokers)
    second, third = (index for index in range(3) if index != home)
    ids = [broker.node_id for broker in brokers.brokers]
    moving: list[asyncio.Task[None]] = []

    async def move(index: int) -> None:
        """Begin a move that cannot end."""
        moving.append(asyncio.create_task(brokers.move_coordinator(GROUP, index)))
        await until(lambda: faults.pinned() == {number: ids[index]}, "the move")

    async def cancel(task: asyncio.Task[None]) -> None:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    brokers.brokers[home].pause()  # which hands nothing over
    # One that is in force goes back to the one before that is not given up.
    for index in (second, third, third, second):
        await move(index)
    await cancel(moving[2])
    assert faults.pinned() == {number: ids[second]}
    await cancel(moving[3])
    assert faults.pinned() == {number: ids[third]}
    await cancel(moving[0])
    assert faults.pinned() == {number: ids[third]}
    await cancel(moving[1])
    assert faults.pinned() == {}
    # One that is no longer in force is left alone.
    await move(second)
    assert brokers.unpin(GROUP)
    await cancel(moving[4])
    assert faults.pinned() == {}
    await move(second)
    brokers.brokers[home].resume()
    await brokers.move_coordinator(GROUP, third)
    await cancel(moving[5])
    assert faults.pinned() == {number: ids[third]}


async def test_a_hold_that_is_cancelled_ends_no_later_one(start_brokers: StartBrokers) -> None:
    brokers = await start_brokers(brokers=2)
    faults, holder = brokers.shard_faults, index_of_coordinator(brokers)
    brokers.brokers[holder].pause()  # which loads nothing
    first = asyncio.create_task(brokers.hold_load(group=GROUP, reload=True))
    await until(lambda: faults.held() != [], "the hold")
    await brokers.hold_load(group=GROUP)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert faults.held() == [faults.lease_of(group=GROUP).number]
    assert faults.release(faults.lease_of(group=GROUP))
    brokers.brokers[holder].resume()


async def test_clients_meet_a_coordinator_that_loads_until_it_is_released(
    start_brokers: StartBrokers,
) -> None:
    brokers = await start_brokers()
    port = brokers.brokers[0].port
    async with await Wire.connect(port) as wire:
        member_id, generation = await stable_member(wire)
        await brokers.hold_load(group=GROUP, reload=True)
        assert await coordinators(brokers) == {(0, port)}  # clients are sent there
        joining = await wire.call(join(member_id=member_id), 9)
        assert joining.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        await brokers.brokers[0].catalogue.create("t")
        assert codes(await wire.call(commit(("t", 0, 1), group_id=GROUP), 8)) == [
            ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        ]
        assert await beats(port, member_id, generation) == ErrorCode.NONE  # as in Kafka while it loads
        await turns()
        assert brokers.shard_faults.held() == [brokers.shard_faults.lease_of(group=GROUP).number]
        assert brokers.release_load(group=GROUP)
        await brokers.brokers[0].runtime.loaded()
        assert codes(await wire.call(commit(("t", 0, 1), group_id=GROUP), 8)) == [ErrorCode.UNKNOWN_MEMBER_ID]
        assert await beats(port, member_id, generation) == ErrorCode.NONE  # and is still a member
    assert not brokers.release_load(group=GROUP)


async def test_a_group_that_moves_can_be_held_open_at_its_new_coordinator(
    start_brokers: StartBrokers,
) -> None:
    brokers = await start_brokers(brokers=2)
    target = 1 - index_of_coordinator(brokers)
    await brokers.hold_load(group=GROUP)
    await brokers.move_coordinator(GROUP, target)
    port = brokers.brokers[target].port
    assert await coordinators(brokers) == {(0, port)}
    async with await Wire.connect(port) as wire:
        assert (await wire.call(join(), 9)).error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        brokers.release_load(group=GROUP)
        await brokers.brokers[target].runtime.loaded()
        assert (await wire.call(join(), 9)).error_code == ErrorCode.MEMBER_ID_REQUIRED


async def test_other_shards_load_while_more_are_held_than_load_at_once(start_brokers: StartBrokers) -> None:
    brokers = await start_brokers(brokers=2)
    held = range(30)
    for number in held:
        await brokers.hold_load(shard=number)
    await brokers.stop_one(1)  # the first takes over some that are held, and some that are not
    await until(
        lambda: {host.lease.number for host in brokers.brokers[0].runtime.hosts()} == set(range(50)),
        "the takeover",
    )
    states = {status.number: status.state for status in brokers.brokers[0].runtime.shards()}
    assert "loading" in {states[number] for number in held}
    await until(
        lambda: all(
            status.state == "active"
            for status in brokers.brokers[0].runtime.shards()
            if status.number not in held
        ),
        "the others to be loaded",
    )
    for number in held:
        brokers.release_load(shard=number)
    await brokers.brokers[0].runtime.loaded()


async def test_a_hold_ends_by_itself_by_the_brokers_clock(start_brokers: StartBrokers) -> None:
    brokers = await start_brokers(test_mode=True)
    await brokers.hold_load(group=GROUP, limit_ms=3_600_000, reload=True)
    await brokers.advance(1_800_000)
    assert len(brokers.shard_faults.held()) == 1
    await brokers.advance(1_800_000)
    assert brokers.shard_faults.held() == []
    async with asyncio.timeout(30):
        await brokers.brokers[0].runtime.loaded()

"""Moving the time of brokers: what falls due happens on the way, in order, and is durable on return."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from muster.coordinator.config import SettingError, Settings
from muster.coordinator.journal.entries import Entry
from muster.coordinator.server.broker import Broker
from muster.coordinator.server.brokers import Brokers
from muster.coordinator.server.test_mode.advancing import ClockFixed, NotAtRest
from muster.coordinator.storage.store import Append, Lease, LeaseKind, Outcome, StoreClosed, StoreError
from muster.protocol.errors import ErrorCode
from muster.protocol.messages.classic_group import HeartbeatRequest, JoinGroupRequest
from muster.protocol.messages.metadata import FindCoordinatorRequest
from muster.protocol.messages.offsets import OffsetFetchRequest
from muster.protocol.record_batch import batches, records
from tests.server.conftest import StartBrokers
from tests.server.test_classic_group import join, stable_member, sync
from tests.server.test_data import Topic, batch
from tests.server.test_offsets import codes, commit
from tests.support.facts import turns, until
from tests.support.wire import Wire

SECOND = 1_000
MINUTE = 60 * SECOND
DAY = 24 * 60 * MINUTE
SESSION_MS = 10_000
"""Session and rebalance timeout of the members that `join` makes."""


@pytest.fixture(params=["memory", "disk"])
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    """Settings that say where everything is kept."""
    return {} if request.param == "memory" else {"ephemeral": False, "data": str(tmp_path)}


async def one(start_brokers: StartBrokers, **settings: Any) -> tuple[Brokers, Broker]:
    brokers = await start_brokers(test_mode=True, **settings)
    await brokers.brokers[0].catalogue.create("t")
    return brokers, brokers.brokers[0]


def entries(broker: Broker, type: str, group_id: str = "orders") -> list[Entry]:
    return [entry for entry in broker.journal.of(group_id) if entry.type == type]


def state(brokers: Brokers, group_id: str = "orders") -> tuple[str, int] | None:
    for broker in brokers.running:
        for host in broker.runtime.hosts():
            group = host.machine.groups.get(group_id) if host.machine is not None else None
            if group is not None:
                return str(group.state), len(group.members)
    return None


async def committed(wire: Wire, group_id: str = "g") -> dict[tuple[str, int], int]:
    response = await wire.call(OffsetFetchRequest(group_id=group_id, topics=None), 5)
    assert response.error_code == ErrorCode.NONE
    return {
        (topic.name, part.partition_index): part.committed_offset
        for topic in response.topics
        for part in topic.partitions
    }


# --- groups -------------------------------------------------------------------------------------------------


async def test_offsets_expire_after_seven_days_for_good(
    start_brokers: StartBrokers, kept: dict[str, Any]
) -> None:
    brokers, broker = await one(start_brokers, **kept)
    async with await Wire.connect(broker.port) as wire:
        before_ms = brokers.now_ms()
        assert codes(await wire.call(commit(("t", 0, 7)), 8)) == [ErrorCode.NONE]
        await brokers.advance(7 * DAY - MINUTE)
        assert await committed(wire) == {("t", 0): 7}
        began = time.perf_counter()
        await brokers.advance(MINUTE)
        print(f"\nthe last minute of seven days took {time.perf_counter() - began:.4f} s")
        # Gone from the store before anybody asks.
        for number in range(brokers.shards):
            assert await broker.store.load(Lease(LeaseKind.GROUP, number)) == []
        assert await committed(wire) == {}
    (removed,) = entries(broker, "offsets_removed", "g")
    assert 7 * DAY <= removed.at_ms - before_ms < 7 * DAY + MINUTE  # when it was due, not at the next sweep


async def test_an_offset_that_comes_out_of_use_on_the_way_expires_on_the_way(
    start_brokers: StartBrokers,
) -> None:
    brokers, broker = await one(start_brokers)
    async with await Wire.connect(broker.port) as wire:
        member_id, generation = await stable_member(wire)
        mine = {"member_id": member_id, "generation_id_or_member_epoch": generation}
        request = commit(("t", 0, 7), group_id="orders", **mine)
        assert codes(await wire.call(request, 8)) == [ErrorCode.NONE]
    await until(lambda: entries(broker, "member_disconnected"), "the end of the connection")
    await brokers.advance(7 * DAY + MINUTE)  # the member's session ends, and retention begins
    assert len(entries(broker, "offsets_removed")) == 1
    assert state(brokers) is None


async def test_a_hundred_sessions_expire_in_one_move_in_order(start_brokers: StartBrokers) -> None:
    brokers, broker = await one(start_brokers, group_initial_rebalance_delay_ms=3_000)
    order = list(range(100))
    random.Random(5).shuffle(order)
    async with AsyncExitStack() as stack:
        wires = [await stack.enter_async_context(await Wire.connect(broker.port)) for _ in order]
        ids, generation = await hundred_members(brokers, wires)
        for index in order:  # each heartbeat comes seven milliseconds after the one before
            beat = HeartbeatRequest(group_id="orders", generation_id=generation, member_id=ids[index])
            assert (await wires[index].call(beat, 4)).error_code == ErrorCode.NONE
            await brokers.advance(7, expire_all=True)
        began = time.perf_counter()
        await brokers.advance(45 * SECOND, expire_all=True)
        print(f"\nthe expiry of 100 sessions took {time.perf_counter() - began:.4f} s")
    removed = entries(broker, "member_removed")
    assert [entry.member.id for entry in removed if entry.member] == [ids[index] for index in order]
    assert {entry.trigger for entry in removed} == {"session expired"}
    assert all(entry.data["silent_ms"] >= 45 * SECOND for entry in removed)
    times_ms = [entry.at_ms for entry in removed]
    assert times_ms == sorted(times_ms)
    assert times_ms[-1] - times_ms[0] >= 99 * 7  # each at its own time
    assert state(brokers) == ("Empty", 0)


async def hundred_members(brokers: Brokers, wires: Sequence[Wire]) -> tuple[list[str], int]:
    """Stable members with sessions of 45 seconds, after moving the time past the initial delay."""

    def joining(member_id: str) -> JoinGroupRequest:
        request = join(member_id=member_id, session_timeout_ms=45 * SECOND)
        request.rebalance_timeout_ms = MINUTE
        return request

    ids = [(await wire.call(joining(""), 9)).member_id for wire in wires]
    for wire, member_id in zip(wires, ids, strict=True):
        await wire.send(joining(member_id), 9)
    await until(lambda: state(brokers) == ("PreparingRebalance", len(wires)))
    await brokers.advance(MINUTE)  # the delay restarts while members join
    joined = [await wire.receive() for wire in wires]
    assert {each.error_code for each in joined} == {ErrorCode.NONE}
    generation = joined[0].generation_id
    for wire, member_id in zip(wires, ids, strict=True):
        assigned = [(each, b"") for each in ids] if member_id == joined[0].leader else []
        await wire.send(sync(generation, member_id, *assigned), 5)
    assert {(await wire.receive()).error_code for wire in wires} == {ErrorCode.NONE}
    assert state(brokers) == ("Stable", len(wires))
    return ids, generation


async def test_a_live_member_stays_and_heartbeats_on(start_brokers: StartBrokers) -> None:
    brokers, broker = await one(start_brokers)
    async with await Wire.connect(broker.port) as wire:
        member_id, generation = await stable_member(wire)
        for _ in range(3):
            await brokers.advance(DAY)
        beat = HeartbeatRequest(group_id="orders", generation_id=generation, member_id=member_id)
        assert (await wire.call(beat, 4)).error_code == ErrorCode.NONE
    assert entries(broker, "heartbeat_late") == []


async def test_of_two_members_the_stalled_one_is_evicted(start_brokers: StartBrokers) -> None:
    brokers, broker = await one(start_brokers)
    async with await Wire.connect(broker.port) as first, await Wire.connect(broker.port) as second:
        first_id, second_id = await two_members(first, second)
        brokers.stall("orders", second_id)
        await brokers.advance(SESSION_MS)
        (removed,) = entries(broker, "member_removed")
        assert removed.member is not None
        assert (removed.member.id, removed.data["connected"]) == (second_id, True)
        assert state(brokers) == ("PreparingRebalance", 1)
        # The journal has it durably, though nothing else was to be written.
        lease = Lease(LeaseKind.GROUP, removed.shard)
        rows = await broker.store.read_journal(lease, 0, rows_max=1_000, bytes_max=1 << 20)
        assert removed in [Entry.from_json(row.value) for row in rows]
        rejoined = await first.call(join(member_id=first_id), 9)
        assert [each.member_id for each in rejoined.members] == [first_id]


async def test_a_member_is_no_longer_stalled_when_that_is_taken_back(start_brokers: StartBrokers) -> None:
    brokers, broker = await one(start_brokers)
    async with await Wire.connect(broker.port) as wire:
        member_id, _ = await stable_member(wire)
        brokers.stall("orders", member_id)
        brokers.unstall("orders", member_id)
        brokers.unstall("orders", "nobody")
        await brokers.advance(DAY)
    assert state(brokers) == ("Stable", 1)
    for group_id, nobody in (("orders", "nobody"), ("none", member_id)):
        with pytest.raises(LookupError, match=f"group '{group_id}' has no member '{nobody}'"):
            brokers.stall(group_id, nobody)


async def test_a_member_whose_connection_has_closed_expires(start_brokers: StartBrokers) -> None:
    brokers, broker = await one(start_brokers)
    async with await Wire.connect(broker.port) as wire:
        await stable_member(wire)
    await until(lambda: entries(broker, "member_disconnected"), "the end of the connection")
    await brokers.advance(SESSION_MS)
    assert state(brokers) == ("Empty", 0)


async def two_members(first: Wire, second: Wire) -> tuple[str, str]:
    """Two members of a Stable group; the first leads."""
    first_id, generation = await stable_member(first)
    second_id = (await second.call(join(), 9)).member_id
    await second.send(join(member_id=second_id), 9)
    beat = HeartbeatRequest(group_id="orders", generation_id=generation, member_id=first_id)
    while (await first.call(beat, 4)).error_code == ErrorCode.NONE:
        pass
    generation = (await first.call(join(member_id=first_id), 9)).generation_id
    assert (await second.receive()).generation_id == generation
    await first.call(sync(generation, first_id, (first_id, b"1"), (second_id, b"2")), 5)
    assert (await second.call(sync(generation, second_id), 5)).assignment == b"2"
    return first_id, second_id


async def test_the_initial_delay_ends_at_its_moment(start_brokers: StartBrokers) -> None:
    brokers, broker = await one(start_brokers, group_initial_rebalance_delay_ms=4 * MINUTE)
    request = join()
    request.rebalance_timeout_ms = 10 * MINUTE
    async with await Wire.connect(broker.port) as wire:
        request.member_id = (await wire.call(request, 9)).member_id
        await wire.send(request, 9)
        await until(lambda: state(brokers) == ("PreparingRebalance", 1))
        await brokers.advance(3 * MINUTE)
        assert state(brokers) == ("PreparingRebalance", 1)
        await brokers.advance(MINUTE)
        assert state(brokers) == ("CompletingRebalance", 1)
        assert (await wire.receive()).error_code == ErrorCode.NONE


async def test_who_has_not_rejoined_when_the_rebalance_timeout_is_over_is_out(
    start_brokers: StartBrokers,
) -> None:
    brokers, broker = await one(start_brokers)
    async with await Wire.connect(broker.port) as first, await Wire.connect(broker.port) as second:
        first_id, second_id = await two_members(first, second)
        rejoining = join(member_id=first_id, metadata=b"other")
        await first.send(rejoining, 9)
        await until(lambda: state(brokers) == ("PreparingRebalance", 2))
        await brokers.advance(SESSION_MS)
        joined = await first.receive()
        assert [each.member_id for each in joined.members] == [first_id]
        (removed,) = entries(broker, "member_removed")
        assert removed.member is not None
        assert (removed.member.id, removed.trigger) == (second_id, "rebalance timed out")


async def test_who_has_not_synced_when_that_is_due_is_out(start_brokers: StartBrokers) -> None:
    brokers, broker = await one(start_brokers)
    async with await Wire.connect(broker.port) as wire:
        member_id = (await wire.call(join(), 9)).member_id
        assert (await wire.call(join(member_id=member_id), 9)).error_code == ErrorCode.NONE
        await brokers.advance(SESSION_MS)
        (removed,) = entries(broker, "member_removed")
        assert removed.trigger == "sync timed out"
        assert state(brokers) == ("Empty", 0)


async def test_a_client_that_took_an_id_and_never_came_back_is_dropped(start_brokers: StartBrokers) -> None:
    brokers, broker = await one(start_brokers)
    async with await Wire.connect(broker.port) as wire:
        assert (await wire.call(join(), 9)).error_code == ErrorCode.MEMBER_ID_REQUIRED
        await brokers.advance(SESSION_MS)
        assert len(entries(broker, "pending_member_removed")) == 1


# --- records ------------------------------------------------------------------------------------------------


async def topic_of(start_brokers: StartBrokers, wires: AsyncExitStack, **settings: Any) -> Topic:
    brokers, broker = await one(start_brokers, **settings)
    configs = {"retention.ms": str(7 * DAY), "message.timestamp.type": "LogAppendTime"}
    created = await broker.catalogue.create("timed", configs=configs)
    wire = await wires.enter_async_context(await Wire.connect(broker.port))
    return Topic(wire, created.topic_id, brokers)


async def test_records_are_stamped_with_the_moved_time_and_go_when_they_are_old(
    start_brokers: StartBrokers, kept: dict[str, Any]
) -> None:
    async with AsyncExitStack() as wires:
        topic = await topic_of(start_brokers, wires, **kept)
        brokers = topic.brokers
        before_ms = brokers.now_ms()
        stamped = []
        for _ in range(2):
            assert (await topic.produce(batch(b"a"), name="timed")).error_code == ErrorCode.NONE
            fetched = (await topic.fetch(len(stamped), name="timed")).records
            stamped += [r.timestamp for at, head in batches(fetched) for r in records(fetched, at, head)]
            await brokers.advance(4 * DAY)
        assert 0 <= stamped[0] - before_ms < MINUTE
        assert 0 <= stamped[1] - before_ms - 4 * DAY < MINUTE
        # One segment: it is removed when its newest record is old, and not before.
        assert (await topic.fetch(name="timed")).log_start_offset == 0
        await brokers.advance(4 * DAY)
        assert (await topic.fetch(2, name="timed")).log_start_offset == 2


async def test_a_fetch_that_waits_ends_by_the_moved_time_and_nobody_is_cut_off(
    start_brokers: StartBrokers,
) -> None:
    async with AsyncExitStack() as wires:
        topic = await topic_of(start_brokers, wires)
        idle = await wires.enter_async_context(await Wire.connect(topic.brokers.brokers[0].port))
        partitions = topic.brokers.brokers[0].partitions
        for expire_all in (False, True):
            await topic.wire.send(topic.fetching(max_wait_ms=DAY, name="timed"), 12)
            await until(lambda: len(partitions._fetches) and partitions._fetches.all_wait)
            await topic.brokers.advance(DAY - MINUTE, expire_all=expire_all)
            assert len(partitions._fetches) == 1
            await topic.brokers.advance(MINUTE, expire_all=expire_all)
            assert (await topic.wire.receive()).responses[0].partitions[0].records == b""
        assert (await idle.call(FindCoordinatorRequest(key="g"), 2)).error_code == ErrorCode.NONE


# --- brokers ------------------------------------------------------------------------------------------------

TERM_MS = 5 * MINUTE
"""So long that only the moved clock can end it."""


async def three(start_brokers: StartBrokers, kept: dict[str, Any]) -> Brokers:
    brokers = await start_brokers(test_mode=True, brokers=3, lease_term_ms=TERM_MS, **kept)
    return brokers


def coordinator(brokers: Brokers, group_id: str = "orders") -> int:
    """Index of the group's coordinator."""
    (index,) = [
        index
        for index, broker in enumerate(brokers.brokers)
        if broker in brokers.running
        and not broker.paused
        and broker.membership.serving(broker.topology.group_lease(group_id))
    ]
    return index


async def test_the_shards_of_a_killed_broker_move_at_once(
    start_brokers: StartBrokers, kept: dict[str, Any]
) -> None:
    brokers = await three(start_brokers, kept)
    index = coordinator(brokers)
    async with await Wire.connect(brokers.brokers[index].port) as wire:
        member_id, generation = await stable_member(wire)
    await brokers.kill_one(index)
    began = time.perf_counter()
    await brokers.advance(TERM_MS)
    print(f"\ntaking over took {time.perf_counter() - began:.4f} s")
    taken_by = coordinator(brokers)
    assert taken_by != index
    held = [len(broker.runtime.hosts()) for broker in brokers.running]
    assert sum(held) == brokers.shards
    for broker in brokers.running:  # and every broker says so
        async with await Wire.connect(broker.port) as wire:
            found = await wire.call(FindCoordinatorRequest(key="orders"), 2)
            assert found.node_id == brokers.brokers[taken_by].node_id
    async with await Wire.connect(brokers.brokers[taken_by].port) as wire:
        beat = HeartbeatRequest(group_id="orders", generation_id=generation, member_id=member_id)
        assert (await wire.call(beat, 4)).error_code == ErrorCode.NONE  # a failover costs no rebalance


async def test_those_not_heard_of_yet_by_a_new_coordinator_live_on_while_their_clients_do(
    start_brokers: StartBrokers,
) -> None:
    brokers = await three(start_brokers, {})
    index = coordinator(brokers)
    async with await Wire.connect(brokers.brokers[index].port) as wire:
        await stable_member(wire)
        await brokers.move_coordinator("orders", (index + 1) % 3)
        await brokers.advance(DAY)  # no client could have found its new coordinator meanwhile
        assert state(brokers) == ("Stable", 1)
    await until(lambda: not any(broker.connections.open for broker in brokers.brokers))
    await brokers.move_coordinator("orders", index)
    await brokers.advance(SESSION_MS)
    assert state(brokers) == ("Empty", 0)


async def test_leases_run_out_at_their_own_time_on_the_way(
    start_brokers: StartBrokers, kept: dict[str, Any]
) -> None:
    brokers = await three(start_brokers, kept)
    index = coordinator(brokers)
    await brokers.kill_one(index)
    before_ms = brokers.now_ms()
    await brokers.advance(DAY)
    for broker in brokers.running:
        since_ms = [host.active_since_ms for host in broker.runtime.hosts()]
        taken_over_ms = max(each for each in since_ms if each is not None) - before_ms
        assert TERM_MS - MINUTE < taken_over_ms < TERM_MS + MINUTE


async def test_a_broker_that_stood_still_while_time_was_moved_knows_that_it_has_lost_all(
    start_brokers: StartBrokers, kept: dict[str, Any]
) -> None:
    brokers = await three(start_brokers, kept)
    index = coordinator(brokers)
    stale = brokers.brokers[index]
    async with await Wire.connect(stale.port) as wire:
        member_id, generation = await stable_member(wire)
        beat = HeartbeatRequest(group_id="orders", generation_id=generation, member_id=member_id)
        stale.pause()
        await wire.send(beat, 4)  # read when it resumes
        await brokers.advance(TERM_MS)
        assert coordinator(brokers) != index
        stale.resume()
        assert (await wire.receive()).error_code == ErrorCode.NOT_COORDINATOR
        assert not stale.membership.serving(stale.topology.group_lease("orders"))


async def test_who_has_left_is_not_found_at_a_paused_broker_that_has_lost_its_leases(
    start_brokers: StartBrokers,
) -> None:
    brokers = await three(start_brokers, {})
    index = coordinator(brokers)
    async with await Wire.connect(brokers.brokers[index].port) as wire:
        member_id, _ = await stable_member(wire)
    brokers.stall("orders", member_id)
    brokers.brokers[index].pause()
    await brokers.advance(2 * TERM_MS)
    with pytest.raises(LookupError, match="group 'orders' has no member"):
        brokers.stall("orders", member_id)
    brokers.brokers[index].resume()


async def test_live_brokers_keep_their_leases(start_brokers: StartBrokers, kept: dict[str, Any]) -> None:
    brokers = await three(start_brokers, kept)

    def epochs() -> list[tuple[int, int]]:
        return [(each.number, each.epoch) for broker in brokers.brokers for each in broker.runtime.shards()]

    before = epochs()
    began = time.perf_counter()
    await brokers.advance(7 * DAY)
    print(f"\nseven days of three brokers took {time.perf_counter() - began:.4f} s")
    assert epochs() == before


# --- moving itself ------------------------------------------------------------------------------------------


async def test_moves_that_are_asked_for_at_once_come_one_after_the_other(start_brokers: StartBrokers) -> None:
    brokers, broker = await one(start_brokers)
    before_ms = brokers.now_ms()
    await asyncio.gather(*(brokers.advance(DAY) for _ in range(5)))
    assert 5 * DAY <= brokers.now_ms() - before_ms < 5 * DAY + MINUTE
    moved = [entry.data["by_ms"] for entry in broker.journal.latest(50) if entry.type == "clock_moved"]
    assert moved == [pytest.approx(DAY, abs=MINUTE)] * 5


async def test_time_is_moved_under_load_and_no_request_suffers(
    start_brokers: StartBrokers, kept: dict[str, Any]
) -> None:
    brokers, broker = await one(start_brokers, **kept)
    answers: list[int] = []
    moved = False

    async def load(wire: Wire, group_id: str) -> None:
        offset = 0
        while not moved or offset < 3:
            offset += 1
            answers.extend(codes(await wire.call(commit(("t", 0, offset), group_id=group_id), 8)))

    async with AsyncExitStack() as stack:
        wires = [await stack.enter_async_context(await Wire.connect(broker.port)) for _ in range(8)]
        loads = [asyncio.create_task(load(wire, f"g{index}")) for index, wire in enumerate(wires)]
        for _ in range(20):
            answered = len(answers)
            await until(lambda: len(answers) > answered)  # noqa: B023 - it is waited for here
            await brokers.advance(MINUTE)
        moved = True
        await asyncio.gather(*loads)
    assert set(answers) == {ErrorCode.NONE}


async def test_what_clients_send_meanwhile_is_heard_afterwards(start_brokers: StartBrokers) -> None:
    brokers, broker = await one(start_brokers)
    async with await Wire.connect(broker.port) as wire:
        move = asyncio.create_task(brokers.advance(DAY))
        await until(lambda: broker.connections._mute)
        async with await Wire.connect(broker.port) as late:
            for each in (wire, late):
                await each.send(commit(("t", 0, 7)), 8)
            await move
            assert [codes(await each.receive()) for each in (wire, late)] == [[ErrorCode.NONE]] * 2


async def test_time_does_not_go_back(start_brokers: StartBrokers) -> None:
    brokers, _ = await one(start_brokers)
    with pytest.raises(ValueError, match="the clock cannot go back: -1 ms"):
        await brokers.advance(-1)
    await brokers.advance(0)


async def test_only_in_test_mode_and_never_over_a_database(start_brokers: StartBrokers) -> None:
    brokers = await start_brokers()
    with pytest.raises(ClockFixed, match="--test-mode"):
        await brokers.advance(1)
    with pytest.raises(ClockFixed):
        brokers.stall("orders", "m")
    with pytest.raises(ClockFixed, match="the clock is the database's"):
        await Brokers(Settings(store="postgresql://u@h/d")).advance(1)
    with pytest.raises(SettingError, match=r"test_mode: True is not allowed; .* the clock is the database's"):
        Settings(store="postgresql://u@h/d", test_mode=True)


class Store:
    """Intercepts the appends of a broker's store."""

    def __init__(self, brokers: Brokers) -> None:
        self.store = brokers.brokers[0].store
        self.plain = self.store.append
        self.error: Exception | None = None
        self.hangs: asyncio.Event | None = None
        self.waiting = 0
        self.store.append = self.append  # type: ignore[method-assign]

    async def append(self, appends: Sequence[Append]) -> list[Outcome]:
        if self.error is not None:
            raise self.error
        if self.hangs is not None:
            self.waiting += 1
            await self.hangs.wait()
        return await self.plain(appends)


async def test_a_store_that_fails_ends_the_move_where_it_has_come_to(start_brokers: StartBrokers) -> None:
    brokers, broker = await one(start_brokers)
    async with await Wire.connect(broker.port) as wire:
        member_id, _ = await stable_member(wire)
        store = Store(brokers)
        store.error = StoreError("the disk is broken, on purpose")
        await brokers.advance(MINUTE)  # nothing is due, so nothing fails
        brokers.stall("orders", member_id)
        before_ms = brokers.now_ms()
        with pytest.raises(NotAtRest, match=r"broker 1: group shard \d+ stopped: StoreError: .*on purpose"):
            await brokers.advance(DAY)
        assert brokers.now_ms() - before_ms < SESSION_MS + MINUTE  # no further than where it failed
        store.error = None
        await broker.runtime.loaded()
        await brokers.advance(2 * SESSION_MS)
    assert state(brokers) == ("Empty", 0)


async def test_a_store_that_hangs_is_waited_for_no_longer_than_it_may_take(
    start_brokers: StartBrokers,
) -> None:
    brokers, broker = await one(start_brokers)
    async with await Wire.connect(broker.port) as wire:
        member_id, generation = await stable_member(wire)
        brokers.stall("orders", member_id)
        store = Store(brokers)
        store.hangs = asyncio.Event()
        assert brokers._advancing is not None
        brokers._advancing._rest_s = 0.5
        with pytest.raises(NotAtRest, match="broker 1: group records are still being written"):
            await brokers.advance(DAY)
        store.hangs.set()
        # Clients are heard again.
        beat = HeartbeatRequest(group_id="orders", generation_id=generation, member_id=member_id)
        assert (await wire.call(beat, 4)).error_code == ErrorCode.UNKNOWN_MEMBER_ID


async def test_what_is_due_is_durable_before_time_moves_on(start_brokers: StartBrokers) -> None:
    brokers, broker = await one(start_brokers)
    async with await Wire.connect(broker.port) as wire:
        member_id, _ = await stable_member(wire)
        brokers.stall("orders", member_id)
        store = Store(brokers)
        store.hangs = asyncio.Event()
        before_ms = brokers.now_ms()
        move = asyncio.create_task(brokers.advance(DAY))
        await until(lambda: store.waiting)
        await turns()
        assert not move.done()
        assert brokers.now_ms() - before_ms < MINUTE
        store.hangs.set()
        await move
    assert brokers.now_ms() - before_ms >= DAY


async def test_stopping_the_brokers_ends_a_move(start_brokers: StartBrokers) -> None:
    brokers, broker = await one(start_brokers)
    async with await Wire.connect(broker.port) as wire:
        member_id, _ = await stable_member(wire)
        brokers.stall("orders", member_id)
        store = Store(brokers)
        store.hangs = asyncio.Event()
        move = asyncio.create_task(brokers.advance(DAY))
        await until(lambda: store.waiting)
        stopping = asyncio.create_task(brokers.stop())
        with pytest.raises(StoreClosed, match="were stopped while the clock was being advanced"):
            await move
        store.hangs.set()
        await stopping


async def test_a_move_that_is_given_up_leaves_nobody_presumed_alive(start_brokers: StartBrokers) -> None:
    brokers, broker = await one(start_brokers)
    async with await Wire.connect(broker.port) as wire:
        await stable_member(wire)
        soon = commit(("t", 0, 1), retention_time_ms=MINUTE)
        assert codes(await wire.call(soon, 4)) == [ErrorCode.NONE]
        store = Store(brokers)
        store.hangs = asyncio.Event()
        move = asyncio.create_task(brokers.advance(DAY))
        await until(lambda: store.waiting)  # the offset is being forgotten, and the member presumed alive
        move.cancel()
        with pytest.raises(asyncio.CancelledError):
            await move
        store.hangs.set()
        await brokers.advance(SESSION_MS, expire_all=True)
    assert state(brokers) == ("Empty", 0)


async def test_what_a_thread_is_doing_is_waited_for(start_brokers: StartBrokers) -> None:
    brokers, broker = await one(start_brokers)
    gate = threading.Event()
    done = broker.partitions._in_executor(gate.wait, 60)
    move = asyncio.create_task(brokers.advance(DAY))
    try:
        await turns(200)
        assert not move.done()
    finally:
        gate.set()
    await move
    assert done.done()


async def test_upkeep_goes_on_after_a_move(start_brokers: StartBrokers) -> None:
    brokers, broker = await one(start_brokers, log_cleaner_backoff_ms=20)
    await brokers.advance(DAY)
    upkeep, swept = broker.partitions._upkeep, 0
    sweep = upkeep.sweep_quietly

    async def counted(*, retention: bool) -> None:
        nonlocal swept
        swept += 1
        await sweep(retention=retention)

    upkeep.sweep_quietly = counted  # type: ignore[method-assign]
    await until(lambda: swept > 2, "further sweeps")

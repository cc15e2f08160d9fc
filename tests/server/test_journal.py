"""The journal of whole brokers: what is stored is what is shown, it outlives them, and heartbeats on time
leave no trace."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from muster.coordinator.base.clock import ManualClock
from muster.coordinator.cluster.placement import shard_of
from muster.coordinator.config import Settings
from muster.coordinator.journal.entries import Entry
from muster.coordinator.observe.lag import PartitionLag
from muster.coordinator.runtime.appender import LINGER_MS
from muster.coordinator.server.broker import Broker
from muster.coordinator.server.brokers import Brokers
from muster.coordinator.storage.store import Lease, LeaseKind
from muster.protocol.errors import ErrorCode
from muster.protocol.messages.classic_group import HeartbeatRequest, LeaveGroupRequest
from muster.protocol.messages.offsets import OffsetCommitRequest
from tests.server.conftest import StartBrokers
from tests.server.test_classic_group import join, stable_member, sync
from tests.server.test_data import batch
from tests.support.facts import until
from tests.support.journal import check_entry
from tests.support.leases import TERM_MS
from tests.support.wire import Wire

GROUP = "orders"
LEASE = Lease(LeaseKind.GROUP, shard_of(GROUP, 50))


async def stored(broker: Broker) -> list[Entry]:
    """The entries of the group's shard in the store, once all writes are finished."""
    broker.runtime._appender.flush()
    await broker.runtime._appender.settled()
    rows = await broker.store.read_journal(LEASE, 0, rows_max=10_000, bytes_max=100_000_000)
    return [Entry.from_json(row.value) for row in rows]


def types(entries: list[Entry]) -> list[str]:
    return [entry.type for entry in entries]


def commit(member_id: str, generation_id: int, *offsets: int) -> OffsetCommitRequest:
    parts = [
        OffsetCommitRequest.Partition(partition_index=number, committed_offset=offset, committed_metadata="")
        for number, offset in enumerate(offsets)
    ]
    return OffsetCommitRequest(
        group_id=GROUP,
        generation_id_or_member_epoch=generation_id,
        member_id=member_id,
        topics=[OffsetCommitRequest.Topic(name="t", partitions=parts)],
    )


def coordinator(brokers: Brokers) -> Broker:
    return next(
        broker
        for broker in brokers.running
        if any(each.number == LEASE.number for each in broker.runtime.shards())
    )


async def test_what_is_stored_is_what_is_shown(start_brokers: StartBrokers) -> None:
    [broker] = (await start_brokers()).brokers
    await broker.catalogue.create("t")
    async with await Wire.connect(broker.port) as wire:
        member_id, generation = await stable_member(wire)
        refused = await wire.call(commit(member_id, generation + 1, 5), 8)
        assert refused.topics[0].partitions[0].error_code == ErrorCode.ILLEGAL_GENERATION
        await wire.call(LeaveGroupRequest(group_id=GROUP, member_id=member_id), 0)
    await until(lambda: "member_disconnected" in types(broker.journal.of(GROUP)), "the end of the connection")
    shown = broker.journal.of(GROUP)
    assert await stored(broker) == shown
    for entry in shown:
        check_entry(entry)
    assert {
        "group_created",
        "member_id_issued",
        "member_added",
        "state_changed",
        "assigned",
        "rebalance_completed",
        "all_synced",
        "commit_refused",
        "member_removed",
        "member_disconnected",
    } <= set(types(shown))
    assert broker.recorder.dropped == 0


async def test_heartbeats_on_time_leave_no_trace(start_brokers: StartBrokers) -> None:
    [broker] = (await start_brokers()).brokers
    async with await Wire.connect(broker.port) as wire:
        member_id, generation = await stable_member(wire)
        before = await stored(broker)
        shown = broker.journal.of(GROUP)
        beat = HeartbeatRequest(group_id=GROUP, generation_id=generation, member_id=member_id)
        for _ in range(50):
            assert (await wire.call(beat, 4)).error_code == ErrorCode.NONE
        assert not broker.runtime._appender.holds(broker.runtime.hosts()[LEASE.number])
        assert broker.journal.of(GROUP) == shown
        assert await stored(broker) == before


async def test_a_late_heartbeat_is_a_near_miss() -> None:
    clock = ManualClock()
    settings = Settings(ephemeral=True, port=0, group_initial_rebalance_delay_ms=0, lease_term_ms=TERM_MS)
    brokers = Brokers(settings, clock)
    await brokers.start()
    try:
        [broker] = brokers.brokers
        async with await Wire.connect(broker.port) as wire:
            joining = asyncio.create_task(stable_member(wire))
            while not joining.done():
                clock.advance(1)
                await asyncio.wait([joining], timeout=0.01)
            member_id, generation = joining.result()
            beat = HeartbeatRequest(group_id=GROUP, generation_id=generation, member_id=member_id)
            for pause_ms in (1_000, 1_000, 1_000, 1_000, 1_000, 8_000):
                clock.advance(pause_ms)
                assert (await wire.call(beat, 4)).error_code == ErrorCode.NONE
            [late] = [entry for entry in broker.journal.of(GROUP) if entry.type == "heartbeat_late"]
            assert (late.data["late_ms"], late.data["session_timeout_ms"]) == (8_000, 10_000)
            check_entry(late)
            clock.advance(LINGER_MS)
            assert (await stored(broker))[-1] == late
    finally:
        await brokers.stop()


@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
async def test_a_restart_forgets_nothing(start_brokers: StartBrokers, tmp_path: Path, clean: bool) -> None:
    brokers = await start_brokers(ephemeral=False, data=str(tmp_path))
    [broker] = brokers.brokers
    async with await Wire.connect(broker.port) as wire:
        await stable_member(wire)
        before = broker.journal.of(GROUP)
        assert await stored(broker) == before
    await (brokers.stop_one(0) if clean else brokers.kill_one(0))
    await brokers.start_one(0)
    [again] = brokers.brokers
    await again.runtime.loaded()
    now = again.journal.of(GROUP)
    assert now[: len(before)] == before
    *_, loaded = now
    assert (loaded.type, loaded.data["from_broker"], loaded.data["groups"]) == ("shard_loaded", 1, 1)
    assert ("shard_unloaded" in types(now)) == clean
    assert await stored(again) == now


async def test_who_takes_over_knows_what_happened(start_brokers: StartBrokers) -> None:
    brokers = await start_brokers(brokers=2, test_mode=True)
    first = coordinator(brokers)
    async with await Wire.connect(first.port) as wire:
        await stable_member(wire)
        before = await stored(first)
    await brokers.kill_one(brokers.brokers.index(first))
    [heir] = brokers.running
    await brokers.advance(TERM_MS)
    now = heir.journal.of(GROUP)
    assert now[: len(before)] == before
    [loaded] = [entry for entry in now if entry.type == "shard_loaded"]
    assert loaded.broker == heir.node_id
    assert loaded.data["from_broker"] == first.node_id


async def test_who_hands_over_shows_it_no_more(start_brokers: StartBrokers) -> None:
    brokers = await start_brokers(brokers=2)
    first = coordinator(brokers)
    async with await Wire.connect(first.port) as wire:
        await stable_member(wire)
    await brokers.stop_one(brokers.brokers.index(first))
    [second] = brokers.running
    await until(lambda: "shard_loaded" in types(second.journal.of(GROUP)), "another coordinator")
    assert types(second.journal.of(GROUP))[-2:] == ["shard_unloaded", "shard_loaded"]
    assert first.journal.groups() == []


async def test_with_the_setting_off_nothing_is_stored(start_brokers: StartBrokers) -> None:
    [broker] = (await start_brokers(group_events=False)).brokers
    async with await Wire.connect(broker.port) as wire:
        await stable_member(wire)
    assert "rebalance_completed" in types(broker.journal.of(GROUP))
    assert await stored(broker) == []


@pytest.mark.parametrize("count", [1, 2], ids=["one-broker", "two-brokers"])
async def test_the_lag_of_groups_whoever_leads_their_partitions(
    start_brokers: StartBrokers, count: int
) -> None:
    brokers = await start_brokers(brokers=count, num_partitions=8)
    broker = coordinator(brokers)
    topic = await broker.catalogue.create("t")
    for each in brokers.running:
        await each.catalogue.refresh()
        for partition in range(8):
            if each.partitions.leader_epoch(topic, partition) is not None:
                for _ in range(partition + 1):
                    await each.partitions.append(topic, partition, batch(b"x"))
    async with await Wire.connect(broker.port) as wire:
        member_id, generation = await stable_member(wire)
        [completed] = [each for each in broker.journal.of(GROUP) if each.type == "rebalance_completed"]
        assert "lag" not in completed.data
        answer = await wire.call(commit(member_id, generation, *range(8)), 8)
        assert {each.error_code for each in answer.topics[0].partitions} == {ErrorCode.NONE}
        assert broker.lag.groups() == [GROUP]
        assert broker.lag.of(GROUP) == [
            PartitionLag("t", number, number, number + 1, 1, None) for number in range(8)
        ]
        # Joining again as the leader makes the group rebalance.
        joined = await wire.call(join(member_id=member_id), 9)
        await wire.call(sync(joined.generation_id, member_id, (member_id, b"everything")), 5)
        *_, completed = [each for each in broker.journal.of(GROUP) if each.type == "rebalance_completed"]
        assert (completed.data["lag_before"], completed.data["lag"]) == (8, 8)
        check_entry(completed)

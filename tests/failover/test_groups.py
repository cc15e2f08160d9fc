"""What a group's clients see while its coordinator goes away, comes back, or is missing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import pytest

from muster.coordinator.storage.memory import MemoryStore
from muster.coordinator.storage.postgres import PostgresStore
from muster.coordinator.storage.sqlite import SqliteStore
from muster.coordinator.storage.store import Append, Outcome
from muster.protocol.errors import ErrorCode
from muster.protocol.messages.classic_group import HeartbeatRequest
from muster.protocol.messages.coordinator_records import GroupMetadataKey, OffsetCommitKey, encode_key
from muster.protocol.messages.group_admin import DescribeGroupsRequest, ListGroupsRequest
from muster.protocol.messages.metadata import FindCoordinatorRequest
from muster.protocol.messages.offsets import OffsetFetchRequest
from muster.protocol.messages.topics import CreateTopicsRequest, DeleteTopicsRequest
from tests.failover.brokers import Fault, ThreeBrokers, homes
from tests.failover.conftest import Start
from tests.kafka.our_server import FOREVER_MS, ClockMovedFromOutside
from tests.server.test_classic_group import join, stable_member, sync
from tests.server.test_offsets import codes, commit
from tests.support.wire import DEADLINE_S, Wire

GROUP: Final = "orders"
HOME, NEXT = homes(GROUP)
(OTHER,) = {0, 1, 2} - {HOME, NEXT}
NOT_NOW: Final = {
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
}
"""Kafka's codes for a coordinator that moves: clients look it up and retry."""

STORES: Final[list[Any]] = [MemoryStore, SqliteStore, PostgresStore]


async def connect(cluster: ThreeBrokers, index: int) -> Wire:
    return await Wire.connect(cluster.ports[index])


async def on(cluster: ThreeBrokers, act: Callable[..., Any], *arguments: Any) -> Any:
    """Run a cluster call in a thread: it blocks until its brokers are done."""
    return await asyncio.to_thread(act, *arguments)


def offsets_of(response: Any) -> dict[tuple[str, int], int]:
    return {
        (topic.name, part.partition_index): part.committed_offset
        for topic in response.topics
        for part in topic.partitions
    }


async def committed(wire: Wire, group_id: str = GROUP) -> dict[tuple[str, int], int]:
    response = await wire.call(OffsetFetchRequest(group_id=group_id, topics=None), 5)
    assert response.error_code == ErrorCode.NONE
    return offsets_of(response)


# --- commits ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", list(Fault))
async def test_a_commit_under_way_is_made_or_not_but_never_in_part(start: Start, fault: Fault) -> None:
    """Every answer is true: acknowledged commits are stored, refused ones are not."""
    cluster, partitions, count = start(), 5, 400
    cluster.create_topic("t", partitions)
    async with await connect(cluster, HOME) as wire:
        answers: list[int] = []

        async def listen() -> None:
            try:
                while len(answers) < count:
                    (code,) = set(codes(await wire.receive()))
                    answers.append(code)
                    if len(answers) == count // 4:
                        under_way.set()
            except (asyncio.IncompleteReadError, ConnectionError):
                assert fault not in (Fault.PAUSE, Fault.DRAIN)

        under_way = asyncio.Event()
        listening = asyncio.create_task(listen())
        try:
            for number in range(count):
                await wire.send(
                    commit(*(("t", each, number) for each in range(partitions)), group_id=GROUP), 9
                )
        except ConnectionError:
            assert fault not in (Fault.PAUSE, Fault.DRAIN)
        await under_way.wait()
        assert await on(cluster, cluster.goes, fault, GROUP) == HOME
        async with await connect(cluster, NEXT) as there:
            found = await committed(there)
        await on(cluster, cluster.again, fault, HOME, GROUP)
        await listening
    assert set(answers) <= {ErrorCode.NONE, *NOT_NOW}
    (last,) = set(found.values())  # all partitions of one commit
    acknowledged = [number for number, code in enumerate(answers) if code == ErrorCode.NONE]
    assert last == acknowledged[-1] or len(answers) <= last < count
    async with await connect(cluster, HOME) as there:
        assert await committed(there) == found


# --- lists and descriptions ---------------------------------------------------------------------------------


async def find(cluster: ThreeBrokers, index: int) -> tuple[int, int]:
    """Error code and node id, as that broker answers."""
    async with await connect(cluster, index) as wire:
        found = await wire.call(FindCoordinatorRequest(key=GROUP), 2)
        return found.error_code, found.node_id


async def listed_at_once(cluster: ThreeBrokers, index: int) -> tuple[int, list[str]]:
    async with await connect(cluster, index) as wire:
        response = await wire.call(ListGroupsRequest(), 4)
        return response.error_code, [each.group_id for each in response.groups]


async def listed(cluster: ThreeBrokers, index: int) -> tuple[int, list[str]]:
    """Ask again while the broker is loading any of its shards, as clients do."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            found = await listed_at_once(cluster, index)
            if found[0] != ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                return found


async def described(cluster: ThreeBrokers, index: int) -> Any:
    async with await connect(cluster, index) as wire:
        (group,) = (await wire.call(DescribeGroupsRequest(groups=[GROUP]), 5)).groups
        return group


async def test_what_is_said_of_a_group_whose_coordinator_has_died(start: Start) -> None:
    """Until its leases expire, nobody else is its coordinator; lists omit it without an error, as in Kafka
    while a partition of `__consumer_offsets` has no leader."""
    cluster = start()
    async with await connect(cluster, HOME) as wire:
        member_id, _ = await stable_member(wire)
    before = await described(cluster, HOME)
    assert before.group_state == "Stable"
    await on(cluster, cluster.kill, HOME)
    for index in (NEXT, OTHER):
        assert await listed(cluster, index) == (ErrorCode.NONE, [])
        assert (await described(cluster, index)).error_code == ErrorCode.NOT_COORDINATOR
    await on(cluster, cluster.let_leases_run_out, HOME)
    await on(cluster, cluster.wait_until, lambda: cluster.holder(GROUP) == NEXT, "a new coordinator")
    assert await listed(cluster, NEXT) == (ErrorCode.NONE, [GROUP])
    assert await listed(cluster, OTHER) == (ErrorCode.NONE, [])
    assert await described(cluster, NEXT) == before
    async with asyncio.timeout(DEADLINE_S):
        for index in (NEXT, OTHER):
            while await find(cluster, index) != (ErrorCode.NONE, NEXT + 1):
                pass
    assert [each.member_id for each in before.members] == [member_id]


async def test_what_is_said_while_the_new_coordinator_loads(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = asyncio.Event()
    go_on.set()
    for store in STORES:

        async def wait_and_load(
            self: Any, lease: Any, load: Callable[..., Any] = store.load
        ) -> list[tuple[int, bytes, bytes]]:
            await go_on.wait()
            rows: list[tuple[int, bytes, bytes]] = await load(self, lease)
            return rows

        monkeypatch.setattr(store, "load", wait_and_load)
    cluster = start()
    async with await connect(cluster, HOME) as wire:
        member_id, generation_id = await stable_member(wire)
    go_on.clear()
    await on(cluster, cluster.kill, HOME)
    await on(cluster, cluster.let_leases_run_out, HOME)
    await on(cluster, cluster.wait_until, lambda: cluster.loads(GROUP) == NEXT, "the new coordinator to load")
    for index in (NEXT, OTHER):
        assert (await find(cluster, index))[0] == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert (await listed_at_once(cluster, NEXT))[0] == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert (await described(cluster, NEXT)).error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    # A client that asks it anyway, because it asked before, loses nothing by it.
    beat = HeartbeatRequest(group_id=GROUP, generation_id=generation_id, member_id=member_id)
    async with await connect(cluster, NEXT) as wire:
        assert (await wire.call(beat, 4)).error_code == ErrorCode.NONE
        joined = await wire.call(join(member_id=member_id), 9)
        assert joined.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        synced = await wire.call(sync(generation_id, member_id), 5)
        assert synced.error_code == ErrorCode.REBALANCE_IN_PROGRESS
        refused = await wire.call(OffsetFetchRequest(group_id=GROUP, topics=None), 5)
        assert refused.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        cluster.asked(go_on.set)
        await on(cluster, cluster.wait_until, lambda: cluster.holder(GROUP) == NEXT, "the shard to be loaded")
        assert (await wire.call(beat, 4)).error_code == ErrorCode.NONE
        assert (await wire.call(sync(generation_id, member_id), 5)).assignment == b"everything"


# --- while no broker holds the shard ------------------------------------------------------------------------


async def delete_topic(cluster: ThreeBrokers, index: int, name: str) -> None:
    async with await connect(cluster, index) as wire:
        response = await wire.call(DeleteTopicsRequest(topic_names=[name], timeout_ms=30_000), 5)
        assert [each.error_code for each in response.responses] == [ErrorCode.NONE]


async def create_topic(cluster: ThreeBrokers, index: int, name: str) -> None:
    topic = CreateTopicsRequest.CreatableTopic(
        name=name, num_partitions=1, replication_factor=1, assignments=[], configs=[]
    )
    async with await connect(cluster, index) as wire:
        response = await wire.call(CreateTopicsRequest(topics=[topic]), 7)
        assert [each.error_code for each in response.topics] == [ErrorCode.NONE]


@pytest.mark.parametrize("again", [False, True], ids=["gone", "made-anew"])
@pytest.mark.parametrize("fresh", [False, True], ids=["witness", "fresh"])
async def test_offsets_of_a_topic_that_was_deleted_while_nobody_had_the_shard(
    start: Start, fresh: bool, again: bool
) -> None:
    """Whichever broker loads the shard forgets them, even one that was down when the topic was deleted; the
    other offsets stay."""
    cluster = start(shutdown_grace_ms=200)
    for name in ("t", "u"):
        cluster.create_topic(name)
    async with await connect(cluster, HOME) as wire:
        assert codes(await wire.call(commit(("t", 0, 7), ("u", 0, 8), group_id=GROUP), 9)) == [0, 0]
    await on(cluster, cluster.kill, HOME)
    if fresh:
        await on(cluster, cluster.stop, NEXT)
    await delete_topic(cluster, OTHER, "t")
    if again:
        await create_topic(cluster, OTHER, "t")
    if fresh:
        await on(cluster, cluster.restart, NEXT)
    await on(cluster, cluster.let_leases_run_out, HOME)
    await on(cluster, cluster.wait_until, lambda: cluster.holder(GROUP) == NEXT, "a new coordinator")
    async with await connect(cluster, NEXT) as wire:
        assert await committed(wire) == {("u", 0): 8}


@pytest.mark.parametrize("fault", list(Fault))
async def test_offsets_expire_once(start: Start, fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker that comes back finds its own retention overdue, but writes no second expiry."""
    forgotten: list[bytes] = []
    for store in STORES:

        async def look_and_append(
            self: Any, appends: Sequence[Append], append: Callable[..., Any] = store.append
        ) -> list[Outcome]:
            outcomes: list[Outcome] = await append(self, appends)
            for each, outcome in zip(appends, outcomes, strict=True):
                if outcome is Outcome.WRITTEN:
                    forgotten.extend(key for key, value in each.records if value is None)
            return outcomes

        monkeypatch.setattr(store, "append", look_and_append)
    clock = ClockMovedFromOutside()
    cluster = start(clock=clock, offsets_retention_minutes=60, connections_max_idle_ms=FOREVER_MS)
    cluster.create_topic("t")
    async with await connect(cluster, HOME) as wire:
        assert codes(await wire.call(commit(("t", 0, 7), group_id=GROUP), 9)) == [0]
    await on(cluster, cluster.goes, fault, GROUP)
    async with await connect(cluster, NEXT) as wire:
        assert await committed(wire) == {("t", 0): 7}
        await on(cluster, partial(pass_time, clock, 2 * 3_600_000))
        async with asyncio.timeout(DEADLINE_S):
            while await committed(wire):
                pass
    await on(cluster, cluster.again, fault, HOME, GROUP)
    async with await connect(cluster, HOME) as wire:
        assert await committed(wire) == {}
        await on(cluster, partial(pass_time, clock, 2 * 3_600_000))
        assert await committed(wire) == {}
    offset, group = OffsetCommitKey(group=GROUP, topic="t", partition=0), GroupMetadataKey(group=GROUP)
    assert forgotten == [encode_key(offset), encode_key(group)]


def pass_time(clock: ClockMovedFromOutside, ms: int) -> None:
    end_ms = clock.now_ms() + ms
    while clock.move_to_next(end_ms):
        pass

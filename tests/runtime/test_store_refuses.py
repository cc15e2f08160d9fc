"""A store that accepts nothing for now because it is busy or full, and reports that nothing was changed, is
no reason to move the shard or to forget who is in its groups. What it will never accept fails one shard."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from uuid import UUID

import pytest

from muster.coordinator.base.clock import ManualClock
from muster.coordinator.base.log import Logger
from muster.coordinator.base.step import Step
from muster.coordinator.group.config import GroupConfig
from muster.coordinator.group.effects import TopicsImage
from muster.coordinator.group.shard import Shard
from muster.coordinator.runtime.appender import Appender
from muster.coordinator.runtime.machine import Traits
from muster.coordinator.storage.store import (
    Append,
    JournalRow,
    Lease,
    LeaseKind,
    Outcome,
    StoreBusy,
    StoreError,
    StoreFull,
    StoreRefused,
)
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.consumer_group import ConsumerGroupHeartbeatRequest
from tests.runtime.support import CONTEXT, GROUP, LEASE, SHARD, Bench, CounterShard, HeldStore, code, record
from tests.support.facts import turns, until

OTHER_GROUP, OTHER = "my-group", Lease(LeaseKind.GROUP, 12)
BUSY = StoreBusy("the disk is too slow")
FULL = StoreFull("the disk is full")


# --- busy -------------------------------------------------------------------------------------------


async def test_a_busy_store_is_asked_again_and_nobody_notices(bench: Bench) -> None:
    bench.store.error = BUSY
    first = bench.call(CounterShard.write, 1)
    await until(lambda: bench.store.transactions)
    await turns()
    second = bench.call(CounterShard.write, 2)  # behind the first, into the same transaction
    assert await bench.ask(CounterShard.beat) == "alive"
    bench.store.error = None
    await turns()
    assert not first.done()
    assert not second.done()
    bench.clock.advance(50)
    await until(lambda: first.done() and second.done())
    assert (first.result(), second.result()) == (1, 2)
    assert [len(append.records) for (append,) in bench.store.transactions] == [1, 2]
    assert bench.runtime.shards()[0].failure is None
    assert len(await bench.store.load(LEASE)) == 2


async def test_a_store_that_stays_busy_ends_in_a_reload_without_what_was_not_written(bench: Bench) -> None:
    await bench.ask(CounterShard.write, 1)
    bench.clock.advance(60_000)
    bench.store.error = BUSY
    write = bench.call(CounterShard.write, 2)
    for _ in range(101):
        await turns()
        bench.clock.advance(50)
    await until(write.done)
    assert code(write) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    await until(lambda: len(bench.shards) == 2)
    await bench.runtime.loaded()
    assert await bench.ask(CounterShard.read) == [1]
    assert bench.leases.reclaimed == []
    bench.store.error = None
    assert await bench.ask(CounterShard.write, 3) == 3
    assert await bench.ask(CounterShard.read) == [1, 3]


async def test_what_a_shard_left_behind_is_not_written_when_the_store_has_time_again(bench: Bench) -> None:
    bench.store.error = BUSY
    bench.store.hold()
    write = bench.call(CounterShard.write, 1)
    await until(lambda: bench.store.transactions)
    broke = bench.call(CounterShard.explode)
    await until(lambda: write.done() and broke.done())
    bench.store.let_go()
    await turns()
    bench.store.error = None
    bench.clock.advance(50)
    await turns()
    assert await bench.store.load(LEASE) == []
    assert len(bench.store.transactions) == 1


async def test_closing_waits_for_a_busy_store(bench: Bench) -> None:
    bench.store.error = BUSY
    write = bench.call(CounterShard.write, 1)
    await until(lambda: bench.store.transactions)
    rest = asyncio.ensure_future(bench.runtime.disown(SHARD))
    await turns()
    assert not rest.done()
    bench.store.error = None
    bench.clock.advance(50)
    await rest
    await until(write.done)
    assert write.result() == 1


# --- full -------------------------------------------------------------------------------------------


async def filled(bench: Bench) -> None:
    """One number written; then a write that found no room, and the shard loaded again."""
    await bench.ask(CounterShard.write, 1)
    bench.clock.advance(60_000)
    bench.store.error = FULL
    refused = bench.call(CounterShard.write, 2)
    parked = bench.call(CounterShard.park)
    await until(lambda: refused.done() and parked.done())
    for call in (refused, parked):
        assert code(call) == ErrorCode.COORDINATOR_NOT_AVAILABLE
        error = call.exception()
        assert isinstance(error, KafkaError)
        assert "the disk is full" in error.why
    await bench.runtime.loaded()


async def test_without_room_reads_go_on_under_the_same_epoch(bench: Bench) -> None:
    await filled(bench)
    assert await bench.ask(CounterShard.read) == [1], "what was not written was never seen"
    assert await bench.ask(CounterShard.beat) == "alive"
    (status,) = bench.runtime.shards()
    assert (status.state, status.epoch) == ("active", 1)
    assert bench.leases.reclaimed == [], "a new epoch could not be written"


async def test_without_room_nothing_is_stepped_that_would_write(bench: Bench) -> None:
    await bench.claim(OTHER)
    await bench.runtime.loaded()
    await filled(bench)
    shards, tried = list(bench.shards), len(bench.store.transactions)
    refused = [bench.call(CounterShard.write, 3), bench.call(CounterShard.write, 3, OTHER_GROUP)]
    await until(lambda: all(call.done() for call in refused))
    assert [code(call) for call in refused] == [ErrorCode.COORDINATOR_NOT_AVAILABLE] * 2
    await turns()
    assert len(bench.store.transactions) == tried
    assert bench.shards == shards, "no shard was loaded again for it"


async def test_without_room_the_machine_refuses_what_it_would_write_where_it_can_tell(bench: Bench) -> None:
    bench.operations[CounterShard.hear] = Traits(returns=True, also_writes=True, allows_for_full=True)
    await filled(bench)
    shards, tried = list(bench.shards), len(bench.store.transactions)
    assert await bench.ask(CounterShard.hear) == [1]
    refused = bench.call(CounterShard.hear, 2)
    await until(refused.done)
    assert code(refused) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert "the disk is full" in str(refused.exception())
    await turns()
    assert len(bench.store.transactions) == tried
    assert bench.shards == shards
    bench.store.error = None
    bench.clock.advance(1_000)
    assert await bench.ask(CounterShard.hear, 2) == [1, 2]


class RealBench(Bench):
    def make_shard(self, number: int) -> Shard:
        return Shard(number, GroupConfig())


def joining(group_id: str, member_id: str) -> ConsumerGroupHeartbeatRequest:
    return ConsumerGroupHeartbeatRequest(
        group_id=group_id,
        member_id=member_id,
        member_epoch=0,
        rebalance_timeout_ms=60_000,
        subscribed_topic_names=["t"],
        topic_partitions=[],
    )


@pytest.mark.parametrize("at_once", [False, True])
async def test_without_room_members_of_consumer_groups_stay(at_once: bool) -> None:
    """The shard of a write that finds no room is loaded again, and sessions in it begin anew. Where writes of
    others keep the store full, sessions run on."""
    bench = await RealBench(at_once=at_once).start()
    await bench.claim(OTHER)
    await bench.runtime.loaded()
    bench.runtime.topics_changed(TopicsImage(frozenset(), {"t": UUID(int=1)}, {"t": 2}))
    epoch = (await bench.ask(Shard.consumer_heartbeat, joining(GROUP, "m"))).member_epoch
    beat = ConsumerGroupHeartbeatRequest(group_id=GROUP, member_id="m", member_epoch=epoch)
    bench.store.error = FULL
    for group_id in [GROUP, *[OTHER_GROUP] * 20]:
        bench.clock.advance(5_000)
        refused = bench.call(Shard.consumer_heartbeat, joining(group_id, "n"), group_id)
        await until(refused.done)
        assert code(refused) == ErrorCode.COORDINATOR_NOT_AVAILABLE
        await bench.runtime.loaded()
        assert (await bench.ask(Shard.consumer_heartbeat, beat)).member_epoch == epoch
    bench.store.error = None
    bench.clock.advance(5_000)
    assert (await bench.ask(Shard.consumer_heartbeat, beat)).member_epoch == epoch
    await bench.close()


async def test_room_is_looked_for_once_a_second(bench: Bench) -> None:
    await filled(bench)
    tried = len(bench.store.transactions)
    bench.clock.advance(1_000)
    still_full = bench.call(CounterShard.write, 3)
    await until(still_full.done)
    assert code(still_full) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert len(bench.store.transactions) == tried + 1
    await bench.runtime.loaded()
    bench.store.error = None
    bench.clock.advance(1_000)
    assert await bench.ask(CounterShard.write, 4) == 4
    assert await bench.ask(CounterShard.write, 5) == 5
    assert await bench.ask(CounterShard.read) == [1, 4, 5]


async def test_a_shard_that_took_time_to_load_is_loaded_again_at_once_all_the_same(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pause began before it was loaded, so at the next attempt it has run for less than the pause."""
    await filled(bench)
    make_shard = bench.make_shard

    def slowly(number: int) -> Shard:
        bench.clock.advance(300)
        return make_shard(number)

    monkeypatch.setattr(bench, "make_shard", slowly)
    bench.clock.advance(300)
    for _ in range(5):
        bench.clock.advance(700)
        refused = bench.call(CounterShard.write, 2)
        await until(refused.done)
        assert code(refused) == ErrorCode.COORDINATOR_NOT_AVAILABLE
        await bench.runtime.loaded()
        assert await bench.ask(CounterShard.beat) == "alive"


async def test_a_shard_that_writes_as_soon_as_it_is_loaded_does_not_go_round_and_round(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await filled(bench)

    def loaded(self: CounterShard, step: Step) -> None:
        self.write(7, step)

    monkeypatch.setattr(CounterShard, "loaded", loaded)
    bench.clock.advance(1_000)
    refused = bench.call(CounterShard.write, 2)
    await until(refused.done)
    await turns(200)
    made = len(bench.shards)
    await turns(200)
    assert len(bench.shards) == made
    assert bench.runtime.shards()[0].failure == "StoreFull: the disk is full"
    # Meanwhile no client is sent elsewhere: this is still the coordinator.
    waiting = bench.call(CounterShard.write, 3)
    await until(waiting.done)
    assert code(waiting) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    with pytest.raises(KafkaError) as refusal:
        await bench.runtime.call_shards(CounterShard.read, None, CONTEXT)  # type: ignore[arg-type]
    assert refusal.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    bench.store.error = None
    bench.clock.advance(200)
    await bench.runtime.loaded()
    await turns()
    assert await bench.ask(CounterShard.read) == [1, 7]
    assert bench.leases.reclaimed == []


# --- an error of another kind -------------------------------------------------------------------------------


async def test_an_answer_of_all_shards_does_not_lack_one_that_could_not_write(bench: Bench) -> None:
    bench.store.hold()
    write = bench.call(CounterShard.write, 1)
    await until(lambda: bench.store.transactions)
    meanwhile = asyncio.ensure_future(bench.ask_all(CounterShard.read))  # it waits for the write
    await turns()
    assert not meanwhile.done()
    bench.store.error = StoreError("the connection was lost")
    bench.store.let_go()
    await until(lambda: write.done() and meanwhile.done())
    assert code(write) == ErrorCode.NOT_COORDINATOR
    afterwards = asyncio.ensure_future(bench.ask_all(CounterShard.read))
    await until(afterwards.done)
    assert [code(meanwhile), code(afterwards)] == [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS] * 2
    assert bench.leases.reclaimed == [], "it still waits"


@pytest.mark.parametrize("fenced", [False, True])
async def test_an_answer_of_all_shards_does_not_lack_one_that_is_claimed_again(
    bench: Bench, fenced: bool
) -> None:
    bench.store.hold()
    write = bench.call(CounterShard.write, 1)
    await until(lambda: bench.store.transactions)
    meanwhile = asyncio.ensure_future(bench.ask_all(CounterShard.read))
    await turns()
    if fenced:
        await bench.store.claim([LEASE], 1, 3_000)
    else:
        bench.store.error = StoreError("the connection was lost")
    bench.store.let_go()
    await until(lambda: write.done() and meanwhile.done())
    bench.clock.advance(100)
    assert bench.leases.reclaimed == [(LEASE, 1)]
    afterwards = asyncio.ensure_future(bench.ask_all(CounterShard.read))
    await until(afterwards.done)
    assert [code(meanwhile), code(afterwards)] == [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS] * 2
    bench.store.error = None
    await bench.claim(LEASE)
    await bench.runtime.loaded()
    assert await bench.ask_all(CounterShard.read) == [[]]


# --- what is never accepted ---------------------------------------------------------------------------------

NEVER = StoreRefused("it is too large")
BAD_NOTE = JournalRow(0, None, b"bad")


class Picky(HeldStore):
    """Refuses for good what has a record of the number 13 or `BAD_NOTE` in it."""

    def __init__(self) -> None:
        super().__init__(now_ms=lambda: 0)
        self.on_append: Callable[[], object] = lambda: None

    async def append(self, appends: Sequence[Append]) -> list[Outcome]:
        self.on_append()
        if any(record(13).row() in each.records or BAD_NOTE in each.journal for each in appends):
            self.transactions.append(appends)
            raise NEVER
        return await super().append(appends)


@pytest.mark.parametrize("at_once", [False, True])
async def test_what_is_never_accepted_stops_no_other_shard(at_once: bool) -> None:
    bench = await Bench(store=Picky(), at_once=at_once).start()
    await bench.claim(OTHER)
    await bench.runtime.loaded()
    bad, good = bench.call(CounterShard.write, 13), bench.call(CounterShard.write, 1, OTHER_GROUP)
    await until(lambda: bad.done() and good.done())
    assert [len(appends) for appends in bench.store.transactions] == [2, 1, 1]
    assert code(bad) == ErrorCode.NOT_COORDINATOR
    assert good.result() == 1
    assert len(await bench.store.load(OTHER)) == 1
    failures = {status.number: status.failure for status in bench.runtime.shards()}
    assert failures == {SHARD: "StoreRefused: it is too large", OTHER.number: None}
    await bench.close()


class NotedWriter:
    def __init__(self, lease: Lease, epoch: int) -> None:
        self.lease, self.epoch = lease, epoch
        self.told: list[object] = []

    def appended(self, sequence: int, outcome: Outcome) -> None:
        self.told.append(sequence)

    def fail(self, why: Exception) -> None:
        self.told.append(why)


class Desk:
    """An appender over a picky store, three writers, and what became of their journal rows."""

    def __init__(self) -> None:
        self.store, self.clock = Picky(), ManualClock()
        self.written: list[int] = []
        self.dropped: list[int] = []
        self.appender = Appender(
            self.store,
            self.clock,
            log=Logger(part="test"),
            write_timeout_ms=5_000,
            journal_written=lambda shard, size_bytes: self.written.append(shard),
            journal_dropped=self.dropped.append,
        )

    async def open(self) -> list[NotedWriter]:
        await self.store.open()
        leases = [Lease(LeaseKind.GROUP, number) for number in range(3)]
        return [
            NotedWriter(each.lease, each.epoch) for each in await self.store.claim(leases, 1, 3_000) if each
        ]


async def test_a_journal_row_that_is_never_accepted_stops_nobody() -> None:
    desk = Desk()
    first, second, third = await desk.open()
    desk.appender.append(first, [record(1).row()], 1, [BAD_NOTE])
    desk.appender.append(second, [record(2).row()], 1, [JournalRow(0, None, b"good")])
    desk.appender.note(third, [BAD_NOTE])
    await desk.appender.settled()
    assert (first.told, second.told, third.told) == ([1], [1], [])
    assert (desk.written, desk.dropped) == ([1], [1, 1])


async def test_a_store_that_becomes_busy_between_the_parts_of_a_transaction_is_asked_again() -> None:
    desk = Desk()
    first, second, third = await desk.open()
    busy = [None, None, BUSY]
    rows = [[record(1).row()], [record(13).row()], [record(3).row()]]
    for writer, row in zip((first, second, third), rows, strict=True):
        desk.appender.append(writer, row, 1)

    def on_append() -> None:
        error = busy.pop(0) if busy else None
        if error is not None:
            raise error

    desk.store.on_append = on_append
    settled = asyncio.ensure_future(desk.appender.settled())
    await until(lambda: desk.clock.next_ms() is not None)
    assert (first.told, second.told, third.told) == ([1], [], [])
    desk.clock.advance(50)
    await settled
    assert (first.told, second.told, third.told) == ([1], [NEVER], [1])
    assert len(await desk.store.load(first.lease)) == 1


async def test_a_writer_that_was_discarded_meanwhile_is_left_out_when_each_is_tried_alone() -> None:
    desk = Desk()
    first, second, third = await desk.open()
    rows = [[record(1).row()], [record(13).row()], [record(3).row()]]
    for writer, row in zip((first, second, third), rows, strict=True):
        desk.appender.append(writer, row, 1)
    desk.store.on_append = lambda: desk.appender.discard(third)
    await desk.appender.settled()
    assert (first.told, second.told, third.told) == ([1], [NEVER], [])
    assert await desk.store.load(third.lease) == []

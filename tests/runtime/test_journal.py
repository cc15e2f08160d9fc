"""Events of the core are stored with the records they describe, shown in the same order, and cost groups
nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from muster.coordinator.base.answers import LATER
from muster.coordinator.base.step import Step
from muster.coordinator.group.events import GroupCreated, Trigger
from muster.coordinator.group.hard_state import HardState
from muster.coordinator.group.shard import Shard
from muster.coordinator.journal.entries import WHOLE_BROKER, Entry, Member
from muster.coordinator.runtime import appender, loader
from muster.coordinator.runtime.appender import FULL_PAUSE_MS, LINGER_MS
from muster.coordinator.runtime.machine import Traits
from muster.coordinator.runtime.recorder import Recorder
from muster.coordinator.runtime.ring import Journal
from muster.coordinator.runtime.shard_host import HostState
from muster.coordinator.storage.store import (
    Append,
    JournalRow,
    Lease,
    LeaseKind,
    Outcome,
    StoreBusy,
    StoredJournalRow,
    StoreError,
    StoreFull,
)
from muster.protocol.errors import ErrorCode, KafkaError
from tests.runtime.support import CONTEXT, GROUP, LEASE, SHARD, Bench, CounterShard, HeldStore, record
from tests.support.facts import until
from tests.support.journal import check_entry

BROKER = 7
OTHER = Lease(LeaseKind.GROUP, 3)
OTHER_GROUP = "g"  # shard 3


class TellingShard(CounterShard):
    """Its events are real; their generation is the number they concern."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.hard = HardState()
        self.groups = {}

    def contents(self) -> dict[str, int]:
        groups = {*self.groups, *self.hard.groups, *self.hard.offsets}
        return {"groups": len(groups)} if groups else {}

    def glance(self, request: int, step: Step) -> str:
        """Returns its answer and emits an event."""
        step.events.append(self._event(request, step.now_ms))
        return "seen"

    def _event(self, number: int, now_ms: int) -> GroupCreated:
        group_id = GROUP if self.number == SHARD else OTHER_GROUP
        return GroupCreated(now_ms, group_id, number, Trigger.REQUESTED, None, None)

    def write(self, request: int, step: Step) -> None:
        super().write(request, step)
        step.events[:] = [self._event(request, step.now_ms)]

    def tell(self, request: int, step: Step) -> None:
        """Emit an event without a record."""
        step.events.append(self._event(request, step.now_ms))
        step.reply("told")

    def write_silently(self, request: int, step: Step) -> None:
        step.rows.append(record(request).row())
        step.reply(request)

    def write_and_return(self, request: int, step: Step) -> str:
        step.rows.append(record(request).row())
        return "written"

    def tell_nonsense(self, request: object, step: Step) -> None:
        step.events += [self._event(1, step.now_ms), "no event", self._event(2, step.now_ms)]
        step.reply("told")


class JournalStore(HeldStore):
    """Fails as the test says, possibly for journal rows only."""

    journal_error: StoreError | None = None

    async def append(self, appends: Sequence[Append]) -> list[Outcome]:
        if self.journal_error is not None and any(each.journal for each in appends):
            self.transactions.append(appends)
            raise self.journal_error
        return await super().append(appends)


def check_entries(entries: Sequence[Entry]) -> None:
    for entry in entries:
        check_entry(entry)


class JournalBench(Bench):
    store: JournalStore

    def __init__(self, *, stored: bool = True) -> None:
        self.journal = Journal()
        self.recorder = Recorder(
            BROKER, self.journal, stored=stored, behind_ms=lambda: self.clock.date_ms() - self.clock.now_ms()
        )
        super().__init__(recorder=self.recorder)
        self.store = JournalStore(now_ms=self.clock.now_ms)
        self.runtime._store = self.runtime._appender._store = self.store
        self.journal.listeners.append(check_entries)

    def make_shard(self, number: int) -> Shard:
        self.shards.append(TellingShard(number))
        return self.shards[-1]

    async def stored(self, lease: Lease = LEASE) -> list[int]:
        """The generations of the entries in the store, in order."""
        return [entry.generation or 0 for entry in await self.entries(lease)]

    async def entries(self, lease: Lease = LEASE) -> list[Entry]:
        rows = await self.store.read_journal(lease, 0, rows_max=10_000, bytes_max=100_000_000)
        return [Entry.from_json(row.value) for row in rows]

    def shown(self) -> list[int]:
        return [entry.generation or 0 for entry in self.journal.of(GROUP)]

    async def count_transactions(self, count: int) -> None:
        await until(lambda: len(self.store.transactions) >= count, f"{count} transactions")
        await self.runtime._appender.settled()
        assert len(self.store.transactions) == count


@pytest.fixture
async def bench() -> AsyncIterator[JournalBench]:
    bench = JournalBench()
    await bench.start()
    yield bench
    await bench.close()


async def test_entries_are_stored_in_the_transaction_of_their_step(bench: JournalBench) -> None:
    await bench.ask(TellingShard.write, 1)
    [[append]] = bench.store.transactions
    assert len(append.records) == 1
    [row] = append.journal
    [entry] = bench.journal.of(GROUP)
    assert row == JournalRow(bench.clock.now_ms(), GROUP.encode(), entry.to_json())
    assert (entry.type, entry.broker, entry.shard, entry.group, entry.generation) == (
        "group_created",
        BROKER,
        SHARD,
        GROUP,
        1,
    )
    assert bench.journal_written == [(SHARD, row.size_bytes)]


async def test_rows_have_the_date_where_the_clock_is_behind(bench: JournalBench) -> None:
    """After a suspend. What follows from what is told by a clock that goes on evenly."""
    for generation, (ahead_ms, apart_ms) in enumerate([(0, 0), (999, 0), (7_200_000, 7_200_000), (0, 0)], 1):
        bench.clock.date_ahead_ms = ahead_ms
        await bench.ask(TellingShard.write, generation)
        [append] = bench.store.transactions[-1]
        [row] = append.journal
        assert Entry.from_json(row.value).at_ms == bench.clock.now_ms()
        assert row.at_ms == bench.clock.now_ms() + apart_ms


async def test_entries_without_records_follow_within_a_moment_and_nobody_waits(bench: JournalBench) -> None:
    bench.store.hold()
    assert await bench.ask(TellingShard.tell, 1) == "told"
    assert await bench.ask(TellingShard.tell, 2) == "told"
    assert bench.shown() == [1, 2]
    assert await bench.ask(TellingShard.read) == []
    bench.clock.advance(LINGER_MS - 1)
    assert bench.store.transactions == []
    bench.clock.advance(1)
    await until(lambda: bench.store.transactions, "the transaction")
    # Reads wait for records, not for entries.
    assert await bench.ask(TellingShard.read) == []
    bench.store.let_go()
    await bench.count_transactions(1)
    assert await bench.stored() == [1, 2]


async def test_entries_without_records_go_with_the_next_of_any_shard(bench: JournalBench) -> None:
    await bench.claim(OTHER)
    await bench.runtime.loaded()
    await bench.ask(TellingShard.tell, 1)
    other = bench.call(TellingShard.write, 5, OTHER_GROUP)
    await until(other.done, "the other shard's write")
    assert await bench.stored() == [1]
    assert await bench.stored(OTHER) == [5]
    assert len(bench.store.transactions) == 1
    bench.clock.advance(10 * LINGER_MS)
    await bench.count_transactions(1)


async def test_memory_and_store_have_the_same_order_and_nothing_is_shown_before_it_is_durable(
    bench: JournalBench,
) -> None:
    bench.store.hold()
    bench.call(TellingShard.write, 1)
    bench.call(TellingShard.tell, 2)
    bench.call(TellingShard.write, 3)
    last = bench.call(TellingShard.tell, 4)
    await until(last.done, "the answer of a step that does not wait")
    assert bench.shown() == []
    bench.store.let_go()
    await until(lambda: bench.shown() == [1, 2, 3, 4], "what is durable")
    bench.clock.advance(LINGER_MS)
    await bench.runtime._appender.settled()
    assert await bench.stored() == [1, 2, 3, 4]


async def test_what_writes_nothing_leaves_the_journal_alone(bench: JournalBench) -> None:
    await bench.ask(TellingShard.write_silently, 1)
    [[append]] = bench.store.transactions
    assert list(append.journal) == []
    assert bench.journal_written == []


async def test_with_the_setting_off_entries_are_kept_in_memory_alone() -> None:
    bench = JournalBench(stored=False)
    await bench.start()
    await bench.ask(TellingShard.write, 1)
    await bench.ask(TellingShard.tell, 2)
    bench.clock.advance(LINGER_MS)
    await bench.count_transactions(1)
    assert await bench.stored() == []
    assert bench.shown() == [1, 2]
    await bench.close()


# --- a store that refuses -------------------------------------------------------------------------------


async def test_records_are_written_without_entries_that_have_no_room(bench: JournalBench) -> None:
    bench.store.journal_error = StoreFull("no room")
    await bench.ask(TellingShard.tell, 1)
    assert await bench.ask(TellingShard.write, 2) == 2
    assert [len(append.journal) for [append] in bench.store.transactions] == [2, 0]
    assert bench.recorder.dropped == 2
    assert bench.shown() == [1, 2]
    # It is not retried for a while.
    assert await bench.ask(TellingShard.write, 3) == 3
    assert len(bench.store.transactions) == 3
    assert bench.recorder.dropped == 3
    bench.store.journal_error = None
    bench.clock.advance(FULL_PAUSE_MS)
    await bench.ask(TellingShard.write, 4)
    assert await bench.stored() == [4]
    assert bench.shown() == [1, 2, 3, 4]


async def test_a_store_without_room_for_entries_refuses_no_group(bench: JournalBench) -> None:
    bench.store.journal_error = StoreFull("no room")
    await bench.ask(TellingShard.tell, 1)
    bench.clock.advance(LINGER_MS)
    await bench.count_transactions(1)
    assert bench.recorder.dropped == 1
    bench.store.journal_error = None
    assert await bench.ask(TellingShard.write_silently, 2) == 2


async def test_entries_that_a_busy_store_does_not_take_in_time_are_dropped(bench: JournalBench) -> None:
    bench.store.journal_error = StoreBusy("too much waits")
    await bench.ask(TellingShard.tell, 1)
    for _ in range(1_000):
        bench.clock.advance(50)
        await until(lambda: bench.clock.next_ms() is not None or bench.recorder.dropped, "the next attempt")
        if bench.recorder.dropped:
            break
    assert bench.recorder.dropped == 1
    bench.store.journal_error = None
    assert await bench.ask(TellingShard.write, 2) == 2
    assert await bench.stored() == [2]


async def test_a_store_that_fails_with_entries_alone_stops_no_shard(bench: JournalBench) -> None:
    bench.store.journal_error = StoreError("the disk is gone")
    await bench.ask(TellingShard.tell, 1)
    bench.clock.advance(LINGER_MS)
    await bench.count_transactions(1)
    bench.store.journal_error = None
    assert bench.recorder.dropped == 1
    assert await bench.ask(TellingShard.write, 2) == 2
    assert len(bench.shards) == 1


async def test_entries_alone_find_out_that_the_lease_is_lost(bench: JournalBench) -> None:
    await bench.store.claim([LEASE], 1, 3_000)
    await bench.ask(TellingShard.tell, 1)
    bench.clock.advance(LINGER_MS)
    await until(lambda: bench.leases.reclaimed, "the claim")
    assert await bench.stored() == []


@pytest.mark.interpreted
async def test_entries_that_wait_have_a_bound(bench: JournalBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(appender, "JOURNAL_BYTES_MAX", 1_000)
    for number in range(100):
        await bench.ask(TellingShard.tell, number)
    bench.clock.advance(LINGER_MS)
    await bench.count_transactions(1)
    kept = len(await bench.stored())
    assert 0 < kept < 10
    assert bench.recorder.dropped == 100 - kept
    assert len(bench.shown()) == 100


@pytest.mark.interpreted
async def test_an_event_that_cannot_be_noted_stops_nothing(bench: JournalBench) -> None:
    assert await bench.ask(TellingShard.tell_nonsense) == "told"
    assert bench.shown() == [1, 2]
    assert bench.recorder.dropped == 1
    bench.journal.listeners.clear()
    bench.runtime.note("fault_fired", {"rule": {1, 2}}, group_id=GROUP)
    assert bench.recorder.dropped == 2
    assert await bench.ask(TellingShard.write, 3) == 3
    assert await bench.stored() == [1, 2, 3]


# --- loading and unloading ------------------------------------------------------------------------------


async def give(store: HeldStore, *entries: Entry | bytes) -> int:
    """Have another broker write these entries; return the epoch it used."""
    [grant] = await store.claim([LEASE], 1, 3_000)
    assert grant is not None
    values = [each if isinstance(each, bytes) else each.to_json() for each in entries]
    rows = [JournalRow(1, None, value) for value in values]
    await store.append([Append(LEASE, grant.epoch, [], rows)])
    return grant.epoch


def earlier(number: int, **data: object) -> Entry:
    return Entry("group_created", number, 3, SHARD, GROUP, number, data=data)


async def load_again(bench: JournalBench) -> None:
    await bench.claim(LEASE)
    await bench.runtime.loaded()


async def test_the_newest_entries_are_there_again_when_a_shard_is_loaded(bench: JournalBench) -> None:
    await give(bench.store, *(earlier(number) for number in range(1, loader._ENTRIES_MAX + 6)))
    heard: list[Sequence[Entry]] = []
    bench.journal.listeners.append(heard.append)
    await load_again(bench)
    assert bench.shown() == list(range(6, loader._ENTRIES_MAX + 6))
    assert heard == []


async def test_of_large_entries_fewer_are_read_but_the_newest(bench: JournalBench) -> None:
    large = "x" * 300_000
    await give(bench.store, *(earlier(number, text=large) for number in range(1, 20)))
    await load_again(bench)
    shown = bench.shown()
    assert shown
    assert shown == list(range(20 - len(shown), 20))
    assert len(shown) <= loader._ENTRIES_BYTES_MAX // len(large) + 1


async def test_what_is_no_entry_is_passed_over(bench: JournalBench) -> None:
    await give(bench.store, earlier(1), b"no entry", earlier(2))
    await load_again(bench)
    assert bench.shown() == [1, 2]


async def test_a_journal_that_cannot_be_read_keeps_no_shard_from_serving(
    bench: JournalBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await give(bench.store, earlier(1))

    async def damaged(*_: object, **__: object) -> list[StoredJournalRow]:
        raise StoreError("damaged")

    monkeypatch.setattr(bench.store, "read_journal", damaged)
    await load_again(bench)
    assert await bench.ask(TellingShard.write_silently, 1) == 1


@pytest.mark.interpreted
async def test_a_shard_with_groups_tells_that_it_was_loaded_and_from_whom(
    bench: JournalBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await give(bench.store, earlier(1))
    made = bench.make_shard

    def with_groups(number: int) -> Shard:
        shard = made(number)
        shard.hard.offsets["a"] = shard.hard.offsets["b"] = {}
        return shard

    monkeypatch.setattr(bench, "make_shard", with_groups)
    bench.leases.silent[3] = 2_400
    epoch = await bench.claim(LEASE)
    await bench.runtime.loaded()
    first, loaded = bench.journal.of(GROUP)
    assert first == earlier(1)
    assert (loaded.type, loaded.group, loaded.generation) == ("shard_loaded", None, None)
    assert loaded.data == {
        "epoch": epoch, "groups": 2, "took_ms": 0, "from_broker": 3, "from_silent_ms": 2_400
    }  # fmt: skip
    bench.clock.advance(LINGER_MS)
    await bench.count_transactions(2)
    assert (await bench.entries())[-1] == loaded


async def test_a_shard_that_is_given_up_writes_what_it_knows_and_is_forgotten(bench: JournalBench) -> None:
    bench.shard.groups[GROUP] = None  # type: ignore[assignment]
    heard: list[Entry] = []
    bench.journal.listeners.append(heard.extend)
    await bench.ask(TellingShard.tell, 1)
    bench.store.hold()
    at_rest = bench.runtime.disown(SHARD, "its lease was not renewed in time")
    await until(lambda: bench.store.transactions, "the transaction")
    assert [entry.type for entry in heard] == ["group_created"]
    bench.store.let_go()
    await at_rest
    assert [entry.type for entry in heard] == ["group_created", "shard_unloaded"]
    assert heard[-1].data["why"] == "its lease was not renewed in time"
    assert await bench.entries() == heard
    assert bench.journal.groups() == bench.journal.latest() == []


async def test_a_shard_without_groups_comes_and_goes_in_silence(bench: JournalBench) -> None:
    await bench.runtime.disown(SHARD)
    await bench.runtime.close()
    assert bench.store.transactions == []
    assert bench.journal.latest() == []


async def test_a_shard_that_failed_says_why_and_what_is_known_stays(bench: JournalBench) -> None:
    bench.shard.groups[GROUP] = None  # type: ignore[assignment]
    await bench.ask(TellingShard.write, 1)
    bench.store.error = StoreError("the disk is gone")
    bench.call(TellingShard.write, 2)
    await until(lambda: len(bench.journal.of(GROUP)) == 2, "the failure")
    unloaded = bench.journal.of(GROUP)[1]
    assert (unloaded.type, unloaded.data["why"]) == ("shard_unloaded", "StoreError: the disk is gone")
    bench.store.error = None
    await load_again(bench)
    assert [entry.type for entry in bench.journal.of(GROUP)] == ["group_created", "shard_unloaded"]


@pytest.mark.interpreted
async def test_what_happens_to_a_group_whose_shard_is_not_here_is_kept_in_memory(bench: JournalBench) -> None:
    data = {"rule": 1, "api": "JoinGroup", "action": "delay(5)"}
    bench.store.error = StoreError("the disk is gone")
    bench.call(TellingShard.write, 1)
    await until(lambda: bench.runtime.hosts()[0].state is HostState.FAILED, "the failure")
    bench.runtime.note("fault_fired", data, group_id=GROUP)
    assert [entry.type for entry in bench.journal.of(GROUP)] == ["fault_fired"]


async def test_a_broker_that_dies_writes_nothing_more(bench: JournalBench) -> None:
    await bench.ask(TellingShard.tell, 1)
    bench.runtime.kill()
    bench.clock.advance(10 * LINGER_MS)
    await bench.runtime._appender.settled()
    assert bench.store.transactions == []


# --- what happens outside the core ----------------------------------------------------------------------


@pytest.mark.interpreted
async def test_what_happens_outside_the_core_is_put_down_in_turn(bench: JournalBench) -> None:
    bench.store.hold()
    bench.call(TellingShard.write, 1)
    await until(lambda: bench.store.transactions, "the transaction")
    member = Member("m", "c", "h")
    data = {"rule": 1, "api": "JoinGroup", "action": "delay(5)"}
    bench.runtime.note("fault_fired", data, group_id=GROUP, member=member)
    assert bench.journal.of(GROUP) == []
    bench.store.let_go()
    await until(lambda: len(bench.journal.of(GROUP)) == 2, "both")
    fired = bench.journal.of(GROUP)[1]
    assert (fired.type, fired.member, fired.data) == ("fault_fired", member, data)
    bench.clock.advance(LINGER_MS)
    await bench.runtime._appender.settled()
    assert (await bench.entries())[1] == fired


async def test_what_concerns_the_whole_broker_is_kept_in_memory(bench: JournalBench) -> None:
    await bench.ask(TellingShard.write, 1)
    bench.runtime.note("clock_moved", {"by_ms": 5})
    moved = bench.journal.of(GROUP)[1]
    assert (moved.type, moved.shard, moved.group) == ("clock_moved", WHOLE_BROKER, None)
    data = {"rule": 2, "api": "JoinGroup", "action": "drop_response"}
    bench.runtime.note("fault_fired", data)
    bench.runtime.note("fault_fired", data, group_id="elsewhere")
    assert [entry.type for entry in bench.journal.of("elsewhere")] == [
        "clock_moved",
        "fault_fired",
        "fault_fired",
    ]
    assert len(await bench.stored()) == 1


async def test_what_an_operation_that_returns_its_answer_tells_is_told_behind_it(bench: JournalBench) -> None:
    bench.operations[TellingShard.glance] = Traits(reads=True, returns=True)
    answers: list[object] = []
    bench.store.hold()
    answers += (
        bench.runtime.call_at_once(GROUP, TellingShard.glance, number, CONTEXT, answers.append)
        for number in (1, 2)
    )
    assert answers == ["seen", "seen"]
    assert bench.shown() == [1, 2]
    bench.call(TellingShard.write, 3)
    assert await bench.ask(TellingShard.glance, 4) == "seen"  # behind the write, from the inbox
    assert bench.shown() == [1, 2]
    bench.store.let_go()
    await until(lambda: bench.shown() == [1, 2, 3, 4])


async def test_an_operation_that_returns_its_answer_may_not_write(bench: JournalBench) -> None:
    bench.operations[TellingShard.write_silently] = Traits(returns=True)
    refused = bench.runtime.call_at_once(GROUP, TellingShard.write_silently, 1, CONTEXT, lambda _: None)
    assert isinstance(refused, KafkaError)
    assert refused.code is ErrorCode.NOT_COORDINATOR
    assert bench.store.transactions == []


async def test_one_that_also_writes_is_answered_at_once_where_it_does_not(bench: JournalBench) -> None:
    """Otherwise it is answered when durable, whether it returns its answer or replies."""
    for operation in (
        TellingShard.glance,
        TellingShard.write_silently,
        TellingShard.write,
        TellingShard.refuse,
    ):
        bench.operations[operation] = Traits(returns=True, also_writes=True)
    answers: list[object] = []

    def ask(operation: Any, request: object) -> object:
        return bench.runtime.call_at_once(GROUP, operation, request, CONTEXT, answers.append)

    bench.store.hold()
    assert ask(TellingShard.glance, 1) == "seen"
    assert ask(TellingShard.write_and_return, 2) is LATER
    assert ask(TellingShard.write, 3) is LATER
    assert ask(TellingShard.refuse, True) is LATER  # it has read what is not durable yet
    assert ask(TellingShard.glance, 4) == "seen"
    assert isinstance(ask(TellingShard.refuse, False), KafkaError)
    assert answers == []
    bench.store.let_go()
    await until(lambda: len(answers) == 3)
    assert answers[:2] == ["written", 3]
    assert isinstance(answers[2], KafkaError)


async def test_one_that_also_writes_may_not_refuse_when_it_has(bench: JournalBench) -> None:
    bench.operations[TellingShard.refuse_late] = Traits(returns=True, also_writes=True)
    refused = bench.runtime.call_at_once(GROUP, TellingShard.refuse_late, 1, CONTEXT, lambda _: None)
    assert isinstance(refused, KafkaError)
    assert refused.code is ErrorCode.NOT_COORDINATOR
    assert bench.store.transactions == []

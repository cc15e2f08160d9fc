"""How far groups lag behind, in records and in time, and what the journal records of it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any
from uuid import UUID

import pytest

from muster.coordinator.base.clock import ManualClock
from muster.coordinator.group.committed_offset import CommittedOffset
from muster.coordinator.group.hard_state import UNKNOWN_TIME
from muster.coordinator.journal.entries import Entry
from muster.coordinator.observe.lag import ASKED_MS, FRESH_MS, SAMPLE_MS, History, Lag, PartitionLag
from muster.coordinator.observe.recovery import FIRST_MS, LOOK_MAX_MS, RARELY_MS, RECOVERY_MAX_MS, Recovery
from muster.coordinator.topics.logs import PartitionId
from muster.coordinator.topics.sources import Looked
from muster.protocol.errors import ErrorCode, KafkaError
from tests.support.facts import turns, until
from tests.support.journal import check_entry

GROUP = "orders"
TOPIC_IDS = {"t": UUID(int=1), "u": UUID(int=2)}


# --- the history of a log end offset ------------------------------------------------------------------------


def history(*points: tuple[int, int]) -> History:
    made = History()
    for at_ms, end in points:
        made.add(at_ms, end)
    return made


def test_a_record_was_written_between_two_looks() -> None:
    ends = history((0, 10), (1_000, 20), (2_000, 20), (3_000, 20), (4_000, 30))
    assert ends.written_ms(9) is None
    assert ends.written_ms(10) == 0
    assert ends.written_ms(15) == 500
    # Nothing was written from 1,000 to 3,000.
    assert ends.written_ms(19) == 900
    assert ends.written_ms(20) == 3_000
    assert ends.written_ms(25) == 3_500
    assert ends.written_ms(30) is None
    assert ends.newest == (4_000, 30)


def test_an_end_that_went_back_begins_anew() -> None:
    ends = history((0, 10), (1_000, 20), (2_000, 5), (3_000, 15))
    assert ends.written_ms(10) == 2_500
    assert ends.written_ms(4) is None


def test_a_history_has_a_bound_and_reaches_back_all_the_same() -> None:
    ends = history(*((second * 1_000, second * 10) for second in range(1_000)))
    assert len(ends) <= 64
    for offset in range(9_980):
        assert ends.written_ms(offset) == offset * 100


def test_a_random_history_is_never_off_by_more_than_a_gap() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    written: list[int] = []
    ends = History()
    for second in range(300):
        written += sorted(second * 1_000 + rng.randrange(1_000) for _ in range(rng.choice([0, 0, 1, 5])))
        ends.add((second + 1) * 1_000, len(written))
    kept = list(ends._at_ms)
    gap_ms = max(later - earlier for earlier, later in pairwise(kept))
    for offset, at_ms in enumerate(written):
        said_ms = ends.written_ms(offset)
        assert said_ms is None or abs(said_ms - at_ms) <= gap_ms


# --- groups -------------------------------------------------------------------------------------------------


class World:
    """Partitions with log end offsets, and groups with committed offsets."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.offsets: dict[str, dict[tuple[str, int], CommittedOffset]] = {}
        self.ends: dict[PartitionId, int] = {}
        self.open: set[PartitionId] = set()
        self.looks: list[list[PartitionId]] = []
        self.error: OSError | None = None
        self.unreadable: set[PartitionId] = set()
        self.entries: list[Entry] = []
        self.lag = Lag(
            self.clock,
            groups=lambda: list(self.offsets),
            committed=lambda group_id: self.offsets.get(group_id, {}),
            topic_id=TOPIC_IDS.get,
            known=lambda each: (0, self.ends[each]) if each in self.open else None,
            look=self.look,
        )
        self.recovery = Recovery(
            self.lag, self.clock, groups_of_shard=lambda shard: list(self.offsets), note=self.note
        )

    async def look(self, partitions: Sequence[PartitionId]) -> list[Looked]:
        self.looks.append(list(partitions))
        if self.error is not None:
            raise self.error
        error = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "damaged")
        return [
            error if each in self.unreadable else (0, self.ends[each]) if each in self.ends else None
            for each in partitions
        ]

    def note(self, type: str, data: Mapping[str, Any], *, group_id: str) -> None:
        entry = Entry(type, self.clock.now_ms(), 1, 0, group_id, None, data=data)
        check_entry(entry)
        self.entries.append(entry)

    def log(self, topic: str, partition: int, end: int, *, open: bool = True) -> None:
        where = PartitionId(TOPIC_IDS[topic], partition)
        self.ends[where] = end
        if open:
            self.open.add(where)

    def commit(self, offset: int, topic: str = "t", partition: int = 0, group_id: str = GROUP) -> None:
        committed = CommittedOffset(offset, -1, "", self.clock.now_ms(), UNKNOWN_TIME, UUID(int=0))
        self.offsets.setdefault(group_id, {})[topic, partition] = committed

    async def settle(self) -> None:
        """Return when no lookup is in progress."""
        await until(lambda: self.recovery._task is None and self.lag._sampling is None, "the end of looking")

    async def advance(self, ms: int) -> None:
        end_ms = self.clock.now_ms() + ms
        while (next_ms := self.clock.next_ms()) is not None and next_ms <= end_ms:
            self.clock.advance(max(next_ms - self.clock.now_ms(), 0))
            await self.settle()
        self.clock.advance(end_ms - self.clock.now_ms())

    def told(self, *entries: tuple[str, Mapping[str, Any]]) -> None:
        self.recovery.observe(
            [Entry(type, self.clock.now_ms(), 1, 0, GROUP, 1, data=data) for type, data in entries]
        )

    def rebalance_begins(self, from_state: str = "Stable") -> None:
        self.told(("state_changed", {"from_state": from_state, "to_state": "PreparingRebalance"}))

    def rebalance_completes(self) -> None:
        self.told(("rebalance_completed", {}))

    def lags(self) -> list[tuple[int, bool]]:
        """The entries written: the lag in records, and whether the entry says that the group has
        recovered."""
        return [(each.data["total"], each.data.get("recovered", False)) for each in self.entries]


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    yield world
    await world.settle()
    world.recovery.close()
    world.lag.close()


async def test_the_lag_of_a_huge_group_lets_others_have_their_turn(world: World) -> None:
    turns_taken = 0
    done = asyncio.Event()

    async def others() -> None:
        nonlocal turns_taken
        while not done.is_set():
            await asyncio.sleep(0)
            turns_taken += 1

    for partition in range(2_000):
        world.log("t", partition, 10)
        world.commit(4, partition=partition)
    watching = asyncio.create_task(others())
    await asyncio.sleep(0)
    await world.lag.read([GROUP])
    assert turns_taken >= 38, "to list the partitions, and to note their ends"
    turns_taken = 0
    found = await world.lag.in_turns(GROUP)
    assert turns_taken >= 19
    done.set()
    await watching
    assert sorted(found) == world.lag.of(GROUP)
    assert {each.lag for each in found} == {6}


async def test_partitions_may_go_while_lag_is_told(world: World) -> None:
    for partition in range(150):
        world.log("t", partition, 10)
        world.commit(4, partition=partition)
    telling = asyncio.create_task(world.lag.in_turns(GROUP))
    await asyncio.sleep(0)
    for partition in range(120, 150):
        del world.offsets[GROUP]["t", partition]
    assert sorted(await telling) == world.lag.of(GROUP)


async def test_the_lag_of_a_group(world: World) -> None:
    world.log("t", 0, 10)
    world.log("t", 1, 10)
    world.log("u", 0, 10, open=False)
    world.commit(10)
    world.commit(4, partition=1)
    world.commit(7, "u")
    assert world.lag.of(GROUP) == [
        PartitionLag("t", 0, 10, 10, 0, 0.0),
        PartitionLag("t", 1, 4, 10, 6, None),
        PartitionLag("u", 0, 7, None, None, None, unread=True),
    ]
    assert world.lag.total(GROUP) is None
    await world.lag.refresh()
    assert world.lag.of(GROUP)[2] == PartitionLag("u", 0, 7, 10, 3, None)
    assert world.lag.total(GROUP) == 9
    assert world.looks == [[PartitionId(TOPIC_IDS["u"], 0)]]
    assert world.lag.groups() == [GROUP]
    assert world.lag.of("nobody") == []
    assert world.lag.total("nobody") is None


async def test_topics_that_are_gone_and_offsets_beyond_the_end(world: World) -> None:
    world.log("t", 0, 10)
    world.commit(12)
    assert world.lag.of(GROUP) == [PartitionLag("t", 0, 12, 10, 0, 0.0)]
    world.commit(1, "gone")
    assert world.lag.of(GROUP)[0] == PartitionLag("gone", 0, 1, None, None, None)
    assert world.lag.total(GROUP) is None


async def test_what_is_not_read_yet_is_told_from_what_cannot_be_read(world: World) -> None:
    world.log("u", 0, 10, open=False)
    where = PartitionId(TOPIC_IDS["u"], 0)
    world.unreadable.add(where)
    world.commit(7, "u")
    world.commit(1, "u", partition=1)  # nobody can tell where it ends, but may be able to soon
    for _ in range(2):  # looks do not change that
        await world.lag.refresh()
        assert [(each.end, each.unread) for each in world.lag.of(GROUP)] == [(None, False), (None, True)]
        await world.advance(2 * ASKED_MS)
    world.unreadable.clear()
    await world.lag.refresh()
    assert [(each.end, each.unread) for each in world.lag.of(GROUP)] == [(10, False), (None, True)]


async def test_sampling_goes_on_after_a_request_that_gave_up(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.log("t", 0, 10, open=False)
    world.commit(7)
    with monkeypatch.context() as disk:
        disk.setattr(world.lag, "_look", lambda partitions: asyncio.Event().wait())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await world.lag.refresh()
    assert world.lag.total(GROUP) is None
    await world.advance(SAMPLE_MS)
    assert world.lag.total(GROUP) == 3


async def test_nobody_waits_for_all_that_another_reads(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for partition in range(250):
        world.log("t", partition, 10, open=False)
        world.commit(4, partition=partition, group_id="large")
    world.log("u", 0, 10, open=False)
    world.commit(7, "u", group_id="small")
    world.log("u", 1, 10)
    world.commit(10, "u", 1, group_id="large")
    opened = asyncio.Semaphore(0)

    async def look(partitions: Sequence[PartitionId]) -> list[Looked]:
        for _ in partitions:
            await opened.acquire()
        return await world.look(partitions)

    def open_more(count: int) -> None:
        for _ in range(count):
            opened.release()

    with monkeypatch.context() as slow:
        slow.setattr(world.lag, "_look", look)
        large = asyncio.create_task(world.lag.read(["large"]))
        await until(lambda: world.lag._one_at_a_time.locked(), "the first look")
        small = asyncio.create_task(world.lag.read(["small"]))
        await turns()
        world.log("u", 1, 20)
        world.clock.advance(SAMPLE_MS)
        open_more(100 + 1)
        await until(small.done, "the lag of the small group")
        assert world.lag.total("small") == 3
        await turns()
        assert world.lag.total("large") is None
        world.log("u", 1, 30)
        world.commit(20, "u", 1, group_id="large")
        # The ends that are known were sampled meanwhile, five seconds after the read began.
        assert [each.seconds for each in world.lag.of("large") if each.topic == "u"] == [0.0]
        open_more(150)
        await large
    assert world.lag.total("large") == 250 * 6 + 10


async def test_the_lag_in_seconds_while_somebody_asks(world: World) -> None:
    world.log("t", 0, 10)
    world.commit(10)
    await world.lag.refresh()
    world.log("t", 0, 20)
    await world.advance(SAMPLE_MS)
    world.clock.advance(1_000)
    [lag] = world.lag.of(GROUP)
    # Half of the ten records written within the five seconds.
    world.commit(15)
    assert (lag.lag, lag.seconds) == (10, 6.0)
    [lag] = world.lag.of(GROUP)
    assert (lag.lag, lag.seconds) == (5, 3.5)
    # Records written since the last sample count as written since that sample.
    world.log("t", 0, 30)
    world.commit(20)
    [lag] = world.lag.of(GROUP)
    assert (lag.lag, lag.seconds) == (10, 1.0)


async def test_sampling_ends_when_nobody_asks(world: World) -> None:
    world.log("t", 0, 10, open=False)
    world.commit(10)
    await world.lag.refresh()
    await world.advance(10 * ASKED_MS)
    assert 10 <= len(world.looks) <= ASKED_MS // SAMPLE_MS + 1
    assert world.clock.next_ms() is None


async def test_what_was_just_read_is_not_read_again(world: World) -> None:
    world.log("t", 0, 10, open=False)
    world.commit(10)
    await world.lag.refresh()
    await world.lag.refresh([GROUP])
    assert len(world.looks) == 1
    world.clock.advance(FRESH_MS)
    await world.lag.refresh([GROUP])
    assert len(world.looks) == 2


async def test_a_store_that_does_not_answer_leaves_what_is_known(world: World) -> None:
    world.log("t", 0, 10, open=False)
    world.commit(4)
    await world.lag.refresh()
    world.error = OSError("away")
    world.clock.advance(FRESH_MS)
    await world.lag.refresh()
    assert world.lag.total(GROUP) == 6


async def test_what_nobody_asks_for_any_more_is_forgotten(world: World) -> None:
    world.log("t", 0, 10)
    world.commit(4)
    world.commit(4, "u", group_id="other")
    world.log("u", 0, 10)
    await world.lag.read(["other"])
    assert len(world.lag._histories) == 1
    world.clock.advance(2 * ASKED_MS + 1)
    await world.lag.read([GROUP])
    assert list(world.lag._histories) == [PartitionId(TOPIC_IDS["t"], 0)]


async def test_partitions_beyond_the_bound_are_not_looked_at(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("muster.coordinator.observe.lag.PARTITIONS_MAX", 5)
    for partition in range(10):
        world.log("t", partition, 10, open=False)
        world.commit(4, partition=partition)
    await world.lag.refresh()
    assert [len(look) for look in world.looks] == [5]
    assert world.lag.total(GROUP) is None
    # They hide the lag of no others.
    assert [each.lag for each in world.lag.of(GROUP)] == [6] * 5 + [None] * 5
    assert not any(each.unread for each in world.lag.of(GROUP))


async def test_a_partition_that_cannot_be_read_counts_towards_the_bound(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("muster.coordinator.observe.lag.PARTITIONS_MAX", 3)
    for partition in range(3):
        world.log("t", partition, 10, open=False)
        world.commit(4, partition=partition)
    world.unreadable.add(PartitionId(TOPIC_IDS["t"], 0))
    for partition in range(2, 4):  # across the bound
        world.log("t", partition, 10, open=False)
        world.commit(4, partition=partition, group_id="other")
    await world.lag.refresh()
    assert [(each.lag, each.unread) for each in world.lag.of("other")] == [(6, False), (None, False)]
    # One that had been read before counts once.
    world.unreadable.add(PartitionId(TOPIC_IDS["t"], 1))
    world.offsets.pop("other")
    world.commit(4, "u", group_id="third")
    monkeypatch.setattr("muster.coordinator.observe.lag.PARTITIONS_MAX", 4)
    await world.advance(2 * FRESH_MS)
    await world.lag.read([GROUP])
    assert [(each.lag, each.unread) for each in world.lag.of("third")] == [(None, True)]


# --- what the journal records -------------------------------------------------------------------------------


async def test_a_group_that_caught_up_after_a_rebalance(world: World) -> None:
    world.log("t", 0, 100)
    world.commit(98)
    world.rebalance_begins()
    await world.advance(3_000)
    world.log("t", 0, 400)
    assert world.recovery.of_rebalance(GROUP) == {
        "lag_before": 2,
        "lag": 302,
        "lag_partitions": [["t", 0, 98, 302]],
    }
    world.rebalance_completes()
    for offset in (150, 250):
        await world.advance(1_000)
        world.commit(offset)
    assert world.entries == []
    await world.advance(1_000)
    world.commit(398)
    await world.advance(4_000)
    assert world.lags() == [(2, True)]
    assert world.entries[0].data["partitions"] == [["t", 0, 398, 2]]
    # Recorded once is enough.
    await world.advance(20_000)
    assert world.lags() == [(2, True)]


async def test_a_group_whose_lag_did_not_grow_has_nothing_to_recover_from(world: World) -> None:
    world.log("t", 0, 100)
    world.commit(98)
    world.rebalance_begins()
    world.rebalance_completes()
    await world.advance(FIRST_MS - 1_000)
    world.commit(99)
    await world.advance(1_000)
    assert world.lags() == [(1, False)]
    # It is not looked up again before the next entry is due.
    assert world.clock.next_ms() == world.clock.now_ms() + 2 * FIRST_MS


async def test_a_group_that_does_not_catch_up_is_given_up(world: World) -> None:
    world.log("t", 0, 100)
    world.commit(98)
    world.clock.advance(1_000)
    world.rebalance_begins()
    world.log("t", 0, 1_000)
    world.rebalance_completes()
    await world.advance(RECOVERY_MAX_MS + 60_000)
    world.commit(1_000)
    await world.advance(2 * RECOVERY_MAX_MS)
    assert world.lags() == [(0, False)]


async def test_the_next_rebalance_is_no_recovery_from_the_one_before(world: World) -> None:
    world.log("t", 0, 100)
    world.commit(98)
    world.rebalance_begins()
    world.log("t", 0, 200)
    world.rebalance_completes()
    await world.advance(5_000)
    world.rebalance_begins()
    await world.advance(1_000)
    assert world.lags() == [], "it is as far behind as it was, and has not caught up"
    world.log("t", 0, 300)
    world.rebalance_completes()
    await world.advance(1_000)
    world.commit(200)
    await world.advance(2_000)
    assert world.lags() == [(100, True)]


async def test_a_rebalance_that_begins_anew_keeps_the_lag_of_its_beginning(world: World) -> None:
    world.log("t", 0, 100)
    world.commit(98)
    world.rebalance_begins()
    world.log("t", 0, 200)
    world.rebalance_begins("CompletingRebalance")
    assert world.recovery.of_rebalance(GROUP)["lag_before"] == 2


async def test_what_is_not_known_is_left_out(world: World) -> None:
    assert world.recovery.of_rebalance(GROUP) == {}
    world.log("t", 0, 100, open=False)
    world.commit(98)
    world.rebalance_begins()
    assert world.recovery.of_rebalance(GROUP) == {}
    # But then it is looked up.
    await world.advance(0)
    assert world.recovery.of_rebalance(GROUP) == {"lag": 2, "lag_partitions": [["t", 0, 98, 2]]}


async def test_a_group_that_commits_is_told_of_ever_more_rarely(world: World) -> None:
    world.log("t", 0, 1_000_000)
    world.told(("group_created", {}))
    begun_ms = world.clock.now_ms()
    for second in range(3_600):
        world.commit(second)
        await world.advance(1_000)
    seconds = [(each.at_ms - begun_ms) // 1_000 for each in world.entries]
    assert seconds[:6] == [10, 30, 70, 150, 310, 610]
    assert {later - earlier for earlier, later in pairwise(seconds[5:])} == {RARELY_MS // 1_000}


async def test_a_group_that_commits_nothing_costs_next_to_nothing(world: World) -> None:
    world.log("t", 0, 100)
    world.commit(98)
    world.clock.advance(1_000)
    world.rebalance_begins()
    world.rebalance_completes()
    looks = 0
    end_ms = world.clock.now_ms() + 7 * 86_400_000
    while (next_ms := world.clock.next_ms()) is not None and next_ms < end_ms:
        await world.advance(next_ms - world.clock.now_ms())
        looks += 1
    assert looks < 60
    assert world.entries == []


async def test_a_group_that_cannot_be_told_of_holds_up_no_other(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.log("t", 0, 100)
    for group_id in ("bad", GROUP):
        world.commit(98, group_id=group_id)
        world.recovery.observe([Entry("group_created", world.clock.now_ms(), 1, 0, group_id, 1)])
    broken = True

    def note(type: str, data: Mapping[str, Any], *, group_id: str) -> None:
        if group_id == "bad" and broken:
            raise RuntimeError("planted")
        world.note(type, data, group_id=group_id)

    monkeypatch.setattr(world.recovery, "_note", note)
    await world.advance(FIRST_MS)
    assert [each.group for each in world.entries] == [GROUP]
    broken = False
    await world.advance(LOOK_MAX_MS)
    assert "bad" in [each.group for each in world.entries], "it is looked at again"


async def test_a_failed_read_is_repeated(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.log("t", 0, 100)
    world.commit(98)
    world.told(("group_created", {}))

    async def read(group_ids: Sequence[str]) -> None:
        raise RuntimeError("planted")

    with monkeypatch.context() as broken:
        broken.setattr(world.lag, "read", read)
        await world.advance(FIRST_MS)
        assert world.entries == []
    await world.advance(LOOK_MAX_MS)
    assert world.lags() == [(2, False)]


async def test_a_group_that_is_gone_is_forgotten(world: World) -> None:
    world.log("t", 0, 100)
    world.commit(98)
    world.rebalance_begins()
    world.rebalance_completes()
    world.offsets.clear()
    await world.advance(10 * FIRST_MS)
    assert world.clock.next_ms() is None
    world.commit(98)
    world.told(("group_created", {}), ("group_removed", {}))
    await world.advance(10 * FIRST_MS)
    assert world.entries == []


async def test_groups_of_a_shard_that_was_loaded_are_watched(world: World) -> None:
    world.log("t", 0, 100)
    world.commit(98)
    loaded = Entry("shard_loaded", world.clock.now_ms(), 1, 0, None, None)
    world.recovery.observe([loaded])
    world.clock.advance(1_000)
    world.commit(99)
    await world.advance(RARELY_MS)
    assert world.lags() == [(1, False)]


async def test_a_group_that_commits_after_the_first_check_of_a_loaded_shard_is_checked_soon(
    world: World,
) -> None:
    world.log("t", 0, 100)
    world.commit(98)
    world.clock.advance(1_000)
    loaded_ms = world.clock.now_ms()
    world.recovery.observe([Entry("shard_loaded", loaded_ms, 1, 0, None, None)])
    (watched,) = world.recovery._watched.values()
    await world.advance(watched.due_ms - loaded_ms)
    assert world.lags() == []
    world.clock.advance(1_000)
    world.commit(99)
    await world.advance(RARELY_MS - 1_000)
    assert world.lags() == [(1, False)]


async def test_groups_of_a_shard_that_was_loaded_do_not_all_fall_due_together(world: World) -> None:
    world.log("t", 0, 100)
    for number in range(100):
        world.commit(98, group_id=f"group-{number}")
    loaded_ms = world.clock.now_ms()
    world.recovery.observe([Entry("shard_loaded", loaded_ms, 1, 0, None, None)])
    due_ms = {watched.due_ms for watched in world.recovery._watched.values()}
    assert len(due_ms) > 90
    assert all(FIRST_MS < each - loaded_ms <= RARELY_MS for each in due_ms)


async def test_the_loop_turns_between_groups_that_are_due(world: World) -> None:
    world.log("t", 0, 100)
    for number in range(100):
        world.commit(98, group_id=f"group-{number}")
    at_ms = world.clock.now_ms()
    world.recovery.observe(
        [Entry("rebalance_completed", at_ms, 1, 0, f"group-{number}", 1, data={}) for number in range(100)]
    )
    counts: list[int] = []

    def count_entries() -> None:
        counts.append(len(world.entries))
        if len(world.entries) < 100:
            asyncio.get_running_loop().call_soon(count_entries)

    world.clock.advance(FIRST_MS)
    count_entries()
    await until(lambda: len(world.entries) == 100, "all entries")
    await turns()
    assert set(counts) == set(range(101))


def partitions_of(entries: Iterable[Entry]) -> list[int]:
    return [len(each.data["partitions"]) for each in entries]


async def test_an_entry_has_the_partitions_that_are_furthest_behind(world: World) -> None:
    for partition in range(150):
        world.log("t", partition, 1_000)
        world.commit(1_000 - partition, partition=partition)
    world.told(("group_created", {}))
    world.clock.advance(1_000)
    world.commit(1_000)
    await world.advance(FIRST_MS)
    assert partitions_of(world.entries) == [100]
    assert world.entries[0].data["partitions"][0] == ["t", 149, 851, 149]

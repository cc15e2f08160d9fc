"""`__group_events`: journals of the store, read like any other topic alongside topics kept in logs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from uuid import UUID

import pytest

from muster.coordinator.storage.memory import MemoryStore
from muster.coordinator.storage.store import (
    Append,
    JournalBounds,
    JournalRow,
    Lease,
    LeaseKind,
    Outcome,
    StoreBusy,
    StoreDamaged,
    StoredJournalRow,
    StoreError,
)
from muster.coordinator.topics.catalogue import Topic, events_topic
from muster.coordinator.topics.group_events import TRIMMED_ROWS_MAX, GroupEvents
from muster.coordinator.topics.logs import PartitionId
from muster.coordinator.topics.partitions import ListTimestamp
from muster.coordinator.topics.rows import BATCH_RECORDS_MAX
from muster.coordinator.topics.sources import FetchedPartition
from muster.protocol.errors import ErrorCode
from muster.protocol.record_batch import HEADER_BYTES, batches
from tests.topics.rows_node import CHECK_INTERVAL_MS, SHARDS, GatedStore, RowsNode
from tests.topics.support import NOW_MS, batch, read_records
from tests.topics.test_partitions import ask, code_of, fetch, parked, settled, values

CLUSTER_ID = UUID(int=7)
RETENTION_MS = 60_000
RETENTION_BYTES = 100_000
SOON_MS = 500
DEADLINE_S = 30


class JournalStore(GatedStore):
    """Lets a test delay only lookups of journals."""

    async def read_journal(
        self, lease: Lease, offset: int, *, rows_max: int, bytes_max: int
    ) -> list[StoredJournalRow]:
        found = await super().read_journal(lease, offset, rows_max=rows_max, bytes_max=bytes_max)
        await self.look()
        return found

    async def journal_bounds(self, lease: Lease) -> JournalBounds:
        bounds = await super().journal_bounds(lease)
        await self.look()
        return bounds

    async def trim_journal(self, lease: Lease, epoch: int, before_offset: int) -> bool:
        self.fail()
        return await super().trim_journal(lease, epoch, before_offset)


class Node(RowsNode[JournalStore, GroupEvents]):
    """A broker's partitions, including those of `__group_events`."""

    def __init__(self) -> None:
        topic = events_topic(CLUSTER_ID, SHARDS, retention_ms=RETENTION_MS, retention_bytes=RETENTION_BYTES)
        super().__init__(topic, JournalStore(), GroupEvents)

    async def write(self, number: int, *rows: JournalRow) -> int:
        """Write rows and return their size in bytes."""
        append = Append(Lease(LeaseKind.GROUP, number), self.epochs[number], [], rows)
        assert await self.store.append([append]) == [Outcome.WRITTEN]
        return sum(row.size_bytes for row in rows)

    async def tell(self, number: int, *values: bytes) -> None:
        """Write rows and report that they are written."""
        rows = [JournalRow(self.clock.now_ms(), b"group", value) for value in values]
        self.rows.written(number, await self.write(number, *rows))

    async def bounds(self, number: int = 0) -> JournalBounds:
        return await self.store.journal_bounds(Lease(LeaseKind.GROUP, number))

    async def listed(self, timestamp: int, partition: int = 0) -> tuple[int, int, int]:
        return await self.partitions.of(self.topic).list_offsets(self.topic, partition, timestamp)


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    node = Node()
    await node.start()
    yield node
    await node.close()


async def topic_in_a_log(node: Node) -> Topic:
    topic = await node.catalogue.create("orders")
    await node.partitions.append(topic, 0, batch(b"logged"))
    return topic


async def ended(waiting: asyncio.Task[list[FetchedPartition]]) -> list[FetchedPartition]:
    async with asyncio.timeout(DEADLINE_S):
        return await waiting


def told(answer: FetchedPartition) -> tuple[ErrorCode | None, list[bytes | None], int, int]:
    """Error, values, log start and high watermark."""
    code = None if answer.error is None else answer.error.code
    return code, values(answer), answer.log_start_offset, answer.high_watermark


# --- what is read ---------------------------------------------------------------------------------


async def test_rows_are_records(node: Node) -> None:
    await node.own(0)
    rows = [JournalRow(5, b"a", b"1"), JournalRow(9, None, b"2"), JournalRow(7, b"", b"3")]
    await node.write(0, *rows)
    (answer,) = await fetch(node.partitions, node.ask())
    found = read_records(answer.records)
    assert [(each.offset, each.timestamp, each.key, each.value) for each in found] == [
        (0, 5, b"a", b"1"),
        (1, 9, None, b"2"),
        (2, 7, b"", b"3"),
    ]
    ((_, header),) = batches(answer.records)
    assert (header.leader_epoch, header.codec, header.max_timestamp, header.producer_id) == (2, 0, 9, -1)
    assert told(answer) == (None, [b"1", b"2", b"3"], 0, 3)
    assert answer.leader_epoch == 2
    for offset, expected in ((1, [b"2", b"3"]), (2, [b"3"]), (3, [])):
        (answer,) = await fetch(node.partitions, node.ask(offset))
        assert told(answer) == (None, expected, 0, 3)


async def test_an_empty_journal(node: Node) -> None:
    assert told((await fetch(node.partitions, node.ask()))[0]) == (None, [], 0, 0)


async def test_a_batch_has_whole_rows_within_the_bytes_asked_for(node: Node) -> None:
    await node.tell(0, *(b"%d" % number * (number % 5) for number in range(40)))
    ((whole,),) = [await fetch(node.partitions, node.ask())]
    assert len(values(whole)) == 40
    seen = set()
    for limit in range(HEADER_BYTES, len(whole.records) + 40 * 32):
        (answer,) = await fetch(node.partitions, node.ask(max_bytes=limit))
        assert len(answer.records) <= limit or len(values(answer)) == 1
        assert values(answer) == values(whole)[: len(values(answer))]
        seen.add(len(values(answer)))
    assert seen == set(range(1, 41))
    (alone,) = await fetch(node.partitions, node.ask(), max_bytes=0)
    assert len(values(alone)) == 1, "a consumer always gets on"


async def test_a_batch_has_a_bound_of_rows(node: Node) -> None:
    await node.tell(0, *(b"%d" % number for number in range(BATCH_RECORDS_MAX + 7)))
    (first,) = await fetch(node.partitions, node.ask())
    (second,) = await fetch(node.partitions, node.ask(BATCH_RECORDS_MAX))
    assert len(values(first)) == BATCH_RECORDS_MAX
    assert values(second)[-1] == b"%d" % (BATCH_RECORDS_MAX + 6)
    assert first.high_watermark == BATCH_RECORDS_MAX + 7


async def test_one_fetch_reads_logs_and_events(node: Node) -> None:
    orders = await topic_in_a_log(node)
    await node.tell(0, b"zero")
    await node.tell(2, b"two")
    asked = [node.ask(partition=2), ask(orders), node.ask(partition=0), ask(orders, 5)]
    answers = await fetch(node.partitions, *asked)
    assert [told(answer)[:2] for answer in answers] == [
        (None, [b"two"]),
        (None, [b"logged"]),
        (None, [b"zero"]),
        (ErrorCode.OFFSET_OUT_OF_RANGE, []),
    ]
    # One batch may exceed the limit, whichever source it comes from.
    answers = await fetch(node.partitions, *asked[:3], max_bytes=1)
    assert [len(values(answer)) for answer in answers] == [1, 0, 0]
    answers = await fetch(node.partitions, asked[1], asked[0], asked[2], max_bytes=1)
    assert [len(values(answer)) for answer in answers] == [1, 0, 0]
    answers = await fetch(node.partitions, ask(orders, 1), asked[0], max_bytes=1)
    assert [len(values(answer)) for answer in answers] == [0, 1]
    # Room that one source has used is not there for the next.
    room = sum(len(answer.records) for answer in await fetch(node.partitions, *asked[:2]))
    for limit, expected in ((room, [1, 1]), (room - 1, [1, 0])):
        answers = await fetch(node.partitions, *asked[:2], max_bytes=limit)
        assert [len(values(answer)) for answer in answers] == expected


@pytest.mark.parametrize("offset", [-1, 0, 2, 6])
async def test_offsets_outside_are_refused(node: Node, offset: int) -> None:
    await node.tell(0, *(b"%d" % number for number in range(5)))
    await node.store.trim_journal(Lease(LeaseKind.GROUP, 0), 1, 3)
    node.rows.written(0, 0)
    (answer,) = await fetch(node.partitions, node.ask(offset))
    assert told(answer)[:2] == (ErrorCode.OFFSET_OUT_OF_RANGE, [])


async def test_a_read_that_meets_a_trim_is_out_of_range(node: Node) -> None:
    await node.tell(0, *(b"%d" % number for number in range(5)))
    await fetch(node.partitions, node.ask())
    await node.store.trim_journal(Lease(LeaseKind.GROUP, 0), 1, 3)
    assert told((await fetch(node.partitions, node.ask(1)))[0])[0] is ErrorCode.OFFSET_OUT_OF_RANGE
    assert told((await fetch(node.partitions, node.ask(3)))[0]) == (None, [b"3", b"4"], 3, 5)


async def test_rows_that_are_read_before_they_are_told_of(node: Node) -> None:
    await node.tell(0, b"0")
    await fetch(node.partitions, node.ask())
    await node.write(0, JournalRow(1, None, b"1"))
    (answer,) = await fetch(node.partitions, node.ask(0))
    assert told(answer) == (None, [b"0", b"1"], 0, 2)
    (answer,) = await fetch(node.partitions, node.ask(2))
    assert told(answer) == (None, [], 0, 2)


# --- waiting --------------------------------------------------------------------------------------


async def test_a_fetch_waits_for_rows_and_asks_the_store_no_more_than_it_must(node: Node) -> None:
    orders = await topic_in_a_log(node)
    asked = [node.ask(), node.ask(partition=1), ask(orders, 1)]
    waiting = await parked(fetch(node.partitions, *asked, max_wait_ms=SOON_MS))
    assert node.store.looks == 2, "where the two partitions end"
    await node.tell(2, b"elsewhere")
    await settled()
    assert not waiting.done()
    await node.tell(1, b"here")
    assert [told(answer)[1] for answer in await ended(waiting)] == [[], [b"here"], []]
    before = node.store.looks
    for _ in range(5):
        await fetch(node.partitions, node.ask(), node.ask(1, 1))
    assert node.store.looks == before, "nothing is new"
    waiting = await parked(fetch(node.partitions, node.ask(), ask(orders, 1), max_wait_ms=SOON_MS))
    await node.partitions.append(orders, 0, batch(b"more"))
    assert [told(answer)[1] for answer in await ended(waiting)] == [[], [b"more"]]


async def test_a_fetch_waits_for_bytes_or_for_its_time(node: Node) -> None:
    waiting = await parked(fetch(node.partitions, node.ask(), min_bytes=2_000, max_wait_ms=SOON_MS))
    await node.tell(0, b"a" * 1_000)
    await settled()
    assert not waiting.done()
    await node.tell(0, b"b" * 1_000)
    assert len(values((await ended(waiting))[0])) == 2
    waiting = await parked(fetch(node.partitions, node.ask(2), max_wait_ms=SOON_MS))
    node.clock.advance(SOON_MS)
    assert told((await ended(waiting))[0]) == (None, [], 0, 2)


async def test_a_batch_of_all_the_rows_it_may_have_waits_for_no_more(node: Node) -> None:
    await node.tell(0, *[b""] * (BATCH_RECORDS_MAX + 1))
    waiting = await parked(fetch(node.partitions, node.ask(), min_bytes=1 << 20, max_wait_ms=SOON_MS))
    assert len(values((await ended(waiting))[0])) == BATCH_RECORDS_MAX
    waiting = await parked(fetch(node.partitions, node.ask(2), min_bytes=1 << 20, max_wait_ms=SOON_MS))
    assert not waiting.done()
    node.clock.advance(SOON_MS)
    assert len(values((await ended(waiting))[0])) == BATCH_RECORDS_MAX - 1


async def test_rows_written_while_the_end_is_asked_for_are_not_missed(node: Node) -> None:
    node.store.open_gate.clear()
    waiting = await parked(fetch(node.partitions, node.ask(), max_wait_ms=SOON_MS))
    await node.tell(0, b"meanwhile")
    node.store.open_gate.set()
    assert told((await ended(waiting))[0]) == (None, [b"meanwhile"], 0, 1)


async def test_a_fetch_that_is_cancelled_leaves_nothing_behind(node: Node) -> None:
    waiting = await parked(fetch(node.partitions, node.ask(), max_wait_ms=SOON_MS))
    waiting.cancel()
    await settled()
    assert "parked=0" in repr(node.partitions)
    assert not node.rows._led[0].watchers
    await node.tell(0, b"a")


# --- leadership -----------------------------------------------------------------------------------


async def test_a_lost_lease_is_not_the_leader(node: Node) -> None:
    waiting = await parked(fetch(node.partitions, node.ask(), max_wait_ms=SOON_MS))
    node.rows.disown(0)
    assert told((await ended(waiting))[0])[0] is ErrorCode.NOT_LEADER_OR_FOLLOWER
    source = node.partitions.of(node.topic)
    for call in (
        source.list_offsets(node.topic, 0, ListTimestamp.LATEST),
        source.end_offset_for_epoch(node.topic, 0, 0),
        source.active_producers(node.topic, 0),
    ):
        assert await code_of(call) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert told((await fetch(node.partitions, node.ask(partition=1)))[0])[0] is None
    await node.own(0)
    assert (await fetch(node.partitions, node.ask()))[0].leader_epoch == 2


async def test_who_cannot_be_sure_of_its_lease_is_not_the_leader(node: Node) -> None:
    node.serving = False
    assert told((await fetch(node.partitions, node.ask()))[0])[0] is ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.parametrize("wait", ["for the end", "for rows"])
async def test_a_lease_that_goes_while_the_store_is_asked(node: Node, wait: str) -> None:
    await node.tell(0, b"a")
    if wait == "for rows":
        await node.listed(ListTimestamp.LATEST)
    node.store.open_gate.clear()
    waiting = await parked(fetch(node.partitions, node.ask(), max_wait_ms=SOON_MS))
    node.serving = False
    node.store.open_gate.set()
    assert told((await ended(waiting))[0])[:2] == (ErrorCode.NOT_LEADER_OR_FOLLOWER, [])


async def test_fetches_that_wait_look_again_in_a_new_epoch(node: Node) -> None:
    waiting = await parked(fetch(node.partitions, node.ask(current_leader_epoch=1), max_wait_ms=SOON_MS))
    await node.own(0)
    assert told((await ended(waiting))[0])[0] is ErrorCode.FENCED_LEADER_EPOCH


async def test_an_older_claim_changes_nothing(node: Node) -> None:
    await node.own(0)
    node.rows.own(0, 1)
    node.rows.own(0, 2)
    assert (await fetch(node.partitions, node.ask()))[0].leader_epoch == 2


async def test_epochs_of_clients_are_compared(node: Node) -> None:
    await node.own(0)
    source = node.partitions.of(node.topic)
    for epoch, code in ((1, ErrorCode.FENCED_LEADER_EPOCH), (3, ErrorCode.UNKNOWN_LEADER_EPOCH)):
        asked = node.ask(current_leader_epoch=epoch)
        assert told((await fetch(node.partitions, asked))[0])[0] is code
        listing = source.list_offsets(node.topic, 0, ListTimestamp.LATEST, current_leader_epoch=epoch)
        assert await code_of(listing) is code
        ending = source.end_offset_for_epoch(node.topic, 0, 1, current_leader_epoch=epoch)
        assert await code_of(ending) is code


@pytest.mark.parametrize("partition", [-1, SHARDS])
async def test_a_partition_that_is_not_there(node: Node, partition: int) -> None:
    source = node.partitions.of(node.topic)
    (answer,) = await fetch(node.partitions, node.ask(partition=partition))
    assert told(answer)[0] is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    listing = source.list_offsets(node.topic, partition, ListTimestamp.LATEST)
    assert await code_of(listing) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_no_epoch_ends_before_the_log_does(node: Node) -> None:
    await node.own(0)
    await node.tell(0, b"a", b"b")
    source = node.partitions.of(node.topic)
    ends = {epoch: await source.end_offset_for_epoch(node.topic, 0, epoch) for epoch in (-1, 0, 1, 2, 3)}
    assert ends == {-1: (-1, -1), 0: (0, 2), 1: (1, 2), 2: (2, 2), 3: (-1, -1)}
    for last_fetched_epoch in (1, 2):
        (answer,) = await fetch(node.partitions, node.ask(1, last_fetched_epoch=last_fetched_epoch))
        assert told(answer)[:2] == (None, [b"b"])
        assert answer.diverging_epoch is None
    (answer,) = await fetch(node.partitions, node.ask(7, last_fetched_epoch=1))
    assert (told(answer)[:2], answer.diverging_epoch) == ((None, []), (1, 2))
    (answer,) = await fetch(node.partitions, node.ask(1, last_fetched_epoch=3))
    assert told(answer)[0] is ErrorCode.OFFSET_OUT_OF_RANGE


# --- the rest of what clients ask -----------------------------------------------------------------


async def test_offsets_by_time(node: Node) -> None:
    for timestamp in (ListTimestamp.LATEST, ListTimestamp.EARLIEST):
        assert await node.listed(timestamp) == (0, -1, 1)
    for timestamp in (ListTimestamp.MAX_TIMESTAMP, 0):
        assert await node.listed(timestamp) == (-1, -1, -1)
    await node.own(0)
    await node.tell(0, b"0", b"1")
    node.clock.advance(10)
    await node.tell(0, b"2")
    await node.write(0, JournalRow(NOW_MS + 5, None, b"by a clock that is behind"))
    node.rows.written(0, 1)
    first, later = NOW_MS, NOW_MS + 10
    assert await node.listed(ListTimestamp.LATEST) == (4, -1, 2)
    for timestamp in (ListTimestamp.EARLIEST, ListTimestamp.EARLIEST_LOCAL):
        assert await node.listed(timestamp) == (0, -1, 2)
    assert await node.listed(ListTimestamp.MAX_TIMESTAMP) == (2, later, 2)
    for timestamp in (ListTimestamp.LATEST_TIERED, ListTimestamp.EARLIEST_PENDING_UPLOAD):
        assert await node.listed(timestamp) == (-1, -1, -1)
    assert await node.listed(0) == (0, first, 2)
    assert await node.listed(first + 1) == (2, later, 2)
    assert await node.listed(later + 1) == (-1, -1, -1)
    assert await code_of(node.listed(-7)) is ErrorCode.UNSUPPORTED_VERSION


async def test_ends_and_sizes_beside_those_of_logs(node: Node) -> None:
    orders = await topic_in_a_log(node)
    await node.tell(0, b"12345")
    asked = [
        PartitionId(node.topic.topic_id, 0),
        PartitionId(orders.topic_id, 0),
        PartitionId(node.topic.topic_id, 1),
    ]
    assert await node.partitions.look(asked) == [(0, 1), (0, 1), (0, 0)]
    assert await node.partitions.of(node.topic).offsets(node.topic, 0) == (0, 1)
    events, log, empty = await node.partitions.sizes(asked)
    assert (events, empty) == (len(b"group12345"), 0)
    assert log > len(batch(b"logged")) - 1
    node.rows.disown(0)
    assert (await node.partitions.look(asked))[0] == (0, 1), "the store is everybody's"
    node.store.failing = StoreError("no answer")
    with pytest.raises(OSError, match="no answer"):
        await node.partitions.look(asked)


async def test_nobody_produces_to_it(node: Node) -> None:
    appending = node.partitions.append(node.topic, 0, batch(b"a"))
    assert await code_of(appending) is ErrorCode.INVALID_TOPIC_EXCEPTION
    assert await node.partitions.of(node.topic).active_producers(node.topic, 0) == []


@pytest.mark.parametrize("failure", [StoreBusy("too much waits"), StoreDamaged("row 1 has changed")])
async def test_a_store_that_fails_is_a_storage_error(node: Node, failure: StoreError) -> None:
    await node.tell(0, b"a")
    node.store.failing = failure
    for _ in range(2):
        (answer,) = await fetch(node.partitions, node.ask(), max_wait_ms=SOON_MS)
        assert answer.error is not None
        assert (answer.error.code, str(failure) in answer.error.why) == (ErrorCode.KAFKA_STORAGE_ERROR, True)
    assert await code_of(node.listed(0)) is ErrorCode.KAFKA_STORAGE_ERROR
    node.store.failing = None
    assert told((await fetch(node.partitions, node.ask()))[0])[:2] == (None, [b"a"])


# --- retention ------------------------------------------------------------------------------------


async def test_old_rows_go_with_the_sweep_that_the_clock_brings(node: Node) -> None:
    await node.tell(0, b"old", b"old too")
    await node.tell(1, b"old")
    node.clock.advance(CHECK_INTERVAL_MS - RETENTION_MS)
    await settled()  # until the sweep that is due by now is over, and the next one planned
    await node.tell(0, b"young")
    (before,) = await fetch(node.partitions, node.ask())
    node.clock.advance(RETENTION_MS)
    await settled()
    assert (await node.bounds(0))[:2] == (2, 3)
    assert (await node.bounds(1))[:2] == (1, 1), "the end stays"
    assert len(values(before)) == 3
    assert told((await fetch(node.partitions, node.ask(2)))[0]) == (None, [b"young"], 2, 3)
    assert await node.listed(ListTimestamp.EARLIEST) == (2, -1, 1)
    node.clock.advance(1)
    await node.partitions.sweep()
    assert (await node.bounds(0))[:2] == (3, 3)


async def test_the_age_of_rows_is_judged_by_the_date(node: Node) -> None:
    """The clock is behind it after a suspend."""
    node.clock.date_ahead_ms = 3_600_000
    await node.write(0, JournalRow(node.clock.date_ms(), b"group", b"row"))
    await node.partitions.sweep()
    assert (await node.bounds(0))[:2] == (0, 1)
    node.clock.advance(RETENTION_MS)
    await node.partitions.sweep()
    assert (await node.bounds(0))[:2] == (0, 1)
    node.clock.advance(1)
    await node.partitions.sweep()
    assert (await node.bounds(0))[:2] == (1, 1)


async def test_the_oldest_rows_go_when_there_are_too_many(node: Node) -> None:
    value = b"v" * 195  # 200 bytes with its key
    await node.write(0, *(JournalRow(NOW_MS, b"group", value) for _ in range(700)))
    await node.partitions.sweep()
    assert await node.bounds(0) == JournalBounds(200, 700, RETENTION_BYTES)
    await node.partitions.sweep()
    assert await node.bounds(0) == JournalBounds(200, 700, RETENTION_BYTES)


async def test_rows_go_without_a_sweep_when_a_journal_grows(node: Node) -> None:
    value = b"v" * 195
    for _ in range(14):
        await node.tell(0, *[value] * 100)
    await settled()
    assert (await node.bounds(0)).end == 1_400
    assert (await node.bounds(0)).size_bytes <= RETENTION_BYTES * 9 / 8 + 100 * 200
    assert (await node.bounds(1)).end == 0


async def test_rows_go_some_at_a_time(node: Node) -> None:
    count = 2 * TRIMMED_ROWS_MAX + 5
    await node.write(0, *(JournalRow(0, None, b"") for _ in range(count)))
    removed = []
    trim = node.store.trim_journal

    async def observed(lease: Lease, epoch: int, before_offset: int) -> bool:
        start = (await MemoryStore.journal_bounds(node.store, lease)).start
        removed.append(before_offset - start)
        return await trim(lease, epoch, before_offset)

    node.store.trim_journal = observed  # type: ignore[method-assign]
    await node.partitions.sweep()
    assert removed == [TRIMMED_ROWS_MAX, TRIMMED_ROWS_MAX, 5]
    assert await node.bounds(0) == JournalBounds(count, count, 0)


async def test_who_lost_the_lease_removes_nothing(node: Node) -> None:
    await node.tell(0, b"old")
    node.clock.advance(RETENTION_MS + 1)
    await node.store.claim([Lease(LeaseKind.GROUP, 0)], 1, 10_000)  # it has not been told yet
    await node.rows.expire()
    assert await node.bounds(0) == JournalBounds(0, 1, 8)
    node.rows.disown(0)
    await node.rows.expire()
    assert await node.bounds(0) == JournalBounds(0, 1, 8)


async def test_a_store_that_fails_is_trimmed_another_time(node: Node) -> None:
    await node.tell(0, b"old")
    node.clock.advance(RETENTION_MS + 1)
    node.store.failing = StoreBusy("too much waits")
    await node.partitions.sweep()
    node.store.failing = None
    assert (await node.bounds(0)).start == 0
    await node.partitions.sweep()
    assert (await node.bounds(0)).start == 1


async def test_nothing_goes_for_its_age_if_all_is_to_be_kept() -> None:
    node = Node()
    node.topic = events_topic(CLUSTER_ID, SHARDS, retention_ms=-1, retention_bytes=RETENTION_BYTES)
    node.rows.topic = node.topic
    await node.start()
    await node.tell(0, b"ancient")
    node.clock.advance(10**12)
    await node.partitions.sweep()
    assert (await node.bounds(0))[:2] == (0, 1)
    await node.close()


# --- the end --------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["close", "abandon"])
async def test_the_end_answers_fetches_that_wait(way: str) -> None:
    node = Node()
    await node.start()
    waiting = await parked(fetch(node.partitions, node.ask(), max_wait_ms=SOON_MS))
    if way == "close":
        await node.rows.close()
    else:
        node.rows.abandon()
    assert told((await ended(waiting))[0])[0] is ErrorCode.NOT_LEADER_OR_FOLLOWER
    node.rows.own(0, 5)
    assert told((await fetch(node.partitions, node.ask()))[0])[0] is ErrorCode.NOT_LEADER_OR_FOLLOWER
    await node.close()


@pytest.mark.parametrize("way", ["close", "abandon"])
async def test_a_trim_under_way_ends_with_the_broker(way: str) -> None:
    node = Node()
    await node.start()
    await node.tell(0, *[b"v" * 200] * 700)
    node.store.open_gate.clear()
    node.rows.written(0, RETENTION_BYTES)
    await settled()
    if way == "close":
        ending = asyncio.ensure_future(node.rows.close())
        await settled()
        assert not ending.done()
        node.store.open_gate.set()
        await ending
    else:
        node.rows.abandon()
        await settled()
        node.store.open_gate.set()
    await node.close()

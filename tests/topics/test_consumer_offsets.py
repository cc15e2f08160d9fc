"""`__consumer_offsets`: records of the store, read like a compacted log alongside topics kept in logs.

What it has in common with `__group_events` is tested there.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any
from uuid import UUID

import pytest

from muster.coordinator.storage.store import (
    Append,
    Lease,
    LeaseKind,
    Outcome,
    RecordBounds,
    StoreBusy,
    StoreDamaged,
    StoredRecord,
    StoreError,
)
from muster.coordinator.topics.catalogue import offsets_topic
from muster.coordinator.topics.consumer_offsets import ConsumerOffsets
from muster.coordinator.topics.keyed_rows import READ_ROWS_MAX, TOMBSTONES_MAX
from muster.coordinator.topics.partitions import ListTimestamp
from muster.coordinator.topics.rows import BATCH_RECORDS_MAX
from muster.coordinator.topics.sources import FetchedPartition
from muster.protocol.errors import ErrorCode
from muster.protocol.messages.coordinator_records import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
    PendingOffsetKey,
    TransactionalProducerKey,
    TransactionalProducerValue,
    encode_key,
    encode_value,
)
from muster.protocol.record_batch import Record, batches
from tests.topics.rows_node import CHECK_INTERVAL_MS, SHARDS, GatedStore, RowsNode
from tests.topics.support import NOW_MS, read_records
from tests.topics.test_partitions import code_of, fetch, parked, settled

DELETE_RETENTION_MS = 86_400_000

Row = tuple[bytes, bytes | None]


class RecordStore(GatedStore):
    """Lets a test delay only lookups of records."""

    async def read_records(
        self, lease: Lease, seq: int, *, rows_max: int, bytes_max: int
    ) -> list[StoredRecord]:
        found = await super().read_records(lease, seq, rows_max=rows_max, bytes_max=bytes_max)
        await self.look()
        return found

    async def record_bounds(self, lease: Lease) -> RecordBounds:
        bounds = await super().record_bounds(lease)
        await self.look()
        return bounds

    async def next_seq(self, lease: Lease) -> int:
        found = await super().next_seq(lease)
        await self.look()
        return found

    async def remove_tombstones(self, lease: Lease, epoch: int, *, before_ms: int, count_max: int) -> int:
        self.fail()
        return await super().remove_tombstones(lease, epoch, before_ms=before_ms, count_max=count_max)

    def leave_a_gap(self, number: int, seqs: int) -> None:
        """As PostgreSQL's store does when a new holder takes over."""
        self._leases[Lease(LeaseKind.GROUP, number)].next_seq += seqs


class Node(RowsNode[RecordStore, ConsumerOffsets]):
    """A broker's partitions, including those of `__consumer_offsets`."""

    def __init__(self) -> None:
        super().__init__(offsets_topic(UUID(int=7), SHARDS), RecordStore(), ConsumerOffsets)

    async def store_only(self, rows: Sequence[Row], number: int = 0) -> None:
        append = Append(Lease(LeaseKind.GROUP, number), self.epochs[number], rows, at_ms=self.clock.now_ms())
        assert await self.store.append([append]) == [Outcome.WRITTEN]

    async def write(self, *rows: Row, number: int = 0) -> None:
        await self.store_only(rows, number)
        self.rows.written(number, rows)

    async def read(self, offset: int = 0, **limits: Any) -> list[Record]:
        (answer,) = await fetch(self.partitions, self.ask(offset, **limits))
        assert answer.error is None
        return read_records(answer.records)

    async def listed(self, timestamp: int, partition: int = 0) -> tuple[int, int, int]:
        return await self.partitions.of(self.topic).list_offsets(self.topic, partition, timestamp)


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    node = Node()
    await node.start()
    yield node
    await node.close()


def commit(number: int, offset: int = 1, *, at_ms: int = NOW_MS, group: str = "g") -> tuple[bytes, bytes]:
    key = OffsetCommitKey(group=group, topic="t", partition=number)
    value = OffsetCommitValue(offset=offset, leader_epoch=3, metadata="", commit_timestamp=at_ms)
    return encode_key(key), encode_value(value, 4)


def metadata(group: str, *, at_ms: int = NOW_MS) -> tuple[bytes, bytes]:
    value = GroupMetadataValue(
        protocol_type="consumer",
        generation=1,
        protocol=None,
        leader=None,
        current_state_timestamp=at_ms,
        members=[],
    )
    return encode_key(GroupMetadataKey(group=group)), encode_value(value, 3)


def told(records: Sequence[Record]) -> list[Row]:
    return [(record.key or b"", record.value) for record in records]


# --- reading --------------------------------------------------------------------------------------


async def test_an_empty_partition(node: Node) -> None:
    assert await node.read() == []
    epoch = node.epochs[0]
    assert await node.listed(ListTimestamp.LATEST) == (0, -1, epoch)
    assert await node.listed(ListTimestamp.EARLIEST) == (0, -1, epoch)
    assert await node.listed(NOW_MS) == (-1, -1, -1)
    assert await node.listed(ListTimestamp.MAX_TIMESTAMP) == (-1, -1, -1)


async def test_records_are_the_last_of_each_key_with_their_times(node: Node) -> None:
    await node.write(
        metadata("g", at_ms=NOW_MS + 1), commit(0, at_ms=NOW_MS + 2), commit(1, at_ms=NOW_MS + 3)
    )
    await node.write(commit(0, 9, at_ms=NOW_MS + 4))
    node.clock.advance(50)
    await node.write((commit(1)[0], None))
    found = await node.read()
    assert told(found) == [
        metadata("g", at_ms=NOW_MS + 1),
        commit(0, 9, at_ms=NOW_MS + 4),
        (commit(1)[0], None),
    ]
    assert [record.timestamp for record in found] == [NOW_MS + 1, NOW_MS + 4, NOW_MS + 50]
    assert [record.offset for record in found] == [0, 3, 4]
    (answer,) = await fetch(node.partitions, node.ask(0))
    assert (answer.high_watermark, answer.log_start_offset, answer.leader_epoch) == (5, 0, node.epochs[0])
    assert {header.leader_epoch for _, header in batches(answer.records)} == {node.epochs[0]}


async def test_what_has_been_read_is_not_read_again(node: Node) -> None:
    await node.write(commit(0), commit(1))
    assert told(await node.read(2)) == []
    await node.write(commit(0, 2))
    assert told(await node.read(2)) == [commit(0, 2)]
    assert told(await node.read(1)) == [commit(1), commit(0, 2)]


async def test_values_that_no_schema_fits_are_passed_on(node: Node) -> None:
    """A later version may have written them: readers skip what they do not know."""
    rows = [(b"\x00\x63later", b"\x00\x00"), (commit(0)[0], b"\x00\x63")]
    await node.write(*rows)
    found = await node.read()
    assert told(found) == rows
    assert [record.timestamp for record in found] == [-1, -1]


async def test_many_records_come_in_batches_of_a_bounded_size(node: Node) -> None:
    rows = [commit(number) for number in range(READ_ROWS_MAX + 10)]
    await node.write(*rows)
    (answer,) = await fetch(node.partitions, node.ask(0))
    counts = [header.record_count for _, header in batches(answer.records)]
    assert counts == [BATCH_RECORDS_MAX] * (READ_ROWS_MAX // BATCH_RECORDS_MAX)
    assert told(await node.read(READ_ROWS_MAX)) == rows[-10:]
    size = len(answer.records)
    (less,) = await fetch(node.partitions, node.ask(0, max_bytes=size // 2))
    assert size // 4 < len(less.records) <= size // 2
    (one,) = await fetch(node.partitions, node.ask(0, max_bytes=1))
    assert told(read_records(one.records)) == rows[:1]


async def test_offsets_too_far_apart_for_one_batch(node: Node) -> None:
    await node.write(commit(0))
    node.store.leave_a_gap(0, 2**31 - 2)
    await node.write(commit(1))
    node.store.leave_a_gap(0, 2**32)
    await node.write(commit(2), commit(3))
    (answer,) = await fetch(node.partitions, node.ask(0))
    assert [header.record_count for _, header in batches(answer.records)] == [2, 2]
    found = read_records(answer.records)
    assert told(found) == [commit(number) for number in range(4)]
    assert found[1].offset == 2**31 - 1
    assert answer.high_watermark == found[-1].offset + 1


@pytest.mark.parametrize("offset", [-1, 3, 2**40])
async def test_offsets_outside_are_refused(node: Node, offset: int) -> None:
    await node.write(commit(0), commit(1))
    (answer,) = await fetch(node.partitions, node.ask(offset))
    assert answer.error is not None
    assert answer.error.code is ErrorCode.OFFSET_OUT_OF_RANGE


async def test_offsets_by_time(node: Node) -> None:
    epoch = node.epochs[0]
    await node.write(*(commit(number, at_ms=NOW_MS + number % 7) for number in range(READ_ROWS_MAX + 5)))
    await node.write(commit(0, at_ms=NOW_MS + 90), commit(1, at_ms=NOW_MS + 90), commit(2, at_ms=NOW_MS + 20))
    end = READ_ROWS_MAX + 8
    assert await node.listed(NOW_MS + 4) == (4, NOW_MS + 4, epoch)
    assert await node.listed(NOW_MS + 21) == (end - 3, NOW_MS + 90, epoch)
    assert await node.listed(ListTimestamp.MAX_TIMESTAMP) == (end - 3, NOW_MS + 90, epoch)
    assert await node.listed(NOW_MS + 91) == (-1, -1, -1)
    assert await node.listed(ListTimestamp.LATEST) == (end, -1, epoch)
    assert await node.listed(ListTimestamp.EARLIEST) == (0, -1, epoch)


async def test_ends_and_sizes_are_known_without_a_leader(node: Node) -> None:
    key, value = commit(0)
    await node.write((key, value), commit(1), number=1)
    await node.write((key, None), number=1)
    node.rows.disown(1)
    assert await node.rows.look(1) == (0, 3)
    assert await node.rows.size(1) == 2 * len(key) + len(value)


# --- who waits, and who does not ------------------------------------------------------------------


async def test_nobody_who_reads_costs_the_store_nothing(node: Node) -> None:
    for number in range(10):
        await node.write(commit(number))
    await node.rows.expire()
    assert node.store.looks == 0


async def test_a_fetch_waits_for_what_is_durable_and_asks_no_more_than_it_must(node: Node) -> None:
    await node.write(commit(0))
    waiting = await parked(fetch(node.partitions, node.ask(1), max_wait_ms=60_000))
    looks = node.store.looks
    await node.write(commit(0), number=1)
    await settled()
    assert (waiting.done(), node.store.looks) == (False, looks), "another shard's"
    await node.write(commit(0, 2))
    (answer,) = await waiting
    assert told(read_records(answer.records)) == [commit(0, 2)]
    assert answer.high_watermark == 2


async def test_what_is_written_while_the_end_is_asked_for_is_not_missed(node: Node) -> None:
    node.store.open_gate.clear()
    waiting = await parked(fetch(node.partitions, node.ask(0), max_wait_ms=60_000))
    await node.write(commit(0))
    node.store.open_gate.set()
    (answer,) = await waiting
    assert told(read_records(answer.records)) == [commit(0)]


async def test_what_is_read_before_it_is_told_of(node: Node) -> None:
    await node.write(commit(0))
    await node.read()
    await node.store_only([commit(1)])
    (answer,) = await fetch(node.partitions, node.ask(0))
    assert told(read_records(answer.records)) == [commit(0), commit(1)]
    assert answer.high_watermark == 2


async def test_a_lease_that_goes_while_the_store_is_asked(node: Node) -> None:
    await node.write(commit(0))
    node.store.open_gate.clear()
    reading = await parked(fetch(node.partitions, node.ask(0)))
    node.rows.disown(0)
    node.store.open_gate.set()
    (answer,) = await reading
    assert answer.error is not None
    assert answer.error.code is ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_the_next_holder_has_all_under_the_same_offsets(node: Node) -> None:
    await node.write(commit(0), commit(1))
    await node.write((commit(0)[0], None))
    before = await node.read()
    await node.own(0)
    assert await node.read() == before
    assert await node.rows.end_offset_for_epoch(node.topic, 0, node.epochs[0] - 1) == (
        node.epochs[0] - 1,
        3,
    )
    await node.write(commit(2))
    assert told(await node.read(3)) == [commit(2)]


@pytest.mark.parametrize("failure", [StoreBusy("too much"), StoreDamaged("a page")])
async def test_a_store_that_fails_is_a_storage_error(node: Node, failure: StoreError) -> None:
    await node.write(commit(0))
    node.store.failing = failure
    (answer,) = await fetch(node.partitions, node.ask(0))
    assert answer.error is not None
    assert answer.error.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert await code_of(node.listed(NOW_MS)) is ErrorCode.KAFKA_STORAGE_ERROR
    node.store.failing = None
    assert told(await node.read()) == [commit(0)]


# --- tombstones -----------------------------------------------------------------------------------


async def sweep(node: Node) -> None:
    node.clock.advance(CHECK_INTERVAL_MS)
    await node.partitions.sweep()


async def test_tombstones_stay_as_long_as_kafkas(node: Node) -> None:
    gone = commit(0)[0]
    await node.write(commit(0))
    await node.write((gone, None))
    await node.write(commit(1))
    node.clock.advance(DELETE_RETENTION_MS - CHECK_INTERVAL_MS)
    await sweep(node)
    assert told(await node.read()) == [(gone, None), commit(1)]
    await sweep(node)
    assert told(await node.read()) == [commit(1)]
    assert (await node.listed(ListTimestamp.LATEST))[0] == 3


async def test_there_is_a_bound_of_tombstones(node: Node) -> None:
    keys = [b"%d" % number for number in range(TOMBSTONES_MAX + 2)]
    await node.write(*((key, None) for key in keys))
    await sweep(node)
    assert told(await node.read(0, max_bytes=1)) == [(keys[2], None)]


async def test_a_store_that_fails_keeps_them_until_another_time(node: Node) -> None:
    await node.write((commit(0)[0], None), commit(1))
    node.clock.advance(DELETE_RETENTION_MS)
    node.store.failing = StoreBusy("too much")
    await sweep(node)
    node.store.failing = None
    assert len(await node.read()) == 2
    await sweep(node)
    assert told(await node.read()) == [commit(1)]


@pytest.mark.parametrize("way", ["close", "abandon"])
async def test_the_end_answers_fetches_that_wait(way: str) -> None:
    node = Node()
    await node.start()
    waiting = await parked(fetch(node.partitions, node.ask(0), max_wait_ms=60_000))
    if way == "close":
        await node.rows.close()
    else:
        node.rows.abandon()
    answers: list[FetchedPartition] = await waiting
    assert answers[0].error is not None
    assert answers[0].error.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    await node.close()


# --- rows that no reader is shown -----------------------------------------------------------------


def pending(number: int, producer: int = 41) -> tuple[bytes, bytes]:
    """An offset in an unfinished transaction."""
    key = PendingOffsetKey(producer_id=producer, group="g", topic="t", partition=number)
    return encode_key(key), commit(number)[1]


def producer(producer_id: int = 41) -> tuple[bytes, bytes]:
    value = TransactionalProducerValue(
        producer_epoch=0, coordinator_epoch=-1, last_timestamp=NOW_MS, in_transaction=True
    )
    return encode_key(TransactionalProducerKey(producer_id=producer_id)), encode_value(value, 0)


async def position_behind(node: Node, offset: int, **limits: Any) -> int:
    """The offset at which a reader of batches from `offset` continues."""
    (answer,) = await fetch(node.partitions, node.ask(offset, **limits))
    assert answer.error is None
    return max((header.last_offset + 1 for _, header in batches(answer.records)), default=offset)


async def test_offsets_in_transactions_and_their_producers_are_shown_to_nobody(node: Node) -> None:
    rows = producer(), pending(0), commit(1), pending(2), commit(3)
    await node.write(*rows)
    await node.write((pending(0)[0], None))
    assert told(await node.read()) == [commit(1), commit(3)]
    assert [record.offset for record in await node.read()] == [2, 4]
    assert (await node.listed(ListTimestamp.LATEST))[0] == 6
    assert (await node.listed(0))[0] == 2
    assert (await node.listed(ListTimestamp.MAX_TIMESTAMP))[0] == 2


async def test_readers_get_behind_what_they_are_not_shown(node: Node) -> None:
    await node.write(commit(1), producer(), pending(0))
    assert await position_behind(node, 0) == 3
    assert await position_behind(node, 1) == 3, "a batch without records"
    assert await node.read(1) == []
    assert await position_behind(node, 3) == 3
    await node.write(*(pending(number) for number in range(READ_ROWS_MAX + 7)), commit(2))
    position, seen = 3, 0
    for _ in range(3):
        seen += len(await node.read(position))
        position = await position_behind(node, position)
    assert (position, seen) == (READ_ROWS_MAX + 11, 1)
    assert (await node.listed(ListTimestamp.LATEST))[0] == position


async def test_a_read_of_all_the_rows_it_may_is_answered_whatever_it_shows(node: Node) -> None:
    """Otherwise a reader waiting for bytes would wait before rows that it is not shown."""
    await node.write(*(pending(number) for number in range(READ_ROWS_MAX + 1)))
    full = await parked(fetch(node.partitions, node.ask(0), min_bytes=1_000, max_wait_ms=60_000))
    assert full.done()
    waiting = await parked(
        fetch(node.partitions, node.ask(READ_ROWS_MAX), min_bytes=1_000, max_wait_ms=60_000)
    )
    assert not waiting.done()
    waiting.cancel()


async def test_what_readers_are_not_shown_keeps_nobody_waiting(node: Node) -> None:
    """A reader waiting for more is not woken by it; one that has yet to get past it does so at once."""
    await node.write(commit(1))
    waiting = await parked(fetch(node.partitions, node.ask(1), max_wait_ms=60_000))
    await node.write(producer(), pending(0))
    await settled()
    assert not waiting.done()
    behind = await parked(fetch(node.partitions, node.ask(1), max_wait_ms=60_000))
    assert behind.done()
    await node.write(commit(2))
    (answer,) = await waiting
    assert told(read_records(answer.records)) == [commit(2)]

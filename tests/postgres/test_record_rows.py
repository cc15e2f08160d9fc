"""Partition logs as rows: the statement that writes is fenced by the lease, a turn is one statement, and a
deleted topic leaves nothing behind. What every partition log promises is tested in tests/topics, over rows
with --postgres."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

from muster.coordinator.storage.postgres import PostgresStore, record_log, record_statements, record_storage
from muster.coordinator.storage.store import Lease, LeaseKind, TopicRow
from muster.coordinator.topics import upkeep
from muster.coordinator.topics.compaction import compact
from muster.coordinator.topics.log import PartitionLog
from muster.coordinator.topics.logs import Logs
from muster.coordinator.topics.retention import expire
from muster.protocol.errors import ErrorCode, KafkaError
from tests.support.facts import DEADLINE_S
from tests.support.postgres import Postgres
from tests.topics.support import NOW_MS, Brokers, HeldExecutor, InlineExecutor, OneLog, TestRows, batch
from tests.topics.test_partitions import settled, topic_at

LEASE = Lease(LeaseKind.DATA, 3)


@pytest.fixture
def rows(store: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestRows]:
    """The database with this test's logs."""
    rows = TestRows(store)
    monkeypatch.setattr(TestRows, "in_use", rows)
    yield rows
    rows.storage.close()


@pytest.fixture
async def session(store: str) -> AsyncIterator[Any]:
    """The test's own connection."""
    connection = await asyncpg.connect(store)
    yield connection
    await connection.close()


@pytest.fixture
async def opened(store: str) -> AsyncIterator[PostgresStore]:
    """The store on the same database."""
    opened = PostgresStore(store)
    await opened.open()
    yield opened
    await opened.close()


async def waits_for_a_lock(session: Any) -> None:
    """Wait until another statement in the database waits for a lock."""
    waiting = "wait_event_type = 'Lock' AND datname = current_database()"
    async with asyncio.timeout(DEADLINE_S):
        while not await session.fetchval(f"SELECT count(*) FROM pg_stat_activity WHERE {waiting}"):
            pass


# --- the fence -------------------------------------------------------------------------------------


async def test_a_write_held_open_across_a_claim_is_there_when_the_claim_returns(
    opened: PostgresStore, rows: TestRows, session: Any
) -> None:
    (grant,) = await opened.claim([LEASE], 1, 60_000)
    assert grant is not None
    one = OneLog()
    one.lease = LEASE
    log = one.reopen(epoch=grant.epoch)
    one.append(b"a")
    async with session.transaction():
        await session.execute("SELECT * FROM muster.logs WHERE topic_id = $1 FOR UPDATE", one.topic_id)
        log.append(batch(b"b"))
        writing = asyncio.ensure_future(asyncio.to_thread(log.commit))
        await waits_for_a_lock(session)
        # The write has locked the lease's row: nobody can claim the lease before it is done.
        await opened.release([grant])
        assert await opened.claim([LEASE], 2, 60_000) == [None]
        assert not writing.done()
    assert await writing == 2
    (taken,) = await opened.claim([LEASE], 2, 60_000)
    assert taken is not None
    assert [record.value for record in one.records()] == [b"a", b"b"]
    one.reopen(epoch=taken.epoch)
    assert [record.value for record in one.records()] == [b"a", b"b"]


async def test_a_write_that_meets_a_claim_waits_for_it_and_writes_nothing(
    rows: TestRows, session: Any
) -> None:
    one = OneLog()
    old = one.log
    one.append(b"a")
    async with session.transaction():
        await session.execute(
            "UPDATE muster.leases SET epoch = epoch + 1 WHERE kind = 'data' AND number = $1", one.lease.number
        )
        old.append(batch(b"lost"))
        writing = asyncio.ensure_future(asyncio.to_thread(old.commit))
        await waits_for_a_lock(session)
        assert not writing.done()
    with pytest.raises(KafkaError) as caught:
        await writing
    assert caught.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert old.closed
    new = one.reopen(epoch=2)
    assert new.high_watermark == 1
    assert one.append(b"b") == (1, -1, 0, 2)


def test_whatever_an_old_leader_writes_is_refused(rows: TestRows) -> None:
    configs = {"cleanup_policy": "compact,delete", "min_cleanable_dirty_ratio": "0", "retention_ms": "1000"}
    for write in (
        lambda log: (log.append(batch(b"v", keys=[b"k"])), log.commit()),
        lambda log: log.delete_records(1),
        lambda log: expire(log, NOW_MS + 10_000),
        lambda log: compact(log, NOW_MS),
    ):
        one = OneLog(**configs)
        old = one.log
        for value in (b"1", b"2"):
            one.append(value, keys=[b"k"])
        old.segments.roll()
        old.commit()
        new = one.reopen()
        with pytest.raises((KafkaError, OSError)) as caught:
            write(old)
        assert "epoch 2, not 1" in str(caught.value)
        assert [record.value for record in one.records()] == [b"1", b"2"]
        assert new.append(batch(b"3", keys=[b"k"])).base_offset == 2
        assert new.commit() == 3


async def test_in_a_turn_one_fenced_log_fails_no_other(
    rows: TestRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []
    write = record_statements.write

    async def counted(connection: Any, changes: Any) -> Any:
        written.append(len(changes))
        return await write(connection, changes)

    brokers = Brokers()
    node = await brokers.add()
    topic = await topic_at(brokers, partitions=4)
    await asyncio.gather(*[node.append(topic, n, batch(b"a")) for n in range(4)])
    monkeypatch.setattr(record_statements, "write", counted)
    led = node._led[topic.topic_id, 2]
    rows.claim(led.lease, 7)
    outcomes = await asyncio.gather(
        *[node.append(topic, n, batch(b"b")) for n in range(4) for _ in range(3)], return_exceptions=True
    )
    assert written == [4]
    for number, outcome in enumerate(outcomes):
        if number // 3 == 2:
            assert isinstance(outcome, KafkaError)
            assert outcome.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        else:
            assert outcome == (1 + number % 3, -1, 0, 1)
    await brokers.close()


# --- opening ---------------------------------------------------------------------------------------


def test_opening_looks_at_the_batches_since_the_last_note_alone(
    rows: TestRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_log, "_NOTED_BATCHES", 10)
    looked: list[int] = []
    first_bytes = record_statements.first_bytes

    async def counted(*asked: Any) -> list[bytes]:
        found = await first_bytes(*asked)
        looked.append(len(found))
        return found

    monkeypatch.setattr(record_statements, "first_bytes", counted)
    one = OneLog(internal_segment_bytes="3000")
    for number in range(47):
        one.append(b"x" * 20, producer=(7, 0, number))
    before = [(s.base_offset, s.next_offset, s.size, s.newest_timestamp) for s in one.log.segments.segments]
    one.reopen()
    assert 0 < sum(looked) < 10
    after = [(s.base_offset, s.next_offset, s.size, s.newest_timestamp) for s in one.log.segments.segments]
    assert after == before
    assert one.append(b"x" * 20, producer=(7, 0, 46)).base_offset == 46
    assert one.append(b"x", producer=(7, 0, 47)).base_offset == 47


def test_a_damaged_row_is_named_when_the_log_is_opened(rows: TestRows) -> None:
    one = OneLog()
    for _ in range(3):
        one.append(b"x")
    rows.execute(
        "UPDATE muster.batches SET contents = set_byte(contents, 16, 99) "
        "WHERE base_offset = 2 AND segment_id IN "
        "(SELECT segment_id FROM muster.segments WHERE topic_id = $1)",
        one.topic_id,
    )
    with pytest.raises(KafkaError, match="orders-0 in ") as refused:
        one.reopen()
    assert refused.value.code is ErrorCode.CORRUPT_MESSAGE


def test_what_was_derived_can_be_derived_again(rows: TestRows) -> None:
    one = OneLog(internal_segment_bytes="300")
    for number in range(20):
        one.append(b"x", producer=(7, 0, number))
        one.reopen()
    rows.execute("UPDATE muster.segments SET derived = 'nonsense' WHERE derived IS NOT NULL")
    one.reopen()
    assert one.append(b"x", producer=(7, 0, 18)).base_offset == 18
    assert one.log.end_of_epoch(5) == (5, 5)


# --- deleted topics --------------------------------------------------------------------------------


def filled(logs: Logs, topic_id: UUID) -> PartitionLog:
    one = OneLog(internal_segment_bytes="300")
    log = logs.open(topic_id, 0, "orders-0", one.log.config, one.lease, 1, lambda: NOW_MS)
    for _ in range(10):
        log.append(batch(b"x" * 50))
        log.commit()
    return log


def count_of(rows: TestRows) -> tuple[int, ...]:
    return tuple(
        rows.execute(f"SELECT count(*) FROM muster.{table}")[0][0]
        for table in ("logs", "segments", "batches")
    )


def removed_left_over(logs: Logs) -> list[UUID]:
    return logs.remove_left_over(lambda: False)


def test_a_deleted_topic_leaves_no_rows(rows: TestRows, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_statements, "_SLICE_ROWS_MAX", 3)
    logs = Logs(rows.storage)
    gone, kept = uuid4(), uuid4()
    filled(logs, kept)
    left = count_of(rows)
    log = filled(logs, gone)
    assert {each.topic_id for each in logs.stored()} == {gone, kept}
    assert logs.size(gone, 0) == log.segments.size
    logs.delete(gone)
    logs.delete(gone)
    assert log.closed
    assert count_of(rows) == left
    assert [each.topic_id for each in logs.stored()] == [kept]
    assert logs.size(gone, 0) == 0


async def test_nothing_is_taken_from_a_topic_that_exists(opened: PostgresStore, rows: TestRows) -> None:
    topic = TopicRow(uuid4(), "orders", 1)
    await opened.create_topic(topic)
    filled(Logs(rows.storage), topic.topic_id)
    left = count_of(rows)
    rows.storage.delete(topic.topic_id)
    assert count_of(rows) == left
    rows.check_nothing_is_left_over([topic.topic_id])
    await opened.delete_topic(topic.topic_id)
    rows.storage.delete(topic.topic_id)
    assert count_of(rows) == (0, 0, 0)


def test_most_of_a_large_topic_is_deleted_later(rows: TestRows, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_statements, "_SLICE_ROWS_MAX", 1)
    monkeypatch.setattr(record_storage, "_SLICES_AT_ONCE", 3)
    logs, topic_id = Logs(rows.storage), uuid4()
    filled(logs, topic_id)
    logs.delete(topic_id)
    assert logs.stored() == []
    assert count_of(rows)[2] == 10 - 3
    assert logs.settle([]) == {}
    assert count_of(rows)[2] == 10 - 3, "a start does not wait for the rest"
    assert logs.remove_left_over(lambda: count_of(rows)[2] <= 10 - 5) == []
    assert count_of(rows)[2] == 10 - 5
    assert removed_left_over(logs) == [topic_id]
    assert count_of(rows) == (0, 0, 0)
    assert removed_left_over(logs) == []


def test_of_what_is_left_over_only_topics_that_are_gone_are_named(rows: TestRows) -> None:
    logs = Logs(rows.storage)
    topic_ids = {uuid4() for _ in range(2)}
    for topic_id in topic_ids:
        filled(logs, topic_id)
    segments = count_of(rows)[1] // 2
    (first,) = logs.remove_left_over(lambda: count_of(rows)[1] <= segments)
    assert [each.topic_id for each in logs.stored()] == list(topic_ids - {first})
    assert removed_left_over(logs) == list(topic_ids - {first})
    assert count_of(rows) == (0, 0, 0)


async def test_upkeep_removes_a_large_deleted_topic_in_turns(
    rows: TestRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_statements, "_SLICE_ROWS_MAX", 1)
    monkeypatch.setattr(upkeep, "_TURN_STEPS_MAX", 5)
    filled(Logs(rows.storage), uuid4())
    threads = HeldExecutor()
    brokers = Brokers(upkeep_executor=threads, retention_check_interval_ms=600_000, cleaner_backoff_ms=60_000)
    await brokers.add()

    async def removed_in_a_turn() -> int:
        before = count_of(rows)[2]
        threads.run_one()
        await settled()
        return before - count_of(rows)[2]

    brokers.clock.advance(60_000)  # the first sweep, for whose retention it is too early
    await settled()
    assert 0 < await removed_in_a_turn() < 5
    brokers.clock.advance(60_000)  # it is time for the next sweep, which may have to compact
    assert 0 < await removed_in_a_turn() < 5
    assert not threads.waiting
    assert count_of(rows)[2]
    brokers.clock.advance(60_000)
    await settled()
    while threads.waiting:
        assert await removed_in_a_turn() < 5
    assert count_of(rows) == (0, 0, 0)
    await brokers.close()


async def test_closing_does_not_wait_for_the_removal_of_deleted_topics(
    rows: TestRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_statements, "_SLICE_ROWS_MAX", 1)
    filled(Logs(rows.storage), uuid4())
    brokers = Brokers(upkeep_executor=InlineExecutor())
    node = await brokers.add()
    delete_slice = record_statements.delete_slice

    async def delete_and_end(*asked: Any) -> bool:
        node._upkeep.end()
        return await delete_slice(*asked)

    monkeypatch.setattr(record_statements, "delete_slice", delete_and_end)
    await node.sweep()
    assert count_of(rows)[2] == 10 - 1
    await brokers.close()


def test_who_has_not_heard_of_the_deletion_cannot_write(rows: TestRows) -> None:
    topic_id = uuid4()
    log = filled(Logs(rows.storage), topic_id)
    Logs(rows.storage).delete(topic_id)  # in another process
    log.append(batch(b"x"))
    with pytest.raises(KafkaError) as caught:
        log.commit()
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert log.failed
    assert count_of(rows) == (0, 0, 0)


async def test_what_deleted_topics_left_behind_is_found(opened: PostgresStore, rows: TestRows) -> None:
    logs = Logs(rows.storage)
    topic = TopicRow(uuid4(), "orders", 1)
    await opened.create_topic(topic)
    filled(logs, topic.topic_id)
    left = count_of(rows)
    lost = uuid4()
    filled(logs, lost)
    assert removed_left_over(logs) == [lost]
    assert count_of(rows) == left
    await opened.delete_topic(topic.topic_id)
    assert removed_left_over(logs) == [topic.topic_id]
    assert count_of(rows) == (0, 0, 0)


def test_rows_of_removed_segments_go_in_slices_beside_appends(
    rows: TestRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_statements, "_SLICE_ROWS_MAX", 2)
    one = OneLog(internal_segment_bytes="500", retention_ms="1000")
    for _ in range(20):
        one.append(b"x" * 20)
    assert expire(one.log, NOW_MS + 2_000) > 1
    assert one.log.segments.unsealed
    assert one.log.start_offset == one.log.high_watermark == 20
    with one.log.lock:  # as if appending continued
        one.log.seal()
    assert not one.log.segments.unsealed
    rows.check_nothing_is_left_over([one.topic_id])
    assert one.append(b"y").base_offset == 20
    assert count_of(rows) == (1, 1, 1)


def test_who_reads_while_segments_go_looks_again(rows: TestRows, monkeypatch: pytest.MonkeyPatch) -> None:
    """The read falls between the removal in the database and the moment the log knows of it."""
    one = OneLog(internal_segment_bytes="200")
    for _ in range(10):
        one.append(b"x" * 50)
    write, at_all = record_statements.write, record_statements.at_all
    missed = asyncio.Event()
    with ThreadPoolExecutor(1) as threads:
        reads: list[Future[bytes]] = []

        async def write_and_be_read(*asked: Any) -> Any:
            written = await write(*asked)
            reads.append(threads.submit(one.log.read, 3, 1_000, first_may_exceed=True))
            await missed.wait()
            # The read must not be answered yet; a wrong answer usually comes within this time.
            await asyncio.wait([asyncio.wrap_future(reads[0])], timeout=0.2)
            return written

        async def miss(*asked: Any) -> Any:
            found = await at_all(*asked)
            missed.set()
            return found

        monkeypatch.setattr(record_statements, "write", write_and_be_read)
        monkeypatch.setattr(record_statements, "at_all", miss)
        assert one.log.delete_records(8) == 8
        with pytest.raises(KafkaError) as caught:
            reads[0].result(DEADLINE_S)
    assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    assert not one.log.failed


def test_a_log_whose_segments_someone_else_removed_is_opened_anew(rows: TestRows) -> None:
    """For example by a statement that seemed lost."""
    one = OneLog(internal_segment_bytes="200")
    for _ in range(10):
        one.append(b"x" * 50)
    for look in (
        lambda log: log.read(3, 1_000, first_may_exceed=True),
        lambda log: log.list_offset(NOW_MS - 1),
    ):
        log = one.reopen()
        rows.execute("UPDATE muster.segments SET state = 2 WHERE topic_id = $1", one.topic_id)
        with pytest.raises(KafkaError) as caught:
            look(log)
        assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        assert log.failed
        rows.execute("UPDATE muster.segments SET state = 1 WHERE topic_id = $1", one.topic_id)


def test_postgres_is_named_without_its_password(rows: TestRows, postgres: Postgres) -> None:
    path = Logs(rows.storage).volume().path
    assert path.startswith(f"127.0.0.1:{postgres.port}/")
    assert "sesame" not in path

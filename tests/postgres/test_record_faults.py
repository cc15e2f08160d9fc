"""Partition logs as rows when the database goes away: nothing acknowledged is lost or stored twice, every
refusal comes within a bounded time, and everything recovers by itself."""

from __future__ import annotations

import asyncio
import queue
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, cast
from uuid import UUID, uuid4

import pytest

from muster.coordinator.base.log import Logger
from muster.coordinator.storage.postgres import record_database, record_statements
from muster.coordinator.storage.postgres.connect import Accept
from muster.coordinator.storage.postgres.eras import Eras
from muster.coordinator.storage.postgres.record_database import RecordDatabase
from muster.coordinator.storage.postgres.record_statements import Change, Changed
from muster.coordinator.storage.postgres.record_storage import Rows
from muster.coordinator.storage.store import Lease, LeaseKind, StoreBusy
from muster.coordinator.topics.catalogue import Topic
from muster.coordinator.topics.compaction import compact
from muster.coordinator.topics.config import parse
from muster.coordinator.topics.led import report_recovery
from muster.coordinator.topics.log import Appended, PartitionLog
from muster.coordinator.topics.logs import Logs
from muster.coordinator.topics.partitions import Partitions
from muster.protocol.errors import ErrorCode, KafkaError
from tests.support.ports import free_ports
from tests.support.postgres import Postgres
from tests.topics.support import NOW_MS, SHARDS, Brokers, OneLog, TestRows, batch, read_records
from tests.topics.test_partitions import ask, fetch, topic_at

RECOVERY_SECONDS_MAX = 90.0


@pytest.fixture
def rows(store: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestRows]:
    """The database with this test's logs."""
    rows = TestRows(store)
    monkeypatch.setattr(TestRows, "in_use", rows)
    yield rows
    rows.storage.close()


class Unlucky:
    """Replaces `record_statements.write`: loses some answers and some statements, and runs some later, as a
    cut connection does."""

    def __init__(self, dice: random.Random, fates: Sequence[str] = ()) -> None:
        """`fates` are used first; then the dice decide."""
        self._dice = dice
        self._fates = list(fates)
        self._write = record_statements.write
        self._late: list[list[Change]] = []
        self.written: dict[str, int] = {"late": 0, "lost": 0, "told": 0}

    async def __call__(self, connection: Any, changes: list[Change]) -> list[Changed]:
        if self._fates:
            fate = self._fates.pop(0)
        else:
            if self._late and self._dice.random() < 0.5:
                await self.arrive(connection)
            fate = self._dice.choices(("told", "lost", "never", "late"), (6, 2, 1, 2))[0]
        if fate in ("told", "lost"):
            outcomes = await self._write(connection, changes)
            self.written[fate] += sum(each.written for each in outcomes)
            if fate == "told":
                return outcomes
        elif fate == "late":
            self._late.append(list(changes))
        raise ConnectionResetError("on purpose")

    async def arrive(self, connection: Any) -> None:
        for changes in self._late:
            self.written["late"] += sum(each.written for each in await self._write(connection, changes))
        self._late.clear()


def test_whatever_becomes_of_a_statement_records_are_there_once(
    rows: TestRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    unlucky = Unlucky(dice)
    one = OneLog(internal_segment_bytes="1000")
    monkeypatch.setattr(record_statements, "write", unlucky)
    sent: list[bytes] = []
    for number in range(150):
        value = b"%d" % number
        for _ in range(100):
            try:
                one.append(value, producer=(7, 0, number))
                break
            except KafkaError as error:
                if error.code is not ErrorCode.KAFKA_STORAGE_ERROR or not one.log.failed:
                    raise
                one.reopen(epoch=1)
        else:
            pytest.fail(f"{value!r} was refused a hundred times")
        sent.append(value)
        if dice.random() < 0.1 and not one.log.failed:
            before = one.log.start_offset
            try:
                one.log.delete_records(dice.randint(before, one.log.high_watermark))
            except KafkaError:
                one.reopen(epoch=1)
    monkeypatch.undo()
    one.reopen(epoch=2)
    assert one.log.high_watermark == len(sent)
    assert [record.value for record in one.records()] == sent[one.log.start_offset :]
    assert min(unlucky.written.values()) > 0, unlucky.written


def test_what_arrives_late_changes_nothing_that_was_built_upon(
    rows: TestRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = OneLog()
    one.append(*[b"x"] * 10)
    unlucky = Unlucky(random.Random(0), ["late", "told", "late"])
    monkeypatch.setattr(record_statements, "write", unlucky)
    with pytest.raises(KafkaError):
        one.log.delete_records(3)
    one.reopen(epoch=1)
    assert one.log.delete_records(6) == 6
    rows.storage.database.run(unlucky.arrive, repeatable=False)
    assert unlucky.written == {"late": 0, "lost": 0, "told": 1}
    assert one.reopen(epoch=1).start_offset == 6
    with pytest.raises(KafkaError):
        one.log.delete_records(8)
    one.reopen(epoch=1)
    rows.storage.database.run(unlucky.arrive, repeatable=False)  # nothing was built on the state it changes
    assert unlucky.written["late"] == 1
    monkeypatch.undo()
    with pytest.raises(KafkaError) as caught:
        one.append(b"y")  # the log has changed since it was opened
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert one.log.failed
    assert one.reopen(epoch=1).start_offset == 8
    assert one.append(b"y").base_offset == 10


# --- several batches of one producer ----------------------------------------------------------------


async def outcomes(node: Partitions, topic: Topic, *sequences: int) -> list[int | ErrorCode]:
    """Send these at once, as one producer, and return the result of each: an offset or an error code."""
    sent = [node.append(topic, 0, batch(b"%d" % each, producer=(7, 0, each))) for each in sequences]
    told: list[int | ErrorCode] = []
    for each in await asyncio.gather(*sent, return_exceptions=True):
        if isinstance(each, KafkaError):
            told.append(each.code)
        else:
            assert not isinstance(each, BaseException), each
            told.append(each.base_offset)
    return told


async def values_of(node: Partitions, topic: Topic) -> list[bytes | None]:
    (answer,) = await fetch(node, ask(topic))
    assert answer.error is None
    return [record.value for record in read_records(answer.records)]


async def test_batches_of_a_lost_turn_that_were_written_are_answered_where_they_are(
    rows: TestRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = ErrorCode.KAFKA_STORAGE_ERROR
    brokers = Brokers()
    node = await brokers.add()
    topic = await topic_at(brokers)
    assert await outcomes(node, topic, 0, 1) == [0, 1]
    monkeypatch.setattr(record_statements, "write", Unlucky(random.Random(0), ["lost", *["told"] * 9]))
    # The duplicate within the turn gets no offset: it is not known yet.
    assert await outcomes(node, topic, 2, 3, 4, 3, 5) == [lost] * 5
    assert await outcomes(node, topic, 6) == [6]  # it was in flight when the others were refused
    assert await outcomes(node, topic, 2, 3, 4, 5, 6, 7) == [2, 3, 4, 5, 6, 7]
    assert await values_of(node, topic) == [b"%d" % each for each in range(8)]
    await brokers.close()


@pytest.mark.parametrize("stored", [0, 3])
async def test_what_was_under_way_behind_a_lost_turn_is_not_out_of_order(
    rows: TestRows, monkeypatch: pytest.MonkeyPatch, stored: int
) -> None:
    """Otherwise librdkafka would start over with another producer id, and store again what it does not know
    to be stored. Without stored batches the producer is unknown, and could otherwise start at any sequence
    number."""
    lost = ErrorCode.KAFKA_STORAGE_ERROR
    brokers = Brokers()
    node = await brokers.add()
    topic = await topic_at(brokers)
    assert await outcomes(node, topic, *range(stored)) == list(range(stored))
    monkeypatch.setattr(record_statements, "write", Unlucky(random.Random(0), ["never", *["told"] * 9]))
    first = stored
    assert await outcomes(node, topic, first, first + 1) == [lost, lost]
    assert await outcomes(node, topic, first + 2, first + 3) == [lost, lost]
    assert await outcomes(node, topic, first) == [first]
    assert await outcomes(node, topic, first + 3) == [lost]
    assert await outcomes(node, topic, first + 1, first + 2, first + 3) == [first + 1, first + 2, first + 3]
    # A gap that the producer caused itself is still an error.
    assert await outcomes(node, topic, first + 7) == [ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER]
    assert await values_of(node, topic) == [b"%d" % each for each in range(first + 4)]
    await brokers.close()


async def test_what_was_under_way_when_the_log_could_not_be_opened_is_not_out_of_order(
    rows: TestRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = ErrorCode.KAFKA_STORAGE_ERROR
    brokers = Brokers()
    node = await brokers.add()
    topic = await topic_at(brokers)
    assert await outcomes(node, topic, 0) == [0]
    stored = record_statements.stored

    async def away(*asked: Any) -> Any:
        raise PermissionError("on purpose")

    # The partition is led in another epoch before it is known that nothing was written.
    for shard in range(SHARDS):
        node.own(shard, 2)
    monkeypatch.setattr(record_statements, "stored", away)
    assert await outcomes(node, topic, 1) == [lost]
    monkeypatch.setattr(record_statements, "stored", stored)
    assert await outcomes(node, topic, 2) == [lost]
    assert await outcomes(node, topic, 1, 2) == [1, 2]
    await brokers.close()


async def test_a_log_that_is_opened_anew_within_a_turn_takes_nothing_behind_what_it_lost(
    rows: TestRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR)
    brokers = Brokers()
    node = await brokers.add()
    topic = await topic_at(brokers)
    assert await outcomes(node, topic, 0) == [0]
    write = PartitionLog.write

    def write_and_fail(log: PartitionLog, *arguments: Any) -> Appended:
        appended = write(log, *arguments)
        if appended.base_offset == 1:
            log.segments.failed = True  # type: ignore[misc]  # as a concurrent read or upkeep may do
        return appended

    monkeypatch.setattr(PartitionLog, "write", write_and_fail)
    assert await outcomes(node, topic, 1, 2) == list(lost)
    monkeypatch.undo()
    assert await outcomes(node, topic, 1, 2) == [1, 2]
    await brokers.close()


def test_a_compaction_whose_end_is_not_known_loses_nothing(
    rows: TestRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = OneLog(cleanup_policy="compact", min_cleanable_dirty_ratio="0")
    for value in (b"1", b"2", b"3"):
        one.append(value, keys=[b"k"])
    one.log.segments.roll()
    one.append(b"4", keys=[b"other"])
    monkeypatch.setattr(record_statements, "write", Unlucky(random.Random(0), ["lost"]))
    with pytest.raises(OSError, match="on purpose"):
        compact(one.log, NOW_MS)
    monkeypatch.undo()
    assert one.log.failed
    failed = one.log
    failed.seal()  # as every append does if there is something to seal
    one.reopen(epoch=1)
    failed.seal()
    one.log.seal()
    assert [record.value for record in one.records()] == [b"3", b"4"]


# --- with real outages -----------------------------------------------------------------------------


class Producing:
    """Idempotent producers, one per partition; each sends its values in order and retries until it knows
    their offsets."""

    def __init__(self, node: Partitions, topic: Topic) -> None:
        self.node = node
        self.topic = topic
        self.acknowledged: list[list[bytes]] = [[] for _ in range(topic.partitions)]
        self.refused = 0
        self.longest_s = 0.0
        self.stop = asyncio.Event()
        self.happened = asyncio.Event()

    async def produce(self, partition: int) -> None:
        number = 0
        while not self.stop.is_set():
            await self.send(partition, number, b"%d" % number)
            number += 1

    async def send(self, partition: int, number: int, value: bytes) -> None:
        deadline = time.monotonic() + RECOVERY_SECONDS_MAX
        while time.monotonic() < deadline:
            began = time.monotonic()
            try:
                sent = batch(value, producer=(100 + partition, 0, number))
                appended = await self.node.append(self.topic, partition, sent)
            except KafkaError as error:
                if error.code is not ErrorCode.KAFKA_STORAGE_ERROR:
                    raise
                self.refused += 1
                with suppress(TimeoutError):  # backoff
                    await asyncio.wait_for(self.stop.wait(), 0.05)
            else:
                assert appended.base_offset == number
                self.acknowledged[partition].append(value)
                return
            finally:
                self.longest_s = max(self.longest_s, time.monotonic() - began)
                self.happened.set()
        pytest.fail(f"no answer but refusals for {RECOVERY_SECONDS_MAX} s")

    async def acknowledges(self, more: int) -> None:
        """Wait until each producer has got `more` further acknowledgements."""
        wanted = [len(each) + more for each in self.acknowledged]
        await self.comes_true(
            lambda: all(len(got) >= want for got, want in zip(self.acknowledged, wanted, strict=True))
        )

    async def comes_true(self, fact: Callable[[], bool]) -> None:
        """Wait for a fact that only answers can bring about."""
        async with asyncio.timeout(RECOVERY_SECONDS_MAX):
            while not fact():
                self.happened.clear()
                await self.happened.wait()

    async def check(self, node: Partitions) -> None:
        for partition, acknowledged in enumerate(self.acknowledged):
            found: list[bytes | None] = []
            while True:
                (answer,) = await fetch(node, ask(self.topic, len(found), partition))
                assert answer.error is None
                if not answer.records:
                    break
                found += [record.value for record in read_records(answer.records)]
            assert found == acknowledged


@pytest.mark.parametrize("fault", ["kill", "restart", "pause"])
async def test_the_database_goes_away_and_comes_back(
    rows: TestRows, postgres: Postgres, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A paused database does not answer: calls fail after this time.
    monkeypatch.setattr(record_database, "_CALL_TIMEOUT_S", 3.0)
    brokers = Brokers()
    node = await brokers.add()
    topic = await topic_at(brokers, partitions=3)
    with ThreadPoolExecutor(4) as threads:
        node._executor = threads
        producing = Producing(node, topic)
        tasks = [asyncio.ensure_future(producing.produce(partition)) for partition in range(3)]
        await producing.acknowledges(20)
        if fault == "restart":
            await asyncio.to_thread(postgres.restart)
        elif fault == "kill":
            await asyncio.to_thread(postgres.kill)
            await producing.comes_true(lambda: producing.refused > 0)
            await asyncio.to_thread(postgres.start)
        else:
            await asyncio.to_thread(postgres.pause)
            try:
                await producing.comes_true(lambda: producing.refused >= 3)
            finally:
                await asyncio.to_thread(postgres.resume)
        await producing.acknowledges(20)
        producing.stop.set()
        await asyncio.gather(*tasks)
        await producing.check(node)
        again = await brokers.add(epoch=2)
        again._executor = threads
        await producing.check(again)
        await brokers.close()
    assert producing.longest_s < 60  # a bound, not a speed: three seconds on an idle machine


async def test_who_cannot_connect_is_refused_at_once() -> None:
    logs = Logs.in_postgres(f"postgresql://muster@127.0.0.1:{free_ports(1)}/muster")
    for partition in range(50):
        with pytest.raises(KafkaError) as caught:
            logs.open(
                UUID(int=1), partition, "orders", parse({}), Lease(LeaseKind.DATA, 1), 1, lambda: NOW_MS
            )
        assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    logs.close()
    logs.close()
    with pytest.raises(OSError, match="closed"):
        logs.stored()


def test_who_is_refused_a_further_connection_waits_for_one_that_is_in_use(
    postgres: Postgres, store: str
) -> None:
    url, role = postgres.with_own_role(store)
    database = Rows.at(url, "few").database
    connect, refused = database._connect, threading.Event()
    entered: queue.SimpleQueue[None] = queue.SimpleQueue()
    go_on = threading.Event()

    async def connecting(accept: Accept) -> Any:
        try:
            return await connect(accept)
        except StoreBusy:
            refused.set()
            raise

    async def quick(connection: Any) -> int:
        return int(await connection.fetchval("SELECT pg_backend_pid()"))

    async def held(connection: Any) -> int:
        entered.put(None)
        await asyncio.to_thread(go_on.wait, RECOVERY_SECONDS_MAX)
        return await quick(connection)

    database._connect = connecting
    with ThreadPoolExecutor(6) as threads:

        def ask(call: Any) -> Future[int]:
            return threads.submit(database.run, call, repeatable=False)

        def two_held() -> list[Future[int]]:
            both = [ask(held) for _ in range(2)]
            for _ in both:
                entered.get(timeout=RECOVERY_SECONDS_MAX)
            return both

        both = two_held()
        postgres.execute(f"ALTER ROLE {role} CONNECTION LIMIT 2")
        others = [ask(quick) for _ in range(4)]
        try:
            assert refused.wait(RECOVERY_SECONDS_MAX)
        finally:
            go_on.set()
        there = {each.result() for each in both}
        assert len(there) == 2
        assert {each.result() for each in others} <= there
        go_on.clear()
        both = two_held()
        go_on.set()
        assert {each.result() for each in both} == there, "none was dropped"
    database.close()


class Full:
    """Connections to no database, which gives no further one while it is `full`; one is in use until
    `go_on`."""

    def __init__(self) -> None:
        self.database = RecordDatabase("db", self._connect, cast(Eras, self))
        self.full, self.refused, self.go_on = threading.Event(), threading.Event(), threading.Event()
        self.current = 0

    async def _connect(self, accept: Accept) -> Any:
        if self.full.is_set():
            self.refused.set()
            raise StoreBusy("too many clients") from TooMany()
        return Unused()

    async def check(self, connection: Any) -> int:
        return self.current

    def hold(self, threads: ThreadPoolExecutor) -> Future[None]:
        entered = threading.Event()

        async def held(connection: Any) -> None:
            entered.set()
            await asyncio.to_thread(self.go_on.wait, RECOVERY_SECONDS_MAX)

        holding = threads.submit(self.database.run, held, repeatable=False)
        assert entered.wait(RECOVERY_SECONDS_MAX)
        self.full.set()
        return holding

    def ask(self) -> str:
        async def quick(connection: Any) -> str:
            return "answered"

        return self.database.run(quick, repeatable=False)


class Unused:
    """A connection on which nothing is called."""

    def is_closed(self) -> bool:
        return False

    def terminate(self) -> None:
        pass

    async def close(self, timeout: float) -> None:
        pass


class TooMany(Exception):
    sqlstate = "53300"


@pytest.fixture
def full() -> Iterator[Full]:
    full = Full()
    yield full
    full.go_on.set()
    full.database.close()


def test_who_is_refused_a_further_connection_asks_again(full: Full) -> None:
    with ThreadPoolExecutor(4) as threads:
        holding = full.hold(threads)
        others = [threads.submit(full.ask) for _ in range(3)]
        try:
            assert full.refused.wait(RECOVERY_SECONDS_MAX)
            full.full.clear()
            assert [each.result() for each in others] == ["answered"] * 3
            assert not holding.done()
        finally:
            full.go_on.set()


def test_who_waits_in_vain_for_a_connection_in_use_keeps_nobody_from_the_database(
    full: Full, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ThreadPoolExecutor(1) as threads:
        holding = full.hold(threads)
        try:
            with monkeypatch.context() as impatient:
                impatient.setattr(record_database, "_CALL_TIMEOUT_S", 0.1)
                with pytest.raises(OSError, match="no answer"):
                    full.ask()
            full.full.clear()
            assert full.ask() == "answered"
            assert not holding.done()
        finally:
            full.go_on.set()


_PROGRAM = """
import sys
from tests.topics.support import OneLog, TestRows

TestRows.in_use = TestRows(sys.argv[1], first_lease=9_000)
one = OneLog(internal_segment_bytes="4000")
print(one.topic_id.hex, one.lease.number, flush=True)
for number in range(10**9):
    offset = one.append(b"%d" % number, b"x" * 500, producer=(5, 0, 2 * number)).base_offset
    print(offset, flush=True)
"""


def test_what_was_acknowledged_survives_a_kill_of_the_broker(rows: TestRows, store: str) -> None:
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, store], stdout=subprocess.PIPE, cwd=root
    ) as process:
        assert process.stdout is not None
        topic_id, lease = process.stdout.readline().split()
        for _ in range(300):
            process.stdout.readline()
        process.send_signal(signal.SIGKILL)
        acknowledged = 300 + len(process.stdout.read().splitlines())
    one = OneLog(internal_segment_bytes="4000")
    one.topic_id, one.lease = UUID(topic_id.decode()), Lease(LeaseKind.DATA, int(lease))
    one.reopen(epoch=2)
    values = [record.value for record in one.records()]
    assert acknowledged <= len(values) // 2 <= acknowledged + 1  # the last acknowledgement may be lost
    assert values[::2] == [b"%d" % number for number in range(len(values) // 2)]
    written = len(values) // 2
    assert one.append(b"again", b"", producer=(5, 0, 2 * (written - 1))).base_offset == 2 * (written - 1)
    assert one.append(b"next", b"", producer=(5, 0, 2 * written)).base_offset == 2 * written


def test_records_that_a_failover_has_lost_are_reported(
    rows: TestRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The replica had the first batch, and an earlier version of the log."""
    said: list[dict[str, object]] = []
    monkeypatch.setattr(Logger, "error", lambda _, event, **fields: said.append({"event": event, **fields}))
    logs, topic_id = Logs(rows.storage), uuid4()
    lease = Lease(LeaseKind.DATA, rows.new_leases(1))

    rows.claim(lease, 1)

    def opened() -> PartitionLog:
        log = logs.open(topic_id, 0, "orders-0", parse({}), lease, 1, lambda: NOW_MS)
        report_recovery(log)
        return log

    log = opened()
    log.append(batch(b"kept"))
    log.commit()
    columns = "version, next_offset, size_bytes"
    kept = rows.execute(f"SELECT {columns} FROM muster.logs WHERE topic_id = $1", topic_id)
    for _ in range(2):
        log.append(batch(b"lost"))
        log.commit()
    rows.execute(
        f"UPDATE muster.logs SET ({columns}) = ($2, $3, $4) WHERE topic_id = $1",
        topic_id,
        *kept[0],
    )
    rows.execute(
        "DELETE FROM muster.batches WHERE base_offset >= 1 AND segment_id IN "
        "(SELECT segment_id FROM muster.segments WHERE topic_id = $1)",
        topic_id,
    )
    log.append(batch(b"refused"))
    with pytest.raises(KafkaError) as refused:
        log.commit()
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    rows.storage.database.close()
    with pytest.raises(KafkaError):  # the new server is not there yet
        opened()
    logs._storage = TestRows(rows.url).storage
    try:
        assert opened().high_watermark == 1
        (missing,) = (each for each in said if "records missing" in str(each["event"]))
        assert (missing["partition"], missing["end_offset"], missing["known_end"]) == ("orders-0", 1, 3)
        opened()
        assert [each["event"] for each in said].count(missing["event"]) == 1, "once"
    finally:
        logs.close()

"""A stream's rows written exactly once, to Apache Kafka and to muster. In the first half the writer is called
as Spark's driver and its tasks call it, in the second half Spark calls it. What it decides by: test_marks.py

One kill, or as many as KILLS says; SEED repeats the choice of points (make spark-long).
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow
import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from muster.client import Admin, Producer, TransactionListing
from muster.coordinator.testing import Broker
from muster.pipeline import exactly_once
from muster.pipeline.errors import OptionError, PipelineError, from_spark
from muster.pipeline.exactly_once import Committed, ExactlyOnce
from muster.pipeline.marks import Part
from muster.pipeline.rows import Rows
from muster.pipeline.writer import batch_writer
from muster.pipeline.writer_options import WriterOptions
from tests.pipeline.committed import created, values
from tests.pipeline.jobs import STARTS_S
from tests.pipeline.processes import ENDING_WITH_THE_TESTS, kill, of_session
from tests.pipeline.submitted.copying import copy
from tests.support.apache_kafka import ApacheKafka
from tests.support.java import SPARK

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

QUERY: Final = "5306b803-e052-4b37-9b49-3facbe581865"
VALUE: Final = StructType([StructField("value", BinaryType())])
KILLS: Final = int(os.environ.get("KILLS") or 1)
RECORDS: Final = 500 * KILLS
PER_BATCH: Final = 100
CHANGES_MAX: Final = 40
"""Of files, up to the kill: some ten are a batch."""
DEADLINE_S: Final = 120
_LOOK_S: Final = 0.002


@pytest.fixture(scope="module")
def kafka() -> Iterator[ApacheKafka]:
    with ApacheKafka() as started:
        yield started


@pytest.fixture(scope="module", params=["Apache Kafka", "muster"])
def servers(request: pytest.FixtureRequest) -> Iterator[str]:
    """Where they are reached."""
    if request.param == "muster":
        with Broker() as broker:
            yield broker.bootstrap
    else:
        yield request.getfixturevalue("kafka").bootstrap


@pytest.fixture
def topic(servers: str) -> str:
    return created(servers)


def given(servers: str, topic: str, **more: str) -> dict[str, str]:
    """Options of the writer; the prefix is the topic's name."""
    named = {name.replace("_", "."): value for name, value in more.items()}
    where = {"kafka.bootstrap.servers": servers, "topic": topic}
    return {**where, "transactionalIdPrefix": topic, "kafka.max.block.ms": "10000", **named}


def writer(servers: str, topic: str, **more: str) -> ExactlyOnce:
    options = WriterOptions.of(given(servers, topic, **more))
    made = ExactlyOnce.of(Rows.of(VALUE, options, False), options)
    assert made is not None
    return made


def rows(*values: bytes) -> pyarrow.RecordBatch:
    return pyarrow.RecordBatch.from_pydict({"value": pyarrow.array(values, pyarrow.binary())})


def task(
    once: ExactlyOnce, attempt: str, batch: int, number: int, *values: bytes, query: str = QUERY
) -> Committed:
    part = Part(query, batch, number)
    return once.write(iter([rows(*values)]), (), part, attempt)


def batch(once: ExactlyOnce, number: int, parts: Sequence[Sequence[bytes]]) -> None:
    """A batch that goes well."""
    attempt = once.begin()
    once.finish(number, [task(once, attempt, number, at, *each) for at, each in enumerate(parts)])


# --- as Spark calls it --------------------------------------------------------------------------------------


def test_what_is_written_is_not_written_again(servers: str, topic: str) -> None:
    once = writer(servers, topic)
    batch(once, 0, [[b"a", b"b"], []])
    attempt = once.begin()
    told = task(once, attempt, 1, 0, b"c")
    assert told == task(once, attempt, 1, 0, b"c") == Committed(1, QUERY, attempt)
    again = once.begin()
    told = task(once, again, 1, 0, b"c")
    once.finish(1, [told, task(once, again, 1, 1, b"d")])
    batch(once, 1, [[b"c"], [b"d"]])
    batch(once, 2, [[b"e"]])
    assert values(servers, topic) == [b"a", b"b", b"c", b"d", b"e"]


def test_a_task_that_fails_leaves_nothing_to_see(
    servers: str, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    once = writer(servers, topic, kafka_linger_ms="0")

    def breaks() -> Iterator[pyarrow.RecordBatch]:
        yield rows(b"a")
        yield rows(b"b")
        raise RuntimeError("an executor's disk is full")

    attempt = once.begin()
    with caplog.at_level(logging.ERROR), pytest.raises(RuntimeError, match="disk"):
        once.write(breaks(), (), Part(QUERY, 0, 0), attempt)
    gc.collect()  # which is when asyncio complains of errors that nobody looked at
    assert caplog.records == []
    assert values(servers, topic, "read_uncommitted"), "some of it is in the log"
    assert values(servers, topic) == []
    once.finish(0, [task(once, attempt, 0, 0, b"a", b"b", b"c")])
    assert values(servers, topic) == [b"a", b"b", b"c"]


def test_rows_are_sent_while_the_next_ones_are_awaited(servers: str, topic: str) -> None:
    once = writer(servers, topic)

    def slow() -> Iterator[pyarrow.RecordBatch]:
        yield rows(b"a")
        until = time.monotonic() + DEADLINE_S
        while values(servers, topic, "read_uncommitted") != [b"a"]:
            assert time.monotonic() < until, "the first row was not sent"
        yield rows(b"b")

    attempt = once.begin()
    once.finish(0, [once.write(slow(), (), Part(QUERY, 0, 0), attempt)])
    assert values(servers, topic) == [b"a", b"b"]


def test_of_two_attempts_at_a_task_the_later_one_writes(servers: str, topic: str) -> None:
    """As a speculative one, or one that a lost executor goes on with: both at once, with the same rows."""
    once = writer(servers, topic)
    attempt = once.begin()
    told: list[Committed] = []

    def overtaken() -> Iterator[pyarrow.RecordBatch]:
        yield rows(b"a")
        told.append(in_another_loop(once, attempt))
        yield rows(b"b")

    with pytest.raises(PipelineError, match=f"batch 0, task 0: another attempt has taken .* {topic}-task-0"):
        once.write(overtaken(), (), Part(QUERY, 0, 0), attempt)
    once.finish(0, told)
    assert values(servers, topic) == [b"a", b"b"]


def in_another_loop(once: ExactlyOnce, attempt: str) -> Committed:
    """The same task in another thread: this one's loop runs."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(task, once, attempt, 0, 0, b"a", b"b").result(DEADLINE_S)


def test_a_task_of_an_older_attempt_writes_nothing(servers: str, topic: str) -> None:
    """Not even one that the newer attempt has no task for, whenever it wakes up."""
    once = writer(servers, topic)
    old = once.begin()
    new = once.begin()
    with pytest.raises(PipelineError, match="another attempt at a batch"):
        task(once, old, 0, 1, b"b")
    once.finish(0, [task(once, new, 0, 0, b"a", b"b")])
    with pytest.raises(PipelineError, match="another attempt at a batch"):
        task(once, old, 0, 1, b"b")
    with pytest.raises(PipelineError, match="another attempt at a batch"):
        once.finish(0, [Committed(1, QUERY, old)])
    assert values(servers, topic) == [b"a", b"b"]


def test_a_task_that_there_is_no_more_is_shut_out_in_the_middle(servers: str, topic: str) -> None:
    once = writer(servers, topic)
    old = once.begin()
    with ThreadPoolExecutor(1) as pool:

        def interrupted() -> Iterator[pyarrow.RecordBatch]:
            yield rows(b"b")
            pool.submit(batch, once, 0, [[b"a", b"b"]]).result(DEADLINE_S)
            yield rows(b"c")

        with pytest.raises(
            PipelineError, match=f"batch 0, task 1: another attempt has taken .* {topic}-task-1"
        ):
            once.write(interrupted(), (), Part(QUERY, 0, 1), old)
    assert values(servers, topic) == [b"a", b"b"]


def test_a_batch_that_is_cut_into_other_tasks(servers: str, topic: str) -> None:
    """Fine as long as what is committed is part of it, each time."""
    once = writer(servers, topic)
    attempt = once.begin()
    task(once, attempt, 0, 1, b"b")
    batch(once, 0, [[b"a"], [b"b"], [b"c"]])
    attempt = once.begin()
    task(once, attempt, 1, 4)
    task(once, attempt, 1, 1, b"e")
    batch(once, 1, [[b"d"], [b"e"]])
    assert values(servers, topic) == [b"a", b"b", b"c", b"d", b"e"]
    attempt = once.begin()
    task(once, attempt, 2, 3, b"g")
    with pytest.raises(
        PipelineError, match="batch 2: an earlier attempt had a task 3, which committed 1 rows"
    ):
        batch(once, 2, [[b"f", b"g"]])
    attempt = once.begin()
    with pytest.raises(PipelineError, match=r"batch 2, task 0: its rows .* \(2 then, 1 now\)"):
        task(once, attempt, 2, 0, b"f")


def test_a_task_whose_coordinator_is_moving_counts(
    servers: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    once = writer(servers, topic)
    batch(once, 0, [[b"a"], [b"b"], [b"c"]])

    async def listed_by_nobody(*_: object) -> list[TransactionListing]:
        return []

    monkeypatch.setattr(exactly_once, "list_transactions", listed_by_nobody)

    async def tasks() -> int:
        async with exactly_once._Notes(once.options, once.names) as notes:
            return await notes.tasks()

    assert asyncio.run(tasks()) == 3


def test_queries_that_get_in_each_others_way(servers: str, topic: str) -> None:
    once = writer(servers, topic)
    batch(once, 0, [[b"a"]])
    attempt = once.begin()
    with pytest.raises(PipelineError, match=f"{topic} belongs to query {QUERY}, this is another"):
        task(once, attempt, 0, 0, b"a", query="another")
    batch(once, 1, [[b"b"]])
    attempt = once.begin()
    with pytest.raises(PipelineError, match="has written batch 1 already"):
        task(once, attempt, 0, 0, b"a")
    assert values(servers, topic) == [b"a", b"b"]


def test_notes_that_are_gone(servers: str, topic: str) -> None:
    once = writer(servers, topic)
    batch(once, 0, [[b"a"]])

    async def forget() -> None:
        async with Admin(servers) as admin:
            (await admin.delete_groups([f"{topic}-query"])).raise_for_failures()

    asyncio.run(forget())
    with pytest.raises(PipelineError, match=f"{topic} has transactional ids, but group {topic}-query"):
        once.begin()
    assert values(servers, topic) == [b"a"]


def test_a_batch_is_repeated_for_longer_than_brokers_keep_offsets() -> None:
    with Broker(offsets_retention_minutes=60) as broker:
        topic = created(broker.bootstrap)
        once = writer(broker.bootstrap, topic)
        for _ in range(4):
            attempt = once.begin()
            told = task(once, attempt, 0, 0, b"a")
            broker.clock.advance("40m")
        once.finish(0, [told])
        assert values(broker.bootstrap, topic) == [b"a"]
        attempt = once.begin()
        task(once, attempt, 1, 0, b"b")
        broker.clock.advance("2h")
        with pytest.raises(PipelineError, match=f"group {topic}-query holds nothing"):
            once.begin()


def test_a_checkpoint_that_was_begun_without_the_option(servers: str, topic: str) -> None:
    once = writer(servers, topic)
    attempt = once.begin()
    with pytest.raises(PipelineError, match="known to have finished is none "):
        task(once, attempt, 1, 0, b"b")
    assert values(servers, topic) == []


def test_what_will_not_do(servers: str) -> None:
    with pytest.raises(OptionError, match=r"transactionalIdPrefix is for df\.writeStream"):
        batch_writer(VALUE, given(servers, "t"), False)
    for more, told in (
        ({"transactionalIdPrefix": " "}, "transactionalIdPrefix is empty"),
        ({"kafka_acks": "1"}, "transactions take kafka.acks=all"),
        ({"kafka_enable_idempotence": "false"}, "transactions take kafka.acks=all"),
        ({"kafka_transactional_id": "x"}, "kafka.transactional.id: option transactionalIdPrefix gives each"),
        ({"kafka_transaction_timeout_ms": "0"}, "option kafka.transaction.timeout.ms"),
    ):
        with pytest.raises(OptionError, match=told):
            WriterOptions.of(given(servers, "t", **more))
    where = {"kafka.bootstrap.servers": servers, "transactionalIdPrefix": "t"}
    with pytest.raises(OptionError, match="takes option topic beside it"):
        WriterOptions.of(where)
    with pytest.raises(PipelineError, match="nowhere-0"):
        writer(servers, "nowhere", kafka_max_block_ms="500").begin()


# --- on Spark -----------------------------------------------------------------------------------------------


def stream(rows: DataFrame, servers: str, topic: str, checkpoint: Path) -> StreamingQuery:
    made = rows.writeStream.format("muster").options(**given(servers, topic))
    return made.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()


def test_a_batch_that_spark_repeats(spark: SparkSession, servers: str, topic: str, tmp_path: Path) -> None:
    """It was finished, and Spark did not note it. The second time the same rows come in the same tasks, the
    third time they do not."""
    source, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    source.mkdir()

    rows = spark.readStream.schema("value STRING").option("maxFilesPerTrigger", 2).text(str(source))

    def run(tasks: int) -> None:
        assert stream(rows.coalesce(tasks), servers, topic, checkpoint).awaitTermination(DEADLINE_S)

    def add(*names: str) -> list[bytes]:
        for name in names:
            (source / name).write_text(f"{name}1\n{name}2\n")
        return [f"{name}{n}".encode() for name in names for n in (1, 2)]

    everything = add("a", "b", "c", "d")
    with pytest.raises(Exception, match=r"muster\.pipeline\.errors") as caught:
        stream(rows, servers, "nowhere", tmp_path / "nowhere").awaitTermination(DEADLINE_S)
    said = from_spark(caught.value) or ""
    assert "nowhere-0" in said
    assert "\n" not in said
    run(2)
    forget(checkpoint, "1")
    everything += add("e", "f")
    run(2)
    assert values(servers, topic) == everything
    forget(checkpoint, "2")
    with pytest.raises(Exception, match=r"muster\.pipeline\.errors") as caught:
        run(1)
    assert "its rows are not those that it committed (2 then, 4 now)" in (from_spark(caught.value) or "")
    assert values(servers, topic) == everything


def forget(checkpoint: Path, *batches: str) -> None:
    """As though Spark had died before it noted them as done."""
    for batch in batches:
        (checkpoint / "commits" / batch).unlink()
        (checkpoint / "commits" / f".{batch}.crc").unlink()


def test_killed_at_random_points(spark: SparkSession, kafka: ApacheKafka, tmp_path: Path) -> None:
    """From topic to topic: first a worker, then the query with its JVM and all workers, within batches and
    between them. Of what it reads, some is aborted."""
    seed = int(os.environ.get("SEED") or random.randrange(2**32))
    chance = random.Random(seed)
    source, topic = created(kafka.bootstrap), created(kafka.bootstrap)
    asyncio.run(fill(kafka.bootstrap, source))
    for number in range(KILLS):
        first, second = chance.randint(1, CHANGES_MAX), chance.randint(1, CHANGES_MAX)
        print(f"seed {seed}, kill {number}: after {first} changes, and {second} more", end="")
        with copying(kafka, source, topic, tmp_path) as job:
            wait_for_changes(job, kafka, topic, tmp_path, first)
            kill_a_worker(job, chance)
            wait_for_changes(job, kafka, topic, tmp_path, second)
            kill(job.pid)
            job.wait(STARTS_S)
        found = values(kafka.bootstrap, topic)
        begun, done = (count(tmp_path / "checkpoint" / each) for each in ("offsets", "commits"))
        print(f": {begun} batches begun, {done} noted as done, {len(found)} records")
        assert len(set(found)) == len(found), "none is there twice"
        assert len(found) >= done * PER_BATCH * 9 // 10, "what is finished is there"
    query = copy(spark, kafka.bootstrap, source, topic, str(tmp_path), str(PER_BATCH))
    assert query.awaitTermination(DEADLINE_S)
    assert values(kafka.bootstrap, topic) == sorted(b"%06d" % number for number in range(RECORDS))


async def fill(servers: str, topic: str) -> None:
    """Records by number, and between them some that are aborted."""
    async with Producer(servers, transactional_id=f"fill-{topic}") as producer:
        for first in range(0, RECORDS, 400):
            async with producer.transaction() as transaction:
                for number in range(first, min(first + 400, RECORDS)):
                    await transaction.post(topic, b"%06d" % number)
            transaction = await producer.transaction().begin()
            await transaction.send(topic, b"aborted")
            await transaction.abort()


def copying(kafka: ApacheKafka, source: str, topic: str, folder: Path) -> subprocess.Popen[bytes]:
    """The query in a process of its own, the first of a session."""
    module = "tests.pipeline.submitted.copying"
    return subprocess.Popen(
        [
            *ENDING_WITH_THE_TESTS,
            sys.executable,
            "-m",
            module,
            kafka.bootstrap,
            source,
            topic,
            str(folder),
            str(PER_BATCH),
        ],
        env=os.environ | {"SPARK_SUBMIT_OPTS": SPARK},
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )


def kill_a_worker(job: subprocess.Popen[bytes], chance: random.Random) -> None:
    workers = sorted(pid for pid, command in of_session(job.pid).items() if "pyspark.daemon" in command)
    if workers:
        with suppress(ProcessLookupError):
            os.kill(chance.choice(workers), signal.SIGKILL)


def wait_for_changes(
    job: subprocess.Popen[bytes], kafka: ApacheKafka, topic: str, folder: Path, count: int
) -> None:
    """Wait until so many files have changed, of the checkpoint and of the broker: a point near to one of the
    steps of a batch or of a transaction."""
    until_s = time.monotonic() + STARTS_S
    before = sizes(kafka, topic, folder)
    while count > 0 and job.poll() is None:  # the worker that is killed may be the one that plans
        assert time.monotonic() < until_s, f"{count} changes have not come"
        now = sizes(kafka, topic, folder)
        count -= len(now ^ before)
        before = now
        time.sleep(_LOOK_S)


def sizes(kafka: ApacheKafka, topic: str, folder: Path) -> set[tuple[str, int]]:
    found = set()
    logs = [
        path
        for pattern in (f"{topic}-*", "__transaction_state-*", "__consumer_offsets-*")
        for path in kafka.folder.glob(f"**/{pattern}/*.log")
    ]
    for path in [*logs, *folder.glob("checkpoint/*/*")]:
        try:
            found.add((str(path), path.stat().st_size))
        except FileNotFoundError:  # a file that was renamed meanwhile
            continue
    return found


def count(folder: Path) -> int:
    return sum(path.name.isdigit() for path in folder.glob("*"))

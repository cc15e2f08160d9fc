"""The Spark examples, run the way readers run them, or through their `main` in the tests' session."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from pyspark.errors import StreamingQueryException

from muster.client import Producer
from muster.coordinator.testing import Broker
from muster.pipeline.errors import from_spark
from tests.pipeline.logs import administered, committed, produced
from tests.pipeline.processes import ENDING_WITH_THE_TESTS, gone, kill
from tests.support.java import SPARK
from tests.support.ports import free_ports
from tests.support.postgres import Postgres

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXAMPLES: Final = Path(__file__).parents[2] / "examples" / "spark"
LIMIT_S: Final = 180.0
_LOOK_S: Final = 0.05


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Imports an example; examples find `common` beside them."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module


def given(broker: Broker, folder: Path, **more: str) -> Namespace:
    named = {"bootstrap_server": broker.bootstrap, "checkpoint": str(folder / "checkpoint"), **more}
    return Namespace(once=True, **named)


class Running:
    """An example as a process, in its own session; its output goes to a file."""

    def __init__(self, folder: Path, *command: str | Path) -> None:
        self.output, self.errors = folder / "out", folder / "err"
        variables = {
            name: value
            for name, value in os.environ.items()
            # Set by the session of the tests.
            if name not in ("PYSPARK_PYTHON", "PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET")
        }
        variables["SPARK_SUBMIT_OPTS"] = SPARK
        variables["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{variables['PATH']}"
        with self.output.open("w") as out, self.errors.open("w") as errors:
            self.process = subprocess.Popen(
                [*ENDING_WITH_THE_TESTS, *map(str, command)],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=errors,
                env=variables,
                start_new_session=True,
            )

    def until(self, fact: Callable[[], object]) -> None:
        until_s = time.monotonic() + LIMIT_S
        while not fact():
            assert self.process.poll() is None, f"it ended: {self.told()}"
            assert time.monotonic() < until_s, f"not in time: {self.told()}"
            time.sleep(_LOOK_S)

    def end(self) -> str:
        """Its output, once it has ended successfully with no process left."""
        code = self.process.wait(LIMIT_S)
        assert (code, gone(self.process.pid)) == (0, {}), self.told()
        return self.output.read_text()

    def told(self) -> str:
        return f"{self.output.read_text()}\n{self.errors.read_text()}"


@contextmanager
def running(folder: Path, *command: str | Path) -> Iterator[Running]:
    started = Running(folder, *command)
    try:
        yield started
    finally:
        kill(started.process.pid)
        started.process.wait(LIMIT_S)


def test_every_example_is_here() -> None:
    here = Path(__file__).read_text()
    elsewhere = {"common", "rebalance_report", "demo"}  # test_report.py covers the last two
    for path in EXAMPLES.glob("*.py"):
        assert path.stem in elsewhere or f'"{path.stem}' in here


@pytest.mark.long
def test_word_count_by_spark_submit(broker: Broker, tmp_path: Path) -> None:
    program = EXAMPLES / "word_count.py"
    told = ("--bootstrap-server", broker.bootstrap, "--sample", "--once")
    with running(tmp_path, "spark-submit", "--master", "local[2]", program, *told) as example:
        table = example.end()
    rows = [line.split("|")[1:3] for line in table.splitlines() if line.startswith("|")]
    counts = {word.strip(): int(count) for word, count in rows if word.strip() != "word"}
    assert counts == {"the": 4, "saw": 3, "cat": 2, "dog": 2, "nobody": 2}
    assert len(broker.records("lines")) == 3


def test_enrichment_join_until_ctrl_c(broker: Broker, tmp_path: Path) -> None:
    broker.create_topic("customers", 2)
    broker.create_topic("orders", 2)
    broker.produce("customers", [(b"c1", b'{"name": "Al", "city": "Lisbon"}'), (b"c2", b'{"name": "Bob"}')])
    broker.produce("customers", [(b"c1", b'{"name": "Alice", "city": "Lisbon"}')])
    broker.produce("orders", [(b"o1", b'{"customer": "c1", "cents": 420}'), (b"o2", b'{"customer": "c2"}')])

    def enriched() -> dict[str, dict[str, Any]]:
        topics = administered(broker, lambda admin: admin.list_topics())
        if "orders-enriched" not in [each.name for each in topics]:
            return {}
        return {
            (each.key or b"").decode(): json.loads(each.value or b"")
            for each in broker.records("orders-enriched")
        }

    program = EXAMPLES / "enrichment_join.py"
    with running(tmp_path, sys.executable, program, "--bootstrap-server", broker.bootstrap) as example:
        example.until(lambda: len(enriched()) == 2)
        assert enriched() == {
            "o1": {"customer": "c1", "name": "Alice", "city": "Lisbon", "cents": 420},
            "o2": {"customer": "c2", "name": "Bob"},
        }
        # Each batch uses the customers known by then: now one more, and one fewer.
        broker.produce("customers", [(b"c3", b'{"name": "Cy", "city": "Oslo"}'), (b"c2", None)])
        broker.produce("orders", [(b"o3", b'{"customer": "c3"}'), (b"o4", b'{"customer": "c2"}')])
        example.until(lambda: len(enriched()) == 4)
        assert enriched()["o3"] == {"customer": "c3", "name": "Cy", "city": "Oslo"}
        assert enriched()["o4"] == {"customer": "c2"}
        example.until(lambda: sum(committed(broker, "enrichment-join").values()) == 4)
        os.killpg(example.process.pid, signal.SIGINT)  # as a terminal does
        assert example.end() == ""
    assert len(broker.records("orders-enriched")) == 4


@pytest.fixture
def batches_without_records(spark: SparkSession) -> Iterator[None]:
    """As Spark does by default: such a batch, after the last record, outputs final windows."""
    name = "spark.sql.streaming.noDataMicroBatches.enabled"
    before = spark.conf.get(name)
    spark.conf.set(name, "true")
    yield
    spark.conf.set(name, before)


def test_late_data(
    spark: SparkSession,
    broker: Broker,
    tmp_path: Path,
    example: Callable[[str], Any],
    capsys: pytest.CaptureFixture[str],
    batches_without_records: None,
) -> None:
    late_data = example("late_data")
    samples = late_data.samples()
    asyncio.run(example("common").send(broker.bootstrap, samples))
    arguments = given(broker, tmp_path, wait="10 minutes")
    late_data.main(spark, arguments)
    assert _counts(capsys) == {"00 to 05": 4, "05 to 10": 1, "10 to 15": 1}
    assert [each.value for each in broker.records("clicks-late")] == [samples[6].value.encode()]

    # The watermark is at minute 30 by now. A click of minute 20, sent in time, is dropped; one of minute 32
    # is counted when its window is final; a value that is not a click goes to the late ones.
    record, minute_ms = example("common").Record, late_data.MINUTE_MS
    hour_ms = json.loads(samples[0].value)["at"] - minute_ms
    more = [
        record("clicks", json.dumps({"at": at_ms, "page": "/tea"}), timestamp_ms=at_ms)
        for at_ms in (hour_ms + minute * minute_ms for minute in (20, 32, 59))
    ]
    asyncio.run(example("common").send(broker.bootstrap, [*more, record("clicks", "no click")]))
    late_data.main(spark, arguments)
    told = ""
    until_s = time.monotonic() + LIMIT_S
    drops = re.compile(r"at least (\d+) clicks were read after their window was final")
    while not drops.search(told):  # listeners are notified later
        assert time.monotonic() < until_s, told
        time.sleep(_LOOK_S)
        told += capsys.readouterr().out
    assert set(drops.findall(told)) == {"1"}, told
    assert _counted(told) == {"30 to 35": 1, "40 to 45": 1}
    assert sorted(each.value or b"" for each in broker.records("clicks-late")) == sorted(
        [b"no click", samples[6].value.encode()]
    )


def _counts(capsys: pytest.CaptureFixture[str]) -> dict[str, int]:
    return _counted(capsys.readouterr().out)


def _counted(told: str) -> dict[str, int]:
    """By the minutes of the window, from `12:00 to 12:05  /tea: 4`."""
    found = {}
    for line in told.splitlines():
        if "/tea: " in line:
            window, _, count = line.partition("  /tea: ")
            start, end = window.split(" to ")
            found[f"{start[3:]} to {end[3:]}"] = int(count)
    return found


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, Callable[[], list[Any]]]]:
    """Its location, and the rows of its table of totals."""
    statement = "SELECT account, cents FROM totals ORDER BY account"
    if request.param == "sqlite":
        path = str(tmp_path / "totals.sqlite")

        def rows() -> list[Any]:
            with closing(sqlite3.connect(path)) as opened:
                return opened.execute(statement).fetchall()

        yield path, rows
        return
    with Postgres() as postgres:
        url = postgres.empty_database()
        name = url.rpartition("/")[2]

        def lines() -> list[Any]:
            told = (line.split("|") for line in postgres.execute(statement, database=name).splitlines())
            return [(account, int(cents)) for account, cents in told]

        yield url, lines


def test_exactly_once_database(
    spark: SparkSession,
    broker: Broker,
    tmp_path: Path,
    example: Callable[[str], Any],
    database: tuple[str, Callable[[], list[Any]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    totals = example("exactly_once_database")
    where, rows = database
    kind = totals.Postgres if "://" in where else totals.Sqlite
    whole_sums, whole_add = totals.sums, kind.add
    broker.create_topic("payments", 2)
    broker.produce("payments", [(b"alice", b"420"), (b"bob", b"180"), (b"alice", b"350"), (b"bob", b"tea")])
    arguments = given(broker, tmp_path, database=where)

    def broken_off_after_the_first(payments: Any) -> Iterator[Any]:
        yield whole_sums(payments)[0]
        raise RuntimeError("the power went")

    def broken_off_behind_the_transaction(self: Any, *arguments: Any) -> None:
        whole_add(self, *arguments)
        raise RuntimeError("the power went")

    with monkeypatch.context() as patched:
        patched.setattr(totals, "sums", broken_off_after_the_first)
        with pytest.raises(StreamingQueryException, match="the power went"):
            totals.main(spark, arguments)
    assert rows() == []
    with monkeypatch.context() as patched:
        patched.setattr(kind, "add", broken_off_behind_the_transaction)
        with pytest.raises(StreamingQueryException, match="the power went"):
            totals.main(spark, arguments)
    assert rows() == [("alice", 770), ("bob", 180)]
    assert set(committed(broker, "totals").values()) == {0}, "Spark has it as not done"

    totals.main(spark, arguments)  # the same batch again
    assert rows() == [("alice", 770), ("bob", 180)]
    broker.produce("payments", [(b"bob", b"20"), (b"carol", b"999")])
    totals.main(spark, arguments)
    assert rows() == [("alice", 770), ("bob", 200), ("carol", 999)]
    assert sum(committed(broker, "totals").values()) == 6

    anew = given(broker, tmp_path / "elsewhere", database=where)
    with pytest.raises(StreamingQueryException) as refused:
        totals.main(spark, anew)
    said = from_spark(refused.value) or ""
    assert said.startswith("ValueError: the database was filled from another checkpoint, by query ")
    assert "\n" not in said
    assert rows() == [("alice", 770), ("bob", 200), ("carol", 999)]


def test_the_guides_way_to_tell_repeated_records(spark: SparkSession, broker: Broker) -> None:
    guide = (EXAMPLES.parents[1] / "docs" / "spark.md").read_text()
    programs = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    program = next(each for each in programs if "dropDuplicates" in each)
    assert "# and where from" in program
    broker.create_topic("copies")

    async def write(producer: Producer) -> None:
        # Batch 0 ran twice, and was cut off the first time; batch 1 has the same value, and a batch write
        # carries no headers.
        for value, batch in ((b"a", b"0"), (b"a", b"0"), (b"b", b"0"), (b"a", b"1")):
            headers = [("muster.query", b"q"), ("muster.batch", batch)]
            await producer.send("copies", value, headers=headers)
        await producer.send("copies", b"c")

    produced(broker, write)
    where = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": "copies"}
    names: dict[str, Any] = {"spark": spark, "where": where}
    exec(program.replace('"true")  # and where from', '"true").options(**where)'), names)
    found = sorted((row.value, row.batch) for row in names["once"].collect() if row.batch is not None)
    assert found == [(b"a", b"0"), (b"a", b"1"), (b"b", b"0")]
    assert names["once"].count() == 4


def test_what_is_missing_is_told_in_a_line(
    broker: Broker, tmp_path: Path, example: Callable[[str], Any]
) -> None:
    nowhere = f"127.0.0.1:{free_ports(1)}"
    program = EXAMPLES / "word_count.py"
    with running(tmp_path, sys.executable, program, "--bootstrap-server", nowhere, "--sample") as started:
        assert started.process.wait(LIMIT_S) == 1
        assert nowhere in started.errors.read_text()
        assert "Traceback" not in started.errors.read_text()

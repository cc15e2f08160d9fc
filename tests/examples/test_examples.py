"""Every example, in examples/ and in docs/client.md, is run the way readers run it, against a broker."""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import runpy
import signal
import sqlite3
import subprocess
import sys
import termios
import textwrap
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from muster.client import Admin, Consumer, ConsumerRecord, Producer, TopicPartition
from muster.coordinator.testing import Broker

EXAMPLES = Path(__file__).parents[2] / "examples"
CLIENT = Path(__file__).parents[2] / "docs" / "client.md"
OF_KAFKA = Path(__file__).parents[1] / "interop" / "behaviour" / "test_transactions.py"
"""Runs the examples that muster cannot serve."""
LONG_S = 90.0
_BETWEEN_LOOKS_S = 0.02


class Running:
    """A running example and its output so far."""

    def __init__(self, program: Path, *arguments: str, folder: Path, stdin: str = "") -> None:
        self.output = folder / f"{program.stem}.{time.monotonic_ns()}.out"
        self._errors = self.output.with_suffix(".err")
        given = self.output.with_suffix(".in")
        given.write_text(stdin)
        with given.open() as source, self.output.open("w") as out, self._errors.open("w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-u", program, *arguments], stdin=source, stdout=out, stderr=errors
            )

    @property
    def lines(self) -> list[str]:
        return self.output.read_text().splitlines()

    def until(self, fact: Callable[[list[str]], object]) -> list[str]:
        """Wait until the fact is true of the output; return the output."""
        until = time.monotonic() + LONG_S
        while not fact(self.lines):
            assert self.process.poll() is None, f"it ended: {self.lines} {self._errors.read_text()}"
            assert time.monotonic() < until, f"not in time: {self.lines} {self._errors.read_text()}"
            time.sleep(_BETWEEN_LOOKS_S)
        return self.lines

    def end(self, number: int | None = signal.SIGINT) -> list[str]:
        """The output after it ended successfully, by the signal or by itself."""
        if number is not None:
            self.process.send_signal(number)
        code = self.process.wait(LONG_S)
        assert (code, self._errors.read_text()) == (0, "")
        return self.lines


@contextmanager
def running(
    name: str, *arguments: str, folder: Path, stdin: str = "", programs: Path = EXAMPLES
) -> Iterator[Running]:
    example = Running(programs / f"{name}.py", *arguments, folder=folder, stdin=stdin)
    try:
        yield example
    finally:
        example.process.kill()
        example.process.wait()


def send(broker: Broker, topic: str, *records: tuple[str, str], partition: int | None = None) -> None:
    async def sending() -> None:
        async with Producer(broker.bootstrap) as producer:
            for key, value in records:
                await producer.post(topic, value.encode(), key=key.encode(), partition=partition)

    asyncio.run(sending())


def forget_the_killed(broker: Broker, group_id: str) -> None:
    """Remove the killed members; otherwise the group waits for their sessions to expire."""

    async def removing() -> None:
        async with Admin(broker.bootstrap) as admin:
            await admin.remove_members(group_id)

    asyncio.run(removing())


def committed(broker: Broker, group_id: str, topic: str, partitions: int = 1) -> int:
    """Sum of the committed offsets of all partitions."""

    async def asking() -> int:
        async with Consumer(broker.bootstrap, group_id=group_id) as consumer:
            found = await consumer.committed([TopicPartition(topic, each) for each in range(partitions)])
            return sum(each.offset for each in found.values() if each is not None)

    return asyncio.run(asking())


def test_every_example_is_here() -> None:
    here = Path(__file__).read_text() + OF_KAFKA.read_text()
    for example in EXAMPLES.glob("*.py"):
        if not example.stem.startswith("test_"):
            assert f'running("{example.stem}"' in here or f'"{example.stem}",\n' in here


def test_consumers_of_transactions_do_not_commit_by_themselves() -> None:
    texts = {each.name: each.read_text() for each in EXAMPLES.glob("*.py")}
    of_transactions = {name for name, text in texts.items() if "transaction.commit_offsets(" in text}
    assert {"transactions.py", "test_transactions.py"} <= of_transactions
    for name in of_transactions:
        assert "enable_auto_commit=False" in texts[name], name


@pytest.mark.parametrize(
    "program",
    sorted(each for each in EXAMPLES.glob("*.py") if not each.stem.startswith("test_")),
    ids=lambda program: program.stem,
)
def test_an_example_called_without_arguments_says_how(program: Path) -> None:
    ended = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=LONG_S)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert f"python examples/{program.name} 127.0.0.1:9092 " in ended.stderr
    assert "Traceback" not in ended.stderr


def test_the_example_of_the_page_about_the_client(broker: Broker, tmp_path: Path) -> None:
    program = CLIENT.read_text().split("```python\n")[1].split("```")[0]
    assert program.count("127.0.0.1:9092") == 2
    (tmp_path / "client_page.py").write_text(program.replace("127.0.0.1:9092", broker.bootstrap))
    broker.create_topic("orders")
    with running("client_page", folder=tmp_path, programs=tmp_path) as example:
        assert example.until(bool) == ["0 0 b'alice' b'tea'"]


def blocks(heading: str) -> list[str]:
    """The Python under a heading of the page about the client."""
    text = CLIENT.read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return [textwrap.dedent(each) for each in re.findall(r"^ *```python\n(.*?)^ *```$", text, re.M | re.S)]


def as_function(program: str, *parameters: str) -> Callable[..., Coroutine[None, None, None]]:
    """The program, which awaits, as a coroutine function of what it takes as given."""
    names: dict[str, Any] = {"Consumer": Consumer, "Producer": Producer}
    exec(f"async def run({', '.join(parameters)}):\n{textwrap.indent(program, '    ')}", names)
    run: Callable[..., Coroutine[None, None, None]] = names["run"]
    return run


async def test_the_transactions_of_the_page_lose_nothing_when_the_first_one_is_aborted(
    broker: Broker,
) -> None:
    broker.create_topic("in")
    broker.create_topic("out")
    program = blocks("Transactions")[0]
    assert program.count('"kafka:9092"') == 2
    run = as_function(program.replace('"kafka:9092"', f'"{broker.bootstrap}"'), "work")

    def fails(record: ConsumerRecord) -> bytes:
        raise ArithmeticError

    def works(record: ConsumerRecord) -> bytes:
        assert record.value is not None
        return record.value.upper()

    failing = asyncio.create_task(run(fails))
    try:
        async with asyncio.timeout(LONG_S):
            while not failing.done():  # for one that begins at the end, too
                await asyncio.to_thread(send, broker, "in", ("", "tea"))
    finally:
        failing.cancel()
    with pytest.raises(ArithmeticError):
        await failing
    sent = len(broker.records("in"))
    working = asyncio.create_task(run(works))
    try:
        async with (
            asyncio.timeout(LONG_S),
            Consumer(
                broker.bootstrap, isolation_level="read_committed", auto_offset_reset="earliest"
            ) as reader,
        ):
            reader.assign([TopicPartition("out", 0)])
            records = aiter(reader)
            assert [(await anext(records)).value for _ in range(sent)] == [b"TEA"] * sent
    finally:
        working.cancel()
        await asyncio.wait([working])


@pytest.mark.parametrize("committed", [0, 1])
async def test_a_consumer_continues_after_an_abort_as_the_page_says(broker: Broker, committed: int) -> None:
    broker.create_topic("in")
    await asyncio.to_thread(send, broker, "in", *[("", word) for word in ("tea", "rum", "ale")])
    seek_back = as_function(blocks("Transactions")[1], "consumer")
    async with (
        asyncio.timeout(LONG_S),
        Producer(broker.bootstrap, transactional_id="etl-1") as producer,
        Consumer(broker.bootstrap, group_id="etl", topics=["in"], auto_offset_reset="earliest") as consumer,
    ):
        records = aiter(consumer)
        for _ in range(committed):
            await anext(records)
            async with producer.transaction() as transaction:
                await transaction.commit_offsets(consumer)
        aborted = await anext(records)
        transaction = producer.transaction()
        await transaction.begin()
        await transaction.commit_offsets(consumer)
        await transaction.abort()
        await seek_back(consumer)
        assert await anext(records) == aborted


def test_producer_and_simplest_consumer(broker: Broker, tmp_path: Path) -> None:
    broker.create_topic("orders", 2)
    lines = [f"{name} buys {number}" for number in range(5) for name in ("alice", "bob")]
    text = "".join(f"{line}\n" for line in lines)
    with running("producer", broker.bootstrap, "orders", folder=tmp_path, stdin=text) as producer:
        sent = producer.end(None)
    assert sorted(line.partition(": ")[2] for line in sent) == sorted(lines)
    with running("simplest_consumer", broker.bootstrap, "orders", folder=tmp_path) as consumer:
        consumer.until(lambda printed: len(printed) == 10)
        assert sorted(consumer.end()) == sorted(sent)
    assert broker.group("printer").facts == ("Empty", 0)
    assert committed(broker, "printer", "orders", 2) in (9, 10)  # the last one is in hand until the next


def test_producer_ends_at_ctrl_c_while_it_reads(broker: Broker) -> None:
    arguments = [sys.executable, EXAMPLES / "producer.py", broker.bootstrap, "orders"]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as producer:
        assert producer.stdin is not None
        assert producer.stderr is not None
        try:
            producer.stdin.write("alice buys tea\n")
            producer.stdin.flush()
            until = time.monotonic() + LONG_S
            while unread(producer.stdin.fileno()):
                assert time.monotonic() < until
                time.sleep(_BETWEEN_LOOKS_S)
            producer.send_signal(signal.SIGINT)
            assert (producer.wait(LONG_S), producer.stderr.read()) == (0, "")
        finally:
            producer.kill()


def unread(pipe: int) -> int:
    """How many bytes in the pipe nobody has read yet."""
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


def test_a_batch_is_on_the_disk_before_its_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = tmp_path / "clicks.txt"
    synced: list[bytes] = []
    monkeypatch.setattr(os, "fsync", lambda _: synced.append(archive.read_bytes()))
    append = runpy.run_path(str(EXAMPLES / "commit_in_batches.py"))["append"]
    for value in (b"0", b"1"):
        append(archive, [ConsumerRecord("clicks", 0, 0, -1, 0, None, value, (), -1)])
    assert synced == [b"0\n", b"0\n1\n"]


def test_commit_in_batches(broker: Broker, tmp_path: Path) -> None:
    broker.create_topic("clicks")
    send(broker, "clicks", *[("", str(number)) for number in range(250)])
    archive = tmp_path / "clicks.txt"
    with running("commit_in_batches", broker.bootstrap, "clicks", str(archive), folder=tmp_path) as example:
        printed = example.until(lambda printed: "clicks-0 committed 250" in printed)
        assert len(printed) >= 3
        example.end()
    assert archive.read_text().split() == [str(number) for number in range(250)]
    assert committed(broker, "archive", "clicks") == 250


def test_exactly_once(broker: Broker, tmp_path: Path) -> None:
    broker.create_topic("payments", 2)
    database = tmp_path / "totals.sqlite"
    arguments = (broker.bootstrap, "payments", str(database))

    def totals() -> dict[str, int]:
        with closing(sqlite3.connect(database)) as reading:
            return dict(reading.execute("SELECT account, cents FROM totals"))

    payments = [(f"account-{number % 5}", "7") for number in range(500)]
    for _ in range(2):
        with running("exactly_once", *arguments, folder=tmp_path) as example:
            send(broker, "payments", *payments)
            example.until(bool)  # then killed, as soon as it has counted something
        forget_the_killed(broker, "totals")
    with running("exactly_once", *arguments, folder=tmp_path) as example:
        send(broker, "payments", *payments)
        example.until(lambda _: sum(totals().values()) >= 7 * 1500)
        example.end()
    assert totals() == {f"account-{number}": 7 * 300 for number in range(5)}
    assert committed(broker, "totals", "payments", 2) == 0


@pytest.mark.parametrize("name", ["exactly_once", "transactions"])
def test_what_an_example_says_to_send_it_can_count(broker: Broker, tmp_path: Path, name: str) -> None:
    text = (EXAMPLES / f"{name}.py").read_text()
    (sending,) = re.findall(r"^ +(echo .*\| muster produce .*)$", text, re.MULTILINE)
    (command,) = re.findall(rf"^ +python examples/{name}\.py \S+ (.*)$", text, re.MULTILINE)
    broker.create_topic("payments")
    sending = sending.replace("muster", f'"{sys.executable}" -m muster')
    sending += f" --bootstrap-server {broker.bootstrap}"
    subprocess.run(sending, shell=True, check=True, timeout=LONG_S)
    arguments = (each if "." not in each else str(tmp_path / each) for each in command.split())
    with running(name, broker.bootstrap, *arguments, folder=tmp_path) as example:
        example.until(bool)
        example.end()


def test_assigned_partitions(broker: Broker, tmp_path: Path) -> None:
    broker.create_topic("orders", 2)
    send(broker, "orders", *[(str(number), f"order {number}") for number in range(20)])
    now = datetime.now(UTC)
    for since, count in ((now - timedelta(hours=1), 20), (now + timedelta(hours=1), 0)):
        arguments = (broker.bootstrap, "orders", since.isoformat())
        with running("assigned_partitions", *arguments, folder=tmp_path) as example:
            printed = example.end(None)
        assert sorted(line.partition(": ")[2] for line in printed) == sorted(
            f"order {number}" for number in range(count)
        )


def test_rewind(broker: Broker, tmp_path: Path) -> None:
    broker.create_topic("orders")
    send(broker, "orders", *[("", str(number)) for number in range(5)])
    with running("simplest_consumer", broker.bootstrap, "orders", folder=tmp_path) as consumer:
        consumer.until(lambda printed: len(printed) == 5)
        consumer.end()
    at = committed(broker, "printer", "orders")
    with running("rewind", broker.bootstrap, "orders", folder=tmp_path) as example:
        example.until(lambda printed: len(printed) == 6)
        assert example.end() == [
            f"orders-0 from {at} back to the beginning",
            *[f"orders-0 {number}: {number}" for number in range(5)],
        ]


def test_flow_control(broker: Broker, tmp_path: Path) -> None:
    broker.create_topic("urgent")
    broker.create_topic("bulk")
    send(broker, "bulk", *[("", str(number)) for number in range(4000)])
    send(broker, "urgent", *[("", str(number)) for number in range(40)])
    with running("flow_control", broker.bootstrap, "urgent", "bulk", folder=tmp_path) as example:
        example.until(lambda printed: len(printed) == 4040)
        printed = example.end()
    for topic, count in (("urgent", 40), ("bulk", 4000)):
        assert [line for line in printed if line.startswith(topic)] == [
            f"{topic}: {number}" for number in range(count)
        ]
    assert printed[-1] == "bulk: 3999"


async def test_flow_control_goes_on_when_what_is_urgent_is_read_elsewhere(
    broker: Broker,
) -> None:
    broker.create_topic("urgent")
    broker.create_topic("bulk")
    await asyncio.to_thread(send, broker, "bulk", ("", "0"))
    await asyncio.to_thread(send, broker, "urgent", ("", "0"))
    main = runpy.run_path(str(EXAMPLES / "flow_control.py"))["main"]
    looks, looked_again = 0, asyncio.Event()

    class SeesMore(Consumer[bytes, str]):
        def lag(self, *partitions: TopicPartition) -> dict[TopicPartition, int | None]:
            nonlocal looks
            looks += 1
            if looks > 2:
                looked_again.set()
            return {TopicPartition("urgent", 0): 1} if looks <= 2 else super().lag(*partitions)

    main.__globals__["Consumer"] = SeesMore
    reading = asyncio.create_task(main(broker.bootstrap, "urgent", "bulk"))
    async with asyncio.timeout(LONG_S):
        await looked_again.wait()  # without another record
    reading.cancel()
    await asyncio.wait([reading])


def test_many_workers(broker: Broker, tmp_path: Path) -> None:
    broker.create_topic("orders", 2)
    keys = [f"customer-{number}" for number in range(20)]
    send(broker, "orders", *[(key, str(number)) for number in range(10) for key in keys])
    with running("many_workers", broker.bootstrap, "orders", "8", folder=tmp_path) as example:

        def handled(printed: list[str]) -> list[tuple[str, str, str]]:
            split = [line.split() for line in printed if line.startswith("worker")]
            return [(worker, key, value) for _, worker, key, value in split]

        example.until(lambda printed: len(handled(printed)) == 200)
        done = handled(example.end())
    workers: dict[str, set[str]] = {}
    for worker, key, _ in done:
        workers.setdefault(key, set()).add(worker)
    assert all(len(each) == 1 for each in workers.values())
    for key in keys:
        assert [value for _, of, value in done if of == key] == [str(number) for number in range(10)]
    assert broker.group("workers").facts == ("Empty", 0)
    assert committed(broker, "workers", "orders", 2) == 200


def test_many_workers_commit_nothing_that_is_unfinished(broker: Broker, tmp_path: Path) -> None:
    broker.create_topic("orders")
    send(broker, "orders", *[(str(number % 7), str(number)) for number in range(1000)])
    with running("many_workers", broker.bootstrap, "orders", "4", folder=tmp_path) as example:
        printed = example.until(lambda printed: any("Committed" in line for line in printed))
        example.process.kill()
        example.process.wait()
    at = committed(broker, "workers", "orders")
    finished = {int(line.split()[-1]) for line in example.lines if line.startswith("worker")}
    assert printed
    assert set(range(at)) <= finished


def test_graceful_shutdown(broker: Broker, tmp_path: Path) -> None:
    broker.create_topic("orders")
    send(broker, "orders", *[("", f"order {number}") for number in range(100)])
    with running("graceful_shutdown", broker.bootstrap, "orders", folder=tmp_path) as example:
        example.until(lambda printed: "order 1 begun" in printed)
        printed = example.end(signal.SIGTERM)
    finished = [line for line in printed if line.endswith("finished")]
    assert printed[-2:] == [finished[-1], "stopped"]
    assert len([line for line in printed if line.endswith("begun")]) == len(finished)
    assert broker.group("steady").facts == ("Empty", 0)
    assert committed(broker, "steady", "orders") == len(finished)

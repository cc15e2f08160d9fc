"""The system call trace shows that what was acknowledged was synced before the reply was sent."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.faults import strace, trace
from tests.faults.batches import Violation
from tests.faults.clients import FLUSHED_TOPIC, Clients
from tests.faults.history import Commits, Produced
from tests.faults.load import Committer, Pipe, Producing
from tests.faults.trace import Call
from tests.support.each import each
from tests.support.served import Served

REQUESTS = 20
WAL = "/store.sqlite-wal"

Ask = Callable[[Pipe], Awaitable[None]]


async def traced(
    tmp_path: Path, ask: Ask, *, module: str = "muster"
) -> tuple[list[Call], list[tuple[Call, Call]]]:
    """The broker's system calls while `ask` ran `REQUESTS` times over one connection: all of them, and pairs
    of those that received a request and sent its reply."""
    output = tmp_path / "trace"
    served = Served(tmp_path / "data", log=tmp_path / "log")
    served.start(module=module)
    with ExitStack() as ending:
        ending.push(served.__exit__)
        await Clients(random.Random(1)).begin(served.port)
        with strace.attached(served.process.pid, trace.OPTIONS, output):
            async with await Pipe.connect(served.port) as wire:
                # One more: the last reply may arrive before strace has recorded that it was sent.
                for _ in range(REQUESTS + 1):
                    await ask(wire)
                port = wire.local_port
    calls = trace.parse(output.read_text())
    exchanges = trace.exchanges(calls, port)[:REQUESTS]
    assert len(exchanges) == REQUESTS
    return calls, exchanges


def commits() -> Ask:
    return Committer(Commits("watched", FLUSHED_TOPIC, (0,))).commit


def batches(topic: str) -> Ask:
    return Producing(Produced("watched", topic, 2), random.Random(2)).produce


async def test_a_commit_is_synced_before_it_is_acknowledged(tmp_path: Path) -> None:
    calls, exchanges = await traced(tmp_path, commits())
    for exchange in exchanges:
        trace.check_synced(calls, exchange, WAL)


async def test_batches_are_synced_before_they_are_acknowledged_where_the_topic_says_so(
    tmp_path: Path,
) -> None:
    calls, exchanges = await traced(tmp_path, batches(FLUSHED_TOPIC))
    for exchange in exchanges:
        trace.check_synced(calls, exchange, ".log")
    made = trace.check_names_synced(calls, exchanges[-1], str(tmp_path / "data"))
    assert made >= REQUESTS // 4, "several segments and their folders came into being"


@pytest.mark.parametrize(("ask", "file_ending"), [(commits(), WAL), (batches(FLUSHED_TOPIC), ".log")])
async def test_a_broker_that_does_not_sync_is_found_out(tmp_path: Path, ask: Ask, file_ending: str) -> None:
    calls, exchanges = await traced(tmp_path, ask, module="tests.faults.unsynced")
    for exchange in exchanges:
        with pytest.raises(Violation, match="not synced before the reply"):
            trace.check_synced(calls, exchange, file_ending)


async def test_names_that_are_not_synced_are_found_out(tmp_path: Path) -> None:
    calls, exchanges = await traced(tmp_path, batches(FLUSHED_TOPIC), module="tests.faults.unsynced")
    with pytest.raises(Violation, match="its name not synced"):
        trace.check_names_synced(calls, exchanges[-1], str(tmp_path / "data"))


# Two threads of a broker: 7 talks to the client on port 40000, 8 writes.
SOUND = """\
7 read(9<TCP:[127.0.0.1:20000->127.0.0.1:40000]>, ""..., 65536) = 80
8 pwrite64(5</d/store.sqlite-wal>, ""..., 4096, 32) = 4096
8 fdatasync(5</d/store.sqlite-wal> <unfinished ...>
7 read(9<TCP:[127.0.0.1:20000->127.0.0.1:40000]>, 0x7f, 65536) = -1 EAGAIN (Resource temporarily unavailable)
8 <... fdatasync resumed>) = 0
7 write(9<TCP:[127.0.0.1:20000->127.0.0.1:40000]>, ""..., 40) = 40
"""


def judge(text: str) -> None:
    calls = trace.parse(text)
    (exchange,) = trace.exchanges(calls, 40000)
    trace.check_synced(calls, exchange, WAL)


def test_an_order_is_judged() -> None:
    judge(SOUND)


@each(
    "old, new, says",
    [
        ("8 <... fdatasync resumed>) = 0\n", "", "not synced"),
        (") = 0\n", ") = -1 EIO (Input/output error)\n", "not synced"),
        ("fdatasync(5</d/store.sqlite-wal>", "fdatasync(5</d/store.sqlite>", "not synced"),
        ('8 pwrite64(5</d/store.sqlite-wal>, ""..., 4096, 32) = 4096\n', "", "nothing was written"),
        (
            "7 write(",
            '8 pwrite64(5</d/store.sqlite-wal>, ""..., 4096, 4128) = 4096\n7 write(',
            "not synced",
        ),
    ],
)
def test_a_wrong_order_is_found(old: str, new: str, says: str) -> None:
    assert old in SOUND
    with pytest.raises(Violation, match=says):
        judge(SOUND.replace(old, new))


def test_a_sync_that_ends_after_the_reply_is_too_late() -> None:
    *before, resumed, reply = SOUND.splitlines()
    with pytest.raises(Violation, match="not synced"):
        judge("\n".join([*before, reply, resumed]))


def test_a_missing_strace_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RuntimeError, match=r"strace is not installed.*apt-get install strace"):
        strace.program()

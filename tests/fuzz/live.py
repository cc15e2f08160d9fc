"""An attack on a live broker, and what it leaves behind: nothing."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from muster.protocol.messages.metadata import MetadataRequest
from muster.protocol.messages.topics import DeleteTopicsRequest
from tests.fuzz.attack import Sent, attack
from tests.fuzz.bystanders import Bystanders, Patient, create_topic
from tests.fuzz.inputs import FAMILIAR
from tests.fuzz.run import Failed
from tests.support.held import LEFT

GROWTH_BYTES_MAX: Final = 96 << 20
"""Resident memory that may be gone for good, to the allocator and to caches, after a warm-up."""

_WARM_UP: Final = 1_000
_ATTACKERS: Final = 2
_DEADLINE_S: Final = 120.0
"""Longer than a vanished member can keep a join waiting."""

_LOG_SHOWN: Final = 4_000


class Outcome(NamedTuple):
    sent: Sent
    seconds: float
    before: dict[str, Any]
    after: dict[str, Any]
    worst_ms: dict[str, float]
    counts: dict[str, int]

    def __str__(self) -> str:
        worst = ", ".join(f"{what} {ms:.0f} ms" for what, ms in self.worst_ms.items())
        return (
            f"live: {self.sent.connections:,} connections, {self.sent.frames:,} inputs in "
            f"{self.seconds:.0f} s; {self.sent.answered_to_the_end:,} served to the end, "
            f"{self.sent.closed:,} closed by the broker\n"
            f"others meanwhile: {sum(self.counts.values()):,} requests, no error; the slowest: {worst}\n"
            f"resident {self.before['resident_bytes'] >> 20} MiB before, "
            f"{self.after['resident_bytes'] >> 20} MiB after; "
            + ", ".join(f"{what} {self.before[what]} -> {self.after[what]}" for what in LEFT)
        )


def run(seed: int, connections: int, first: int = 0) -> Outcome:
    """Attack a broker with so many connections of a seed, from number `first` on. Raises Failed."""
    return asyncio.run(_run(seed, connections, first))


async def _run(seed: int, connections: int, first: int) -> Outcome:
    repeat = f"seed {seed}, connections {first} to {first + connections}"
    with tempfile.TemporaryDirectory(prefix="muster-fuzz-") as directory:
        log = Path(directory) / "log"
        with log.open("wb") as stderr:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "tests.fuzz.served", str(Path(directory) / "data")),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=stderr,
            )
        try:
            outcome = await _attacked(process, seed, connections, first)
            assert process.stdin is not None
            process.stdin.close()
            code = await asyncio.wait_for(process.wait(), _DEADLINE_S)
            if code != 0:
                raise Failed(f"the broker ended with {code}")
        except (AssertionError, OSError, EOFError, TimeoutError) as error:
            text = log.read_text(errors="replace")[-_LOG_SHOWN:]
            raise Failed(f"{repeat}: {type(error).__name__}: {error}\nthe broker's log:\n{text}") from error
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        errors = [line for line in log.read_text(errors="replace").splitlines() if not _harmless(line)]
        if errors:
            raise Failed(f"{repeat}: the broker logged\n" + "\n".join(errors)[:_LOG_SHOWN])
        return outcome


def _harmless(line: str) -> bool:
    """A warning; whatever is no line of the log, or an error, is not."""
    try:
        return bool(json.loads(line)["level"] == "warning")
    except (ValueError, KeyError, TypeError):
        return False


async def _attacked(process: asyncio.subprocess.Process, seed: int, connections: int, first: int) -> Outcome:
    assert process.stdout is not None
    said = await asyncio.wait_for(process.stdout.readline(), _DEADLINE_S)
    if not said:
        raise Failed("the broker did not start")
    port = int(said)
    # Warmed up by another part of the seed, so that one connection can be repeated alone.
    await create_topic(port, FAMILIAR, 4)
    await _from_processes(port, seed, first + (1 << 20), min(_WARM_UP, connections))
    await _delete_topics(port)
    before = await _until(process, lambda now: now["connections"] == now["connection_tasks"] == 0)
    await create_topic(port, FAMILIAR, 4)
    bystanders = Bystanders()
    try:
        await bystanders.start(port)
        began = time.monotonic()
        sent = await _from_processes(port, seed, first, connections)
        seconds = time.monotonic() - began
        await bystanders.finish()
    finally:
        await bystanders.close()
    await _delete_topics(port)
    after = await _until(process, lambda now: all(now[what] <= before[what] for what in LEFT), before)
    grown = after["resident_bytes"] - before["resident_bytes"]
    if grown > GROWTH_BYTES_MAX:
        raise Failed(f"the broker has grown by {grown >> 20} MiB for good")
    return Outcome(sent, seconds, before, after, bystanders.worst_ms, bystanders.counts)


async def _from_processes(port: int, seed: int, first: int, connections: int) -> Sent:
    """The attack comes from other processes, so that it slows the bystanders through the broker alone."""
    context = multiprocessing.get_context("spawn")
    workers = []
    for index in range(min(_ATTACKERS, connections)):
        ours, theirs = context.Pipe(duplex=False)
        numbers = range(first + index, first + connections, _ATTACKERS)
        worker = context.Process(target=attack, args=(port, seed, numbers, theirs))
        worker.start()
        theirs.close()
        workers.append((worker, ours))
    try:
        sent = [await asyncio.to_thread(ours.recv) for _, ours in workers]
    finally:
        for worker, _ in workers:
            worker.kill()
            await asyncio.to_thread(worker.join)
    return Sent(*map(sum, zip(*sent, strict=True)))


async def _delete_topics(port: int) -> None:
    """All of them: their files are no leak."""
    async with await Patient.connect(port) as wire:
        known = await wire.call(MetadataRequest(topics=None), 8)
        names = [topic.name for topic in known.topics if not topic.is_internal]
        deleted = await wire.call(DeleteTopicsRequest(topic_names=names, timeout_ms=30_000), 3)
        assert all(each.error_code == 0 for each in deleted.responses), deleted


async def _facts(process: asyncio.subprocess.Process) -> dict[str, Any]:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"facts\n")
    told: dict[str, Any] = json.loads(await asyncio.wait_for(process.stdout.readline(), _DEADLINE_S))
    return told


async def _until(
    process: asyncio.subprocess.Process,
    fact: Callable[[dict[str, Any]], bool],
    before: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """The facts, once `fact` is true of them. Raises Failed when that takes longer than the deadline."""
    deadline = time.monotonic() + _DEADLINE_S
    while not fact(now := await _facts(process)):
        if time.monotonic() > deadline:
            raise Failed(f"left behind: {now}, before: {before}")
    return now

"""Runs millions of inputs, in processes with limited memory."""

from __future__ import annotations

import multiprocessing
import resource
import time
from collections import Counter
from collections.abc import Mapping
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.fuzz.inputs import KINDS, Inputs
from tests.fuzz.judge import Wrong, judge

MEMORY_BYTES: Final = 256 << 20
"""Memory a process may allocate (RLIMIT_AS) beyond its size once its corpus is built; more ends in
MemoryError."""

_STUCK_SECONDS: Final = 300.0
"""A process that starts no new input for this long hangs. An input may take `judge.CPU_SECONDS_MAX` of CPU
time."""

_TELL_SECONDS: Final = 30.0

ALWAYS_REFUSED: Final = {"bomb"}

Tally = Counter[tuple[str, bool]]
"""(kind, whether it was accepted) -> inputs."""


class Result(NamedTuple):
    tally: Tally
    seconds: float
    memory_bytes: int
    """Maximum resident memory of any process."""


class Failed(AssertionError):
    """An input went wrong. The text says which, and how to reproduce it."""


def limit_memory(more_bytes: int) -> None:
    """Let this process grow by `more_bytes` and no further."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + more_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def try_one(inputs: Inputs, number: int) -> tuple[str, bool]:
    """Judge one input; return its kind and whether it was accepted. Raises Failed."""
    given = inputs.make(number)
    try:
        return given.kind, judge(given, number)
    except Wrong as wrong:
        raise Failed(
            f"input {number} ({given}): {wrong}\n{given.data[:2000].hex()}\n{_repeat(inputs.seed, number)}"
        ) from wrong


def run(seed: int, count: int, processes: int) -> Result:
    """Judge inputs 0 to `count` of a seed. Raises Failed for the first one that goes wrong."""
    began = time.monotonic()
    context = multiprocessing.get_context("spawn")
    progress = context.RawArray("q", processes)
    workers: dict[Connection, tuple[int, Any]] = {}
    for index in range(processes):
        ours, theirs = context.Pipe(duplex=False)
        worker = context.Process(target=_work, args=(seed, index, count, processes, progress, theirs))
        worker.start()
        theirs.close()
        workers[ours] = index, worker
    try:
        tally, memory_bytes = _gather(seed, workers, progress)
    finally:
        for _, worker in workers.values():
            worker.kill()
            worker.join()
    return Result(tally, time.monotonic() - began, memory_bytes)


def _work(seed: int, first: int, count: int, step: int, progress: Any, report: Connection) -> None:
    inputs = Inputs(seed)
    inputs.prepare()
    limit_memory(MEMORY_BYTES)
    tally: Tally = Counter()
    slot = first
    try:
        for number in range(first, count, step):
            progress[slot] = number
            tally[try_one(inputs, number)] += 1
    except Failed as failed:
        report.send(str(failed))
    else:
        report.send((tally, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024))


def _gather(seed: int, workers: Mapping[Connection, tuple[int, Any]], progress: Any) -> tuple[Tally, int]:
    whole: Tally = Counter()
    memory_bytes, waiting = 0, set(workers)
    told = time.monotonic()
    moved = {index: (-1, time.monotonic()) for index, _ in workers.values()}
    while waiting:
        for ready in wait(waiting, timeout=1.0):
            assert isinstance(ready, Connection)
            index, worker = workers[ready]
            try:
                said = ready.recv()
            except EOFError:
                worker.join()
                raise Failed(
                    f"input {progress[index]} ended its process with {worker.exitcode}\n"
                    f"{_repeat(seed, progress[index])}"
                ) from None
            if isinstance(said, str):
                raise Failed(said)
            whole.update(said[0])
            memory_bytes = max(memory_bytes, said[1])
            waiting.discard(ready)
        now = time.monotonic()
        if now - told > _TELL_SECONDS:
            print(f"  at input {min(progress):,}", flush=True)
            told = now
        for each in waiting:
            index, _ = workers[each]
            if moved[index][0] != progress[index]:
                moved[index] = progress[index], now
            elif now - moved[index][1] > _STUCK_SECONDS:
                raise Failed(f"input {progress[index]} takes for ever\n{_repeat(seed, progress[index])}")
    return whole, memory_bytes


def _repeat(seed: int, number: int) -> str:
    return f"to repeat it: python -m tests.fuzz --seed {seed} --input {number}"


def check_reach(tally: Tally) -> None:
    """Raises Failed if a kind's inputs were all accepted or all refused, since that would prove little."""
    for kind in KINDS:
        refused, accepted = tally[kind, False], tally[kind, True]
        if not refused or (not accepted and kind not in ALWAYS_REFUSED):
            raise Failed(f"of {refused + accepted} inputs of the kind {kind}, {accepted} were accepted")
        if accepted and kind in ALWAYS_REFUSED:
            raise Failed(f"{accepted} inputs of the kind {kind} were accepted")


def table(tally: Tally) -> str:
    """A readable table of how many inputs of each kind were accepted and refused."""
    lines = [f"{'kind':10}{'accepted':>12}{'refused':>12}"]
    lines += [f"{kind:10}{tally[kind, True]:12,}{tally[kind, False]:12,}" for kind in KINDS]
    return "\n".join(lines)

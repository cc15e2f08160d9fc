"""Flink transforms a topic with its KafkaSink and DeliveryGuarantee.EXACTLY_ONCE, and is killed now and then.

That is a two-phase commit: what was written before a checkpoint is flushed, its transactions' producer ids
and epochs are kept in the checkpoint, and they are committed when the checkpoint is complete. A job that
starts from a checkpoint first resumes and commits the transactions in it, under those ids and epochs, and
aborts those that its predecessor began after it: by InitProducerId for the transactional ids that would
follow (`INCREMENTING`), or for those that are listed as open (`POOLING`).

`programs/flink/Transfer.java` is the job; it writes the same as every transformer (`clients.py`). Its lines
are steps of a `transaction`: `prepared` when a checkpoint is complete and so many transactions are due to be
committed, `held` when it stops at that point for ever, and `resumed` when it commits those of the checkpoint
it started from; and `left`, after a savepoint.
"""

from __future__ import annotations

import random
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from tests.interop.story.clients.base import PROGRAMS
from tests.interop.story.clients.java import compiled
from tests.interop.story.oracle import Oracle
from tests.interop.story.processes import StoryFailed
from tests.interop.story.story import Outcome
from tests.interop.story.targets import Target
from tests.interop.transactions import checker
from tests.interop.transactions.clients import PARTITIONS
from tests.interop.transactions.play import write
from tests.interop.transactions.stage import Stage, perform
from tests.support.java import java
from tests.support.kafka_artifacts import flink_classpath

STRATEGIES: Final = ("INCREMENTING", "POOLING")
"""How transactions are named."""
_JOB: Final = "job"
_PREPARED: Final = "prepared"
_HELD: Final = "held"
_RESUMED: Final = "resumed"
_DELAY_MS_MAX: Final = 150.0
"""Longer than the time between two checkpoints."""


class Kill(NamedTuple):
    held: bool
    """Between a checkpoint and its commit."""
    delay_ms: float
    """If it is not held: counted from the next feeding."""


@dataclass(frozen=True)
class Plan:
    seed: int
    records: int
    strategy: str
    kills: tuple[Kill, ...]

    @classmethod
    def of(cls, seed: int, records: int, kills: int) -> Plan:
        """Every other kill comes when the job is held."""
        dice = random.Random(seed)
        strategy = dice.choice(STRATEGIES)
        return cls(
            seed,
            records,
            strategy,
            tuple(Kill(number % 2 == 0, dice.uniform(0, _DELAY_MS_MAX)) for number in range(kills)),
        )


def transfer(target: Target, plan: Plan) -> Outcome:
    """Flink and the broker cannot make it raise."""
    return perform(
        f"flink ({plan.strategy})",
        target,
        plan.seed,
        lambda folder, steps: _Transferring(target, plan, folder, steps),
    )


class _Transferring(Stage):
    def __init__(self, target: Target, plan: Plan, folder: Path, steps: list[str]) -> None:
        super().__init__(target, folder, steps)
        self._plan = plan
        self._name = f"flink-{uuid.uuid4().hex[:8]}"
        self._source, self._sink = f"{self._name}-in", f"{self._name}-out"
        self._state = folder / "state"
        self._fed = 0

    def play(self) -> list[str]:
        members, plan = self._members, self._plan
        oracle = Oracle(self._target.bootstrap)
        for topic in (self._source, self._sink):
            oracle.create_topic(topic, PARTITIONS)
        self._state.mkdir()
        hold = self._state / "hold"
        self._start()
        part = plan.records // (len(plan.kills) + 1)
        for kill in plan.kills:
            heard = len(members.steps)
            if kill.held:
                hold.touch()
                self._feed(part)
                self._wait_until_step(_HELD, heard)
            else:
                self._feed(part // 2)
                self._wait_until_step(_PREPARED, heard)
                self._feed(part - part // 2)
                time.sleep(kill.delay_ms / 1_000)
            members.kill(_JOB)
            _, last = members.steps[-1]
            self._note(f"the job was killed after it said {last.step} ({last.records} transactions)")
            if kill.held and not self._is_any_open(self._name):
                raise StoryFailed("the job was held, and has left no transaction open")
            hold.unlink(missing_ok=True)
            heard = len(members.steps)
            self._start()
            if kill.held:
                self._wait_until_step(_RESUMED, heard)
        self._feed(plan.records - self._fed)
        self._wait_until_read(self._sink, plan.records)
        self._note("all is committed")
        members.ask_to_leave(_JOB)
        self._wait_until_left(_JOB)
        return self._check()

    def _check(self) -> list[str]:
        """What is wrong with the final state."""
        committed, stable_ends = self._read("read_committed")
        uncommitted, ends = self._read("read_uncommitted")
        self._note(f"{len(committed)} records with read_committed, {len(uncommitted)} with read_uncommitted")
        problems = checker.check(self._plan.records, committed, uncommitted, 0)
        if stable_ends != ends:
            problems.append(f"a transaction was left open: it can be read up to {stable_ends} of {ends}")
        return problems

    def _start(self) -> None:
        arguments = (self._source, self._sink, self._name, self._plan.strategy, str(self._state))
        self._members.start(_JOB, [*command(), self._target.bootstrap, *arguments])

    def _feed(self, count: int) -> None:
        """Write the next numbers to the source."""
        numbers = range(self._fed, self._fed + count)
        write(self._target.bootstrap, self._source, ((n % PARTITIONS, b"%d" % n) for n in numbers))
        self._fed += count

    def _read(self, isolation: str) -> tuple[list[checker.Seen], dict[int, int]]:
        return checker.read(self._target.bootstrap, self._sink, isolation)

    def _wait_until_step(self, wanted: str, heard: int) -> None:
        """Wait for the next such step after the first `heard`."""
        members = self._members
        members.wait_until(
            lambda: any(step.step == wanted for _, step in members.steps[heard:]), f"a job that says {wanted}"
        )


def command() -> list[str]:
    """The job's command line; compiled once per machine."""
    sources = [PROGRAMS / "java" / "Lines.java", *sorted((PROGRAMS / "flink").glob("*.java"))]
    return [*java(compiled(sources, flink_classpath())), "Transfer"]

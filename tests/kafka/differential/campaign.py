"""Many sequences, played side by side, and their outcome."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from tests.group.scenario import rewritten
from tests.kafka.compared import Compared
from tests.kafka.differences import Difference
from tests.kafka.differential.connections import Connections
from tests.kafka.differential.consumer_generator import consumer_sequence
from tests.kafka.differential.deliberate import RULES, Deliberate
from tests.kafka.differential.duel import Outcome, duel, scenario_of
from tests.kafka.differential.generator import sequence
from tests.kafka.differential.shrink import Signature, shrunk, signature

_PLAYS_FOR_LUCK: Final = 40
"""Plays of a sequence in which chance picks a leader, until both brokers have the same leaders."""
_PLAYS_FOR_TIME: Final = 10
_PLAYS_FOR_COORDINATORS: Final = 300
_PAUSE_S: Final = 0.2  # before a moving coordinator is asked again
_FINDINGS_SHRUNK_MAX: Final = 8
"""Shrinking one takes a hundred plays."""
_PLAYS_TO_CONFIRM: Final = 2
_PROGRESS_EVERY: Final = 100


class Kind(StrEnum):
    """The kind of groups that sequences use."""

    CLASSIC = "classic"
    """Only classic groups."""
    CONSUMER = "consumer"
    """Consumer groups, and groups that migrate between the protocols."""

    def write(self, seed: int, *, timed: bool) -> list[str]:
        written = sequence if self is Kind.CLASSIC else consumer_sequence
        return written(seed, timed=timed)


@dataclass
class Finding:
    """An unintended difference."""

    kind: Kind
    seed: int
    timed: bool
    differences: list[Difference]
    text: str
    """A scenario that reproduces it, with muster's answers."""
    theirs: list[str]
    """Apache Kafka's answers at its last step."""

    def __str__(self) -> str:
        rows = "\n".join(map(str, self.differences))
        theirs = "".join(f"    {line}\n" for line in self.theirs)
        which = f"{self.kind} seed {self.seed}{' timed' if self.timed else ''}"
        return f"--- {which}\n{self.text}# Apache Kafka:\n{theirs}{rows}\n"


@dataclass
class Campaign:
    """`sequences` without pauses and `timed` with pauses, from `seed` on, `at_once` of them side by side."""

    kind: Kind

    seed: int
    sequences: int
    timed: int
    at_once: int
    minutes_max: float = 60.0
    """No new sequence starts after this."""
    rules: Sequence[Deliberate] = RULES
    """The allowed differences; two builds of muster have none."""
    compared: int = 0
    timed_compared: int = 0
    """How many of them had pauses."""
    steps: int = 0
    plays: int = 0
    lucky: int = 0
    """How many had to be replayed because chance had picked another leader."""
    cut: int = 0
    """How many were compared only up to the point where chance kept picking another leader."""
    too_slow: int = 0
    """How many were given up because the machine was too slow for a certain result."""
    passing: list[str] = field(default_factory=list)
    """Differences that disappeared when the sequence was replayed."""
    deliberate: Counter[str] = field(default_factory=Counter)
    findings: dict[Signature, Finding] = field(default_factory=dict)
    sightings: Counter[Signature] = field(default_factory=Counter)
    compared_answers: Compared = field(default_factory=Compared)

    async def run(self, kafka: Connections, muster: Connections) -> None:
        last = time.monotonic() + self.minutes_max * 60
        # In order of seed, with those that take long because of their pauses spread among the others.
        waiting = [(each / self.sequences, self.seed + each, False) for each in range(self.sequences)]
        waiting += [(each / self.timed, self.seed + each, True) for each in range(self.timed)]
        waiting.sort(reverse=True)

        async def worker() -> None:
            while waiting and time.monotonic() < last:
                _, seed, timed = waiting.pop()
                await self._one(seed, timed, kafka, muster)

        async with asyncio.TaskGroup() as workers:
            for _ in range(self.at_once):
                workers.create_task(worker())
        self.compared_answers = Compared(kafka.answers, muster.answers)
        kafka.close()
        muster.close()

    async def _one(self, seed: int, timed: bool, kafka: Connections, muster: Connections) -> None:
        lines = self.kind.write(seed, timed=timed)
        try:
            outcome = await self._played(lines, kafka, muster)
        except Exception as error:
            error.add_note(f"{self.kind} seed {seed}, timed {timed}:\n" + "\n".join(lines))
            raise
        if outcome.is_too_slow:
            self.too_slow += 1
            return
        self.compared += 1
        self.timed_compared += timed
        if self.compared % _PROGRESS_EVERY == 0:
            print(f"{self.compared} compared", flush=True)
        self.steps += outcome.steps
        self.deliberate.update(outcome.deliberate)
        if outcome.found and outcome.is_luck:
            self.cut += 1
        elif outcome.found:
            await self._judge(seed, timed, lines, outcome, kafka, muster)

    async def _played(self, lines: list[str], kafka: Connections, muster: Connections) -> Outcome:
        """Play until neither chance nor the machine's speed affects the outcome, if possible."""
        slow = lucky = moving = 0
        while True:
            outcome = await duel(lines, kafka, muster, self.rules)
            self.plays += 1
            if outcome.is_too_slow and slow < _PLAYS_FOR_TIME:
                slow += 1
            elif outcome.is_unready and moving < _PLAYS_FOR_COORDINATORS:
                moving += 1
                await asyncio.sleep(_PAUSE_S)
            elif outcome.found and outcome.is_luck and lucky < _PLAYS_FOR_LUCK:
                lucky += 1
                self.lucky += lucky == 1
            else:
                return outcome

    async def _judge(
        self,
        seed: int,
        timed: bool,
        lines: list[str],
        outcome: Outcome,
        kafka: Connections,
        muster: Connections,
    ) -> None:
        wanted = signature(outcome.found[0])
        if wanted in self.findings:
            self.sightings[wanted] += 1
            return

        async def differs(fewer: list[str]) -> bool:
            again = await self._played(fewer, kafka, muster)
            return wanted in map(signature, again.found)

        for _ in range(_PLAYS_TO_CONFIRM):
            if not await differs(lines):
                self.passing.append(f"seed {seed}{' timed' if timed else ''}: {outcome.found[0]}")
                print(f"passing: {self.passing[-1]}", flush=True)
                return
        self.sightings[wanted] += 1
        if wanted in self.findings:
            return
        fewest = lines
        if len(self.findings) < _FINDINGS_SHRUNK_MAX:
            # So that no other worker shrinks it in the meantime.
            self.findings[wanted] = self._finding(seed, timed, lines, outcome)
            fewest = await shrunk(lines, differs)
            last = await self._played(fewest, kafka, muster)
            if wanted in map(signature, last.found):
                outcome = last
            else:
                fewest = lines
        self.findings[wanted] = self._finding(seed, timed, fewest, outcome)
        print(self.findings[wanted], flush=True)

    def _finding(self, seed: int, timed: bool, lines: list[str], outcome: Outcome) -> Finding:
        scenario = scenario_of(lines)
        scenario.steps = scenario.steps[: outcome.steps]
        scenario.lines = scenario.lines[: scenario.steps[-1].line]
        text = rewritten(scenario, outcome.ours)
        return Finding(self.kind, seed, timed, outcome.found, text, outcome.theirs[-1])

    def summary(self) -> str:
        lines = [
            f"{self.kind} groups: {self.compared} sequences of {self.steps} steps alike or judged in "
            f"{self.plays} plays",
            f"{self.lucky} played again for the leader that chance picks, {self.cut} compared up to there",
            f"{self.too_slow} given up: too slow to be certain of their timeouts",
            f"{len(self.passing)} differences gone when played again",
            *(f"deliberate, {count} times: {what}" for what, count in self.deliberate.most_common()),
            *(f"FOUND, {count} times: {what}" for what, count in self.sightings.most_common()),
        ]
        return "\n".join(lines)

"""Kafka Streams counts words with `exactly_once_v2`: two instances, one of which is killed now and then.

`programs/streams/WordCount.java` prints the lines of a member: `assigned` with the source's partitions whose
tasks it has, a `transaction` of step `counted` for every ten words that it has counted, committed or not, and
`left` after closing.
"""

from __future__ import annotations

import random
import time
import uuid
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from tests.interop.story.clients.base import PROGRAMS
from tests.interop.story.clients.java import compiled
from tests.interop.story.oracle import Oracle
from tests.interop.story.story import Outcome
from tests.interop.story.targets import Target
from tests.interop.transactions import checker
from tests.interop.transactions.clients import PARTITIONS
from tests.interop.transactions.play import SESSION_TIMEOUT_MS, write
from tests.interop.transactions.stage import WORKERS, Stage, perform
from tests.support.java import java
from tests.support.kafka_artifacts import streams_classpath

_VOCABULARY: Final = tuple(f"word{number}" for number in range(40))
_WORDS_OF_A_LINE: Final = 4
_WORDS_TOLD: Final = 10
_DELAY_MS_MAX: Final = 150.0
"""Longer than the 100 ms between two commits."""
_DONE_S: Final = 120.0


class Kill(NamedTuple):
    after: int
    """Multiples of ten words, counted from the beginning of a part."""
    delay_ms: float


@dataclass(frozen=True)
class Plan:
    seed: int
    lines: tuple[str, ...]
    kills: tuple[Kill, ...]

    @classmethod
    def of(cls, seed: int, lines: int, kills: int) -> Plan:
        dice = random.Random(seed)
        told = lines // (kills + 1) * _WORDS_OF_A_LINE // _WORDS_TOLD
        return cls(
            seed,
            tuple(" ".join(dice.choices(_VOCABULARY, k=_WORDS_OF_A_LINE)) for _ in range(lines)),
            tuple(
                Kill(dice.randint(1, max(1, told // 2)), dice.uniform(0, _DELAY_MS_MAX)) for _ in range(kills)
            ),
        )


def count_words(target: Target, plan: Plan) -> Outcome:
    """Kafka Streams and the broker cannot make it raise."""
    return perform(
        "kafka-streams", target, plan.seed, lambda folder, steps: _Counting(target, plan, folder, steps)
    )


def check(lines: Sequence[str], committed: Sequence[checker.Seen]) -> list[str]:
    """What is wrong with the counts: each word's must go up by one, to the number of times it was written."""
    written: defaultdict[str, int] = defaultdict(int)
    for line in lines:
        for word in line.split():
            written[word] += 1
    counts: defaultdict[str, list[str]] = defaultdict(list)
    for seen in committed:
        counts[seen.key].append(seen.value)
    return [
        f"{word} was written {written[word]} times, and its counts are {', '.join(counts[word])}"
        for word in sorted(written.keys() | counts.keys())
        if counts[word] != [str(count) for count in range(1, written[word] + 1)]
    ]


class _Counting(Stage):
    def __init__(self, target: Target, plan: Plan, folder: Path, steps: list[str]) -> None:
        super().__init__(target, folder, steps)
        self._plan = plan
        self._application = f"words-{uuid.uuid4().hex[:8]}"
        self._source, self._sink = f"{self._application}-lines", f"{self._application}-counts"
        self._fed = 0

    def play(self) -> list[str]:
        members, plan = self._members, self._plan
        oracle = Oracle(self._target.bootstrap)
        for topic in (self._source, self._sink):
            oracle.create_topic(topic, PARTITIONS)
        for name in WORKERS:
            self._start(name)
        part = len(plan.lines) // (len(plan.kills) + 1)
        for kill in plan.kills:
            members.wait_until_shared(*WORKERS, partitions=PARTITIONS)
            wanted = len(members.steps) + kill.after
            self._feed(part)
            self._wait_until_steps(wanted)
            time.sleep(kill.delay_ms / 1_000)  # into whatever comes next
            name, _ = members.steps[-1]
            members.kill(name)
            self._note(f"{name} was killed")
            self._start(name)
        self._feed(len(plan.lines) - self._fed)
        self._wait_until_read(self._sink, _WORDS_OF_A_LINE * len(plan.lines))
        self._note("all is counted")
        self._let_both_leave()
        committed, _ = self._read()
        uncommitted, _ = checker.read(self._target.bootstrap, self._sink, "read_uncommitted")
        self._note(f"{len(committed)} counts with read_committed, {len(uncommitted)} with read_uncommitted")
        return check(plan.lines, committed)

    def _start(self, name: str) -> None:
        state = str(self._folder / f"state-{name}")
        arguments = (self._target.bootstrap, self._application, self._source, self._sink, state)
        self._members.start(name, [*command(), *arguments, str(SESSION_TIMEOUT_MS)])

    def _feed(self, count: int) -> None:
        lines = self._plan.lines[self._fed : self._fed + count]
        numbered = enumerate(lines, self._fed)
        write(self._target.bootstrap, self._source, ((n % PARTITIONS, line.encode()) for n, line in numbered))
        self._fed += count

    def _read(self) -> tuple[list[checker.Seen], dict[int, int]]:
        return checker.read(self._target.bootstrap, self._sink, "read_committed")

    def _wait_until_steps(self, wanted: int) -> None:
        members = self._members
        members.wait_until(lambda: len(members.steps) >= wanted, f"{wanted} times ten words", _DONE_S)


def command() -> list[str]:
    """The program's command line; compiled once per machine."""
    sources = [PROGRAMS / "java" / "Lines.java", PROGRAMS / "streams" / "WordCount.java"]
    return [*java(compiled(sources, streams_classpath())), "WordCount"]

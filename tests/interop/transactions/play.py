"""The play: two workers transform a topic exactly once, and are killed at random points, again and again.

Everything random comes from one seed. The source is written in parts, one for each kill: once the workers
have reported a number of steps, the one that reported the last (or the broker) gets SIGKILL some milliseconds
later, and is restarted under the same transactional id. The next part comes when both have partitions again.
At the end both leave, and `checker` judges the result.
"""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple

from confluent_kafka import KafkaError, Message, Producer

from muster.client import Admin, TopicPartition
from tests.interop.story.oracle import Oracle
from tests.interop.story.processes import StoryFailed
from tests.interop.story.story import Outcome
from tests.interop.story.targets import Target
from tests.interop.transactions import checker
from tests.interop.transactions.clients import PARTITIONS, Transformer
from tests.interop.transactions.stage import WORKERS, Stage, perform

CONFIGS: Final = {"group.min.session.timeout.ms": "1000"}
"""Broker configs that let the session of a killed worker expire soon."""
SESSION_TIMEOUT_MS: Final = 3_000
VICTIMS: Final = ("worker", "coordinator of the group", "coordinator of the transaction")
"""A coordinator is the broker with that role at the moment: the only one, if there are no others."""
_STEPS_OF_A_TRANSACTION: Final = 3  # began, sent and its end, at least
_AGAIN: Final = ("sh", "-c", 'until "$@"; do echo "ended with $?" >&2; sleep 0.2; done', "sh")
"""Restarts a worker that exits when no broker can be reached, as franz-go is set up to: a supervisor would do
that."""
_ENDED_TO_TELL: Final = 40
"""This many transactions are enough to tell the protocols apart: each start adds a new epoch as well."""
_DELAY_MS_MAX: Final = 5.0
"""About as long as a step takes."""
_FEED_S: Final = 60.0
_DONE_S: Final = 120.0
_LOOK_AGAIN_S: Final = 0.05


class Kill(NamedTuple):
    after: int
    """After this many transaction steps, counted from the beginning of a part, the kill comes at the next"""
    step: int
    """of this kind, by its number among those that the client reports before the end of a transaction."""
    delay_ms: float
    victim: str
    """One of `VICTIMS`."""


@dataclass(frozen=True)
class Plan:
    """Everything that is random."""

    seed: int
    records: int
    records_max: int
    """Maximum per transaction."""
    abort_every: int
    kills: tuple[Kill, ...]

    @classmethod
    def of(cls, seed: int, records: int, kills: int, broker_kills: int = 0) -> Plan:
        """`broker_kills` come on top of the `kills` of workers."""
        dice = random.Random(seed)
        records_max = dice.randint(5, 15)
        part = records // (kills + broker_kills + 1)
        steps = max(1, part // records_max * _STEPS_OF_A_TRANSACTION * 3 // 4)
        worker, *coordinators = VICTIMS
        victims = [worker] * kills + [coordinators[number % 2] for number in range(broker_kills)]
        dice.shuffle(victims)
        return cls(
            seed,
            records,
            records_max,
            dice.randint(3, 7),
            tuple(
                Kill(dice.randint(1, steps), dice.randrange(6), dice.uniform(0, _DELAY_MS_MAX), victim)
                for victim in victims
            ),
        )


def play(transformer: Transformer, target: Target, plan: Plan) -> Outcome:
    """Neither the client, which is prepared, nor the broker can make it raise."""
    return perform(
        transformer.name,
        target,
        plan.seed,
        lambda folder, steps: _Playing(transformer, target, plan, folder, steps),
    )


def write(bootstrap: str, topic: str, records: Iterable[tuple[int, bytes]]) -> None:
    """Write these partitions and values. Returns when all are acknowledged; raises StoryFailed."""
    failures: list[KafkaError] = []

    def on_delivery(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            failures.append(error)

    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0})
    for partition, value in records:
        producer.produce(topic, value, partition=partition, on_delivery=on_delivery)
        producer.poll(0)
    if producer.flush(_FEED_S) or failures:
        raise StoryFailed(f"{topic} could not be written: {failures[:1]}")


def protocol_problems(transformer: Transformer, ended: int, greatest_epoch: int) -> list[str]:
    """Check that it used the kind of transactions it should. Those of KIP-890 have an epoch each; others get
    a new one after a start or a failure. `ended` counts the transactions of all workers together."""
    if ended < _ENDED_TO_TELL or (greatest_epoch > ended // 4) == transformer.kip_890:
        return []
    spoken = "before KIP-890" if transformer.kip_890 else "of KIP-890"
    return [
        f"{transformer.name} spoke the transactions {spoken}: epochs go up to {greatest_epoch} of {ended}"
    ]


async def _greatest_epoch(bootstrap: str, topic: str) -> int:
    """The greatest epoch of all producers that have written to the topic."""
    async with Admin(bootstrap) as admin:
        places = [TopicPartition(topic, number) for number in range(PARTITIONS)]
        described = (await admin.describe_producers(places)).raise_for_failures()
        return max(each.producer_epoch for each in chain(*described.values()))


class _Playing(Stage):
    def __init__(
        self, transformer: Transformer, target: Target, plan: Plan, folder: Path, steps: list[str]
    ) -> None:
        super().__init__(target, folder, steps)
        self._transformer = transformer
        self._plan = plan
        self._oracle = Oracle(target.bootstrap)
        # Several plays may share a broker.
        name = f"exactly-{transformer.name}-{uuid.uuid4().hex[:8]}"
        self._source, self._sink, self._group = f"{name}-in", f"{name}-out", f"{name}-group"
        self._fed = 0
        self._coordinators_die = any(kill.victim != VICTIMS[0] for kill in plan.kills)

    def play(self) -> list[str]:
        for topic in (self._source, self._sink):
            self._oracle.create_topic(topic, PARTITIONS)
        for name in WORKERS:
            self._start(name)
        part = self._plan.records // (len(self._plan.kills) + 1)
        for kill in self._plan.kills:
            self._members.wait_until_shared(*WORKERS, partitions=PARTITIONS)
            begun = len(self._members.steps)
            self._feed(part)
            self._wait_until_time_for(kill, begun)
            time.sleep(kill.delay_ms / 1_000)  # into whatever comes next
            self._kill(kill)
        self._feed(self._plan.records - self._fed)
        self._wait_until_done()
        if self._transformer.starts_late:
            self._wait_until_timed_out()
        self._let_both_leave()
        return self._check()

    def _wait_until_time_for(self, kill: Kill, begun: int) -> None:
        members, names = self._members, self._transformer.steps
        wanted = names[kill.step % len(names)]

        def is_it() -> bool:
            return len(members.steps) >= begun + kill.after and members.steps[-1][1].step == wanted

        members.wait_until(is_it, f"step {begun + kill.after} of transactions, then {wanted}", _DONE_S)

    def _check(self) -> list[str]:
        """What is wrong with the final state."""
        problems = []
        committed, stable_ends = checker.read(self._target.bootstrap, self._sink, "read_committed")
        uncommitted, ends = checker.read(self._target.bootstrap, self._sink, "read_uncommitted")
        told = Counter(step.step for _, step in self._members.steps)
        aborted = sum(step.records for _, step in self._members.steps if step.step == "aborted")
        problems += checker.check(self._plan.records, committed, uncommitted, aborted)
        if stable_ends != ends:
            problems.append(f"a transaction was left open: it can be read up to {stable_ends} of {ends}")
        wanted = self._oracle.ends(self._source, PARTITIONS)
        if (offsets := self._oracle.committed(self._group)) != wanted:
            problems.append(f"the group has committed {offsets}, and the source ends at {wanted}")
        if self._plan.abort_every and not aborted:
            problems.append("no transaction was aborted on purpose")
        epoch = asyncio.run(_greatest_epoch(self._target.bootstrap, self._sink))
        problems += protocol_problems(self._transformer, told["committed"] + told["aborted"], epoch)
        steps = ", ".join(f"{count} {step}" for step, count in sorted(told.items()))
        self._note(f"steps: {steps}; {len(uncommitted)} records with read_uncommitted; epochs up to {epoch}")
        return problems

    def _start(self, name: str) -> None:
        plan = self._plan
        more = (SESSION_TIMEOUT_MS, plan.abort_every, plan.records_max)
        command = [
            *(_AGAIN if self._coordinators_die else ()),
            *self._transformer.command(),
            *(self._target.bootstrap, self._group, self._source, self._sink, self._transactional_id(name)),
            *map(str, more),
        ]
        self._members.start(name, command)

    def _kill(self, kill: Kill) -> None:
        name, step = self._members.steps[-1]
        if kill.victim != VICTIMS[0]:
            self._kill_coordinator(kill.victim, name)
            self._note(f"the {kill.victim} was killed and started again, after {name} said {step.step}")
            return
        self._members.kill(name)
        _, last = [said for said in self._members.steps if said[0] == name][-1]
        self._note(f"{name} was killed after it said {last.step} ({last.records} records)")
        self._start(name)

    def _kill_coordinator(self, victim: str, worker: str) -> None:
        if not self._target.nodes:
            self._target.kill_and_start()
            return
        of_transactions = victim == VICTIMS[2]
        key = self._transactional_id(worker) if of_transactions else self._group
        at = self._oracle.wait_for_coordinator(key, lambda _: True, of_transactions=of_transactions)
        self._target.nodes[at].kill()
        self._target.nodes[at].start()

    def _transactional_id(self, worker: str) -> str:
        return f"{self._group}-{worker}"

    def _feed(self, count: int) -> None:
        """Write the next numbers to the source."""
        numbers = range(self._fed, self._fed + count)
        write(self._target.bootstrap, self._source, ((n % PARTITIONS, b"%d" % n) for n in numbers))
        self._fed += count

    def _wait_until_timed_out(self) -> None:
        deadline = time.monotonic() + _DONE_S
        while self._is_any_open(self._group):
            if time.monotonic() > deadline:
                raise StoryFailed(f"a transaction is still open after {_DONE_S:g} s")
            time.sleep(_LOOK_AGAIN_S)

    def _wait_until_done(self) -> None:
        """Fails when nothing more is committed for a while, however long everything takes."""
        wanted = self._oracle.ends(self._source, PARTITIONS)
        before: dict[int, int] | None = None
        deadline = 0.0
        while (committed := self._oracle.committed(self._group)) != wanted:
            if committed != before:
                before, deadline = committed, time.monotonic() + _DONE_S
            if time.monotonic() > deadline:
                raise StoryFailed(f"nothing more is committed after {_DONE_S:g} s: {committed} of {wanted}")
            self._members.raise_if_ended()
            time.sleep(_LOOK_AGAIN_S)
        self._note("all is committed")

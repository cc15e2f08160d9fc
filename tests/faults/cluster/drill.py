"""Rounds of faults: clients work, something goes wrong, the fault ends, and every promise is checked.

Everything a round decides comes from its seed. The machine decides the rest (what runs when), so a seed
replays the plan but not every interleaving.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Final
from uuid import UUID

from muster.client import Admin, NewTopic
from muster.coordinator.cluster.placement import data_shard
from tests.faults.batches import Violation
from tests.faults.cluster import checker
from tests.faults.cluster.agreement import agreed
from tests.faults.cluster.audit import Audit, Noted
from tests.faults.cluster.faults import FAULTS, SETS_CLOCKS
from tests.faults.cluster.lab import NODES, PORT, TERM_S, Lab
from tests.faults.cluster.load import ClientStoodStill, Load
from tests.faults.cluster.netns import SWITCH
from tests.faults.cluster.setting import (
    IN_TRANSACTIONS,
    IN_TRANSACTIONS_PARTITIONS,
    PARTITIONS,
    TOPIC,
)

BOUND_S: Final = 40.0
"""Everybody is served again within a term plus this. Sized for a slow and busy machine; the actual time is
reported."""
ROUNDS_A_LAB: Final = 2 * len(FAULTS)
"""The number of rounds one cluster lives through; then a new one replaces it."""
FAILURES_MAX: Final = 5
"""A campaign gives up after this many failed rounds."""
_FORM_S: Final = 120.0
_AT_REST_S: Final = 3.0
_GROUPS_A_BROKER: Final = 2
_NAMES: Final = 60


@dataclass
class Figures:
    """The totals over a number of rounds."""

    rounds: int = 0
    records: int = 0
    commits: int = 0
    transactions: int = 0
    writes: int = 0
    claims: int = 0
    generations: int = 0
    taken_over_s: dict[str, list[float]] = field(default_factory=dict)
    """By fault: time from the strike until the remaining brokers served everybody."""
    failures: list[str] = field(default_factory=list)
    stood_still: int = 0
    """How often a stock client stopped of its own accord; the round was restarted in a new cluster."""
    begun: float = field(default_factory=time.monotonic)

    def __str__(self) -> str:
        lines = [
            f"{self.rounds} rounds in {time.monotonic() - self.begun:.0f} s, {len(self.failures)} failed, "
            f"{self.stood_still} begun again because a stock client had stopped; "
            f"{self.records} records, {self.commits} commits and {self.transactions} transactions "
            f"acknowledged, {self.writes} writes under "
            f"{self.claims} claims looked at, {self.generations} generations"
        ]
        for fault, seconds in sorted(self.taken_over_s.items()):
            middle = sorted(seconds)[len(seconds) // 2]
            lines.append(
                f"  served again after {fault}: {middle:.1f} s (middle), {max(seconds):.1f} s (longest)"
            )
        return "\n".join(lines)


class Drill:
    """One cluster with its clients, struck by one fault after the other."""

    bound_s = BOUND_S

    def __init__(self, lab: Lab, seed: str, figures: Figures) -> None:
        self.lab = lab
        self.dice = random.Random()
        # Clients have dice of their own; otherwise their behaviour would decide what goes wrong.
        self.load = Load(lab.bootstrap, lab.directory, random.Random(seed))
        self._figures = figures
        self._counts: dict[str, int] = {}
        self._audit = Audit(self._lease_of)
        self._fault = ""
        self._said = ""
        self._struck_at = 0.0

    async def begin(self) -> None:
        """Start brokers and clients; returns when all groups work."""
        connection = await self.lab.superuser()
        try:
            rows = await connection.fetch("SELECT kind, count(*) AS count FROM muster.leases GROUP BY kind")
            self._counts = {row["kind"]: row["count"] for row in rows}
            await self._audit.install(connection)
        finally:
            await connection.close()
        await self.lab.start()
        async with Admin(self.lab.bootstrap) as admin:
            await admin.create_topics(
                [
                    NewTopic(name=TOPIC, num_partitions=PARTITIONS),
                    NewTopic(name=IN_TRANSACTIONS, num_partitions=IN_TRANSACTIONS_PARTITIONS),
                ]
            )
        await agreed(NODES, PORT, [], _FORM_S)
        self.load.start(await self._names())
        await self.load.settled(_FORM_S)
        await self._at_rest()
        await self.load.served(time.monotonic(), _FORM_S)

    async def end(self) -> None:
        """Stop the clients, and check everything once more."""
        await self.load.stop()
        await self.load.check_whole()
        noted = await self._read_audit()
        self._figures.claims += len(noted.claims)
        self._figures.generations += len(noted.generations)
        self._figures.records += self.load.records
        self._figures.commits += self.load.commits
        self._figures.transactions += self.load.transactions

    async def give_up(self) -> None:
        """Stop the clients, whether that succeeds or not."""
        self.lab.mend()
        with suppress(Exception):
            await self.load.stop()

    async def round(self, fault: str, seed: str) -> str:
        """Returns what happened, as text. Raises Violation, or AssertionError if something never happens."""
        self.dice.seed(seed)
        self._fault, self._said = fault, ""
        before = self.load.rebalances(await self._read_audit())
        self._struck_at = time.monotonic()
        await FAULTS[fault](self)
        over_at = time.monotonic()
        await self.whole()
        back_s = await self.load.served(over_at, TERM_S + BOUND_S)
        self.lab.look()
        after = self.load.rebalances(await self._read_audit())
        for group, then in before.items():
            checker.check_no_rebalance(group, then, after[group])
        await self.load.check()
        lasted = f"{over_at - self._struck_at:.1f} s, served {back_s:.1f} s after it"
        return f"{fault}: {self._said}; {lasted}"

    @property
    def said(self) -> str:
        """What the fault does in this round."""
        return self._said

    # --- what faults need -----------------------------------------------------------------------------------

    def say(self, said: str) -> None:
        self._said = said

    async def taken_over(self) -> None:
        seconds = await self.load.served(self._struck_at, TERM_S + BOUND_S)
        self._figures.taken_over_s.setdefault(self._fault, []).append(seconds)
        self._said += f", taken over after {seconds:.1f} s"

    async def whole(self) -> None:
        await agreed(NODES, PORT, [each.history.group for each in self.load.groups], BOUND_S)

    async def last(self, seconds: float) -> None:
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            self.load.look()
            await asyncio.sleep(0.05)

    # --------------------------------------------------------------------------------------------------------

    async def _names(self) -> list[str]:
        """Names for steady groups, chosen so that each broker coordinates some."""
        candidates = [f"steady-{number}" for number in range(_NAMES)]
        ends = time.monotonic() + _FORM_S
        while time.monotonic() < ends:
            view = await agreed(NODES, PORT, candidates, _FORM_S)
            here = [[group for group, at in view.coordinators if at == node] for node in NODES]
            if min(map(len, here)) >= _GROUPS_A_BROKER:
                return [group for groups in here for group in groups[:_GROUPS_A_BROKER]]
            await asyncio.sleep(0.1)
        raise AssertionError(f"some broker coordinates nothing after {_FORM_S:.0f} s: {view}")

    async def _at_rest(self) -> None:
        """Wait until the last members have learned of the last rebalance of the groups' formation."""
        ends = time.monotonic() + _FORM_S
        while time.monotonic() < ends:
            before = self.load.rebalances(await self._read_audit())
            await self.last(_AT_REST_S)
            if before == self.load.rebalances(await self._read_audit()):
                return
        raise AssertionError(f"groups do not come to rest within {_FORM_S:.0f} s")

    def _lease_of(self, topic_id: UUID, partition: int) -> str:
        return f"data {data_shard(topic_id, partition, self._counts['data'])}"

    async def _read_audit(self) -> Noted:
        """Read on, and judge what was recorded."""
        connection = await self.lab.superuser()
        try:
            noted = await self._audit.read(connection)
        finally:
            await connection.close()
        checker.check_epochs(noted.claims, noted.epochs)
        checker.check_writes(noted.claims, noted.writes)
        checker.check_owners(noted.generations)
        offsets = (each for each in noted.offsets if not each.group.startswith("zombie-"))
        checker.check_offset_writes(offsets, self.load.repeated())
        self._figures.writes += len(noted.writes)
        noted.writes.clear()  # judged
        return noted


def plan(dice: random.Random, rounds: int, faults: Sequence[str]) -> list[str]:
    """Each fault `rounds` times: all of them in some order, then all again; last those that set clocks."""
    planned = [fault for _ in range(rounds) for fault in dice.sample(list(faults), len(faults))]
    return sorted(planned, key=lambda fault: fault in SETS_CLOCKS)


def campaign(
    seed: int,
    rounds: int,
    directory: Path,
    say: Callable[[str], None],
    faults: Sequence[str] = tuple(FAULTS),
) -> Figures:
    """`rounds` rounds of each fault; a failed one is reported, and the others go on in a new cluster. Logs of
    failures are kept below `directory`. Raises Violation with all failures at the end."""
    figures = Figures()
    planned = plan(random.Random(seed), rounds, faults)
    done = 0
    while done < len(planned) and len(figures.failures) + figures.stood_still < FAILURES_MAX:
        here = directory / f"from-round-{done + 1}"
        failed = len(figures.failures)
        done = _live(seed, planned, done, here, say, figures)
        if len(figures.failures) == failed:
            shutil.rmtree(here)
    if figures.failures or done < len(planned):
        raise Violation("\n\n".join((str(figures), *figures.failures)))
    return figures


def _live(
    seed: int,
    planned: Sequence[str],
    done: int,
    directory: Path,
    say: Callable[[str], None],
    figures: Figures,
) -> int:
    """One cluster's life; returns how many of the planned rounds are done after it."""
    own_clocks = planned[done] in SETS_CLOCKS
    ahead = list(enumerate(planned, start=1))[done : done + ROUNDS_A_LAB]
    with Lab(directory, own_clocks=own_clocks) as lab, lab.network.entered(SWITCH):

        async def live() -> int:
            drill = Drill(lab, f"{seed}/clients/{done + 1}", figures)
            number, fault = done + 1, "begin"
            try:
                await drill.begin()
                for number, fault in takewhile(lambda each: (each[1] in SETS_CLOCKS) == own_clocks, ahead):
                    said = await drill.round(fault, f"{seed}/{number}")
                    figures.rounds += 1
                    say(f"seed {seed}, round {number}: {said}")
                fault = "the end"
                await drill.end()
            except ClientStoodStill as stood:
                figures.stood_still += 1
                say(f"seed {seed}, round {number}, {fault}: once more, a stock client has stopped: {stood}")
                await drill.give_up()
                return number - 1
            except Exception as failure:
                where = f"seed {seed}, round {number}, {fault}: {drill.said}"
                told = "".join(traceback.format_exception(failure)).rstrip()
                figures.failures.append(f"{where}: {told}\n(logs: {directory})")
                say(f"FAILED {figures.failures[-1]}")
                await drill.give_up()
                return number
            return number

        return asyncio.run(live())

"""Fuzzes a live broker for a long time, in rounds of every attack. Its other clients must not notice."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from tests.bench.processes import cpu_seconds
from tests.fuzz import flood
from tests.fuzz.attack import Sent
from tests.fuzz.attacked import attackers, attackers_cpu_s, broker, from_processes, settled, tidy
from tests.fuzz.bystanders import BYSTANDERS, GROUP, TOPIC, Bystanders, create_topic
from tests.fuzz.inputs import FAMILIAR
from tests.fuzz.live import check_growth, garbage, told_of_growth, told_of_others
from tests.fuzz.run import Failed
from tests.fuzz.sweep import Tally, sweep, unasked
from tests.support.asked import Asked
from tests.support.held import LEFT

_ATTACKERS: Final = 2
_WRONG_SHOWN: Final = 5
_MEANWHILE: Final = 20
"""Requests of each bystander to be answered while the idle connections are open."""


class Sizes(NamedTuple):
    """How much of each attack a round contains. The sweep is always complete."""

    garbage: int = 2_000
    idle: int = 10_000
    flood: int = 10_000


_NONE: Final = Sent(0, 0, 0, 0)
_WHOLE: Final = Sizes()


@dataclass
class Outcome:
    rounds: int = 0
    sent: Sent = _NONE
    tally: Tally = field(default_factory=Counter)
    served: set[int] = field(default_factory=set)
    stood: int = 0
    flooded: int = 0
    seconds: float = 0.0
    broker_cpu_s: float = 0.0
    attackers_cpu_s: float = 0.0
    resident_most: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    worst_ms: dict[str, float] = field(default_factory=dict)
    before: dict[str, Any] = field(default_factory=dict)
    after: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        became: Counter[str] = Counter()
        for (_, _, _, what), count in self.tally.items():
            became[what] += count
        versions = {
            (key, version) for key, version, valid, what in self.tally if valid and what == "answered"
        }
        answered = self.sent.answered_to_the_end
        return (
            f"{self.rounds} rounds in {self.seconds:.0f} s: {self.broker_cpu_s:.0f} s of the processor for "
            f"the broker, {self.attackers_cpu_s:.0f} s for the attack\n"
            f"garbage: {self.sent.connections:,} connections, {self.sent.frames:,} inputs; {answered:,} "
            f"served to the end, {self.sent.closed:,} closed by the broker\n"
            f"sweeps: {sum(became.values()):,} requests, "
            + ", ".join(f"{count:,} {what}" for what, count in sorted(became.items()))
            + f"; {len({key for key, _ in versions})} APIs answered in {len(versions)} versions\n"
            f"idle connections at a time: {self.stood:,}; connects in floods: {self.flooded:,}\n"
            f"{told_of_others(self.counts, self.worst_ms)}\n"
            f"{told_of_growth(self.before, self.after)}; at most {self.resident_most >> 20} MiB"
        )


def run(seed: int, cpu_minutes: float, sizes: Sizes = _WHOLE, say: Callable[[str], None] = print) -> Outcome:
    """Run rounds, at least one, until broker and attackers together have used `cpu_minutes` of CPU time.
    Raises Failed."""
    return asyncio.run(_run(seed, cpu_minutes, sizes, say))


async def _run(seed: int, cpu_minutes: float, sizes: Sizes, say: Callable[[str], None]) -> Outcome:
    async with broker(f"seed {seed}") as served:
        campaign = _Campaign(served, seed, sizes)
        # What the first round leaves in caches and in the allocator does not count as growth.
        await campaign.round(0)
        await tidy(campaign.port)
        before = await settled(served, lambda now: now["connections"] == now["connection_tasks"] == 0)
        campaign.outcome = outcome = Outcome(before=before)
        began, attackers_before = time.monotonic(), attackers_cpu_s()
        broker_before = cpu_seconds(served.pid)
        bystanders = Bystanders()
        try:
            await bystanders.start(campaign.port)
            campaign.bystanders = bystanders
            while True:
                outcome.rounds += 1
                await campaign.round(outcome.rounds)
                outcome.broker_cpu_s = cpu_seconds(served.pid) - broker_before
                outcome.attackers_cpu_s = attackers_cpu_s() - attackers_before
                outcome.seconds = time.monotonic() - began
                say(f"round {outcome.rounds}: {await campaign.tidied()}")
                if outcome.broker_cpu_s + outcome.attackers_cpu_s >= cpu_minutes * 60:
                    break
            await bystanders.finish()
        finally:
            await bystanders.close()
        await tidy(campaign.port)
        outcome.after = await settled(
            served, lambda now: all(now[what] <= before[what] for what in LEFT), before
        )
        check_growth(before, outcome.after)
        outcome.counts, outcome.worst_ms = bystanders.counts, bystanders.worst_ms
        if missed := unasked(outcome.tally, outcome.served):
            raise Failed(f"never answered: {', '.join(missed)}")
        return outcome


class _Campaign:
    """Rounds against a single broker."""

    def __init__(self, served: Asked, seed: int, sizes: Sizes) -> None:
        self.port = int(served.ready_line)
        self.outcome = Outcome()
        self.bystanders: Bystanders | None = None
        self._served = served
        self._seed = seed
        self._sizes = sizes

    async def round(self, number: int) -> None:
        """Run every attack once."""
        await create_topic(self.port, FAMILIAR, 4)
        sent = await garbage(self.port, self._seed, number * self._sizes.garbage, self._sizes.garbage)
        self.outcome.sent = Sent(*map(sum, zip(self.outcome.sent, sent, strict=True)))
        await self._sweep(number)
        await self._idle(number)
        flooded = await from_processes(flood.connect_flood, self._shares(number, self._sizes.flood))
        self.outcome.flooded += sum(flooded)

    async def tidied(self) -> str:
        """Check that the broker is as before, with only the bystanders connected, and describe what it holds.
        Raises Failed."""
        await tidy(self.port, topics=(TOPIC,), groups=(GROUP,))
        now = await settled(
            self._served,
            lambda now: now["connections"] <= BYSTANDERS and now["connection_tasks"] <= BYSTANDERS,
            self.outcome.before,
        )
        check_growth(self.outcome.before, now)
        self._note(now)
        return (
            f"{now['resident_bytes'] >> 20} MiB, {now['tasks']} tasks, {now['files']} files; "
            f"{self.outcome.broker_cpu_s:.0f} s of the processor for the broker, "
            f"{self.outcome.attackers_cpu_s:.0f} s for the attack"
        )

    def _note(self, facts: dict[str, Any]) -> None:
        self.outcome.resident_most = max(self.outcome.resident_most, facts["resident_bytes"])

    def _shares(self, number: int, count: int) -> list[tuple[Any, ...]]:
        each = count // _ATTACKERS
        return [(self.port, f"{self._seed} {number} {index}", each) for index in range(_ATTACKERS)]

    async def _sweep(self, number: int) -> None:
        shares = [(self.port, self._seed, number, (index, _ATTACKERS)) for index in range(_ATTACKERS)]
        wrong: list[str] = []
        for tally, went_wrong, served in await from_processes(sweep, shares):
            self.outcome.tally.update(tally)
            self.outcome.served |= served
            wrong += went_wrong
        if wrong:
            shown = "\n".join(wrong[:_WRONG_SHOWN])
            raise Failed(f"seed {self._seed}, sweep {number}: {len(wrong)} answers went wrong\n{shown}")

    async def _idle(self, number: int) -> None:
        """Hold idle connections while the bystanders go on; then close all of them at once."""
        shares = self._shares(number, self._sizes.idle)
        async with attackers(flood.stand_idle, shares) as reports:
            stand = sum([await asyncio.to_thread(report.recv) for report in reports])
            # The last ones may still be in the listen backlog, accepted only by the system.
            self._note(await settled(self._served, lambda now: now["connections"] >= stand, stand))
            if self.bystanders is not None:
                await self.bystanders.more(_MEANWHILE)
            for report in reports:
                report.send("go")
            stood = sum([await asyncio.to_thread(report.recv) for report in reports])
        if stood < stand:
            raise Failed(f"of {stand} idle connections {stand - stood} were closed")
        self.outcome.stood = stood
